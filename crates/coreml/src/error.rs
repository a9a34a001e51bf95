use std::fmt;
use std::io;
use std::path::Path;

use coremill_io::ErrorDetail;

/// Error of Core ML, or of using it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error(Box<Inner>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Inner {
    kind: ErrorKind,
    detail: ErrorDetail,
}

/// Category of an [`Error`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// Core ML is missing or too old.
    Unavailable,
    /// The model cannot be compiled.
    Compile,
    /// The model cannot be loaded.
    Load,
    /// A prediction failed.
    Predict,
    /// The model has no such input or output, or does not support the tensor.
    Input,
    /// The operation timed out.
    Timeout,
    /// The operation was cancelled.
    Cancelled,
    /// Core ML raised an exception.
    Exception,
    /// Files could not be read or written.
    Io,
}

pub(crate) type Result<T = ()> = std::result::Result<T, Error>;

impl Error {
    pub(crate) fn new(kind: ErrorKind, message: impl Into<String>) -> Error {
        Error(Box::new(Inner { kind, detail: ErrorDetail::new(message) }))
    }

    pub(crate) fn input(message: impl Into<String>) -> Error {
        Error::new(ErrorKind::Input, message)
    }

    pub(crate) fn with_hint(mut self, hint: impl Into<String>) -> Error {
        self.0.detail = self.0.detail.with_hint(hint);
        self
    }

    /// Error for a file system operation.
    pub fn of_files(action: &str, path: &Path, error: &io::Error) -> Error {
        Error::new(ErrorKind::Io, format!("cannot {action} `{}`: {error}", path.display()))
    }

    /// Prefixes the message with `place`.
    pub(crate) fn within(mut self, place: impl fmt::Display) -> Error {
        self.0.detail.message = format!("{place}: {}", self.0.detail.message);
        self
    }

    /// Category of the error.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// Suggested fix.
    pub fn hint(&self) -> Option<&str> {
        self.0.detail.hint()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.detail.fmt(f)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.detail.source()
    }
}
