//! Activations.

use coremill_pt2::{Argument, ScalarType, Size};

use crate::bounds::{At, back};
use crate::decompose::call::{Call, Results, Tensor, first, one};
use crate::decompose::formula::calc;
use crate::decompose::row::{Row, by, formula};
use crate::decompose::words::Maybe;
use crate::error::Refusal;

pub(crate) const ROWS: &[Row] = &[
    formula("self * sigmoid(self)", &["aten.silu.default"]),
    formula("clamp(self, 0, 6)", &["aten.relu6.default"]),
    formula("self * (clamp(self + 3, 0, 6) / 6)", &["aten.hardswish.default"]),
    formula("clamp(self + 3, 0, 6) / 6", &["aten.hardsigmoid.default"]),
    by(celu, &["aten.celu.default"]),
    by(selu, &["aten.selu.default"]),
    // In half precision `exp` overflows above 11.
    formula(
        "scaled = self * beta; most = where(is_half(self), min(threshold, 10), threshold); \
         where(scaled > most, self, log1p(exp(scaled)) / beta)",
        &["aten.softplus.default"],
    ),
    formula("self * tanh(softplus(self))", &["aten.mish.default"]),
    formula("-softplus(-self)", &["aten.log_sigmoid.default", "aten.log_sigmoid_forward.default"]),
    formula("self - tanh(self)", &["aten.tanhshrink.default"]),
    formula("self / (abs(self) + 1)", &["aten.softsign.default"]),
    formula("self - clamp(self, -lambd, lambd)", &["aten.softshrink.default"]),
    formula("where(self == clamp(self, -lambd, lambd), 0, self)", &["aten.hardshrink.default"]),
    formula("where(self <= threshold, value, self)", &["aten.threshold.default"]),
    by(prelu, &["aten.prelu.default", "aten._prelu_kernel.default"]),
    by(rrelu, &["aten.rrelu.default", "aten.rrelu_with_noise_functional.default"]),
    by(softmax, &["aten.softmax.int", "aten._softmax.default", "aten.special_softmax.default"]),
    by(
        log_softmax,
        &["aten.log_softmax.int", "aten._log_softmax.default", "aten.special_log_softmax.default"],
    ),
    by(safe_softmax, &["aten._safe_softmax.default"]),
    by(soft_min, &["aten.softmin.int"]),
];

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

fn prelu(call: &mut Call<'_>) -> Results {
    let (x, mut weight) = (call.tensor("self")?, call.tensor("weight")?);
    if weight.rank() == 1 && x.rank() > 2 && *weight.extent(0)? != Size::Fixed(1) {
        let mut sizes = vec![Size::Fixed(1); back(x.rank(), 1)?];
        *sizes.at_mut(0)? = weight.extent(0)?.clone();
        weight = call.view(&weight, sizes)?;
    }
    one(calc!(call, "where(x > 0, x, x * weight)", x, weight)?)
}

fn rrelu(call: &mut Call<'_>) -> Results {
    let x = call.tensor("self")?;
    if call.bool("training")? {
        return Err(Refusal::new("`rrelu` draws random slopes while training")
            .hint("export the model after `eval()`"));
    }
    let slope = (call.float("lower")? + call.float("upper")?) / 2.0;
    let given = [("self", x.argument()), ("negative_slope", Argument::Float(slope))];
    let done = call.emit("aten.leaky_relu.default", &given, x.dtype, x.sizes.clone())?;
    first(call, done)
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
        return calc!(call, "moved - log(sum)", moved, sum);
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
    calc!(call, "where(most == -inf, 0, weights)", most, weights)
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
