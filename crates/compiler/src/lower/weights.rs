//! Conversion of stored parameters, buffers and constants to Core ML constants.

use coremill_mil::ir::Constant;
use coremill_pt2::{StoredValue, Tensor};
use coremill_tensor::{Buffer, DType, LazyTensor, Overflow, RecipeError};

use super::dtype::core_dtype;
use crate::error::{Result, refuse};
use crate::parts::plain;

/// Maximum size in bytes of elements that are converted eagerly and kept in memory.
const MAX_KEPT_BYTES: usize = 16 << 10;

/// The constant of a stored tensor.
pub(crate) fn constant(name: &str, stored: &StoredValue) -> Result<Constant> {
    let tensor = plain(name, stored)?;
    let dtype = core_dtype(tensor.dtype)?;
    let bytes = elements(name, tensor, dtype)?;
    Ok(Constant::by_size(dtype, &tensor.sizes, bytes))
}

/// The elements in Core ML's computation type. Small tensors are converted eagerly, so that passes can inspect them.
/// Large ones are converted when they are read, so that they are never in memory together.
fn elements(name: &str, tensor: &Tensor, dtype: DType) -> Result<Buffer> {
    let Some(stored) = tensor.dtype.dtype() else {
        refuse!(
            "`{name}` has element type `{}`, which Core ML does not support for constants",
            tensor.dtype
        );
    };
    let Tensor { storage, sizes, strides, offset, .. } = tensor;
    // The largest and smallest 64-bit integers mean "no bound" in torch's programs.
    let recipe = LazyTensor::strided(storage.clone(), stored, sizes, strides, *offset)
        .and_then(|recipe| recipe.cast_with(dtype, Overflow::KeepBounds));
    let elements = match recipe {
        Ok(recipe) => recipe.to_buffer(),
        Err(RecipeError::OutOfRange { value, .. }) => refuse!(
            "`{name}` holds {value}, which does not fit in the 32 bits of Core ML's integers"
        ),
        Err(error) => refuse!("`{name}`: {error}"),
    };
    if !elements.is_deferred() || elements.len() > MAX_KEPT_BYTES {
        return Ok(elements);
    }
    let mut bytes = vec![0; elements.len()];
    match elements.read_at(0, &mut bytes) {
        Ok(()) => Ok(Buffer::from(bytes)),
        Err(error) => refuse!("`{name}` cannot be read: {error}"),
    }
}
