use std::sync::Arc;

use coremill_simd::vector::MAX_LANES;
use coremill_tensor::{Buffer, DType};

/// A matrix of weights in memory, possibly mapped from a file, row by row. The elements have any type to
/// which Core ML compresses weights. Clones share the memory.
#[derive(Clone, Debug)]
pub struct QuantizedMatrix {
    pub(super) rows: usize,
    pub(super) columns: usize,
    pub(super) data: Buffer,
    pub(super) format: Format,
}

/// Parameters of the blocks of a matrix. `[rows / n, columns / m]` parameters each apply to a block of `n ×
/// m` elements.
#[derive(Clone, Debug)]
pub struct Blocks {
    /// The parameters, row by row.
    pub data: Buffer,
    /// `fp16`, `fp32`, or an integer type of at most 8 bits.
    pub dtype: DType,
    /// Number of blocks in vertical and horizontal direction.
    pub shape: [usize; 2],
}

#[derive(Clone, Debug)]
pub(super) enum Format {
    Float(DType),
    /// `(element - offset) * scale`
    Affine {
        dtype: DType,
        scale: Parameters,
        offset: Option<Parameters>,
    },
    /// `palette[element]`
    Palette {
        bits: usize,
        palettes: Arc<Palettes>,
    },
}

/// The parameters of [`Blocks`] in the layout of the kernels.
#[derive(Clone, Debug)]
pub(super) struct Parameters {
    pub data: Buffer,
    /// `fp16` or `fp32`
    pub dtype: DType,
    pub across: usize,
    /// Number of rows that share parameters.
    pub rows: usize,
}

#[derive(Debug)]
pub(super) struct Palettes {
    /// The palettes of all blocks, concatenated. Palettes with fewer than 16 entries are repeated up to 16.
    pub entries: Vec<f32>,
    /// Number of stored entries of a palette.
    pub length: usize,
    pub across: usize,
    /// Number of rows that share palettes.
    pub rows: usize,
}

impl QuantizedMatrix {
    /// Float weights: `fp32`, `fp16` or `bf16`. Returns `None` if the data is too short or of another type.
    pub fn float(
        data: Buffer,
        dtype: DType,
        rows: usize,
        columns: usize,
    ) -> Option<QuantizedMatrix> {
        if !matches!(dtype, DType::Fp32 | DType::Fp16 | DType::Bf16) {
            return None;
        }
        QuantizedMatrix::checked(rows, columns, data, dtype, Format::Float(dtype))
    }

    /// Integers of 1 to 4 or 8 bits that represent `(element - offset) * scale`. Returns `None` if the data
    /// is too short or of another type, or if the blocks do not divide the matrix evenly.
    pub fn affine(
        data: Buffer,
        dtype: DType,
        rows: usize,
        columns: usize,
        scale: &Blocks,
        offset: Option<&Blocks>,
    ) -> Option<QuantizedMatrix> {
        if !dtype.is_integer() || !matches!(dtype.bits()?, 1..=4 | 8) {
            return None;
        }
        if offset.is_some_and(|offset| offset.shape != scale.shape) {
            return None;
        }
        let offset = match offset {
            Some(offset) => Some(offset.parameters(rows, columns)?),
            None => None,
        };
        let format = Format::Affine { dtype, scale: scale.parameters(rows, columns)?, offset };
        QuantizedMatrix::checked(rows, columns, data, dtype, format)
    }

    /// Indices of 1, 2, 3, 4, 6 or 8 bits into the palette of their block. A palette has one entry for each
    /// value of an index. Returns `None` if data and sizes do not match.
    pub fn palette(
        data: Buffer,
        dtype: DType,
        rows: usize,
        columns: usize,
        palettes: &Buffer,
        palettes_dtype: DType,
        shape: [usize; 2],
    ) -> Option<QuantizedMatrix> {
        if !dtype.is_integer() || dtype.is_signed_integer() || dtype.bits()? > 8 {
            return None;
        }
        let bits = dtype.bits()? as usize;
        let count = shape[0].checked_mul(shape[1])?;
        if !divides(shape[0], rows) || !divides(shape[1], columns) {
            return None;
        }
        let stored = floats(palettes, palettes_dtype, count.checked_mul(1 << bits)?)?;
        let length = (1usize << bits).max(16);
        let entries = stored
            .chunks_exact(1 << bits)
            .flat_map(|palette| palette.iter().cycle().take(length).copied())
            .collect();
        let palettes = Palettes { entries, length, across: shape[1], rows: rows / shape[0].max(1) };
        let format = Format::Palette { bits, palettes: Arc::new(palettes) };
        QuantizedMatrix::checked(rows, columns, data, dtype, format)
    }

    fn checked(
        rows: usize,
        columns: usize,
        data: Buffer,
        dtype: DType,
        format: Format,
    ) -> Option<QuantizedMatrix> {
        let count = rows.checked_mul(columns)?;
        // Kernels compute offsets in bits.
        count.checked_mul(32)?;
        let bytes = dtype.storage_bytes(count as u64)?;
        (bytes <= data.len() as u64).then_some(QuantizedMatrix { rows, columns, data, format })
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Number of columns.
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// Whether two vectors are read at a time, with elements at even and odd positions separated. This
    /// applies to 4-bit elements if rows and blocks are multiples of two of the widest vectors.
    pub(super) fn is_parted(&self) -> bool {
        let halves = match &self.format {
            Format::Float(_) => false,
            Format::Affine { dtype, .. } => dtype.bits() == Some(4),
            Format::Palette { bits, .. } => *bits == 4,
        };
        let block = self.columns / self.across().max(1);
        halves && block.is_multiple_of(2 * MAX_LANES)
    }

    /// Number of blocks in a row.
    pub(super) fn across(&self) -> usize {
        match &self.format {
            Format::Float(_) => 1,
            Format::Affine { scale, .. } => scale.across,
            Format::Palette { palettes, .. } => palettes.across,
        }
    }
}

impl Blocks {
    fn parameters(&self, rows: usize, columns: usize) -> Option<Parameters> {
        let [down, across] = self.shape;
        if !divides(down, rows) || !divides(across, columns) {
            return None;
        }
        let count = down.checked_mul(across)?;
        let rows = rows / down.max(1);
        let floating = matches!(self.dtype, DType::Fp16 | DType::Fp32);
        if floating && self.dtype.storage_bytes(count as u64)? <= self.data.len() as u64 {
            return Some(Parameters { data: self.data.clone(), dtype: self.dtype, across, rows });
        }
        // Halves represent 8-bit integers exactly.
        let integers = coremill_tensor::packed::unpack(self.dtype, self.data.as_bytes(), count)?;
        let halves = integers.iter().flat_map(|&n| half::f16::from_f32(f32::from(n)).to_le_bytes());
        let data = Buffer::from(halves.collect::<Vec<_>>());
        Some(Parameters { data, dtype: DType::Fp16, across, rows })
    }
}

fn divides(parts: usize, whole: usize) -> bool {
    whole.is_multiple_of(parts)
}

/// Converts `count` numbers to floats.
fn floats(data: &Buffer, dtype: DType, count: usize) -> Option<Vec<f32>> {
    let bytes = usize::try_from(dtype.storage_bytes(count as u64)?).ok()?;
    let bytes = data.as_bytes().get(..bytes)?;
    match dtype {
        DType::Fp32 => Some(bytes.as_chunks().0.iter().map(|&x| f32::from_le_bytes(x)).collect()),
        DType::Fp16 => {
            let halves = bytes.as_chunks().0.iter();
            Some(halves.map(|&x| half::f16::from_le_bytes(x).to_f32()).collect())
        }
        _ => {
            let integers = coremill_tensor::packed::unpack(dtype, bytes, count)?;
            Some(integers.into_iter().map(f32::from).collect())
        }
    }
}
