//! What many lowerings do to the dimensions of tensors, and constants that they make.

use coremill_mil::ir::{Constant, Definition, Dim, ValueId};
use coremill_mil::ops::OpKind;
use coremill_tensor::{Buffer, DType};

use super::builder::{Arg, Builder, int32, operation};
use super::call::Call;
use super::value::Int;
use crate::error::Refusal;

impl Builder {
    /// Whether a value is known when the program is compiled.
    pub(crate) fn is_constant(&self, value: ValueId) -> bool {
        self.known(value).is_some() || self.is_stored_compressed(value)
    }

    /// Whether a value is a weight that is unpacked when the program is loaded.
    fn is_stored_compressed(&self, value: ValueId) -> bool {
        let Definition::Output(op, 0) = self.function.value(value).definition else { return false };
        self.function.op(op).kind().is_some_and(OpKind::is_constexpr)
    }

    /// A constant of floats.
    pub(crate) fn float_constant(&mut self, shape: &[u64], elements: &[f32]) -> ValueId {
        let bytes: Vec<u8> = elements.iter().flat_map(|element| element.to_le_bytes()).collect();
        self.constant(Constant::by_size(DType::Fp32, shape, Buffer::from(bytes)))
    }

    /// A constant of integers.
    pub(crate) fn int_constant(&mut self, shape: &[u64], elements: &[i32]) -> ValueId {
        let bytes: Vec<u8> = elements.iter().flat_map(|element| element.to_le_bytes()).collect();
        self.constant(Constant::by_size(DType::Int32, shape, Buffer::from(bytes)))
    }

    /// A tensor with the dimensions of another one, which has as many elements.
    pub(crate) fn reshape_like(
        &mut self,
        value: ValueId,
        like: ValueId,
    ) -> Result<ValueId, Refusal> {
        let shape = self.shape(like);
        if shape == self.shape(value) && shape.iter().all(|dim| !matches!(dim, Dim::Unknown)) {
            return Ok(value);
        }
        if shape.iter().filter(|dim| dim.known().is_none()).count() <= 1 {
            let sizes = self.dims_or_rest(like);
            return self.reshape(value, &sizes);
        }
        // One operation for all dimensions, rather than several for each.
        let shape = self.emit(OpKind::Shape, [("x", like.into())])?;
        self.emit(OpKind::Reshape, [("x", value.into()), ("shape", shape.into())])
    }

    /// The dimensions of a tensor of which at most one is not fixed, which then is what is left.
    fn dims_or_rest(&self, value: ValueId) -> Vec<Int> {
        let dims = self.shape(value).iter();
        dims.map(|dim| Int::Known(dim.known().map_or(-1, |extent| extent as i64))).collect()
    }

    /// A part of a tensor along one axis, from `begin` to before `end`; to the last element if that is
    /// not given.
    pub(crate) fn slice(
        &mut self,
        value: ValueId,
        axis: usize,
        begin: i64,
        end: Option<i64>,
    ) -> Result<ValueId, Refusal> {
        self.strided_slice(value, axis, begin, end, 1)
    }

    /// Every so many elements of a tensor along one axis.
    pub(crate) fn strided_slice(
        &mut self,
        value: ValueId,
        axis: usize,
        begin: i64,
        end: Option<i64>,
        stride: i64,
    ) -> Result<ValueId, Refusal> {
        let rank = self.rank(value);
        let extent = self.shape(value)[axis].known().map(|extent| extent as i64);
        if begin == 0 && stride == 1 && (end.is_none() || end == extent) {
            return Ok(value);
        }
        let mut begins = vec![0; rank];
        begins[axis] = int32(begin)?;
        let mut ends = vec![0; rank];
        ends[axis] = int32(end.unwrap_or(0))?;
        let mut strides = vec![1; rank];
        strides[axis] = int32(stride)?;
        let whole: Vec<_> = (0..rank).map(|at| at != axis || end.is_none()).collect();
        let strided = (stride != 1).then_some(strides.as_slice());
        self.emit(
            OpKind::SliceByIndex,
            [
                ("x", value.into()),
                ("begin", begins.as_slice().into()),
                ("end", ends.as_slice().into()),
                ("stride", strided.into()),
                ("end_mask", Arg::bools(&whole)),
            ],
        )
    }

    /// Tensors joined along an axis.
    pub(crate) fn concat(&mut self, values: &[ValueId], axis: usize) -> Result<ValueId, Refusal> {
        if let [only] = values {
            return Ok(*only);
        }
        let axis = axis as i32;
        self.emit(
            OpKind::Concat,
            [("values", values.into()), ("axis", axis.into()), ("interleave", false.into())],
        )
    }

    /// Equal parts of a tensor along an axis.
    pub(crate) fn split_evenly(
        &mut self,
        value: ValueId,
        count: i32,
        axis: i32,
    ) -> Result<Vec<ValueId>, Refusal> {
        let arguments = [("x", value.into()), ("num_splits", count.into()), ("axis", axis.into())];
        let mut op = operation(OpKind::Split, arguments);
        // Inference takes the number of parts from that of the results; appending names them anew.
        op.outputs = vec![value; count.unsigned_abs() as usize];
        self.append(op)
    }

    /// A reduction over axes, which stay with one element where that is asked for.
    pub(crate) fn reduced(
        &mut self,
        kind: OpKind,
        value: ValueId,
        axes: &[usize],
        keep: bool,
    ) -> Result<ValueId, Refusal> {
        let axes: Vec<_> = axes.iter().map(|&axis| axis as i32).collect();
        self.emit(
            kind,
            [("x", value.into()), ("axes", axes.as_slice().into()), ("keep_dims", keep.into())],
        )
    }

    /// `1 / √(x + epsilon)`.
    pub(crate) fn reciprocal_root(
        &mut self,
        value: ValueId,
        epsilon: f64,
    ) -> Result<ValueId, Refusal> {
        self.emit(OpKind::Rsqrt, [("x", value.into()), ("epsilon", (epsilon as f32).into())])
    }

    /// A tensor times a number; the tensor itself for one.
    pub(crate) fn scaled(&mut self, value: ValueId, factor: f64) -> Result<ValueId, Refusal> {
        if factor == 1.0 {
            return Ok(value);
        }
        let factor = self.scalar_like(value, factor)?;
        self.binary(OpKind::Mul, value, factor)
    }

    /// A vector of one element for each channel, at axis 1 of tensors of that rank.
    pub(crate) fn along_channels(
        &mut self,
        vector: ValueId,
        rank: usize,
    ) -> Result<ValueId, Refusal> {
        let axes: Vec<_> = (1..rank as i32 - 1).collect();
        self.expand_dims(vector, &axes)
    }
}

impl Call<'_, '_> {
    /// Whether anything takes a result; results of lists are counted through.
    pub(crate) fn is_used(&self, index: usize) -> bool {
        let Some(wanted) = self.node.results().nth(index).flatten() else { return false };
        let graph = self.graph();
        let mut used = false;
        let mut look = |id| used |= id == wanted;
        graph.outputs.iter().for_each(|output| output.for_each_value(&mut look));
        graph.nodes.iter().for_each(|node| node.for_each_use(&mut look));
        used
    }
}
