//! Elements repeated.

use coremill_mil::ir::{Dim, ValueId};
use coremill_mil::ops::OpKind;
use coremill_tensor::DType;

use super::mapped;
use super::write::empty;
use crate::bounds::At;
use crate::error::{Refusal, refuse};
use crate::lower::builder::Builder;
use crate::lower::call::{Call, Results};
use crate::lower::ops::index::cumulative;
use crate::lower::row::{Row, all, some};
use crate::lower::value::Int;

pub(super) const ROWS: &[Row] = &[
    all("aten.expand", expand),
    all("aten.expand_copy", expand),
    all("aten.repeat", |call| repeat(call, "repeats")),
    some("aten.repeat_interleave", &["Tensor"], interleaved_places),
];

fn expand(call: &mut Call<'_, '_>) -> Results {
    let sizes = call.int_list("size")?;
    mapped(call, "self", |call, x| expanded_to_result(call, x, &sizes))
}

fn expanded_to_result(
    call: &mut Call<'_, '_>,
    x: ValueId,
    sizes: &[Int],
) -> Result<ValueId, Refusal> {
    let known = call.result_sizes(0)?;
    let sizes = sizes.iter().zip(known);
    let sizes: Vec<_> = sizes.map(|(&size, known)| known.map_or(size, Int::Known)).collect();
    expanded(call, x, &sizes)
}

/// A tensor with axes of one element repeated to these sizes, and axes put before its own; −1 leaves an axis.
pub(crate) fn expanded(
    builder: &mut Builder,
    x: ValueId,
    sizes: &[Int],
) -> Result<ValueId, Refusal> {
    let Some(added) = sizes.len().checked_sub(builder.rank(x)) else {
        refuse!("expands a tensor of rank {} to rank {}", builder.rank(x), sizes.len());
    };
    let shape = builder.shape(x).to_vec();
    let mut repeats = Vec::with_capacity(sizes.len());
    for (axis, &size) in sizes.iter().enumerate() {
        let extent = axis.checked_sub(added).and_then(|axis| shape.get(axis));
        repeats.push(match extent {
            None | Some(Dim::Known(1)) if size != Int::Known(-1) => size,
            _ => Int::Known(1),
        });
    }
    if repeats.contains(&Int::Known(0)) {
        let dtype = builder.dtype(x);
        return empty(builder, sizes, dtype);
    }
    let axes: Vec<_> = (0..added as i32).collect();
    let x = builder.expand_dims(x, &axes)?;
    let y = tiled(builder, x, &repeats)?;
    if repeats.iter().any(|repeat| repeat.known().is_none()) {
        // Nobody has to look at what is repeated to learn how often it is.
        builder.note_dims(y, &repeats);
        builder.repeated.insert(y, x);
    }
    Ok(y)
}

/// A tensor that stands so often beside itself along each axis.
pub(crate) fn tiled(
    builder: &mut Builder,
    x: ValueId,
    repeats: &[Int],
) -> Result<ValueId, Refusal> {
    if repeats.iter().all(|&repeat| repeat == Int::Known(1)) {
        return Ok(x);
    }
    let repeats = builder.ints(repeats)?;
    builder.emit(OpKind::Tile, [("x", x.into()), ("reps", repeats)])
}

fn repeat(call: &mut Call<'_, '_>, name: &str) -> Results {
    let repeats = call.int_list(name)?;
    mapped(call, "self", |call, x| {
        let rank = call.rank(x);
        let mut repeats = repeats.clone();
        // `tile` takes fewer than there are axes, `repeat` more.
        while repeats.len() < rank {
            repeats.insert(0, Int::Known(1));
        }
        if repeats.contains(&Int::Known(0)) {
            refuse!("repeats a tensor 0 times; Core ML has no tensors without elements");
        }
        let axes: Vec<_> = (0..(repeats.len() - rank) as i32).collect();
        let x = call.expand_dims(x, &axes)?;
        tiled(call, x, &repeats)
    })
}

/// The sizes that tensors have together where each is repeated along its axes of one element.
pub(crate) fn broadcast_sizes(
    builder: &mut Builder,
    values: &[ValueId],
) -> Result<Vec<Int>, Refusal> {
    let rank = values.iter().map(|&value| builder.rank(value)).max().unwrap_or(0);
    let mut sizes = vec![Int::Known(1); rank];
    for &value in values {
        let before = rank - builder.rank(value);
        for axis in 0..builder.rank(value) {
            let found = *sizes.at(before + axis)?;
            // A known extent is kept, and so is the first of those that are open.
            if found == Int::Known(1) || builder.extents(value).at(axis)?.is_some_and(|e| e != 1) {
                *sizes.at_mut(before + axis)? = builder.dim(value, axis)?;
            }
        }
    }
    Ok(sizes)
}

fn interleaved_places(call: &mut Call<'_, '_>) -> Results {
    let repeats = call.tensor("repeats")?.value;
    let places = interleaving(call, repeats)?;
    call.give(places)
}

/// For counts of 2, 0 and 3: 0, 0, 2, 2, 2. What stands at a place is how many of the running sums it is not
/// below.
fn interleaving(call: &mut Call<'_, '_>, repeats: ValueId) -> Result<ValueId, Refusal> {
    let ends = cumulative(call, repeats, 0)?;
    let total = match call.known(repeats) {
        Some(_) => super::taken_at(call, ends, 0, Int::Known(-1))?,
        None => call.emit(
            OpKind::ReduceSum,
            [("x", repeats.into()), ("axes", [0].into()), ("keep_dims", false.into())],
        )?,
    };
    let places = call
        .emit(OpKind::Range1d, [("end", total.into()), ("start", 0.into()), ("step", 1.into())])?;
    let rows = call.expand_dims(places, &[1])?;
    let columns = call.expand_dims(ends, &[0])?;
    let beyond = call.binary(OpKind::GreaterEqual, rows, columns)?;
    let beyond = call.cast(beyond, DType::Int32)?;
    call.emit(
        OpKind::ReduceSum,
        [("x", beyond.into()), ("axes", [1].into()), ("keep_dims", false.into())],
    )
}
