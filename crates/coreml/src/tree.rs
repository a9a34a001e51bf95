//! Models stored as directories.

use std::fs;
use std::path::Path;

use crate::error::{Error, Result};

/// Copies a file or directory. Files are cloned if the file system supports it.
pub(crate) fn copy_tree(from: &Path, to: &Path) -> Result {
    visit(from, Path::new(""), &mut |file, relative| {
        let target =
            if relative.as_os_str().is_empty() { to.to_owned() } else { to.join(relative) };
        let copy = || {
            target.parent().map_or(Ok(()), fs::create_dir_all)?;
            fs::copy(file, &target)
        };
        copy().map(|_| ()).map_err(|error| Error::of_files("copy", file, &error))
    })
}

/// Calls `act` with all files under a path and their relative paths. Links are followed, as packages may contain
/// them.
pub(crate) fn visit(
    path: &Path,
    relative: &Path,
    act: &mut dyn FnMut(&Path, &Path) -> Result,
) -> Result {
    let failed = |error: std::io::Error| Error::of_files("read", path, &error);
    if !fs::metadata(path).map_err(failed)?.is_dir() {
        return act(path, relative);
    }
    for entry in fs::read_dir(path).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        visit(&entry.path(), &relative.join(entry.file_name()), act)?;
    }
    Ok(())
}
