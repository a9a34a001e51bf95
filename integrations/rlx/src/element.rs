//! Element types of `rlx`.

use coremill_graph::{DType, Error};
use rlx_ir::DType as RlxType;

use crate::error::failure;

/// The element type in Core ML's files.
pub(crate) fn element_type(dtype: RlxType) -> Result<DType, Error> {
    Ok(match dtype {
        RlxType::F32 => DType::Fp32,
        RlxType::F16 => DType::Fp16,
        RlxType::BF16 => DType::Bf16,
        RlxType::F64 => DType::Fp64,
        RlxType::I8 => DType::Int8,
        RlxType::I16 => DType::Int16,
        RlxType::I32 => DType::Int32,
        RlxType::I64 => DType::Int64,
        RlxType::U8 => DType::UInt8,
        RlxType::U32 => DType::UInt32,
        RlxType::Bool => DType::Bool,
        other => {
            let message = format!("Core ML has no tensors of `{other:?}`");
            return Err(failure(message));
        }
    })
}

/// Whether numbers are complex and therefore have an axis of real and imaginary part.
pub(crate) fn is_complex(dtype: RlxType) -> bool {
    dtype.is_complex()
}

/// Whether the type is represented by floats.
pub(crate) fn is_float(dtype: RlxType) -> bool {
    dtype.is_float() || is_complex(dtype)
}
