use std::collections::BTreeMap;

use coremill_tensor::Buffer;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{from_json, to_json};
use crate::error::Error;

/// Maps operations of a model to nodes of the exported graph.
///
/// Operations are identified by symbols of the form `output:kind`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DebugInfo {
    /// Version of the tools that created the model.
    pub version_info: String,
    /// Path of each operation in the model.
    pub debug_symbol_to_operation_path: Map<String, Value>,
    /// Numbers of the source nodes of each operation.
    pub debug_symbol_to_handles: BTreeMap<String, Vec<i64>>,
    /// Unknown fields of newer writers.
    #[serde(flatten)]
    pub unknown: Map<String, Value>,
}

/// A part of an operation's path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PathPart {
    /// The whole model.
    Program,
    /// A function.
    Function(String),
    /// A block of a function or of an operation.
    Block,
    /// An operation: its kind, and the name of its first output.
    Operation {
        /// The kind.
        operator: String,
        /// The name of the first output.
        output: String,
    },
}

impl DebugInfo {
    /// Parses the file.
    pub fn read(bytes: &Buffer) -> Result<DebugInfo, Error> {
        from_json(bytes)
    }

    /// Serializes the file.
    pub fn to_bytes(&self) -> Vec<u8> {
        to_json(self)
    }

    /// Adds an operation with its path and source nodes.
    pub fn insert(&mut self, path: &[PathPart], handles: Vec<i64>) {
        let Some(PathPart::Operation { operator, output }) = path.last() else { return };
        let symbol = format!("{output}:{operator}");
        let part = |part: &PathPart| {
            let fields: Vec<(&str, &str)> = match part {
                PathPart::Program => vec![("Type", "Program")],
                PathPart::Function(name) => vec![("Type", "Function"), ("Name", name)],
                PathPart::Block => vec![("Type", "Block")],
                PathPart::Operation { operator, output } => {
                    vec![("Type", "Operation"), ("Operator", operator), ("Output", output)]
                }
            };
            let field = |(key, value): (&str, &str)| (key.to_owned(), Value::from(value));
            Value::Object(fields.into_iter().map(field).collect())
        };
        let path = path.iter().map(part).collect();
        self.debug_symbol_to_operation_path.insert(symbol.clone(), Value::Array(path));
        self.debug_symbol_to_handles.insert(symbol, handles);
    }
}
