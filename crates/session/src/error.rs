use std::path::Path;

use coremill_io::{ErrorDetail, opaque_error};

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

opaque_error! {
    /// An error of loading, running, or reading arrays.
    pub struct Error(pub(crate) ErrorKind);
}

/// The result of this crate's functions.
pub type Result<T = ()> = std::result::Result<T, Error>;

impl Error {
    pub(crate) fn new(message: impl Into<String>) -> Error {
        Error::from_detail(ErrorKind::default(), ErrorDetail::new(message))
    }

    pub(crate) fn io(action: &str, path: &Path, error: &std::io::Error) -> Error {
        Error::from_detail(ErrorKind::File, ErrorDetail::of_io(action, path, error))
    }

    /// Error for a path that does not exist.
    pub(crate) fn missing(path: &Path) -> Error {
        Error::from_detail(ErrorKind::File, ErrorDetail::not_found(path))
    }

    /// Error for an output directory that does not exist.
    pub(crate) fn missing_directory(path: &Path) -> Error {
        Error::from_detail(ErrorKind::File, ErrorDetail::directory_not_found(path))
    }

    /// Adds the file to the message.
    pub(crate) fn within(mut self, path: &Path) -> Error {
        self.detail = Box::new(self.detail.within(path));
        self
    }

    /// Adds the name of the array to the message.
    pub(crate) fn of_array(mut self, name: &str) -> Error {
        self.detail = Box::new(self.detail.of_array(name));
        self
    }
}

impl From<coremill_engine::Error> for Error {
    fn from(error: coremill_engine::Error) -> Error {
        let kind = match error.kind() {
            coremill_engine::ErrorKind::Input => ErrorKind::Input,
            _ => ErrorKind::Run,
        };
        Error::from_source(kind, error)
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
        Error::from_source(kind, error)
    }
}

impl From<coremill_mlpackage::package::Error> for Error {
    fn from(error: coremill_mlpackage::package::Error) -> Error {
        Error::from_source(ErrorKind::File, error)
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
        Error::from_source(kind, error)
    }
}

/// Returns an error of a kind with a message in the form of `format!`.
macro_rules! fail {
    ($kind:ident, $($message:tt)*) => {
        return Err($crate::error::Error::new(format!($($message)*))
            .with_kind($crate::error::ErrorKind::$kind))
    };
}
pub(crate) use fail;
