use std::fmt;
use std::path::Path;

use coremill_io::ErrorDetail;

/// Category of an [`Error`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// Invalid request: a name, an option, a file of the wrong kind.
    #[default]
    Argument,
    /// A file cannot be read or written.
    File,
    /// Invalid input or state: a name, a shape, elements.
    Input,
    /// A device is not available.
    Device,
    /// The engine, Core ML or a kernel failed.
    Run,
}

/// An error of loading, running, or reading arrays.
#[derive(Clone, Debug)]
pub struct Error {
    kind: ErrorKind,
    detail: ErrorDetail,
}

/// The result of this crate's functions.
pub type Result<T = ()> = std::result::Result<T, Error>;

impl Error {
    pub(crate) fn new(message: impl Into<String>) -> Error {
        Error { kind: ErrorKind::default(), detail: ErrorDetail::new(message) }
    }

    /// Sets the kind.
    pub(crate) fn of_kind(mut self, kind: ErrorKind) -> Error {
        self.kind = kind;
        self
    }

    pub(crate) fn with_hint(mut self, hint: impl Into<String>) -> Error {
        self.detail = self.detail.with_hint(hint);
        self
    }

    /// Wraps an error of another crate, with its message and hint.
    fn from_source(
        kind: ErrorKind,
        hint: Option<String>,
        source: impl std::error::Error + Send + Sync + 'static,
    ) -> Error {
        Error { kind, detail: ErrorDetail::of_source(source, hint) }
    }

    pub(crate) fn io(action: &str, path: &Path, error: &std::io::Error) -> Error {
        Error { kind: ErrorKind::File, detail: ErrorDetail::of_io(action, path, error) }
    }

    /// Error for a path that does not exist.
    pub(crate) fn missing(path: &Path) -> Error {
        Error { kind: ErrorKind::File, detail: ErrorDetail::not_found(path) }
    }

    /// Error for an output directory that does not exist.
    pub(crate) fn missing_directory(path: &Path) -> Error {
        Error { kind: ErrorKind::File, detail: ErrorDetail::directory_not_found(path) }
    }

    /// Adds the file to the message.
    pub(crate) fn within(mut self, path: &Path) -> Error {
        self.detail = self.detail.within(path);
        self
    }

    /// Adds the name of the array to the message.
    pub(crate) fn of_array(mut self, name: &str) -> Error {
        self.detail = self.detail.of_array(name);
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

impl From<coremill_engine::Error> for Error {
    fn from(error: coremill_engine::Error) -> Error {
        let kind = match error.kind() {
            coremill_engine::ErrorKind::Input => ErrorKind::Input,
            _ => ErrorKind::Run,
        };
        Error::from_source(kind, error.hint().map(str::to_owned), error)
    }
}

impl From<coremill_coreml::Error> for Error {
    fn from(error: coremill_coreml::Error) -> Error {
        let kind = match error.kind() {
            coremill_coreml::ErrorKind::Unavailable => ErrorKind::Device,
            coremill_coreml::ErrorKind::Input => ErrorKind::Input,
            coremill_coreml::ErrorKind::Io => ErrorKind::File,
            _ => ErrorKind::Run,
        };
        Error::from_source(kind, error.hint().map(str::to_owned), error)
    }
}

impl From<coremill_mlpackage::package::Error> for Error {
    fn from(error: coremill_mlpackage::package::Error) -> Error {
        Error::from_source(ErrorKind::File, error.hint().map(str::to_owned), error)
    }
}

impl From<coremill_runtime::Error> for Error {
    fn from(error: coremill_runtime::Error) -> Error {
        use coremill_runtime::ErrorKind as Kind;
        let kind = match error.kind() {
            Kind::Input => ErrorKind::Input,
            Kind::Device => ErrorKind::Device,
            _ => ErrorKind::Run,
        };
        Error::from_source(kind, error.hint().map(str::to_owned), error)
    }
}

/// Returns an error of a kind with a message in the form of `format!`.
macro_rules! fail {
    ($kind:ident, $($message:tt)*) => {
        return Err($crate::error::Error::new(format!($($message)*))
            .of_kind($crate::error::ErrorKind::$kind))
    };
}
pub(crate) use fail;
