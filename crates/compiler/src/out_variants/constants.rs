//! Pre-permuted weights.
//!
//! A call that only permutes a weight is removed: the weight is stored as a permuted view of the same bytes, which
//! the writer gathers once. If the weight has other uses, the call stays, so that nothing is stored twice.

use std::collections::HashMap;

use coremill_pt2::{Argument, ExportedProgram, InputKind, Node, Output, StoredValue, ValueId};

/// Removes permutations of weights from the graph. `sources` has one entry per node.
pub(super) fn turn(program: &mut ExportedProgram, sources: &mut Vec<usize>, outside: &[bool]) {
    let weights = weights(program);
    let mut uses: HashMap<ValueId, usize> = HashMap::new();
    let graph = &program.graph;
    let arguments = graph.nodes.iter().flat_map(|node| node.all_arguments());
    for argument in arguments.chain(&graph.outputs) {
        argument.for_each_value(&mut |id| *uses.entry(id).or_default() += 1);
    }
    let mut turned: HashMap<ValueId, (ValueId, Vec<usize>)> = HashMap::new();
    for (node, source) in graph.nodes.iter().zip(sources.iter()) {
        let Some((weight, result, order)) = permutation(node) else { continue };
        let known = weights.get(&weight).is_some_and(|name| {
            matches!(program.tensors.get(name), Some(StoredValue::Tensor(tensor)) if tensor.sizes.len() == order.len())
        });
        if known && uses.get(&weight) == Some(&1) && outside.get(*source) == Some(&true) {
            turned.insert(result, (weight, order));
        }
    }
    if turned.is_empty() {
        return;
    }
    let is_turned =
        |node: &Node| permutation(node).is_some_and(|(_, result, _)| turned.contains_key(&result));
    let mut kept = program.graph.nodes.iter().map(|node| !is_turned(node));
    sources.retain(|_| kept.next() == Some(true));
    program.graph.nodes.retain(|node| !is_turned(node));
    let results: HashMap<ValueId, (ValueId, Vec<usize>)> =
        turned.into_iter().map(|(result, (weight, order))| (weight, (result, order))).collect();
    for (input, kind) in program.graph.inputs.iter_mut().zip(&mut program.inputs) {
        let Argument::Value(id) = input else { continue };
        let Some((result, order)) = results.get(id) else { continue };
        let Some(name) = weights.get(id) else { continue };
        let Some(StoredValue::Tensor(tensor)) = program.tensors.get(name) else { continue };
        let mut tensor = tensor.clone();
        tensor.sizes = order.iter().map(|from| tensor.sizes[*from]).collect();
        tensor.strides = order.iter().map(|from| tensor.strides[*from]).collect();
        let digits: Vec<_> = order.iter().map(usize::to_string).collect();
        let name = format!("{name}.permuted_{}", digits.join("_"));
        program.tensors.insert(name.clone(), StoredValue::Tensor(tensor));
        *input = Argument::Value(*result);
        *kind = InputKind::Parameter(name);
    }
}

/// Names of parameters, constants and buffers that are never written to, by graph input.
fn weights(program: &ExportedProgram) -> HashMap<ValueId, String> {
    let mut weights = HashMap::new();
    for (input, kind) in program.graph.inputs.iter().zip(&program.inputs) {
        if let (
            Argument::Value(id),
            InputKind::Parameter(name)
            | InputKind::Buffer { name, .. }
            | InputKind::TensorConstant(name),
        ) = (input, kind)
            && program.written(name).is_none()
        {
            weights.insert(*id, name.clone());
        }
    }
    weights
}

/// Input, result and axis order of a call that permutes dimensions.
fn permutation(node: &Node) -> Option<(ValueId, ValueId, Vec<usize>)> {
    let ([Argument::Value(from), rest @ ..], [Output::Value(to)]) =
        (node.arguments.as_slice(), node.outputs.as_slice())
    else {
        return None;
    };
    let order = match rest {
        [Argument::List(order)] if node.target.is("aten", "permute_copy", "default") => {
            let rank = order.len();
            let place = |at: &Argument| match at {
                Argument::Int(at) => crate::decompose::call::position(*at, rank).ok(),
                _ => None,
            };
            let order: Vec<usize> = order.iter().map(place).collect::<Option<_>>()?;
            let mut sorted = order.clone();
            sorted.sort_unstable();
            sorted.into_iter().eq(0..rank).then_some(order)?
        }
        [] if node.target.is("aten", "t_copy", "default") => vec![1, 0],
        _ => return None,
    };
    Some((*from, *to, order))
}
