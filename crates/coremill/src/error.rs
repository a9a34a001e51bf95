use std::fmt;
use std::path::Path;

use coremill_io::{ErrorDetail, opaque_error, printable};
use coremill_mil::{model, text};
use coremill_mlpackage::package;
use coremill_verify as verify;

/// Category of an [`Error`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// An invalid argument: a name, an option, an input, a file of another kind.
    #[default]
    Argument,
    /// A file cannot be read or written.
    File,
    /// A file is damaged or violates its format.
    Format,
    /// The PyTorch program contains calls that cannot be lowered.
    Unsupported,
    /// Core ML would reject the model.
    Invalid,
    /// A graph described in Rust, or one of its parameters, is invalid.
    Graph,
    /// An input of a run is invalid: a name, a shape, elements.
    Input,
    /// The machine lacks the device.
    Device,
    /// The engine or Core ML failed.
    Run,
    /// A bug in coremill.
    Internal,
}

opaque_error! {
    /// Error type of this crate. Errors of its parts convert to it with `?`.
    ///
    /// ```
    /// use coremill::ErrorKind;
    ///
    /// let error = coremill::open("missing.mlpackage").unwrap_err();
    /// assert_eq!(error.kind(), ErrorKind::File);
    /// assert!(error.to_string().contains("missing.mlpackage"));
    ///
    /// // Errors of graphs, programs and runs become this one.
    /// fn weight() -> Result<coremill::graph::Param, coremill::Error> {
    ///     Ok(coremill::graph::Param::floats([2], &[1.0])?)
    /// }
    /// assert_eq!(weight().unwrap_err().kind(), ErrorKind::Graph);
    /// ```
    pub struct Error(pub(crate) ErrorKind, Option<String>);
}

impl Error {
    pub(crate) fn new(message: impl Into<String>) -> Error {
        Error::from_detail(ErrorKind::default(), ErrorDetail::new(message))
    }

    pub(crate) fn of_package(path: &Path, error: &package::Error) -> Error {
        let kind = match error.kind() {
            package::ErrorKind::Io => ErrorKind::File,
            _ => ErrorKind::Format,
        };
        Error::new(error.located_message(path)).with_kind(kind).with_hint_of(error.hint())
    }

    pub(crate) fn of_text(path: &Path, error: &text::Error) -> Error {
        let name = path.display().to_string();
        let message = format!("{name}:{}:{}: {}", error.line, error.column, error.message());
        let mut wrapped = Error::new(message).with_kind(ErrorKind::Format);
        wrapped.detail.location = Some(printable(&error.render(&name)).into_owned());
        wrapped.with_hint_of(error.hint()).with_source(error.clone())
    }

    pub(crate) fn of_description(path: &Path, error: &model::DescribeError) -> Error {
        Error::new(format!("{}: {}", path.display(), error))
            .with_hint_of(error.hint())
            .with_source(error.clone())
    }

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

    /// The path does not exist.
    pub(crate) fn missing(path: &Path) -> Error {
        Error::from_detail(ErrorKind::File, ErrorDetail::not_found(path))
    }

    /// The directory of an output file does not exist.
    pub(crate) fn missing_directory(path: &Path) -> Error {
        Error::from_detail(ErrorKind::File, ErrorDetail::directory_not_found(path))
    }

    /// Adds the path of a file.
    pub(crate) fn within(mut self, path: &Path) -> Error {
        self.detail = Box::new(self.detail.within(path));
        self
    }

    /// For syntax errors: the message, an excerpt with the position marked, and the hint.
    pub fn rendered(&self) -> Option<&str> {
        self.detail.location.as_deref()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.detail.fmt(f)
    }
}

impl From<coremill_engine::Error> for Error {
    fn from(error: coremill_engine::Error) -> Error {
        Error::of_engine(&error)
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

impl From<coremill_edit::Error> for Error {
    fn from(error: coremill_edit::Error) -> Error {
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

impl From<coremill_optimize::Error> for Error {
    fn from(error: coremill_optimize::Error) -> Error {
        use coremill_optimize::ErrorKind as Kind;
        let kind = match error.kind() {
            Kind::File => ErrorKind::File,
            Kind::Format => ErrorKind::Format,
            Kind::Unsupported => ErrorKind::Unsupported,
            Kind::Input => ErrorKind::Input,
            Kind::Device => ErrorKind::Device,
            Kind::Run => ErrorKind::Run,
            Kind::Internal => ErrorKind::Internal,
            _ => ErrorKind::Argument,
        };
        Error::from_source(kind, error)
    }
}

impl From<coremill_graph::Error> for Error {
    fn from(error: coremill_graph::Error) -> Error {
        use coremill_graph::ErrorKind as Kind;
        let kind = match error.kind() {
            Kind::File => ErrorKind::File,
            Kind::Weights => ErrorKind::Format,
            Kind::Input => ErrorKind::Input,
            Kind::Device => ErrorKind::Device,
            Kind::Run => ErrorKind::Run,
            _ => ErrorKind::Graph,
        };
        Error::from_source(kind, error)
    }
}

impl From<coremill_llm::Error> for Error {
    fn from(error: coremill_llm::Error) -> Error {
        use coremill_llm::ErrorKind as Kind;
        let kind = match error.kind() {
            Kind::File => ErrorKind::File,
            Kind::Format => ErrorKind::Format,
            Kind::Unsupported => ErrorKind::Unsupported,
            Kind::Run => ErrorKind::Run,
            _ => ErrorKind::Argument,
        };
        Error::from_source(kind, error)
    }
}

impl From<coremill_runtime::Error> for Error {
    fn from(error: coremill_runtime::Error) -> Error {
        use coremill_runtime::ErrorKind as Kind;
        let kind = match error.kind() {
            Kind::Load => ErrorKind::Format,
            Kind::Input => ErrorKind::Input,
            Kind::Device => ErrorKind::Device,
            _ => ErrorKind::Run,
        };
        Error::from_source(kind, error)
    }
}

impl From<coremill_pte::Error> for Error {
    fn from(error: coremill_pte::Error) -> Error {
        let kind = match error.kind() {
            coremill_pte::ErrorKind::Io => ErrorKind::File,
            _ => ErrorKind::Format,
        };
        Error::from_source(kind, error)
    }
}

impl From<verify::Report> for Error {
    fn from(report: verify::Report) -> Error {
        Error::new(report.to_string()).with_kind(ErrorKind::Invalid)
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
