//! Products of rows of codes and packed weights.

#![expect(unsafe_code, reason = "pointers to rows and panels, whose extents are checked once")]

use std::mem::MaybeUninit;
use std::ops::Range;

use super::weights::IntegerWeights;
use super::{IndirectionTable, SLACK, Scaling, Sum, Target};
use crate::Pool;
use crate::shared::SharedPointer;
use coremill_simd::vector::{
    Bits, DotKernel, Int8Dot, MAX_LANES, Vector, dispatch_dots, load_sums,
};

/// The left matrix of a product.
#[derive(Clone, Copy, Debug)]
pub enum Rows<'a> {
    /// Rows in memory at a fixed stride.
    Dense {
        /// The codes, from the first row on.
        codes: &'a [u8],
        /// Distance between the starts of adjacent rows.
        stride: usize,
        /// Number of rows.
        rows: usize,
    },
    /// The rows of a convolution: the images, from the first channel of a group on, and the table of pieces.
    Pieces(&'a [u8], &'a IndirectionTable),
}

impl Rows<'_> {
    fn count(&self) -> usize {
        match self {
            Rows::Dense { rows, .. } => *rows,
            Rows::Pieces(_, pieces) => pieces.window().images * pieces.results(),
        }
    }

    /// Checks that all rows are in bounds.
    fn check(&self, weights: &IntegerWeights) {
        let slack = if weights.length.is_multiple_of(4) { 0 } else { SLACK };
        let (found, needed, shape) = match *self {
            Rows::Dense { codes, stride, rows } => {
                let last = rows.saturating_sub(1).checked_mul(stride);
                let needed = last.and_then(|last| last.checked_add(weights.length + slack));
                (codes.len(), needed, [1, weights.length])
            }
            Rows::Pieces(codes, pieces) => {
                let window = pieces.window();
                let all = window.images.checked_mul(pieces.image_bytes());
                // Channels of other groups may precede or follow those of this group.
                let before = window.pixel_stride - window.channels.min(window.pixel_stride);
                let needed = all.and_then(|all| (all + slack).checked_sub(before));
                (codes.len(), needed, pieces.shape())
            }
        };
        assert_eq!(shape, [weights.pieces, weights.length], "the rows do not match the weights");
        assert!(needed.is_some_and(|needed| needed <= found), "the rows exceed the input");
    }

    /// Writes the pointers to the pieces of some rows, tap by tap.
    fn point(&self, rows: Range<usize>, pointers: &mut [*const u8]) {
        let count = rows.len();
        match self {
            Rows::Dense { codes, stride, .. } => {
                for (pointer, row) in pointers.iter_mut().zip(rows) {
                    *pointer = codes.as_ptr().wrapping_add(row * stride);
                }
            }
            Rows::Pieces(codes, pieces) => {
                let (results, taps) = (pieces.results(), pieces.taps);
                let mut at = 0;
                while at < count {
                    let (image, result) =
                        ((rows.start + at) / results, (rows.start + at) % results);
                    let find =
                        pieces.finder(codes.as_ptr().wrapping_add(image * pieces.image_bytes()));
                    let some = (count - at).min(results - result);
                    let entries = &pieces.entries[result * taps..][..some * taps];
                    for (tap, pointers) in pointers.chunks_exact_mut(count).enumerate() {
                        let entries = entries[tap..].iter().step_by(taps);
                        for (pointer, &entry) in pointers[at..].iter_mut().zip(entries) {
                            *pointer = find(entry);
                        }
                    }
                    at += some;
                }
            }
        }
    }
}

/// Multiplies rows by weights and scales the sums. `stride` is the distance between adjacent rows of the
/// result.
///
/// # Panics
/// Panics if rows, scaling or target do not match the weights.
pub fn multiply(
    pool: &Pool,
    rows: Rows<'_>,
    weights: &IntegerWeights,
    scaling: &Scaling,
    target: Target<'_>,
    stride: usize,
) {
    rows.check(weights);
    let (count, outputs) = (rows.count(), weights.outputs);
    assert!(stride >= outputs, "the rows of the result overlap");
    let padded = outputs.next_multiple_of(weights.lanes);
    assert!(
        scaling.scale.len() >= padded && scaling.shift.len() >= padded,
        "each output needs a scale and a shift"
    );
    let needed = count.checked_sub(1).map_or(0, |last| last * stride + outputs);
    let target = match target {
        Target::Codes { codes, zero, sum } => {
            assert!(needed <= codes.len(), "the result is too short");
            let (other, sum) = match sum {
                Some((other, sum)) => {
                    assert!(needed <= other.len(), "the addend is too short");
                    (other.as_ptr(), Some(sum))
                }
                None => (std::ptr::null(), None),
            };
            Place::Codes {
                codes: SharedPointer(codes.as_mut_ptr()),
                zero,
                other: SharedPointer(other.cast_mut()),
                sum,
            }
        }
        Target::Floats(floats) => {
            assert!(needed <= floats.len(), "the result is too short");
            Place::Floats(SharedPointer(floats.as_mut_ptr()))
        }
    };
    if count == 0 || outputs == 0 {
        return;
    }
    let job = Job { rows, weights, scaling, target: &target, stride };
    let (chunks, across) = divide(pool.threads(), count, weights);
    let parts = weights.panels().div_ceil(across);
    pool.run(chunks * parts, |task| {
        let (chunk, part) = (task / parts, task % parts);
        let rows = chunk * count / chunks..(chunk + 1) * count / chunks;
        let panels = part * across..((part + 1) * across).min(weights.panels());
        // SAFETY: the machine supports the instruction set of the weights, no two tasks have the same rows
        // and panels, and all sizes were checked.
        unsafe { dispatch_dots(weights.isa, Task { job: &job, rows, panels }) }
    });
}

/// Size in bytes of the part of the left matrix that a task reads again for each panel.
const CHUNK_BYTES: usize = 192 << 10;

/// Number of tasks for each thread.
const TASKS_PER_THREAD: usize = 4;

/// Minimum number of multiplications for a task.
const TASK_WORK: usize = 1 << 19;

/// The number of row chunks, and the number of panels of a task.
fn divide(threads: usize, rows: usize, weights: &IntegerWeights) -> (usize, usize) {
    let inputs = weights.fours() * 4;
    let mut chunks = (rows * inputs).div_ceil(CHUNK_BYTES).clamp(1, rows);
    let mut across = weights.panels();
    if threads > 1 {
        let work = rows.saturating_mul(inputs).saturating_mul(weights.outputs);
        let wanted = (work / TASK_WORK).clamp(1, threads * TASKS_PER_THREAD);
        // Split the rows first: each panel is then read once for all rows of a task.
        let most = rows.div_ceil(12);
        if chunks < wanted {
            chunks = wanted.min(most);
        }
        if chunks < wanted {
            across = across.div_ceil(wanted.div_ceil(chunks)).max(1);
        }
        if chunks > 1 {
            chunks = chunks.next_multiple_of(threads).min(rows);
        }
    }
    (chunks, across)
}

enum Place {
    Codes { codes: SharedPointer<u8>, zero: i32, other: SharedPointer<u8>, sum: Option<Sum> },
    Floats(SharedPointer<f32>),
}

struct Job<'a> {
    rows: Rows<'a>,
    weights: &'a IntegerWeights,
    scaling: &'a Scaling,
    target: &'a Place,
    stride: usize,
}

struct Task<'a> {
    job: &'a Job<'a>,
    rows: Range<usize>,
    panels: Range<usize>,
}

impl DotKernel for Task<'_> {
    type Output = ();

    #[inline(always)]
    fn run<D: Int8Dot>(self) {
        let weights = self.job.weights;
        let most = D::ROWS;
        let count = self.rows.len();
        let tiles = count.div_ceil(most);
        // Tiles have approximately equal heights.
        let tile = |index: usize| {
            self.rows.start + index * count / tiles..self.rows.start + (index + 1) * count / tiles
        };
        let mut pointers = vec![std::ptr::null(); count * weights.pieces];
        let mut totals = vec![0; if weights.zeros.is_some() { count } else { 0 }];
        for index in 0..tiles {
            let rows = tile(index);
            let first = rows.start - self.rows.start;
            let some = &mut pointers[first * weights.pieces..][..rows.len() * weights.pieces];
            self.job.rows.point(rows.clone(), some);
            for (at, total) in totals.iter_mut().skip(first).take(rows.len()).enumerate() {
                let pieces = some.iter().skip(at).step_by(rows.len());
                // SAFETY: each piece has this many bytes.
                let pieces = pieces
                    .map(|&piece| unsafe { std::slice::from_raw_parts(piece, weights.length) });
                let sum: u32 = pieces.flatten().map(|&code| u32::from(code)).sum();
                *total = sum as i32 - weights.left_total;
            }
        }
        for panel in self.panels.clone() {
            let first = panel * 2 * D::Floats::LANES;
            let columns = (weights.outputs - first).min(2 * D::Floats::LANES);
            for index in 0..tiles {
                let rows = tile(index);
                let start = rows.start - self.rows.start;
                let tile = Tile {
                    job: self.job,
                    pointers: &pointers[start * weights.pieces..],
                    totals: totals.get(start..).unwrap_or_default(),
                    panel: weights.panel(panel),
                    row: rows.start,
                    column: first,
                    columns,
                };
                macro_rules! sized {
                    ($($rows:literal)*) => {
                        match (rows.len(), columns > D::Floats::LANES) {
                            // SAFETY: the pointers refer to the pieces of these rows, and the panel has this
                            // number of vectors. Everything else was checked before the tasks started.
                            $(($rows, false) => unsafe { tile.compute::<D, $rows, 1>() },
                              ($rows, true) => unsafe { tile.compute::<D, $rows, 2>() },)*
                            _ => unreachable!("a tile has at most 12 rows"),
                        }
                    };
                }
                sized!(1 2 3 4 5 6 7 8 9 10 11 12);
            }
        }
    }
}

/// Sums of a tile.
#[repr(align(64))]
struct TileSums([MaybeUninit<i32>; MAX_SUMS]);

/// Maximum number of sums of a tile.
const MAX_SUMS: usize = 12 * 2 * MAX_LANES;

/// A tile of the product: some rows of one panel.
struct Tile<'a> {
    job: &'a Job<'a>,
    /// Pointers to the rows, for each tap.
    pointers: &'a [*const u8],
    /// Sum of the codes of each row, minus the zero times the number of inputs.
    totals: &'a [i32],
    panel: *const i8,
    row: usize,
    column: usize,
    /// Number of valid outputs.
    columns: usize,
}

impl Tile<'_> {
    /// # Safety
    /// Rows and panel must be valid memory, and no other thread may access the tile's results.
    #[inline(always)]
    unsafe fn compute<D: Int8Dot, const R: usize, const N: usize>(&self) {
        if R > D::ROWS {
            unreachable!("a tile is not higher than its shape");
        }
        let lanes = D::Floats::LANES;
        let weights = self.job.weights;
        let mut sums: [[Bits<D>; N]; R] = [[D::Floats::bits(0); N]; R];
        let mut start = [D::Floats::bits(0); N];
        for (n, sum) in start.iter_mut().enumerate() {
            // SAFETY: `start` has whole vectors.
            *sum = unsafe {
                load_sums::<D::Floats>(weights.start.as_ptr().add(self.column + n * lanes))
            };
        }
        sums.fill(start);
        let mut panel = self.panel;
        for tap in 0..weights.pieces {
            // SAFETY: there are `R` pointers for each tap.
            let rows: [*const u8; R] =
                std::array::from_fn(|row| unsafe { *self.pointers.as_ptr().add(tap * R + row) });
            for four in 0..weights.length.div_ceil(4) {
                // SAFETY: the panel has `N` vectors for each group of four inputs, and rows are followed by
                // slack.
                unsafe {
                    let mut right = [D::right(panel); N];
                    for (n, right) in right.iter_mut().enumerate().skip(1) {
                        *right = D::right(panel.add(n * lanes * 4));
                    }
                    for (row, sums) in rows.iter().zip(&mut sums) {
                        let left = D::left(row.add(four * 4));
                        for (sum, right) in sums.iter_mut().zip(right) {
                            *sum = D::dot(*sum, left, right);
                        }
                    }
                    panel = panel.add(N * lanes * 4);
                }
            }
        }
        // Store the sums to memory. Otherwise, loops over registers that are not unrolled would keep the sums
        // in memory from the start.
        let mut stored = TileSums([MaybeUninit::uninit(); MAX_SUMS]);
        for (row, sums) in sums.into_iter().enumerate() {
            for (n, sum) in sums.into_iter().enumerate() {
                // SAFETY: there is room for `R` rows of `N` vectors.
                unsafe {
                    let place = stored.0.as_mut_ptr().add((row * N + n) * lanes);
                    D::Floats::from_bits(sum).store(place.cast());
                }
            }
        }
        // SAFETY: the caller guarantees the results, and all sums were stored.
        unsafe { self.finish::<D, R, N>(stored.0.as_ptr().cast()) }
    }

    /// Scales the sums of `R` rows of `N` vectors.
    ///
    /// # Safety
    /// Same as for `compute`.
    #[inline(always)]
    unsafe fn finish<D: Int8Dot, const R: usize, const N: usize>(&self, sums: *const i32) {
        let lanes = D::Floats::LANES;
        let zeros = self.job.weights.zeros.as_deref();
        let Scaling { scale, shift, low, high } = self.job.scaling;
        let (low, high) = (D::Floats::splat(*low), D::Floats::splat(*high));
        for n in 0..N {
            let column = self.column + n * lanes;
            let count = (self.columns - n * lanes).min(lanes);
            // SAFETY: there are scales and shifts for whole vectors.
            let (scale, shift) = unsafe {
                (
                    D::Floats::load(scale.as_ptr().add(column)),
                    D::Floats::load(shift.as_ptr().add(column)),
                )
            };
            for row in 0..R {
                let at = (self.row + row) * self.job.stride + column;
                // SAFETY: there are as many sums.
                let mut sums = unsafe { load_sums::<D::Floats>(sums.add((row * N + n) * lanes)) };
                if let Some(zeros) = zeros {
                    let total = D::Floats::bits(self.totals[row] as u32);
                    // SAFETY: there are zeros for whole vectors.
                    let zeros = unsafe { load_sums::<D::Floats>(zeros.as_ptr().add(column)) };
                    sums = D::Floats::bits_sub(sums, D::multiply(zeros, total));
                }
                let value = D::Floats::from_int(sums).mul_add(scale, shift).max(low).min(high);
                match self.job.target {
                    Place::Codes { codes, zero, other, sum } => {
                        let value = match sum {
                            // SAFETY: the length of the added tensor was checked.
                            Some(sum) => unsafe {
                                added::<D>(value, sum, other.get().add(at), count)
                            },
                            None => value,
                        };
                        let codes_there =
                            D::Floats::bits_add(value.to_int(), D::Floats::bits(*zero as u32));
                        // SAFETY: the length of the result was checked, and no other task has these elements.
                        unsafe { D::store_bytes(codes_there, codes.get().add(at), count) }
                    }
                    // SAFETY: the length of the result was checked, and no other task has these elements.
                    Place::Floats(floats) => unsafe {
                        if count == lanes {
                            value.store(floats.get().add(at));
                        } else {
                            value.store_partial(floats.get().add(at), count);
                        }
                    },
                }
            }
        }
    }
}

/// Adds codes of another tensor to results, before the zero of the result is added.
///
/// # Safety
/// `count` codes must be readable at `other`.
#[inline(always)]
pub(super) unsafe fn added<D: Int8Dot>(
    value: D::Floats,
    sum: &Sum,
    other: *const u8,
    count: usize,
) -> D::Floats {
    // SAFETY: the caller guarantees the codes.
    let other = D::Floats::from_int(unsafe { D::load_bytes(other, count) });
    let other = other.mul_add(D::Floats::splat(sum.other_factor), D::Floats::splat(sum.shift));
    let both = value.round().mul_add(D::Floats::splat(sum.factor), other);
    both.max(D::Floats::splat(sum.low)).min(D::Floats::splat(sum.high))
}
