//! Boolean masks: indices of true elements, masked selection and masked writes.

use super::{as_numbers, constant_ints, gathered};
use crate::lower::prelude::*;

pub(super) const ROWS: &[Row] = &[
    several("aten.where", nonzero_by_axis).only(&["default"]),
    several("aten.nonzero_numpy", nonzero_by_axis),
    tensor("aten.masked_select", masked_select),
    tensor("aten.masked_scatter", masked_scatter),
    tensor("aten.nonzero", nonzero).only(&["default"]),
];

/// Indices of the true elements along each axis of a mask.
pub(super) fn mask_places(builder: &mut Builder, mask: ValueId) -> Result<Vec<ValueId>> {
    let rank = builder.rank(mask);
    if let (Some(elements), Some(shape)) = (constant_ints(builder, mask), builder.fixed_shape(mask))
    {
        let mut strides = vec![1usize; rank];
        for axis in (0..rank.saturating_sub(1)).rev() {
            *strides.at_mut(axis)? = *strides.at(axis + 1)? * *shape.at(axis + 1)? as usize;
        }
        let set = elements.iter().enumerate().filter(|(_, element)| **element != 0);
        let set: Vec<_> = set.map(|(at, _)| at).collect();
        let along = |axis: usize| -> Result<Vec<i32>> {
            let (stride, extent) = (*strides.at(axis)?, *shape.at(axis)? as usize);
            Ok(set.iter().map(|at| (at / stride % extent) as i32).collect())
        };
        let along = (0..rank).map(along).collect::<Result<Vec<_>, _>>()?;
        return Ok(along.iter().map(|at| builder.constant(Constant::int32s(at))).collect());
    }
    let rows = builder.unary(OpKind::NonZero, mask)?;
    (0..rank as i64).map(|axis| builder.taken_at(rows, 1, Int::Known(axis))).collect()
}

fn nonzero_by_axis(call: &mut Call<'_, '_>) -> Results {
    let x = call.value(if call.has("condition") { "condition" } else { "self" })?;
    let all = mask_places(call, x)?;
    call.give_all(&all)
}

fn nonzero(call: &mut Call<'_, '_>) -> ValueResult {
    let x = call.value("self")?;
    call.unary(OpKind::NonZero, x)
}

fn masked_select(call: &mut Call<'_, '_>) -> ValueResult {
    let both = [call.value("self")?, call.value("mask")?];
    let [x, mask] = call.broadcast(both)?;
    let (x, mask) = (call.with_axes(x)?, call.with_axes(mask)?);
    let indices = call.unary(OpKind::NonZero, mask)?;
    as_numbers(call, x, |builder, x| emit!(builder, OpKind::GatherNd, x, indices))
}

/// Writes elements of `source` in order to the true elements. The cumulative sum of the mask is their index.
fn masked_scatter(call: &mut Call<'_, '_>) -> ValueResult {
    let x = call.tensor("self")?;
    let mask = call.value("mask")?;
    let source = call.value("source")?;
    let source = call.cast_to(source, x.dtype)?;
    let [x, mask] = call.broadcast([x.value, mask])?;
    let dims = call.dims(x)?;
    let flat = call.flat(mask)?;
    let counts = call.cast(flat, DType::Int32)?;
    let counts = call.cumulative(counts, 0)?;
    let places = call.binary(OpKind::Sub, counts, 1)?;
    // Before the first true element the sum is zero; the element gathered there is not used.
    let places = call.binary(OpKind::Maximum, places, 0)?;
    let source = call.flat(source)?;
    let picked = gathered(call, source, places, 0)?;
    let picked = call.with_sizes(picked, &dims)?;
    call.select(mask, picked, x)
}
