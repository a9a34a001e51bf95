use coremill_io::{model_error, opaque_error};

pub use coremill_io::ErrorKind;

opaque_error! {
    /// An error of compression, quantization or precision search.
    pub struct Error(pub(crate) ErrorKind);
}

model_error!(
    pub(crate) Error from
    #[cfg(feature = "compiler")]
    coremill_compiler::Error,
    #[cfg(feature = "compiler")]
    coremill_engine::Error,
    coremill_inspect::Error,
    coremill_session::Error
);

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
