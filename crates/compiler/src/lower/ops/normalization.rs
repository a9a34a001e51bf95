//! Normalization.

use super::linear::plus;
use crate::lower::prelude::*;

pub(crate) const ROWS: &[Row] = &[
    tensor("aten.batch_norm", batch_norm),
    several("aten.{native,cudnn}_batch_norm", native_batch_norm),
    several("aten._native_batch_norm_legit{,_no_training,_functional}", native_batch_norm),
    several("aten._batch_norm_{no_update,with_update_functional}", native_batch_norm),
    tensor("aten.instance_norm", instance_norm),
    several("aten.{,native_}layer_norm", layer_norm),
    several("aten.{,native_}group_norm", group_norm),
    several("aten.{,_fused_}rms_norm", rms_norm),
];

/// Optional scale and offset per channel.
#[derive(Clone, Copy)]
struct Affine {
    weight: Option<ValueId>,
    bias: Option<ValueId>,
}

impl Affine {
    fn of(call: &mut Call<'_, '_>) -> Result<Affine> {
        Ok(Affine { weight: call.optional_value("weight")?, bias: call.optional_value("bias")? })
    }

    fn is_constant(&self, builder: &Builder) -> bool {
        [self.weight, self.bias].into_iter().flatten().all(|value| builder.is_constant(value))
    }

    /// Emits a normalization with the constant parameters as arguments, and returns the rest to be applied after it.
    fn built_into(
        self,
        builder: &mut Builder,
        kind: OpKind,
        x: ValueId,
        axes: Option<&[i32]>,
        epsilon: f64,
    ) -> Result<(ValueId, Affine)> {
        let nothing = Affine { weight: None, bias: None };
        let (bound, left) =
            if self.is_constant(builder) { (self, nothing) } else { (nothing, self) };
        let (gamma, beta) = (bound.weight, bound.bias);
        Ok((emit!(builder, kind, x, axes, gamma, beta, epsilon = epsilon as f32)?, left))
    }

    /// `x · weight + bias` with the channels at axis 1.
    fn by_channel(self, builder: &mut Builder, x: ValueId) -> ValueResult {
        let rank = builder.rank(x);
        let mut along =
            |value: Option<ValueId>| value.map(|value| builder.before(value, 1, rank)).transpose();
        Affine { weight: along(self.weight)?, bias: along(self.bias)? }.elementwise(builder, x)
    }

    /// `x · weight + bias`, broadcast as usual.
    fn elementwise(self, builder: &mut Builder, x: ValueId) -> ValueResult {
        let x = match self.weight {
            Some(weight) => builder.binary(OpKind::Mul, x, weight)?,
            None => x,
        };
        plus(builder, x, self.bias)
    }

    /// Core ML's batch norm, for constant mean and variance per channel.
    fn by_given(
        self,
        builder: &mut Builder,
        x: ValueId,
        mean: ValueId,
        variance: ValueId,
        epsilon: f64,
    ) -> ValueResult {
        let (gamma, beta) = (self.weight, self.bias);
        let epsilon = epsilon as f32;
        emit!(builder, OpKind::BatchNorm, x, mean, variance, gamma, beta, epsilon)
    }
}

fn batch_norm(call: &mut Call<'_, '_>) -> ValueResult {
    let normalized = normalized(call)?;
    Ok(normalized.y)
}

fn native_batch_norm(call: &mut Call<'_, '_>) -> Results {
    let normalized = normalized(call)?;
    let mut results = vec![LoweredValue::tensor(normalized.y, call.result_dtype()?)];
    let Some(statistics) = normalized.statistics else {
        // Running statistics are returned as empty tensors or unchanged.
        for index in 1..call.node.outputs.len() {
            results.push(running_statistic(call, index)?);
        }
        return Ok(results);
    };
    let float = |value| LoweredValue::tensor(value, ScalarType::Float32);
    for value in [statistics.mean, statistics.inverse_deviation] {
        results.push(float(channels(call, value)?));
    }
    let updated = updated_statistics(call, &statistics)?;
    if call.node.target.to_string().contains("with_update") {
        results.push(LoweredValue::Nothing);
    }
    results.extend(updated.into_iter().map(float));
    Ok(results)
}

/// Removes the reduced axes from a per-channel statistic.
fn channels(builder: &mut Builder, value: ValueId) -> ValueResult {
    let axes: Vec<_> = (0..builder.rank(value) as i32).filter(|&axis| axis != 1).collect();
    builder.squeeze(value, &axes)
}

/// Further results of a batch norm with running statistics.
fn running_statistic(call: &mut Call<'_, '_>, index: usize) -> Result<LoweredValue> {
    if !call.is_used(index) {
        return Ok(LoweredValue::Nothing);
    }
    let meta = call.result_tensor(index)?;
    let from = match index {
        _ if meta.sizes.iter().any(|size| size.fixed() == Some(0)) => None,
        1 | 3 => Some("running_mean"),
        2 | 4 => Some("running_var"),
        _ => None,
    };
    match from {
        Some(name) => Ok(LoweredValue::Tensor(call.tensor(name)?)),
        None => refuse!(
            "result {index} of a batch norm has no elements, which Core ML does not support"
        ),
    }
}

struct NormResult {
    y: ValueId,
    /// Batch statistics, if they were computed.
    statistics: Option<Statistics>,
}

/// Statistics of a normalization; reduced axes have size 1.
struct Statistics {
    x: ValueId,
    axes: Vec<usize>,
    mean: ValueId,
    variance: ValueId,
    inverse_deviation: ValueId,
}

fn normalized(call: &mut Call<'_, '_>) -> Result<NormResult> {
    let x = call.value("input")?;
    let affine = Affine::of(call)?;
    let mut statistic = |name| if call.has(name) { call.optional_value(name) } else { Ok(None) };
    let (mean, variance) = (statistic("running_mean")?, statistic("running_var")?);
    let epsilon = call.float("eps")?;
    let training = match call.node.argument("training") {
        Some(_) => call.flag("training")?,
        None => call.node.target.to_string().contains("with_update"),
    };
    if let (Some(mean), Some(variance), false) = (mean, variance, training) {
        let y = by_running_statistics(call, x, mean, variance, affine, epsilon)?;
        return Ok(NormResult { y, statistics: None });
    }
    let rank = call.rank(x);
    let axes: Vec<_> = (0..rank).filter(|&axis| axis != 1).collect();
    let (y, statistics) = by_own_statistics(call, x, &axes, epsilon)?;
    let y = affine.by_channel(call, y)?;
    Ok(NormResult { y, statistics: Some(statistics) })
}

fn by_running_statistics(
    builder: &mut Builder,
    x: ValueId,
    mean: ValueId,
    variance: ValueId,
    affine: Affine,
    epsilon: f64,
) -> ValueResult {
    let rank = builder.rank(x);
    let constant = affine.is_constant(builder)
        && builder.is_constant(mean)
        && builder.is_constant(variance)
        && !builder.is_constant(x);
    if constant && (3..=5).contains(&rank) {
        return affine.by_given(builder, x, mean, variance, epsilon);
    }
    // One scale and one offset per channel, constant if the statistics are.
    let inverse = builder.reciprocal_root(variance, epsilon)?;
    let factor = match affine.weight {
        Some(weight) => builder.binary(OpKind::Mul, inverse, weight)?,
        None => inverse,
    };
    let shift = builder.binary(OpKind::Mul, mean, factor)?;
    let offset = match affine.bias {
        Some(bias) => builder.binary(OpKind::Sub, bias, shift)?,
        None => builder.scaled(shift, -1.0)?,
    };
    Affine { weight: Some(factor), bias: Some(offset) }.by_channel(builder, x)
}

/// `(x - mean) / √(variance + epsilon)`, with statistics over these axes.
fn by_own_statistics(
    builder: &mut Builder,
    x: ValueId,
    axes: &[usize],
    epsilon: f64,
) -> Result<(ValueId, Statistics)> {
    let mean = builder.reduced(OpKind::ReduceMean, x, axes, true)?;
    let centered = builder.binary(OpKind::Sub, x, mean)?;
    let squares = builder.binary(OpKind::Mul, centered, centered)?;
    let variance = builder.reduced(OpKind::ReduceMean, squares, axes, true)?;
    let inverse_deviation = builder.reciprocal_root(variance, epsilon)?;
    let y = builder.binary(OpKind::Mul, centered, inverse_deviation)?;
    Ok((y, Statistics { x, axes: axes.to_vec(), mean, variance, inverse_deviation }))
}

/// Updated running statistics, with the unbiased variance; empty if there are none.
fn updated_statistics(call: &mut Call<'_, '_>, statistics: &Statistics) -> Result<Vec<ValueId>> {
    if call.node.outputs.len() < 5 {
        return Ok(Vec::new());
    }
    let momentum = call.float("momentum")?;
    let extents = call.extents(statistics.x);
    let counts = statistics.axes.iter().map(|&axis| extents.get(axis).copied().flatten());
    let Some(count) = counts.product::<Option<u64>>() else {
        refuse!("updating the running variance requires a fixed number of elements");
    };
    let unbiased = count as f64 / (count as f64 - 1.0).max(1.0);
    let mut updated = Vec::new();
    for (name, value, factor) in [
        ("running_mean", statistics.mean, momentum),
        ("running_var", statistics.variance, momentum * unbiased),
    ] {
        let running = call.value(name)?;
        let row = channels(call, value)?;
        let kept = call.scaled(running, 1.0 - momentum)?;
        let new = call.scaled(row, factor)?;
        updated.push(call.binary(OpKind::Add, kept, new)?);
    }
    Ok(updated)
}

fn instance_norm(call: &mut Call<'_, '_>) -> ValueResult {
    let x = call.value("input")?;
    let affine = Affine::of(call)?;
    let epsilon = call.float("eps")?;
    if !call.flag("use_input_stats")? {
        let mean = call.value("running_mean")?;
        let variance = call.value("running_var")?;
        return by_running_statistics(call, x, mean, variance, affine, epsilon);
    }
    let rank = call.rank(x);
    // Merges spatial dimensions beyond two.
    let lines = if rank > 4 {
        let dims = call.dims(x)?;
        call.reshape(x, &[*dims.at(0)?, *dims.at(1)?, Int::Known(-1)])?
    } else {
        x
    };
    let (mut y, left) = affine.built_into(call, OpKind::InstanceNorm, lines, None, epsilon)?;
    if rank > 4 {
        y = call.reshape_like(y, x)?;
    }
    left.by_channel(call, y)
}

/// Number of trailing axes of `input` that are normalized together.
fn normalized_axes(call: &mut Call<'_, '_>, rank: usize) -> Result<usize> {
    let count = call.int_list("normalized_shape")?.len();
    if count > rank {
        refuse!("`normalized_shape` has {count} dimensions, but `input` has {rank}");
    }
    Ok(count)
}

/// The trailing axes as negative indices.
fn last_axes(count: usize) -> Vec<i32> {
    (-(count as i32)..0).collect()
}

fn layer_norm(call: &mut Call<'_, '_>) -> Results {
    let x = call.value("input")?;
    let affine = Affine::of(call)?;
    let epsilon = call.float("eps")?;
    let rank = call.rank(x);
    let count = normalized_axes(call, rank)?;
    if (1..3).any(|index| call.is_used(index)) {
        let axes: Vec<_> = (rank - count..rank).collect();
        let (y, statistics) = by_own_statistics(call, x, &axes, epsilon)?;
        let y = affine.elementwise(call, y)?;
        return call.give_all(&[y, statistics.mean, statistics.inverse_deviation]);
    }
    let axes = last_axes(count);
    let (y, left) = affine.built_into(call, OpKind::LayerNorm, x, Some(&axes), epsilon)?;
    let y = left.elementwise(call, y)?;
    call.give_all(&[y])
}

/// Group norm: all elements of a group of channels are normalized together.
fn group_norm(call: &mut Call<'_, '_>) -> Results {
    let x = call.value("input")?;
    let affine = Affine::of(call)?;
    let named = if call.node.argument("num_groups").is_some() { "num_groups" } else { "group" };
    let groups = call.known_int(named)?;
    let epsilon = call.float("eps")?;
    let batch = call.dim(x, 0)?;
    let lines = call.reshape(x, &[batch, Int::Known(groups), Int::Known(-1)])?;
    let mut results = Vec::new();
    let y = if (1..3).any(|index| call.is_used(index)) {
        let (y, statistics) = by_own_statistics(call, lines, &[2], epsilon)?;
        for value in [statistics.mean, statistics.inverse_deviation] {
            results.push(call.squeeze(value, &[2])?);
        }
        y
    } else {
        emit!(call, OpKind::LayerNorm, x = lines, axes = [2], epsilon = epsilon as f32)?
    };
    let y = call.reshape_like(y, x)?;
    results.insert(0, scaled_by_channel(call, y, affine)?);
    call.give_all(&results)
}

/// Scale and offset as a single operation if both are constant.
fn scaled_by_channel(builder: &mut Builder, x: ValueId, affine: Affine) -> ValueResult {
    let extents = builder.extents(x);
    let (Some(Some(channels)), 3..=5) = (extents.get(1), extents.len()) else {
        return affine.by_channel(builder, x);
    };
    if affine.weight.is_none() || affine.bias.is_none() || !affine.is_constant(builder) {
        return affine.by_channel(builder, x);
    }
    let count = *channels;
    checked_numel(&[count])?;
    let mean = builder.float_constant(&[count], &vec![0.0; count as usize]);
    let variance = builder.float_constant(&[count], &vec![1.0; count as usize]);
    affine.by_given(builder, x, mean, variance, 0.0)
}

/// `x / √(mean(x²) + epsilon) · weight`.
fn rms_norm(call: &mut Call<'_, '_>) -> Results {
    let tensor = call.tensor("input")?;
    let x = tensor.value;
    let weight = call.optional_value("weight")?;
    let rank = call.rank(x);
    let count = normalized_axes(call, rank)?;
    let epsilon = call.optional_float("eps")?.unwrap_or(machine_epsilon(tensor.dtype));
    let bound = weight.is_none_or(|weight| call.is_constant(weight));
    if !call.is_used(1) && count > 0 && bound {
        let y = beside_its_opposite(call, x, weight, count, epsilon)?;
        return call.give_all(&[y]);
    }
    let axes: Vec<_> = (rank - count..rank).collect();
    let squares = call.binary(OpKind::Mul, x, x)?;
    let mean = call.reduced(OpKind::ReduceMean, squares, &axes, true)?;
    let inverse = call.reciprocal_root(mean, epsilon)?;
    let y = call.binary(OpKind::Mul, x, inverse)?;
    let y = Affine { weight, bias: None }.elementwise(call, y)?;
    call.give_all(&[y, inverse])
}

/// RMSNorm as `layer_norm(concat(x, -x))`: the mean is 0 and the variance is mean(x²), so that nothing is squared in
/// fp16, which overflows at the square of 256.
fn beside_its_opposite(
    builder: &mut Builder,
    x: ValueId,
    weight: Option<ValueId>,
    count: usize,
    epsilon: f64,
) -> ValueResult {
    let last = axis_from_end(builder.rank(x), 1)?;
    let opposite = builder.scaled(x, -1.0)?;
    let both = builder.concat(&[x, opposite], last)?;
    let weight = weight.map(|weight| builder.concat(&[weight, weight], count - 1)).transpose()?;
    let axes = last_axes(count);
    let normal = emit!(
        builder,
        OpKind::LayerNorm,
        x = both,
        axes = axes.as_slice(),
        gamma = weight,
        epsilon = epsilon as f32
    )?;
    let Some(extent) = *builder.extents(x).at(last)? else {
        refuse!("the last size of `input` is not known before the program runs");
    };
    builder.slice(normal, last, 0, Some(extent as i64))
}

/// Machine epsilon.
fn machine_epsilon(dtype: ScalarType) -> f64 {
    match dtype {
        ScalarType::Float16 => f64::from(half::f16::EPSILON),
        ScalarType::BFloat16 => f64::from(half::bf16::EPSILON),
        ScalarType::Float64 => f64::EPSILON,
        _ => f64::from(f32::EPSILON),
    }
}
