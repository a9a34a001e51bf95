use std::fmt;
use std::io;
use std::path::Path;

use coremill_io::{ErrorDetail, opaque_error};

opaque_error! {
    /// Error of reading or writing a package.
    pub struct Error(pub(crate) ErrorKind, Location);
}

#[derive(Clone, Default, PartialEq, Eq)]
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
    /// The file system reported an error.
    Io,
    /// There is neither a package nor a model file at the path.
    NotAModel,
    /// The package contains invalid files, for instance a symbolic link.
    Package,
    /// `Manifest.json` is invalid.
    Manifest,
    /// The model file is invalid.
    ModelFile,
    /// A weight file is invalid or does not match the model.
    Weights,
    /// The model is valid but not an ML Program.
    OtherModel,
    /// The model uses a feature that this crate cannot preserve.
    Unsupported,
    /// A limit of [`limits`](super::limits) was exceeded.
    Limit,
    /// The model in memory cannot be represented in the file.
    Unwritable,
}

impl Error {
    pub(crate) fn new(kind: ErrorKind, message: impl Into<String>) -> Error {
        Error::from_detail(kind, ErrorDetail::new(message))
    }

    pub(crate) fn io(doing: impl fmt::Display, source: io::Error) -> Error {
        Error::new(ErrorKind::Io, format!("cannot {doing}: {source}")).with_source(source)
    }

    /// Sets the offset, unless a more precise one is set.
    pub(crate) fn at(mut self, offset: u64) -> Error {
        self.detail.location.offset.get_or_insert(offset);
        self
    }

    /// Sets the file, unless one is set.
    pub(crate) fn in_file(mut self, file: impl Into<String>) -> Error {
        self.detail.location.file.get_or_insert_with(|| file.into());
        self
    }

    /// Adds an enclosing part to the location.
    pub(crate) fn within(mut self, segment: impl Into<String>) -> Error {
        self.detail.location.parts.push(segment.into());
        self
    }

    /// Description of the fault, without its location.
    pub fn message(&self) -> &str {
        &self.detail.message
    }

    /// The path inside the package, if one file is at fault.
    pub fn file(&self) -> Option<&str> {
        self.detail.location.file.as_deref()
    }

    /// Offset of the fault in the file.
    pub fn offset(&self) -> Option<u64> {
        self.detail.location.offset
    }

    /// Location of the fault in the model, for instance `functions[main].operations[3]`.
    pub fn location(&self) -> Option<String> {
        let parts = &self.detail.location.parts;
        let segments: Vec<&str> = parts.iter().rev().map(String::as_str).collect();
        (!segments.is_empty()).then(|| segments.join("."))
    }

    /// Description of the fault, with the path of the package before it and the location inside the package
    /// after it.
    pub fn located_message(&self, path: &Path) -> String {
        let places = [self.file().map(str::to_owned), self.location()];
        let mut places: Vec<_> = places.into_iter().flatten().collect();
        places.extend(self.offset().map(|offset| format!("byte {offset}")));
        let message = ErrorDetail::<()>::new(self.message()).within(path).message;
        if places.is_empty() { message } else { format!("{message} (in {})", places.join(", ")) }
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

/// Name for a message, truncated if it is long.
pub(crate) fn shortened(name: &str) -> String {
    coremill_io::escape_truncated(name, 80)
}
