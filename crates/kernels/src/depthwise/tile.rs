//! Depthwise convolution of vectors of channels, in registers.

#![expect(unsafe_code, reason = "the extents are checked at entry; indices stay within them")]

use std::ops::Range;

use super::Task;
use coremill_simd::vector::{MAX_LANES, Vector};

/// Number of adjacent results in a tile. Common widths are multiples of seven; the sums of seven results and a
/// row of weights fit 16 registers.
const RESULTS: usize = 7;

/// Maximum number of vectors of channels in a block.
const VECTORS: usize = 8;

/// Number of bytes of a block's input under a row of results, so that it stays in the L1 cache from row to row.
const BLOCK_BYTES: usize = 24 * 1024;

/// Maximum number of pixels under a tile.
const PIXELS: usize = 128;

/// A pixel outside the input.
#[repr(align(64))]
struct ZeroPixel([f32; VECTORS * MAX_LANES]);

static ZERO_PIXEL: ZeroPixel = ZeroPixel([0.0; VECTORS * MAX_LANES]);

/// Convolves a range of channels, at least one vector. All of them belong to the task.
#[inline(always)]
pub(super) fn channels<V: Vector>(task: &Task<'_>) {
    let extents = task.work.extents;
    let [height, width] = extents.kernel;
    let columns = (RESULTS - 1) * extents.stride[1] + width;
    if V::TUNED && extents.dilation[1] == 1 && height * columns <= PIXELS {
        match (width, extents.stride[1]) {
            (3, 1) => return sized::<V, 3, 1>(task),
            (3, 2) => return sized::<V, 3, 2>(task),
            (5, 1) => return sized::<V, 5, 1>(task),
            (5, 2) => return sized::<V, 5, 2>(task),
            (7, 1) => return sized::<V, 7, 1>(task),
            _ => {}
        }
    }
    for channel in task.channels.clone().step_by(V::LANES) {
        // The last vector may recompute some channels.
        any_kernel::<V>(task, channel.min(task.channels.end - V::LANES), V::LANES);
    }
}

/// The bias and the bounds of the results.
struct BiasClamp<V> {
    bias: V,
    low: V,
    high: V,
}

impl<V: Vector> BiasClamp<V> {
    #[inline(always)]
    fn new(task: &Task<'_>, channel: usize, lanes: usize) -> BiasClamp<V> {
        let bias = match task.work.epilogue.bias {
            // SAFETY: the slice has `lanes` elements, and `lanes` is at most `LANES`.
            Some(bias) => unsafe {
                V::load_partial(bias[channel..channel + lanes].as_ptr(), lanes)
            },
            None => V::zero(),
        };
        let (low, high) = task.work.division.bounds;
        BiasClamp { bias, low: V::splat(low), high: V::splat(high) }
    }

    #[inline(always)]
    fn bound(&self, x: V) -> V {
        self.high.min(self.low.max(x))
    }
}

/// Convolves with a kernel of width `W` at a stride of `S`, a block of channels at a time.
#[inline(always)]
fn sized<V: Vector, const W: usize, const S: usize>(task: &Task<'_>) {
    let extents = task.work.extents;
    let channels = &task.channels;
    let under_row = extents.kernel[0] * extents.input[1] * V::LANES * size_of::<f32>();
    let block = (BLOCK_BYTES / under_row.max(1)).clamp(2, VECTORS) * V::LANES;
    let mut pixels = [std::ptr::null(); PIXELS];
    for start in channels.clone().step_by(block) {
        // The last block may recompute some channels.
        let start = start.min(channels.end - V::LANES);
        let end = (start + block).min(channels.end);
        for y in task.rows.clone() {
            let mut x = 0;
            while x < extents.output[1] {
                // The last tile may recompute some results.
                let first = x.min(extents.output[1].saturating_sub(RESULTS));
                tile::<V, W, S>(task, start..end, y, first, &mut pixels);
                x += RESULTS;
            }
        }
    }
}

/// Computes the results of some channels from `x` on in a row, up to [`RESULTS`]. `pixels` is overwritten.
#[inline(always)]
fn tile<V: Vector, const W: usize, const S: usize>(
    task: &Task<'_>,
    channels: Range<usize>,
    y: usize,
    x: usize,
    pixels: &mut [*const f32; PIXELS],
) {
    let work = task.work;
    let extents = work.extents;
    let step = extents.channels;
    let [height, width] = extents.input;
    let columns = (RESULTS - 1) * S + W;
    let (top, rows) = inside(extents, 0, y);
    let left = (x * S) as isize - extents.pad[1] as isize;
    let inner = left >= 0 && left as usize + columns <= width;
    // Pointers to the pixels under the tile, row by row.
    for (row, pixels) in pixels.chunks_exact_mut(columns).enumerate().take(rows.len()) {
        let line = (task.image * height + top + row * extents.dilation[0]) * width;
        let line = &work.input[line * step..][..width * step];
        if inner {
            let mut pixel = line[left as usize * step + channels.start..].as_ptr();
            for target in pixels {
                *target = pixel;
                pixel = pixel.wrapping_add(step);
            }
        } else {
            for (column, target) in pixels.iter_mut().enumerate() {
                let column = usize::try_from(left + column as isize).ok();
                *target = match column.filter(|column| *column < width) {
                    Some(column) => line[column * step + channels.start..].as_ptr(),
                    None => ZERO_PIXEL.0.as_ptr(),
                };
            }
        }
    }
    let count = RESULTS.min(extents.output[1] - x);
    let pixel = (task.image * extents.output[0] + y) * extents.output[1] + x;
    let last = ((pixel + count - 1) * step) + channels.end;
    let target = work.output.pointer(pixel * step + channels.start..last);
    let weights = &work.weights[rows.start * W * step..rows.end * W * step];
    let last = channels.len() - V::LANES;
    for offset in (0..channels.len()).step_by(V::LANES) {
        let offset = offset.min(last);
        let ends = BiasClamp::<V>::new(task, channels.start + offset, V::LANES);
        let mut sums = [ends.bias; RESULTS];
        if !rows.is_empty() {
            // SAFETY: there are `W` weights and `columns` pixels for each row, and all of them have a vector of
            // channels at the offset: pixels outside the input are as long as a block.
            sums = unsafe {
                let weights = weights.as_ptr().add(channels.start + offset);
                taps::<V, W, S>(pixels.as_ptr(), offset, weights, step, rows.len(), sums)
            };
        }
        for (at, sum) in sums.into_iter().enumerate() {
            if at < count {
                // SAFETY: `pointer` checked the range, and each task has its own rows or channels.
                unsafe { ends.bound(sum).store(target.add(at * step + offset)) };
            }
        }
    }
}

/// Repeats a block for each index below a count, with the index as a constant. Sums that are only accessed with
/// constant indices stay in registers.
macro_rules! unrolled {
    ($index:ident in 0..$count:expr, $body:block; $($value:literal)*) => {
        $(
            if $value < $count {
                const $index: usize = $value;
                $body
            }
        )*
    };
}

/// Adds the products of `rows` rows of weights to the sums of adjacent results.
///
/// # Safety
/// `rows` must not be 0. For each row, there must be `W` vectors of weights at a distance of `step`, and pointers to
/// `(RESULTS - 1) * S + W` pixels, each with a vector at the offset.
#[inline(always)]
unsafe fn taps<V: Vector, const W: usize, const S: usize>(
    mut pixels: *const *const f32,
    offset: usize,
    mut weights: *const f32,
    step: usize,
    rows: usize,
    mut sums: [V; RESULTS],
) -> [V; RESULTS] {
    let mut row = 0;
    // The loop has no check before its first row, see the tile of products.
    loop {
        let mut factors = [V::zero(); W];
        unrolled!(COLUMN in 0..W, {
            // SAFETY: the caller guarantees the weights.
            factors[COLUMN] = unsafe { V::load(weights.add(COLUMN * step)) };
        }; 0 1 2 3 4 5 6);
        unrolled!(COLUMN in 0..(RESULTS - 1) * S + W, {
            // SAFETY: the caller guarantees the pixels.
            let pixel = unsafe { V::load((*pixels.add(COLUMN)).add(offset)) };
            unrolled!(RESULT in 0..RESULTS, {
                // The weight that this result has for the pixel, if any.
                let tap = COLUMN.wrapping_sub(RESULT * S);
                if tap < W {
                    sums[RESULT] = pixel.mul_add(factors[tap], sums[RESULT]);
                }
            }; 0 1 2 3 4 5 6);
        }; 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16);
        row += 1;
        if row == rows {
            return sums;
        }
        // SAFETY: there is another row.
        unsafe {
            pixels = pixels.add((RESULTS - 1) * S + W);
            weights = weights.add(W * step);
        }
    }
}

/// Convolves `lanes` channels, at most one vector, with a kernel of any size.
#[inline(always)]
pub(super) fn any_kernel<V: Vector>(task: &Task<'_>, channel: usize, lanes: usize) {
    let work = task.work;
    let extents = work.extents;
    let step = extents.channels;
    let [height, width] = extents.input;
    let [output_height, output_width] = extents.output;
    assert!(channel + lanes <= step && lanes <= V::LANES, "the vector is within the channels");
    let ends = BiasClamp::<V>::new(task, channel, lanes);
    for y in task.rows.clone() {
        let (top, kernel_rows) = inside(extents, 0, y);
        for x in 0..output_width {
            let (left, kernel_columns) = inside(extents, 1, x);
            // Two sums, because each addition depends on the previous one.
            let mut sums = [ends.bias, V::zero()];
            for (row, kernel_row) in kernel_rows.clone().enumerate() {
                let in_y = top + row * extents.dilation[0];
                for (column, kernel_column) in kernel_columns.clone().enumerate() {
                    let in_x = left + column * extents.dilation[1];
                    let pixel = (task.image * height + in_y) * width + in_x;
                    let tap = kernel_row * extents.kernel[1] + kernel_column;
                    let pixel = &work.input[pixel * step + channel..][..lanes];
                    let weight = &work.weights[tap * step + channel..][..lanes];
                    // SAFETY: both slices have `lanes` elements, at most `LANES`.
                    let (pixel, weight) = unsafe {
                        if lanes == V::LANES {
                            (V::load(pixel.as_ptr()), V::load(weight.as_ptr()))
                        } else {
                            let pixel = V::load_partial(pixel.as_ptr(), lanes);
                            (pixel, V::load_partial(weight.as_ptr(), lanes))
                        }
                    };
                    sums[0] = pixel.mul_add(weight, sums[0]);
                    sums.swap(0, 1);
                }
            }
            let pixel = (task.image * output_height + y) * output_width + x;
            let start = pixel * step + channel;
            let target = work.output.pointer(start..start + lanes);
            // SAFETY: `pointer` checked the range, and each task has its own rows or channels.
            unsafe { ends.bound(sums[0].add(sums[1])).store_partial(target, lanes) };
        }
    }
}

/// The input position of the first weight inside the input, and the range of weights inside.
#[inline(always)]
fn inside(extents: &super::Depthwise, axis: usize, at: usize) -> (usize, Range<usize>) {
    let (pad, dilation) = (extents.pad[axis], extents.dilation[axis].max(1));
    let start = at * extents.stride[axis];
    let skipped = pad.saturating_sub(start).div_ceil(dilation).min(extents.kernel[axis]);
    let first = start + skipped * dilation - pad.min(start + skipped * dilation);
    let left = extents.input[axis].saturating_sub(first).div_ceil(dilation);
    (first, skipped..extents.kernel[axis].min(skipped + left))
}
