use std::fmt;
use std::panic::Location;

use coremill_io::{ErrorDetail, opaque_error};

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

opaque_error! {
    /// Error of compiling or running a graph.
    pub struct Error(pub(crate) ErrorKind, Vec<BuildError>);
}

/// An error in a graph, with its line of Rust code.
#[derive(Clone, Debug, PartialEq, Eq)]
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
        Error::from_detail(kind, ErrorDetail::new(message))
    }

    /// Returns an error for code that builds graphs from other sources.
    pub fn custom(kind: ErrorKind, message: impl Into<String>) -> Error {
        Error::new(kind, message)
    }

    pub(crate) fn of_graph(mistakes: Vec<BuildError>) -> Error {
        let lines: Vec<_> = mistakes.iter().map(ToString::to_string).collect();
        let hint = mistakes.iter().find_map(|mistake| mistake.hint.clone());
        let detail = ErrorDetail { location: mistakes, hint, ..ErrorDetail::new(lines.join("\n")) };
        Error::from_detail(ErrorKind::Graph, detail)
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
        Error::from_source(kind, error)
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
        Error::from_source(kind, error)
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
