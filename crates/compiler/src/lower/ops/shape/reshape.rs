//! The same elements in the same order under other dimensions, and what leaves a tensor as it is.

use coremill_mil::ir::{Dim, ValueId};
use coremill_mil::ops::OpKind;
use coremill_pt2::ScalarType;

use super::mapped;
use crate::bounds::At;
use crate::error::{Refusal, refuse};
use crate::lower::builder::Builder;
use crate::lower::call::{Call, Results, normalized};
use crate::lower::row::{Row, all, some};
use crate::lower::value::Int;

pub(super) const ROWS: &[Row] = &[
    some("aten.view", &["default"], |call| view(call, "size")),
    some("aten.view", &["dtype"], reinterpret),
    some("aten.view_copy", &["default"], |call| view(call, "size")),
    some("aten.view_copy", &["dtype"], reinterpret),
    all("aten.reshape", |call| view(call, "shape")),
    all("aten._reshape_alias", |call| view(call, "size")),
    all("aten._reshape_copy", |call| view(call, "size")),
    all("aten.squeeze", squeeze),
    all("aten.squeeze_copy", squeeze),
    all("aten.unsqueeze", unsqueeze),
    all("aten.unsqueeze_copy", unsqueeze),
    all("aten.contiguous", unchanged),
    all("aten.clone", unchanged),
    all("aten.alias", unchanged),
    all("aten.alias_copy", unchanged),
    all("aten.detach", unchanged),
    all("aten.detach_copy", unchanged),
];

fn unchanged(call: &mut Call<'_, '_>) -> Results {
    mapped(call, "self", |_, x| Ok(x))
}

fn view(call: &mut Call<'_, '_>, name: &str) -> Results {
    let sizes = call.int_list(name)?;
    mapped(call, "self", |call, x| resized(call, x, &sizes))
}

fn squeeze(call: &mut Call<'_, '_>) -> Results {
    mapped(call, "self", |call, x| {
        let rank = call.rank(x);
        let listed = if call.has("dim") {
            let axes = call.known_ints("dim")?.into_iter();
            Some(axes.map(|axis| normalized(axis, rank)).collect::<Result<Vec<_>, _>>()?)
        } else {
            None
        };
        let goes = |axis: &usize| {
            call.shape(x).get(*axis) == Some(&Dim::Known(1))
                && listed.as_ref().is_none_or(|listed| listed.contains(axis))
        };
        let axes: Vec<_> = (0..rank).filter(goes).map(|axis| axis as i32).collect();
        call.squeeze(x, &axes)
    })
}

fn unsqueeze(call: &mut Call<'_, '_>) -> Results {
    mapped(call, "self", |call, x| {
        let at = normalized(call.known_int("dim")?, call.rank(x) + 1)? as i32;
        call.expand_dims(x, &[at])
    })
}

/// The bits of one type read as another; Core ML has no bits to look at, only ranges of integers.
fn reinterpret(call: &mut Call<'_, '_>) -> Results {
    use ScalarType::{Bool, Int8, UInt8};
    let x = call.tensor("self")?;
    let wanted = call.result_dtype()?;
    let wrapped = |call: &mut Call<'_, '_>, limit: i32, kind: OpKind, by: i32| {
        let beyond = match kind {
            OpKind::Sub => call.binary(OpKind::Greater, x.value, limit)?,
            _ => call.binary(OpKind::Less, x.value, limit)?,
        };
        let moved = call.binary(kind, x.value, by)?;
        call.select(beyond, moved, x.value)
    };
    let y = match (x.dtype, wanted) {
        (from, to) if from == to => x.value,
        (Bool, UInt8 | Int8) => call.cast_to(x.value, wanted)?,
        (UInt8, Int8) => wrapped(call, 127, OpKind::Sub, 256)?,
        (Int8, UInt8) => wrapped(call, 0, OpKind::Add, 256)?,
        (from, to) => {
            refuse!("sees the bits of `{from}` as `{to}`; Core ML has no operation on bits")
        }
    };
    call.give(y)
}

/// A tensor with the dimensions of the call's first result, which `sizes` gives as far as torch left them
/// open.
pub(crate) fn resized(
    call: &mut Call<'_, '_>,
    x: ValueId,
    sizes: &[Int],
) -> Result<ValueId, Refusal> {
    let known = call.result_sizes(0)?;
    if known.len() != sizes.len() {
        return to_sizes(call, x, sizes);
    }
    let sizes: Vec<_> =
        sizes.iter().zip(known).map(|(&size, known)| known.map_or(size, Int::Known)).collect();
    to_sizes(call, x, &sizes)
}

/// The elements of a tensor like `like` whose axes were brought to another order and then run together, as they
/// were.
pub(super) fn put_back(
    builder: &mut Builder,
    x: ValueId,
    like: ValueId,
    order: &[usize],
) -> Result<ValueId, Refusal> {
    let mut sizes = Vec::with_capacity(order.len());
    for &axis in order {
        sizes.push(builder.dim(like, axis)?);
    }
    let x = to_sizes(builder, x, &sizes)?;
    let mut back = vec![0; order.len()];
    for (at, &axis) in order.iter().enumerate() {
        *back.at_mut(axis)? = at;
    }
    builder.transpose(x, &back)
}

/// A tensor with other dimensions, of which one may be −1, by the fewest operations.
pub(crate) fn to_sizes(
    builder: &mut Builder,
    x: ValueId,
    sizes: &[Int],
) -> Result<ValueId, Refusal> {
    let shape = builder.shape(x);
    let same = shape.len() == sizes.len()
        && shape.iter().zip(sizes).all(|(dim, &size)| builder.is_extent(dim, size));
    if same {
        return Ok(x);
    }
    let open = sizes.iter().filter(|size| size.known().is_none_or(|size| size < 0)).count();
    if open > 1
        && let Some((removed, added)) = units(builder, x, sizes)
    {
        let x = builder.squeeze(x, &removed)?;
        return builder.expand_dims(x, &added);
    }
    let mut sizes = sizes.to_vec();
    // What is open may be left for the rest even if another dimension is computed: fewer operations do.
    if open > 0 && !sizes.contains(&Int::Known(-1)) {
        let last = sizes.iter().rposition(|size| size.known().is_none());
        if let Some(last) = last {
            *sizes.at_mut(last)? = Int::Known(-1);
        }
    }
    if sizes.contains(&Int::Known(0)) {
        refuse!("makes a tensor without elements, which Core ML has none of");
    }
    if builder.rank(x) == 0 {
        let axes: Vec<_> = (0..sizes.len() as i32).collect();
        return builder.expand_dims(x, &axes);
    }
    builder.reshape(x, &sizes)
}

/// The axes of one element to take away and to add, if nothing else changes.
fn units(builder: &Builder, x: ValueId, sizes: &[Int]) -> Option<(Vec<i32>, Vec<i32>)> {
    let shape = builder.shape(x);
    let is_unit = |dim: &&Dim| **dim == Dim::Known(1);
    let kept: Vec<_> = shape.iter().filter(|dim| !is_unit(dim)).collect();
    let wanted: Vec<_> = sizes.iter().filter(|&&size| size != Int::Known(1)).collect();
    let same = kept.len() == wanted.len()
        && kept.iter().zip(&wanted).all(|(dim, size)| builder.is_extent(dim, **size));
    if !same {
        return None;
    }
    let removed = shape.iter().enumerate().filter(|(_, dim)| is_unit(dim));
    let added = sizes.iter().enumerate().filter(|(_, size)| **size == Int::Known(1));
    let axes = |axis: usize| axis as i32;
    Some((removed.map(|(at, _)| axes(at)).collect(), added.map(|(at, _)| axes(at)).collect()))
}
