//! Elements repeated.

use coremill_mil::ir::{Dim, ValueId};
use coremill_mil::ops::OpKind;
use coremill_tensor::DType;

use super::mapped;
use super::reshape::{resized, to_sizes};
use super::write::{empty, full};
use crate::error::{Refusal, refuse};
use crate::lower::builder::{Arg, Builder};
use crate::lower::call::{Call, Results};
use crate::lower::ops::index::cumulative;
use crate::lower::row::{Row, all, some};
use crate::lower::value::{Int, Lowered, Tensor};

pub(super) const ROWS: &[Row] = &[
    all("aten.expand", expand),
    all("aten.expand_copy", expand),
    all("aten.broadcast_to", expand),
    all("aten.expand_as", expand_as),
    all("aten.repeat", |call| repeat(call, "repeats")),
    all("aten.tile", |call| repeat(call, "dims")),
    some("aten.repeat_interleave", &["self_int"], interleave),
    some("aten.repeat_interleave", &["self_Tensor"], interleave_by),
    some("aten.repeat_interleave", &["Tensor"], interleaved_places),
    all("aten.meshgrid", meshgrid),
    all("aten.broadcast_tensors", broadcast_all),
    all("aten.cartesian_prod", cartesian_product),
    all("aten.vander", powers),
    all("aten.kron", kron),
];

fn expand(call: &mut Call<'_, '_>) -> Results {
    let sizes = call.int_list("size")?;
    mapped(call, "self", |call, x| expanded_to_result(call, x, &sizes))
}

fn expand_as(call: &mut Call<'_, '_>) -> Results {
    let other = call.tensor("other")?.value;
    let sizes = call.dims(other)?;
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
        let extent = axis.checked_sub(added).map(|axis| &shape[axis]);
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

fn interleave(call: &mut Call<'_, '_>) -> Results {
    let count = call.int("repeats")?;
    mapped(call, "self", |call, x| {
        let (x, axis) = flat_or_axis(call, x)?;
        if count == Int::Known(1) {
            return Ok(x);
        }
        let mut sizes = call.dims(x)?;
        let mut repeats = vec![Int::Known(1); sizes.len() + 1];
        repeats[axis + 1] = count;
        let apart = call.expand_dims(x, &[axis as i32 + 1])?;
        let repeated = tiled(call, apart, &repeats)?;
        sizes[axis] = call.mul_ints(sizes[axis], count)?;
        resized(call, repeated, &sizes)
    })
}

/// The tensor and the axis of `dim`; all its elements in a row if there is none.
fn flat_or_axis(call: &mut Call<'_, '_>, x: ValueId) -> Result<(ValueId, usize), Refusal> {
    if call.has("dim") && call.rank(x) > 0 {
        return Ok((x, call.axis("dim", call.rank(x))?));
    }
    Ok((to_sizes(call, x, &[Int::Known(-1)])?, 0))
}

fn interleave_by(call: &mut Call<'_, '_>) -> Results {
    let repeats = call.tensor("repeats")?.value;
    let places = interleaving(call, repeats)?;
    mapped(call, "self", |call, x| {
        let (x, axis) = flat_or_axis(call, x)?;
        crate::lower::ops::index::gathered(call, x, places, axis)
    })
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

fn meshgrid(call: &mut Call<'_, '_>) -> Results {
    let tensors = call.tensors("tensors")?;
    let columns_first = call.has("indexing") && call.text("indexing")? == Some("xy");
    grids(call, &tensors, columns_first)
}

/// All choices of one element of each, a row for each choice.
fn cartesian_product(call: &mut Call<'_, '_>) -> Results {
    let tensors = call.tensors("tensors")?;
    if let [only] = tensors[..] {
        return call.give(only.value);
    }
    let mut columns = Vec::with_capacity(tensors.len());
    for grid in grids(call, &tensors, false)? {
        if let Lowered::Tensor(grid) = grid {
            columns.push(to_sizes(call, grid.value, &[Int::Known(-1)])?);
        }
    }
    let rows =
        call.emit(OpKind::Stack, [("values", Arg::from(&columns[..])), ("axis", 1.into())])?;
    call.give(rows)
}

/// The powers of each element, from the highest down unless `increasing` is set.
fn powers(call: &mut Call<'_, '_>) -> Results {
    let dtype = call.result_dtype()?;
    let x = call.tensor("x")?.value;
    let x = call.cast_to(x, dtype)?;
    let count = match call.result_sizes(0)?[..] {
        [_, Some(count)] => count,
        _ => {
            refuse!("gives so many powers as a size says that is not known before the program runs")
        }
    };
    let dims = call.dims(x)?;
    let core = call.dtype(x);
    let mut columns = vec![full(call, &dims, core, 1.0)?];
    for _ in 1..count {
        let power = columns.last().copied().unwrap_or(x);
        columns.push(if columns.len() == 1 { x } else { call.binary(OpKind::Mul, power, x)? });
    }
    if !call.flag("increasing")? {
        columns.reverse();
    }
    let y = call.emit(OpKind::Stack, [("values", Arg::from(&columns[..])), ("axis", 1.into())])?;
    call.give(y)
}

/// Vectors along an axis each, repeated along those of the others.
fn grids(call: &mut Call<'_, '_>, tensors: &[Tensor], columns_first: bool) -> Results {
    let rank = tensors.len();
    // Along columns first, the first two tensors have each other's axis.
    let axis_of = |at: usize| match at {
        0 | 1 if columns_first && rank > 1 => 1 - at,
        at => at,
    };
    let mut sizes = vec![Int::Known(1); rank];
    for (at, tensor) in tensors.iter().enumerate() {
        sizes[axis_of(at)] = match call.rank(tensor.value) {
            0 => Int::Known(1),
            _ => call.dim(tensor.value, 0)?,
        };
    }
    let mut grids = Vec::with_capacity(rank);
    for (at, tensor) in tensors.iter().enumerate() {
        let own = axis_of(at);
        let axes: Vec<_> = (0..rank).filter(|&axis| axis != own).map(|axis| axis as i32).collect();
        let flat = match call.rank(tensor.value) {
            0 => call.expand_dims(tensor.value, &[0])?,
            _ => tensor.value,
        };
        let apart = call.expand_dims(flat, &axes)?;
        grids.push(Lowered::tensor(expanded(call, apart, &sizes)?, tensor.dtype));
    }
    Ok(grids)
}

fn broadcast_all(call: &mut Call<'_, '_>) -> Results {
    let tensors = call.tensors("tensors")?;
    let values: Vec<_> = tensors.iter().map(|tensor| tensor.value).collect();
    let sizes = broadcast_sizes(call, &values)?;
    let mut results = Vec::with_capacity(tensors.len());
    for tensor in tensors {
        results.push(Lowered::tensor(expanded(call, tensor.value, &sizes)?, tensor.dtype));
    }
    Ok(results)
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
            let found = sizes[before + axis];
            // A known extent is kept, and so is the first of those that are open.
            if found == Int::Known(1) || builder.extents(value)[axis].is_some_and(|e| e != 1) {
                sizes[before + axis] = builder.dim(value, axis)?;
            }
        }
    }
    Ok(sizes)
}

/// Each element of one tensor times all of the other, block by block.
fn kron(call: &mut Call<'_, '_>) -> Results {
    let dtype = call.result_dtype()?;
    let x = call.tensor("self")?.value;
    let y = call.tensor("other")?.value;
    let (x, y) = (call.cast_to(x, dtype)?, call.cast_to(y, dtype)?);
    let rank = call.rank(x).max(call.rank(y));
    let filled = |call: &mut Call<'_, '_>, value: ValueId| {
        let axes: Vec<_> = (0..(rank - call.rank(value)) as i32).collect();
        call.expand_dims(value, &axes)
    };
    let (x, y) = (filled(call, x)?, filled(call, y)?);
    let mut sizes = Vec::with_capacity(rank);
    for axis in 0..rank {
        let (left, right) = (call.dim(x, axis)?, call.dim(y, axis)?);
        sizes.push(call.mul_ints(left, right)?);
    }
    let odd: Vec<_> = (0..rank as i32).map(|axis| 2 * axis + 1).collect();
    let even: Vec<_> = (0..rank as i32).map(|axis| 2 * axis).collect();
    let (x, y) = (call.expand_dims(x, &odd)?, call.expand_dims(y, &even)?);
    let product = call.binary(OpKind::Mul, x, y)?;
    let y = resized(call, product, &sizes)?;
    call.give(y)
}
