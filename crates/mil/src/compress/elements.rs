//! Floats as they are read from weights, and the integers that are made of them.

use std::io;

use coremill_tensor::packed::pack;
use coremill_tensor::{Buffer, DType, Identity, Produce};
use half::f16;

use super::blocks::Blocks;
use super::linear::Step;

/// Elements that are worked on together. Even, so that a byte holds elements of one chunk only.
const CHUNK: usize = 1 << 14;

/// Calls `visit` with parts of a weight's elements and the place of the first of each.
pub(super) fn for_each_part(
    source: &Buffer,
    dtype: DType,
    start: usize,
    length: usize,
    visit: &mut dyn FnMut(usize, &[f32]),
) -> io::Result<()> {
    let width = if dtype == DType::Fp16 { 2 } else { 4 };
    let mut numbers = Vec::with_capacity(CHUNK.min(length));
    let mut at = start;
    source.for_each_window(start * width..(start + length) * width, CHUNK * width, &mut |bytes| {
        numbers.clear();
        if dtype == DType::Fp16 {
            let (halves, _) = bytes.as_chunks::<2>();
            numbers.extend(halves.iter().map(|half| f16::from_le_bytes(*half).to_f32()));
        } else {
            let (singles, _) = bytes.as_chunks::<4>();
            numbers.extend(singles.iter().map(|single| f32::from_le_bytes(*single)));
        }
        visit(at, &numbers);
        at += numbers.len();
        Ok(())
    })
}

/// The integers that stand for a weight's elements, computed whenever they are read.
pub(super) struct Quantized {
    pub(super) source: Buffer,
    pub(super) source_dtype: DType,
    pub(super) count: usize,
    pub(super) dtype: DType,
    /// The smallest integer and the largest.
    pub(super) range: (f32, f32),
    pub(super) blocks: Blocks,
    /// By block.
    pub(super) steps: Vec<Step>,
    /// What tells that another is made of its source alike.
    pub(super) recipe: Vec<u64>,
}

impl Quantized {
    fn is_half(&self) -> bool {
        self.dtype.bits() == Some(4)
    }

    fn quantize(&self, number: f32, step: Step) -> i16 {
        let steps = match self.source_dtype {
            // Halves are computed with in half precision.
            DType::Fp16 => f16::from_f32(number / step.scale).to_f32(),
            _ => number / step.scale,
        };
        let (low, high) = self.range;
        // What is 0 in a block of zeros is no number here, and becomes 0.
        (steps.round_ties_even() + step.zero_point).clamp(low, high) as i16
    }
}

impl Produce for Quantized {
    fn length(&self) -> usize {
        if self.is_half() { self.count.div_ceil(2) } else { self.count }
    }

    fn produce(&self, offset: usize, target: &mut [u8]) -> io::Result<()> {
        let per_byte = if self.is_half() { 2 } else { 1 };
        let start = offset * per_byte;
        let length = (target.len() * per_byte).min(self.count - start);
        let mut integers = Vec::with_capacity(CHUNK.min(length));
        let mut failed = false;
        for_each_part(&self.source, self.source_dtype, start, length, &mut |at, numbers| {
            integers.clear();
            let mut rest = numbers;
            self.blocks.for_each_run(at, numbers.len(), |run, block| {
                let (now, later) = rest.split_at(run);
                let step = self.steps[block];
                integers.extend(now.iter().map(|&number| self.quantize(number, step)));
                rest = later;
            });
            let place = at / per_byte - offset;
            match pack(self.dtype, &integers) {
                Some(bytes) => target[place..place + bytes.len()].copy_from_slice(&bytes),
                None => failed = true,
            }
        })?;
        match failed {
            true => Err(io::Error::other("a quantized element does not fit its type")),
            false => Ok(()),
        }
    }

    fn identity(&self) -> Option<Identity> {
        let identity = Identity::new("linear quantization").with_part(&self.source.identity());
        let identity = identity.with(self.recipe.len() as u64);
        Some(self.recipe.iter().fold(identity, |identity, &number| identity.with(number)))
    }
}
