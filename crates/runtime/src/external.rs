//! Tensors that lie in files of their own.

use std::path::Path;

use coremill_pte::{ByteRope, ExternalData};

use crate::error::{Error, Result};

/// The elements of tensors by their names, mapped from the file.
pub(crate) fn read(path: &Path) -> Result<Vec<(String, ByteRope)>> {
    let file = ExternalData::read(path);
    let file = file.map_err(|error| Error::from(error).about(path.display()))?;
    Ok(file.entries.into_iter().map(|entry| (entry.key, entry.data)).collect())
}
