use std::fmt;
use std::io;
use std::path::Path;

/// Why Core ML did not do what it was asked to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error(Box<Inner>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Inner {
    kind: ErrorKind,
    message: String,
    hint: Option<String>,
}

/// What is wrong, roughly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// This system has no Core ML, or one that is too old.
    Unavailable,
    /// The model does not compile.
    Compile,
    /// The model does not load.
    Load,
    /// A prediction failed.
    Predict,
    /// A tensor or a name that the model does not take.
    Input,
    /// It took longer than was allowed.
    Timeout,
    /// Nobody wanted it any more.
    Cancelled,
    /// Core ML raised an exception.
    Exception,
    /// Files could not be read or written.
    Io,
}

pub(crate) type Result<T = ()> = std::result::Result<T, Error>;

impl Error {
    pub(crate) fn new(kind: ErrorKind, message: impl Into<String>) -> Error {
        Error(Box::new(Inner { kind, message: message.into(), hint: None }))
    }

    pub(crate) fn input(message: impl Into<String>) -> Error {
        Error::new(ErrorKind::Input, message)
    }

    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Error {
        self.0.hint = Some(hint.into());
        self
    }

    /// An error of the file system.
    pub fn of_files(action: &str, path: &Path, error: &io::Error) -> Error {
        Error::new(ErrorKind::Io, format!("cannot {action} `{}`: {error}", path.display()))
    }

    /// The same error, of something that is named.
    pub(crate) fn within(mut self, place: impl fmt::Display) -> Error {
        self.0.message = format!("{place}: {}", self.0.message);
        self
    }

    /// What is wrong, roughly.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// What to do about it.
    pub fn remedy(&self) -> Option<&str> {
        self.0.hint.as_deref()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.message)
    }
}

impl std::error::Error for Error {}
