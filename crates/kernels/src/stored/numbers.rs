//! Block parameters of some rows, which are read before the rows.

#![expect(unsafe_code, reason = "numbers are read without bounds checks in the innermost loops")]

use std::marker::PhantomData;
use std::ops::Range;

use super::decode::{
    Affine, Bf16, Bits, BlockNumbers, Byte, Data, Decoder, F16, F32, GatheredFields, Halves, Wide,
};
use super::format::{Format, Palettes, Parameters, QuantizedMatrix};
use crate::matmul::source::widen;
use coremill_simd::Isa;
use coremill_simd::vector::Fields;
use coremill_tensor::DType;

/// The block parameters of some rows.
#[derive(Clone, Copy)]
pub(super) struct Numbers<'a> {
    /// Index of the first row.
    first: usize,
    across: usize,
    scales: Option<&'a [f32]>,
    offsets: Option<&'a [f32]>,
    palettes: Option<&'a Palettes>,
    /// Values of narrow integers, used if there are no palettes.
    integers: &'static [f32; 16],
}

/// Values of unsigned integers of 1 to 4 bits. Shorter tables repeat, like palettes.
static UNSIGNED: [[f32; 16]; 4] = [counting(2), counting(4), counting(8), counting(16)];

/// Values of signed 4-bit integers.
static SIGNED: [f32; 16] =
    [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, -8.0, -7.0, -6.0, -5.0, -4.0, -3.0, -2.0, -1.0];

const fn counting(end: usize) -> [f32; 16] {
    let mut numbers = [0.0; 16];
    let mut at = 0;
    while at < 16 {
        numbers[at] = (at % end) as f32;
        at += 1;
    }
    numbers
}

impl<'a> Numbers<'a> {
    /// Number of elements of scratch memory for this number of rows.
    pub(super) fn scratch(weights: &QuantizedMatrix, rows: usize) -> usize {
        2 * rows * weights.across()
    }

    /// Reads the parameters of some rows into scratch memory.
    pub(super) fn read(
        isa: Isa,
        weights: &'a QuantizedMatrix,
        rows: Range<usize>,
        scratch: &'a mut [f32],
    ) -> Numbers<'a> {
        let across = weights.across();
        let mut numbers = Numbers {
            first: rows.start,
            across,
            scales: None,
            offsets: None,
            palettes: None,
            integers: &SIGNED,
        };
        match &weights.format {
            Format::Float(_) => {}
            Format::Palette { palettes, .. } => numbers.palettes = Some(palettes),
            Format::Affine { dtype, scale, offset } => {
                let (scales, offsets) = scratch.split_at_mut(rows.len() * across);
                scale.read(isa, rows.clone(), scales);
                numbers.scales = Some(scales);
                if let Some(offset) = offset {
                    let offsets = &mut offsets[..rows.len() * across];
                    offset.read(isa, rows, offsets);
                    numbers.offsets = Some(offsets);
                }
                if let (false, Some(bits @ 1..=4)) = (dtype.is_signed_integer(), dtype.bits()) {
                    numbers.integers = &UNSIGNED[bits as usize - 1];
                }
            }
        }
        numbers
    }

    /// The parameters of a row.
    #[inline(always)]
    pub(super) fn row(&self, row: usize) -> RowNumbers<'a> {
        static ONE: [f32; 1] = [1.0];
        static ZERO: [f32; 1] = [0.0];
        let some = (row - self.first) * self.across..(row + 1 - self.first) * self.across;
        let (palettes, palette_length) = match self.palettes {
            Some(palettes) => {
                let length = palettes.across * palettes.length;
                (&palettes.entries[row / palettes.rows * length..][..length], palettes.length)
            }
            None => (&self.integers[..], 0),
        };
        RowNumbers {
            scales: self.scales.map_or(&ONE, |scales| &scales[some.clone()]),
            scale_step: usize::from(self.scales.is_some()),
            offsets: self.offsets.map_or(&ZERO, |offsets| &offsets[some]),
            offset_step: usize::from(self.offsets.is_some()),
            palettes,
            palette_length,
            blocks: self.across,
        }
    }
}

/// The parameters of the blocks of a row.
#[derive(Clone, Copy)]
pub(super) struct RowNumbers<'a> {
    scales: &'a [f32],
    /// 0 if all blocks share one scale.
    scale_step: usize,
    offsets: &'a [f32],
    offset_step: usize,
    palettes: &'a [f32],
    palette_length: usize,
    blocks: usize,
}

impl RowNumbers<'_> {
    #[inline(always)]
    pub(super) fn get(&self, block: usize) -> BlockNumbers {
        assert!(block < self.blocks);
        // SAFETY: `Numbers::row` provided parameters for each block, or one for all.
        unsafe {
            BlockNumbers {
                scale: *self.scales.as_ptr().add(block * self.scale_step),
                offset: *self.offsets.as_ptr().add(block * self.offset_step),
                palette: self.palettes.as_ptr().add(block * self.palette_length),
            }
        }
    }
}

impl Parameters {
    fn read(&self, isa: Isa, rows: Range<usize>, target: &mut [f32]) {
        let size = if self.dtype == DType::Fp32 { 4 } else { 2 };
        let bytes = |row: usize, count: usize| {
            let start = row / self.rows * self.across * size;
            &self.data.as_bytes()[start..start + count * self.across * size]
        };
        if self.rows == 1 {
            return widen(isa, self.dtype, bytes(rows.start, rows.len()), target);
        }
        for (row, target) in rows.zip(target.chunks_exact_mut(self.across.max(1))) {
            widen(isa, self.dtype, bytes(row, 1), target);
        }
    }
}

/// Work that is generic over the decoder.
pub(super) trait UseDecoder {
    fn run<D: Decoder>(self, decoder: D);
}

/// Calls `work` with the decoder of the weights.
pub(super) fn with_decoder(weights: &QuantizedMatrix, work: impl UseDecoder) {
    let bytes = weights.data.as_bytes();
    let data = Data(bytes.as_ptr(), bytes.len());
    // A missing scale is 1, and a missing offset is 0.
    let bits = match &weights.format {
        Format::Float(DType::Fp32) => return work.run(F32(data)),
        Format::Float(DType::Fp16) => return work.run(F16(data)),
        Format::Float(_) => return work.run(Bf16(data)),
        Format::Affine { dtype: DType::Int8, .. } => return work.run(Byte::<true>(data)),
        Format::Affine { dtype: DType::UInt8, .. } => return work.run(Byte::<false>(data)),
        Format::Affine { offset: Some(_), .. } if weights.is_parted() => {
            return work.run(Halves::<true>(data));
        }
        _ if weights.is_parted() => return work.run(Halves::<false>(data)),
        Format::Affine { dtype, .. } => dtype.bits().map_or(4, |bits| bits as usize),
        Format::Palette { bits, .. } => *bits,
    };
    let fields = Fields::of(bits);
    match bits {
        1..=4 => work.run(Bits::<Affine> { data, bits, fields, kind: PhantomData }),
        6 => work.run(Bits::<Wide> { data, bits, fields, kind: PhantomData }),
        _ => work.run(Bits::<GatheredFields> { data, bits, fields, kind: PhantomData }),
    }
}
