//! Tokenizers: text to token ids and back.
//!
//! Vocabularies come from `tokenizer.json`, from GGUF metadata, from models of SentencePiece, from files of tiktoken, from
//! `vocab.txt`, and from `vocab.json` with `merges.txt`. All become the same steps: added tokens are cut out of the text, the rest is normalized, split into pieces,
//! and each piece is merged from its characters or cut into tokens.

mod bert;
mod bpe;
mod bytes;
mod charsmap;
mod forms;
mod gguf;
mod joins;
mod json;
mod merges;
mod pattern;
mod sentencepiece;
mod split;
mod tiktoken;
mod unigram;
mod wordpiece;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use coremill_graph::MetadataValue;
use serde_json::Value;

use self::bpe::Bpe;
use self::split::{Normalizer, Splitter};
use crate::error::{Result, fail};
use crate::source::{read_bytes, read_json, read_text};

/// Most bytes of a text that is tokenized at once.
const MAX_TEXT: usize = 256 << 20;

/// A tokenizer.
///
/// ```no_run
/// use coremill_llm::Tokenizer;
///
/// let tokenizer = Tokenizer::open("SmolLM2-135M-Instruct")?;
/// let ids = tokenizer.encode("The capital of France", true)?;
/// assert_eq!(tokenizer.decode(&ids, true), "The capital of France");
/// # Ok::<(), coremill_llm::Error>(())
/// ```
#[derive(Debug)]
pub struct Tokenizer {
    model: Bpe,
    added: Vec<AddedToken>,
    /// Indices in `added` by the first byte of the token, the longest first.
    starts: BTreeMap<u8, Vec<usize>>,
    normalizers: Vec<Normalizer>,
    splitters: Vec<Splitter>,
    /// Tokens before and after a text.
    affixes: [Vec<u32>; 2],
    decoding: Decoding,
}

/// A token that is found in the text itself.
#[derive(Clone, Debug, Default)]
struct AddedToken {
    id: u32,
    content: String,
    special: bool,
    /// The token is searched for in the normalized text.
    normalized: bool,
    /// Spaces before and after the token belong to it.
    strips: [bool; 2],
    /// The token is a word of its own.
    single_word: bool,
}

/// Conversion of tokens to bytes.
#[derive(Clone, Copy, Debug, Default)]
struct Decoding {
    /// Each character represents a byte, as in GPT-2.
    byte_level: bool,
    /// `▁` represents a space.
    has_marks: bool,
    /// `<0x41>` represents a byte.
    byte_fallback: bool,
    /// The first space of a text is left out.
    strips_first: bool,
    /// Tokens are words, or continue them after `##`.
    word_pieces: bool,
    /// Spaces before punctuation are left out.
    cleans: bool,
}

/// A part of a text.
enum Part<'t> {
    Text(Cow<'t, str>),
    Token(u32),
}

impl Tokenizer {
    /// Reads a `tokenizer.json`, a model of SentencePiece, a file of tiktoken, a `vocab.txt`, or a `vocab.json` with the `merges.txt`
    /// next to it; or the one in a folder. All but the first have further settings in the folder's `tokenizer_config.json`.
    pub fn open(path: impl AsRef<Path>) -> Result<Tokenizer> {
        let path = path.as_ref();
        let path = if path.is_dir() { file_of(path) } else { path.to_owned() };
        let is_pair = |name: &str| path.file_name().is_some_and(|found| found == name);
        if [merges::VOCABULARY, merges::MERGES].into_iter().any(is_pair) {
            let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
            return merges::read(parent.unwrap_or(Path::new(".")));
        }
        if path.extension().is_some_and(|extension| extension == "json") {
            return json::read(&read_json(&path)?).map_err(|error| error.within(&path));
        }
        let config = path.with_file_name("tokenizer_config.json");
        let config = if config.is_file() { read_json(&config)? } else { Value::Null };
        if path.extension().is_some_and(|extension| extension == "txt") {
            let text = read_text(&path)?;
            return bert::read(&text, &config).map_err(|error| error.within(&path));
        }
        Tokenizer::of_bytes(&read_bytes(&path)?, &config).map_err(|error| error.within(&path))
    }

    /// Reads the content of a model of SentencePiece or of a file of tiktoken, and of the `tokenizer_config.json` next to it.
    pub fn of_bytes(bytes: &[u8], config: &Value) -> Result<Tokenizer> {
        // A message begins with the number of a field, a line with a digit of Base64.
        if let Ok(text) = std::str::from_utf8(bytes)
            && text.bytes().next().is_some_and(|byte| byte.is_ascii_graphic())
        {
            return tiktoken::read(text, config);
        }
        let (mut tokenizer, ends) = sentencepiece::read(bytes)?;
        let class = config["tokenizer_class"].as_str().unwrap_or_default();
        let has_bos = ["Llama", "Gemma"].iter().any(|name| class.starts_with(name));
        if config["add_bos_token"].as_bool().unwrap_or(has_bos) {
            tokenizer.affixes[0].extend(ends.bos);
        }
        if config["add_eos_token"].as_bool().unwrap_or(false) {
            tokenizer.affixes[1].extend(ends.eos);
        }
        Ok(tokenizer)
    }

    /// Reads the content of a `tokenizer.json`.
    pub fn of_json(json: &Value) -> Result<Tokenizer> {
        json::read(json)
    }

    /// Reads the vocabulary in the metadata of a GGUF file.
    pub fn of_gguf(metadata: &BTreeMap<String, MetadataValue>) -> Result<Tokenizer> {
        gguf::read(metadata)
    }

    /// The content of a `tokenizer.json`.
    pub fn to_json(&self) -> Value {
        json::write(self)
    }

    fn assemble(mut self) -> Tokenizer {
        self.starts.clear();
        for (index, token) in self.added.iter().enumerate() {
            if let Some(&first) = token.content.as_bytes().first() {
                self.starts.entry(first).or_default().push(index);
            }
        }
        let added = &self.added;
        for indices in self.starts.values_mut() {
            indices.sort_by_key(|&index| std::cmp::Reverse(added[index].content.len()));
        }
        self
    }

    /// Number of token ids.
    pub fn len(&self) -> usize {
        let added = self.added.iter().map(|token| token.id as usize + 1).max().unwrap_or(0);
        self.model.tokens.len().max(added)
    }

    /// Whether the vocabulary is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The id of a token as the vocabulary spells it.
    pub fn id(&self, token: &str) -> Option<u32> {
        let added = self.added.iter().find(|added| added.content == token);
        added.map(|added| added.id).or_else(|| self.model.id(token))
    }

    /// The vocabulary's spelling of a token.
    pub fn token(&self, id: u32) -> Option<&str> {
        match self.added_token(id) {
            Some(token) => Some(&token.content),
            None => self.model.tokens.get(id as usize).map(|token| &**token),
        }
    }

    fn added_token(&self, id: u32) -> Option<&AddedToken> {
        self.added.iter().find(|added| added.id == id)
    }

    /// Whether a token is special: the end of a text, for instance.
    pub fn is_special(&self, id: u32) -> bool {
        self.added_token(id).is_some_and(|token| token.special)
    }

    /// Token ids of a text. Special tokens in the text are recognized; `add_special` adds the
    /// tokens at the ends of every text.
    pub fn encode(&self, text: &str, add_special: bool) -> Result<Vec<u32>> {
        if text.len() > MAX_TEXT {
            fail!(Argument, "a text must have at most {MAX_TEXT} bytes, got {}", text.len());
        }
        let mut ids = Vec::new();
        if add_special {
            ids.extend(&self.affixes[0]);
        }
        let mut is_first = true;
        for part in self.cut(Cow::Borrowed(text), false) {
            let Part::Text(text) = part else {
                self.push(part, &mut ids);
                is_first = false;
                continue;
            };
            let mut normal = text;
            for normalizer in &self.normalizers {
                normal = normalizer.apply(normal, is_first)?;
            }
            for part in self.cut(normal, true) {
                match part {
                    Part::Text(text) => self.encode_plain(&text, is_first, &mut ids)?,
                    token => self.push(token, &mut ids),
                }
                is_first = false;
            }
        }
        if add_special {
            ids.extend(&self.affixes[1]);
        }
        Ok(ids)
    }

    /// Token ids of a text with the tokens at its ends, which stay if the text is cut to a length.
    pub fn encode_within(&self, text: &str, most: usize) -> Result<Vec<u32>> {
        let plain = self.encode(text, false)?;
        let [before, after] = &self.affixes;
        let room = most.saturating_sub(before.len() + after.len());
        let mut ids = before.clone();
        ids.extend(plain.iter().take(room));
        ids.extend(after);
        Ok(ids)
    }

    fn push(&self, part: Part<'_>, ids: &mut Vec<u32>) {
        if let Part::Token(id) = part {
            ids.push(id);
        }
    }

    fn encode_plain(&self, text: &str, is_first: bool, ids: &mut Vec<u32>) -> Result<()> {
        let mut pieces = vec![Cow::Borrowed(text)];
        for splitter in &self.splitters {
            let mut finer = Vec::new();
            for (index, piece) in pieces.into_iter().enumerate() {
                splitter.apply(piece, is_first && index == 0, &mut finer)?;
            }
            pieces = finer;
        }
        for piece in pieces.iter().filter(|piece| !piece.is_empty()) {
            self.model.encode(piece, ids)?;
        }
        Ok(())
    }

    /// Cuts added tokens out of a text: at each place the longest one.
    fn cut<'t>(&self, text: Cow<'t, str>, normalized: bool) -> Vec<Part<'t>> {
        if text.is_empty() {
            return Vec::new();
        }
        let mut found = Vec::new();
        let bytes = text.as_bytes();
        let mut at = 0;
        let mut start = 0;
        while at < bytes.len() {
            let token = self.starts.get(&bytes[at]).and_then(|indices| {
                let fits = |token: &&AddedToken| {
                    let end = at + token.content.len();
                    token.normalized == normalized
                        && bytes[at..].starts_with(token.content.as_bytes())
                        && (!token.single_word || is_word(&text, at, end))
                };
                indices.iter().map(|&index| &self.added[index]).find(fits)
            });
            let Some(token) = token else {
                at += 1;
                continue;
            };
            let mut end = at + token.content.len();
            let mut before = at;
            if token.strips[0] {
                before = start + text[start..at].trim_end().len();
            }
            if token.strips[1] {
                end = text.len() - text[end..].trim_start().len();
            }
            found.push((start..before, token.id));
            (start, at) = (end, end);
        }
        let mut parts = Vec::with_capacity(found.len() * 2 + 1);
        if found.is_empty() {
            parts.push(Part::Text(text));
            return parts;
        }
        let piece = |range: std::ops::Range<usize>| match &text {
            Cow::Borrowed(text) => Cow::Borrowed(&text[range]),
            Cow::Owned(text) => Cow::Owned(text[range].to_owned()),
        };
        for (range, id) in found {
            if !range.is_empty() {
                parts.push(Part::Text(piece(range)));
            }
            parts.push(Part::Token(id));
        }
        if start < text.len() {
            parts.push(Part::Text(piece(start..text.len())));
        }
        parts
    }

    /// The bytes that a token adds to a text. Added tokens are decoded as well: several spaces are one such token in Gemma's vocabulary.
    pub fn token_bytes(&self, id: u32) -> Cow<'_, [u8]> {
        let Some(token) = self.token(id) else { return Cow::Borrowed(&[]) };
        if self.decoding.byte_level {
            return Cow::Owned(bytes::to_bytes(token));
        }
        if self.decoding.byte_fallback
            && let Some(byte) = bytes::fallback_byte(token)
        {
            return Cow::Owned(vec![byte]);
        }
        match self.decoding.has_marks {
            true => Cow::Owned(token.replace(bytes::MARK, " ").into_bytes()),
            false => Cow::Borrowed(token.as_bytes()),
        }
    }

    /// The text of tokens. Bytes that are no UTF-8 become replacement characters.
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> String {
        let kept = ids.iter().filter(|&&id| !(skip_special && self.is_special(id)));
        if self.decoding.word_pieces {
            let tokens = kept.filter_map(|&id| self.token(id));
            return wordpiece::decode(tokens, self.decoding.cleans);
        }
        let mut all = Vec::new();
        kept.for_each(|&id| all.extend_from_slice(&self.token_bytes(id)));
        let text = String::from_utf8(all)
            .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned());
        match text.strip_prefix(' ') {
            Some(rest) if self.decoding.strips_first => rest.to_owned(),
            _ => text,
        }
    }
}

/// Whether a folder has a vocabulary.
pub(crate) fn has_vocabulary(folder: &Path) -> bool {
    file_of(folder).is_file()
}

/// The file of a folder's vocabulary: `tokenizer.json` if there is no other.
fn file_of(folder: &Path) -> PathBuf {
    let names = [
        "tokenizer.json",
        "tokenizer.model",
        "spiece.model",
        "qwen.tiktoken",
        "vocab.txt",
        merges::VOCABULARY,
        merges::MERGES,
    ];
    let found = names.iter().map(|name| folder.join(name)).find(|path| path.is_file());
    found.unwrap_or_else(|| folder.join(names[0]))
}

fn is_word(text: &str, start: usize, end: usize) -> bool {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    !text[..start].chars().next_back().is_some_and(is_part)
        && !text[end..].chars().next().is_some_and(is_part)
}
