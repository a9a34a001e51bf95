//! A partition as a program of its own.

use std::collections::HashSet;

use coremill_pt2::{
    Argument, ExportedProgram, Graph, InputKind, Meta, OutputKind, Size, TensorMeta, ValueId,
};

use super::flow::Flow;
use crate::error::{Result, refuse};
use crate::lower::MAX_RANK;

/// State and constants that partitions take over from the surrounding program.
#[derive(Clone, Copy, Debug)]
pub(super) struct TakeOver {
    /// Whether parameters and constants become part of the partition. Otherwise they are inputs.
    pub(super) constants: bool,
    /// Whether a mutable buffer becomes a state if only one partition uses it.
    pub(super) buffers: bool,
    /// Whether the new value of a state may also leave its partition. ExecuTorch's partitioner removes it from the
    /// graph.
    pub(super) shares_new_values: bool,
}

/// A partition, as a program of its own.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    /// Indices of its calls in the original graph.
    pub(crate) calls: Vec<usize>,
    /// Indices of its calls and of the numbers they use: the nodes of its program.
    pub(crate) nodes: Vec<usize>,
    /// The partition as a program. Values keep their ids.
    pub(crate) program: ExportedProgram,
    /// Inputs at run time, without weights and states.
    pub(crate) inputs: Vec<ValueId>,
    /// Output values.
    pub(crate) outputs: Vec<ValueId>,
    /// Names of the buffers kept as states.
    pub(crate) states: Vec<String>,
}

/// Extracts a partition from a program. `frame` is the program without graph and tensors.
pub(super) fn cut(
    program: &ExportedProgram,
    frame: &ExportedProgram,
    flow: &Flow,
    calls: &[usize],
    take_over: TakeOver,
) -> Part {
    let graph = &program.graph;
    let nodes = flow.with_numbers(graph, calls);
    let inside: HashSet<usize> = calls.iter().copied().collect();
    let own: HashSet<ValueId> = nodes.iter().flat_map(|&at| graph.nodes[at].defined()).collect();
    let mut used = HashSet::new();
    for &node in &nodes {
        graph.nodes[node].for_each_use(&mut |id| {
            if !own.contains(&id) {
                used.insert(id);
            }
        });
    }

    let mut part = Part {
        calls: calls.to_vec(),
        nodes,
        program: frame.clone(),
        inputs: Vec::new(),
        outputs: Vec::new(),
        states: Vec::new(),
    };
    let mut outputs = Vec::new();
    let mut input_kinds = Vec::new();
    let mut input_arguments = Vec::new();
    for (argument, kind) in graph.inputs.iter().zip(&program.inputs) {
        let Argument::Value(id) = argument else { continue };
        if !used.contains(id) {
            continue;
        }
        let kind = match kind {
            InputKind::Parameter(name)
            | InputKind::TensorConstant(name)
            | InputKind::Buffer { name, .. } => match program.written(name) {
                Some(new) => {
                    let is_own = take_over.buffers
                        && can_be_state(&graph.value(*id).meta)
                        && own.contains(&new)
                        && !flow.is_result[id.index()]
                        && flow.users[id.index()].iter().all(|user| inside.contains(user))
                        && (take_over.shares_new_values
                            || flow.users[new.index()].iter().all(|user| inside.contains(user))
                                && times_given(graph, flow, new) == 1);
                    if is_own {
                        part.states.push(name.clone());
                        outputs
                            .push((Argument::Value(new), OutputKind::BufferMutation(name.clone())));
                        InputKind::Buffer { name: name.clone(), persistent: true }
                    } else {
                        InputKind::User
                    }
                }
                None if take_over.constants => kind.clone(),
                None => InputKind::User,
            },
            InputKind::User
            | InputKind::Constant(_)
            | InputKind::CustomObject(_)
            | InputKind::Token => kind.clone(),
        };
        match &kind {
            InputKind::User => part.inputs.push(*id),
            InputKind::Parameter(name)
            | InputKind::TensorConstant(name)
            | InputKind::Buffer { name, .. } => {
                if let Some(stored) = program.tensors.get(name) {
                    part.program.tensors.insert(name.clone(), stored.clone());
                }
            }
            InputKind::Constant(_) | InputKind::CustomObject(_) | InputKind::Token => {}
        }
        input_kinds.push(kind);
        input_arguments.push(argument.clone());
    }
    let mut given: Vec<ValueId> =
        used.into_iter().filter(|id| flow.producer[id.index()].is_some()).collect();
    given.sort_by_key(|id| (flow.producer[id.index()], *id));
    for id in given {
        part.inputs.push(id);
        input_kinds.push(InputKind::User);
        input_arguments.push(Argument::Value(id));
    }

    // Outputs of the program come first, in their order.
    let mut wanted: Vec<ValueId> = Vec::new();
    for (output, kind) in graph.outputs.iter().zip(&program.outputs) {
        if matches!(kind, OutputKind::BufferMutation(name) | OutputKind::ParameterMutation(name)
            if part.states.contains(name))
        {
            continue;
        }
        output.for_each_value(&mut |id| wanted.extend(flow.behind(graph, id)));
    }
    for &call in calls {
        let leaves = graph.nodes[call]
            .defined()
            .filter(|id| flow.users[id.index()].iter().any(|user| !inside.contains(user)));
        wanted.extend(leaves);
    }
    let mut seen = HashSet::new();
    wanted.retain(|id| own.contains(id) && seen.insert(*id));
    outputs.extend(wanted.iter().map(|&id| (Argument::Value(id), OutputKind::User)));
    part.outputs = wanted;

    let (output_arguments, output_kinds) = outputs.into_iter().unzip();
    part.program.graph = Graph {
        values: graph.values.clone(),
        inputs: input_arguments,
        outputs: output_arguments,
        nodes: part.nodes.iter().map(|&node| graph.nodes[node].clone()).collect(),
        single_return: false,
    };
    part.program.inputs = input_kinds;
    part.program.outputs = output_kinds;
    part
}

/// Number of the graph's outputs that are a value or are computed from it through numbers only.
pub(super) fn times_given(graph: &Graph, flow: &Flow, value: ValueId) -> usize {
    let mut count = 0;
    for output in &graph.outputs {
        output.for_each_value(&mut |id| {
            count += usize::from(flow.behind(graph, id).contains(&value));
        });
    }
    count
}

/// States must be floats of static shape.
pub(super) fn can_be_state(meta: &Meta) -> bool {
    let Meta::Tensor(meta) = meta else { return false };
    let is_fixed = |size: &Size| size.fixed().is_some_and(|extent| extent > 0);
    crate::lower::is_float(meta.dtype)
        && meta.sizes.len() <= MAX_RANK
        && meta.sizes.iter().all(is_fixed)
}

/// Checks that a value can cross the boundary of a delegate.
pub(super) fn crosses(name: &str, meta: &Meta) -> Result<()> {
    use coremill_pt2::ScalarType::*;
    let meta: &TensorMeta = match meta {
        Meta::Tensor(meta) => meta,
        Meta::Int(_) | Meta::Float(_) | Meta::Bool(_) => return Ok(()),
        Meta::CustomObject(class) => refuse!("`{name}` is an object of class `{class}`"),
        Meta::Token => return Ok(()),
    };
    match meta.dtype {
        UInt8 | Int8 | Int16 | Int32 | Int64 | Float16 | Float32 | Float64 | BFloat16 | Bool => {}
        other => refuse!("`{name}` holds `{other}`, which cannot enter or leave a delegate"),
    }
    if meta.sizes.len() > MAX_RANK {
        refuse!(
            "`{name}` has {} axes; up to {MAX_RANK} can enter or leave a delegate",
            meta.sizes.len()
        );
    }
    if meta.sizes.iter().any(|size| size.fixed() == Some(0)) {
        refuse!("`{name}` is empty; Core ML has no tensors without elements");
    }
    Ok(())
}
