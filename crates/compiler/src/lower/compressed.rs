//! Keeps weights that are compressed in the program compressed in the package.
//!
//! ```text
//! codes, scales, zero points  ─▶  constexpr_affine_dequantize        (iOS16: 8 bits, a scale for all or each channel)
//!                             ─▶  constexpr_blockwise_shift_scale    (iOS18: 4 and 8 bits, a scale for each block)
//! codes, tables               ─▶  constexpr_lut_to_dense             (iOS16: one table; iOS18: one for each block)
//! ```
//!
//! Operations that only move such a weight, such as a transposition, are applied to its codes and parameters, so
//! that layers still see a constant.

use coremill_mil::infer::{KnownElements, normalize_axis};
use coremill_mil::ir::{Binding, Constant, Op, Opset, ValueId};
use coremill_mil::ops::OpKind;
use coremill_tensor::{Buffer, DType, LazyTensor};

use super::builder::{Builder, bound, operation};
use super::value::{CompressedTensor, Meaning};
use crate::error::{LoweringError, Result, refuse};

/// Bytes per table entry or scale at the usual precision.
const FLOAT_BYTES: u64 = 2;

impl CompressedTensor {
    fn shape(&self) -> &[u64] {
        self.codes.shape()
    }

    /// Number of blocks along each axis.
    fn counts(&self) -> &[u64] {
        let rank = self.shape().len();
        match &self.meaning {
            Meaning::Scaled { scale, .. } => scale.shape(),
            Meaning::Table { tables } => &tables.shape()[..rank],
        }
    }

    /// Axes with more than one block.
    fn divided(&self) -> Vec<usize> {
        let counts = self.counts();
        (0..counts.len()).filter(|&axis| counts[axis] != 1).collect()
    }

    /// The axis with one scale per index, if no other axis is divided: `Some(None)` for a single scale.
    fn channels(&self) -> Option<Option<usize>> {
        match self.divided().as_slice() {
            [] => Some(None),
            &[axis] if self.counts()[axis] == self.shape()[axis] => Some(Some(axis)),
            _ => None,
        }
    }

    /// The smallest type that holds all codes; `None` above 8 bits.
    fn dtype(&self) -> Option<DType> {
        let holds = |dtype: &DType| {
            let (low, high) = dtype.integer_range().unwrap_or((0, -1));
            low <= i128::from(self.range.0) && i128::from(self.range.1) <= high
        };
        [DType::Int4, DType::UInt4, DType::Int8, DType::UInt8].into_iter().find(holds)
    }

    /// The smallest index type that can address all codes.
    fn index_dtype(&self) -> Option<DType> {
        let codes = self.range.1.checked_sub(self.range.0)?.checked_add(1)?;
        let types =
            [DType::UInt1, DType::UInt2, DType::UInt3, DType::UInt4, DType::UInt6, DType::UInt8];
        types.into_iter().find(|dtype| codes <= 1 << dtype.bits().unwrap_or(0))
    }

    /// The oldest release that can store the weight.
    fn needs(&self) -> Option<Opset> {
        Some(match &self.meaning {
            Meaning::Scaled { .. }
                if self.dtype()?.bits() == Some(8) && self.channels().is_some() =>
            {
                Opset::Ios16
            }
            Meaning::Table { .. }
                if self.divided().is_empty() && self.index_dtype()? != DType::UInt3 =>
            {
                Opset::Ios16
            }
            _ => Opset::Ios18,
        })
    }

    /// Description of the format in an error for an older target.
    fn description(&self) -> String {
        let codes = (self.range.1 - self.range.0).unsigned_abs();
        let bits = (u64::BITS - codes.leading_zeros()).max(1);
        let what = match &self.meaning {
            Meaning::Scaled { .. } => "scale",
            Meaning::Table { .. } => "table",
        };
        let shared = match self.channels() {
            Some(None) => "",
            Some(Some(_)) => " for each channel",
            None => " for each block",
        };
        format!("a {bits}-bit weight with one {what}{shared}")
    }

    /// Permutes the axes of the weight.
    fn permuted(self, order: &[usize]) -> Option<CompressedTensor> {
        let permute = |recipe: LazyTensor, kept: usize| {
            let rest = order.len()..order.len() + kept;
            let order: Vec<usize> = order.iter().copied().chain(rest).collect();
            recipe.permute(&order).ok()
        };
        let meaning = match self.meaning {
            Meaning::Scaled { scale, offset } => Meaning::Scaled {
                scale: permute(scale, 0)?,
                offset: moved(offset, |offset| permute(offset, 0))?,
            },
            Meaning::Table { tables } => Meaning::Table { tables: permute(tables, 2)? },
        };
        Some(CompressedTensor { codes: permute(self.codes, 0)?, meaning, ..self })
    }

    /// Inserts or removes unit axes.
    fn reshaped(self, shape: &[u64]) -> Option<CompressedTensor> {
        let long = |shape: &[u64]| shape.iter().copied().filter(|&extent| extent != 1).collect();
        let (before, after): (Vec<u64>, Vec<u64>) = (long(self.shape()), long(shape));
        if before != after {
            return None;
        }
        // Axes of size greater than 1 keep their order.
        let mut counts = Vec::with_capacity(shape.len());
        let mut old = self.shape().iter().zip(self.counts()).filter(|(extent, _)| **extent != 1);
        for &extent in shape {
            counts.push(if extent == 1 { 1 } else { *old.next()?.1 });
        }
        let meaning = match self.meaning {
            Meaning::Scaled { scale, offset } => Meaning::Scaled {
                scale: scale.reshape(&counts).ok()?,
                offset: moved(offset, |offset| offset.reshape(&counts).ok())?,
            },
            Meaning::Table { tables } => {
                counts.extend(&tables.shape()[tables.shape().len() - 2..]);
                Meaning::Table { tables: tables.reshape(&counts).ok()? }
            }
        };
        Some(CompressedTensor { codes: self.codes.reshape(shape).ok()?, meaning, ..self })
    }

    /// Converts to table indices if that takes less space than 4- or 8-bit integers. Devices only support tables
    /// that differ along at most one axis.
    fn tabled(&self) -> Option<CompressedTensor> {
        let Meaning::Scaled { scale, offset } = &self.meaning else { return None };
        let bits = u64::from(self.index_dtype()?.bits()?);
        let stored = u64::from(self.dtype()?.bits()?);
        let blocks = scale.count();
        let offsets = offset.as_ref().map_or(0, |_| stored * blocks);
        let table = self.codes.count() * bits + blocks * ((FLOAT_BYTES * 8) << bits);
        let integers = self.codes.count() * stored + blocks * FLOAT_BYTES * 8 + offsets;
        if bits >= stored || table >= integers || self.divided().len() > 1 {
            return None;
        }
        let scales = numbers(scale, DType::Fp32, f32::from_le_bytes)?;
        let offsets = match offset {
            Some(offset) => {
                let floats = offset.clone().cast(DType::Fp32).ok()?;
                numbers(&floats, DType::Fp32, f32::from_le_bytes)?
            }
            None => vec![0.0; scales.len()],
        };
        let codes = self.range.0..self.range.0 + (1 << bits);
        let mut entries = Vec::with_capacity(scales.len() << bits);
        for (scale, offset) in scales.iter().zip(&offsets) {
            // Entries beyond the last code are never used.
            let code = |code: i64| code.min(self.range.1) as f32;
            entries.extend(codes.clone().map(|at| scale * (code(at) - offset)));
        }
        let bytes: Vec<u8> = entries.iter().flat_map(|entry| entry.to_le_bytes()).collect();
        let mut shape = scale.shape().to_vec();
        shape.extend([1 << bits, 1]);
        let tables = LazyTensor::new(Buffer::from(bytes), DType::Fp32, &shape).ok()?;
        Some(CompressedTensor { meaning: Meaning::Table { tables }, ..self.clone() })
    }
}

/// Applies a transformation to an optional recipe; `None` if it fails.
fn moved(
    recipe: Option<LazyTensor>,
    to: impl FnOnce(LazyTensor) -> Option<LazyTensor>,
) -> Option<Option<LazyTensor>> {
    match recipe {
        Some(recipe) => to(recipe).map(Some),
        None => Some(None),
    }
}

/// Elements of a recipe with a 4-byte type.
fn numbers<T>(recipe: &LazyTensor, dtype: DType, read: fn([u8; 4]) -> T) -> Option<Vec<T>> {
    if recipe.dtype() != dtype {
        return None;
    }
    let buffer = recipe.to_buffer();
    let mut numbers = Vec::with_capacity(recipe.count() as usize);
    let read = buffer.for_each_window(0..buffer.len(), 1 << 16, &mut |bytes| {
        let (elements, _) = bytes.as_chunks::<4>();
        numbers.extend(elements.iter().map(|&element| read(element)));
        Ok(())
    });
    read.ok().map(|()| numbers)
}

impl Builder {
    /// The elements of a constant as a recipe that is evaluated when the package is written.
    pub(crate) fn recipe(&self, value: ValueId) -> Option<LazyTensor> {
        self.known(value)?.recipe()
    }

    /// Stores a weight in the smallest format of the target. Fails if only newer releases support it; `None` if no
    /// release does.
    pub(crate) fn store_compressed(&mut self, weight: CompressedTensor) -> Result<Option<ValueId>> {
        let Some(needed) = weight.needs() else { return Ok(None) };
        if needed > self.opset() {
            return Err(LoweringError::needs(&weight.description(), needed, self.opset()));
        }
        let tabled = if self.opset() >= Opset::Ios18 { weight.tabled() } else { None };
        let stored = tabled.as_ref().unwrap_or(&weight);
        let op = match &stored.meaning {
            Meaning::Table { tables } if self.opset() < Opset::Ios18 => one_table(stored, tables)?,
            Meaning::Table { tables } => lookup(stored, tables)?,
            Meaning::Scaled { scale, offset } => match stored.channels() {
                Some(channels) if self.opset() < Opset::Ios18 => {
                    affine(stored, scale, offset.as_ref(), channels)?
                }
                _ => blockwise(stored, scale, offset.as_ref())?,
            },
        };
        let values = self.append(op)?;
        let Some(&value) = values.first() else { return Ok(None) };
        self.compressed.insert(value, weight);
        Ok(Some(value))
    }

    /// Applies an operation that only moves elements to a compressed weight.
    pub(super) fn moved_compressed(
        &mut self,
        op: &Op,
        shape: Option<Vec<u64>>,
    ) -> Result<Option<ValueId>> {
        let moves = matches!(
            op.kind(),
            Some(OpKind::Transpose | OpKind::Reshape | OpKind::ExpandDims | OpKind::Squeeze)
        );
        let (true, Some(Binding::Value(x)), Some(shape)) = (moves, op.binding("x"), shape) else {
            return Ok(None);
        };
        let Some(weight) = self.compressed.get(x).cloned() else { return Ok(None) };
        let moved = if op.kind() == Some(OpKind::Transpose) {
            let order = op.binding("perm").and_then(|perm| self.function.bound_constant(perm));
            let order =
                order.and_then(KnownElements::from_constant).and_then(|folded| folded.ints());
            let rank = shape.len();
            let order = order.and_then(|order| {
                order.into_iter().map(|axis| normalize_axis(axis, rank).ok()).collect()
            });
            order.and_then(|order: Vec<_>| weight.permuted(&order))
        } else {
            weight.reshaped(&shape)
        };
        match moved {
            Some(moved) => self.store_compressed(moved),
            None => Ok(None),
        }
    }
}

/// Packs codes to their storage type.
fn packed(weight: &CompressedTensor, dtype: DType, shift: i64) -> Result<Buffer> {
    let packed = weight.codes.clone().to_packed(dtype, shift as i32);
    packed.map_err(|error| LoweringError::new(format!("the codes of a weight: {error}")))
}

fn misfit(error: &coremill_tensor::RecipeError) -> LoweringError {
    LoweringError::new(format!("cannot dequantize a weight: {error}"))
}

/// Zero points as integers of a type, or as floats if the type cannot hold them; `None` if all are zero.
fn offsets(offset: Option<&LazyTensor>, dtype: DType) -> Result<Option<Constant>> {
    let Some(offset) = offset else { return Ok(None) };
    if offset.dtype() != DType::Int32 {
        return Ok(Some(Constant::of_recipe(offset)));
    }
    let Some(all) = numbers(offset, DType::Int32, i32::from_le_bytes) else {
        refuse!("the zero points of a weight cannot be read");
    };
    if all.iter().all(|&zero| zero == 0) {
        return Ok(None);
    }
    Ok(Some(match offset.clone().to_packed(dtype, 0) {
        Ok(packed) => Constant::by_size(dtype, offset.shape(), packed),
        Err(_) => {
            Constant::of_recipe(&offset.clone().cast(DType::Fp32).map_err(|error| misfit(&error))?)
        }
    }))
}

fn affine(
    weight: &CompressedTensor,
    scale: &LazyTensor,
    offset: Option<&LazyTensor>,
    channels: Option<usize>,
) -> Result<Op> {
    let Some(dtype) = weight.dtype() else {
        refuse!("the codes of a weight require more than 8 bits")
    };
    let count: Vec<u64> = channels.map(|axis| weight.shape()[axis]).into_iter().collect();
    let flat = |recipe: &LazyTensor| recipe.clone().reshape(&count).map_err(|error| misfit(&error));
    let zero_point = match offset.map(flat).transpose()? {
        Some(offset) => offsets(Some(&offset), dtype)?,
        None => None,
    };
    let zero_point = zero_point.unwrap_or_else(|| Constant::by_size(dtype, &[], vec![0_u8]));
    let quantized_data = Constant::by_size(dtype, weight.shape(), packed(weight, dtype, 0)?);
    let scale = Constant::of_recipe(&flat(scale)?);
    let axis = channels.unwrap_or(0);
    let arguments = [bound!(quantized_data), bound!(zero_point), bound!(scale), bound!(axis)];
    Ok(operation(OpKind::ConstexprAffineDequantize, arguments))
}

fn blockwise(
    weight: &CompressedTensor,
    scale: &LazyTensor,
    offset: Option<&LazyTensor>,
) -> Result<Op> {
    let Some(dtype) = weight.dtype() else {
        refuse!("the codes of a weight require more than 8 bits")
    };
    let data = Constant::by_size(dtype, weight.shape(), packed(weight, dtype, 0)?);
    let scale = Constant::of_recipe(scale);
    let offset = offsets(offset, dtype)?;
    let arguments = [bound!(data), bound!(scale), bound!(offset)];
    Ok(operation(OpKind::ConstexprBlockwiseShiftScale, arguments))
}

/// Pads tables to one entry for each possible index.
fn filled(tables: &LazyTensor, entries: u64) -> Result<LazyTensor> {
    let axis = tables.shape().len() - 2;
    let found = tables.shape()[axis];
    if found >= entries {
        return Ok(tables.clone());
    }
    let mut shape = tables.shape().to_vec();
    shape[axis] = entries - found;
    let zeros = LazyTensor::repeated(&[0; 4], DType::Fp32, &shape);
    let filled = zeros.and_then(|zeros| LazyTensor::concat(vec![tables.clone(), zeros], axis));
    filled.map_err(|error| misfit(&error))
}

fn lookup(weight: &CompressedTensor, tables: &LazyTensor) -> Result<Op> {
    let Some(dtype) = weight.index_dtype() else { refuse!("a table has more than 256 entries") };
    let tables = filled(tables, 1 << dtype.bits().unwrap_or(8))?;
    let indices = packed(weight, dtype, -weight.range.0)?;
    let indices = Constant::by_size(dtype, weight.shape(), indices);
    let lut = Constant::of_recipe(&tables);
    Ok(operation(OpKind::ConstexprLutToDense, [bound!(indices), bound!(lut)]))
}

/// Format before iOS 18: a byte vector of packed indices and a separate shape.
fn one_table(weight: &CompressedTensor, tables: &LazyTensor) -> Result<Op> {
    let Some(dtype) = weight.index_dtype() else { refuse!("a table has more than 256 entries") };
    let entries = 1 << dtype.bits().unwrap_or(8);
    let table = filled(tables, entries)?.reshape(&[entries]).map_err(|error| misfit(&error))?;
    let indices = packed(weight, dtype, -weight.range.0)?;
    let indices = Constant::by_size(DType::UInt8, &[indices.len() as u64], indices);
    let mut extents = Vec::with_capacity(weight.shape().len() * 4);
    for &extent in weight.shape() {
        let Ok(extent) = u32::try_from(extent) else { refuse!("a weight has {extent} rows") };
        extents.extend(extent.to_le_bytes());
    }
    let shape = Constant::bytes(DType::UInt32, &[weight.shape().len() as u64], extents);
    let lut = Constant::of_recipe(&table);
    Ok(operation(OpKind::ConstexprLutToDense, [bound!(indices), bound!(lut), bound!(shape)]))
}
