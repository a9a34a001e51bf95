use std::fmt;
use std::io;
use std::path::Path;
use std::sync::Arc;

use coremill_io::ErrorDetail;

type Source = Box<dyn std::error::Error + Send + Sync>;

/// Error of a cache.
#[derive(Debug)]
pub struct Error {
    kind: ErrorKind,
    detail: ErrorDetail,
}

/// Category of an [`Error`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The file system failed.
    Io,
    /// There is no room: the disk is full, or all entries are in use.
    Full,
    /// The function that makes an entry failed.
    Make,
    /// An argument is invalid, or the directory is not a cache.
    Input,
}

/// Hint if the disk or the cache is full.
const FREE_SPACE: &str = "free some disk space, or prune the cache";

pub(crate) type Result<T = ()> = std::result::Result<T, Error>;

impl Error {
    pub(crate) fn new(kind: ErrorKind, message: impl Into<String>) -> Error {
        Error { kind, detail: ErrorDetail::new(message) }
    }

    pub(crate) fn io(action: &str, path: &Path, error: io::Error) -> Error {
        let message = format!("cannot {action} `{}`: {error}", path.display());
        Error::of_source(ErrorKind::Io, message, error.into())
    }

    pub(crate) fn make(label: &str, error: impl Into<Source>) -> Error {
        let error = error.into();
        let message = format!("cannot make the entry `{label}`: {error}");
        Error::of_source(ErrorKind::Make, message, error)
    }

    /// An error with its source, which may be that the disk is full.
    fn of_source(kind: ErrorKind, message: String, source: Source) -> Error {
        let is_full = source.downcast_ref::<io::Error>().is_some_and(|error| {
            matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
        });
        let kind = if is_full { ErrorKind::Full } else { kind };
        let detail = ErrorDetail { source: Some(Arc::from(source)), ..ErrorDetail::new(message) };
        let failed = Error { kind, detail };
        if is_full { failed.with_hint(FREE_SPACE) } else { failed }
    }

    pub(crate) fn with_hint(mut self, hint: impl Into<String>) -> Error {
        self.detail = self.detail.with_hint(hint);
        self
    }

    /// Category of the error.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// Suggested fix.
    pub fn hint(&self) -> Option<&str> {
        self.detail.hint()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.detail.fmt(f)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.detail.source()
    }
}
