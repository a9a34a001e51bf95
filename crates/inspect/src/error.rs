use std::fmt;
use std::path::Path;

use coremill_io::{ErrorDetail, printable};
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

/// An error of a summary, a comparison or an extraction.
#[derive(Clone, Debug)]
pub struct Error {
    kind: ErrorKind,
    detail: ErrorDetail,
}

impl Error {
    pub(crate) fn new(message: impl Into<String>) -> Error {
        Error { kind: ErrorKind::default(), detail: ErrorDetail::new(message) }
    }

    /// Sets the kind.
    fn of_kind(mut self, kind: ErrorKind) -> Error {
        self.kind = kind;
        self
    }

    pub(crate) fn with_hint(mut self, hint: impl Into<String>) -> Error {
        self.detail = self.detail.with_hint(printable(&hint.into()));
        self
    }

    /// Copies the hint of another error, if any.
    pub(crate) fn with_hint_of(mut self, hint: Option<&str>) -> Error {
        self.detail = self.detail.with_hint_of(hint);
        self
    }

    /// The path does not exist.
    pub(crate) fn missing(path: &Path) -> Error {
        Error { kind: ErrorKind::File, detail: ErrorDetail::not_found(path) }
    }

    pub(crate) fn of_package(path: &Path, error: &package::Error) -> Error {
        let kind = match error.kind() {
            package::ErrorKind::Io => ErrorKind::File,
            _ => ErrorKind::Format,
        };
        Error::new(error.located_message(path)).of_kind(kind).with_hint_of(error.hint())
    }

    pub(crate) fn io(action: &str, path: &Path, error: &std::io::Error) -> Error {
        Error { kind: ErrorKind::File, detail: ErrorDetail::of_io(action, path, error) }
    }

    /// Adds the path of a file.
    pub(crate) fn within(mut self, path: &Path) -> Error {
        self.detail = self.detail.within(path);
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
        // Messages may contain names from untrusted files.
        f.write_str(&printable(&self.detail.message))
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.detail.source()
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
        Error::from_source(kind, error.hint().map(str::to_owned), error)
    }
}
