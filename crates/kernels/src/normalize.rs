//! Softmax and normalizations.

use super::reduce::{
    Itself, SquareOfDifference, largest, largest_of_columns, load, sum_columns, sum_row,
};
use crate::Pool;
use crate::map::{MapInput, MapProgram, Step, map};
use crate::shared::SharedMut;
use coremill_simd::Isa;
use coremill_simd::math::lanes;
use coremill_simd::vector::{Kernel, Vector, dispatch};

/// Kind of normalization.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Norm {
    /// Layer norm: subtract the mean and divide by the root of variance plus epsilon.
    Layer,
    /// RMS norm: divide by the root of the mean square plus epsilon.
    Rms,
    /// L2 norm: divide by the root of the sum of squares plus epsilon.
    L2,
}

/// Factors and offsets applied after a normalization.
#[derive(Clone, Copy, Debug, Default)]
pub struct Affine<'a> {
    /// The factors, by default 1.
    pub gamma: Option<&'a [f32]>,
    /// The offsets, by default 0.
    pub beta: Option<&'a [f32]>,
}

impl Affine<'_> {
    fn check(&self, length: usize) {
        let fits = |elements: Option<&[f32]>| elements.is_none_or(|all| all.len() == length);
        assert!(
            fits(self.gamma) && fits(self.beta),
            "the lengths of gamma and beta must be {length}"
        );
    }
}

/// Softmax along the middle one of three axes. If an element is NaN, or all are minus infinity, all results
/// are NaN.
///
/// # Panics
/// Panics if a length does not match the sizes.
pub fn softmax(isa: Isa, pool: &Pool, source: &[f32], extents: [usize; 3], target: &mut [f32]) {
    middle_axis(isa, pool, source, extents, target, RowOp::Softmax);
}

/// Normalizes rows; gamma and beta have one element for each column.
///
/// # Panics
/// Panics if a length does not match the sizes.
#[expect(
    clippy::too_many_arguments,
    reason = "each argument is simple, and callers have all of them"
)]
pub fn normalize_rows(
    isa: Isa,
    pool: &Pool,
    norm: Norm,
    source: &[f32],
    length: usize,
    affine: Affine<'_>,
    epsilon: f32,
    target: &mut [f32],
) {
    assert_eq!(source.len(), target.len(), "source and target differ in length");
    affine.check(length);
    if source.is_empty() {
        return;
    }
    assert!(source.len().is_multiple_of(length), "the source must consist of whole rows");
    let work = RowOp::Norm { norm, epsilon, affine, by_row: None };
    rows(isa, pool, source, length, target, work);
}

/// Instance norm of `[batch, channels, pixels]`; gamma and beta have one element for each channel.
///
/// # Panics
/// Panics if a length does not match the sizes.
pub fn instance_norm_channels_first(
    isa: Isa,
    pool: &Pool,
    source: &[f32],
    [batch, channels, pixels]: [usize; 3],
    affine: Affine<'_>,
    epsilon: f32,
    target: &mut [f32],
) {
    assert_eq!(
        source.len(),
        batch * channels * pixels,
        "the source's length does not match the sizes"
    );
    assert_eq!(source.len(), target.len(), "source and target differ in length");
    affine.check(channels);
    if source.is_empty() {
        return;
    }
    let work = RowOp::Norm { norm: Norm::Layer, epsilon, affine, by_row: Some(channels) };
    rows(isa, pool, source, pixels, target, work);
}

/// Instance norm of `[batch, pixels, channels]`; gamma and beta have one element for each channel.
///
/// # Panics
/// Panics if a length does not match the sizes.
pub fn instance_norm_channels_last(
    isa: Isa,
    pool: &Pool,
    source: &[f32],
    extents: [usize; 3],
    affine: Affine<'_>,
    epsilon: f32,
    target: &mut [f32],
) {
    affine.check(extents[2]);
    let by_row = Some(1);
    let work = RowOp::Norm { norm: Norm::Layer, epsilon, affine, by_row };
    middle_axis(isa, pool, source, extents, target, work);
}

/// Returns the factor and the offset of each channel that are equivalent to a normalization with known means
/// and variances.
///
/// # Panics
/// Panics if the lengths differ.
pub fn batch_norm_affine(
    mean: &[f32],
    variance: &[f32],
    affine: Affine<'_>,
    epsilon: f32,
) -> (Vec<f32>, Vec<f32>) {
    assert_eq!(mean.len(), variance.len(), "means and variances differ in length");
    affine.check(mean.len());
    let factor = |channel: usize| {
        let gamma = affine.gamma.map_or(1.0, |gamma| f64::from(gamma[channel]));
        gamma / (f64::from(variance[channel]) + f64::from(epsilon)).sqrt()
    };
    let scale = (0..mean.len()).map(|channel| factor(channel) as f32).collect();
    let shift = (0..mean.len()).map(|channel| {
        let beta = affine.beta.map_or(0.0, |beta| f64::from(beta[channel]));
        (beta - f64::from(mean[channel]) * factor(channel)) as f32
    });
    (scale, shift.collect())
}

/// Multiplies each channel by its factor and adds its offset. Channels are the middle one of three axes; the
/// last axis is the size of a channel, 1 if channels are last.
///
/// # Panics
/// Panics if a length does not match the sizes.
pub fn scale_shift(
    isa: Isa,
    pool: &Pool,
    source: &[f32],
    [outer, channels, inner]: [usize; 3],
    scale: &[f32],
    shift: &[f32],
    target: &mut [f32],
) {
    assert_eq!(scale.len(), channels, "each channel must have one factor");
    assert_eq!(shift.len(), channels, "each channel must have one addend");
    let mut program = MapProgram::new();
    let [x, scale_value, shift_value] = [0, 1, 2].map(|input| program.input(input));
    let result = program.push(Step::MulAdd(x, scale_value, shift_value));
    program.output(result);
    let inputs = [
        MapInput { elements: source, strides: &[channels * inner, inner, 1] },
        MapInput { elements: scale, strides: &[0, 1, 0] },
        MapInput { elements: shift, strides: &[0, 1, 0] },
    ];
    map(isa, pool, &program, &[outer, channels, inner], &inputs, &mut [target]);
}

#[derive(Clone, Copy)]
enum RowOp<'a> {
    Softmax,
    /// Normalization, with gamma and beta for each column or for each row. A row's channel is its index
    /// modulo the number of channels.
    Norm {
        norm: Norm,
        epsilon: f32,
        affine: Affine<'a>,
        by_row: Option<usize>,
    },
}

/// Number of columns in a task.
const COLUMNS: usize = 64;

fn middle_axis(
    isa: Isa,
    pool: &Pool,
    source: &[f32],
    [outer, length, inner]: [usize; 3],
    target: &mut [f32],
    work: RowOp<'_>,
) {
    let count = outer.checked_mul(length).and_then(|count| count.checked_mul(inner));
    assert_eq!(Some(source.len()), count, "the source's length does not match the sizes");
    assert_eq!(source.len(), target.len(), "source and target differ in length");
    if source.is_empty() {
        return;
    }
    if inner == 1 {
        return rows(isa, pool, source, length, target, work);
    }
    let tiles = inner.div_ceil(COLUMNS);
    let shared = SharedMut::new(target);
    let grain = (16_384 / (length * COLUMNS.min(inner))).max(1);
    pool.run_ranges(outer * tiles, grain, |range| {
        for task in range {
            let (image, tile) = (task / tiles, task % tiles);
            let columns = tile * COLUMNS..((tile + 1) * COLUMNS).min(inner);
            let place = image * length * inner..(image + 1) * length * inner;
            let (source, target) = (&source[place.clone()], shared.pointer(place));
            dispatch(isa, ColumnsKernel { source, target, inner, columns, work });
        }
    });
}

fn rows(isa: Isa, pool: &Pool, source: &[f32], length: usize, target: &mut [f32], work: RowOp<'_>) {
    let shared = SharedMut::new(target);
    pool.run_ranges(source.len() / length, (8_192 / length).max(1), |range| {
        let place = range.start * length..range.end * length;
        let source = &source[place.clone()];
        // SAFETY: each task has its own rows.
        #[expect(unsafe_code, reason = "tasks write to disjoint parts of the target")]
        let target = unsafe { shared.part(place) };
        dispatch(isa, RowsKernel { source, target, length, first: range.start, work });
    });
}

struct RowsKernel<'a> {
    source: &'a [f32],
    target: &'a mut [f32],
    length: usize,
    /// Index of the first row.
    first: usize,
    work: RowOp<'a>,
}

impl Kernel for RowsKernel<'_> {
    type Output = ();

    #[inline(always)]
    fn run<V: Vector>(self) {
        let sources = self.source.chunks_exact(self.length);
        let targets = self.target.chunks_exact_mut(self.length);
        for (row, (source, target)) in sources.zip(targets).enumerate() {
            match self.work {
                RowOp::Softmax => softmax_row::<V>(source, target),
                RowOp::Norm { norm, epsilon, affine, by_row } => {
                    let (mean, factor) = size::<V>(norm, source, epsilon);
                    let (mean, factor) = (V::splat(mean), V::splat(factor));
                    let [gamma, beta] =
                        [(affine.gamma, 1.0), (affine.beta, 0.0)].map(|(all, none)| {
                            match (all, by_row) {
                                (Some(all), None) => RowFactor::Column(all),
                                (Some(all), Some(channels)) => {
                                    RowFactor::Row(all[(self.first + row) % channels])
                                }
                                (None, _) => RowFactor::Row(none),
                            }
                        });
                    for (at, target) in target.chunks_mut(V::LANES).enumerate() {
                        let at = at * V::LANES;
                        let count = target.len();
                        // SAFETY: the slices have `count` elements, at most `LANES`.
                        #[expect(unsafe_code, reason = "vectors are loaded by pointer")]
                        unsafe {
                            let x = load::<V>(&source[at..at + count]).sub(mean).mul(factor);
                            let x = x.mul_add(gamma.load(at, count), beta.load(at, count));
                            store(x, target);
                        }
                    }
                }
            }
        }
    }
}

/// Factors or offsets: one for the row, or one for each column.
#[derive(Clone, Copy)]
enum RowFactor<'a> {
    Row(f32),
    Column(&'a [f32]),
}

impl RowFactor<'_> {
    /// # Safety
    /// `count` must be at most `LANES`.
    #[inline(always)]
    #[expect(unsafe_code, reason = "vectors are loaded by pointer")]
    unsafe fn load<V: Vector>(self, at: usize, count: usize) -> V {
        match self {
            RowFactor::Row(value) => V::splat(value),
            // SAFETY: the slice has `count` elements, at most `LANES`.
            RowFactor::Column(all) => unsafe { load::<V>(&all[at..at + count]) },
        }
    }
}

/// # Safety
/// The slice must have at most `LANES` elements.
#[inline(always)]
#[expect(unsafe_code, reason = "vectors are stored by pointer")]
unsafe fn store<V: Vector>(x: V, target: &mut [f32]) {
    // SAFETY: the slice has this many elements.
    unsafe {
        if target.len() == V::LANES {
            x.store(target.as_mut_ptr());
        } else {
            x.store_partial(target.as_mut_ptr(), target.len());
        }
    }
}

/// The number to subtract from each element, and the factor for the difference.
#[inline(always)]
fn size<V: Vector>(norm: Norm, row: &[f32], epsilon: f32) -> (f32, f32) {
    let length = row.len() as f32;
    let mean = match norm {
        Norm::Layer => sum_row::<V>(row, &Itself) / length,
        Norm::Rms | Norm::L2 => 0.0,
    };
    let sum = sum_row::<V>(row, &SquareOfDifference(V::splat(mean)));
    let size = if norm == Norm::L2 { sum } else { sum / length };
    (mean, 1.0 / (size + epsilon).sqrt())
}

#[inline(always)]
fn softmax_row<V: Vector>(source: &[f32], target: &mut [f32]) {
    let most = V::splat(largest::<V>(source));
    let mut sum = V::zero();
    let mut rest = 0.0;
    let mut at = 0;
    while at + V::LANES <= source.len() {
        // SAFETY: the slices have at least `LANES` elements from `at` on.
        #[expect(unsafe_code, reason = "vectors are loaded by pointer")]
        unsafe {
            let power = lanes::exp(V::load(source.as_ptr().add(at)).sub(most));
            power.store(target[at..at + V::LANES].as_mut_ptr());
            sum = sum.add(power);
        }
        at += V::LANES;
    }
    if at < source.len() {
        let count = source.len() - at;
        // SAFETY: the slices have at least `count` elements from `at` on.
        #[expect(unsafe_code, reason = "vectors are loaded by pointer")]
        unsafe {
            let power = lanes::exp(load::<V>(&source[at..]).sub(most));
            power.store_partial(target[at..at + count].as_mut_ptr(), count);
        }
        rest = target[at..].iter().sum();
    }
    let factor = V::splat(1.0 / (sum.sum() + rest));
    scale_row::<V>(target, factor);
}

#[inline(always)]
fn scale_row<V: Vector>(row: &mut [f32], factor: V) {
    for chunk in row.chunks_mut(V::LANES) {
        // SAFETY: the chunk has at most `LANES` elements.
        #[expect(unsafe_code, reason = "vectors are loaded by pointer")]
        unsafe {
            store(load::<V>(chunk).mul(factor), chunk);
        }
    }
}

struct ColumnsKernel<'a> {
    /// A matrix whose rows have `inner` elements.
    source: &'a [f32],
    /// The output, with the same number of elements. This task writes only its own columns.
    target: *mut f32,
    inner: usize,
    columns: std::ops::Range<usize>,
    work: RowOp<'a>,
}

impl Kernel for ColumnsKernel<'_> {
    type Output = ();

    #[inline(always)]
    fn run<V: Vector>(self) {
        let ColumnsKernel { source, target, inner, columns, work } = self;
        let length = (source.len() / inner) as f32;
        for column in columns.clone().step_by(V::LANES) {
            let count = V::LANES.min(columns.end - column);
            // SAFETY: for all loads and stores below: the target is as long as the source, the columns belong
            // to this task, and `count` is at most `LANES`.
            match work {
                RowOp::Softmax => {
                    let most: V = largest_of_columns(source, inner, column, count);
                    let mut sum = V::zero();
                    for (at, row) in source.chunks_exact(inner).enumerate() {
                        // SAFETY: the slice has `count` elements, at most `LANES`.
                        #[expect(unsafe_code, reason = "vectors are loaded by pointer")]
                        let x = unsafe { load::<V>(&row[column..column + count]) };
                        let power = lanes::exp(x.sub(most));
                        sum = sum.add(power);
                        #[expect(
                            unsafe_code,
                            reason = "tasks write to different columns of a matrix"
                        )]
                        unsafe {
                            power.store_partial(target.add(at * inner + column), count);
                        }
                    }
                    let factor = lanes::reciprocal(sum);
                    for at in 0..source.len() / inner {
                        // SAFETY: as above, and this part was already written.
                        #[expect(
                            unsafe_code,
                            reason = "tasks write to different columns of a matrix"
                        )]
                        unsafe {
                            let place = target.add(at * inner + column);
                            V::load_partial(place, count).mul(factor).store_partial(place, count);
                        }
                    }
                }
                RowOp::Norm { norm, epsilon, affine, .. } => {
                    let count_of_rows = V::splat(length);
                    let mean = match norm {
                        Norm::Layer => {
                            let sum: V = sum_columns(source, inner, column, count, &Itself);
                            sum.div(count_of_rows)
                        }
                        Norm::Rms | Norm::L2 => V::zero(),
                    };
                    let sum: V =
                        sum_columns(source, inner, column, count, &SquareOfDifference(mean));
                    let size = if norm == Norm::L2 { sum } else { sum.div(count_of_rows) };
                    let factor = lanes::rsqrt(size.add(V::splat(epsilon)));
                    // SAFETY: the slices have `count` elements, at most `LANES`.
                    #[expect(unsafe_code, reason = "vectors are loaded by pointer")]
                    let [gamma, beta] =
                        [(affine.gamma, 1.0), (affine.beta, 0.0)].map(|(all, none)| match all {
                            Some(all) => unsafe { load::<V>(&all[column..column + count]) },
                            None => V::splat(none),
                        });
                    for (at, row) in source.chunks_exact(inner).enumerate() {
                        // SAFETY: the slice has `count` elements, at most `LANES`.
                        #[expect(unsafe_code, reason = "vectors are loaded by pointer")]
                        let x = unsafe { load::<V>(&row[column..column + count]) };
                        let x = x.sub(mean).mul(factor).mul_add(gamma, beta);
                        // SAFETY: as above.
                        #[expect(
                            unsafe_code,
                            reason = "tasks write to different columns of a matrix"
                        )]
                        unsafe {
                            x.store_partial(target.add(at * inner + column), count);
                        }
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(count: usize, seed: u32) -> Vec<f32> {
        let mut state = seed.wrapping_mul(747_796_405).wrapping_add(1);
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / 16_777_216.0 * 6.0 - 2.0
        };
        (0..count).map(|_| next()).collect()
    }

    fn close(results: &[f32], expected: &[f64], tolerance: f64, what: &str) {
        assert_eq!(results.len(), expected.len());
        for (at, (&result, &expected)) in results.iter().zip(expected).enumerate() {
            assert!(
                (f64::from(result) - expected).abs() <= tolerance * expected.abs().max(1e-2)
                    || result.is_nan() && expected.is_nan(),
                "{what} at {at}: {result}, not {expected}"
            );
        }
    }

    fn extents() -> Vec<[usize; 3]> {
        let mut extents =
            vec![[1, 1, 1], [2, 3, 1], [2, 3, 5], [1, 4, 1], [0, 3, 2], [2, 0, 1], [1, 2, 17]];
        if !cfg!(miri) {
            extents.extend([[40, 197, 1], [3, 1_000, 1], [2, 21, 300], [5, 49, 64], [3, 8, 16]]);
        }
        extents
    }

    /// For each line along the middle axis, the indices of its elements.
    fn lines([outer, length, inner]: [usize; 3]) -> Vec<Vec<usize>> {
        let mut lines = vec![];
        for image in 0..outer {
            for column in 0..inner {
                lines.push((0..length).map(|at| (image * length + at) * inner + column).collect());
            }
        }
        lines
    }

    #[test]
    fn softmax_matches_definition() {
        for isa in Isa::available() {
            for threads in [1, 3] {
                let pool = Pool::new(threads);
                for extents in extents() {
                    let mut source = numbers(extents.iter().product(), 3);
                    if source.len() > 30 {
                        source[7] = f32::NEG_INFINITY;
                        source[20] = 90.0;
                    }
                    let mut expected = vec![0.0; source.len()];
                    for line in lines(extents) {
                        let most =
                            line.iter().map(|&at| source[at]).fold(f32::NEG_INFINITY, f32::max);
                        let power = |at: usize| (f64::from(source[at]) - f64::from(most)).exp();
                        let sum: f64 = line.iter().map(|&at| power(at)).sum();
                        line.iter().for_each(|&at| expected[at] = power(at) / sum);
                    }
                    let mut target = vec![9.0; source.len()];
                    softmax(isa, &pool, &source, extents, &mut target);
                    close(&target, &expected, 2e-6, &format!("{isa} {extents:?}"));
                }
            }
        }
    }

    #[test]
    fn softmax_of_all_neg_infinity_or_nan_is_nan() {
        let pool = Pool::new(1);
        for isa in Isa::available() {
            for length in [1, 3, 16, 33] {
                for inner in [1, 2] {
                    let mut source = vec![f32::NEG_INFINITY; length * inner];
                    let mut target = vec![0.0; source.len()];
                    softmax(isa, &pool, &source, [1, length, inner], &mut target);
                    assert!(target.iter().all(|x| x.is_nan()), "{isa} {length}");
                    source.fill(1.0);
                    source[0] = f32::NAN;
                    softmax(isa, &pool, &source, [1, length, inner], &mut target);
                    assert!(target.iter().step_by(inner).all(|x| x.is_nan()), "{isa} {length}");
                }
            }
        }
    }

    /// Normalizes each line by the definition. `gamma` and `beta` map the index of an element to its parameter.
    fn norm(
        norm: Norm,
        source: &[f32],
        lines: &[Vec<usize>],
        epsilon: f32,
        gamma: impl Fn(usize) -> f32,
        beta: impl Fn(usize) -> f32,
    ) -> Vec<f64> {
        let mut expected = vec![0.0; source.len()];
        for line in lines {
            let count = line.len() as f64;
            let sum: f64 = line.iter().map(|&at| f64::from(source[at])).sum();
            let mean = if norm == Norm::Layer { sum / count } else { 0.0 };
            let squares: f64 = line.iter().map(|&at| (f64::from(source[at]) - mean).powi(2)).sum();
            let size = if norm == Norm::L2 { squares } else { squares / count };
            for &at in line {
                let x = (f64::from(source[at]) - mean) / (size + f64::from(epsilon)).sqrt();
                expected[at] = x * f64::from(gamma(at)) + f64::from(beta(at));
            }
        }
        expected
    }

    #[test]
    fn norms_match_definitions() {
        for isa in Isa::available() {
            for threads in [1, 3] {
                let pool = Pool::new(threads);
                for [outer, length, inner] in extents() {
                    if length == 0 {
                        continue;
                    }
                    let source = numbers(outer * length * inner, 5);
                    let mut target = vec![9.0; source.len()];
                    let what = format!("{isa} {outer} {length} {inner}");

                    let rows = lines([outer * inner, length, 1]);
                    let (gamma, beta) = (numbers(length, 6), numbers(length, 7));
                    for kind in [Norm::Layer, Norm::Rms, Norm::L2] {
                        let affine = Affine { gamma: Some(&gamma), beta: Some(&beta) };
                        normalize_rows(
                            isa,
                            &pool,
                            kind,
                            &source,
                            length,
                            affine,
                            1e-5,
                            &mut target,
                        );
                        let expected = norm(
                            kind,
                            &source,
                            &rows,
                            1e-5,
                            |at| gamma[at % length],
                            |at| beta[at % length],
                        );
                        close(&target, &expected, 1e-4, &what);
                        let affine = Affine::default();
                        normalize_rows(
                            isa,
                            &pool,
                            kind,
                            &source,
                            length,
                            affine,
                            1e-3,
                            &mut target,
                        );
                        let expected = norm(kind, &source, &rows, 1e-3, |_| 1.0, |_| 0.0);
                        close(&target, &expected, 1e-4, &what);
                    }

                    let gamma = numbers(inner, 8);
                    let affine = Affine { gamma: Some(&gamma), beta: None };
                    let extents = [outer, length, inner];
                    instance_norm_channels_last(
                        isa,
                        &pool,
                        &source,
                        extents,
                        affine,
                        1e-5,
                        &mut target,
                    );
                    let columns = lines(extents);
                    let expected =
                        norm(Norm::Layer, &source, &columns, 1e-5, |at| gamma[at % inner], |_| 0.0);
                    close(&target, &expected, 1e-4, &what);

                    let extents = [outer, inner, length];
                    let affine = Affine { gamma: None, beta: Some(&gamma) };
                    instance_norm_channels_first(
                        isa,
                        &pool,
                        &source,
                        extents,
                        affine,
                        1e-5,
                        &mut target,
                    );
                    let expected = norm(
                        Norm::Layer,
                        &source,
                        &rows,
                        1e-5,
                        |_| 1.0,
                        |at| gamma[at / length % inner],
                    );
                    close(&target, &expected, 1e-4, &what);
                }
            }
        }
    }

    #[test]
    fn batch_norm_handles_channels_first_and_last() {
        let (mean, variance) = ([0.5, -1.0, 2.0], [1.0, 4.0, 0.25]);
        let affine = Affine { gamma: Some(&[1.0, 2.0, 3.0]), beta: Some(&[0.0, 1.0, -1.0]) };
        let (scale, shift) = batch_norm_affine(&mean, &variance, affine, 0.0);
        assert_eq!(
            (scale.as_slice(), shift.as_slice()),
            (&[1.0, 1.0, 6.0][..], &[-0.5, 2.0, -13.0][..])
        );
        let pool = Pool::new(1);
        for isa in Isa::available() {
            let source = numbers(2 * 3 * 5, 9);
            let mut target = vec![0.0; 30];
            scale_shift(isa, &pool, &source, [2, 3, 5], &scale, &shift, &mut target);
            for at in 0..30 {
                let channel = at / 5 % 3;
                assert!((target[at] - (source[at] * scale[channel] + shift[channel])).abs() < 1e-5);
            }
            scale_shift(isa, &pool, &source, [10, 3, 1], &scale, &shift, &mut target);
            for at in 0..30 {
                assert!((target[at] - (source[at] * scale[at % 3] + shift[at % 3])).abs() < 1e-5);
            }
        }
    }
}
