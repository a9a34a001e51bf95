//! What a plan is made of: nodes that read and write slots.
//!
//! A graph is built from a function for given input shapes, one node an operation, then rewritten:
//! passes replace nodes of kind [`NodeKind::ReferenceOp`] by ones that they know better, and several by
//! one. A slot is written by one node, once (block inputs by whoever runs the block), and lives in the
//! whole function: blocks see the slots around them.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use coremill_mil::ir::{OpId, ValueId};
use coremill_mil::ops::{OpKind, OpRow};
use coremill_tensor::DType;

use super::constant::ConstantTensor;
use super::kernel::Kernel;
use crate::call::{Call, Results};

/// The nodes of a function for given input shapes.
#[derive(Debug, Default)]
pub(crate) struct Graph {
    /// Everything that is computed.
    pub(crate) slots: Vec<Slot>,
    /// The function's body; its inputs are those that are no states, in the function's order.
    pub(crate) body: Region,
}

/// Names a slot of one graph.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct SlotId(u32);

/// A place for a value.
#[derive(Clone, Debug)]
pub(crate) struct Slot {
    /// What it holds.
    pub(crate) holds: SlotKind,
    /// The element type; `string` for lists and dictionaries.
    pub(crate) dtype: DType,
    /// The shape, if it is known before the run.
    pub(crate) shape: Option<Vec<usize>>,
    /// The value of the function that stands here; none for what a pass came up with.
    pub(crate) value: Option<ValueId>,
}

/// What a slot holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SlotKind {
    Tensor,
    List,
    Dictionary,
}

/// Nodes in the order in which they run.
#[derive(Debug, Default)]
pub(crate) struct Region {
    /// What whoever runs the region writes first.
    pub(crate) inputs: Vec<SlotId>,
    /// The nodes.
    pub(crate) nodes: Vec<Node>,
    /// What running it gives.
    pub(crate) outputs: Vec<Operand>,
    /// The slots that nothing reads any more after each node. Filled when the graph is done.
    pub(crate) releases: Vec<Vec<SlotId>>,
}

/// One step.
#[derive(Debug)]
pub(crate) struct Node {
    /// The operation that it performs, or the last of several.
    pub(crate) op: OpId,
    /// What it does.
    pub(crate) kind: NodeKind,
    /// What it reads.
    pub(crate) inputs: Vec<Operand>,
    /// What it writes.
    pub(crate) outputs: Vec<SlotId>,
}

/// Something that a node reads.
#[derive(Clone, Debug)]
pub(crate) enum Operand {
    /// What another node wrote.
    Slot(SlotId),
    /// What is known before the run.
    Constant(Arc<ConstantTensor>),
}

/// What a node does.
pub(crate) enum NodeKind {
    /// One operation, by its reference kernel.
    Reference(ReferenceOp),
    /// The input's elements under the shape of the output.
    Alias,
    /// Reads a state, by its position among the function's states.
    ReadState(usize),
    /// Writes its input to a state.
    WriteState(usize),
    /// Changes part of a state, by a `slice_update` without its `x`.
    UpdateState(usize, ReferenceOp),
    /// An operation on lists; inputs in the order of `parameters`.
    List(ReferenceOp, OpKind),
    /// Runs the first region if the input is true, else the second.
    Cond(Box<[Region; 2]>),
    /// Runs the second region as long as the first gives true.
    Loop(Box<[Region; 2]>),
    /// A kernel for these shapes.
    Kernel(Box<dyn Kernel>),
}

/// An operation with its arguments by name.
#[derive(Clone)]
pub(crate) struct ReferenceOp {
    /// The kernel; none if the executor performs the operation.
    pub(crate) function: Option<fn(&Call) -> Results>,
    /// The definition that holds.
    pub(crate) row: &'static OpRow,
    /// Parameters, and the positions among the node's inputs of what is bound to them.
    pub(crate) parameters: Vec<(String, Range<usize>)>,
}

impl SlotId {
    /// The slot at a position.
    pub(crate) fn at(index: usize) -> SlotId {
        SlotId(u32::try_from(index).expect("fewer than 2^32 slots"))
    }

    /// The position, for side tables.
    pub(crate) const fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Debug for SlotId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "${}", self.0)
    }
}

impl Graph {
    /// Adds a slot.
    pub(crate) fn add_slot(&mut self, slot: Slot) -> SlotId {
        self.slots.push(slot);
        SlotId::at(self.slots.len() - 1)
    }

    /// A slot.
    pub(crate) fn slot(&self, id: SlotId) -> &Slot {
        &self.slots[id.index()]
    }

    /// The shape of what an operand holds, if it is known before the run.
    pub(crate) fn shape<'g>(&'g self, operand: &'g Operand) -> Option<&'g [usize]> {
        match operand {
            Operand::Slot(slot) => self.slot(*slot).shape.as_deref(),
            Operand::Constant(known) => Some(&known.shape),
        }
    }

    /// The element type of what an operand holds.
    pub(crate) fn dtype(&self, operand: &Operand) -> DType {
        match operand {
            Operand::Slot(slot) => self.slot(*slot).dtype,
            Operand::Constant(known) => known.dtype,
        }
    }
}

impl Operand {
    /// The slot, if it is one.
    pub(crate) fn slot(&self) -> Option<SlotId> {
        match self {
            Operand::Slot(slot) => Some(*slot),
            Operand::Constant(_) => None,
        }
    }

    /// The constant, if it is one.
    pub(crate) fn constant(&self) -> Option<&Arc<ConstantTensor>> {
        match self {
            Operand::Slot(_) => None,
            Operand::Constant(known) => Some(known),
        }
    }
}

impl Node {
    /// What is bound to a parameter of an operation that is still performed as such; empty for a
    /// parameter that has its default.
    pub(crate) fn bound(&self, parameter: &str) -> &[Operand] {
        let (NodeKind::Reference(reference) | NodeKind::List(reference, _)) = &self.kind else {
            return &[];
        };
        let found = reference.parameters.iter().find(|(name, _)| name == parameter);
        found.map_or(&[], |(_, range)| &self.inputs[range.clone()])
    }

    /// The operation, if it is still performed as such.
    pub(crate) fn operation(&self) -> Option<OpKind> {
        match &self.kind {
            NodeKind::Reference(reference) => Some(reference.row.kind),
            _ => None,
        }
    }

    /// The regions that it runs.
    pub(crate) fn regions(&self) -> &[Region] {
        match &self.kind {
            NodeKind::Cond(regions) | NodeKind::Loop(regions) => &**regions,
            _ => &[],
        }
    }
}

impl Region {
    /// Every slot that the region reads, those of regions inside included, whoever writes it.
    pub(crate) fn reads(&self, visit: &mut dyn FnMut(SlotId)) {
        let outputs = self.outputs.iter();
        for slot in outputs.chain(self.nodes.iter().flat_map(|node| &node.inputs)) {
            slot.slot().into_iter().for_each(&mut *visit);
        }
        for region in self.nodes.iter().flat_map(Node::regions) {
            region.reads(visit);
        }
    }
}

impl fmt::Debug for NodeKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NodeKind::Reference(reference) => f.write_str(reference.row.kind.name()),
            NodeKind::Alias => f.write_str("alias"),
            NodeKind::ReadState(state) => write!(f, "read state {state}"),
            NodeKind::WriteState(state) => write!(f, "write state {state}"),
            NodeKind::UpdateState(state, _) => write!(f, "update state {state}"),
            NodeKind::List(_, kind) => f.write_str(kind.name()),
            NodeKind::Cond(regions) => write!(f, "cond {regions:?}"),
            NodeKind::Loop(regions) => write!(f, "loop {regions:?}"),
            NodeKind::Kernel(kernel) => f.write_str(&kernel.label()),
        }
    }
}
