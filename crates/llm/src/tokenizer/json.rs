//! `tokenizer.json`, as the library `tokenizers` has it.

use std::collections::HashMap;
use std::sync::Arc;

use coremill_io::base64;
use serde_json::{Map, Value, json};

use super::bert;
use super::bpe::{Bpe, Order};
use super::charsmap::Charsmap;
use super::forms::BertForms;
use super::pattern::Pattern;
use super::split::{
    Behavior, GPT2, Normalizer, PUNCTUATION, Prepends, Splitter, UnicodeForm, WHITE_SPACE,
};
use super::unigram::Scores;
use super::wordpiece::{CONTINUATION, MAX_CHARACTERS, WordPieces};
use super::{AddedToken, Decoding, Tokenizer};
use crate::error::{Error, ErrorKind, Result};

/// Ids must be below this number, so that a small file cannot allocate a large table.
const MAX_IDS: usize = 1 << 24;

/// Most characters of a word that a WordPiece vocabulary may accept.
const MAX_WORD: usize = 10_000;

fn invalid(what: &str) -> Error {
    Error::of_kind(ErrorKind::Format, format!("{what} of the tokenizer is not valid"))
}

fn unsupported(what: &str, kind: &str) -> Error {
    Error::of_kind(
        ErrorKind::Unsupported,
        format!("the tokenizer's {what} `{kind}` is not supported"),
    )
}

fn flag(value: &Value, key: &str) -> bool {
    value[key].as_bool().unwrap_or(false)
}

pub(super) fn read(root: &Value) -> Result<Tokenizer> {
    let mut tokenizer = Tokenizer {
        model: read_model(&root["model"])?,
        added: Vec::new(),
        starts: Default::default(),
        normalizers: Vec::new(),
        splitters: Vec::new(),
        affixes: Default::default(),
        decoding: Decoding::default(),
    };
    for token in root["added_tokens"].as_array().into_iter().flatten() {
        let id = token["id"].as_u64().filter(|&id| id < MAX_IDS as u64);
        let (Some(id), Some(content)) = (id, token["content"].as_str()) else {
            return Err(invalid("an added token"));
        };
        if content.is_empty() {
            continue;
        }
        tokenizer.added.push(AddedToken {
            id: id as u32,
            content: content.to_owned(),
            special: flag(token, "special"),
            normalized: flag(token, "normalized"),
            strips: [flag(token, "lstrip"), flag(token, "rstrip")],
            single_word: flag(token, "single_word"),
        });
    }
    read_normalizer(&root["normalizer"], &mut tokenizer.normalizers)?;
    read_splitter(&root["pre_tokenizer"], &mut tokenizer.splitters)?;
    read_affixes(&root["post_processor"], &mut tokenizer)?;
    read_decoder(&root["decoder"], &mut tokenizer.decoding)?;
    Ok(tokenizer.assemble())
}

fn read_model(model: &Value) -> Result<Bpe> {
    // Files of old versions have no type.
    match model["type"].as_str().unwrap_or("BPE") {
        "BPE" => {}
        "Unigram" => return read_unigram(model),
        "WordPiece" => return read_word_pieces(model),
        other => return Err(unsupported("model", other)),
    }
    for key in ["continuing_subword_prefix", "end_of_word_suffix"] {
        if model[key].as_str().is_some_and(|text| !text.is_empty()) {
            return Err(unsupported("setting", key));
        }
    }
    let mut bpe = Bpe::new(read_vocabulary(model)?);
    let merges = model["merges"].as_array().ok_or_else(|| invalid("the list of merges"))?;
    let mut order = HashMap::with_capacity(merges.len());
    let mut joined = String::new();
    for (rank, merge) in merges.iter().enumerate() {
        let pair = match merge {
            Value::String(text) => text.split_once(' '),
            Value::Array(pair) => match pair.as_slice() {
                [first, second] => first.as_str().zip(second.as_str()),
                _ => None,
            },
            _ => None,
        };
        let (first, second) = pair.ok_or_else(|| invalid("a merge"))?;
        joined.clear();
        joined.push_str(first);
        joined.push_str(second);
        let ids = (bpe.id(first), bpe.id(second), bpe.id(&joined));
        let (Some(first), Some(second), Some(result)) = ids else {
            return Err(invalid("a merge"));
        };
        order.entry((first, second)).or_insert((rank as u32, result));
    }
    bpe.order = Order::Merges(order);
    bpe.unknown = model["unk_token"].as_str().and_then(|token| bpe.id(token));
    bpe.fuses_unknown = flag(model, "fuse_unk");
    bpe.whole_pieces = flag(model, "ignore_merges");
    if flag(model, "byte_fallback") {
        bpe.find_bytes();
    }
    Ok(bpe)
}

/// The tokens of a vocabulary by their ids.
fn read_vocabulary(model: &Value) -> Result<Vec<Arc<str>>> {
    let vocabulary = model["vocab"].as_object().ok_or_else(|| invalid("the vocabulary"))?;
    let ids = vocabulary.values().map(|id| id.as_u64().filter(|&id| id < MAX_IDS as u64));
    let most = ids.clone().map(|id| id.map_or(MAX_IDS as u64, |id| id)).max().unwrap_or(0) as usize;
    // A few ids may be left out.
    if most >= MAX_IDS || most > vocabulary.len() * 2 + (1 << 16) {
        return Err(invalid("the vocabulary"));
    }
    let mut tokens: Vec<Arc<str>> =
        vec![Arc::from(""); if vocabulary.is_empty() { 0 } else { most + 1 }];
    for (token, id) in vocabulary.keys().zip(ids) {
        if let Some(id) = id {
            tokens[id as usize] = Arc::from(token.as_str());
        }
    }
    Ok(tokens)
}

/// A list of words and of tokens that continue them.
fn read_word_pieces(model: &Value) -> Result<Bpe> {
    let mut bpe = Bpe::new(read_vocabulary(model)?);
    let unknown = model["unk_token"].as_str().and_then(|token| bpe.id(token));
    bpe.unknown = Some(unknown.ok_or_else(|| invalid("the unknown token"))?);
    let prefix = model["continuing_subword_prefix"].as_str().unwrap_or(CONTINUATION).to_owned();
    let most = model["max_input_chars_per_word"].as_u64();
    let most = most.and_then(|most| usize::try_from(most).ok()).unwrap_or(MAX_CHARACTERS);
    // A word costs the square of its length.
    let max_characters = most.min(MAX_WORD);
    bpe.order = Order::WordPieces(WordPieces { prefix, max_characters });
    Ok(bpe)
}

/// A list of tokens with their scores.
fn read_unigram(model: &Value) -> Result<Bpe> {
    let vocabulary = model["vocab"].as_array().ok_or_else(|| invalid("the vocabulary"))?;
    let entry = |entry: &Value| -> Option<(Arc<str>, f32)> {
        let score = entry[1].as_f64()? as f32;
        Some((Arc::from(entry[0].as_str()?), Some(score).filter(|score| score.is_finite())?))
    };
    let entries: Option<Vec<_>> = vocabulary.iter().map(entry).collect();
    let entries = entries.filter(|entries| entries.len() <= MAX_IDS);
    let (tokens, mut scores): (Vec<_>, Vec<_>) =
        entries.ok_or_else(|| invalid("the vocabulary"))?.into_iter().unzip();
    let mut bpe = Bpe::new(tokens);
    let unknown = model["unk_id"].as_u64().and_then(|id| u32::try_from(id).ok());
    bpe.unknown = unknown.filter(|&id| (id as usize) < bpe.tokens.len());
    bpe.fuses_unknown = true;
    if flag(model, "byte_fallback") {
        bpe.find_bytes();
    }
    // Tokens of unknown characters and of bytes are not found in texts.
    let bytes = bpe.bytes.iter().flat_map(|bytes| bytes.iter().copied());
    for id in bytes.chain(bpe.unknown) {
        if let Some(score) = scores.get_mut(id as usize) {
            *score = f32::NAN;
        }
    }
    bpe.order = Order::Unigram(Scores::new(&bpe.tokens, scores));
    Ok(bpe)
}

/// The entries of a `Sequence`, or the value itself.
fn entries<'v>(value: &'v Value, list: &str) -> Vec<&'v Value> {
    match (value, value["type"].as_str()) {
        (Value::Null, _) => Vec::new(),
        (_, Some("Sequence")) => value[list].as_array().into_iter().flatten().collect(),
        _ => vec![value],
    }
}

fn kind(value: &Value) -> Result<&str> {
    value["type"].as_str().ok_or_else(|| invalid("a step"))
}

fn read_pattern(value: &Value) -> Result<Pattern> {
    if let Some(regex) = value["Regex"].as_str() {
        return Pattern::regex(regex);
    }
    value["String"].as_str().map(Pattern::text).ok_or_else(|| invalid("a pattern"))?
}

fn read_normalizer(value: &Value, steps: &mut Vec<Normalizer>) -> Result<()> {
    for step in entries(value, "normalizers") {
        steps.push(match kind(step)? {
            "Sequence" => {
                read_normalizer(step, steps)?;
                continue;
            }
            "NFC" => Normalizer::Form(UnicodeForm::Nfc),
            "NFD" => Normalizer::Form(UnicodeForm::Nfd),
            "NFKC" => Normalizer::Form(UnicodeForm::Nfkc),
            "NFKD" => Normalizer::Form(UnicodeForm::Nfkd),
            "Lowercase" => Normalizer::Lowercase,
            "BertNormalizer" => {
                let flag = |key: &str, usual: bool| step[key].as_bool().unwrap_or(usual);
                let lowercases = flag("lowercase", true);
                Normalizer::Bert(BertForms::new(
                    flag("clean_text", true),
                    flag("handle_chinese_chars", true),
                    flag("strip_accents", lowercases),
                    lowercases,
                )?)
            }
            "Precompiled" => {
                let bytes = step["precompiled_charsmap"].as_str().and_then(base64::decode);
                Normalizer::Charsmap(Charsmap::new(bytes.ok_or_else(|| invalid("a step"))?)?)
            }
            "Strip" => Normalizer::Strip([flag(step, "strip_left"), flag(step, "strip_right")]),
            "Prepend" => {
                let prefix = step["prepend"].as_str().ok_or_else(|| invalid("a step"))?;
                Normalizer::Prepend(prefix.to_owned())
            }
            "Replace" => {
                let content = step["content"].as_str().ok_or_else(|| invalid("a step"))?;
                Normalizer::Replace(read_pattern(&step["pattern"])?, content.to_owned())
            }
            other => return Err(unsupported("normalizer", other)),
        });
    }
    Ok(())
}

fn read_splitter(value: &Value, steps: &mut Vec<Splitter>) -> Result<()> {
    let pattern = |source: &str, behavior| -> Result<Splitter> {
        Ok(Splitter::Pattern { pattern: Pattern::regex(source)?, behavior, invert: false })
    };
    for step in entries(value, "pretokenizers") {
        steps.push(match kind(step)? {
            "Sequence" => {
                read_splitter(step, steps)?;
                continue;
            }
            "ByteLevel" => {
                let splits = step["use_regex"].as_bool().unwrap_or(true);
                let pattern = splits.then(|| Pattern::regex(GPT2)).transpose()?;
                Splitter::ByteLevel { adds_space: flag(step, "add_prefix_space"), pattern }
            }
            "Split" => Splitter::Pattern {
                pattern: read_pattern(&step["pattern"])?,
                behavior: read_behavior(&step["behavior"])?,
                invert: flag(step, "invert"),
            },
            "Digits" => match flag(step, "individual_digits") {
                true => pattern(DIGIT, Behavior::Isolated)?,
                false => pattern(r"\p{N}+", Behavior::Isolated)?,
            },
            "Punctuation" => {
                let behavior = match &step["behavior"] {
                    Value::Null => Behavior::Isolated,
                    behavior => read_behavior(behavior)?,
                };
                pattern(PUNCTUATION, behavior)?
            }
            "WhitespaceSplit" => pattern(WHITE_SPACE, Behavior::Removed)?,
            "BertPreTokenizer" => {
                steps.extend(bert::splitters()?);
                continue;
            }
            "Metaspace" => Splitter::Metaspace {
                prepends: read_prepends(step)?,
                splits: step["split"].as_bool().unwrap_or(true),
            },
            other => return Err(unsupported("pre-tokenizer", other)),
        });
    }
    Ok(())
}

fn read_behavior(value: &Value) -> Result<Behavior> {
    Ok(match value.as_str() {
        Some("Removed") => Behavior::Removed,
        Some("Isolated") => Behavior::Isolated,
        Some("MergedWithPrevious") => Behavior::MergedWithPrevious,
        Some("MergedWithNext") => Behavior::MergedWithNext,
        Some("Contiguous") => Behavior::Contiguous,
        _ => return Err(invalid("a behavior")),
    })
}

fn read_prepends(step: &Value) -> Result<Prepends> {
    if step["replacement"].as_str().is_some_and(|mark| mark != "\u{2581}") {
        return Err(unsupported("setting", "replacement"));
    }
    Ok(match step["prepend_scheme"].as_str() {
        Some("always") => Prepends::Always,
        Some("first") => Prepends::First,
        Some("never") => Prepends::Never,
        Some(_) => return Err(invalid("a step")),
        None if step["add_prefix_space"].as_bool() == Some(false) => Prepends::Never,
        None => Prepends::Always,
    })
}

fn read_affixes(value: &Value, tokenizer: &mut Tokenizer) -> Result<()> {
    for step in entries(value, "processors") {
        match kind(step)? {
            "Sequence" => read_affixes(step, tokenizer)?,
            // It corrects offsets alone.
            "ByteLevel" => {}
            // Also a token between the texts of a pair.
            "BertProcessing" | "RobertaProcessing" => {
                let id = |key: &str| step[key][1].as_u64().and_then(|id| u32::try_from(id).ok());
                let (Some(before), Some(after)) = (id("cls"), id("sep")) else {
                    return Err(invalid("a step"));
                };
                tokenizer.affixes[0].push(before);
                tokenizer.affixes[1].push(after);
            }
            "TemplateProcessing" => {
                let mut place = 0;
                for part in step["single"].as_array().into_iter().flatten() {
                    let Some(name) = part["SpecialToken"]["id"].as_str() else {
                        place = 1;
                        continue;
                    };
                    let ids = step["special_tokens"][name]["ids"].as_array();
                    let ids =
                        ids.map(|ids| ids.iter().filter_map(Value::as_u64).collect::<Vec<_>>());
                    let ids = ids.unwrap_or_default().into_iter();
                    tokenizer.affixes[place].extend(ids.filter_map(|id| u32::try_from(id).ok()));
                }
            }
            other => return Err(unsupported("post-processor", other)),
        }
    }
    Ok(())
}

fn read_decoder(value: &Value, decoding: &mut Decoding) -> Result<()> {
    for step in entries(value, "decoders") {
        match kind(step)? {
            "Sequence" => read_decoder(step, decoding)?,
            "ByteLevel" => decoding.byte_level = true,
            "ByteFallback" => decoding.byte_fallback = true,
            "Fuse" => {}
            "WordPiece" => {
                if step["prefix"].as_str().is_some_and(|prefix| prefix != CONTINUATION) {
                    return Err(unsupported("setting", "prefix"));
                }
                decoding.word_pieces = true;
                decoding.cleans = step["cleanup"].as_bool().unwrap_or(true);
            }
            "Metaspace" => {
                decoding.has_marks = true;
                decoding.strips_first = read_prepends(step)? != Prepends::Never;
            }
            "Replace" => {
                let (from, to) = (step["pattern"]["String"].as_str(), step["content"].as_str());
                if (from, to) != (Some("\u{2581}"), Some(" ")) {
                    return Err(unsupported("decoder", "Replace"));
                }
                decoding.has_marks = true;
            }
            "Strip" => {
                if step["content"].as_str() != Some(" ") || step["stop"].as_u64().unwrap_or(0) != 0
                {
                    return Err(unsupported("decoder", "Strip"));
                }
                decoding.strips_first = step["start"].as_u64().unwrap_or(0) > 0;
            }
            other => return Err(unsupported("decoder", other)),
        }
    }
    Ok(())
}

pub(super) fn write(tokenizer: &Tokenizer) -> Value {
    let model = &tokenizer.model;
    let added: Vec<Value> = tokenizer
        .added
        .iter()
        .map(|token| {
            json!({
                "id": token.id,
                "content": token.content,
                "single_word": token.single_word,
                "lstrip": token.strips[0],
                "rstrip": token.strips[1],
                "normalized": token.normalized,
                "special": token.special,
            })
        })
        .collect();
    json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": added,
        "normalizer": sequence("normalizers", tokenizer.normalizers.iter().flat_map(write_normalizer)),
        "pre_tokenizer": sequence("pretokenizers", tokenizer.splitters.iter().map(write_splitter)),
        "post_processor": write_affixes(tokenizer),
        "decoder": sequence("decoders", write_decoder(tokenizer.decoding)),
        "model": write_model(model),
    })
}

fn write_model(model: &Bpe) -> Value {
    if let Order::Unigram(scores) = &model.order {
        let score = |id: usize| scores.scores.get(id).copied().filter(|score| score.is_finite());
        let entries = model.tokens.iter().enumerate();
        let entries = entries.map(|(id, token)| json!([&**token, score(id).unwrap_or(0.0)]));
        return json!({
            "type": "Unigram",
            "unk_id": model.unknown,
            "vocab": entries.collect::<Vec<_>>(),
            "byte_fallback": model.bytes.is_some(),
        });
    }
    let mut vocabulary = Map::with_capacity(model.tokens.len());
    for (id, token) in model.tokens.iter().enumerate() {
        if model.id(token) == Some(id as u32) {
            vocabulary.insert(token.to_string(), json!(id));
        }
    }
    let token = |id: u32| model.tokens.get(id as usize).map_or("", |token| &**token);
    if let Order::WordPieces(pieces) = &model.order {
        return json!({
            "type": "WordPiece",
            "unk_token": model.unknown.map(token),
            "continuing_subword_prefix": pieces.prefix,
            "max_input_chars_per_word": pieces.max_characters,
            "vocab": vocabulary,
        });
    }
    let merges: Vec<Value> = model
        .merges()
        .into_iter()
        .map(|(first, second)| json!([token(first), token(second)]))
        .collect();
    json!({
        "type": "BPE",
        "dropout": null,
        "unk_token": model.unknown.map(token),
        "continuing_subword_prefix": null,
        "end_of_word_suffix": null,
        "fuse_unk": model.fuses_unknown,
        "byte_fallback": model.bytes.is_some(),
        "ignore_merges": model.whole_pieces,
        "vocab": vocabulary,
        "merges": merges,
    })
}

fn sequence(list: &str, steps: impl IntoIterator<Item = Value>) -> Value {
    let steps: Vec<Value> = steps.into_iter().collect();
    if steps.is_empty() {
        return Value::Null;
    }
    json!({ "type": "Sequence", list: steps })
}

/// Pattern of a digit, and of other characters of numbers.
const DIGIT: &str = r"\p{N}";

fn write_pattern(pattern: &Pattern) -> Value {
    let kind = if pattern.is_regex { "Regex" } else { "String" };
    json!({ kind: pattern.source })
}

fn write_normalizer(normalizer: &Normalizer) -> Vec<Value> {
    let replace = json!({ "type": "Replace", "pattern": { "String": " " }, "content": "\u{2581}" });
    vec![match normalizer {
        Normalizer::Form(UnicodeForm::Nfc) => json!({ "type": "NFC" }),
        Normalizer::Form(UnicodeForm::Nfd) => json!({ "type": "NFD" }),
        Normalizer::Form(UnicodeForm::Nfkc) => json!({ "type": "NFKC" }),
        Normalizer::Form(UnicodeForm::Nfkd) => json!({ "type": "NFKD" }),
        Normalizer::Lowercase => json!({ "type": "Lowercase" }),
        Normalizer::Bert(forms) => forms.to_json(),
        Normalizer::Charsmap(charsmap) => {
            let text = base64::encode(&charsmap.bytes);
            json!({ "type": "Precompiled", "precompiled_charsmap": text })
        }
        Normalizer::Strip([start, end]) => {
            json!({ "type": "Strip", "strip_left": start, "strip_right": end })
        }
        Normalizer::Prepend(prefix) => json!({ "type": "Prepend", "prepend": prefix }),
        Normalizer::Replace(pattern, content) => {
            json!({ "type": "Replace", "pattern": write_pattern(pattern), "content": content })
        }
        Normalizer::Metaspace { prepends: Prepends::Never } => replace,
        Normalizer::Metaspace { .. } => {
            return vec![json!({ "type": "Prepend", "prepend": "\u{2581}" }), replace];
        }
    }]
}

fn write_splitter(splitter: &Splitter) -> Value {
    match splitter {
        // ExecuTorch's tokenizer drops text between the matches of a pattern, but knows digits.
        Splitter::Pattern { pattern, behavior: Behavior::Isolated, invert: false }
            if pattern.is_regex && pattern.source == DIGIT =>
        {
            json!({ "type": "Digits", "individual_digits": true })
        }
        Splitter::Pattern { pattern, behavior, invert } => json!({
            "type": "Split",
            "pattern": write_pattern(pattern),
            "behavior": format!("{behavior:?}"),
            "invert": invert,
        }),
        Splitter::ByteLevel { adds_space, pattern } => json!({
            "type": "ByteLevel",
            "add_prefix_space": adds_space,
            "trim_offsets": true,
            "use_regex": pattern.is_some(),
        }),
        Splitter::Metaspace { prepends, splits } => json!({
            "type": "Metaspace",
            "replacement": "\u{2581}",
            "prepend_scheme": format!("{prepends:?}").to_lowercase(),
            "split": splits,
        }),
    }
}

fn write_affixes(tokenizer: &Tokenizer) -> Value {
    let [before, after] = &tokenizer.affixes;
    if before.is_empty() && after.is_empty() {
        return Value::Null;
    }
    let name = |id: &u32| tokenizer.token(*id).unwrap_or_default().to_owned();
    let special = |id: &u32| json!({ "SpecialToken": { "id": name(id), "type_id": 0 } });
    let sequence = |id: &str, type_id: u32| json!({ "Sequence": { "id": id, "type_id": type_id } });
    let around = |inner: Vec<Value>| -> Vec<Value> {
        before.iter().map(special).chain(inner).chain(after.iter().map(special)).collect()
    };
    let tokens: Map<String, Value> = before
        .iter()
        .chain(after)
        .map(|id| (name(id), json!({ "id": name(id), "ids": [id], "tokens": [name(id)] })))
        .collect();
    json!({
        "type": "TemplateProcessing",
        "single": around(vec![sequence("A", 0)]),
        "pair": around(vec![sequence("A", 0), sequence("B", 1)]),
        "special_tokens": tokens,
    })
}

fn write_decoder(decoding: Decoding) -> Vec<Value> {
    if decoding.byte_level {
        let steps = json!({ "type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true });
        return vec![steps];
    }
    if decoding.word_pieces {
        let (prefix, cleanup) = (CONTINUATION, decoding.cleans);
        return vec![json!({ "type": "WordPiece", "prefix": prefix, "cleanup": cleanup })];
    }
    let mut steps = Vec::new();
    if decoding.has_marks {
        steps.push(
            json!({ "type": "Replace", "pattern": { "String": "\u{2581}" }, "content": " " }),
        );
    }
    if decoding.byte_fallback {
        steps.push(json!({ "type": "ByteFallback" }));
    }
    steps.push(json!({ "type": "Fuse" }));
    if decoding.strips_first {
        steps.push(json!({ "type": "Strip", "content": " ", "start": 1, "stop": 0 }));
    }
    steps
}

#[cfg(test)]
mod tests {
    use super::*;

    fn small() -> Value {
        json!({
            "added_tokens": [
                { "id": 5, "content": "<s>", "special": true, "normalized": false },
                { "id": 6, "content": "<tool>", "special": false, "normalized": false, "rstrip": true },
            ],
            "normalizer": null,
            "pre_tokenizer": { "type": "ByteLevel", "add_prefix_space": false, "use_regex": true },
            "post_processor": {
                "type": "TemplateProcessing",
                "single": [{ "SpecialToken": { "id": "<s>", "type_id": 0 } }, { "Sequence": { "id": "A", "type_id": 0 } }],
                "special_tokens": { "<s>": { "id": "<s>", "ids": [5], "tokens": ["<s>"] } },
            },
            "decoder": { "type": "ByteLevel" },
            "model": {
                "type": "BPE",
                "vocab": { "a": 0, "b": 1, "\u{120}": 2, "ab": 3, "\u{120}ab": 4 },
                "merges": ["a b", ["\u{120}", "ab"]],
            },
        })
    }

    #[test]
    fn round_trips_individual_digits_pre_tokenizer() {
        let mut value = small();
        let digits = json!({ "type": "Digits", "individual_digits": true });
        value["pre_tokenizer"] = json!({ "type": "Sequence", "pretokenizers": [
            digits, { "type": "ByteLevel", "add_prefix_space": false, "use_regex": false },
        ] });
        let written = write(&read(&value).expect("sound"));
        assert_eq!(written["pre_tokenizer"]["pretokenizers"][0], digits);
    }

    #[test]
    fn encodes_and_decodes_byte_level_bpe() {
        let tokenizer = read(&small()).expect("sound");
        let ids = tokenizer.encode("ab ab<tool>  ab", true).expect("short");
        assert_eq!(ids, [5, 3, 4, 6, 3]);
        assert_eq!(tokenizer.decode(&ids, true), "ab ab<tool>ab");
        assert_eq!(tokenizer.decode(&ids, false), "<s>ab ab<tool>ab");
    }

    #[test]
    fn byte_fallback_needs_every_byte_of_a_character() {
        let mut value = small();
        value["pre_tokenizer"] = Value::Null;
        value["model"] = json!({
            "type": "BPE",
            "byte_fallback": true,
            "unk_token": "<unk>",
            "vocab": { "a": 0, "<unk>": 1, "<0xC3>": 2, "<0xA9>": 3 },
            "merges": [],
        });
        let tokenizer = read(&value).expect("sound");
        assert_eq!(tokenizer.encode("a\u{e9}\u{e8}a", false).expect("short"), [0, 2, 3, 1, 0]);
    }

    #[test]
    fn added_token_of_metaspace_marks_decodes_to_spaces() {
        let mut value = small();
        value["added_tokens"] = json!([{ "id": 5, "content": "\u{2581}\u{2581}" }]);
        value["pre_tokenizer"] = Value::Null;
        value["normalizer"] =
            json!({ "type": "Replace", "pattern": { "String": " " }, "content": "\u{2581}" });
        value["decoder"] =
            json!({ "type": "Replace", "pattern": { "String": "\u{2581}" }, "content": " " });
        let tokenizer = read(&value).expect("sound");
        let ids = tokenizer.encode("\u{2581}\u{2581}ab", false).expect("short");
        assert_eq!(
            (ids.as_slice(), tokenizer.decode(&ids, true)),
            (&[5, 3][..], "  ab".to_owned())
        );
    }

    #[test]
    fn bpe_tokenizer_round_trips_through_json() {
        let tokenizer = read(&small()).expect("sound");
        let again = read(&write(&tokenizer)).expect("the written JSON");
        for text in ["", "ab", " ab ab", "<s>a<tool>b", "bab \u{e9}"] {
            let [expected, found] =
                [&tokenizer, &again].map(|it| it.encode(text, true).expect("short"));
            assert_eq!(found, expected, "{text}");
        }
    }

    #[test]
    fn unigram_vocabulary_round_trips_through_json() {
        let mut value = small();
        value["pre_tokenizer"] = json!({ "type": "Metaspace", "prepend_scheme": "always" });
        value["model"] = json!({
            "type": "Unigram",
            "unk_id": 0,
            "vocab": [["<unk>", 0.0], ["\u{2581}", -2.0], ["a", -1.0], ["b", -1.5], ["\u{2581}ab", -2.5]],
        });
        let mut infinite = value.clone();
        infinite["model"]["vocab"][2][1] = json!(-1e300);
        assert!(read(&infinite).is_err(), "a score that overflows f32 must be rejected");
        let tokenizer = read(&value).expect("sound");
        let again = read(&write(&tokenizer)).expect("the written JSON");
        for it in [tokenizer, again] {
            assert_eq!(it.encode("ab bxx<tool>a", false).expect("short"), [4, 1, 3, 0, 6, 1, 2]);
        }
    }

    #[test]
    fn rejects_unsupported_types_and_huge_token_ids() {
        let refusal = |key: &str, value: Value| {
            let mut changed = small();
            changed[key] = value;
            read(&changed).expect_err("refused").to_string()
        };
        assert!(
            refusal("normalizer", json!({ "type": "ByteLevel" }))
                .contains("normalizer `ByteLevel`")
        );
        assert!(refusal("model", json!({ "type": "WordLevel" })).contains("model `WordLevel`"));
        assert!(refusal("model", json!({ "vocab": { "a": 1u64 << 40 } })).contains("vocabulary"));
        let huge = json!({ "vocab": { "a": 16_000_000 }, "merges": [] });
        assert!(refusal("model", huge).contains("vocabulary"));
    }
}
