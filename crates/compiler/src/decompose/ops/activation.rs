//! Activations.

use crate::decompose::prelude::*;

pub(crate) const ROWS: &[Row] = &[
    formula("self * sigmoid(self)", &["aten.silu"]),
    formula("clamp(self, 0, 6)", &["aten.relu6"]),
    formula("self * (clamp(self + 3, 0, 6) / 6)", &["aten.hardswish"]),
    formula("clamp(self + 3, 0, 6) / 6", &["aten.hardsigmoid"]),
    formula("elu(self, alpha, 1.0, 1.0 / alpha)", &["aten.celu"]),
    formula("elu(self, 1.6732632423543772, 1.0507009873554805, 1.0)", &["aten.selu"]),
    // In fp16 `exp` overflows above 11.
    formula(
        "scaled = self * beta; most = where(is_half(self), min(threshold, 10), threshold); \
         where(scaled > most, self, log1p(exp(scaled)) / beta)",
        &["aten.softplus"],
    ),
    formula("self * tanh(softplus(self))", &["aten.mish"]),
    formula("-softplus(-self)", &["aten.log_sigmoid", "aten.log_sigmoid_forward"]),
    formula("self - tanh(self)", &["aten.tanhshrink"]),
    formula("self / (abs(self) + 1)", &["aten.softsign"]),
    formula("self - clamp(self, -lambd, lambd)", &["aten.softshrink"]),
    formula("where(self == clamp(self, -lambd, lambd), 0, self)", &["aten.hardshrink"]),
    formula("where(self <= threshold, value, self)", &["aten.threshold"]),
    by(prelu, &["aten.prelu", "aten._prelu_kernel"]),
    by(rrelu, &["aten.rrelu", "aten.rrelu_with_noise_functional"]),
    formula("softmax(self, dim)", &["aten.softmax", "aten._softmax", "aten.special_softmax"]),
    formula(
        "log_softmax(self, dim)",
        &["aten.log_softmax", "aten._log_softmax", "aten.special_log_softmax"],
    ),
    by(safe_softmax, &["aten._safe_softmax"]),
    formula("softmax(-self, dim)", &["aten.softmin"]),
];

fn prelu(call: &mut Call<'_>) -> Results {
    let (x, mut weight) = (call.tensor("self")?, call.tensor("weight")?);
    if weight.rank() == 1 && x.rank() > 2 && *weight.extent(0)? != Size::Fixed(1) {
        weight = call.along(&weight, 0, axis_from_end(x.rank(), 1)?)?;
    }
    one(calc!(call, "where(x > 0, x, x * weight)", x, weight)?)
}

fn rrelu(call: &mut Call<'_>) -> Results {
    if call.bool("training")? {
        return Err(LoweringError::new("`rrelu` draws random slopes in training mode")
            .hint("export the model after `eval()`"));
    }
    let done = calc!(call, "leaky_relu(self, (lower + upper) / 2.0)")?;
    first(call, done)
}

/// Softmax that returns zeros for fully masked rows.
pub(crate) fn softmax_or_zero(call: &mut Call<'_>, x: &Tensor, at: usize) -> TensorResult {
    let weights = call.softmax(x, at)?;
    let most = call.extreme("amax", x, &[at], true)?;
    calc!(call, "where(most == -inf, 0, weights)", most, weights)
}

fn safe_softmax(call: &mut Call<'_>) -> Results {
    let x = call.typed("self")?;
    let at = call.dimension("dim", x.rank())?;
    one(softmax_or_zero(call, &x, at)?)
}
