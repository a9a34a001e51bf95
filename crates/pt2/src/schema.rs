//! Schemas of torch's operators: parameter names, types and defaults.
//!
//! An archive omits arguments with default values, so the schemas are needed to read calls. `cargo xtask
//! schemas` generates `schemas.txt` from the torch version in `oracle/requirements.txt`. A line is parsed
//! when a program first calls its operator.

mod parse;

use std::collections::HashMap;
use std::sync::Arc;

use crate::error::Error;
use crate::scalar::{MemoryFormat, ScalarType};

/// One operator per line, sorted by name.
const TEXT: &str = include_str!("schemas.txt");

/// The schema of an operator.
#[derive(Clone, Debug, PartialEq)]
pub struct Schema {
    /// `namespace::name`, followed by `.overload` if it has one.
    pub name: String,
    /// The parameters; keyword-only parameters are last.
    pub arguments: Vec<Parameter>,
    /// The results.
    pub returns: Vec<Return>,
}

impl Schema {
    /// Parses a schema in torch's notation; `None` if it is not supported.
    pub fn parse(line: &str) -> Option<Schema> {
        parse::parse(line)
    }

    /// Whether a call mutates one of its arguments.
    pub fn mutates(&self) -> bool {
        self.arguments.iter().any(|argument| argument.mutated)
    }
}

/// A parameter of an operator.
#[derive(Clone, Debug, PartialEq)]
pub struct Parameter {
    /// The name.
    pub name: String,
    /// The type.
    pub kind: Kind,
    /// The default value.
    pub default: Option<Literal>,
    /// Whether it can be passed only by keyword.
    pub keyword_only: bool,
    /// Whether the call mutates it.
    pub mutated: bool,
    /// Whether results may share its storage.
    pub aliased: bool,
}

/// A result of an operator.
#[derive(Clone, Debug, PartialEq)]
pub struct Return {
    /// The type.
    pub kind: Kind,
    /// Whether it is a mutated argument.
    pub mutated: bool,
    /// Whether it may share storage with an argument.
    pub aliased: bool,
}

/// A type in a schema.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A tensor.
    Tensor,
    /// An integer, possibly symbolic.
    Int,
    /// A float, possibly symbolic.
    Float,
    /// A boolean.
    Bool,
    /// An integer, a float or a boolean.
    Scalar,
    /// A complex number.
    Complex,
    /// A string.
    Text,
    /// An element type.
    ScalarType,
    /// A memory format.
    MemoryFormat,
    /// A storage layout.
    Layout,
    /// A device.
    Device,
    /// This type or `None`.
    Optional(Box<Kind>),
    /// A list, optionally of fixed length. If the length is fixed, a single item is repeated.
    List(Box<Kind>, Option<u32>),
    /// Another type, by name.
    Other(String),
}

/// A literal in a schema.
#[derive(Clone, Debug, PartialEq)]
pub enum Literal {
    /// No value (`None` in Python).
    None,
    /// An integer.
    Int(i64),
    /// A float.
    Float(f64),
    /// A boolean.
    Bool(bool),
    /// A string.
    Text(String),
    /// An element type.
    ScalarType(ScalarType),
    /// A memory format.
    MemoryFormat(MemoryFormat),
    /// A list of literals.
    List(Vec<Literal>),
}

/// A cache of the schemas that were looked up.
#[derive(Debug, Default)]
pub struct Schemas {
    parsed: HashMap<String, Option<Arc<Schema>>>,
}

impl Schemas {
    /// Returns the schema of `namespace::name.overload`; `None` if this version does not have the operator.
    ///
    /// # Errors
    /// A line of the list cannot be parsed.
    pub fn find(
        &mut self,
        namespace: &str,
        name: &str,
        overload: &str,
    ) -> Result<Option<Arc<Schema>>, Error> {
        let dot = if overload == "default" { "" } else { "." };
        let overload = if overload == "default" { "" } else { overload };
        let key = format!("{namespace}::{name}{dot}{overload}");
        if let Some(known) = self.parsed.get(&key) {
            return Ok(known.clone());
        }
        let schema = match line(&key) {
            None => None,
            Some(line) => Some(Arc::new(parse::parse(line).ok_or_else(|| {
                Error::unsupported(format!("the schema `{line}` cannot be parsed"))
            })?)),
        };
        self.parsed.insert(key, schema.clone());
        Ok(schema)
    }
}

/// The overloads of an operator; `default` for an overload without a name.
pub fn overloads(namespace: &str, name: &str) -> impl Iterator<Item = &'static str> {
    let key = format!("{namespace}::{name}");
    let first = position(&key).unwrap_or_else(|at| at);
    let lines = TEXT[first..].lines();
    let same = lines.map_while({
        let key = key.clone();
        move |line| line.split('(').next()?.strip_prefix(&key)
    });
    // Names of other operators may start with this name.
    same.filter_map(|rest| if rest.is_empty() { Some("default") } else { rest.strip_prefix('.') })
}

/// The line of an operator.
fn line(key: &str) -> Option<&'static str> {
    TEXT[position(key).ok()?..].lines().next()
}

/// Binary search in the text for the start of an operator's line, or for its insertion position.
fn position(key: &str) -> Result<usize, usize> {
    let (mut low, mut high) = (0, TEXT.len());
    while low < high {
        let middle = low + (high - low) / 2;
        let start = TEXT[..middle].rfind('\n').map_or(0, |at| at + 1);
        let end = TEXT[middle..].find('\n').map_or(TEXT.len(), |at| middle + at);
        let found = TEXT[start..end].split('(').next().unwrap_or_default();
        match found.as_bytes().cmp(key.as_bytes()) {
            std::cmp::Ordering::Equal => return Ok(start),
            std::cmp::Ordering::Less => low = end + 1,
            std::cmp::Ordering::Greater => high = start,
        }
    }
    Err(low.min(TEXT.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_and_parses_every_schema() {
        let mut count = 0;
        for text in TEXT.lines() {
            let name = text.split('(').next().expect("a name");
            assert_eq!(line(name), Some(text));
            assert!(parse::parse(text).is_some(), "{text}");
            count += 1;
        }
        assert!(count > 2000, "{count} schemas");
        assert_eq!(line("aten::no_such_operator"), None);
        assert_eq!(line(""), None);
        assert_eq!(line("zzz::zzz"), None);
        let found: Vec<_> = overloads("aten", "add").collect();
        assert!(found.contains(&"Tensor") && found.contains(&"out"), "{found:?}");
        assert!(overloads("aten", "relu").any(|overload| overload == "default"));
        assert_eq!(overloads("aten", "ad").count(), 0);
        assert_eq!(overloads("zzz", "zzz").count(), 0);
    }
}
