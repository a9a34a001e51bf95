//! Elementwise operations on one tensor, or on two tensors with broadcasting.
//!
//! Programs use them to compute shapes, paddings and scales, so all of them compute known elements.

use std::cmp::Ordering;

use coremill_io::quoted_choice;
use coremill_tensor::DType;

use super::expect;
use crate::infer::fold::{self, as_expr, compare, expression, float, integer};
use crate::infer::folded::{KnownElements, Scalar};
use crate::infer::shape::{broadcast, fixed};
use crate::infer::site::InferredValue;
use crate::infer::{InferContext, InferError, Rule};
use crate::ir::{Expr, Opset};
use crate::ops::{Accepts, OpKind, OpRow};

pub(super) fn acos(site: &InferContext) -> Rule {
    of_float(site, f64::acos)
}

pub(super) fn asin(site: &InferContext) -> Rule {
    of_float(site, f64::asin)
}

pub(super) fn atan(site: &InferContext) -> Rule {
    of_float(site, f64::atan)
}

pub(super) fn atanh(site: &InferContext) -> Rule {
    of_float(site, f64::atanh)
}

pub(super) fn cos(site: &InferContext) -> Rule {
    of_float(site, f64::cos)
}

pub(super) fn cosh(site: &InferContext) -> Rule {
    of_float(site, f64::cosh)
}

pub(super) fn erf(site: &InferContext) -> Rule {
    of_float(site, error_function)
}

pub(super) fn exp(site: &InferContext) -> Rule {
    of_float(site, f64::exp)
}

pub(super) fn sin(site: &InferContext) -> Rule {
    of_float(site, f64::sin)
}

pub(super) fn sinh(site: &InferContext) -> Rule {
    of_float(site, f64::sinh)
}

pub(super) fn sqrt(site: &InferContext) -> Rule {
    of_float(site, f64::sqrt)
}

pub(super) fn tan(site: &InferContext) -> Rule {
    of_float(site, f64::tan)
}

pub(super) fn tanh(site: &InferContext) -> Rule {
    of_float(site, f64::tanh)
}

pub(super) fn ceil(site: &InferContext) -> Rule {
    to_whole(site, f64::ceil)
}

pub(super) fn floor(site: &InferContext) -> Rule {
    to_whole(site, f64::floor)
}

pub(super) fn round(site: &InferContext) -> Rule {
    to_whole(site, f64::round_ties_even)
}

pub(super) fn abs(site: &InferContext) -> Rule {
    of_number(site, f64::abs, i64::checked_abs)
}

pub(super) fn exp2(site: &InferContext) -> Rule {
    // An integer tensor truncates a fraction.
    of_number(site, f64::exp2, |value| match u32::try_from(value) {
        Ok(shift) => 1i64.checked_shl(shift),
        Err(_) => (value < 0).then_some(0),
    })
}

pub(super) fn sign(site: &InferContext) -> Rule {
    let sign = |value: f64| if value == 0.0 { 0.0 } else { value.signum() };
    of_number(site, sign, |value| Some(value.signum()))
}

pub(super) fn square(site: &InferContext) -> Rule {
    of_number(site, |value| value * value, |value| Some(value.wrapping_mul(value)))
}

pub(super) fn inverse(site: &InferContext) -> Rule {
    with_epsilon(site, f64::recip)
}

pub(super) fn log(site: &InferContext) -> Rule {
    with_epsilon(site, f64::ln)
}

pub(super) fn rsqrt(site: &InferContext) -> Rule {
    with_epsilon(site, |value| value.sqrt().recip())
}

pub(super) fn clip(site: &InferContext) -> Rule {
    let limits = expect::number(site, "alpha")?.zip(expect::number(site, "beta")?);
    match limits {
        Some((alpha, beta)) if site.since() >= Opset::Ios17 && alpha >= beta => {
            let message = format!("is {alpha}, but must be smaller than `beta`, which is {beta}");
            return Err(InferError::new(message).of("alpha"));
        }
        _ => {}
    }
    // The order matters: `beta` wins if the limits cross, and NaN is preserved.
    unary(site, |dtype, element| match (element, limits) {
        (Scalar::Float(value), Some((alpha, beta))) => {
            let above = if *value < alpha { alpha } else { *value };
            float(dtype, if above > beta { beta } else { above })
        }
        _ => Scalar::Unknown,
    })
}

pub(super) fn threshold(site: &InferContext) -> Rule {
    expect::one_element(site, "alpha")?;
    let alpha =
        site.value("alpha").and_then(KnownElements::only).cloned().unwrap_or(Scalar::Unknown);
    unary(site, |dtype, element| maximum_of(dtype, element, &alpha))
}

pub(super) fn logical_not(site: &InferContext) -> Rule {
    unary(site, |_, element| element.bool().map_or(Scalar::Unknown, |value| Scalar::Bool(!value)))
}

pub(super) fn cast(site: &InferContext) -> Rule {
    let x = site.tensor("x")?;
    let name = site.text("dtype")?;
    // `dtype` accepts the element types that `x` accepts.
    let accepted_by = |row: &OpRow| match row.parameter("x").map(|parameter| parameter.accepts) {
        Some(Accepts::Tensor { dtypes, .. }) => dtypes,
        _ => &[],
    };
    let accepted = accepted_by(site.row());
    let Some(&dtype) = accepted.iter().find(|dtype| dtype.name() == &*name) else {
        let accepted: Vec<_> = accepted.iter().map(|dtype| dtype.name()).collect();
        let message =
            format!("must be {} in {}, got `{name}`", quoted_choice(&accepted), site.since());
        let newer = OpKind::Cast.rows().iter().find(|newer| {
            newer.since > site.since()
                && accepted_by(newer).iter().any(|dtype| dtype.name() == &*name)
        });
        let refusal = InferError::new(message).of("dtype");
        return Err(match newer {
            None => refusal,
            Some(newer) => {
                refusal.hint(format!("declare the function with opset `{}`", newer.since.name()))
            }
        });
    };
    let value = site.value("x");
    let value = value.and_then(|x| fold::map(x, dtype, |element| fold::cast(element, dtype)));
    Ok(vec![InferredValue::tensor(dtype, x.shape.clone()).with(value)])
}

pub(super) fn add(site: &InferContext) -> Rule {
    arithmetic(site, Expr::add, wrapping(i64::wrapping_add), |x, y| x + y)
}

pub(super) fn sub(site: &InferContext) -> Rule {
    arithmetic(site, Expr::sub, wrapping(i64::wrapping_sub), |x, y| x - y)
}

pub(super) fn mul(site: &InferContext) -> Rule {
    arithmetic(site, Expr::mul, wrapping(i64::wrapping_mul), |x, y| x * y)
}

pub(super) fn floor_div(site: &InferContext) -> Rule {
    let of_integers = |x: i64, y: i64| Expr::from(x).floor_div(&Expr::from(y))?.constant();
    // As in Python, the result for an infinite dividend is NaN.
    let of_floats =
        |x: f64, y: f64| if x.is_infinite() && y != 0.0 { f64::NAN } else { (x / y).floor() };
    arithmetic(site, Expr::floor_div, of_integers, of_floats)
}

pub(super) fn modulo(site: &InferContext) -> Rule {
    let of_integers = |x: i64, y: i64| Expr::from(x).modulo(&Expr::from(y))?.constant();
    // The remainder has the sign of the divisor, as in Python.
    arithmetic(site, Expr::modulo, of_integers, |x, y| {
        let rest = x % y;
        if rest != 0.0 && (rest < 0.0) != (y < 0.0) { rest + y } else { rest }
    })
}

pub(super) fn real_div(site: &InferContext) -> Rule {
    // An integer tensor truncates a fraction.
    arithmetic(site, Expr::exact_div, i64::checked_div, |x, y| x / y)
}

pub(super) fn pow(site: &InferContext) -> Rule {
    let of_integers = |x: i64, y: i64| Some(x.wrapping_pow(u32::try_from(y).ok()?));
    arithmetic(site, |_, _| None, of_integers, |x, y| x.powf(y))
}

pub(super) fn maximum(site: &InferContext) -> Rule {
    binary(site, None, maximum_of)
}

pub(super) fn minimum(site: &InferContext) -> Rule {
    binary(site, None, |dtype, x, y| match (x, y) {
        (Scalar::Float(left), Scalar::Float(right)) if left.is_nan() || right.is_nan() => {
            Scalar::Float(f64::NAN)
        }
        (Scalar::Float(left), Scalar::Float(right)) => Scalar::Float(left.min(*right)),
        _ => by_expression(dtype, x, y, Expr::smaller),
    })
}

pub(super) fn equal(site: &InferContext) -> Rule {
    comparison(site, Ordering::is_eq, false)
}

pub(super) fn greater(site: &InferContext) -> Rule {
    comparison(site, Ordering::is_gt, false)
}

pub(super) fn greater_equal(site: &InferContext) -> Rule {
    comparison(site, Ordering::is_ge, false)
}

pub(super) fn less(site: &InferContext) -> Rule {
    comparison(site, Ordering::is_lt, false)
}

pub(super) fn less_equal(site: &InferContext) -> Rule {
    comparison(site, Ordering::is_le, false)
}

pub(super) fn not_equal(site: &InferContext) -> Rule {
    comparison(site, Ordering::is_ne, true)
}

pub(super) fn logical_and(site: &InferContext) -> Rule {
    logical(site, |x, y| x & y)
}

pub(super) fn logical_or(site: &InferContext) -> Rule {
    logical(site, |x, y| x | y)
}

pub(super) fn logical_xor(site: &InferContext) -> Rule {
    logical(site, |x, y| x ^ y)
}

/// A rule with one output of the input's type; known elements are mapped by `f`.
pub(super) fn unary(site: &InferContext, f: impl Fn(DType, &Scalar) -> Scalar) -> Rule {
    let x = site.tensor("x")?;
    let dtype = x.dtype;
    let value = site.value("x").and_then(|x| fold::map(x, dtype, |element| f(dtype, element)));
    Ok(vec![InferredValue::tensor(dtype, x.shape.clone()).with(value)])
}

pub(super) fn of_float(site: &InferContext, f: impl Fn(f64) -> f64) -> Rule {
    unary(site, |dtype, element| match element {
        Scalar::Float(value) => float(dtype, f(*value)),
        _ => Scalar::Unknown,
    })
}

fn of_number(
    site: &InferContext,
    of_float: impl Fn(f64) -> f64,
    of_integer: impl Fn(i64) -> Option<i64>,
) -> Rule {
    unary(site, |dtype, element| match element {
        Scalar::Float(value) => float(dtype, of_float(*value)),
        Scalar::Int(value) => integer(dtype, of_integer(*value)),
        _ => Scalar::Unknown,
    })
}

/// A rounding rule. Integers, including symbolic ones, are unchanged.
fn to_whole(site: &InferContext, f: impl Fn(f64) -> f64) -> Rule {
    unary(site, |dtype, element| match element {
        Scalar::Float(value) => float(dtype, f(*value)),
        _ => element.clone(),
    })
}

fn with_epsilon(site: &InferContext, f: impl Fn(f64) -> f64) -> Rule {
    expect::one_element(site, "epsilon")?;
    let epsilon = site.float("epsilon").ok();
    unary(site, |dtype, element| match (element, epsilon) {
        (Scalar::Float(value), Some(epsilon)) => float(dtype, f(value + epsilon)),
        _ => Scalar::Unknown,
    })
}

/// A rule with one output of the broadcast shape. The element type is `dtype`, by default the inputs' element
/// type.
fn binary(
    site: &InferContext,
    dtype: Option<DType>,
    f: impl Fn(DType, &Scalar, &Scalar) -> Scalar,
) -> Rule {
    let (x, y) = (site.tensor("x")?, site.tensor("y")?);
    let shape = broadcast(site, &x.shape, &y.shape)?;
    let of = x.dtype;
    let dtype = dtype.unwrap_or(of);
    let value = || {
        let (x, y) = (site.value("x")?, site.value("y")?);
        fold::zip(x, y, &fixed(&shape)?, dtype, |x, y| f(of, x, y))
    };
    let value = value();
    Ok(vec![InferredValue::tensor(dtype, shape).with(value)])
}

fn arithmetic(
    site: &InferContext,
    of_exprs: impl Fn(&Expr, &Expr) -> Option<Expr>,
    of_integers: impl Fn(i64, i64) -> Option<i64>,
    of_floats: impl Fn(f64, f64) -> f64,
) -> Rule {
    binary(site, None, |dtype, x, y| match (x, y) {
        (Scalar::Float(x), Scalar::Float(y)) => float(dtype, of_floats(*x, *y)),
        (Scalar::Int(x), Scalar::Int(y)) => integer(dtype, of_integers(*x, *y)),
        _ => by_expression(dtype, x, y, &of_exprs),
    })
}

/// Integers wrap around at 64 bits here and later in their own type, with the same result.
fn wrapping(f: fn(i64, i64) -> i64) -> impl Fn(i64, i64) -> Option<i64> {
    move |x, y| Some(f(x, y))
}

fn by_expression(
    dtype: DType,
    x: &Scalar,
    y: &Scalar,
    f: impl Fn(&Expr, &Expr) -> Option<Expr>,
) -> Scalar {
    let both = as_expr(dtype, x).zip(as_expr(dtype, y));
    expression(dtype, both.and_then(|(x, y)| f(&x, &y)))
}

fn maximum_of(dtype: DType, x: &Scalar, y: &Scalar) -> Scalar {
    match (x, y) {
        (Scalar::Float(left), Scalar::Float(right)) if left.is_nan() || right.is_nan() => {
            Scalar::Float(f64::NAN)
        }
        (Scalar::Float(left), Scalar::Float(right)) => Scalar::Float(left.max(*right)),
        _ => by_expression(dtype, x, y, Expr::larger),
    }
}

/// `unordered` is the result if an operand is NaN.
fn comparison(site: &InferContext, holds: fn(Ordering) -> bool, unordered: bool) -> Rule {
    binary(site, Some(DType::Bool), |dtype, x, y| match (x, y) {
        (Scalar::Float(left), Scalar::Float(right)) if left.is_nan() || right.is_nan() => {
            Scalar::Bool(unordered)
        }
        _ => compare(dtype, x, y).map_or(Scalar::Unknown, |order| Scalar::Bool(holds(order))),
    })
}

fn logical(site: &InferContext, f: impl Fn(bool, bool) -> bool) -> Rule {
    binary(site, Some(DType::Bool), |_, x, y| match (x.bool(), y.bool()) {
        (Some(x), Some(y)) => Scalar::Bool(f(x, y)),
        _ => Scalar::Unknown,
    })
}

/// The error function, computed by its series near zero and by a continued fraction of its complement
/// elsewhere.
pub(super) fn error_function(value: f64) -> f64 {
    if value.is_nan() {
        return value;
    }
    let magnitude = value.abs();
    if magnitude > 6.0 {
        return value.signum();
    }
    if magnitude < 2.0 {
        let (mut term, mut sum) = (value, value);
        for step in 1..60 {
            let step = f64::from(step);
            term *= -value * value / step;
            sum += term / (2.0 * step + 1.0);
        }
        return sum * std::f64::consts::FRAC_2_SQRT_PI;
    }
    let mut fraction = 0.0;
    for step in (1..60).rev() {
        fraction = f64::from(step) / 2.0 / (magnitude + fraction);
    }
    let complement =
        (-value * value).exp() / (magnitude + fraction) * std::f64::consts::FRAC_2_SQRT_PI / 2.0;
    value.signum() * (1.0 - complement)
}
