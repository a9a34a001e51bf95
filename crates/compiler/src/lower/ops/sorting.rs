//! Medians, quantiles, histograms and searches.

use coremill_pt2::Argument;

use super::arithmetic::meeting;
use super::index::{gathered_along, nth_smallest};
use super::operand::Operand;
use crate::lower::prelude::*;

pub(crate) const ROWS: &[Row] = &[
    several("aten.median", median),
    several("aten.nanmedian", nan_median),
    tensor("aten.isin", is_in),
    tensor("aten.quantile", quantile),
    tensor("aten.bincount", bin_count),
    tensor("aten.bucketize", bucketize),
    tensor("aten.searchsorted", search_sorted),
];

/// Size of an axis, which must be static.
fn fixed_extent(builder: &Builder, x: ValueId, axis: usize) -> Result<i64> {
    match builder.extents(x).get(axis) {
        Some(Some(extent)) => Ok(*extent as i64),
        _ => refuse!("sorting along axis {axis} requires a fixed size of the axis"),
    }
}

/// A tensor, the index of `dim`, and whether the axis is kept. Without `dim` the tensor is flattened.
fn along(call: &mut Call<'_, '_>, x: ValueId) -> Result<(ValueId, usize, bool)> {
    let rank = call.rank(x);
    if !call.has("dim") || rank == 0 {
        return Ok((call.flat(x)?, 0, false));
    }
    Ok((x, call.axis("dim", rank)?, call.flag("keepdim")?))
}

/// The middle element, or the lower of the two.
fn median(call: &mut Call<'_, '_>) -> Results {
    let x = call.value("self")?;
    let (x, axis, keep) = along(call, x)?;
    let count = (fixed_extent(call, x, axis)? + 1) / 2;
    let both = nth_smallest(call, x, axis, count, keep)?;
    call.give_all(&both)
}

/// Median ignoring NaN. NaN is sorted to the end, and the index of the middle depends on the number of other
/// elements.
fn nan_median(call: &mut Call<'_, '_>) -> Results {
    let x = call.value("self")?;
    if call.dtype(x) != DType::Fp32 {
        return median(call);
    }
    let (line, axis, keep) = along(call, x)?;
    let extent = fixed_extent(call, line, axis)?;
    let number = call.binary(OpKind::Equal, line, line)?;
    let filled = call.select(number, line, f32::INFINITY)?;
    let [values, indices] = call.first(filled, axis, extent, true)?;
    let ones = call.cast(number, DType::Int32)?;
    let count = call.reduced(OpKind::ReduceSum, ones, &[axis], true)?;
    let place = calc!(call, "max(floor_div(count - 1, 2), 0)", count)?;
    let value = gathered_along(call, values, place, axis)?;
    let index = gathered_along(call, indices, place, axis)?;
    // The median of only NaN is NaN.
    let any = call.binary(OpKind::Greater, count, 0)?;
    let mut found = [call.select(any, value, f32::NAN)?, index];
    if !keep {
        for value in &mut found {
            *value = call.squeeze(*value, &[axis as i32])?;
        }
    }
    call.give_all(&found)
}

/// Whether each element equals one of the test elements.
fn is_in(call: &mut Call<'_, '_>) -> ValueResult {
    let (x, tests) = (call.operand("elements")?, call.operand("test_elements")?);
    let dtype = match meeting(x, tests)? {
        DType::Bool => DType::Int32,
        dtype => dtype,
    };
    let (x, tests) = (call.operand_value(x, dtype)?, call.operand_value(tests, dtype)?);
    let tests = call.flat(tests)?;
    let any = counted(call, x, tests, OpKind::Equal, (DType::Fp32, OpKind::ReduceMax))?;
    let y = call.cast(any, DType::Bool)?;
    if call.flag("invert")? { call.unary(OpKind::LogicalNot, y) } else { Ok(y) }
}

/// Reduces comparisons of each element of `x` with each of `others` along their last axis.
fn counted(
    builder: &mut Builder,
    x: ValueId,
    others: ValueId,
    compare: OpKind,
    (dtype, reduce): (DType, OpKind),
) -> ValueResult {
    // At the maximum rank there is no axis left for the comparisons.
    let is_full = builder.rank(x) > 4;
    let line = if is_full { builder.flat(x)? } else { x };
    let line = builder.expand_dims(line, &[-1])?;
    let hit = builder.binary(compare, line, others)?;
    let hit = builder.cast(hit, dtype)?;
    let count = builder.reduced(reduce, hit, &[axis_from_end(builder.rank(hit), 1)?], false)?;
    if is_full { builder.reshape_like(count, x) } else { Ok(count) }
}

/// Interpolated elements at constant quantiles.
fn quantile(call: &mut Call<'_, '_>) -> ValueResult {
    let x = call.float_tensor("self")?;
    let (shares, is_vector) = match call.node.argument("q") {
        Some(Argument::Float(share)) => (vec![*share], false),
        _ => {
            let q = call.value("q")?;
            let known = call.folded(q).and_then(|folded| {
                folded.elements.iter().map(|share| share.float()).collect::<Option<Vec<_>>>()
            });
            let Some(shares) = known else {
                refuse!("`q` is not known before the program runs");
            };
            (shares, call.rank(q) == 1)
        }
    };
    let keep = call.flag("keepdim")?;
    let rank = call.rank(x);
    let (line, axis, _) = along(call, x)?;
    let extent = fixed_extent(call, line, axis)?;
    if extent < 1 {
        refuse!("cannot compute quantiles of an empty tensor");
    }
    if let Some(share) = shares.iter().find(|share| !(0.0..=1.0).contains(*share)) {
        refuse!("`q` must be from 0 to 1, got {share}");
    }
    let [sorted, _] = call.first(line, axis, extent, true)?;
    let mode = call.text("interpolation")?.unwrap_or("linear");
    let mut found = Vec::new();
    for share in shares {
        let mut value = at_share(call, sorted, axis, share * (extent - 1) as f64, mode)?;
        if !keep {
            value = call.squeeze(value, &[axis as i32])?;
        } else if !call.has("dim") && rank > 1 {
            value = call.reshape(value, &vec![Int::Known(1); rank])?;
        }
        found.push(value);
    }
    match found.as_slice() {
        &[only] if !is_vector => Ok(only),
        all => call.stack(all, 0),
    }
}

fn at_share(
    builder: &mut Builder,
    sorted: ValueId,
    axis: usize,
    place: f64,
    mode: &str,
) -> ValueResult {
    let mut at = |index: f64| {
        let index = index as i64;
        builder.slice(sorted, axis, index, Some(index + 1))
    };
    let (below, above) = (place.floor(), place.ceil());
    if below == above {
        return at(below);
    }
    match mode {
        "lower" => at(below),
        "higher" => at(above),
        "nearest" => at(place.round_ties_even()),
        "linear" | "midpoint" => {
            let (below, above) = (at(below)?, at(above)?);
            let weight = if mode == "midpoint" { 0.5 } else { place.fract() };
            let gap = builder.binary(OpKind::Sub, above, below)?;
            let part = builder.times(gap, weight as f32)?;
            builder.binary(OpKind::Add, below, part)
        }
        _ => refuse!("interpolation `{mode}` is not supported"),
    }
}

fn bin_count(call: &mut Call<'_, '_>) -> ValueResult {
    let sizes = call.result_sizes(0)?;
    let Some(Some(bins)) = sizes.first().copied() else {
        return Err(LoweringError::new(
            "the number of counts of `bincount` depends on its largest element, which is not known before \
             the program runs",
        )
        .hint("count with `torch.nn.functional.one_hot(x, classes).sum(0)`"));
    };
    let x = call.value("self")?;
    let x = call.expand_dims(x, &[1])?;
    let counting = call.counting(Int::Known(bins))?;
    let hit = call.binary(OpKind::Equal, x, counting)?;
    let hits = match call.optional_tensor("weights")? {
        Some(weights) => {
            let weights = call.cast(weights.value, DType::Fp32)?;
            let weights = call.expand_dims(weights, &[1])?;
            call.select(hit, weights, 0.0_f32)?
        }
        None => call.cast(hit, DType::Int32)?,
    };
    call.reduced(OpKind::ReduceSum, hits, &[0], false)
}

fn bucketize(call: &mut Call<'_, '_>) -> ValueResult {
    let right = call.flag("right")?;
    below(call, "boundaries", right)
}

fn search_sorted(call: &mut Call<'_, '_>) -> ValueResult {
    if call.has("sorter") {
        refuse!("`searchsorted` with a `sorter` is not supported; pass a sorted sequence");
    }
    let right = call.flag("right")? || call.text("side")? == Some("right");
    below(call, "sorted_sequence", right)
}

/// Number of boundaries below each element of `self`, or below and equal.
fn below(call: &mut Call<'_, '_>, edges: &str, or_equal: bool) -> ValueResult {
    let edges = call.tensor(edges)?;
    let x = call.operand("self")?;
    let dtype = meeting(x, Operand::Tensor(edges))?;
    let (x, edges) = (call.operand_value(x, dtype)?, call.cast(edges.value, dtype)?);
    let edges = match call.rank(edges) {
        0 | 1 => edges,
        2..=4 => call.expand_dims(edges, &[-2])?,
        rank => refuse!("sequences of rank {rank} are not supported; the maximum is 4"),
    };
    let compare = if or_equal { OpKind::GreaterEqual } else { OpKind::Greater };
    counted(call, x, edges, compare, (DType::Int32, OpKind::ReduceSum))
}
