//! Tensors with elements added around them, or taken off where a pad is negative.

use coremill_mil::ir::ValueId;
use coremill_mil::ops::OpKind;
use coremill_tensor::DType;

use super::expand::tiled;
use super::join::joined;
use super::reshape::to_sizes;
use super::slice::{Range, sliced};
use super::write::full;
use crate::bounds::{At, checked, created};
use crate::error::{Refusal, refuse};
use crate::lower::builder::Builder;
use crate::lower::call::{Call, Results};
use crate::lower::ops::index::gathered_at;
use crate::lower::row::{Row, all};
use crate::lower::value::Int;

pub(super) const ROWS: &[Row] = &[
    all("aten.constant_pad_nd", |call| pad(call, "pad", Mode::Constant)),
    all("aten.pad", pad_by_name),
    all("aten._pad_enum", pad_by_number),
    all("aten._pad_circular", |call| pad(call, "pad", Mode::Circular)),
    all("aten.reflection_pad1d", |call| pad(call, "padding", Mode::Reflect)),
    all("aten.reflection_pad2d", |call| pad(call, "padding", Mode::Reflect)),
    all("aten.reflection_pad3d", |call| pad(call, "padding", Mode::Reflect)),
    all("aten.replication_pad1d", |call| pad(call, "padding", Mode::Replicate)),
    all("aten.replication_pad2d", |call| pad(call, "padding", Mode::Replicate)),
    all("aten.replication_pad3d", |call| pad(call, "padding", Mode::Replicate)),
];

/// What is added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    /// One number everywhere.
    Constant,
    /// The elements behind the edge, in reverse; the edge itself once.
    Reflect,
    /// The element at the edge.
    Replicate,
    /// The elements at the other end.
    Circular,
}

fn pad_by_name(call: &mut Call<'_, '_>) -> Results {
    let mode = match call.text("mode")? {
        Some("constant") | None => Mode::Constant,
        Some("reflect") => Mode::Reflect,
        Some("replicate") => Mode::Replicate,
        Some("circular") => Mode::Circular,
        Some(other) => refuse!("pads in the mode `{other}`, which is not known"),
    };
    pad(call, "pad", mode)
}

fn pad_by_number(call: &mut Call<'_, '_>) -> Results {
    let mode = match call.known_int("mode")? {
        0 => Mode::Constant,
        1 => Mode::Reflect,
        2 => Mode::Replicate,
        3 => Mode::Circular,
        other => refuse!("pads in mode {other}, which is not known"),
    };
    pad(call, "pad", mode)
}

fn pad(call: &mut Call<'_, '_>, name: &str, mode: Mode) -> Results {
    let x = call.tensor("self")?.value;
    let amounts = call.int_list(name)?;
    let rank = call.rank(x);
    if amounts.len() % 2 != 0 || amounts.len() / 2 > rank {
        refuse!("has {} pads for a tensor of rank {rank}", amounts.len());
    }
    // Pairs for the axes, the last one first.
    let (pairs, _) = amounts.as_chunks::<2>();
    let pairs = (0..rank).rev().zip(pairs);
    let mut pads: Vec<_> = pairs.map(|(axis, &[before, after])| (axis, before, after)).collect();
    pads.reverse();
    pads.retain(|&(_, before, after)| (before, after) != (Int::Known(0), Int::Known(0)));
    let y = match mode {
        Mode::Constant => {
            let value = if call.has("value") { call.float("value")? } else { 0.0 };
            padded_with(call, x, &pads, value)?
        }
        Mode::Circular => circular(call, x, &pads)?,
        Mode::Reflect | Mode::Replicate => mirrored(call, x, &pads, mode)?,
    };
    call.give(y)
}

/// What is added before and after the elements of an axis.
type Pad = (usize, Int, Int);

/// The tensor without what negative pads take off, and the pads that are left.
fn cropped(
    builder: &mut Builder,
    x: ValueId,
    pads: &[Pad],
) -> Result<(ValueId, Vec<Pad>), Refusal> {
    let negative = |amount: Int| amount.known().is_some_and(|amount| amount < 0);
    let mut x = x;
    let mut left = Vec::with_capacity(pads.len());
    for &(axis, before, after) in pads {
        if negative(before) || negative(after) {
            let begin = if negative(before) { -before.known().unwrap_or(0) } else { 0 };
            let end = negative(after).then_some(after);
            x = sliced(builder, x, axis, Range { begin: Int::Known(begin), end, step: 1 })?;
        }
        let kept = |amount: Int| if negative(amount) { Int::Known(0) } else { amount };
        let (before, after) = (kept(before), kept(after));
        if (before, after) != (Int::Known(0), Int::Known(0)) {
            left.push((axis, before, after));
        }
    }
    Ok((x, left))
}

/// A tensor with one number before and after its elements along some axes: axis, how many before, how many
/// after; in ascending order.
pub(crate) fn padded_with(
    builder: &mut Builder,
    x: ValueId,
    pads: &[(usize, Int, Int)],
    value: f64,
) -> Result<ValueId, Refusal> {
    let (mut x, pads) = cropped(builder, x, pads)?;
    let Some(&(first, ..)) = pads.first() else { return Ok(x) };
    if builder.dtype(x) != DType::Fp32 {
        // Core ML pads floats only.
        for (axis, before, after) in pads {
            let mut parts = Vec::with_capacity(3);
            for (amount, is_before) in [(before, true), (after, false)] {
                if amount != Int::Known(0) {
                    let mut dims = builder.dims(x)?;
                    *dims.at_mut(axis)? = amount;
                    let dtype = builder.dtype(x);
                    parts.push(full(builder, &dims, dtype, value)?);
                }
                if is_before {
                    parts.push(x);
                }
            }
            x = joined(builder, &parts, axis)?;
        }
        return Ok(x);
    }
    let rank = builder.rank(x);
    let computed =
        pads.iter().any(|(_, before, after)| before.known().is_none() || after.known().is_none());
    // Amounts that are computed have to be there for all axes.
    let first = if computed { 0 } else { first };
    let mut amounts = vec![Int::Known(0); 2 * (rank - first)];
    for (axis, before, after) in pads {
        *amounts.at_mut(2 * (axis - first))? = before;
        *amounts.at_mut(2 * (axis - first) + 1)? = after;
    }
    let amounts = builder.ints(&amounts)?;
    builder.emit(
        OpKind::Pad,
        [
            ("x", x.into()),
            ("pad", amounts),
            ("mode", "constant".into()),
            ("constant_val", (value as f32).into()),
        ],
    )
}

fn circular(
    builder: &mut Builder,
    x: ValueId,
    pads: &[(usize, Int, Int)],
) -> Result<ValueId, Refusal> {
    let (mut x, pads) = cropped(builder, x, pads)?;
    // torch wraps the last axis around first, but the order makes no difference.
    for (axis, before, after) in pads {
        let extent = builder.dim(x, axis)?;
        let mut parts = Vec::with_capacity(3);
        if before != Int::Known(0) {
            let begin = builder.sub_ints(extent, before)?;
            parts.push(sliced(builder, x, axis, Range::from(begin))?);
        }
        parts.push(x);
        if after != Int::Known(0) {
            parts.push(sliced(builder, x, axis, Range::to(after))?);
        }
        x = joined(builder, &parts, axis)?;
    }
    Ok(x)
}

fn mirrored(
    builder: &mut Builder,
    x: ValueId,
    pads: &[(usize, Int, Int)],
    mode: Mode,
) -> Result<ValueId, Refusal> {
    let (mut x, pads) = cropped(builder, x, pads)?;
    let mut known = Vec::with_capacity(pads.len());
    for (axis, before, after) in pads {
        let (Int::Known(before), Int::Known(after)) = (before, after) else {
            refuse!(
                "mirrors elements at an edge, how many of which is computed when the program runs"
            );
        };
        known.push((axis, before, after));
    }
    if builder.dtype(x) != DType::Fp32 {
        for (axis, before, after) in known {
            x = mirrored_integers(builder, x, axis, [before, after], mode)?;
        }
        return Ok(x);
    }
    let rank = builder.rank(x);
    // More than there is of an axis can only be a row of copies of its edge.
    let (far, near): (Vec<_>, Vec<_>) = known.into_iter().partition(|&(axis, before, after)| {
        mode == Mode::Replicate
            && builder
                .extents(x)
                .get(axis)
                .copied()
                .flatten()
                .is_some_and(|extent| before.max(after) > extent as i64)
    });
    for (axis, before, after) in far {
        x = replicated(builder, x, axis, before, after)?;
    }
    // Core ML mirrors along the last two axes. Others become the last but one of three.
    let (last, earlier): (Vec<_>, Vec<_>) =
        near.into_iter().partition(|&(axis, ..)| axis + 2 >= rank);
    if let Some(&(first, ..)) = last.first() {
        let mut amounts = vec![0; 2 * (rank - first)];
        for (axis, before, after) in last {
            *amounts.at_mut(2 * (axis - first))? = before;
            *amounts.at_mut(2 * (axis - first) + 1)? = after;
        }
        x = emit_mirrored(builder, x, &amounts, mode)?;
    }
    for (axis, before, after) in earlier {
        let mut sizes = builder.dims(x)?;
        let outer = builder.product(sizes.part(..axis)?)?;
        let inner = builder.product(sizes.part(axis + 1..)?)?;
        let three = to_sizes(builder, x, &[outer, *sizes.at(axis)?, inner])?;
        let padded = emit_mirrored(builder, three, &[before, after, 0, 0], mode)?;
        *sizes.at_mut(axis)? = builder.add_ints(*sizes.at(axis)?, Int::Known(before + after))?;
        x = to_sizes(builder, padded, &sizes)?;
    }
    Ok(x)
}

fn emit_mirrored(
    builder: &mut Builder,
    x: ValueId,
    amounts: &[i64],
    mode: Mode,
) -> Result<ValueId, Refusal> {
    let amounts: Vec<_> = amounts.iter().map(|&amount| Int::Known(amount)).collect();
    let amounts = builder.ints(&amounts)?;
    let mode = if mode == Mode::Reflect { "reflect" } else { "replicate" };
    builder.emit(
        OpKind::Pad,
        [("x", x.into()), ("pad", amounts), ("mode", mode.into()), ("constant_val", 0.0f32.into())],
    )
}

fn replicated(
    builder: &mut Builder,
    x: ValueId,
    axis: usize,
    before: i64,
    after: i64,
) -> Result<ValueId, Refusal> {
    let mut parts = Vec::with_capacity(3);
    let copies = |builder: &mut Builder, range: Range, count: i64| {
        let edge = sliced(builder, x, axis, range)?;
        let mut repeats = vec![Int::Known(1); builder.rank(x)];
        *repeats.at_mut(axis)? = Int::Known(count);
        tiled(builder, edge, &repeats)
    };
    if before > 0 {
        parts.push(copies(builder, Range::to(Int::Known(1)), before)?);
    }
    parts.push(x);
    if after > 0 {
        parts.push(copies(builder, Range::from(Int::Known(-1)), after)?);
    }
    joined(builder, &parts, axis)
}

/// Core ML pads floats only; integers are picked one by one.
fn mirrored_integers(
    builder: &mut Builder,
    x: ValueId,
    axis: usize,
    [before, after]: [i64; 2],
    mode: Mode,
) -> Result<ValueId, Refusal> {
    let Some(extent) = builder.extents(x).at(axis)?.map(|extent| extent as i64) else {
        refuse!("mirrors integers along an axis of unknown extent");
    };
    if extent == 0 {
        refuse!("pads an axis without elements by its own elements");
    }
    created(&[(checked(before) + extent + after).get()?])?;
    let source = |place: i64| match mode {
        Mode::Reflect if place < 0 => -place,
        Mode::Reflect if place >= extent => 2 * (extent - 1) - place,
        _ => place.clamp(0, extent - 1),
    };
    let places: Vec<_> = (-before..extent + after).map(source).collect();
    gathered_at(builder, x, &places, axis)
}
