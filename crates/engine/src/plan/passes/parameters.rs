use std::ops::Range;

use coremill_reference::arithmetic::Arithmetic;
use coremill_reference::array::{ElementsView, View};
use coremill_reference::call::Call;
use coremill_reference::error::Result;

use super::super::graph::{Graph, Node, NodeKind, Operand};
use crate::plan::FunctionContext;

/// Reads the parameters of an operation that still uses its reference kernel, with defaults.
/// Tensors computed at run time have their type and known shape, but no elements. Returns `None` if
/// the node is no such operation, or if `read` requires a constant that cannot be computed or is
/// large.
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
    // Plans depend only on the constants that are read here.
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
        arithmetic: Arithmetic::default(),
    };
    read(&call).ok()
}

/// Maximum number of elements that are read. Larger constants are weights, decoded only for
/// kernels.
const MAX_ELEMENTS: usize = 4096;
