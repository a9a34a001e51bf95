//! Replaces computed sizes by sizes of inputs.
//!
//! If a size of a tensor equals a size of an input, it is read off the input. The tensor then need not leave its
//! delegate just for its size.

use std::collections::HashMap;

use coremill_pt2::{Argument, ExportedProgram, InputKind, Meta, Output, SymbolId, Target, ValueId};

/// Reads sizes off the user's inputs if possible.
pub(super) fn from_inputs(program: &mut ExportedProgram) {
    let mut known: HashMap<SymbolId, (ValueId, i64)> = HashMap::new();
    let graph = &mut program.graph;
    for (argument, kind) in graph.inputs.iter().zip(&program.inputs) {
        let (Argument::Value(id), InputKind::User) = (argument, kind) else { continue };
        let Meta::Tensor(meta) = &graph.value(*id).meta else { continue };
        for (axis, size) in (0..).zip(&meta.sizes) {
            if let Some(symbol) = size.symbol() {
                known.entry(symbol).or_insert((*id, axis));
            }
        }
    }
    for node in &mut graph.nodes {
        let is_size = matches!(&node.target, Target::Operator { namespace, name, overload }
            if namespace == "aten" && name == "sym_size" && overload == "int");
        let [Output::Value(size)] = node.outputs.as_slice() else { continue };
        let Meta::Int(size) = &graph.values[size.index()].meta else { continue };
        if let (true, Some((input, axis))) = (is_size, size.symbol().and_then(|s| known.get(&s)))
            && node.arguments.len() == 2
        {
            node.arguments = vec![Argument::Value(*input), Argument::Int(*axis)];
        }
    }
}
