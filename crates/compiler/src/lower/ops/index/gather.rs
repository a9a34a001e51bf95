//! Gathers along one axis.

use super::{as_numbers, gathered};
use crate::lower::prelude::*;

pub(super) const ROWS: &[Row] = &[
    tensor("aten.gather", gather),
    tensor("aten.index_select", index_select),
    tensor("aten.embedding", embedding),
];

/// Elements at indices along an axis; indices have the same rank as the tensor.
pub(crate) fn gathered_along(
    builder: &mut Builder,
    x: ValueId,
    indices: ValueId,
    axis: usize,
) -> ValueResult {
    as_numbers(builder, x, |builder, x| emit!(builder, OpKind::GatherAlongAxis, x, indices, axis))
}

/// Crops axes to the size of the indices, as `gather` ignores the rest.
pub(super) fn reached(
    builder: &mut Builder,
    mut x: ValueId,
    indices: ValueId,
    axes: impl Iterator<Item = usize>,
) -> ValueResult {
    for axis in axes {
        let wanted = builder.dim(indices, axis)?;
        if wanted.known().is_some() {
            x = builder.sliced(x, axis, Range::to(wanted))?;
        }
    }
    Ok(x)
}

fn gather(call: &mut Call<'_, '_>) -> ValueResult {
    let (x, indices) = (call.value("self")?, call.value("index")?);
    let rank = call.rank(x);
    if rank == 0 {
        return Ok(x);
    }
    let axis = call.axis("dim", rank)?;
    let x = reached(call, x, indices, (0..rank).filter(|&other| other != axis))?;
    gathered_along(call, x, indices, axis)
}

fn index_select(call: &mut Call<'_, '_>) -> ValueResult {
    let (x, indices) = (call.value("self")?, call.value("index")?);
    if call.rank(x) == 0 {
        return Ok(x);
    }
    let axis = call.axis("dim", call.rank(x))?;
    let indices = call.with_axes(indices)?;
    gathered(call, x, indices, axis)
}

/// Embedding lookup. `padding_idx` only affects gradients.
fn embedding(call: &mut Call<'_, '_>) -> ValueResult {
    let (table, indices) = (call.value("weight")?, call.value("indices")?);
    gathered(call, table, indices, 0)
}
