//! Normalization.

use crate::decompose::prelude::*;

pub(crate) const ROWS: &[Row] = &[
    by(
        batch_norm,
        &[
            "aten.{,cudnn_,native_}batch_norm",
            "aten._native_batch_norm_legit_no_training",
            "aten._batch_norm_no_update",
        ],
    ),
    by(
        batch_norm_training,
        &["aten._native_batch_norm_legit_functional", "aten._native_batch_norm_legit.no_stats"],
    ),
    by(layer_norm, &["aten.layer_norm", "aten.native_layer_norm"]),
    by(group_norm, &["aten.group_norm", "aten.native_group_norm"]),
    by(instance_norm, &["aten.instance_norm"]),
    by(rms_norm, &["aten.rms_norm", "aten._fused_rms_norm"]),
    by(weight_norm, &["aten._weight_norm", "aten._weight_norm_interface"]),
];

/// Optional scale and shift per channel.
struct Affine {
    weight: Option<Tensor>,
    bias: Option<Tensor>,
}

impl Affine {
    /// Weight and bias of the call, cast to the type of `x`.
    fn of(call: &mut Call<'_>, x: &Tensor) -> Result<Affine> {
        let [weight, bias] = ["weight", "bias"].map(|name| match call.optional_tensor(name)? {
            Some(tensor) => call.cast(&tensor, x.dtype).map(Some),
            None => Ok(None),
        });
        Ok(Affine { weight: weight?, bias: bias? })
    }

    /// Multiplies by the weight, and adds the bias.
    fn apply(&self, call: &mut Call<'_>, x: Tensor) -> TensorResult {
        let mut done = x;
        if let Some(weight) = &self.weight {
            let weight = of_channels(call, weight, &done)?;
            done = call.multiply(&done, &weight)?;
        }
        if let Some(bias) = &self.bias {
            let bias = of_channels(call, bias, &done)?;
            done = call.add(&done, &bias)?;
        }
        Ok(done)
    }
}

/// Reshapes a per-channel vector to broadcast against a tensor with channels in dimension 1.
fn of_channels(call: &mut Call<'_>, each: &Tensor, x: &Tensor) -> TensorResult {
    let (rank, given) = (x.rank(), each.rank());
    if given != 1 || rank < 2 {
        refuse!("weights must have rank 1, got {given}, and the input at least rank 2, got {rank}");
    }
    let channels = call.along(each, 0, axis_from_end(rank, 1)?)?;
    call.cast(&channels, x.dtype)
}

fn batch_norm(call: &mut Call<'_>) -> Results {
    let x = call.tensor("input")?;
    let affine = Affine::of(call, &x)?;
    let epsilon = call.float("eps")?;
    if (1..call.node.outputs.len()).any(|index| {
        call.result(index).is_ok_and(|meta| meta.sizes.first() != Some(&Size::Fixed(0)))
    }) {
        refuse!("no kernel returns the results of batch normalization for gradients");
    }
    let statistics = (call.optional_tensor("running_mean")?, call.optional_tensor("running_var")?);
    let done = match statistics {
        (Some(mean), Some(variance)) if !call.bool("training")? => {
            by_given(call, &x, &affine, [&mean, &variance], epsilon)?
        }
        _ => {
            let plain = standard(call, &x, epsilon)?;
            affine.apply(call, plain)?
        }
    };
    first(call, done)
}

/// Batch norm with given mean and variance per channel.
fn by_given(
    call: &mut Call<'_>,
    x: &Tensor,
    affine: &Affine,
    [mean, variance]: [&Tensor; 2],
    epsilon: f64,
) -> TensorResult {
    let given = given!(
        input = x,
        momentum = 0.1,
        eps = epsilon,
        weight = affine.weight,
        bias = affine.bias,
        running_mean = call.cast(mean, x.dtype)?,
        running_var = call.cast(variance, x.dtype)?,
    );
    let none = vec![Size::Fixed(0)];
    let types = vec![(x.dtype, x.sizes.clone()), (x.dtype, none.clone()), (x.dtype, none)];
    let operator = "aten._native_batch_norm_legit_no_training.default";
    take(&mut call.emit_several(operator, given, types)?, 0)
}

/// All dimensions except the channels.
fn beside_channels(x: &Tensor) -> Vec<usize> {
    (0..x.rank()).filter(|at| *at != 1).collect()
}

/// Standardizes each channel.
fn standard(call: &mut Call<'_>, x: &Tensor, epsilon: f64) -> TensorResult {
    let over = beside_channels(x);
    let formula = "centered = x - mean(x, over, 1); \
                   centered * rsqrt(mean(square(centered), over, 1) + epsilon)";
    calc!(call, formula, x, over, epsilon)
}

/// Batch norm in training mode: normalizes by batch statistics and updates the running ones.
fn batch_norm_training(call: &mut Call<'_>) -> Results {
    let x = call.tensor("input")?;
    let affine = Affine::of(call, &x)?;
    let epsilon = call.float("eps")?;
    if !call.bool("training")? {
        let (mean, variance) = (call.tensor("running_mean")?, call.tensor("running_var")?);
        let done = by_given(call, &x, &affine, [&mean, &variance], epsilon)?;
        let all = [Some(done), None, None, Some(mean), Some(variance)];
        return Ok(all
            .map(|made| made.map_or(RewriteResult::Nothing, RewriteResult::Tensor))
            .into());
    }
    let plain = standard(call, &x, epsilon)?;
    let done = affine.apply(call, plain)?;
    let over = beside_channels(&x);
    let mean = call.mean(&x, &over, false)?;
    let own = call.variance(&x, &over, 0.0, false)?;
    let inverse = calc!(call, "rsqrt(own + epsilon)", own, epsilon)?;
    let mut results = vec![
        RewriteResult::Tensor(done),
        RewriteResult::Tensor(mean.clone()),
        RewriteResult::Tensor(inverse),
    ];
    let unbiased = call.variance(&x, &over, 1.0, false)?;
    for (name, new) in [("running_mean", mean), ("running_var", unbiased)] {
        if results.len() == call.node.outputs.len() {
            break;
        }
        let old = call.tensor(name)?;
        let moved = calc!(call, "old * (1 - momentum) + new * momentum", old, new)?;
        results.push(RewriteResult::Tensor(moved));
    }
    Ok(results)
}

fn layer_norm(call: &mut Call<'_>) -> Results {
    let x = call.tensor("input")?;
    let shape = call.sizes("normalized_shape")?;
    let epsilon = call.float("eps")?;
    let affine = Affine::of(call, &x)?;
    let wanted = call.sizes_argument(&shape)?;
    let given = given!(
        input = x,
        eps = epsilon,
        normalized_shape = wanted,
        weight = affine.weight,
        bias = affine.bias,
    );
    let mut statistics = x.sizes.part(..x.rank().saturating_sub(shape.len()))?.to_vec();
    statistics.resize(x.rank(), Size::Fixed(1));
    let types =
        vec![(x.dtype, x.sizes.clone()), (x.dtype, statistics.clone()), (x.dtype, statistics)];
    let all = call.emit_several("aten.native_layer_norm.default", given, types)?;
    Ok(all.into_iter().map(RewriteResult::Tensor).take(call.node.outputs.len()).collect())
}

/// Normalizes `groups` groups of channels separately.
fn by_groups(call: &mut Call<'_>, x: &Tensor, groups: i64) -> Result<Vec<Tensor>> {
    let [batch, channels, rest @ ..] = &x.sizes[..] else { refuse!("the tensor has no channels") };
    let affine = Affine::of(call, x)?;
    let epsilon = call.float("eps")?;
    let (count, each) = (call.size_argument(batch)?, call.size_argument(channels)?);
    let area = call.size_argument(&size::product(rest))?;
    let given = given!(
        input = x,
        N = count,
        C = each,
        HxW = area,
        group = groups,
        eps = epsilon,
        weight = affine.weight,
        bias = affine.bias,
    );
    let statistics = vec![batch.clone(), Size::Fixed(groups)];
    let types =
        vec![(x.dtype, x.sizes.clone()), (x.dtype, statistics.clone()), (x.dtype, statistics)];
    call.emit_several("aten.native_group_norm.default", given, types)
}

fn group_norm(call: &mut Call<'_>) -> Results {
    let x = call.tensor("input")?;
    let groups = call.int(if call.has("num_groups") { "num_groups" } else { "group" })?;
    let all = by_groups(call, &x, groups)?;
    Ok(all.into_iter().map(RewriteResult::Tensor).take(call.node.outputs.len()).collect())
}

fn instance_norm(call: &mut Call<'_>) -> Results {
    let x = call.tensor("input")?;
    let channels = x.known(1, "the number of channels")?;
    if call.bool("use_input_stats")? {
        return one(take(&mut by_groups(call, &x, channels)?, 0)?);
    }
    let (Some(mean), Some(variance)) =
        (call.optional_tensor("running_mean")?, call.optional_tensor("running_var")?)
    else {
        refuse!("neither statistics of the input nor running statistics are used");
    };
    let negated = call.map("neg", &mean)?;
    let affine = Affine::of(call, &x)?;
    let centered = Affine { weight: None, bias: Some(negated) }.apply(call, x)?;
    let inverse = calc!(call, "rsqrt(variance + eps)", variance)?;
    let plain = Affine { weight: Some(inverse), bias: None }.apply(call, centered)?;
    one(affine.apply(call, plain)?)
}

/// RMSNorm. Like torch, it computes in at least 32 bits.
fn rms_norm(call: &mut Call<'_>) -> Results {
    let x = call.tensor("input")?;
    let count = call.sizes("normalized_shape")?.len();
    let weight = call.optional_tensor("weight")?;
    let wide = if is_half(x.dtype) { ScalarType::Float32 } else { x.dtype };
    // Machine epsilon of the computation type.
    let smallest = if wide.bytes() == 8 { f64::EPSILON } else { f64::from(f32::EPSILON) };
    let epsilon = call.float_or("eps", smallest)?;
    let over: Vec<usize> = (x.rank().saturating_sub(count)..x.rank()).collect();
    let values = call.cast(&x, wide)?;
    let formula = "rsqrt(mean(square(values), over, 1) + epsilon)";
    let inverse = calc!(call, formula, values, over, epsilon)?;
    let mut done = call.multiply(&values, &inverse)?;
    if let Some(weight) = weight {
        let weight = call.cast(&weight, wide)?;
        done = call.multiply(&done, &weight)?;
    }
    let done = call.cast(&done, x.dtype)?;
    if call.wants(1) {
        return Ok(vec![RewriteResult::Tensor(done), RewriteResult::Tensor(inverse)]);
    }
    first(call, done)
}

/// Scales each slice of `v` along `dim` to the norm `g`.
fn weight_norm(call: &mut Call<'_>) -> Results {
    let (v, g) = (call.tensor("v")?, call.tensor("g")?);
    let dim = call.int("dim")?;
    let kept = if dim == -1 { None } else { Some(v.dimension(dim)?) };
    let over: Vec<usize> = (0..v.rank()).filter(|at| Some(*at) != kept).collect();
    let length = call.norm(&v, 2.0, &over, true)?;
    let done = calc!(call, "v * (g / length)", v, g, length)?;
    if !call.wants(1) {
        return first(call, done);
    }
    let length = call.view(&length, call.result(1)?.sizes.clone())?;
    Ok(vec![RewriteResult::Tensor(done), RewriteResult::Tensor(length)])
}
