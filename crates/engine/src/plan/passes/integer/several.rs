//! Integer operations on several tensors: concatenation and elementwise products.

use coremill_kernels::integer::Multiple;
use coremill_mil::ir::OpId;
use coremill_mil::ops::OpKind;
use coremill_reference::error::fail;

use super::super::super::graph::{Node, Operand, SlotId};
use super::super::Editor;
use super::super::parameters::parameters;
use super::kernels::{Join, Multiply};
use super::numbers::{Affine, Bounds};
use super::{Lowering, PendingValue, QuantizedTensor, ends_in_codes};

impl Lowering<'_, '_> {
    /// Recognizes a quantized elementwise product of two tensors of codes. The second may have one
    /// element per channel and image.
    pub(super) fn times(
        &self,
        editor: &Editor,
        node: &Node,
        output: SlotId,
    ) -> Option<PendingValue> {
        if node.operation()? != OpKind::Mul {
            return None;
        }
        let terms = [self.coded(node.bound("x"))?, self.coded(node.bound("y"))?];
        let shape = self.work.graph.slot(output).shape.as_ref()?;
        let [left, right] = match self.tensors[terms[0].tensor].shape == *shape {
            true => terms,
            false => [terms[1], terms[0]],
        };
        let of = |one: QuantizedTensor| &self.tensors[one.tensor].shape;
        let fits = *of(left) == *shape && (*of(right) == *shape || is_gate(of(right), shape));
        // A square is a function of one tensor.
        (fits && left.tensor != right.tensor && ends_in_codes(self.work, editor, output))
            .then(|| PendingValue::Times(left, right, Bounds::default()))
    }

    pub(super) fn write_times(
        &mut self,
        op: OpId,
        output: SlotId,
        [left, right]: [QuantizedTensor; 2],
        bounds: Bounds,
        affine: Affine,
    ) -> QuantizedTensor {
        let shape = self.work.graph.slot(output).shape.clone().unwrap_or_default();
        let gates = self.tensors[right.tensor].shape != shape;
        let last = gates || self.tensors[left.tensor].last.is_some();
        let inputs = [left, right].map(|one| match last {
            true => self.last(one.tensor),
            false => self.own(one.tensor),
        });
        let extents = match gates {
            true => [shape[0], shape[2..].iter().product(), shape[1]],
            false => [1, 1, shape.iter().product()],
        };
        let (low, high) = bounds.codes(affine);
        let factor = left.affine.scale * right.affine.scale / affine.scale;
        let kernel = Multiply {
            extents,
            zeros: [left.affine.zero, right.affine.zero],
            scaling: Multiple { factor, low, high },
            zero: affine.zero,
        };
        let slot = self.add_codes(&shape);
        self.push(op, Box::new(kernel), inputs.map(Operand::Slot).to_vec(), slot);
        self.add_tensor(op, shape, slot, last, affine)
    }

    /// Recognizes a quantized concatenation of tensors of codes.
    pub(super) fn join(
        &self,
        editor: &Editor,
        node: &Node,
        output: SlotId,
    ) -> Option<PendingValue> {
        if node.operation()? != OpKind::Concat {
            return None;
        }
        let rank = self.work.graph.slot(output).shape.as_ref()?.len();
        let axis = parameters(self.work.source, self.work.graph, node, |call| {
            if call.bool("interleave")? {
                fail!("interleaves");
            }
            call.axis("axis", rank)
        })?;
        let operands = node.bound("values").iter();
        let parts: Option<Vec<QuantizedTensor>> =
            operands.map(|operand| self.coded(std::slice::from_ref(operand))).collect();
        let parts = parts.filter(|_| ends_in_codes(self.work, editor, output))?;
        Some(PendingValue::Join(parts, axis, Bounds::default()))
    }

    pub(super) fn write_join(
        &mut self,
        op: OpId,
        output: SlotId,
        (parts, axis): (Vec<QuantizedTensor>, usize),
        bounds: Bounds,
        affine: Affine,
    ) -> QuantizedTensor {
        let shape = self.work.graph.slot(output).shape.clone().unwrap_or_default();
        let has_last = |one: &QuantizedTensor| self.tensors[one.tensor].last.is_some();
        let last = shape.len() >= 3 && parts.iter().any(has_last);
        // Sizes in the memory layout, and the index of the concatenation axis in it.
        let (extents, axis) = match last {
            true => {
                let order = super::to_last(shape.len());
                let at = order.iter().position(|&one| one == axis).unwrap_or_default();
                (order.iter().map(|&one| shape[one]).collect::<Vec<_>>(), at)
            }
            false => (shape.clone(), axis),
        };
        let inner: usize = extents[axis + 1..].iter().product();
        let (mut inputs, mut runs) = (Vec::new(), Vec::new());
        for part in parts {
            let slot = if last { self.last(part.tensor) } else { self.own(part.tensor) };
            inputs.push(Operand::Slot(slot));
            let count: usize = self.tensors[part.tensor].shape.iter().product();
            let rows: usize = extents[..axis].iter().product();
            let table = (part.affine != affine || bounds != Bounds::default()).then(|| {
                Box::new(std::array::from_fn(|code| {
                    affine.code(part.affine.value(code as u8).max(bounds.low).min(bounds.high))
                }))
            });
            runs.push((count / rows.max(1), table));
        }
        debug_assert_eq!(runs.iter().map(|(run, _)| run).sum::<usize>(), extents[axis] * inner);
        let kernel = Join { rows: extents[..axis].iter().product(), parts: runs };
        let slot = self.add_codes(&shape);
        self.push(op, Box::new(kernel), inputs, slot);
        self.add_tensor(op, shape, slot, last, affine)
    }
}

/// Returns true if a tensor has one element per channel and image of another.
fn is_gate(shape: &[usize], of: &[usize]) -> bool {
    shape.len() == of.len()
        && (3..=5).contains(&shape.len())
        && shape[..2] == of[..2]
        && shape[2..].iter().all(|&extent| extent == 1)
}
