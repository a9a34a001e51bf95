use std::fmt;

use coremill_io::{ErrorDetail, opaque_error};

opaque_error! {
    /// Error of loading or running a program.
    pub struct Error(pub ErrorKind, Location);
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
        Error::from_detail(ErrorKind::Run, ErrorDetail::new(message))
    }

    /// Prefixes the message with a subject, such as an input or a model.
    pub(crate) fn about(mut self, subject: impl fmt::Display) -> Error {
        self.detail.message = format!("{subject}: {}", self.detail.message);
        self
    }

    /// Sets the method, unless one is set.
    pub(crate) fn of_method(mut self, method: &str) -> Error {
        self.detail.location.method.get_or_insert_with(|| method.to_owned());
        self
    }

    /// Sets the instruction, unless one is set.
    pub(crate) fn of_instruction(mut self, instruction: usize, operator: &str) -> Error {
        let found = || (instruction, operator.to_owned());
        self.detail.location.instruction.get_or_insert_with(found);
        self
    }

    /// Changes the kind to [`ErrorKind::Load`], unless it was already specific.
    pub(crate) fn of_load(mut self) -> Error {
        if self.kind == ErrorKind::Run {
            self.kind = ErrorKind::Load;
        }
        self
    }

    /// The method at fault.
    pub fn method(&self) -> Option<&str> {
        self.detail.location.method.as_deref()
    }

    /// The instruction at fault, by its index in the method, and the operator that it calls.
    pub fn instruction(&self) -> Option<(usize, &str)> {
        let (index, operator) = self.detail.location.instruction.as_ref()?;
        Some((*index, operator))
    }

    /// Description of the fault, without its location.
    pub fn message(&self) -> &str {
        &self.detail.message
    }
}

impl From<coremill_pte::Error> for Error {
    fn from(error: coremill_pte::Error) -> Error {
        Error::from_source(ErrorKind::Load, error)
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
        self.detail.fmt(f)
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
