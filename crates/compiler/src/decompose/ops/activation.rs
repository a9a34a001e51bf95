//! Activations.

use coremill_pt2::{Argument, ScalarType, Size};

use crate::bounds::At;
use crate::decompose::call::{Call, Results, Tensor, one};
use crate::decompose::row::{Row, by};
use crate::decompose::words::Maybe;
use crate::error::{Refusal, refuse};

pub(crate) const ROWS: &[Row] = &[
    by(silu, &["aten.silu.default"]),
    by(relu6, &["aten.relu6.default"]),
    by(hardswish, &["aten.hardswish.default"]),
    by(hardsigmoid, &["aten.hardsigmoid.default"]),
    by(celu, &["aten.celu.default"]),
    by(selu, &["aten.selu.default"]),
    by(softplus_call, &["aten.softplus.default"]),
    by(mish, &["aten.mish.default"]),
    by(log_sigmoid, &["aten.log_sigmoid.default"]),
    by(tanhshrink, &["aten.tanhshrink.default"]),
    by(softsign, &["aten.softsign.default"]),
    by(shrunk, &["aten.softshrink.default", "aten.hardshrink.default"]),
    by(threshold, &["aten.threshold.default"]),
    by(prelu, &["aten.prelu.default", "aten._prelu_kernel.default"]),
    by(rrelu, &["aten.rrelu.default"]),
    by(softmax, &["aten.softmax.int", "aten._softmax.default", "aten.special_softmax.default"]),
    by(
        log_softmax,
        &["aten.log_softmax.int", "aten._log_softmax.default", "aten.special_log_softmax.default"],
    ),
    by(safe_softmax, &["aten._safe_softmax.default"]),
    by(soft_min, &["aten.softmin.int"]),
];

fn silu(call: &mut Call<'_>) -> Results {
    let x = call.tensor("self")?;
    let gate = call.map("sigmoid", &x)?;
    one(call.multiply(&x, &gate)?)
}

fn relu6(call: &mut Call<'_>) -> Results {
    let x = call.tensor("self")?;
    one(call.clamp(&x, Some(0.0), Some(6.0))?)
}

/// From 0 at -3 to 1 at 3.
fn hard_gate(call: &mut Call<'_>, x: &Tensor) -> Maybe {
    let moved = call.add_number(x, 3.0)?;
    let kept = call.clamp(&moved, Some(0.0), Some(6.0))?;
    call.with("div", &kept, Argument::Float(6.0))
}

fn hardswish(call: &mut Call<'_>) -> Results {
    let x = call.tensor("self")?;
    let gate = hard_gate(call, &x)?;
    one(call.multiply(&x, &gate)?)
}

fn hardsigmoid(call: &mut Call<'_>) -> Results {
    let x = call.tensor("self")?;
    one(hard_gate(call, &x)?)
}

fn elu(call: &mut Call<'_>, alpha: f64, scale: f64, input_scale: f64) -> Results {
    let x = call.tensor("self")?;
    let given = [
        ("self", x.argument()),
        ("alpha", Argument::Float(alpha)),
        ("scale", Argument::Float(scale)),
        ("input_scale", Argument::Float(input_scale)),
    ];
    one(call.emit("aten.elu.default", &given, x.dtype, x.sizes.clone())?)
}

fn celu(call: &mut Call<'_>) -> Results {
    let alpha = call.float("alpha")?;
    elu(call, alpha, 1.0, 1.0 / alpha)
}

fn selu(call: &mut Call<'_>) -> Results {
    elu(call, 1.673_263_242_354_377_2, 1.050_700_987_355_480_5, 1.0)
}

/// `log(1 + exp(beta * x)) / beta`, and `x` itself above the threshold.
fn softplus(call: &mut Call<'_>, x: &Tensor, beta: f64, threshold: f64) -> Maybe {
    let scaled = if beta == 1.0 { x.clone() } else { call.times(x, beta)? };
    let power = call.map("exp", &scaled)?;
    let mut log = call.map("log1p", &power)?;
    if beta != 1.0 {
        log = call.with("div", &log, Argument::Float(beta))?;
    }
    let large = call.compare_number("gt", &scaled, Argument::Float(threshold))?;
    call.choose(&large, x, &log)
}

fn softplus_call(call: &mut Call<'_>) -> Results {
    let x = call.tensor("self")?;
    // In half precision `exp` overflows above 11.
    let most = if x.dtype.bytes() < 4 { 10.0 } else { f64::INFINITY };
    let (beta, threshold) = (call.float("beta")?, call.float("threshold")?.min(most));
    one(softplus(call, &x, beta, threshold)?)
}

fn mish(call: &mut Call<'_>) -> Results {
    let x = call.tensor("self")?;
    // In half precision `exp` overflows above 11.
    let soft = softplus(call, &x, 1.0, if x.dtype.bytes() < 4 { 10.0 } else { 20.0 })?;
    let gate = call.map("tanh", &soft)?;
    one(call.multiply(&x, &gate)?)
}

fn log_sigmoid(call: &mut Call<'_>) -> Results {
    let x = call.tensor("self")?;
    let size = call.map("abs", &x)?;
    let falling = call.map("neg", &size)?;
    let power = call.map("exp", &falling)?;
    let rest = call.map("log1p", &power)?;
    let low = call.clamp(&x, None, Some(0.0))?;
    one(call.subtract(&low, &rest)?)
}

fn tanhshrink(call: &mut Call<'_>) -> Results {
    let x = call.tensor("self")?;
    let bent = call.map("tanh", &x)?;
    one(call.subtract(&x, &bent)?)
}

fn softsign(call: &mut Call<'_>) -> Results {
    let x = call.tensor("self")?;
    let size = call.map("abs", &x)?;
    let below = call.add_number(&size, 1.0)?;
    one(call.divide(&x, &below)?)
}

fn shrunk(call: &mut Call<'_>) -> Results {
    let x = call.tensor("self")?;
    let bound = call.float("lambd")?;
    let inside = call.clamp(&x, Some(-bound), Some(bound))?;
    if call.node.target.is("aten", "softshrink", "default") {
        return one(call.subtract(&x, &inside)?);
    }
    let same = call.compare("eq", &x, &inside)?;
    let zero = call.number_beside(Argument::Float(0.0), &x)?;
    one(call.choose(&same, &zero, &x)?)
}

fn threshold(call: &mut Call<'_>) -> Results {
    let x = call.tensor("self")?;
    let (bound, value) = (call.number("threshold")?, call.number("value")?);
    let low = call.compare_number("le", &x, bound)?;
    let value = call.full(Vec::new(), value, x.dtype)?;
    one(call.choose(&low, &value, &x)?)
}

fn prelu(call: &mut Call<'_>) -> Results {
    let (x, mut weight) = (call.tensor("self")?, call.tensor("weight")?);
    if weight.rank() == 1 && x.rank() > 2 && *weight.extent(0)? != Size::Fixed(1) {
        let mut sizes = vec![Size::Fixed(1); x.rank() - 1];
        *sizes.at_mut(0)? = weight.extent(0)?.clone();
        weight = call.view(&weight, sizes)?;
    }
    let slope = call.multiply(&x, &weight)?;
    let above = call.compare_number("gt", &x, Argument::Float(0.0))?;
    one(call.choose(&above, &x, &slope)?)
}

fn rrelu(call: &mut Call<'_>) -> Results {
    let x = call.tensor("self")?;
    if call.bool("training")? {
        refuse!("slopes that are drawn anew each time are not for programs that predict");
    }
    let slope = (call.float("lower")? + call.float("upper")?) / 2.0;
    let given = [("self", x.argument()), ("negative_slope", Argument::Float(slope))];
    one(call.emit("aten.leaky_relu.default", &given, x.dtype, x.sizes.clone())?)
}

/// The operand as the type of the result, and the dimension.
fn along(call: &mut Call<'_>) -> Result<(Tensor, usize), Refusal> {
    let x = call.tensor("self")?;
    let dtype = call.result(0)?.dtype;
    let at = x.dimension(call.int("dim")?)?;
    Ok((call.cast(&x, dtype)?, at))
}

fn softmax(call: &mut Call<'_>) -> Results {
    let (x, at) = along(call)?;
    one(call.softmax(&x, at)?)
}

fn log_softmax(call: &mut Call<'_>) -> Results {
    let (x, at) = along(call)?;
    one(log_softmax_of(call, &x, at)?)
}

/// The kernel has no floats of 64 bits.
pub(crate) fn log_softmax_of(call: &mut Call<'_>, x: &Tensor, at: usize) -> Maybe {
    if x.dtype == ScalarType::Float64 {
        let most = if x.rank() == 0 { x.clone() } else { call.extreme("amax", x, &[at], true)? };
        let moved = call.subtract(x, &most)?;
        let power = call.map("exp", &moved)?;
        let sum = if x.rank() == 0 { power } else { call.sum(&power, &[at], true)? };
        let log = call.map("log", &sum)?;
        return call.subtract(&moved, &log);
    }
    let given = [
        ("self", x.argument()),
        ("dim", Argument::Int(at as i64)),
        ("half_to_float", Argument::Bool(false)),
    ];
    call.emit("aten._log_softmax.default", &given, x.dtype, x.sizes.clone())
}

/// Rows in which everything is masked are zeros.
pub(crate) fn softmax_or_zero(call: &mut Call<'_>, x: &Tensor, at: usize) -> Maybe {
    let weights = call.softmax(x, at)?;
    let most = call.extreme("amax", x, &[at], true)?;
    let none = call.compare_number("eq", &most, Argument::Float(f64::NEG_INFINITY))?;
    let zero = call.number_beside(Argument::Float(0.0), x)?;
    call.choose(&none, &zero, &weights)
}

fn safe_softmax(call: &mut Call<'_>) -> Results {
    let (x, at) = along(call)?;
    one(softmax_or_zero(call, &x, at)?)
}

fn soft_min(call: &mut Call<'_>) -> Results {
    let (x, at) = along(call)?;
    let negated = call.map("neg", &x)?;
    one(call.softmax(&negated, at)?)
}
