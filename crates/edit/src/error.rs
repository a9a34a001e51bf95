use coremill_io::{ErrorDetail, opaque_error};

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

opaque_error! {
    /// An error of editing a model.
    pub struct Error(pub(crate) ErrorKind);
}

impl Error {
    fn new(kind: ErrorKind, message: impl Into<String>) -> Error {
        Error::from_detail(kind, ErrorDetail::new(message))
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
}
