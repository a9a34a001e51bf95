//! Which call of a program a value comes from.

use std::collections::{HashMap, HashSet};

use coremill_passes::without_precision;
use coremill_pt2::{ExportedProgram, Node, Origin};

/// Which calls of a program the values of its model come from.
#[derive(Clone, Debug, Default)]
pub struct SourceMap {
    /// By the name of a value, the call that it was made for. Values that passes made have none.
    pub(crate) by_value: HashMap<String, usize>,
    pub(crate) calls: Vec<SourceCall>,
}

/// A call of a program.
#[derive(Clone, Debug)]
pub(crate) struct SourceCall {
    operator: String,
    origin: Origin,
    /// The names of its results.
    results: Vec<String>,
}

impl SourceMap {
    /// The operator and the origin of the call that a value was made for. A value that only differs in precision comes
    /// from the same call.
    pub fn of(&self, value: &str) -> Option<(&str, &Origin)> {
        let call =
            self.by_value.get(value).or_else(|| self.by_value.get(without_precision(value)))?;
        self.calls.get(*call).map(|made| (made.operator.as_str(), &made.origin))
    }

    /// The values that are results of calls under the names that the program has for them, and not steps on the way to
    /// these.
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
