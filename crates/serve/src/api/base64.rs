/// Characters of base64, RFC 4648.
const CHARACTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// The base64 form of bytes, with padding.
pub(super) fn base64(bytes: impl ExactSizeIterator<Item = u8>) -> String {
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    let (mut bits, mut count) = (0u32, 0);
    for byte in bytes {
        bits = bits << 8 | u32::from(byte);
        count += 8;
        while count >= 6 {
            count -= 6;
            text.push(character(bits >> count));
        }
    }
    if count > 0 {
        text.push(character(bits << (6 - count)));
    }
    while !text.len().is_multiple_of(4) {
        text.push('=');
    }
    text
}

/// The character of the lowest six bits.
fn character(bits: u32) -> char {
    char::from(CHARACTERS[bits as usize & 63])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn examples_of_rfc_4648() {
        let cases =
            [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foobar", "Zm9vYmFy")];
        for (bytes, text) in cases {
            assert_eq!(base64(bytes.bytes()), text);
        }
        assert_eq!(base64([0xfb, 0xff, 0xbe].into_iter()), "+/++");
    }
}
