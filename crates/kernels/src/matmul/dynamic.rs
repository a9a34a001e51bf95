//! Batched products of two matrices that are not constant.

#![expect(unsafe_code, reason = "kernels take pointers, whose extents are checked once")]

use std::ops::Range;

use super::Epilogue;
use super::attention::are_apart;
use super::driver::{self, Dense, Left, Output};
use super::epilogue::apply;
use super::source::from_rows;
use super::tile::Shape;
use super::weights::{Panel, Right};
use crate::Pool;
use crate::scratch::{PackedRows, Scratch, with_scratch};
use crate::shared::SharedPointer;
use coremill_simd::Isa;
use coremill_simd::vector::{Kernel, Vector, dispatch};

/// Sizes of `batch[0]` times `batch[1]` products.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchShape {
    /// Number of products along both batch axes.
    pub batch: [usize; 2],
    /// Rows of the left matrices.
    pub rows: usize,
    /// Columns of the left matrices and rows of the right ones.
    pub inputs: usize,
    /// Columns of the right matrices.
    pub outputs: usize,
}

/// Matrices with arbitrary strides.
#[derive(Clone, Copy, Debug)]
pub struct Batch<'a> {
    /// The elements, from the first one on.
    pub elements: &'a [f32],
    /// Strides along both batch axes; 0 along broadcast axes.
    pub batch_strides: [usize; 2],
    /// Strides of rows and columns.
    pub strides: [usize; 2],
}

/// The output matrices.
#[derive(Debug)]
pub struct BatchMut<'a> {
    /// The elements, from the first one on.
    pub elements: &'a mut [f32],
    /// Strides along both batch axes.
    pub batch_strides: [usize; 2],
    /// Stride of the rows.
    pub stride: usize,
}

/// Maximum number of left rows for which right matrices are not packed.
const FEW: usize = 3;

/// Minimum number of multiplications for a task.
const TASK_WORK: usize = 1 << 16;

/// Multiplies matrices pair by pair, and the products by `scale`. All products use the same epilogue.
///
/// # Panics
/// Panics if sizes do not match, if matrices of the output overlap, or if the epilogue has a residual.
#[expect(clippy::too_many_arguments, reason = "the operands of a product")]
pub fn multiply_batch(
    pool: &Pool,
    isa: Isa,
    shape: BatchShape,
    scale: f32,
    left: Batch,
    right: Batch,
    output: BatchMut,
    epilogue: &Epilogue,
) {
    let BatchShape { batch, rows, inputs, outputs } = shape;
    let count = batch[0] * batch[1];
    if count * rows * outputs == 0 {
        return;
    }
    assert!(isa.is_available(), "this machine does not support {isa}");
    assert!(epilogue.residual.is_none(), "batched products do not support a residual");
    epilogue.check(rows, outputs);
    left.check("left", batch, rows, inputs);
    right.check("right", batch, inputs, outputs);
    let strides = [output.batch_strides[0], output.batch_strides[1], output.stride];
    let written =
        reach(&[batch[0], batch[1], rows, outputs], &[strides[0], strides[1], strides[2], 1]);
    assert!(
        written.is_some_and(|length| length <= output.elements.len()),
        "the output is too short"
    );
    assert!(are_apart(&[batch[0], batch[1], rows], &strides, outputs), "results overlap");

    let start = SharedPointer(output.elements.as_mut_ptr());
    let one = |index: usize, columns: Range<usize>, pool: Option<&Pool>| {
        let at = [index / batch[1], index % batch[1]];
        let target = start.get().wrapping_add(at[0] * strides[0] + at[1] * strides[1]);
        let product = Product {
            isa,
            rows,
            inputs,
            outputs,
            scale,
            left: left.get(at),
            left_strides: left.strides,
            right: right.get(at),
            right_strides: right.strides,
            output: Output { start: SharedPointer(target), stride: output.stride },
            epilogue,
        };
        // SAFETY: all sizes were checked, and results do not overlap.
        unsafe { product.run(columns, pool) };
    };
    let work = rows.saturating_mul(inputs).saturating_mul(outputs);
    if is_few(rows, right.strides) {
        // Each task computes some columns of one product.
        let wanted = (work / TASK_WORK).clamp(1, (pool.threads() * 4).div_ceil(count));
        let step = outputs.div_ceil(wanted).next_multiple_of(16);
        let parts = outputs.div_ceil(step);
        return pool.run(count * parts, |task| {
            let first = task % parts * step;
            one(task / parts, first..(first + step).min(outputs), None);
        });
    }
    if count >= 2 * pool.threads() || work < TASK_WORK {
        return pool.run(count, |index| one(index, 0..outputs, None));
    }
    for index in 0..count {
        one(index, 0..outputs, Some(pool));
    }
}

/// Whether right matrices are used in place.
fn is_few(rows: usize, right_strides: [usize; 2]) -> bool {
    rows <= FEW && right_strides.contains(&1)
}

/// Number of elements from the first to the last one of a strided tensor.
fn reach(extents: &[usize], strides: &[usize]) -> Option<usize> {
    if extents.contains(&0) {
        return Some(0);
    }
    extents
        .iter()
        .zip(strides)
        .try_fold(1usize, |sum, (extent, stride)| sum.checked_add(stride.checked_mul(extent - 1)?))
}

impl<'a> Batch<'a> {
    fn check(&self, name: &str, batch: [usize; 2], rows: usize, columns: usize) {
        let extents = [batch[0], batch[1], rows, columns];
        let [first, second] = self.batch_strides;
        let length = reach(&extents, &[first, second, self.strides[0], self.strides[1]]);
        let fits = length.is_some_and(|length| length <= self.elements.len());
        assert!(fits, "the {name} matrices do not fit {} elements", self.elements.len());
    }

    fn get(&self, at: [usize; 2]) -> &'a [f32] {
        let start = at[0] * self.batch_strides[0] + at[1] * self.batch_strides[1];
        &self.elements[start.min(self.elements.len())..]
    }
}

/// One of the products.
struct Product<'a> {
    isa: Isa,
    rows: usize,
    inputs: usize,
    outputs: usize,
    scale: f32,
    left: &'a [f32],
    left_strides: [usize; 2],
    right: &'a [f32],
    right_strides: [usize; 2],
    output: Output,
    epilogue: &'a Epilogue<'a>,
}

impl Product<'_> {
    /// # Safety
    /// All sizes must match, and no other thread may access these columns of the output.
    unsafe fn run(&self, columns: Range<usize>, pool: Option<&Pool>) {
        let Product { isa, rows, left, left_strides, output, epilogue, .. } = self;
        if is_few(*rows, self.right_strides) {
            for row in 0..*rows {
                // SAFETY: the caller guarantees the output.
                let target = unsafe {
                    let start = output.start.get().add(row * output.stride + columns.start);
                    std::slice::from_raw_parts_mut(start, columns.len())
                };
                self.run_row(row, columns.clone(), target);
                apply(*isa, epilogue, row, columns.start, target);
            }
            return;
        }
        // SAFETY: the caller guarantees the extents.
        unsafe {
            if left_strides[1] == 1 {
                let (start, stride) = (left.as_ptr(), left_strides[0]);
                let left = Dense { start, stride, depth: self.inputs };
                driver::run(pool, *rows, &left, self, output, epilogue);
            } else {
                let left =
                    StridedRows { elements: left, strides: *left_strides, depth: self.inputs };
                driver::run(pool, *rows, &left, self, output, epilogue);
            }
        }
    }

    /// Computes some columns of one row, without packing.
    fn run_row(&self, row: usize, columns: Range<usize>, target: &mut [f32]) {
        with_scratch(|scratch| {
            let left = scratch.elements(self.inputs);
            let [down, across] = self.left_strides;
            let source = &self.left[(row * down).min(self.left.len())..];
            if across == 0 {
                // The row repeats one element.
                left.fill(source.first().map_or(0.0, |element| element * self.scale));
            } else {
                for (element, source) in left.iter_mut().zip(source.iter().step_by(across)) {
                    *element = *source * self.scale;
                }
            }
            let start = columns.start * self.right_strides[1];
            let right = &self.right[start.min(self.right.len())..];
            dispatch(self.isa, Row { left, right, strides: self.right_strides, target });
        });
    }
}

impl Right for Product<'_> {
    fn isa(&self) -> Isa {
        self.isa
    }

    fn inputs(&self) -> usize {
        self.inputs
    }

    fn outputs(&self) -> usize {
        self.outputs
    }

    fn part<'a>(
        &'a self,
        panel: Panel,
        inputs: Range<usize>,
        scratch: &'a mut Scratch,
    ) -> &'a [f32] {
        let width = panel.vectors * Shape::of(self.isa).lanes;
        let columns = panel.start..(panel.start + width).min(self.outputs);
        let part = scratch.elements(inputs.len() * width);
        let [down, across] = self.right_strides;
        if across != 1 && down == 1 {
            from_rows(self.isa, inputs.len(), columns.len(), width, part, |rows| {
                for (column, row) in columns.zip(rows.chunks_exact_mut(inputs.len().max(1))) {
                    row.copy_from_slice(
                        &self.right[column * across + inputs.start..][..inputs.len()],
                    );
                }
            });
        } else {
            for (input, row) in inputs.zip(part.chunks_exact_mut(width)) {
                let (some, rest) = row.split_at_mut(columns.len());
                let source = &self.right[input * down + columns.start * across..];
                if across == 1 {
                    some.copy_from_slice(&source[..columns.len()]);
                } else {
                    for (index, element) in some.iter_mut().enumerate() {
                        *element = source[index * across];
                    }
                }
                rest.fill(0.0);
            }
        }
        if self.scale != 1.0 {
            for element in &mut *part {
                *element *= self.scale;
            }
        }
        part
    }
}

/// Left rows whose elements are not contiguous; they are copied tile by tile.
struct StridedRows<'a> {
    elements: &'a [f32],
    strides: [usize; 2],
    depth: usize,
}

// SAFETY: rows are copied completely.
unsafe impl Left for StridedRows<'_> {
    fn taps(&self) -> usize {
        1
    }

    fn depth(&self) -> usize {
        self.depth
    }

    fn copied(&self, rows: usize) -> usize {
        rows * self.depth
    }

    fn point(&self, rows: Range<usize>, pointers: &mut [*const f32], copies: &mut PackedRows) {
        let [down, across] = self.strides;
        let copy = copies.take(rows.len() * self.depth);
        for input in 0..self.depth {
            for (index, row) in rows.clone().enumerate() {
                copy[index * self.depth + input] = self.elements[row * down + input * across];
            }
        }
        for (index, pointer) in pointers.iter_mut().enumerate() {
            *pointer = copy[index * self.depth..].as_ptr();
        }
    }
}

/// A row times a matrix whose rows or columns are contiguous.
struct Row<'a> {
    left: &'a [f32],
    right: &'a [f32],
    strides: [usize; 2],
    target: &'a mut [f32],
}

impl Kernel for Row<'_> {
    type Output = ();

    #[inline(always)]
    fn run<V: Vector>(self) {
        if self.strides[1] == 1 { self.along_columns::<V>() } else { self.along_inputs::<V>() }
    }
}

impl Row<'_> {
    /// Computes several vectors of columns at a time.
    #[inline(always)]
    fn along_columns<V: Vector>(self) {
        const VECTORS: usize = 4;
        let (inputs, columns) = (self.left.len(), self.target.len());
        assert!(
            reach(&[inputs, columns], &self.strides).is_some_and(|end| end <= self.right.len())
        );
        let mut column = 0;
        while column < columns {
            let count = (columns - column).min(VECTORS * V::LANES);
            let mut sums = [V::zero(); VECTORS];
            for (input, element) in self.left.iter().enumerate() {
                let element = V::splat(*element);
                for (index, sum) in sums.iter_mut().enumerate() {
                    let at = index * V::LANES;
                    // SAFETY: the elements of this input and these columns are in the matrix.
                    let weights = unsafe {
                        let source = self.right.as_ptr().add(input * self.strides[0] + column);
                        if at + V::LANES <= count {
                            V::load(source.add(at))
                        } else {
                            let at = at.min(count);
                            V::load_partial(source.add(at), count - at)
                        }
                    };
                    *sum = weights.mul_add(element, *sum);
                }
            }
            for (index, sum) in sums.iter().enumerate() {
                let at = (index * V::LANES).min(count);
                // SAFETY: these columns are in the target.
                unsafe {
                    let target = self.target.as_mut_ptr().add(column + at);
                    sum.store_partial(target, (count - at).min(V::LANES));
                }
            }
            column += count;
        }
    }

    /// Computes each column as a dot product.
    #[inline(always)]
    fn along_inputs<V: Vector>(self) {
        const COLUMNS: usize = 4;
        let (inputs, columns) = (self.left.len(), self.target.len());
        assert!(
            reach(&[inputs, columns], &self.strides).is_some_and(|end| end <= self.right.len())
        );
        for (index, targets) in self.target.chunks_mut(COLUMNS).enumerate() {
            let mut sums = [V::zero(); COLUMNS];
            let mut at = 0;
            while at < inputs {
                let count = (inputs - at).min(V::LANES);
                // SAFETY: these inputs are in the row, and in the matrix for each of the columns. Missing
                // columns repeat the last one.
                unsafe {
                    let elements = V::load_partial(self.left.as_ptr().add(at), count);
                    for (offset, sum) in sums.iter_mut().enumerate() {
                        let column = (index * COLUMNS + offset).min(columns - 1);
                        let source = self.right.as_ptr().add(column * self.strides[1] + at);
                        let weights = if count == V::LANES {
                            V::load(source)
                        } else {
                            V::load_partial(source, count)
                        };
                        *sum = weights.mul_add(elements, *sum);
                    }
                }
                at += count;
            }
            for (target, sum) in targets.iter_mut().zip(&sums) {
                *target = sum.sum();
            }
        }
    }
}

#[cfg(test)]
mod tests;
