//! Many rows: panels of weights are unpacked once for all rows.
//!
//! ```text
//! panel:  words of 2 inputs × 48 outputs, for each pair of inputs
//! tile:   8 rows × 48 outputs of integer sums over a block of inputs, scaled and added to floats
//! ```

#![expect(unsafe_code, reason = "pointers to rows and panels, whose extents are checked once")]

use std::ops::Range;

use super::super::format::QuantizedMatrix;
use super::super::numbers::Numbers;
use super::codes::{Codes, Form, UseCodes};
use super::left::{Layout, Left, Order};
use super::{BLOCK, MAX_STEP, step_of};
use crate::Pool;
use crate::matmul::{Epilogue, Matrix, MatrixMut, epilogue, unrolled};
use crate::scratch::with_scratch;
use crate::shared::SharedPointer;
use coremill_simd::Isa;
use coremill_simd::vector::{
    Bits, DotIsa, DotKernel, Int8Dot, MAX_LANES, Vector, dispatch_dots, load_sums, transpose,
};

/// Number of inputs of an unpacked part of a panel, a multiple of the elements of a vector.
const DEPTH: usize = 512;

/// Maximum number of rows of a task.
const TASK_ROWS: usize = 256;

/// Maximum number of rows of a tile.
const MAX_ROWS: usize = 8;

/// Maximum number of vectors in a row of a tile.
const MAX_VECTORS: usize = 3;

/// Rows of the largest tile, and vectors in a row.
const fn shape(lanes: usize) -> (usize, usize) {
    match lanes {
        8 => (4, 2),
        _ => (8, 3),
    }
}

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
    let lanes = dots.lanes();
    let width = shape(lanes).1 * lanes;
    let block = inputs / weights.across();
    let part = if block.is_multiple_of(BLOCK) { BLOCK } else { form.part() };
    let layout = Layout { inputs, each: form.each(), order: Order::Pairs, part };
    let target = SharedPointer(output.elements.as_mut_ptr());
    with_scratch(|scratch| {
        let memory = scratch.elements(rows * layout.scratch());
        let left = Left::new(pool, isa, rows, left, layout, memory);
        let panels = outputs.div_ceil(width);
        let chunks = rows.div_ceil(TASK_ROWS);
        pool.run(panels * chunks, |task| {
            let (chunk, panel) = (task / panels, task % panels);
            let rows = chunk * rows / chunks..(chunk + 1) * rows / chunks;
            let columns = panel * width..((panel + 1) * width).min(outputs);
            with_scratch(|scratch| {
                let parts = inputs / part;
                let has_shifts = weights.shift().is_some() || weights.offset().is_some();
                let sizes = [
                    Numbers::scratch(weights, columns.len()),
                    DEPTH / 2 * width,
                    parts * width,
                    if has_shifts { parts * width } else { 0 },
                    rows.len() * width,
                ];
                let mut rest = scratch.elements(sizes.iter().sum());
                let mut take = |index: usize| {
                    let (first, others) = std::mem::take(&mut rest).split_at_mut(sizes[index]);
                    rest = others;
                    first
                };
                let [numbers, words, scales, shifts, sums] = std::array::from_fn(&mut take);
                let numbers = Numbers::read(isa, weights, columns.clone(), numbers);
                spread_numbers(&numbers, columns.clone(), width, block / part, scales, shifts);
                sums.fill(0.0);
                for start in (0..inputs).step_by(DEPTH) {
                    let depth = start..(start + DEPTH).min(inputs);
                    let unpacking = Unpacking {
                        data: weights.data.as_bytes(),
                        row_elements: inputs,
                        columns: columns.clone(),
                        depth: depth.clone(),
                        words: words.as_mut_ptr().cast(),
                    };
                    form.use_codes(WithIsa { dots, unpacking });
                    let of_depth = |numbers: &'_ [f32]| match numbers {
                        [] => std::ptr::null(),
                        numbers => numbers[start / part * width..].as_ptr(),
                    };
                    let tiles = Tiles {
                        left,
                        rows: rows.clone(),
                        depth,
                        panel: words.as_ptr().cast(),
                        scales: of_depth(scales),
                        shifts: of_depth(shifts),
                        sums: sums.as_mut_ptr(),
                    };
                    // SAFETY: the value of `DotIsa` was made for this machine.
                    unsafe { dispatch_dots(dots, tiles) };
                }
                for (row, sums) in rows.zip(sums.chunks_exact(width)) {
                    // SAFETY: all sizes were checked, and no two tasks write the same elements.
                    let elements = unsafe {
                        let start = target.get().add(row * output.stride + columns.start);
                        std::slice::from_raw_parts_mut(start, columns.len())
                    };
                    elements.copy_from_slice(&sums[..columns.len()]);
                    epilogue::apply(isa, epilogue, row, columns.start, elements);
                }
            });
        });
    });
}

/// Writes scales and shifts in rows of `width`, one for each part of the inputs. `each` parts have the same.
fn spread_numbers(
    numbers: &Numbers<'_>,
    columns: Range<usize>,
    width: usize,
    each: usize,
    scales: &mut [f32],
    shifts: &mut [f32],
) {
    if columns.len() < width {
        scales.fill(0.0);
        shifts.fill(0.0);
    }
    for (at, column) in columns.enumerate() {
        let numbers = numbers.row(column);
        for (part, target) in scales[at..].iter_mut().step_by(width).enumerate() {
            *target = numbers.scales()[part / each];
        }
        for (part, target) in shifts.iter_mut().skip(at).step_by(width).enumerate() {
            let block = part / each;
            let shift = numbers.shifts.get(block).copied().unwrap_or(0.0);
            let offset = numbers.offsets().map_or(0.0, |offsets| offsets[block]);
            *target = shift - offset * numbers.scales()[block];
        }
    }
}

/// Unpacks some inputs of some rows of weights to a panel.
struct Unpacking<'a> {
    data: &'a [u8],
    row_elements: usize,
    columns: Range<usize>,
    depth: Range<usize>,
    words: *mut f32,
}

struct WithIsa<'a> {
    dots: DotIsa,
    unpacking: Unpacking<'a>,
}

impl UseCodes for WithIsa<'_> {
    fn run<C: Codes>(self, codes: C) {
        let unpacking = self.unpacking;
        // SAFETY: the value of `DotIsa` was made for this machine.
        unsafe { dispatch_dots(self.dots, WithCodes { unpacking, codes }) }
    }
}

struct WithCodes<'a, C> {
    unpacking: Unpacking<'a>,
    codes: C,
}

impl<C: Codes> DotKernel for WithCodes<'_, C> {
    type Output = ();

    #[inline(always)]
    fn run<D: Int8Dot>(self) {
        let WithCodes { unpacking, codes } = self;
        let Unpacking { data, row_elements, columns, depth, words } = unpacking;
        let lanes = D::Floats::LANES;
        let vectors = shape(lanes).1;
        let half = C::EACH / 2;
        let step_bytes = C::EACH * lanes * C::BITS / 8;
        for vector in 0..vectors {
            for start in depth.clone().step_by(C::EACH * lanes) {
                let mut squares = [[D::Floats::zero(); MAX_LANES]; 4];
                for lane in 0..lanes {
                    let column = columns.start + vector * lanes + lane;
                    if column >= columns.end {
                        break;
                    }
                    let start = (column * row_elements + start) * C::BITS / 8;
                    let mut copy = [0; MAX_STEP];
                    let source = step_of(data, start, step_bytes, &mut copy);
                    // SAFETY: the source has the bytes of a step.
                    let unpacked = unsafe { codes.words::<D>(source.as_ptr()) };
                    for (square, words) in squares.iter_mut().zip(unpacked) {
                        square[lane] = D::Floats::from_bits(words);
                    }
                }
                let count = (depth.end - start).min(C::EACH * lanes) / C::EACH;
                let first = (start - depth.start) / 2;
                for (at, square) in squares.iter_mut().enumerate().take(half) {
                    transpose(square);
                    for (lane, words_of_inputs) in square.iter().enumerate().take(count) {
                        let pair = first + lane * half + at;
                        // SAFETY: the panel has `vectors` vectors for each pair of inputs.
                        unsafe {
                            words_of_inputs.store(words.add((pair * vectors + vector) * lanes));
                        }
                    }
                }
            }
        }
    }
}

/// All tiles of some rows for a part of a panel.
struct Tiles<'a> {
    left: Left<'a>,
    rows: Range<usize>,
    depth: Range<usize>,
    panel: *const i32,
    /// Scales of the panel's outputs, for each part of the inputs.
    scales: *const f32,
    /// Numbers that are multiplied with sums of inputs, or null.
    shifts: *const f32,
    /// Sums of all rows, as wide as the panel.
    sums: *mut f32,
}

impl DotKernel for Tiles<'_> {
    type Output = ();

    #[inline(always)]
    fn run<D: Int8Dot>(self) {
        let count = self.rows.len();
        let most = shape(D::Floats::LANES).0;
        let tiles = count.div_ceil(most);
        for tile in 0..tiles {
            let (start, end) = (tile * count / tiles, (tile + 1) * count / tiles);
            macro_rules! sized {
                ($vectors:literal, $($rows:literal)*) => {
                    match end - start {
                        // SAFETY: the rows, the panel and the sums have all elements of the tile.
                        $($rows => unsafe { self.tile::<D, $rows, $vectors>(start) },)*
                        _ => unreachable!("a tile has at most eight rows"),
                    }
                };
            }
            if D::Floats::LANES == 8 {
                sized!(2, 1 2 3 4);
            } else {
                sized!(3, 1 2 3 4 5 6 7 8);
            }
        }
    }
}

impl Tiles<'_> {
    /// Adds the products of `R` rows with a panel of `N` vectors.
    ///
    /// # Safety
    /// The rows, the panel and the sums must have all elements of the tile.
    #[inline(always)]
    unsafe fn tile<D: Int8Dot, const R: usize, const N: usize>(&self, start: usize) {
        if (R, N) > (MAX_ROWS, shape(D::Floats::LANES).1) {
            unreachable!("a tile is not larger than its shape");
        }
        let lanes = D::Floats::LANES;
        let part = self.left.layout.part;
        let first = self.rows.start + start;
        let pairs = part / 2;
        let mut rows = [std::ptr::null::<i32>(); MAX_ROWS];
        let (mut row_scales, mut row_sums) = ([&[][..]; MAX_ROWS], [&[][..]; MAX_ROWS]);
        let parts = self.depth.start / part..self.depth.end / part;
        unrolled!(ROW in 0..R, {
            // SAFETY: the rows have the words of these inputs.
            rows[ROW] = unsafe { self.left.words(first + ROW).add(self.depth.start).cast() };
            row_scales[ROW] = &self.left.scales(first + ROW)[parts.clone()];
            if !self.shifts.is_null() {
                row_sums[ROW] = &self.left.sums(first + ROW)[parts.clone()];
            }
        });
        let mut panel = self.panel;
        for index in 0..parts.len() {
            let mut sums: [[Bits<D>; MAX_VECTORS]; MAX_ROWS] =
                [[D::Floats::bits(0); MAX_VECTORS]; MAX_ROWS];
            for pair in index * pairs..(index + 1) * pairs {
                let mut weights = [D::Floats::bits(0); MAX_VECTORS];
                unrolled!(AT in 0..N of 3, {
                    // SAFETY: the panel has `N` vectors for each pair.
                    weights[AT] = unsafe { load_sums::<D::Floats>(panel.add(AT * lanes)) };
                });
                unrolled!(ROW in 0..R, {
                    // SAFETY: rows have all pairs.
                    let words = unsafe { rows[ROW].add(pair).read_unaligned() };
                    let words = D::Floats::bits(words as u32);
                    unrolled!(AT in 0..N of 3, {
                        sums[ROW][AT] = D::dot_words(sums[ROW][AT], words, weights[AT]);
                    });
                });
                // SAFETY: at most one vector past the end of the panel.
                panel = unsafe { panel.add(N * lanes) };
            }
            unrolled!(ROW in 0..R, {
                let scale = D::Floats::splat(row_scales[ROW][index]);
                unrolled!(AT in 0..N of 3, {
                    // SAFETY: there are scales for each part, and sums for each row.
                    unsafe {
                        let target = self.sums.add(((start + ROW) * N + AT) * lanes);
                        let factor = D::Floats::load(self.scales.add((index * N + AT) * lanes));
                        let mut total = D::Floats::from_int(sums[ROW][AT])
                            .mul(factor)
                            .mul_add(scale, D::Floats::load(target));
                        if !self.shifts.is_null() {
                            let shift = D::Floats::load(self.shifts.add((index * N + AT) * lanes));
                            let sum = D::Floats::splat(row_sums[ROW][index]);
                            total = shift.mul_add(sum, total);
                        }
                        total.store(target);
                    }
                });
            });
        }
    }
}
