use std::path::Path;

use coremill_io::{model_error, opaque_error};
use coremill_mlpackage::package;

pub use coremill_io::ErrorKind;

opaque_error! {
    /// An error of a summary, a comparison or an extraction.
    pub struct Error(pub(crate) ErrorKind);
}

model_error!(pub(crate) Error from coremill_session::Error);

impl Error {
    pub(crate) fn of_package(path: &Path, error: &package::Error) -> Error {
        let kind = match error.kind() {
            package::ErrorKind::Io => ErrorKind::File,
            _ => ErrorKind::Format,
        };
        Error::of_kind(kind, error.located_message(path)).with_hint_of(error.hint())
    }
}
