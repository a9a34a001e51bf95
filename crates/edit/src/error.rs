use std::fmt;

use coremill_io::{ErrorDetail, printable};

/// Category of an [`Error`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// A name that the model does not have, or has already.
    Name,
    /// An edit that does not fit the type or shape of its feature.
    Type,
    /// A text or a number of an edit that is not accepted.
    Option,
}

/// An error of editing a model.
#[derive(Clone, Debug)]
pub struct Error {
    kind: ErrorKind,
    detail: ErrorDetail,
}

impl Error {
    fn new(kind: ErrorKind, message: impl Into<String>) -> Error {
        Error { kind, detail: ErrorDetail::new(message) }
    }

    pub(crate) fn name(message: impl Into<String>) -> Error {
        Error::new(ErrorKind::Name, message)
    }

    pub(crate) fn of_type(message: impl Into<String>) -> Error {
        Error::new(ErrorKind::Type, message)
    }

    pub(crate) fn option(message: impl Into<String>) -> Error {
        Error::new(ErrorKind::Option, message)
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
        f.write_str(&printable(&self.detail.message))
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.detail.source()
    }
}
