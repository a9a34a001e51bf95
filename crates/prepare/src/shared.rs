//! Merges inputs that are the same tensor. For example, static caches of transformers register buffers, and their
//! layers write to the same tensors as constants.

use std::collections::HashMap;

use coremill_pt2::{
    Argument, ExportedProgram, InputKind, OutputKind, ScalarType, StoredValue, ValueId,
};

/// Identity of a tensor: storage name, type, offset, sizes and strides.
type Place<'p> = (&'p str, ScalarType, u64, &'p [u64], &'p [u64]);

/// Replaces every constant and buffer that is the same tensor as a buffer by that buffer.
pub(crate) fn merge(program: &mut ExportedProgram) {
    let mut buffers: HashMap<Place<'_>, ValueId> = HashMap::new();
    for (kind, argument) in program.inputs.iter().zip(&program.graph.inputs) {
        if let (InputKind::Buffer { .. }, Argument::Value(id)) = (kind, argument)
            && let Some(place) = place(program, kind)
        {
            buffers.entry(place).or_insert(*id);
        }
    }
    let mut replaced: HashMap<ValueId, ValueId> = HashMap::new();
    for (kind, argument) in program.inputs.iter().zip(&program.graph.inputs) {
        let Argument::Value(id) = argument else { continue };
        let is_written = |name: &str| {
            program.outputs.iter().any(
                |output| matches!(output, OutputKind::BufferMutation(target) if target == name),
            )
        };
        let can_go = match kind {
            InputKind::TensorConstant(_) => true,
            InputKind::Buffer { name, .. } => !is_written(name),
            _ => false,
        };
        let buffer = place(program, kind).and_then(|place| buffers.get(&place));
        if let Some(&buffer) = buffer.filter(|&buffer| can_go && buffer != id) {
            replaced.insert(*id, buffer);
        }
    }
    if replaced.is_empty() {
        return;
    }
    let stays = |argument: &Argument| match argument {
        Argument::Value(id) => !replaced.contains_key(id),
        _ => true,
    };
    let mut inputs = program.graph.inputs.iter();
    program.inputs.retain(|_| inputs.next().is_none_or(stays));
    program.graph.inputs.retain(stays);
    let mut change = |id: ValueId| Argument::Value(*replaced.get(&id).unwrap_or(&id));
    for node in &mut program.graph.nodes {
        let keywords = node.keywords.iter_mut().map(|(_, argument)| argument);
        for argument in node.arguments.iter_mut().chain(keywords) {
            argument.map_values(&mut change);
        }
    }
    for output in &mut program.graph.outputs {
        output.map_values(&mut change);
    }
}

fn place<'p>(program: &'p ExportedProgram, kind: &InputKind) -> Option<Place<'p>> {
    let (InputKind::Buffer { name, .. } | InputKind::TensorConstant(name)) = kind else {
        return None;
    };
    match program.tensors.get(name) {
        Some(StoredValue::Tensor(tensor)) if tensor.elements() > 0 => Some((
            &tensor.storage_name,
            tensor.dtype,
            tensor.offset,
            &tensor.sizes,
            &tensor.strides,
        )),
        _ => None,
    }
}
