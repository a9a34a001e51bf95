//! Normalizations.

use coremill_mil::ir::ValueId;
use coremill_mil::ops::OpKind;
use coremill_pt2::ScalarType;

use crate::bounds::{At, back, created};
use crate::error::{Refusal, refuse};
use crate::lower::builder::Builder;
use crate::lower::call::{Call, Results};
use crate::lower::row::{Row, all};
use crate::lower::value::{Int, Lowered};

pub(crate) const ROWS: &[Row] = &[
    all("aten.batch_norm", batch_norm),
    all("aten.native_batch_norm", native_batch_norm),
    all("aten._native_batch_norm_legit", native_batch_norm),
    all("aten._native_batch_norm_legit_no_training", native_batch_norm),
    all("aten._native_batch_norm_legit_functional", native_batch_norm),
    all("aten._batch_norm_no_update", native_batch_norm),
    all("aten._batch_norm_with_update_functional", native_batch_norm),
    all("aten.cudnn_batch_norm", native_batch_norm),
    all("aten.instance_norm", instance_norm),
    all("aten.layer_norm", layer_norm),
    all("aten.native_layer_norm", layer_norm),
    all("aten.group_norm", group_norm),
    all("aten.native_group_norm", group_norm),
    all("aten.rms_norm", rms_norm),
    all("aten._fused_rms_norm", rms_norm),
];

/// What is done to each channel: factor and offset, either of which may be missing.
#[derive(Clone, Copy)]
struct Affine {
    weight: Option<ValueId>,
    bias: Option<ValueId>,
}

impl Affine {
    fn of(call: &mut Call<'_, '_>) -> Result<Affine, Refusal> {
        let weight = call.optional_tensor("weight")?.map(|weight| weight.value);
        let bias = call.optional_tensor("bias")?.map(|bias| bias.value);
        Ok(Affine { weight, bias })
    }

    fn is_constant(&self, builder: &Builder) -> bool {
        [self.weight, self.bias].into_iter().flatten().all(|value| builder.is_constant(value))
    }

    /// A normalization that multiplies and adds itself what is constant; it can take nothing else.
    fn built_into(
        self,
        builder: &mut Builder,
        kind: OpKind,
        x: ValueId,
        axes: Option<&[i32]>,
        epsilon: f64,
    ) -> Result<ValueId, Refusal> {
        let bound = self.is_constant(builder);
        let [gamma, beta] = [self.weight, self.bias].map(|value| value.filter(|_| bound));
        builder.emit(
            kind,
            [
                ("x", x.into()),
                ("axes", axes.into()),
                ("gamma", gamma.into()),
                ("beta", beta.into()),
                ("epsilon", (epsilon as f32).into()),
            ],
        )
    }

    /// `x · weight + bias`, the channels at axis 1.
    fn by_channel(self, builder: &mut Builder, x: ValueId) -> Result<ValueId, Refusal> {
        let rank = builder.rank(x);
        let mut parts = [None; 2];
        for (part, value) in parts.iter_mut().zip([self.weight, self.bias]) {
            *part = value.map(|value| builder.along_channels(value, rank)).transpose()?;
        }
        Affine { weight: parts[0], bias: parts[1] }.elementwise(builder, x)
    }

    /// `x · weight + bias` as they are.
    fn elementwise(self, builder: &mut Builder, x: ValueId) -> Result<ValueId, Refusal> {
        let x = match self.weight {
            Some(weight) => builder.binary(OpKind::Mul, x, weight)?,
            None => x,
        };
        match self.bias {
            Some(bias) => builder.binary(OpKind::Add, x, bias),
            None => Ok(x),
        }
    }
}

fn batch_norm(call: &mut Call<'_, '_>) -> Results {
    let normalized = normalized(call)?;
    call.give(normalized.y)
}

fn native_batch_norm(call: &mut Call<'_, '_>) -> Results {
    let normalized = normalized(call)?;
    let mut results = vec![Lowered::tensor(normalized.y, call.result_dtype()?)];
    let float = ScalarType::Float32;
    match normalized.statistics {
        None => {
            // Of running statistics torch returns tensors without elements, or the statistics themselves.
            for index in 1..call.node.outputs.len() {
                results.push(running_statistic(call, index)?);
            }
        }
        Some(statistics) => {
            let rows = [statistics.mean, statistics.inverse_deviation];
            for value in rows {
                let axes: Vec<_> = (0..call.rank(value) as i32).filter(|&axis| axis != 1).collect();
                let row = call.squeeze(value, &axes)?;
                results.push(Lowered::tensor(row, float));
            }
            let updated = updated_statistics(call, &statistics)?;
            let reserved = call.node.target.to_string().contains("with_update");
            if reserved {
                results.push(Lowered::Nothing);
            }
            results.extend(updated.into_iter().map(|value| Lowered::tensor(value, float)));
        }
    }
    Ok(results)
}

/// What a batch norm that takes running statistics returns beside its result.
fn running_statistic(call: &mut Call<'_, '_>, index: usize) -> Result<Lowered, Refusal> {
    if !call.is_used(index) {
        return Ok(Lowered::Nothing);
    }
    let meta = call.result_tensor(index)?;
    let from = match index {
        _ if meta.sizes.iter().any(|size| size.fixed() == Some(0)) => None,
        1 | 3 => Some("running_mean"),
        2 | 4 => Some("running_var"),
        _ => None,
    };
    match from {
        Some(name) => Ok(Lowered::Tensor(call.tensor(name)?)),
        None => refuse!("result {index} of a batch norm has no elements, which Core ML lacks"),
    }
}

struct Normalized {
    y: ValueId,
    /// Those of the batch, if they were computed.
    statistics: Option<Statistics>,
}

/// What elements were normalized by; the axes that were averaged over have one element.
struct Statistics {
    x: ValueId,
    axes: Vec<usize>,
    mean: ValueId,
    variance: ValueId,
    inverse_deviation: ValueId,
}

fn normalized(call: &mut Call<'_, '_>) -> Result<Normalized, Refusal> {
    let x = call.tensor("input")?.value;
    let affine = Affine::of(call)?;
    let mean = if call.has("running_mean") { call.optional_tensor("running_mean")? } else { None };
    let variance =
        if call.has("running_var") { call.optional_tensor("running_var")? } else { None };
    let epsilon = call.float("eps")?;
    let training = match call.node.argument("training") {
        Some(_) => call.flag("training")?,
        None => call.node.target.to_string().contains("with_update"),
    };
    if let (Some(mean), Some(variance), false) = (mean, variance, training) {
        let y = by_running_statistics(call, x, mean.value, variance.value, affine, epsilon)?;
        return Ok(Normalized { y, statistics: None });
    }
    let rank = call.rank(x);
    let axes: Vec<_> = (0..rank).filter(|&axis| axis != 1).collect();
    let (y, statistics) = by_own_statistics(call, x, &axes, epsilon)?;
    let y = affine.by_channel(call, y)?;
    Ok(Normalized { y, statistics: Some(statistics) })
}

fn by_running_statistics(
    builder: &mut Builder,
    x: ValueId,
    mean: ValueId,
    variance: ValueId,
    affine: Affine,
    epsilon: f64,
) -> Result<ValueId, Refusal> {
    let rank = builder.rank(x);
    let constant = affine.is_constant(builder)
        && builder.is_constant(mean)
        && builder.is_constant(variance)
        && !builder.is_constant(x);
    if constant && (3..=5).contains(&rank) {
        return builder.emit(
            OpKind::BatchNorm,
            [
                ("x", x.into()),
                ("mean", mean.into()),
                ("variance", variance.into()),
                ("gamma", affine.weight.into()),
                ("beta", affine.bias.into()),
                ("epsilon", (epsilon as f32).into()),
            ],
        );
    }
    // One factor and one offset for each channel, which are constants if the statistics are.
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

/// `(x - mean) / √(variance + epsilon)` of the elements along these axes.
fn by_own_statistics(
    builder: &mut Builder,
    x: ValueId,
    axes: &[usize],
    epsilon: f64,
) -> Result<(ValueId, Statistics), Refusal> {
    let mean = builder.reduced(OpKind::ReduceMean, x, axes, true)?;
    let centered = builder.binary(OpKind::Sub, x, mean)?;
    let squares = builder.binary(OpKind::Mul, centered, centered)?;
    let variance = builder.reduced(OpKind::ReduceMean, squares, axes, true)?;
    let inverse_deviation = builder.reciprocal_root(variance, epsilon)?;
    let y = builder.binary(OpKind::Mul, centered, inverse_deviation)?;
    Ok((y, Statistics { x, axes: axes.to_vec(), mean, variance, inverse_deviation }))
}

/// The running statistics after the batch, the variance with one degree of freedom less; none if there
/// are none.
fn updated_statistics(
    call: &mut Call<'_, '_>,
    statistics: &Statistics,
) -> Result<Vec<ValueId>, Refusal> {
    if call.node.outputs.len() < 5 {
        return Ok(Vec::new());
    }
    let momentum = call.float("momentum")?;
    let mut count = Some(1u64);
    for &axis in &statistics.axes {
        count =
            count.zip(*call.extents(statistics.x).at(axis)?).map(|(count, extent)| count * extent);
    }
    let Some(count) = count else {
        refuse!(
            "the running variance is updated by how many elements there are, which is not fixed"
        );
    };
    let unbiased = count as f64 / (count as f64 - 1.0).max(1.0);
    let mut updated = Vec::new();
    for (name, value, factor) in [
        ("running_mean", statistics.mean, momentum),
        ("running_var", statistics.variance, momentum * unbiased),
    ] {
        let running = call.tensor(name)?.value;
        let axes: Vec<_> = (0..call.rank(value) as i32).filter(|&axis| axis != 1).collect();
        let row = call.squeeze(value, &axes)?;
        let kept = call.scaled(running, 1.0 - momentum)?;
        let new = call.scaled(row, factor)?;
        updated.push(call.binary(OpKind::Add, kept, new)?);
    }
    Ok(updated)
}

fn instance_norm(call: &mut Call<'_, '_>) -> Results {
    let x = call.tensor("input")?.value;
    let affine = Affine::of(call)?;
    let epsilon = call.float("eps")?;
    if !call.flag("use_input_stats")? {
        let mean = call.tensor("running_mean")?.value;
        let variance = call.tensor("running_var")?.value;
        let y = by_running_statistics(call, x, mean, variance, affine, epsilon)?;
        return call.give(y);
    }
    let rank = call.rank(x);
    let bound = affine.is_constant(call);
    // Beyond two spatial dimensions they are taken as one.
    let lines = if rank > 4 {
        let dims = call.dims(x)?;
        call.reshape(x, &[*dims.at(0)?, *dims.at(1)?, Int::Known(-1)])?
    } else {
        x
    };
    let mut y = affine.built_into(call, OpKind::InstanceNorm, lines, None, epsilon)?;
    if rank > 4 {
        y = call.reshape_like(y, x)?;
    }
    if !bound {
        y = affine.by_channel(call, y)?;
    }
    call.give(y)
}

fn layer_norm(call: &mut Call<'_, '_>) -> Results {
    let x = call.tensor("input")?.value;
    let affine = Affine::of(call)?;
    let count = call.int_list("normalized_shape")?.len();
    let epsilon = call.float("eps")?;
    let rank = call.rank(x);
    if count > rank {
        refuse!("`normalized_shape` has {count} dimensions, but `input` has {rank}");
    }
    let axes: Vec<_> = (rank - count..rank).collect();
    let statistics = (1..3).any(|index| call.is_used(index));
    if statistics {
        let (y, statistics) = by_own_statistics(call, x, &axes, epsilon)?;
        let y = affine.elementwise(call, y)?;
        let float = ScalarType::Float32;
        return Ok(vec![
            Lowered::tensor(y, call.result_dtype()?),
            Lowered::tensor(statistics.mean, float),
            Lowered::tensor(statistics.inverse_deviation, float),
        ]);
    }
    let bound = affine.is_constant(call);
    let axes: Vec<_> = (0..count as i32).map(|axis| axis - count as i32).collect();
    let mut y = affine.built_into(call, OpKind::LayerNorm, x, Some(&axes), epsilon)?;
    if !bound {
        y = affine.elementwise(call, y)?;
    }
    call.give(y)
}

/// The channels of a group, and all that belongs to them, are one line that is normalized.
fn group_norm(call: &mut Call<'_, '_>) -> Results {
    let x = call.tensor("input")?.value;
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
            let value = call.squeeze(value, &[2])?;
            results.push(Lowered::tensor(value, ScalarType::Float32));
        }
        y
    } else {
        let nothing = Affine { weight: None, bias: None };
        nothing.built_into(call, OpKind::LayerNorm, lines, Some(&[2]), epsilon)?
    };
    let y = call.reshape_like(y, x)?;
    let y = scaled_by_channel(call, y, affine)?;
    results.insert(0, Lowered::tensor(y, call.result_dtype()?));
    Ok(results)
}

/// Factor and offset as one operation, where they are constants.
fn scaled_by_channel(
    builder: &mut Builder,
    x: ValueId,
    affine: Affine,
) -> Result<ValueId, Refusal> {
    let extents = builder.extents(x);
    let (Some(Some(channels)), 3..=5) = (extents.get(1), extents.len()) else {
        return affine.by_channel(builder, x);
    };
    if affine.weight.is_none() || affine.bias.is_none() || !affine.is_constant(builder) {
        return affine.by_channel(builder, x);
    }
    let count = *channels;
    created(&[count])?;
    let mean = builder.float_constant(&[count], &vec![0.0; count as usize]);
    let variance = builder.float_constant(&[count], &vec![1.0; count as usize]);
    builder.emit(
        OpKind::BatchNorm,
        [
            ("x", x.into()),
            ("mean", mean.into()),
            ("variance", variance.into()),
            ("gamma", affine.weight.into()),
            ("beta", affine.bias.into()),
            ("epsilon", 0.0f32.into()),
        ],
    )
}

/// `x / √(mean of x² + epsilon) · weight`.
fn rms_norm(call: &mut Call<'_, '_>) -> Results {
    let tensor = call.tensor("input")?;
    let x = tensor.value;
    let weight = call.optional_tensor("weight")?.map(|weight| weight.value);
    let count = call.int_list("normalized_shape")?.len();
    let rank = call.rank(x);
    if count > rank {
        refuse!("`normalized_shape` has {count} dimensions, but `input` has {rank}");
    }
    let epsilon = match call.optional_float("eps")? {
        Some(epsilon) => epsilon,
        None => machine_epsilon(tensor.dtype),
    };
    let axes: Vec<_> = (rank - count..rank).collect();
    let bound = weight.is_none_or(|weight| call.is_constant(weight));
    if !call.is_used(1) && count > 0 && bound {
        let y = beside_its_opposite(call, x, weight, count, epsilon)?;
        return call.give(y);
    }
    let squares = call.binary(OpKind::Mul, x, x)?;
    let mean = call.reduced(OpKind::ReduceMean, squares, &axes, true)?;
    let inverse = call.reciprocal_root(mean, epsilon)?;
    let y = call.binary(OpKind::Mul, x, inverse)?;
    let y = Affine { weight, bias: None }.elementwise(call, y)?;
    let mut results = vec![Lowered::tensor(y, call.result_dtype()?)];
    if call.node.outputs.len() > 1 {
        results.push(Lowered::tensor(inverse, ScalarType::Float32));
    }
    Ok(results)
}

/// What has its opposite beside it has a mean of zero and its mean square for a variance, so that Core ML's
/// `layer_norm` does the rest; it squares nothing in 16 bits, where 256 is too large for that.
fn beside_its_opposite(
    builder: &mut Builder,
    x: ValueId,
    weight: Option<ValueId>,
    count: usize,
    epsilon: f64,
) -> Result<ValueId, Refusal> {
    let last = back(builder.rank(x), 1)?;
    let opposite = builder.scaled(x, -1.0)?;
    let both = builder.concat(&[x, opposite], last)?;
    let weight = match weight {
        Some(weight) => Some(builder.concat(&[weight, weight], count - 1)?),
        None => None,
    };
    let axes: Vec<_> = (0..count as i32).map(|axis| axis - count as i32).collect();
    let normal = builder.emit(
        OpKind::LayerNorm,
        [
            ("x", both.into()),
            ("axes", axes.as_slice().into()),
            ("gamma", weight.into()),
            ("epsilon", (epsilon as f32).into()),
        ],
    )?;
    let Some(extent) = *builder.extents(x).at(last)? else {
        refuse!("the last size of `input` is not known before the program runs");
    };
    builder.slice(normal, last, 0, Some(extent as i64))
}

/// The distance from 1 to the next number.
fn machine_epsilon(dtype: ScalarType) -> f64 {
    match dtype {
        ScalarType::Float16 => f64::from(half::f16::EPSILON),
        ScalarType::BFloat16 => f64::from(half::bf16::EPSILON),
        ScalarType::Float64 => f64::EPSILON,
        _ => f64::from(f32::EPSILON),
    }
}
