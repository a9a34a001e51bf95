//! Tensors stored in separate files (`.ptd`).

use std::path::Path;

use coremill_pte::{ByteRope, ExternalData};

use crate::error::{Error, Result};

/// Reads named tensors, whose elements are mapped from the file.
pub(crate) fn read(path: &Path) -> Result<Vec<(String, ByteRope)>> {
    let file = ExternalData::read(path);
    let file = file.map_err(|error| Error::from(error).about(path.display()))?;
    Ok(file.entries.into_iter().map(|entry| (entry.key, entry.data)).collect())
}
