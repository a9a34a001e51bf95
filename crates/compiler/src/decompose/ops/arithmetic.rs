//! Sums, products and comparisons of two, and functions of one number.

use std::f64::consts::PI;

use coremill_pt2::{Argument, Meta, ScalarType};

use crate::decompose::call::{Call, Results, Tensor, one, promoted};
use crate::decompose::dtype::{is_complex, is_float};
use crate::decompose::row::{Row, by, to};
use crate::decompose::words::Maybe;
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
    by(exp2, &["aten.exp2.default", "aten.special_exp2.default"]),
    by(erfc, &["aten.erfc.default", "aten.special_erfc.default"]),
    by(frac, &["aten.frac.default"]),
    by(degrees, &["aten.deg2rad.default", "aten.rad2deg.default"]),
    by(sinc, &["aten.sinc.default", "aten.special_sinc.default"]),
    by(is_infinite, &["aten.isposinf.default", "aten.isneginf.default", "aten.isfinite.default"]),
    by(signbit, &["aten.signbit.default"]),
    by(angle, &["aten.angle.default"]),
    by(nan_to_num, &["aten.nan_to_num.default"]),
    by(round_decimals, &["aten.round.decimals"]),
    by(addcmul, &["aten.addcmul.default", "aten.addcdiv.default"]),
    by(lerp, &["aten.lerp.Scalar", "aten.lerp.Tensor"]),
    by(hypot, &["aten.hypot.default"]),
    by(logaddexp, &["aten.logaddexp.default", "aten.logaddexp2.default"]),
    by(
        xlogy,
        &[
            "aten.xlogy.Tensor",
            "aten.xlogy.Scalar_Other",
            "aten.xlogy.Scalar_Self",
            "aten.special_xlogy.default",
            "aten.special_xlog1py.default",
        ],
    ),
    by(copysign, &["aten.copysign.Tensor", "aten.copysign.Scalar"]),
    by(heaviside, &["aten.heaviside.default"]),
    by(of_numbers, &["aten.fmax.default", "aten.fmin.default"]),
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
    by(close, &["aten.isclose.default"]),
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

/// The operand as the type of the result.
fn as_result(call: &mut Call<'_>, name: &str) -> Maybe {
    let x = call.tensor(name)?;
    let dtype = call.result(0)?.dtype;
    call.cast(&x, dtype)
}

fn exp2(call: &mut Call<'_>) -> Results {
    let x = as_result(call, "self")?;
    let given = [("self", Argument::Float(2.0)), ("exponent", x.argument())];
    one(call.emit("aten.pow.Scalar", &given, x.dtype, x.sizes.clone())?)
}

fn erfc(call: &mut Call<'_>) -> Results {
    let x = as_result(call, "self")?;
    let erf = call.map("erf", &x)?;
    one(call.with("rsub", &erf, Argument::Float(1.0))?)
}

fn frac(call: &mut Call<'_>) -> Results {
    let x = call.tensor("self")?;
    let whole = call.map("trunc", &x)?;
    one(call.subtract(&x, &whole)?)
}

fn degrees(call: &mut Call<'_>) -> Results {
    let x = as_result(call, "self")?;
    let to_radians = call.node.target.is("aten", "deg2rad", "default");
    one(call.times(&x, if to_radians { PI / 180.0 } else { 180.0 / PI })?)
}

fn sinc(call: &mut Call<'_>) -> Results {
    let x = as_result(call, "self")?;
    let scaled = call.times(&x, PI)?;
    let sine = call.map("sin", &scaled)?;
    let quotient = call.divide(&sine, &scaled)?;
    let zero = call.compare_number("eq", &x, Argument::Float(0.0))?;
    let unit = call.number_beside(Argument::Float(1.0), &x)?;
    one(call.choose(&zero, &unit, &quotient)?)
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

/// A negative zero has its sign in its reciprocal.
fn signbit(call: &mut Call<'_>) -> Results {
    let x = call.tensor("self")?;
    let negative = call.compare_number("lt", &x, Argument::Int(0))?;
    if !is_float(x.dtype) {
        return one(negative);
    }
    let turned = call.map("reciprocal", &x)?;
    let below = call.compare_number("eq", &turned, Argument::Float(f64::NEG_INFINITY))?;
    one(call.logic("logical_or", &negative, &below)?)
}

fn angle(call: &mut Call<'_>) -> Results {
    let x = as_result(call, "self")?;
    if is_complex(x.dtype) {
        refuse!("angles of complex numbers have no kernel");
    }
    let negative = call.compare_number("lt", &x, Argument::Float(0.0))?;
    let half_turn = call.number_beside(Argument::Float(PI), &x)?;
    let zero = call.number_beside(Argument::Float(0.0), &x)?;
    let angle = call.choose(&negative, &half_turn, &zero)?;
    let no_number = call.test("isnan", &x)?;
    one(call.choose(&no_number, &x, &angle)?)
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

fn nan_to_num(call: &mut Call<'_>) -> Results {
    let x = call.tensor("self")?;
    if !is_float(x.dtype) {
        return one(x);
    }
    let most = largest(x.dtype);
    let instead = [
        ("isnan", call.float_or("nan", 0.0)?),
        ("pos", call.float_or("posinf", most)?),
        ("neg", call.float_or("neginf", -most)?),
    ];
    let mut found = x.clone();
    for (test, value) in instead {
        let where_ = match test {
            "isnan" => call.test("isnan", &x)?,
            "pos" => call.compare_number("eq", &x, Argument::Float(f64::INFINITY))?,
            _ => call.compare_number("eq", &x, Argument::Float(f64::NEG_INFINITY))?,
        };
        let value = call.number_beside(Argument::Float(value), &x)?;
        found = call.choose(&where_, &value, &found)?;
    }
    one(found)
}

fn round_decimals(call: &mut Call<'_>) -> Results {
    let x = call.tensor("self")?;
    let decimals = call.int("decimals")?;
    if !is_float(x.dtype) {
        return one(x);
    }
    let scale = 10f64.powi(i32::try_from(decimals.unsigned_abs()).unwrap_or(i32::MAX));
    let (before, after) = if decimals >= 0 { ("mul", "div") } else { ("div", "mul") };
    let scaled = call.with(before, &x, Argument::Float(scale))?;
    let round = call.map("round", &scaled)?;
    one(call.with(after, &round, Argument::Float(scale))?)
}

fn addcmul(call: &mut Call<'_>) -> Results {
    let (x, left, right) = (call.tensor("self")?, call.tensor("tensor1")?, call.tensor("tensor2")?);
    let value = call.number("value")?;
    let dtype = call.result(0)?.dtype;
    let (left, right) = (call.cast(&left, dtype)?, call.cast(&right, dtype)?);
    let term = if call.node.target.is("aten", "addcmul", "default") {
        call.multiply(&left, &right)?
    } else {
        call.divide(&left, &right)?
    };
    let x = call.cast(&x, dtype)?;
    let scaled = match value {
        Argument::Int(1) => term,
        Argument::Float(1.0) => term,
        value => call.with("mul", &term, value)?,
    };
    one(call.add(&x, &scaled)?)
}

fn lerp(call: &mut Call<'_>) -> Results {
    let (start, end) = (call.tensor("self")?, call.tensor("end")?);
    let difference = call.subtract(&end, &start)?;
    let weight = call.argument("weight")?.clone();
    let part = match call.number_dtype(&weight) {
        Some(_) => call.with("mul", &difference, weight)?,
        None => {
            let weight = call.tensor("weight")?;
            call.multiply(&difference, &weight)?
        }
    };
    one(call.add(&start, &part)?)
}

fn hypot(call: &mut Call<'_>) -> Results {
    let (x, y, _) = operands(call, ["self", "other"])?;
    one(hypotenuse(call, &x, &y)?)
}

/// The root of the sum of squares.
fn hypotenuse(call: &mut Call<'_>, x: &Tensor, y: &Tensor) -> Maybe {
    let (x, y) = (call.map("abs", x)?, call.map("abs", y)?);
    // Divided by the larger one, so that squares do not overflow.
    let large = call.join("aten.maximum.default", &x, &y)?;
    let small = call.join("aten.minimum.default", &x, &y)?;
    let ratio = call.divide(&small, &large)?;
    let squared = call.multiply(&ratio, &ratio)?;
    let sum = call.add_number(&squared, 1.0)?;
    let root = call.map("sqrt", &sum)?;
    let length = call.multiply(&large, &root)?;
    let zero = call.compare_number("eq", &large, Argument::Float(0.0))?;
    let bound = call.compare_number("eq", &large, Argument::Float(f64::INFINITY))?;
    let plain = call.logic("logical_or", &zero, &bound)?;
    call.choose(&plain, &large, &length)
}

fn logaddexp(call: &mut Call<'_>) -> Results {
    let (x, y, _) = operands(call, ["self", "other"])?;
    let binary = call.node.target.is("aten", "logaddexp2", "default");
    let large = call.join("aten.maximum.default", &x, &y)?;
    let difference = call.subtract(&x, &y)?;
    let distance = call.map("abs", &difference)?;
    let falling = call.times(&distance, if binary { -std::f64::consts::LN_2 } else { -1.0 })?;
    let power = call.map("exp", &falling)?;
    let mut rest = call.map("log1p", &power)?;
    if binary {
        rest = call.times(&rest, std::f64::consts::LOG2_E)?;
    }
    let sum = call.add(&large, &rest)?;
    // Of two equal infinities the difference is not a number.
    let equal = call.compare("eq", &x, &y)?;
    let infinite = call.test("isinf", &x)?;
    let plain = call.logic("logical_and", &equal, &infinite)?;
    one(call.choose(&plain, &x, &sum)?)
}

fn xlogy(call: &mut Call<'_>) -> Results {
    let (x, y, _) = operands(call, ["self", "other"])?;
    let dtype = call.result(0)?.dtype;
    let (x, y) = (call.cast(&x, dtype)?, call.cast(&y, dtype)?);
    let plus_one = call.node.target.to_string().contains("log1py");
    let log = call.map(if plus_one { "log1p" } else { "log" }, &y)?;
    let product = call.multiply(&x, &log)?;
    let zero = call.compare_number("eq", &x, Argument::Float(0.0))?;
    let nothing = call.number_beside(Argument::Float(0.0), &x)?;
    let known = call.choose(&zero, &nothing, &product)?;
    let no_number = call.test("isnan", &y)?;
    one(call.choose(&no_number, &y, &known)?)
}

fn copysign(call: &mut Call<'_>) -> Results {
    let (x, y, _) = operands(call, ["self", "other"])?;
    let dtype = call.result(0)?.dtype;
    let (x, y) = (call.cast(&x, dtype)?, call.cast(&y, dtype)?);
    let size = call.map("abs", &x)?;
    let opposite = call.map("neg", &size)?;
    let below = call.compare_number("lt", &y, Argument::Float(0.0))?;
    let turned = call.map("reciprocal", &y)?;
    let zero_below = call.compare_number("eq", &turned, Argument::Float(f64::NEG_INFINITY))?;
    let negative = call.logic("logical_or", &below, &zero_below)?;
    one(call.choose(&negative, &opposite, &size)?)
}

fn heaviside(call: &mut Call<'_>) -> Results {
    let (x, values) = (call.tensor("self")?, call.tensor("values")?);
    let above = call.compare_number("gt", &x, Argument::Int(0))?;
    let step = call.cast(&above, x.dtype)?;
    let zero = call.compare_number("eq", &x, Argument::Int(0))?;
    one(call.choose(&zero, &values, &step)?)
}

/// The larger or smaller one where both are numbers, else the one that is.
fn of_numbers(call: &mut Call<'_>) -> Results {
    let (x, y, dtype) = operands(call, ["self", "other"])?;
    let largest = call.node.target.is("aten", "fmax", "default");
    let operator = if largest { "aten.maximum.default" } else { "aten.minimum.default" };
    let both = call.join(operator, &x, &y)?;
    if !is_float(dtype) {
        return one(both);
    }
    let (no_x, no_y) = (call.test("isnan", &x)?, call.test("isnan", &y)?);
    let or_y = call.choose(&no_x, &y, &both)?;
    one(call.choose(&no_y, &x, &or_y)?)
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

fn close(call: &mut Call<'_>) -> Results {
    let (x, y, dtype) = operands(call, ["self", "other"])?;
    let (relative, absolute) = (call.float("rtol")?, call.float("atol")?);
    let equal = call.compare("eq", &x, &y)?;
    let difference = call.subtract(&x, &y)?;
    let distance = call.map("abs", &difference)?;
    let size = call.map("abs", &y)?;
    let scaled = call.times(&size, relative)?;
    let allowed = call.add_number(&scaled, absolute)?;
    let near = call.compare("le", &distance, &allowed)?;
    let mut found = call.logic("logical_or", &equal, &near)?;
    if is_float(dtype) {
        let infinite = call.test("isinf", &distance)?;
        let finite = call.test("logical_not", &infinite)?;
        let near = call.logic("logical_and", &near, &finite)?;
        found = call.logic("logical_or", &equal, &near)?;
        if call.bool("equal_nan")? {
            let (no_x, no_y) = (call.test("isnan", &x)?, call.test("isnan", &y)?);
            let neither = call.logic("logical_and", &no_x, &no_y)?;
            found = call.logic("logical_or", &found, &neither)?;
        }
    }
    one(found)
}
