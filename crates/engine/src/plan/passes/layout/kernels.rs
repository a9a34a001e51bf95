//! Kernels of tensors with their channels last.

use std::ops::Range;

use coremill_tensor::DType;
use coremill_tensor::kernels::map::{Binary, MapInput, MapProgram, broadcast_strides, map};
use coremill_tensor::kernels::matmul::Rounding;

use super::super::super::kernel::{Cost, Kernel, Machine};
use crate::array::{View, round_floats};
use crate::error::Result;
use crate::ops::pool::reach;
use crate::ops::window::Window;

/// What a pool makes of the elements under its window.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Pooling {
    Max,
    Mean {
        excludes_padding: bool,
    },
    /// The root of the sum of squares.
    Norm,
}

/// Along one axis, for each step: the indices inside of the input, and how many elements there are with
/// padding.
type Reach = Vec<(Range<usize>, usize)>;

/// A pool over up to three axes.
pub(super) struct Pools {
    pooling: Pooling,
    images: usize,
    input: [usize; 3],
    channels: usize,
    steps: [Reach; 3],
    rounding: Rounding,
}

impl Pools {
    /// For an input `[batch, channels, ...]`, whose channels will come last, and its windows.
    pub(super) fn new(
        pooling: Pooling,
        shape: &[usize],
        windows: &[Window],
        rounding: Rounding,
    ) -> Pools {
        let absent = 3 - windows.len();
        let mut input = [1; 3];
        input[absent..].copy_from_slice(&shape[2..]);
        let steps = [0, 1, 2].map(|axis: usize| match axis.checked_sub(absent) {
            Some(axis) => (0..windows[axis].output).map(|at| reach(&windows[axis], at)).collect(),
            None => vec![(0..1, 1)],
        });
        Pools { pooling, images: shape[0], input, channels: shape[1], steps, rounding }
    }

    /// One line of the result along the last axis.
    fn line(&self, line: usize, source: &[f32], target: &mut [f32]) {
        let [depth, height, _] = [0, 1, 2].map(|axis| self.steps[axis].len());
        let (image, z, y) = (line / height / depth, line / height % depth, line % height);
        let (planes, rows) = (&self.steps[0][z], &self.steps[1][y]);
        for ((columns, across), target) in
            self.steps[2].iter().zip(target.chunks_exact_mut(self.channels))
        {
            target.fill(if self.pooling == Pooling::Max { f32::NEG_INFINITY } else { 0.0 });
            for plane in planes.0.clone() {
                for row in rows.0.clone() {
                    let line =
                        ((image * self.input[0] + plane) * self.input[1] + row) * self.input[2];
                    let pixels = (line + columns.start) * self.channels
                        ..(line + columns.end) * self.channels;
                    for pixel in source[pixels].chunks_exact(self.channels) {
                        self.gather(pixel, target);
                    }
                }
            }
            let inside = planes.0.len() * rows.0.len() * columns.len();
            match self.pooling {
                Pooling::Max | Pooling::Norm => {}
                Pooling::Mean { excludes_padding } => {
                    let count = if excludes_padding { inside } else { planes.1 * rows.1 * across };
                    // A window that holds nothing has nothing to average.
                    let factor = if count == 0 { 0.0 } else { 1.0 / count as f32 };
                    target.iter_mut().for_each(|sum| *sum *= factor);
                }
            }
        }
        if self.rounding == Rounding::Fp16 {
            round_floats(DType::Fp16, target);
        }
    }

    fn gather(&self, pixel: &[f32], target: &mut [f32]) {
        let pairs = target.iter_mut().zip(pixel);
        match self.pooling {
            // NaN is kept: it is not less than anything, and nothing is greater.
            Pooling::Max => pairs.for_each(|(most, &element)| {
                let keeps = *most >= element || most.is_nan();
                *most = if keeps { *most } else { element };
            }),
            Pooling::Mean { .. } => pairs.for_each(|(sum, element)| *sum += element),
            // Squares could overflow where the root of their sum does not.
            Pooling::Norm => pairs.for_each(|(norm, &element)| {
                let has_nan = norm.is_nan() || element.is_nan();
                *norm = if has_nan { f32::NAN } else { norm.hypot(element) };
            }),
        }
    }
}

impl Kernel for Pools {
    fn run(
        &self,
        machine: &Machine,
        inputs: &[View<'_>],
        outputs: &mut [&mut [f32]],
        _scratch: &mut [f32],
    ) -> Result<()> {
        let source = inputs[0].floats()?;
        let lines = outputs[0].chunks_exact_mut(self.steps[2].len() * self.channels);
        machine.share(lines, |index, line| self.line(index, source, line));
        Ok(())
    }

    fn label(&self) -> String {
        match self.pooling {
            Pooling::Max => "max_pool",
            Pooling::Mean { .. } => "avg_pool",
            Pooling::Norm => "l2_pool",
        }
        .to_owned()
    }

    fn cost(&self) -> Cost {
        let covered = |axis: usize| self.steps[axis].iter().map(|(inside, _)| inside.len()).sum();
        let (covered, steps): ([usize; 3], _) =
            ([0, 1, 2].map(covered), [0, 1, 2].map(|axis| self.steps[axis].len()));
        let all = |extents: [usize; 3]| {
            (self.images * self.channels * extents.iter().product::<usize>()) as u64
        };
        Cost { operations: all(covered), bytes: 4 * (all(self.input) + all(steps)) }
    }
}

/// The mean of each channel of each image.
pub(super) struct GlobalMean {
    images: usize,
    pixels: usize,
    channels: usize,
    rounding: Rounding,
}

impl GlobalMean {
    /// For an input `[batch, ..., channels]`.
    pub(super) fn new(shape: &[usize], rounding: Rounding) -> GlobalMean {
        let pixels = shape[1..shape.len() - 1].iter().product();
        GlobalMean { images: shape[0], pixels, channels: shape[shape.len() - 1], rounding }
    }
}

/// Elements that are added up before the sums are, so that the error does not grow with their number.
const BLOCK: usize = 64;

impl Kernel for GlobalMean {
    fn run(
        &self,
        _machine: &Machine,
        inputs: &[View<'_>],
        outputs: &mut [&mut [f32]],
        scratch: &mut [f32],
    ) -> Result<()> {
        let add = |sums: &mut [f32], more: &[f32]| {
            sums.iter_mut().zip(more).for_each(|(sum, more)| *sum += more);
        };
        let channels = self.channels.max(1);
        let images = inputs[0].floats()?.chunks_exact((self.pixels * channels).max(1));
        for (image, target) in images.zip(outputs[0].chunks_exact_mut(channels)) {
            target.fill(0.0);
            for block in image.chunks(BLOCK * channels) {
                scratch.fill(0.0);
                block.chunks_exact(channels).for_each(|pixel| add(scratch, pixel));
                add(target, scratch);
            }
            target.iter_mut().for_each(|sum| *sum /= self.pixels as f32);
            if self.rounding == Rounding::Fp16 {
                round_floats(DType::Fp16, target);
            }
        }
        Ok(())
    }

    fn label(&self) -> String {
        "reduce_mean".to_owned()
    }

    fn cost(&self) -> Cost {
        let count = (self.images * self.pixels * self.channels) as u64;
        Cost { operations: count, bytes: 4 * count }
    }

    fn scratch(&self) -> usize {
        self.channels
    }
}

/// Multiplies each channel and adds to it, and rounds the result to half precision.
pub(super) struct ChannelAffine {
    program: MapProgram,
    shape: Vec<usize>,
    strides: [Vec<usize>; 3],
}

impl ChannelAffine {
    /// For an input `[batch, ..., channels]`, factors and addends.
    pub(super) fn new(shape: Vec<usize>) -> ChannelAffine {
        let mut program = MapProgram::new();
        let [x, scale, shift] = [0, 1, 2].map(|input| program.input(input));
        let product = program.binary(Binary::Mul, x, scale);
        let sum = program.binary(Binary::Add, product, shift);
        let rounded = program.round_to_fp16(sum);
        program.output(rounded);
        let channels = shape[shape.len() - 1];
        let strides = [&shape[..], &[channels], &[channels]];
        let strides = strides.map(|from| broadcast_strides(from, &shape).unwrap_or_default());
        ChannelAffine { program, shape, strides }
    }
}

impl Kernel for ChannelAffine {
    fn run(
        &self,
        machine: &Machine,
        inputs: &[View<'_>],
        outputs: &mut [&mut [f32]],
        _scratch: &mut [f32],
    ) -> Result<()> {
        let mut read = Vec::with_capacity(inputs.len());
        for (input, strides) in inputs.iter().zip(&self.strides) {
            read.push(MapInput { elements: input.floats()?, strides });
        }
        map(machine.isa, &machine.pool, &self.program, &self.shape, &read, outputs);
        Ok(())
    }

    fn label(&self) -> String {
        "batch_norm".to_owned()
    }

    fn cost(&self) -> Cost {
        let count: usize = self.shape.iter().product();
        Cost { operations: 2 * count as u64, bytes: 8 * count as u64 }
    }
}
