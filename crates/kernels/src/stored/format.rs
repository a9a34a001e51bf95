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

/// Parameters of blocks that may be stored as products: `factor * steps * units`. Several adjacent blocks of a
/// row have the same unit.
#[derive(Clone, Debug)]
pub struct NestedBlocks {
    /// A number for each block: `fp16`, `fp32`, `int8`, or `uint4`, `uint6` or `uint8` as indices into `table`.
    pub steps: Blocks,
    /// The numbers that unsigned steps represent; the steps themselves if it is `None`.
    pub table: Option<Vec<f32>>,
    /// Units of the steps.
    pub units: Option<Blocks>,
    /// Common factor.
    pub factor: f32,
}

/// Values of elements before they are scaled.
#[derive(Clone, Debug)]
pub enum ElementValues {
    /// Integers of 1 to 4 or 8 bits represent themselves.
    Integers,
    /// A palette with an entry for each value of an index of 1, 2, 3, 4, 6 or 8 bits.
    Palette(Vec<f32>),
    /// `lower[element] * upper[bit] - shift`, with 4-bit elements and a second matrix of bits.
    Split {
        /// The matrix of bits.
        bits: Buffer,
        /// Values of the elements.
        lower: [f32; 16],
        /// Factors for both values of a bit.
        upper: [f32; 2],
        /// Number that is subtracted.
        shift: f32,
    },
}

#[derive(Clone, Debug)]
pub(super) enum Format {
    Float(DType),
    /// `(element - offset) * scale + shift`
    Affine {
        dtype: DType,
        scale: Parameters,
        offset: Option<Parameters>,
        shift: Option<Parameters>,
    },
    /// `palette[element] * scale + shift`. With scales, there is one palette.
    Palette {
        bits: usize,
        palettes: Arc<Palettes>,
        scale: Option<Parameters>,
        shift: Option<Parameters>,
    },
    /// `(lower[element] * upper[bit] - subtracted) * scale + shift`
    Split {
        bits: Buffer,
        tables: Arc<[f32; SPLIT_ENTRIES]>,
        scale: Parameters,
        shift: Option<Parameters>,
    },
}

/// Number of entries of a split format's tables: sixteen for the lower bits, the repeated two for the upper bit, and
/// the subtracted number.
pub(super) const SPLIT_ENTRIES: usize = 33;

/// The parameters of [`Blocks`] in the layout of the kernels.
#[derive(Clone, Debug)]
pub(super) struct Parameters {
    pub data: Buffer,
    /// `fp16`, `fp32` or `int8`; with a table, an unsigned integer of 4, 6 or 8 bits.
    pub dtype: DType,
    pub across: usize,
    /// Number of rows that share parameters.
    pub rows: usize,
    /// At least sixteen entries.
    pub table: Option<Arc<[f32]>>,
    /// Units that are multiplied with the numbers of several blocks.
    pub units: Option<Box<Parameters>>,
    pub factor: f32,
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
        let scale = scale.parameters(rows, columns)?;
        let format = Format::Affine { dtype, scale, offset, shift: None };
        QuantizedMatrix::checked(rows, columns, data, dtype, format)
    }

    /// Elements that represent `value * scale + shift`, with scales and shifts that may be products themselves. Returns
    /// `None` if the data is too short or of another type, or if the blocks do not divide the matrix evenly.
    pub fn nested(
        data: Buffer,
        dtype: DType,
        rows: usize,
        columns: usize,
        values: &ElementValues,
        scale: &NestedBlocks,
        shift: Option<&NestedBlocks>,
    ) -> Option<QuantizedMatrix> {
        if !dtype.is_integer() || shift.is_some_and(|it| it.steps.shape != scale.steps.shape) {
            return None;
        }
        let scale = scale.parameters(rows, columns)?;
        let shift = match shift {
            Some(shift) => Some(shift.parameters(rows, columns)?),
            None => None,
        };
        let bits = dtype.bits()? as usize;
        let format = match values {
            ElementValues::Integers if matches!(bits, 1..=4 | 8) => {
                Format::Affine { dtype, scale, offset: None, shift }
            }
            ElementValues::Palette(entries)
                if !dtype.is_signed_integer()
                    && matches!(bits, 1..=4 | 6 | 8)
                    && entries.len() == 1 << bits =>
            {
                let length = entries.len().max(16);
                let entries = entries.iter().cycle().take(length).copied().collect();
                let palettes = Palettes { entries, length, across: 1, rows };
                Format::Palette { bits, palettes: Arc::new(palettes), scale: Some(scale), shift }
            }
            ElementValues::Split { bits, lower, upper, shift: subtracted }
                if dtype == DType::UInt4 =>
            {
                let count = rows.checked_mul(columns)? as u64;
                if DType::UInt1.storage_bytes(count)? > bits.len() as u64 {
                    return None;
                }
                let mut tables = [*subtracted; SPLIT_ENTRIES];
                tables[..16].copy_from_slice(lower);
                for (entry, factor) in tables[16..32].iter_mut().zip(upper.iter().cycle()) {
                    *entry = *factor;
                }
                Format::Split { bits: bits.clone(), tables: Arc::new(tables), scale, shift }
            }
            _ => return None,
        };
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
        let (scale, shift) = (None, None);
        let format = Format::Palette { bits, palettes: Arc::new(palettes), scale, shift };
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
            Format::Float(_) | Format::Split { .. } => false,
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
            Format::Affine { scale, .. }
            | Format::Split { scale, .. }
            | Format::Palette { scale: Some(scale), .. } => scale.across,
            Format::Palette { palettes, .. } => palettes.across,
        }
    }

    /// Scales of blocks.
    pub(super) fn scale(&self) -> Option<&Parameters> {
        match &self.format {
            Format::Float(_) => None,
            Format::Affine { scale, .. } | Format::Split { scale, .. } => Some(scale),
            Format::Palette { scale, .. } => scale.as_ref(),
        }
    }

    /// Numbers that are subtracted from elements.
    pub(super) fn offset(&self) -> Option<&Parameters> {
        match &self.format {
            Format::Affine { offset, .. } => offset.as_ref(),
            _ => None,
        }
    }

    /// Numbers that are added to the scaled values of blocks.
    pub(super) fn shift(&self) -> Option<&Parameters> {
        match &self.format {
            Format::Float(_) => None,
            Format::Affine { shift, .. }
            | Format::Palette { shift, .. }
            | Format::Split { shift, .. } => shift.as_ref(),
        }
    }
}

impl NestedBlocks {
    /// Parameters without units and factor.
    pub fn plain(steps: Blocks) -> NestedBlocks {
        NestedBlocks { steps, table: None, units: None, factor: 1.0 }
    }

    fn parameters(&self, rows: usize, columns: usize) -> Option<Parameters> {
        let Blocks { data, dtype, shape } = &self.steps;
        let [down, across] = *shape;
        if !divides(down, rows) || !divides(across, columns) || down == 0 || across == 0 {
            return None;
        }
        let bytes = dtype.storage_bytes(down.checked_mul(across)? as u64)?;
        if bytes > data.len() as u64 {
            return None;
        }
        let table: Option<Arc<[f32]>> = match (&self.table, dtype) {
            (None, DType::Fp16 | DType::Fp32 | DType::Int8) => None,
            (table, DType::UInt4 | DType::UInt6 | DType::UInt8) => {
                let count = 1usize << dtype.bits()?;
                let entries = table.clone();
                let entries = entries.unwrap_or_else(|| (0..count).map(|at| at as f32).collect());
                (entries.len() == count).then(|| Some(entries.into()))?
            }
            _ => return None,
        };
        let units = match &self.units {
            Some(units) => {
                let fits = divides(units.shape[0], rows) && divides(units.shape[1], across);
                let nonzero = units.shape[0] > 0 && units.shape[1] > 0;
                let units = units.parameters(rows, columns).filter(|_| fits && nonzero)?;
                Some(Box::new(units))
            }
            None => None,
        };
        let (data, dtype, rows) = (data.clone(), *dtype, rows / down);
        Some(Parameters { data, dtype, across, rows, table, units, factor: self.factor })
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
            return Some(Parameters::plain(self.data.clone(), self.dtype, across, rows));
        }
        // Halves represent 8-bit integers exactly.
        let integers = coremill_tensor::packed::unpack(self.dtype, self.data.as_bytes(), count)?;
        let halves = integers.iter().flat_map(|&n| half::f16::from_f32(f32::from(n)).to_le_bytes());
        let data = Buffer::from(halves.collect::<Vec<_>>());
        Some(Parameters::plain(data, DType::Fp16, across, rows))
    }
}

impl Parameters {
    fn plain(data: Buffer, dtype: DType, across: usize, rows: usize) -> Parameters {
        Parameters { data, dtype, across, rows, table: None, units: None, factor: 1.0 }
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
