//! Few rows: dot products with rows of the weights, at memory bandwidth.

#![expect(unsafe_code, reason = "pointers to rows, whose extents are checked once")]

use std::ops::Range;

use super::super::dot::{DISTANCE, TASK_WORK, TOGETHER};
use super::super::format::QuantizedMatrix;
use super::codes::{Codes, Form, UseCodes};
use super::left::{Layout, Left, Order};
use super::row::{NumberCopy, RowParameters, ScaleProducts, WeightedSum, load, store, vectors};
use super::{BLOCK, MAX_STEP, step_of};
use crate::Pool;
use crate::matmul::{Epilogue, Matrix, MatrixMut, epilogue};
use crate::scratch::with_scratch;
use crate::shared::SharedPointer;
use coremill_simd::Isa;
use coremill_simd::vector::{
    Bits, DotIsa, DotKernel, Int8Dot, Vector, dispatch_dots, prefetch_far,
};

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
    let Some(scale) = weights.scale() else { unreachable!("integers have scales") };
    let of = |parameters| RowParameters::new(isa, dots.lanes(), parameters);
    let (scale, offset, shift) = (of(scale), weights.offset().map(of), weights.shift().map(of));
    let has_sums = shift.is_some() || offset.is_some();
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
        let step = outputs.div_ceil(tasks).next_multiple_of(TOGETHER);
        let numbers_size = across + RowParameters::scratch(across);
        let target = SharedPointer(output.elements.as_mut_ptr());
        let totals = &*totals;
        pool.run(outputs.div_ceil(step), |task| {
            let columns = task * step..((task + 1) * step).min(outputs);
            with_scratch(|scratch| {
                let factors_size = TOGETHER * layout.scales();
                let scratch = scratch.elements(factors_size + numbers_size);
                let (factors, numbers) = scratch.split_at_mut(factors_size);
                // Factors after the last part are zero.
                factors.fill(0.0);
                // SAFETY: all sizes were checked, and no two tasks write the same columns.
                let start = unsafe { target.get().add(columns.start) };
                let work = Work {
                    rows,
                    columns: columns.clone(),
                    left,
                    totals,
                    block: inputs / across,
                    scale,
                    offset,
                    shift,
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
    scale: RowParameters<'a>,
    offset: Option<RowParameters<'a>>,
    shift: Option<RowParameters<'a>>,
    /// Memory for the scales of a row, and to read numbers.
    numbers: &'a mut [f32],
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
        for n in 0..N {
            // Missing rows are replaced by the last one.
            let column = last.min(column + n * apart);
            starts[n] = column * row_bytes;
            sums[n] = self.factors::<D>(row, column, n, zero);
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
        for (n, sums) in sums.iter().enumerate() {
            if column + n * apart > last {
                break;
            }
            let at = row * self.stride + column + n * apart - self.columns.start;
            // SAFETY: the caller guarantees the rows, and they belong to the task.
            unsafe { *self.output.add(at) = sums.sum() };
        }
    }

    /// Computes the factor of each part: the scale of the row of weights times the scale of the left row. Returns the
    /// contribution of shifts, offsets and the zero of the integers.
    #[inline(always)]
    fn factors<D: Int8Dot>(&mut self, row: usize, column: usize, n: usize, zero: f32) -> D::Floats {
        let Layout { inputs, part, .. } = self.left.layout;
        let (across, each) = (inputs / self.block, self.block / part);
        let length = self.left.layout.scales();
        let target = &mut self.factors[n * length..][..inputs / part];
        let (left, totals) = (self.left.scales(row), self.left.totals(row));
        let (scales, scratch) = self.numbers.split_at_mut(across);
        let (has_zero, none) = (zero != 0.0, D::Floats::zero());
        let mut sum = if each == 1 && self.offset.is_none() {
            let mut scaled = ScaleProducts { left, totals, has_zero, target, sum: none };
            self.scale.read::<D>(column, scratch, &mut scaled);
            scaled.sum
        } else {
            self.scale.read::<D>(column, scratch, &mut NumberCopy(scales));
            spread_scales::<D::Floats>(scales, each, &left[..target.len()], target);
            if has_zero { add_products(target, &totals[..target.len()], none) } else { none }
        };
        if has_zero {
            sum = sum.mul(D::Floats::splat(-zero));
        }
        let totals = match self.totals {
            [] => return sum,
            totals => &totals[row * across..][..across],
        };
        if let Some(offset) = &self.offset {
            // The scales become factors of the offsets.
            vectors!(D::Floats, across, |at, lanes| {
                let factors = load::<D::Floats>(scales, at, lanes).mul(load(totals, at, lanes));
                store(factors.neg(), scales, at, lanes);
            });
            let mut weighted = WeightedSum { factors: scales, sum };
            offset.read::<D>(column, scratch, &mut weighted);
            sum = weighted.sum;
        }
        if let Some(shift) = &self.shift {
            let mut weighted = WeightedSum { factors: totals, sum };
            shift.read::<D>(column, scratch, &mut weighted);
            sum = weighted.sum;
        }
        sum
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

/// Multiplies the scales of a row of weights, each of which applies to `each` parts, with the scales of a left row.
#[inline(always)]
fn spread_scales<V: Vector>(scales: &[f32], each: usize, left: &[f32], target: &mut [f32]) {
    if each == 2 {
        vectors!(V, scales.len(), |at, lanes| {
            let scales = load::<V>(scales, at, lanes);
            let (first, second) = scales.interleave(scales);
            let lower = V::LANES.min(2 * lanes);
            let product = first.mul(load(left, 2 * at, lower));
            store(product, target, 2 * at, lower);
            let (at, higher) = (2 * at + lower, 2 * lanes - lower);
            if higher > 0 {
                store(second.mul(load(left, at, higher)), target, at, higher);
            }
        });
        return;
    }
    let parts = left.chunks_exact(each).zip(target.chunks_exact_mut(each));
    for (&scale, (left, target)) in scales.iter().zip(parts) {
        vectors!(V, each, |at, lanes| {
            let product = V::splat(scale).mul(load(left, at, lanes));
            store(product, target, at, lanes);
        });
    }
}

/// Adds products of numbers to a sum.
#[inline(always)]
fn add_products<V: Vector>(left: &[f32], right: &[f32], mut sum: V) -> V {
    vectors!(V, left.len(), |at, lanes| {
        sum = load::<V>(left, at, lanes).mul_add(load(right, at, lanes), sum);
    });
    sum
}
