//! Few rows: dot products with rows of the weights, at memory bandwidth.

#![expect(unsafe_code, reason = "pointers to rows, whose extents are checked once")]

use std::ops::Range;

use super::super::dot::{DISTANCE, TASK_WORK, TOGETHER};
use super::super::format::QuantizedMatrix;
use super::super::numbers::{Numbers, RowNumbers};
use super::codes::{Codes, Form, UseCodes};
use super::left::{Layout, Left, Order};
use super::{BLOCK, MAX_STEP, step_of};
use crate::Pool;
use crate::matmul::{Epilogue, Matrix, MatrixMut, epilogue};
use crate::scratch::with_scratch;
use crate::shared::SharedPointer;
use coremill_simd::Isa;
use coremill_simd::vector::{
    Bits, DotIsa, DotKernel, Int8Dot, Vector, dispatch_dots, prefetch_far,
};

/// Maximum number of block parameters of a task.
const TASK_NUMBERS: usize = 1 << 13;

#[expect(clippy::too_many_arguments, reason = "the operands of `multiply_words`")]
pub(super) fn multiply(
    pool: &Pool,
    isa: Isa,
    rows: usize,
    left: Matrix,
    weights: &QuantizedMatrix,
    form: Form,
    output: MatrixMut,
    epilogue: &Epilogue,
) {
    let (outputs, inputs) = (weights.rows(), weights.columns());
    let dots = DotIsa::of(isa);
    let order = Order::Planes(dots.lanes());
    let layout = Layout { inputs, each: form.each(), order, part: form.part() };
    let across = weights.across();
    let has_sums = weights.shift().is_some() || weights.offset();
    with_scratch(|scratch| {
        let totals_size = if has_sums { rows * across } else { 0 };
        let memory = scratch.elements(rows * layout.scratch() + totals_size);
        let (memory, totals) = memory.split_at_mut(rows * layout.scratch());
        let left = Left::new(pool, isa, rows, left, layout, memory);
        for (row, totals) in totals.chunks_exact_mut(across).enumerate() {
            let sums = left.sums(row).chunks_exact(inputs / across / BLOCK);
            totals.iter_mut().zip(sums).for_each(|(total, sums)| *total = sums.iter().sum());
        }
        let tasks = (outputs.saturating_mul(inputs) / TASK_WORK).clamp(1, pool.threads() * 8);
        let most = (TASK_NUMBERS / across).max(TOGETHER);
        let step = outputs.div_ceil(tasks).min(most).next_multiple_of(TOGETHER);
        let target = SharedPointer(output.elements.as_mut_ptr());
        let totals = &*totals;
        pool.run(outputs.div_ceil(step), |task| {
            let columns = task * step..((task + 1) * step).min(outputs);
            with_scratch(|scratch| {
                let numbers_size = Numbers::scratch(weights, columns.len());
                let scratch = scratch.elements(numbers_size + TOGETHER * layout.scales());
                let (numbers, factors) = scratch.split_at_mut(numbers_size);
                let numbers = Numbers::read(isa, weights, columns.clone(), numbers);
                // SAFETY: all sizes were checked, and no two tasks write the same columns.
                let start = unsafe { target.get().add(columns.start) };
                let work = Work {
                    rows,
                    columns: columns.clone(),
                    left,
                    totals,
                    block: inputs / across,
                    numbers,
                    data: weights.data.as_bytes(),
                    factors,
                    output: start,
                    stride: output.stride,
                };
                form.use_codes(WithIsa { dots, work });
                for row in 0..rows {
                    // SAFETY: as above.
                    let elements = unsafe {
                        std::slice::from_raw_parts_mut(
                            start.add(row * output.stride),
                            columns.len(),
                        )
                    };
                    epilogue::apply(isa, epilogue, row, columns.start, elements);
                }
            });
        });
    });
}

/// The dot products of a task.
struct Work<'a> {
    rows: usize,
    /// Columns of the result, which are rows of the weights.
    columns: Range<usize>,
    left: Left<'a>,
    /// Sums of the weights' blocks for each left row, for weights with shifts or offsets.
    totals: &'a [f32],
    /// Number of inputs in a block of the weights.
    block: usize,
    numbers: Numbers<'a>,
    data: &'a [u8],
    /// Memory for the factors of some rows of weights.
    factors: &'a mut [f32],
    /// Pointer to the first of the columns.
    output: *mut f32,
    stride: usize,
}

struct WithIsa<'a> {
    dots: DotIsa,
    work: Work<'a>,
}

impl UseCodes for WithIsa<'_> {
    fn run<C: Codes>(self, codes: C) {
        // SAFETY: the value of `DotIsa` was made for this machine.
        unsafe { dispatch_dots(self.dots, WithCodes { work: self.work, codes }) }
    }
}

struct WithCodes<'a, C> {
    work: Work<'a>,
    codes: C,
}

impl<C: Codes> DotKernel for WithCodes<'_, C> {
    type Output = ();

    #[inline(always)]
    fn run<D: Int8Dot>(self) {
        let WithCodes { mut work, codes } = self;
        let apart = work.columns.len().div_ceil(TOGETHER);
        for column in work.columns.start..work.columns.start + apart {
            // The weights read for one left row are still in the cache for the next one.
            for row in 0..work.rows {
                // SAFETY: these rows and columns exist.
                unsafe { work.dots::<D, C>(codes, row, column, apart) };
            }
        }
    }
}

impl Work<'_> {
    /// Computes the dot products of a left row with up to [`TOGETHER`] rows of weights at a distance of `apart`.
    ///
    /// # Safety
    /// The rows must exist.
    #[inline(always)]
    unsafe fn dots<D: Int8Dot, C: Codes>(
        &mut self,
        codes: C,
        row: usize,
        column: usize,
        apart: usize,
    ) {
        const N: usize = TOGETHER;
        let lanes = D::Floats::LANES;
        let last = self.columns.end - 1;
        let layout = self.left.layout;
        let row_bytes = layout.inputs * C::BITS / 8;
        let step_bytes = C::EACH * lanes * C::BITS / 8;
        let zero = codes.zero();
        let steps = layout.words() / (C::EACH * lanes);
        let whole = layout.inputs / (C::EACH * lanes);
        let mut sums = [D::Floats::zero(); N];
        let mut starts = [0; N];
        let factors_length = layout.scales();
        let totals = match self.totals {
            [] => &[],
            totals => &totals[row * (layout.inputs / self.block)..][..layout.inputs / self.block],
        };
        for n in 0..N {
            // Missing rows are replaced by the last one.
            let column = last.min(column + n * apart);
            starts[n] = column * row_bytes;
            let target = &mut self.factors[n * factors_length..][..factors_length];
            let each = self.block / layout.part;
            sums[n] = prepare::<D::Floats>(
                &self.numbers.row(column),
                each,
                &self.left,
                row,
                totals,
                zero,
                target,
            );
        }
        let factors = self.factors.as_ptr();
        let words = self.left.words(row).cast::<i8>();
        let data = self.data.as_ptr();
        for at in 0..whole {
            let left = words.wrapping_add(at * 2 * C::EACH * lanes);
            for n in 0..N {
                // SAFETY: both rows have the bytes of whole steps, and there are factors for all lanes.
                unsafe {
                    let source = data.add(starts[n] + at * step_bytes);
                    prefetch_far(source.wrapping_add(DISTANCE));
                    let scale = D::spread(factors.add(n * factors_length + at * lanes / 4));
                    sums[n] = step::<D, C>(codes, source, left, scale, sums[n]);
                }
            }
        }
        if whole < steps {
            // Integers and factors after the last element are zero.
            let left = words.wrapping_add(whole * 2 * C::EACH * lanes);
            for n in 0..N {
                let start = starts[n] + whole * step_bytes;
                let mut copy = [0; MAX_STEP];
                let source = step_of(self.data, start, step_bytes, &mut copy).as_ptr();
                // SAFETY: the source has the bytes of a step, and there are factors for all lanes.
                unsafe {
                    let scale = D::spread(factors.add(n * factors_length + whole * lanes / 4));
                    sums[n] = step::<D, C>(codes, source, left, scale, sums[n]);
                }
            }
        }
        for (n, sums) in sums.iter().enumerate().take((last - column) / apart + 1) {
            let at = row * self.stride + column + n * apart - self.columns.start;
            // SAFETY: the caller guarantees the rows, and they belong to the task.
            unsafe { *self.output.add(at) = sums.sum() };
        }
    }
}

/// Adds the scaled products of a step.
///
/// # Safety
/// The bytes of the weights and of the left row must be readable.
#[inline(always)]
unsafe fn step<D: Int8Dot, C: Codes>(
    codes: C,
    source: *const u8,
    left: *const i8,
    scale: D::Floats,
    sums: D::Floats,
) -> D::Floats {
    let vectors = C::EACH / 4;
    let bytes = 4 * D::Floats::LANES;
    let mut products: Bits<D> = D::Floats::bits(0);
    // SAFETY: the caller guarantees the bytes.
    unsafe {
        let weights = codes.bytes::<D>(source);
        for (at, &weights) in weights.iter().enumerate().take(vectors) {
            products = D::dot(products, weights, D::right(left.add(at * bytes)));
        }
        products = D::Floats::bits_left::<8>(products);
        for (at, &weights) in weights.iter().enumerate().take(vectors) {
            products = D::dot(products, weights, D::right(left.add((vectors + at) * bytes)));
        }
    }
    D::Floats::from_int(products).mul_add(scale, sums)
}

/// Multiplies the scales of a row of weights, each of which applies to `each` parts, with the scales of a left row. Returns
/// sums of the contribution of shifts, offsets and the zero of the integers.
#[inline(always)]
fn prepare<V: Vector>(
    numbers: &RowNumbers<'_>,
    each: usize,
    left: &Left<'_>,
    row: usize,
    sums: &[f32],
    zero: f32,
    target: &mut [f32],
) -> V {
    let (scales, left, totals) = (numbers.scales(), left.scales(row), left.totals(row));
    let count = scales.len() * each;
    let target = &mut target[..left.len()];
    target[count..].fill(0.0);
    match each {
        1 => {
            for at in (0..count).step_by(V::LANES) {
                let scales = load::<V>(scales, at);
                store(scales.mul(load(left, at)), &mut target[..count], at);
            }
        }
        2 => {
            for at in (0..scales.len()).step_by(V::LANES) {
                let scales = load::<V>(scales, at);
                let (first, second) = scales.interleave(scales);
                for (scales, at) in [(first, 2 * at), (second, 2 * at + V::LANES)] {
                    if at < count {
                        store(scales.mul(load(left, at)), &mut target[..count], at);
                    }
                }
            }
        }
        _ => {
            let parts = left.chunks_exact(each).zip(target.chunks_exact_mut(each));
            for (&scale, (left, target)) in scales.iter().zip(parts) {
                for at in (0..each).step_by(V::LANES) {
                    store(V::splat(scale).mul(load(left, at)), target, at);
                }
            }
        }
    }
    let mut result = V::zero();
    if zero != 0.0 {
        for at in (0..count).step_by(V::LANES) {
            result = load::<V>(&target[..count], at).mul_add(load(totals, at), result);
        }
        result = result.mul(V::splat(-zero));
    }
    for at in (0..sums.len()).step_by(V::LANES) {
        let sums = load::<V>(sums, at);
        if !numbers.shifts.is_empty() {
            result = load::<V>(numbers.shifts, at).mul_add(sums, result);
        }
        if let Some(offsets) = numbers.offsets() {
            let offset = load::<V>(offsets, at).mul(load(scales, at));
            result = offset.neg_mul_add(sums, result);
        }
    }
    result
}

/// Loads a vector at an index; lanes after the end are zero.
#[inline(always)]
fn load<V: Vector>(elements: &[f32], at: usize) -> V {
    let count = elements.len() - at;
    // SAFETY: `count` elements follow the index.
    unsafe {
        let source = elements.as_ptr().add(at);
        if count >= V::LANES { V::load(source) } else { V::load_partial(source, count) }
    }
}

/// Stores the lanes of a vector that are not after the end.
#[inline(always)]
fn store<V: Vector>(vector: V, elements: &mut [f32], at: usize) {
    let count = elements.len() - at;
    // SAFETY: `count` elements follow the index.
    unsafe {
        let target = elements.as_mut_ptr().add(at);
        if count >= V::LANES { vector.store(target) } else { vector.store_partial(target, count) }
    }
}
