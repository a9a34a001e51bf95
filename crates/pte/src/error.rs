use std::fmt;
use std::io;

use coremill_io::{ErrorDetail, opaque_error};

opaque_error! {
    /// Error of reading or writing a program or a model in it.
    pub struct Error(pub(crate) ErrorKind, Location);
}

#[derive(Clone, Default, PartialEq, Eq)]
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
        Error::from_detail(kind, ErrorDetail::new(message))
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
        Error::new(ErrorKind::Io, format!("cannot {doing}: {source}")).with_source(source)
    }

    /// Sets the byte offset, unless a more exact one is set.
    pub(crate) fn at(mut self, offset: u64) -> Error {
        self.detail.location.offset.get_or_insert(offset);
        self
    }

    /// Adds the enclosing part to the location.
    pub(crate) fn within(mut self, place: impl Into<String>) -> Error {
        self.detail.location.parts.push(place.into());
        self
    }

    /// Description of the error, without its location.
    pub fn message(&self) -> &str {
        &self.detail.message
    }

    /// Byte offset in the file.
    pub fn offset(&self) -> Option<u64> {
        self.detail.location.offset
    }

    /// Location within the program.
    pub fn location(&self) -> Option<String> {
        let places: Vec<&str> =
            self.detail.location.parts.iter().rev().map(String::as_str).collect();
        (!places.is_empty()).then(|| places.join(", "))
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

/// Escapes and truncates text from a file for a message.
pub(crate) fn escape_truncated(text: &str) -> String {
    coremill_io::escape_truncated(text, 80)
}
