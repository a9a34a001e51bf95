//! Core ML's equivalents of torch's element types.

use coremill_pt2::ScalarType;
use coremill_tensor::DType;

use crate::error::{LoweringError, Result, refuse};

/// Computation type for torch's element types: `fp32`, `int32` or `bool`. Core ML has no complex type; real and
/// imaginary parts are separate tensors.
pub(crate) fn core_dtype(dtype: ScalarType) -> Result<DType> {
    use ScalarType::*;
    Ok(match dtype {
        Float16 | Float32 | Float64 | BFloat16 => DType::Fp32,
        UInt8 | Int8 | Int16 | Int32 | Int64 | UInt16 | UInt32 | UInt64 => DType::Int32,
        Bool => DType::Bool,
        Complex32 | Complex64 | Complex128 => refuse!("Core ML has no complex numbers"),
        Float8E4M3Fn | Float8E5M2 | Float8E4M3FnUz | Float8E5M2FnUz | Float8E8M0Fnu => {
            let reason = format!("Core ML has no floats of 8 bits, and `{dtype}` is one");
            return Err(LoweringError::new(reason).hint(
                "quantize to integers instead: `Int8WeightOnlyConfig`, or `IntxWeightOnlyConfig` with `torch.int4`",
            ));
        }
    })
}

/// Whether elements are floats.
pub(crate) fn is_float(dtype: ScalarType) -> bool {
    use ScalarType::*;
    matches!(dtype, Float16 | Float32 | Float64 | BFloat16)
}
