//! Fuses attention into one kernel. It reads queries, keys and values in the layout of their
//! projections, and writes results in the layout of the next projection.
//!
//! ```text
//! s = matmul(x = q, y = k, transpose_y = true)
//! t = mul(x = s, y = scale)
//! u = add(x = t, y = mask)
//! w = softmax(x = u, axis = -1)
//! m = matmul(x = w, y = v)
//! o = transpose(x = m, perm = [0, 2, 1, 3])         o = attention(q, k, v, mask)
//! ```
//!
//! With [`Numerics::Rounded`](crate::Numerics::Rounded) only the fp16
//! `scaled_dot_product_attention` is fused, since other forms round intermediate results.

mod cached;
mod grown;

use coremill_kernels::matmul::{AttentionShape, Heads, HeadsMut, Mask, Rounding, attend};
use coremill_mil::ops::OpKind;
use coremill_reference::array::{Array, View};
use coremill_reference::error::Result;
use coremill_reference::geometry::{broadcast_strides, strides as dense_strides};
use coremill_simd::math::round_to_fp16;
use coremill_tensor::DType;

use self::grown::{AttentionWithKvConcat, ConcatenatedKv, may_join};
use super::super::graph::{Graph, Node, NodeKind, Operand, Region, SlotId};
use super::super::kernel::{Cost, CpuContext, Kernel};
use super::linear::rounding;
use super::parameters::parameters;
use super::strided::{StridedSlice, seen, strided};
use super::{Editor, Work};
use crate::plan::{ConstantTensor, FunctionContext};

pub(super) use cached::lower as keep_words;

/// Fuses the attentions of a region.
pub(super) fn lower(work: &mut Work<'_>, region: Region) -> Result<Region> {
    let mut editor = Editor::new(work.graph, region);
    for index in 0..editor.len() {
        let Some(found) = recognise(work.source, work.graph, &editor, index) else { continue };
        let Some(plan) = Layout::of(work.source, work.graph, &editor, &found) else { continue };
        let place = plan.moved.last().copied().unwrap_or(found.last);
        let kernel = Attention {
            shape: plan.shape,
            scale: found.scale,
            query: (plan.query.offset, head_strides(&plan.query)),
            key: (plan.key.offset, head_strides(&plan.key)),
            value: (plan.value.offset, head_strides(&plan.value)),
            mask: plan.mask.as_ref().map(|(_, strides)| *strides),
            output: plan.output,
            rounding: rounding(work.source, work.graph, found.output),
        };
        let grown = joined(work, &editor, &found, [&plan.key, &plan.value], &kernel, place);
        let mut last = None;
        for &node in found.nodes.iter().chain(&plan.moved) {
            last = editor.take(node);
        }
        if let Some(Node { op, mut outputs, .. }) = last {
            let mut inputs = vec![plan.query.operand];
            let kind = match grown {
                Some(([keys, values], between)) => {
                    for node in between {
                        editor.take(node);
                    }
                    let kernel = AttentionWithKvConcat::new(kernel, &keys, &values);
                    for grown in [keys, values] {
                        editor.take(grown.node);
                        outputs.push(grown.slot);
                        inputs.extend(grown.pieces.into_iter().map(|piece| piece.operand));
                    }
                    NodeKind::Kernel(Box::new(kernel))
                }
                None => {
                    inputs.extend([plan.key.operand, plan.value.operand]);
                    NodeKind::Kernel(Box::new(kernel))
                }
            };
            inputs.extend(plan.mask.map(|(operand, _)| operand));
            editor.put(work.graph, place, Node { op, kind, inputs, outputs });
        }
    }
    Ok(editor.finish())
}

/// The keys and values, if they are concatenated only for this attention and it can do so itself.
/// Also returns the nodes that repeat the concatenated tensors.
fn joined(
    work: &Work<'_>,
    editor: &Editor,
    found: &AttentionMatch,
    views: [&StridedSlice; 2],
    kernel: &Attention,
    place: usize,
) -> Option<([ConcatenatedKv; 2], Vec<usize>)> {
    let [key, value] = [&views[0].operand, &views[1].operand];
    if found.key_is_transposed || !may_join(kernel) || key.slot() == value.slot() {
        return None;
    }
    let mut between = Vec::new();
    for (operand, view) in [&found.key, &found.value].into_iter().zip(views) {
        between.extend(repeating(work.graph, editor, operand, view)?);
    }
    let readers: Vec<usize> = found.nodes.iter().chain(&between).copied().collect();
    let grown =
        |operand| ConcatenatedKv::of(work.source, work.graph, editor, operand, &readers, place);
    Some(([grown(key)?, grown(value)?], between))
}

/// The nodes between the viewed tensor and the operand, if only the attention reads their outputs
/// and the view is dense.
fn repeating(
    graph: &Graph,
    editor: &Editor,
    operand: &Operand,
    view: &StridedSlice,
) -> Option<Vec<usize>> {
    let mut nodes = Vec::new();
    let mut at = operand.clone();
    while at.slot() != view.operand.slot() {
        let (index, node) = editor.writer_of(&at)?;
        editor.sole_reader(at.slot()?)?;
        at = match node.kind {
            NodeKind::Alias => node.inputs.first()?.clone(),
            _ => node.bound("x").first()?.clone(),
        };
        nodes.push(index);
    }
    let rows = |shape: &[usize]| shape.iter().rev().take(2).copied().collect::<Vec<_>>();
    let whole = graph.shape(&view.operand)?;
    let in_order = view.offset == 0
        && view.is_dense()
        && rows(whole) == rows(&view.shape)
        && whole.iter().product::<usize>() == view.shape.iter().product::<usize>();
    (nodes.is_empty() || in_order).then_some(nodes)
}

/// Nodes that form an attention.
struct AttentionMatch {
    query: Operand,
    key: Operand,
    /// Whether the last two axes of the keys are swapped.
    key_is_transposed: bool,
    value: Operand,
    mask: Option<Operand>,
    scale: f32,
    /// Indices of the nodes, in order.
    nodes: Vec<usize>,
    last: usize,
    output: SlotId,
}

fn recognise(
    source: &FunctionContext,
    graph: &Graph,
    editor: &Editor,
    index: usize,
) -> Option<AttentionMatch> {
    let node = editor.node(index)?;
    match node.operation()? {
        OpKind::ScaledDotProductAttention => {
            let one = |name: &str| node.bound(name).first().cloned();
            let query = one("query")?;
            let depth = *graph.shape(&query)?.last()?;
            Some(AttentionMatch {
                query,
                key: one("key")?,
                key_is_transposed: false,
                value: one("value")?,
                mask: one("attn_mask"),
                scale: 1.0 / (depth as f32).sqrt(),
                nodes: vec![index],
                last: index,
                output: node.outputs[0],
            })
        }
        OpKind::Softmax => written_out(source, graph, editor, index),
        _ => None,
    }
}

/// The attention around a softmax node.
fn written_out(
    source: &FunctionContext,
    graph: &Graph,
    editor: &Editor,
    index: usize,
) -> Option<AttentionMatch> {
    let softmax = editor.node(index)?;
    if rounding(source, graph, softmax.outputs[0]) != Rounding::None {
        return None;
    }
    let rank = graph.slot(softmax.outputs[0]).shape.as_ref()?.len();
    let axis = parameters(source, graph, softmax, |call| call.axis("axis", rank))?;
    if axis + 1 != rank {
        return None;
    }
    let (after, product) = editor.sole_reader(softmax.outputs[0])?;
    let weights = product.bound("x").first()?;
    if product.operation()? != OpKind::Matmul
        || weights.slot() != Some(softmax.outputs[0])
        || transposes(source, graph, product)? != (false, false)
    {
        return None;
    }
    let value = product.bound("y").first()?.clone();

    let mut nodes = vec![after, index];
    let (mut scale, mut mask) = (1.0, None);
    let mut scores = softmax.bound("x").first()?.clone();
    loop {
        let slot = scores.slot()?;
        let (at, node) = editor.writer_of(&scores)?;
        editor.sole_reader(slot)?;
        nodes.push(at);
        let [x, y] = ["x", "y"].map(|name| node.bound(name).first());
        let (x, y) = (x?, y?);
        match node.operation()? {
            OpKind::Matmul => {
                let (transpose_x, transpose_y) = transposes(source, graph, node)?;
                if transpose_x {
                    return None;
                }
                nodes.reverse();
                return Some(AttentionMatch {
                    query: x.clone(),
                    key: y.clone(),
                    key_is_transposed: !transpose_y,
                    value,
                    mask,
                    scale,
                    nodes,
                    last: after,
                    output: product.outputs[0],
                });
            }
            // The mask is added after scaling.
            OpKind::Add if mask.is_none() && scale == 1.0 => {
                let computed = |operand: &Operand| {
                    let shape = graph.shape(operand);
                    shape == graph.shape(&scores) && leads_to_product(graph, editor, operand)
                };
                let (inner, added) = if computed(x) { (x, y) } else { (y, x) };
                mask = Some(added.clone());
                scores = inner.clone();
            }
            OpKind::Mul if scale == 1.0 => {
                let (inner, factor) = if y.constant().is_some() { (x, y) } else { (y, x) };
                scale = number(source, factor)?;
                scores = inner.clone();
            }
            OpKind::RealDiv if scale == 1.0 => {
                scale = 1.0 / number(source, y)?;
                scores = x.clone();
            }
            _ => return None,
        }
    }
}

/// Returns true if an operand is a matrix product, possibly scaled.
fn leads_to_product(graph: &Graph, editor: &Editor, operand: &Operand) -> bool {
    let Some((_, node)) = editor.writer_of(operand) else { return false };
    match node.operation() {
        Some(OpKind::Matmul) => true,
        Some(OpKind::Mul | OpKind::RealDiv) => ["x", "y"].iter().any(|name| {
            node.bound(name).first().is_some_and(|operand| {
                graph.shape(operand) == graph.slot(node.outputs[0]).shape.as_deref()
                    && editor
                        .writer_of(operand)
                        .is_some_and(|(_, node)| node.operation() == Some(OpKind::Matmul))
            })
        }),
        _ => false,
    }
}

fn transposes(source: &FunctionContext, graph: &Graph, node: &Node) -> Option<(bool, bool)> {
    parameters(source, graph, node, |call| {
        Ok((call.bool("transpose_x")?, call.bool("transpose_y")?))
    })
}

/// The value of a constant with one element.
fn number(source: &FunctionContext, operand: &Operand) -> Option<f32> {
    match operand.constant()?.array(source).ok()?.as_floats() {
        Some([number]) => Some(*number),
        _ => None,
    }
}

/// Memory layout of an attention's operands.
struct Layout {
    shape: AttentionShape,
    /// As `[batch, heads, rows, depth]`.
    query: StridedSlice,
    key: StridedSlice,
    value: StridedSlice,
    mask: Option<(Operand, [usize; 4])>,
    /// Strides of the result by batch, head and query.
    output: [usize; 3],
    /// Later nodes that only move the result. The kernel writes directly in their layout.
    moved: Vec<usize>,
}

impl Layout {
    fn of(
        source: &FunctionContext,
        graph: &Graph,
        editor: &Editor,
        found: &AttentionMatch,
    ) -> Option<Layout> {
        let view = |operand: &Operand| -> Option<StridedSlice> {
            let look = strided(source, graph, editor, operand)?;
            let plain = StridedSlice {
                operand: operand.clone(),
                offset: 0,
                strides: dense_strides(&look.shape),
                shape: look.shape.clone(),
            };
            four_axes(look).or_else(|| four_axes(plain))
        };
        let float = |operand: &Operand| matches!(graph.dtype(operand), DType::Fp16 | DType::Fp32);
        if ![&found.query, &found.key, &found.value].into_iter().all(float) {
            return None;
        }
        let query = view(&found.query)?;
        let shared = |operand, swaps| shared(source, graph, editor, operand, swaps);
        let (mut key, value, group) =
            match (shared(&found.key, found.key_is_transposed), shared(&found.value, false)) {
                (Some((key, group)), Some((value, same))) if group == same => (key, value, group),
                _ => {
                    let key = match found.key_is_transposed {
                        false => view(&found.key)?,
                        true => swapped(strided(source, graph, editor, &found.key)?)?,
                    };
                    (key, view(&found.value)?, 1)
                }
            };
        if key.strides[3] != 1 && key.shape[3] != 1 {
            return None;
        }
        key.strides[3] = 1;
        let [batch, heads, queries, depth] = query.shape[..] else { return None };
        let [key_batch, key_heads, keys, key_depth] = key.shape[..] else { return None };
        let value_depth = *value.shape.get(3)?;
        let fits = (key_batch, key_heads * group, key_depth) == (batch, heads, depth)
            && value.shape[..3] == [batch, key_heads, keys];
        if !fits || [batch, heads, queries, keys, depth, value_depth].contains(&0) {
            return None;
        }
        let shape = AttentionShape { batch, heads, group, queries, keys, depth, value_depth };
        let mask = match &found.mask {
            Some(mask) => Some(mask_layout(source, graph, mask, found, &shape)?),
            None => None,
        };
        let dense = dense_strides(&[batch, heads, queries, value_depth]);
        let mut output = [dense[0], dense[1], dense[2]];
        let mut moved = Vec::new();
        if let Some((nodes, strides)) = follow(source, graph, editor, found.output, &shape) {
            (moved, output) = (nodes, strides);
        }
        let mut layout = Layout { shape, query, key, value, mask, output, moved };
        layout.stack();
        Some(layout)
    }

    /// With one query per head, treats the query heads that share a key head as rows of one head.
    fn stack(&mut self) {
        let AttentionShape { heads, group, queries, .. } = self.shape;
        if group == 1 || queries != 1 {
            return;
        }
        self.shape =
            AttentionShape { heads: heads / group, group: 1, queries: group, ..self.shape };
        let head = self.query.strides[1];
        self.query.shape = vec![self.shape.batch, heads / group, group, self.shape.depth];
        (self.query.strides[1], self.query.strides[2]) = (head * group, head);
        self.output = [self.output[0], self.output[1] * group, self.output[1]];
        if let Some((_, strides)) = &mut self.mask {
            *strides = [strides[0], strides[1] * group, strides[1], strides[3]];
        }
    }
}

/// Keys or values as `[batch, heads, rows, depth]`, and the number of query heads that share each
/// head. Repeated heads are read from the tensor before the repetition.
fn shared(
    source: &FunctionContext,
    graph: &Graph,
    editor: &Editor,
    operand: &Operand,
    swaps: bool,
) -> Option<(StridedSlice, usize)> {
    let heads = graph.shape(operand)?.len().checked_sub(3)?;
    let (view, group) = seen(source, graph, editor, operand)?.once(heads)?;
    let view = if swaps { swapped(view) } else { four_axes(view) };
    Some((view?, group))
}

/// A tensor as `[batch, heads, rows, depth]`, with stride 1 along the depth.
pub(super) fn four_axes(view: StridedSlice) -> Option<StridedSlice> {
    let shape = match view.shape[..] {
        [rows, depth] => [1, 1, rows, depth],
        [heads, rows, depth] => [1, heads, rows, depth],
        [ref sets @ .., heads, rows, depth] => [sets.iter().product(), heads, rows, depth],
        _ => return None,
    };
    let mut view = view.reshaped(&shape)?;
    if shape[3] == 1 {
        view.strides[3] = 1;
    }
    (view.strides[3] == 1).then_some(view)
}

/// A tensor with its last two axes swapped, as `[batch, heads, rows, depth]`.
fn swapped(mut view: StridedSlice) -> Option<StridedSlice> {
    let rank = view.shape.len();
    if rank < 2 {
        return None;
    }
    view.shape.swap(rank - 1, rank - 2);
    view.strides.swap(rank - 1, rank - 2);
    four_axes(view)
}

fn head_strides(view: &StridedSlice) -> [usize; 3] {
    [view.strides[0], view.strides[1], view.strides[2]]
}

/// The operand added to the scores, as floats, and its strides.
fn mask_layout(
    source: &FunctionContext,
    graph: &Graph,
    mask: &Operand,
    found: &AttentionMatch,
    shape: &AttentionShape,
) -> Option<(Operand, [usize; 4])> {
    let mut operand = mask.clone();
    if !graph.dtype(mask).is_float() {
        let known = mask.constant()?;
        let bools = known.array(source).ok()?;
        let hidden = |&seen: &i32| if seen != 0 { 0.0 } else { f32::NEG_INFINITY };
        let floats = bools.as_ints()?.iter().map(hidden).collect();
        let array = Array::floats(DType::Fp32, bools.shape(), floats);
        operand = Operand::Constant(std::sync::Arc::new(ConstantTensor::new(array)));
    }
    let from = graph.shape(mask)?;
    // The axes before the heads are merged to the batch.
    let query = graph.shape(&found.query)?;
    let rank = query.len();
    let mut scores = query.to_vec();
    *scores.last_mut()? = shape.keys;
    if from.len() > rank {
        return None;
    }
    let fits = |(axis, &extent): (usize, &usize)| {
        extent == 1 || extent == scores[axis + rank - from.len()]
    };
    if !from.iter().enumerate().all(fits) {
        return None;
    }
    let strides = broadcast_strides(from, &scores);
    let view = StridedSlice { operand, offset: 0, shape: scores, strides };
    let mut four = [0; 4];
    match rank {
        2 => four[2..].copy_from_slice(&view.strides),
        3 => four[1..].copy_from_slice(&view.strides),
        4 => four.copy_from_slice(&view.strides),
        _ => {
            let sets = &view.strides[..rank - 3];
            if sets.iter().any(|&stride| stride != 0) {
                return None;
            }
            four[1..].copy_from_slice(&view.strides[rank - 3..]);
        }
    }
    (four[3] <= 1).then_some((view.operand, four))
}

/// The later nodes that only move the result, and the strides that write the result in their
/// layout.
fn follow(
    source: &FunctionContext,
    graph: &Graph,
    editor: &Editor,
    output: SlotId,
    shape: &AttentionShape,
) -> Option<(Vec<usize>, [usize; 3])> {
    let AttentionShape { batch, heads, queries, value_depth, .. } = *shape;
    let mut best = None;
    let mut nodes = Vec::new();
    let mut slot = output;
    while let Some((reader, node)) = editor.sole_reader(slot) {
        let moves =
            matches!(node.kind, NodeKind::Alias) || node.operation() == Some(OpKind::Transpose);
        if !moves {
            break;
        }
        nodes.push(reader);
        slot = *node.outputs.first()?;
        let view = strided(source, graph, editor, &Operand::Slot(slot))?;
        if view.operand.slot() != Some(output) {
            break;
        }
        // The result's axes in order, with the strides of the moved tensor.
        let dense = dense_strides(&view.shape);
        let mut axes: Vec<usize> =
            (0..view.shape.len()).filter(|&axis| view.shape[axis] != 1).collect();
        axes.sort_by_key(|&axis| std::cmp::Reverse(view.strides[axis]));
        let inverse = StridedSlice {
            shape: axes.iter().map(|&axis| view.shape[axis]).collect(),
            strides: axes.iter().map(|&axis| dense[axis]).collect(),
            ..view
        };
        if let Some(inverse) = inverse.reshaped(&[batch, heads, queries, value_depth])
            && (inverse.strides[3] == 1 || value_depth == 1)
        {
            best = Some((nodes.clone(), head_strides(&inverse)));
        }
    }
    best
}

#[derive(Clone)]
pub(super) struct Attention {
    pub(super) shape: AttentionShape,
    pub(super) scale: f32,
    /// Offset of the first vector, and strides.
    pub(super) query: (usize, [usize; 3]),
    key: (usize, [usize; 3]),
    value: (usize, [usize; 3]),
    pub(super) mask: Option<[usize; 4]>,
    pub(super) output: [usize; 3],
    rounding: Rounding,
}

impl Attention {
    /// Rounds results to the operation's type.
    pub(super) fn round(&self, machine: &CpuContext, results: &mut [f32]) {
        if self.rounding == Rounding::Fp16 {
            round_to_fp16(machine.isa, results);
        }
    }
}

impl Kernel for Attention {
    fn run(
        &self,
        machine: &CpuContext,
        inputs: &[View<'_>],
        outputs: &mut [&mut [f32]],
        _scratch: &mut [f32],
    ) -> Result<()> {
        let heads = |index: usize, (offset, strides): (usize, [usize; 3])| -> Result<Heads<'_>> {
            Ok(Heads { elements: &inputs[index].floats()?[offset..], strides })
        };
        let mask = match self.mask {
            Some(strides) => Some(Mask { elements: inputs[3].floats()?, strides }),
            None => None,
        };
        attend(
            &machine.pool,
            machine.isa,
            self.shape,
            self.scale,
            heads(0, self.query)?,
            heads(1, self.key)?,
            heads(2, self.value)?,
            mask,
            HeadsMut { elements: outputs[0], strides: self.output },
        );
        self.round(machine, outputs[0]);
        Ok(())
    }

    fn on_states(&self, states: [usize; 2], shapes: [&[usize]; 2]) -> Option<Box<dyn Kernel>> {
        Some(Box::new(self.cached(states, shapes)?))
    }

    fn label(&self) -> String {
        "attention".to_owned()
    }

    fn cost(&self) -> Cost {
        let AttentionShape { batch, heads, queries, keys, depth, value_depth, .. } = self.shape;
        let vectors = batch * heads;
        let (depths, rows) = (depth + value_depth, queries + keys);
        Cost {
            operations: 2 * (vectors * queries * keys * depths) as u64,
            bytes: 4 * (vectors * rows * depths) as u64,
        }
    }
}
