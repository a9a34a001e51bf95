//! Folds constant scales and shifts into the weights of the preceding layer.
//!
//! ```text
//! a = conv(x = x, weight = w);                                 d = conv(x = x, weight = w·s, bias = (b − m)·s + β)
//! b = batch_norm(x = a, mean = m, variance = v, …);  becomes
//! ```
//!
//! Here s = γ / √(v + ε). The pass also applies to `mul`, `real_div`, `add` and `sub` with constants of one element
//! per channel, and to `linear` in place of `conv`. A `reshape` that keeps the last axis may come between a `linear`
//! and the folded operation. For a quantized weight, the scales are multiplied.

use coremill_tensor::{Buffer, DType};

use super::Editor;
use coremill_mil::ir::{Binding, Constant, Op, OpId, ValueId};
use coremill_mil::ops::OpKind;

/// Maximum number of channels; longer vectors are skipped.
const MAX_CHANNELS: u64 = 1 << 20;

/// Runs the pass and returns the number of removed operations.
pub(super) fn fuse_affine(editor: &mut Editor<'_>) -> usize {
    let mut folded = 0;
    for id in editor.ops() {
        if editor.op(id).is_some() && fold(editor, id).is_some() {
            folded += 1;
        }
    }
    folded
}

/// `y = x · scale + shift` per channel; an empty vector means no scale or no shift.
pub(super) struct Affine {
    pub(super) x: ValueId,
    pub(super) scale: Vec<f64>,
    pub(super) shift: Vec<f64>,
}

fn fold(editor: &mut Editor<'_>, id: OpId) -> Option<()> {
    let kind = editor.op(id)?.kind()?;
    let affine = match kind {
        OpKind::BatchNorm => batch_norm(editor, id)?,
        OpKind::Add | OpKind::Sub | OpKind::Mul | OpKind::RealDiv => elementwise(editor, id, kind)?,
        _ => return None,
    };
    if editor.sole_user(affine.x) != Some(id) {
        return None;
    }
    let reshape = reshaped_linear(editor, affine.x);
    let layer = match reshape {
        Some((_, linear)) => linear,
        None => editor.producer(affine.x)?,
    };
    let layer_kind = editor.op(layer)?.kind()?;
    if kind == OpKind::BatchNorm && reshape.is_some() && editor.shape(affine.x).len() != 2 {
        // The channels of such a norm are not on the last axis.
        return None;
    }
    let output_axis = match layer_kind {
        OpKind::Conv | OpKind::Linear => 0,
        OpKind::ConvTranspose
            if editor.ints(layer, "groups").is_none_or(|groups| groups == [1]) =>
        {
            1
        }
        _ => return None,
    };
    let shape = weight_shape(editor, layer)?;
    let channels = usize::try_from(*shape.get(output_axis)?).ok()?;
    let spread = |vector: Vec<f64>, neutral: f64| match vector.len() {
        0 => Some(vec![neutral; channels]),
        1 => Some(vec![vector[0]; channels]),
        found if found == channels => Some(vector),
        _ => None,
    };
    let is_scaled = !affine.scale.is_empty();
    let (scale, shift) = (spread(affine.scale, 1.0)?, spread(affine.shift, 0.0)?);
    let before = match editor.op(layer)?.binding("bias") {
        Some(binding) => spread(floats(editor, &binding.clone())?, 0.0)?,
        None => vec![0.0; channels],
    };
    let bias: Vec<f32> =
        (0..channels).map(|at| (before[at] * scale[at] + shift[at]) as f32).collect();
    let mut new = editor.op(layer)?.clone();
    new.outputs.clear();
    let y = editor.op(id)?.outputs[0];
    let label = editor.name(y).to_owned();
    if is_scaled {
        let factors: Vec<f32> = scale.iter().map(|&factor| factor as f32).collect();
        let scaled = scaled_weight(editor, layer, output_axis, &factors)?;
        let weight = editor.insert(layer, scaled, &format!("{label}_weight")).ok()?[0];
        new.set_input("weight".into(), vec![Binding::Value(weight)]);
    }
    let bytes = bias.iter().map(|value| value.to_le_bytes()).collect::<Vec<_>>();
    let bytes = bytes.into_flattened();
    let bias = Constant::by_size(DType::Fp32, &[channels as u64], Buffer::from(bytes));
    let bias = editor.constant_before(layer, bias, &format!("{label}_bias"));
    new.set_input("bias".into(), vec![Binding::Value(bias)]);
    let Some((reshape, _)) = reshape else { return editor.rewrite(id, new).ok() };
    let mut op = editor.op(reshape)?.clone();
    op.outputs.clear();
    let folded = editor.insert(id, new, &label).ok()?[0];
    op.set_input("x".into(), vec![Binding::Value(folded)]);
    editor.rewrite(id, op).ok()
}

/// Shape of a layer's weight, which must be an `fp32` constant, possibly quantized.
pub(super) fn weight_shape(editor: &Editor<'_>, layer: OpId) -> Option<Vec<u64>> {
    if let Some(weight) = editor.constant_argument(layer, "weight") {
        return weight.tensor_type().filter(|ty| ty.dtype == DType::Fp32)?.known_shape();
    }
    let weight = editor.argument(layer, "weight")?;
    let stored = editor.op(editor.producer(weight)?)?.kind()?.is_constexpr();
    let shape =
        editor.shape(weight).iter().map(coremill_mil::ir::Dim::known).collect::<Option<_>>()?;
    (stored && editor.dtype(weight) == Some(DType::Fp32)).then_some(shape)
}

/// An operation for a layer's weight, scaled by a factor per output channel.
pub(super) fn scaled_weight(
    editor: &Editor<'_>,
    layer: OpId,
    axis: usize,
    factors: &[f32],
) -> Option<Op> {
    if let Some(weight) = editor.constant_argument(layer, "weight") {
        let scaled = weight.recipe()?.scale(axis, factors).ok()?;
        return Some(Op::constant(Constant::of_recipe(&scaled)));
    }
    let stored = editor.op(editor.producer(editor.argument(layer, "weight")?)?)?;
    let scale = stored.binding("scale")?;
    let scales = floats(editor, scale)?;
    let mut new = Op { outputs: Vec::new(), ..stored.clone() };
    let (extents, product) = match stored.kind()? {
        OpKind::ConstexprAffineDequantize => {
            let rank = |name: &str| {
                let ty = editor.function().bound_constant(stored.binding(name)?)?.tensor_type()?;
                Some(ty.rank())
            };
            let one = rank("scale")? == 0 && rank("zero_point")? == 0;
            let along = stored.binding("axis").and_then(|axis| editor.number_of(axis));
            if !one && along != Some(axis as f64) {
                return None;
            }
            let scale = |at: usize| scales[if scales.len() == 1 { 0 } else { at }];
            let product: Vec<f64> = factors
                .iter()
                .enumerate()
                .map(|(at, &factor)| f64::from(factor) * scale(at))
                .collect();
            let axis = Constant::int32(axis as i32);
            new.set_input("axis".into(), vec![Binding::Literal(axis)]);
            (vec![factors.len() as u64], product)
        }
        OpKind::ConstexprBlockwiseShiftScale => {
            let counts = editor.function().bound_constant(scale)?.tensor_type()?.known_shape()?;
            let inner = counts[axis + 1..].iter().product::<u64>() as usize;
            let before = usize::try_from(counts[axis]).ok()?;
            if before != factors.len() && (before != 1 || stored.binding("offset").is_some()) {
                return None;
            }
            let outer = scales.len() / (before * inner).max(1);
            let mut product = Vec::with_capacity(outer * factors.len() * inner);
            for block in 0..outer {
                for (at, &factor) in factors.iter().enumerate() {
                    let row = block * before + if before == 1 { 0 } else { at };
                    let row = &scales[row * inner..(row + 1) * inner];
                    product.extend(row.iter().map(|scale| scale * f64::from(factor)));
                }
            }
            let mut extents = counts;
            extents[axis] = factors.len() as u64;
            (extents, product)
        }
        _ => return None,
    };
    let bytes: Vec<u8> = product.iter().flat_map(|&scale| (scale as f32).to_le_bytes()).collect();
    let scale = Constant::by_size(DType::Fp32, &extents, Buffer::from(bytes));
    new.set_input("scale".into(), vec![Binding::Literal(scale)]);
    Some(new)
}

/// The `reshape` that produces a value and the `linear` before it, if neither result has other users and the last
/// axis is kept.
fn reshaped_linear(editor: &Editor<'_>, value: ValueId) -> Option<(OpId, OpId)> {
    let reshape = editor.produced_by(value, OpKind::Reshape)?;
    let source = editor.argument(reshape, "x")?;
    let linear = editor.produced_by(source, OpKind::Linear)?;
    let last = |value: ValueId| editor.shape(value).last().and_then(coremill_mil::ir::Dim::known);
    let kept = last(value).is_some() && last(value) == last(source);
    (kept && editor.sole_user(source) == Some(reshape)).then_some((reshape, linear))
}

/// A batch norm with constant statistics as a scale and a shift.
pub(super) fn batch_norm(editor: &Editor<'_>, id: OpId) -> Option<Affine> {
    let x = editor.argument(id, "x")?;
    let op = editor.op(id)?;
    let vector = |name: &str| floats(editor, op.binding(name)?);
    let (mean, variance) = (vector("mean")?, vector("variance")?);
    let gamma =
        if op.binding("gamma").is_some() { vector("gamma")? } else { vec![1.0; mean.len()] };
    let beta = if op.binding("beta").is_some() { vector("beta")? } else { vec![0.0; mean.len()] };
    // The default in the operation table.
    let epsilon =
        if op.binding("epsilon").is_some() { editor.number(id, "epsilon")? } else { 1e-5 };
    if [&variance, &gamma, &beta].iter().any(|all| all.len() != mean.len()) {
        return None;
    }
    let scale: Vec<_> = gamma
        .iter()
        .zip(&variance)
        .map(|(gamma, variance)| gamma / (variance + epsilon).sqrt())
        .collect();
    let shift = (0..mean.len()).map(|at| beta[at] - mean[at] * scale[at]).collect();
    Some(Affine { x, scale, shift })
}

fn elementwise(editor: &Editor<'_>, id: OpId, kind: OpKind) -> Option<Affine> {
    let op = editor.op(id)?;
    let known = |name: &str| {
        let binding = op.binding(name)?;
        match binding {
            Binding::Literal(_) => Some(binding.clone()),
            Binding::Value(value) => editor.constant(*value).map(|_| binding.clone()),
        }
    };
    let commutes = matches!(kind, OpKind::Add | OpKind::Mul);
    let (x, constant) = match (editor.argument(id, "x"), known("y")) {
        (Some(x), Some(constant)) if editor.constant(x).is_none() => (x, constant),
        _ if commutes || kind == OpKind::Sub => (editor.argument(id, "y")?, known("x")?),
        _ => return None,
    };
    let reversed = kind == OpKind::Sub && known("y").is_none();
    let layer = editor.producer(x)?;
    let channel_axis = match editor.op(layer)?.kind()? {
        OpKind::Linear | OpKind::Reshape => editor.shape(x).len().checked_sub(1)?,
        _ => 1,
    };
    let vector = channels(editor, &constant, editor.shape(x).len(), channel_axis)?;
    // Broadcasting must not change the layer's shape.
    if editor.shape(op.outputs[0]) != editor.shape(x) {
        return None;
    }
    Some(match kind {
        OpKind::Add => Affine { x, scale: Vec::new(), shift: vector },
        OpKind::Sub if reversed => Affine { x, scale: vec![-1.0], shift: vector },
        OpKind::Sub => {
            Affine { x, scale: Vec::new(), shift: vector.iter().map(|value| -value).collect() }
        }
        OpKind::Mul => Affine { x, scale: vector, shift: Vec::new() },
        _ if vector.contains(&0.0) => return None,
        _ => {
            Affine { x, scale: vector.iter().map(|value| 1.0 / value).collect(), shift: Vec::new() }
        }
    })
}

/// Elements of a constant with one per channel, or a single one.
fn channels(editor: &Editor<'_>, constant: &Binding, rank: usize, axis: usize) -> Option<Vec<f64>> {
    let ty = editor.function().bound_constant(constant)?.tensor_type()?;
    let shape = ty.known_shape()?;
    let from_end = rank.checked_sub(axis + 1)?;
    let fits = shape.iter().rev().enumerate().all(|(at, &extent)| extent == 1 || at == from_end);
    if !fits || shape.len() > rank {
        return None;
    }
    floats(editor, constant)
}

/// Elements of a small float constant.
pub(super) fn floats(editor: &Editor<'_>, binding: &Binding) -> Option<Vec<f64>> {
    let constant = editor.function().bound_constant(binding)?;
    let ty = constant.tensor_type()?;
    if ty.dtype != DType::Fp32 || ty.element_count()? > MAX_CHANNELS {
        return None;
    }
    let (raw, _) = constant.elements()?.as_bytes().as_chunks::<4>();
    Some(raw.iter().map(|&raw| f64::from(f32::from_le_bytes(raw))).collect())
}
