//! Depthwise convolution of one vector of channels, in registers.

#![expect(unsafe_code, reason = "the extents are checked at entry, indices follow from them")]

use super::Task;
use crate::scratch::Scratch;
use coremill_simd::vector::{MAX_LANES, Vector};

/// Inputs up to this width are staged completely with their padding, because most of their tiles touch the
/// padding.
const NARROW: usize = 32;

/// Maximum number of pixels that [`fixed`] stages for one tile of a wider input: for a 5 × 5 kernel and a
/// tile of 4 results with stride 2.
const STAGED: usize = 5 * 11;

/// Convolves the vector of channels that starts at `channel`. All of its channels belong to the task.
#[inline(always)]
pub(super) fn channels<V: Vector>(task: &Task<'_>, channel: usize, scratch: &mut Scratch) {
    let extents = task.work.extents;
    if extents.dilation != [1, 1] || !V::TUNED {
        return any_kernel::<V>(task, channel, V::LANES);
    }
    // With 32 registers there is room for the weights and the results of seven pixels; common widths are
    // multiples of seven.
    let wide = V::LANES == MAX_LANES;
    match (extents.kernel, extents.stride[1]) {
        ([3, 3], 1) if wide => fixed::<V, 3, 3, 1, 7>(task, channel, scratch),
        ([3, 3], 2) if wide => fixed::<V, 3, 3, 2, 7>(task, channel, scratch),
        ([3, 3], 1) => fixed::<V, 3, 3, 1, 4>(task, channel, scratch),
        ([3, 3], 2) => fixed::<V, 3, 3, 2, 4>(task, channel, scratch),
        ([5, 5], 1) => fixed::<V, 5, 5, 1, 4>(task, channel, scratch),
        ([5, 5], 2) => fixed::<V, 5, 5, 2, 4>(task, channel, scratch),
        _ => any_kernel::<V>(task, channel, V::LANES),
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

/// Convolves with a kernel of fixed size and stride, `B` output pixels at a time.
#[inline(always)]
fn fixed<V: Vector, const H: usize, const W: usize, const S: usize, const B: usize>(
    task: &Task<'_>,
    channel: usize,
    scratch: &mut Scratch,
) {
    let work = task.work;
    let extents = work.extents;
    let step = extents.channels;
    let [height, width] = extents.input;
    let [output_height, output_width] = extents.output;
    let columns = (B - 1) * S + W;
    assert!(H * columns <= STAGED && channel + V::LANES <= step, "a tile fits");
    let mut weights = [[V::zero(); W]; H];
    for (y, row) in weights.iter_mut().enumerate() {
        for (x, weight) in row.iter_mut().enumerate() {
            let start = (y * W + x) * step + channel;
            // SAFETY: the slice has `LANES` elements.
            *weight = unsafe { V::load(work.weights[start..start + V::LANES].as_ptr()) };
        }
    }
    let ends = BiasClamp::new(task, channel, V::LANES);
    let image = task.image * height * width * step + channel;
    let narrow = width <= NARROW;
    // Number of columns that all tiles of a row read, and number of rows that all rows of the task read.
    let all_columns = (output_width.next_multiple_of(B) - 1) * S + W;
    let all_rows = (task.rows.len() - 1) * extents.stride[0] + H;
    let mut whole: &[f32] = &[];
    let mut staged = [0f32; STAGED * MAX_LANES];
    if narrow {
        let elements = scratch.elements(all_rows * all_columns * V::LANES);
        stage::<V>(task, channel, all_columns, elements);
        whole = elements;
    }
    for y in task.rows.clone() {
        let first_row = (y * extents.stride[0]) as isize - extents.pad[0] as isize;
        let inner_rows = first_row >= 0 && first_row as usize + H <= height;
        let results = (task.image * output_height + y) * output_width * step;
        for x in (0..output_width).step_by(B) {
            let count = B.min(output_width - x);
            let first = (x * S) as isize - extents.pad[1] as isize;
            let inner = inner_rows && first >= 0 && first as usize + columns <= width;
            // Start of the taps, and distances between rows and between columns.
            let (source, pitch, apart) = if narrow {
                let row = (y - task.rows.start) * extents.stride[0];
                let pitch = all_columns * V::LANES;
                let start = row * pitch + x * S * V::LANES;
                let last = start + (H - 1) * pitch + columns * V::LANES;
                (whole[start..last].as_ptr(), pitch, V::LANES)
            } else if inner {
                let start = image + (first_row as usize * width + first as usize) * step;
                let last = start + ((H - 1) * width + columns - 1) * step + V::LANES;
                (work.input[start..last].as_ptr(), width * step, step)
            } else {
                for row in 0..H {
                    let in_y = first_row + row as isize;
                    for column in 0..columns {
                        let in_x = first + column as isize;
                        let inside = (0..height as isize).contains(&in_y)
                            && (0..width as isize).contains(&in_x);
                        let source = if inside {
                            let pixel = in_y as usize * width + in_x as usize;
                            let start = image + pixel * step;
                            &work.input[start..start + V::LANES]
                        } else {
                            &[0.0; MAX_LANES][..V::LANES]
                        };
                        let target = &mut staged[(row * columns + column) * V::LANES..][..V::LANES];
                        // SAFETY: both slices have `LANES` elements.
                        unsafe { V::load(source.as_ptr()).store(target.as_mut_ptr()) };
                    }
                }
                (staged.as_ptr(), columns * V::LANES, V::LANES)
            };
            // SAFETY: the slices span from the first to the last pixel that is read, or `H * columns` vectors
            // were staged.
            let tile = unsafe { taps::<V, H, W, S, B>(source, pitch, apart, &weights, ends.bias) };
            for (at, sum) in tile.into_iter().enumerate() {
                if at < count {
                    let start = results + (x + at) * step + channel;
                    let target = work.output.pointer(start..start + V::LANES);
                    // SAFETY: `pointer` checked the range, and each task has its own rows or channels.
                    unsafe { ends.bound(sum).store(target) };
                }
            }
        }
    }
}

/// Copies a vector of channels of the task's input rows to contiguous memory, `columns` pixels for each row,
/// with zeros for the padding.
#[inline(always)]
fn stage<V: Vector>(task: &Task<'_>, channel: usize, columns: usize, staged: &mut [f32]) {
    let work = task.work;
    let extents = work.extents;
    let step = extents.channels;
    let [height, width] = extents.input;
    // Input columns after the left padding; some of them may not be read.
    let left = extents.pad[1].min(columns);
    let copied = width.min(columns - left);
    staged.fill(0.0);
    if copied == 0 {
        return;
    }
    for (row, target) in staged.chunks_exact_mut(columns * V::LANES).enumerate() {
        let y = (task.rows.start * extents.stride[0] + row).wrapping_sub(extents.pad[0]);
        if y >= height {
            continue;
        }
        let start = (task.image * height + y) * width * step + channel;
        let source = work.input[start..start + (copied - 1) * step + V::LANES].as_ptr();
        let target = target[left * V::LANES..(left + copied) * V::LANES].as_mut_ptr();
        for x in 0..copied {
            // SAFETY: both slices extend to the end of their last vector.
            unsafe { V::load(source.add(x * step)).store(target.add(x * V::LANES)) };
        }
    }
}

/// The sums of `B` adjacent output pixels.
///
/// # Safety
/// A vector must be readable at `source + row * pitch + column * step` for all rows below `H` and columns
/// below `(B - 1) * S + W`.
#[inline(always)]
unsafe fn taps<V: Vector, const H: usize, const W: usize, const S: usize, const B: usize>(
    source: *const f32,
    pitch: usize,
    step: usize,
    weights: &[[V; W]; H],
    bias: V,
) -> [V; B] {
    let mut sums = [bias; B];
    for (y, row) in weights.iter().enumerate() {
        for (x, weight) in row.iter().enumerate() {
            for (at, sum) in sums.iter_mut().enumerate() {
                // Pixels shared by neighboring results are loaded once, since all indices are constants.
                // SAFETY: the caller guarantees the vector.
                let pixel = unsafe { V::load(source.add(y * pitch + (at * S + x) * step)) };
                *sum = pixel.mul_add(*weight, *sum);
            }
        }
    }
    sums
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
fn inside(extents: &super::Depthwise, axis: usize, at: usize) -> (usize, std::ops::Range<usize>) {
    let (pad, dilation) = (extents.pad[axis], extents.dilation[axis].max(1));
    let start = at * extents.stride[axis];
    let skipped = pad.saturating_sub(start).div_ceil(dilation).min(extents.kernel[axis]);
    let first = start + skipped * dilation - pad.min(start + skipped * dilation);
    let left = extents.input[axis].saturating_sub(first).div_ceil(dilation);
    (first, skipped..extents.kernel[axis].min(skipped + left))
}
