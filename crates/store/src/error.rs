use std::fmt;
use std::io;
use std::path::Path;

type Source = Box<dyn std::error::Error + Send + Sync>;

/// Why the store cannot do what it was asked to.
#[derive(Debug)]
pub struct Error {
    kind: ErrorKind,
    message: String,
    hint: Option<String>,
    source: Option<Source>,
}

/// What is wrong, roughly.
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

pub(crate) type Result<T = ()> = std::result::Result<T, Error>;

impl Error {
    pub(crate) fn new(kind: ErrorKind, message: impl Into<String>) -> Error {
        Error { kind, message: message.into(), hint: None, source: None }
    }

    pub(crate) fn io(action: &str, path: &Path, error: io::Error) -> Error {
        let is_full =
            matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded);
        let kind = if is_full { ErrorKind::Full } else { ErrorKind::Io };
        let message = format!("cannot {action} `{}`: {error}", path.display());
        let failed = Error { source: Some(Box::new(error)), ..Error::new(kind, message) };
        if is_full {
            failed.with_hint("free some space, or remove entries with `coremill cache prune`")
        } else {
            failed
        }
    }

    pub(crate) fn index(path: &Path, error: rusqlite::Error) -> Error {
        let is_full = is_full(&error);
        let kind = if is_full { ErrorKind::Full } else { ErrorKind::Index };
        let message = format!("cannot use the index `{}`: {error}", path.display());
        Error { source: Some(Box::new(error)), ..Error::new(kind, message) }
    }

    pub(crate) fn make(label: &str, error: impl Into<Source>) -> Error {
        let error = error.into();
        let message = format!("cannot make the entry `{label}`: {error}");
        Error { source: Some(error), ..Error::new(ErrorKind::Make, message) }
    }

    pub(crate) fn with_hint(mut self, hint: impl Into<String>) -> Error {
        self.hint = Some(hint.into());
        self
    }

    /// What is wrong, roughly.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// What to do about it.
    pub fn remedy(&self) -> Option<&str> {
        self.hint.as_deref()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_deref().map(|source| source as _)
    }
}

/// Whether the error means that the disk is full.
pub(crate) fn is_full(error: &rusqlite::Error) -> bool {
    error.sqlite_error_code() == Some(rusqlite::ErrorCode::DiskFull)
}
