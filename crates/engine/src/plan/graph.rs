//! The graph of a plan: nodes that read and write slots.
//!
//! A graph is built from a function for given input shapes, one node per operation. Passes then
//! replace [`NodeKind::Reference`] nodes by specialized kernels and fuse several nodes into one.
//! Each slot has a single writer: a node, or for inputs of a block the node that runs the block.
//! Slots are visible in the whole function, so blocks can read the slots around them.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use coremill_mil::ir::{OpId, ValueId};
use coremill_mil::ops::{OpKind, OpRow};
use coremill_reference::call::{Call, Results};
use coremill_tensor::DType;

use super::constant::ConstantTensor;
use super::kernel::Kernel;

/// The nodes of a function for given input shapes.
#[derive(Debug, Default)]
pub(crate) struct Graph {
    /// All slots, of the body and of nested regions.
    pub(crate) slots: Vec<Slot>,
    /// The function's body. Its inputs are the function's inputs without the states.
    pub(crate) body: Region,
    /// States that are kept as vectors of 16-bit integers, by their index among the function's states.
    pub(crate) word_states: Vec<usize>,
}

/// Index of a slot in its graph.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct SlotId(u32);

/// A run-time value.
#[derive(Clone, Debug)]
pub(crate) struct Slot {
    pub(crate) holds: SlotKind,
    /// Element type; `string` for lists and dictionaries.
    pub(crate) dtype: DType,
    /// The shape, `None` if it is unknown before the run.
    pub(crate) shape: Option<Vec<usize>>,
    /// The function's value. `None` for slots added by passes.
    pub(crate) value: Option<ValueId>,
}

/// Kind of a slot's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SlotKind {
    Tensor,
    List,
    Dictionary,
}

/// Nodes in execution order.
#[derive(Debug, Default)]
pub(crate) struct Region {
    /// Slots that are written before the region runs.
    pub(crate) inputs: Vec<SlotId>,
    pub(crate) nodes: Vec<Node>,
    /// Results of the region.
    pub(crate) outputs: Vec<Operand>,
    /// For each node, the slots whose last reader it is. Filled when planning ends.
    pub(crate) releases: Vec<Vec<SlotId>>,
}

/// One step of a region.
#[derive(Debug)]
pub(crate) struct Node {
    /// The operation; the last one if several are fused.
    pub(crate) op: OpId,
    pub(crate) kind: NodeKind,
    pub(crate) inputs: Vec<Operand>,
    pub(crate) outputs: Vec<SlotId>,
}

/// An argument of a node.
#[derive(Clone, Debug)]
pub(crate) enum Operand {
    /// Output of another node, or an input of a region.
    Slot(SlotId),
    /// A value known before the run.
    Constant(Arc<ConstantTensor>),
}

/// The action of a node.
pub(crate) enum NodeKind {
    /// Calls the reference kernel of one operation.
    Reference(ReferenceOp),
    /// Reinterprets the input with the shape of the output.
    Alias,
    /// Reads a state, by its index among the function's states.
    ReadState(usize),
    /// Writes its input to a state.
    WriteState(usize),
    /// Updates part of a state in place, by a `slice_update` without its `x`.
    UpdateState(usize, ReferenceOp),
    /// A list operation. The inputs have the order of `parameters`.
    List(ReferenceOp, OpKind),
    /// Runs the first region if the input is true, else the second.
    Cond(Box<[Region; 2]>),
    /// Runs the second region as long as the first returns true.
    Loop(Box<[Region; 2]>),
    /// A kernel specialized for these shapes.
    Kernel(Box<dyn Kernel>),
}

/// An operation with its arguments by name.
#[derive(Clone)]
pub(crate) struct ReferenceOp {
    /// The reference kernel. `None` if the executor itself implements the operation.
    pub(crate) function: Option<fn(&Call) -> Results>,
    /// The operation's definition in the opset of the function.
    pub(crate) row: &'static OpRow,
    /// Parameter names, with the range of their operands among the node's inputs.
    pub(crate) parameters: Vec<(String, Range<usize>)>,
}

impl SlotId {
    /// The slot with an index.
    pub(crate) fn at(index: usize) -> SlotId {
        SlotId(u32::try_from(index).expect("fewer than 2^32 slots"))
    }

    /// Index for side tables.
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
    pub(crate) fn add_slot(&mut self, slot: Slot) -> SlotId {
        self.slots.push(slot);
        SlotId::at(self.slots.len() - 1)
    }

    pub(crate) fn slot(&self, id: SlotId) -> &Slot {
        &self.slots[id.index()]
    }

    /// The shape of an operand, `None` if it is unknown before the run.
    pub(crate) fn shape<'g>(&'g self, operand: &'g Operand) -> Option<&'g [usize]> {
        match operand {
            Operand::Slot(slot) => self.slot(*slot).shape.as_deref(),
            Operand::Constant(known) => Some(&known.shape),
        }
    }

    /// The element type of an operand.
    pub(crate) fn dtype(&self, operand: &Operand) -> DType {
        match operand {
            Operand::Slot(slot) => self.slot(*slot).dtype,
            Operand::Constant(known) => known.dtype,
        }
    }
}

impl Operand {
    /// The slot, `None` for a constant.
    pub(crate) fn slot(&self) -> Option<SlotId> {
        match self {
            Operand::Slot(slot) => Some(*slot),
            Operand::Constant(_) => None,
        }
    }

    /// The constant, `None` for a slot.
    pub(crate) fn constant(&self) -> Option<&Arc<ConstantTensor>> {
        match self {
            Operand::Slot(_) => None,
            Operand::Constant(known) => Some(known),
        }
    }
}

impl Node {
    /// The operands bound to a parameter. Empty if the parameter has its default, or if a pass has
    /// replaced the operation.
    pub(crate) fn bound(&self, parameter: &str) -> &[Operand] {
        let (NodeKind::Reference(reference) | NodeKind::List(reference, _)) = &self.kind else {
            return &[];
        };
        let found = reference.parameters.iter().find(|(name, _)| name == parameter);
        found.map_or(&[], |(_, range)| &self.inputs[range.clone()])
    }

    /// The operation, `None` if a pass has replaced it.
    pub(crate) fn operation(&self) -> Option<OpKind> {
        match &self.kind {
            NodeKind::Reference(reference) => Some(reference.row.kind),
            _ => None,
        }
    }

    /// The nested regions.
    pub(crate) fn regions(&self) -> &[Region] {
        match &self.kind {
            NodeKind::Cond(regions) | NodeKind::Loop(regions) => &**regions,
            _ => &[],
        }
    }
}

impl Region {
    /// Visits all slots that the region or its nested regions read.
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
