//! Masks: where they are true, and what is picked or written there.

use coremill_mil::ir::{Constant, ValueId};
use coremill_mil::ops::OpKind;
use coremill_tensor::DType;

use super::{as_numbers, constant_ints, cumulative, gathered};
use crate::bounds::At;
use crate::error::Refusal;
use crate::lower::builder::Builder;
use crate::lower::call::{Call, Results};
use crate::lower::ops::shape::{broadcast_sizes, expanded, mapped, taken_at, to_sizes};
use crate::lower::row::{Row, all, some};
use crate::lower::value::Int;

pub(super) const ROWS: &[Row] = &[
    some("aten.where", &["default"], nonzero_by_axis),
    all("aten.nonzero_numpy", nonzero_by_axis),
    all("aten.masked_select", masked_select),
    all("aten.masked_scatter", masked_scatter),
    some("aten.nonzero", &["default"], nonzero),
];

/// The places of what is not zero, a row for each.
fn places(builder: &mut Builder, mask: ValueId) -> Result<ValueId, Refusal> {
    builder.unary(OpKind::NonZero, mask)
}

/// Indices along each axis of a mask to where it is true.
pub(super) fn mask_places(builder: &mut Builder, mask: ValueId) -> Result<Vec<ValueId>, Refusal> {
    let rank = builder.rank(mask);
    if let (Some(elements), Some(shape)) = (constant_ints(builder, mask), builder.fixed_shape(mask))
    {
        let mut strides = vec![1usize; rank];
        for axis in (0..rank.saturating_sub(1)).rev() {
            *strides.at_mut(axis)? = *strides.at(axis + 1)? * *shape.at(axis + 1)? as usize;
        }
        let set = elements.iter().enumerate().filter(|(_, element)| **element != 0);
        let set: Vec<_> = set.map(|(at, _)| at).collect();
        let along = |axis: usize| -> Result<Vec<i32>, Refusal> {
            let (stride, extent) = (*strides.at(axis)?, *shape.at(axis)? as usize);
            Ok(set.iter().map(|at| (at / stride % extent) as i32).collect())
        };
        let along = (0..rank).map(along).collect::<Result<Vec<_>, _>>()?;
        return Ok(along.iter().map(|at| builder.constant(Constant::int32s(at))).collect());
    }
    let rows = places(builder, mask)?;
    (0..rank as i64).map(|axis| taken_at(builder, rows, 1, Int::Known(axis))).collect()
}

fn nonzero_by_axis(call: &mut Call<'_, '_>) -> Results {
    let name = if call.has("condition") { "condition" } else { "self" };
    let x = call.tensor(name)?.value;
    let all = mask_places(call, x)?;
    call.give_all(&all)
}

/// Tensor and mask with the same sizes.
fn alike(
    call: &mut Call<'_, '_>,
    x: ValueId,
    mask: ValueId,
) -> Result<(ValueId, ValueId), Refusal> {
    let sizes = broadcast_sizes(call, &[x, mask])?;
    Ok((expanded(call, x, &sizes)?, expanded(call, mask, &sizes)?))
}

fn masked_select(call: &mut Call<'_, '_>) -> Results {
    let mask = call.tensor("mask")?.value;
    mapped(call, "self", |call, x| {
        let (x, mask) = alike(call, x, mask)?;
        if call.rank(x) == 0 {
            let x = call.expand_dims(x, &[0])?;
            let mask = call.expand_dims(mask, &[0])?;
            return selected(call, x, mask);
        }
        selected(call, x, mask)
    })
}

fn selected(builder: &mut Builder, x: ValueId, mask: ValueId) -> Result<ValueId, Refusal> {
    let rows = places(builder, mask)?;
    as_numbers(builder, x, |builder, x| {
        builder.emit(OpKind::GatherNd, [("x", x.into()), ("indices", rows.into())])
    })
}

/// The elements of `source` one after the other where the mask is true: the how many-th each is the running sum
/// of the mask tells.
fn masked_scatter(call: &mut Call<'_, '_>) -> Results {
    let x = call.tensor("self")?;
    let mask = call.tensor("mask")?.value;
    let source = call.tensor("source")?.value;
    let source = call.cast_to(source, x.dtype)?;
    let (x, mask) = alike(call, x.value, mask)?;
    let dims = call.dims(x)?;
    let flat = to_sizes(call, mask, &[Int::Known(-1)])?;
    let counts = call.cast(flat, DType::Int32)?;
    let counts = cumulative(call, counts, 0)?;
    let places = call.binary(OpKind::Sub, counts, 1)?;
    // Before the first that is true the sum is zero; what is picked there is not used.
    let places = call.binary(OpKind::Maximum, places, 0)?;
    let source = to_sizes(call, source, &[Int::Known(-1)])?;
    let picked = gathered(call, source, places, 0)?;
    let picked = to_sizes(call, picked, &dims)?;
    let y = call.select(mask, picked, x)?;
    call.give(y)
}

fn nonzero(call: &mut Call<'_, '_>) -> Results {
    let x = call.tensor("self")?.value;
    let y = places(call, x)?;
    call.give(y)
}
