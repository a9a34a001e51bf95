//! Vocabularies of BERT: `vocab.txt`, and the steps that belong to it.

use std::sync::Arc;

use serde_json::Value;

use super::bpe::{Bpe, Order};
use super::forms::BertForms;
use super::pattern::Pattern;
use super::split::{Behavior, Normalizer, PUNCTUATION, Splitter, WHITE_SPACE};
use super::wordpiece::{CONTINUATION, MAX_CHARACTERS, WordPieces};
use super::{AddedToken, Decoding, Tokenizer};
use crate::error::{Result, fail};

/// Most tokens of a vocabulary.
const MAX_TOKENS: usize = 1 << 22;

/// Makes a tokenizer with BERT's steps. `forms` are its normal forms.
pub(super) fn assemble(
    tokens: Vec<Arc<str>>,
    special: &[&str],
    ends: [&str; 2],
    unknown: &str,
    forms: BertForms,
) -> Result<Tokenizer> {
    let mut model = Bpe::new(tokens);
    let max_characters = MAX_CHARACTERS;
    model.order = Order::WordPieces(WordPieces { prefix: CONTINUATION.to_owned(), max_characters });
    for token in [unknown, ends[0], ends[1]] {
        if model.id(token).is_none() {
            fail!(Format, "the vocabulary has no token `{token}`");
        }
    }
    model.unknown = model.id(unknown);
    let added = special.iter().filter_map(|&content| {
        let (id, content) = (model.id(content)?, content.to_owned());
        Some(AddedToken { id, content, special: true, ..AddedToken::default() })
    });
    let added = added.collect();
    let affixes = ends.map(|token| model.id(token).into_iter().collect());
    let (starts, normalizers) = (Default::default(), vec![Normalizer::Bert(forms)]);
    let tokenizer = Tokenizer {
        model,
        added,
        starts,
        normalizers,
        splitters: splitters()?,
        affixes,
        decoding: Decoding { word_pieces: true, cleans: true, ..Decoding::default() },
    };
    Ok(tokenizer.assemble())
}

/// Division of texts into words and punctuation.
pub(super) fn splitters() -> Result<Vec<Splitter>> {
    let pattern = |source: &str, behavior| -> Result<Splitter> {
        Ok(Splitter::Pattern { pattern: Pattern::regex(source)?, behavior, invert: false })
    };
    Ok(vec![pattern(WHITE_SPACE, Behavior::Removed)?, pattern(PUNCTUATION, Behavior::Isolated)?])
}

/// Reads a `vocab.txt`, which has a token on each line, and the settings of `tokenizer_config.json`.
pub(super) fn read(text: &str, config: &Value) -> Result<Tokenizer> {
    let lines = text.strip_suffix('\n').unwrap_or(text).split('\n');
    let tokens: Vec<Arc<str>> =
        lines.take(MAX_TOKENS + 1).map(|line| Arc::from(line.trim_end_matches('\r'))).collect();
    if tokens.len() > MAX_TOKENS {
        fail!(Format, "a vocabulary must have at most {MAX_TOKENS} tokens");
    }
    let name = |key: &str, usual: &'static str| {
        let value = &config[key];
        value.as_str().or(value["content"].as_str()).unwrap_or(usual).to_owned()
    };
    let unknown = name("unk_token", "[UNK]");
    let [before, after] = [name("cls_token", "[CLS]"), name("sep_token", "[SEP]")];
    let [pad, mask] = [name("pad_token", "[PAD]"), name("mask_token", "[MASK]")];
    let special = [&*pad, &unknown, &before, &after, &mask];
    let flag = |key: &str, usual: bool| config[key].as_bool().unwrap_or(usual);
    let lowercases = flag("do_lower_case", true);
    let strips_accents = flag("strip_accents", lowercases);
    let chinese = flag("tokenize_chinese_chars", true);
    let forms = BertForms::new(true, chinese, strips_accents, lowercases)?;
    assemble(tokens, &special, [&before, &after], &unknown, forms)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const VOCABULARY: &str =
        "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nun\n##aff\n##able\n,\nwant\n##ed\n中\nσ\n";

    #[test]
    fn encodes_and_decodes_bert_wordpieces() {
        let tokenizer = read(VOCABULARY, &Value::Null).expect("sound");
        let encode = |text: &str| tokenizer.encode(text, true).expect("short");
        assert_eq!(encode("Unaffable,  WANTED"), [2, 5, 6, 7, 8, 9, 10, 3]);
        assert_eq!(encode("ünàffable中中Σ"), [2, 5, 6, 7, 11, 11, 12, 3]);
        assert_eq!(encode("unz want"), [2, 1, 9, 3]);
        assert_eq!(encode(&"un".repeat(51)), [2, 1, 3]);
        assert_eq!(encode("[MASK]\u{0}\u{200b}un"), [2, 4, 5, 3]);
        assert_eq!(tokenizer.decode(&[2, 5, 6, 7, 8, 9, 10, 3], true), "unaffable, wanted");
        assert!(read("a\nb\n", &Value::Null).is_err());
    }

    #[test]
    fn bert_vocabulary_round_trips_through_tokenizer_json() {
        let config = json!({ "do_lower_case": false });
        let tokenizer = read(VOCABULARY, &config).expect("sound");
        let again = Tokenizer::of_json(&tokenizer.to_json()).expect("the written JSON");
        for text in ["", "unaffable, WANTED", "ünaffable 中 want", "[CLS]un"] {
            let [expected, found] =
                [&tokenizer, &again].map(|it| it.encode(text, true).expect("short"));
            assert_eq!(found, expected, "{text}");
            assert_eq!(again.decode(&found, false), tokenizer.decode(&expected, false));
        }
        assert_eq!(again.encode("WANT", false).expect("short"), [1]);
    }
}
