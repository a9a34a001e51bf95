//! Vocabularies in GGUF metadata.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use coremill_graph::MetadataValue;

use super::bert;
use super::bpe::{Bpe, Order};
use super::bytes::MARK;
use super::forms::BertForms;
use super::pattern::Pattern;
use super::split::{Behavior, GPT2, Normalizer, Prepends, Splitter, UnicodeForm};
use super::wordpiece::CONTINUATION;
use super::{AddedToken, Decoding, Tokenizer};
use crate::error::{Error, ErrorKind, Result, fail};

/// Most tokens of a vocabulary.
const MAX_TOKENS: usize = 1 << 22;

/// Values of `tokenizer.ggml.token_type`.
const CONTROL: u64 = 3;
const USER_DEFINED: u64 = 4;

pub(super) const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
pub(super) const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
pub(super) const GPT4O: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// A way to split texts, by the names that `tokenizer.ggml.pre` has for it.
struct Pre {
    names: &'static [&'static str],
    /// Patterns that are applied before the last one.
    first: &'static [&'static str],
    last: &'static str,
    /// Whole pieces of the vocabulary are not merged.
    whole_pieces: bool,
    /// Texts are brought to the normal form NFC.
    nfc: bool,
}

const PLAIN: Pre = Pre { names: &[], first: &[], last: GPT2, whole_pieces: false, nfc: false };

static PRES: &[Pre] = &[
    Pre {
        names: &["llama3", "llama-v3", "llama-bpe", "falcon3", "pixtral"],
        last: LLAMA3,
        whole_pieces: true,
        ..PLAIN
    },
    Pre { names: &["dbrx", "smaug-bpe", "olmo2", "chatglm-bpe"], last: LLAMA3, ..PLAIN },
    Pre { names: &["qwen2", "deepseek-r1-qwen", "megrez"], last: QWEN2, nfc: true, ..PLAIN },
    Pre { names: &["stablelm2"], last: QWEN2, ..PLAIN },
    Pre { names: &["gpt-2", "phi-2", "mpt", "olmo", "jais", "roberta-bpe"], ..PLAIN },
    Pre {
        names: &["smollm", "starcoder", "refact", "command-r", "codeshell", "exaone"],
        first: &[r"\p{N}"],
        ..PLAIN
    },
    Pre { names: &["tekken"], last: TEKKEN, whole_pieces: true, ..PLAIN },
    Pre { names: &["gpt-4o", "llama4"], last: GPT4O, ..PLAIN },
];

type Metadata = BTreeMap<String, MetadataValue>;

fn get<'m>(metadata: &'m Metadata, key: &str) -> Option<&'m MetadataValue> {
    metadata.get(&format!("tokenizer.ggml.{key}"))
}

pub(super) fn read(metadata: &Metadata) -> Result<Tokenizer> {
    let Some(model) = get(metadata, "model").and_then(MetadataValue::as_str) else {
        fail!(Format, "the metadata has no `tokenizer.ggml.model`");
    };
    let Some(tokens) = get(metadata, "tokens").and_then(MetadataValue::as_array) else {
        fail!(Format, "the metadata has no `tokenizer.ggml.tokens`");
    };
    if tokens.len() > MAX_TOKENS {
        fail!(Format, "a vocabulary must have at most {MAX_TOKENS} tokens, got {}", tokens.len());
    }
    let tokens: Vec<Arc<str>> =
        tokens.iter().map(|token| Arc::from(token.as_str().unwrap_or_default())).collect();
    if model == "bert" {
        return read_words(metadata, &tokens);
    }
    let kinds = get(metadata, "token_type").and_then(MetadataValue::as_array);
    let kinds = kinds.into_iter().flat_map(|kinds| kinds.iter().map(|kind| kind.as_u64()));
    let mut added = Vec::new();
    for (id, (kind, token)) in kinds.zip(&tokens).enumerate() {
        if matches!(kind, Some(CONTROL | USER_DEFINED)) && !token.is_empty() {
            let (content, special) = (token.to_string(), kind == Some(CONTROL));
            added.push(AddedToken { id: id as u32, content, special, ..AddedToken::default() });
        }
    }
    let mut tokenizer = Tokenizer {
        model: Bpe::new(tokens),
        added,
        starts: Default::default(),
        normalizers: Vec::new(),
        splitters: Vec::new(),
        affixes: Default::default(),
        decoding: Decoding::default(),
    };
    match model {
        "gpt2" => read_byte_level(metadata, &mut tokenizer)?,
        "llama" => read_scored(metadata, &mut tokenizer)?,
        other => {
            let message = format!("vocabularies of type `{other}` are not supported");
            let error = Error::of_kind(ErrorKind::Unsupported, message);
            return Err(error.with_hint("supported types: gpt2, llama, bert"));
        }
    }
    let adds = |key: &str, otherwise: bool| {
        get(metadata, key).and_then(MetadataValue::as_bool).unwrap_or(otherwise)
    };
    let id = |key: &str| {
        get(metadata, key).and_then(MetadataValue::as_u64).and_then(|id| u32::try_from(id).ok())
    };
    if adds("add_bos_token", model == "llama") {
        tokenizer.affixes[0].extend(id("bos_token_id"));
    }
    if adds("add_eos_token", false) {
        tokenizer.affixes[1].extend(id("eos_token_id"));
    }
    Ok(tokenizer.assemble())
}

/// WordPiece, as in BERT. Words begin with a mark, and tokens that continue them have none.
fn read_words(metadata: &Metadata, tokens: &[Arc<str>]) -> Result<Tokenizer> {
    let is_special = |token: &str| token.starts_with('[') && token.ends_with(']');
    let plain = |token: &Arc<str>| -> Arc<str> {
        match token.strip_prefix(MARK) {
            Some(word) => Arc::from(word),
            None if is_special(token) => token.clone(),
            None => Arc::from(format!("{CONTINUATION}{token}")),
        }
    };
    let name = |keys: &[&str], usual: &'static str| {
        let id = keys.iter().find_map(|key| get(metadata, key)?.as_u64());
        let token = id.and_then(|id| tokens.get(usize::try_from(id).ok()?));
        token.map_or_else(|| usual.to_owned(), |token| plain(token).to_string())
    };
    let unknown = name(&["unknown_token_id"], "[UNK]");
    let before = name(&["cls_token_id", "bos_token_id"], "[CLS]");
    let after = name(&["seperator_token_id", "eos_token_id"], "[SEP]");
    let (pad, mask) = (name(&["padding_token_id"], "[PAD]"), name(&["mask_token_id"], "[MASK]"));
    let special = [&*pad, &unknown, &before, &after, &mask];
    // llama.cpp has no setting for it.
    let forms = BertForms::new(true, true, true, true)?;
    let tokens = tokens.iter().map(plain).collect();
    bert::assemble(tokens, &special, [&before, &after], &unknown, forms)
}

/// Byte-level BPE with merges, as in GPT-2.
fn read_byte_level(metadata: &Metadata, tokenizer: &mut Tokenizer) -> Result<()> {
    let name = get(metadata, "pre").and_then(MetadataValue::as_str).unwrap_or("default");
    let Some(pre) = PRES.iter().find(|pre| pre.names.contains(&name)) else {
        let message = format!("the pre-tokenizer `{name}` is not supported");
        let known: Vec<_> = PRES.iter().flat_map(|pre| pre.names).copied().collect();
        let error = Error::of_kind(ErrorKind::Unsupported, message);
        return Err(error.with_hint(format!("supported pre-tokenizers: {}", known.join(", "))));
    };
    let Some(merges) = get(metadata, "merges").and_then(MetadataValue::as_array) else {
        fail!(Format, "the metadata has no `tokenizer.ggml.merges`");
    };
    let model = &mut tokenizer.model;
    let mut order = HashMap::with_capacity(merges.len().min(MAX_TOKENS));
    let mut joined = String::new();
    for (rank, merge) in merges.iter().enumerate() {
        // A space is a character of its own in these vocabularies, so that the first one separates.
        let pair = merge.as_str().and_then(|merge| merge.split_once(' '));
        let Some((first, second)) = pair else { fail!(Format, "merge {rank} is not a pair") };
        joined.clear();
        joined.push_str(first);
        joined.push_str(second);
        if let (Some(first), Some(second), Some(result)) =
            (model.id(first), model.id(second), model.id(&joined))
        {
            order.entry((first, second)).or_insert((rank as u32, result));
        }
    }
    model.order = Order::Merges(order);
    model.whole_pieces = pre.whole_pieces;
    if pre.nfc {
        tokenizer.normalizers.push(Normalizer::Form(UnicodeForm::Nfc));
    }
    for pattern in pre.first.iter().chain([&pre.last]) {
        let (pattern, behavior) = (Pattern::regex(pattern)?, Behavior::Isolated);
        tokenizer.splitters.push(Splitter::Pattern { pattern, behavior, invert: false });
    }
    tokenizer.splitters.push(Splitter::ByteLevel { adds_space: false, pattern: None });
    tokenizer.decoding.byte_level = true;
    Ok(())
}

/// Pairs by the scores of their results, as in SentencePiece.
fn read_scored(metadata: &Metadata, tokenizer: &mut Tokenizer) -> Result<()> {
    let model = &mut tokenizer.model;
    let Some(scores) = get(metadata, "scores").and_then(MetadataValue::as_array) else {
        fail!(Format, "the metadata has no `tokenizer.ggml.scores`");
    };
    if scores.len() != model.tokens.len() {
        let (scores, tokens) = (scores.len(), model.tokens.len());
        fail!(Format, "the numbers of tokens and scores must be equal, got {tokens} and {scores}");
    }
    let scores = scores.iter().map(|score| score.as_f64().unwrap_or(0.0) as f32).collect();
    model.order = Order::Scores(scores);
    model.find_bytes();
    let unknown = get(metadata, "unknown_token_id").and_then(MetadataValue::as_u64);
    model.unknown = unknown.and_then(|id| u32::try_from(id).ok());
    model.fuses_unknown = true;
    let has_space = get(metadata, "add_space_prefix").and_then(MetadataValue::as_bool);
    let prepends = if has_space.unwrap_or(true) { Prepends::Always } else { Prepends::Never };
    tokenizer.normalizers.push(Normalizer::Metaspace { prepends });
    tokenizer.decoding = Decoding {
        byte_level: false,
        has_marks: true,
        byte_fallback: tokenizer.model.bytes.is_some(),
        strips_first: prepends == Prepends::Always,
        ..Decoding::default()
    };
    Ok(())
}
