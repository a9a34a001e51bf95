//! Output paths, where `-` is standard output.

use std::ffi::OsString;
use std::fmt;
use std::ops::Deref;
use std::path::{Path, PathBuf};

use super::{Failure, failure, print_bytes};

/// The value of an output option. `-` is standard output; a file of that name is `./-`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OutputPath(PathBuf);

impl OutputPath {
    /// Returns true for standard output.
    pub(crate) fn is_stdout(&self) -> bool {
        self.0.as_os_str() == "-"
    }

    /// Writes a file atomically.
    pub(crate) fn write(&self, bytes: &[u8]) -> Result<(), Failure> {
        if self.is_stdout() {
            return print_bytes(bytes);
        }
        coremill::write_file(&self.0, bytes).map_err(|error| failure(&error))
    }

    /// The path of a directory. Fails for standard output.
    pub(crate) fn as_directory(&self) -> Result<&Path, Failure> {
        if self.is_stdout() {
            let message = "`-` is standard output, which cannot hold a directory";
            return Err(Failure::user(message).hint(Some("name a path")));
        }
        Ok(&self.0)
    }

    /// A path that can be opened: the system's name for standard output.
    pub(crate) fn as_file(&self) -> &Path {
        if self.is_stdout() { Path::new("/dev/stdout") } else { &self.0 }
    }
}

impl From<OsString> for OutputPath {
    fn from(path: OsString) -> OutputPath {
        OutputPath(path.into())
    }
}

impl From<PathBuf> for OutputPath {
    fn from(path: PathBuf) -> OutputPath {
        OutputPath(path)
    }
}

impl Deref for OutputPath {
    type Target = Path;

    fn deref(&self) -> &Path {
        &self.0
    }
}

impl AsRef<Path> for OutputPath {
    fn as_ref(&self) -> &Path {
        &self.0
    }
}

impl fmt::Display for OutputPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.is_stdout() {
            true => f.write_str("standard output"),
            false => self.0.display().fmt(f),
        }
    }
}
