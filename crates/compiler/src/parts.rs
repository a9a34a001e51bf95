//! Stored tensors, and the real and imaginary parts of complex ones.

use coremill_pt2::{ScalarType, StoredValue, Tensor};

use crate::error::{LoweringError, Result};

/// Returns a plain tensor, or an error if the value is missing from the archive or is not a tensor.
pub(crate) fn plain<'s>(name: &str, stored: &'s StoredValue) -> Result<&'s Tensor> {
    match stored {
        StoredValue::Tensor(tensor) => Ok(tensor),
        StoredValue::Missing { .. } => {
            Err(LoweringError::new(format!("the archive has no elements for `{name}`"))
                .hint("export the model with real weights, not under a fake or meta device"))
        }
        StoredValue::Object(_) => {
            let message = format!(
                "`{name}` is a Python object or a tensor of a Python class, not a plain tensor"
            );
            Err(LoweringError::new(message).hint(
                "quantize embeddings with torchao's `IntxWeightOnlyConfig`, and unwrap tensors of other classes before \
                 the export",
            ))
        }
    }
}

/// Real and imaginary part of a stored complex tensor, as two strided views: the parts alternate in memory.
pub(crate) fn stored_parts(name: &str, stored: &StoredValue) -> Result<Option<[Tensor; 2]>> {
    let StoredValue::Tensor(tensor) = stored else { return Ok(None) };
    let Some(dtype) = part_of(tensor.dtype) else { return Ok(None) };
    let doubled = |count: u64, more: u64| {
        let doubled = count.checked_mul(2).and_then(|doubled| doubled.checked_add(more));
        doubled.ok_or_else(|| {
            LoweringError::new(format!("the offset or strides of `{name}` are out of range"))
        })
    };
    let strides = tensor.strides.iter().map(|&stride| doubled(stride, 0));
    let strides = strides.collect::<Result<Vec<_>, _>>()?;
    let part = |which: u64| -> Result<Tensor> {
        let offset = doubled(tensor.offset, which)?;
        Ok(Tensor { dtype, strides: strides.clone(), offset, ..tensor.clone() })
    };
    Ok(Some([part(0)?, part(1)?]))
}

/// Element type of the real and imaginary parts of a complex type.
pub(crate) fn part_of(dtype: ScalarType) -> Option<ScalarType> {
    match dtype {
        ScalarType::Complex32 => Some(ScalarType::Float16),
        ScalarType::Complex64 => Some(ScalarType::Float32),
        ScalarType::Complex128 => Some(ScalarType::Float64),
        _ => None,
    }
}
