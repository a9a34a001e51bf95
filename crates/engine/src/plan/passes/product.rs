//! Replaces products of two computed matrices by kernels that read strided operands.
//!
//! ```text
//! a = transpose(x = x, perm = [0, 2, 1])
//! b = matmul(x = y, y = a)                    b = matmul(y, x), through strides
//! ```

use coremill_kernels::matmul::{Batch, BatchMut, BatchShape, Epilogue, Rounding, multiply_batch};
use coremill_mil::ops::OpKind;
use coremill_reference::array::View;
use coremill_reference::error::Result;
use coremill_reference::geometry::broadcast;
use coremill_tensor::DType;

use super::super::graph::{Graph, Node, NodeKind, Region};
use super::super::kernel::{Cost, CpuContext, Kernel};
use super::linear::rounding;
use super::parameters::parameters;
use super::strided::{StridedSlice, StridedView, seen, strided};
use super::{Editor, Work};
use crate::plan::FunctionContext;

/// Replaces the products of computed matrices in a region by kernels.
pub(super) fn lower(work: &mut Work<'_>, region: Region) -> Result<Region> {
    let mut editor = Editor::new(work.graph, region);
    for index in 0..editor.len() {
        let Some((left, right, product)) = recognise(work.source, work.graph, &editor, index)
        else {
            continue;
        };
        let Some(Node { op, outputs, .. }) = editor.take(index) else { continue };
        let inputs = vec![left.operand, right.operand];
        let kind = NodeKind::Kernel(Box::new(product));
        editor.put(work.graph, index, Node { op, kind, inputs, outputs });
    }
    Ok(editor.finish())
}

fn recognise(
    source: &FunctionContext,
    graph: &Graph,
    editor: &Editor,
    index: usize,
) -> Option<(StridedSlice, StridedSlice, Product)> {
    let node = editor.node(index)?;
    if node.operation()? != OpKind::Matmul {
        return None;
    }
    let output = *node.outputs.first()?;
    let (x, y) = (node.bound("x").first()?, node.bound("y").first()?);
    let float = |operand| matches!(graph.dtype(operand), DType::Fp16 | DType::Fp32);
    if !float(x) || !float(y) {
        return None;
    }
    let (transpose_x, transpose_y) = parameters(source, graph, node, |call| {
        Ok((call.bool("transpose_x")?, call.bool("transpose_y")?))
    })?;
    let left = strided(source, graph, editor, x)?;
    let (mut left, mut right) = match repeated(&seen(source, graph, editor, y)?, &left) {
        Some(apart) => apart,
        None => (left, strided(source, graph, editor, y)?),
    };
    for (view, transposed) in [(&mut left, transpose_x), (&mut right, transpose_y)] {
        let rank = view.shape.len();
        if rank < 2 {
            return None;
        }
        if transposed {
            view.shape.swap(rank - 1, rank - 2);
            view.strides.swap(rank - 1, rank - 2);
        }
    }
    let matrix = |view: &StridedSlice| {
        let (batch, matrix) = view.shape.split_at(view.shape.len() - 2);
        (batch.to_vec(), matrix[0], matrix[1])
    };
    let ((left_batch, rows, inputs), (right_batch, depth, outputs)) =
        (matrix(&left), matrix(&right));
    let batch = broadcast(&left_batch, &right_batch).ok()?;
    if inputs != depth || rows * inputs * outputs == 0 || batch.contains(&0) {
        return None;
    }
    graph.slot(output).shape.as_ref()?;
    // Merge the batch to two axes, innermost first, if strides allow it.
    let strides = [&left, &right].map(|view| batch_strides(view, &batch));
    let (batch, strides) = two_axes(&batch, strides)?;
    let ends = |view: &StridedSlice| {
        let rank = view.strides.len();
        [view.strides[rank - 2], view.strides[rank - 1]]
    };
    let product = Product {
        shape: BatchShape { batch, rows, inputs, outputs },
        left: (left.offset, strides[0], ends(&left)),
        right: (right.offset, strides[1], ends(&right)),
        rounding: rounding(source, graph, output),
    };
    Some((left, right, product))
}

/// Splits the batch axes of both operands so that repeated right matrices get their own axes.
/// `None` if none are repeated.
fn repeated(right: &StridedView, left: &StridedSlice) -> Option<(StridedSlice, StridedSlice)> {
    let shape = right.shape();
    let batch = shape.len().checked_sub(2)?;
    if right.clone().plain().is_some() || left.shape.get(..batch)? != &shape[..batch] {
        return None;
    }
    let right = right.clone().apart(batch)?;
    let mut shape = right.shape[..right.shape.len() - 2].to_vec();
    shape.extend(&left.shape[batch..]);
    Some((left.clone().reshaped(&shape)?, right))
}

/// Strides along the batch axes; 0 along repeated axes.
fn batch_strides(view: &StridedSlice, batch: &[usize]) -> Vec<usize> {
    let own = view.shape.len() - 2;
    let missing = batch.len() - own;
    (0..batch.len())
        .map(|axis| match axis.checked_sub(missing) {
            Some(axis) if view.shape[axis] != 1 => view.strides[axis],
            _ => 0,
        })
        .collect()
}

/// Merges the batch to two axes, if strides allow it.
fn two_axes(batch: &[usize], strides: [Vec<usize>; 2]) -> Option<([usize; 2], [[usize; 2]; 2])> {
    let mut axes: Vec<(usize, [usize; 2])> = Vec::new();
    for (axis, &extent) in batch.iter().enumerate() {
        if extent == 1 {
            continue;
        }
        let here = [strides[0][axis], strides[1][axis]];
        match axes.last_mut() {
            Some((outer, outer_strides))
                if (0..2).all(|side| outer_strides[side] == here[side] * extent) =>
            {
                *outer *= extent;
                *outer_strides = here;
            }
            _ => axes.push((extent, here)),
        }
    }
    while axes.len() < 2 {
        axes.insert(0, (1, [0, 0]));
    }
    match axes[..] {
        [(outer, outer_strides), (inner, inner_strides)] => Some((
            [outer, inner],
            [[outer_strides[0], inner_strides[0]], [outer_strides[1], inner_strides[1]]],
        )),
        _ => None,
    }
}

/// Memory layout of matrices: offset, strides of the batch, strides of rows and columns.
type Place = (usize, [usize; 2], [usize; 2]);

struct Product {
    shape: BatchShape,
    left: Place,
    right: Place,
    rounding: Rounding,
}

impl Kernel for Product {
    fn run(
        &self,
        machine: &CpuContext,
        inputs: &[View<'_>],
        outputs: &mut [&mut [f32]],
        _scratch: &mut [f32],
    ) -> Result<()> {
        let batch = |index: usize, (offset, batch_strides, strides): Place| -> Result<Batch<'_>> {
            Ok(Batch { elements: &inputs[index].floats()?[offset..], batch_strides, strides })
        };
        let BatchShape { batch: [_, inner], rows, outputs: columns, .. } = self.shape;
        let output = BatchMut {
            elements: outputs[0],
            batch_strides: [inner * rows * columns, rows * columns],
            stride: columns,
        };
        let epilogue = Epilogue { rounding: self.rounding, ..Epilogue::default() };
        let (left, right) = (batch(0, self.left)?, batch(1, self.right)?);
        let (pool, isa) = (&machine.pool, machine.isa);
        multiply_batch(pool, isa, self.shape, 1.0, left, right, output, &epilogue);
        Ok(())
    }

    fn label(&self) -> String {
        OpKind::Matmul.name().to_owned()
    }

    fn cost(&self) -> Cost {
        let BatchShape { batch, rows, inputs, outputs } = self.shape;
        let count = batch[0] * batch[1];
        Cost {
            operations: 2 * (count * rows * inputs * outputs) as u64,
            bytes: 4 * (count * (rows * inputs + inputs * outputs + rows * outputs)) as u64,
        }
    }
}
