use std::fmt;
use std::io;
use std::path::Path;

use coremill_io::{ErrorDetail, opaque_error};

opaque_error! {
    /// Error of Core ML, or of using it.
    pub struct Error(pub(crate) ErrorKind);
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
        Error::from_detail(kind, ErrorDetail::new(message))
    }

    pub(crate) fn input(message: impl Into<String>) -> Error {
        Error::new(ErrorKind::Input, message)
    }

    /// Error for a file system operation.
    pub fn of_files(action: &str, path: &Path, error: &io::Error) -> Error {
        Error::new(ErrorKind::Io, format!("cannot {action} `{}`: {error}", path.display()))
    }

    /// Prefixes the message with `place`.
    pub(crate) fn within(mut self, place: impl fmt::Display) -> Error {
        self.detail.message = format!("{place}: {}", self.detail.message);
        self
    }
}
