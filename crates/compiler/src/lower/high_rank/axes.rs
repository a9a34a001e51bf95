//! Operations that look along some axes: the others become one between them.

use std::ops::Range;

use coremill_mil::ir::{Binding, Constant, Op, ValueId};
use coremill_mil::ops::OpKind;

use super::{MAX_RANK, dims_of, elements, grouped, ints, only, raised};
use crate::error::{Refusal, refuse};
use crate::lower::builder::{Arg, Builder};
use crate::lower::value::Int;

/// Along which axes an operation looks, and what it does with them.
pub(super) struct Along {
    /// The parameters that are tensors with those axes.
    operands: &'static [&'static str],
    /// The parameter that says which.
    parameter: &'static str,
    effect: Effect,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Effect {
    /// The axes stay, perhaps of another extent.
    Stay,
    /// They go, unless `keep_dims` is set.
    Reduce,
    /// An axis is put before the one named.
    Insert,
    /// An axis is put after the one named.
    Window,
    /// The axes of the indices are in the place of the one named.
    Gather,
}

/// How an operation is made one of few axes.
pub(super) fn along(kind: OpKind, op: &Op) -> Option<Along> {
    let one = |parameter, effect| Some(Along { operands: &["x"], parameter, effect });
    match kind {
        OpKind::Reverse => one("axes", Effect::Stay),
        OpKind::Softmax | OpKind::Cumsum | OpKind::Argsort | OpKind::Split | OpKind::Topk => {
            one("axis", Effect::Stay)
        }
        OpKind::Concat => {
            Some(Along { operands: &["values"], parameter: "axis", effect: Effect::Stay })
        }
        OpKind::Stack => {
            Some(Along { operands: &["values"], parameter: "axis", effect: Effect::Insert })
        }
        OpKind::ReduceMax
        | OpKind::ReduceMean
        | OpKind::ReduceMin
        | OpKind::ReduceProd
        | OpKind::ReduceSum
        | OpKind::ReduceL1Norm
        | OpKind::ReduceL2Norm
        | OpKind::ReduceLogSumExp => one("axes", Effect::Reduce),
        OpKind::ReduceArgmax | OpKind::ReduceArgmin => one("axis", Effect::Reduce),
        OpKind::SlidingWindows => one("axis", Effect::Window),
        OpKind::Gather if op.bindings("batch_dims").is_empty() => one("axis", Effect::Gather),
        OpKind::GatherAlongAxis => {
            Some(Along { operands: &["x", "indices"], parameter: "axis", effect: Effect::Stay })
        }
        OpKind::ScatterAlongAxis => Some(Along {
            operands: &["data", "indices", "updates"],
            parameter: "axis",
            effect: Effect::Stay,
        }),
        OpKind::LayerNorm => one("axes", Effect::Stay),
        _ => None,
    }
}

/// Ranges of axes: those named by themselves, what lies between them as one. Neighbours that are named stay
/// apart.
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

fn axes_of(builder: &Builder, op: &Op, along: &Along, rank: usize) -> Result<Vec<usize>, Refusal> {
    let rank = rank + usize::from(along.effect == Effect::Insert);
    let given = match ints(builder, op, along.parameter) {
        Some(given) => given,
        // No axes are all of them; no axis is the last for all that have a default but these.
        None if along.parameter == "axes" => (0..rank as i64).collect(),
        None => match op.kind() {
            Some(OpKind::Cumsum | OpKind::Gather | OpKind::GatherAlongAxis) => vec![0],
            Some(OpKind::ScatterAlongAxis) => vec![0],
            _ => vec![-1],
        },
    };
    let axis = |axis: i64| if axis < 0 { axis + rank as i64 } else { axis } as usize;
    let mut axes: Vec<_> = given.into_iter().map(axis).collect();
    axes.sort_unstable();
    Ok(axes)
}

pub(super) fn apply(builder: &mut Builder, op: Op, along: Along) -> Result<Vec<ValueId>, Refusal> {
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
            let value = match binding {
                Binding::Value(value) => *value,
                Binding::Literal(constant) => builder.constant(constant.clone()),
            };
            let dims = dims_of(builder, value)?;
            bindings.push(Binding::Value(grouped(builder, value, &dims, &groups)?));
        }
        low.set_input(name.into(), bindings);
    }
    let mut indices = Vec::new();
    if along.effect == Effect::Gather {
        // As many axes as the indices have come into the result; they are one until then.
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

/// Tensors beside each other along an axis of their own.
fn inserted(
    builder: &mut Builder,
    op: Op,
    along: &Along,
    axis: usize,
) -> Result<Vec<ValueId>, Refusal> {
    let mut low = op.clone();
    let mut bindings = Vec::new();
    let mut sizes = Vec::new();
    for binding in op.bindings(along.operands[0]) {
        let value = match binding {
            Binding::Value(value) => *value,
            Binding::Literal(constant) => builder.constant(constant.clone()),
        };
        let dims = dims_of(builder, value)?;
        let two = [0..axis, axis..dims.len()];
        bindings.push(Binding::Value(grouped(builder, value, &dims, &two)?));
        sizes = dims;
    }
    sizes.insert(axis, Int::Known(bindings.len() as i64));
    low.set_input(along.operands[0].into(), bindings);
    low.set_input(along.parameter.into(), vec![Binding::Literal(Constant::int32(1))]);
    let value = builder.append(low)?[0];
    Ok(vec![raised(builder, value, &sizes)?])
}

/// The operation along one axis after the other; the last first, so that those before keep their place.
fn one_by_one(
    builder: &mut Builder,
    op: Op,
    along: &Along,
    axes: &[usize],
) -> Result<Vec<ValueId>, Refusal> {
    let steps = matches!(along.effect, Effect::Stay | Effect::Reduce)
        && along.parameter == "axes"
        && op.kind() != Some(OpKind::LayerNorm);
    let [Binding::Value(x)] = op.bindings("x") else { refuse!("`x` is not a value") };
    if !steps || axes.len() < 2 {
        return Err(super::too_many(op.kind().unwrap_or(OpKind::Identity)));
    }
    let mut value = *x;
    for &axis in axes.iter().rev() {
        let mut step = op.clone();
        step.set_input("x".into(), vec![Binding::Value(value)]);
        let axis = Constant::int32s(&[axis as i32]);
        step.set_input("axes".into(), vec![Binding::Literal(axis)]);
        value = builder.append(step)?[0];
    }
    Ok(vec![value])
}

pub(super) fn tiled(builder: &mut Builder, op: &Op) -> Result<Vec<ValueId>, Refusal> {
    let x = only(op, "x")?;
    let mut dims = dims_of(builder, x)?;
    let repeats = elements(builder, op, "reps", dims.len())?;
    let named: Vec<_> = (0..dims.len()).filter(|&at| repeats[at] != Int::Known(1)).collect();
    let mut value = x;
    // All at once if that is few enough axes, else one after the other.
    let whole = ranges(dims.len(), &named).len() <= MAX_RANK;
    let turns = if whole { vec![named] } else { named.iter().map(|&axis| vec![axis]).collect() };
    for axes in turns {
        let groups = ranges(dims.len(), &axes);
        let low = grouped(builder, value, &dims, &groups)?;
        let times = |group: &Range<usize>| match axes.contains(&group.start) {
            true => repeats[group.start],
            false => Int::Known(1),
        };
        let times: Vec<_> = groups.iter().map(times).collect();
        let times = builder.ints(&times)?;
        value = builder.emit(OpKind::Tile, [("x", low.into()), ("reps", times)])?;
        for axis in axes {
            dims[axis] = builder.mul_ints(dims[axis], repeats[axis])?;
        }
        value = raised(builder, value, &dims)?;
    }
    Ok(vec![value])
}

/// A slice along one axis after the other.
pub(super) fn sliced(builder: &mut Builder, op: &Op) -> Result<Vec<ValueId>, Refusal> {
    let x = only(op, "x")?;
    let mut dims = dims_of(builder, x)?;
    let rank = dims.len();
    let begins = elements(builder, op, "begin", rank)?;
    let ends = elements(builder, op, "end", rank)?;
    let steps = ints(builder, op, "stride").unwrap_or_else(|| vec![1; rank]);
    let masks = ["begin_mask", "end_mask", "squeeze_mask"]
        .map(|name| ints(builder, op, name).unwrap_or_else(|| vec![0; rank]));
    let [begin_mask, end_mask, squeeze_mask] =
        masks.map(|mask| mask.into_iter().map(|set| set != 0).collect::<Vec<bool>>());
    let mut value = x;
    for axis in (0..rank).rev() {
        let from_begin = begin_mask[axis] || begins[axis] == Int::Known(0);
        let to_end = end_mask[axis] || builder.same_ints(ends[axis], dims[axis]);
        if from_begin && to_end && steps[axis] == 1 && !squeeze_mask[axis] {
            continue;
        }
        let groups = ranges(dims.len(), &[axis]);
        let low = grouped(builder, value, &dims, &groups)?;
        let at = groups.iter().position(|group| group.start == axis).unwrap_or(0);
        let open = |at_axis: bool| -> Vec<bool> {
            (0..groups.len()).map(|group| group != at || at_axis).collect()
        };
        let bound = |bound: Int| -> Vec<Int> {
            (0..groups.len()).map(|group| if group == at { bound } else { Int::Known(0) }).collect()
        };
        let (begin, end) = (builder.ints(&bound(begins[axis]))?, builder.ints(&bound(ends[axis]))?);
        let mut stride = vec![1; groups.len()];
        stride[at] = steps[axis] as i32;
        let squeezed: Vec<_> =
            (0..groups.len()).map(|group| group == at && squeeze_mask[axis]).collect();
        let low = builder.emit(
            OpKind::SliceByIndex,
            [
                ("x", low.into()),
                ("begin", begin),
                ("end", end),
                ("stride", stride.as_slice().into()),
                ("begin_mask", Arg::bools(&open(begin_mask[axis]))),
                ("end_mask", Arg::bools(&open(end_mask[axis]))),
                ("squeeze_mask", Arg::bools(&squeezed)),
            ],
        )?;
        if squeeze_mask[axis] {
            dims.remove(axis);
        } else {
            dims[axis] = builder.dim(low, at)?;
        }
        value = raised(builder, low, &dims)?;
    }
    Ok(vec![value])
}
