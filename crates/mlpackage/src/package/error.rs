use std::fmt;
use std::io;

/// A package that cannot be read or written: what is wrong, and where.
pub struct Error(Box<Inner>);

struct Inner {
    kind: ErrorKind,
    message: String,
    file: Option<String>,
    offset: Option<u64>,
    /// Where in the message, innermost first.
    location: Vec<String>,
    hint: Option<String>,
    source: Option<io::Error>,
}

/// What is wrong, roughly.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The file system failed.
    Io,
    /// There is no package and no model file at the path.
    NotAModel,
    /// The files of the package are not what a package may hold: a symbolic link, for instance.
    Package,
    /// `Manifest.json` is not sound.
    Manifest,
    /// The model file is not sound.
    ModelFile,
    /// A weight file is not sound, or not what the model says of it.
    Weights,
    /// The model is sound but no ML Program.
    OtherModel,
    /// The model says something that this crate would lose.
    Unsupported,
    /// One of the limits of [`limits`](super::limits).
    Limit,
    /// The model in memory has no form in the file.
    Unwritable,
}

impl Error {
    pub(crate) fn new(kind: ErrorKind, message: impl Into<String>) -> Error {
        Error(Box::new(Inner {
            kind,
            message: message.into(),
            file: None,
            offset: None,
            location: Vec::new(),
            hint: None,
            source: None,
        }))
    }

    pub(crate) fn io(doing: impl fmt::Display, source: io::Error) -> Error {
        let mut error = Error::new(ErrorKind::Io, format!("cannot {doing}: {source}"));
        error.0.source = Some(source);
        error
    }

    /// States the byte, unless a more exact one is stated already.
    pub(crate) fn at(mut self, offset: u64) -> Error {
        self.0.offset.get_or_insert(offset);
        self
    }

    /// States the file, unless one is stated already.
    pub(crate) fn in_file(mut self, file: impl Into<String>) -> Error {
        if self.0.file.is_none() {
            self.0.file = Some(file.into());
        }
        self
    }

    /// States what encloses the place stated so far.
    pub(crate) fn within(mut self, segment: impl Into<String>) -> Error {
        self.0.location.push(segment.into());
        self
    }

    pub(crate) fn with_hint(mut self, hint: impl Into<String>) -> Error {
        self.0.hint = Some(hint.into());
        self
    }

    /// What is wrong, roughly.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// What was found and what is accepted, without the place.
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// The path inside the package, if one file is at fault.
    pub fn file(&self) -> Option<&str> {
        self.0.file.as_deref()
    }

    /// The byte of the file at which the fault lies.
    pub fn offset(&self) -> Option<u64> {
        self.0.offset
    }

    /// The part of the model at which the fault lies, `functions[main].operations[3]` for instance.
    pub fn location(&self) -> Option<String> {
        let location = &self.0.location;
        let segments: Vec<&str> = location.iter().rev().map(String::as_str).collect();
        (!segments.is_empty()).then(|| segments.join("."))
    }

    /// What to do about it.
    pub fn hint(&self) -> Option<&str> {
        self.0.hint.as_deref()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(file) = &self.0.file {
            write!(f, "{file}")?;
            if let Some(offset) = self.0.offset {
                write!(f, ", byte {offset}")?;
            }
            f.write_str(": ")?;
        }
        if let Some(location) = self.location() {
            write!(f, "{location}: ")?;
        }
        f.write_str(&self.0.message)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {self}", self.0.kind)?;
        match &self.0.hint {
            Some(hint) => write!(f, " (hint: {hint})"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.source.as_ref().map(|source| source as _)
    }
}

/// A name for a message: whole if it is short, its beginning if a file made it long.
pub(crate) fn shortened(name: &str) -> String {
    coremill_io::shown(name, 80)
}
