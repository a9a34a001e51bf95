//! Names and strings.
//!
//! A MIL identifier is a letter or `_`, followed by letters, digits, `_` and `@`. Words that start a type or
//! a literal are reserved; Core ML does not load text that uses one as the name of a value. A package,
//! however, may contain any name. Such a name is printed between backticks, with the escapes of strings.
//! Apple's parser does not support backticks, so writers of compiled models use [`is_plain`] to reject such
//! names.

use std::fmt::Write as _;

/// Words that cannot be names of values, operations or functions.
const RESERVED: [&str; 32] = [
    "any",
    "bf16",
    "bool",
    "dict",
    "false",
    "fp16",
    "fp32",
    "fp64",
    "fp8e4m3fn",
    "fp8e5m2",
    "func",
    "int16",
    "int32",
    "int4",
    "int64",
    "int8",
    "list",
    "program",
    "state",
    "string",
    "tensor",
    "true",
    "tuple",
    "uint1",
    "uint16",
    "uint2",
    "uint3",
    "uint32",
    "uint4",
    "uint6",
    "uint64",
    "uint8",
];

/// Whether Apple's dialects accept this name of a value, an operation or a function.
pub fn is_plain(name: &str) -> bool {
    is_identifier(name) && !is_reserved(name)
}

/// Whether a word starts a type or a literal and therefore cannot be the name of a value.
pub fn is_reserved(word: &str) -> bool {
    RESERVED.binary_search(&word).is_ok()
}

/// Converts any text to a plain name: other characters become `_`, `var_` is inserted before a leading digit,
/// and `_value` is appended to a reserved word.
pub fn identifier(text: &str) -> String {
    let valid = |c: char| if c.is_ascii_alphanumeric() { c } else { '_' };
    let mut name: String = text.chars().map(valid).collect();
    if name.is_empty() || name.starts_with(|c: char| c.is_ascii_digit()) {
        name.insert_str(0, "var_");
    }
    if is_reserved(&name) || name == "block" {
        name.push_str("_value");
    }
    name
}

/// Whether Apple's dialects accept this name of a parameter or an attribute.
pub fn is_identifier(name: &str) -> bool {
    let mut bytes = name.bytes();
    bytes.next().is_some_and(starts_word) && bytes.all(continues_word)
}

pub(super) fn starts_word(byte: u8) -> bool {
    byte.is_ascii_alphabetic() || byte == b'_'
}

pub(super) fn continues_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'@'
}

/// Appends the name of a value, an operation or a function.
pub(super) fn write_name(out: &mut String, name: &str) {
    if is_plain(name) { out.push_str(name) } else { write_quoted(out, name, '`') }
}

/// Appends the name of a parameter or an attribute, which may be a reserved word.
pub(super) fn write_key(out: &mut String, name: &str) {
    if is_identifier(name) { out.push_str(name) } else { write_quoted(out, name, '`') }
}

/// Appends quoted text with the escapes of C. Control characters are three octal digits, because a
/// hexadecimal escape could include the next character.
pub(super) fn write_quoted(out: &mut String, text: &str, quote: char) {
    out.push(quote);
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c == quote => {
                out.push('\\');
                out.push(c);
            }
            c if c.is_ascii_control() => {
                let _ = write!(out, "\\{:03o}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push(quote);
}

/// Unescapes a text; the error is the offset of an unknown escape.
pub(super) fn unescape(escaped: &str) -> Result<String, usize> {
    let mut text = String::with_capacity(escaped.len());
    let mut rest = escaped;
    while let Some(at) = rest.find('\\') {
        text.push_str(&rest[..at]);
        let offset = escaped.len() - rest.len() + at;
        let after = &rest[at + 1..];
        let code = after.as_bytes().first().copied().ok_or(offset)?;
        let (c, length) = match code {
            b'n' => ('\n', 1),
            b'r' => ('\r', 1),
            b't' => ('\t', 1),
            b'\\' | b'"' | b'\'' | b'`' => (char::from(code), 1),
            b'x' => (ascii(after.get(1..3).ok_or(offset)?, 16).ok_or(offset)?, 3),
            b'0'..=b'7' => {
                let octal = |byte: &u8| (b'0'..=b'7').contains(byte);
                let digits = after.bytes().take(3).take_while(octal).count();
                (ascii(&after[..digits], 8).ok_or(offset)?, digits)
            }
            _ => return Err(offset),
        };
        text.push(c);
        rest = &after[length..];
    }
    text.push_str(rest);
    Ok(text)
}

/// The ASCII character with this code. Higher codes are rejected, because their encoding is unknown.
fn ascii(digits: &str, radix: u32) -> Option<char> {
    let code = u8::from_str_radix(digits, radix).ok()?;
    code.is_ascii().then_some(char::from(code))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reserved_words_are_sorted_and_include_dtypes() {
        assert!(RESERVED.is_sorted());
        assert!(coremill_tensor::DType::ALL.iter().all(|dtype| !is_plain(dtype.name())));
    }

    #[test]
    fn quoted_strings_round_trip() {
        for text in ["", "plain", "a\"b\\c`d'", "\u{0}\u{1}1\n\r\t\u{7f}", "größe \u{85} 大", "\\n"]
        {
            for quote in ['"', '`'] {
                let mut quoted = String::new();
                write_quoted(&mut quoted, text, quote);
                let inner = &quoted[1..quoted.len() - 1];
                assert_eq!(unescape(inner).as_deref(), Ok(text));
            }
        }
    }

    #[test]
    fn decodes_escapes_and_locates_invalid_ones() {
        assert_eq!(unescape("\\x41\\101\\0!"), Ok("AA\0!".to_owned()));
        for (text, offset) in [("a\\q", 1), ("\\", 0), ("ab\\xff", 2), ("\\x4", 0), ("\\377", 0)] {
            assert_eq!(unescape(text), Err(offset), "{text}");
        }
    }

    #[test]
    fn identifier_sanitizes_names_idempotently() {
        for (text, expected) in [
            ("layer.0.keys", "layer_0_keys"),
            ("0.keys", "var_0_keys"),
            ("state", "state_value"),
            ("block", "block_value"),
            ("x@2", "x_2"),
            ("größe", "gr__e"),
            ("", "var_"),
        ] {
            assert_eq!(identifier(text), expected);
            assert!(is_plain(expected) && identifier(expected) == expected, "{expected}");
        }
    }

    #[test]
    fn is_plain_accepts_only_unreserved_identifiers() {
        for name in ["x", "_a1", "linear_0@2", "nan"] {
            assert!(is_plain(name), "{name}");
        }
        for name in ["", "1x", "a.b", "a-b", "string", "state", "größe"] {
            assert!(!is_plain(name), "{name}");
        }
    }
}
