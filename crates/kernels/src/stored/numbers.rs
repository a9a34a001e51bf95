//! Block parameters of some rows, which are read before the rows.

#![expect(unsafe_code, reason = "numbers are read without bounds checks in the innermost loops")]

use std::marker::PhantomData;
use std::ops::Range;

use super::decode::{
    Affine, Bf16, Bits, BlockNumbers, Byte, Data, Decoder, F16, F32, GatheredFields, Halves, Split,
    Wide,
};
use super::format::{Format, Palettes, QuantizedMatrix};
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
    /// Empty if there are none.
    shifts: &'a [f32],
    palettes: Option<&'a Palettes>,
    /// Values of narrow integers, or the tables of a split format, used if there are no palettes.
    integers: &'a [f32],
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
        4 * rows * weights.across()
    }

    /// Reads the parameters of some rows into scratch memory.
    pub(super) fn read(
        isa: Isa,
        weights: &'a QuantizedMatrix,
        rows: Range<usize>,
        scratch: &'a mut [f32],
    ) -> Numbers<'a> {
        let across = weights.across();
        let count = rows.len() * across;
        let mut numbers = Numbers {
            first: rows.start,
            across,
            scales: None,
            offsets: None,
            shifts: &[],
            palettes: None,
            integers: &SIGNED,
        };
        let (scale, offset) = match &weights.format {
            Format::Float(_) => return numbers,
            Format::Palette { palettes, scale, .. } => {
                numbers.palettes = Some(palettes);
                (scale.as_ref(), None)
            }
            Format::Split { tables, scale, .. } => {
                numbers.integers = &tables[..];
                (Some(scale), None)
            }
            Format::Affine { dtype, scale, offset, .. } => {
                if let (false, Some(bits @ 1..=4)) = (dtype.is_signed_integer(), dtype.bits()) {
                    numbers.integers = &UNSIGNED[bits as usize - 1];
                }
                (Some(scale), offset.as_ref())
            }
        };
        let (scales, rest) = scratch.split_at_mut(count);
        let (offsets, rest) = rest.split_at_mut(count);
        let (shifts, units) = rest.split_at_mut(count);
        if let Some(scale) = scale {
            scale.read(isa, rows.clone(), scales, units);
            numbers.scales = Some(scales);
        }
        if let Some(offset) = offset {
            offset.read(isa, rows.clone(), offsets, units);
            numbers.offsets = Some(offsets);
        }
        if let Some(shift) = weights.shift() {
            shift.read(isa, rows, shifts, units);
            numbers.shifts = shifts;
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
                let step = if palettes.across == 1 { 0 } else { palettes.length };
                (&palettes.entries[row / palettes.rows * length..][..length], step)
            }
            None => (self.integers, 0),
        };
        RowNumbers {
            shifts: if self.shifts.is_empty() { &[] } else { &self.shifts[some.clone()] },
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
    /// Numbers that are added to the scaled values of blocks; empty if there are none.
    pub(super) shifts: &'a [f32],
    palettes: &'a [f32],
    palette_length: usize,
    blocks: usize,
}

impl<'a> RowNumbers<'a> {
    /// Scales of all blocks; a single one if all blocks share it.
    pub(super) fn scales(&self) -> &'a [f32] {
        self.scales
    }

    /// Offsets of all blocks.
    pub(super) fn offsets(&self) -> Option<&'a [f32]> {
        (self.offset_step > 0).then_some(self.offsets)
    }

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
        Format::Split { bits, .. } => {
            let bits = bits.as_bytes();
            return work.run(Split { lower: data, upper: Data(bits.as_ptr(), bits.len()) });
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
