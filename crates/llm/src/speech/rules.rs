//! Tokens of a prompt, and tokens that the model must not choose, as `generation_config.json` states them.

use std::collections::BTreeMap;
use std::str::FromStr;

use serde_json::Value;

use crate::error::{Error, ErrorKind, Result, fail};

/// Text of the audio's language, or its translation into English.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Task {
    /// The text in the audio's language.
    #[default]
    Transcribe,
    /// The text in English.
    Translate,
}

impl Task {
    /// The name in configurations.
    pub fn name(self) -> &'static str {
        match self {
            Task::Transcribe => "transcribe",
            Task::Translate => "translate",
        }
    }
}

impl FromStr for Task {
    type Err = Error;

    fn from_str(name: &str) -> Result<Task> {
        match name {
            "transcribe" => Ok(Task::Transcribe),
            "translate" => Ok(Task::Translate),
            _ => fail!(Argument, "`task` is `{name}`; expected `transcribe`, `translate`"),
        }
    }
}

/// Rules of generation.
#[derive(Clone, Debug, Default)]
pub(crate) struct TokenRules {
    /// Number of tokens.
    vocabulary: usize,
    /// First token of a prompt.
    start: u32,
    /// Token that ends a text.
    pub(crate) end: u32,
    /// Token after which there are no timestamps. Timestamps follow it in the vocabulary.
    no_timestamps: Option<u32>,
    /// Languages and tasks by name.
    languages: BTreeMap<String, u32>,
    tasks: BTreeMap<String, u32>,
    /// Tokens that are never chosen, and tokens that are not chosen first.
    suppressed: Vec<u32>,
    suppressed_first: Vec<u32>,
    /// The latest first timestamp, as an index.
    max_first_timestamp: Option<u32>,
    /// Most tokens of a text after the prompt.
    pub(crate) max_length: Option<usize>,
}

impl TokenRules {
    /// Reads `generation_config.json`.
    pub(crate) fn of_json(json: &Value, vocabulary: usize) -> Result<TokenRules> {
        let id = |key: &str, value: &Value| -> Result<u32> {
            let id = value.as_u64().filter(|&id| id < vocabulary as u64);
            id.map(|id| id as u32).ok_or_else(|| {
                let message = format!("`{key}` must be a token id below {vocabulary}, got {value}");
                Error::of_kind(ErrorKind::Format, message)
            })
        };
        let optional = |key: &str| match &json[key] {
            Value::Null => Ok(None),
            value => id(key, value).map(Some),
        };
        let required = |key: &str| match optional(key)? {
            Some(id) => Ok(id),
            None => fail!(Format, "`{key}` is missing"),
        };
        let list = |key: &str| -> Result<Vec<u32>> {
            json[key].as_array().into_iter().flatten().map(|value| id(key, value)).collect()
        };
        let names = |key: &str| -> Result<BTreeMap<String, u32>> {
            let entries = json[key].as_object().into_iter().flatten();
            let plain = |name: &str| name.trim_matches(['<', '|', '>']).to_owned();
            entries.map(|(name, value)| Ok((plain(name), id(key, value)?))).collect()
        };
        let end = match &json["eos_token_id"] {
            Value::Array(ids) => id("eos_token_id", ids.first().unwrap_or(&Value::Null))?,
            _ => required("eos_token_id")?,
        };
        // Older models of one language state the tokens by their positions.
        let forced = json["forced_decoder_ids"].as_array().into_iter().flatten();
        let forced = forced.filter_map(|pair| pair[1].as_u64()).next_back();
        let languages = match json["is_multilingual"].as_bool() {
            Some(false) => BTreeMap::new(),
            _ => names("lang_to_id")?,
        };
        let no_timestamps = match optional("no_timestamps_token_id")? {
            None if languages.is_empty() => {
                forced.filter(|&id| id < vocabulary as u64).map(|id| id as u32)
            }
            found => found,
        };
        let number = |key: &str| json[key].as_u64().and_then(|number| u32::try_from(number).ok());
        Ok(TokenRules {
            vocabulary,
            start: required("decoder_start_token_id")?,
            end,
            no_timestamps,
            languages,
            tasks: names("task_to_id")?,
            suppressed: list("suppress_tokens")?,
            suppressed_first: list("begin_suppress_tokens")?,
            max_first_timestamp: number("max_initial_timestamp_index"),
            max_length: number("max_length").map(|length| length as usize),
        })
    }

    /// The first token of a prompt.
    pub(crate) fn start(&self) -> u32 {
        self.start
    }

    /// The first timestamp; `None` if the model has none.
    pub(crate) fn first_timestamp(&self) -> Option<u32> {
        let first = self.no_timestamps? + 1;
        ((first as usize) < self.vocabulary).then_some(first)
    }

    /// Whether there are tokens of languages.
    pub(crate) fn is_multilingual(&self) -> bool {
        !self.languages.is_empty()
    }

    /// The language that is the most likely after the start of a text.
    pub(crate) fn likely_language(&self, logits: &[f32]) -> Option<&str> {
        let score = |id: u32| logits.get(id as usize).copied().unwrap_or(f32::NEG_INFINITY);
        // The first of equal ones, in the order of the vocabulary.
        let mut all: Vec<_> = self.languages.iter().map(|(name, &id)| (id, name)).collect();
        all.sort();
        let best = all.into_iter().reduce(|best, other| match score(other.0) > score(best.0) {
            true => other,
            false => best,
        });
        best.map(|(_, name)| name.as_str())
    }

    /// The tokens of a prompt.
    pub(crate) fn prompt(
        &self,
        language: Option<&str>,
        task: Task,
        timestamps: bool,
    ) -> Result<Vec<u32>> {
        let mut prompt = vec![self.start];
        match language {
            Some(name) => match self.languages.get(name) {
                Some(&id) => prompt.push(id),
                None if self.is_multilingual() => {
                    let known: Vec<_> = self.languages.keys().map(String::as_str).collect();
                    let message = format!("the model does not support the language `{name}`");
                    let error = Error::of_kind(ErrorKind::Argument, message);
                    return Err(error.with_hint(format!("expected {}", known.join(", "))));
                }
                None => {
                    let message = "the model has only one language, so no language can be chosen";
                    return Err(Error::of_kind(ErrorKind::Argument, message));
                }
            },
            None if self.is_multilingual() => {
                fail!(Run, "a multilingual model requires a language")
            }
            None => {}
        }
        if self.is_multilingual() {
            match self.tasks.get(task.name()) {
                Some(&id) => prompt.push(id),
                None if task == Task::Transcribe => {}
                None => fail!(Argument, "the model does not support the task `{}`", task.name()),
            }
        } else if task != Task::Transcribe {
            fail!(Argument, "the model has only one language and cannot translate");
        }
        if !timestamps {
            prompt.extend(self.no_timestamps);
        } else if self.first_timestamp().is_none() {
            fail!(Argument, "the model does not support timestamps");
        }
        Ok(prompt)
    }

    /// The most likely token that may follow `text`, the tokens after the prompt; `None` if no logit is a number.
    pub(crate) fn choose(&self, logits: &mut [f32], text: &[u32], timestamps: bool) -> Option<u32> {
        let first = if text.is_empty() { &self.suppressed_first[..] } else { &[] };
        for &id in first.iter().chain(&self.suppressed) {
            if let Some(logit) = logits.get_mut(id as usize) {
                *logit = f32::NEG_INFINITY;
            }
        }
        if let Some(first) = self.first_timestamp().filter(|_| timestamps) {
            self.restrict_timestamps(logits, text, first as usize);
        }
        let mut best = None;
        for (id, &logit) in logits.iter().enumerate() {
            if logit > best.map_or(f32::NEG_INFINITY, |(_, most)| most) {
                best = Some((id as u32, logit));
            }
        }
        best.map(|(id, _)| id)
    }

    /// Hides tokens so that timestamps are in pairs, do not decrease, and are chosen if all together are more likely than any
    /// other token.
    fn restrict_timestamps(&self, logits: &mut [f32], text: &[u32], first: usize) {
        let is_timestamp = |id: &u32| *id as usize >= first;
        let hide = |part: &mut [f32]| part.fill(f32::NEG_INFINITY);
        let end = (self.end as usize).min(logits.len());
        let total = logits.len();
        hide(&mut logits[first - 1..first]);
        let last = text.last().is_some_and(is_timestamp);
        let second_last = text.len() < 2 || is_timestamp(&text[text.len() - 2]);
        match (last, second_last) {
            (true, true) => hide(&mut logits[first..]),
            (true, false) => hide(&mut logits[..end]),
            _ => {}
        }
        if let Some(&latest) = text.iter().rev().find(|id| is_timestamp(id)) {
            // A timestamp may be repeated at the start of the next part only.
            let least = latest as usize + usize::from(!last || second_last);
            hide(&mut logits[first..least.clamp(first, total)]);
        }
        if text.is_empty() {
            hide(&mut logits[..first]);
            if let Some(most) = self.max_first_timestamp {
                hide(&mut logits[(first + most as usize + 1).min(total)..]);
            }
        }
        let (plain, stamps) = logits.split_at_mut(first);
        let most = |part: &[f32]| part.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let [of_plain, of_stamps] = [most(plain), most(stamps)];
        if of_stamps == f32::NEG_INFINITY {
            return;
        }
        let sum: f32 = stamps.iter().map(|logit| (logit - of_stamps).exp()).sum();
        if of_stamps + sum.ln() > of_plain {
            hide(plain);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Token ids: 0 to 9 are text, 10 ends it, 11 starts it, 12 and 13 are languages, 14 and 15 are tasks, 16 disables timestamps,
    /// and 17 to 23 are timestamps.
    fn rules() -> TokenRules {
        let json = json!({
            "decoder_start_token_id": 11,
            "eos_token_id": 10,
            "no_timestamps_token_id": 16,
            "lang_to_id": { "<|en|>": 12, "<|de|>": 13 },
            "task_to_id": { "transcribe": 14, "translate": 15 },
            "suppress_tokens": [3],
            "begin_suppress_tokens": [4, 10],
            "max_initial_timestamp_index": 1,
            "max_length": 20,
        });
        TokenRules::of_json(&json, 24).expect("sound")
    }

    fn chosen(likely: &[usize], text: &[u32], timestamps: bool) -> Option<u32> {
        let mut logits = vec![0.0; 24];
        for (rank, &id) in likely.iter().enumerate() {
            logits[id] = 50.0 - rank as f32 * 10.0;
        }
        rules().choose(&mut logits, text, timestamps)
    }

    #[test]
    fn builds_prompt_from_language_task_and_timestamps() {
        let rules = rules();
        let prompt = |language, task, timestamps| rules.prompt(language, task, timestamps);
        let found = prompt(Some("de"), Task::Translate, false).expect("known");
        assert_eq!(found, [11, 13, 15, 16]);
        assert_eq!(prompt(Some("en"), Task::Transcribe, true).expect("known"), [11, 12, 14]);
        let error = prompt(Some("fr"), Task::Transcribe, false).expect_err("unknown");
        assert_eq!(error.hint(), Some("expected de, en"));
        let mut logits = vec![0.0; 24];
        (logits[0], logits[12], logits[13]) = (9.0, 1.0, 2.0);
        assert_eq!(rules.likely_language(&logits), Some("de"));
        let json = json!({ "decoder_start_token_id": 1, "eos_token_id": 0, "forced_decoder_ids": [[1, 2]] });
        let single = TokenRules::of_json(&json, 5).expect("sound");
        assert_eq!(single.prompt(None, Task::Transcribe, false).expect("no language"), [1, 2]);
        assert_eq!(single.first_timestamp(), Some(3));
        assert!(single.prompt(Some("en"), Task::Transcribe, false).is_err());
        assert!(single.prompt(None, Task::Translate, false).is_err());
        assert!(TokenRules::of_json(&json!({ "decoder_start_token_id": 9 }), 5).is_err());
    }

    #[test]
    fn suppressed_tokens_are_not_chosen() {
        assert_eq!(chosen(&[3, 4, 10, 5], &[], false), Some(5));
        assert_eq!(chosen(&[3, 4, 10, 5], &[7], false), Some(4));
        assert_eq!(rules().choose(&mut [f32::NAN; 24], &[7], false), None);
    }

    #[test]
    fn constrains_timestamps_to_ordered_pairs() {
        // The first token is one of the first two timestamps.
        assert_eq!(chosen(&[5, 20, 18], &[], true), Some(18));
        // After an opening timestamp, no other timestamp is allowed.
        assert_eq!(chosen(&[20, 16, 5], &[18], true), Some(5));
        // After a closing timestamp comes another timestamp, which must not be earlier, or the end token.
        assert_eq!(chosen(&[5, 18, 20, 19], &[18, 5, 19], true), Some(20));
        assert_eq!(chosen(&[5, 19], &[18, 5, 19], true), Some(19));
        assert_eq!(chosen(&[5, 10], &[18, 5, 19], true), Some(10));
        // A closing timestamp is later than its opening timestamp.
        assert_eq!(chosen(&[19, 20, 5], &[18, 5, 19, 19, 6], true), Some(20));
        // A timestamp is chosen if all timestamps together are more probable than the best text token.
        let mut logits = vec![0.0; 24];
        logits[5] = 1.5;
        assert!(rules().choose(&mut logits, &[17, 6], true).is_some_and(|id| id > 16));
        logits[5] = 3.0;
        assert_eq!(rules().choose(&mut logits, &[17, 6], true), Some(5));
    }
}
