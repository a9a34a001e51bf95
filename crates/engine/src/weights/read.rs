//! Recognizes compressed weights in the operations of a program.

use std::sync::Arc;

use coremill_kernels::Numerics;
use coremill_mil::ir::{Binding, Constant, Definition, Function, Op, Type, ValueId};
use coremill_mil::ops::OpKind;
use coremill_tensor::{Buffer, DType};

use super::nested::NestedWeights;
use super::parts::{Blocks, Mask, Numbers};
use super::{Decode, Table, Weights};

/// Maximum depth of nested operations. A 5-bit tensor of a GGUF file has depth 4.
const MAX_DEPTH: usize = 6;

impl Weights {
    /// The weights of a `const` or of a supported chain of `constexpr_` operations. Returns `None`
    /// for all other values, including invalid ones; the reference kernels handle these.
    pub(crate) fn of(function: &Function, value: ValueId, numerics: Numerics) -> Option<Weights> {
        Reader { function, numerics }.value(value, MAX_DEPTH)
    }
}

struct Reader<'f> {
    function: &'f Function,
    numerics: Numerics,
}

/// The value of a parameter.
#[derive(Clone, Copy)]
enum Operand<'f> {
    Stated(&'f Constant),
    Computed(ValueId),
}

/// A tensor of which only some elements are stored.
struct Sparse {
    mask: Mask,
    codes: Numbers,
    decode: Decode,
    shape: Vec<usize>,
    dtype: DType,
}

impl<'f> Reader<'f> {
    fn value(&self, value: ValueId, depth: usize) -> Option<Weights> {
        let depth = depth.checked_sub(1)?;
        let (op, 0) = self.definition(value)? else { return None };
        let weights = match op.kind()? {
            OpKind::Const => return self.stated(op.attributes.get("val")?),
            OpKind::ConstexprCast => self.cast(op)?,
            OpKind::ConstexprAffineDequantize => {
                let data = self.plain(op, "quantized_data", depth)?;
                let shift = self.plain(op, "zero_point", depth)?;
                self.affine_dequantize(op, data, Some(shift), depth)?
            }
            // Only of constants.
            OpKind::Dequantize => {
                let data = self.plain(op, "input", depth)?;
                let shift = match self.operand(op, "zero_point") {
                    Some(_) => Some(self.plain(op, "zero_point", depth)?),
                    None => None,
                };
                self.affine_dequantize(op, data, shift, depth)?
            }
            OpKind::ConstexprBlockwiseShiftScale => self.blockwise(op, depth)?,
            OpKind::ConstexprLutToDense => self.lut_to_dense(op, depth)?,
            OpKind::ConstexprSparseToDense => self.sparse_to_dense(op, depth)?,
            _ => return None,
        };
        Some(Weights { rounded: self.numerics.rounds(), ..weights })
    }

    fn definition(&self, value: ValueId) -> Option<(&'f Op, u32)> {
        match self.function.value(value).definition {
            Definition::Output(op, index) => Some((self.function.op(op), index)),
            Definition::Input(..) => None,
        }
    }

    /// The value of a parameter. Older operations store it as an attribute.
    fn operand(&self, op: &'f Op, name: &str) -> Option<Operand<'f>> {
        match op.binding(name) {
            Some(Binding::Literal(constant)) => Some(Operand::Stated(constant)),
            Some(Binding::Value(value)) => match self.function.constant(*value) {
                Some(constant) => Some(Operand::Stated(constant)),
                None => Some(Operand::Computed(*value)),
            },
            None => op.attributes.get(name).map(Operand::Stated),
        }
    }

    fn constant(&self, op: &'f Op, name: &str) -> Option<&'f Constant> {
        match self.operand(op, name)? {
            Operand::Stated(constant) => Some(constant),
            Operand::Computed(_) => None,
        }
    }

    /// The weights bound to a parameter.
    fn weights(&self, op: &'f Op, name: &str, depth: usize) -> Option<Weights> {
        match self.operand(op, name)? {
            Operand::Stated(constant) => self.stated(constant),
            Operand::Computed(value) => self.value(value, depth),
        }
    }

    /// The weights of an optional parameter. `Some(None)` if it is unbound.
    fn optional(&self, op: &'f Op, name: &str, depth: usize) -> Option<Option<Weights>> {
        match self.operand(op, name) {
            None => Some(None),
            Some(_) => self.weights(op, name, depth).map(Some),
        }
    }

    fn stated(&self, constant: &Constant) -> Option<Weights> {
        let (codes, shape) = numbers(constant)?;
        let (dtype, decode) = (codes.dtype, Decode::Plain);
        Some(Weights { dtype, shape, codes, mask: None, decode, rounded: false })
    }

    fn int(&self, op: &'f Op, name: &str) -> Option<i32> {
        let constant = self.constant(op, name)?;
        let bytes = constant.elements()?.as_bytes();
        let int32 = constant.tensor_type()?.dtype == DType::Int32;
        bytes.try_into().ok().filter(|_| int32).map(i32::from_le_bytes)
    }

    fn axis(&self, op: &'f Op, name: &str, rank: usize) -> Option<usize> {
        let axis = i64::from(self.int(op, name)?);
        let axis = if axis < 0 { axis + rank as i64 } else { axis };
        usize::try_from(axis).ok().filter(|&axis| axis < rank)
    }

    fn cast(&self, op: &'f Op) -> Option<Weights> {
        let source = self.stated(self.constant(op, "source_val")?)?;
        Some(Weights { dtype: self.declared(op, 0)?.0, ..source })
    }

    /// The declared type of an output.
    fn declared(&self, op: &Op, index: usize) -> Option<(DType, Vec<usize>)> {
        let ty = &self.function.value(*op.outputs.get(index)?).ty;
        let tensor = Type::as_tensor(ty)?;
        Some((tensor.dtype, extents(&tensor.known_shape()?)?))
    }

    /// Computes `scale · (data - shift)`. Scale and shift are scalars, or vectors along an axis.
    fn affine_dequantize(
        &self,
        op: &'f Op,
        data: Weights,
        shift: Option<Weights>,
        depth: usize,
    ) -> Option<Weights> {
        let scale = self.plain(op, "scale", depth)?;
        let mut blocks = vec![1; data.shape.len()];
        let single = scale.shape.is_empty() && shift.as_ref().is_none_or(|it| it.shape.is_empty());
        let axis = match single {
            true => 0,
            false => self.axis(op, "axis", data.shape.len())?,
        };
        if !single {
            blocks[axis] = data.shape[axis];
        }
        let count = blocks.get(axis).copied().unwrap_or(1);
        // Repeat a scalar if the other parameter is a vector.
        let repeated = |weights: Weights| match weights.shape[..] {
            [] if count != 1 => Some(Numbers::of_floats(&vec![weights.codes.at(0); count])),
            [] => Some(weights.codes),
            [extent] if extent == count => Some(weights.codes),
            _ => None,
        };
        let blocks = Blocks::new(&data.shape, &blocks)?;
        let dtype = scale.dtype;
        let shifts = match shift {
            Some(shift) => Some(repeated(shift)?),
            None => None,
        };
        let decode = Decode::Affine { blocks, scales: repeated(scale)?, shifts };
        Some(Weights { dtype, decode, ..data })
    }

    /// Weights that are not compressed.
    fn plain(&self, op: &'f Op, name: &str, depth: usize) -> Option<Weights> {
        let weights = self.weights(op, name, depth)?;
        let plain = matches!(weights.decode, Decode::Plain) && weights.mask.is_none();
        plain.then_some(weights)
    }

    /// Decodes a small tensor that may be computed.
    fn few(&self, weights: Weights) -> Numbers {
        match (&weights.decode, &weights.mask) {
            (Decode::Plain, None) => weights.codes,
            _ => {
                let mut floats = vec![0.0; weights.rows() * weights.columns()];
                weights.expand_rows(0..weights.rows(), &mut floats);
                Numbers::of_floats(&floats)
            }
        }
    }

    fn blockwise(&self, op: &'f Op, depth: usize) -> Option<Weights> {
        let data = self.weights(op, "data", depth)?;
        let scales = self.weights(op, "scale", depth)?;
        let shifts = self.optional(op, "offset", depth)?;
        if shifts.as_ref().is_some_and(|shifts| shifts.shape != scales.shape) {
            return None;
        }
        let dtype = scales.dtype;
        let blocks = Blocks::new(&data.shape, &scales.shape)?;
        let stored = |weights: &Weights| matches!(weights.decode, Decode::Plain);
        let (is_stored, is_masked) = (stored(&data), data.mask.is_some());
        if is_masked && shifts.is_some() {
            // Elements that are not stored would not be zero.
            return None;
        }
        let number_of_blocks = blocks.shape.iter().product();
        let nests = match &data.decode {
            Decode::Plain => !stored(&scales) || shifts.as_ref().is_some_and(|it| !stored(it)),
            Decode::Table(table) if table.vector == 1 => {
                table.outgrows(number_of_blocks, count(&data.shape)?)
            }
            _ => true,
        };
        if nests && !is_masked && scales.mask.is_none() {
            let (shape, codes) = (data.shape.clone(), data.codes.clone());
            let decode = Decode::Nested(Arc::new(NestedWeights { data, blocks, scales, shifts }));
            return Some(Weights { dtype, shape, codes, mask: None, decode, rounded: false });
        }
        let shifts = shifts.map(|shifts| self.few(shifts));
        let affine = Decode::Affine { blocks, scales: self.few(scales), shifts };
        let decode = match &data.decode {
            _ if is_stored => affine,
            Decode::Table(table) if table.vector == 1 => {
                Decode::Table(table.scaled(&data.shape, &affine)?)
            }
            _ => return None,
        };
        Some(Weights { dtype, decode, ..data })
    }

    /// Scales and shifts of a tensor's blocks, and the type of the result.
    fn scales(&self, op: &'f Op, tensor: &[usize], depth: usize) -> Option<(DType, Decode)> {
        let scales = self.weights(op, "scale", depth)?;
        let shifts = self.optional(op, "offset", depth)?;
        if shifts.as_ref().is_some_and(|shifts| shifts.shape != scales.shape) {
            return None;
        }
        let (dtype, blocks) = (scales.dtype, Blocks::new(tensor, &scales.shape)?);
        let shifts = shifts.map(|shifts| self.few(shifts));
        Some((dtype, Decode::Affine { blocks, scales: self.few(scales), shifts }))
    }

    fn lut_to_dense(&self, op: &'f Op, depth: usize) -> Option<Weights> {
        let lut = self.weights(op, "lut", depth)?;
        let dtype = lut.dtype;
        let (codes, table, shape) = if self.operand(op, "shape").is_some() {
            let shape = self.stated_shape(op)?;
            let count = count(&shape)?;
            let bits = match lut.shape[..] {
                [2] => DType::UInt1,
                [4] => DType::UInt2,
                [16] => DType::UInt4,
                [64] => DType::UInt6,
                [256] => DType::UInt8,
                _ => return None,
            };
            let codes = Numbers::new(self.constant(op, "indices")?.elements()?, bits, count)?;
            let blocks = Blocks::new(&shape, &vec![1; shape.len()])?;
            let length = lut.shape[0];
            let entries = self.few(lut);
            (codes, Table { blocks, entries, length, vector: 1, axis: 0 }, shape)
        } else {
            let (codes, shape) = numbers(self.constant(op, "indices")?)?;
            let table = self.table(op, lut, &shape, codes.dtype)?;
            (codes, table, shape)
        };
        let shape = table.expanded(shape)?;
        Some(Weights {
            dtype,
            shape,
            codes,
            mask: None,
            decode: Decode::Table(table),
            rounded: false,
        })
    }

    /// The tables of an iOS18 operation.
    fn table(&self, op: &'f Op, lut: Weights, indices: &[usize], dtype: DType) -> Option<Table> {
        let rank = indices.len();
        if rank == 0 || lut.shape.len() != rank + 2 || dtype.is_signed_integer() {
            return None;
        }
        let blocks = Blocks::new(indices, &lut.shape[..rank])?;
        let (length, vector) = (lut.shape[rank], lut.shape[rank + 1]);
        let axis = match self.operand(op, "vector_axis") {
            Some(_) => self.axis(op, "vector_axis", rank)?,
            None if vector == 1 => rank - 1,
            None => return None,
        };
        let held = dtype.is_integer() && 1usize.checked_shl(dtype.bits()?) == Some(length);
        let entries = self.few(lut);
        (held && vector > 0).then_some(Table { blocks, entries, length, vector, axis })
    }

    fn stated_shape(&self, op: &'f Op) -> Option<Vec<usize>> {
        let constant = self.constant(op, "shape")?;
        let (words, rest) = constant.elements()?.as_bytes().as_chunks::<4>();
        let four = matches!(constant.tensor_type()?.dtype, DType::UInt32 | DType::Int32);
        let shape = words.iter().map(|&word| usize::try_from(u32::from_le_bytes(word)).ok());
        if four && rest.is_empty() { shape.collect() } else { None }
    }

    fn sparse_to_dense(&self, op: &'f Op, depth: usize) -> Option<Weights> {
        if let Operand::Computed(data) = self.operand(op, "nonzero_data")? {
            let (producer, 1) = self.definition(data)? else { return None };
            let sparse = self.sparse(producer, depth)?;
            let is_same = match self.operand(op, "mask")? {
                Operand::Computed(mask) => {
                    let (of_mask, index) = self.definition(mask)?;
                    std::ptr::eq(of_mask, producer) && index == 0
                }
                // coremltools repeats the mask unless the entries are vectors.
                Operand::Stated(mask) => {
                    tensor(mask)?.1 == sparse.shape && sparse.mask.has_bits(mask.elements()?)
                }
            };
            let Sparse { mask, codes, decode, shape, dtype } = sparse;
            let mask = Some(mask);
            let weights = Weights { dtype, shape, codes, mask, decode, rounded: false };
            return is_same.then_some(weights);
        }
        let (codes, _) = numbers(self.constant(op, "nonzero_data")?)?;
        let stated = self.constant(op, "mask")?;
        let shape = match self.operand(op, "shape") {
            Some(_) => self.stated_shape(op)?,
            None => tensor(stated)?.1,
        };
        let mask = Mask::new(stated.elements()?, count(&shape)?)?;
        let (dtype, decode) = (codes.dtype, Decode::Plain);
        (mask.set == codes.count).then_some(Weights {
            dtype,
            shape,
            codes,
            mask: Some(mask),
            decode,
            rounded: false,
        })
    }

    /// The result of an operation that returns a mask and the elements set in it.
    fn sparse(&self, op: &'f Op, depth: usize) -> Option<Sparse> {
        let depth = depth.checked_sub(1)?;
        let (mask, codes) = match op.kind()? {
            OpKind::ConstexprLutToSparse => ("indices_mask", "indices_nonzero_data"),
            OpKind::ConstexprSparseBlockwiseShiftScale => ("data_mask", "nonzero_data"),
            _ => return None,
        };
        let mask = self.constant(op, mask)?;
        let (DType::UInt1, shape) = tensor(mask)? else { return None };
        let mask = Mask::new(mask.elements()?, count(&shape)?)?;
        let (codes, _) = numbers(self.constant(op, codes)?)?;
        if mask.set != codes.count {
            return None;
        }
        let (dtype, decode, shape) = if op.kind()? == OpKind::ConstexprLutToSparse {
            let lut = self.weights(op, "lut", depth)?;
            let dtype = lut.dtype;
            let table = self.table(op, lut, &shape, codes.dtype)?;
            let shape = table.expanded(shape)?;
            (dtype, Decode::Table(table), shape)
        } else {
            let (dtype, decode) = self.scales(op, &shape, depth)?;
            (dtype, decode, shape)
        };
        Some(Sparse { mask, codes, decode, shape, dtype })
    }
}

impl Table {
    /// The shape of the looked-up tensor.
    fn expanded(&self, mut shape: Vec<usize>) -> Option<Vec<usize>> {
        if let Some(extent) = shape.get_mut(self.axis) {
            *extent = extent.checked_mul(self.vector)?;
        }
        count(&shape)?;
        Some(shape)
    }

    /// A table with scaled entries for each block. `None` if the blocks of scales and tables do not
    /// nest.
    fn scaled(&self, tensor: &[usize], affine: &Decode) -> Option<Table> {
        let Decode::Affine { blocks, scales, shifts } = affine else { return None };
        let finer = |(&left, &right): (&usize, &usize)| {
            let (less, more) = (left.min(right), left.max(right));
            (more.checked_rem(less) == Some(0)).then_some(more)
        };
        let shape: Vec<usize> =
            self.blocks.shape.iter().zip(&blocks.shape).map(finer).collect::<Option<_>>()?;
        // Both kinds of blocks are unions of the finer blocks.
        let tables = Blocks::new(&shape, &self.blocks.shape)?;
        let factors = Blocks::new(&shape, &blocks.shape)?;
        let columns: usize = shape[1..].iter().product();
        let entry_count = count(&shape)?.checked_mul(self.length)?;
        if entry_count > count(tensor)? {
            // The tables would be larger than the tensor.
            return None;
        }
        let mut entries = Vec::with_capacity(entry_count);
        for block in 0..shape.iter().product() {
            let (row, column) = (block / columns, block % columns);
            let (table, factor) = (tables.at(row, column), factors.at(row, column));
            let shift = shifts.as_ref().map_or(0.0, |shifts| shifts.at(factor));
            entries.extend((0..self.length).map(|entry| {
                scales.at(factor) * (self.entries.at(table * self.length + entry) - shift)
            }));
        }
        let blocks = Blocks::new(tensor, &shape)?;
        Some(Table { blocks, entries: Numbers::of_floats(&entries), ..self.clone() })
    }
}

/// The type and shape of a constant tensor.
fn tensor(constant: &Constant) -> Option<(DType, Vec<usize>)> {
    let tensor = constant.tensor_type()?;
    Some((tensor.dtype, extents(&tensor.known_shape()?)?))
}

/// The numbers of a constant tensor, and its shape.
fn numbers(constant: &Constant) -> Option<(Numbers, Vec<usize>)> {
    let (dtype, shape) = tensor(constant)?;
    let data: &Buffer = constant.elements()?;
    Some((Numbers::new(data, dtype, count(&shape)?)?, shape))
}

fn extents(shape: &[u64]) -> Option<Vec<usize>> {
    shape.iter().map(|&extent| usize::try_from(extent).ok()).collect()
}

/// Number of elements of a shape, `None` if any product of sizes overflows.
fn count(shape: &[usize]) -> Option<usize> {
    let all = shape.iter().try_fold(1usize, |count, &extent| count.checked_mul(extent.max(1)))?;
    Some(if shape.contains(&0) { 0 } else { all })
}
