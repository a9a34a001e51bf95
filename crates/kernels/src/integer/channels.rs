//! Depthwise convolutions on codes. Four taps are processed at a time; their codes are interleaved so that
//! the four codes of a channel are adjacent.

#![expect(unsafe_code, reason = "pointers to pixels, whose extents are checked once")]

use std::ops::Range;

use super::{IndirectionTable, Scaling, codes, codes_mut};
use crate::Pool;
use crate::matmul::Window;
use crate::memory::{Memory, as_elements, as_elements_mut};
use crate::shared::SharedPointer;
use coremill_simd::Isa;
use coremill_simd::vector::{
    DotIsa, DotKernel, Int8Dot, Vector, dispatch_dots, interleaved, load_sums,
};

/// Weights of a depthwise convolution and the scaling of its sums, in blocks of channels.
#[derive(Debug)]
pub struct ChannelWeights {
    isa: DotIsa,
    channels: usize,
    taps: usize,
    /// Number of adjacent pixels whose channels fit into one block.
    pixels: usize,
    /// 1, or 2 if some weights exceed a signed byte. Every tap is then added twice; the second weight is the
    /// remainder.
    repeats: usize,
    weights: Memory,
    start: Vec<i32>,
    scale: Vec<f32>,
    shift: Vec<f32>,
    low: f32,
    high: f32,
}

impl ChannelWeights {
    /// Packs `weight(channel, tap)`, which is the weight minus its zero point, between -255 and 255.
    /// `left_zero` is the code of zero in the input.
    ///
    /// # Panics
    /// Panics if the scaling does not match the channels.
    pub fn pack(
        isa: Isa,
        [channels, taps]: [usize; 2],
        left_zero: u8,
        scaling: &Scaling,
        weight: impl Fn(usize, usize) -> i32,
    ) -> ChannelWeights {
        let isa = DotIsa::of(isa);
        let lanes = isa.lanes();
        let block = 4 * lanes;
        let blocks = channels.div_ceil(block);
        let pixels = (block / channels.max(1)).max(1);
        let fits = |channel| (0..taps).all(|tap| i8::try_from(weight(channel, tap)).is_ok());
        let repeats = if (0..channels).all(fits) { 1 } else { 2 };
        let fours = (taps * repeats).div_ceil(4);
        let mut weights = Memory::zeroed((blocks * fours * 4 * block).div_ceil(64));
        let bytes = codes_mut(as_elements_mut(weights.as_mut_lines()));
        let padded = blocks * block;
        let (mut start, mut scale, mut shift) =
            (vec![0; padded], vec![0.0; padded], vec![0.0; padded]);
        for first in (0..padded).step_by(block) {
            for vector in 0..4 {
                for lane in 0..lanes {
                    let channel = first + interleaved(vector, lane);
                    if channel >= channels * pixels {
                        continue;
                    }
                    let channel = channel % channels;
                    let place = first + vector * lanes + lane;
                    (scale[place], shift[place]) = (scaling.scale[channel], scaling.shift[channel]);
                    for tap in 0..taps {
                        let whole = weight(channel, tap);
                        start[place] -= i32::from(left_zero) * whole;
                        let part = whole.clamp(-128, 127);
                        for (at, value) in
                            [part, whole - part].into_iter().enumerate().take(repeats)
                        {
                            let tap = at * taps + tap;
                            let vectors = first * fours + (tap / 4 * 4 + vector) * lanes;
                            bytes[(vectors + lane) * 4 + tap % 4] = value as i8 as u8;
                        }
                    }
                }
            }
        }
        let (low, high) = (scaling.low, scaling.high);
        ChannelWeights {
            isa,
            channels,
            taps,
            pixels,
            repeats,
            weights,
            start,
            scale,
            shift,
            low,
            high,
        }
    }

    fn fours(&self) -> usize {
        (self.taps * self.repeats).div_ceil(4)
    }
}

/// Destination of the results.
#[derive(Debug)]
pub enum ChannelTarget<'a> {
    /// Codes, and the code of zero.
    Codes(&'a mut [u8], i32),
    /// Floats.
    Floats(&'a mut [f32]),
}

enum Place {
    Codes(SharedPointer<u8>, i32),
    Floats(SharedPointer<f32>),
}

/// Depthwise convolution of images.
///
/// # Panics
/// Panics if input, weights or target do not match the table, whose pieces must be single pixels with all
/// channels.
pub fn convolve_channels(
    pool: &Pool,
    pieces: &IndirectionTable,
    input: &[u8],
    weights: &ChannelWeights,
    target: ChannelTarget<'_>,
) {
    let window = pieces.window();
    let channels = weights.channels;
    assert_eq!(pieces.shape(), [weights.taps, channels], "the pieces must be pixels");
    assert_eq!(window.pixel_stride, channels, "the pixels must be contiguous");
    assert!(window.images * pieces.image_bytes() <= input.len(), "the input is too short");
    let rows = window.images * window.output[0] * window.output[1];
    let needed = rows * window.output[2] * channels;
    let target = match target {
        ChannelTarget::Codes(codes, zero) => {
            assert!(needed <= codes.len(), "the result is too short");
            Place::Codes(SharedPointer(codes.as_mut_ptr()), zero)
        }
        ChannelTarget::Floats(floats) => {
            assert!(needed <= floats.len(), "the result is too short");
            Place::Floats(SharedPointer(floats.as_mut_ptr()))
        }
    };
    let parts = if pool.threads() == 1 { 1 } else { (pool.threads() * 4).min(rows) };
    pool.run(parts, |part| {
        let rows = part * rows / parts..(part + 1) * rows / parts;
        // SAFETY: the machine supports the instruction set of the weights, no two tasks have the same rows,
        // and all sizes were checked.
        unsafe {
            dispatch_dots(weights.isa, Task { pieces, input, weights, target: &target, rows });
        }
    });
}

struct Task<'a> {
    pieces: &'a IndirectionTable,
    input: &'a [u8],
    weights: &'a ChannelWeights,
    target: &'a Place,
    rows: Range<usize>,
}

impl DotKernel for Task<'_> {
    type Output = ();

    #[inline(always)]
    fn run<D: Int8Dot>(self) {
        let Task { pieces, weights, .. } = self;
        let Window { output: [planes, lines, width], stride, .. } = *pieces.window();
        let (inner, step) = (pieces.inner(), pieces.step());
        // Pixels that are adjacent in memory are convolved together.
        let together = if stride[2] == 1 { weights.pixels } else { 1 };
        let block = 4 * D::Floats::LANES;
        let mut pointers = vec![self.input.as_ptr(); weights.fours() * 4];
        for row in self.rows.clone() {
            let (image, line) = (row / (planes * lines), row % (planes * lines) * width);
            for x in (0..inner.start).chain(inner.end..width) {
                self.point(image, line + x, &mut pointers);
                for first in (0..weights.channels).step_by(block) {
                    let count = (weights.channels - first).min(block);
                    // SAFETY: the pointers refer to pixels, and the block is part of their channels.
                    unsafe { self.block::<D>(&pointers, [first, 0, count], row * width + x) }
                }
            }
            if inner.is_empty() {
                continue;
            }
            self.point(image, line + inner.start, &mut pointers);
            for first in (0..weights.channels).step_by(block) {
                let channels = (weights.channels - first).min(block);
                for x in inner.clone().step_by(together) {
                    let count = channels * together.min(inner.end - x);
                    let place = [first, (x - inner.start) * step, count];
                    // SAFETY: between the first and the last pixel of a line, windows are inside the image or
                    // on the line of zeros, which has the same length.
                    unsafe { self.block::<D>(&pointers, place, row * width + x) }
                }
            }
        }
    }
}

impl Task<'_> {
    /// Writes the pointers to the pixels under the window of a result.
    #[inline(always)]
    fn point(&self, image: usize, result: usize, pointers: &mut [*const u8]) {
        let Task { pieces, weights, .. } = self;
        let image = self.input.as_ptr().wrapping_add(image * pieces.image_bytes());
        let find = pieces.finder(image);
        let entries = &pieces.entries[result * weights.taps..][..weights.taps];
        for repeat in 0..weights.repeats {
            for (pointer, entry) in pointers[repeat * weights.taps..].iter_mut().zip(entries) {
                *pointer = find(*entry);
            }
        }
    }

    /// Convolves the `count` codes that start at the first channel of a block, at an offset in bytes from the
    /// pointers.
    ///
    /// # Safety
    /// The codes must be readable at all pointers, and the result must have `count` elements.
    #[inline(always)]
    unsafe fn block<D: Int8Dot>(
        &self,
        pointers: &[*const u8],
        [first, offset, count]: [usize; 3],
        result: usize,
    ) {
        let lanes = D::Floats::LANES;
        let weights = self.weights;
        let packed = codes(as_elements(weights.weights.as_lines()));
        let mut right = packed[first * weights.fours() * 4..].as_ptr().cast::<i8>();
        // SAFETY: starts, scales and shifts have whole blocks, and so have the weights of each four taps.
        unsafe {
            let mut sums = [D::Floats::bits(0); 4];
            for (vector, sum) in sums.iter_mut().enumerate() {
                *sum = load_sums::<D::Floats>(weights.start.as_ptr().add(first + vector * lanes));
            }
            for four in pointers.as_chunks::<4>().0 {
                let left = D::interleave(four.map(|pixel| pixel.add(offset + first)), count);
                for (sum, left) in sums.iter_mut().zip(left) {
                    *sum = D::dot(*sum, left, D::right(right));
                    right = right.add(lanes * 4);
                }
            }
            let (low, high) = (D::Floats::splat(weights.low), D::Floats::splat(weights.high));
            let mut values = [low; 4];
            for (vector, value) in values.iter_mut().enumerate() {
                let place = first + vector * lanes;
                let scale = D::Floats::load(weights.scale.as_ptr().add(place));
                let shift = D::Floats::load(weights.shift.as_ptr().add(place));
                *value = D::Floats::from_int(sums[vector]).mul_add(scale, shift).max(low).min(high);
            }
            let at = result * weights.channels + first;
            match self.target {
                Place::Codes(codes, zero) => {
                    let zero = D::Floats::bits(*zero as u32);
                    let mut codes_there = [zero; 4];
                    for (codes, value) in codes_there.iter_mut().zip(&values) {
                        *codes = D::Floats::bits_add(value.to_int(), zero);
                    }
                    D::store_interleaved(codes_there, codes.get().add(at), count);
                }
                Place::Floats(floats) => {
                    let mut lanes_there = [0.0; coremill_simd::vector::MAX_LANES];
                    for (vector, value) in values.into_iter().enumerate() {
                        value.store(lanes_there.as_mut_ptr());
                        for (lane, value) in lanes_there.into_iter().enumerate().take(lanes) {
                            let channel = interleaved(vector, lane);
                            if channel < count {
                                *floats.get().add(at + channel) = value;
                            }
                        }
                    }
                }
            }
        }
    }
}
