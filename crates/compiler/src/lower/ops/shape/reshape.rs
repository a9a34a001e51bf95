//! Reshapes, and operators without effect.

use crate::lower::prelude::*;

pub(super) const ROWS: &[Row] = &[
    tensor("aten.view", |call| view(call, "size")).only(&["default"]),
    tensor("aten.view", reinterpret).only(&["dtype"]),
    tensor("aten.reshape", |call| view(call, "shape")),
    tensor("aten._reshape_{alias,copy}", |call| view(call, "size")),
    tensor("aten.squeeze", squeeze),
    tensor("aten.unsqueeze", unsqueeze),
    tensor("aten.{contiguous,clone,alias,detach}", |call| call.value("self")),
];

fn view(call: &mut Call<'_, '_>, name: &str) -> ValueResult {
    let x = call.value("self")?;
    let sizes = call.sizes_for_result(name)?;
    call.with_sizes(x, &sizes)
}

fn squeeze(call: &mut Call<'_, '_>) -> ValueResult {
    let x = call.value("self")?;
    let rank = call.rank(x);
    let listed = if call.has("dim") { call.axes("dim", rank)? } else { (0..rank).collect() };
    let goes =
        |axis: &usize| call.shape(x).get(*axis) == Some(&Dim::Known(1)) && listed.contains(axis);
    let axes: Vec<_> = (0..rank).filter(goes).map(|axis| axis as i32).collect();
    call.squeeze(x, &axes)
}

fn unsqueeze(call: &mut Call<'_, '_>) -> ValueResult {
    let x = call.value("self")?;
    let at = position(call.known_int("dim")?, call.rank(x) + 1)?;
    call.expand_dims(x, &[at as i32])
}

/// Bit casts. Core ML has no bit cast, but 8-bit types can be converted by range.
fn reinterpret(call: &mut Call<'_, '_>) -> ValueResult {
    use ScalarType::{Bool, Int8, UInt8};
    let x = call.tensor("self")?;
    let wanted = call.result_dtype()?;
    let (kind, limit, by) = match (x.dtype, wanted) {
        (from, to) if from == to => return Ok(x.value),
        (Bool, UInt8 | Int8) => return call.cast_to(x.value, wanted),
        (UInt8, Int8) => (OpKind::Greater, 127, -256),
        (Int8, UInt8) => (OpKind::Less, 0, 256),
        (from, to) => {
            refuse!("reinterprets the bits of `{from}` as `{to}`, which Core ML does not support")
        }
    };
    let beyond = call.binary(kind, x.value, limit)?;
    let moved = call.binary(OpKind::Add, x.value, by)?;
    call.select(beyond, moved, x.value)
}
