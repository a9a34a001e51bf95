//! Writes at indices along whole axes.

use super::scatter::{like_self, neutral};
use super::tensor::Indices;
use super::{constant_ints, progression, written_along};
use crate::lower::prelude::*;

pub(super) const ROWS: &[Row] = &[
    tensor("aten.index_put", index_put).only(&["default", "hacked_twin"]),
    tensor("aten.{_index_put_impl,_unsafe_index_put}", index_put),
    tensor("aten.index_add", index_add),
    tensor("aten.index_copy", index_copy),
    tensor("aten.index_reduce", index_reduce),
];

fn index_put(call: &mut Call<'_, '_>) -> ValueResult {
    let x = call.tensor("self")?;
    let values = call.value("values")?;
    let values = call.cast_to(values, x.dtype)?;
    let accumulate = call.flag("accumulate")?;
    if let Some(y) = put_by_mask(call, x.value, values, accumulate)? {
        return Ok(y);
    }
    let indices = Indices::of(call)?;
    if indices.by_axis.is_empty() {
        let dims = call.dims(x.value)?;
        let values = call.expanded(values, &dims)?;
        return Ok(if accumulate { call.binary(OpKind::Add, x.value, values)? } else { values });
    }
    let joined = indices.joined(call, x.value)?;
    let mode = if accumulate { "add" } else { "update" };
    let y = put(call, joined.x, joined.place, values, joined.axis, mode)?;
    joined.apart(call, y)
}

/// A single mask with values that broadcast is a selection.
fn put_by_mask(
    call: &mut Call<'_, '_>,
    x: ValueId,
    values: ValueId,
    accumulate: bool,
) -> Result<Option<ValueId>> {
    let indices = call.optional_tensors("indices")?;
    let given: Vec<_> = indices.iter().enumerate().filter(|(_, it)| it.is_some()).collect();
    let [(axis, Some(mask))] = given[..] else { return Ok(None) };
    let mask = mask.value;
    if call.dtype(mask) != DType::Bool {
        return Ok(None);
    }
    let rest = call.rank(x).saturating_sub(axis + call.rank(mask));
    let only_one = call.extents(values).iter().all(|&extent| extent == Some(1));
    // Values with an axis for the true elements differ per element.
    if !only_one && (axis > 0 || call.rank(values) > rest) {
        return Ok(None);
    }
    let values = if only_one { call.scalar_of(values)? } else { values };
    let axes: Vec<_> = (0..rest).map(|at| (call.rank(mask) + at) as i32).collect();
    let mask = call.expand_dims(mask, &axes)?;
    let written = if accumulate { call.binary(OpKind::Add, x, values)? } else { values };
    let y = call.select(mask, written, x)?;
    let dims = call.dims(x)?;
    Ok(Some(call.expanded(y, &dims)?))
}

/// Writes values at indices along an axis; the axes of the indices replace it in the values.
fn put(
    call: &mut Call<'_, '_>,
    x: ValueId,
    place: ValueId,
    values: ValueId,
    axis: usize,
    mode: &str,
) -> ValueResult {
    let dims = call.dims(x)?;
    let mut sizes = dims.part(..axis)?.to_vec();
    sizes.extend(call.dims(place)?);
    sizes.extend(dims.part(axis + 1..)?);
    let mut values = call.expanded(values, &sizes)?;
    let mut place = place;
    if call.rank(place) == 0 {
        place = call.expand_dims(place, &[0])?;
        values = call.expand_dims(values, &[axis as i32])?;
    }
    if mode == "update" && call.rank(place) == 1 {
        if let Some(range) = constant_ints(call, place).as_deref().and_then(progression) {
            return call.replaced(x, values, axis, range);
        }
        if call.opset() >= Opset::Ios18 && call.extents(place) == [Some(1)] {
            let begin = call.squeeze(place, &[0])?;
            let begin = call.int_of(begin);
            let end = call.add_ints(begin, Int::Known(1))?;
            return call.replaced(x, values, axis, Range::between(begin, end));
        }
    }
    written_along(call, x, place, values, axis, mode)
}

/// Operands of a write along an axis, all of rank 1 or higher.
struct AxisWrite {
    x: ValueId,
    axis: usize,
    indices: ValueId,
    /// The values, in the type of the tensor.
    source: ValueId,
}

impl AxisWrite {
    fn of(call: &mut Call<'_, '_>) -> Result<AxisWrite> {
        let (x, indices) = (call.value("self")?, call.value("index")?);
        let x = call.with_axes(x)?;
        let axis = call.axis("dim", call.rank(x))?;
        let indices = call.with_axes(indices)?;
        let source = call.value("source")?;
        let dtype = call.dtype(x);
        let source = call.cast(source, dtype)?;
        // A single slice may lack the axis.
        let source = match call.rank(source) < call.rank(x) {
            true => call.expand_dims(source, &[axis as i32])?,
            false => source,
        };
        Ok(AxisWrite { x, axis, indices, source })
    }
}

fn index_add(call: &mut Call<'_, '_>) -> ValueResult {
    let AxisWrite { x, axis, indices, source } = AxisWrite::of(call)?;
    let alpha = call.float("alpha")?;
    let source = call.scaled(source, alpha)?;
    let y = written_along(call, x, indices, source, axis, "add")?;
    like_self(call, y)
}

fn index_copy(call: &mut Call<'_, '_>) -> ValueResult {
    let AxisWrite { x, axis, indices, source } = AxisWrite::of(call)?;
    let y = put(call, x, indices, source, axis, "update")?;
    like_self(call, y)
}

fn index_reduce(call: &mut Call<'_, '_>) -> ValueResult {
    let AxisWrite { x, axis, indices, source } = AxisWrite::of(call)?;
    let mode = match call.text("reduce")? {
        Some("prod") => "mul",
        Some("amax") => "max",
        Some("amin") => "min",
        other => {
            refuse!(
                "the reduction `{}` is not supported; expected `prod`, `amax` or `amin`",
                other.unwrap_or_default()
            )
        }
    };
    let x = if call.flag("include_self")? {
        x
    } else {
        let dtype = call.dtype(x);
        let neutral = call.full(&[], dtype, neutral(mode, dtype))?;
        put(call, x, indices, neutral, axis, "update")?
    };
    let y = written_along(call, x, indices, source, axis, mode)?;
    like_self(call, y)
}
