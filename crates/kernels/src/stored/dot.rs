//! Products of few rows with stored weights: dot products with rows of the weights, at memory bandwidth.

#![expect(unsafe_code, reason = "pointers to rows, whose extents are checked once")]

use std::ops::Range;

use super::decode::{BlockNumbers, Decoder, RowStart};
use super::format::QuantizedMatrix;
use super::numbers::{Numbers, UseDecoder, with_decoder};
use crate::Pool;
use crate::matmul::{Epilogue, Matrix, MatrixMut, epilogue};
use crate::scratch::with_scratch;
use crate::shared::SharedPointer;
use coremill_simd::Isa;
use coremill_simd::vector::{Kernel, MAX_LANES, Vector, dispatch, prefetch};

/// Number of weight rows that are read at once. Each is in a different part of the task's rows, because the
/// processor prefetches several long streams faster than one.
pub(super) const TOGETHER: usize = 4;

/// Prefetch distance in bytes.
pub(super) const DISTANCE: usize = 2 << 10;

const CACHE_LINE: usize = 64;

/// Maximum number of weight rows in a task.
const TASK_ROWS: usize = 128;

/// Minimum number of weights for a task.
pub(super) const TASK_WORK: usize = 1 << 15;

/// Multiplies rows by the transpose of stored weights; each row of the weights results in one column.
///
/// It is intended for up to about eight rows. For more rows, weights in panels are faster.
///
/// # Panics
/// Panics if a matrix has too few rows, or if the epilogue does not match the result.
pub fn multiply_stored(
    pool: &Pool,
    isa: Isa,
    rows: usize,
    left: Matrix,
    weights: &QuantizedMatrix,
    output: MatrixMut,
    epilogue: &Epilogue,
) {
    let (outputs, inputs) = (weights.rows(), weights.columns());
    left.check(rows, inputs);
    output.check(rows, outputs);
    epilogue.check(rows, outputs);
    if rows == 0 || outputs == 0 {
        return;
    }
    with_scratch(|scratch| {
        let across = weights.across().max(1);
        let (parted_size, sums_size) = (
            if weights.is_parted() { rows * inputs } else { 0 },
            if weights.shift().is_some() { rows * across } else { 0 },
        );
        let (parted, sums) = scratch.elements(parted_size + sums_size).split_at_mut(parted_size);
        if !sums.is_empty() {
            let block = inputs / across;
            dispatch(isa, BlockSums { inputs, block, left, sums });
        }
        let left = match weights.is_parted() {
            true => {
                dispatch(isa, Part { inputs, left, parted });
                Matrix { elements: parted, stride: inputs }
            }
            false => left,
        };
        multiply_parted(pool, isa, rows, left, sums, weights, output, epilogue);
    });
}

/// [`multiply_stored`] with the left rows in the order of the decoded weights. `sums` are the sums of the blocks of
/// each left row, for weights with shifts.
#[expect(clippy::too_many_arguments, reason = "the operands of `multiply_stored`, and sums")]
fn multiply_parted(
    pool: &Pool,
    isa: Isa,
    rows: usize,
    left: Matrix,
    sums: &[f32],
    weights: &QuantizedMatrix,
    output: MatrixMut,
    epilogue: &Epilogue,
) {
    let (outputs, inputs) = (weights.rows(), weights.columns());
    let tasks = (outputs.saturating_mul(inputs) / TASK_WORK).clamp(1, pool.threads() * 8);
    let step = outputs.div_ceil(tasks).next_multiple_of(TOGETHER).min(TASK_ROWS);
    let target = SharedPointer(output.elements.as_mut_ptr());
    pool.run(outputs.div_ceil(step), |task| {
        let columns = task * step..((task + 1) * step).min(outputs);
        with_scratch(|scratch| {
            let scratch = scratch.elements(Numbers::scratch(weights, columns.len()));
            let numbers = Numbers::read(isa, weights, columns.clone(), scratch);
            // SAFETY: all sizes were checked, and no two tasks write the same columns.
            let start = unsafe { target.get().add(columns.start) };
            let shape = Dots {
                rows,
                columns: columns.clone(),
                inputs,
                block: inputs / weights.across().max(1),
                left,
                sums,
                numbers,
                output: start,
                output_stride: output.stride,
            };
            with_decoder(weights, WithIsa { isa, shape });
            for row in 0..rows {
                // SAFETY: as above.
                let elements = unsafe {
                    std::slice::from_raw_parts_mut(start.add(row * output.stride), columns.len())
                };
                epilogue::apply(isa, epilogue, row, columns.start, elements);
            }
        });
    });
}

/// Separates the elements of rows at even and odd positions, two vectors at a time.
struct Part<'a> {
    inputs: usize,
    left: Matrix<'a>,
    parted: &'a mut [f32],
}

impl Kernel for Part<'_> {
    type Output = ();

    #[inline(always)]
    fn run<V: Vector>(self) {
        for (row, target) in self.parted.chunks_exact_mut(self.inputs.max(1)).enumerate() {
            let source = &self.left.elements[row * self.left.stride..][..self.inputs];
            let source = source.chunks_exact(2 * V::LANES);
            for (source, target) in source.zip(target.chunks_exact_mut(2 * V::LANES)) {
                let (even, odd) = target.split_at_mut(V::LANES);
                for ((pair, even), odd) in source.as_chunks::<2>().0.iter().zip(even).zip(odd) {
                    (*even, *odd) = (pair[0], pair[1]);
                }
            }
        }
    }
}

/// Adds up the elements of each block of each row.
struct BlockSums<'a> {
    inputs: usize,
    block: usize,
    left: Matrix<'a>,
    sums: &'a mut [f32],
}

impl Kernel for BlockSums<'_> {
    type Output = ();

    #[inline(always)]
    fn run<V: Vector>(self) {
        let across = self.inputs / self.block.max(1);
        for (row, sums) in self.sums.chunks_exact_mut(across.max(1)).enumerate() {
            let elements = &self.left.elements[row * self.left.stride..][..self.inputs];
            for (block, sum) in elements.chunks_exact(self.block.max(1)).zip(sums) {
                let mut total = V::zero();
                for part in block.chunks(V::LANES) {
                    // SAFETY: the part has at most the elements of a vector.
                    total = total.add(unsafe { V::load_partial(part.as_ptr(), part.len()) });
                }
                *sum = total.sum();
            }
        }
    }
}

/// The dot products of a task.
#[derive(Clone)]
struct Dots<'a> {
    rows: usize,
    /// Columns of the result, which are rows of the weights.
    columns: Range<usize>,
    inputs: usize,
    /// Number of inputs in a block; it divides the total number.
    block: usize,
    left: Matrix<'a>,
    /// Sums of the blocks of each left row, for weights with shifts.
    sums: &'a [f32],
    numbers: Numbers<'a>,
    /// Pointer to the first of the columns.
    output: *mut f32,
    output_stride: usize,
}

struct WithIsa<'a> {
    isa: Isa,
    shape: Dots<'a>,
}

impl UseDecoder for WithIsa<'_> {
    fn run<D: Decoder>(self, decoder: D) {
        dispatch(self.isa, WithDecoder { shape: self.shape, decoder });
    }
}

struct WithDecoder<'a, D> {
    shape: Dots<'a>,
    decoder: D,
}

impl<D: Decoder> Kernel for WithDecoder<'_, D> {
    type Output = ();

    #[inline(always)]
    fn run<V: Vector>(self) {
        let WithDecoder { shape, decoder } = self;
        let apart = shape.columns.len().div_ceil(TOGETHER);
        for column in shape.columns.start..shape.columns.start + apart {
            // The weights read for one group of left rows are still in the cache for the next group.
            let mut row = 0;
            while row < shape.rows {
                // SAFETY: this column and these rows exist.
                row += unsafe {
                    if V::TUNED && shape.rows - row >= 4 {
                        dots::<V, D, 4>(&shape, decoder, row, column, apart)
                    } else {
                        dots::<V, D, 1>(&shape, decoder, row, column, apart)
                    }
                };
            }
        }
    }
}

/// Computes the dot products of `M` left rows with up to [`TOGETHER`] rows of weights at a distance of
/// `apart`. Returns `M`.
///
/// # Safety
/// The row of weights and the left rows must exist.
#[inline(always)]
unsafe fn dots<V: Vector, D: Decoder, const M: usize>(
    shape: &Dots,
    decoder: D,
    row: usize,
    column: usize,
    apart: usize,
) -> usize {
    const N: usize = TOGETHER;
    let last = shape.columns.end - 1;
    let mut left = [std::ptr::null::<f32>(); M];
    for (index, left) in left.iter_mut().enumerate() {
        // SAFETY: the caller guarantees the rows.
        *left = unsafe { shape.left.elements.as_ptr().add((row + index) * shape.left.stride) };
    }
    let mut numbers = [shape.numbers.row(column); N];
    // SAFETY: the caller guarantees the rows.
    let mut starts = [unsafe { decoder.row(column * shape.inputs) }; N];
    for (n, (numbers, start)) in numbers.iter_mut().zip(&mut starts).enumerate() {
        // Missing rows are replaced by the last one.
        let column = last.min(column + n * apart);
        *numbers = shape.numbers.row(column);
        // SAFETY: as above.
        *start = unsafe { decoder.row(column * shape.inputs) };
    }
    let mut sums = [[V::zero(); M]; N];
    let mut start = 0;
    let mut index = 0;
    while start < shape.inputs {
        let end = start + shape.block;
        // SAFETY: the palettes belong to the format.
        let mut blocks = [unsafe { decoder.block::<V>(numbers[0].get(index)) }; N];
        let mut scales = [V::zero(); N];
        for ((block, scale), numbers) in blocks.iter_mut().zip(&mut scales).zip(&numbers) {
            let numbers = numbers.get(index);
            // SAFETY: as above.
            *block = unsafe { decoder.block::<V>(numbers) };
            *scale = V::splat(numbers.scale);
        }
        // With one left row, the sum of a block is scaled. With several, the weights are scaled.
        let mut parts = if M == 1 { [[V::zero(); M]; N] } else { sums };
        let mut at = start;
        if D::PARTED {
            while at < end {
                ask(decoder, &starts, at, 2 * V::LANES);
                // SAFETY: the blocks of these weights are multiples of two vectors.
                let (even, odd) = unsafe { (load(&left, at), load(&left, at + V::LANES)) };
                for (n, parts) in parts.iter_mut().enumerate() {
                    // SAFETY: as above.
                    let weights = unsafe { decoder.parted::<V>(starts[n], at, blocks[n]) };
                    add(weights[0], scales[n], &even, parts);
                    add(weights[1], scales[n], &odd, parts);
                }
                at += 2 * V::LANES;
            }
        } else {
            // End of the elements at which vectors of the last weight row can be read within the data.
            let furthest = last.min(column + (N - 1) * apart) * shape.inputs + start;
            let readable = decoder.readable().saturating_sub(furthest);
            let vectors = (shape.block / V::LANES).min(readable.div_ceil(V::LANES));
            let vectors_end = start + vectors * V::LANES;
            while at < vectors_end {
                ask(decoder, &starts, at, V::LANES);
                // SAFETY: the block has at least one more vector of elements.
                let elements = unsafe { load(&left, at) };
                for (n, parts) in parts.iter_mut().enumerate() {
                    // SAFETY: as above, and the index is below `readable`.
                    let weights = unsafe { decoder.vector::<V>(starts[n], at, blocks[n]) };
                    add(weights, scales[n], &elements, parts);
                }
                at += V::LANES;
            }
            while at < end {
                let count = (end - at).min(V::LANES);
                let mut elements = [V::zero(); M];
                for (elements, left) in elements.iter_mut().zip(&left) {
                    // SAFETY: the elements are in the block.
                    *elements = unsafe { V::load_partial(left.add(at), count) };
                }
                for (n, parts) in parts.iter_mut().enumerate() {
                    let numbers = numbers[n].get(index);
                    let first = last.min(column + n * apart) * shape.inputs + at;
                    let mut lanes = [0.0; MAX_LANES];
                    // SAFETY: the elements are in the block.
                    unsafe { singles(decoder, first, numbers, &mut lanes[..count]) };
                    // SAFETY: there are as many lanes as in the widest vector.
                    let weights = unsafe { V::load(lanes.as_ptr()) };
                    add(weights, scales[n], &elements, parts);
                }
                at += count;
            }
        }
        for ((sums, parts), scale) in sums.iter_mut().zip(&parts).zip(&scales) {
            for (sum, part) in sums.iter_mut().zip(parts) {
                *sum = if M == 1 { part.mul_add(*scale, *sum) } else { *part };
            }
        }
        start = end;
        index += 1;
    }
    for (n, sums) in sums.iter().enumerate().take((last - column) / apart + 1) {
        for (m, sum) in sums.iter().enumerate() {
            // SAFETY: the caller guarantees the rows, and they belong to the task.
            unsafe {
                let at = (row + m) * shape.output_stride + column + n * apart - shape.columns.start;
                let shifted = shifted::<V>(shape.sums, numbers[n].shifts, row + m);
                *shape.output.add(at) = sum.sum() + shifted;
            }
        }
    }
    M
}

/// The part of a dot product that the shifts of a row of weights contribute: their products with the sums of the
/// left row's blocks.
#[inline(always)]
fn shifted<V: Vector>(sums: &[f32], shifts: &[f32], row: usize) -> f32 {
    if shifts.is_empty() {
        return 0.0;
    }
    let sums = &sums[row * shifts.len()..][..shifts.len()];
    let mut total = V::zero();
    for (sums, shifts) in sums.chunks(V::LANES).zip(shifts.chunks(V::LANES)) {
        // SAFETY: both have the same number of elements, at most those of a vector.
        total = unsafe {
            let sums = V::load_partial(sums.as_ptr(), shifts.len());
            sums.mul_add(V::load_partial(shifts.as_ptr(), shifts.len()), total)
        };
    }
    total.sum()
}

/// Prefetches weights of few bits at a fixed distance, each cache line once. It is called before each step of `step` elements. The
/// processor itself prefetches streams of more bytes in time; requests for them only take up its queues.
#[inline(always)]
fn ask<D: Decoder>(decoder: D, starts: &[RowStart], at: usize, step: usize) {
    let bits = decoder.bits();
    if bits < 8 && at * bits % (8 * CACHE_LINE) < step * bits {
        for start in starts {
            prefetch(start.pointer.wrapping_add(at * bits / 8 + DISTANCE));
        }
    }
}

/// Loads a vector of each row.
///
/// # Safety
/// The rows must have the elements of a vector at `at`.
#[inline(always)]
unsafe fn load<V: Vector, const M: usize>(rows: &[*const f32; M], at: usize) -> [V; M] {
    let mut vectors = [V::zero(); M];
    for (vector, row) in vectors.iter_mut().zip(rows) {
        // SAFETY: the caller guarantees the elements.
        *vector = unsafe { V::load(row.add(at)) };
    }
    vectors
}

/// Adds the products with the elements of each row. With one row, the scale is applied later.
#[inline(always)]
fn add<V: Vector, const M: usize>(weights: V, scale: V, elements: &[V; M], sums: &mut [V; M]) {
    let weights = if M == 1 { weights } else { weights.mul(scale) };
    for (sum, elements) in sums.iter_mut().zip(elements) {
        *sum = weights.mul_add(*elements, *sum);
    }
}

/// Decodes elements one by one, if there are fewer than a vector. It is not inlined, because its callers have
/// many instances.
///
/// # Safety
/// The elements must be in the matrix, and the palette must belong to the format.
#[inline(never)]
unsafe fn singles<D: Decoder>(decoder: D, first: usize, numbers: BlockNumbers, target: &mut [f32]) {
    for (lane, to) in target.iter_mut().enumerate() {
        // SAFETY: the caller guarantees the element.
        *to = unsafe { decoder.single(first + lane, numbers) };
    }
}
