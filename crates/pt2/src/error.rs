use std::fmt;

use coremill_io::{ErrorDetail, opaque_error};

opaque_error! {
    /// Error of reading an archive or preparing its program.
    pub struct Error(pub ErrorKind, Location);
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Location {
    entry: Option<String>,
    node: Option<String>,
}

/// Category of an [`Error`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// The file could not be read.
    Io,
    /// The bytes violate their format: truncated, corrupted, or hostile.
    Malformed,
    /// The bytes may be valid, but this version does not support them.
    Unsupported,
    /// A limit of [`crate::limits`] was exceeded.
    Limit,
}

impl Error {
    pub(crate) fn new(kind: ErrorKind, message: impl Into<String>) -> Error {
        Error::from_detail(kind, ErrorDetail::new(message))
    }

    /// Returns an error for content that violates its format.
    pub fn malformed(message: impl Into<String>) -> Error {
        Error::new(ErrorKind::Malformed, message)
    }

    /// Returns an error for content that this version does not support.
    pub fn unsupported(message: impl Into<String>) -> Error {
        Error::new(ErrorKind::Unsupported, message)
    }

    /// Returns an error for an exceeded limit.
    pub fn limit(message: impl Into<String>) -> Error {
        Error::new(ErrorKind::Limit, message)
    }

    /// Sets the entry, unless a more precise location is set.
    pub fn in_entry(mut self, entry: &str) -> Error {
        self.detail.location.entry.get_or_insert_with(|| entry.to_owned());
        self
    }

    /// Sets the node, unless a more precise location is set.
    pub fn in_node(mut self, node: &str) -> Error {
        self.detail.location.node.get_or_insert_with(|| node.to_owned());
        self
    }

    /// The entry of the archive.
    pub fn entry(&self) -> Option<&str> {
        self.detail.location.entry.as_deref()
    }

    /// The node of the graph.
    pub fn node(&self) -> Option<&str> {
        self.detail.location.node.as_deref()
    }

    /// Description of the fault, without its location.
    pub fn message(&self) -> &str {
        &self.detail.message
    }

    /// Description of the fault, with the entry and the node.
    pub fn located_message(&self) -> String {
        let mut message = String::new();
        if let Some(entry) = self.entry() {
            message += &format!("`{}`: ", entry.escape_debug());
        }
        if let Some(node) = self.node() {
            message += &format!("node `{}`: ", node.escape_debug());
        }
        message + self.message()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(entry) = self.entry() {
            write!(f, "`{}`: ", escape_truncated(entry))?;
        }
        if let Some(node) = self.node() {
            write!(f, "node `{}`: ", escape_truncated(node))?;
        }
        f.write_str(self.message())?;
        if let Some(hint) = self.hint() {
            write!(f, "; {hint}")?;
        }
        Ok(())
    }
}

/// Text from a file, escaped and truncated for a message.
pub(crate) fn escape_truncated(text: &str) -> String {
    coremill_io::escape_truncated(text, 120)
}
