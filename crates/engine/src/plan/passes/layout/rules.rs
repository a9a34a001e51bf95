//! Channels-last implementations of each operation.

use std::ops::Range;
use std::sync::Arc;

use coremill_kernels::matmul::Rounding;
use coremill_kernels::pooling::Pooling;
use coremill_mil::ir::OpId;
use coremill_mil::ops::OpKind;
use coremill_reference::array::Array;
use coremill_reference::error::{Result, fail};
use coremill_reference::ops::image_resizing::{self, Tap};
use coremill_reference::ops::pool::reach;
use coremill_reference::ops::{self, window};
use coremill_tensor::DType;

use super::super::super::graph::{Graph, Node, NodeKind, Operand, ReferenceOp, Region, SlotId};
use super::super::super::kernel::Kernel;
use super::super::Work;
use super::super::linear::rounding;
use super::super::parameters::parameters;
use super::images::{InstanceNorm, Resize};
use super::kernels::{ChannelAffine, GlobalMean, Pools};
use super::permute::Permute;
use super::shuffles::Shuffle;
use super::{
    FusedNodes, Layout, RegionBuilder, keeps_order, may_have_twin, permuted, to_first, to_last,
};
use crate::plan::ConstantTensor;

/// Channels-last implementation of an operation.
enum Rule {
    /// A convolution that [`absorb`](super::super::convolution::absorb) described.
    Convolution,
    Pool(Pools),
    /// A kernel that reads only `x`.
    Kernel(Box<dyn Kernel>),
    /// The same elementwise operation, on the twins of the operands at these indices.
    Elementwise(Vec<usize>),
    BatchNorm {
        scale: Vec<f32>,
        shift: Vec<f32>,
    },
    Prelu,
    /// The same operation on the twins of `operands`. Constants that refer to axes are replaced.
    Moved {
        operands: Vec<usize>,
        constants: Vec<(usize, Array)>,
    },
    /// Mean over all spatial axes.
    Mean,
    /// Any other reduction over all spatial axes, with a result of shape `[batch, channels]`.
    Flattened(Array, usize),
    /// A reshape to a shape and a permutation of its axes.
    Shuffled {
        shape: Vec<usize>,
        axes: Vec<usize>,
    },
    /// A reshape of the spatial axes.
    Reshaped,
    /// A permutation of axes.
    Transposed(Vec<usize>),
}

impl Rule {
    /// Returns true if the operation alone justifies permuting its input.
    fn is_anchor(&self) -> bool {
        matches!(self, Rule::Convolution | Rule::Pool(_))
    }
}

/// Marks the slots that channels-last operations use.
pub(super) fn wanted(work: &Work<'_>, region: &Region, known: &FusedNodes) -> Vec<bool> {
    let mut wanted = vec![false; work.graph.slots.len()];
    for node in region.nodes.iter().rev() {
        let Some(rule) = rule(work, node, known) else { continue };
        let useful = rule.is_anchor() || node.outputs.iter().any(|slot| wanted[slot.index()]);
        if useful && !matches!(rule, Rule::Transposed(_)) {
            for slot in node.inputs.iter().filter_map(Operand::slot) {
                wanted[slot.index()] = true;
            }
        }
    }
    wanted
}

/// Emits a node on twins, if that is possible and worthwhile. Otherwise returns the node.
pub(super) fn apply(
    layout: &mut Layout<'_, '_>,
    draft: &mut RegionBuilder,
    node: Node,
) -> Result<Option<Node>> {
    let Some(rule) = rule(layout.work, &node, &draft.known) else { return Ok(Some(node)) };
    if let Rule::Transposed(axes) = rule {
        return Ok(transpose(layout, draft, node, &axes));
    }
    let wanted = node.outputs.iter().any(|slot| draft.wanted.get(slot.index()) == Some(&true));
    let mut slots = node.inputs.iter().filter_map(Operand::slot);
    let is_ready = slots.any(|slot| {
        let scope = &layout.scope;
        scope.pending.contains_key(&slot) || wanted && scope.twins.contains_key(&slot)
    });
    if !rule.is_anchor() && !is_ready {
        return Ok(match rule {
            Rule::BatchNorm { scale, shift } => in_own_order(layout, draft, node, scale, shift),
            _ => Some(node),
        });
    }
    write(layout, draft, node, rule)?;
    Ok(None)
}

fn write(
    layout: &mut Layout<'_, '_>,
    draft: &mut RegionBuilder,
    node: Node,
    rule: Rule,
) -> Result<()> {
    let at = position(&node, "x").unwrap_or(0);
    let alpha = position(&node, "alpha").unwrap_or(0);
    let Node { op, kind, mut inputs, outputs } = node;
    let output = outputs[0];
    let rank = layout.shape_of(output).len();
    match rule {
        Rule::Convolution => {
            let Some(convolution) = draft.known.convolutions.remove(&output) else { return Ok(()) };
            for operand in &mut inputs {
                *operand = layout.last(draft, op, operand, rank)?;
            }
            let work = &*layout.work;
            let kernel = layout.kernels.make(work, convolution)?;
            let outputs = vec![layout.twin_to_write(output, op)];
            draft.nodes.push(Node { op, kind: NodeKind::Kernel(kernel), inputs, outputs });
        }
        Rule::Pool(pools) => {
            let inputs = vec![layout.last(draft, op, &inputs[at], rank)?];
            let kind = NodeKind::Kernel(Box::new(pools));
            let outputs = vec![layout.twin_to_write(output, op)];
            draft.nodes.push(Node { op, kind, inputs, outputs });
        }
        Rule::Kernel(kernel) => {
            let inputs = vec![layout.last(draft, op, &inputs[at], rank)?];
            let outputs = vec![layout.twin_to_write(output, op)];
            draft.nodes.push(Node { op, kind: NodeKind::Kernel(kernel), inputs, outputs });
        }
        Rule::Elementwise(operands) => {
            for at in operands {
                inputs[at] = layout.last(draft, op, &inputs[at].clone(), rank)?;
            }
            let outputs = vec![layout.twin_to_write(output, op)];
            draft.nodes.push(Node { op, kind, inputs, outputs });
        }
        Rule::BatchNorm { scale, shift } => {
            let x = layout.last(draft, op, &inputs[at], rank)?;
            let channels = scale.len();
            let [scale, shift] = [scale, shift].map(|floats| channel_constant(floats, &[channels]));
            match rounding(layout.work.source, layout.work.graph, output) {
                Rounding::None => {
                    let shape = layout.shape_of(output);
                    let product = layout.add_slot(output, permuted(&shape, &to_last(rank)));
                    let twin = layout.twin_to_write(output, op);
                    draft.nodes.extend(binary(layout, OpKind::Mul, op, [x, scale], product));
                    let product = Operand::Slot(product);
                    draft.nodes.extend(binary(layout, OpKind::Add, op, [product, shift], twin));
                }
                Rounding::Fp16 => {
                    let shape = permuted(&layout.shape_of(output), &to_last(rank));
                    let kind = NodeKind::Kernel(Box::new(ChannelAffine::new(shape)));
                    let (inputs, outputs) =
                        (vec![x, scale, shift], vec![layout.twin_to_write(output, op)]);
                    draft.nodes.push(Node { op, kind, inputs, outputs });
                }
            }
        }
        Rule::Prelu => {
            // One of the addends is 0, so that the sum needs no further rounding.
            let x = layout.last(draft, op, &inputs[at], rank)?;
            let Some(alpha) = inputs[alpha].constant() else { return Ok(()) };
            let alpha = alpha.array(layout.work.source)?.as_floats().unwrap_or_default().to_vec();
            let channels = alpha.len();
            let shape = permuted(&layout.shape_of(output), &to_last(rank));
            let [low, high, scaled] = [(); 3].map(|()| layout.add_slot(output, shape.clone()));
            let dtype = layout.work.graph.slot(output).dtype;
            let zero = || constant(Array::floats(dtype, [], vec![0.0]));
            let twin = layout.twin_to_write(output, op);
            let alpha = channel_constant(alpha, &[channels]);
            draft.nodes.extend(binary(layout, OpKind::Minimum, op, [x.clone(), zero()], low));
            draft.nodes.extend(binary(layout, OpKind::Maximum, op, [x, zero()], high));
            draft.nodes.extend(binary(
                layout,
                OpKind::Mul,
                op,
                [Operand::Slot(low), alpha],
                scaled,
            ));
            let [high, scaled] = [high, scaled].map(Operand::Slot);
            draft.nodes.extend(binary(layout, OpKind::Add, op, [high, scaled], twin));
        }
        Rule::Moved { operands, constants } => {
            for at in operands {
                inputs[at] = layout.last(draft, op, &inputs[at].clone(), rank)?;
            }
            for (at, array) in constants {
                inputs[at] = constant(array);
            }
            let outputs =
                outputs.into_iter().map(|output| layout.twin_to_write(output, op)).collect();
            draft.nodes.push(Node { op, kind, inputs, outputs });
        }
        Rule::Mean | Rule::Flattened(..) => {
            let x = layout.work.graph.shape(&inputs[at]).map_or(0, <[usize]>::len);
            inputs[at] = layout.last(draft, op, &inputs[at].clone(), x)?;
            let shape = layout.work.graph.shape(&inputs[at]).unwrap_or_default().to_vec();
            let kind = match rule {
                Rule::Flattened(axes, axes_at) => {
                    inputs[axes_at] = constant(axes);
                    kind
                }
                _ => {
                    inputs = vec![inputs[at].clone()];
                    let rounding = rounding(layout.work.source, layout.work.graph, output);
                    NodeKind::Kernel(Box::new(GlobalMean::new(&shape, rounding)))
                }
            };
            let outputs = match rank == x {
                true => vec![layout.twin_to_write(output, op)],
                false => outputs,
            };
            draft.nodes.push(Node { op, kind, inputs, outputs });
        }
        Rule::Shuffled { shape, axes } => {
            let inputs = vec![layout.last(draft, op, &inputs[at], rank)?];
            let outputs = vec![layout.twin_to_write(output, op)];
            let kind = match keeps_order(&shape, &axes) {
                true => NodeKind::Alias,
                false => NodeKind::Kernel(Box::new(Permute::new(shape, axes))),
            };
            draft.nodes.push(Node { op, kind, inputs, outputs });
        }
        Rule::Reshaped => {
            let x = layout.work.graph.shape(&inputs[at]).map_or(0, <[usize]>::len);
            let inputs = vec![layout.last(draft, op, &inputs[at], x)?];
            let outputs = vec![layout.twin_to_write(output, op)];
            draft.nodes.push(Node { op, kind, inputs, outputs });
        }
        Rule::Transposed(_) => {}
    }
    Ok(())
}

/// Replaces a transposition by its input's twin if only the twin exists. A transposition that moves
/// the channels from last to second defines a twin: its input.
fn transpose(
    layout: &mut Layout<'_, '_>,
    draft: &mut RegionBuilder,
    node: Node,
    axes: &[usize],
) -> Option<Node> {
    let ([Operand::Slot(from)], to) = (node.bound("x"), node.outputs[0]) else { return Some(node) };
    let from = *from;
    if layout.scope.pending.contains_key(&from)
        && let Some(&twin) = layout.scope.twins.get(&from)
    {
        let axes = permuted(&to_first(axes.len()), axes);
        layout.permute(draft, node.op, twin, to, axes);
        return None;
    }
    if axes == to_first(axes.len()) && may_have_twin(layout.work.graph, to) {
        layout.scope.twins.insert(to, from);
    }
    Some(node)
}

/// Replaces a batch normalization in the original layout by elementwise operations, which can be
/// fused with its neighbours.
fn in_own_order(
    layout: &mut Layout<'_, '_>,
    draft: &mut RegionBuilder,
    node: Node,
    scale: Vec<f32>,
    shift: Vec<f32>,
) -> Option<Node> {
    let output = node.outputs[0];
    if rounding(layout.work.source, layout.work.graph, output) != Rounding::None {
        return Some(node);
    }
    let op = node.op;
    let x = node.inputs[position(&node, "x")?].clone();
    if let Some(slot) = x.slot() {
        layout.put_back(draft, slot);
    }
    let shape = layout.shape_of(output);
    let mut channels = vec![1; shape.len() - 1];
    channels[0] = scale.len();
    let [scale, shift] = [scale, shift].map(|floats| channel_constant(floats, &channels));
    let product = layout.add_slot(output, shape);
    draft.nodes.extend(binary(layout, OpKind::Mul, op, [x, scale], product));
    draft.nodes.extend(binary(layout, OpKind::Add, op, [Operand::Slot(product), shift], output));
    None
}

fn constant(array: Array) -> Operand {
    Operand::Constant(Arc::new(ConstantTensor::new(array)))
}

fn channel_constant(floats: Vec<f32>, shape: &[usize]) -> Operand {
    constant(Array::floats(DType::Fp32, shape, floats))
}

/// Creates a node for an operation on two operands.
fn binary(
    layout: &Layout<'_, '_>,
    kind: OpKind,
    op: OpId,
    operands: [Operand; 2],
    output: SlotId,
) -> Option<Node> {
    let row = kind.row(layout.work.source.function.opset)?;
    let parameters = vec![("x".to_owned(), 0..1), ("y".to_owned(), 1..2)];
    let reference = ReferenceOp { function: ops::kernel(kind), row, parameters };
    let kind = NodeKind::Reference(reference);
    Some(Node { op, kind, inputs: operands.to_vec(), outputs: vec![output] })
}

/// Index of a parameter's only operand among the inputs.
fn position(node: &Node, name: &str) -> Option<usize> {
    let NodeKind::Reference(reference) = &node.kind else { return None };
    let (_, range) = reference.parameters.iter().find(|(parameter, _)| parameter == name)?;
    (range.len() == 1).then_some(range.start)
}

fn rule(work: &Work<'_>, node: &Node, known: &FusedNodes) -> Option<Rule> {
    let &output = node.outputs.first()?;
    if known.convolutions.contains_key(&output) {
        return Some(Rule::Convolution);
    }
    if let Some(Shuffle { shape, axes }) = known.shuffles.get(&output).cloned() {
        return Some(Rule::Shuffled { shape, axes });
    }
    let graph = &*work.graph;
    if let NodeKind::Alias = node.kind {
        return reshaped(graph, node);
    }
    let kind = node.operation()?;
    match kind {
        OpKind::MaxPool | OpKind::AvgPool | OpKind::L2Pool => return pool(work, node, kind),
        OpKind::Transpose => return transposition(work, node),
        OpKind::ReduceMean
        | OpKind::ReduceMax
        | OpKind::ReduceMin
        | OpKind::ReduceSum
        | OpKind::ReduceProd
        | OpKind::ReduceL1Norm
        | OpKind::ReduceL2Norm
        | OpKind::ReduceLogSum
        | OpKind::ReduceLogSumExp
        | OpKind::ReduceSumSquare => return reduction(work, node, kind),
        _ => {}
    }
    if !node.outputs.iter().all(|&output| may_have_twin(graph, output)) {
        return None;
    }
    match kind {
        OpKind::BatchNorm => batch_norm(work, node),
        OpKind::Prelu => {
            let alpha = node.bound("alpha").first()?.constant()?;
            let channels = graph.slot(output).shape.as_ref()?[1];
            (alpha.shape == [channels]).then_some(Rule::Prelu)
        }
        OpKind::Concat => concat(work, node),
        OpKind::Split => {
            let rank = single(graph, node)?.len();
            let axis = parameters(work.source, graph, node, |call| call.axis("axis", rank))?;
            let moved = vec![(position(node, "axis")?, one(to_first(rank)[axis]))];
            Some(Rule::Moved { operands: vec![position(node, "x")?], constants: moved })
        }
        OpKind::Pad => pad(work, node),
        OpKind::SliceByIndex => slice(work, node),
        OpKind::PixelShuffle
        | OpKind::PixelUnshuffle
        | OpKind::DepthToSpace
        | OpKind::SpaceToDepth => shuffle(work, node, kind),
        OpKind::Resize
        | OpKind::ResizeBilinear
        | OpKind::ResizeNearestNeighbor
        | OpKind::UpsampleBilinear
        | OpKind::UpsampleNearestNeighbor => resize(work, node, kind),
        OpKind::InstanceNorm => instance_norm(work, node),
        kind if is_elementwise(kind) => elementwise(graph, node),
        _ => None,
    }
}

/// The shape of a computed float tensor `x`.
fn single<'g>(graph: &'g Graph, node: &Node) -> Option<&'g [usize]> {
    let [Operand::Slot(x)] = node.bound("x") else { return None };
    may_have_twin(graph, *x).then(|| graph.slot(*x).shape.as_deref())?
}

fn one(value: usize) -> Array {
    Array::ints(DType::Int32, [], vec![i32::try_from(value).unwrap_or(i32::MAX)])
}

fn elementwise(graph: &Graph, node: &Node) -> Option<Rule> {
    let rank = graph.slot(node.outputs[0]).shape.as_ref()?.len();
    let names = ["x", "y"].iter().filter_map(|name| position(node, name));
    let operands: Vec<usize> = names.collect();
    for &at in &operands {
        let operand = &node.inputs[at];
        let floats = matches!(graph.dtype(operand), DType::Fp16 | DType::Fp32);
        if !floats || graph.shape(operand)?.len() > rank {
            return None;
        }
    }
    (!operands.is_empty()).then_some(Rule::Elementwise(operands))
}

fn reshaped(graph: &Graph, node: &Node) -> Option<Rule> {
    let &[Operand::Slot(from)] = &node.inputs[..] else { return None };
    let to = node.outputs[0];
    if !may_have_twin(graph, from) || !may_have_twin(graph, to) {
        return None;
    }
    let (from, to) = (graph.slot(from).shape.as_ref()?, graph.slot(to).shape.as_ref()?);
    (from[..2] == to[..2]).then_some(Rule::Reshaped)
}

fn transposition(work: &Work<'_>, node: &Node) -> Option<Rule> {
    let rank = single(work.graph, node)?.len();
    let axes = parameters(work.source, work.graph, node, |call| call.axes("perm", rank))?;
    let mut sorted = axes.clone();
    sorted.sort_unstable();
    sorted.iter().copied().eq(0..rank).then_some(Rule::Transposed(axes))
}

fn batch_norm(work: &Work<'_>, node: &Node) -> Option<Rule> {
    let channels = single(work.graph, node)?[1];
    let floats = |name: &str| -> Option<Vec<f32>> {
        let [operand] = node.bound(name) else { return None };
        let floats = operand.constant()?.array(work.source).ok()?.as_floats()?;
        (floats.len() == channels).then(|| floats.to_vec())
    };
    let or_all = |name: &str, value: f32| match node.bound(name) {
        [] => Some(vec![value; channels]),
        _ => floats(name),
    };
    position(node, "x")?;
    let (mean, variance) = (floats("mean")?, floats("variance")?);
    let (gamma, beta) = (or_all("gamma", 1.0)?, or_all("beta", 0.0)?);
    let epsilon = parameters(work.source, work.graph, node, |call| call.float("epsilon"))?;
    let scale = gamma.iter().zip(&variance);
    let scale: Vec<f32> =
        scale.map(|(gamma, variance)| gamma / (variance + epsilon).sqrt()).collect();
    let shift = beta.iter().zip(&mean).zip(&scale);
    let shift = shift.map(|((beta, mean), scale)| beta - mean * scale).collect();
    Some(Rule::BatchNorm { scale, shift })
}

fn concat(work: &Work<'_>, node: &Node) -> Option<Rule> {
    let graph = &*work.graph;
    let rank = graph.slot(node.outputs[0]).shape.as_ref()?.len();
    let NodeKind::Reference(reference) = &node.kind else { return None };
    let (_, range) = reference.parameters.iter().find(|(name, _)| name == "values")?;
    for operand in &node.inputs[range.clone()] {
        let floats = matches!(graph.dtype(operand), DType::Fp16 | DType::Fp32);
        if !floats || graph.shape(operand)?.len() != rank {
            return None;
        }
    }
    let axis = parameters(work.source, graph, node, |call| {
        if call.bool("interleave")? {
            fail!("interleaved")
        }
        call.axis("axis", rank)
    })?;
    let moved = vec![(position(node, "axis")?, one(to_first(rank)[axis]))];
    Some(Rule::Moved { operands: range.clone().collect(), constants: moved })
}

fn pad(work: &Work<'_>, node: &Node) -> Option<Rule> {
    let rank = single(work.graph, node)?.len();
    node.bound("pad").first()?.constant()?;
    let pads = parameters(work.source, work.graph, node, |call| call.ints("pad", 0))?;
    let mut all = vec![0; (2 * rank).checked_sub(pads.len())?];
    all.extend(pads);
    let pairs: Vec<[i32; 2]> = all.as_chunks::<2>().0.to_vec();
    let pads = permuted(&pairs, &to_last(rank)).concat();
    let moved = vec![(position(node, "pad")?, Array::ints(DType::Int32, [pads.len()], pads))];
    Some(Rule::Moved { operands: vec![position(node, "x")?], constants: moved })
}

fn slice(work: &Work<'_>, node: &Node) -> Option<Rule> {
    let rank = single(work.graph, node)?.len();
    let mut constants = Vec::new();
    for name in ["begin", "end", "stride", "begin_mask", "end_mask", "squeeze_mask"] {
        let operand = match node.bound(name) {
            [] => continue,
            [operand] => operand.constant()?,
            _ => return None,
        };
        let array = operand.array(work.source).ok()?;
        let ints = array.as_ints().filter(|ints| ints.len() == rank)?;
        if name == "squeeze_mask" && ints.iter().any(|&squeezed| squeezed != 0) {
            return None;
        }
        let array = Array::ints(array.dtype(), [rank], permuted(ints, &to_last(rank)));
        constants.push((position(node, name)?, array));
    }
    Some(Rule::Moved { operands: vec![position(node, "x")?], constants })
}

fn reduction(work: &Work<'_>, node: &Node, kind: OpKind) -> Option<Rule> {
    let graph = &*work.graph;
    let rank = single(graph, node)?.len();
    let (mut axes, keeps) = parameters(work.source, graph, node, |call| {
        Ok((call.axes_or_all("axes", rank)?, call.bool("keep_dims")?))
    })?;
    axes.sort_unstable();
    axes.dedup();
    let is_spatial = axes.iter().copied().eq(2..rank);
    if !node.bound("axes").iter().all(|axes| axes.constant().is_some()) {
        return None;
    }
    if is_spatial && kind == OpKind::ReduceMean {
        return Some(Rule::Mean);
    }
    let at = position(node, "axes")?;
    let moved: Vec<i32> = axes.iter().map(|&axis| to_first(rank)[axis] as i32).collect();
    let moved = Array::ints(DType::Int32, [moved.len()], moved);
    if keeps {
        return Some(Rule::Moved {
            operands: vec![position(node, "x")?],
            constants: vec![(at, moved)],
        });
    }
    is_spatial.then_some(Rule::Flattened(moved, at))
}

/// Returns true if a reduction covers exactly the spatial axes.
pub(in super::super) fn spatial_mean(work: &Work<'_>, node: &Node) -> bool {
    let Some(rank) = single(work.graph, node).map(<[usize]>::len).filter(|&rank| rank >= 3) else {
        return false;
    };
    let axes = parameters(work.source, work.graph, node, |call| call.axes_or_all("axes", rank));
    axes.is_some_and(|mut axes| {
        axes.sort_unstable();
        axes.dedup();
        axes.into_iter().eq(2..rank)
    })
}

/// The ranges that the windows of a `max_pool` cover along up to three axes. `None` if a window
/// covers no element.
pub(in super::super) fn max_pool_ranges(
    work: &Work<'_>,
    node: &Node,
) -> Option<[Vec<Range<usize>>; 3]> {
    let (windows, _) = pool_windows(work, node, OpKind::MaxPool)?;
    let absent = 3usize.checked_sub(windows.len())?;
    let ranges = [0, 1, 2].map(|axis: usize| match axis.checked_sub(absent) {
        Some(axis) => (0..windows[axis].output).map(|at| reach(&windows[axis], at).0).collect(),
        None => std::iter::once(0..1).collect(),
    });
    let all = |ranges: &Vec<Range<usize>>| ranges.iter().all(|range| !range.is_empty());
    ranges.iter().all(all).then_some(ranges)
}

fn pool(work: &Work<'_>, node: &Node, kind: OpKind) -> Option<Rule> {
    let (windows, excludes) = pool_windows(work, node, kind)?;
    let pooling = match kind {
        OpKind::MaxPool => Pooling::Max,
        OpKind::AvgPool => Pooling::Average { counts_padding: !excludes },
        _ => Pooling::L2,
    };
    let rounding = rounding(work.source, work.graph, node.outputs[0]);
    Some(Rule::Pool(Pools::new(pooling, single(work.graph, node)?, &windows, rounding)))
}

/// The windows of a pooling, and whether padding is excluded from the mean.
fn pool_windows(work: &Work<'_>, node: &Node, kind: OpKind) -> Option<(Vec<window::Window>, bool)> {
    let graph = &*work.graph;
    let input = single(graph, node)?;
    let output = graph.slot(node.outputs[0]).shape.as_deref()?;
    if position(node, "x").is_none() || output.contains(&0) || input.contains(&0) {
        return None;
    }
    parameters(work.source, graph, node, |call| {
        let spatial = input.len() - 2;
        let sizes = window::positive(call, "kernel_sizes", spatial)?;
        let sizes: Vec<usize> = sizes.into_iter().map(|size| size as usize).collect();
        let rounds_up = call.bool("ceil_mode")?;
        let windows = window::windows(call, &input[2..], &sizes, &vec![1; spatial], rounds_up)?;
        if windows.iter().zip(&output[2..]).any(|(window, &steps)| window.output != steps) {
            fail!("the windows do not match the output shape");
        }
        let excludes = kind == OpKind::AvgPool && call.bool("exclude_padding_from_average")?;
        Ok((windows, excludes))
    })
}

fn shuffle(work: &Work<'_>, node: &Node, kind: OpKind) -> Option<Rule> {
    let &[images, channels, height, width] = single(work.graph, node)? else { return None };
    let name = match kind {
        OpKind::PixelShuffle => "upscale_factor",
        OpKind::PixelUnshuffle => "downscale_factor",
        _ => "block_size",
    };
    let block = parameters(work.source, work.graph, node, |call| call.int(name))?;
    let block = usize::try_from(block).ok().filter(|&block| block > 0)?;
    let each = channels / block.checked_mul(block)?;
    let (shape, axes) = match kind {
        OpKind::PixelShuffle => {
            (vec![images, height, width, each, block, block], vec![0, 1, 4, 2, 5, 3])
        }
        OpKind::DepthToSpace => {
            (vec![images, height, width, block, block, each], vec![0, 1, 3, 2, 4, 5])
        }
        _ => {
            let shape = vec![images, height / block, block, width / block, block, channels];
            let axes = match kind {
                OpKind::PixelUnshuffle => vec![0, 1, 3, 5, 2, 4],
                _ => vec![0, 1, 3, 2, 4, 5],
            };
            (shape, axes)
        }
    };
    let whole = images * channels * height * width;
    (shape.iter().product::<usize>() == whole).then_some(Rule::Shuffled { shape, axes })
}

fn resize(work: &Work<'_>, node: &Node, kind: OpKind) -> Option<Rule> {
    let graph = &*work.graph;
    let input = single(graph, node)?;
    let output = graph.slot(node.outputs[0]).shape.as_deref()?;
    let rank = input.len();
    // Axes before the last two are batch axes, as long as the operation keeps their sizes.
    let kept = rank.saturating_sub(2).max(2);
    if output.len() != rank
        || output[..kept] != input[..kept]
        || output.contains(&0)
        || input.contains(&0)
    {
        return None;
    }
    let lines = parameters(work.source, graph, node, |call| {
        let resized = match kind {
            OpKind::Resize => usize::try_from(call.int("resized_dims")?).unwrap_or(0),
            _ => 2,
        };
        let taps = |axis: usize| match axis + resized < rank {
            true => Ok((0..input[axis]).map(|at| Tap { low: at, high: at, share: 0.0 }).collect()),
            false => image_resizing::taps(call, input[axis], output[axis]),
        };
        (kept..rank).map(taps).collect::<Result<Vec<_>>>()
    })?;
    let images = input[0] * input[2..kept].iter().product::<usize>();
    let rounding = rounding(work.source, graph, node.outputs[0]);
    let kernel = Resize::new(kind.name(), images, input[1], &input[kept..], lines, rounding);
    Some(Rule::Kernel(Box::new(kernel)))
}

fn instance_norm(work: &Work<'_>, node: &Node) -> Option<Rule> {
    let input = single(work.graph, node)?;
    let channels = input[1];
    let floats = |name: &str, value: f32| match node.bound(name) {
        [] => Some(vec![value; channels]),
        [operand] => {
            let floats = operand.constant()?.array(work.source).ok()?.as_floats()?;
            (floats.len() == channels).then(|| floats.to_vec())
        }
        _ => None,
    };
    let (gamma, beta) = (floats("gamma", 1.0)?, floats("beta", 0.0)?);
    let epsilon = parameters(work.source, work.graph, node, |call| call.float("epsilon"))?;
    if input.contains(&0) {
        return None;
    }
    let shape = permuted(input, &to_last(input.len()));
    let rounding = rounding(work.source, work.graph, node.outputs[0]);
    Some(Rule::Kernel(Box::new(InstanceNorm::new(&shape, gamma, beta, epsilon, rounding))))
}

/// Returns true for elementwise functions of `x`, or of `x` and `y`.
pub(in super::super) fn is_elementwise(kind: OpKind) -> bool {
    matches!(
        kind,
        OpKind::Abs
            | OpKind::Acos
            | OpKind::Add
            | OpKind::Asin
            | OpKind::Atan
            | OpKind::Atanh
            | OpKind::Cast
            | OpKind::Ceil
            | OpKind::ClampedRelu
            | OpKind::Clip
            | OpKind::Cos
            | OpKind::Cosh
            | OpKind::Elu
            | OpKind::Erf
            | OpKind::Exp
            | OpKind::Exp2
            | OpKind::Floor
            | OpKind::FloorDiv
            | OpKind::Gelu
            | OpKind::Inverse
            | OpKind::LeakyRelu
            | OpKind::LinearActivation
            | OpKind::Log
            | OpKind::Maximum
            | OpKind::Minimum
            | OpKind::Mod
            | OpKind::Mul
            | OpKind::Pow
            | OpKind::RealDiv
            | OpKind::Relu
            | OpKind::Relu6
            | OpKind::Round
            | OpKind::Rsqrt
            | OpKind::ScaledTanh
            | OpKind::Sigmoid
            | OpKind::SigmoidHard
            | OpKind::Sign
            | OpKind::Silu
            | OpKind::Sin
            | OpKind::Sinh
            | OpKind::Softplus
            | OpKind::Softsign
            | OpKind::Sqrt
            | OpKind::Square
            | OpKind::Sub
            | OpKind::Tan
            | OpKind::Tanh
            | OpKind::Threshold
            | OpKind::ThresholdedRelu
    )
}
