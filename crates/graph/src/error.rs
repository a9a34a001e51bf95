use std::fmt;
use std::panic::Location;
use std::sync::Arc;

/// What an [`Error`] is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The graph: an operation that cannot stand, a name that is taken.
    Graph,
    /// The options of the compiler.
    Options,
    /// A parameter: missing, unknown, or of another shape.
    Parameter,
    /// A file of weights.
    Weights,
    /// What a run is given.
    Input,
    /// The device is not on this machine.
    Device,
    /// The engine or Core ML, at work.
    Run,
    /// Reading or writing files.
    File,
}

/// Why a graph cannot be compiled or run.
#[derive(Clone, Debug)]
pub struct Error {
    kind: ErrorKind,
    message: String,
    hint: Option<String>,
    mistakes: Vec<BuildError>,
    source: Option<Arc<dyn std::error::Error + Send + Sync>>,
}

/// One thing that is wrong with a graph, and the line of Rust that made it so.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct BuildError {
    /// What was found, and what is accepted.
    pub message: String,
    /// What to do about it.
    pub hint: Option<String>,
    /// The line.
    pub location: &'static Location<'static>,
}

pub(crate) type Result<T> = std::result::Result<T, Error>;

impl Error {
    pub(crate) fn new(kind: ErrorKind, message: impl Into<String>) -> Error {
        Error { kind, message: message.into(), hint: None, mistakes: Vec::new(), source: None }
    }

    /// An error of whoever builds graphs out of something else.
    pub fn custom(kind: ErrorKind, message: impl Into<String>) -> Error {
        Error::new(kind, message)
    }

    pub(crate) fn of_graph(mistakes: Vec<BuildError>) -> Error {
        let lines: Vec<_> = mistakes.iter().map(ToString::to_string).collect();
        let hint = mistakes.iter().find_map(|mistake| mistake.hint.clone());
        Error { mistakes, hint, ..Error::new(ErrorKind::Graph, lines.join("\n")) }
    }

    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Error {
        self.hint = Some(hint.into());
        self
    }

    pub(crate) fn caused_by(
        mut self,
        source: impl std::error::Error + Send + Sync + 'static,
    ) -> Error {
        self.source = Some(Arc::new(source));
        self
    }

    /// What it is about.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// What to do about it.
    pub fn remedy(&self) -> Option<&str> {
        self.hint.as_deref()
    }

    /// Everything that is wrong with the graph, in the order in which it was built.
    pub fn mistakes(&self) -> &[BuildError] {
        &self.mistakes
    }
}

impl From<coremill_engine::Error> for Error {
    fn from(error: coremill_engine::Error) -> Error {
        let kind = if error.is_of_input() { ErrorKind::Input } else { ErrorKind::Run };
        let found = Error::new(kind, error.to_string());
        let found = match error.remedy() {
            Some(hint) => found.hint(hint),
            None => found,
        };
        found.caused_by(error)
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
        let found = Error::new(kind, error.to_string());
        let found = match error.hint() {
            Some(hint) => found.hint(hint),
            None => found,
        };
        found.caused_by(error)
    }
}

impl fmt::Display for BuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.location, self.message)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_ref().map(|source| source.as_ref() as &(dyn std::error::Error + 'static))
    }
}

/// Returns an error of a kind with a message in the form of `format!`.
macro_rules! fail {
    ($kind:ident, $($message:tt)*) => {
        return Err($crate::error::Error::new(
            $crate::error::ErrorKind::$kind,
            format!($($message)*),
        ))
    };
}
pub(crate) use fail;
