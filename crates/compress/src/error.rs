//! Errors of compression, and reasons why weights stay uncompressed.

use std::io;

use coremill_io::{ErrorDetail, opaque_error};

opaque_error! {
    /// Error of compressing weights.
    pub struct Error(pub(crate) ErrorKind);
}

/// Category of an [`Error`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// An option is invalid or unsuitable for the model.
    Option,
    /// The model is invalid: a weight, or its compressed form.
    Model,
}

impl Error {
    pub(crate) fn option(message: impl Into<String>) -> Error {
        Error::from_detail(ErrorKind::Option, ErrorDetail::new(message))
    }

    pub(crate) fn model(message: impl Into<String>) -> Error {
        Error::from_detail(ErrorKind::Model, ErrorDetail::new(message))
    }
}

/// Reason why a weight is not compressed.
#[derive(Debug)]
pub(super) enum Refusal {
    /// The weight does not support the form.
    Kept(&'static str),
    /// Some elements are infinite or NaN.
    NotFinite,
    /// The elements cannot be read.
    Unreadable(io::Error),
    /// The options contradict the weight.
    Invalid(Error),
}

/// Message of [`Refusal::NotFinite`].
pub(super) const NOT_FINITE: &str = "some of its elements are NaN or infinite";

impl Refusal {
    /// The reason why a weight stays uncompressed. Fails if compression cannot continue.
    pub(super) fn reason(self, weight: &str) -> Result<&'static str, Error> {
        match self {
            Refusal::Kept(reason) => Ok(reason),
            Refusal::NotFinite => Ok(NOT_FINITE),
            Refusal::Unreadable(error) => {
                let message = format!("`{weight}` cannot be read: {error}");
                Err(Error::model(message).with_source(error))
            }
            Refusal::Invalid(error) => Err(error),
        }
    }
}

impl From<&'static str> for Refusal {
    fn from(reason: &'static str) -> Refusal {
        Refusal::Kept(reason)
    }
}

impl From<io::Error> for Refusal {
    fn from(error: io::Error) -> Refusal {
        Refusal::Unreadable(error)
    }
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Refusal {
        Refusal::Invalid(error)
    }
}
