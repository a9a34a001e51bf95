//! Parts of compressed weights.

use std::ops::Range;

use coremill_tensor::{Buffer, DType};
use half::{bf16, f16};

/// Packed numbers of one type, in the layout of weight files. Types below 8 bits are packed
/// starting at the lowest bits.
#[derive(Clone, Debug)]
pub(crate) struct Numbers {
    pub(crate) data: Buffer,
    /// A float type of 16 or 32 bits, or an integer type of at most 8 bits.
    pub(crate) dtype: DType,
    pub(crate) count: usize,
}

impl Numbers {
    /// Returns `None` if the data has another size.
    pub(super) fn new(data: &Buffer, dtype: DType, count: usize) -> Option<Numbers> {
        let narrow = dtype.is_integer() && dtype.bits().is_some_and(|bits| bits <= 8);
        let float = matches!(dtype, DType::Fp16 | DType::Fp32 | DType::Bf16);
        let held = dtype.storage_bytes(count as u64)? == data.len() as u64;
        // Bit offsets must not overflow.
        count.checked_mul(8)?;
        (held && (narrow || float)).then(|| Numbers { data: data.clone(), dtype, count })
    }

    pub(super) fn of_floats(floats: &[f32]) -> Numbers {
        let bytes: Vec<u8> = floats.iter().flat_map(|float| float.to_le_bytes()).collect();
        Numbers { data: Buffer::from(bytes), dtype: DType::Fp32, count: floats.len() }
    }

    /// The number at an index. `f32` represents all types exactly.
    pub(super) fn at(&self, index: usize) -> f32 {
        let bytes = self.data.as_bytes();
        let short = || [bytes[2 * index], bytes[2 * index + 1]];
        match self.dtype {
            DType::Fp32 => {
                let at = 4 * index;
                f32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
            }
            DType::Fp16 => f16::from_le_bytes(short()).to_f32(),
            DType::Bf16 => bf16::from_le_bytes(short()).to_f32(),
            DType::Int8 => f32::from(bytes[index] as i8),
            DType::Int4 => {
                // Move the number to the upper half of the byte to extend its sign.
                let nibble = self.bits(index, 4) as u8;
                f32::from((nibble << 4) as i8 >> 4)
            }
            _ => f32::from(self.code(index)),
        }
    }

    /// Decodes a range of numbers.
    pub(super) fn read(&self, range: Range<usize>, target: &mut [f32]) {
        let bytes = self.data.as_bytes();
        match self.dtype {
            DType::Fp32 => {
                let words = bytes[4 * range.start..4 * range.end].as_chunks().0;
                target.iter_mut().zip(words).for_each(|(to, &word)| *to = f32::from_le_bytes(word));
            }
            DType::Fp16 => {
                let words = bytes[2 * range.start..2 * range.end].as_chunks().0;
                let float = |word: [u8; 2]| f16::from_le_bytes(word).to_f32();
                target.iter_mut().zip(words).for_each(|(to, &word)| *to = float(word));
            }
            _ => target.iter_mut().zip(range).for_each(|(to, index)| *to = self.at(index)),
        }
    }

    /// The number at an index, for unsigned types.
    pub(super) fn code(&self, index: usize) -> u16 {
        self.bits(index, self.dtype.bits().unwrap_or(8) as usize)
    }

    fn bits(&self, index: usize, width: usize) -> u16 {
        let bytes = self.data.as_bytes();
        let position = index * width;
        let low = u16::from(bytes[position / 8]);
        let high = bytes.get(position / 8 + 1).copied().map_or(0, u16::from);
        ((low | high << 8) >> (position % 8)) & ((1 << width) - 1)
    }
}

/// A bit mask of the elements that are stored.
#[derive(Clone, Debug)]
pub(crate) struct Mask {
    bits: Buffer,
    /// Number of bits set before each run of [`RUN`] bits.
    counts: Vec<usize>,
    /// Total number of bits set.
    pub(crate) set: usize,
}

/// Number of bits per entry of `counts`.
const RUN: usize = 512;

impl Mask {
    /// Returns `None` if the data has another number of bits.
    pub(super) fn new(bits: &Buffer, count: usize) -> Option<Mask> {
        if count.div_ceil(8) != bits.len() {
            return None;
        }
        let mut counts = Vec::with_capacity(count.div_ceil(RUN));
        let mut set = 0;
        for run in bits.as_bytes().chunks(RUN / 8) {
            counts.push(set);
            set += run.iter().map(|byte| byte.count_ones() as usize).sum::<usize>();
        }
        // Ignore the padding bits after the last element.
        if let (Some(last), used @ 1..) = (bits.as_bytes().last(), count % 8) {
            set -= (last >> used).count_ones() as usize;
        }
        Some(Mask { bits: bits.clone(), counts, set })
    }

    /// Compares the mask with packed bits.
    pub(super) fn has_bits(&self, bits: &Buffer) -> bool {
        self.bits == *bits
    }

    /// Index of an element among the stored ones, `None` if it is not stored.
    pub(super) fn rank(&self, place: usize) -> Option<usize> {
        let bytes = self.bits.as_bytes();
        let byte = bytes[place / 8];
        if byte >> (place % 8) & 1 == 0 {
            return None;
        }
        let run = place / RUN;
        let before =
            bytes[run * (RUN / 8)..place / 8].iter().map(|byte| byte.count_ones() as usize);
        let beside = (byte & ((1u8 << (place % 8)) - 1)).count_ones() as usize;
        Some(self.counts[run] + before.sum::<usize>() + beside)
    }
}

/// Division of a tensor into blocks, as a matrix with the first axis as rows.
#[derive(Clone, Debug)]
pub(crate) struct Blocks {
    /// Number of blocks along each axis.
    pub(crate) shape: Vec<usize>,
    /// Number of rows per block.
    rows: usize,
    /// Number of blocks per row.
    across: usize,
    /// The block of each column, `None` if a row has a single block.
    of_column: Option<Vec<u32>>,
}

impl Blocks {
    /// Returns `None` if the blocks do not divide every axis evenly.
    pub(super) fn new(tensor: &[usize], shape: &[usize]) -> Option<Blocks> {
        let divides = |(whole, parts): (&usize, &usize)| whole.checked_rem(*parts) == Some(0);
        // The sizes of empty tensors are unbounded, and there is nothing to compress.
        let fits = tensor.len() == shape.len() && tensor.iter().zip(shape).all(divides);
        if !fits || tensor.contains(&0) {
            return None;
        }
        let rows = match (tensor.first(), shape.first()) {
            (Some(&whole), Some(&parts)) => whole / parts,
            _ => 1,
        };
        let (inner, parts) = (tensor.get(1..).unwrap_or(&[]), shape.get(1..).unwrap_or(&[]));
        let columns: usize = inner.iter().product();
        let across: usize = parts.iter().product();
        u32::try_from(across).ok()?;
        let block = |column: usize| {
            let (mut column, mut block, mut stride) = (column, 0, 1);
            for (&whole, &parts) in inner.iter().zip(parts).rev() {
                block += column % whole / (whole / parts) * stride;
                stride *= parts;
                column /= whole;
            }
            block as u32
        };
        let of_column = (across > 1).then(|| (0..columns).map(block).collect());
        Some(Blocks { shape: shape.to_vec(), rows, across, of_column })
    }

    pub(super) fn at(&self, row: usize, column: usize) -> usize {
        let of_row = row / self.rows * self.across;
        of_row + self.of_column.as_ref().map_or(0, |blocks| blocks[column] as usize)
    }

    /// Returns true if every row, or every column, is in a single block.
    pub(super) fn is_whole(&self, along_rows: bool) -> bool {
        if along_rows { self.across == 1 } else { self.shape.first().is_none_or(|&down| down == 1) }
    }

    /// Number of blocks along rows and columns, if the columns of each block are contiguous,
    /// equally many and in order.
    pub(crate) fn of_matrix(&self, columns: usize) -> Option<[usize; 2]> {
        let in_order = |(column, &block): (usize, &u32)| {
            block as usize == column / (columns / self.across).max(1)
        };
        let regular = match &self.of_column {
            None => true,
            Some(blocks) => {
                columns.is_multiple_of(self.across) && blocks.iter().enumerate().all(in_order)
            }
        };
        let down = self.shape.first().copied().unwrap_or(1);
        regular.then_some([down, self.across])
    }
}
