//! Kernels on channels-last images.

use coremill_kernels::matmul::Rounding;
use coremill_reference::array::{View, round_floats};
use coremill_reference::error::Result;
use coremill_reference::ops::image_resizing::Tap;
use coremill_tensor::DType;

use super::super::super::kernel::{Cost, CpuContext, Kernel};

/// Resizes images along rows and columns.
pub(super) struct Resize {
    label: &'static str,
    images: usize,
    channels: usize,
    /// Rows and columns; one row for images with one axis.
    input: [usize; 2],
    /// Source pixels and weights of each row and each column of the result.
    taps: [Vec<Tap>; 2],
    rounding: Rounding,
}

impl Resize {
    /// Creates the kernel for images with one or two axes.
    pub(super) fn new(
        label: &'static str,
        images: usize,
        channels: usize,
        input: &[usize],
        mut taps: Vec<Vec<Tap>>,
        rounding: Rounding,
    ) -> Resize {
        let columns = taps.pop().unwrap_or_default();
        let row = Tap { low: 0, high: 0, share: 0.0 };
        let rows = taps.pop().unwrap_or_else(|| vec![row]);
        let height = if input.len() > 1 { input[0] } else { 1 };
        let input = [height, input[input.len() - 1]];
        Resize { label, images, channels, input, taps: [rows, columns], rounding }
    }

    /// Computes one row of the result.
    fn row(&self, index: usize, source: &[f32], target: &mut [f32]) {
        let ([height, width], channels) = (self.input, self.channels);
        let [rows, columns] = &self.taps;
        let (image, tap) = (index / rows.len(), rows[index % rows.len()]);
        let line = |row: usize| &source[(image * height + row) * width * channels..];
        let (low, high) = (line(tap.low), line(tap.high));
        let down = tap.share as f32;
        for (across, target) in columns.iter().zip(target.chunks_exact_mut(channels)) {
            let pixel = |line: &[f32], target: &mut [f32], add: bool, factor: f32| {
                let left = &line[across.low * channels..][..channels];
                let right = &line[across.high * channels..][..channels];
                let share = across.share as f32;
                for ((target, left), right) in target.iter_mut().zip(left).zip(right) {
                    let blended = left * (1.0 - share) + right * share;
                    *target = if add { *target + blended * factor } else { blended * factor };
                }
            };
            if down == 0.0 && across.share == 0.0 {
                target.copy_from_slice(&low[across.low * channels..][..channels]);
            } else if down == 0.0 {
                pixel(low, target, false, 1.0);
            } else {
                pixel(low, target, false, 1.0 - down);
                pixel(high, target, true, down);
            }
        }
        if self.rounding == Rounding::Fp16 {
            round_floats(DType::Fp16, target);
        }
    }
}

impl Kernel for Resize {
    fn run(
        &self,
        machine: &CpuContext,
        inputs: &[View<'_>],
        outputs: &mut [&mut [f32]],
        _scratch: &mut [f32],
    ) -> Result<()> {
        let source = inputs[0].floats()?;
        let rows = outputs[0].chunks_exact_mut(self.taps[1].len() * self.channels);
        machine.share(rows, |index, row| self.row(index, source, row));
        Ok(())
    }

    fn label(&self) -> String {
        self.label.to_owned()
    }

    fn cost(&self) -> Cost {
        let pixels =
            |[rows, columns]: [usize; 2]| (self.images * rows * columns * self.channels) as u64;
        let results = pixels([self.taps[0].len(), self.taps[1].len()]);
        Cost { operations: 6 * results, bytes: 4 * (pixels(self.input) + results) }
    }
}

/// Instance normalization, followed by a factor and an addend per channel.
pub(super) struct InstanceNorm {
    images: usize,
    pixels: usize,
    gamma: Vec<f32>,
    beta: Vec<f32>,
    epsilon: f32,
    rounding: Rounding,
}

impl InstanceNorm {
    /// Creates the kernel for an input of shape `[batch, ..., channels]`.
    pub(super) fn new(
        shape: &[usize],
        gamma: Vec<f32>,
        beta: Vec<f32>,
        epsilon: f32,
        rounding: Rounding,
    ) -> InstanceNorm {
        let pixels = shape[1..shape.len() - 1].iter().product();
        InstanceNorm { images: shape[0], pixels, gamma, beta, epsilon, rounding }
    }

    /// Mean of a function of each channel's elements.
    fn mean(&self, image: &[f32], function: impl Fn(usize, f32) -> f32) -> Vec<f64> {
        let channels = self.gamma.len();
        let mut sums = vec![0.0; channels];
        // Short sums in fp32 are accurate enough.
        let mut block = vec![0.0f32; channels];
        for pixels in image.chunks(16 * channels) {
            block.fill(0.0);
            for pixel in pixels.chunks_exact(channels) {
                for (channel, (sum, &element)) in block.iter_mut().zip(pixel).enumerate() {
                    *sum += function(channel, element);
                }
            }
            sums.iter_mut().zip(&block).for_each(|(sum, &more)| *sum += f64::from(more));
        }
        sums.iter_mut().for_each(|sum| *sum /= self.pixels as f64);
        sums
    }
}

impl Kernel for InstanceNorm {
    fn run(
        &self,
        machine: &CpuContext,
        inputs: &[View<'_>],
        outputs: &mut [&mut [f32]],
        _scratch: &mut [f32],
    ) -> Result<()> {
        let channels = self.gamma.len();
        let size = self.pixels * channels;
        for (image, target) in
            inputs[0].floats()?.chunks_exact(size).zip(outputs[0].chunks_exact_mut(size))
        {
            let means: Vec<f32> = self
                .mean(image, |_, element| element)
                .into_iter()
                .map(|mean| mean as f32)
                .collect();
            let variances = self.mean(image, |channel, element| {
                let distance = element - means[channel];
                distance * distance
            });
            let factors: Vec<f32> = variances
                .iter()
                .zip(&self.gamma)
                .map(|(variance, gamma)| {
                    (f64::from(*gamma) / (variance + f64::from(self.epsilon)).sqrt()) as f32
                })
                .collect();
            let step = self.pixels.div_ceil(4 * machine.pool.threads()).max(1) * channels;
            let parts = target.chunks_mut(step).zip(image.chunks(step));
            machine.share(parts, |_, (target, source)| {
                let pixels = target.chunks_exact_mut(channels).zip(source.chunks_exact(channels));
                for (target, source) in pixels {
                    for channel in 0..channels {
                        target[channel] = (source[channel] - means[channel]) * factors[channel]
                            + self.beta[channel];
                    }
                }
                if self.rounding == Rounding::Fp16 {
                    round_floats(DType::Fp16, target);
                }
            });
        }
        Ok(())
    }

    fn label(&self) -> String {
        "instance_norm".to_owned()
    }

    fn cost(&self) -> Cost {
        let count = (self.images * self.pixels * self.gamma.len()) as u64;
        Cost { operations: 7 * count, bytes: 8 * count }
    }
}
