//! Files of weights: safetensors and GGUF, mapped, never trusted.

mod blocks;
mod gguf;
mod safetensors;
mod scheme;

use std::path::Path;

use coremill_tensor::Buffer;

pub(crate) use blocks::{Allowed, Form};
pub use gguf::{Gguf, MetadataValue};
pub use scheme::Scheme;

use crate::error::{Error, ErrorKind, Result};
use crate::params::Param;

/// The tensors of a file by name, whichever form it has.
pub(crate) fn read(path: &Path) -> Result<Vec<(String, Param)>> {
    let bytes = map(path)?;
    let mut magic = [0; 4];
    let found = bytes.len() >= 4 && bytes.read_at(0, &mut magic).is_ok();
    if found && magic == gguf::MAGIC {
        let gguf = gguf::parse(&bytes).map_err(|message| refused(path, message))?;
        return Ok(gguf.tensors);
    }
    safetensors::parse(&bytes).map_err(|message| refused(path, message))
}

pub(crate) fn map(path: &Path) -> Result<Buffer> {
    if path.is_dir() {
        let message = format!("{} is a directory", path.display());
        return Err(Error::new(ErrorKind::File, message).hint("name a `.safetensors` or a `.gguf`"));
    }
    Buffer::map(path).map_err(|error| {
        Error::new(ErrorKind::File, format!("cannot read {}: {error}", path.display()))
            .caused_by(error)
    })
}

pub(crate) fn refused(path: &Path, message: String) -> Error {
    Error::new(ErrorKind::Weights, format!("{}: {message}", path.display()))
        .hint("weights come as `.safetensors` or `.gguf`, whole: one that was cut off is to be fetched again")
}

/// A part of a file, by where it begins and how long it is.
fn part(file: &Buffer, offset: u64, length: u64) -> Option<Buffer> {
    let start = usize::try_from(offset).ok()?;
    let end = usize::try_from(offset.checked_add(length)?).ok()?;
    file.slice(start..end)
}
