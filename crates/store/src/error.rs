use std::fmt;
use std::io;
use std::path::Path;
use std::sync::Arc;

use coremill_io::ErrorDetail;

type Source = Box<dyn std::error::Error + Send + Sync>;

/// Error of the store.
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
    /// SQLite failed.
    Index,
    /// There is no room: the disk is full, or everything in the store is in use.
    Full,
    /// Whoever was to make an entry failed.
    Make,
    /// What was given cannot be kept.
    Input,
}

/// Hint if the disk or the store is full.
pub(crate) const FREE_SPACE: &str = "free some disk space, or prune the cache";

pub(crate) type Result<T = ()> = std::result::Result<T, Error>;

impl Error {
    pub(crate) fn new(kind: ErrorKind, message: impl Into<String>) -> Error {
        Error { kind, detail: ErrorDetail::new(message) }
    }

    pub(crate) fn io(action: &str, path: &Path, error: io::Error) -> Error {
        let is_full =
            matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded);
        let kind = if is_full { ErrorKind::Full } else { ErrorKind::Io };
        let message = format!("cannot {action} `{}`: {error}", path.display());
        let failed = Error { kind, detail: ErrorDetail::new(message).with_source(error) };
        if is_full { failed.with_hint(FREE_SPACE) } else { failed }
    }

    pub(crate) fn index(path: &Path, error: rusqlite::Error) -> Error {
        let is_full = is_full(&error);
        let kind = if is_full { ErrorKind::Full } else { ErrorKind::Index };
        let message = format!("cannot use the index `{}`: {error}", path.display());
        Error { kind, detail: ErrorDetail::new(message).with_source(error) }
    }

    pub(crate) fn make(label: &str, error: impl Into<Source>) -> Error {
        let error = error.into();
        let message = format!("cannot make the entry `{label}`: {error}");
        let detail = ErrorDetail { source: Some(Arc::from(error)), ..ErrorDetail::new(message) };
        Error { kind: ErrorKind::Make, detail }
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

/// Whether the error means that the disk is full.
pub(crate) fn is_full(error: &rusqlite::Error) -> bool {
    error.sqlite_error_code() == Some(rusqlite::ErrorCode::DiskFull)
}
