//! Constant operands in their stored form, compressed or not.
//!
//! [`Weights::of`] describes a `const`, or a chain of `constexpr_` operations, without copying its
//! data. Only small computed tables and scales are copied. Kernels read the stored form
//! ([`Weights::stored`]), panels ([`WeightPanels`]) or rows ([`Weights::expand_rows`]).

mod expanded;
mod nested;
mod panels;
mod parts;
mod read;
#[cfg(test)]
mod tests;

use std::ops::Range;
use std::sync::Arc;

use coremill_kernels::stored::{self, QuantizedMatrix};
use coremill_tensor::DType;

use coremill_reference::array::{Array, round_floats};
pub use expanded::expanded;
use nested::NestedWeights;
pub(crate) use panels::WeightPanels;
use parts::{Blocks, Mask, Numbers};

/// A constant tensor, as a matrix with the first axis as rows.
#[derive(Clone, Debug)]
pub(crate) struct Weights {
    pub(crate) dtype: DType,
    pub(crate) shape: Vec<usize>,
    /// Stored values: numbers, or indices into tables.
    codes: Numbers,
    /// The elements that are stored, `None` if all are. The others are zero.
    mask: Option<Mask>,
    decode: Decode,
    /// Whether elements are rounded to their type, like results of operations.
    rounded: bool,
}

/// Conversion from stored values to elements.
#[derive(Clone, Debug)]
enum Decode {
    /// The values themselves.
    Plain,
    /// `scale · (code - shift)`, with the scale and shift of the block.
    Affine { blocks: Blocks, scales: Numbers, shifts: Option<Numbers> },
    /// Table lookup.
    Table(Table),
    /// Scales and shifts of other compressed weights. The codes belong to the innermost data.
    Nested(Arc<NestedWeights>),
}

/// A matrix of bytes that represent `scale · (byte - zero)`, with a scale and a zero point per
/// output.
#[derive(Clone, Debug)]
pub(crate) struct Integers {
    /// In the layout of the matrix.
    pub(crate) codes: Vec<i8>,
    pub(crate) scales: Vec<f32>,
    pub(crate) zeros: Vec<i32>,
}

#[derive(Clone, Debug)]
struct Table {
    blocks: Blocks,
    /// Entries of all tables, table by table.
    entries: Numbers,
    /// Number of entries per table.
    length: usize,
    /// Number of elements per entry.
    vector: usize,
    /// The axis along which the elements of an entry are placed.
    axis: usize,
}

/// Position of an element in the codes: row and column of the code, and the element within its
/// entry.
struct CodeIndex {
    row: usize,
    column: usize,
    element: usize,
}

impl Weights {
    /// Size of the first axis; 1 for a scalar.
    pub(crate) fn rows(&self) -> usize {
        self.shape.first().copied().unwrap_or(1)
    }

    /// Number of elements per row.
    pub(crate) fn columns(&self) -> usize {
        self.shape.get(1..).unwrap_or(&[]).iter().product()
    }

    /// Expands all elements. The result equals the reference kernels'.
    pub(crate) fn expand(&self) -> Array {
        let mut elements = vec![0.0; self.rows() * self.columns()];
        self.expand_rows(0..self.rows(), &mut elements);
        if self.dtype.is_float() {
            return Array::floats(self.dtype, &*self.shape, elements);
        }
        let ints = elements.into_iter().map(|number| number as i32).collect();
        Array::ints(self.dtype, &*self.shape, ints)
    }

    /// Expands a range of rows.
    ///
    /// # Panics
    ///
    /// If the range exceeds the rows, or the target has another length.
    pub(crate) fn expand_rows(&self, rows: Range<usize>, target: &mut [f32]) {
        let columns = self.columns();
        self.expand_elements(rows.start * columns..rows.end * columns, target);
    }

    /// Expands a range of elements in row-major order.
    ///
    /// # Panics
    ///
    /// If the range exceeds the elements, or the target has another length.
    pub(crate) fn expand_elements(&self, elements: Range<usize>, target: &mut [f32]) {
        assert_eq!(target.len(), elements.len(), "{elements:?}");
        if matches!(self.decode, Decode::Plain) && self.mask.is_none() {
            self.codes.read(elements, target);
        } else if let Decode::Nested(nested) = &self.decode {
            nested.expand(self.columns(), elements, target);
        } else if !target.is_empty() {
            let columns = self.columns();
            let (mut row, mut column) = (elements.start / columns, elements.start % columns);
            for to in target.iter_mut() {
                *to = self.element(row, column);
                column += 1;
                if column == columns {
                    (row, column) = (row + 1, 0);
                }
            }
        }
        if self.rounded {
            round_floats(self.dtype, target);
        }
    }

    fn element(&self, row: usize, column: usize) -> f32 {
        let (coded, columns) = match &self.decode {
            Decode::Table(table) if table.vector != 1 => table.coded(&self.shape, row, column),
            _ => (CodeIndex { row, column, element: 0 }, self.columns()),
        };
        let place = coded.row * columns + coded.column;
        let index = match &self.mask {
            None => place,
            Some(mask) => match mask.rank(place) {
                Some(rank) => rank,
                None => return 0.0,
            },
        };
        match &self.decode {
            Decode::Plain => self.codes.at(index),
            Decode::Affine { blocks, scales, shifts } => {
                let block = blocks.at(coded.row, coded.column);
                let shift = shifts.as_ref().map_or(0.0, |shifts| shifts.at(block));
                scales.at(block) * (self.codes.at(index) - shift)
            }
            Decode::Table(table) => {
                let block = table.blocks.at(coded.row, coded.column);
                let entry = block * table.length + usize::from(self.codes.code(index));
                table.entries.at(entry * table.vector + coded.element)
            }
            // Elements of nested weights are expanded in ranges.
            Decode::Nested(_) => f32::NAN,
        }
    }

    /// Returns true unless the elements are stored as plain floats.
    pub(crate) fn is_compressed(&self) -> bool {
        self.mask.is_some() || !matches!(self.decode, Decode::Plain) || !self.codes.dtype.is_float()
    }

    /// Returns true if fp16 represents all elements exactly.
    pub(crate) fn fits_fp16(&self) -> bool {
        let of = match &self.decode {
            Decode::Plain => &self.codes,
            Decode::Table(table) => &table.entries,
            Decode::Affine { .. } | Decode::Nested(_) => return false,
        };
        of.dtype == DType::Fp16
    }

    /// The integers of a matrix with one scale and zero point per row, or per column. `None` for
    /// other weights, and if the integers do not fit a byte.
    pub(crate) fn integers(&self, along_rows: bool) -> Option<Integers> {
        let Decode::Affine { blocks, scales, shifts } = &self.decode else { return None };
        if self.mask.is_some() || self.rounded || !self.codes.dtype.is_integer() {
            return None;
        }
        let (rows, columns) = (self.rows(), self.columns());
        let outputs = if along_rows { rows } else { columns };
        let block = |output: usize, input: usize| match along_rows {
            true => blocks.at(output, input),
            false => blocks.at(input, output),
        };
        // Unsigned bytes and their zero points are stored minus 128.
        let lower = if self.codes.dtype == DType::UInt8 { 128 } else { 0 };
        let (mut all_scales, mut zeros) = (Vec::new(), Vec::new());
        for output in 0..outputs {
            let first = block(output, 0);
            let inputs = if along_rows { columns } else { rows };
            if !blocks.is_whole(along_rows) && (0..inputs).any(|at| block(output, at) != first) {
                return None;
            }
            let shift = shifts.as_ref().map_or(0.0, |shifts| shifts.at(first));
            if shift.fract() != 0.0 || shift.abs() > 255.0 {
                return None;
            }
            all_scales.push(scales.at(first));
            zeros.push(shift as i32 - lower);
        }
        let codes = (0..self.codes.count).map(|at| (self.codes.at(at) as i32 - lower) as i8);
        Some(Integers { codes: codes.collect(), scales: all_scales, zeros })
    }

    /// The weights for kernels that read the compressed form. The rows of the matrix are the
    /// indices of the first axis, or of the first axis larger than 1. `None` if no kernel supports
    /// the form.
    pub(crate) fn stored(&self, rows: usize) -> Option<QuantizedMatrix> {
        if self.mask.is_some() || !self.dtype.is_float() {
            return None;
        }
        let (data, dtype) = (self.codes.data.clone(), self.codes.dtype);
        let columns = self.codes.count.checked_div(rows)?;
        let ones = self.shape.iter().take_while(|&&extent| extent == 1).count();
        let ones = ones.min(self.shape.len().saturating_sub(1));
        if self.shape.get(ones).copied().unwrap_or(1) != rows {
            return None;
        }
        let shape_of = |blocks: &Blocks| {
            let (shape, blocks) = (&self.shape[ones..], &blocks.shape[ones..]);
            Blocks::new(shape, blocks)?.of_matrix(columns)
        };
        match &self.decode {
            Decode::Plain => QuantizedMatrix::float(data, dtype, rows, columns),
            // These kernels do not round intermediate values.
            _ if self.rounded => None,
            Decode::Affine { blocks, scales, shifts } => {
                let shape = shape_of(blocks)?;
                let numbers = |numbers: &Numbers| stored::Blocks {
                    data: numbers.data.clone(),
                    dtype: numbers.dtype,
                    shape,
                };
                let shifts = shifts.as_ref().map(numbers);
                let scales = numbers(scales);
                QuantizedMatrix::affine(data, dtype, rows, columns, &scales, shifts.as_ref())
            }
            Decode::Table(table) if table.vector == 1 => {
                let shape = shape_of(&table.blocks)?;
                let (entries, of) = (&table.entries.data, table.entries.dtype);
                QuantizedMatrix::palette(data, dtype, rows, columns, entries, of, shape)
            }
            Decode::Table(_) => None,
            Decode::Nested(_) => self.nested_matrix(rows, ones),
        }
    }
}

impl Table {
    /// Position of an element's code, and the number of columns of the codes.
    fn coded(&self, shape: &[usize], row: usize, column: usize) -> (CodeIndex, usize) {
        let columns: usize = shape[1..].iter().product();
        if self.axis == 0 {
            let (row, element) = (row / self.vector, row % self.vector);
            return (CodeIndex { row, column, element }, columns);
        }
        let inner: usize = shape[self.axis + 1..].iter().product();
        let (outer, at) = (column / inner, column % inner);
        let (outer, element) = (outer / self.vector, outer % self.vector);
        (CodeIndex { row, column: outer * inner + at, element }, columns / self.vector)
    }
}
