//! Elements in order.

use coremill_mil::ir::{Opset, ValueId};
use coremill_mil::ops::OpKind;
use coremill_tensor::DType;

use super::gather::gathered_along;
use crate::bounds::{At, checked};
use crate::error::{Refusal, refuse};
use crate::lower::builder::{Arg, Builder, int32};
use crate::lower::call::{Call, Results};
use crate::lower::ops::shape::taken_at;
use crate::lower::row::{Row, all, some};
use crate::lower::value::Int;

pub(super) const ROWS: &[Row] = &[
    some("aten.topk", &["default"], topk),
    some("aten.sort", &["default", "stable"], sort),
    all("aten.msort", sort_rows),
    all("aten.argsort", argsort),
    some("aten.kthvalue", &["default"], kth_value),
];

/// The first so many along an axis, in order, and where they were.
fn first(
    builder: &mut Builder,
    x: ValueId,
    axis: usize,
    count: i64,
    ascending: bool,
) -> Result<[ValueId; 2], Refusal> {
    let later = builder.opset() >= Opset::Ios16;
    let sort: Arg = if later { true.into() } else { Arg::Absent };
    let values = builder.emit_many(
        OpKind::Topk,
        [
            ("x", x.into()),
            ("k", int32(count)?.into()),
            ("axis", (axis as i32).into()),
            ("ascending", ascending.into()),
            ("sort", sort),
        ],
    )?;
    match values[..] {
        [values, places] => Ok([values, places]),
        _ => refuse!("`topk` gives other than values and indices"),
    }
}

/// All along an axis, in order, and where they were.
pub(super) fn sorted(
    builder: &mut Builder,
    x: ValueId,
    axis: usize,
    ascending: bool,
) -> Result<[ValueId; 2], Refusal> {
    if let Some(extent) = *builder.extents(x).at(axis)? {
        return first(builder, x, axis, extent as i64, ascending);
    }
    let places = places_in_order(builder, x, axis, ascending)?;
    Ok([gathered_along(builder, x, places, axis)?, places])
}

pub(super) fn places_in_order(
    builder: &mut Builder,
    x: ValueId,
    axis: usize,
    ascending: bool,
) -> Result<ValueId, Refusal> {
    builder.emit(
        OpKind::Argsort,
        [("x", x.into()), ("axis", (axis as i32).into()), ("ascending", ascending.into())],
    )
}

/// `self` as numbers, which alone have an order for Core ML.
pub(super) fn numbers(call: &mut Call<'_, '_>) -> Result<ValueId, Refusal> {
    let x = call.tensor("self")?.value;
    match call.dtype(x) {
        DType::Bool => call.cast(x, DType::Int32),
        _ => Ok(x),
    }
}

/// Values and indices of a scalar: itself, and 0.
fn of_scalar(call: &mut Call<'_, '_>, x: ValueId) -> Results {
    let zero = call.int_value(Int::Known(0))?;
    call.give_all(&[x, zero])
}

fn topk(call: &mut Call<'_, '_>) -> Results {
    let x = numbers(call)?;
    if call.rank(x) == 0 {
        return of_scalar(call, x);
    }
    let axis = call.axis("dim", call.rank(x))?;
    let ascending = !call.flag("largest")?;
    let both = match call.int("k")? {
        Int::Known(count) => first(call, x, axis, count, ascending)?,
        Int::Computed(_) => {
            let count = call.int("k")?;
            let [values, places] = sorted(call, x, axis, ascending)?;
            let range = crate::lower::ops::shape::Range::to(count);
            [
                crate::lower::ops::shape::sliced(call, values, axis, range)?,
                crate::lower::ops::shape::sliced(call, places, axis, range)?,
            ]
        }
    };
    call.give_all(&both)
}

fn sort(call: &mut Call<'_, '_>) -> Results {
    let x = numbers(call)?;
    if call.rank(x) == 0 {
        return of_scalar(call, x);
    }
    let axis = call.axis("dim", call.rank(x))?;
    let ascending = !call.flag("descending")?;
    let both = sorted(call, x, axis, ascending)?;
    call.give_all(&both)
}

fn sort_rows(call: &mut Call<'_, '_>) -> Results {
    let x = numbers(call)?;
    let [values, _] = sorted(call, x, 0, true)?;
    call.give(values)
}

fn argsort(call: &mut Call<'_, '_>) -> Results {
    let x = numbers(call)?;
    if call.rank(x) == 0 {
        let zero = call.int_value(Int::Known(0))?;
        return call.give(zero);
    }
    let axis = call.axis("dim", call.rank(x))?;
    let ascending = !call.flag("descending")?;
    let places = places_in_order(call, x, axis, ascending)?;
    call.give(places)
}

fn kth_value(call: &mut Call<'_, '_>) -> Results {
    let x = numbers(call)?;
    if call.rank(x) == 0 {
        return of_scalar(call, x);
    }
    let axis = call.axis("dim", call.rank(x))?;
    let rank = call.known_int("k")?;
    let smallest = first(call, x, axis, rank, true)?;
    let mut both = Vec::with_capacity(2);
    for values in smallest {
        let last = taken_at(call, values, axis, (checked(rank) - 1).get().map(Int::Known)?)?;
        both.push(if call.flag("keepdim")? {
            call.expand_dims(last, &[axis as i32])?
        } else {
            last
        });
    }
    call.give_all(&both)
}
