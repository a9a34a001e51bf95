use coremill_io::{model_error, opaque_error};

pub use coremill_io::ErrorKind;

opaque_error! {
    /// Error of reading, converting or running a language model.
    pub struct Error(pub(crate) ErrorKind);
}

model_error!(pub(crate) Error);

/// Result of this crate's functions.
pub type Result<T> = std::result::Result<T, Error>;

impl From<coremill_graph::Error> for Error {
    fn from(error: coremill_graph::Error) -> Error {
        use coremill_graph::ErrorKind as Kind;
        let kind = match error.kind() {
            Kind::File => ErrorKind::File,
            Kind::Weights | Kind::Parameter => ErrorKind::Format,
            Kind::Options => ErrorKind::Argument,
            _ => ErrorKind::Run,
        };
        Error::from_source(kind, error)
    }
}

/// Returns an error of a kind with a message in the form of `format!`.
macro_rules! fail {
    ($kind:ident, $($message:tt)*) => {
        return Err($crate::error::Error::of_kind(
            $crate::error::ErrorKind::$kind,
            format!($($message)*),
        ))
    };
}
pub(crate) use fail;
