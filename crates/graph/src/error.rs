use std::fmt;
use std::panic::Location;

use coremill_io::ErrorDetail;

/// Category of an [`Error`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// An error in the graph, for instance an invalid operation or a duplicate name.
    Graph,
    /// The options of the compiler.
    Options,
    /// A parameter that is missing, unknown or of the wrong shape.
    Parameter,
    /// An invalid file of weights.
    Weights,
    /// An invalid input of a run.
    Input,
    /// The device is not available on this machine.
    Device,
    /// The engine or Core ML failed.
    Run,
    /// A file could not be read or written.
    File,
}

/// Error of compiling or running a graph.
#[derive(Clone, Debug)]
pub struct Error {
    kind: ErrorKind,
    detail: ErrorDetail<Vec<BuildError>>,
}

/// An error in a graph, with its line of Rust code.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct BuildError {
    /// Description of the error.
    pub message: String,
    /// Suggested fix.
    pub hint: Option<String>,
    /// Location of the call.
    pub location: &'static Location<'static>,
}

pub(crate) type Result<T> = std::result::Result<T, Error>;

impl Error {
    pub(crate) fn new(kind: ErrorKind, message: impl Into<String>) -> Error {
        Error { kind, detail: ErrorDetail::new(message) }
    }

    /// Returns an error for code that builds graphs from other sources.
    pub fn custom(kind: ErrorKind, message: impl Into<String>) -> Error {
        Error::new(kind, message)
    }

    pub(crate) fn of_graph(mistakes: Vec<BuildError>) -> Error {
        let lines: Vec<_> = mistakes.iter().map(ToString::to_string).collect();
        let hint = mistakes.iter().find_map(|mistake| mistake.hint.clone());
        let detail = ErrorDetail { location: mistakes, hint, ..ErrorDetail::new(lines.join("\n")) };
        Error { kind: ErrorKind::Graph, detail }
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

    /// Returns an error with the message and the hint of its source.
    pub(crate) fn of(
        kind: ErrorKind,
        hint: Option<String>,
        source: impl std::error::Error + Send + Sync + 'static,
    ) -> Error {
        let detail = ErrorDetail { hint, ..ErrorDetail::new(source.to_string()) };
        Error { kind, detail: detail.with_source(source) }
    }

    /// Category of the error.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// Suggested fix.
    pub fn hint(&self) -> Option<&str> {
        self.detail.hint()
    }

    /// All errors in the graph, in the order in which it was built.
    pub fn mistakes(&self) -> &[BuildError] {
        &self.detail.location
    }
}

impl From<coremill_engine::Error> for Error {
    fn from(error: coremill_engine::Error) -> Error {
        let kind = match error.kind() {
            coremill_engine::ErrorKind::Input => ErrorKind::Input,
            _ => ErrorKind::Run,
        };
        Error::of(kind, error.hint().map(str::to_owned), error)
    }
}

impl From<coremill_session::Error> for Error {
    fn from(error: coremill_session::Error) -> Error {
        use coremill_session::ErrorKind as Kind;
        let kind = match error.kind() {
            Kind::Input => ErrorKind::Input,
            Kind::Device => ErrorKind::Device,
            Kind::Run => ErrorKind::Run,
            _ => ErrorKind::File,
        };
        Error::of(kind, error.hint().map(str::to_owned), error)
    }
}

impl fmt::Display for BuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.location, self.message)
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

/// Returns an error of a kind with a formatted message.
macro_rules! fail {
    ($kind:ident, $($message:tt)*) => {
        return Err($crate::error::Error::new(
            $crate::error::ErrorKind::$kind,
            format!($($message)*),
        ))
    };
}
pub(crate) use fail;
