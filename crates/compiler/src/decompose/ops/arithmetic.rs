//! Sums, products and comparisons of two, and functions of one number.

use coremill_pt2::{Argument, Meta, ScalarType};

use crate::decompose::call::{Call, Results, Tensor, one, promoted};
use crate::decompose::dtype::is_float;
use crate::decompose::formula::calc;
use crate::decompose::row::{Row, by, formula, to};
use crate::error::refuse;

pub(crate) const ROWS: &[Row] = &[
    by(
        with_numbers,
        &[
            "aten.add.Tensor",
            "aten.sub.Tensor",
            "aten.mul.Tensor",
            "aten.div.Tensor",
            "aten.div.Tensor_mode",
            "aten.eq.Tensor",
            "aten.ne.Tensor",
            "aten.lt.Tensor",
            "aten.le.Tensor",
            "aten.gt.Tensor",
            "aten.ge.Tensor",
            "aten.fmod.Tensor",
            "aten.fmod.Scalar",
            "aten.add.Scalar",
            "aten.sub.Scalar",
            "aten.mul.Scalar",
            "aten.rsub.Scalar",
            "aten.multiply.Tensor",
            "aten.multiply.Scalar",
            "aten.subtract.Tensor",
            "aten.subtract.Scalar",
            "aten.divide.Tensor",
            "aten.divide.Tensor_mode",
            "aten.true_divide.Tensor",
            "aten.bitwise_and.Tensor",
            "aten.bitwise_or.Tensor",
            "aten.bitwise_xor.Tensor",
        ],
    ),
    to("aten.div.Scalar", &["aten.divide.Scalar", "aten.true_divide.Scalar"]),
    to("aten.div.Scalar_mode", &["aten.divide.Scalar_mode"]),
    to("aten.gt.Tensor", &["aten.greater.Tensor"]),
    to("aten.gt.Scalar", &["aten.greater.Scalar"]),
    to("aten.ge.Tensor", &["aten.greater_equal.Tensor"]),
    to("aten.ge.Scalar", &["aten.greater_equal.Scalar"]),
    to("aten.lt.Tensor", &["aten.less.Tensor"]),
    to("aten.lt.Scalar", &["aten.less.Scalar"]),
    to("aten.le.Tensor", &["aten.less_equal.Tensor"]),
    to("aten.le.Scalar", &["aten.less_equal.Scalar"]),
    to("aten.ne.Tensor", &["aten.not_equal.Tensor"]),
    to("aten.ne.Scalar", &["aten.not_equal.Scalar"]),
    to("aten.bitwise_and.Tensor", &["aten.__and__.Tensor"]),
    to("aten.bitwise_and.Scalar", &["aten.__and__.Scalar"]),
    to("aten.bitwise_or.Tensor", &["aten.__or__.Tensor"]),
    to("aten.bitwise_or.Scalar", &["aten.__or__.Scalar"]),
    to("aten.bitwise_xor.Tensor", &["aten.__xor__.Tensor"]),
    to("aten.bitwise_xor.Scalar", &["aten.__xor__.Scalar"]),
    by(
        shifted,
        &[
            "aten.bitwise_left_shift.Tensor",
            "aten.__lshift__.Tensor",
            "aten.bitwise_left_shift.Tensor_Scalar",
            "aten.__lshift__.Scalar",
            "aten.bitwise_right_shift.Tensor",
            "aten.__rshift__.Tensor",
            "aten.bitwise_right_shift.Tensor_Scalar",
            "aten.__rshift__.Scalar",
        ],
    ),
    to("aten.maximum.default", &["aten.max.other"]),
    to("aten.minimum.default", &["aten.min.other"]),
    to("aten.abs.default", &["aten.absolute.default"]),
    to("aten.acos.default", &["aten.arccos.default"]),
    to("aten.acosh.default", &["aten.arccosh.default"]),
    to("aten.asin.default", &["aten.arcsin.default"]),
    to("aten.asinh.default", &["aten.arcsinh.default"]),
    to("aten.atan.default", &["aten.arctan.default"]),
    to("aten.atanh.default", &["aten.arctanh.default"]),
    to("aten.atan2.default", &["aten.arctan2.default"]),
    to("aten.neg.default", &["aten.negative.default"]),
    to("aten.trunc.default", &["aten.fix.default"]),
    to("aten.sign.default", &["aten.sgn.default"]),
    to("aten.erf.default", &["aten.special_erf.default"]),
    to("aten.expm1.default", &["aten.special_expm1.default"]),
    to("aten.log1p.default", &["aten.special_log1p.default"]),
    to("aten.logit.default", &["aten.special_logit.default"]),
    to("aten.round.default", &["aten.special_round.default"]),
    to("aten.sigmoid.default", &["aten.special_expit.default"]),
    by(reversed, &["aten.rsub.Tensor"]),
    by(
        remainder,
        &["aten.remainder.Tensor", "aten.remainder.Scalar", "aten.remainder.Scalar_Tensor"],
    ),
    by(floor_divided, &["aten.floor_divide.default", "aten.floor_divide.Scalar"]),
    by(
        powered,
        &[
            "aten.float_power.Tensor_Scalar",
            "aten.float_power.Tensor_Tensor",
            "aten.float_power.Scalar",
        ],
    ),
    by(square, &["aten.square.default"]),
    formula("2 ^ self", &["aten.exp2.default", "aten.special_exp2.default"]),
    formula("1 - erf(self)", &["aten.erfc.default", "aten.special_erfc.default"]),
    // The power of a small number is rounded to few digits beyond 1; its logarithm says to which number it belongs.
    formula(
        "power = exp(self); near = power - 1; \
         where(abs(self) < 0.5, near + (self - log(power)) * power, near)",
        &["aten.expm1.default"],
    ),
    formula("log(self) * 1.4426950408889634", &["aten.log2.default"]),
    formula("log(self) * 0.4342944819032518", &["aten.log10.default"]),
    // Nothing is squared.
    formula("log(self + sqrt(self - 1) * sqrt(self + 1))", &["aten.acosh.default"]),
    formula(
        "x = where(given(eps), clamp(self, eps, 1 - eps), self); log(x / (1 - x))",
        &["aten.logit.default"],
    ),
    formula("self - trunc(self)", &["aten.frac.default"]),
    formula("self * (pi / 180)", &["aten.deg2rad.default"]),
    formula("self * (180 / pi)", &["aten.rad2deg.default"]),
    formula(
        "angle = self * pi; where(self == 0, 1, sin(angle) / angle)",
        &["aten.sinc.default", "aten.special_sinc.default"],
    ),
    by(is_infinite, &["aten.isposinf.default", "aten.isneginf.default", "aten.isfinite.default"]),
    // A negative zero has its sign in its reciprocal.
    formula(
        "below = self < 0; where(is_float(self), below | 1 / self == -inf, below)",
        &["aten.signbit.default"],
    ),
    formula("where(isnan(self), self, where(self < 0, pi, 0))", &["aten.angle.default"]),
    by(nan_to_num, &["aten.nan_to_num.default"]),
    by(round_decimals, &["aten.round.decimals"]),
    formula("self + tensor1 * tensor2 * value", &["aten.addcmul.default"]),
    formula("self + tensor1 / tensor2 * value", &["aten.addcdiv.default"]),
    formula("self + (end - self) * weight", &["aten.lerp.Scalar", "aten.lerp.Tensor"]),
    // Divided by the larger one, so that squares do not overflow.
    formula(
        "x = abs(self); y = abs(other); large = max(x, y); ratio = min(x, y) / large; \
         where(large == 0 | large == inf, large, large * sqrt(square(ratio) + 1))",
        &["aten.hypot.default"],
    ),
    formula("self * 2 ^ other", &["aten.ldexp.Tensor"]),
    // Equal infinities have no gap.
    formula(
        "large = max(self, other); gap = where(self == other, 0, min(self, other) - large); \
         large + log1p(exp(gap))",
        &["aten.logaddexp.default"],
    ),
    formula(
        "large = max(self, other); gap = where(self == other, 0, min(self, other) - large); \
         large + log1p(2 ^ gap) * 1.4426950408889634",
        &["aten.logaddexp2.default"],
    ),
    formula(
        "where(self == 0 & other == other, 0, self * log(other))",
        &[
            "aten.xlogy.Tensor",
            "aten.xlogy.Scalar_Other",
            "aten.xlogy.Scalar_Self",
            "aten.special_xlogy.default",
            "aten.special_xlogy.other_scalar",
            "aten.special_xlogy.self_scalar",
        ],
    ),
    formula(
        "where(self == 0 & other == other, 0, self * log1p(other))",
        &[
            "aten.special_xlog1py.default",
            "aten.special_xlog1py.other_scalar",
            "aten.special_xlog1py.self_scalar",
        ],
    ),
    formula(
        "size = abs(self); where(signbit(other), -size, size)",
        &["aten.copysign.Tensor", "aten.copysign.Scalar"],
    ),
    formula("where(self == 0, values, number(self > 0))", &["aten.heaviside.default"]),
    // The larger or smaller one where both are numbers, else the one that is.
    formula(
        "most = max(self, other); \
         where(is_float(most), where(isnan(other), self, where(isnan(self), other, most)), most)",
        &["aten.fmax.default"],
    ),
    formula(
        "least = min(self, other); \
         where(is_float(least), where(isnan(other), self, where(isnan(self), other, least)), least)",
        &["aten.fmin.default"],
    ),
    by(clamped, &["aten.clamp_min.default", "aten.clamp_max.default", "aten.clip.default"]),
    by(
        clamped_by_tensors,
        &[
            "aten.clamp_min.Tensor",
            "aten.clamp_max.Tensor",
            "aten.clip.Tensor",
            "aten.clamp.Tensor",
        ],
    ),
    // Infinities are close to themselves only.
    formula(
        "gap = abs(self - other); within = gap <= abs(other) * rtol + atol; \
         near = self == other | where(is_float(gap), within & gap < inf, within); \
         where(equal_nan & is_float(self), near | isnan(self) & isnan(other), near)",
        &["aten.isclose.default"],
    ),
];

/// A number in the place of the second tensor has a kernel of its own, which wants a tensor of the type that it gives.
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
    let noted = call.result(0)?;
    let (dtype, sizes) = (noted.dtype, noted.sizes.clone());
    // Truth is what comparisons give, and a quotient of integers has fractions.
    let is_plain = ["add", "sub", "mul", "rsub", "fmod"]
        .iter()
        .any(|name| operator.starts_with(&format!("aten.{name}.")));
    if !is_plain || x.dtype == dtype {
        return call.renamed(&operator);
    }
    let x = call.cast(&x, dtype)?;
    let mut given = vec![("self", x.argument()), ("other", call.argument("other")?.clone())];
    if call.has("alpha") {
        given.push(("alpha", call.number("alpha")?));
    }
    one(call.emit(&operator, &given, dtype, sizes)?)
}

/// An operand: a tensor, or a number that the others' types are kept beside.
fn operands(
    call: &mut Call<'_>,
    names: [&str; 2],
) -> Result<(Tensor, Tensor, ScalarType), crate::error::Refusal> {
    let (first, second) = (call.argument(names[0])?.clone(), call.argument(names[1])?.clone());
    let dtype = promoted(call, &[&first, &second]);
    let Some(dtype) = dtype else { refuse!("an operand is neither tensor nor number") };
    let mut both = Vec::with_capacity(2);
    for (name, argument) in names.into_iter().zip([first, second]) {
        let tensor = match call.number_dtype(&argument) {
            Some(_) => call.full(Vec::new(), argument, dtype)?,
            None => {
                let tensor = call.tensor_of(name, &argument)?;
                call.cast(&tensor, dtype)?
            }
        };
        both.push(tensor);
    }
    match <[Tensor; 2]>::try_from(both) {
        Ok([first, second]) => Ok((first, second, dtype)),
        Err(_) => refuse!("an operand is missing"),
    }
}

fn shifted(call: &mut Call<'_>) -> Results {
    let operator = call.node.target.to_string();
    let side =
        if operator.contains("left") || operator.contains("lshift") { "left" } else { "right" };
    let (x, y, dtype) = operands(call, ["self", "other"])?;
    // Shifts by a known number are products and quotients, which every build of the runtime has.
    let Argument::Int(by @ 0..=62) = *call.argument("other")? else {
        return one(call.join(&format!("aten.bitwise_{side}_shift.Tensor"), &x, &y)?);
    };
    let power = Argument::Int(1i64 << by);
    if side == "left" {
        return one(call.with("mul", &x, power)?);
    }
    let given = [
        ("self", x.argument()),
        ("other", power),
        ("rounding_mode", Argument::Text("floor".to_owned())),
    ];
    one(call.emit("aten.div.Scalar_mode", &given, dtype, x.sizes.clone())?)
}

fn reversed(call: &mut Call<'_>) -> Results {
    let (x, y, dtype) = operands(call, ["self", "other"])?;
    let alpha = call.number("alpha")?;
    let Some(sizes) = crate::decompose::size::broadcast(&x.sizes, &y.sizes) else {
        refuse!("the operands do not broadcast");
    };
    let given = [("self", y.argument()), ("other", x.argument()), ("alpha", alpha)];
    one(call.emit("aten.sub.Tensor", &given, dtype, sizes)?)
}

/// Of integers the kernel gives what has the sign of the dividend, and torch what has that of the divisor.
fn remainder(call: &mut Call<'_>) -> Results {
    let (x, y, dtype) = operands(call, ["self", "other"])?;
    if is_float(dtype) {
        return one(call.join("aten.remainder.Tensor", &x, &y)?);
    }
    let quotient = call.join("aten.floor_divide.default", &x, &y)?;
    let whole = call.multiply(&quotient, &y)?;
    one(call.subtract(&x, &whole)?)
}

fn floor_divided(call: &mut Call<'_>) -> Results {
    let (x, y, _) = operands(call, ["self", "other"])?;
    one(call.join("aten.floor_divide.default", &x, &y)?)
}

fn powered(call: &mut Call<'_>) -> Results {
    let (x, y, _) = operands(call, ["self", "exponent"])?;
    let x = call.cast(&x, ScalarType::Float64)?;
    let y = call.cast(&y, ScalarType::Float64)?;
    let given = [("self", x.argument()), ("exponent", y.argument())];
    let sizes = call.result(0)?.sizes.clone();
    one(call.emit("aten.pow.Tensor_Tensor", &given, ScalarType::Float64, sizes)?)
}

fn square(call: &mut Call<'_>) -> Results {
    let x = call.tensor("self")?;
    let x = call.cast(&x, if x.dtype == ScalarType::Bool { ScalarType::Int64 } else { x.dtype })?;
    one(call.multiply(&x, &x)?)
}

fn is_infinite(call: &mut Call<'_>) -> Results {
    let x = call.tensor("self")?;
    let operator = call.node.target.to_string();
    if !is_float(x.dtype) {
        let finite = operator.contains("isfinite");
        return one(call.full(x.sizes.clone(), Argument::Bool(finite), ScalarType::Bool)?);
    }
    if operator.contains("isfinite") {
        let infinite = call.test("isinf", &x)?;
        let no_number = call.test("isnan", &x)?;
        let either = call.logic("logical_or", &infinite, &no_number)?;
        return one(call.test("logical_not", &either)?);
    }
    let bound = if operator.contains("posinf") { f64::INFINITY } else { f64::NEG_INFINITY };
    one(call.compare_number("eq", &x, Argument::Float(bound))?)
}

/// The largest number of a type of floats.
pub(crate) fn largest(dtype: ScalarType) -> f64 {
    match dtype {
        ScalarType::Float16 => 65504.0,
        ScalarType::BFloat16 => f64::from(f32::from_bits(0x7f7f_0000)),
        ScalarType::Float64 => f64::MAX,
        _ => f64::from(f32::MAX),
    }
}

fn clamped(call: &mut Call<'_>) -> Results {
    let x = call.tensor("self")?;
    let bound =
        |call: &Call<'_>, name: &str| call.node.argument(name).cloned().unwrap_or(Argument::None);
    let given = [("self", x.argument()), ("min", bound(call, "min")), ("max", bound(call, "max"))];
    let dtype = call.result(0)?.dtype;
    one(call.emit("aten.clamp.default", &given, dtype, x.sizes.clone())?)
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
