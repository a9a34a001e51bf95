use std::fmt;

/// Why a program cannot be loaded or run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error(Box<Inner>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Inner {
    message: String,
    method: Option<String>,
    instruction: Option<usize>,
    operator: Option<String>,
}

pub(crate) type Result<T = ()> = std::result::Result<T, Error>;

impl Error {
    /// An error with a message. Delegates make them; what fails inside the runtime names its place, too.
    pub fn new(message: impl Into<String>) -> Error {
        Error(Box::new(Inner {
            message: message.into(),
            method: None,
            instruction: None,
            operator: None,
        }))
    }

    /// The same error, of a method, unless it is of one already.
    pub(crate) fn of_method(mut self, method: &str) -> Error {
        self.0.method.get_or_insert_with(|| method.to_owned());
        self
    }

    /// The same error, of an instruction, unless it is of one already.
    pub(crate) fn of_instruction(mut self, instruction: usize, operator: &str) -> Error {
        if self.0.instruction.is_none() {
            self.0.instruction = Some(instruction);
            self.0.operator = Some(operator.to_owned());
        }
        self
    }

    /// The method at fault.
    pub fn method(&self) -> Option<&str> {
        self.0.method.as_deref()
    }

    /// The instruction at fault, by its place in the method, and what it calls.
    pub fn instruction(&self) -> Option<(usize, &str)> {
        Some((self.0.instruction?, self.0.operator.as_deref()?))
    }

    /// What is wrong, without the place.
    pub fn message(&self) -> &str {
        &self.0.message
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
        f.write_str(&self.0.message)
    }
}

impl std::error::Error for Error {}

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
        // Not negated: comparisons with NaN do not hold either way.
        if $condition {
        } else {
            $crate::error::fail!($($message)*);
        }
    };
}
pub(crate) use ensure;
