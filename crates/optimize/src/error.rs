use std::path::Path;

use coremill_io::{ErrorDetail, opaque_error};

/// Category of an [`Error`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// An invalid argument: a name, an option, a file of another kind.
    #[default]
    Argument,
    /// A file cannot be read or written.
    File,
    /// A file is damaged or violates its format.
    Format,
    /// The PyTorch program contains calls that cannot be lowered.
    Unsupported,
    /// An input of a run is invalid: a name, a shape, elements.
    Input,
    /// The machine lacks a device.
    Device,
    /// The engine or a kernel failed.
    Run,
    /// A bug in coremill.
    Internal,
}

opaque_error! {
    /// An error of compression, quantization or precision search.
    pub struct Error(pub(crate) ErrorKind);
}

impl Error {
    pub(crate) fn new(message: impl Into<String>) -> Error {
        Error::from_detail(ErrorKind::default(), ErrorDetail::new(message))
    }

    /// Adds the name of an array.
    #[cfg(feature = "compiler")]
    pub(crate) fn of_array(mut self, name: &str) -> Error {
        self.detail = Box::new(self.detail.of_array(name));
        self
    }

    #[cfg(feature = "compiler")]
    pub(crate) fn of_engine(error: &coremill_engine::Error) -> Error {
        let kind = match error.kind() {
            coremill_engine::ErrorKind::Input => ErrorKind::Input,
            _ => ErrorKind::Run,
        };
        Error::from_source(kind, error.clone())
    }

    pub(crate) fn io(action: &str, path: &Path, error: &std::io::Error) -> Error {
        Error::from_detail(ErrorKind::File, ErrorDetail::of_io(action, path, error))
    }

    /// Adds the path of a file.
    pub(crate) fn within(mut self, path: &Path) -> Error {
        self.detail = Box::new(self.detail.within(path));
        self
    }
}

impl From<coremill_session::Error> for Error {
    fn from(error: coremill_session::Error) -> Error {
        use coremill_session::ErrorKind as Kind;
        let kind = match error.kind() {
            Kind::File => ErrorKind::File,
            Kind::Input => ErrorKind::Input,
            Kind::Device => ErrorKind::Device,
            Kind::Run => ErrorKind::Run,
            _ => ErrorKind::Argument,
        };
        Error::from_source(kind, error)
    }
}

impl From<coremill_compress::Error> for Error {
    fn from(error: coremill_compress::Error) -> Error {
        Error::from_source(ErrorKind::Argument, error)
    }
}

impl From<coremill_inspect::Error> for Error {
    fn from(error: coremill_inspect::Error) -> Error {
        use coremill_inspect::ErrorKind as Kind;
        let kind = match error.kind() {
            Kind::File => ErrorKind::File,
            Kind::Format => ErrorKind::Format,
            Kind::Input => ErrorKind::Input,
            Kind::Device => ErrorKind::Device,
            Kind::Run => ErrorKind::Run,
            _ => ErrorKind::Argument,
        };
        Error::from_source(kind, error)
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
