//! Binary arithmetic and comparisons, and functions of one number.

use coremill_pt2::Meta;

use crate::decompose::prelude::*;

pub(crate) const ROWS: &[Row] = &[
    by(
        with_numbers,
        &[
            "aten.{add,sub,mul,fmod,multiply,subtract}",
            "aten.rsub.Scalar",
            "aten.div{,ide}.Tensor{,_mode}",
            "aten.true_divide.Tensor",
            "aten.{eq,ne,lt,le,gt,ge}.Tensor",
            "aten.bitwise_{and,or,xor}.Tensor",
        ],
    ),
    to("aten.div", &["aten.divide", "aten.true_divide"]),
    to("aten.gt", &["aten.greater"]),
    to("aten.ge", &["aten.greater_equal"]),
    to("aten.lt", &["aten.less"]),
    to("aten.le", &["aten.less_equal"]),
    to("aten.ne", &["aten.not_equal"]),
    to("aten.bitwise_and", &["aten.__and__"]),
    to("aten.bitwise_or", &["aten.__or__"]),
    to("aten.bitwise_xor", &["aten.__xor__"]),
    by(shifted_left, &["aten.bitwise_left_shift", "aten.__lshift__"]),
    by(shifted_right, &["aten.bitwise_right_shift", "aten.__rshift__"]),
    to("aten.maximum.default", &["aten.max.other"]),
    to("aten.minimum.default", &["aten.min.other"]),
    to("aten.abs", &["aten.absolute"]),
    to("aten.acos", &["aten.arccos"]),
    to("aten.acosh", &["aten.arccosh"]),
    to("aten.asin", &["aten.arcsin"]),
    to("aten.asinh", &["aten.arcsinh"]),
    to("aten.atan", &["aten.arctan"]),
    to("aten.atanh", &["aten.arctanh"]),
    to("aten.atan2", &["aten.arctan2"]),
    to("aten.neg", &["aten.negative"]),
    to("aten.trunc", &["aten.fix"]),
    to("aten.sign", &["aten.sgn"]),
    to("aten.erf", &["aten.special_erf"]),
    to("aten.expm1", &["aten.special_expm1"]),
    to("aten.log1p", &["aten.special_log1p"]),
    to("aten.logit", &["aten.special_logit"]),
    to("aten.round.default", &["aten.special_round.default"]),
    to("aten.sigmoid", &["aten.special_expit"]),
    by(reversed, &["aten.rsub.Tensor"]),
    by(remainder, &["aten.remainder"]),
    by(floor_divided, &["aten.floor_divide"]),
    by(powered, &["aten.float_power"]),
    by(square, &["aten.square"]),
    formula("2 ^ self", &["aten.exp2", "aten.special_exp2"]),
    // `exp(x) - 1` loses digits for small x. One Newton step with the logarithm of the rounded power restores them.
    formula(
        "power = exp(self); near = power - 1; \
         where(abs(self) < 0.5, near + (self - log(power)) * power, near)",
        &["aten.expm1"],
    ),
    formula("log(self) * 1.4426950408889634", &["aten.log2"]),
    formula("log(self) * 0.4342944819032518", &["aten.log10"]),
    // Avoids squaring, which could overflow.
    formula("log(self + sqrt(self - 1) * sqrt(self + 1))", &["aten.acosh"]),
    formula(
        "x = where(given(eps), clamp(self, eps, 1 - eps), self); log(x / (1 - x))",
        &["aten.logit"],
    ),
    formula("self - trunc(self)", &["aten.frac"]),
    formula("self * (pi / 180)", &["aten.deg2rad"]),
    formula("self * (180 / pi)", &["aten.rad2deg"]),
    formula(
        "angle = self * pi; where(self == 0, 1, sin(angle) / angle)",
        &["aten.sinc", "aten.special_sinc"],
    ),
    by(|call| of_floats(call, "self == inf", false), &["aten.isposinf"]),
    by(|call| of_floats(call, "self == -inf", false), &["aten.isneginf"]),
    by(|call| of_floats(call, "!(isinf(self) | isnan(self))", true), &["aten.isfinite"]),
    // The reciprocal reveals the sign of a negative zero.
    formula(
        "below = self < 0; where(is_float(self), below | 1 / self == -inf, below)",
        &["aten.signbit"],
    ),
    formula("where(isnan(self), self, where(self < 0, pi, 0))", &["aten.angle"]),
    by(nan_to_num, &["aten.nan_to_num"]),
    by(round_decimals, &["aten.round.decimals"]),
    formula("self + tensor1 * tensor2 * value", &["aten.addcmul"]),
    formula("self + tensor1 / tensor2 * value", &["aten.addcdiv"]),
    formula("self + (end - self) * weight", &["aten.lerp"]),
    // Divides by the larger magnitude, so that squares do not overflow.
    formula(
        "x = abs(self); y = abs(other); large = max(x, y); ratio = min(x, y) / large; \
         where(large == 0 | large == inf, large, large * sqrt(square(ratio) + 1))",
        &["aten.hypot"],
    ),
    formula("self * 2 ^ other", &["aten.ldexp"]),
    // The gap of equal infinities is zero.
    formula(
        "large = max(self, other); gap = where(self == other, 0, min(self, other) - large); \
         large + log1p(exp(gap))",
        &["aten.logaddexp"],
    ),
    formula(
        "large = max(self, other); gap = where(self == other, 0, min(self, other) - large); \
         large + log1p(2 ^ gap) * 1.4426950408889634",
        &["aten.logaddexp2"],
    ),
    formula(
        "where(self == 0 & other == other, 0, self * log(other))",
        &["aten.xlogy", "aten.special_xlogy"],
    ),
    formula("where(self == 0 & other == other, 0, self * log1p(other))", &["aten.special_xlog1py"]),
    formula("size = abs(self); where(signbit(other), -size, size)", &["aten.copysign"]),
    formula("where(self == 0, values, number(self > 0))", &["aten.heaviside"]),
    // NaN is ignored if the other operand is a number.
    formula(
        "most = max(self, other); \
         where(is_float(most), where(isnan(other), self, where(isnan(self), other, most)), most)",
        &["aten.fmax"],
    ),
    formula(
        "least = min(self, other); \
         where(is_float(least), where(isnan(other), self, where(isnan(self), other, least)), least)",
        &["aten.fmin"],
    ),
    by(clamped, &["aten.clamp_min.default", "aten.clamp_max.default", "aten.clip.default"]),
    by(clamped_by_tensors, &["aten.clamp_min", "aten.clamp_max", "aten.clip", "aten.clamp.Tensor"]),
    // Infinities are only close to themselves.
    formula(
        "gap = abs(self - other); within = gap <= abs(other) * rtol + atol; \
         near = self == other | where(is_float(gap), within & gap < inf, within); \
         where(equal_nan & is_float(self), near | isnan(self) & isnan(other), near)",
        &["aten.isclose"],
    ),
];

/// Overloads with a number operand have their own kernel, which requires a tensor of the result type.
fn with_numbers(call: &mut Call<'_>) -> Results {
    const NAMES: [(&str, &str); 4] = [
        ("multiply.", "mul."),
        ("subtract.", "sub."),
        ("true_divide.", "div."),
        ("divide.", "div."),
    ];
    let mut operator = call.node.target.to_string();
    for (name, plain) in NAMES {
        operator = operator.replace(name, plain);
    }
    let is_tensor = |argument: &Argument| {
        matches!(argument, Argument::Value(id)
            if matches!(call.frame.graph.value(*id).meta, Meta::Tensor(_)))
    };
    if is_tensor(call.argument("other")?) || !is_tensor(call.argument("self")?) {
        return call.renamed(&operator);
    }
    let operator = operator.replace(".Tensor", ".Scalar");
    let x = call.tensor("self")?;
    let dtype = call.result(0)?.dtype;
    // Excludes comparisons, whose result is boolean, and integer division, whose result is fractional.
    let is_plain = ["add", "sub", "mul", "rsub", "fmod"]
        .iter()
        .any(|name| operator.starts_with(&format!("aten.{name}.")));
    if !is_plain || x.dtype == dtype {
        return call.renamed(&operator);
    }
    let x = call.cast(&x, dtype)?;
    one(call.again(&operator, given!(self = x))?)
}

/// Two operands, tensors or numbers, converted to their common type.
fn operands(call: &mut Call<'_>, names: [&str; 2]) -> Result<[Tensor; 2]> {
    let [first, second] = names;
    let both = [call.argument(first)?, call.argument(second)?];
    let Some(dtype) = promoted(call, &both) else {
        refuse!("an operand is neither a tensor nor a number")
    };
    Ok([call.tensor_as(first, dtype)?, call.tensor_as(second, dtype)?])
}

/// Shifts by a constant are products and quotients, which every build of the runtime supports.
fn shifted_left(call: &mut Call<'_>) -> Results {
    let [x, y] = operands(call, ["self", "other"])?;
    one(match *call.argument("other")? {
        Argument::Int(by @ 0..=62) => call.with("mul", &x, Argument::Int(1 << by))?,
        _ => call.join("aten.bitwise_left_shift.Tensor", &x, &y)?,
    })
}

fn shifted_right(call: &mut Call<'_>) -> Results {
    let [x, y] = operands(call, ["self", "other"])?;
    let Argument::Int(by @ 0..=62) = *call.argument("other")? else {
        return one(call.join("aten.bitwise_right_shift.Tensor", &x, &y)?);
    };
    let floor = Argument::Text("floor".to_owned());
    let given = given!(self = x, other = 1_i64 << by, rounding_mode = floor);
    one(call.like(&x, "aten.div.Scalar_mode", given)?)
}

fn reversed(call: &mut Call<'_>) -> Results {
    let [x, y] = operands(call, ["self", "other"])?;
    let alpha = call.number("alpha")?;
    let given = given!(self = y, other = x, alpha = alpha);
    one(call.emit("aten.sub.Tensor", given, x.dtype, broadcast(&x, &y)?)?)
}

/// The kernel's integer remainder has the sign of the dividend, torch's has the sign of the divisor.
fn remainder(call: &mut Call<'_>) -> Results {
    let [x, y] = operands(call, ["self", "other"])?;
    one(calc!(call, "where(is_float(x), x % y, x - floor_divide(x, y) * y)", x, y)?)
}

fn floor_divided(call: &mut Call<'_>) -> Results {
    let [x, y] = operands(call, ["self", "other"])?;
    one(call.join("aten.floor_divide.default", &x, &y)?)
}

fn powered(call: &mut Call<'_>) -> Results {
    let [x, y] = operands(call, ["self", "exponent"])?;
    one(calc!(call, "number(x) ^ number(y)", x, y)?)
}

fn square(call: &mut Call<'_>) -> Results {
    let x = call.tensor("self")?;
    let x = call.cast(&x, if x.dtype == ScalarType::Bool { ScalarType::Int64 } else { x.dtype })?;
    one(call.multiply(&x, &x)?)
}

/// Evaluates a formula for floats; returns the constant `others` for other types.
fn of_floats(call: &mut Call<'_>, formula: &str, others: bool) -> Results {
    let x = call.tensor("self")?;
    if !is_float(x.dtype) {
        return one(call.full(x.sizes, Argument::Bool(others), ScalarType::Bool)?);
    }
    one(calc!(call, formula)?)
}

/// Largest finite number of a float type.
pub(crate) fn largest(dtype: ScalarType) -> f64 {
    match dtype {
        ScalarType::Float16 => 65504.0,
        ScalarType::BFloat16 => f64::from(f32::from_bits(0x7f7f_0000)),
        ScalarType::Float64 => f64::MAX,
        _ => f64::from(f32::MAX),
    }
}

fn clamped(call: &mut Call<'_>) -> Results {
    one(call.again("aten.clamp.default", &[])?)
}

fn clamped_by_tensors(call: &mut Call<'_>) -> Results {
    let mut x = call.tensor("self")?;
    for (name, operator) in [("min", "aten.maximum.default"), ("max", "aten.minimum.default")] {
        if call.has(name) {
            let bound = call.tensor(name)?;
            x = call.join(operator, &x, &bound)?;
        }
    }
    one(x)
}

fn nan_to_num(call: &mut Call<'_>) -> Results {
    let x = call.tensor("self")?;
    if !is_float(x.dtype) {
        return one(x);
    }
    let most = largest(x.dtype);
    let (instead, above) = (call.float_or("nan", 0.0)?, call.float_or("posinf", most)?);
    let below = call.float_or("neginf", -most)?;
    let numbers = calc!(call, "where(isnan(x), instead, x)", x, instead)?;
    if (above, below) == (most, -most) {
        return one(calc!(call, "clamp(numbers, below, above)", numbers, below, above)?);
    }
    let formula = "where(x == -inf, below, where(x == inf, above, numbers))";
    one(calc!(call, formula, x, numbers, above, below)?)
}

fn round_decimals(call: &mut Call<'_>) -> Results {
    let x = call.tensor("self")?;
    let decimals = call.int("decimals")?;
    if !is_float(x.dtype) {
        return one(x);
    }
    let scale = 10f64.powi(decimals.unsigned_abs().min(38) as i32);
    let formula =
        if decimals >= 0 { "round(x * scale) / scale" } else { "round(x / scale) * scale" };
    one(calc!(call, formula, x, scale)?)
}
