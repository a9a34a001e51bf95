use coremill_io::{model_error, opaque_error};

pub use coremill_io::ErrorKind;

opaque_error! {
    /// An error of loading, running, or reading arrays.
    pub struct Error(pub(crate) ErrorKind);
}

model_error!(pub(crate) Error from coremill_engine::Error);

/// The result of this crate's functions.
pub type Result<T = ()> = std::result::Result<T, Error>;

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
