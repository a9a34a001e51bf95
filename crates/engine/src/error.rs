use std::fmt;

use coremill_io::ErrorDetail;

/// Error of loading or running a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error(Box<Inner>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Inner {
    kind: ErrorKind,
    detail: ErrorDetail<Option<Operation>>,
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

/// The failing operation: its type and the name of its first output.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Operation {
    operation: String,
    value: String,
}

pub(crate) type Result<T> = std::result::Result<T, Error>;

impl Error {
    pub(crate) fn new(message: impl Into<String>) -> Error {
        Error(Box::new(Inner { kind: ErrorKind::Run, detail: ErrorDetail::new(message) }))
    }

    /// A run would exceed a limit.
    pub(crate) fn limit(message: impl Into<String>) -> Error {
        let mut error = Error::new(message);
        error.0.kind = ErrorKind::Limit;
        error
    }

    pub(crate) fn with_hint(mut self, hint: impl Into<String>) -> Error {
        self.0.detail = self.0.detail.with_hint(hint);
        self
    }

    pub(crate) fn with_source(
        mut self,
        source: impl std::error::Error + Send + Sync + 'static,
    ) -> Error {
        self.0.detail = self.0.detail.with_source(source);
        self
    }

    /// Sets the failing operation, unless one is set: its type and the name of its first output.
    pub(crate) fn of_operation(mut self, operation: &str, value: &str) -> Error {
        let found = || Operation { operation: operation.to_owned(), value: value.to_owned() };
        self.0.detail.location.get_or_insert_with(found);
        self
    }

    /// Marks the caller's input as the cause.
    pub(crate) fn of_input(mut self) -> Error {
        self.0.kind = ErrorKind::Input;
        self
    }

    /// Marks the model as the cause, unless a limit was reached.
    pub(crate) fn of_load(mut self) -> Error {
        if self.0.kind == ErrorKind::Run {
            self.0.kind = ErrorKind::Load;
        }
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

    /// The failing operation: its type and the name of its first output.
    pub fn operation(&self) -> Option<(&str, &str)> {
        self.0.detail.location.as_ref().map(|found| (&*found.operation, &*found.value))
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some((operation, value)) = self.operation() {
            write!(f, "`{operation}` of `{value}`: ")?;
        }
        self.0.detail.fmt(f)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.detail.source()
    }
}

/// Returns an error with a message in the form of `format!`.
macro_rules! fail {
    ($($message:tt)*) => {
        return Err($crate::error::Error::new(format!($($message)*)))
    };
}
pub(crate) use fail;
