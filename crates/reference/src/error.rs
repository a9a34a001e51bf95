//! Errors of kernels, with the failing operation.

use std::fmt;

use coremill_io::{ErrorDetail, opaque_error};

opaque_error! {
    /// Error of loading or running a program.
    pub struct Error(pub ErrorKind, Option<Operation>);
}

/// Category of an [`Error`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The model cannot be loaded.
    Load,
    /// The caller's input is at fault: a name, a shape, an element.
    Input,
    /// A run would exceed one of [`Limits`](crate::Limits).
    Limit,
    /// An operation failed.
    Run,
}

impl From<ErrorKind> for coremill_io::ErrorKind {
    fn from(kind: ErrorKind) -> coremill_io::ErrorKind {
        match kind {
            ErrorKind::Input => coremill_io::ErrorKind::Input,
            ErrorKind::Load | ErrorKind::Limit | ErrorKind::Run => coremill_io::ErrorKind::Run,
        }
    }
}

/// The failing operation: its type and the name of its first output.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Operation {
    operation: String,
    value: String,
}

/// Result of running an operation.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// An error of kind [`ErrorKind::Run`].
    pub fn new(message: impl Into<String>) -> Error {
        Error::from_detail(ErrorKind::Run, ErrorDetail::new(message))
    }

    /// A run would exceed a limit.
    pub fn limit(message: impl Into<String>) -> Error {
        Error::new(message).with_kind(ErrorKind::Limit)
    }

    /// Sets the failing operation, unless one is set: its type and the name of its first output.
    pub fn of_operation(mut self, operation: &str, value: &str) -> Error {
        let found = || Operation { operation: operation.to_owned(), value: value.to_owned() };
        self.detail.location.get_or_insert_with(found);
        self
    }

    /// Marks the caller's input as the cause.
    pub fn of_input(mut self) -> Error {
        self.kind = ErrorKind::Input;
        self
    }

    /// Marks the model as the cause, unless a limit was reached.
    pub fn of_load(mut self) -> Error {
        if self.kind == ErrorKind::Run {
            self.kind = ErrorKind::Load;
        }
        self
    }

    /// The failing operation: its type and the name of its first output.
    pub fn operation(&self) -> Option<(&str, &str)> {
        self.detail.location.as_ref().map(|found| (&*found.operation, &*found.value))
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some((operation, value)) = self.operation() {
            write!(f, "`{operation}` of `{value}`: ")?;
        }
        self.detail.fmt(f)
    }
}

/// Returns an error with a message in the form of `format!`.
#[macro_export]
macro_rules! fail {
    ($($message:tt)*) => {
        return Err($crate::error::Error::new(format!($($message)*)))
    };
}
pub use crate::fail;
