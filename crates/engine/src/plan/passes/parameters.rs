use std::ops::Range;

use super::super::graph::{Graph, Node, NodeKind, Operand};
use crate::array::{ElementsView, View};
use crate::call::Call;
use crate::error::Result;
use crate::plan::FunctionContext;

/// Reads the parameters of an operation that is still performed as such, with their defaults. Tensors that
/// are computed have their type and shape, as far as they are known, but no elements; none if the node is
/// no such operation, or a constant that `read` needs, large ones aside, cannot be computed.
pub(crate) fn parameters<R>(
    source: &FunctionContext,
    graph: &Graph,
    node: &Node,
    read: impl FnOnce(&Call<'_>) -> Result<R>,
) -> Option<R> {
    let NodeKind::Reference(reference) = &node.kind else { return None };
    let mut operands = Vec::with_capacity(node.inputs.len());
    for operand in &node.inputs {
        let nothing = ElementsView::Floats(&[]);
        operands.push(match operand {
            Operand::Constant(known) if known.shape.iter().product::<usize>() <= MAX_ELEMENTS => {
                known.expand(source).ok()?.view()
            }
            Operand::Constant(known) => {
                View { dtype: known.dtype, shape: &known.shape, elements: nothing }
            }
            Operand::Slot(slot) => {
                let slot = graph.slot(*slot);
                let shape = slot.shape.as_deref().unwrap_or_default();
                View { dtype: slot.dtype, shape, elements: nothing }
            }
        });
    }
    let dtypes: Vec<_> = node.outputs.iter().map(|&slot| graph.slot(slot).dtype).collect();
    // Plans depend on what is looked at, no more.
    let note = |range: Range<usize>| {
        let constants = node.inputs[range].iter().filter_map(Operand::constant);
        constants.for_each(|known| source.note(known));
    };
    let call = Call {
        row: reference.row,
        parameters: &reference.parameters,
        operands: &operands,
        dtypes: &dtypes,
        limits: &source.limits,
        seed: 0,
        note: Some(&note),
    };
    read(&call).ok()
}

/// Larger constants are weights, which stay where they are until a kernel is made of them.
const MAX_ELEMENTS: usize = 4096;
