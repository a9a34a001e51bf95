use std::fmt;
use std::path::Path;
use std::sync::Arc;

use coremill_io::printable;
use coremill_mil::{model, text, verify};
use coremill_mlpackage::package;

/// What an [`Error`] is about, which [`Error::kind`] says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// What the caller asks for: a name, an option, an input, a file of another kind.
    #[default]
    Argument,
    /// A file that cannot be read or written.
    File,
    /// The content of a file: it is damaged, or says what its format forbids.
    Format,
    /// Calls of a PyTorch program that cannot be lowered.
    Unsupported,
    /// A model that Core ML would refuse.
    Invalid,
    /// A graph that was described in Rust, or its parameters.
    Graph,
    /// What a run is given: a name, a shape, elements.
    Input,
    /// The device is not on this machine.
    Device,
    /// The engine or Core ML, at work.
    Run,
    /// A fault of coremill.
    Internal,
}

/// What went wrong, wherever it did: each function of this crate gives this error, and those of its parts become it
/// with `?`.
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
#[derive(Clone, Debug)]
pub struct Error {
    kind: ErrorKind,
    message: String,
    hint: Option<String>,
    /// The line of a text at fault, for people.
    excerpt: Option<String>,
    source: Option<Arc<dyn std::error::Error + Send + Sync>>,
}

impl Error {
    pub(crate) fn new(message: impl Into<String>) -> Error {
        Error {
            kind: ErrorKind::default(),
            message: message.into(),
            hint: None,
            excerpt: None,
            source: None,
        }
    }

    /// The same error, of a kind.
    pub(crate) fn kinded(mut self, kind: ErrorKind) -> Error {
        self.kind = kind;
        self
    }

    /// The same error, because of another.
    pub(crate) fn caused_by(
        mut self,
        source: impl std::error::Error + Send + Sync + 'static,
    ) -> Error {
        self.source = Some(Arc::new(source));
        self
    }

    /// What another error says, as this one.
    fn of(
        kind: ErrorKind,
        hint: Option<&str>,
        source: impl std::error::Error + Send + Sync + 'static,
    ) -> Error {
        let hint = hint.map(str::to_owned);
        Error { hint, ..Error::new(source.to_string()).kinded(kind) }.caused_by(source)
    }

    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Error {
        self.hint = Some(printable(&hint.into()).into_owned());
        self
    }

    pub(crate) fn of_package(path: &Path, error: &package::Error) -> Error {
        let mut message = named(path, error.message());
        let places = [error.file().map(str::to_owned), error.location()];
        let mut places: Vec<_> = places.into_iter().flatten().collect();
        places.extend(error.offset().map(|offset| format!("byte {offset}")));
        if !places.is_empty() {
            message += &format!(" (in {})", places.join(", "));
        }
        let kind = match error.kind() {
            package::ErrorKind::Io => ErrorKind::File,
            _ => ErrorKind::Format,
        };
        let hint = error.hint().map(str::to_owned);
        Error { hint, ..Error::new(message).kinded(kind) }
    }

    pub(crate) fn of_text(path: &Path, error: &text::Error) -> Error {
        let name = path.display().to_string();
        let message = format!("{name}:{}:{}: {}", error.line, error.column, error.message);
        let excerpt = printable(&error.render(&name)).into_owned();
        let hint = error.hint.clone();
        Error { hint, excerpt: Some(excerpt), ..Error::new(message).kinded(ErrorKind::Format) }
    }

    pub(crate) fn of_description(path: &Path, error: &model::DescribeError) -> Error {
        Error::new(format!("{}: {}", path.display(), error.message)).hint(&*error.hint)
    }

    pub(crate) fn of_engine(error: &coremill_engine::Error) -> Error {
        let hint = error.remedy().map(str::to_owned);
        let kind = if error.is_of_input() { ErrorKind::Input } else { ErrorKind::Run };
        Error { hint, ..Error::new(error.to_string()).kinded(kind) }.caused_by(error.clone())
    }

    pub(crate) fn io(action: &str, path: &Path, error: &std::io::Error) -> Error {
        Error::new(format!("cannot {action} {}: {error}", path.display())).kinded(ErrorKind::File)
    }

    /// The same error, in a file.
    pub(crate) fn within(mut self, path: &Path) -> Error {
        self.message = named(path, &self.message);
        self
    }

    /// The same error, in an array of that name.
    pub(crate) fn of_array(mut self, name: &str) -> Error {
        self.message = format!("`{}`: {}", name.escape_debug(), self.message);
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

    /// For text that does not parse: the message, the line with a mark under the place, and the
    /// remedy.
    pub fn rendered(&self) -> Option<&str> {
        self.excerpt.as_deref()
    }
}

/// The message with the path before it, unless it speaks of the path itself.
fn named(path: &Path, message: &str) -> String {
    let path = path.display().to_string();
    if message.contains(&path) { message.to_owned() } else { format!("{path}: {message}") }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Names out of files are part of it.
        f.write_str(&printable(&self.message))
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_ref().map(|source| source.as_ref() as &(dyn std::error::Error + 'static))
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
        let hint = error.hint().map(str::to_owned);
        Error::of(kind, hint.as_deref(), error)
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
        let hint = error.remedy().map(str::to_owned);
        Error::of(kind, hint.as_deref(), error)
    }
}

impl From<coremill_pte::Error> for Error {
    fn from(error: coremill_pte::Error) -> Error {
        let kind = match error.kind() {
            coremill_pte::ErrorKind::Io => ErrorKind::File,
            _ => ErrorKind::Format,
        };
        let hint = error.hint().map(str::to_owned);
        Error::of(kind, hint.as_deref(), error)
    }
}

impl From<verify::Report> for Error {
    fn from(report: verify::Report) -> Error {
        Error::new(report.to_string()).kinded(ErrorKind::Invalid)
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
        let hint = error.hint().map(str::to_owned);
        Error::of(kind, hint.as_deref(), error)
    }
}
