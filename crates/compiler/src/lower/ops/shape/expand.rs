//! Repetition of elements.

use crate::lower::prelude::*;

pub(super) const ROWS: &[Row] = &[
    tensor("aten.expand", expand),
    tensor("aten.repeat", repeat),
    tensor("aten.repeat_interleave", interleaved_places).only(&["Tensor"]),
];

fn expand(call: &mut Call<'_, '_>) -> ValueResult {
    let x = call.value("self")?;
    let sizes = call.sizes_for_result("size")?;
    call.expanded(x, &sizes)
}

fn repeat(call: &mut Call<'_, '_>) -> ValueResult {
    let x = call.value("self")?;
    let repeats = call.int_list("repeats")?;
    if repeats.contains(&Int::Known(0)) {
        refuse!("repeats a tensor 0 times; Core ML has no tensors without elements");
    }
    let axes: Vec<_> = (0..repeats.len().saturating_sub(call.rank(x)) as i32).collect();
    let x = call.expand_dims(x, &axes)?;
    call.tiled(x, &repeats)
}

/// For counts of 2, 0 and 3: indices 0, 0, 2, 2, 2. The index at a position is the number of cumulative counts that
/// are at most the position.
fn interleaved_places(call: &mut Call<'_, '_>) -> ValueResult {
    let repeats = call.value("repeats")?;
    let ends = call.cumulative(repeats, 0)?;
    let total = match call.known(repeats) {
        Some(_) => call.taken_at(ends, 0, Int::Known(-1))?,
        None => call.reduced(OpKind::ReduceSum, repeats, &[0], false)?,
    };
    let places = call.counting(Int::Computed(total))?;
    let rows = call.expand_dims(places, &[1])?;
    let columns = call.expand_dims(ends, &[0])?;
    let beyond = call.binary(OpKind::GreaterEqual, rows, columns)?;
    let beyond = call.cast(beyond, DType::Int32)?;
    call.reduced(OpKind::ReduceSum, beyond, &[1], false)
}
