//! torch's element types in Core ML, and how they meet.

use coremill_pt2::ScalarType;
use coremill_tensor::DType;

use crate::error::{Refusal, refuse};

/// What Core ML computes torch's elements in: `fp32`, `int32` or `bool`. The parts of complex numbers are
/// tensors of their own.
pub(crate) fn core_dtype(dtype: ScalarType) -> Result<DType, Refusal> {
    use ScalarType::*;
    Ok(match dtype {
        Float16 | Float32 | Float64 | BFloat16 | Complex32 | Complex64 | Complex128 => DType::Fp32,
        UInt8 | Int8 | Int16 | Int32 | Int64 | UInt16 | UInt32 | UInt64 => DType::Int32,
        Bool => DType::Bool,
        Float8E4M3Fn | Float8E5M2 | Float8E4M3FnUz | Float8E5M2FnUz | Float8E8M0Fnu => {
            refuse!("`{dtype}` has no counterpart in Core ML")
        }
    })
}

/// Whether elements are floats.
pub(crate) fn is_float(dtype: ScalarType) -> bool {
    use ScalarType::*;
    matches!(dtype, Float16 | Float32 | Float64 | BFloat16)
}

/// Whether elements are integers, `bool` not among them.
pub(crate) fn is_integer(dtype: ScalarType) -> bool {
    use ScalarType::*;
    matches!(dtype, UInt8 | Int8 | Int16 | Int32 | Int64 | UInt16 | UInt32 | UInt64)
}

/// How much a type takes precedence: `bool` below integers below floats below complex numbers.
fn category(dtype: ScalarType) -> u8 {
    match dtype {
        ScalarType::Bool => 0,
        dtype if is_integer(dtype) => 1,
        dtype if dtype.is_complex() => 3,
        _ => 2,
    }
}

/// The type in which two tensors of these types meet.
pub(crate) fn promoted(left: ScalarType, right: ScalarType) -> ScalarType {
    use ScalarType::*;
    if left == right {
        return left;
    }
    let (low, high) = if category(left) <= category(right) { (left, right) } else { (right, left) };
    if category(low) < category(high) {
        return match (low, high) {
            // A complex number is as wide as the float beside it.
            (Float64, Complex32 | Complex64) => Complex128,
            (Float32, Complex32) => Complex64,
            _ => high,
        };
    }
    match (low, high) {
        (Float16, BFloat16) | (BFloat16, Float16) => Float32,
        (UInt8, Int8) | (Int8, UInt8) => Int16,
        _ if low.bytes() == high.bytes() => {
            if matches!(low, Int8 | Int16 | Int32 | Int64) {
                low
            } else {
                high
            }
        }
        _ if low.bytes() > high.bytes() => low,
        _ => high,
    }
}
