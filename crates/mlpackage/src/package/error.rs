use std::fmt;
use std::io;
use std::path::Path;

use coremill_io::ErrorDetail;

/// Error of reading or writing a package.
pub struct Error(Box<Inner>);

struct Inner {
    kind: ErrorKind,
    detail: ErrorDetail<Location>,
}

#[derive(Default)]
struct Location {
    file: Option<String>,
    offset: Option<u64>,
    /// Parts of the model, innermost first.
    parts: Vec<String>,
}

/// Category of an [`Error`].
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
        Error(Box::new(Inner { kind, detail: ErrorDetail::new(message) }))
    }

    pub(crate) fn io(doing: impl fmt::Display, source: io::Error) -> Error {
        let mut error = Error::new(ErrorKind::Io, format!("cannot {doing}: {source}"));
        error.0.detail = error.0.detail.with_source(source);
        error
    }

    /// States the byte, unless a more exact one is stated already.
    pub(crate) fn at(mut self, offset: u64) -> Error {
        self.0.detail.location.offset.get_or_insert(offset);
        self
    }

    /// States the file, unless one is stated already.
    pub(crate) fn in_file(mut self, file: impl Into<String>) -> Error {
        self.0.detail.location.file.get_or_insert_with(|| file.into());
        self
    }

    /// States what encloses the place stated so far.
    pub(crate) fn within(mut self, segment: impl Into<String>) -> Error {
        self.0.detail.location.parts.push(segment.into());
        self
    }

    pub(crate) fn with_hint(mut self, hint: impl Into<String>) -> Error {
        self.0.detail = self.0.detail.with_hint(hint);
        self
    }

    /// Category of the error.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// Description of the fault, without its location.
    pub fn message(&self) -> &str {
        &self.0.detail.message
    }

    /// The path inside the package, if one file is at fault.
    pub fn file(&self) -> Option<&str> {
        self.0.detail.location.file.as_deref()
    }

    /// The byte of the file at which the fault lies.
    pub fn offset(&self) -> Option<u64> {
        self.0.detail.location.offset
    }

    /// The part of the model at which the fault lies, `functions[main].operations[3]` for instance.
    pub fn location(&self) -> Option<String> {
        let parts = &self.0.detail.location.parts;
        let segments: Vec<&str> = parts.iter().rev().map(String::as_str).collect();
        (!segments.is_empty()).then(|| segments.join("."))
    }

    /// Description of the fault with the path of the package before it and the place inside the package behind it.
    pub fn located_message(&self, path: &Path) -> String {
        let places = [self.file().map(str::to_owned), self.location()];
        let mut places: Vec<_> = places.into_iter().flatten().collect();
        places.extend(self.offset().map(|offset| format!("byte {offset}")));
        let message = ErrorDetail::<()>::new(self.message()).within(path).message;
        if places.is_empty() { message } else { format!("{message} (in {})", places.join(", ")) }
    }

    /// Suggested fix.
    pub fn hint(&self) -> Option<&str> {
        self.0.detail.hint()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(file) = self.file() {
            write!(f, "{file}")?;
            if let Some(offset) = self.offset() {
                write!(f, ", byte {offset}")?;
            }
            f.write_str(": ")?;
        }
        if let Some(location) = self.location() {
            write!(f, "{location}: ")?;
        }
        f.write_str(self.message())
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {self}", self.0.kind)?;
        match self.hint() {
            Some(hint) => write!(f, " (hint: {hint})"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.detail.source()
    }
}

/// A name for a message: whole if it is short, its beginning if a file made it long.
pub(crate) fn shortened(name: &str) -> String {
    coremill_io::escape_truncated(name, 80)
}
