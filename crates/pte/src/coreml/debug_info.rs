use std::collections::BTreeMap;

use coremill_tensor::Buffer;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{from_json, to_json};
use crate::error::Error;

/// Which nodes of the exported graph the operations of a model come from.
///
/// Operations go by their symbols: the name of an output, a colon, and the kind of operation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DebugInfo {
    /// The version of the tools that made the model.
    pub version_info: String,
    /// Where in the model each operation stands.
    pub debug_symbol_to_operation_path: Map<String, Value>,
    /// The numbers of the nodes that each operation comes from.
    pub debug_symbol_to_handles: BTreeMap<String, Vec<i64>>,
    /// What newer writers may have said.
    #[serde(flatten)]
    pub unknown: Map<String, Value>,
}

/// A step on the way to an operation.
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
    /// Reads the file.
    pub fn read(bytes: &Buffer) -> Result<DebugInfo, Error> {
        from_json(bytes)
    }

    /// The file.
    pub fn to_bytes(&self) -> Vec<u8> {
        to_json(self)
    }

    /// States where an operation stands, and which nodes it comes from.
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
