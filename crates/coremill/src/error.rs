use std::fmt;
use std::path::Path;

use coremill_io::{model_error, opaque_error, printable};
use coremill_mil::{model, text};
use coremill_mlpackage::package;
use coremill_verify as verify;

pub use coremill_io::ErrorKind;

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

model_error!(
    pub(crate) Error from
    #[cfg(feature = "compiler")]
    coremill_compiler::Error,
    coremill_edit::Error,
    coremill_engine::Error,
    coremill_inspect::Error,
    coremill_llm::Error,
    coremill_optimize::Error,
    coremill_session::Error
);

impl Error {
    pub(crate) fn of_package(path: &Path, error: &package::Error) -> Error {
        let kind = match error.kind() {
            package::ErrorKind::Io => ErrorKind::File,
            _ => ErrorKind::Format,
        };
        Error::of_kind(kind, error.located_message(path)).with_hint_of(error.hint())
    }

    pub(crate) fn of_text(path: &Path, error: &text::Error) -> Error {
        let name = path.display().to_string();
        let message = format!("{name}:{}:{}: {}", error.line, error.column, error.message());
        let mut wrapped = Error::of_kind(ErrorKind::Format, message);
        wrapped.detail.location = Some(printable(&error.render(&name)).into_owned());
        wrapped.with_hint_of(error.hint()).with_source(error.clone())
    }

    pub(crate) fn of_description(path: &Path, error: &model::DescribeError) -> Error {
        Error::new(format!("{}: {}", path.display(), error))
            .with_hint_of(error.hint())
            .with_source(error.clone())
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
        Error::of_kind(ErrorKind::Invalid, report.to_string())
    }
}
