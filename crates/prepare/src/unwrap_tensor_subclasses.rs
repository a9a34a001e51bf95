//! Replaces weights that are tensor subclasses by the plain tensors that they contain.
//!
//! torchao's quantized weights are an example: the archive contains a pickled object, and the program extracts its
//! parts with `export.access_subclass_inner_tensor(weight, "qdata")`. Each part becomes a separate input, such as
//! `layer.weight.qdata`.

use std::collections::HashMap;

use coremill_pt2::{
    Argument, ExportedProgram, InputKind, Meta, Node, Output, StoredValue, ValueId,
    tensor_subclass_parts,
};

use crate::error::{Error, escape_truncated};

pub(crate) fn take_apart(program: &mut ExportedProgram) -> Result<(), Error> {
    if !program.graph.nodes.iter().any(takes_part) {
        return Ok(());
    }
    let mut names: HashMap<ValueId, String> = HashMap::new();
    for (kind, input) in program.inputs.iter().zip(&program.graph.inputs) {
        if let (
            InputKind::Parameter(name)
            | InputKind::Buffer { name, .. }
            | InputKind::TensorConstant(name),
            Argument::Value(id),
        ) = (kind, input)
        {
            names.insert(*id, name.clone());
        }
    }
    let mut taken: HashMap<String, ValueId> = HashMap::new();
    let mut same: HashMap<ValueId, ValueId> = HashMap::new();
    let mut kept = Vec::with_capacity(program.graph.nodes.len());
    for mut node in std::mem::take(&mut program.graph.nodes) {
        let mut rename = |argument: &mut Argument| {
            argument.map_values(&mut |id| Argument::Value(*same.get(&id).unwrap_or(&id)))
        };
        node.arguments.iter_mut().for_each(&mut rename);
        node.keywords.iter_mut().for_each(|(_, argument)| rename(argument));
        let ([Argument::Value(source), Argument::Text(attribute)], [Output::Value(result)], true) =
            (node.arguments.as_slice(), node.outputs.as_slice(), takes_part(&node))
        else {
            kept.push(node);
            continue;
        };
        let part = part(program, &names, *source, attribute, *result, &mut taken);
        let (name, id) = part.map_err(|error| error.in_node(&node.name))?;
        same.insert(*result, id);
        names.insert(id, name);
    }
    for output in &mut program.graph.outputs {
        output.map_values(&mut |id| Argument::Value(*same.get(&id).unwrap_or(&id)));
    }
    program.graph.nodes = kept;
    drop_objects(program);
    Ok(())
}

fn takes_part(node: &Node) -> bool {
    node.target.is("export", "access_subclass_inner_tensor", "default")
}

/// The name and the input of a part. The input is created on first use.
fn part(
    program: &mut ExportedProgram,
    names: &HashMap<ValueId, String>,
    source: ValueId,
    attribute: &str,
    result: ValueId,
    taken: &mut HashMap<String, ValueId>,
) -> Result<(String, ValueId), Error> {
    let whole = names.get(&source).ok_or_else(|| {
        Error::unsupported(format!(
            "`{}` is read from a computed tensor; only attributes of weights are supported",
            escape_truncated(attribute)
        ))
    })?;
    let name = format!("{whole}.{attribute}");
    if let Some(id) = taken.get(&name) {
        return Ok((name, *id));
    }
    if !program.tensors.contains_key(&name) {
        let Some(StoredValue::Object(bytes)) = program.tensors.get(whole) else {
            return Err(Error::malformed(format!(
                "`{}` is a plain tensor and has no attribute `{}`",
                escape_truncated(whole),
                escape_truncated(attribute)
            )));
        };
        let parts =
            tensor_subclass_parts(bytes.clone(), whole).map_err(|error| error.in_entry(whole))?;
        for (attribute, stored) in parts {
            program.tensors.entry(format!("{whole}.{attribute}")).or_insert(stored);
        }
    }
    let (Some(StoredValue::Tensor(tensor)), Meta::Tensor(meta)) =
        (program.tensors.get(&name), &program.graph.value(result).meta)
    else {
        return Err(Error::unsupported(format!(
            "the object `{}` has no tensor `{}`",
            escape_truncated(whole),
            escape_truncated(attribute)
        ))
        .with_hint("call `torchao.utils.unwrap_tensor_subclass(model)` before the export"));
    };
    let sizes = meta.sizes.iter().map(|size| size.extent());
    if tensor.dtype != meta.dtype || !sizes.eq(tensor.sizes.iter().copied().map(Some)) {
        return Err(Error::malformed(format!(
            "`{}` is stored as {} {:?}, but the program expects {} {:?}",
            escape_truncated(&name),
            tensor.dtype,
            tensor.sizes,
            meta.dtype,
            meta.sizes
        )));
    }
    // Weights precede the user's inputs.
    let at = program.inputs.iter().position(|kind| *kind == InputKind::User);
    let at = at.unwrap_or(program.inputs.len());
    program.inputs.insert(at, InputKind::Parameter(name.clone()));
    program.graph.inputs.insert(at, Argument::Value(result));
    taken.insert(name.clone(), result);
    Ok((name, result))
}

/// Removes inputs for objects that are only used through their parts.
fn drop_objects(program: &mut ExportedProgram) {
    let mut used = vec![false; program.graph.values.len()];
    let graph = &program.graph;
    let arguments = graph.nodes.iter().flat_map(|node| node.all_arguments());
    for argument in arguments.chain(&graph.outputs) {
        argument.for_each_value(&mut |id| used[id.index()] = true);
    }
    let idle = |kind: &InputKind, input: &Argument| match (kind, input) {
        (InputKind::Parameter(name) | InputKind::Buffer { name, .. }, Argument::Value(id)) => {
            !used[id.index()] && matches!(program.tensors.get(name), Some(StoredValue::Object(_)))
        }
        _ => false,
    };
    let keep: Vec<bool> = program
        .inputs
        .iter()
        .zip(&program.graph.inputs)
        .map(|(kind, input)| !idle(kind, input))
        .collect();
    let mut flags = keep.iter();
    program.inputs.retain(|_| flags.next() == Some(&true));
    let mut flags = keep.iter();
    program.graph.inputs.retain(|_| flags.next() == Some(&true));
}
