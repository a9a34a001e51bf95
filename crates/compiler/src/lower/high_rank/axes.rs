//! Operations along some axes: the axes in between are merged.

use std::ops::Range;

use coremill_mil::ir::{Binding, Op};

use super::{MAX_RANK, axes, dims_of, elements, grouped, ints, only, raised, value_of};
use crate::bounds::axis_from_end;
use crate::lower::layout;
use crate::lower::prelude::*;

/// Axes that an operation works along, and its effect on them.
pub(super) struct AxisUse {
    /// Parameters that are tensors with those axes.
    operands: &'static [&'static str],
    /// Parameter that selects the axes.
    parameter: &'static str,
    effect: Effect,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Effect {
    /// The axes remain, possibly with another size.
    Stay,
    /// The axes are removed unless `keep_dims` is set.
    Reduce,
    /// A new axis is inserted before the selected one.
    Insert,
    /// A new axis is inserted after the selected one.
    Window,
    /// The axes of the indices replace the selected one.
    Gather,
}

/// Axis usage of an operation kind.
pub(super) fn along(kind: OpKind, op: &Op) -> Option<AxisUse> {
    let (operands, parameter, effect): (&[&str], _, _) = match kind {
        OpKind::Reverse | OpKind::LayerNorm => (&["x"], "axes", Effect::Stay),
        OpKind::Softmax | OpKind::Cumsum | OpKind::Argsort | OpKind::Split | OpKind::Topk => {
            (&["x"], "axis", Effect::Stay)
        }
        OpKind::Concat => (&["values"], "axis", Effect::Stay),
        OpKind::Stack => (&["values"], "axis", Effect::Insert),
        OpKind::ReduceArgmax | OpKind::ReduceArgmin => (&["x"], "axis", Effect::Reduce),
        kind if kind.family() == "reduction" => (&["x"], "axes", Effect::Reduce),
        OpKind::SlidingWindows => (&["x"], "axis", Effect::Window),
        OpKind::Gather if op.bindings("batch_dims").is_empty() => (&["x"], "axis", Effect::Gather),
        OpKind::GatherAlongAxis => (&["x", "indices"], "axis", Effect::Stay),
        OpKind::ScatterAlongAxis => (&["data", "indices", "updates"], "axis", Effect::Stay),
        _ => return None,
    };
    Some(AxisUse { operands, parameter, effect })
}

/// Divides the axes into ranges. Each selected axis is a range of its own; runs of other axes are merged.
fn ranges(rank: usize, named: &[usize]) -> Vec<Range<usize>> {
    let mut ranges: Vec<Range<usize>> = Vec::new();
    for axis in 0..rank {
        let alone = |axis: usize| named.contains(&axis);
        match ranges.last_mut() {
            Some(range) if !alone(axis) && !alone(axis - 1) => range.end = axis + 1,
            _ => ranges.push(axis..axis + 1),
        }
    }
    ranges
}

fn axes_of(builder: &Builder, op: &Op, along: &AxisUse, rank: usize) -> Result<Vec<usize>> {
    let rank = rank + usize::from(along.effect == Effect::Insert);
    let mut axes = match axes(builder, op, along.parameter, rank)? {
        Some(axes) => axes,
        // Defaults: an absent `axes` selects all axes. An absent `axis` selects the last axis, except for the
        // operations below.
        None if along.parameter == "axes" => (0..rank).collect(),
        None => match op.kind() {
            Some(OpKind::Cumsum | OpKind::Gather | OpKind::GatherAlongAxis) => vec![0],
            Some(OpKind::ScatterAlongAxis) => vec![0],
            _ => vec![axis_from_end(rank, 1)?],
        },
    };
    axes.sort_unstable();
    Ok(axes)
}

pub(super) fn apply(builder: &mut Builder, op: Op, along: AxisUse) -> Result<Vec<ValueId>> {
    let values = op.bindings(along.operands[0]);
    let Some(Binding::Value(first)) = values.first() else { refuse!("an operand is not a value") };
    let dims = dims_of(builder, *first)?;
    let rank = dims.len();
    let axes = axes_of(builder, &op, &along, rank)?;
    if along.effect == Effect::Insert {
        return inserted(builder, op, &along, axes[0]);
    }
    let groups = ranges(rank, &axes);
    if groups.len() > MAX_RANK {
        return one_by_one(builder, op, &along, &axes);
    }
    let place = |axis: usize| groups.iter().position(|group| group.start == axis).unwrap_or(0);

    let mut low = op.clone();
    for &name in along.operands {
        let mut bindings = Vec::new();
        for binding in op.bindings(name) {
            let value = value_of(builder, binding);
            let dims = dims_of(builder, value)?;
            bindings.push(Binding::Value(grouped(builder, value, &dims, &groups)?));
        }
        low.set_input(name.into(), bindings);
    }
    let mut indices = Vec::new();
    if along.effect == Effect::Gather {
        // The axes of the indices are merged in the result until the end.
        let value = only(&op, "indices")?;
        indices = dims_of(builder, value)?;
        let flat = grouped(builder, value, &indices, std::slice::from_ref(&(0..indices.len())))?;
        low.set_input("indices".into(), vec![Binding::Value(flat)]);
    }
    let places: Vec<_> = axes.iter().map(|&axis| place(axis) as i32).collect();
    let places = match along.parameter {
        "axes" => Constant::int32s(&places),
        _ => Constant::int32(places[0]),
    };
    low.set_input(along.parameter.into(), vec![Binding::Literal(places)]);
    let keeps = keeps_dims(&op);

    let mut results = Vec::new();
    for value in builder.append(low)? {
        let mut sizes = Vec::with_capacity(rank);
        let mut at = 0;
        for group in &groups {
            if group.len() > 1 || !axes.contains(&group.start) {
                sizes.extend(&dims[group.clone()]);
                at += 1;
                continue;
            }
            match along.effect {
                Effect::Reduce if !keeps => continue,
                Effect::Gather => sizes.extend(&indices),
                Effect::Window => {
                    sizes.push(builder.dim(value, at)?);
                    at += 1;
                    sizes.push(builder.dim(value, at)?);
                }
                _ => sizes.push(builder.dim(value, at)?),
            }
            at += 1;
        }
        results.push(raised(builder, value, &sizes)?);
    }
    Ok(results)
}

fn keeps_dims(op: &Op) -> bool {
    match op.bindings("keep_dims") {
        [Binding::Literal(constant)] => constant.as_bool().unwrap_or(false),
        _ => false,
    }
}

/// Stacks tensors along a new axis.
fn inserted(builder: &mut Builder, op: Op, along: &AxisUse, axis: usize) -> Result<Vec<ValueId>> {
    let mut low = op.clone();
    let mut bindings = Vec::new();
    let mut sizes = Vec::new();
    for binding in op.bindings(along.operands[0]) {
        let value = value_of(builder, binding);
        let dims = dims_of(builder, value)?;
        let two = [0..axis, axis..dims.len()];
        bindings.push(Binding::Value(grouped(builder, value, &dims, &two)?));
        sizes = dims;
    }
    sizes.insert(axis, Int::Known(bindings.len() as i64));
    low.set_input(along.operands[0].into(), bindings);
    low.set_input(along.parameter.into(), vec![Binding::Literal(Constant::int32(1))]);
    let value = builder.append_one(low)?;
    Ok(vec![raised(builder, value, &sizes)?])
}

/// Applies the operation along one axis after the other, starting with the last so that the indices of the others
/// stay valid.
fn one_by_one(
    builder: &mut Builder,
    op: Op,
    along: &AxisUse,
    axes: &[usize],
) -> Result<Vec<ValueId>> {
    let steps = matches!(along.effect, Effect::Stay | Effect::Reduce)
        && along.parameter == "axes"
        && op.kind() != Some(OpKind::LayerNorm);
    if !steps || axes.len() < 2 {
        return Err(super::too_many(op.kind().unwrap_or(OpKind::Identity)));
    }
    let mut value = only(&op, "x")?;
    for &axis in axes.iter().rev() {
        let mut step = op.clone();
        step.set_input("x".into(), vec![Binding::Value(value)]);
        let axis = Constant::int32s(&[axis as i32]);
        step.set_input("axes".into(), vec![Binding::Literal(axis)]);
        value = builder.append_one(step)?;
    }
    Ok(vec![value])
}

pub(super) fn tiled(builder: &mut Builder, op: &Op) -> Result<Vec<ValueId>> {
    let x = only(op, "x")?;
    let mut dims = dims_of(builder, x)?;
    let repeats = elements(builder, op, "reps", dims.len())?;
    let named: Vec<_> = (0..dims.len()).filter(|&at| repeats[at] != Int::Known(1)).collect();
    let mut value = x;
    // Uses a single operation if the rank is low enough, else one operation per axis.
    let whole = ranges(dims.len(), &named).len() <= MAX_RANK;
    let turns = if whole { vec![named] } else { named.iter().map(|&axis| vec![axis]).collect() };
    for axes in turns {
        let groups = ranges(dims.len(), &axes);
        let low = grouped(builder, value, &dims, &groups)?;
        let times = groups.iter().map(|group| match axes.contains(&group.start) {
            true => repeats[group.start],
            false => Int::Known(1),
        });
        value = builder.tiled(low, &times.collect::<Vec<_>>())?;
        for axis in axes {
            dims[axis] = builder.mul_ints(dims[axis], repeats[axis])?;
        }
        value = raised(builder, value, &dims)?;
    }
    Ok(vec![value])
}

/// Slices along one axis after the other.
pub(super) fn sliced(builder: &mut Builder, op: &Op) -> Result<Vec<ValueId>> {
    let x = only(op, "x")?;
    let mut dims = dims_of(builder, x)?;
    let rank = dims.len();
    let begins = elements(builder, op, "begin", rank)?;
    let ends = elements(builder, op, "end", rank)?;
    let steps = ints(builder, op, "stride").unwrap_or_else(|| vec![1; rank]);
    let [begin_mask, end_mask, squeeze_mask] = ["begin_mask", "end_mask", "squeeze_mask"]
        .map(|name| ints(builder, op, name).unwrap_or_else(|| vec![0; rank]));
    let mut value = x;
    for axis in (0..rank).rev() {
        let begin = if begin_mask[axis] != 0 { Int::Known(0) } else { begins[axis] };
        let to_end = end_mask[axis] != 0 || builder.same_ints(ends[axis], dims[axis]);
        let is_whole = begin == Int::Known(0) && to_end && steps[axis] == 1;
        if is_whole && squeeze_mask[axis] == 0 {
            continue;
        }
        let groups = ranges(dims.len(), &[axis]);
        let low = grouped(builder, value, &dims, &groups)?;
        let at = groups.iter().position(|group| group.start == axis).unwrap_or(0);
        let low = if squeeze_mask[axis] != 0 {
            dims.remove(axis);
            builder.taken_at(low, at, begin)?
        } else {
            let end = (!to_end).then_some(ends[axis]);
            let low = builder.sliced(low, at, layout::Range { begin, end, step: steps[axis] })?;
            dims[axis] = builder.dim(low, at)?;
            low
        };
        value = raised(builder, low, &dims)?;
    }
    Ok(vec![value])
}
