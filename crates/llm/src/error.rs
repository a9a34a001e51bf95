use coremill_io::{ErrorDetail, opaque_error};

/// Category of an [`Error`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// An argument of the caller: an option, a text that is too long.
    Argument,
    /// Reading or writing files.
    File,
    /// The content of a file.
    Format,
    /// A model family, a tokenizer or a setting that is not supported.
    Unsupported,
    /// Compiling or running the model.
    Run,
}

opaque_error! {
    /// Error of reading, converting or running a language model.
    pub struct Error(pub(crate) ErrorKind);
}

/// Result of this crate's functions.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    pub(crate) fn new(kind: ErrorKind, message: impl Into<String>) -> Error {
        Error::from_detail(kind, ErrorDetail::new(message))
    }

    pub(crate) fn io(action: &str, path: &std::path::Path, error: std::io::Error) -> Error {
        let message = format!("cannot {action} {}: {error}", path.display());
        Error::new(ErrorKind::File, message).with_source(error)
    }

    /// The path does not exist.
    pub(crate) fn missing(path: &std::path::Path) -> Error {
        Error::from_detail(ErrorKind::File, ErrorDetail::not_found(path))
    }

    /// Puts the path of a file before the message.
    pub(crate) fn within(mut self, path: &std::path::Path) -> Error {
        self.detail = Box::new(self.detail.within(path));
        self
    }
}

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
        return Err($crate::error::Error::new(
            $crate::error::ErrorKind::$kind,
            format!($($message)*),
        ))
    };
}
pub(crate) use fail;
