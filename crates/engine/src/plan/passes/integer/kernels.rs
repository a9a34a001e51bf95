//! Integer kernels other than products.

use std::ops::Range;

use coremill_kernels::integer::{self, Multiple, Steps, Sum, Table, codes, codes_mut};
use coremill_reference::array::View;
use coremill_reference::error::Result;

use super::super::super::kernel::{Cost, CpuContext, Kernel};
use super::numbers::{Affine, Bounds};

/// Implements a kernel from codes to codes, with its label and memory traffic in bytes.
macro_rules! kernel {
    ($name:ident, $label:literal, ($own:ident, $machine:ident, $inputs:ident, $output:ident) $body:block,
     $bytes:expr) => {
        impl Kernel for $name {
            fn run(
                &self,
                $machine: &CpuContext,
                $inputs: &[View<'_>],
                outputs: &mut [&mut [f32]],
                _scratch: &mut [f32],
            ) -> Result<()> {
                let ($own, $output) = (self, &mut *outputs[0]);
                $body
                Ok(())
            }

            fn label(&self) -> String {
                $label.to_owned()
            }

            fn cost(&self) -> Cost {
                let bytes: fn(&$name) -> usize = $bytes;
                Cost { operations: 0, bytes: bytes(self) as u64 }
            }
        }
    };
}

/// Quantizes floats.
pub(super) struct Quantize {
    steps: Steps,
    /// Images, channels and pixels, if the codes are channels-last.
    last: Option<[usize; 3]>,
    count: usize,
}

impl Quantize {
    pub(super) fn new(steps: Steps, shape: &[usize], last: bool) -> Quantize {
        let count = shape.iter().product();
        let last = last.then(|| [shape[0], shape[1], shape[2..].iter().product()]);
        Quantize { steps, last, count }
    }
}

kernel!(Quantize, "quantize", (own, machine, inputs, output) {
    let (isa, pool) = (machine.isa, &machine.pool);
    let (source, target) = (inputs[0].floats()?, codes_mut(output));
    match own.last {
        Some(extents) => {
            integer::quantize_to_last(isa, pool, own.steps, extents, source, target);
        }
        None => integer::quantize(isa, pool, own.steps, source, target),
    }
}, |own| 5 * own.count);

/// Dequantizes codes.
pub(super) struct Dequantize {
    pub(super) count: usize,
    pub(super) scale: f32,
    pub(super) zero: u8,
}

kernel!(Dequantize, "dequantize", (own, machine, inputs, output) {
    let source = codes(inputs[0].floats()?);
    integer::dequantize(machine.isa, &machine.pool, own.scale, own.zero, source, output);
}, |own| 5 * own.count);

/// Permutes axes.
pub(super) struct Permute {
    pub(super) shape: Vec<usize>,
    pub(super) axes: Vec<usize>,
}

kernel!(Permute, "permute int8", (own, machine, inputs, output) {
    let source = codes(inputs[0].floats()?);
    integer::permute(&machine.pool, source, &own.shape, &own.axes, codes_mut(output));
}, |own| 2 * own.shape.iter().product::<usize>());

/// Applies a function through a table of all codes.
pub(super) struct LookUp {
    pub(super) count: usize,
    pub(super) table: Table,
}

kernel!(LookUp, "look up int8", (own, machine, inputs, output) {
    let source = &codes(inputs[0].floats()?)[..own.count];
    integer::look_up(&machine.pool, &own.table, source, codes_mut(output));
}, |own| 2 * own.count);

/// Adds two tensors.
pub(super) struct Add {
    pub(super) count: usize,
    pub(super) left_zero: u8,
    pub(super) sum: Sum,
    pub(super) zero: u8,
}

kernel!(Add, "add int8", (own, machine, inputs, output) {
    let left = &codes(inputs[0].floats()?)[..own.count];
    let right = &codes(inputs[1].floats()?)[..own.count];
    let target = &mut codes_mut(output)[..own.count];
    let left = (left, own.left_zero);
    integer::add(machine.isa, &machine.pool, left, right, &own.sum, target, own.zero);
}, |own| 3 * own.count);

/// Multiplies two tensors, or the pixels of an image by a factor per channel.
pub(super) struct Multiply {
    /// Images, pixels and channels.
    pub(super) extents: [usize; 3],
    pub(super) zeros: [u8; 2],
    pub(super) scaling: Multiple,
    pub(super) zero: u8,
}

kernel!(Multiply, "mul int8", (own, machine, inputs, output) {
    let [images, pixels, channels] = own.extents;
    let left = &codes(inputs[0].floats()?)[..images * pixels * channels];
    let right = &codes(inputs[1].floats()?)[..images * channels];
    let target = &mut codes_mut(output)[..left.len()];
    let (left, right) = ((left, own.zeros[0]), (right, own.zeros[1]));
    let (isa, pool) = (machine.isa, &machine.pool);
    integer::times(isa, pool, own.extents, left, right, &own.scaling, target, own.zero);
}, |own| 3 * own.extents.iter().product::<usize>());

/// Concatenates tensors along an axis.
pub(super) struct Join {
    pub(super) rows: usize,
    /// For each tensor, the number of codes per row, and a table that converts its scale if it
    /// differs.
    pub(super) parts: Vec<(usize, Option<Box<Table>>)>,
}

kernel!(Join, "concat int8", (own, machine, inputs, output) {
    let mut sources = Vec::with_capacity(inputs.len());
    for (input, (run, table)) in inputs.iter().zip(&own.parts) {
        sources.push((codes(input.floats()?), *run, table.as_deref()));
    }
    integer::join(&machine.pool, own.rows, &sources, codes_mut(output));
}, |own| 2 * own.rows * own.parts.iter().map(|(run, _)| run).sum::<usize>());

/// Max pooling.
pub(super) struct Maximum {
    images: usize,
    input: [usize; 3],
    channels: usize,
    windows: [Vec<Range<usize>>; 3],
}

impl Maximum {
    /// Creates the kernel for an input of shape `[batch, channels, ...]`, stored channels-last.
    pub(super) fn new(shape: &[usize], windows: [Vec<Range<usize>>; 3]) -> Maximum {
        let mut input = [1; 3];
        input[5 - shape.len()..].copy_from_slice(&shape[2..]);
        Maximum { images: shape[0], input, channels: shape[1], windows }
    }
}

kernel!(Maximum, "max_pool int8", (own, machine, inputs, output) {
    let [planes, lines, columns] = &own.windows;
    let source = codes(inputs[0].floats()?);
    let extents = (own.images, own.input, own.channels);
    let windows = [&planes[..], lines, columns];
    integer::maximum(machine.isa, &machine.pool, extents, windows, source, codes_mut(output));
}, |own| {
    let results: usize = own.windows.iter().map(Vec::len).product();
    own.images * own.channels * (own.input.iter().product::<usize>() + results)
});

/// Mean over the pixels of each channel, quantized.
pub(super) struct Mean {
    extents: [usize; 3],
    from: Affine,
    bounds: Bounds,
    to: Affine,
}

impl Mean {
    /// Creates the kernel for `[images, pixels, channels]`.
    pub(super) fn new(extents: [usize; 3], from: Affine, bounds: Bounds, to: Affine) -> Mean {
        Mean { extents, from, bounds, to }
    }
}

kernel!(Mean, "reduce_mean int8", (own, machine, inputs, output) {
    let [images, _, channels] = own.extents;
    let mut means = vec![0.0; images * channels];
    let (source, from) = (codes(inputs[0].floats()?), (own.from.scale, own.from.zero));
    integer::mean(machine.isa, &machine.pool, own.extents, from, source, &mut means);
    for (to, mean) in codes_mut(output).iter_mut().zip(means) {
        // Unbounded results have infinite bounds.
        *to = own.to.code(mean.max(own.bounds.low).min(own.bounds.high));
    }
}, |own| own.extents.iter().product());
