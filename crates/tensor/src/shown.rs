/// Text out of a file, fit for a message or a terminal whoever wrote it: on one line, and of at most so many
/// characters, behind which an ellipsis stands for the rest.
pub fn shown(text: &str, most: usize) -> String {
    let plain = |c: char| if c.is_control() { '\u{fffd}' } else { c };
    let mut shown: String = text.chars().take(most).map(plain).collect();
    if text.chars().nth(most).is_some() {
        shown.push('…');
    }
    shown
}

#[test]
fn lines_and_ends_are_marked() {
    assert_eq!(shown("a\nb", 3), "a\u{fffd}b");
    assert_eq!(shown("äöü", 3), "äöü");
    assert_eq!(shown("äöü\n", 3), "äöü…");
}
