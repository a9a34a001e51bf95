//! Tensors with some of their elements replaced.

use coremill_mil::ir::{Constant, Opset, ValueId};
use coremill_mil::ops::OpKind;
use coremill_tensor::DType;

use super::expand::expanded;
use super::join::joined;
use super::reshape::to_sizes;
use super::slice::{Range, bounds, range_of, sliced};
use crate::bounds::At;
use crate::error::{Refusal, refuse};
use crate::lower::builder::{Arg, Builder, int32};
use crate::lower::call::{Call, Results};
use crate::lower::high_rank::MAX_RANK;
use crate::lower::ops::index::written_along;
use crate::lower::row::{Row, all};
use crate::lower::value::Int;

pub(super) const ROWS: &[Row] =
    &[all("aten.slice_scatter", slice_scatter), all("aten.select_scatter", select_scatter)];

fn slice_scatter(call: &mut Call<'_, '_>) -> Results {
    let (x, update) = both(call)?;
    let axis = call.axis("dim", call.rank(x))?;
    let range = range_of(call)?;
    let mut dims = call.dims(x)?;
    *dims.at_mut(axis)? = call.dim(update, axis)?;
    let update = expanded(call, update, &dims)?;
    let y = replaced(call, x, update, axis, range)?;
    call.give(y)
}

fn select_scatter(call: &mut Call<'_, '_>) -> Results {
    let (x, update) = both(call)?;
    let axis = call.axis("dim", call.rank(x))?;
    let index = match call.int("index")? {
        Int::Known(index) if index < 0 => {
            let extent = call.dim(x, axis)?;
            call.add_ints(extent, Int::Known(index))?
        }
        index => index,
    };
    let update = call.expand_dims(update, &[axis as i32])?;
    let end = call.add_ints(index, Int::Known(1))?;
    let y = replaced(call, x, update, axis, Range::between(index, end))?;
    call.give(y)
}

/// `self` and `src`, the latter in the type of the former.
pub(super) fn both(call: &mut Call<'_, '_>) -> Result<(ValueId, ValueId), Refusal> {
    let x = call.tensor("self")?;
    let update = call.tensor("src")?.value;
    let update = call.cast_to(update, x.dtype)?;
    Ok((x.value, update))
}

/// A tensor in which other elements stand along part of an axis.
pub(crate) fn replaced(
    builder: &mut Builder,
    x: ValueId,
    update: ValueId,
    axis: usize,
    range: Range,
) -> Result<ValueId, Refusal> {
    let extent = builder.shape(x).at(axis)?.clone();
    let count = builder.dim(update, axis)?;
    if builder.extents(update).contains(&Some(0)) {
        return Ok(x);
    }
    if range.step == 1 && builder.is_extent(&extent, count) {
        return Ok(update);
    }
    if builder.rank(x) > MAX_RANK {
        // The axes before the one that is written to are one, and so are those behind it.
        let dims = builder.dims(x)?;
        let before = builder.product(dims.part(..axis)?)?;
        let behind = builder.product(dims.part(axis + 1..)?)?;
        let low = builder.reshape(x, &[before, *dims.at(axis)?, behind])?;
        let update = builder.reshape(update, &[before, count, behind])?;
        let y = replaced(builder, low, update, 1, range)?;
        return to_sizes(builder, y, &dims);
    }
    let begin = match range.begin {
        Int::Known(begin) if begin < 0 => {
            let extent = builder.dim(x, axis)?;
            builder.add_ints(extent, Int::Known(begin))?
        }
        begin => begin,
    };
    if let Some(row) = builder.repeated.get(&update).copied()
        && let (Some(1), 1) = (builder.shape(row).at(axis)?.known(), range.step)
    {
        return written_over(builder, x, row, axis, begin, count);
    }
    if builder.opset() >= Opset::Ios18 {
        // Where the slice ends is where the update does, whatever lies beyond the end of the tensor.
        let steps = builder.mul_ints(count, Int::Known(range.step))?;
        let end = builder.add_ints(begin, steps)?;
        let end = builder.add_ints(end, Int::Known(1 - range.step))?;
        let range = Range { begin, end: Some(end), step: range.step };
        let [begin, end, stride, begin_mask, end_mask] = bounds(builder, x, axis, range)?;
        return builder.emit(
            OpKind::SliceUpdate,
            [
                ("x", x.into()),
                ("update", update.into()),
                ("begin", begin),
                ("end", end),
                ("stride", stride),
                ("begin_mask", begin_mask),
                ("end_mask", end_mask),
            ],
        );
    }
    if range.step == 1 && begin.known().is_some() {
        let mut parts = Vec::with_capacity(3);
        if begin != Int::Known(0) {
            parts.push(sliced(builder, x, axis, Range::to(begin))?);
        }
        parts.push(update);
        let end = builder.add_ints(begin, count)?;
        if !builder.is_extent(&extent, end) {
            parts.push(sliced(builder, x, axis, Range::from(end))?);
        }
        return joined(builder, &parts, axis);
    }
    let steps = builder.mul_ints(count, Int::Known(range.step))?;
    let end = builder.add_ints(begin, steps)?;
    let (begin, end) = (builder.int_value(begin)?, builder.int_value(end)?);
    let places = builder.emit(
        OpKind::Range1d,
        [("end", end.into()), ("start", begin.into()), ("step", int32(range.step)?.into())],
    )?;
    written_along(builder, x, places, update, axis, "update")
}

/// A tensor that has the same elements at each place from one on, however many places these are: none is as good.
fn written_over(
    builder: &mut Builder,
    x: ValueId,
    row: ValueId,
    axis: usize,
    begin: Int,
    count: Int,
) -> Result<ValueId, Refusal> {
    let end = builder.add_ints(begin, count)?;
    let extent = builder.dim(x, axis)?;
    let [begin, end, extent] = [begin, end, extent].map(|int| builder.int_value(int));
    let places = builder.emit(
        OpKind::Range1d,
        [("end", extent?.into()), ("start", 0.into()), ("step", 1.into())],
    )?;
    let reached = builder.binary(OpKind::GreaterEqual, places, begin?)?;
    let before = builder.binary(OpKind::Less, places, end?)?;
    let written = builder.binary(OpKind::LogicalAnd, reached, before)?;
    let behind: Vec<_> = (1..(builder.rank(x) - axis) as i32).collect();
    let written = builder.expand_dims(written, &behind)?;
    builder.select(written, row, x)
}

/// A tensor without elements. Core ML has none, but what is joined with one, or writes one, does nothing by it.
pub(super) fn empty(builder: &mut Builder, dims: &[Int], dtype: DType) -> Result<ValueId, Refusal> {
    let known = |dim: &Int| dim.known().and_then(|extent| u64::try_from(extent).ok());
    let Some(shape) = dims.iter().map(known).collect::<Option<Vec<_>>>() else {
        refuse!("gives a tensor without elements, which Core ML has none of");
    };
    Ok(builder.constant(Constant::bytes(dtype, &shape, Vec::new())))
}

/// A tensor of one number.
pub(crate) fn full(
    builder: &mut Builder,
    dims: &[Int],
    dtype: DType,
    value: f64,
) -> Result<ValueId, Refusal> {
    let value = match dtype {
        DType::Int32 => Constant::int32(int32(value as i64)?),
        DType::Bool => Constant::bool(value != 0.0),
        _ => Constant::fp32(value as f32),
    };
    if dims.is_empty() {
        return Ok(builder.constant(value));
    }
    if dims.contains(&Int::Known(0)) {
        return empty(builder, dims, value.tensor_type().map_or(dtype, |ty| ty.dtype));
    }
    let shape = builder.ints(dims)?;
    builder.emit(OpKind::Fill, [("shape", shape), ("value", Arg::from(value))])
}
