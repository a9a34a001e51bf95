//! Byte-pair encoding: neighbouring symbols are merged, the best pair first.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::sync::{Arc, OnceLock};

use super::joins::Joins;
use super::unigram::Scores;
use super::wordpiece::WordPieces;
use crate::error::{Result, fail};

/// A vocabulary with the order of its merges.
#[derive(Debug, Default)]
pub(super) struct Bpe {
    pub(super) tokens: Vec<Arc<str>>,
    ids: HashMap<Arc<str>, u32>,
    pub(super) order: Order,
    /// The token for characters that the vocabulary lacks.
    pub(super) unknown: Option<u32>,
    /// Unknown characters that follow each other become one token.
    pub(super) fuses_unknown: bool,
    /// Pieces in the vocabulary are not merged from their characters.
    pub(super) whole_pieces: bool,
    /// Tokens of single bytes, for characters that the vocabulary lacks; `None` if it has no such token.
    pub(super) bytes: Option<Box<[u32; 256]>>,
    /// Neighbors in tokens, once a text was merged.
    joins: OnceLock<Joins>,
}

/// Which pairs are merged first.
#[derive(Debug)]
pub(super) enum Order {
    /// Rank and result of each pair.
    Merges(HashMap<(u32, u32), (u32, u32)>),
    /// The pair whose result has the highest score, as in SentencePiece. Tokens with the score NaN are no results.
    Scores(Vec<f32>),
    /// No pairs are merged: the division with the highest sum of scores is chosen.
    Unigram(Scores),
    /// No pairs are merged: words are cut into the longest tokens from their start.
    WordPieces(WordPieces),
}

impl Default for Order {
    fn default() -> Order {
        Order::Merges(HashMap::new())
    }
}

/// A symbol of a piece, in a list of neighbours.
#[derive(Clone, Copy)]
struct Symbol {
    id: u32,
    /// Indices of the neighbours, `NONE` at the ends.
    before: u32,
    after: u32,
    /// Bytes of the piece; 0 once it is a part of another symbol.
    start: u32,
    length: u32,
}

const NONE: u32 = u32::MAX;

/// Id of characters that have no token, until they are replaced.
const UNKNOWN: u32 = u32::MAX;

impl Bpe {
    pub(super) fn new(tokens: Vec<Arc<str>>) -> Bpe {
        let mut ids = HashMap::with_capacity(tokens.len());
        for (id, token) in tokens.iter().enumerate() {
            ids.entry(token.clone()).or_insert(id as u32);
        }
        Bpe { tokens, ids, ..Bpe::default() }
    }

    pub(super) fn id(&self, token: &str) -> Option<u32> {
        self.ids.get(token).copied()
    }

    /// Looks the tokens of single bytes up.
    pub(super) fn find_bytes(&mut self) {
        let bytes: [u32; 256] =
            std::array::from_fn(|byte| self.id(&format!("<0x{byte:02X}>")).unwrap_or(NONE));
        self.bytes = bytes.iter().any(|&id| id != NONE).then(|| Box::new(bytes));
    }

    /// Appends the tokens of a piece.
    pub(super) fn encode(&self, piece: &str, ids: &mut Vec<u32>) -> Result<()> {
        if self.whole_pieces
            && let Some(id) = self.id(piece)
        {
            ids.push(id);
            return Ok(());
        }
        if let Order::Unigram(scores) = &self.order {
            for (start, end, id) in scores.divide(piece, |part| self.id(part)) {
                match id {
                    Some(id) => ids.push(id),
                    None => self.encode_unknown(&piece[start..end], ids),
                }
            }
            return Ok(());
        }
        if let Order::WordPieces(pieces) = &self.order {
            match pieces.divide(piece, |part| self.id(part)) {
                Some(found) => ids.extend(found),
                None => ids.extend(self.unknown),
            }
            return Ok(());
        }
        let joins = self.joins.get_or_init(|| Joins::new(self.tokens.iter().map(|token| &**token)));
        joins.divide(piece).try_for_each(|part| self.encode_part(part, ids))
    }

    /// Appends the tokens of a part of a piece.
    fn encode_part(&self, piece: &str, ids: &mut Vec<u32>) -> Result<()> {
        let mut symbols = self.symbols(piece)?;
        self.merge(piece, &mut symbols);
        let mut at = if symbols.is_empty() { NONE } else { 0 };
        while let Some(symbol) = symbols.get(at as usize) {
            let text = &piece[symbol.start as usize..(symbol.start + symbol.length) as usize];
            if symbol.id != UNKNOWN {
                ids.push(symbol.id);
            } else {
                self.encode_unknown(text, ids);
            }
            at = symbol.after;
        }
        Ok(())
    }

    fn encode_unknown(&self, text: &str, ids: &mut Vec<u32>) {
        // A vocabulary may lack tokens of bytes that never begin or continue unknown characters: Gemma 2's has none of the tab.
        if let Some(bytes) = &self.bytes
            && text.bytes().all(|byte| bytes[usize::from(byte)] != NONE)
        {
            ids.extend(text.bytes().map(|byte| bytes[usize::from(byte)]));
            return;
        }
        if let Some(unknown) = self.unknown
            && !(self.fuses_unknown && ids.last() == Some(&unknown))
        {
            ids.push(unknown);
        }
    }

    fn symbols(&self, piece: &str) -> Result<Vec<Symbol>> {
        if u32::try_from(piece.len()).is_err() {
            fail!(Argument, "a text without spaces must be smaller than 4 GB");
        }
        let mut symbols: Vec<Symbol> = Vec::with_capacity(piece.len());
        for (start, character) in piece.char_indices() {
            let length = character.len_utf8();
            let id = self.id(&piece[start..start + length]).unwrap_or(UNKNOWN);
            let index = symbols.len() as u32;
            let before = index.checked_sub(1).unwrap_or(NONE);
            let (start, length) = (start as u32, length as u32);
            symbols.push(Symbol { id, before, after: index + 1, start, length });
        }
        if let Some(last) = symbols.last_mut() {
            last.after = NONE;
        }
        Ok(symbols)
    }

    /// The priority of a pair, the smallest first, and its result.
    fn pair(&self, piece: &str, first: Symbol, second: Symbol) -> Option<(u32, u32)> {
        match &self.order {
            Order::Merges(merges) => merges.get(&(first.id, second.id)).copied(),
            Order::Scores(scores) => {
                let range = first.start as usize..(second.start + second.length) as usize;
                let id = self.id(&piece[range])?;
                let score = scores.get(id as usize).copied().filter(|score| !score.is_nan())?;
                // The bits of floats in the order of their values, the highest score first.
                let bits = score.to_bits();
                let ordered = if bits >> 31 == 1 { bits } else { !bits & 0x7fff_ffff };
                Some((ordered, id))
            }
            Order::Unigram(_) | Order::WordPieces(_) => None,
        }
    }

    fn merge(&self, piece: &str, symbols: &mut [Symbol]) {
        let mut queue = BinaryHeap::new();
        let push = |queue: &mut BinaryHeap<_>, symbols: &[Symbol], index: u32| {
            let Some(first) = symbols.get(index as usize) else { return };
            let Some(second) = symbols.get(first.after as usize) else { return };
            if let Some((priority, id)) = self.pair(piece, *first, *second) {
                queue.push(Reverse((priority, index, id, first.length, second.length)));
            }
        };
        for index in 0..symbols.len() as u32 {
            push(&mut queue, symbols, index);
        }
        while let Some(Reverse((_, index, id, length, other))) = queue.pop() {
            let first = symbols[index as usize];
            let Some(&second) = symbols.get(first.after as usize) else { continue };
            // One of them was merged meanwhile.
            if first.length != length || second.length != other || length == 0 {
                continue;
            }
            symbols[first.after as usize].length = 0;
            let merged = &mut symbols[index as usize];
            *merged = Symbol { id, after: second.after, length: length + other, ..first };
            if let Some(next) = symbols.get_mut(second.after as usize) {
                next.before = index;
            }
            push(&mut queue, symbols, first.before);
            push(&mut queue, symbols, index);
        }
    }

    /// All merges of a vocabulary with scores, the best first, as `tokenizer.json` lists them.
    pub(super) fn merges(&self) -> Vec<(u32, u32)> {
        match &self.order {
            Order::Unigram(_) | Order::WordPieces(_) => Vec::new(),
            Order::Merges(merges) => {
                let mut all: Vec<_> =
                    merges.iter().map(|(pair, (rank, _))| (*rank, *pair)).collect();
                all.sort_unstable();
                all.into_iter().map(|(_, pair)| pair).collect()
            }
            Order::Scores(scores) => {
                let mut all = Vec::new();
                let is_result = |id: usize| scores.get(id).is_some_and(|score| !score.is_nan());
                let results = self.tokens.iter().enumerate().filter(|(id, _)| is_result(*id));
                for (id, token) in results {
                    for (at, _) in token.char_indices().skip(1) {
                        let halves = (self.id(&token[..at]), self.id(&token[at..]));
                        if let (Some(first), Some(second)) = halves {
                            all.push((scores.get(id).copied().unwrap_or(0.0), first, second));
                        }
                    }
                }
                all.sort_by(|a, b| b.0.total_cmp(&a.0).then((a.1, a.2).cmp(&(b.1, b.2))));
                all.into_iter().map(|(_, first, second)| (first, second)).collect()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bpe(tokens: &[&str]) -> Bpe {
        Bpe::new(tokens.iter().map(|&token| Arc::from(token)).collect())
    }

    #[test]
    fn merges_pairs_by_rank_or_score() {
        let mut model = bpe(&["a", "b", "c", "ab", "bc", "abc"]);
        let encode = |model: &Bpe, text| {
            let mut ids = Vec::new();
            model.encode(text, &mut ids).expect("short");
            ids
        };
        model.order = Order::Merges(HashMap::from([((1, 2), (0, 4)), ((0, 1), (1, 3))]));
        assert_eq!(encode(&model, "abc"), [0, 4]);
        assert_eq!(encode(&model, "abab"), [3, 3]);
        model.whole_pieces = true;
        assert_eq!(encode(&model, "abc"), [5]);

        let mut scored = bpe(&["a", "b", "c", "ab", "bc", "<unk>"]);
        scored.order = Order::Scores(vec![0.0, 0.0, 0.0, -1.0, -2.0, 0.0]);
        scored.unknown = Some(5);
        assert_eq!(encode(&scored, "abc"), [3, 2]);
        assert_eq!(encode(&scored, "axx"), [0, 5, 5]);
        scored.fuses_unknown = true;
        assert_eq!(encode(&scored, "axx"), [0, 5]);
        assert_eq!(scored.merges(), [(0, 1), (1, 2)]);
    }
}
