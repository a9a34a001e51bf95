//! Width of the terminal, and word wrapping.

use std::io::{IsTerminal, stderr, stdout};

/// Width of code excerpts if the terminal's width is unknown.
const UNKNOWN_WIDTH: usize = 120;
/// Maximum width of the line number and rule before a line of code.
const GUTTER: usize = 9;
/// Minimum supported width of a terminal.
const NARROWEST: usize = 40;

/// Number of columns of the terminal. `None` if output goes to a file or log, in which nothing may be
/// truncated.
pub(crate) fn width() -> Option<usize> {
    // Summaries go to standard error, tables to standard output. If either is redirected, both are
    // complete.
    let is_terminal = stdout().is_terminal() && stderr().is_terminal();
    let (columns, _) = terminal_size::terminal_size().filter(|_| is_terminal)?;
    Some(usize::from(columns.0).max(NARROWEST))
}

/// Maximum number of characters shown of a line of code.
pub(crate) fn excerpt_width() -> usize {
    width().unwrap_or(UNKNOWN_WIDTH) - GUTTER
}

/// Wraps text at words to the width of the terminal.
pub(super) fn fitted(text: &str) -> String {
    match width() {
        Some(width) => text.split_inclusive('\n').map(|line| wrapped(line, width)).collect(),
        None => text.to_owned(),
    }
}

/// Wraps a line; continuation lines are indented further.
fn wrapped(line: &str, width: usize) -> String {
    if visible(line) <= width {
        return line.to_owned();
    }
    let (content, end) = line.strip_suffix('\n').map_or((line, ""), |content| (content, "\n"));
    let text = content.trim_start_matches(' ');
    let indent = content.len() - text.len();
    let mut lines = " ".repeat(indent);
    let mut column = indent;
    let mut pending = 0;
    for word in text.split(' ') {
        let length = visible(word);
        if column > indent && column + pending + length > width {
            let further = (indent + 2).min(width / 2);
            lines += &format!("\n{}", " ".repeat(further));
            column = further;
        } else {
            lines += &" ".repeat(pending);
            column += pending;
        }
        lines += word;
        column += length;
        pending = 1;
    }
    lines + end
}

/// Number of columns of a text, without line ends and color codes.
fn visible(text: &str) -> usize {
    anstream::adapter::strip_str(text).to_string().trim_end_matches('\n').chars().count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_wrap_at_words() {
        let line = "  error: the quick brown fox jumps over the lazy dog\n";
        let expected = "  error: the quick\n    brown fox jumps\n    over the lazy\n    dog\n";
        assert_eq!(wrapped(line, 20), expected);
        assert_eq!(wrapped(line, 80), line);
        let path = "a/path/that/is/longer/than/the/line is whole";
        assert_eq!(wrapped(path, 20), "a/path/that/is/longer/than/the/line\n  is whole");
    }

    #[test]
    fn wrapping_ignores_ansi_style_codes() {
        let line = "\u{1b}[1merror\u{1b}[0m: no such file";
        assert_eq!(wrapped(line, 19), line);
        assert_eq!(wrapped(line, 16), "\u{1b}[1merror\u{1b}[0m: no such\n  file");
    }
}
