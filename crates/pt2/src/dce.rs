//! Dead code elimination: removes calls whose results are unused and that have no effects.

use crate::program::{Argument, Graph, Node, Output, Target, ValueId};

/// Namespaces whose operator schemas declare all effects.
const PURE_NAMESPACES: [&str; 7] =
    ["aten", "prims", "quant", "quantized_decomposed", "dim_order_ops", "torchvision", "torchao"];

/// Higher-order operators that have no effects except through the graphs they call.
const PURE_HIGHER_ORDER: [&str; 6] =
    ["cond", "while_loop", "scan", "map_impl", "associative_scan", "wrap_with_set_grad_enabled"];

impl Graph {
    /// Removes calls whose results are unused and that have no effects, and marks other unused results.
    /// Values are renumbered.
    pub fn remove_dead_code(&mut self) {
        remove(self);
    }
}

fn remove(graph: &mut Graph) {
    let mut used = vec![false; graph.values.len()];
    for argument in &graph.outputs {
        argument.for_each_value(&mut |id| used[id.0 as usize] = true);
    }
    let mut kept = Vec::with_capacity(graph.nodes.len());
    for mut node in std::mem::take(&mut graph.nodes).into_iter().rev() {
        let wanted = node.defined().any(|id| used[id.0 as usize]);
        if !wanted && !node.outputs.is_empty() && is_pure(&node) {
            continue;
        }
        // An assertion is kept although its result is unused, and so is the name of its result.
        if node.outputs.len() > 1 {
            for output in &mut node.outputs {
                if matches!(output, Output::Value(id) if !used[id.0 as usize]) {
                    *output = Output::Unused;
                }
            }
        }
        node.for_each_use(&mut |id| used[id.0 as usize] = true);
        kept.push(node);
    }
    kept.reverse();
    graph.nodes = kept;
    renumber(graph);
}

/// Whether a call has no effect other than its results.
fn is_pure(node: &Node) -> bool {
    match &node.target {
        Target::Operator { namespace, .. } => {
            PURE_NAMESPACES.contains(&namespace.as_str())
                && node.schema.as_ref().is_some_and(|schema| !schema.mutates())
        }
        Target::HigherOrder(name) => {
            PURE_HIGHER_ORDER.contains(&name.as_str())
                && node.arguments.iter().all(|argument| match argument {
                    Argument::Graph(inner) => inner.graph.nodes.iter().all(is_pure),
                    _ => true,
                })
        }
        Target::Function(name) => {
            ["_operator.", "math.", "torch.sym_"].iter().any(|prefix| name.starts_with(prefix))
        }
    }
}

/// Drops values that no input or node defines any more.
fn renumber(graph: &mut Graph) {
    let mut defined = vec![false; graph.values.len()];
    for input in &graph.inputs {
        input.for_each_value(&mut |id| defined[id.0 as usize] = true);
    }
    for node in &graph.nodes {
        node.defined().for_each(|id| defined[id.0 as usize] = true);
    }
    if defined.iter().all(|defined| *defined) {
        return;
    }
    let mut next = 0;
    let numbers: Vec<u32> = defined
        .iter()
        .map(|defined| {
            let number = next;
            next += u32::from(*defined);
            number
        })
        .collect();
    let mut index = 0;
    graph.values.retain(|_| {
        index += 1;
        defined[index - 1]
    });
    let rename = |id: &mut ValueId| id.0 = numbers[id.0 as usize];
    let arguments = graph.inputs.iter_mut().chain(&mut graph.outputs);
    arguments.for_each(|argument| each_value(argument, &rename));
    for node in &mut graph.nodes {
        let keywords = node.keywords.iter_mut().map(|(_, value)| value);
        node.arguments.iter_mut().chain(keywords).for_each(|value| each_value(value, &rename));
        for output in &mut node.outputs {
            match output {
                Output::Value(id) => rename(id),
                Output::List(ids) => ids.iter_mut().for_each(rename),
                Output::Unused | Output::None => {}
            }
        }
    }
}

fn each_value(argument: &mut Argument, visit: &dyn Fn(&mut ValueId)) {
    match argument {
        Argument::Value(id) => visit(id),
        Argument::List(items) => items.iter_mut().for_each(|item| each_value(item, visit)),
        Argument::Map(items) => items.iter_mut().for_each(|(_, item)| each_value(item, visit)),
        _ => {}
    }
}
