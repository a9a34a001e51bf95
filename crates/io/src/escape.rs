//! Escaping of untrusted text from files for messages and terminals.

use std::borrow::Cow;

/// Replacement for characters that are not shown.
const REPLACEMENT: char = '\u{fffd}';

/// Whether a terminal shows a character as such. Control characters (C0, DEL, C1), line separators, and Unicode's
/// invisible formatting characters, including text direction marks, are not printable. Joiners required by scripts
/// and emoji are.
pub fn is_printable(c: char) -> bool {
    !c.is_control()
        && !matches!(
            c,
            '\u{ad}'
                | '\u{61c}'
                | '\u{180e}'
                | '\u{200b}'
                | '\u{200e}'..='\u{200f}'
                | '\u{2028}'..='\u{202e}'
                | '\u{2060}'..='\u{206f}'
                | '\u{feff}'
                | '\u{fff9}'..='\u{fffb}'
                | '\u{e0000}'..='\u{e007f}'
        )
}

/// Replaces characters that are not [printable](is_printable). Line breaks and tabs are kept.
pub fn printable(text: &str) -> Cow<'_, str> {
    replaced(text, |c| if matches!(c, '\n' | '\t') || is_printable(c) { c } else { REPLACEMENT })
}

/// Like [`printable`], on a single line: line breaks and tabs become spaces.
pub fn printable_line(text: &str) -> Cow<'_, str> {
    replaced(text, |c| match c {
        '\n' | '\t' => ' ',
        c if is_printable(c) => c,
        _ => REPLACEMENT,
    })
}

fn replaced(text: &str, replace: impl Fn(char) -> char) -> Cow<'_, str> {
    match text.chars().all(|c| replace(c) == c) {
        true => Cow::Borrowed(text),
        false => Cow::Owned(text.chars().map(replace).collect()),
    }
}

/// Text from a file for a message: on a single line, with at most `most` characters, followed by an ellipsis if
/// truncated. Characters that are not [printable](is_printable), including line breaks, are replaced.
pub fn escape_truncated(text: &str, most: usize) -> String {
    let plain = |c: char| if is_printable(c) { c } else { REPLACEMENT };
    let mut shown: String = text.chars().take(most).map(plain).collect();
    if text.chars().nth(most).is_some() {
        shown.push('…');
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replaces_line_breaks_and_marks_truncation() {
        assert_eq!(escape_truncated("a\nb", 3), "a\u{fffd}b");
        assert_eq!(escape_truncated("äöü", 3), "äöü");
        assert_eq!(escape_truncated("äöü\n", 3), "äöü…");
    }

    #[test]
    fn replaces_control_and_invisible_characters() {
        for hostile in ["\u{1b}", "\u{7}", "\r", "\u{8}", "\u{7f}", "\u{9b}", "\u{9d}"] {
            assert_eq!(printable(&format!("a{hostile}b")), "a\u{fffd}b", "{hostile:?}");
        }
        for hidden in ["\u{202e}", "\u{2066}", "\u{200f}", "\u{feff}", "\u{2028}", "\u{e0041}"] {
            assert_eq!(printable_line(hidden), "\u{fffd}", "{hidden:?}");
            assert_eq!(escape_truncated(hidden, 3), "\u{fffd}", "{hidden:?}");
        }
        let usual = "größer 大 👩\u{200d}🔬 نمی\u{200c}خواهم → × …";
        assert!(matches!(printable_line(usual), Cow::Borrowed(text) if text == usual));
        assert_eq!(printable("a\n\tb"), "a\n\tb");
        assert_eq!(printable_line("a\n\tb"), "a  b");
    }
}
