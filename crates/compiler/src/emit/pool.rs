//! Constants of a program, deduplicated across its methods by content.

use std::collections::HashMap;

use coremill_pt2::{StoredValue, Tensor};
use coremill_pte::ByteRope;
use coremill_tensor::LazyTensor;

use crate::error::{Error, LoweringError, Result};
use crate::parts::plain;

/// Bytes hashed per step.
const HASHED: usize = 1 << 20;

/// Tensor data of a program.
#[derive(Default)]
pub(crate) struct Pool {
    pub(crate) constants: Vec<ByteRope>,
    pub(crate) initial: Vec<ByteRope>,
    known_constants: HashMap<blake3::Hash, u32>,
    known_initial: HashMap<blake3::Hash, u32>,
}

impl Pool {
    /// Index of a constant with this content.
    pub(super) fn constant(&mut self, data: ByteRope) -> Result<u32, Error> {
        intern(&mut self.constants, &mut self.known_constants, data)
    }

    /// Index of a tensor's initial data with this content.
    pub(super) fn initial(&mut self, data: ByteRope) -> Result<u32, Error> {
        intern(&mut self.initial, &mut self.known_initial, data)
    }
}

fn intern(
    all: &mut Vec<ByteRope>,
    known: &mut HashMap<blake3::Hash, u32>,
    data: ByteRope,
) -> Result<u32, Error> {
    let number = u32::try_from(all.len()).map_err(|_| {
        Error::Program(LoweringError::new("there are too many constants for 32-bit indices"))
    })?;
    let hash = hash(&data)?;
    Ok(*known.entry(hash).or_insert_with(|| {
        all.push(data);
        number
    }))
}

/// Hash of bytes that are streamed instead of loaded.
pub(super) fn hash(data: &ByteRope) -> Result<blake3::Hash, Error> {
    let mut hasher = blake3::Hasher::new();
    let read = data.for_each_window(HASHED, &mut |bytes| {
        hasher.update(bytes);
        Ok(())
    });
    read.map_err(|error| {
        Error::Program(LoweringError::new(format!(
            "the elements of a constant cannot be read: {error}"
        )))
    })?;
    Ok(hasher.finalize())
}

/// Elements of a stored tensor in standard dimension order.
pub(super) fn elements(name: &str, stored: &StoredValue) -> Result<ByteRope> {
    let tensor = plain(name, stored)?;
    if let Some(run) = tensor.contiguous() {
        return Ok(ByteRope::from(run));
    }
    let unreadable =
        |error: &dyn std::fmt::Display| LoweringError::new(format!("`{name}`: {error}"));
    let Tensor { storage, sizes, strides, offset, dtype, .. } = tensor;
    match dtype.dtype() {
        Some(dtype) => {
            let recipe = LazyTensor::strided(storage.clone(), dtype, sizes, strides, *offset)
                .map_err(|error| unreadable(&error))?;
            Ok(ByteRope::from(recipe.to_buffer()))
        }
        None => {
            let bytes = tensor.bytes().map_err(|error| unreadable(&error))?;
            Ok(ByteRope::from(bytes.into_owned()))
        }
    }
}

/// Whether all bytes are zero.
pub(super) fn is_zero(data: &ByteRope) -> bool {
    let mut zero = true;
    let read = data.for_each_window(HASHED, &mut |bytes| {
        zero &= bytes.iter().all(|&byte| byte == 0);
        Ok(())
    });
    read.is_ok() && zero
}
