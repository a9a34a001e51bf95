//! Bytes as characters of vocabularies.

use std::sync::OnceLock;

/// Replacement of a space in vocabularies of SentencePiece.
pub(super) const MARK: char = '\u{2581}';

/// GPT-2's characters for bytes: printable ones for themselves, the others from U+0100 on.
fn characters() -> &'static [char; 256] {
    static TABLE: OnceLock<[char; 256]> = OnceLock::new();
    TABLE.get_or_init(|| {
        let mut next = 256u32;
        std::array::from_fn(|byte| match byte as u8 {
            plain @ (b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff) => char::from(plain),
            _ => {
                let replacement = char::from_u32(next).unwrap_or(char::REPLACEMENT_CHARACTER);
                next += 1;
                replacement
            }
        })
    })
}

/// A text with a character for each byte.
pub(super) fn to_characters(text: &str) -> String {
    of_bytes(text.as_bytes())
}

/// A text with a character for each byte, which need not be UTF-8.
pub(super) fn of_bytes(bytes: &[u8]) -> String {
    let table = characters();
    bytes.iter().map(|&byte| table[usize::from(byte)]).collect()
}

/// The bytes of a token, or its UTF-8 if a character has no byte.
pub(super) fn to_bytes(token: &str) -> Vec<u8> {
    static TABLE: OnceLock<[Option<u8>; 512]> = OnceLock::new();
    let table = TABLE.get_or_init(|| {
        let mut table = [None; 512];
        for (byte, &character) in characters().iter().enumerate() {
            if let Some(entry) = table.get_mut(character as usize) {
                *entry = Some(byte as u8);
            }
        }
        table
    });
    let bytes = token.chars().map(|character| table.get(character as usize).copied().flatten());
    bytes.collect::<Option<Vec<u8>>>().unwrap_or_else(|| token.as_bytes().to_vec())
}

/// The byte of a token such as `<0x41>`.
pub(super) fn fallback_byte(token: &str) -> Option<u8> {
    let digits = token.strip_prefix("<0x")?.strip_suffix('>')?;
    if digits.len() == 2 { u8::from_str_radix(digits, 16).ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn byte_to_character_map_matches_gpt2() {
        assert_eq!(to_characters(" a\n\u{e9}"), "\u{120}a\u{10a}\u{c3}\u{a9}");
        let all: String = (0..=0x24f).filter_map(char::from_u32).collect();
        assert_eq!(to_bytes(&to_characters(&all)), all.as_bytes());
        assert_eq!(to_bytes("\u{e9} \u{e9}"), "\u{e9} \u{e9}".as_bytes());
        assert_eq!(fallback_byte("<0x0A>"), Some(10));
        assert_eq!(fallback_byte("<0x0>"), None);
    }
}
