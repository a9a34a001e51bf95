//! Tree specifications: the mapping between nested Python values and flat lists of inputs and outputs.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

use crate::error::{Error, escape_truncated};
use crate::limits::MAX_DEPTH;

/// The structure of a nested Python value.
#[derive(Clone, Debug, PartialEq)]
pub enum TreeSpec {
    /// A flat value.
    Leaf,
    /// A container.
    Node {
        /// Python type: `builtins.tuple`, `builtins.dict`, `transformers.modeling_outputs.CausalLMOutput`.
        kind: String,
        /// Data of the type other than the children, for instance the keys of a dictionary.
        context: Value,
        /// The children.
        children: Vec<TreeSpec>,
    },
}

/// Version of the notation, written before the tree.
const PROTOCOL: u64 = 1;

#[derive(Deserialize)]
struct Wire {
    #[serde(rename = "type")]
    kind: Option<String>,
    #[serde(default)]
    context: Value,
    #[serde(default)]
    children_spec: Vec<Wire>,
}

impl TreeSpec {
    /// Parses `[1, {"type": …, "context": …, "children_spec": […]}]`; an empty text is a leaf.
    pub(crate) fn parse(text: &str) -> Result<TreeSpec, Error> {
        if text.is_empty() {
            return Ok(TreeSpec::Leaf);
        }
        let (protocol, wire): (u64, Wire) = serde_json::from_str(text).map_err(|error| {
            Error::malformed(format!(
                "cannot parse the tree specification `{}`: {error}",
                escape_truncated(text)
            ))
        })?;
        if protocol != PROTOCOL {
            return Err(Error::unsupported(format!(
                "the tree specification has version {protocol}; expected {PROTOCOL}"
            )));
        }
        build(wire, 0)
    }

    /// The text in torch's notation.
    pub fn to_text(&self) -> String {
        Value::from(vec![Value::from(PROTOCOL), self.to_wire()]).to_string()
    }

    fn to_wire(&self) -> Value {
        let (kind, context, children) = match self {
            TreeSpec::Leaf => (Value::Null, Value::Null, Vec::new()),
            TreeSpec::Node { kind, context, children } => {
                // A string that is not JSON represents itself.
                let text = match context {
                    Value::String(text) if serde_json::from_str::<Value>(text).is_err() => {
                        text.clone()
                    }
                    context => context.to_string(),
                };
                let children = children.iter().map(TreeSpec::to_wire).collect();
                (Value::from(kind.as_str()), Value::from(text), children)
            }
        };
        serde_json::json!({ "type": kind, "context": context, "children_spec": children })
    }

    /// For each leaf inside a dictionary, its path of keys and indices.
    pub fn keys(&self, named_tuples: &BTreeMap<String, Vec<String>>) -> Vec<Option<String>> {
        let mut keys = Vec::new();
        self.add_keys(None, named_tuples, &mut keys);
        keys
    }

    fn add_keys(
        &self,
        path: Option<&str>,
        named_tuples: &BTreeMap<String, Vec<String>>,
        keys: &mut Vec<Option<String>>,
    ) {
        // Recursion is safe, because the depth of the tree is limited.
        let TreeSpec::Node { kind, context, children } = self else {
            keys.push(path.map(str::to_owned));
            return;
        };
        let named = named_tuples.get(kind).map(|fields| fields.iter().map(Cow::from).collect());
        let named = named.or_else(|| context_keys(kind, context));
        let named = named.filter(|named: &Vec<_>| named.len() == children.len());
        for (at, child) in children.iter().enumerate() {
            let step = match (&named, path) {
                (Some(named), _) => Some(named[at].to_string()),
                (None, Some(_)) => Some(at.to_string()),
                (None, None) => None,
            };
            let inner = match (path, step) {
                (Some(path), Some(step)) => Some(format!("{path}_{step}")),
                (_, step) => step,
            };
            child.add_keys(inner.as_deref(), named_tuples, keys);
        }
    }

    /// The number of leaves.
    pub fn leaves(&self) -> usize {
        match self {
            TreeSpec::Leaf => 1,
            TreeSpec::Node { children, .. } => children.iter().map(TreeSpec::leaves).sum(),
        }
    }
}

/// The keys of a dictionary or of a class registered as one: a list of strings and numbers, possibly after
/// another element.
fn context_keys<'c>(kind: &str, context: &'c Value) -> Option<Vec<Cow<'c, str>>> {
    if matches!(kind, "builtins.list" | "builtins.tuple") {
        return None;
    }
    let list = context.as_array()?;
    let list = list.last().and_then(Value::as_array).unwrap_or(list);
    let key = |value: &'c Value| match value {
        Value::String(text) => Some(Cow::from(text)),
        Value::Number(number) => Some(Cow::from(number.to_string())),
        _ => None,
    };
    list.iter().map(key).collect()
}

fn build(wire: Wire, depth: usize) -> Result<TreeSpec, Error> {
    if depth > MAX_DEPTH {
        return Err(Error::limit(format!("the tree is nested deeper than {MAX_DEPTH} levels")));
    }
    let Some(kind) = wire.kind else { return Ok(TreeSpec::Leaf) };
    // The context is JSON in a string; contexts of registered classes may be anything.
    let context = match wire.context {
        Value::String(text) => serde_json::from_str(&text).unwrap_or(Value::String(text)),
        other => other,
    };
    let children: Result<Vec<_>, _> =
        wire.children_spec.into_iter().map(|child| build(child, depth + 1)).collect();
    Ok(TreeSpec::Node { kind, context, children: children? })
}
