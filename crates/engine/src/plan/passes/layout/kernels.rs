//! Kernels on channels-last tensors.

use coremill_kernels::map::{Binary, MapInput, MapProgram, broadcast_strides, map};
use coremill_kernels::matmul::Rounding;
use coremill_kernels::pooling::{
    Pooling, PoolingExtents, WindowRange, global_average, pool_windows,
};
use coremill_reference::array::View;
use coremill_reference::error::Result;
use coremill_reference::ops::pool::reach;
use coremill_reference::ops::window::Window;
use coremill_simd::math::round_to_fp16;

use super::super::super::kernel::{Cost, CpuContext, Kernel};

/// Pooling over up to three axes.
pub(super) struct Pools {
    pooling: Pooling,
    images: usize,
    input: [usize; 3],
    channels: usize,
    windows: [Vec<WindowRange>; 3],
    rounding: Rounding,
}

impl Pools {
    /// Creates the kernel for an input of shape `[batch, channels, ...]`, stored channels-last.
    pub(super) fn new(
        pooling: Pooling,
        shape: &[usize],
        windows: &[Window],
        rounding: Rounding,
    ) -> Pools {
        let absent = 3 - windows.len();
        let mut input = [1; 3];
        input[absent..].copy_from_slice(&shape[2..]);
        let windows = [0, 1, 2].map(|axis: usize| match axis.checked_sub(absent) {
            Some(axis) => (0..windows[axis].output).map(|at| reach(&windows[axis], at)).collect(),
            None => vec![(0..1, 1)],
        });
        Pools { pooling, images: shape[0], input, channels: shape[1], windows, rounding }
    }
}

impl Kernel for Pools {
    fn run(
        &self,
        machine: &CpuContext,
        inputs: &[View<'_>],
        outputs: &mut [&mut [f32]],
        _scratch: &mut [f32],
    ) -> Result<()> {
        let [planes, lines, columns] = &self.windows;
        let extents = PoolingExtents {
            batch: self.images,
            input: self.input,
            windows: [planes, lines, columns],
            channels: self.channels,
        };
        let input = inputs[0].floats()?;
        pool_windows(machine.isa, &machine.pool, self.pooling, &extents, input, outputs[0]);
        if self.rounding == Rounding::Fp16 {
            round_to_fp16(machine.isa, outputs[0]);
        }
        Ok(())
    }

    fn label(&self) -> String {
        match self.pooling {
            Pooling::Max => "max_pool",
            Pooling::Average { .. } => "avg_pool",
            Pooling::L2 => "l2_pool",
        }
        .to_owned()
    }

    fn cost(&self) -> Cost {
        let covered = |axis: usize| self.windows[axis].iter().map(|(inside, _)| inside.len()).sum();
        let (covered, steps): ([usize; 3], _) =
            ([0, 1, 2].map(covered), [0, 1, 2].map(|axis| self.windows[axis].len()));
        let all = |extents: [usize; 3]| {
            (self.images * self.channels * extents.iter().product::<usize>()) as u64
        };
        Cost { operations: all(covered), bytes: 4 * (all(self.input) + all(steps)) }
    }
}

/// Mean over the pixels of each channel.
pub(super) struct GlobalMean {
    images: usize,
    pixels: usize,
    channels: usize,
    rounding: Rounding,
}

impl GlobalMean {
    /// Creates the kernel for an input of shape `[batch, ..., channels]`.
    pub(super) fn new(shape: &[usize], rounding: Rounding) -> GlobalMean {
        let pixels = shape[1..shape.len() - 1].iter().product();
        GlobalMean { images: shape[0], pixels, channels: shape[shape.len() - 1], rounding }
    }
}

impl Kernel for GlobalMean {
    fn run(
        &self,
        machine: &CpuContext,
        inputs: &[View<'_>],
        outputs: &mut [&mut [f32]],
        _scratch: &mut [f32],
    ) -> Result<()> {
        let extents = [self.images, self.pixels, self.channels];
        let (input, output) = (inputs[0].floats()?, &mut *outputs[0]);
        global_average(machine.isa, &machine.pool, extents, input, output);
        if self.rounding == Rounding::Fp16 {
            round_to_fp16(machine.isa, output);
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
}

/// A factor and an addend per channel, with results rounded to fp16.
pub(super) struct ChannelAffine {
    program: MapProgram,
    shape: Vec<usize>,
    strides: [Vec<usize>; 3],
}

impl ChannelAffine {
    /// Creates the kernel for an input of shape `[batch, ..., channels]`, with factors and addends.
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
        machine: &CpuContext,
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
