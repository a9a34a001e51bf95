//! Reference kernels of elementwise operations.
//!
//! The results agree with constant folding in type inference: integers wrap around, `cast` from
//! floats saturates, and integer division truncates.

use coremill_tensor::DType;

use super::broadcast::{arithmetic, comparison, joined, map_floats, zip};
use crate::array::ElementsView;
use crate::call::{Call, Results, saturate_int, wrap_int};
use crate::error::fail;

pub(super) fn abs(call: &Call) -> Results {
    map_numbers(call, f32::abs, i64::abs)
}

pub(super) fn acos(call: &Call) -> Results {
    map_floats(call, f32::acos)
}

pub(super) fn asin(call: &Call) -> Results {
    map_floats(call, f32::asin)
}

pub(super) fn atan(call: &Call) -> Results {
    map_floats(call, f32::atan)
}

pub(super) fn atanh(call: &Call) -> Results {
    map_floats(call, f32::atanh)
}

pub(super) fn ceil(call: &Call) -> Results {
    map_floats(call, f32::ceil)
}

pub(super) fn cos(call: &Call) -> Results {
    map_floats(call, f32::cos)
}

pub(super) fn cosh(call: &Call) -> Results {
    map_floats(call, f32::cosh)
}

pub(super) fn erf(call: &Call) -> Results {
    map_floats(call, |x| error_function(f64::from(x)) as f32)
}

pub(super) fn exp(call: &Call) -> Results {
    map_floats(call, f32::exp)
}

pub(super) fn exp2(call: &Call) -> Results {
    // Results are truncated for integer tensors.
    map_numbers(call, f32::exp2, |x| (x as f64).exp2() as i64)
}

pub(super) fn floor(call: &Call) -> Results {
    map_floats(call, f32::floor)
}

pub(super) fn round(call: &Call) -> Results {
    map_floats(call, f32::round_ties_even)
}

pub(super) fn sign(call: &Call) -> Results {
    let sign = |x: f32| if x == 0.0 || x.is_nan() { x } else { x.signum() };
    map_numbers(call, sign, i64::signum)
}

pub(super) fn sin(call: &Call) -> Results {
    map_floats(call, f32::sin)
}

pub(super) fn sinh(call: &Call) -> Results {
    map_floats(call, f32::sinh)
}

pub(super) fn sqrt(call: &Call) -> Results {
    map_floats(call, f32::sqrt)
}

pub(super) fn square(call: &Call) -> Results {
    map_numbers(call, |x| x * x, |x| x * x)
}

pub(super) fn tan(call: &Call) -> Results {
    map_floats(call, f32::tan)
}

pub(super) fn tanh(call: &Call) -> Results {
    map_floats(call, f32::tanh)
}

pub(super) fn inverse(call: &Call) -> Results {
    let epsilon = call.float("epsilon")?;
    map_floats(call, |x| 1.0 / (x + epsilon))
}

pub(super) fn log(call: &Call) -> Results {
    let epsilon = call.float("epsilon")?;
    map_floats(call, |x| (x + epsilon).ln())
}

pub(super) fn rsqrt(call: &Call) -> Results {
    let epsilon = call.float("epsilon")?;
    map_floats(call, |x| 1.0 / (x + epsilon).sqrt())
}

pub(super) fn clip(call: &Call) -> Results {
    let (low, high) = (call.float("alpha")?, call.float("beta")?);
    // If the bounds cross, `beta` wins.
    map_floats(call, |x| smaller(larger(x, low), high))
}

pub(super) fn threshold(call: &Call) -> Results {
    match call.tensor("x")?.elements {
        ElementsView::Floats(_) => {
            let alpha = call.float("alpha")?;
            map_floats(call, |x| larger(x, alpha))
        }
        _ => {
            let alpha = call.int("alpha")?;
            map_numbers(call, |x| x, |x| x.max(i64::from(alpha)))
        }
    }
}

pub(super) fn logical_not(call: &Call) -> Results {
    let x = call.tensor("x")?;
    call.give_ints(x.shape, x.ints()?.iter().map(|&x| i32::from(x == 0)).collect())
}

pub(super) fn cast(call: &Call) -> Results {
    let x = call.tensor("x")?;
    let to = call.dtype();
    match x.elements {
        ElementsView::Floats(floats) if to.is_float() => call.give_floats(x.shape, floats.to_vec()),
        ElementsView::Floats(floats) => {
            let cast = |&x: &f32| match to {
                DType::Bool => i32::from(x != 0.0),
                _ => saturate_int(to, f64::from(x)),
            };
            call.give_ints(x.shape, floats.iter().map(cast).collect())
        }
        ElementsView::Ints(ints) if to.is_float() => {
            call.give_floats(x.shape, ints.iter().map(|&x| x as f32).collect())
        }
        ElementsView::Ints(ints) => {
            call.give_ints(x.shape, ints.iter().map(|&x| wrap_int(to, i64::from(x))).collect())
        }
        ElementsView::Texts(_) => fail!("expects numbers, found `string`"),
    }
}

pub(super) fn add(call: &Call) -> Results {
    let dtype = call.dtype();
    arithmetic(call, |x, y| x + y, |x, y| wrap_int(dtype, i64::from(x) + i64::from(y)))
}

pub(super) fn sub(call: &Call) -> Results {
    let dtype = call.dtype();
    arithmetic(call, |x, y| x - y, |x, y| wrap_int(dtype, i64::from(x) - i64::from(y)))
}

pub(super) fn mul(call: &Call) -> Results {
    let dtype = call.dtype();
    arithmetic(call, |x, y| x * y, |x, y| wrap_int(dtype, i64::from(x) * i64::from(y)))
}

pub(super) fn real_div(call: &Call) -> Results {
    let dtype = call.dtype();
    let quotient = |x: i64, y: i64| if y == 0 { 0 } else { x / y };
    arithmetic(call, |x, y| x / y, |x, y| wrap_int(dtype, quotient(x.into(), y.into())))
}

/// Rounds down like Python, also for infinite divisors. An infinite dividend returns NaN. Integer
/// division by zero returns 0, like numpy.
pub(super) fn floor_div(call: &Call) -> Results {
    let dtype = call.dtype();
    let of_floats = |x: f32, y: f32| {
        if x.is_infinite() && y != 0.0 {
            return f32::NAN;
        }
        if y.is_infinite() && x != 0.0 && (x < 0.0) != (y < 0.0) {
            return if x.is_nan() { x } else { -1.0 };
        }
        // In `f64` no quotient is rounded up to an integer.
        (f64::from(x) / f64::from(y)).floor() as f32
    };
    let of_ints = |x: i64, y: i64| match y {
        0 => 0,
        _ => x.div_euclid(y) - i64::from(y < 0 && x.rem_euclid(y) != 0),
    };
    arithmetic(call, of_floats, |x, y| wrap_int(dtype, of_ints(x.into(), y.into())))
}

/// The result has the divisor's sign, like Python. Integers modulo zero return 0, like numpy.
pub(super) fn modulo(call: &Call) -> Results {
    let of_floats = |x: f32, y: f32| {
        let rest = x % y;
        if rest != 0.0 && (rest < 0.0) != (y < 0.0) { rest + y } else { rest }
    };
    let of_ints = |x: i64, y: i64| {
        let rest = if y == 0 { 0 } else { x % y };
        if rest != 0 && (rest < 0) != (y < 0) { rest + y } else { rest }
    };
    arithmetic(call, of_floats, |x, y| of_ints(x.into(), y.into()) as i32)
}

pub(super) fn pow(call: &Call) -> Results {
    let dtype = call.dtype();
    arithmetic(call, f32::powf, |x, y| wrap_int(dtype, int_pow(x.into(), y)))
}

pub(super) fn maximum(call: &Call) -> Results {
    arithmetic(call, larger, i32::max)
}

pub(super) fn minimum(call: &Call) -> Results {
    arithmetic(call, smaller, i32::min)
}

pub(super) fn equal(call: &Call) -> Results {
    comparison(call, f32::eq, i32::eq)
}

pub(super) fn greater(call: &Call) -> Results {
    comparison(call, f32::gt, i32::gt)
}

pub(super) fn greater_equal(call: &Call) -> Results {
    comparison(call, f32::ge, i32::ge)
}

pub(super) fn less(call: &Call) -> Results {
    comparison(call, f32::lt, i32::lt)
}

pub(super) fn less_equal(call: &Call) -> Results {
    comparison(call, f32::le, i32::le)
}

pub(super) fn not_equal(call: &Call) -> Results {
    comparison(call, f32::ne, i32::ne)
}

pub(super) fn logical_and(call: &Call) -> Results {
    logical(call, |x, y| x & y)
}

pub(super) fn logical_or(call: &Call) -> Results {
    logical(call, |x, y| x | y)
}

pub(super) fn logical_xor(call: &Call) -> Results {
    logical(call, |x, y| x ^ y)
}

fn logical(call: &Call, f: impl Fn(bool, bool) -> bool) -> Results {
    let (x, y) = (call.tensor("x")?, call.tensor("y")?);
    let shape = joined(call, &[x.shape, y.shape])?;
    let bools = zip(&shape, (x.ints()?, x.shape), (y.ints()?, y.shape), |x, y| {
        i32::from(f(x != 0, y != 0))
    });
    call.give_ints(shape, bools)
}

/// Applies a function to each element. Integer results wrap to their type.
fn map_numbers(call: &Call, of_float: impl Fn(f32) -> f32, of_int: impl Fn(i64) -> i64) -> Results {
    let x = call.tensor("x")?;
    match x.elements {
        ElementsView::Floats(_) => map_floats(call, of_float),
        ElementsView::Ints(ints) => {
            let dtype = call.dtype();
            let of_int = |&x: &i32| wrap_int(dtype, of_int(i64::from(x)));
            call.give_ints(x.shape, ints.iter().map(of_int).collect())
        }
        ElementsView::Texts(_) => fail!("expects numbers, found `string`"),
    }
}

/// The maximum. Unlike `f32::max`, returns NaN if either is NaN.
pub(super) fn larger(x: f32, y: f32) -> f32 {
    if x.is_nan() || x > y { x } else { y }
}

/// The minimum. Unlike `f32::min`, returns NaN if either is NaN.
pub(super) fn smaller(x: f32, y: f32) -> f32 {
    if x.is_nan() || x < y { x } else { y }
}

/// Integer power that wraps around. Negative exponents truncate the fraction.
fn int_pow(x: i64, y: i32) -> i64 {
    match (u32::try_from(y), x) {
        (Ok(y), _) => x.wrapping_pow(y),
        (Err(_), 1) => 1,
        (Err(_), -1) => 1 - 2 * i64::from(y & 1),
        (Err(_), _) => 0,
    }
}

/// The error function: its series near zero, else a continued fraction of the complement.
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
        let mut step = 0.0;
        while term.abs() > 1e-17 * sum.abs() {
            step += 1.0;
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
