//! Activations.

use super::unary::mapped;
use crate::lower::prelude::*;

pub(crate) const ROWS: &[Row] = &[
    tensor("aten.relu", relu),
    tensor("aten.gelu", gelu),
    tensor("aten.elu", elu),
    tensor("aten.leaky_relu", leaky_relu),
    tensor("aten.prelu", prelu),
    tensor("aten.hardtanh", hardtanh),
    tensor("aten.hardsigmoid", |call| mapped(call, hardsigmoid)),
    tensor("aten.softplus", softplus),
    tensor("aten.glu", glu),
    several("aten.native_dropout", native_dropout),
];

fn relu(call: &mut Call<'_, '_>) -> ValueResult {
    let x = call.value("self")?;
    match call.dtype(x) {
        DType::Fp32 => call.unary(OpKind::Relu, x),
        DType::Bool => Ok(x),
        _ => call.binary(OpKind::Maximum, x, 0),
    }
}

fn hardtanh(call: &mut Call<'_, '_>) -> ValueResult {
    let x = call.value("self")?;
    let (low, high) = (call.float("min_val")?, call.float("max_val")?);
    if call.dtype(x) == DType::Fp32 {
        return call.between(x, low as f32, high as f32);
    }
    let (low, high) = (call.scalar_like(x, low)?, call.scalar_like(x, high)?);
    calc!(call, "min(max(x, low), high)", x, low, high)
}

fn gelu(call: &mut Call<'_, '_>) -> ValueResult {
    let x = call.value("self")?;
    let mode = match call.text("approximate")? {
        None | Some("none") => "EXACT",
        Some("tanh") => "TANH_APPROXIMATION",
        Some(other) => refuse!("`approximate` must be `none` or `tanh`, got `{other}`"),
    };
    emit!(call, OpKind::Gelu, x, mode)
}

fn raw_elu(builder: &mut Builder, x: ValueId, alpha: f32) -> ValueResult {
    emit!(builder, OpKind::Elu, x, alpha)
}

fn elu(call: &mut Call<'_, '_>) -> ValueResult {
    let (alpha, scale) = (call.float("alpha")? as f32, call.float("scale")? as f32);
    let input_scale = call.float("input_scale")? as f32;
    mapped(call, |builder, x| {
        if input_scale == 1.0 {
            let y = raw_elu(builder, x, alpha)?;
            return builder.times(y, scale);
        }
        let inner = builder.times(x, input_scale)?;
        if alpha * input_scale == 1.0 {
            // `celu`: the factors cancel for positive elements.
            let y = raw_elu(builder, inner, 1.0)?;
            return builder.times(y, alpha * scale);
        }
        let below = raw_elu(builder, inner, alpha)?;
        let y = calc!(builder, "where(x > 0.0, x, below)", x, below)?;
        builder.times(y, scale)
    })
}

fn slope(builder: &mut Builder, x: ValueId, alpha: f64) -> ValueResult {
    emit!(builder, OpKind::LeakyRelu, x, alpha = alpha as f32)
}

fn leaky_relu(call: &mut Call<'_, '_>) -> ValueResult {
    let alpha = call.float("negative_slope")?;
    mapped(call, |builder, x| slope(builder, x, alpha))
}

/// PReLU with one slope per channel, which is the second axis.
fn prelu(call: &mut Call<'_, '_>) -> ValueResult {
    let x = call.value("self")?;
    let weight = call.value("weight")?;
    let rank = call.rank(x);
    let single = call.extents(weight).iter().all(|&extent| extent == Some(1));
    if single && let Some(alpha) = only_float(call, weight) {
        return slope(call, x, alpha);
    }
    let vector = call.rank(weight) == 1
        && rank >= 2
        && *call.extents(weight).at(0)? == *call.extents(x).at(1)?;
    if vector && rank == 4 && call.known(weight).is_some() {
        return emit!(call, OpKind::Prelu, x, alpha = weight);
    }
    let by_channel = call.rank(weight) == 1 && !single && rank > 2;
    let weight = if by_channel { call.before(weight, 1, rank)? } else { weight };
    calc!(call, "where(x > 0.0, x, x * weight)", x, weight)
}

/// The only element of a constant.
fn only_float(builder: &Builder, value: ValueId) -> Option<f64> {
    builder.folded(value)?.only()?.float()
}

fn hardsigmoid(builder: &mut Builder, x: ValueId) -> ValueResult {
    emit!(builder, OpKind::SigmoidHard, x, alpha = 1.0_f32 / 6.0, beta = 0.5_f32)
}

fn softplus(call: &mut Call<'_, '_>) -> ValueResult {
    /// For larger `x`, `softplus(x)` equals `x` in single precision.
    const LINEAR: f32 = 16.0;
    let (beta, threshold) = (call.float("beta")? as f32, call.float("threshold")? as f32);
    mapped(call, |builder, x| {
        let inner = builder.times(x, beta)?;
        let y = builder.unary(OpKind::Softplus, inner)?;
        let y = builder.times(y, 1.0 / beta)?;
        if threshold >= LINEAR {
            return Ok(y);
        }
        calc!(builder, "where(inner > threshold, x, y)", inner, threshold, x, y)
    })
}

fn glu(call: &mut Call<'_, '_>) -> ValueResult {
    let x = call.value("self")?;
    let axis = call.axis("dim", call.rank(x))? as i32;
    let halves = call.split_evenly(x, 2, axis)?;
    let gate = call.unary(OpKind::Sigmoid, *halves.at(1)?)?;
    call.binary(OpKind::Mul, *halves.at(0)?, gate)
}

fn native_dropout(call: &mut Call<'_, '_>) -> Results {
    if call.flag("train")? && call.float("p")? != 0.0 {
        return Err(LoweringError::new("dropout is random in training mode")
            .hint("export the model after `eval()`"));
    }
    let x = call.tensor("input")?;
    // The mask keeps all elements.
    let mask = call.binary(OpKind::Equal, x.value, x.value)?;
    let mask = call.binary(OpKind::LogicalOr, mask, true)?;
    Ok(vec![LoweredValue::Tensor(x), LoweredValue::tensor(mask, ScalarType::Bool)])
}
