use std::fmt;

use coremill_io::ErrorDetail;

/// Error of loading or running a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error(Box<Inner>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Inner {
    kind: ErrorKind,
    detail: ErrorDetail<Location>,
}

/// Category of an [`Error`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The program cannot be loaded.
    Load,
    /// The caller's input is at fault: a name, a type, sizes.
    Input,
    /// The device is not on this machine.
    Device,
    /// A kernel or a delegate failed.
    Run,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Location {
    method: Option<String>,
    /// Index of the instruction in the method, and the operator that it calls.
    instruction: Option<(usize, String)>,
}

pub(crate) type Result<T = ()> = std::result::Result<T, Error>;

impl Error {
    /// An error of kind [`ErrorKind::Run`]. Delegates create them; the runtime adds the location.
    pub fn new(message: impl Into<String>) -> Error {
        Error(Box::new(Inner { kind: ErrorKind::Run, detail: ErrorDetail::new(message) }))
    }

    /// Sets the kind.
    pub fn with_kind(mut self, kind: ErrorKind) -> Error {
        self.0.kind = kind;
        self
    }

    /// Sets the hint.
    pub fn with_hint(mut self, hint: impl Into<String>) -> Error {
        self.0.detail = self.0.detail.with_hint(hint);
        self
    }

    /// An error with the message and the hint of its source.
    pub(crate) fn of(
        kind: ErrorKind,
        hint: Option<String>,
        source: impl std::error::Error + Send + Sync + 'static,
    ) -> Error {
        let detail = ErrorDetail { hint, ..ErrorDetail::new(source.to_string()) };
        Error(Box::new(Inner { kind, detail: detail.with_source(source) }))
    }

    /// Sets the source.
    pub fn with_source(mut self, source: impl std::error::Error + Send + Sync + 'static) -> Error {
        self.0.detail = self.0.detail.with_source(source);
        self
    }

    /// Prefixes the message with a subject, such as an input or a model.
    pub(crate) fn about(mut self, subject: impl fmt::Display) -> Error {
        self.0.detail.message = format!("{subject}: {}", self.0.detail.message);
        self
    }

    /// Sets the method, unless one is set.
    pub(crate) fn of_method(mut self, method: &str) -> Error {
        self.0.detail.location.method.get_or_insert_with(|| method.to_owned());
        self
    }

    /// Sets the instruction, unless one is set.
    pub(crate) fn of_instruction(mut self, instruction: usize, operator: &str) -> Error {
        let found = || (instruction, operator.to_owned());
        self.0.detail.location.instruction.get_or_insert_with(found);
        self
    }

    /// Changes the kind to [`ErrorKind::Load`], unless it was already specific.
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

    /// The method at fault.
    pub fn method(&self) -> Option<&str> {
        self.0.detail.location.method.as_deref()
    }

    /// The instruction at fault, by its index in the method, and the operator that it calls.
    pub fn instruction(&self) -> Option<(usize, &str)> {
        let (index, operator) = self.0.detail.location.instruction.as_ref()?;
        Some((*index, operator))
    }

    /// Description of the fault, without its location.
    pub fn message(&self) -> &str {
        &self.0.detail.message
    }
}

impl From<coremill_pte::Error> for Error {
    fn from(error: coremill_pte::Error) -> Error {
        Error::of(ErrorKind::Load, error.hint().map(str::to_owned), error)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(method) = self.method() {
            write!(f, "method `{method}`, ")?;
        }
        if let Some((instruction, operator)) = self.instruction() {
            write!(f, "instruction {instruction} (`{operator}`): ")?;
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

/// Returns an error unless a condition holds.
macro_rules! ensure {
    ($condition:expr, $($message:tt)*) => {
        // The condition is not negated, because comparisons with NaN are false either way.
        if $condition {
        } else {
            $crate::error::fail!($($message)*);
        }
    };
}
pub(crate) use ensure;
