//! Files of tiktoken: a line for each token, with its bytes in Base64 and its rank.

use std::collections::HashMap;
use std::sync::Arc;

use coremill_io::base64;
use serde_json::Value;

use super::bpe::{Bpe, Order};
use super::bytes::of_bytes;
use super::gguf::{GPT4O, LLAMA3, QWEN2};
use super::pattern::Pattern;
use super::split::{Behavior, GPT2, Normalizer, Splitter, UnicodeForm};
use super::{AddedToken, Decoding, Tokenizer};
use crate::error::{Error, ErrorKind, Result, fail};

/// Ranks must be below this number.
const MAX_RANKS: usize = 1 << 22;

/// Numbers of tokens of known vocabularies, and how they split texts.
const KNOWN: &[(usize, &str)] = &[
    (50256, GPT2),
    (50280, GPT2),
    (100256, CL100K),
    (128_000, LLAMA3),
    (151_643, QWEN2),
    (199_998, GPT4O),
    (200_000, GPT4O),
];

const CL100K: &str = r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s";

/// Reads a file. Settings of `tokenizer_config.json` have the tokens that are no part of it; `pat_str` is the pattern that
/// splits texts, for vocabularies other than the known ones.
pub(super) fn read(text: &str, config: &Value) -> Result<Tokenizer> {
    let mut ranked: HashMap<usize, Vec<u8>> = HashMap::new();
    for (index, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let parsed = line.trim().split_once(' ').and_then(|(token, rank)| {
            let rank = rank.parse::<usize>().ok().filter(|&rank| rank < MAX_RANKS)?;
            Some((rank, base64::decode(token)?))
        });
        let Some((rank, token)) = parsed else {
            let line = index + 1;
            fail!(Format, "line {line} of the tokenizer must be a Base64 token and its rank");
        };
        ranked.insert(rank, token);
    }
    let count = ranked.len();
    // A few ranks may be left out.
    let most = ranked.keys().max().map_or(0, |&rank| rank + 1);
    if count == 0 || most > count * 2 + (1 << 10) {
        fail!(Format, "{count} tokens are too few for ranks below {most}");
    }
    let mut tokens: Vec<Arc<str>> = vec![Arc::from(""); most];
    for (rank, bytes) in &ranked {
        tokens[*rank] = Arc::from(of_bytes(bytes));
    }
    let known = KNOWN.iter().find(|(known, _)| *known == count);
    let Some(source) = config["pat_str"].as_str().or(known.map(|(_, pattern)| *pattern)) else {
        let message = format!("unknown tiktoken vocabulary of {count} tokens");
        let error = Error::of_kind(ErrorKind::Unsupported, message);
        return Err(error
            .with_hint("set `pat_str`, the pattern that splits text, in `tokenizer_config.json`"));
    };
    let mut model = Bpe::new(tokens);
    // The pair whose result has the lowest rank is merged first.
    model.order = Order::Scores((0..most).map(|rank| -(rank as f32)).collect());
    model.whole_pieces = true;
    let is_qwen = source == QWEN2;
    let normalizers = is_qwen.then_some(Normalizer::Form(UnicodeForm::Nfc)).into_iter().collect();
    let pattern = Pattern::regex(source)?;
    let splitters = vec![
        Splitter::Pattern { pattern, behavior: Behavior::Isolated, invert: false },
        Splitter::ByteLevel { adds_space: false, pattern: None },
    ];
    let decoding = Decoding { byte_level: true, ..Decoding::default() };
    let mut added = Vec::new();
    for (id, token) in config["added_tokens_decoder"].as_object().into_iter().flatten() {
        let id = id.parse::<u32>().ok().filter(|&id| (id as usize) < MAX_RANKS);
        let (Some(id), Some(content)) = (id, token["content"].as_str()) else {
            fail!(Format, "an added token of `tokenizer_config.json` is not valid");
        };
        if !content.is_empty() {
            let special = token["special"].as_bool().unwrap_or(true);
            added.push(AddedToken {
                id,
                content: content.to_owned(),
                special,
                ..AddedToken::default()
            });
        }
    }
    let affixes = Default::default();
    let starts = Default::default();
    let tokenizer = Tokenizer { model, added, starts, normalizers, splitters, affixes, decoding };
    Ok(tokenizer.assemble())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_tiktoken_files_and_rejects_invalid_ones() {
        let config = serde_json::json!({
            "pat_str": GPT2,
            "added_tokens_decoder": { "9": { "content": "<end>", "special": true } },
        });
        // The tokens `a`, `b`, `ab`, and the byte 0xff, which is not valid UTF-8.
        let tokenizer = read("YQ== 0\nYg== 1\nYWI= 2\n/w== 3\n", &config).expect("sound");
        let ids = tokenizer.encode("aab<end>", true).expect("short");
        assert_eq!(ids, [0, 2, 9]);
        assert_eq!(tokenizer.decode(&[0, 3, 2], true), "a\u{fffd}ab");
        let refused = |text: &str| read(text, &config).expect_err("refused").to_string();
        assert!(refused("YQ== 0\nno\n").contains("line 2"));
        assert!(refused("YQ== 4000000\n").contains("ranks below"));
        let error = read("YQ== 0\n", &Value::Null).expect_err("refused");
        assert!(error.to_string().contains("vocabulary of 1 tokens"));
    }
}
