//! Neighboring characters that a token of a vocabulary contains, for the division of long texts.
//!
//! No merge crosses the boundary between two characters that are neighbors in no token. The parts of a text between such
//! boundaries are merged separately, with the same result: in vocabularies without word splits, these are usually the words.

/// A set of pairs of characters. It may contain pairs that were not added.
#[derive(Debug)]
pub(super) struct Joins {
    /// A power of two of words of 64 bits.
    bits: Vec<u64>,
}

/// Bits of the set for each added pair, so that few other pairs are found.
const BITS_PER_PAIR: usize = 16;

/// Maximum number of bits.
const MAX_BITS: usize = 1 << 24;

impl Joins {
    /// The pairs in tokens.
    pub(super) fn new<'t>(tokens: impl Iterator<Item = &'t str> + Clone) -> Joins {
        let count: usize = tokens.clone().map(str::len).sum();
        let bits = count.saturating_mul(BITS_PER_PAIR).clamp(64, MAX_BITS).next_power_of_two();
        let mut joins = Joins { bits: vec![0; bits / 64] };
        for token in tokens {
            for (first, second) in token.chars().zip(token.chars().skip(1)) {
                let (word, bit) = joins.place(first, second);
                joins.bits[word] |= 1 << bit;
            }
        }
        joins
    }

    /// Whether a token may contain the pair.
    fn has(&self, first: char, second: char) -> bool {
        let (word, bit) = self.place(first, second);
        self.bits[word] >> bit & 1 == 1
    }

    /// Index of a pair's word, and its bit.
    fn place(&self, first: char, second: char) -> (usize, u32) {
        let pair = u64::from(u32::from(first)) << 32 | u64::from(u32::from(second));
        let hash = pair.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let hash = (hash ^ hash >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 32;
        ((hash >> 6) as usize & (self.bits.len() - 1), (hash & 63) as u32)
    }

    /// Divides a text at the boundaries that no token crosses.
    pub(super) fn divide<'t>(&self, text: &'t str) -> impl Iterator<Item = &'t str> {
        let mut rest = text;
        std::iter::from_fn(move || {
            let mut characters = rest.char_indices();
            let (_, mut before) = characters.next()?;
            let end = characters.find_map(|(at, character)| {
                let ends = !self.has(before, character);
                before = character;
                ends.then_some(at)
            });
            let (part, others) = rest.split_at(end.unwrap_or(rest.len()));
            rest = others;
            Some(part)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn splits_text_at_boundaries_no_token_crosses() {
        let joins = Joins::new(["ab", "▁a", "cde", "x"].into_iter());
        let parts = |text| joins.divide(text).collect::<Vec<_>>();
        assert_eq!(parts("▁abacde"), ["▁ab", "a", "cde"]);
        assert_eq!(parts("xx"), ["x", "x"]);
        assert_eq!(parts("é"), ["é"]);
        assert!(parts("").is_empty());
        let none = Joins::new(std::iter::empty());
        assert_eq!(none.divide("ab").collect::<Vec<_>>(), ["a", "b"]);
    }
}
