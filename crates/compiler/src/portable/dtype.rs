//! The element types of results, by torch's rules.

use coremill_pt2::ScalarType;

/// How far up the order of promotion a type is: bool, integers, floats, complex numbers.
fn category(dtype: ScalarType) -> u8 {
    use ScalarType::*;
    match dtype {
        Bool => 0,
        UInt8 | Int8 | Int16 | Int32 | Int64 | UInt16 | UInt32 | UInt64 => 1,
        Float16 | Float32 | Float64 | BFloat16 | Float8E4M3Fn | Float8E5M2 | Float8E4M3FnUz
        | Float8E5M2FnUz | Float8E8M0Fnu => 2,
        Complex32 | Complex64 | Complex128 => 3,
    }
}

pub(crate) fn is_float(dtype: ScalarType) -> bool {
    category(dtype) == 2
}

pub(crate) fn is_integer(dtype: ScalarType) -> bool {
    category(dtype) == 1
}

pub(crate) fn is_complex(dtype: ScalarType) -> bool {
    category(dtype) == 3
}

/// Floats of less than 32 bits, which torch computes with in 32.
pub(crate) fn is_half(dtype: ScalarType) -> bool {
    is_float(dtype) && dtype.bytes() < 4
}

/// The type that functions with fractions give.
pub(crate) fn fractional(dtype: ScalarType) -> ScalarType {
    if category(dtype) < 2 { ScalarType::Float32 } else { dtype }
}

/// The type that sums accumulate in: integers in the widest.
pub(crate) fn summed(dtype: ScalarType) -> ScalarType {
    if category(dtype) < 2 { ScalarType::Int64 } else { dtype }
}

/// The type that a call on both computes in, ranks not considered.
pub(crate) fn promote(left: ScalarType, right: ScalarType) -> ScalarType {
    use ScalarType::*;
    if left == right {
        return left;
    }
    let (low, high) = if category(left) <= category(right) { (left, right) } else { (right, left) };
    match (category(low), category(high)) {
        (3, _) if low.bytes() > high.bytes() => low,
        (2, 3) => match (low, high) {
            (Float64, _) => Complex128,
            (Float32 | BFloat16, Complex32) => Complex64,
            _ => high,
        },
        (2, 2) => match (low, high) {
            (Float16, BFloat16) | (BFloat16, Float16) => Float32,
            _ if low.bytes() > high.bytes() => low,
            _ => high,
        },
        (1, 1) => match (low, high) {
            (UInt8, Int8) | (Int8, UInt8) => Int16,
            _ if low.bytes() > high.bytes() => low,
            _ => high,
        },
        _ => high,
    }
}

/// The type that a call on operands of these types and ranks computes in: those with dimensions count for more.
pub(crate) fn promote_ranked(operands: &[(ScalarType, usize)]) -> Option<ScalarType> {
    let of = |ranked: bool| {
        let kinds = operands.iter().filter(|(_, rank)| (*rank > 0) == ranked);
        kinds.map(|(dtype, _)| *dtype).reduce(promote)
    };
    match (of(true), of(false)) {
        (Some(ranked), Some(bare)) if category(bare) > category(ranked) => Some(bare),
        (Some(ranked), _) => Some(ranked),
        (None, bare) => bare,
    }
}

/// The type of a tensor that stands for a number beside one of type `beside`.
pub(crate) fn beside(number: ScalarType, beside: ScalarType) -> ScalarType {
    if category(number) > category(beside) { number } else { beside }
}
