//! Normalization.

use coremill_pt2::{Argument, Size};

use crate::bounds::{At, back, take};
use crate::decompose::call::{Call, Made, Results, Tensor, first, one};
use crate::decompose::formula::calc;
use crate::decompose::row::{Row, by};
use crate::decompose::size;
use crate::decompose::words::Maybe;
use crate::error::{Refusal, refuse};

pub(crate) const ROWS: &[Row] = &[
    by(
        batch_norm,
        &[
            "aten.batch_norm.default",
            "aten._native_batch_norm_legit_no_training.default",
            "aten.cudnn_batch_norm.default",
            "aten._batch_norm_no_update.default",
            "aten.native_batch_norm.default",
        ],
    ),
    by(
        batch_norm_training,
        &[
            "aten._native_batch_norm_legit_functional.default",
            "aten._native_batch_norm_legit.no_stats",
        ],
    ),
    by(layer_norm, &["aten.layer_norm.default", "aten.native_layer_norm.default"]),
    by(group_norm, &["aten.group_norm.default", "aten.native_group_norm.default"]),
    by(instance_norm, &["aten.instance_norm.default"]),
    by(rms_norm, &["aten.rms_norm.default", "aten._fused_rms_norm.default"]),
    by(weight_norm, &["aten._weight_norm.default", "aten._weight_norm_interface.default"]),
];

fn batch_norm(call: &mut Call<'_>) -> Results {
    let x = call.tensor("input")?;
    let weight = call.optional_tensor("weight")?;
    let bias = call.optional_tensor("bias")?;
    let epsilon = call.float("eps")?;
    if (1..call.node.outputs.len()).any(|index| {
        call.result(index).is_ok_and(|meta| meta.sizes.first() != Some(&Size::Fixed(0)))
    }) {
        refuse!("what batch normalization leaves for derivatives has no kernel");
    }
    let statistics = (call.optional_tensor("running_mean")?, call.optional_tensor("running_var")?);
    let done = match statistics {
        (Some(mean), Some(variance)) if !call.bool("training")? => {
            by_given(call, &x, [weight, bias, Some(mean), Some(variance)], epsilon)?
        }
        _ => {
            let over: Vec<usize> = (0..x.rank()).filter(|at| *at != 1).collect();
            let plain = standard(call, &x, &over, epsilon)?;
            scaled(call, &plain, weight.as_ref(), bias.as_ref())?
        }
    };
    first(call, done)
}

/// A tensor that may be missing, in the type of another.
fn like(call: &mut Call<'_>, tensor: Option<&Tensor>, x: &Tensor) -> Result<Argument, Refusal> {
    match tensor {
        Some(tensor) => Ok(call.cast(tensor, x.dtype)?.argument()),
        None => Ok(Argument::None),
    }
}

/// By weight, bias, mean and variance of each channel.
fn by_given(call: &mut Call<'_>, x: &Tensor, channels: [Option<Tensor>; 4], epsilon: f64) -> Maybe {
    let names = ["weight", "bias", "running_mean", "running_var"];
    let mut given = vec![
        ("input", x.argument()),
        ("momentum", Argument::Float(0.1)),
        ("eps", Argument::Float(epsilon)),
    ];
    for (name, tensor) in names.into_iter().zip(channels) {
        given.push((name, like(call, tensor.as_ref(), x)?));
    }
    let none = vec![Size::Fixed(0)];
    let types = vec![(x.dtype, x.sizes.clone()), (x.dtype, none.clone()), (x.dtype, none)];
    let operator = "aten._native_batch_norm_legit_no_training.default";
    take(&mut call.emit_several(operator, &given, types)?, 0)
}

/// Without its mean, divided by its deviation.
fn standard(call: &mut Call<'_>, x: &Tensor, over: &[usize], epsilon: f64) -> Maybe {
    let mean = call.mean(x, over, true)?;
    let centered = call.subtract(x, &mean)?;
    let squared = call.multiply(&centered, &centered)?;
    let variance = call.mean(&squared, over, true)?;
    calc!(call, "centered * rsqrt(variance + epsilon)", centered, variance, epsilon)
}

/// By the statistics of the input; they move those that are kept, too.
fn batch_norm_training(call: &mut Call<'_>) -> Results {
    let x = call.tensor("input")?;
    let (weight, bias) = (call.optional_tensor("weight")?, call.optional_tensor("bias")?);
    let (epsilon, momentum) = (call.float("eps")?, call.float("momentum")?);
    if !call.bool("training")? {
        let (mean, variance) = (call.tensor("running_mean")?, call.tensor("running_var")?);
        let channels = [weight, bias, Some(mean.clone()), Some(variance.clone())];
        let done = by_given(call, &x, channels, epsilon)?;
        let unused = [Made::Nothing, Made::Nothing];
        let kept = [Made::Tensor(mean), Made::Tensor(variance)];
        return Ok([Made::Tensor(done)].into_iter().chain(unused).chain(kept).collect());
    }
    let over: Vec<usize> = (0..x.rank()).filter(|at| *at != 1).collect();
    let plain = standard(call, &x, &over, epsilon)?;
    let done = scaled(call, &plain, weight.as_ref(), bias.as_ref())?;
    let mean = call.mean(&x, &over, false)?;
    let variance = |call: &mut Call<'_>, correction: f64| {
        let given = [
            ("self", x.argument()),
            ("dim", crate::decompose::words::places(&over)),
            ("correction", Argument::Float(correction)),
        ];
        call.emit("aten.var.correction", &given, x.dtype, vec![x.extent(1)?.clone()])
    };
    let own = variance(call, 0.0)?;
    let inverse = calc!(call, "rsqrt(own + epsilon)", own, epsilon)?;
    let mut results = vec![Made::Tensor(done), Made::Tensor(mean.clone()), Made::Tensor(inverse)];
    let unbiased = variance(call, 1.0)?;
    for (name, new) in [("running_mean", mean), ("running_var", unbiased)] {
        if results.len() == call.node.outputs.len() {
            break;
        }
        let old = call.tensor(name)?;
        let moved = calc!(call, "old * (1 - momentum) + new * momentum", old, momentum, new)?;
        results.push(Made::Tensor(moved));
    }
    Ok(results)
}

/// Times a weight for each channel, plus a bias.
fn scaled(
    call: &mut Call<'_>,
    x: &Tensor,
    weight: Option<&Tensor>,
    bias: Option<&Tensor>,
) -> Maybe {
    let mut done = x.clone();
    for (tensor, is_weight) in [(weight, true), (bias, false)] {
        let Some(tensor) = tensor else { continue };
        let ([count], 2..) = (tensor.extent(..)?, x.rank()) else {
            let (rank, given) = (x.rank(), tensor.rank());
            refuse!(
                "weights of rank {given} for channels of rank {rank}; accepted are 1, and 2 or more"
            );
        };
        let mut sizes = vec![Size::Fixed(1); back(x.rank(), 1)?];
        *sizes.at_mut(0)? = count.clone();
        let channels = call.view(tensor, sizes)?;
        let channels = call.cast(&channels, x.dtype)?;
        done =
            if is_weight { call.multiply(&done, &channels)? } else { call.add(&done, &channels)? };
    }
    Ok(done)
}

fn layer_norm(call: &mut Call<'_>) -> Results {
    let x = call.tensor("input")?;
    let shape = call.sizes("normalized_shape")?;
    let epsilon = call.float("eps")?;
    let (weight, bias) = (call.optional_tensor("weight")?, call.optional_tensor("bias")?);
    let mut given = vec![("input", x.argument()), ("eps", Argument::Float(epsilon))];
    given.push(("normalized_shape", call.sizes_argument(&shape)?));
    given.push(("weight", like(call, weight.as_ref(), &x)?));
    given.push(("bias", like(call, bias.as_ref(), &x)?));
    let kept = x.rank().saturating_sub(shape.len());
    let mut statistics = x.sizes.part(..kept)?.to_vec();
    statistics.resize(x.rank(), Size::Fixed(1));
    let types =
        vec![(x.dtype, x.sizes.clone()), (x.dtype, statistics.clone()), (x.dtype, statistics)];
    let all = call.emit_several("aten.native_layer_norm.default", &given, types)?;
    Ok(all.into_iter().map(Made::Tensor).take(call.node.outputs.len()).collect())
}

/// `groups` groups of channels, each normalized for itself.
fn by_groups(
    call: &mut Call<'_>,
    x: &Tensor,
    groups: i64,
    weight: Option<&Tensor>,
    bias: Option<&Tensor>,
    epsilon: f64,
) -> Result<Vec<Tensor>, Refusal> {
    if x.rank() < 2 {
        refuse!("the tensor has no channels");
    }
    let rest = size::product(x.extent(2..)?);
    let mut given = vec![
        ("input", x.argument()),
        ("N", call.size_argument(x.extent(0)?)?),
        ("C", call.size_argument(x.extent(1)?)?),
        ("HxW", call.size_argument(&rest)?),
        ("group", Argument::Int(groups)),
        ("eps", Argument::Float(epsilon)),
    ];
    given.push(("weight", like(call, weight, x)?));
    given.push(("bias", like(call, bias, x)?));
    let statistics = vec![x.extent(0)?.clone(), Size::Fixed(groups)];
    let types =
        vec![(x.dtype, x.sizes.clone()), (x.dtype, statistics.clone()), (x.dtype, statistics)];
    call.emit_several("aten.native_group_norm.default", &given, types)
}

fn group_norm(call: &mut Call<'_>) -> Results {
    let x = call.tensor("input")?;
    let groups = call.int(if call.has("num_groups") { "num_groups" } else { "group" })?;
    let (weight, bias) = (call.optional_tensor("weight")?, call.optional_tensor("bias")?);
    let epsilon = call.float("eps")?;
    let all = by_groups(call, &x, groups, weight.as_ref(), bias.as_ref(), epsilon)?;
    Ok(all.into_iter().map(Made::Tensor).take(call.node.outputs.len()).collect())
}

fn instance_norm(call: &mut Call<'_>) -> Results {
    let x = call.tensor("input")?;
    let (weight, bias) = (call.optional_tensor("weight")?, call.optional_tensor("bias")?);
    let epsilon = call.float("eps")?;
    let Some(channels) = x.sizes.get(1).and_then(Size::fixed) else {
        refuse!("the number of channels is not known");
    };
    if !call.bool("use_input_stats")? {
        let (Some(mean), Some(variance)) =
            (call.optional_tensor("running_mean")?, call.optional_tensor("running_var")?)
        else {
            refuse!("neither statistics of the input nor given ones are used");
        };
        let negated = call.map("neg", &mean)?;
        let centered = scaled(call, &x, None, Some(&negated))?;
        let inverse = calc!(call, "rsqrt(variance + epsilon)", variance, epsilon)?;
        let plain = scaled(call, &centered, Some(&inverse), None)?;
        return one(scaled(call, &plain, weight.as_ref(), bias.as_ref())?);
    }
    let all = by_groups(call, &x, channels, weight.as_ref(), bias.as_ref(), epsilon)?;
    one(all.at(0)?.clone())
}

/// Divided by the root of the mean of squares, in floats of 32 bits at least, as torch does.
fn rms_norm(call: &mut Call<'_>) -> Results {
    let x = call.tensor("input")?;
    let count = call.sizes("normalized_shape")?.len();
    let weight = call.optional_tensor("weight")?;
    let wide = if crate::decompose::dtype::is_half(x.dtype) {
        coremill_pt2::ScalarType::Float32
    } else {
        x.dtype
    };
    // The smallest step from 1 of the type that is computed in.
    let smallest = if wide.bytes() == 8 { f64::EPSILON } else { f64::from(f32::EPSILON) };
    let epsilon = call.float_or("eps", smallest)?;
    let over: Vec<usize> = (x.rank().saturating_sub(count)..x.rank()).collect();
    let values = call.cast(&x, wide)?;
    let squared = call.multiply(&values, &values)?;
    let mean = call.mean(&squared, &over, true)?;
    let inverse = calc!(call, "rsqrt(mean + epsilon)", mean, epsilon)?;
    let mut done = call.multiply(&values, &inverse)?;
    if let Some(weight) = weight {
        let weight = call.cast(&weight, wide)?;
        done = call.multiply(&done, &weight)?;
    }
    let done = call.cast(&done, x.dtype)?;
    if call.wants(1) {
        return Ok(vec![Made::Tensor(done), Made::Tensor(inverse)]);
    }
    first(call, done)
}

/// `v` with the length `g` in each place of `dim`.
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
    Ok(vec![Made::Tensor(done), Made::Tensor(length)])
}
