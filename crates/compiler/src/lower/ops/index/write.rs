//! Elements written where indices along whole axes say.

use coremill_mil::ir::{Opset, ValueId};
use coremill_mil::ops::OpKind;
use coremill_tensor::DType;

use super::tensor::Indices;
use super::{constant_ints, progression, written_along};
use crate::bounds::At;
use crate::error::{Refusal, refuse};
use crate::lower::call::{Call, Results};
use crate::lower::ops::shape::{Range, expanded, full, replaced};
use crate::lower::row::{Row, all, some};
use crate::lower::value::Int;

pub(super) const ROWS: &[Row] = &[
    some("aten.index_put", &["default", "hacked_twin"], index_put),
    all("aten._index_put_impl", index_put),
    all("aten._unsafe_index_put", index_put),
    all("aten.index_add", index_add),
    all("aten.index_copy", index_copy),
    all("aten.index_reduce", index_reduce),
];

fn index_put(call: &mut Call<'_, '_>) -> Results {
    let x = call.tensor("self")?;
    let values = call.tensor("values")?.value;
    let values = call.cast_to(values, x.dtype)?;
    let accumulate = call.flag("accumulate")?;
    if let Some(y) = put_by_mask(call, x.value, values, accumulate)? {
        return call.give(y);
    }
    let indices = Indices::of(call)?;
    if indices.by_axis.is_empty() {
        let dims = call.dims(x.value)?;
        let values = expanded(call, values, &dims)?;
        let y = if accumulate { call.binary(OpKind::Add, x.value, values)? } else { values };
        return call.give(y);
    }
    let joined = indices.joined(call, x.value)?;
    let mode = if accumulate { "add" } else { "update" };
    let y = put(call, joined.x, joined.place, values, joined.axis, mode)?;
    let y = joined.apart(call, y)?;
    call.give(y)
}

/// What a single mask does whose values are the same for every place: a choice.
fn put_by_mask(
    call: &mut Call<'_, '_>,
    x: ValueId,
    values: ValueId,
    accumulate: bool,
) -> Result<Option<ValueId>, Refusal> {
    let indices = call.optional_tensors("indices")?;
    let given: Vec<_> = indices.iter().enumerate().filter(|(_, it)| it.is_some()).collect();
    let [(axis, Some(mask))] = given[..] else { return Ok(None) };
    let mask = mask.value;
    if call.dtype(mask) != DType::Bool {
        return Ok(None);
    }
    let rest = call.rank(x).saturating_sub(axis + call.rank(mask));
    let only_one = call.extents(values).iter().all(|&extent| extent == Some(1));
    // Values that have an axis of their own for the places that are true are one for each of them.
    if !only_one && (axis > 0 || call.rank(values) > rest) {
        return Ok(None);
    }
    let values = if only_one {
        let axes: Vec<_> = (0..call.rank(values) as i32).collect();
        call.squeeze(values, &axes)?
    } else {
        values
    };
    let axes: Vec<_> = (0..rest).map(|at| (call.rank(mask) + at) as i32).collect();
    let mask = call.expand_dims(mask, &axes)?;
    let written = if accumulate { call.binary(OpKind::Add, x, values)? } else { values };
    let y = call.select(mask, written, x)?;
    let dims = call.dims(x)?;
    Ok(Some(expanded(call, y, &dims)?))
}

/// Values written at indices along an axis, in whose place the values have the axes of the indices.
fn put(
    call: &mut Call<'_, '_>,
    x: ValueId,
    place: ValueId,
    values: ValueId,
    axis: usize,
    mode: &str,
) -> Result<ValueId, Refusal> {
    let dims = call.dims(x)?;
    let mut sizes = dims.part(..axis)?.to_vec();
    sizes.extend(call.dims(place)?);
    sizes.extend(dims.part(axis + 1..)?);
    let mut values = expanded(call, values, &sizes)?;
    let mut place = place;
    if call.rank(place) == 0 {
        place = call.expand_dims(place, &[0])?;
        values = call.expand_dims(values, &[axis as i32])?;
    }
    if mode == "update" && call.rank(place) == 1 {
        if let Some(range) = constant_ints(call, place).as_deref().and_then(progression) {
            return replaced(call, x, values, axis, range);
        }
        if call.opset() >= Opset::Ios18 && call.extents(place) == [Some(1)] {
            let begin = call.squeeze(place, &[0])?;
            let begin = call.int_of(begin);
            let end = call.add_ints(begin, Int::Known(1))?;
            return replaced(call, x, values, axis, Range::between(begin, end));
        }
    }
    written_along(call, x, place, values, axis, mode)
}

/// `self`, the axis, indices as a vector, and `source` in the type of `self`; all of rank 1 at least.
fn along_axis(call: &mut Call<'_, '_>) -> Result<(ValueId, usize, ValueId), Refusal> {
    let x = call.tensor("self")?.value;
    let x = if call.rank(x) == 0 { call.expand_dims(x, &[0])? } else { x };
    let axis = call.axis("dim", call.rank(x))?;
    let indices = call.tensor("index")?.value;
    let indices = if call.rank(indices) == 0 { call.expand_dims(indices, &[0])? } else { indices };
    Ok((x, axis, indices))
}

fn source(call: &mut Call<'_, '_>, x: ValueId, axis: usize) -> Result<ValueId, Refusal> {
    let source = call.tensor("source")?.value;
    let dtype = call.dtype(x);
    let source = call.cast(source, dtype)?;
    // One element may come without its axis.
    if call.rank(source) < call.rank(x) {
        return call.expand_dims(source, &[axis as i32]);
    }
    Ok(source)
}

/// The result without the axis that a scalar was given.
fn give_like_self(call: &mut Call<'_, '_>, y: ValueId) -> Results {
    let is_scalar = call.result_tensor(0)?.sizes.is_empty();
    let y = if is_scalar { call.squeeze(y, &[0])? } else { y };
    call.give(y)
}

fn index_add(call: &mut Call<'_, '_>) -> Results {
    let (x, axis, indices) = along_axis(call)?;
    let source = source(call, x, axis)?;
    let alpha = call.float("alpha")?;
    let source = if alpha == 1.0 {
        source
    } else {
        let alpha = call.scalar_like(source, alpha)?;
        call.binary(OpKind::Mul, source, alpha)?
    };
    let y = written_along(call, x, indices, source, axis, "add")?;
    give_like_self(call, y)
}

fn index_copy(call: &mut Call<'_, '_>) -> Results {
    let (x, axis, indices) = along_axis(call)?;
    let source = source(call, x, axis)?;
    let y = put(call, x, indices, source, axis, "update")?;
    give_like_self(call, y)
}

fn index_reduce(call: &mut Call<'_, '_>) -> Results {
    let (x, axis, indices) = along_axis(call)?;
    let source = source(call, x, axis)?;
    let mode = match call.text("reduce")? {
        Some("prod") => "mul",
        Some("amax") => "max",
        Some("amin") => "min",
        other => refuse!(
            "reduces by `{}`; accepted are `prod`, `amax` and `amin`",
            other.unwrap_or_default()
        ),
    };
    let x = if call.flag("include_self")? {
        x
    } else {
        let dtype = call.dtype(x);
        let neutral = full(call, &[], dtype, super::scatter::neutral(mode, dtype))?;
        put(call, x, indices, neutral, axis, "update")?
    };
    let y = written_along(call, x, indices, source, axis, mode)?;
    give_like_self(call, y)
}
