use coremill_io::{model_error, opaque_error};

pub use coremill_io::ErrorKind;

opaque_error! {
    /// An error of compression, quantization or precision search.
    pub struct Error(pub(crate) ErrorKind);
}

model_error!(pub(crate) Error from coremill_session::Error, coremill_inspect::Error);

#[cfg(feature = "compiler")]
impl From<coremill_engine::Error> for Error {
    fn from(error: coremill_engine::Error) -> Error {
        let kind = match error.kind() {
            coremill_engine::ErrorKind::Input => ErrorKind::Input,
            _ => ErrorKind::Run,
        };
        Error::from_source(kind, error)
    }
}

impl From<coremill_compress::Error> for Error {
    fn from(error: coremill_compress::Error) -> Error {
        Error::from_source(ErrorKind::Argument, error)
    }
}

/// The message contains the archive entry and the node.
#[cfg(feature = "compiler")]
impl From<coremill_pt2::Error> for Error {
    fn from(error: coremill_pt2::Error) -> Error {
        Error::new(error.located_message()).with_hint_of(error.hint()).with_source(error.clone())
    }
}

#[cfg(feature = "compiler")]
impl From<coremill_compiler::Error> for Error {
    fn from(error: coremill_compiler::Error) -> Error {
        use coremill_compiler::Error as Cause;
        let kind = match &error {
            Cause::Archive(_) => ErrorKind::Format,
            Cause::Refused(_) => ErrorKind::Unsupported,
            Cause::Program(_) => ErrorKind::Argument,
            Cause::Fault(_) => ErrorKind::Internal,
        };
        Error::from_source(kind, error)
    }
}
