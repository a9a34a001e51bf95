use std::fmt;

use coremill_io::ErrorDetail;

/// Error of reading or writing an archive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error(Box<Inner>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Inner {
    kind: ErrorKind,
    /// The location is the name of the entry.
    detail: ErrorDetail<Option<String>>,
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

    pub(crate) fn in_entry(mut self, entry: &str) -> Error {
        self.0.detail.location.get_or_insert_with(|| entry.to_owned());
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

    /// Name of the entry.
    pub fn entry(&self) -> Option<&str> {
        self.0.detail.location.as_deref()
    }

    /// Description of the error, without the entry.
    pub fn message(&self) -> &str {
        &self.0.detail.message
    }

    /// Suggested fix.
    pub fn hint(&self) -> Option<&str> {
        self.0.detail.hint()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(entry) = self.entry() {
            write!(f, "`{}`: ", escape_truncated(entry))?;
        }
        f.write_str(self.message())
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.detail.source()
    }
}

/// Escapes and truncates text from a file for a message.
pub(crate) fn escape_truncated(text: &str) -> String {
    coremill_io::escape_truncated(text, 120)
}
