//! The steps of a program on one tile.

#![expect(
    unsafe_code,
    reason = "tiles lie in inputs, outputs or scratch, whose lengths the caller checks"
)]

use super::program::{Binary, Step};
use crate::Isa;
use crate::kernels::math::{Operand, activate_pointers, lanes, pow_pointers, unary_pointers};
use crate::kernels::vector::Vector;

/// A value's elements for the tile at hand.
#[derive(Clone, Copy)]
pub(super) struct View {
    elements: *const f32,
    /// Whether there is one element only, which stands for all.
    uniform: bool,
    /// That element: where it stands, a result of full length may come.
    value: f32,
}

impl View {
    pub(super) fn new(elements: *const f32) -> View {
        View { elements, uniform: false, value: 0.0 }
    }

    pub(super) fn uniform(value: &f32) -> View {
        View { elements: value, uniform: true, value: *value }
    }

    pub(super) fn elements(self) -> *const f32 {
        self.elements
    }

    pub(super) fn is_uniform(self) -> bool {
        self.uniform
    }
}

/// Computes `length` elements of the step from those of its operands.
///
/// # Safety
/// Each operand's view has `length` readable elements, or one where it is uniform, and `target` as many
/// writable ones; `target` is one of the views or overlaps none. Inputs and constants have no operands and
/// nothing is done for them.
#[inline(always)]
pub(super) unsafe fn compute<V: Vector>(
    isa: Isa,
    step: &Step,
    views: &[View],
    target: *mut f32,
    length: usize,
) {
    // SAFETY: of all calls below: the caller vouches for the views and the target.
    unsafe {
        match *step {
            Step::Input(_) | Step::Constant(_) => {}
            Step::Unary(function, value) => {
                unary_pointers(isa, function, views[value.index()].elements, target, length);
            }
            Step::Activation(activation, value) => {
                let source = views[value.index()].elements;
                activate_pointers(isa, activation, source, target, length);
            }
            Step::RoundToFp16(value) => {
                let source = views[value.index()].elements;
                each::<V>(target, length, |at, count| load::<V>(source, at, count).round_to_f16());
            }
            Step::Binary(function, left, right) => {
                let (left, right) = (views[left.index()], views[right.index()]);
                binary::<V>(isa, function, left, right, target, length);
            }
            Step::MulAdd(factor, other, addend) => {
                let [a, b, c] = [factor, other, addend].map(|value| views[value.index()]);
                ternary::<V>(a, b, c, target, length, |a, b, c| a.mul_add(b, c));
            }
            Step::Select(condition, yes, no) => {
                let [a, b, c] = [condition, yes, no].map(|value| views[value.index()]);
                ternary::<V>(a, b, c, target, length, |a, b, c| {
                    V::select(a.equal(V::zero()), c, b)
                });
            }
        }
    }
}

/// Fills `length` elements.
///
/// # Safety
/// As many elements must be writable at `target`.
#[inline(always)]
pub(super) unsafe fn fill<V: Vector>(value: f32, target: *mut f32, length: usize) {
    // SAFETY: the caller vouches for the target.
    unsafe { each::<V>(target, length, |_, _| V::splat(value)) };
}

/// # Safety
/// `at + count` elements must be readable at `source`, and `count` is at most `LANES`.
#[inline(always)]
unsafe fn load<V: Vector>(source: *const f32, at: usize, count: usize) -> V {
    // SAFETY: the caller vouches for the elements.
    unsafe {
        if count == V::LANES {
            V::load(source.add(at))
        } else {
            V::load_partial(source.add(at), count)
        }
    }
}

/// Stores what `vector` gives for each position and number of lanes.
///
/// # Safety
/// `length` elements must be writable at `target`.
#[inline(always)]
unsafe fn each<V: Vector>(target: *mut f32, length: usize, vector: impl Fn(usize, usize) -> V) {
    let mut at = 0;
    while at + V::LANES <= length {
        // SAFETY: `at + LANES` is within the length that the caller vouches for.
        unsafe { vector(at, V::LANES).store(target.add(at)) };
        at += V::LANES;
    }
    if at < length {
        // SAFETY: `length` is what the caller vouches for.
        unsafe { vector(at, length - at).store_partial(target.add(at), length - at) };
    }
}

/// # Safety
/// As [`compute`].
#[inline(always)]
unsafe fn ternary<V: Vector>(
    a: View,
    b: View,
    c: View,
    target: *mut f32,
    length: usize,
    function: impl Fn(V, V, V) -> V,
) {
    // SAFETY: the caller vouches for the views and the target.
    unsafe {
        each::<V>(target, length, |at, count| {
            function(view(a, at, count), view(b, at, count), view(c, at, count))
        });
    }
}

/// # Safety
/// As [`load`], but one element where the view is uniform.
#[inline(always)]
unsafe fn view<V: Vector>(view: View, at: usize, count: usize) -> V {
    // SAFETY: the caller vouches for the elements.
    unsafe { if view.uniform { V::splat(view.value) } else { load(view.elements, at, count) } }
}

/// # Safety
/// As [`compute`].
#[inline(always)]
unsafe fn binary<V: Vector>(
    isa: Isa,
    function: Binary,
    left: View,
    right: View,
    target: *mut f32,
    length: usize,
) {
    macro_rules! pairs {
        ($function:expr) => {{
            let function = $function;
            // SAFETY: the caller vouches for the views and the target.
            unsafe {
                if right.uniform && !left.uniform {
                    let b = V::splat(right.value);
                    each::<V>(target, length, |at, count| {
                        function(load::<V>(left.elements, at, count), b)
                    });
                } else if left.uniform && !right.uniform {
                    let a = V::splat(left.value);
                    each::<V>(target, length, |at, count| {
                        function(a, load::<V>(right.elements, at, count))
                    });
                } else {
                    // Two uniform ones make a uniform result of one element.
                    each::<V>(target, length, |at, count| {
                        let a = load::<V>(left.elements, at, count);
                        function(a, load::<V>(right.elements, at, count))
                    });
                }
            }
        }};
    }
    macro_rules! truths {
        ($function:expr) => {{
            let truth = $function;
            pairs!(|a, b| V::select(truth(a, b), V::splat(1.0), V::zero()))
        }};
    }
    macro_rules! lane_pairs {
        ($function:expr) => {{
            for at in 0..length {
                // SAFETY: the caller vouches for the views and the target.
                unsafe {
                    let a = if left.uniform { left.value } else { *left.elements.add(at) };
                    let b = if right.uniform { right.value } else { *right.elements.add(at) };
                    *target.add(at) = $function(a, b);
                }
            }
        }};
    }
    match function {
        Binary::Add => pairs!(|a: V, b: V| a.add(b)),
        Binary::Sub => pairs!(|a: V, b: V| a.sub(b)),
        Binary::Mul => pairs!(|a: V, b: V| a.mul(b)),
        Binary::Div => pairs!(|a: V, b: V| a.div(b)),
        Binary::FloorDiv => lane_pairs!(|a, b| floor_and_rest(a, b).0),
        Binary::Mod => lane_pairs!(|a, b| floor_and_rest(a, b).1),
        Binary::Min => pairs!(|a: V, b: V| a.min_nan(b)),
        Binary::Max => pairs!(|a: V, b: V| a.max_nan(b)),
        // SAFETY: the caller vouches for the views and the target.
        Binary::Pow => unsafe { power::<V>(isa, left, right, target, length) },
        Binary::Equal => truths!(|a: V, b: V| a.equal(b)),
        Binary::NotEqual => truths!(|a: V, b: V| V::not(a.equal(b))),
        Binary::Less => truths!(|a: V, b: V| a.less(b)),
        Binary::LessEqual => truths!(|a: V, b: V| a.less_equal(b)),
        Binary::Greater => truths!(|a: V, b: V| b.less(a)),
        Binary::GreaterEqual => truths!(|a: V, b: V| b.less_equal(a)),
        Binary::And => truths!(|a: V, b: V| V::both(is_true(a), is_true(b))),
        Binary::Or => truths!(|a: V, b: V| V::either(is_true(a), is_true(b))),
        Binary::Xor => truths!(|a: V, b: V| V::both(
            V::either(is_true(a), is_true(b)),
            V::not(V::both(is_true(a), is_true(b)))
        )),
    }
}

#[inline(always)]
fn is_true<V: Vector>(x: V) -> V::Mask {
    V::not(x.equal(V::zero()))
}

/// Python's `divmod`.
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
    // `quotient` is close to an integer, but the division may have missed it.
    let floor = if quotient == 0.0 { 0f32.copysign(a / b) } else { quotient.round() };
    (floor, rest)
}

/// # Safety
/// As [`compute`].
#[inline(always)]
unsafe fn power<V: Vector>(isa: Isa, left: View, right: View, target: *mut f32, length: usize) {
    if right.uniform && !left.uniform {
        let (base, exponent) = (left.elements, right.value);
        // SAFETY: the caller vouches for the views and the target.
        unsafe {
            // Those that programs have most, at the exactness of `pow`.
            if exponent == 2.0 {
                return each::<V>(target, length, |at, count| {
                    lanes::square(load::<V>(base, at, count))
                });
            }
            if exponent == 1.0 {
                return each::<V>(target, length, |at, count| load::<V>(base, at, count));
            }
            if exponent == -1.0 {
                return each::<V>(target, length, |at, count| {
                    lanes::reciprocal(load::<V>(base, at, count))
                });
            }
        }
    }
    let operands = [left, right].map(|view| {
        if view.uniform { Operand::Uniform(view.value) } else { Operand::Elements(view.elements) }
    });
    // SAFETY: the caller vouches for the views and the target.
    unsafe { pow_pointers(isa, operands, target, length) };
}
