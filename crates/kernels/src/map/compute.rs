//! Computes the steps of a program on one tile.

#![expect(
    unsafe_code,
    reason = "tiles lie in inputs, outputs or scratch, whose lengths the caller checks"
)]

use super::program::{Binary, MapValue, Step};
use crate::activation::activate_pointers;
use coremill_simd::Isa;
use coremill_simd::math::{Operand, Unary, pow_pointers, unary_pointers};
use coremill_simd::vector::{Kernel, Vector, dispatch};

/// The elements of a value in the current tile.
#[derive(Clone, Copy)]
pub(super) struct View {
    elements: *const f32,
    /// Whether a single element represents all.
    uniform: bool,
    /// That element. It is stored separately, because a full-length result may overwrite its memory.
    value: f32,
}

impl View {
    pub(super) fn new(elements: *const f32) -> View {
        View { elements, uniform: false, value: 0.0 }
    }

    pub(super) fn uniform(elements: *const f32, value: f32) -> View {
        View { elements, uniform: true, value }
    }

    pub(super) fn elements(self) -> *const f32 {
        self.elements
    }

    /// The single element, if the view is uniform.
    pub(super) fn value(self) -> Option<f32> {
        self.uniform.then_some(self.value)
    }
}

/// Computes `length` elements of a step from its operands. Inputs and constants have no operands, so that
/// nothing is computed for them.
///
/// # Safety
/// Each operand's view must have `length` readable elements, or one if it is uniform. `target` must have
/// `length` writable elements, and must be one of the views or overlap none of them.
pub(super) unsafe fn compute(
    isa: Isa,
    step: &Step,
    views: &[View],
    target: *mut f32,
    length: usize,
) {
    let view = |value: MapValue| views[value.index()];
    // SAFETY: the caller guarantees the views and the target; this applies to all calls below.
    unsafe {
        match *step {
            Step::Input(_) | Step::Constant(_) => {}
            Step::Unary(function, value) => {
                unary_pointers(isa, function, view(value).elements, target, length);
            }
            Step::Activation(activation, value) => {
                activate_pointers(isa, activation, view(value).elements, target, length);
            }
            Step::Binary(Binary::Pow, left, right) => {
                power(isa, view(left), view(right), target, length);
            }
            Step::Binary(Binary::FloorDiv, left, right) => {
                lane_pairs(|a, b| floor_and_rest(a, b).0, view(left), view(right), target, length);
            }
            Step::Binary(Binary::Mod, left, right) => {
                lane_pairs(|a, b| floor_and_rest(a, b).1, view(left), view(right), target, length);
            }
            Step::RoundToFp16(value) => {
                let operands = [view(value); 3];
                dispatch(isa, Compute { function: Function::Round, operands, target, length });
            }
            Step::Binary(function, left, right) => {
                let function = Function::Binary(function);
                let operands = [view(left), view(right), view(right)];
                dispatch(isa, Compute { function, operands, target, length });
            }
            Step::MulAdd(factor, other, addend) => {
                let operands = [factor, other, addend].map(view);
                dispatch(isa, Compute { function: Function::MulAdd, operands, target, length });
            }
            Step::Select(condition, yes, no) => {
                let operands = [condition, yes, no].map(view);
                dispatch(isa, Compute { function: Function::Select, operands, target, length });
            }
        }
    }
}

/// A step that this module compiles for each instruction set.
#[derive(Clone, Copy)]
enum Function {
    Round,
    Binary(Binary),
    MulAdd,
    Select,
}

struct Compute {
    function: Function,
    /// Functions with fewer operands repeat the last one.
    operands: [View; 3],
    target: *mut f32,
    length: usize,
}

impl Kernel for Compute {
    type Output = ();

    #[inline(always)]
    fn run<V: Vector>(self) {
        let Compute { function, operands: [a, b, c], target, length } = self;
        // SAFETY: the caller of `compute` guarantees the views and the target.
        unsafe {
            match function {
                Function::Round => round_to_fp16::<V>(a.elements, target, length),
                Function::Binary(function) => binary::<V>(function, a, b, target, length),
                Function::MulAdd => ternary::<V>(a, b, c, target, length, false),
                Function::Select => ternary::<V>(a, b, c, target, length, true),
            }
        }
    }
}

/// Applies a function of two single elements that has no vector version.
///
/// # Safety
/// Same as for [`compute`].
unsafe fn lane_pairs(
    function: impl Fn(f32, f32) -> f32,
    left: View,
    right: View,
    target: *mut f32,
    length: usize,
) {
    for at in 0..length {
        // SAFETY: the caller guarantees the views and the target.
        unsafe {
            let a = if left.uniform { left.value } else { *left.elements.add(at) };
            let b = if right.uniform { right.value } else { *right.elements.add(at) };
            *target.add(at) = function(a, b);
        }
    }
}

/// Fills `length` elements.
///
/// # Safety
/// `length` elements must be writable at `target`.
#[inline(always)]
pub(super) unsafe fn fill(value: f32, target: *mut f32, length: usize) {
    // SAFETY: the caller guarantees the target.
    unsafe { std::slice::from_raw_parts_mut(target, length) }.fill(value);
}

/// # Safety
/// `at + count` elements must be readable at `source`, and `count` must be at most `LANES`.
#[inline(always)]
unsafe fn load<V: Vector>(source: *const f32, at: usize, count: usize) -> V {
    // SAFETY: the caller guarantees the elements.
    unsafe {
        if count == V::LANES {
            V::load(source.add(at))
        } else {
            V::load_partial(source.add(at), count)
        }
    }
}

/// # Safety
/// `at + count` elements must be writable at `target`, and `count` must be at most `LANES`.
#[inline(always)]
unsafe fn store<V: Vector>(x: V, target: *mut f32, at: usize, count: usize) {
    // SAFETY: the caller guarantees the elements.
    unsafe {
        if count == V::LANES {
            x.store(target.add(at));
        } else {
            x.store_partial(target.add(at), count);
        }
    }
}

/// # Safety
/// Same as for [`compute`].
#[inline(always)]
unsafe fn round_to_fp16<V: Vector>(source: *const f32, target: *mut f32, length: usize) {
    for at in (0..length).step_by(V::LANES) {
        let count = V::LANES.min(length - at);
        // SAFETY: the caller guarantees the views and the target.
        unsafe { store(load::<V>(source, at, count).round_to_f16(), target, at, count) };
    }
}

/// With `chooses`, `c` if `a` is 0, else `b`. Otherwise `a · b + c`.
///
/// # Safety
/// Same as for [`compute`].
#[inline(always)]
unsafe fn ternary<V: Vector>(
    a: View,
    b: View,
    c: View,
    target: *mut f32,
    length: usize,
    chooses: bool,
) {
    for at in (0..length).step_by(V::LANES) {
        let count = V::LANES.min(length - at);
        // SAFETY: the caller guarantees the views and the target.
        unsafe {
            let a = view::<V>(a, at, count);
            let (b, c) = (view::<V>(b, at, count), view::<V>(c, at, count));
            let result =
                if chooses { V::select(a.equal(V::zero()), c, b) } else { a.mul_add(b, c) };
            store(result, target, at, count);
        }
    }
}

/// # Safety
/// Same as for [`load`], but a uniform view needs only one element.
#[inline(always)]
unsafe fn view<V: Vector>(view: View, at: usize, count: usize) -> V {
    // SAFETY: the caller guarantees the elements.
    unsafe { if view.uniform { V::splat(view.value) } else { load(view.elements, at, count) } }
}

/// A function of two vectors.
trait Pairwise<V: Vector> {
    fn of(a: V, b: V) -> V;
}

/// # Safety
/// Same as for [`compute`].
#[inline(always)]
unsafe fn pairs<V: Vector, F: Pairwise<V>>(
    left: View,
    right: View,
    target: *mut f32,
    length: usize,
) {
    let full = length - length % V::LANES;
    // SAFETY: the caller guarantees the views and the target.
    unsafe {
        // Two uniform operands have a uniform result with one element.
        if right.uniform {
            let b = V::splat(right.value);
            for at in (0..full).step_by(V::LANES) {
                F::of(V::load(left.elements.add(at)), b).store(target.add(at));
            }
        } else if left.uniform {
            let a = V::splat(left.value);
            for at in (0..full).step_by(V::LANES) {
                F::of(a, V::load(right.elements.add(at))).store(target.add(at));
            }
        } else {
            for at in (0..full).step_by(V::LANES) {
                let a = V::load(left.elements.add(at));
                F::of(a, V::load(right.elements.add(at))).store(target.add(at));
            }
        }
        if full < length {
            let rest = length - full;
            let result = F::of(view(left, full, rest), view(right, full, rest));
            result.store_partial(target.add(full), rest);
        }
    }
}

/// # Safety
/// Same as for [`compute`].
#[inline(always)]
unsafe fn binary<V: Vector>(
    function: Binary,
    left: View,
    right: View,
    target: *mut f32,
    length: usize,
) {
    macro_rules! pairs {
        ($a:ident, $b:ident, $result:expr) => {{
            struct Function;
            impl<V: Vector> Pairwise<V> for Function {
                #[inline(always)]
                fn of($a: V, $b: V) -> V {
                    $result
                }
            }
            // SAFETY: the caller guarantees the views and the target.
            unsafe { pairs::<V, Function>(left, right, target, length) }
        }};
    }
    macro_rules! truths {
        ($a:ident, $b:ident, $truth:expr) => {
            pairs!($a, $b, V::select($truth, V::splat(1.0), V::zero()))
        };
    }
    match function {
        Binary::Add => pairs!(a, b, a.add(b)),
        Binary::Sub => pairs!(a, b, a.sub(b)),
        Binary::Mul => pairs!(a, b, a.mul(b)),
        Binary::Div => pairs!(a, b, a.div(b)),
        Binary::Min => pairs!(a, b, a.min_nan(b)),
        Binary::Max => pairs!(a, b, a.max_nan(b)),
        Binary::FloorDiv | Binary::Mod | Binary::Pow => {
            unreachable!("`compute` has other functions for these")
        }
        Binary::Equal => truths!(a, b, a.equal(b)),
        Binary::NotEqual => truths!(a, b, V::not(a.equal(b))),
        Binary::Less => truths!(a, b, a.less(b)),
        Binary::LessEqual => truths!(a, b, a.less_equal(b)),
        Binary::Greater => truths!(a, b, b.less(a)),
        Binary::GreaterEqual => truths!(a, b, b.less_equal(a)),
        Binary::And => truths!(a, b, V::both(is_true(a), is_true(b))),
        Binary::Or => truths!(a, b, V::either(is_true(a), is_true(b))),
        Binary::Xor => truths!(
            a,
            b,
            V::both(V::either(is_true(a), is_true(b)), V::not(V::both(is_true(a), is_true(b))))
        ),
    }
}

#[inline(always)]
fn is_true<V: Vector>(x: V) -> V::Mask {
    V::not(x.equal(V::zero()))
}

/// Quotient and remainder as in Python's `divmod`.
fn floor_and_rest(a: f32, b: f32) -> (f32, f32) {
    let mut rest = a % b;
    if b == 0.0 {
        return (a / b, rest);
    }
    let mut quotient = (a - rest) / b;
    if rest != 0.0 {
        if (b < 0.0) != (rest < 0.0) {
            rest += b;
            quotient -= 1.0;
        }
    } else {
        rest = 0f32.copysign(b);
    }
    // `quotient` is close to an integer, but may be inexact because of the division.
    let floor = if quotient == 0.0 { 0f32.copysign(a / b) } else { quotient.round() };
    (floor, rest)
}

/// # Safety
/// Same as for [`compute`].
unsafe fn power(isa: Isa, left: View, right: View, target: *mut f32, length: usize) {
    // SAFETY: the caller guarantees the views and the target.
    unsafe {
        if right.uniform && !left.uniform {
            // The most frequent exponents, with the accuracy of `pow`.
            let function = match right.value {
                2.0 => Some(Unary::Square),
                -1.0 => Some(Unary::Reciprocal),
                _ => None,
            };
            if let Some(function) = function {
                return unary_pointers(isa, function, left.elements, target, length);
            }
        }
        let operands = [left, right].map(|view| {
            if view.uniform {
                Operand::Uniform(view.value)
            } else {
                Operand::Elements(view.elements)
            }
        });
        pow_pointers(isa, operands, target, length);
    }
}
