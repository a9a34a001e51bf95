use std::collections::BTreeMap;

use coremill_graph::MetadataValue;
use serde_json::{Value, json};

/// Settings of generation that a model comes with.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct GenerationSettings {
    /// Token before a text.
    pub bos: Option<u32>,
    /// Tokens that end a text.
    pub eos: Vec<u32>,
    /// Divisor of logits before sampling; `None` if the model recommends no sampling.
    pub temperature: Option<f32>,
    /// Number of the most likely tokens to sample from.
    pub top_k: Option<usize>,
    /// Share of probability to sample from.
    pub top_p: Option<f32>,
    /// Divisor of the logits of tokens that were generated before.
    pub repetition_penalty: Option<f32>,
}

fn id(value: u64) -> Option<u32> {
    u32::try_from(value).ok()
}

impl GenerationSettings {
    /// Reads `generation_config.json`, and `config.json` for missing keys.
    pub fn of_json(generation: &Value, config: &Value) -> GenerationSettings {
        let first = |key: &str| match &generation[key] {
            Value::Null => match &config[key] {
                Value::Null => config["text_config"][key].clone(),
                found => found.clone(),
            },
            found => found.clone(),
        };
        let ids = |value: Value| -> Vec<u32> {
            match value {
                Value::Array(ids) => ids.iter().filter_map(Value::as_u64).filter_map(id).collect(),
                other => other.as_u64().and_then(id).into_iter().collect(),
            }
        };
        let samples = generation["do_sample"].as_bool().unwrap_or(false);
        let float = |key: &str| generation[key].as_f64().map(|value| value as f32);
        GenerationSettings {
            bos: ids(first("bos_token_id")).first().copied(),
            eos: ids(first("eos_token_id")),
            temperature: float("temperature").or(Some(1.0)).filter(|_| samples),
            top_k: generation["top_k"].as_u64().and_then(|count| usize::try_from(count).ok()),
            top_p: float("top_p"),
            repetition_penalty: float("repetition_penalty"),
        }
    }

    pub(crate) fn of_gguf(metadata: &BTreeMap<String, MetadataValue>) -> GenerationSettings {
        let get = |key: &str| {
            metadata.get(&format!("tokenizer.ggml.{key}")).and_then(|it| it.as_u64()).and_then(id)
        };
        let mut eos = Vec::new();
        for key in ["eos_token_id", "eot_token_id", "eom_token_id"] {
            eos.extend(get(key).filter(|id| !eos.contains(id)));
        }
        GenerationSettings { bos: get("bos_token_id"), eos, ..GenerationSettings::default() }
    }

    /// The content of a `generation_config.json`.
    pub fn to_json(&self) -> Value {
        let mut json = json!({ "do_sample": self.temperature.is_some() });
        let mut set = |key: &str, value: Value| {
            if value != Value::Null {
                json[key] = value;
            }
        };
        set("bos_token_id", json!(self.bos));
        set("eos_token_id", if self.eos.is_empty() { Value::Null } else { json!(self.eos) });
        set("temperature", json!(self.temperature));
        set("top_k", json!(self.top_k));
        set("top_p", json!(self.top_p));
        set("repetition_penalty", json!(self.repetition_penalty));
        json
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generation_settings_round_trip_through_json() {
        let generation = json!({ "do_sample": true, "temperature": 0.5, "eos_token_id": [2, 7] });
        let config = json!({ "bos_token_id": 1, "eos_token_id": 2 });
        let settings = GenerationSettings::of_json(&generation, &config);
        assert_eq!((settings.bos, settings.eos.as_slice()), (Some(1), &[2, 7][..]));
        assert_eq!(GenerationSettings::of_json(&settings.to_json(), &Value::Null), settings);
        let greedy = GenerationSettings::of_json(&Value::Null, &config);
        assert_eq!((greedy.eos.as_slice(), greedy.temperature), (&[2][..], None));
    }
}
