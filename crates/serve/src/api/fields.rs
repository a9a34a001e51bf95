//! Fields of requests, which are checked one by one, so that errors name them.

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

/// A plain JSON value. Contents of arrays and objects are dropped.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) enum Scalar {
    #[default]
    Null,
    Bool(bool),
    Int(i64),
    Float(f64),
    Text(String),
    /// An array, and whether it is empty.
    Array(bool),
    /// An object.
    Object,
}

impl fmt::Display for Scalar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Scalar::Null => f.write_str("null"),
            Scalar::Bool(value) => value.fmt(f),
            Scalar::Int(value) => value.fmt(f),
            Scalar::Float(value) => value.fmt(f),
            Scalar::Text(text) => match text.char_indices().nth(40) {
                Some((end, _)) => write!(f, "{:?}…", &text[..end]),
                None => write!(f, "{text:?}"),
            },
            Scalar::Array(_) => f.write_str("an array"),
            Scalar::Object => f.write_str("an object"),
        }
    }
}

struct ScalarVisitor;

impl<'de> Visitor<'de> for ScalarVisitor {
    type Value = Scalar;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Scalar, E> {
        Ok(Scalar::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Scalar, E> {
        Ok(Scalar::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Scalar, E> {
        Ok(Scalar::Int(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Scalar, E> {
        Ok(i64::try_from(value).map_or(Scalar::Float(value as f64), Scalar::Int))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Scalar, E> {
        Ok(Scalar::Float(value))
    }

    fn visit_str<E>(self, text: &str) -> Result<Scalar, E> {
        Ok(Scalar::Text(text.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<Scalar, A::Error> {
        let mut count = 0;
        while elements.next_element::<IgnoredAny>()?.is_some() {
            count += 1;
        }
        Ok(Scalar::Array(count == 0))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Scalar, A::Error> {
        while entries.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(Scalar::Object)
    }
}

impl<'de> Deserialize<'de> for Scalar {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Scalar, D::Error> {
        deserializer.deserialize_any(ScalarVisitor)
    }
}

/// One value, or an array of values.
#[derive(Debug, PartialEq)]
pub(super) enum List<T> {
    One(Scalar),
    Many(Vec<T>),
}

impl<T> Default for List<T> {
    fn default() -> List<T> {
        List::One(Scalar::Null)
    }
}

struct ListVisitor<T>(std::marker::PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for ListVisitor<T> {
    type Value = List<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<List<T>, E> {
        Ok(List::One(Scalar::Null))
    }

    fn visit_bool<E>(self, value: bool) -> Result<List<T>, E> {
        Ok(List::One(Scalar::Bool(value)))
    }

    fn visit_i64<E>(self, value: i64) -> Result<List<T>, E> {
        Ok(List::One(Scalar::Int(value)))
    }

    fn visit_u64<E: serde::de::Error>(self, value: u64) -> Result<List<T>, E> {
        ScalarVisitor.visit_u64(value).map(List::One)
    }

    fn visit_f64<E>(self, value: f64) -> Result<List<T>, E> {
        Ok(List::One(Scalar::Float(value)))
    }

    fn visit_str<E>(self, text: &str) -> Result<List<T>, E> {
        Ok(List::One(Scalar::Text(text.to_owned())))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<List<T>, A::Error> {
        let mut all = Vec::new();
        while let Some(element) = elements.next_element()? {
            all.push(element);
        }
        Ok(List::Many(all))
    }

    fn visit_map<A: MapAccess<'de>>(self, entries: A) -> Result<List<T>, A::Error> {
        ScalarVisitor.visit_map(entries).map(List::One)
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for List<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<List<T>, D::Error> {
        deserializer.deserialize_any(ListVisitor(std::marker::PhantomData))
    }
}

/// A message of a conversation.
#[derive(Debug, Deserialize)]
pub(super) struct MessageFields {
    #[serde(default)]
    pub(super) role: Scalar,
    #[serde(default)]
    pub(super) content: List<PartFields>,
}

/// A part of a message's content.
#[derive(Debug, Deserialize)]
pub(super) struct PartFields {
    #[serde(default, rename = "type")]
    pub(super) kind: Scalar,
    #[serde(default)]
    pub(super) text: Scalar,
}

/// Options of a stream.
#[derive(Debug, Default, Deserialize)]
pub(super) struct StreamFields {
    #[serde(default)]
    pub(super) include_usage: Scalar,
}

/// The fields of a request that have an effect, and those whose effects are not supported.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Fields {
    pub(super) messages: List<MessageFields>,
    pub(super) prompt: List<Scalar>,
    pub(super) max_tokens: Scalar,
    pub(super) max_completion_tokens: Scalar,
    pub(super) temperature: Scalar,
    pub(super) top_p: Scalar,
    pub(super) top_k: Scalar,
    pub(super) min_p: Scalar,
    #[serde(alias = "repetition_penalty")]
    pub(super) repeat_penalty: Scalar,
    pub(super) seed: Scalar,
    pub(super) stop: List<Scalar>,
    pub(super) stream: Scalar,
    pub(super) stream_options: Option<StreamFields>,
    pub(super) n: Scalar,
    pub(super) best_of: Scalar,
    pub(super) frequency_penalty: Scalar,
    pub(super) presence_penalty: Scalar,
    pub(super) echo: Scalar,
    pub(super) logprobs: Scalar,
    pub(super) top_logprobs: Scalar,
    pub(super) suffix: Scalar,
    pub(super) tools: Scalar,
    pub(super) functions: Scalar,
    pub(super) logit_bias: LogitBias,
    pub(super) response_format: Format,
}

/// Whether an object has entries.
#[derive(Debug, Default, Deserialize)]
#[serde(transparent)]
pub(super) struct LogitBias(pub(super) Option<std::collections::BTreeMap<String, IgnoredAny>>);

/// The form of an answer.
#[derive(Debug, Default, Deserialize)]
#[serde(transparent)]
pub(super) struct Format(pub(super) Option<FormatFields>);

/// The type of an answer's form.
#[derive(Debug, Deserialize)]
pub(super) struct FormatFields {
    #[serde(default, rename = "type")]
    pub(super) kind: Scalar,
}
