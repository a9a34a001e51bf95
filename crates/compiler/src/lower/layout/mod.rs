//! Shapes of tensors: reshapes, permutations, repetitions, concatenations, reductions; and constant-filled tensors.

mod slice;

use coremill_mil::ir::{Definition, Dim};
use coremill_tensor::Buffer;

pub(crate) use self::slice::Range;
use super::builder::{int32, operation};
use super::int::scalar;
use crate::lower::prelude::*;

/// The axes of a reduction, and whether they are kept with size 1.
pub(crate) struct Axes {
    pub(crate) axes: Vec<usize>,
    pub(crate) keep: bool,
}

/// Axes as an argument.
pub(crate) fn places(axes: &[usize]) -> Vec<i32> {
    axes.iter().map(|&axis| axis as i32).collect()
}

/// Constants and constant-filled tensors.
impl Builder {
    /// Whether a value is a compile-time constant.
    pub(crate) fn is_constant(&self, value: ValueId) -> bool {
        self.known(value).is_some() || self.is_stored_compressed(value)
    }

    /// Whether a value is a weight that is decompressed on load.
    fn is_stored_compressed(&self, value: ValueId) -> bool {
        let Definition::Output(op, 0) = self.function.value(value).definition else { return false };
        self.function.op(op).kind().is_some_and(OpKind::is_constexpr)
    }

    /// A float constant.
    pub(crate) fn float_constant(&mut self, shape: &[u64], elements: &[f32]) -> ValueId {
        let bytes: Vec<u8> = elements.iter().flat_map(|element| element.to_le_bytes()).collect();
        self.constant(Constant::by_size(DType::Fp32, shape, Buffer::from(bytes)))
    }

    /// An integer constant.
    pub(crate) fn int_constant(&mut self, shape: &[u64], elements: &[i32]) -> ValueId {
        let bytes: Vec<u8> = elements.iter().flat_map(|element| element.to_le_bytes()).collect();
        self.constant(Constant::by_size(DType::Int32, shape, Buffer::from(bytes)))
    }

    /// A tensor of these sizes, filled with a constant.
    pub(crate) fn filled(&mut self, sizes: &[Int], value: Constant) -> ValueResult {
        if sizes.is_empty() {
            return Ok(self.constant(value));
        }
        if sizes.contains(&Int::Known(0)) {
            return self.empty(sizes, value.tensor_type().map_or(DType::Fp32, |ty| ty.dtype));
        }
        let shape = self.ints(sizes)?;
        let filled = emit!(self, OpKind::Fill, shape, value)?;
        self.note_dims(filled, sizes);
        Ok(filled)
    }

    /// A tensor of these sizes, filled with a number.
    pub(crate) fn full(&mut self, sizes: &[Int], dtype: DType, number: f64) -> ValueResult {
        self.filled(sizes, number_of(dtype, number)?)
    }

    /// A tensor of the same sizes as another, filled with a constant.
    pub(crate) fn filled_like(&mut self, x: ValueId, value: Constant) -> ValueResult {
        if let Some(shape) = self.fixed_shape(x) {
            let sizes: Vec<_> = shape.iter().map(|&extent| Int::Known(extent as i64)).collect();
            return self.filled(&sizes, value);
        }
        if self.opset() >= Opset::Ios16 {
            return emit!(self, OpKind::FillLike, ref_tensor = x, value);
        }
        let shape = emit!(self, OpKind::Shape, x)?;
        emit!(self, OpKind::Fill, shape, value)
    }

    /// An empty tensor. Core ML has none, but joining with it or writing it has no effect.
    pub(crate) fn empty(&mut self, dims: &[Int], dtype: DType) -> ValueResult {
        let known = |dim: &Int| dim.known().and_then(|extent| u64::try_from(extent).ok());
        let Some(shape) = dims.iter().map(known).collect::<Option<Vec<_>>>() else {
            refuse!("returns a tensor without elements, which Core ML does not support");
        };
        Ok(self.constant(Constant::bytes(dtype, &shape, Vec::new())))
    }

    /// A number as a scalar of the type of `like`.
    pub(crate) fn scalar_like(&self, like: ValueId, number: f64) -> Result<Arg> {
        Ok(number_of(self.dtype(like), number)?.into())
    }

    /// The integers from 0 to below `size`.
    pub(crate) fn counting(&mut self, size: Int) -> ValueResult {
        emit!(self, OpKind::Range1d, start = 0, end = scalar(size)?, step = 1)
    }

    /// The floats from 0 to below `size`.
    pub(crate) fn counting_floats(&mut self, size: Int) -> ValueResult {
        let numbers = self.counting(size)?;
        self.cast(numbers, DType::Fp32)
    }
}

fn number_of(dtype: DType, number: f64) -> Result<Constant> {
    Ok(match dtype {
        DType::Int32 => Constant::int32(int32(number as i64)?),
        DType::Bool => Constant::bool(number != 0.0),
        _ => Constant::fp32(number as f32),
    })
}

/// Reshapes.
impl Builder {
    /// Reshapes a tensor.
    pub(crate) fn reshape(&mut self, value: ValueId, sizes: &[Int]) -> ValueResult {
        if sizes.is_empty() {
            // An empty shape constant would have no element type.
            return self.scalar_of(value);
        }
        let unknown = sizes.iter().filter(|size| size.known().is_none()).count();
        let open = sizes.iter().any(|size| matches!(size, Int::Known(extent) if *extent <= 0));
        let shape = if unknown == 1 && !open {
            // A single unknown dimension is inferred from the others.
            let rest = sizes.iter().map(|size| Int::Known(size.known().unwrap_or(-1)));
            self.ints(&rest.collect::<Vec<_>>())?
        } else {
            self.ints(sizes)?
        };
        emit!(self, OpKind::Reshape, x = value, shape)
    }

    /// Reshapes to the dimensions of another tensor with the same number of elements.
    pub(crate) fn reshape_like(&mut self, value: ValueId, like: ValueId) -> ValueResult {
        let shape = self.shape(like);
        if shape == self.shape(value) && shape.iter().all(|dim| !matches!(dim, Dim::Unknown)) {
            return Ok(value);
        }
        if shape.iter().filter(|dim| dim.known().is_none()).count() <= 1 {
            let rest = |dim: &Dim| Int::Known(dim.known().map_or(-1, |extent| extent as i64));
            let sizes: Vec<_> = shape.iter().map(rest).collect();
            return self.reshape(value, &sizes);
        }
        // One `shape` operation instead of several operations per dimension.
        let shape = emit!(self, OpKind::Shape, x = like)?;
        emit!(self, OpKind::Reshape, x = value, shape)
    }

    /// Reshapes with as few operations as possible. One size may be −1.
    pub(crate) fn with_sizes(&mut self, x: ValueId, sizes: &[Int]) -> ValueResult {
        let shape = self.shape(x);
        let same = shape.len() == sizes.len()
            && shape.iter().zip(sizes).all(|(dim, &size)| self.is_extent(dim, size));
        if same {
            return Ok(x);
        }
        let open = sizes.iter().filter(|size| size.known().is_none_or(|size| size < 0)).count();
        if open > 1
            && let Some((removed, added)) = self.units(x, sizes)
        {
            let x = self.squeeze(x, &removed)?;
            return self.expand_dims(x, &added);
        }
        let mut sizes = sizes.to_vec();
        // A computed size can be replaced by −1, which needs fewer operations.
        if open > 0 && !sizes.contains(&Int::Known(-1)) {
            let last = sizes.iter_mut().rfind(|size| size.known().is_none());
            last.into_iter().for_each(|last| *last = Int::Known(-1));
        }
        if sizes.contains(&Int::Known(0)) {
            refuse!("creates a tensor without elements, which Core ML does not support");
        }
        if self.rank(x) == 0 {
            let axes: Vec<_> = (0..sizes.len() as i32).collect();
            return self.expand_dims(x, &axes);
        }
        self.reshape(x, &sizes)
    }

    /// Unit axes to remove and to insert, if nothing else changes.
    fn units(&self, x: ValueId, sizes: &[Int]) -> Option<(Vec<i32>, Vec<i32>)> {
        let shape = self.shape(x);
        let is_unit = |dim: &&Dim| **dim == Dim::Known(1);
        let kept: Vec<_> = shape.iter().filter(|dim| !is_unit(dim)).collect();
        let wanted: Vec<_> = sizes.iter().filter(|&&size| size != Int::Known(1)).collect();
        let same = kept.len() == wanted.len()
            && kept.iter().zip(&wanted).all(|(dim, size)| self.is_extent(dim, **size));
        if !same {
            return None;
        }
        let removed = (0..shape.len()).filter(|&at| is_unit(&&shape[at]));
        let added = (0..sizes.len()).filter(|&at| sizes[at] == Int::Known(1));
        Some((removed.map(|at| at as i32).collect(), added.map(|at| at as i32).collect()))
    }

    /// Flattens to one dimension.
    pub(crate) fn flat(&mut self, x: ValueId) -> ValueResult {
        match self.rank(x) {
            1 => Ok(x),
            _ => self.with_sizes(x, &[Int::Known(-1)]),
        }
    }

    /// Reshapes a one-element tensor to a scalar.
    pub(crate) fn scalar_of(&mut self, x: ValueId) -> ValueResult {
        let axes: Vec<_> = (0..self.rank(x) as i32).collect();
        self.squeeze(x, &axes)
    }

    /// Reshapes a scalar to one axis; other tensors are unchanged.
    pub(crate) fn with_axes(&mut self, x: ValueId) -> ValueResult {
        if self.rank(x) == 0 { self.expand_dims(x, &[0]) } else { Ok(x) }
    }

    /// Removes unit axes.
    pub(crate) fn squeeze(&mut self, x: ValueId, axes: &[i32]) -> ValueResult {
        if axes.is_empty() { Ok(x) } else { emit!(self, OpKind::Squeeze, x, axes) }
    }

    /// Inserts unit axes at these positions of the result.
    pub(crate) fn expand_dims(&mut self, x: ValueId, axes: &[i32]) -> ValueResult {
        if axes.is_empty() { Ok(x) } else { emit!(self, OpKind::ExpandDims, x, axes) }
    }

    /// Reshapes a vector to run along one axis of tensors of rank `rank`.
    pub(crate) fn along(&mut self, vector: ValueId, axis: usize, rank: usize) -> ValueResult {
        let axes: Vec<_> = (0..rank as i32).filter(|&other| other != axis as i32).collect();
        self.expand_dims(vector, &axes)
    }

    /// Reshapes a vector to run along an axis of tensors of rank `rank`, broadcast over the axes before it.
    pub(crate) fn before(&mut self, vector: ValueId, axis: usize, rank: usize) -> ValueResult {
        let axes: Vec<_> = (1..rank.saturating_sub(axis) as i32).collect();
        self.expand_dims(vector, &axes)
    }

    /// Permutes the axes.
    pub(crate) fn transpose(&mut self, x: ValueId, order: &[usize]) -> ValueResult {
        if order.iter().enumerate().all(|(at, &from)| at == from) {
            return Ok(x);
        }
        emit!(self, OpKind::Transpose, x, perm = places(order).as_slice())
    }

    /// Inverts a permutation of the axes.
    pub(crate) fn transpose_back(&mut self, x: ValueId, order: &[usize]) -> ValueResult {
        let mut back = vec![0; order.len()];
        for (at, &axis) in order.iter().enumerate() {
            *back.at_mut(axis)? = at;
        }
        self.transpose(x, &back)
    }
}

/// Concatenations and repetitions.
impl Builder {
    /// Concatenates along an axis.
    pub(crate) fn concat(&mut self, values: &[ValueId], axis: usize) -> ValueResult {
        match values {
            [only] => Ok(*only),
            values => emit!(self, OpKind::Concat, values, axis, interleave = false),
        }
    }

    /// Stacks along a new axis.
    pub(crate) fn stack(&mut self, values: &[ValueId], axis: i32) -> ValueResult {
        match values {
            [only] => self.expand_dims(*only, &[axis]),
            values => emit!(self, OpKind::Stack, values, axis),
        }
    }

    /// Splits an axis into equal parts.
    pub(crate) fn split_evenly(
        &mut self,
        value: ValueId,
        count: i32,
        axis: i32,
    ) -> Result<Vec<ValueId>> {
        let arguments = [("x", value.into()), ("num_splits", count.into()), ("axis", axis.into())];
        self.append_split(operation(OpKind::Split, arguments), count as usize)
    }

    /// Appends a `split`. Inference takes the number of parts from the number of placeholder results.
    pub(crate) fn append_split(
        &mut self,
        mut op: coremill_mil::ir::Op,
        count: usize,
    ) -> Result<Vec<ValueId>> {
        op.outputs = vec![ValueId::from_index(0); count];
        self.append(op)
    }

    /// Repeats unit axes to these sizes and prepends axes. −1 keeps the size of an axis.
    pub(crate) fn expanded(&mut self, x: ValueId, sizes: &[Int]) -> ValueResult {
        let Some(added) = sizes.len().checked_sub(self.rank(x)) else {
            refuse!("cannot expand a tensor of rank {} to rank {}", self.rank(x), sizes.len());
        };
        let mut repeats = Vec::with_capacity(sizes.len());
        for (axis, &size) in sizes.iter().enumerate() {
            let extent = axis.checked_sub(added).and_then(|axis| self.shape(x).get(axis));
            repeats.push(match extent {
                None | Some(Dim::Known(1)) if size != Int::Known(-1) => size,
                _ => Int::Known(1),
            });
        }
        if repeats.contains(&Int::Known(0)) {
            return self.empty(sizes, self.dtype(x));
        }
        let axes: Vec<_> = (0..added as i32).collect();
        let x = self.expand_dims(x, &axes)?;
        let y = self.tiled(x, &repeats)?;
        if repeats.iter().any(|repeat| repeat.known().is_none()) {
            // The repeat counts are known without reading the repeated tensor.
            self.note_dims(y, &repeats);
            self.repeated.insert(y, x);
        }
        Ok(y)
    }

    /// Repeats a tensor along each axis.
    pub(crate) fn tiled(&mut self, x: ValueId, repeats: &[Int]) -> ValueResult {
        if repeats.iter().all(|&repeat| repeat == Int::Known(1)) {
            return Ok(x);
        }
        let reps = self.ints(repeats)?;
        emit!(self, OpKind::Tile, x, reps)
    }

    /// Broadcast shape of tensors.
    pub(crate) fn broadcast_sizes(&mut self, values: &[ValueId]) -> Result<Vec<Int>> {
        let rank = values.iter().map(|&value| self.rank(value)).max().unwrap_or(0);
        let mut sizes = vec![Int::Known(1); rank];
        for &value in values {
            let before = rank - self.rank(value);
            for axis in 0..self.rank(value) {
                let found = *sizes.at(before + axis)?;
                // Keeps a static size, or the first dynamic one.
                if found == Int::Known(1) || self.extents(value).at(axis)?.is_some_and(|e| e != 1) {
                    *sizes.at_mut(before + axis)? = self.dim(value, axis)?;
                }
            }
        }
        Ok(sizes)
    }

    /// Broadcasts tensors to a common shape.
    pub(crate) fn broadcast<const N: usize>(
        &mut self,
        mut values: [ValueId; N],
    ) -> Result<[ValueId; N]> {
        let sizes = self.broadcast_sizes(&values)?;
        for value in &mut values {
            *value = self.expanded(*value, &sizes)?;
        }
        Ok(values)
    }
}

/// Reductions.
impl Builder {
    /// Reduces over axes; with `keep`, they remain with size 1.
    pub(crate) fn reduced(
        &mut self,
        kind: OpKind,
        x: ValueId,
        axes: &[usize],
        keep: bool,
    ) -> ValueResult {
        emit!(self, kind, x, axes = places(axes).as_slice(), keep_dims = keep)
    }

    /// Reduces over axes; without axes the tensor is returned unchanged.
    pub(crate) fn reduce(&mut self, kind: OpKind, x: ValueId, axes: &Axes) -> ValueResult {
        if axes.axes.is_empty() { Ok(x) } else { self.reduced(kind, x, &axes.axes, axes.keep) }
    }

    /// Cumulative sums along an axis.
    pub(crate) fn cumulative(&mut self, x: ValueId, axis: usize) -> ValueResult {
        emit!(self, OpKind::Cumsum, x, axis, exclusive = false, reverse = false)
    }

    /// The first `count` elements of an axis in sorted order, and their indices.
    pub(crate) fn first(
        &mut self,
        x: ValueId,
        axis: usize,
        count: i64,
        ascending: bool,
    ) -> Result<[ValueId; 2]> {
        let k = int32(count)?;
        let values = super::builder::emit_many!(self, OpKind::Topk, x, k, axis, ascending)?;
        values.try_into().map_err(|_| LoweringError::new("`topk` must return values and indices"))
    }

    /// Slices at indices along an axis. Indices must not be negative.
    pub(crate) fn looked_up(&mut self, x: ValueId, indices: ValueId, axis: usize) -> ValueResult {
        emit!(self, OpKind::Gather, x, indices, axis)
    }

    /// Pads the last axes before and after.
    pub(crate) fn padded(&mut self, x: ValueId, pad: &[i32], value: f32) -> ValueResult {
        emit!(self, OpKind::Pad, x, pad, mode = "constant", constant_val = value)
    }
}
