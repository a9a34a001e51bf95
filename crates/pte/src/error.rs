use std::fmt;
use std::io;

use coremill_io::ErrorDetail;

/// Error of reading or writing a program or a model in it.
pub struct Error(Box<Inner>);

struct Inner {
    kind: ErrorKind,
    detail: ErrorDetail<Location>,
}

#[derive(Default)]
struct Location {
    offset: Option<u64>,
    /// Parts of the program, innermost first.
    parts: Vec<String>,
}

/// Category of an [`Error`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The file system failed.
    Io,
    /// The file has another format.
    OtherFormat,
    /// The data is malformed: truncated, corrupted or malicious.
    Malformed,
    /// The data may be valid, but this version does not support it.
    Unsupported,
    /// One of the [`limits`](crate::limits) was exceeded.
    Limit,
    /// The data in memory cannot be represented in the file format.
    Unwritable,
}

impl Error {
    pub(crate) fn new(kind: ErrorKind, message: impl Into<String>) -> Error {
        Error(Box::new(Inner { kind, detail: ErrorDetail::new(message) }))
    }

    pub(crate) fn malformed(message: impl Into<String>) -> Error {
        Error::new(ErrorKind::Malformed, message)
    }

    pub(crate) fn unsupported(message: impl Into<String>) -> Error {
        Error::new(ErrorKind::Unsupported, message)
    }

    pub(crate) fn limit(message: impl Into<String>) -> Error {
        Error::new(ErrorKind::Limit, message)
    }

    pub(crate) fn io(doing: impl fmt::Display, source: io::Error) -> Error {
        let mut error = Error::new(ErrorKind::Io, format!("cannot {doing}: {source}"));
        error.0.detail = error.0.detail.with_source(source);
        error
    }

    /// Sets the byte offset, unless a more exact one is set.
    pub(crate) fn at(mut self, offset: u64) -> Error {
        self.0.detail.location.offset.get_or_insert(offset);
        self
    }

    /// Adds the enclosing part to the location.
    pub(crate) fn within(mut self, place: impl Into<String>) -> Error {
        self.0.detail.location.parts.push(place.into());
        self
    }

    pub(crate) fn with_hint(mut self, hint: impl Into<String>) -> Error {
        self.0.detail = self.0.detail.with_hint(hint);
        self
    }

    pub(crate) fn with_kind(mut self, kind: ErrorKind) -> Error {
        self.0.kind = kind;
        self
    }

    /// Category of the error.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// Description of the error, without its location.
    pub fn message(&self) -> &str {
        &self.0.detail.message
    }

    /// Byte offset in the file.
    pub fn offset(&self) -> Option<u64> {
        self.0.detail.location.offset
    }

    /// Location within the program.
    pub fn location(&self) -> Option<String> {
        let places: Vec<&str> =
            self.0.detail.location.parts.iter().rev().map(String::as_str).collect();
        (!places.is_empty()).then(|| places.join(", "))
    }

    /// Suggested fix.
    pub fn hint(&self) -> Option<&str> {
        self.0.detail.hint()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(location) = self.location() {
            write!(f, "{location}: ")?;
        }
        f.write_str(self.message())?;
        match self.offset() {
            Some(offset) => write!(f, " (at byte {offset})"),
            None => Ok(()),
        }
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

/// Escapes and truncates text from a file for a message.
pub(crate) fn escape_truncated(text: &str) -> String {
    coremill_io::escape_truncated(text, 80)
}
