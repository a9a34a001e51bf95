//! What a run holds, and the vectors whose memory it leaves to the next one, so that runs need not ask the system for any.

use std::ops::Range;

use coremill_kernels::recycle_vec;

use crate::array::View;
use crate::plan::SlotId;
use crate::value::Value;

/// What a slot holds.
#[derive(Clone)]
pub(crate) enum SlotValue<'r> {
    Value(Value),
    /// With the caller: an input, or a result that was written to the caller's memory.
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

/// Memory for the floats that a kernel gives.
pub(crate) enum Memory<'r> {
    Own(Vec<f32>),
    /// The caller's.
    Given(&'r mut [f32]),
}

/// What a run keeps account in.
#[derive(Default)]
pub(crate) struct RunScratch {
    pub(crate) held: Vec<Option<SlotValue<'static>>>,
    pub(crate) targets: Vec<(SlotId, &'static mut [f32])>,
    pub(crate) written: Vec<Option<SlotId>>,
    pub(crate) node: NodeMemory<'static>,
}

/// What is put together for one kernel.
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
    /// The same memory for borrows of another lifetime.
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
