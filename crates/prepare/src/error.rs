//! Errors are those of the reader, as they name the node of the same program.

pub(crate) use coremill_pt2::Error;

/// Text out of a file, fit for a message.
pub(crate) fn escape_truncated(text: &str) -> String {
    coremill_io::escape_truncated(text, 120)
}
