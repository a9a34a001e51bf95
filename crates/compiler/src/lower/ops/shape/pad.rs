//! Padding, and cropping by negative widths.

use crate::lower::ops::index::gathered_at;
use crate::lower::prelude::*;

pub(super) const ROWS: &[Row] = &[
    tensor("aten.constant_pad_nd", |call| pad(call, "pad", Mode::Constant)),
    tensor("aten.pad", pad_by_name),
    tensor("aten._pad_enum", pad_by_number),
    tensor("aten._pad_circular", |call| pad(call, "pad", Mode::Circular)),
    tensor("aten.reflection_pad{1,2,3}d", |call| pad(call, "padding", Mode::Reflect)),
    tensor("aten.replication_pad{1,2,3}d", |call| pad(call, "padding", Mode::Replicate)),
];

/// Contents of the padding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    /// A constant number.
    Constant,
    /// Reflection without repeating the edge.
    Reflect,
    /// The edge element.
    Replicate,
    /// Elements from the opposite end.
    Circular,
}

/// Modes by torch's index.
const MODES: [(&str, Mode); 4] = [
    ("constant", Mode::Constant),
    ("reflect", Mode::Reflect),
    ("replicate", Mode::Replicate),
    ("circular", Mode::Circular),
];

fn pad_by_name(call: &mut Call<'_, '_>) -> ValueResult {
    let name = call.text("mode")?.unwrap_or("constant");
    match MODES.iter().find(|(known, _)| *known == name) {
        Some((_, mode)) => pad(call, "pad", *mode),
        None => refuse!("padding mode `{name}` is not supported"),
    }
}

fn pad_by_number(call: &mut Call<'_, '_>) -> ValueResult {
    let number = call.known_int("mode")?;
    match usize::try_from(number).ok().and_then(|number| MODES.get(number)) {
        Some((_, mode)) => pad(call, "pad", *mode),
        None => refuse!("padding mode {number} is not supported"),
    }
}

fn pad(call: &mut Call<'_, '_>, name: &str, mode: Mode) -> ValueResult {
    let x = call.value("self")?;
    let amounts = call.int_list(name)?;
    let rank = call.rank(x);
    if amounts.len() % 2 != 0 || amounts.len() / 2 > rank {
        refuse!("{} padding sizes do not match a tensor of rank {rank}", amounts.len());
    }
    // Pairs of widths, last axis first.
    let (pairs, _) = amounts.as_chunks::<2>();
    let pairs = (0..rank).rev().zip(pairs);
    let mut pads: Vec<_> = pairs.map(|(axis, &[before, after])| (axis, before, after)).collect();
    pads.reverse();
    pads.retain(|&(_, before, after)| (before, after) != (Int::Known(0), Int::Known(0)));
    match mode {
        Mode::Constant => {
            let value = if call.has("value") { call.float("value")? } else { 0.0 };
            padded_with(call, x, &pads, value)
        }
        Mode::Circular => circular(call, x, &pads),
        Mode::Reflect | Mode::Replicate => mirrored(call, x, &pads, mode),
    }
}

/// Axis, width before and width after.
type Pad = (usize, Int, Int);

/// Crops by the negative widths, and returns the remaining positive ones.
fn cropped(builder: &mut Builder, x: ValueId, pads: &[Pad]) -> Result<(ValueId, Vec<Pad>)> {
    let cut = |amount: Int| amount.known().map_or(0, |amount| (-amount).max(0));
    let mut x = x;
    let mut left = Vec::with_capacity(pads.len());
    for &(axis, before, after) in pads {
        let end = Some(-cut(after)).filter(|end| *end < 0);
        x = builder.slice(x, axis, cut(before), end)?;
        let kept = |amount: Int| if cut(amount) > 0 { Int::Known(0) } else { amount };
        let (before, after) = (kept(before), kept(after));
        if (before, after) != (Int::Known(0), Int::Known(0)) {
            left.push((axis, before, after));
        }
    }
    Ok((x, left))
}

/// Pads axes with a number. The pads are in ascending order of axes.
pub(super) fn padded_with(
    builder: &mut Builder,
    x: ValueId,
    pads: &[Pad],
    value: f64,
) -> ValueResult {
    let (mut x, pads) = cropped(builder, x, pads)?;
    if builder.dtype(x) == DType::Fp32 {
        return emit_pad(builder, x, &pads, "constant", value as f32);
    }
    // Core ML only pads floats.
    for pad in pads {
        x = pad_with(builder, x, pad, |builder, _, amount| {
            let mut dims = builder.dims(x)?;
            *dims.at_mut(pad.0)? = amount;
            builder.full(&dims, builder.dtype(x), value)
        })?;
    }
    Ok(x)
}

/// Concatenates padding created by `run` before and after a tensor. `run` receives whether it is the leading
/// padding, and its width.
fn pad_with(
    builder: &mut Builder,
    x: ValueId,
    (axis, before, after): Pad,
    run: impl Fn(&mut Builder, bool, Int) -> ValueResult,
) -> ValueResult {
    let mut parts = Vec::with_capacity(3);
    if before != Int::Known(0) {
        parts.push(run(builder, true, before)?);
    }
    parts.push(x);
    if after != Int::Known(0) {
        parts.push(run(builder, false, after)?);
    }
    builder.concat(&parts, axis)
}

fn emit_pad(
    builder: &mut Builder,
    x: ValueId,
    pads: &[Pad],
    mode: &str,
    value: f32,
) -> ValueResult {
    let Some(&(first, ..)) = pads.first() else { return Ok(x) };
    let is_computed =
        |&(_, before, after): &Pad| before.known().is_none() || after.known().is_none();
    // Computed widths must be given for all axes.
    let first = if pads.iter().any(is_computed) { 0 } else { first };
    let mut amounts = vec![Int::Known(0); 2 * (builder.rank(x) - first)];
    for &(axis, before, after) in pads {
        *amounts.at_mut(2 * (axis - first))? = before;
        *amounts.at_mut(2 * (axis - first) + 1)? = after;
    }
    let pad = builder.ints(&amounts)?;
    emit!(builder, OpKind::Pad, x, pad, mode, constant_val = value)
}

fn circular(builder: &mut Builder, x: ValueId, pads: &[Pad]) -> ValueResult {
    let (mut x, pads) = cropped(builder, x, pads)?;
    // torch pads the last axis first, but the order has no effect.
    for pad in pads {
        let extent = builder.dim(x, pad.0)?;
        x = pad_with(builder, x, pad, |builder, is_before, amount| {
            let range = match is_before {
                true => Range::from(builder.sub_ints(extent, amount)?),
                false => Range::to(amount),
            };
            builder.sliced(x, pad.0, range)
        })?;
    }
    Ok(x)
}

fn mirrored(builder: &mut Builder, x: ValueId, pads: &[Pad], mode: Mode) -> ValueResult {
    let (mut x, pads) = cropped(builder, x, pads)?;
    let mut far = Vec::new();
    let mut last = Vec::new();
    let mut earlier = Vec::new();
    for pad in pads {
        let (axis, Int::Known(before), Int::Known(after)) = pad else {
            refuse!("the number of elements to mirror is not known before the program runs");
        };
        if builder.dtype(x) != DType::Fp32 {
            x = mirrored_integers(builder, x, axis, [before, after], mode)?;
            continue;
        }
        let extent = builder.extents(x).at(axis)?.map_or(i64::MAX, |extent| extent as i64);
        if mode == Mode::Replicate && before.max(after) > extent {
            far.push(pad);
        } else if axis + 2 >= builder.rank(x) {
            last.push(pad);
        } else {
            earlier.push((axis, before, after));
        }
    }
    // Padding wider than the axis repeats the edge element.
    for pad in far {
        x = pad_with(builder, x, pad, |builder, is_before, amount| {
            let range = match is_before {
                true => Range::to(Int::Known(1)),
                false => Range::from(Int::Known(-1)),
            };
            let edge = builder.sliced(x, pad.0, range)?;
            let mut repeats = vec![Int::Known(1); builder.rank(x)];
            *repeats.at_mut(pad.0)? = amount;
            builder.tiled(edge, &repeats)
        })?;
    }
    let name = if mode == Mode::Reflect { "reflect" } else { "replicate" };
    x = emit_pad(builder, x, &last, name, 0.0)?;
    // Core ML reflects the last two axes only. Other axes are moved there by merging to three dimensions.
    for (axis, before, after) in earlier {
        let mut sizes = builder.dims(x)?;
        let outer = builder.product(sizes.part(..axis)?)?;
        let inner = builder.product(sizes.part(axis + 1..)?)?;
        let three = builder.with_sizes(x, &[outer, *sizes.at(axis)?, inner])?;
        let pad = (1, Int::Known(before), Int::Known(after));
        let padded = emit_pad(builder, three, &[pad], name, 0.0)?;
        *sizes.at_mut(axis)? = builder.add_ints(*sizes.at(axis)?, Int::Known(before + after))?;
        x = builder.with_sizes(padded, &sizes)?;
    }
    Ok(x)
}

/// Core ML only pads floats; reflected integers are gathered.
fn mirrored_integers(
    builder: &mut Builder,
    x: ValueId,
    axis: usize,
    [before, after]: [i64; 2],
    mode: Mode,
) -> ValueResult {
    let Some(extent) = builder.extents(x).at(axis)?.map(|extent| extent as i64) else {
        refuse!("mirrors integers along an axis of unknown size");
    };
    if extent == 0 {
        refuse!("cannot mirror elements along an empty axis");
    }
    checked_numel(&[(checked(before) + extent + after).get()?])?;
    let source = |place: i64| match mode {
        Mode::Reflect if place < 0 => -place,
        Mode::Reflect if place >= extent => 2 * (extent - 1) - place,
        _ => place.clamp(0, extent - 1),
    };
    let places: Vec<_> = (-before..extent + after).map(source).collect();
    gathered_at(builder, x, &places, axis)
}
