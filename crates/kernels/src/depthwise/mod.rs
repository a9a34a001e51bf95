//! Convolutions of each channel by itself, channels last.

#[cfg(test)]
mod tests;
mod tile;

use std::ops::Range;

use crate::Pool;
use crate::matmul::{Division, Epilogue, finish};
use crate::scratch::{Scratch, with_scratch};
use crate::shared::SharedMut;
use coremill_simd::Isa;
use coremill_simd::vector::{Kernel, Vector, dispatch};

/// The extents of a convolution of each channel by itself. Those in pairs are of the vertical axis and the
/// horizontal one; of a convolution in one dimension, the vertical ones are 1, and its padding 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Depthwise {
    /// How many images there are.
    pub batch: usize,
    /// The input's size.
    pub input: [usize; 2],
    /// The output's size.
    pub output: [usize; 2],
    /// The input's channels.
    pub channels: usize,
    /// How many channels of the output each of the input makes; they follow each other.
    pub multiplier: usize,
    /// The kernel's size.
    pub kernel: [usize; 2],
    /// The input pixels from one output pixel to the next.
    pub stride: [usize; 2],
    /// The input pixels from one weight to the next.
    pub dilation: [usize; 2],
    /// The zeros before the input. Those behind it are as many as the output's size needs.
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
            "the input's length is not that of its extents"
        );
        assert_eq!(
            Some(output.len()),
            length(&[self.batch, output_height, output_width, self.channels, self.multiplier]),
            "the output's length is not that of its extents"
        );
        assert_eq!(
            Some(weights.len()),
            length(&[kernel_height, kernel_width, self.channels, self.multiplier]),
            "the weights' length is not that of the kernel"
        );
        for axis in [0, 1] {
            assert!(self.kernel[axis] > 0, "a kernel has weights");
            let last = self.output[axis]
                .checked_mul(self.stride[axis])
                .zip(self.kernel[axis].checked_mul(self.dilation[axis]))
                .and_then(|(output, kernel)| output.checked_add(kernel));
            let fits = last.is_some_and(|last| isize::try_from(last).is_ok());
            assert!(fits && isize::try_from(self.pad[axis]).is_ok(), "extents overflow");
        }
    }
}

/// Reorders weights as `[channels × multiplier, 1, height, width]` to what [`convolve_depthwise`] takes:
/// `[height, width, channels × multiplier]`.
///
/// # Panics
/// Where the weights are not a multiple of the kernel's size.
pub fn pack_depthwise_weights(weights: &[f32], kernel: [usize; 2]) -> Vec<f32> {
    let taps = kernel[0] * kernel[1];
    assert!(taps > 0 && weights.len().is_multiple_of(taps), "weights are whole kernels");
    let channels = weights.len() / taps;
    let mut packed = vec![0.0; weights.len()];
    for (channel, kernel) in weights.chunks_exact(taps).enumerate() {
        for (tap, weight) in kernel.iter().enumerate() {
            packed[tap * channels + channel] = *weight;
        }
    }
    packed
}

/// Convolves each channel by itself: input `[batch, height, width, channels]`, weights
/// `[height, width, channels × multiplier]`, output `[batch, height, width, channels × multiplier]`, whose
/// rows of the epilogue are pixels.
///
/// # Panics
/// Where lengths are not those of the extents.
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
    // Some rows at a time, so that the input of one vector of channels stays in the first cache from row
    // to row.
    const ROW_BYTES: usize = 24 * 1024;
    let rows = (ROW_BYTES / (extents.input[1] * extents.stride[0] * 64).max(1)).clamp(1, height);
    let blocks = height.div_ceil(rows);
    let vectors = extents.channels.div_ceil(LEAST_CHANNELS);
    let wanted = if pool.threads() == 1 { 1 } else { pool.threads() * 4 };
    let groups = wanted.div_ceil(extents.batch * blocks).clamp(1, vectors);
    let group = vectors.div_ceil(groups) * LEAST_CHANNELS;
    // The last group has what remains, so that only an input of fewer channels makes a narrow one.
    let groups = (extents.channels / group).max(1);
    // Each task is worth some microseconds.
    let macs = rows * width * group * extents.kernel[0] * extents.kernel[1];
    let tasks = extents.batch * blocks * groups;
    let grain = (65_536 / macs.max(1)).max(1);
    pool.run_ranges(tasks, grain, |range| {
        for task in range {
            let (block, index) = (task / groups, task % groups);
            let last = index + 1 == groups;
            let end = if last { extents.channels } else { (index + 1) * group };
            let channels = index * group..end;
            let first = block % blocks * rows;
            let task = Task {
                work: &work,
                image: block / blocks,
                rows: first..(first + rows).min(height),
                channels,
            };
            with_scratch(|scratch| dispatch(isa, Run { task: &task, scratch }));
            if division.rest {
                task.finish(isa);
            }
        }
    });
}

/// Tasks have groups of a multiple of so many channels: the lanes of the widest vector.
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

struct Run<'a> {
    task: &'a Task<'a>,
    scratch: &'a mut Scratch,
}

impl Kernel for Run<'_> {
    type Output = ();

    #[inline(always)]
    fn run<V: Vector>(self) {
        let Range { start, end } = self.task.channels;
        if end - start < V::LANES {
            return tile::any_kernel::<V>(self.task, start, end - start);
        }
        for channel in (start..end).step_by(V::LANES) {
            // The last vector may compute some channels again.
            tile::channels::<V>(self.task, channel.min(end - V::LANES), self.scratch);
        }
    }
}

impl Task<'_> {
    /// Applies what registers left undone of the epilogue.
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
                // SAFETY: tasks have rows or channels of their own.
                #[expect(unsafe_code, reason = "tasks write disjoint parts of the output")]
                let elements = unsafe { output.part(start..start + length) };
                finish(isa, epilogue, *division, pixel, self.channels.start, elements);
            }
        }
    }
}
