//! SentencePiece's models: files of Protocol Buffers with the pieces, their scores, and the normalization of texts.

use std::sync::Arc;

use super::bpe::{Bpe, Order};
use super::charsmap::Charsmap;
use super::pattern::Pattern;
use super::split::{Normalizer, Prepends};
use super::unigram::Scores;
use super::{AddedToken, Decoding, Tokenizer};
use crate::error::{Error, ErrorKind, Result, fail};

/// Most pieces of a model.
const MAX_PIECES: usize = 1 << 22;

// Types of pieces.
const NORMAL: u64 = 1;
const CONTROL: u64 = 3;
const USER_DEFINED: u64 = 4;

/// Ids of the first and last tokens of a text.
pub(super) struct BoundaryTokens {
    pub(super) bos: Option<u32>,
    pub(super) eos: Option<u32>,
}

/// The value of a field.
enum Field<'b> {
    Number(u64),
    Float(f32),
    Bytes(&'b [u8]),
}

impl Field<'_> {
    fn number(&self) -> u64 {
        if let Field::Number(number) = self { *number } else { 0 }
    }

    fn flag(&self) -> bool {
        self.number() != 0
    }
}

fn invalid() -> Error {
    let error = Error::of_kind(ErrorKind::Format, "the tokenizer is not a SentencePiece model");
    error.with_hint("`tokenizer.model` must be a SentencePiece model or a tiktoken file")
}

fn varint(bytes: &mut &[u8]) -> Result<u64> {
    let mut number = 0u64;
    for shift in (0..64).step_by(7) {
        let (&byte, rest) = bytes.split_first().ok_or_else(invalid)?;
        *bytes = rest;
        number |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Ok(number);
        }
    }
    Err(invalid())
}

fn take<'b>(bytes: &mut &'b [u8], count: u64) -> Result<&'b [u8]> {
    let count = usize::try_from(count).map_err(|_| invalid())?;
    let (taken, rest) = bytes.split_at_checked(count).ok_or_else(invalid)?;
    *bytes = rest;
    Ok(taken)
}

/// The fields of a message, with their numbers.
fn fields(mut bytes: &[u8]) -> Result<Vec<(u64, Field<'_>)>> {
    let mut all = Vec::new();
    while !bytes.is_empty() {
        let key = varint(&mut bytes)?;
        let field = match key & 7 {
            0 => Field::Number(varint(&mut bytes)?),
            1 => Field::Bytes(take(&mut bytes, 8)?),
            2 => {
                let length = varint(&mut bytes)?;
                Field::Bytes(take(&mut bytes, length)?)
            }
            5 => {
                let word = take(&mut bytes, 4)?.try_into().map_err(|_| invalid())?;
                Field::Float(f32::from_le_bytes(word))
            }
            _ => return Err(invalid()),
        };
        all.push((key >> 3, field));
    }
    Ok(all)
}

/// A piece of the vocabulary.
struct Piece {
    text: Arc<str>,
    score: f32,
    kind: u64,
}

fn read_piece(bytes: &[u8]) -> Result<Piece> {
    let mut piece = Piece { text: Arc::from(""), score: 0.0, kind: NORMAL };
    for (number, field) in fields(bytes)? {
        match (number, field) {
            (1, Field::Bytes(text)) => {
                piece.text = Arc::from(std::str::from_utf8(text).map_err(|_| invalid())?);
            }
            (2, Field::Float(score)) => piece.score = score,
            (3, kind) => piece.kind = kind.number(),
            _ => {}
        }
    }
    Ok(piece)
}

/// Settings of a model.
struct Settings<'b> {
    is_unigram: bool,
    byte_fallback: bool,
    unknown: u64,
    bos: u64,
    eos: u64,
    charsmap: &'b [u8],
    adds_prefix: bool,
    removes_spaces: bool,
}

fn read_settings<'b>(model: &[(u64, Field<'b>)]) -> Result<Settings<'b>> {
    let mut settings = Settings {
        is_unigram: true,
        byte_fallback: false,
        unknown: 0,
        bos: 1,
        eos: 2,
        charsmap: &[],
        adds_prefix: true,
        removes_spaces: true,
    };
    for (message, field) in model {
        let Field::Bytes(bytes) = field else { continue };
        if !matches!(message, 2 | 3) {
            continue;
        }
        for (number, field) in fields(bytes)? {
            match (message, number) {
                (2, 3) => match field.number() {
                    1 => settings.is_unigram = true,
                    2 => settings.is_unigram = false,
                    _ => fail!(Unsupported, "word and character models are not supported"),
                },
                (2, 24) if field.flag() => {
                    fail!(Unsupported, "spaces at the ends of pieces are not supported")
                }
                (2, 35) => settings.byte_fallback = field.flag(),
                (2, 40) => settings.unknown = field.number(),
                (2, 41) => settings.bos = field.number(),
                (2, 42) => settings.eos = field.number(),
                (3, 2) => {
                    if let Field::Bytes(charsmap) = field {
                        settings.charsmap = charsmap;
                    }
                }
                (3, 3) => settings.adds_prefix = field.flag(),
                (3, 4) => settings.removes_spaces = field.flag(),
                (3, 5) if !field.flag() => {
                    fail!(Unsupported, "pieces with unescaped spaces are not supported")
                }
                _ => {}
            }
        }
    }
    Ok(settings)
}

/// Reads a model.
pub(super) fn read(bytes: &[u8]) -> Result<(Tokenizer, BoundaryTokens)> {
    let model = fields(bytes)?;
    let settings = read_settings(&model)?;
    let mut pieces = Vec::new();
    for (number, field) in &model {
        if let (1, Field::Bytes(bytes)) = (number, field) {
            pieces.push(read_piece(bytes)?);
        }
    }
    if pieces.is_empty() || pieces.len() > MAX_PIECES {
        return Err(invalid());
    }
    let mut bpe = Bpe::new(pieces.iter().map(|piece| piece.text.clone()).collect());
    let id = |id: u64| u32::try_from(id).ok().filter(|&id| (id as usize) < pieces.len());
    bpe.unknown = id(settings.unknown);
    bpe.fuses_unknown = true;
    if settings.byte_fallback {
        bpe.find_bytes();
    }
    let is_found = |piece: &Piece| matches!(piece.kind, NORMAL | USER_DEFINED);
    let score = |piece: &Piece| if is_found(piece) { piece.score } else { f32::NAN };
    let scores = pieces.iter().map(score).collect();
    bpe.order = match settings.is_unigram {
        true => Order::Unigram(Scores::new(&bpe.tokens, scores)),
        false => Order::Scores(scores),
    };
    let added = pieces.iter().enumerate().filter_map(|(id, piece)| {
        let special = piece.kind == CONTROL;
        let content = piece.text.replace('\u{2581}', " ");
        let token = AddedToken { id: id as u32, content, special, ..AddedToken::default() };
        (special || piece.kind == USER_DEFINED).then_some(token)
    });
    let mut normalizers = Vec::new();
    if !settings.charsmap.is_empty() {
        normalizers.push(Normalizer::Charsmap(Charsmap::new(settings.charsmap.to_vec())?));
    }
    if settings.removes_spaces {
        normalizers.push(Normalizer::Replace(Pattern::regex("^ +| +$")?, String::new()));
        normalizers.push(Normalizer::Replace(Pattern::regex(" {2,}")?, " ".to_owned()));
    }
    let prepends = if settings.adds_prefix { Prepends::Always } else { Prepends::Never };
    normalizers.push(Normalizer::Metaspace { prepends });
    let decoding = Decoding {
        byte_level: false,
        has_marks: true,
        byte_fallback: bpe.bytes.is_some(),
        strips_first: settings.adds_prefix,
        ..Decoding::default()
    };
    let ends = BoundaryTokens { bos: id(settings.bos), eos: id(settings.eos) };
    let tokenizer = Tokenizer {
        added: added.collect(),
        model: bpe,
        starts: Default::default(),
        normalizers,
        splitters: Vec::new(),
        affixes: Default::default(),
        decoding,
    };
    Ok((tokenizer.assemble(), ends))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rejects_malformed_sentencepiece_files() {
        for bytes in [
            &b""[..],
            b"\x0a",
            b"\x0a\xff\xff\xff\xff\x0f",
            b"\x0f",
            b"\x0a\x03\x0a\x01\xff",
            &[0xff; 12],
        ] {
            assert!(read(bytes).is_err(), "{bytes:?}");
        }
    }
}
