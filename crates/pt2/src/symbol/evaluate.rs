//! Evaluation of expressions, exact wherever sympy is exact.

use std::cmp::Ordering;
use std::fmt;

use super::{Expression, Function, SymbolId};

/// A value of an expression.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Number {
    /// A fraction in lowest terms with a positive denominator, which is 1 for an integer.
    Exact(i128, i128),
    /// A value that is known only as a float.
    Float(f64),
    /// A boolean.
    Bool(bool),
}

impl Number {
    /// The value as an integer, if it is one.
    pub fn integer(self) -> Option<i64> {
        match self {
            Number::Exact(value, 1) => i64::try_from(value).ok(),
            _ => None,
        }
    }

    /// The nearest float; `None` for booleans.
    pub fn float(self) -> Option<f64> {
        match self {
            Number::Exact(above, below) => Some(above as f64 / below as f64),
            Number::Float(value) => Some(value),
            Number::Bool(_) => None,
        }
    }

    /// The value of a boolean.
    pub fn bool(self) -> Option<bool> {
        match self {
            Number::Bool(value) => Some(value),
            _ => None,
        }
    }
}

impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Number::Exact(value, 1) => write!(f, "{value}"),
            Number::Exact(above, below) => write!(f, "{above}/{below}"),
            Number::Float(value) => write!(f, "{value:?}"),
            Number::Bool(value) => write!(f, "{value}"),
        }
    }
}

pub(super) fn evaluate(
    expression: &Expression,
    value: &dyn Fn(SymbolId) -> Option<i64>,
) -> Option<Number> {
    match expression {
        Expression::Integer(value) => Some(integer((*value).into())),
        Expression::Rational(above, below) => exact((*above).into(), (*below).into()),
        Expression::Float(value) => Some(Number::Float(*value)),
        Expression::Bool(value) => Some(Number::Bool(*value)),
        Expression::Symbol(id) => value(*id).map(|value| integer(value.into())),
        Expression::Call(function, arguments) => {
            let arguments: Option<Vec<Number>> =
                arguments.iter().map(|argument| evaluate(argument, value)).collect();
            call(function, &arguments?)
        }
    }
}

fn integer(value: i128) -> Number {
    Number::Exact(value, 1)
}

fn exact(above: i128, below: i128) -> Option<Number> {
    if below == 0 {
        return None;
    }
    let (mut a, mut b) = (above.unsigned_abs(), below.unsigned_abs());
    while b != 0 {
        (a, b) = (b, a % b);
    }
    let divisor = i128::try_from(a.max(1)).ok()?;
    let sign = if below < 0 { -1 } else { 1 };
    Some(Number::Exact((above / divisor).checked_mul(sign)?, (below / divisor).checked_mul(sign)?))
}

fn call(function: &Function, arguments: &[Number]) -> Option<Number> {
    use Function::*;
    match (function, arguments) {
        (Add, [first, rest @ ..]) => rest.iter().try_fold(*first, |a, b| add(a, *b)),
        (Mul, [first, rest @ ..]) => rest.iter().try_fold(*first, |a, b| multiply(a, *b)),
        (Max, [first, rest @ ..]) => {
            rest.iter().try_fold(*first, |a, b| Some(if compare(*b, a)?.is_gt() { *b } else { a }))
        }
        (Min, [first, rest @ ..]) => {
            rest.iter().try_fold(*first, |a, b| Some(if compare(*b, a)?.is_lt() { *b } else { a }))
        }
        (Pow, [base, exponent]) => power(*base, *exponent),
        (FloorDiv | CleanDiv, [a, b]) => floor(divide(*a, *b)?),
        (CeilDiv, [a, b]) => ceiling(divide(*a, *b)?),
        (IntTrueDiv | FloatTrueDiv, [a, b]) => divide(*a, *b),
        (Mod | PythonMod, [a, b]) => remainder(*a, *b),
        (ModularIndexing, [a, b, c]) => remainder(floor(divide(*a, *b)?)?, *c),
        (Abs, [a]) => match *a {
            Number::Exact(above, below) => Some(Number::Exact(above.checked_abs()?, below)),
            Number::Float(value) => Some(Number::Float(value.abs())),
            Number::Bool(_) => None,
        },
        (Floor, [a]) => floor(*a),
        (Ceiling, [a]) => ceiling(*a),
        (Truncate, [a]) => {
            if compare(*a, integer(0))?.is_lt() {
                ceiling(*a)
            } else {
                floor(*a)
            }
        }
        (Round, [a]) => match *a {
            Number::Exact(_, 1) => Some(*a),
            _ => from_float(a.float()?.round_ties_even()),
        },
        (ToFloat | Identity, [a]) => Some(*a),
        (Where, [condition, a, b]) => Some(if condition.bool()? { *a } else { *b }),
        (ShiftLeft, [a, b]) => multiply(*a, power(integer(2), *b)?),
        (ShiftRight, [a, b]) => floor(divide(*a, power(integer(2), *b)?)?),
        (Equal, [a, b]) => Some(Number::Bool(same(*a, *b)?)),
        (NotEqual, [a, b]) => Some(Number::Bool(!same(*a, *b)?)),
        (Less, [a, b]) => Some(Number::Bool(compare(*a, *b)?.is_lt())),
        (LessOrEqual, [a, b]) => Some(Number::Bool(compare(*a, *b)?.is_le())),
        (Greater, [a, b]) => Some(Number::Bool(compare(*a, *b)?.is_gt())),
        (GreaterOrEqual, [a, b]) => Some(Number::Bool(compare(*a, *b)?.is_ge())),
        (And, all) => all.iter().try_fold(true, |a, b| Some(a & b.bool()?)).map(Number::Bool),
        (Or, all) => all.iter().try_fold(false, |a, b| Some(a | b.bool()?)).map(Number::Bool),
        (Not, [a]) => Some(Number::Bool(!a.bool()?)),
        (SquareRoot, [a]) => Some(Number::Float(a.float()?.sqrt())),
        // The remaining functions have too few arguments or are not supported; no result is better than a
        // wrong one.
        _ => None,
    }
}

fn add(a: Number, b: Number) -> Option<Number> {
    match (a, b) {
        (Number::Exact(a, c), Number::Exact(b, d)) => {
            exact(a.checked_mul(d)?.checked_add(b.checked_mul(c)?)?, c.checked_mul(d)?)
        }
        _ => Some(Number::Float(a.float()? + b.float()?)),
    }
}

fn multiply(a: Number, b: Number) -> Option<Number> {
    match (a, b) {
        (Number::Exact(a, c), Number::Exact(b, d)) => exact(a.checked_mul(b)?, c.checked_mul(d)?),
        _ => Some(Number::Float(a.float()? * b.float()?)),
    }
}

fn divide(a: Number, b: Number) -> Option<Number> {
    match (a, b) {
        (Number::Exact(a, c), Number::Exact(b, d)) => exact(a.checked_mul(d)?, c.checked_mul(b)?),
        _ => Some(Number::Float(a.float()? / b.float()?)),
    }
}

fn remainder(a: Number, b: Number) -> Option<Number> {
    let whole = multiply(floor(divide(a, b)?)?, b)?;
    add(a, multiply(integer(-1), whole)?)
}

fn power(base: Number, exponent: Number) -> Option<Number> {
    match (base, exponent) {
        (Number::Exact(above, below), Number::Exact(exponent, 1)) => {
            let times = u32::try_from(exponent.unsigned_abs()).ok()?;
            let (above, below) = (above.checked_pow(times)?, below.checked_pow(times)?);
            if exponent < 0 { exact(below, above) } else { exact(above, below) }
        }
        _ => Some(Number::Float(base.float()?.powf(exponent.float()?))),
    }
}

fn floor(a: Number) -> Option<Number> {
    match a {
        Number::Exact(above, below) => Some(integer(above.div_euclid(below))),
        _ => from_float(a.float()?.floor()),
    }
}

fn ceiling(a: Number) -> Option<Number> {
    match a {
        Number::Exact(above, below) => {
            Some(integer(above.checked_neg()?.div_euclid(below).checked_neg()?))
        }
        _ => from_float(a.float()?.ceil()),
    }
}

fn from_float(value: f64) -> Option<Number> {
    // Larger numbers are not sizes, and the conversion would saturate.
    const MOST: f64 = 1e18;
    (value.abs() <= MOST).then_some(integer(value as i128))
}

fn compare(a: Number, b: Number) -> Option<Ordering> {
    match (a, b) {
        (Number::Exact(a, c), Number::Exact(b, d)) => {
            Some(a.checked_mul(d)?.cmp(&b.checked_mul(c)?))
        }
        _ => a.float()?.partial_cmp(&b.float()?),
    }
}

fn same(a: Number, b: Number) -> Option<bool> {
    match (a, b) {
        (Number::Bool(a), Number::Bool(b)) => Some(a == b),
        _ => compare(a, b).map(Ordering::is_eq),
    }
}
