//! What accumulates along an axis, and differences of neighbours.

use std::ops::DerefMut;

use coremill_mil::ir::{Constant, ValueId};
use coremill_mil::ops::OpKind;
use coremill_pt2::ScalarType;
use coremill_tensor::DType;

use super::operand::narrow_range;
use crate::bounds::At;
use crate::error::{Refusal, refuse};
use crate::lower::builder::Builder;
use crate::lower::call::{Call, Results};
use crate::lower::row::{Row, all};

pub(crate) const ROWS: &[Row] = &[
    all("aten.cumsum", sums),
    all("aten.cummax", |call| extremes(call, OpKind::Maximum)),
    all("aten.cummin", |call| extremes(call, OpKind::Minimum)),
];

/// What is accumulated, in the type of the result, `bool`s as integers.
fn summand(call: &mut Call<'_, '_>) -> Result<ValueId, Refusal> {
    let x = call.tensor("self")?;
    let result = call.result_dtype()?;
    let value = call.converted(x.value, x.dtype, result)?;
    match call.dtype(value) {
        DType::Bool => call.cast(value, DType::Int32),
        _ => Ok(value),
    }
}

fn sums(call: &mut Call<'_, '_>) -> Results {
    let x = summand(call)?;
    let rank = call.rank(x);
    let axis = call.axis("dim", rank)?;
    let y = if rank == 0 {
        x
    } else {
        call.emit(
            OpKind::Cumsum,
            [
                ("x", x.into()),
                ("axis", (axis as i32).into()),
                ("exclusive", false.into()),
                ("reverse", false.into()),
            ],
        )?
    };
    let result = call.result_dtype()?;
    let y = if narrow_range(result).is_some() { call.wrapped(y, result)? } else { y };
    call.give(y)
}

fn accumulated(
    builder: &mut Builder,
    x: ValueId,
    axis: usize,
    join: impl Fn(&mut Builder, ValueId, ValueId) -> Result<ValueId, Refusal>,
) -> Result<ValueId, Refusal> {
    if builder.rank(x) == 0 {
        return Ok(x);
    }
    let mut builder = builder;
    let joined = accumulated_together(&mut builder, vec![x], axis, |builder, earlier, later| {
        Ok(vec![join(builder, *earlier.at(0)?, *later.at(0)?)?])
    })?;
    Ok(*joined.at(0)?)
}

/// Accumulates tensors of which the elements are joined together, in as many steps as the extent has binary digits:
/// each joins every element with what is accumulated half as far before it.
pub(super) fn accumulated_together<T: DerefMut<Target = Builder>>(
    builder: &mut T,
    mut all: Vec<ValueId>,
    axis: usize,
    mut join: impl FnMut(&mut T, Vec<ValueId>, Vec<ValueId>) -> Result<Vec<ValueId>, Refusal>,
) -> Result<Vec<ValueId>, Refusal> {
    let Some(extent) = all.first().and_then(|&x| builder.extents(x).get(axis).copied().flatten())
    else {
        refuse!("what accumulates along axis {axis} is lowered for an axis of a fixed extent");
    };
    let mut reach = 1;
    while reach < extent {
        let distance = reach as i64;
        let mut parts = [Vec::new(), Vec::new(), Vec::new()];
        for &x in &all {
            parts[0].push(builder.slice(x, axis, 0, Some(distance))?);
            parts[1].push(builder.slice(x, axis, 0, Some(extent as i64 - distance))?);
            parts[2].push(builder.slice(x, axis, distance, None)?);
        }
        let [first, earlier, later] = parts;
        let joined = join(builder, earlier, later)?;
        all.clear();
        for (first, joined) in first.into_iter().zip(joined) {
            all.push(builder.concat(&[first, joined], axis)?);
        }
        reach *= 2;
    }
    Ok(all)
}

fn extremes(call: &mut Call<'_, '_>, kind: OpKind) -> Results {
    let x = call.tensor("self")?;
    let value = match call.dtype(x.value) {
        DType::Bool => call.cast(x.value, DType::Int32)?,
        _ => x.value,
    };
    let rank = call.rank(value);
    let axis = call.axis("dim", rank)?;
    let best = accumulated(call, value, axis, |builder, earlier, later| {
        builder.binary(kind, earlier, later)
    })?;
    // The last place at which an element was as good as the best so far.
    let places = if rank == 0 {
        call.constant(Constant::int32(0))
    } else {
        let extent = call.dim(value, axis)?;
        let counting = call.counting(extent)?;
        let axes: Vec<_> = (0..rank as i32).filter(|&other| other != axis as i32).collect();
        let counting = call.expand_dims(counting, &axes)?;
        let hit = call.binary(OpKind::Equal, value, best)?;
        let hits = call.select(hit, counting, 0)?;
        accumulated(call, hits, axis, |builder, earlier, later| {
            builder.binary(OpKind::Maximum, earlier, later)
        })?
    };
    let best =
        if x.dtype == ScalarType::Bool { call.truthful_cast(best, DType::Bool)? } else { best };
    call.give_all(&[best, places])
}
