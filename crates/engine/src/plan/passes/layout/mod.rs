//! Lays tensors out with their channels last where convolutions and pools compute them.
//!
//! ```text
//! a = conv(x = x, weight = w)             x' = permute(x)
//! b = mul(x = a, y = s)                   a' = conv(x')
//! c = conv(x = b, weight = v)             b' = mul(x = a', y = s')
//! return c                                c' = conv(b')
//!                                         return permute(c')
//! ```
//!
//! A slot `[batch, channels, ...]` gets a twin `[batch, ..., channels]` where one is wanted. Operations whose
//! operands have twins work on these if they can; whoever cannot gets its tensors back in their own order.
//! Nobody permutes twice: twins are kept, and a tensor is put back in order once, where it is first needed.

mod images;
mod kernels;
mod permute;
mod rules;
mod shuffles;

use std::collections::HashMap;
use std::sync::Arc;

use coremill_mil::ir::OpId;

use super::super::graph::{Graph, Node, NodeKind, Operand, Region, Slot, SlotId, SlotKind};
use super::Work;
use super::convolution::{Convolution, Kernels, absorb};
use crate::array::Array;
use crate::error::{Error, Result};
use crate::geometry::{each_offset, strides};
use crate::plan::ConstantTensor;

pub(super) use permute::Permute;
pub(super) use rules::{is_elementwise, max_pool_ranges, spatial_mean};
use shuffles::Shuffle;

/// Lays out a whole graph.
pub(super) fn run(work: &mut Work<'_>) -> Result<()> {
    let body = std::mem::take(&mut work.graph.body);
    let mut layout = Layout { work, kernels: Kernels::default(), scope: Scope::default() };
    let body = layout.region(body)?;
    work.graph.body = body;
    Ok(())
}

struct Layout<'l, 'w> {
    work: &'l mut Work<'w>,
    kernels: Kernels,
    scope: Scope,
}

/// What is known inside a region.
#[derive(Clone, Default)]
struct Scope {
    /// The twins of slots.
    twins: HashMap<SlotId, SlotId>,
    /// Slots that have been computed only as their twins, and by which operation.
    pending: HashMap<SlotId, OpId>,
}

/// Nodes that stand for several, by the slots that they write.
struct FusedNodes {
    convolutions: HashMap<SlotId, Convolution>,
    shuffles: HashMap<SlotId, Shuffle>,
}

/// A region while it is written anew.
struct RegionBuilder {
    nodes: Vec<Node>,
    known: FusedNodes,
    /// Whether a slot is used by what computes with channels last, perhaps after functions that can do
    /// either, by [`SlotId::index`].
    wanted: Vec<bool>,
}

/// For a tensor of so many axes, the axes of its own order that those of its twin are.
pub(super) fn to_last(rank: usize) -> Vec<usize> {
    let mut axes = vec![0];
    axes.extend(2..rank);
    axes.push(1);
    axes
}

/// The inverse of [`to_last`].
pub(super) fn to_first(rank: usize) -> Vec<usize> {
    let mut axes = vec![0, rank - 1];
    axes.extend(1..rank - 1);
    axes
}

fn permuted<T: Clone>(extents: &[T], axes: &[usize]) -> Vec<T> {
    axes.iter().map(|&axis| extents[axis].clone()).collect()
}

/// Whether permuting axes leaves elements where they are.
fn keeps_order(shape: &[usize], axes: &[usize]) -> bool {
    axes.iter().filter(|&&axis| shape[axis] != 1).is_sorted()
}

impl Layout<'_, '_> {
    fn region(&mut self, region: Region) -> Result<Region> {
        let (region, convolutions) = absorb(self.work, region);
        let (region, shuffles) = shuffles::absorb(self.work, region);
        let known = FusedNodes { convolutions, shuffles };
        let wanted = rules::wanted(self.work, &region, &known);
        let Region { inputs, nodes, outputs, .. } = region;
        let mut draft = RegionBuilder { nodes: Vec::with_capacity(nodes.len()), known, wanted };
        for node in nodes {
            let op = node.op;
            let convert = self.convert(&mut draft, node);
            convert.map_err(|error| self.work.source.place(op, error))?;
        }
        for slot in outputs.iter().filter_map(Operand::slot) {
            self.put_back(&mut draft, slot);
        }
        Ok(Region { inputs, nodes: draft.nodes, outputs, releases: Vec::new() })
    }

    /// Writes a node, on twins if that is better.
    fn convert(&mut self, draft: &mut RegionBuilder, node: Node) -> Result<()> {
        let Some(mut node) = rules::apply(self, draft, node)? else { return Ok(()) };
        for slot in node.inputs.iter().filter_map(Operand::slot) {
            self.put_back(draft, slot);
        }
        let mut read = Vec::new();
        for region in node.regions() {
            region.reads(&mut |slot| read.push(slot));
        }
        for slot in read {
            self.put_back(draft, slot);
        }
        if let NodeKind::Cond(regions) | NodeKind::Loop(regions) = &mut node.kind {
            for region in regions.iter_mut() {
                let around = self.scope.clone();
                *region = self.region(std::mem::take(region))?;
                self.scope = around;
            }
        }
        draft.nodes.push(node);
        Ok(())
    }

    /// Makes sure that a slot holds its tensor in its own order.
    fn put_back(&mut self, draft: &mut RegionBuilder, slot: SlotId) {
        let Some(op) = self.scope.pending.remove(&slot) else { return };
        let Some(&twin) = self.scope.twins.get(&slot) else { return };
        let rank = self.shape_of(twin).len();
        self.permute(draft, op, twin, slot, to_first(rank));
    }

    fn shape_of(&self, slot: SlotId) -> Vec<usize> {
        self.work.graph.slot(slot).shape.clone().unwrap_or_default()
    }

    /// Writes one slot with the axes of another in a given order.
    fn permute(
        &self,
        draft: &mut RegionBuilder,
        op: OpId,
        from: SlotId,
        to: SlotId,
        axes: Vec<usize>,
    ) {
        let shape = self.shape_of(from);
        let kind = if keeps_order(&shape, &axes) {
            NodeKind::Alias
        } else {
            NodeKind::Kernel(Box::new(Permute::new(shape, axes)))
        };
        draft.nodes.push(Node { op, kind, inputs: vec![Operand::Slot(from)], outputs: vec![to] });
    }

    /// A new slot for floats like those of another.
    fn add_slot(&mut self, like: SlotId, shape: Vec<usize>) -> SlotId {
        let dtype = self.work.graph.slot(like).dtype;
        let slot = Slot { holds: SlotKind::Tensor, dtype, shape: Some(shape), value: None };
        self.work.graph.add_slot(slot)
    }

    /// The twin that a node is to write for a slot.
    fn twin_to_write(&mut self, slot: SlotId, op: OpId) -> SlotId {
        let shape = self.shape_of(slot);
        let twin = self.add_slot(slot, permuted(&shape, &to_last(shape.len())));
        self.scope.twins.insert(slot, twin);
        self.scope.pending.insert(slot, op);
        twin
    }

    /// An operand with its channels last, for an operation that broadcasts its operands to a rank.
    fn last(
        &mut self,
        draft: &mut RegionBuilder,
        op: OpId,
        operand: &Operand,
        rank: usize,
    ) -> Result<Operand> {
        match operand {
            Operand::Constant(known) => {
                let count: usize = known.shape.iter().product();
                if count == 1 && known.shape.len() < rank {
                    return Ok(operand.clone());
                }
                let mut shape = vec![1; rank.saturating_sub(known.shape.len())];
                shape.extend(&known.shape);
                let array = known.array(self.work.source)?;
                let array = permuted_array(array, &shape, &to_last(rank))?;
                Ok(Operand::Constant(Arc::new(ConstantTensor::new(array))))
            }
            Operand::Slot(slot) => {
                let mut slot = *slot;
                let shape = self.shape_of(slot);
                if shape.len() < rank {
                    if shape.iter().product::<usize>() == 1 {
                        self.put_back(draft, slot);
                        return Ok(operand.clone());
                    }
                    self.put_back(draft, slot);
                    let mut full = vec![1; rank - shape.len()];
                    full.extend(&shape);
                    let (from, to) = (slot, self.add_slot(slot, full));
                    let inputs = vec![Operand::Slot(from)];
                    draft.nodes.push(Node { op, kind: NodeKind::Alias, inputs, outputs: vec![to] });
                    slot = to;
                }
                Ok(Operand::Slot(self.channels_last_of(draft, op, slot)))
            }
        }
    }

    /// The twin of a slot.
    fn channels_last_of(&mut self, draft: &mut RegionBuilder, op: OpId, slot: SlotId) -> SlotId {
        if let Some(&twin) = self.scope.twins.get(&slot) {
            return twin;
        }
        let shape = self.shape_of(slot);
        let axes = to_last(shape.len());
        let twin = self.add_slot(slot, permuted(&shape, &axes));
        self.permute(draft, op, slot, twin, axes);
        self.scope.twins.insert(slot, twin);
        twin
    }
}

/// Whether a slot may have a twin.
fn may_have_twin(graph: &Graph, slot: SlotId) -> bool {
    let slot = graph.slot(slot);
    let rank = slot.shape.as_ref().map(Vec::len);
    slot.dtype.is_float()
        && slot.holds == SlotKind::Tensor
        && rank.is_some_and(|rank| (3..=5).contains(&rank))
}

/// An array, under a shape that holds as many elements, with its axes in another order.
fn permuted_array(array: &Array, shape: &[usize], axes: &[usize]) -> Result<Array> {
    let floats = array.as_floats().ok_or_else(|| Error::new("expects floats"))?;
    let result = permuted(shape, axes);
    let steps = permuted(&strides(shape), axes);
    let mut elements = Vec::with_capacity(floats.len());
    each_offset(&result, &steps, |at| elements.push(floats[at]));
    Ok(Array::floats(array.dtype(), result, elements))
}
