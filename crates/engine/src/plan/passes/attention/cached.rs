//! Keeps caches of keys and values as 16-bit integers, with a scale for each vector, if only attention reads them and
//! updates replace whole vectors. They take half the memory of floats, and attention to many keys reads half as much.
//!
//! ```text
//! update state 0 with k at …
//! c = read state 0
//! o = attention(q, c, c)                          o = attention on states(q)
//! ```
//!
//! States are fp16 in Core ML. The integers of a vector have a step of 2⁻¹⁵ of its largest element.

use coremill_kernels::Numerics;
use coremill_kernels::matmul::{Heads, HeadsMut, Mask, WordHeads, attend};
use coremill_reference::array::View;
use coremill_reference::error::{Result, fail};
use coremill_tensor::DType;

use super::super::super::graph::{Graph, Node, NodeKind, Operand, ReferenceOp, Region};
use super::super::super::kernel::{Cost, CpuContext, Kernel};
use super::super::{Editor, Work};
use super::{Attention, Rounding};
use crate::plan::FunctionContext;
use crate::states::StateValue;

/// Replaces the attentions of the function's body whose keys and values are in such states.
pub(crate) fn lower(work: &mut Work<'_>) {
    let body = std::mem::take(&mut work.graph.body);
    let mut editor = Editor::new(work.graph, body);
    let states = word_states(work.source, work.graph, &editor);
    for index in 0..editor.len() {
        let Some(reads) = editor.node(index).and_then(|node| reads(&editor, node)) else {
            continue;
        };
        if !reads.iter().all(|read| states.contains(&read.state)) {
            continue;
        }
        let Some(kernel) = on_states(work.graph, &editor, index, reads) else { continue };
        if let Some(mut node) = editor.take(index) {
            node.inputs.drain(1..3);
            node.kind = NodeKind::Kernel(kernel);
            editor.put(work.graph, index, node);
        }
    }
    work.graph.body = editor.finish();
    work.graph.word_states = states;
}

/// A node that reads a state.
#[derive(Clone, Copy)]
struct Read {
    state: usize,
    /// Index of the node.
    node: usize,
}

/// The nodes that read a kernel's keys and values from states, if they are inputs 1 and 2 of the kernel and nothing else.
fn reads(editor: &Editor, node: &Node) -> Option<[Read; 2]> {
    let NodeKind::Kernel(_) = &node.kind else { return None };
    let read = |operand: &Operand| {
        let (index, writer) = editor.writer_of(operand)?;
        match writer.kind {
            NodeKind::ReadState(state) => Some(Read { state, node: index }),
            _ => None,
        }
    };
    let others = node.inputs.iter().enumerate().filter(|(index, _)| !(1..3).contains(index));
    if others.into_iter().any(|(_, operand)| read(operand).is_some()) {
        return None;
    }
    Some([read(node.inputs.get(1)?)?, read(node.inputs.get(2)?)?])
}

/// The kernel of a node that reads keys and values from states, if it can.
fn on_states(
    graph: &Graph,
    editor: &Editor,
    index: usize,
    reads: [Read; 2],
) -> Option<Box<dyn Kernel>> {
    let node = editor.node(index)?;
    let NodeKind::Kernel(kernel) = &node.kind else { return None };
    let [keys, values] = [graph.shape(&node.inputs[1])?, graph.shape(&node.inputs[2])?];
    // A state must not change between the node that reads it and the attention.
    let changes = |at: usize, state: usize| {
        editor.node(at).is_some_and(|node| match node.kind {
            NodeKind::UpdateState(other, _) | NodeKind::WriteState(other) => other == state,
            _ => false,
        })
    };
    let is_current = |read: &Read| !(read.node..index).any(|between| changes(between, read.state));
    if !reads.iter().all(is_current) {
        return None;
    }
    kernel.on_states(reads.map(|read| read.state), [keys, values])
}

/// The states that only such attentions read, and of which updates replace whole vectors.
fn word_states(source: &FunctionContext, graph: &Graph, editor: &Editor) -> Vec<usize> {
    if source.numerics != Numerics::Fast {
        return Vec::new();
    }
    let nodes = || (0..editor.len()).filter_map(|index| Some((index, editor.node(index)?)));
    let depth_of = |wanted: usize| {
        nodes().find_map(|(_, node)| {
            let NodeKind::ReadState(state) = node.kind else { return None };
            let slot = graph.slot(*node.outputs.first()?);
            let depth = *slot.shape.as_ref().filter(|shape| shape.len() > 1)?.last()?;
            (state == wanted && slot.dtype == DType::Fp16 && depth > 1).then_some(depth)
        })
    };
    let mut states: Vec<usize> = Vec::new();
    for (_, node) in nodes() {
        if let NodeKind::ReadState(state) = node.kind
            && !states.contains(&state)
        {
            states.push(state);
        }
    }
    states.retain(|&state| {
        let Some(depth) = depth_of(state) else { return false };
        nodes().all(|(_, node)| match &node.kind {
            NodeKind::WriteState(other) => *other != state,
            NodeKind::UpdateState(other, update) => {
                *other != state || replaces_vectors(source, graph, node, update, depth)
            }
            _ => !node.regions().iter().any(|region| uses(region, state)),
        })
    });
    // An attention needs both of its states, so that a state may depend on another.
    loop {
        let before = states.len();
        let fits = |index: usize, node: &Node| {
            let reads = reads(editor, node)
                .filter(|reads| reads.iter().all(|read| states.contains(&read.state)));
            reads.is_some_and(|reads| on_states(graph, editor, index, reads).is_some())
        };
        let is_fit = |state: usize| {
            nodes().all(|(_, node)| match (&node.kind, &node.outputs[..]) {
                (NodeKind::ReadState(read), &[slot]) if *read == state => {
                    let fits = |&at: &usize| editor.node(at).is_some_and(|node| fits(at, node));
                    !editor.escapes(slot) && editor.readers(slot).iter().all(fits)
                }
                _ => true,
            })
        };
        let kept: Vec<usize> = states.iter().copied().filter(|&state| is_fit(state)).collect();
        if kept.len() == before {
            return states;
        }
        states = kept;
    }
}

/// Whether an update replaces whole vectors in their order.
fn replaces_vectors(
    source: &FunctionContext,
    graph: &Graph,
    node: &Node,
    update: &ReferenceOp,
    depth: usize,
) -> bool {
    let bound = |name: &str| {
        let found = update.parameters.iter().find(|(parameter, _)| parameter == name);
        found.and_then(|(_, range)| node.inputs.get(range.start))
    };
    let steps_by_one = bound("stride").is_none_or(|stride| {
        let known = stride.constant().and_then(|known| known.array(source).ok());
        known.is_some_and(|steps| {
            steps.as_ints().is_some_and(|steps| steps.iter().all(|&step| step == 1))
        })
    });
    let has_vectors = bound("update").is_some_and(|update| {
        graph.dtype(update).is_float()
            && graph.shape(update).is_some_and(|shape| shape.last() == Some(&depth))
    });
    // An axis that is left out could be the last one.
    steps_by_one && has_vectors && bound("squeeze_mask").is_none()
}

/// Whether a region uses a state.
fn uses(region: &Region, state: usize) -> bool {
    region.nodes.iter().any(|node| match node.kind {
        NodeKind::ReadState(used) | NodeKind::WriteState(used) | NodeKind::UpdateState(used, _) => {
            used == state
        }
        _ => node.regions().iter().any(|region| uses(region, state)),
    })
}

impl Attention {
    /// The attention to keys and values in states of these shapes, if it reads whole vectors of them.
    pub(super) fn cached(
        &self,
        states: [usize; 2],
        shapes: [&[usize]; 2],
    ) -> Option<CachedAttention> {
        let vectors = |(offset, strides): (usize, [usize; 3]), depth: usize, shape: &[usize]| {
            let divides = |number: &usize| number.is_multiple_of(depth);
            let fits = depth > 1
                && shape.last() == Some(&depth)
                && divides(&offset)
                && strides.iter().all(divides);
            fits.then(|| (offset / depth, strides.map(|stride| stride / depth)))
        };
        let [keys, values] = shapes;
        let key = vectors(self.key, self.shape.depth, keys)?;
        let value = vectors(self.value, self.shape.value_depth, values)?;
        let is_exact = self.rounding == Rounding::None;
        is_exact.then(|| CachedAttention { attention: self.clone(), states, key, value })
    }
}

/// An attention to keys and values in states.
pub(super) struct CachedAttention {
    attention: Attention,
    /// The states of keys and values.
    states: [usize; 2],
    /// Index of the first vector, and strides in vectors.
    key: (usize, [usize; 3]),
    value: (usize, [usize; 3]),
}

impl Kernel for CachedAttention {
    fn run(
        &self,
        _machine: &CpuContext,
        _inputs: &[View<'_>],
        _outputs: &mut [&mut [f32]],
        _scratch: &mut [f32],
    ) -> Result<()> {
        fail!("attention on states requires the states");
    }

    /// The inputs are the query and the mask.
    fn run_on_states(
        &self,
        machine: &CpuContext,
        states: &[StateValue],
        inputs: &[View<'_>],
        outputs: &mut [&mut [f32]],
        _scratch: &mut [f32],
    ) -> Result<()> {
        let Attention { shape, scale, query, mask, output, .. } = &self.attention;
        let vectors = |index: usize, (first, strides): (usize, [usize; 3])| match states
            [self.states[index]]
            .words()
        {
            Some(vectors) => Ok(WordHeads { vectors, first, strides }),
            None => fail!("the state is not in the form that the plan uses"),
        };
        let mask = match mask {
            Some(strides) => Some(Mask { elements: inputs[1].floats()?, strides: *strides }),
            None => None,
        };
        let (offset, strides) = *query;
        attend(
            &machine.pool,
            machine.isa,
            *shape,
            *scale,
            Heads { elements: &inputs[0].floats()?[offset..], strides },
            vectors(0, self.key)?,
            vectors(1, self.value)?,
            mask,
            HeadsMut { elements: outputs[0], strides: *output },
        );
        Ok(())
    }

    fn label(&self) -> String {
        "attention on states".to_owned()
    }

    fn cost(&self) -> Cost {
        self.attention.cost()
    }
}
