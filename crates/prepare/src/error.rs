//! Errors, shared with the reader because they name nodes of the same program.

pub(crate) use coremill_pt2::Error;

/// Escapes and truncates text from a file for a message.
pub(crate) fn escape_truncated(text: &str) -> String {
    coremill_io::escape_truncated(text, 120)
}
