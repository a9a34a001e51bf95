//! What needs elements in order, or counts where they fall: medians, quantiles, histograms, searches.

use coremill_mil::ir::ValueId;
use coremill_mil::ops::OpKind;
use coremill_tensor::DType;

use super::reduction::Axes;
use crate::bounds::{At, back};
use crate::error::{Refusal, refuse};
use crate::lower::builder::{Builder, int32};
use crate::lower::call::{Call, Results};
use crate::lower::row::{Row, all};
use crate::lower::value::Int;

pub(crate) const ROWS: &[Row] = &[
    all("aten.median", median),
    all("aten.nanmedian", nan_median),
    all("aten.isin", is_in),
    all("aten.quantile", quantile),
    all("aten.bincount", bin_count),
    all("aten.bucketize", bucketize),
    all("aten.searchsorted", search_sorted),
];

/// The smallest elements along an axis in order, and where they were.
fn smallest(
    builder: &mut Builder,
    x: ValueId,
    axis: usize,
    count: i64,
) -> Result<[ValueId; 2], Refusal> {
    let results = builder.emit_many(
        OpKind::Topk,
        [
            ("x", x.into()),
            ("k", int32(count)?.into()),
            ("axis", (axis as i32).into()),
            ("ascending", true.into()),
        ],
    )?;
    match results.as_slice() {
        &[values, indices] => Ok([values, indices]),
        _ => refuse!("`topk` gives {} values", results.len()),
    }
}

/// The extent of an axis, which has to be fixed for what follows.
fn fixed_extent(builder: &Builder, x: ValueId, axis: usize) -> Result<i64, Refusal> {
    match builder.extents(x).get(axis) {
        Some(Some(extent)) => Ok(*extent as i64),
        _ => refuse!("elements along axis {axis} are put in order for a fixed extent only"),
    }
}

/// The tensor as a vector, if it is not one.
fn flattened(builder: &mut Builder, x: ValueId) -> Result<ValueId, Refusal> {
    match builder.rank(x) {
        1 => Ok(x),
        _ => builder.reshape(x, &[Int::Known(-1)]),
    }
}

/// The element in the middle, the lower one of two.
fn median(call: &mut Call<'_, '_>) -> Results {
    let x = call.tensor("self")?.value;
    if !call.has("dim") {
        let flat = flattened(call, x)?;
        let [value, _] = middle(call, flat, 0, false)?;
        return call.give(value);
    }
    let rank = call.rank(x);
    let axis = call.axis("dim", rank)?;
    let keep = call.flag("keepdim")?;
    let results = if rank == 0 {
        let flat = flattened(call, x)?;
        middle(call, flat, 0, false)?
    } else {
        middle(call, x, axis, keep)?
    };
    call.give_all(&results)
}

fn middle(
    builder: &mut Builder,
    x: ValueId,
    axis: usize,
    keep: bool,
) -> Result<[ValueId; 2], Refusal> {
    let extent = fixed_extent(builder, x, axis)?;
    let count = (extent + 1) / 2;
    let [values, indices] = smallest(builder, x, axis, count)?;
    let mut last = [values, indices];
    for value in &mut last {
        *value = builder.slice(*value, axis, count - 1, Some(count))?;
        if !keep {
            *value = builder.squeeze(*value, &[axis as i32])?;
        }
    }
    Ok(last)
}

/// The median of what is not NaN, which is put after all else; where it is in the middle depends on how many
/// there are.
fn nan_median(call: &mut Call<'_, '_>) -> Results {
    let x = call.tensor("self")?.value;
    if call.dtype(x) != DType::Fp32 {
        return median(call);
    }
    let rank = call.rank(x);
    let whole = !call.has("dim");
    let keep = !whole && call.flag("keepdim")?;
    let axis = if whole || rank == 0 { 0 } else { call.axis("dim", rank)? };
    let line = if whole || rank == 0 { flattened(call, x)? } else { x };
    let extent = fixed_extent(call, line, axis)?;
    let number = call.binary(OpKind::Equal, line, line)?;
    let filled = call.select(number, line, f32::INFINITY)?;
    let [values, indices] = smallest(call, filled, axis, extent)?;
    let ones = call.cast(number, DType::Int32)?;
    let along = Axes { axes: vec![axis], keep: true };
    let count = call.reduce(OpKind::ReduceSum, ones, &along)?;
    let place = call.binary(OpKind::Sub, count, 1)?;
    let place = call.binary(OpKind::FloorDiv, place, 2)?;
    let place = call.binary(OpKind::Maximum, place, 0)?;
    let mut found = Vec::new();
    for from in [values, indices] {
        found.push(call.emit(
            OpKind::GatherAlongAxis,
            [("x", from.into()), ("indices", place.into()), ("axis", (axis as i32).into())],
        )?);
    }
    // Of nothing but NaN the median is NaN.
    let any = call.binary(OpKind::Greater, count, 0)?;
    *found.at_mut(0)? = call.select(any, *found.at(0)?, f32::NAN)?;
    if !keep {
        for value in &mut found {
            *value = call.squeeze(*value, &[axis as i32])?;
        }
    }
    if whole { call.give(*found.at(0)?) } else { call.give_all(&found) }
}

/// Whether each element is one of several.
fn is_in(call: &mut Call<'_, '_>) -> Results {
    let (x, tests) = (call.operand("elements")?, call.operand("test_elements")?);
    let dtype = match super::arithmetic::meeting(x, tests)? {
        DType::Bool => DType::Int32,
        dtype => dtype,
    };
    let (x, tests) = (call.operand_value(x, dtype)?, call.operand_value(tests, dtype)?);
    let sizes = call.dims(x)?;
    let rank = call.rank(x);
    let tests = flattened(call, tests)?;
    let line = if rank > 4 { flattened(call, x)? } else { x };
    let line = call.expand_dims(line, &[-1])?;
    let hit = call.binary(OpKind::Equal, line, tests)?;
    let hit = call.cast(hit, DType::Fp32)?;
    let last = back(call.rank(hit), 1)?;
    let any = call.reduce(OpKind::ReduceMax, hit, &Axes { axes: vec![last], keep: false })?;
    let mut y = call.cast(any, DType::Bool)?;
    if rank > 4 {
        y = call.reshape(y, &sizes)?;
    }
    if call.flag("invert")? {
        y = call.unary(OpKind::LogicalNot, y)?;
    }
    call.give(y)
}

/// Elements at known shares of the way from the smallest to the largest.
fn quantile(call: &mut Call<'_, '_>) -> Results {
    let x = call.float_tensor("self")?;
    let shares = match call.node.argument("q") {
        Some(coremill_pt2::Argument::Float(share)) => vec![*share],
        _ => {
            let q = call.tensor("q")?.value;
            let known = call.folded(q).map(|folded| {
                folded.elements.iter().map(|share| share.float()).collect::<Option<Vec<_>>>()
            });
            let Some(shares) = known.flatten() else {
                refuse!("`q` is not known before the program runs");
            };
            shares
        }
    };
    let vector_of_shares = match call.node.argument("q") {
        Some(coremill_pt2::Argument::Float(_)) => false,
        _ => {
            let q = call.tensor("q")?.value;
            call.rank(q) == 1
        }
    };
    let keep = call.flag("keepdim")?;
    let rank = call.rank(x);
    let (line, axis) = if call.has("dim") && rank > 0 {
        (x, call.axis("dim", rank)?)
    } else {
        (flattened(call, x)?, 0)
    };
    let extent = fixed_extent(call, line, axis)?;
    let [sorted, _] = smallest(call, line, axis, extent)?;
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
    let y = match found.as_slice() {
        &[only] if !vector_of_shares => only,
        all => call.emit(OpKind::Stack, [("values", all.into()), ("axis", 0.into())])?,
    };
    call.give(y)
}

fn at_share(
    builder: &mut Builder,
    sorted: ValueId,
    axis: usize,
    place: f64,
    mode: &str,
) -> Result<ValueId, Refusal> {
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
        _ => refuse!("interpolation `{mode}` is unknown"),
    }
}

fn bin_count(call: &mut Call<'_, '_>) -> Results {
    let sizes = call.result_sizes(0)?;
    let Some(Some(bins)) = sizes.first().copied() else {
        return Err(Refusal::new(
            "`bincount` gives as many counts as its largest element says, which is not known before \
             the program runs",
        )
        .hint("count with `torch.nn.functional.one_hot(x, classes).sum(0)`"));
    };
    let x = call.tensor("self")?.value;
    let x = call.expand_dims(x, &[1])?;
    let counting = call.counting(Int::Known(bins))?;
    let hit = call.binary(OpKind::Equal, x, counting)?;
    let all = Axes { axes: vec![0], keep: false };
    let y = if let Some(weights) = call.optional_tensor("weights")? {
        let weights = call.cast(weights.value, DType::Fp32)?;
        let weights = call.expand_dims(weights, &[1])?;
        let hits = call.select(hit, weights, 0.0_f32)?;
        call.reduce(OpKind::ReduceSum, hits, &all)?
    } else {
        let hits = call.cast(hit, DType::Int32)?;
        call.reduce(OpKind::ReduceSum, hits, &all)?
    };
    call.give(y)
}

/// How many boundaries are below each element.
fn bucketize(call: &mut Call<'_, '_>) -> Results {
    let boundaries = call.tensor("boundaries")?;
    let x = call.operand("self")?;
    let right = call.flag("right")?;
    let dtype = super::arithmetic::meeting(x, super::operand::Operand::Tensor(boundaries))?;
    let (x, edges) = (call.operand_value(x, dtype)?, call.cast(boundaries.value, dtype)?);
    let y = below(call, x, edges, right)?;
    call.give(y)
}

/// How many of `edges`, a vector, are less than each element of `x`, or not more than it.
fn below(
    builder: &mut Builder,
    x: ValueId,
    edges: ValueId,
    or_equal: bool,
) -> Result<ValueId, Refusal> {
    let rank = builder.rank(x);
    let sizes = builder.dims(x)?;
    // There may be no axis left for the comparisons.
    let line = if rank > 4 { flattened(builder, x)? } else { x };
    let line = builder.expand_dims(line, &[-1])?;
    let kind = if or_equal { OpKind::GreaterEqual } else { OpKind::Greater };
    let passed = builder.binary(kind, line, edges)?;
    let passed = builder.cast(passed, DType::Int32)?;
    let last = back(builder.rank(passed), 1)?;
    let axes = Axes { axes: vec![last], keep: false };
    let count = builder.reduce(OpKind::ReduceSum, passed, &axes)?;
    if rank > 4 { builder.reshape(count, &sizes) } else { Ok(count) }
}

fn search_sorted(call: &mut Call<'_, '_>) -> Results {
    let sequence = call.tensor("sorted_sequence")?;
    if call.has("sorter") {
        refuse!("`searchsorted` with a `sorter` is not lowered: pass the sequence in order");
    }
    let x = call.operand("self")?;
    let right = call.flag("right")? || call.text("side")? == Some("right");
    let dtype = super::arithmetic::meeting(x, super::operand::Operand::Tensor(sequence))?;
    let (x, edges) = (call.operand_value(x, dtype)?, call.cast(sequence.value, dtype)?);
    let y = if call.rank(edges) == 1 {
        below(call, x, edges, right)?
    } else {
        if call.rank(edges) > 4 {
            refuse!("sequences of rank {} are not lowered; up to 4 are", call.rank(edges));
        }
        let edges = call.expand_dims(edges, &[-2])?;
        below(call, x, edges, right)?
    };
    call.give(y)
}
