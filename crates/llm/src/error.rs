use std::fmt;

use coremill_io::ErrorDetail;

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

/// Error of reading, converting or running a language model.
#[derive(Clone, Debug)]
pub struct Error {
    kind: ErrorKind,
    detail: ErrorDetail,
}

/// Result of this crate's functions.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    pub(crate) fn new(kind: ErrorKind, message: impl Into<String>) -> Error {
        Error { kind, detail: ErrorDetail::new(message) }
    }

    pub(crate) fn with_hint(mut self, hint: impl Into<String>) -> Error {
        self.detail = self.detail.with_hint(hint);
        self
    }

    pub(crate) fn with_source(
        mut self,
        source: impl std::error::Error + Send + Sync + 'static,
    ) -> Error {
        self.detail = self.detail.with_source(source);
        self
    }

    pub(crate) fn io(action: &str, path: &std::path::Path, error: std::io::Error) -> Error {
        let message = format!("cannot {action} {}: {error}", path.display());
        Error::new(ErrorKind::File, message).with_source(error)
    }

    /// Wraps an error of another crate, with its message and hint.
    pub(crate) fn of_source(
        kind: ErrorKind,
        hint: Option<String>,
        source: impl std::error::Error + Send + Sync + 'static,
    ) -> Error {
        Error { kind, detail: ErrorDetail::of_source(source, hint) }
    }

    /// Puts the path of a file before the message.
    pub(crate) fn within(mut self, path: &std::path::Path) -> Error {
        self.detail = self.detail.within(path);
        self
    }

    /// Category of the error.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// Suggested fix.
    pub fn hint(&self) -> Option<&str> {
        self.detail.hint()
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
        let hint = error.hint().map(str::to_owned);
        Error { kind, detail: ErrorDetail::of_source(error, hint) }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.detail.fmt(f)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.detail.source()
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
