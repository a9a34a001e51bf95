use std::path::Path;

use coremill_mlpackage::{compiled, package};
use coremill_verify::Verified;

use crate::error::{Error, Result};
use crate::file_kind::FileKind;

/// The options of [`save`].
#[derive(Clone, Copy, Debug, Default)]
pub struct SaveOptions {
    /// Whether to wait until everything is on disk.
    pub durable: bool,
}

/// Saves a model in the format of the path's extension: `.mlpackage` or `.mlmodelc`.
///
/// An existing model is replaced atomically after everything is written. Output is deterministic.
pub fn save(path: &Path, verified: &Verified<'_>, options: &SaveOptions) -> Result {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    if let Some(parent) = parent.filter(|parent| !parent.is_dir()) {
        return Err(Error::missing_directory(parent).with_hint("create the directory first"));
    }
    let SaveOptions { durable } = *options;
    let written = match FileKind::of_extension(path)? {
        FileKind::CompiledModel => {
            compiled::write(path, verified, &compiled::WriteOptions { durable, name: None })
        }
        _ => package::write(path, verified, &package::WriteOptions { durable }),
    };
    written.map_err(|error| Error::from(error).within(path))
}
