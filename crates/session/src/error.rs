use std::fmt;
use std::path::Path;
use std::sync::Arc;

/// The subject of an [`Error`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// A request of the caller: a name, an option, a file of another kind.
    #[default]
    Argument,
    /// A file that cannot be read or written.
    File,
    /// An input or a state: a name, a shape, elements.
    Input,
    /// A device that this machine lacks.
    Device,
    /// A failure of the engine, of Core ML or of a kernel at work.
    Run,
}

/// An error of loading, running, or reading arrays.
#[derive(Clone, Debug)]
pub struct Error {
    kind: ErrorKind,
    message: String,
    hint: Option<String>,
    source: Option<Arc<dyn std::error::Error + Send + Sync>>,
}

/// The result of this crate's functions.
pub type Result<T = ()> = std::result::Result<T, Error>;

impl Error {
    pub(crate) fn new(message: impl Into<String>) -> Error {
        let kind = ErrorKind::default();
        Error { kind, message: message.into(), hint: None, source: None }
    }

    /// The same error, of a kind.
    pub(crate) fn of_kind(mut self, kind: ErrorKind) -> Error {
        self.kind = kind;
        self
    }

    /// The same error with a remedy.
    pub(crate) fn with_hint(mut self, hint: impl Into<String>) -> Error {
        self.hint = Some(hint.into());
        self
    }

    /// An error of another crate, its message and hint kept.
    fn from_source(
        kind: ErrorKind,
        hint: Option<String>,
        source: impl std::error::Error + Send + Sync + 'static,
    ) -> Error {
        let message = source.to_string();
        Error { kind, message, hint, source: Some(Arc::new(source)) }
    }

    pub(crate) fn io(action: &str, path: &Path, error: &std::io::Error) -> Error {
        Error::new(format!("cannot {action} {}: {error}", path.display())).of_kind(ErrorKind::File)
    }

    /// The same error, in a file.
    pub(crate) fn within(mut self, path: &Path) -> Error {
        let path = path.display().to_string();
        if !self.message.contains(&path) {
            self.message = format!("{path}: {}", self.message);
        }
        self
    }

    /// The same error, in an array of that name.
    pub(crate) fn of_array(mut self, name: &str) -> Error {
        self.message = format!("`{}`: {}", name.escape_debug(), self.message);
        self
    }

    /// The subject.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// The remedy, if one is known.
    pub fn hint(&self) -> Option<&str> {
        self.hint.as_deref()
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

impl From<coremill_engine::Error> for Error {
    fn from(error: coremill_engine::Error) -> Error {
        let kind = if error.is_of_input() { ErrorKind::Input } else { ErrorKind::Run };
        Error::from_source(kind, error.remedy().map(str::to_owned), error)
    }
}

impl From<coremill_coreml::Error> for Error {
    fn from(error: coremill_coreml::Error) -> Error {
        let kind = match error.kind() {
            coremill_coreml::ErrorKind::Unavailable => ErrorKind::Device,
            coremill_coreml::ErrorKind::Input => ErrorKind::Input,
            coremill_coreml::ErrorKind::Io => ErrorKind::File,
            _ => ErrorKind::Run,
        };
        Error::from_source(kind, error.remedy().map(str::to_owned), error)
    }
}

impl From<coremill_mlpackage::package::Error> for Error {
    fn from(error: coremill_mlpackage::package::Error) -> Error {
        Error::from_source(ErrorKind::File, error.hint().map(str::to_owned), error)
    }
}

impl From<coremill_runtime::Error> for Error {
    fn from(error: coremill_runtime::Error) -> Error {
        Error::from_source(ErrorKind::Run, None, error)
    }
}

/// Returns an error of a kind with a message in the form of `format!`.
macro_rules! fail {
    ($kind:ident, $($message:tt)*) => {
        return Err($crate::error::Error::new(format!($($message)*))
            .of_kind($crate::error::ErrorKind::$kind))
    };
}
pub(crate) use fail;
