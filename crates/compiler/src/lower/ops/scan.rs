//! Scans along an axis, and differences of neighbors.

use std::ops::DerefMut;

use crate::lower::prelude::*;

pub(crate) const ROWS: &[Row] = &[
    tensor("aten.cumsum", sums),
    several("aten.cummax", |call| extremes(call, OpKind::Maximum)),
    several("aten.cummin", |call| extremes(call, OpKind::Minimum)),
];

fn sums(call: &mut Call<'_, '_>) -> ValueResult {
    let x = call.summand()?;
    let rank = call.rank(x.value);
    let axis = call.axis("dim", rank)?;
    let y = if rank == 0 { x.value } else { call.cumulative(x.value, axis)? };
    let result = call.result_dtype()?;
    call.wrapped(y, result)
}

fn accumulated(
    builder: &mut Builder,
    x: ValueId,
    axis: usize,
    join: impl Fn(&mut Builder, ValueId, ValueId) -> ValueResult,
) -> ValueResult {
    if builder.rank(x) == 0 {
        return Ok(x);
    }
    let mut builder = builder;
    let joined = accumulated_together(&mut builder, vec![x], axis, |builder, earlier, later| {
        Ok(vec![join(builder, *earlier.at(0)?, *later.at(0)?)?])
    })?;
    Ok(*joined.at(0)?)
}

/// Inclusive scan of several tensors with an elementwise combination. It takes one step per binary digit of the
/// size; each step combines every element with the element at a doubled distance before it.
pub(super) fn accumulated_together<T: DerefMut<Target = Builder>>(
    builder: &mut T,
    mut all: Vec<ValueId>,
    axis: usize,
    mut join: impl FnMut(&mut T, Vec<ValueId>, Vec<ValueId>) -> Result<Vec<ValueId>>,
) -> Result<Vec<ValueId>> {
    let Some(extent) = all.first().and_then(|&x| builder.extents(x).get(axis).copied().flatten())
    else {
        refuse!("accumulating along axis {axis} requires a fixed size of the axis");
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
    let value = call.numeric(x.value)?;
    let rank = call.rank(value);
    let axis = call.axis("dim", rank)?;
    let best = accumulated(call, value, axis, |builder, earlier, later| {
        builder.binary(kind, earlier, later)
    })?;
    // The last index at which the running extreme was reached.
    let places = if rank == 0 {
        call.int_value(Int::Known(0))?
    } else {
        let extent = call.dim(value, axis)?;
        let counting = call.counting(extent)?;
        let counting = call.along(counting, axis, rank)?;
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
