//! Which call of a program a value comes from.

use std::collections::HashMap;

use coremill_mil::pass::without_precision;
use coremill_pt2::{ExportedProgram, Origin};

/// Which calls of a program the values of its model come from.
#[derive(Clone, Debug, Default)]
pub struct Calls {
    /// By the name of a value, the call that it was made for. Values that passes made have none.
    pub(crate) by_value: HashMap<String, usize>,
    /// Operator and origin of each call.
    pub(crate) calls: Vec<(String, Origin)>,
}

impl Calls {
    /// The operator and the origin of the call that a value was made for. A value that only differs in precision comes
    /// from the same call.
    pub fn of(&self, value: &str) -> Option<(&str, &Origin)> {
        let call =
            self.by_value.get(value).or_else(|| self.by_value.get(without_precision(value)))?;
        self.calls.get(*call).map(|(operator, origin)| (operator.as_str(), origin))
    }
}

/// Operator and origin of each call.
pub(crate) fn program_calls(program: &ExportedProgram) -> Vec<(String, Origin)> {
    let nodes = program.graph.nodes.iter();
    nodes.map(|node| (node.target.to_string(), node.origin.clone())).collect()
}
