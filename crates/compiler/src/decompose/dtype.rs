//! The element types of results, by torch's rules.

use coremill_pt2::ScalarType;
use coremill_pt2::promotion::category;
pub(crate) use coremill_pt2::promotion::{
    is_complex, is_float, is_integer, promote, promote_ranked,
};

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

/// The type of a tensor that stands for a number beside one of type `beside`.
pub(crate) fn promote_scalar(number: ScalarType, beside: ScalarType) -> ScalarType {
    if category(number) > category(beside) { number } else { beside }
}
