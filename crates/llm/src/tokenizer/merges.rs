//! Vocabularies of GPT-2's kind in two files: `vocab.json` has the tokens, `merges.txt` the pairs that are merged, the first ones
//! first. `tokenizer_config.json` names the class of transformers, which has the other steps.

use std::path::Path;

use serde_json::{Map, Value, json};

use super::Tokenizer;
use super::gguf::QWEN2;
use super::json;
use crate::error::{Error, ErrorKind, Result, fail};
use crate::source::{read_json, read_text};

/// Names of the files.
pub(super) const VOCABULARY: &str = "vocab.json";
pub(super) const MERGES: &str = "merges.txt";

/// Steps of a class of transformers.
struct Class {
    name: &'static str,
    /// Types of models in `config.json` whose tokenizers have this class if `tokenizer_config.json` names none.
    models: &'static [&'static str],
    /// Usual special tokens, by their keys in `tokenizer_config.json`.
    special: &'static [(&'static str, &'static str)],
    kind: Kind,
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Gpt2,
    Qwen2,
    Roberta,
    Whisper,
}

const END: &str = "<|endoftext|>";
const GPT2_SPECIAL: &[(&str, &str)] = &[("bos_token", END), ("eos_token", END), ("unk_token", END)];

const CLASSES: &[Class] = &[
    Class { name: "GPT2Tokenizer", models: &["gpt2"], special: GPT2_SPECIAL, kind: Kind::Gpt2 },
    Class {
        name: "Qwen2Tokenizer",
        models: &["qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "qwen3_next"],
        special: &[("eos_token", END), ("unk_token", END), ("pad_token", END)],
        kind: Kind::Qwen2,
    },
    Class {
        name: "RobertaTokenizer",
        models: &["roberta"],
        special: &[
            ("bos_token", "<s>"),
            ("eos_token", "</s>"),
            ("sep_token", "</s>"),
            ("cls_token", "<s>"),
            ("unk_token", "<unk>"),
            ("pad_token", "<pad>"),
            ("mask_token", "<mask>"),
        ],
        kind: Kind::Roberta,
    },
    Class {
        name: "WhisperTokenizer",
        models: &["whisper"],
        special: GPT2_SPECIAL,
        kind: Kind::Whisper,
    },
];

/// Keys of special tokens, in the order in which tokens that the vocabulary lacks get ids.
const KEYS: [&str; 7] =
    ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];

/// Reads the files of a folder.
pub(super) fn read(folder: &Path) -> Result<Tokenizer> {
    for (name, other) in [(VOCABULARY, MERGES), (MERGES, VOCABULARY)] {
        if !folder.join(name).is_file() {
            let message = format!("{} has `{other}`, but no `{name}`", folder.display());
            let error = Error::of_kind(ErrorKind::File, message);
            return Err(error.with_hint("a vocabulary needs both, or `tokenizer.json`"));
        }
    }
    let optional = |name: &str| {
        let path = folder.join(name);
        if path.is_file() { read_json(&path) } else { Ok(Value::Null) }
    };
    let mut config = optional("tokenizer_config.json")?;
    // Earlier versions of transformers wrote special tokens here.
    if let (Value::Object(config), Value::Object(special)) =
        (&mut config, optional("special_tokens_map.json")?)
    {
        for (key, token) in special {
            config.entry(key).or_insert(token);
        }
    }
    let class = class_of(&config, &optional("config.json")?)?;
    let path = folder.join(VOCABULARY);
    let vocabulary = read_json(&path)?;
    let merges = read_text(&folder.join(MERGES))?;
    let files = Files { vocabulary, merges: &merges, added: optional("added_tokens.json")? };
    assemble(files, &config, class).map_err(|error| error.within(&path))
}

/// The class that the settings name.
fn class_of(config: &Value, model: &Value) -> Result<&'static Class> {
    let name = config["tokenizer_class"].as_str().map(|name| name.trim_end_matches("Fast"));
    let kind = model["model_type"].as_str();
    let found = CLASSES.iter().find(|class| match (name, kind) {
        (Some(name), _) => class.name == name,
        (None, Some(kind)) => class.models.contains(&kind),
        (None, None) => false,
    });
    if let Some(class) = found {
        return Ok(class);
    }
    let known: Vec<String> = CLASSES.iter().map(|class| format!("`{}`", class.name)).collect();
    let message = match name {
        Some(name) => format!(
            "the tokenizer class `{name}` is not supported for `{VOCABULARY}` and `{MERGES}`"
        ),
        None => format!(
            "`{VOCABULARY}` and `{MERGES}` require `tokenizer_class` in `tokenizer_config.json`"
        ),
    };
    let hint = format!(
        "supported classes: {}; or save the tokenizer as `tokenizer.json`",
        known.join(", ")
    );
    Err(Error::of_kind(ErrorKind::Unsupported, message).with_hint(hint))
}

/// Contents of the files.
struct Files<'f> {
    vocabulary: Value,
    merges: &'f str,
    /// Ids of tokens that are no part of the vocabulary, if `tokenizer_config.json` does not list them.
    added: Value,
}

/// The text of a token, which may have settings.
fn content(token: &Value) -> Option<&str> {
    token.as_str().or(token["content"].as_str())
}

fn assemble(files: Files<'_>, config: &Value, class: &Class) -> Result<Tokenizer> {
    let Value::Object(ids) = &files.vocabulary else {
        fail!(Format, "a vocabulary must map each token to an id")
    };
    let mut added = AddedTokens { ids, list: Vec::new() };
    for (id, token) in config["added_tokens_decoder"].as_object().into_iter().flatten() {
        let (Ok(id), Some(_)) = (id.parse::<u64>(), content(token)) else {
            fail!(Format, "an added token of `tokenizer_config.json` is not valid");
        };
        added.push(token, Some(id), false);
    }
    for (token, id) in files.added.as_object().into_iter().flatten() {
        added.push(&json!(token), id.as_u64(), false);
    }
    let mut special = Map::new();
    for key in KEYS {
        let usual = class.special.iter().find(|(known, _)| *known == key);
        let token = match (&config[key], usual) {
            (Value::Null, Some((_, usual))) if config.get(key).is_none() => json!(usual),
            (token, _) => token.clone(),
        };
        if let Some(text) = content(&token) {
            added.push(&token, None, true);
            special.insert(key.to_owned(), json!([text, added.id(text)]));
        }
    }
    for token in config["additional_special_tokens"].as_array().into_iter().flatten() {
        added.push(token, None, true);
    }
    let adds_space = config["add_prefix_space"].as_bool().unwrap_or(false);
    let bytes = |splits: bool| json!({ "type": "ByteLevel", "add_prefix_space": adds_space, "use_regex": splits });
    let (normalizer, splitter) = match class.kind {
        Kind::Qwen2 => {
            let split =
                json!({ "type": "Split", "pattern": { "Regex": QWEN2 }, "behavior": "Isolated" });
            let steps = json!({ "type": "Sequence", "pretokenizers": [split, bytes(false)] });
            (json!({ "type": "NFC" }), steps)
        }
        Kind::Gpt2 | Kind::Roberta | Kind::Whisper => (Value::Null, bytes(true)),
    };
    let ends = match class.kind {
        Kind::Roberta => {
            json!({ "type": "RobertaProcessing", "cls": special["cls_token"], "sep": special["sep_token"] })
        }
        Kind::Whisper => {
            let token = |text: &str| Some((text.to_owned(), added.id(text)?));
            let before = ["<|startoftranscript|>", "<|notimestamps|>"].map(token);
            template(before.into_iter().flatten(), special_token(&special, "eos_token"))
        }
        Kind::Gpt2 | Kind::Qwen2 => {
            let token = |setting: &str, key: &str| {
                let is_added = config[setting].as_bool().unwrap_or(false);
                special_token(&special, key).filter(|_| is_added)
            };
            let before = token("add_bos_token", "bos_token");
            template(before, token("add_eos_token", "eos_token"))
        }
    };
    // Lines of comments, and empty lines at the end.
    let merges = files
        .merges
        .lines()
        .filter(|line| !line.starts_with("#version") && !line.trim().is_empty());
    let merges: Vec<&str> = merges.map(str::trim_end).collect();
    json::read(&json!({
        "added_tokens": added.list,
        "normalizer": normalizer,
        "pre_tokenizer": splitter,
        "post_processor": ends,
        "decoder": { "type": "ByteLevel" },
        "model": { "type": "BPE", "vocab": files.vocabulary, "merges": merges },
    }))
}

/// A special token and its id.
fn special_token(special: &Map<String, Value>, key: &str) -> Option<(String, u64)> {
    let token = special.get(key)?;
    Some((token[0].as_str()?.to_owned(), token[1].as_u64()?))
}

/// The step that adds tokens to the ends of a text.
fn template(
    before: impl IntoIterator<Item = (String, u64)>,
    after: impl IntoIterator<Item = (String, u64)>,
) -> Value {
    let mut tokens = Map::new();
    let mut part = |(token, id): (String, u64)| {
        let part = json!({ "SpecialToken": { "id": token } });
        tokens.insert(token, json!({ "ids": [id] }));
        part
    };
    let mut parts: Vec<Value> = before.into_iter().map(&mut part).collect();
    parts.push(json!({ "Sequence": { "id": "A" } }));
    parts.extend(after.into_iter().map(&mut part));
    json!({ "type": "TemplateProcessing", "single": parts, "special_tokens": tokens })
}

/// Tokens that are found in the text itself.
struct AddedTokens<'v> {
    /// Ids of the vocabulary.
    ids: &'v Map<String, Value>,
    /// As in `tokenizer.json`.
    list: Vec<Value>,
}

impl AddedTokens<'_> {
    /// The id of a token, if it has one.
    fn id(&self, token: &str) -> Option<u64> {
        let added = self.list.iter().find(|added| added["content"] == token);
        added.map(|added| &added["id"]).or_else(|| self.ids.get(token)).and_then(Value::as_u64)
    }

    /// Adds a token with its settings. Without an id it has the one of the vocabulary, or the next one.
    fn push(&mut self, token: &Value, id: Option<u64>, special: bool) {
        let Some(content) = content(token) else { return };
        if let Some(known) = self.list.iter_mut().find(|known| known["content"] == content) {
            known["special"] = json!(special || known["special"] == true);
            return;
        }
        let next = || {
            let used = self.ids.values().chain(self.list.iter().map(|added| &added["id"]));
            used.filter_map(Value::as_u64).max().map_or(0, |most| most.saturating_add(1))
        };
        let id = id.or_else(|| self.id(content)).unwrap_or_else(next);
        let flag = |key: &str| token[key].as_bool().unwrap_or(false);
        self.list.push(json!({
            "id": id,
            "content": content,
            "special": special || flag("special"),
            "normalized": flag("normalized"),
            "lstrip": flag("lstrip"),
            "rstrip": flag("rstrip"),
            "single_word": flag("single_word"),
        }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(merges: &str) -> Files<'_> {
        let vocabulary =
            json!({ "a": 0, "b": 1, "\u{120}": 2, "ab": 3, "\u{120}ab": 4, "<|endoftext|>": 5 });
        Files { vocabulary, merges, added: json!({ "<tool>": 7 }) }
    }

    const TEXT: &str = "#version: 0.2\na b\n\u{120} ab\n";

    #[test]
    fn applies_tokenizer_class_settings_when_encoding() {
        let encode = |config: Value, text: &str| {
            let class = class_of(&config, &Value::Null).expect("known");
            let tokenizer = assemble(files(TEXT), &config, class).expect("sound");
            tokenizer.encode(text, true).expect("short")
        };
        let gpt2 = json!({ "tokenizer_class": "GPT2TokenizerFast", "add_bos_token": true });
        assert_eq!(encode(gpt2, "ab ab<tool><|endoftext|>"), [5, 3, 4, 7, 5]);
        let spaced = json!({ "tokenizer_class": "GPT2Tokenizer", "add_prefix_space": true });
        assert_eq!(encode(spaced, "ab"), [4]);
        let roberta = json!({ "tokenizer_class": "RobertaTokenizer", "mask_token": { "content": "<m>", "lstrip": true } });
        // Tokens that the vocabulary lacks get the next ids.
        assert_eq!(encode(roberta, "a  <m>b"), [8, 0, 12, 1, 9]);
    }

    #[test]
    fn infers_tokenizer_class_from_model_type() {
        let of = |model: &str| class_of(&Value::Null, &json!({ "model_type": model }));
        assert!(of("qwen2").is_ok_and(|class| class.kind == Kind::Qwen2));
        let error = of("llama").err().expect("an ambiguous tokenizer class");
        assert!(error.to_string().contains("require `tokenizer_class`"), "{error}");
        let error = class_of(&json!({ "tokenizer_class": "CLIPTokenizer" }), &Value::Null);
        assert!(error.err().is_some_and(|error| error.to_string().contains("`CLIPTokenizer`")));
    }

    #[test]
    fn rejects_merges_of_unknown_tokens() {
        let config = json!({ "tokenizer_class": "GPT2Tokenizer" });
        let read = |merges| assemble(files(merges), &config, &CLASSES[0]).map(|_| ());
        assert!(read("a b\n").is_ok());
        assert!(read("a c\n").is_err());
        assert!(read("ab\n").is_err());
    }
}
