//! Maps values of a model to the calls of the PyTorch program.

use std::collections::{HashMap, HashSet};

use coremill_passes::without_precision;
use coremill_pt2::{ExportedProgram, Node, Origin};

/// Maps the values of a model to the calls of the program that they were created for.
#[derive(Clone, Debug, Default)]
pub struct SourceMap {
    /// Index of the call by value name. Values created by passes have no entry.
    pub(crate) by_value: HashMap<String, usize>,
    pub(crate) calls: Vec<SourceCall>,
}

/// A call of the PyTorch program.
#[derive(Clone, Debug)]
pub(crate) struct SourceCall {
    operator: String,
    origin: Origin,
    results: Vec<String>,
}

impl SourceMap {
    /// Operator and origin of the call that a value was created for. A copy of a value in another precision has the
    /// same call.
    pub fn of(&self, value: &str) -> Option<(&str, &Origin)> {
        let call =
            self.by_value.get(value).or_else(|| self.by_value.get(without_precision(value)))?;
        self.calls.get(*call).map(|made| (made.operator.as_str(), &made.origin))
    }

    /// Names of the values that are results of calls under their names in the program. Intermediate values of a
    /// lowering are not included.
    pub fn results(&self) -> HashSet<String> {
        let is_result = |(value, call): &(&String, &usize)| {
            self.calls.get(**call).is_some_and(|made| made.results.contains(value))
        };
        self.by_value.iter().filter(is_result).map(|(value, _)| value.clone()).collect()
    }
}

pub(crate) fn program_calls(program: &ExportedProgram) -> Vec<SourceCall> {
    let made = |node: &Node| SourceCall {
        operator: node.target.to_string(),
        origin: node.origin.clone(),
        results: node
            .results()
            .flatten()
            .map(|result| program.graph.value(result).name.clone())
            .collect(),
    };
    program.graph.nodes.iter().map(made).collect()
}
