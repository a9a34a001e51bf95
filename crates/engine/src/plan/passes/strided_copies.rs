//! Replaces operations that only move floats by strided copies, or by aliases if the order stays.
//!
//! ```text
//! a = reshape(x = x)
//! b = transpose(x = a)
//! c = slice_by_index(x = b)       c = copy(x), in one step
//! ```

use coremill_kernels::layout::{self, copy_strided};
use coremill_mil::ops::OpKind;
use coremill_reference::array::View;
use coremill_reference::error::{Result, fail};
use coremill_reference::geometry::strides as dense_strides;
use coremill_tensor::DType;

use super::super::graph::{Graph, Node, NodeKind, Operand, Region};
use super::super::kernel::{Cost, CpuContext, Kernel};
use super::parameters::parameters;
use super::strided::{StridedSlice, strided};
use super::{Editor, Work};
use crate::plan::FunctionContext;

/// Replaces the operations of a region that move floats.
pub(super) fn lower(work: &mut Work<'_>, region: Region) -> Result<Region> {
    let mut editor = Editor::new(work.graph, region);
    let mut index = 0;
    while index < editor.len() {
        let nodes = replacement(work.source, work.graph, &editor, index).unwrap_or_default();
        let count = nodes.len();
        for (extra, node) in nodes.into_iter().enumerate() {
            if extra == 0 {
                editor.take(index);
                editor.put(work.graph, index, node);
            } else {
                editor.insert(work.graph, index + extra, node);
            }
        }
        index += count.max(1);
    }
    Ok(editor.finish())
}

/// The nodes that replace a node. `None` if it does not just move floats, or if its result is
/// unused.
fn replacement(
    source: &FunctionContext,
    graph: &Graph,
    editor: &Editor,
    index: usize,
) -> Option<Vec<Node>> {
    let node = editor.node(index)?;
    let kind = node.operation()?;
    match kind {
        OpKind::Transpose
        | OpKind::Split
        | OpKind::SliceByIndex
        | OpKind::SliceBySize
        | OpKind::Tile => {
            let part = |&output: &_| {
                let is_read = editor.escapes(output) || !editor.readers(output).is_empty();
                is_read.then(|| {
                    let view = strided(source, graph, editor, &Operand::Slot(output))?;
                    if view.operand.slot() == Some(output) {
                        return None;
                    }
                    let inputs = vec![view.operand.clone()];
                    let kind = match is_whole(graph, &view) {
                        true => NodeKind::Alias,
                        false => {
                            NodeKind::Kernel(Box::new(copy_of(kind, &[view], 0, graph, output)))
                        }
                    };
                    Some(Node { op: node.op, kind, inputs, outputs: vec![output] })
                })
            };
            node.outputs.iter().filter_map(part).collect()
        }
        OpKind::Concat | OpKind::Stack => {
            let output = *node.outputs.first()?;
            let shape = graph.slot(output).shape.clone()?;
            let rank = shape.len();
            let axis = parameters(source, graph, node, |call| {
                if kind == OpKind::Concat && call.bool("interleave")? {
                    fail!("interleaves");
                }
                call.axis("axis", rank)
            })?;
            let mut views = Vec::new();
            for operand in node.bound("values") {
                let view = strided(source, graph, editor, operand)?;
                let mut extents = view.shape.clone();
                if kind == OpKind::Stack {
                    extents.insert(axis, 1);
                }
                // Unknown dimensions may contradict each other. The reference kernel reports that.
                let fits = extents.len() == rank
                    && (0..rank).all(|at| at == axis || extents[at] == shape[at]);
                if !fits || extents.contains(&0) {
                    return None;
                }
                views.push(view.reshaped(&extents)?);
            }
            let total: usize = views.iter().map(|view| view.shape[axis]).sum();
            if total != shape[axis] || !is_float(graph, output) {
                return None;
            }
            let inputs = views.iter().map(|view| view.operand.clone()).collect();
            let kernel = copy_of(kind, &views, axis, graph, output);
            let kind = NodeKind::Kernel(Box::new(kernel));
            Some(vec![Node { op: node.op, kind, inputs, outputs: vec![output] }])
        }
        _ => None,
    }
}

fn is_float(graph: &Graph, slot: super::super::graph::SlotId) -> bool {
    matches!(graph.slot(slot).dtype, DType::Fp16 | DType::Fp32)
}

/// Returns true if a view covers its tensor in order.
fn is_whole(graph: &Graph, view: &StridedSlice) -> bool {
    let whole = graph.shape(&view.operand).map(|shape| shape.iter().product::<usize>());
    view.offset == 0 && view.is_dense() && whole == Some(view.shape.iter().product())
}

/// Creates the kernel that concatenates views along an axis.
fn copy_of(
    kind: OpKind,
    views: &[StridedSlice],
    axis: usize,
    graph: &Graph,
    output: super::super::graph::SlotId,
) -> Copy {
    let shape = graph.slot(output).shape.clone().unwrap_or_default();
    let target = dense_strides(&shape);
    let signed = |strides: &[usize]| strides.iter().map(|&stride| stride as isize).collect();
    let mut start = 0;
    let mut parts = Vec::new();
    for view in views {
        parts.push(Part {
            shape: view.shape.clone(),
            from: (view.offset, signed(&view.strides)),
            to: (start, signed(&target)),
        });
        if views.len() > 1 {
            start += view.shape[axis] * target[axis];
        }
    }
    Copy { parts, label: kind.name(), count: shape.iter().product() }
}

struct Copy {
    /// One part per input.
    parts: Vec<Part>,
    label: &'static str,
    count: usize,
}

struct Part {
    shape: Vec<usize>,
    from: (usize, Vec<isize>),
    to: (usize, Vec<isize>),
}

impl Kernel for Copy {
    fn run(
        &self,
        machine: &CpuContext,
        inputs: &[View<'_>],
        outputs: &mut [&mut [f32]],
        _scratch: &mut [f32],
    ) -> Result<()> {
        for (part, input) in self.parts.iter().zip(inputs) {
            let from = layout::StridedSlice { offset: part.from.0, strides: &part.from.1 };
            let to = layout::StridedSlice { offset: part.to.0, strides: &part.to.1 };
            copy_strided(&machine.pool, &part.shape, input.floats()?, from, outputs[0], to);
        }
        Ok(())
    }

    fn label(&self) -> String {
        self.label.to_owned()
    }

    fn cost(&self) -> Cost {
        Cost { operations: 0, bytes: 8 * self.count as u64 }
    }
}
