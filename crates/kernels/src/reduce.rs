//! Reductions over axes: sums, extrema, products, norms.

use crate::Pool;
use crate::shared::SharedMut;
use coremill_simd::Isa;
use coremill_simd::math::lanes;
use coremill_simd::vector::{Kernel, MAX_LANES, Vector, dispatch};

/// Kind of reduction. For an empty axis, maximum and minimum are infinite, the product is 1, and the mean is
/// NaN.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reduction {
    /// Sum.
    Sum,
    /// Mean.
    Mean,
    /// Maximum; NaN if an element is NaN.
    Max,
    /// Minimum; NaN if an element is NaN.
    Min,
    /// Product.
    Prod,
    /// Sum of squares.
    SumSquares,
    /// Sum of absolute values.
    L1,
    /// Root of the sum of squares.
    L2,
    /// Logarithm of the sum.
    LogSum,
    /// Logarithm of the sum of exponentials, without overflow.
    LogSumExp,
}

impl Reduction {
    /// All reductions.
    pub const ALL: [Reduction; 10] = [
        Reduction::Sum,
        Reduction::Mean,
        Reduction::Max,
        Reduction::Min,
        Reduction::Prod,
        Reduction::SumSquares,
        Reduction::L1,
        Reduction::L2,
        Reduction::LogSum,
        Reduction::LogSumExp,
    ];

    /// The fold over the elements, and the fold over partial results.
    fn folds(self) -> [Fold; 2] {
        match self {
            Reduction::Sum | Reduction::Mean | Reduction::LogSum => [Fold::Sum; 2],
            Reduction::Max => [Fold::Max; 2],
            Reduction::Min => [Fold::Min; 2],
            Reduction::Prod => [Fold::Prod; 2],
            Reduction::SumSquares | Reduction::L2 => [Fold::SumSquares, Fold::Sum],
            Reduction::L1 => [Fold::SumMagnitudes, Fold::Sum],
            Reduction::LogSumExp => [Fold::LogSumExp; 2],
        }
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Fold {
    Sum,
    SumSquares,
    SumMagnitudes,
    Prod,
    Max,
    Min,
    LogSumExp,
}

impl Fold {
    fn start(self) -> f32 {
        match self {
            Fold::Sum | Fold::SumSquares | Fold::SumMagnitudes => 0.0,
            Fold::Prod => 1.0,
            Fold::Max | Fold::LogSumExp => f32::NEG_INFINITY,
            Fold::Min => f32::INFINITY,
        }
    }

    #[inline(always)]
    fn step<V: Vector>(self, folded: V, x: V) -> V {
        match self {
            Fold::Sum => folded.add(x),
            Fold::SumSquares => x.mul_add(x, folded),
            Fold::SumMagnitudes => folded.add(x.abs()),
            Fold::Prod => folded.mul(x),
            Fold::Max | Fold::LogSumExp => folded.max_nan(x),
            Fold::Min => folded.min_nan(x),
        }
    }

    #[inline(always)]
    fn join<V: Vector>(self, a: V, b: V) -> V {
        match self {
            Fold::SumSquares | Fold::SumMagnitudes => a.add(b),
            _ => self.step(a, b),
        }
    }

    /// Like `join` for single numbers, in double precision, because many of them are joined.
    fn join_wide(self, a: f64, b: f64) -> f64 {
        match self {
            Fold::Sum | Fold::SumSquares | Fold::SumMagnitudes => a + b,
            Fold::Prod => a * b,
            Fold::Max | Fold::LogSumExp => {
                if a.is_nan() || a > b {
                    a
                } else {
                    b
                }
            }
            Fold::Min => {
                if a.is_nan() || a < b {
                    a
                } else {
                    b
                }
            }
        }
    }
}

/// Number of elements that are folded in single precision before the result is joined in double precision.
const BLOCK: usize = 2048;

/// Number of elements of one row in a task.
const PIECE: usize = 1 << 16;

/// Reduces a dense tensor over some axes. The target contains the remaining axes in order.
///
/// # Panics
/// Panics if an axis is out of range or a length does not match the shape.
pub fn reduce(
    isa: Isa,
    pool: &Pool,
    reduction: Reduction,
    source: &[f32],
    shape: &[usize],
    axes: &[usize],
    target: &mut [f32],
) {
    assert_eq!(
        source.len(),
        shape.iter().product::<usize>(),
        "the source's length does not match the shape"
    );
    assert!(axes.iter().all(|axis| *axis < shape.len()), "an axis is out of range");
    let kept = (0..shape.len()).filter(|axis| !axes.contains(axis));
    let kept: usize = kept.map(|axis| shape[axis]).product();
    assert_eq!(target.len(), kept, "the target's length does not match the reduced shape");
    let count: usize =
        (0..shape.len()).filter(|axis| axes.contains(axis)).map(|axis| shape[axis]).product();
    // Merge adjacent axes that are both reduced or both kept.
    let mut runs: Vec<(usize, bool)> = vec![];
    for (axis, &length) in shape.iter().enumerate().filter(|(_, length)| **length != 1) {
        let reduced = axes.contains(&axis);
        match runs.last_mut() {
            Some(last) if last.1 == reduced => last.0 *= length,
            _ => runs.push((length, reduced)),
        }
    }
    let [first, next] = reduction.folds();
    if !runs.iter().any(|run| run.1) {
        // Reduce single elements individually.
        runs.push((1, true));
    }
    // Reduce from the last axis on, with intermediate results in memory. Only the first pass reads all
    // elements.
    let mut held: Option<Vec<f32>> = None;
    while let Some(last) = runs.iter().rposition(|run| run.1) {
        let length = runs[last].0;
        let outer: usize = runs[..last].iter().map(|run| run.0).product();
        let inner: usize = runs[last + 1..].iter().map(|run| run.0).product();
        let fold = if held.is_some() { next } else { first };
        let extents = [outer, length, inner];
        runs.remove(last);
        let elements = held.as_deref().unwrap_or(source);
        if runs.iter().any(|run| run.1) {
            let mut results = vec![0.0; outer * inner];
            pass(isa, pool, fold, elements, extents, &mut results);
            held = Some(results);
        } else {
            pass(isa, pool, fold, elements, extents, target);
        }
    }
    match reduction {
        Reduction::Mean => {
            target.iter_mut().for_each(|sum| *sum = (f64::from(*sum) / count as f64) as f32);
        }
        Reduction::L2 => target.iter_mut().for_each(|sum| *sum = sum.sqrt()),
        Reduction::LogSum => target.iter_mut().for_each(|sum| *sum = sum.ln()),
        _ => {}
    }
}

/// Folds along the middle one of three axes.
fn pass(
    isa: Isa,
    pool: &Pool,
    fold: Fold,
    source: &[f32],
    [outer, length, inner]: [usize; 3],
    target: &mut [f32],
) {
    if length == 0 {
        return target.fill(fold.start());
    }
    if target.is_empty() {
        return;
    }
    if inner > 1 {
        let shared = SharedMut::new(target);
        let tiles = inner.div_ceil(COLUMNS);
        let grain = (16_384 / (length * COLUMNS.min(inner))).max(1);
        return pool.run_ranges(outer * tiles, grain, |range| {
            for task in range {
                let (row, tile) = (task / tiles, task % tiles);
                let columns = tile * COLUMNS..((tile + 1) * COLUMNS).min(inner);
                let place = row * inner + columns.start..row * inner + columns.end;
                // SAFETY: each task has its own columns.
                #[expect(unsafe_code, reason = "tasks write to disjoint parts of the target")]
                let target = unsafe { shared.part(place) };
                let source = &source[row * length * inner..][..length * inner];
                dispatch(isa, Columns { fold, source, inner, first: columns.start, target });
            }
        });
    }
    let splits = fold != Fold::LogSumExp && outer < pool.threads() * 2 && length > 2 * PIECE;
    if !splits {
        let shared = SharedMut::new(target);
        return pool.run_ranges(outer, (16_384 / length).max(1), |range| {
            // SAFETY: each task has its own rows.
            #[expect(unsafe_code, reason = "tasks write to disjoint parts of the target")]
            let target = unsafe { shared.part(range.clone()) };
            let source = &source[range.start * length..range.end * length];
            dispatch(isa, Rows { fold, source, target });
        });
    }
    let pieces = length.div_ceil(PIECE);
    let mut results = vec![0.0; outer * pieces];
    let shared = SharedMut::new(&mut results);
    pool.run(outer * pieces, |task| {
        let (row, piece) = (task / pieces, task % pieces);
        let elements = &source[row * length..(row + 1) * length];
        let source = &elements[piece * PIECE..((piece + 1) * PIECE).min(length)];
        // SAFETY: each task has its own element.
        #[expect(unsafe_code, reason = "tasks write to disjoint parts of the results")]
        let target = unsafe { shared.part(task..task + 1) };
        dispatch(isa, Rows { fold, source, target });
    });
    for (target, results) in target.iter_mut().zip(results.chunks_exact(pieces)) {
        let start = f64::from(fold.start());
        let folded = results.iter().fold(start, |a, &b| fold.join_wide(a, f64::from(b)));
        *target = folded as f32;
    }
}

/// Function that is applied to elements before they are folded.
pub(super) trait Element<V: Vector> {
    fn of(&self, x: V) -> V;
}

/// The element itself.
pub(super) struct Itself;

/// The exponential of the difference from a number.
struct ExpOfDifference<V>(V);

/// The square of the difference from a number.
pub(super) struct SquareOfDifference<V>(pub(super) V);

impl<V: Vector> Element<V> for Itself {
    #[inline(always)]
    fn of(&self, x: V) -> V {
        x
    }
}

impl<V: Vector> Element<V> for ExpOfDifference<V> {
    #[inline(always)]
    fn of(&self, x: V) -> V {
        lanes::exp(x.sub(self.0))
    }
}

impl<V: Vector> Element<V> for SquareOfDifference<V> {
    #[inline(always)]
    fn of(&self, x: V) -> V {
        lanes::square(x.sub(self.0))
    }
}

/// Contiguous rows, one for each element of the target.
struct Rows<'a> {
    fold: Fold,
    source: &'a [f32],
    target: &'a mut [f32],
}

impl Kernel for Rows<'_> {
    type Output = ();

    #[inline(always)]
    fn run<V: Vector>(self) {
        let length = self.source.len() / self.target.len();
        for (row, target) in self.source.chunks_exact(length).zip(self.target) {
            *target = match self.fold {
                Fold::Sum => fold_row::<V>(Fold::Sum, row),
                Fold::SumSquares => fold_row::<V>(Fold::SumSquares, row),
                Fold::SumMagnitudes => fold_row::<V>(Fold::SumMagnitudes, row),
                Fold::Prod => fold_row::<V>(Fold::Prod, row),
                Fold::Max => fold_row::<V>(Fold::Max, row),
                Fold::Min => fold_row::<V>(Fold::Min, row),
                Fold::LogSumExp => {
                    let most = fold_row::<V>(Fold::Max, row);
                    if most.is_finite() {
                        let sum = fold_with::<V>(Fold::Sum, row, &ExpOfDifference(V::splat(most)));
                        most + sum.ln()
                    } else {
                        most
                    }
                }
            };
        }
    }
}

#[inline(always)]
pub(super) fn sum_row<V: Vector>(row: &[f32], element: &impl Element<V>) -> f32 {
    fold_with(Fold::Sum, row, element)
}

#[inline(always)]
fn fold_row<V: Vector>(fold: Fold, row: &[f32]) -> f32 {
    fold_with::<V>(fold, row, &Itself)
}

/// The maximum, ignoring NaN.
#[inline(always)]
pub(super) fn largest<V: Vector>(row: &[f32]) -> f32 {
    let chunks = row.chunks_exact(V::LANES);
    let mut most = f32::NEG_INFINITY;
    for &element in chunks.remainder() {
        most = if element > most { element } else { most };
    }
    let mut vector = [V::splat(most); 2];
    for chunk in chunks {
        // SAFETY: the chunk has `LANES` elements.
        #[expect(unsafe_code, reason = "vectors are loaded by pointer")]
        let x = unsafe { V::load(chunk.as_ptr()) };
        vector[0] = x.max(vector[0]);
        vector.swap(0, 1);
    }
    vector[0].max(vector[1]).maximum()
}

#[inline(always)]
fn fold_with<V: Vector>(fold: Fold, row: &[f32], element: &impl Element<V>) -> f32 {
    let start = V::splat(fold.start());
    let mut total = f64::from(fold.start());
    for block in row.chunks(BLOCK) {
        // Use four accumulators, because each addition depends on the previous one.
        let mut folded = [start; 4];
        let mut fours = block.chunks_exact(4 * V::LANES);
        for four in &mut fours {
            for (at, folded) in folded.iter_mut().enumerate() {
                // SAFETY: the chunk has four times `LANES` elements.
                #[expect(unsafe_code, reason = "vectors are loaded by pointer")]
                let x = unsafe { V::load(four.as_ptr().add(at * V::LANES)) };
                *folded = fold.step(*folded, element.of(x));
            }
        }
        let rest = fours.remainder();
        let mut ones = rest.chunks_exact(V::LANES);
        for one in &mut ones {
            // SAFETY: the chunk has `LANES` elements.
            #[expect(unsafe_code, reason = "vectors are loaded by pointer")]
            let x = unsafe { V::load(one.as_ptr()) };
            folded[0] = fold.step(folded[0], element.of(x));
        }
        let rest = ones.remainder();
        if !rest.is_empty() {
            // Lanes after the remaining elements keep the initial value.
            let mut lanes = [fold.start(); MAX_LANES];
            // SAFETY: the array has `LANES` elements, and the rest fewer than that.
            #[expect(unsafe_code, reason = "vectors are loaded by pointer")]
            let x = unsafe {
                let x = element.of(V::load_partial(rest.as_ptr(), rest.len()));
                let stepped = fold.step(start, x);
                stepped.store_partial(lanes.as_mut_ptr(), rest.len());
                V::load(lanes.as_ptr())
            };
            folded[1] = fold.join(folded[1], x);
        }
        let [a, b, c, d] = folded;
        let joined = fold.join(fold.join(a, b), fold.join(c, d));
        let mut lanes = [0.0; MAX_LANES];
        // SAFETY: the array has `LANES` elements.
        #[expect(unsafe_code, reason = "vectors are stored by pointer")]
        unsafe {
            joined.store(lanes.as_mut_ptr());
        }
        for &lane in &lanes[..V::LANES] {
            total = fold.join_wide(total, f64::from(lane));
        }
    }
    total as f32
}

/// Number of columns in a task.
const COLUMNS: usize = 64;

/// Number of rows that are folded before the result is joined.
const BLOCK_ROWS: usize = 128;

/// Columns of a matrix whose rows have `inner` elements; the target has one element for each column.
struct Columns<'a> {
    fold: Fold,
    source: &'a [f32],
    inner: usize,
    first: usize,
    target: &'a mut [f32],
}

impl Kernel for Columns<'_> {
    type Output = ();

    #[inline(always)]
    fn run<V: Vector>(self) {
        for (tile, target) in self.target.chunks_mut(V::LANES).enumerate() {
            let column = self.first + tile * V::LANES;
            let (source, inner) = (self.source, self.inner);
            let count = target.len();
            let folded: V = match self.fold {
                Fold::LogSumExp => {
                    let most: V = fold_columns(Fold::Max, source, inner, column, count, &Itself);
                    let finite = most.abs().less(V::splat(f32::INFINITY));
                    let element = ExpOfDifference(most);
                    let sum = fold_columns(Fold::Sum, source, inner, column, count, &element);
                    V::select(finite, most.add(lanes::log(sum)), most)
                }
                Fold::Sum => fold_columns(Fold::Sum, source, inner, column, count, &Itself),
                Fold::SumSquares => {
                    fold_columns(Fold::SumSquares, source, inner, column, count, &Itself)
                }
                Fold::SumMagnitudes => {
                    fold_columns(Fold::SumMagnitudes, source, inner, column, count, &Itself)
                }
                Fold::Prod => fold_columns(Fold::Prod, source, inner, column, count, &Itself),
                Fold::Max => fold_columns(Fold::Max, source, inner, column, count, &Itself),
                Fold::Min => fold_columns(Fold::Min, source, inner, column, count, &Itself),
            };
            // SAFETY: the target has `count` elements, at most `LANES`.
            #[expect(unsafe_code, reason = "vectors are stored by pointer")]
            unsafe {
                folded.store_partial(target.as_mut_ptr(), count);
            }
        }
    }
}

#[inline(always)]
pub(super) fn sum_columns<V: Vector>(
    source: &[f32],
    inner: usize,
    column: usize,
    count: usize,
    element: &impl Element<V>,
) -> V {
    fold_columns(Fold::Sum, source, inner, column, count, element)
}

#[inline(always)]
pub(super) fn largest_of_columns<V: Vector>(
    source: &[f32],
    inner: usize,
    column: usize,
    count: usize,
) -> V {
    fold_columns(Fold::Max, source, inner, column, count, &Itself)
}

/// Folds `count` columns from a column on.
#[inline(always)]
fn fold_columns<V: Vector>(
    fold: Fold,
    source: &[f32],
    inner: usize,
    column: usize,
    count: usize,
    element: &impl Element<V>,
) -> V {
    let mut total = V::splat(fold.start());
    for block in source.chunks(inner * BLOCK_ROWS) {
        let mut folded = [V::splat(fold.start()); 2];
        for row in block.chunks_exact(inner) {
            // SAFETY: the slice has `count` elements, at most `LANES`.
            #[expect(unsafe_code, reason = "vectors are loaded by pointer")]
            let x = unsafe { load::<V>(&row[column..column + count]) };
            folded[0] = fold.step(folded[0], element.of(x));
            folded.swap(0, 1);
        }
        total = fold.join(total, fold.join(folded[0], folded[1]));
    }
    total
}

/// # Safety
/// The slice must have at most `LANES` elements.
#[inline(always)]
#[expect(unsafe_code, reason = "vectors are loaded by pointer")]
pub(super) unsafe fn load<V: Vector>(elements: &[f32]) -> V {
    // SAFETY: the slice has this many elements.
    unsafe {
        if elements.len() == V::LANES {
            V::load(elements.as_ptr())
        } else {
            V::load_partial(elements.as_ptr(), elements.len())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(count: usize) -> Vec<f32> {
        let mut state = 12_345u32;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / 16_777_216.0 * 2.0 - 0.9
        };
        (0..count).map(|_| next()).collect()
    }

    fn reference(reduction: Reduction, elements: &[f64]) -> f64 {
        let sum: f64 = elements.iter().sum();
        let squares: f64 = elements.iter().map(|x| x * x).sum();
        let nan = elements.iter().any(|x| x.is_nan());
        let max = elements.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        match reduction {
            Reduction::Sum => sum,
            Reduction::Mean => sum / elements.len() as f64,
            Reduction::Max => {
                if nan {
                    f64::NAN
                } else {
                    max
                }
            }
            Reduction::Min => {
                if nan {
                    f64::NAN
                } else {
                    elements.iter().copied().fold(f64::INFINITY, f64::min)
                }
            }
            Reduction::Prod => elements.iter().product(),
            Reduction::SumSquares => squares,
            Reduction::L1 => elements.iter().map(|x| x.abs()).sum(),
            Reduction::L2 => squares.sqrt(),
            Reduction::LogSum => sum.ln(),
            Reduction::LogSumExp => {
                if nan {
                    f64::NAN
                } else if max.is_infinite() {
                    max
                } else {
                    max + elements.iter().map(|x| (x - max).exp()).sum::<f64>().ln()
                }
            }
        }
    }

    fn check(isa: Isa, pool: &Pool, source: &[f32], shape: &[usize], axes: &[usize]) {
        let mut groups: std::collections::BTreeMap<Vec<usize>, Vec<f64>> = Default::default();
        for (at, &element) in source.iter().enumerate() {
            let mut rest = at;
            let mut index = vec![0; shape.len()];
            for axis in (0..shape.len()).rev() {
                index[axis] = if axes.contains(&axis) { 0 } else { rest % shape[axis] };
                rest /= shape[axis];
            }
            groups.entry(index).or_default().push(f64::from(element));
        }
        for reduction in Reduction::ALL {
            let mut target = vec![9.0; groups.len()];
            reduce(isa, pool, reduction, source, shape, axes, &mut target);
            for (elements, &result) in groups.values().zip(&target) {
                let expected = reference(reduction, elements);
                let scale = match reduction {
                    // Sums with cancellation are as accurate as their terms.
                    Reduction::Sum | Reduction::Mean => expected.abs().max(1.0),
                    Reduction::LogSum if expected.is_nan() => {
                        assert!(result.is_nan() || result == f32::NEG_INFINITY);
                        continue;
                    }
                    Reduction::LogSum => 1.0 + 1.0 / expected.exp(),
                    _ => expected.abs().max(1e-30),
                };
                let error = (f64::from(result) - expected).abs();
                assert!(
                    error <= 4e-6 * scale + 2e-7
                        || f64::from(result) == expected
                        || result.is_nan() && expected.is_nan(),
                    "{isa} {reduction:?} {shape:?} {axes:?}: {result}, not {expected}"
                );
            }
        }
    }

    #[test]
    fn reductions_match_definition() {
        let mut cases: Vec<(Vec<usize>, Vec<usize>)> = vec![
            (vec![1], vec![0]),
            (vec![7], vec![0]),
            (vec![3, 5], vec![0]),
            (vec![3, 5], vec![1]),
            (vec![3, 5], vec![]),
            (vec![3, 5], vec![0, 1]),
            (vec![2, 3, 4], vec![0, 2]),
            (vec![2, 3, 4], vec![1]),
            (vec![2, 3, 1, 2, 2], vec![0, 3]),
        ];
        if !cfg!(miri) {
            cases.extend([
                (vec![3, 1_000], vec![1]),
                (vec![300, 70], vec![0]),
                (vec![5, 49, 130], vec![1]),
                (vec![2, 17, 7, 7], vec![2, 3]),
                (vec![10_007], vec![0]),
                (vec![300_000], vec![0]),
                (vec![4, 60, 50], vec![0, 2]),
            ]);
        }
        for isa in Isa::available() {
            for threads in [1, 3] {
                let pool = Pool::new(threads);
                for (shape, axes) in &cases {
                    let count = shape.iter().product();
                    check(isa, &pool, &numbers(count), shape, axes);
                }
            }
        }
    }

    #[test]
    fn reductions_handle_nan_and_infinity() {
        let pool = Pool::new(1);
        let (inf, nan) = (f32::INFINITY, f32::NAN);
        for isa in Isa::available() {
            for special in
                [vec![inf, -inf], vec![-inf, -inf], vec![nan, 1.0], vec![1.0, nan], vec![inf]]
            {
                for length in [2, 40] {
                    let mut source =
                        if special == [-inf, -inf] { vec![-inf; length] } else { numbers(length) };
                    source[..special.len()].copy_from_slice(&special);
                    check(isa, &pool, &source, &[length], &[0]);
                    check(isa, &pool, &source, &[length / 2, 2], &[0]);
                }
            }
        }
    }

    #[test]
    fn empty_reductions_return_identity() {
        let pool = Pool::new(1);
        for isa in Isa::available() {
            let identities = [
                (Reduction::Sum, 0.0),
                (Reduction::Max, f32::NEG_INFINITY),
                (Reduction::Min, f32::INFINITY),
                (Reduction::Prod, 1.0),
                (Reduction::LogSumExp, f32::NEG_INFINITY),
            ];
            for (reduction, identity) in identities {
                let mut target = [9.0; 2];
                reduce(isa, &pool, reduction, &[], &[2, 0], &[1], &mut target);
                assert_eq!(target, [identity; 2]);
            }
            reduce(isa, &pool, Reduction::Max, &[], &[0, 2], &[1], &mut []);
        }
    }

    #[test]
    fn mean_of_long_input_stays_accurate() {
        let pool = Pool::new(2);
        let count = if cfg!(miri) { 10_000 } else { 3_000_000 };
        for isa in Isa::available() {
            let mut sum = [0.0];
            reduce(isa, &pool, Reduction::Mean, &vec![0.1; count], &[count], &[0], &mut sum);
            assert!((sum[0] - 0.1).abs() < 2e-7, "{isa}: {}", sum[0]);
        }
    }
}
