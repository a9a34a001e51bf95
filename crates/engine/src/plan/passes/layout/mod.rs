//! Selects channels-last layout for convolutions, pooling and the operations between them.
//!
//! ```text
//! a = conv(x = x, weight = w)             x' = permute(x)
//! b = mul(x = a, y = s)                   a' = conv(x')
//! c = conv(x = b, weight = v)             b' = mul(x = a', y = s')
//! return c                                c' = conv(b')
//!                                         return permute(c')
//! ```
//!
//! A slot `[batch, channels, ...]` gets a twin `[batch, ..., channels]` on demand. Operations that
//! can run on twins do so if their operands have them. Other operations read the original layout.
//! Each tensor is permuted at most once in each direction: twins are kept, and the original is
//! computed where it is first needed.

mod images;
mod kernels;
mod permute;
mod rules;
mod shuffles;

use std::collections::HashMap;
use std::sync::Arc;

use coremill_mil::ir::OpId;
use coremill_reference::array::Array;
use coremill_reference::error::{Error, Result};
use coremill_reference::geometry::{each_offset, strides};

use super::super::graph::{Graph, Node, NodeKind, Operand, Region, Slot, SlotId, SlotKind};
use super::Work;
use super::convolution::{Convolution, Kernels, absorb};
use crate::plan::ConstantTensor;

pub(super) use permute::Permute;
pub(super) use rules::{is_elementwise, max_pool_ranges, spatial_mean};
use shuffles::Shuffle;

/// Runs the pass on a graph.
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

/// The layouts available within a region.
#[derive(Clone, Default)]
struct Scope {
    /// Maps a slot to its channels-last twin.
    twins: HashMap<SlotId, SlotId>,
    /// Slots of which only the twin is computed, with the operation.
    pending: HashMap<SlotId, OpId>,
}

/// Fused nodes, by output slot.
struct FusedNodes {
    convolutions: HashMap<SlotId, Convolution>,
    shuffles: HashMap<SlotId, Shuffle>,
}

/// A region under construction.
struct RegionBuilder {
    nodes: Vec<Node>,
    known: FusedNodes,
    /// Whether a channels-last operation uses a slot, possibly after elementwise operations, by
    /// [`SlotId::index`].
    wanted: Vec<bool>,
}

/// The permutation from a tensor of this rank to its twin.
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

/// Returns true if a permutation does not change the order of elements in memory.
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

    /// Emits a node, on twins if that is better.
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

    /// Ensures that a slot is written in its original layout.
    fn put_back(&mut self, draft: &mut RegionBuilder, slot: SlotId) {
        let Some(op) = self.scope.pending.remove(&slot) else { return };
        let Some(&twin) = self.scope.twins.get(&slot) else { return };
        let rank = self.shape_of(twin).len();
        self.permute(draft, op, twin, slot, to_first(rank));
    }

    fn shape_of(&self, slot: SlotId) -> Vec<usize> {
        self.work.graph.slot(slot).shape.clone().unwrap_or_default()
    }

    /// Emits a permutation from one slot to another.
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

    /// Adds a slot with the element type of another.
    fn add_slot(&mut self, like: SlotId, shape: Vec<usize>) -> SlotId {
        let dtype = self.work.graph.slot(like).dtype;
        let slot = Slot { holds: SlotKind::Tensor, dtype, shape: Some(shape), value: None };
        self.work.graph.add_slot(slot)
    }

    /// Adds the twin of an output slot.
    fn twin_to_write(&mut self, slot: SlotId, op: OpId) -> SlotId {
        let shape = self.shape_of(slot);
        let twin = self.add_slot(slot, permuted(&shape, &to_last(shape.len())));
        self.scope.twins.insert(slot, twin);
        self.scope.pending.insert(slot, op);
        twin
    }

    /// A channels-last operand of an operation that broadcasts its operands to `rank`.
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

    /// The twin of a slot. Emits a permutation if the twin does not exist.
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

/// Returns true if a slot may have a twin.
fn may_have_twin(graph: &Graph, slot: SlotId) -> bool {
    let slot = graph.slot(slot);
    let rank = slot.shape.as_ref().map(Vec::len);
    slot.dtype.is_float()
        && slot.holds == SlotKind::Tensor
        && rank.is_some_and(|rank| (3..=5).contains(&rank))
}

/// Reshapes an array to a shape of equal size and permutes its axes.
fn permuted_array(array: &Array, shape: &[usize], axes: &[usize]) -> Result<Array> {
    let floats = array.as_floats().ok_or_else(|| Error::new("expects floats"))?;
    let result = permuted(shape, axes);
    let steps = permuted(&strides(shape), axes);
    let mut elements = Vec::with_capacity(floats.len());
    each_offset(&result, &steps, |at| elements.push(floats[at]));
    Ok(Array::floats(array.dtype(), result, elements))
}
