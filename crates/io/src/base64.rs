//! Base64 of RFC 4648, with padding.

const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// The text of bytes.
pub fn encode(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let word = group.iter().fold(0u32, |word, &byte| word << 8 | u32::from(byte));
        let word = word << (8 * (3 - group.len()));
        for at in 0..4 {
            let digit = DIGITS[(word >> (18 - 6 * at)) as usize & 63];
            text.push(if at <= group.len() { char::from(digit) } else { '=' });
        }
    }
    text
}

/// The bytes of a text; `None` if it is not Base64.
pub fn decode(text: &str) -> Option<Vec<u8>> {
    let digits = text.trim_end_matches('=');
    let mut bytes = Vec::with_capacity(digits.len() * 3 / 4);
    let (mut word, mut bits) = (0u32, 0);
    for digit in digits.bytes() {
        let value = match digit {
            b'A'..=b'Z' => digit - b'A',
            b'a'..=b'z' => digit - b'a' + 26,
            b'0'..=b'9' => digit - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        };
        word = word << 6 | u32::from(value);
        bits += 6;
        if bits >= 8 {
            bits -= 8;
            bytes.push((word >> bits) as u8);
        }
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encodes_rfc_4648_examples() {
        let cases = [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("foobar", "Zm9vYmFy"),
        ];
        for (bytes, text) in cases {
            assert_eq!(encode(bytes.as_bytes()), text);
        }
        assert_eq!(encode(&[0xfb, 0xff, 0xbe]), "+/++");
    }

    #[test]
    fn round_trips_every_padding_length() {
        assert_eq!(encode(b"light work."), "bGlnaHQgd29yay4=");
        for length in 0..7 {
            let bytes: Vec<u8> = (0..length).map(|byte| byte * 41 + 3).collect();
            assert_eq!(decode(&encode(&bytes)), Some(bytes));
        }
        assert_eq!(decode("a?"), None);
    }
}
