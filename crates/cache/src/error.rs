use std::io;
use std::path::Path;
use std::sync::Arc;

use coremill_io::{ErrorDetail, opaque_error};

type Source = Box<dyn std::error::Error + Send + Sync>;

opaque_error! {
    /// Error of a cache.
    pub struct Error(pub(crate) ErrorKind);
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
        Error::from_detail(kind, ErrorDetail::new(message))
    }

    pub(crate) fn io(action: &str, path: &Path, error: io::Error) -> Error {
        let message = format!("cannot {action} `{}`: {error}", path.display());
        Error::of_source(ErrorKind::Io, message, error.into())
    }

    pub(crate) fn make(label: &str, error: impl Into<Source>) -> Error {
        let error = error.into();
        let message = format!("cannot create the entry `{label}`: {error}");
        Error::of_source(ErrorKind::Make, message, error)
    }

    /// An error with its source, which may be that the disk is full.
    fn of_source(kind: ErrorKind, message: String, source: Source) -> Error {
        let is_full = source.downcast_ref::<io::Error>().is_some_and(|error| {
            matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
        });
        let kind = if is_full { ErrorKind::Full } else { kind };
        let detail = ErrorDetail { source: Some(Arc::from(source)), ..ErrorDetail::new(message) };
        let failed = Error::from_detail(kind, detail);
        if is_full { failed.with_hint(FREE_SPACE) } else { failed }
    }
}
