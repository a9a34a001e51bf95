use std::fmt;

/// Why a program cannot be loaded or run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error(Box<Inner>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Inner {
    message: String,
    hint: Option<String>,
    place: Option<Place>,
    of_input: bool,
}

/// The operation at fault.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Place {
    operation: String,
    value: String,
}

pub(crate) type Result<T> = std::result::Result<T, Error>;

impl Error {
    pub(crate) fn new(message: impl Into<String>) -> Error {
        Error(Box::new(Inner { message: message.into(), hint: None, place: None, of_input: false }))
    }

    /// The same error with what to do about it.
    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Error {
        self.0.hint = Some(hint.into());
        self
    }

    /// The same error, of an operation that gives a value of that name, unless it has a place already.
    pub(crate) fn of_operation(mut self, operation: &str, value: &str) -> Error {
        let place = || Place { operation: operation.to_owned(), value: value.to_owned() };
        self.0.place.get_or_insert_with(place);
        self
    }

    /// The same error, of what was passed in.
    pub(crate) fn of_input(mut self) -> Error {
        self.0.of_input = true;
        self
    }

    /// Whether what was passed in is at fault: a name, a shape, an element.
    pub fn is_of_input(&self) -> bool {
        self.0.of_input
    }

    /// What to do about it.
    pub fn remedy(&self) -> Option<&str> {
        self.0.hint.as_deref()
    }

    /// The operation at fault, by its type and the name of its first value.
    pub fn operation(&self) -> Option<(&str, &str)> {
        self.0.place.as_ref().map(|place| (&*place.operation, &*place.value))
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0.place {
            Some(place) => {
                write!(f, "`{}` of `{}`: {}", place.operation, place.value, self.0.message)
            }
            None => f.write_str(&self.0.message),
        }
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
