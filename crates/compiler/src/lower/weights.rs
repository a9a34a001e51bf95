//! Parameters, buffers and constants of the archive as Core ML's constants.

use coremill_mil::ir::Constant;
use coremill_pt2::{ScalarType, Stored, Tensor};
use coremill_tensor::{Buffer, DType, Overflow, Recipe, RecipeError};

use super::dtype::core_dtype;
use crate::error::{Refusal, refuse};

/// Elements that take more are not kept in memory.
const MAX_KEPT_BYTES: usize = 16 << 10;

/// A stored tensor that is there, elements and all.
pub(crate) fn plain<'s>(name: &str, stored: &'s Stored) -> Result<&'s Tensor, Refusal> {
    match stored {
        Stored::Tensor(tensor) => Ok(tensor),
        Stored::Missing { .. } => {
            Err(Refusal::new(format!("the archive has no elements for `{name}`"))
                .hint("export the model with real weights, not under a fake or meta device"))
        }
        Stored::Object(_) => {
            refuse!("`{name}` is a Python object or a tensor of a Python class, not a plain tensor")
        }
    }
}

/// The constant for a stored tensor.
pub(crate) fn constant(name: &str, stored: &Stored) -> Result<Constant, Refusal> {
    let tensor = plain(name, stored)?;
    let dtype = core_dtype(tensor.dtype)?;
    let bytes = elements(name, tensor, dtype)?;
    Ok(Constant::by_size(dtype, &tensor.sizes, bytes))
}

/// The real and the imaginary part of a stored tensor that is complex: the parts take turns, and each is a tensor of
/// which every second element counts.
pub(crate) fn stored_parts(name: &str, stored: &Stored) -> Result<Option<[Tensor; 2]>, Refusal> {
    let Stored::Tensor(tensor) = stored else { return Ok(None) };
    let Some(dtype) = part_of(tensor.dtype) else { return Ok(None) };
    let doubled = |count: u64, more: u64| {
        let doubled = count.checked_mul(2).and_then(|doubled| doubled.checked_add(more));
        doubled.ok_or_else(|| Refusal::new(format!("`{name}` lies beyond every archive")))
    };
    let strides = tensor.strides.iter().map(|&stride| doubled(stride, 0));
    let strides = strides.collect::<Result<Vec<_>, _>>()?;
    let part = |which: u64| -> Result<Tensor, Refusal> {
        let offset = doubled(tensor.offset, which)?;
        Ok(Tensor { dtype, strides: strides.clone(), offset, ..tensor.clone() })
    };
    Ok(Some([part(0)?, part(1)?]))
}

/// The type of both parts of complex numbers.
pub(crate) fn part_of(dtype: ScalarType) -> Option<ScalarType> {
    match dtype {
        ScalarType::Complex32 => Some(ScalarType::Float16),
        ScalarType::Complex64 => Some(ScalarType::Float32),
        ScalarType::Complex128 => Some(ScalarType::Float64),
        _ => None,
    }
}

/// The elements in the type that Core ML computes with. Few are computed at once, so that all may look at
/// them; many when they are read, so that they never lie in memory together.
fn elements(name: &str, tensor: &Tensor, dtype: DType) -> Result<Buffer, Refusal> {
    let Some(stored) = tensor.dtype.dtype() else {
        refuse!("`{name}` has element type `{}`, which Core ML has no constants of", tensor.dtype);
    };
    let Tensor { storage, sizes, strides, offset, .. } = tensor;
    // The largest and the smallest of 64 bits stand for "no bound" in torch's programs.
    let recipe = Recipe::strided(storage.clone(), stored, sizes, strides, *offset)
        .and_then(|recipe| recipe.cast_with(dtype, Overflow::KeepBounds));
    let elements = match recipe {
        Ok(recipe) => recipe.to_buffer(),
        Err(RecipeError::OutOfRange { value, .. }) => refuse!(
            "`{name}` holds {value}, which does not fit the 32 bits that Core ML's integers have"
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
