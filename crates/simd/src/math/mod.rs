//! Elementwise functions: exponentials, roots, trigonometric functions, and conversion of 16-bit floats.

#![expect(
    unsafe_code,
    reason = "in-place and out-of-place variants share code that takes pointers"
)]

mod half_width;
pub mod lanes;
#[cfg(test)]
mod tests;

pub use half_width::{
    bf16_to_f32, f16_to_f32, f32_to_bf16, f32_to_f16, round_to_bf16, round_to_fp16,
};

use crate::Isa;
use crate::vector::{Kernel, Vector, dispatch};

/// A function of one number.
///
/// Comments state the maximum error in units in the last place (ulp). Functions without a stated error call
/// the C library.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Unary {
    /// Absolute value.
    Abs,
    /// Arc cosine.
    Acos,
    /// Inverse hyperbolic cosine.
    Acosh,
    /// Arc sine.
    Asin,
    /// Inverse hyperbolic sine.
    Asinh,
    /// Arc tangent.
    Atan,
    /// Inverse hyperbolic tangent.
    Atanh,
    /// Rounds up.
    Ceil,
    /// Cosine, within 2.5 ulp.
    Cos,
    /// Hyperbolic cosine.
    Cosh,
    /// Error function, within 2 ulp.
    Erf,
    /// Exponential, within 1.1 ulp.
    Exp,
    /// Exponential minus one, within 2 ulp.
    ExpMinusOne,
    /// Power of two, within 1.5 ulp.
    Exp2,
    /// Rounds down.
    Floor,
    /// `x · Φ(x)`. The error is at most the larger of 1e-7 and 4e-7 times the magnitude of the result.
    Gelu,
    /// The approximation of [`Gelu`](Self::Gelu) by `x · sigmoid(1.702 · x)`.
    GeluSigmoid,
    /// The approximation of [`Gelu`](Self::Gelu) by
    /// `x · (1 + tanh(√(2/π) · (x + 0.044715 · x³))) / 2`.
    GeluTanh,
    /// Natural logarithm, within 1 ulp.
    Log,
    /// Negation.
    Neg,
    /// Reciprocal.
    Reciprocal,
    /// The number if it is positive, else zero. NaN is preserved.
    Relu,
    /// Rounds to nearest, with ties to even.
    Round,
    /// Reciprocal of the square root, within 1.5 ulp.
    Rsqrt,
    /// `1 / (1 + e^-x)`, within 3 ulp.
    Sigmoid,
    /// Sign: −1, 0 or 1. NaN is preserved.
    Sign,
    /// `x · sigmoid(x)`, within 4 ulp or 1e-43.
    Silu,
    /// Sine, within 2.5 ulp.
    Sin,
    /// Hyperbolic sine.
    Sinh,
    /// `log(1 + e^x)`, within 3 ulp.
    Softplus,
    /// `x / (1 + |x|)`.
    Softsign,
    /// Square root, correctly rounded.
    Sqrt,
    /// Square.
    Square,
    /// Tangent.
    Tan,
    /// Hyperbolic tangent, within 2 ulp.
    Tanh,
    /// Rounds towards zero.
    Trunc,
}

impl Unary {
    /// All functions.
    pub const ALL: [Unary; 36] = [
        Unary::Abs,
        Unary::Acos,
        Unary::Acosh,
        Unary::Asin,
        Unary::Asinh,
        Unary::Atan,
        Unary::Atanh,
        Unary::Ceil,
        Unary::Cos,
        Unary::Cosh,
        Unary::Erf,
        Unary::Exp,
        Unary::ExpMinusOne,
        Unary::Exp2,
        Unary::Floor,
        Unary::Gelu,
        Unary::GeluSigmoid,
        Unary::GeluTanh,
        Unary::Log,
        Unary::Neg,
        Unary::Reciprocal,
        Unary::Relu,
        Unary::Round,
        Unary::Rsqrt,
        Unary::Sigmoid,
        Unary::Sign,
        Unary::Silu,
        Unary::Sin,
        Unary::Sinh,
        Unary::Softplus,
        Unary::Softsign,
        Unary::Sqrt,
        Unary::Square,
        Unary::Tan,
        Unary::Tanh,
        Unary::Trunc,
    ];
}

/// Applies the function to each element of the source.
///
/// # Panics
/// Panics if the lengths differ.
pub fn unary(isa: Isa, function: Unary, source: &[f32], target: &mut [f32]) {
    assert_eq!(source.len(), target.len(), "source and target differ in length");
    // SAFETY: both slices have this many elements.
    unsafe {
        unary_pointers(isa, function, source.as_ptr(), target.as_mut_ptr(), source.len());
    }
}

/// Applies the function to each element in place.
pub fn unary_in_place(isa: Isa, function: Unary, elements: &mut [f32]) {
    let target = elements.as_mut_ptr();
    // SAFETY: the slice has this many elements.
    unsafe {
        unary_pointers(isa, function, target, target, elements.len());
    }
}

/// Like [`unary`], for `length` elements behind pointers.
///
/// # Safety
/// `length` elements must be readable at `source` and writable at `target`. The two must be equal or must not
/// overlap.
pub unsafe fn unary_pointers(
    isa: Isa,
    function: Unary,
    source: *const f32,
    target: *mut f32,
    length: usize,
) {
    dispatch(isa, UnaryKernel { function, source, target, length });
}

/// `bases[i]` to the power of `exponents[i]`, with the semantics of C's `pow`, within 1 ulp.
///
/// # Panics
/// Panics if the lengths differ.
pub fn pow(isa: Isa, bases: &[f32], exponents: &[f32], target: &mut [f32]) {
    assert_eq!(bases.len(), target.len(), "bases and target differ in length");
    assert_eq!(exponents.len(), target.len(), "exponents and target differ in length");
    let operands = [bases, exponents].map(|elements| Operand::Elements(elements.as_ptr()));
    // SAFETY: the three slices have this many elements.
    unsafe {
        pow_pointers(isa, operands, target.as_mut_ptr(), target.len());
    }
}

/// Like [`pow`], for `length` elements behind pointers.
///
/// # Safety
/// `length` elements must be readable at the operands and writable at `target`, which must equal one of the
/// operands or overlap none of them.
pub unsafe fn pow_pointers(
    isa: Isa,
    [bases, exponents]: [Operand; 2],
    target: *mut f32,
    length: usize,
) {
    dispatch(isa, Pow { bases, exponents, target, length });
}

struct UnaryKernel {
    function: Unary,
    /// `length` readable elements; equal to `target` or not overlapping it.
    source: *const f32,
    /// `length` writable elements.
    target: *mut f32,
    length: usize,
}

impl Kernel for UnaryKernel {
    type Output = ();

    #[inline(always)]
    fn run<V: Vector>(self) {
        let UnaryKernel { function, source, target, length } = self;
        macro_rules! each {
            ($function:expr) => {
                // SAFETY: the caller of `unary_pointers` guarantees `length` elements.
                unsafe {
                    each::<V>(source, target, length, $function);
                }
            };
        }
        macro_rules! each_lane {
            ($function:expr) => {
                for at in 0..length {
                    // SAFETY: the caller of `unary_pointers` guarantees `length` elements.
                    unsafe {
                        *target.add(at) = $function(*source.add(at));
                    }
                }
            };
        }
        match function {
            Unary::Abs => each!(V::abs),
            Unary::Acos => each_lane!(f32::acos),
            Unary::Acosh => each_lane!(|x| f64::from(x).acosh() as f32),
            Unary::Asin => each_lane!(f32::asin),
            Unary::Asinh => each_lane!(|x| f64::from(x).asinh() as f32),
            Unary::Atan => each_lane!(f32::atan),
            Unary::Atanh => each_lane!(|x| f64::from(x).atanh() as f32),
            Unary::Ceil => each!(V::ceil),
            Unary::Cos => each!(lanes::cos),
            Unary::Cosh => each_lane!(f32::cosh),
            Unary::Erf => each!(lanes::erf),
            Unary::Exp => each!(lanes::exp),
            Unary::ExpMinusOne => each!(lanes::exp_minus_one),
            Unary::Exp2 => each!(lanes::exp2),
            Unary::Floor => each!(V::floor),
            Unary::Gelu => each!(lanes::gelu),
            Unary::GeluSigmoid => each!(lanes::gelu_sigmoid),
            Unary::GeluTanh => each!(lanes::gelu_tanh),
            Unary::Log => each!(lanes::log),
            Unary::Neg => each!(V::neg),
            Unary::Reciprocal => each!(lanes::reciprocal),
            Unary::Relu => each!(lanes::relu),
            Unary::Round => each!(V::round),
            Unary::Rsqrt => each!(lanes::rsqrt),
            Unary::Sigmoid => each!(lanes::sigmoid),
            Unary::Sign => each!(lanes::sign),
            Unary::Silu => each!(lanes::silu),
            Unary::Sin => each!(lanes::sin),
            Unary::Sinh => each_lane!(f32::sinh),
            Unary::Softplus => each!(lanes::softplus),
            Unary::Softsign => each!(lanes::softsign),
            Unary::Sqrt => each!(V::sqrt),
            Unary::Square => each!(lanes::square),
            Unary::Tan => each_lane!(f32::tan),
            Unary::Tanh => each!(lanes::tanh),
            Unary::Trunc => each!(V::trunc),
        }
    }
}

/// # Safety
/// Same as for [`unary_pointers`].
#[inline(always)]
unsafe fn each<V: Vector>(
    source: *const f32,
    target: *mut f32,
    length: usize,
    function: impl Fn(V) -> V,
) {
    let mut at = 0;
    while at < length {
        let count = V::LANES.min(length - at);
        // The function is called in one place, also for the remaining elements, because some functions are
        // long. SAFETY: `at + count` is within the length that the caller guarantees.
        unsafe {
            let vector = load::<V>(source.add(at), count);
            store(function(vector), target.add(at), count);
        }
        at += count;
    }
}

/// # Safety
/// `count` must be at most `LANES`, and `count` elements must be readable at `source`.
#[inline(always)]
pub unsafe fn load<V: Vector>(source: *const f32, count: usize) -> V {
    // SAFETY: the caller guarantees the elements.
    unsafe { if count == V::LANES { V::load(source) } else { V::load_partial(source, count) } }
}

/// # Safety
/// `count` must be at most `LANES`, and `count` elements must be writable at `target`.
#[inline(always)]
pub unsafe fn store<V: Vector>(vector: V, target: *mut f32, count: usize) {
    // SAFETY: the caller guarantees the elements.
    unsafe {
        if count == V::LANES { vector.store(target) } else { vector.store_partial(target, count) }
    }
}

/// Numbers in memory, or a single number.
#[derive(Clone, Copy)]
pub enum Operand {
    /// One number for each result.
    Elements(*const f32),
    /// The same number for all results.
    Uniform(f32),
}

struct Pow {
    bases: Operand,
    exponents: Operand,
    target: *mut f32,
    length: usize,
}

impl Kernel for Pow {
    type Output = ();

    #[inline(always)]
    fn run<V: Vector>(self) {
        let mut at = 0;
        while at < self.length {
            let count = V::LANES.min(self.length - at);
            // SAFETY: the caller of `pow_pointers` guarantees `length` elements.
            unsafe {
                let [x, y] = [self.bases, self.exponents].map(|operand| match operand {
                    Operand::Elements(elements) => load::<V>(elements.add(at), count),
                    Operand::Uniform(value) => V::splat(value),
                });
                store(lanes::pow(x, y), self.target.add(at), count);
            }
            at += count;
        }
    }
}
