//! Data flow between calls, seen through numbers.
//!
//! A number (`sym_size`, `a + b` of sizes, `item`) cannot cross the boundary of a delegate, but it can be recomputed
//! anywhere from tensors that can, at no cost. Numbers are therefore not assigned to a partition: a call that uses a
//! number counts as a user of the tensors that the number is computed from.

use coremill_pt2::{Graph, Meta, Node, Target, ValueId};

/// The uses of a graph's values.
pub(super) struct Flow {
    /// For each value, the call that produces it; `None` for inputs.
    pub(super) producer: Vec<Option<usize>>,
    /// For each call, whether all its results are numbers.
    pub(super) is_number: Vec<bool>,
    /// For each call, the distinct tensors and objects that it uses; empty for numbers.
    pub(super) operands: Vec<Vec<ValueId>>,
    /// For each call with number results, the tensors they are computed from.
    sources: Vec<Vec<ValueId>>,
    /// For each value, the calls that use it, without number calls.
    pub(super) users: Vec<Vec<usize>>,
    /// For each value, whether the graph's outputs use it.
    pub(super) is_result: Vec<bool>,
}

impl Flow {
    pub(super) fn of(graph: &Graph) -> Flow {
        let count = graph.values.len();
        let mut producer = vec![None; count];
        for (index, node) in graph.nodes.iter().enumerate() {
            for id in node.defined() {
                producer[id.index()] = Some(index);
            }
        }
        let is_number: Vec<bool> = graph.nodes.iter().map(|node| is_number(graph, node)).collect();
        // Sources of each number. Nodes are in definition order.
        let mut sources: Vec<Vec<ValueId>> = vec![Vec::new(); graph.nodes.len()];
        let mut operands = vec![Vec::new(); graph.nodes.len()];
        let mut users = vec![Vec::new(); count];
        for (index, node) in graph.nodes.iter().enumerate() {
            let mut used = Vec::new();
            node.for_each_use(&mut |id| {
                through(graph, &producer, &is_number, &sources, id, &mut used);
            });
            if is_number[index] {
                sources[index] = used;
            } else {
                used.iter().for_each(|id| users[id.index()].push(index));
                operands[index] = used;
            }
        }
        let mut flow =
            Flow { producer, is_number, operands, sources, users, is_result: vec![false; count] };
        for output in &graph.outputs {
            output.for_each_value(&mut |id| {
                for id in flow.behind(graph, id) {
                    flow.is_result[id.index()] = true;
                }
            });
        }
        flow
    }

    /// The tensors that a value is computed from: the value itself unless it is a number.
    pub(super) fn behind(&self, graph: &Graph, id: ValueId) -> Vec<ValueId> {
        let mut found = Vec::new();
        through(graph, &self.producer, &self.is_number, &self.sources, id, &mut found);
        found
    }

    /// Adds the calls that compute the numbers used by these calls.
    pub(super) fn with_numbers(&self, graph: &Graph, calls: &[usize]) -> Vec<usize> {
        let mut found: Vec<usize> = calls.to_vec();
        let mut pending = Vec::new();
        for &call in calls {
            graph.nodes[call].for_each_use(&mut |id| pending.push(id));
        }
        self.add_numbers(graph, pending, &mut found);
        found
    }

    /// Adds the calls that compute the pending numbers.
    pub(super) fn add_numbers(
        &self,
        graph: &Graph,
        mut pending: Vec<ValueId>,
        found: &mut Vec<usize>,
    ) {
        let mut seen = vec![false; graph.nodes.len()];
        found.iter().for_each(|&call| seen[call] = true);
        while let Some(id) = pending.pop() {
            let Some(call) = self.producer[id.index()] else { continue };
            if !self.is_number[call] || std::mem::replace(&mut seen[call], true) {
                continue;
            }
            found.push(call);
            graph.nodes[call].for_each_use(&mut |id| pending.push(id));
        }
        found.sort_unstable();
    }
}

fn through(
    graph: &Graph,
    producer: &[Option<usize>],
    is_number: &[bool],
    sources: &[Vec<ValueId>],
    id: ValueId,
    used: &mut Vec<ValueId>,
) {
    let mut add = |id: ValueId| {
        if !used.contains(&id) {
            used.push(id);
        }
    };
    match producer[id.index()] {
        Some(call) if is_number[call] => sources[call].iter().copied().for_each(add),
        None if is_plain(graph, id) => {}
        _ => add(id),
    }
}

/// Whether a value is a number. Number inputs are available everywhere.
fn is_plain(graph: &Graph, id: ValueId) -> bool {
    matches!(graph.value(id).meta, Meta::Int(_) | Meta::Float(_) | Meta::Bool(_))
}

/// Whether all results of a call are numbers. Control flow never counts as a number.
fn is_number(graph: &Graph, node: &Node) -> bool {
    let mut ids = node.defined().peekable();
    !matches!(node.target, Target::HigherOrder(_))
        && ids.peek().is_some()
        && ids.all(|id| is_plain(graph, id))
}
