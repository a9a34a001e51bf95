//! Activations.

use coremill_mil::ir::{Constant, ValueId};
use coremill_mil::ops::OpKind;
use coremill_tensor::DType;

use super::unary::mapped;
use crate::bounds::At;
use crate::error::{Refusal, refuse};
use crate::lower::builder::{Arg, Builder};
use crate::lower::call::{Call, Results};
use crate::lower::row::{Row, all};
use crate::lower::value::Lowered;

pub(crate) const ROWS: &[Row] = &[
    all("aten.relu", relu),
    all("aten.gelu", gelu),
    all("aten.silu", |call| mapped(call, |builder, x| builder.unary(OpKind::Silu, x))),
    all("aten.elu", elu),
    all("aten.leaky_relu", leaky_relu),
    all("aten.prelu", prelu),
    all("aten.hardtanh", hardtanh),
    all("aten.hardsigmoid", |call| mapped(call, hardsigmoid)),
    all("aten.softplus", softplus),
    all("aten.glu", glu),
    all("aten.native_dropout", native_dropout),
];

fn relu(call: &mut Call<'_, '_>) -> Results {
    let x = call.tensor("self")?.value;
    let y = match call.dtype(x) {
        DType::Fp32 => call.unary(OpKind::Relu, x)?,
        DType::Bool => x,
        _ => call.binary(OpKind::Maximum, x, 0)?,
    };
    call.give(y)
}

fn hardtanh(call: &mut Call<'_, '_>) -> Results {
    let x = call.tensor("self")?.value;
    let (low, high) = (call.float("min_val")?, call.float("max_val")?);
    let y = between(call, x, low, high)?;
    call.give(y)
}

/// A tensor between two bounds.
fn between(builder: &mut Builder, x: ValueId, low: f64, high: f64) -> Result<ValueId, Refusal> {
    if builder.dtype(x) != DType::Fp32 {
        let (low, high) = (builder.scalar_like(x, low)?, builder.scalar_like(x, high)?);
        let x = builder.binary(OpKind::Maximum, x, low)?;
        return builder.binary(OpKind::Minimum, x, high);
    }
    match (low as f32, high as f32) {
        (0.0, 6.0) => builder.unary(OpKind::Relu6, x),
        (low, high) => builder.clip(x, low, high),
    }
}

fn gelu(call: &mut Call<'_, '_>) -> Results {
    let x = call.tensor("self")?.value;
    let mode = match call.text("approximate")? {
        None | Some("none") => "EXACT",
        Some("tanh") => "TANH_APPROXIMATION",
        Some(other) => {
            refuse!("`approximate` is `{other}`; `none` and `tanh` are accepted")
        }
    };
    let y = call.emit(OpKind::Gelu, [("x", x.into()), ("mode", mode.into())])?;
    call.give(y)
}

fn raw_elu(builder: &mut Builder, x: ValueId, alpha: f32) -> Result<ValueId, Refusal> {
    builder.emit(OpKind::Elu, [("x", x.into()), ("alpha", alpha.into())])
}

fn elu(call: &mut Call<'_, '_>) -> Results {
    let (alpha, scale) = (call.float("alpha")? as f32, call.float("scale")? as f32);
    let input_scale = call.float("input_scale")? as f32;
    mapped(call, |builder, x| {
        if input_scale == 1.0 {
            let y = raw_elu(builder, x, alpha)?;
            return builder.times(y, scale);
        }
        let inner = builder.times(x, input_scale)?;
        if alpha * input_scale == 1.0 {
            // `celu`: what is above zero is scaled there and back.
            let y = raw_elu(builder, inner, 1.0)?;
            return builder.times(y, alpha * scale);
        }
        let below = raw_elu(builder, inner, alpha)?;
        let positive = builder.binary(OpKind::Greater, x, 0.0_f32)?;
        let y = builder.select(positive, x, below)?;
        builder.times(y, scale)
    })
}

fn slope(builder: &mut Builder, x: ValueId, alpha: f64) -> Result<ValueId, Refusal> {
    builder.emit(OpKind::LeakyRelu, [("x", x.into()), ("alpha", (alpha as f32).into())])
}

fn leaky_relu(call: &mut Call<'_, '_>) -> Results {
    let alpha = call.float("negative_slope")?;
    mapped(call, |builder, x| slope(builder, x, alpha))
}

/// Of a slope for each channel, which is the second axis.
fn prelu(call: &mut Call<'_, '_>) -> Results {
    let x = call.tensor("self")?.value;
    let weight = call.tensor("weight")?.value;
    let rank = call.rank(x);
    let single = call.extents(weight).iter().all(|&extent| extent == Some(1));
    if single && let Some(alpha) = only_float(call, weight) {
        let y = slope(call, x, alpha)?;
        return call.give(y);
    }
    let vector = call.rank(weight) == 1
        && rank >= 2
        && *call.extents(weight).at(0)? == *call.extents(x).at(1)?;
    if vector && rank == 4 && call.known(weight).is_some() {
        let y = call.emit(OpKind::Prelu, [("x", x.into()), ("alpha", weight.into())])?;
        return call.give(y);
    }
    let weight = if call.rank(weight) == 1 && !single && rank > 2 {
        let axes: Vec<_> = (1..rank as i32 - 1).collect();
        call.expand_dims(weight, &axes)?
    } else {
        weight
    };
    let positive = call.binary(OpKind::Greater, x, 0.0_f32)?;
    let below = call.binary(OpKind::Mul, x, weight)?;
    let y = call.select(positive, x, below)?;
    call.give(y)
}

/// The only element of a constant.
fn only_float(builder: &Builder, value: ValueId) -> Option<f64> {
    builder.folded(value)?.only()?.float()
}

fn hardsigmoid(builder: &mut Builder, x: ValueId) -> Result<ValueId, Refusal> {
    builder.emit(
        OpKind::SigmoidHard,
        [("x", x.into()), ("alpha", (1.0_f32 / 6.0).into()), ("beta", 0.5_f32.into())],
    )
}

fn softplus(call: &mut Call<'_, '_>) -> Results {
    /// Beyond it `softplus(x)` is `x` in single precision.
    const LINEAR: f32 = 16.0;
    let (beta, threshold) = (call.float("beta")? as f32, call.float("threshold")? as f32);
    mapped(call, |builder, x| {
        let inner = builder.times(x, beta)?;
        let y = builder.unary(OpKind::Softplus, inner)?;
        let y = builder.times(y, 1.0 / beta)?;
        if threshold >= LINEAR {
            return Ok(y);
        }
        let linear = builder.binary(OpKind::Greater, inner, threshold)?;
        builder.select(linear, x, y)
    })
}

fn glu(call: &mut Call<'_, '_>) -> Results {
    let x = call.tensor("self")?.value;
    let axis = call.axis("dim", call.rank(x))? as i32;
    let halves = call.emit_many(
        OpKind::Split,
        [("x", x.into()), ("num_splits", 2.into()), ("axis", axis.into())],
    )?;
    let gate = call.unary(OpKind::Sigmoid, *halves.at(1)?)?;
    let y = call.binary(OpKind::Mul, *halves.at(0)?, gate)?;
    call.give(y)
}

fn refuse_training(call: &mut Call<'_, '_>, train: &str) -> Result<(), Refusal> {
    if call.flag(train)? && call.float("p")? != 0.0 {
        return Err(Refusal::new("dropout drops at random while training")
            .hint("export the model after `eval()`"));
    }
    Ok(())
}

fn native_dropout(call: &mut Call<'_, '_>) -> Results {
    refuse_training(call, "train")?;
    let x = call.tensor("input")?;
    // The mask has all elements kept.
    let ones = Arg::from(Constant::bool(true));
    let mask = call.binary(OpKind::Equal, x.value, x.value)?;
    let mask = call.binary(OpKind::LogicalOr, mask, ones)?;
    Ok(vec![Lowered::Tensor(x), Lowered::tensor(mask, coremill_pt2::ScalarType::Bool)])
}
