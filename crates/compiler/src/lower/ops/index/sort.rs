//! Sorting and selection.

use super::gather::gathered_along;
use crate::lower::prelude::*;

pub(super) const ROWS: &[Row] = &[
    several("aten.topk", topk).only(&["default"]),
    several("aten.sort", sort).only(&["default", "stable"]),
    tensor("aten.msort", sort_rows),
    tensor("aten.argsort", argsort),
    several("aten.kthvalue", kth_value).only(&["default"]),
];

/// Sorts along an axis; returns elements and indices.
pub(super) fn sorted(
    builder: &mut Builder,
    x: ValueId,
    axis: usize,
    ascending: bool,
) -> Result<[ValueId; 2]> {
    if let Some(extent) = *builder.extents(x).at(axis)? {
        return builder.first(x, axis, extent as i64, ascending);
    }
    let places = emit!(builder, OpKind::Argsort, x, axis, ascending)?;
    Ok([gathered_along(builder, x, places, axis)?, places])
}

/// `self` as a numeric tensor, as Core ML cannot sort booleans.
pub(super) fn numbers(call: &mut Call<'_, '_>) -> ValueResult {
    let x = call.value("self")?;
    call.numeric(x)
}

/// Applies a function along `dim`. A scalar results in itself and index 0.
fn along<'a, 'p>(
    call: &mut Call<'a, 'p>,
    of: impl FnOnce(&mut Call<'a, 'p>, ValueId, usize) -> Result<[ValueId; 2]>,
) -> Result<[ValueId; 2]> {
    let x = numbers(call)?;
    match call.rank(x) {
        0 => Ok([x, call.int_value(Int::Known(0))?]),
        rank => {
            let axis = call.axis("dim", rank)?;
            of(call, x, axis)
        }
    }
}

fn topk(call: &mut Call<'_, '_>) -> Results {
    let ascending = !call.flag("largest")?;
    let both = along(call, |call, x, axis| match call.int("k")? {
        Int::Known(count) => call.first(x, axis, count, ascending),
        count => {
            let range = Range::to(count);
            let [values, places] = sorted(call, x, axis, ascending)?;
            Ok([call.sliced(values, axis, range)?, call.sliced(places, axis, range)?])
        }
    })?;
    call.give_all(&both)
}

fn sort(call: &mut Call<'_, '_>) -> Results {
    let ascending = !call.flag("descending")?;
    let both = along(call, |call, x, axis| sorted(call, x, axis, ascending))?;
    call.give_all(&both)
}

fn sort_rows(call: &mut Call<'_, '_>) -> ValueResult {
    let x = numbers(call)?;
    let [values, _] = sorted(call, x, 0, true)?;
    Ok(values)
}

fn argsort(call: &mut Call<'_, '_>) -> ValueResult {
    let ascending = !call.flag("descending")?;
    let [_, places] =
        along(call, |call, x, axis| Ok([x, emit!(call, OpKind::Argsort, x, axis, ascending)?]))?;
    Ok(places)
}

fn kth_value(call: &mut Call<'_, '_>) -> Results {
    let (count, keep) = (call.known_int("k")?, call.flag("keepdim")?);
    let both = along(call, |call, x, axis| nth_smallest(call, x, axis, count, keep))?;
    call.give_all(&both)
}

/// The `count`-th smallest element along an axis, and its index.
pub(crate) fn nth_smallest(
    builder: &mut Builder,
    x: ValueId,
    axis: usize,
    count: i64,
    keep: bool,
) -> Result<[ValueId; 2]> {
    let last = (checked(count) - 1).get()?;
    let mut both = builder.first(x, axis, count, true)?;
    for value in &mut both {
        *value = match keep {
            true => builder.slice(*value, axis, last, Some(count))?,
            false => builder.taken_at(*value, axis, Int::Known(last))?,
        };
    }
    Ok(both)
}
