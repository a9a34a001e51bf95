//! Files of weights: safetensors and GGUF. Files are mapped and untrusted.

mod blocks;
mod fidelity;
mod gguf;
mod safetensors;

use std::path::Path;

use coremill_tensor::Buffer;

pub(crate) use blocks::{AllowedForms, Form};
pub use gguf::{Gguf, MetadataArray, MetadataValue};

use crate::error::{Error, ErrorKind, Result};
use crate::params::{Param, Params};

impl Params {
    /// Loads the tensors of a `.safetensors` or `.gguf` file, detected by content, under their own names.
    /// Returns their number.
    pub fn load(&mut self, path: impl AsRef<Path>) -> Result<usize> {
        self.load_as(path, |name| Some(name.to_owned()))
    }

    /// Loads the tensors of a file under other names, and skips tensors for which `rename` returns `None`.
    ///
    /// ```no_run
    /// let mut params = coremill_graph::Params::new();
    /// params.load_as("model.safetensors", |name| Some(name.strip_prefix("model.")?.to_owned()))?;
    /// # Ok::<(), coremill_graph::Error>(())
    /// ```
    pub fn load_as(
        &mut self,
        path: impl AsRef<Path>,
        mut rename: impl FnMut(&str) -> Option<String>,
    ) -> Result<usize> {
        let mut count = 0;
        for (name, param) in read(path.as_ref())? {
            if let Some(name) = rename(&name) {
                self.set(name, param);
                count += 1;
            }
        }
        Ok(count)
    }
}

/// The tensors of a file by name, in either format.
fn read(path: &Path) -> Result<Vec<(String, Param)>> {
    let bytes = map(path)?;
    let mut magic = [0; 4];
    let found = bytes.len() >= 4 && bytes.read_at(0, &mut magic).is_ok();
    if found && magic == gguf::MAGIC {
        let gguf = gguf::parse(&bytes).map_err(|message| refused(path, message))?;
        if let Some((name, code)) = gguf.unsupported.first() {
            return Err(refused(path, gguf::unsupported_scheme(name, *code)));
        }
        return Ok(gguf.tensors);
    }
    safetensors::parse(&bytes).map_err(|message| refused(path, message))
}

pub(crate) fn map(path: &Path) -> Result<Buffer> {
    if path.is_dir() {
        let message = format!("{} is a directory", path.display());
        return Err(
            Error::new(ErrorKind::File, message).with_hint("pass a `.safetensors` or a `.gguf`")
        );
    }
    Buffer::map(path).map_err(|error| {
        Error::new(ErrorKind::File, format!("cannot read {}: {error}", path.display()))
            .with_source(error)
    })
}

pub(crate) fn refused(path: &Path, message: String) -> Error {
    Error::new(ErrorKind::Weights, format!("{}: {message}", path.display())).with_hint(
        "pass a complete `.safetensors` or `.gguf` file; download a truncated file again",
    )
}

/// A part of a file, by offset and length.
fn part(file: &Buffer, offset: u64, length: u64) -> Option<Buffer> {
    let start = usize::try_from(offset).ok()?;
    let end = usize::try_from(offset.checked_add(length)?).ok()?;
    file.slice(start..end)
}
