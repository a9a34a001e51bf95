//! Values of a run, and vectors that later runs reuse to avoid allocation.

use std::ops::Range;

use coremill_kernels::recycle_vec;
use coremill_reference::array::View;

use crate::plan::SlotId;
use crate::value::Value;

/// The value of a slot.
#[derive(Clone)]
pub(crate) enum SlotValue<'r> {
    Value(Value),
    /// Memory of the caller: an input, or a result written to its target.
    View(View<'r>),
}

impl SlotValue<'_> {
    pub(crate) fn bytes(&self) -> usize {
        match self {
            SlotValue::Value(value) => value.bytes(),
            SlotValue::View(_) => 0,
        }
    }

    pub(crate) fn to_value(&self) -> Value {
        match self {
            SlotValue::Value(value) => value.clone(),
            SlotValue::View(view) => Value::Array(view.to_array()),
        }
    }
}

/// Memory for the output of a kernel.
pub(crate) enum Memory<'r> {
    Own(Vec<f32>),
    /// Memory of the caller.
    Given(&'r mut [f32]),
}

/// Vectors that a run uses for bookkeeping.
#[derive(Default)]
pub(crate) struct RunScratch {
    pub(crate) held: Vec<Option<SlotValue<'static>>>,
    pub(crate) targets: Vec<(SlotId, &'static mut [f32])>,
    pub(crate) written: Vec<Option<SlotId>>,
    pub(crate) node: NodeMemory<'static>,
}

/// Vectors for the arguments of one kernel.
#[derive(Default)]
pub(crate) struct NodeMemory<'n> {
    pub(crate) reads: Vec<Range<usize>>,
    pub(crate) writes: Vec<Range<usize>>,
    pub(crate) read: Vec<&'n [f32]>,
    pub(crate) written: Vec<&'n mut [f32]>,
    pub(crate) inputs: Vec<View<'n>>,
    pub(crate) outputs: Vec<&'n mut [f32]>,
    pub(crate) heap: Vec<(SlotId, Memory<'n>)>,
}

impl NodeMemory<'_> {
    /// Reuses the memory for borrows of another lifetime.
    pub(crate) fn recycle<'o>(self) -> NodeMemory<'o> {
        NodeMemory {
            reads: recycle_vec(self.reads),
            writes: recycle_vec(self.writes),
            read: recycle_vec(self.read),
            written: recycle_vec(self.written),
            inputs: recycle_vec(self.inputs),
            outputs: recycle_vec(self.outputs),
            heap: recycle_vec(self.heap),
        }
    }
}
