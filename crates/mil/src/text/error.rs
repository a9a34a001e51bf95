use std::fmt;

use coremill_io::{ErrorDetail, HasHint};

/// Error of parsing MIL text.
///
/// `Display` prints one line. [`Error::render`] also shows the line of the text with the position marked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    /// The line, starting at 1.
    pub line: usize,
    /// The column in characters, starting at 1.
    pub column: usize,
    /// The offset in bytes.
    pub offset: usize,
    kind: ErrorKind,
    detail: Box<ErrorDetail>,
    excerpt: String,
    excerpt_column: usize,
}

/// Category of an [`Error`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// Invalid syntax.
    Syntax,
    /// A limit was exceeded: depth, rank, number of operations.
    Limit,
}

/// Maximum number of characters shown on each side of the error; programs have lines of megabytes.
const EXCERPT_SIDE: usize = 60;

impl Error {
    pub(super) fn new(kind: ErrorKind, text: &str, offset: usize, message: String) -> Error {
        let mut offset = offset.min(text.len());
        while !text.is_char_boundary(offset) {
            offset -= 1;
        }
        let (before, after) = text.split_at(offset);
        let line = before.bytes().filter(|&byte| byte == b'\n').count() + 1;
        let line_start = before.rfind('\n').map_or(0, |at| at + 1);
        let column = before[line_start..].chars().count() + 1;

        let left: Vec<char> = before[line_start..].chars().rev().take(EXCERPT_SIDE).collect();
        let rest = after.split('\n').next().unwrap_or_default();
        let printable = |c: char| if c.is_control() { ' ' } else { c };
        let excerpt = left.iter().rev().copied().chain(rest.chars().take(EXCERPT_SIDE));
        let excerpt = excerpt.map(printable).collect::<String>();
        let excerpt = excerpt.trim_end().to_owned();
        let detail = Box::new(ErrorDetail::new(message));
        Error { line, column, offset, kind, detail, excerpt, excerpt_column: left.len() }
    }

    pub(super) fn with_hint(mut self, hint: impl Into<String>) -> Error {
        self.detail = Box::new((*self.detail).with_hint(hint));
        self
    }

    /// Category of the error.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// Description of the fault, without its location.
    pub fn message(&self) -> &str {
        &self.detail.message
    }

    /// Suggested fix.
    pub fn hint(&self) -> Option<&str> {
        self.detail.hint()
    }

    /// Formats the error with the line of the text, a mark under the position, and the hint.
    ///
    /// `name` is the name of the text, for instance its path.
    pub fn render(&self, name: &str) -> String {
        let number = self.line.to_string();
        let margin = " ".repeat(number.len());
        let indent = " ".repeat(self.excerpt_column);
        let mut shown = format!(
            "error: {}\n{margin}--> {name}:{}:{}\n{margin} |\n{number} | {}\n{margin} | {indent}^\n",
            self.message(),
            self.line,
            self.column,
            self.excerpt
        );
        if let Some(hint) = self.hint() {
            shown.push_str(&format!("hint: {hint}\n"));
        }
        shown
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}, column {}: {}", self.line, self.column, self.message())
    }
}

impl HasHint for Error {
    fn hint(&self) -> Option<&str> {
        self.detail.hint()
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.detail.source()
    }
}
