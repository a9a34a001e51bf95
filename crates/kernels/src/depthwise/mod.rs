//! Depthwise convolutions, channels last.

#[cfg(test)]
mod tests;
mod tile;

use std::ops::Range;

use crate::Pool;
use crate::matmul::{Division, Epilogue, finish};
use crate::shared::SharedMut;
use coremill_simd::Isa;
use coremill_simd::vector::{Kernel, Vector, dispatch};

/// Sizes of a depthwise convolution. Pairs are in the order vertical, horizontal. In a one-dimensional
/// convolution the vertical sizes are 1 and the vertical padding is 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Depthwise {
    /// Number of images.
    pub batch: usize,
    /// Size of the input.
    pub input: [usize; 2],
    /// Size of the output.
    pub output: [usize; 2],
    /// Number of input channels.
    pub channels: usize,
    /// Number of output channels for each input channel; they are adjacent.
    pub multiplier: usize,
    /// Size of the kernel.
    pub kernel: [usize; 2],
    /// Distance in input pixels between adjacent output pixels.
    pub stride: [usize; 2],
    /// Distance in input pixels between adjacent weights.
    pub dilation: [usize; 2],
    /// Number of zeros before the input. The number of zeros after it follows from the output size.
    pub pad: [usize; 2],
}

impl Depthwise {
    fn output_channels(&self) -> usize {
        self.channels * self.multiplier
    }

    fn check(&self, input: &[f32], weights: &[f32], output: &[f32]) {
        let length = |extents: &[usize]| {
            extents.iter().try_fold(1usize, |length, &extent| length.checked_mul(extent))
        };
        let [height, width] = self.input;
        let [output_height, output_width] = self.output;
        let [kernel_height, kernel_width] = self.kernel;
        assert_eq!(
            Some(input.len()),
            length(&[self.batch, height, width, self.channels]),
            "the input's length does not match the sizes"
        );
        assert_eq!(
            Some(output.len()),
            length(&[self.batch, output_height, output_width, self.channels, self.multiplier]),
            "the output's length does not match the sizes"
        );
        assert_eq!(
            Some(weights.len()),
            length(&[kernel_height, kernel_width, self.channels, self.multiplier]),
            "the number of weights does not match the kernel"
        );
        for axis in [0, 1] {
            assert!(self.kernel[axis] > 0, "the kernel must not be empty");
            let last = self.output[axis]
                .checked_mul(self.stride[axis])
                .zip(self.kernel[axis].checked_mul(self.dilation[axis]))
                .and_then(|(output, kernel)| output.checked_add(kernel));
            let fits = last.is_some_and(|last| isize::try_from(last).is_ok());
            assert!(fits && isize::try_from(self.pad[axis]).is_ok(), "the sizes overflow");
        }
    }
}

/// Reorders weights from `[channels × multiplier, 1, height, width]` to the layout of [`convolve_depthwise`]:
/// `[height, width, channels × multiplier]`.
///
/// # Panics
/// Panics if the number of weights is not a multiple of the kernel's size.
pub fn pack_depthwise_weights(weights: &[f32], kernel: [usize; 2]) -> Vec<f32> {
    let taps = kernel[0] * kernel[1];
    assert!(
        taps > 0 && weights.len().is_multiple_of(taps),
        "the weights must consist of whole kernels"
    );
    let channels = weights.len() / taps;
    let mut packed = vec![0.0; weights.len()];
    for (channel, kernel) in weights.chunks_exact(taps).enumerate() {
        for (tap, weight) in kernel.iter().enumerate() {
            packed[tap * channels + channel] = *weight;
        }
    }
    packed
}

/// Depthwise convolution. The input is `[batch, height, width, channels]`, the weights are `[height, width,
/// channels × multiplier]`, and the output is `[batch, height, width, channels × multiplier]`. The rows of
/// the epilogue are output pixels.
///
/// # Panics
/// Panics if a length does not match the sizes.
pub fn convolve_depthwise(
    isa: Isa,
    pool: &Pool,
    extents: &Depthwise,
    input: &[f32],
    weights: &[f32],
    epilogue: &Epilogue<'_>,
    output: &mut [f32],
) {
    extents.check(input, weights, output);
    if output.is_empty() {
        return;
    }
    let [height, width] = extents.output;
    epilogue.check(extents.batch * height * width, extents.output_channels());
    if extents.multiplier != 1 {
        let repeated: Vec<f32> = input
            .iter()
            .flat_map(|element| std::iter::repeat_n(*element, extents.multiplier))
            .collect();
        let extents = Depthwise { channels: extents.output_channels(), multiplier: 1, ..*extents };
        return convolve_depthwise(isa, pool, &extents, &repeated, weights, epilogue, output);
    }
    let mut division = epilogue.divide();
    if division.residual {
        division = Division::NOTHING_IN_REGISTERS;
    }
    let work = Work { extents, input, weights, epilogue, division, output: SharedMut::new(output) };
    // Threads divide the rows before the channels, like the convolutions before and after this one. A thread
    // then finds most of its input in its own cache. The results of a task stay in the cache until they are
    // finished.
    const TASK_BYTES: usize = 256 * 1024;
    let row_bytes = width * extents.channels * size_of::<f32>();
    let rows = (TASK_BYTES / row_bytes.max(1)).max(1);
    let blocks = height.div_ceil(rows);
    let blocks = match pool.threads() {
        1 => blocks,
        threads => blocks.max(threads * 2).next_multiple_of(threads).min(height),
    };
    let vectors = extents.channels.div_ceil(LEAST_CHANNELS);
    let wanted = if pool.threads() == 1 { 1 } else { pool.threads() * 4 };
    let groups = wanted.div_ceil(extents.batch * blocks).clamp(1, vectors);
    let group = vectors.div_ceil(groups) * LEAST_CHANNELS;
    // The last group includes the remaining channels, so that only an input with few channels has a narrow
    // group.
    let groups = (extents.channels / group).max(1);
    // Each task takes some microseconds.
    let rows = |block: usize| block * height / blocks..(block + 1) * height / blocks;
    let macs = rows(0).len() * width * group * extents.kernel[0] * extents.kernel[1];
    let tasks = extents.batch * blocks * groups;
    let grain = (65_536 / macs.max(1)).max(1);
    pool.run_ranges(tasks, grain, |range| {
        for task in range {
            let (block, index) = (task / groups, task % groups);
            let last = index + 1 == groups;
            let end = if last { extents.channels } else { (index + 1) * group };
            let channels = index * group..end;
            let task =
                Task { work: &work, image: block / blocks, rows: rows(block % blocks), channels };
            dispatch(isa, Run(&task));
            if division.rest {
                task.finish(isa);
            }
        }
    });
}

/// The channel groups of tasks are multiples of this: the number of lanes of the widest vector.
const LEAST_CHANNELS: usize = 16;

struct Work<'a> {
    extents: &'a Depthwise,
    input: &'a [f32],
    weights: &'a [f32],
    epilogue: &'a Epilogue<'a>,
    division: Division,
    output: SharedMut<'a>,
}

struct Task<'a> {
    work: &'a Work<'a>,
    image: usize,
    rows: Range<usize>,
    channels: Range<usize>,
}

struct Run<'a>(&'a Task<'a>);

impl Kernel for Run<'_> {
    type Output = ();

    #[inline(always)]
    fn run<V: Vector>(self) {
        let Range { start, end } = self.0.channels;
        if end - start < V::LANES {
            return tile::any_kernel::<V>(self.0, start, end - start);
        }
        tile::channels::<V>(self.0);
    }
}

impl Task<'_> {
    /// Applies the part of the epilogue that was not done in registers.
    fn finish(&self, isa: Isa) {
        let Work { extents, epilogue, division, output, .. } = self.work;
        let [height, width] = extents.output;
        let dense =
            epilogue.residual.is_none_or(|residual| residual.rows.stride == extents.channels);
        let whole = self.channels.len() == extents.channels && dense;
        for row in self.rows.clone() {
            let pixel = (self.image * height + row) * width;
            let (pixels, length) =
                if whole { (1, width * extents.channels) } else { (width, self.channels.len()) };
            for pixel in pixel..pixel + pixels {
                let start = pixel * extents.channels + self.channels.start;
                // SAFETY: each task has its own rows or channels.
                #[expect(unsafe_code, reason = "tasks write to disjoint parts of the output")]
                let elements = unsafe { output.part(start..start + length) };
                finish(isa, epilogue, *division, pixel, self.channels.start, elements);
            }
        }
    }
}
