use std::path::Path;

use coremill_io::{ErrorDetail, opaque_error};
use coremill_mlpackage::package;

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
    /// An input of a run is invalid: a name, a shape, elements.
    Input,
    /// The machine lacks a device.
    Device,
    /// The engine or a kernel failed.
    Run,
}

opaque_error! {
    /// An error of a summary, a comparison or an extraction.
    pub struct Error(pub(crate) ErrorKind);
}

impl Error {
    pub(crate) fn new(message: impl Into<String>) -> Error {
        Error::from_detail(ErrorKind::default(), ErrorDetail::new(message))
    }

    /// The path does not exist.
    pub(crate) fn missing(path: &Path) -> Error {
        Error::from_detail(ErrorKind::File, ErrorDetail::not_found(path))
    }

    pub(crate) fn of_package(path: &Path, error: &package::Error) -> Error {
        let kind = match error.kind() {
            package::ErrorKind::Io => ErrorKind::File,
            _ => ErrorKind::Format,
        };
        Error::new(error.located_message(path)).with_kind(kind).with_hint_of(error.hint())
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
