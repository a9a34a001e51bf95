//! SentencePiece's compiled normalization: a trie of characters, and their replacements.

use crate::error::{Error, ErrorKind, Result};

/// Replacements of sequences of characters, the longest first.
#[derive(Clone, Debug)]
pub(super) struct Charsmap {
    /// The file's bytes: the size of the trie, the trie, and texts that end with a zero.
    pub(super) bytes: Vec<u8>,
    trie: Vec<u32>,
}

impl Charsmap {
    pub(super) fn new(bytes: Vec<u8>) -> Result<Charsmap> {
        let invalid = || {
            Error::of_kind(ErrorKind::Format, "the tokenizer's table of replacements is not valid")
        };
        let (size, rest) = bytes.split_first_chunk::<4>().ok_or_else(invalid)?;
        let size = u32::from_le_bytes(*size) as usize;
        let trie = rest.get(..size).filter(|_| size.is_multiple_of(4)).ok_or_else(invalid)?;
        let (units, _) = trie.as_chunks::<4>();
        let trie = units.iter().map(|&unit| u32::from_le_bytes(unit)).collect();
        Ok(Charsmap { bytes, trie })
    }

    /// The longest match at the start of a text: its bytes, and the place of its replacement.
    fn find(&self, text: &[u8]) -> Option<(usize, usize)> {
        // The units of a double array: bits of labels, offsets and flags, as in the library `darts-clone`.
        let offset = |unit: u32| ((unit >> 10) << ((unit & (1 << 9)) >> 6)) as usize;
        let mut at = offset(*self.trie.first()?);
        let mut found = None;
        for (index, &byte) in text.iter().enumerate() {
            // Zeros end texts.
            if byte == 0 {
                break;
            }
            at ^= usize::from(byte);
            let Some(&unit) = self.trie.get(at) else { break };
            if unit & (1 << 31 | 0xff) != u32::from(byte) {
                break;
            }
            at ^= offset(unit);
            if unit >> 8 & 1 == 1
                && let Some(&value) = self.trie.get(at)
            {
                found = Some((index + 1, (value & !(1 << 31)) as usize));
            }
        }
        found
    }

    pub(super) fn apply(&self, text: &str) -> String {
        let texts = &self.bytes[4 + self.trie.len() * 4..];
        let mut replaced = String::with_capacity(text.len());
        let mut rest = text;
        while let Some(character) = rest.chars().next() {
            let found =
                self.find(rest.as_bytes()).filter(|(length, _)| rest.is_char_boundary(*length));
            let replacement = found.and_then(|(length, place)| {
                let text = texts.get(place..)?.split(|&byte| byte == 0).next()?;
                Some((length, std::str::from_utf8(text).ok()?))
            });
            match replacement {
                Some((length, text)) => {
                    replaced.push_str(text);
                    rest = &rest[length..];
                }
                None => {
                    replaced.push(character);
                    rest = &rest[character.len_utf8()..];
                }
            }
        }
        replaced
    }
}
