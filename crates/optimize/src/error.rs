//! Why weights are not compressed.

use std::{fmt, io};

/// Why weights cannot be compressed as requested.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    /// What is wrong.
    pub message: String,
    /// What to do about it.
    pub hint: Option<&'static str>,
}

impl Error {
    pub(crate) fn new(message: impl Into<String>) -> Error {
        Error { message: message.into(), hint: None }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {}

/// Why a weight is not compressed.
#[derive(Debug)]
pub(super) enum Refusal {
    /// The form does not suit the weight.
    Kept(&'static str),
    /// Some elements are infinite or no numbers.
    NotFinite,
    /// The elements cannot be read.
    Unreadable(io::Error),
    /// The options contradict the weight.
    Invalid(Error),
}

/// The reason of [`Refusal::NotFinite`].
pub(super) const NOT_FINITE: &str = "some of its elements are infinite or no numbers";

impl Refusal {
    /// The reason why the weight of this name stays as it is; an error if compression cannot go on.
    pub(super) fn reason(self, weight: &str) -> Result<&'static str, Error> {
        match self {
            Refusal::Kept(reason) => Ok(reason),
            Refusal::NotFinite => Ok(NOT_FINITE),
            Refusal::Unreadable(error) => {
                Err(Error::new(format!("`{weight}` cannot be read: {error}")))
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
