use coremill_io::{ErrorDetail, opaque_error};

/// Category of an [`Error`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The model has no form in an ExecuTorch program, or its weights cannot be read.
    Model,
    /// Internal error: an invalid model, or an inconsistent payload.
    Fault,
}

opaque_error! {
    /// Error of writing a model as a delegate.
    pub struct Error(pub(crate) ErrorKind);
}

/// Result of this crate's functions.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    pub(crate) fn model(message: impl Into<String>) -> Error {
        Error::from_detail(ErrorKind::Model, ErrorDetail::new(message))
    }

    pub(crate) fn fault(message: impl Into<String>) -> Error {
        Error::from_detail(ErrorKind::Fault, ErrorDetail::new(message))
    }
}
