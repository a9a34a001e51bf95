use std::fmt;

use coremill_io::{ErrorDetail, opaque_error};

opaque_error! {
    /// Error of reading or writing an archive. The location is the name of the entry.
    pub struct Error(pub(crate) ErrorKind, Option<String>);
}

/// Category of an [`Error`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// The data is malformed: truncated, corrupted or malicious.
    Malformed,
    /// The data may be valid, but this version does not support it.
    Unsupported,
    /// A limit was exceeded: one of [`crate::limits`], or the caller's.
    Limit,
}

impl Error {
    fn new(kind: ErrorKind, message: impl Into<String>) -> Error {
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

    pub(crate) fn in_entry(mut self, entry: &str) -> Error {
        self.detail.location.get_or_insert_with(|| entry.to_owned());
        self
    }

    /// Name of the entry.
    pub fn entry(&self) -> Option<&str> {
        self.detail.location.as_deref()
    }

    /// Description of the error, without the entry.
    pub fn message(&self) -> &str {
        &self.detail.message
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(entry) = self.entry() {
            write!(f, "`{}`: ", escape_truncated(entry))?;
        }
        self.detail.fmt(f)
    }
}

/// Escapes and truncates text from a file for a message.
pub(crate) fn escape_truncated(text: &str) -> String {
    coremill_io::escape_truncated(text, 120)
}
