//! Parts of tensors.
//!
//! Whatever can be a slice is one: gathers keep a program off the Neural Engine.

use coremill_mil::ir::{Dim, ValueId};
use coremill_mil::ops::OpKind;

use super::write::empty;
use super::{mapped, mapped_to_all};
use crate::bounds::{At, back, created};
use crate::error::{Refusal, refuse};
use crate::lower::builder::{Arg, Builder, int32, operation};
use crate::lower::call::{Call, Results};
use crate::lower::row::{Row, all, some};
use crate::lower::value::{Int, Lowered};

pub(super) const ROWS: &[Row] = &[
    some("aten.slice", &["Tensor"], slice),
    some("aten.slice_copy", &["Tensor"], slice),
    some("aten.select", &["int"], select),
    some("aten.select_copy", &["int"], select),
    all("aten.narrow", narrow),
    all("aten.narrow_copy", narrow),
    some("aten.split", &["Tensor"], split_evenly),
    some("aten.split_copy", &["Tensor"], split_evenly),
    some("aten.split", &["sizes"], |call| split_sizes(call, "split_size")),
    all("aten.split_with_sizes", |call| split_sizes(call, "split_sizes")),
    all("aten.split_with_sizes_copy", |call| split_sizes(call, "split_sizes")),
    all("aten.unsafe_split_with_sizes", |call| split_sizes(call, "split_sizes")),
    all("aten.chunk", chunk),
    all("aten.unsafe_chunk", chunk),
    some("aten.tensor_split", &["tensor_indices_or_sections"], split_by_tensor),
];

/// What is taken along an axis: from `begin` up to `end`, every `step`th. Negative bounds count from the end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Range {
    pub(crate) begin: Int,
    /// None for the end of the axis.
    pub(crate) end: Option<Int>,
    pub(crate) step: i64,
}

impl Range {
    pub(crate) fn from(begin: Int) -> Range {
        Range { begin, end: None, step: 1 }
    }

    pub(crate) fn to(end: Int) -> Range {
        Range { begin: Int::Known(0), end: Some(end), step: 1 }
    }

    pub(crate) fn between(begin: Int, end: Int) -> Range {
        Range { begin, end: Some(end), step: 1 }
    }

    /// The same with bounds that lie within an axis of a fixed extent, as Python cuts them off.
    fn within(self, extent: i64) -> Range {
        let clamp = |bound: i64| {
            let from_start = if bound < 0 { bound.saturating_add(extent) } else { bound };
            from_start.clamp(0, extent)
        };
        let bound = |bound: Int| match bound {
            Int::Known(bound) => Int::Known(clamp(bound)),
            computed => computed,
        };
        let end = self.end.map(bound).filter(|&end| end != Int::Known(extent));
        Range { begin: bound(self.begin), end, step: self.step }
    }
}

/// Part of a tensor along an axis.
pub(crate) fn sliced(
    builder: &mut Builder,
    x: ValueId,
    axis: usize,
    range: Range,
) -> Result<ValueId, Refusal> {
    let Some(extent) = builder.shape(x).get(axis).cloned() else {
        refuse!("axis {axis} is out of range for rank {}", builder.rank(x));
    };
    let mut range = match extent.known() {
        Some(extent) => range.within(extent as i64),
        None => range,
    };
    if range.end.is_some_and(|end| builder.is_extent(&extent, end)) {
        range.end = None;
    }
    if range.begin == Int::Known(0) && range.end.is_none() && range.step == 1 {
        return Ok(x);
    }
    let extent = extent.known().map(|extent| Int::Known(extent as i64));
    if let (Int::Known(begin), Some(Int::Known(end))) = (range.begin, range.end.or(extent))
        && begin >= end
        && (begin < 0) == (end < 0)
    {
        let mut dims = builder.dims(x)?;
        *dims.at_mut(axis)? = Int::Known(0);
        let dtype = builder.dtype(x);
        return empty(builder, &dims, dtype);
    }
    emit_slice(builder, x, axis, range, false)
}

/// One element along an axis, which goes.
pub(crate) fn taken_at(
    builder: &mut Builder,
    x: ValueId,
    axis: usize,
    index: Int,
) -> Result<ValueId, Refusal> {
    let Some(extent) = builder.shape(x).get(axis).map(Dim::known) else {
        refuse!("axis {axis} is out of range for rank {}", builder.rank(x));
    };
    let index = match (index, extent) {
        (Int::Known(index), Some(extent)) if index < 0 => Int::Known(index + extent as i64),
        (index, _) => index,
    };
    if extent == Some(1) && index == Int::Known(0) {
        return builder.squeeze(x, &[axis as i32]);
    }
    let end = match index {
        Int::Known(-1) => None,
        index => Some(builder.add_ints(index, Int::Known(1))?),
    };
    emit_slice(builder, x, axis, Range { begin: index, end, step: 1 }, true)
}

fn emit_slice(
    builder: &mut Builder,
    x: ValueId,
    axis: usize,
    range: Range,
    squeezed: bool,
) -> Result<ValueId, Refusal> {
    let [begin, end, stride, begin_mask, end_mask] = bounds(builder, x, axis, range)?;
    let squeeze = squeezed.then(|| mask(builder.rank(x), |at| at == axis));
    builder.emit(
        OpKind::SliceByIndex,
        [
            ("x", x.into()),
            ("begin", begin),
            ("end", end),
            ("stride", stride),
            ("begin_mask", begin_mask),
            ("end_mask", end_mask),
            ("squeeze_mask", squeeze.into()),
        ],
    )
}

/// `begin`, `end`, `stride`, `begin_mask` and `end_mask` of a slice along one axis.
///
/// Bounds are stated where they are fixed and masked where they are open, so that as few masks as possible
/// are there.
pub(super) fn bounds(
    builder: &mut Builder,
    x: ValueId,
    axis: usize,
    range: Range,
) -> Result<[Arg; 5], Refusal> {
    let shape = builder.shape(x).to_vec();
    let mut begin = vec![Int::Known(0); shape.len()];
    let fixed = |dim: &Dim| dim.known().and_then(|extent| i64::try_from(extent).ok());
    let mut end: Vec<_> = shape.iter().map(|dim| Int::Known(fixed(dim).unwrap_or(0))).collect();
    *begin.at_mut(axis)? = range.begin;
    if let Some(bound) = range.end {
        *end.at_mut(axis)? = bound;
    }
    let opened = |at: usize| {
        let masked = if at == axis { range.end.is_none() } else { true };
        masked && shape.get(at).is_some_and(|extent| extent.known().is_none())
    };
    let end_mask = (0..shape.len()).any(opened).then(|| mask(shape.len(), opened));
    let stride = if range.step == 1 {
        Arg::Absent
    } else {
        let mut stride = vec![1; shape.len()];
        *stride.at_mut(axis)? = int32(range.step)?;
        stride.as_slice().into()
    };
    Ok([builder.ints(&begin)?, builder.ints(&end)?, stride, Arg::Absent, end_mask.into()])
}

fn mask(rank: usize, is_set: impl Fn(usize) -> bool) -> Arg {
    Arg::bools(&(0..rank).map(is_set).collect::<Vec<_>>())
}

fn slice(call: &mut Call<'_, '_>) -> Results {
    mapped(call, "self", |call, x| {
        let axis = call.axis("dim", call.rank(x))?;
        let range = range_of(call)?;
        sliced(call, x, axis, range)
    })
}

/// The range that `start`, `end` and `step` say.
pub(super) fn range_of(call: &mut Call<'_, '_>) -> Result<Range, Refusal> {
    let begin = call.optional_int("start")?.unwrap_or(Int::Known(0));
    // The largest of 64 bits, and for programs of other tools of 32, says that there is no end.
    let end = call.optional_int("end")?;
    let end = end.filter(|end| end.known().is_none_or(|end| end < i64::from(i32::MAX)));
    let step = call.known_int("step")?;
    if step < 1 {
        refuse!("takes every {step}th element; accepted are steps from 1 on");
    }
    Ok(Range { begin, end, step })
}

fn select(call: &mut Call<'_, '_>) -> Results {
    mapped(call, "self", |call, x| {
        let axis = call.axis("dim", call.rank(x))?;
        let index = call.int("index")?;
        taken_at(call, x, axis, index)
    })
}

fn narrow(call: &mut Call<'_, '_>) -> Results {
    mapped(call, "self", |call, x| {
        let axis = call.axis("dim", call.rank(x))?;
        let start = call.argument("start")?;
        let begin = match call.lowered(start)? {
            Lowered::Int(begin) => begin,
            Lowered::Tensor(tensor) => {
                let scalar = scalar_of(call, tensor.value)?;
                call.int_of(scalar)
            }
            _ => refuse!("`start` is not an integer"),
        };
        let begin = match begin {
            Int::Known(begin) if begin < 0 => {
                let extent = call.dim(x, axis)?;
                call.add_ints(extent, Int::Known(begin))?
            }
            begin => begin,
        };
        let length = call.int("length")?;
        let end = call.add_ints(begin, length)?;
        sliced(call, x, axis, Range::between(begin, end))
    })
}

/// A tensor of one element without axes.
pub(crate) fn scalar_of(builder: &mut Builder, x: ValueId) -> Result<ValueId, Refusal> {
    let axes: Vec<_> = (0..builder.rank(x) as i32).collect();
    builder.squeeze(x, &axes)
}

/// How many parts the call gives.
fn parts(call: &Call<'_, '_>) -> usize {
    call.node.results().count()
}

fn split_evenly(call: &mut Call<'_, '_>) -> Results {
    mapped_to_all(call, "self", |call, x| {
        let axis = call.axis("dim", call.rank(x))?;
        let each = call.int("split_size")?;
        let sizes = vec![each; parts(call)];
        split(call, x, axis, &sizes)
    })
}

fn split_sizes(call: &mut Call<'_, '_>, name: &str) -> Results {
    mapped_to_all(call, "self", |call, x| {
        let axis = call.axis("dim", call.rank(x))?;
        let sizes = call.int_list(name)?;
        split(call, x, axis, &sizes)
    })
}

fn chunk(call: &mut Call<'_, '_>) -> Results {
    mapped_to_all(call, "self", |call, x| {
        let axis = call.axis("dim", call.rank(x))?;
        let chunks = call.known_int("chunks")?;
        let extent = call.dim(x, axis)?;
        let each = call.ceil_div_ints(extent, chunks)?;
        let sizes = vec![each; parts(call)];
        split(call, x, axis, &sizes)
    })
}

/// The first parts are larger by one where the extent cannot be divided.
fn split_into(call: &mut Call<'_, '_>, sections: i64, axis: Option<usize>) -> Results {
    mapped_to_all(call, "self", |call, x| {
        let axis = axis_or(call, x, axis)?;
        if sections < 1 {
            refuse!("splits into {sections} parts; accepted are 1 and more");
        }
        created(&[sections])?;
        let Some(extent) = call.shape(x).get(axis).and_then(Dim::known) else {
            refuse!("splits an axis of unknown extent into {sections} parts of different sizes");
        };
        let (each, rest) = (extent as i64 / sections, extent as i64 % sections);
        let sizes: Vec<_> =
            (0..sections).map(|at| Int::Known(each + i64::from(at < rest))).collect();
        split(call, x, axis, &sizes)
    })
}

/// The axis of `hsplit` and the like, which is the first of a tensor that has only one; or that of `dim`.
fn axis_or(call: &mut Call<'_, '_>, x: ValueId, axis: Option<usize>) -> Result<usize, Refusal> {
    match axis {
        Some(_) if call.rank(x) == 0 => refuse!("a tensor without axes cannot be split"),
        Some(axis) => Ok(axis.min(back(call.rank(x), 1)?)),
        None => call.axis("dim", call.rank(x)),
    }
}

/// Parts of which each but the last ends at an index.
fn split_before(call: &mut Call<'_, '_>, ends: &[Int], axis: Option<usize>) -> Results {
    mapped_to_all(call, "self", |call, x| {
        let axis = axis_or(call, x, axis)?;
        let mut begin = Int::Known(0);
        let mut values = Vec::new();
        for &end in ends {
            values.push(sliced(call, x, axis, Range::between(begin, end))?);
            begin = end;
        }
        values.push(sliced(call, x, axis, Range::from(begin))?);
        Ok(values)
    })
}

/// Parts of these sizes one after the other; the last takes what is left.
fn split(
    builder: &mut Builder,
    x: ValueId,
    axis: usize,
    sizes: &[Int],
) -> Result<Vec<ValueId>, Refusal> {
    if let [] | [_] = sizes {
        return Ok(sizes.iter().map(|_| x).collect());
    }
    let known: Option<Vec<i64>> = sizes.iter().map(|size| size.known()).collect();
    if let (Some(mut sizes), Some(extent)) =
        (known, builder.shape(x).get(axis).and_then(Dim::known))
    {
        let before: i64 = sizes.part(..back(sizes.len(), 1)?)?.iter().sum();
        let last = back(sizes.len(), 1)?;
        *sizes.at_mut(last)? = extent as i64 - before;
        if sizes.contains(&0) {
            let sizes: Vec<_> = sizes.into_iter().map(Int::Known).collect();
            return one_by_one(builder, x, axis, &sizes);
        }
        let even = sizes.iter().all(|size| Some(size) == sizes.first());
        let sizes: Vec<_> = sizes.into_iter().map(int32).collect::<Result<_, _>>()?;
        let (count, sizes): (Arg, Arg) = if even {
            ((sizes.len() as i32).into(), Arg::Absent)
        } else {
            (Arg::Absent, sizes.as_slice().into())
        };
        let mut op = operation(
            OpKind::Split,
            [
                ("x", x.into()),
                ("num_splits", count),
                ("split_sizes", sizes),
                ("axis", (axis as i32).into()),
            ],
        );
        // Inference takes the number of parts from that of the results; appending names them anew.
        op.outputs = vec![x; last + 1];
        return builder.append(op);
    }
    one_by_one(builder, x, axis, sizes)
}

fn one_by_one(
    builder: &mut Builder,
    x: ValueId,
    axis: usize,
    sizes: &[Int],
) -> Result<Vec<ValueId>, Refusal> {
    let mut begin = Int::Known(0);
    let mut parts = Vec::with_capacity(sizes.len());
    for (at, &size) in sizes.iter().enumerate() {
        let end = builder.add_ints(begin, size)?;
        let range =
            if at + 1 == sizes.len() { Range::from(begin) } else { Range::between(begin, end) };
        parts.push(sliced(builder, x, axis, range)?);
        begin = end;
    }
    Ok(parts)
}

/// A tensor without axes says how many parts there are, which the program has noted, too; a vector says where each
/// ends.
fn split_by_tensor(call: &mut Call<'_, '_>) -> Results {
    let indices = call.tensor("tensor_indices_or_sections")?.value;
    let count = parts(call) as i64;
    if call.rank(indices) == 0 {
        return split_into(call, count, None);
    }
    let mut ends = Vec::new();
    for at in 0..count - 1 {
        let end = taken_at(call, indices, 0, Int::Known(at))?;
        ends.push(call.int_of(end));
    }
    split_before(call, &ends, None)
}
