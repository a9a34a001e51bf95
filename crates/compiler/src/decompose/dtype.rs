//! The element types of results, by torch's rules.

use coremill_pt2::ScalarType;
use coremill_pt2::promotion::category;
pub(crate) use coremill_pt2::promotion::{
    is_complex, is_float, is_integer, promote, promote_ranked,
};

/// 16-bit floats. torch computes with them in 32 bits.
pub(crate) fn is_half(dtype: ScalarType) -> bool {
    is_float(dtype) && dtype.bytes() < 4
}

/// Result type of functions with fractional results, such as division.
pub(crate) fn fractional(dtype: ScalarType) -> ScalarType {
    if category(dtype) < 2 { ScalarType::Float32 } else { dtype }
}

/// Result type of sums: 64 bits for integers.
pub(crate) fn summed(dtype: ScalarType) -> ScalarType {
    if category(dtype) < 2 { ScalarType::Int64 } else { dtype }
}

/// Promoted type of a number in an operation with a tensor of type `beside`.
pub(crate) fn promote_scalar(number: ScalarType, beside: ScalarType) -> ScalarType {
    if category(number) > category(beside) { number } else { beside }
}
