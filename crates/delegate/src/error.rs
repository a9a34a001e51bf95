use std::fmt;

use coremill_io::ErrorDetail;

/// Category of an [`Error`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The model has no form in an ExecuTorch program, or its weights cannot be read.
    Model,
    /// Internal error: an invalid model, or an inconsistent payload.
    Fault,
}

/// Error of writing a model as a delegate.
#[derive(Clone, Debug)]
pub struct Error {
    kind: ErrorKind,
    detail: ErrorDetail,
}

/// Result of this crate's functions.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    pub(crate) fn model(message: impl Into<String>) -> Error {
        Error { kind: ErrorKind::Model, detail: ErrorDetail::new(message) }
    }

    pub(crate) fn fault(message: impl Into<String>) -> Error {
        Error { kind: ErrorKind::Fault, detail: ErrorDetail::new(message) }
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
