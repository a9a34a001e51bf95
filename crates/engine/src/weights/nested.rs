//! Compressed weights whose data, scales or shifts are compressed themselves, for instance in GGUF schemes.
//!
//! ```text
//! steps = constexpr_lut_to_dense(indices = …, lut = …)
//! scales = constexpr_blockwise_shift_scale(data = steps, scale = units)
//! products = constexpr_blockwise_shift_scale(data = codes, scale = scales)
//! weights = constexpr_blockwise_shift_scale(data = products, scale = ones, offset = offsets)
//! ```
//!
//! Kernels read such a chain as `value(code) · scale + shift`, see [`QuantizedMatrix::nested`].

use std::ops::Range;

use coremill_kernels::stored::{self, ElementValues, NestedBlocks, QuantizedMatrix};
use coremill_tensor::DType;

use super::parts::{Blocks, Numbers};
use super::{Decode, Table, Weights};

/// `scale · (data - shift)`, with the scale and shift of the block.
#[derive(Clone, Debug)]
pub(super) struct NestedWeights {
    pub(super) data: Weights,
    pub(super) blocks: Blocks,
    /// A scale for each block, in any form.
    pub(super) scales: Weights,
    pub(super) shifts: Option<Weights>,
}

impl NestedWeights {
    /// Expands a range of elements in row-major order, without the rounding of the result.
    pub(super) fn expand(&self, columns: usize, elements: Range<usize>, target: &mut [f32]) {
        self.data.expand_elements(elements.clone(), target);
        if target.is_empty() {
            return;
        }
        let (mut row, mut column) = (elements.start / columns, elements.start % columns);
        let mut current = None;
        for to in target.iter_mut() {
            let block = self.blocks.at(row, column);
            let (scale, shift) = match current {
                Some((of, scale, shift)) if of == block => (scale, shift),
                _ => {
                    let scale = self.scales.at(block);
                    let shift = self.shifts.as_ref().map_or(0.0, |shifts| shifts.at(block));
                    current = Some((block, scale, shift));
                    (scale, shift)
                }
            };
            *to = scale * (*to - shift);
            column += 1;
            if column == columns {
                (row, column) = (row + 1, 0);
            }
        }
    }
}

/// A scale or a shift of a layer.
enum Factor<'w> {
    /// The same number for all elements.
    Uniform(f32),
    /// One of two numbers for each element.
    Bits { bits: &'w Numbers, numbers: [f32; 2] },
    /// A number for each block.
    Blocks(NestedBlocks),
}

/// `scale · (x - shift)`.
struct Layer<'w> {
    scale: Factor<'w>,
    shift: Option<Factor<'w>>,
}

/// `factor · value(code) · scale + shift`, composed of layers from the innermost on.
struct Chain {
    values: ElementValues,
    dtype: DType,
    scale: Option<NestedBlocks>,
    shift: Option<NestedBlocks>,
}

impl Weights {
    /// The element at an index in row-major order.
    fn at(&self, index: usize) -> f32 {
        let mut element = [0.0];
        self.expand_elements(index..index + 1, &mut element);
        element[0]
    }

    /// The matrix for kernels of a chain of layers. `ones` is the number of leading axes that are not part of the
    /// matrix.
    pub(super) fn nested_matrix(&self, rows: usize, ones: usize) -> Option<QuantizedMatrix> {
        let columns = self.codes.count.checked_div(rows)?;
        let matrix = Axes { shape: self.shape.get(ones..)?, ones, columns };
        let mut layers = Vec::new();
        let mut inner = self;
        let values = loop {
            if inner.mask.is_some() || inner.rounded || inner.shape != self.shape {
                return None;
            }
            match &inner.decode {
                Decode::Nested(nested) => {
                    let factor = |weights| matrix.factor(weights, &nested.blocks);
                    let shift = match &nested.shifts {
                        Some(shifts) => Some(factor(shifts)?),
                        None => None,
                    };
                    layers.push(Layer { scale: factor(&nested.scales)?, shift });
                    inner = &nested.data;
                }
                Decode::Affine { blocks, scales, shifts } => {
                    let shift = match shifts {
                        Some(shifts) => Some(matrix.stored(shifts, blocks)?),
                        None => None,
                    };
                    layers.push(Layer { scale: matrix.stored(scales, blocks)?, shift });
                    break ElementValues::Integers;
                }
                Decode::Table(table) => break ElementValues::Palette(table.single()?),
                Decode::Plain if inner.codes.dtype.is_integer() => break ElementValues::Integers,
                Decode::Plain => return None,
            }
        };
        let codes = &inner.codes;
        let mut chain = Chain { values, dtype: codes.dtype, scale: None, shift: None };
        for layer in layers.into_iter().rev() {
            if let Some(shift) = layer.shift {
                chain.subtract(shift)?;
            }
            chain.multiply(layer.scale)?;
        }
        let Chain { values, dtype, scale, shift } = chain;
        let data = codes.data.clone();
        QuantizedMatrix::nested(data, dtype, rows, columns, &values, &scale?, shift.as_ref())
    }
}

impl Chain {
    fn subtract(&mut self, shift: Factor<'_>) -> Option<()> {
        match shift {
            Factor::Uniform(0.0) => Some(()),
            Factor::Uniform(number) if self.scale.is_none() => match &mut self.values {
                ElementValues::Palette(entries) => {
                    entries.iter_mut().for_each(|entry| *entry -= number);
                    Some(())
                }
                ElementValues::Split { shift, .. } if *shift == 0.0 => {
                    *shift = number;
                    Some(())
                }
                _ => None,
            },
            Factor::Blocks(blocks) if self.scale.is_some() && self.shift.is_none() => {
                self.shift = Some(NestedBlocks { factor: -blocks.factor, ..blocks });
                Some(())
            }
            _ => None,
        }
    }

    fn multiply(&mut self, scale: Factor<'_>) -> Option<()> {
        match scale {
            Factor::Uniform(number) => {
                let scaled = self.scale.as_mut()?;
                scaled.factor *= number;
                if let Some(shift) = &mut self.shift {
                    shift.factor *= number;
                }
            }
            Factor::Bits { bits, numbers } => {
                let ElementValues::Palette(entries) = &self.values else { return None };
                if self.scale.is_some() || self.dtype != DType::UInt4 {
                    return None;
                }
                let lower = entries.as_slice().try_into().ok()?;
                let (bits, upper) = (bits.data.clone(), numbers);
                self.values = ElementValues::Split { bits, lower, upper, shift: 0.0 };
            }
            Factor::Blocks(blocks) if self.scale.is_none() => self.scale = Some(blocks),
            Factor::Blocks(_) => return None,
        }
        Some(())
    }
}

/// The axes of a matrix.
struct Axes<'w> {
    shape: &'w [usize],
    /// Number of leading axes of the tensor that are not among them.
    ones: usize,
    columns: usize,
}

impl Axes<'_> {
    /// Number of blocks in both directions.
    fn blocks(&self, blocks: &Blocks) -> Option<[usize; 2]> {
        Blocks::new(self.shape, blocks.shape.get(self.ones..)?)?.of_matrix(self.columns)
    }

    fn stored<'w>(&self, numbers: &'w Numbers, blocks: &Blocks) -> Option<Factor<'w>> {
        if numbers.count == 1 {
            return Some(Factor::Uniform(numbers.at(0)));
        }
        Some(Factor::Blocks(NestedBlocks::plain(steps(numbers, self.blocks(blocks)?))))
    }

    /// The factor whose numbers, one for each block, are `weights`.
    fn factor<'w>(&self, weights: &'w Weights, blocks: &Blocks) -> Option<Factor<'w>> {
        if weights.mask.is_some() || weights.rounded {
            return None;
        }
        let units = |data: &'w Weights, of: &Blocks, scales: &'w Numbers| {
            let shape = self.blocks(blocks)?;
            let within = Axes { shape: data.shape.get(self.ones..)?, columns: shape[1], ..*self };
            let table = match &data.decode {
                Decode::Plain | Decode::Affine { .. } => None,
                Decode::Table(table) => Some(table.single()?),
                Decode::Nested(_) => return None,
            };
            let units = steps(scales, within.blocks(of)?);
            let steps = steps(&data.codes, shape);
            Some(Factor::Blocks(NestedBlocks { steps, table, units: Some(units), factor: 1.0 }))
        };
        match &weights.decode {
            Decode::Plain => self.stored(&weights.codes, blocks),
            Decode::Table(table) => {
                let entries = table.single()?;
                if entries.iter().all(|entry| entry == &entries[0]) {
                    return Some(Factor::Uniform(entries[0]));
                }
                if let [first, second] = entries[..] {
                    let each = weights.codes.count == self.shape.iter().product::<usize>();
                    let numbers = [first, second];
                    return each.then_some(Factor::Bits { bits: &weights.codes, numbers });
                }
                let steps = steps(&weights.codes, self.blocks(blocks)?);
                let (table, units) = (Some(entries), None);
                Some(Factor::Blocks(NestedBlocks { steps, table, units, factor: 1.0 }))
            }
            Decode::Affine { blocks: of, scales, shifts: None } => units(weights, of, scales),
            Decode::Affine { .. } => None,
            Decode::Nested(nested) => match (&nested.scales.decode, &nested.shifts) {
                (Decode::Plain, None) => units(&nested.data, &nested.blocks, &nested.scales.codes),
                _ => None,
            },
        }
    }
}

impl Table {
    /// The entries, if all elements share one table of scalars.
    fn single(&self) -> Option<Vec<f32>> {
        let is_single = self.vector == 1 && self.blocks.shape.iter().all(|&count| count == 1);
        is_single.then(|| (0..self.length).map(|entry| self.entries.at(entry)).collect())
    }

    /// Whether separate tables for each of `blocks` blocks would take much memory compared with `elements`.
    pub(super) fn outgrows(&self, blocks: usize, elements: usize) -> bool {
        let is_single = self.blocks.shape.iter().all(|&count| count == 1);
        is_single && blocks.saturating_mul(self.length) > elements / 16
    }
}

fn steps(numbers: &Numbers, shape: [usize; 2]) -> stored::Blocks {
    stored::Blocks { data: numbers.data.clone(), dtype: numbers.dtype, shape }
}
