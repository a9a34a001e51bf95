//! Elementwise functions of complex numbers.
//!
//! Numbers are scaled by their larger part before squaring, and no intermediate result overflows unless the final
//! result does. The formulas therefore hold over the whole range of the type. `oracle/aten/ranges.py` states their
//! accuracy.

use super::Rule;
use super::arithmetic::{SCALED, of_parts, times};
use crate::decompose::ops::largest;
use crate::decompose::prelude::*;

pub(super) const RULES: &[(&[&str], Rule)] = &[
    (&["aten.reciprocal"], |call| scaled(call, &["u / square / most", "-v / square / most"])),
    (&["aten.sgn"], |call| scaled(call, &["u / length", "v / length"])),
    (&["aten.square"], |call| of_parts(call, "(x - y) * (x + y), x * y * 2.0")),
    (&["aten.sqrt"], |call| {
        let formula = ["where(x < 0, under, over)", "where(signbit(y), -other, other)"];
        root(call, "over = whole * half; under = whole * rest", formula)
    }),
    (&["aten.rsqrt"], |call| {
        let formula = ["where(x < 0, under, over)", "where(signbit(y), other, -other)"];
        let names = "below = whole * length; over = half / below; under = rest / below";
        root(call, names, formula)
    }),
    (&["aten.exp"], |call| {
        let [x, y] = call.both_parts("self")?;
        let [real, imaginary] = exponential(call, &x, &y)?;
        call.pair(real, imaginary)
    }),
    (&["aten.log"], |call| logarithm_to(call, 1.0)),
    (&["aten.log2"], |call| logarithm_to(call, std::f64::consts::LOG2_E)),
    (&["aten.log10"], |call| logarithm_to(call, std::f64::consts::LOG10_E)),
    (&["aten.log1p", "aten.special_log1p"], logarithm_beside_one),
    (&["aten.pow"], power),
    (&["aten.sin"], |call| {
        let [x, y] = call.both_parts("self")?;
        let [sine, cosine] = calc!(all call, "sin(x), cos(x)", x)?;
        let [real, imaginary] = hyperbolic(call, &y, [&sine, &cosine])?;
        call.pair(real, imaginary)
    }),
    (&["aten.cos"], |call| {
        let [x, y] = call.both_parts("self")?;
        let [sine, cosine] = calc!(all call, "-sin(x), cos(x)", x)?;
        let [real, imaginary] = hyperbolic(call, &y, [&cosine, &sine])?;
        call.pair(real, imaginary)
    }),
    (&["aten.sinh"], |call| {
        let [x, y] = call.both_parts("self")?;
        let [sine, cosine] = calc!(all call, "sin(y), cos(y)", y)?;
        let [imaginary, real] = hyperbolic(call, &x, [&sine, &cosine])?;
        call.pair(real, imaginary)
    }),
    (&["aten.cosh"], |call| {
        let [x, y] = call.both_parts("self")?;
        let [sine, cosine] = calc!(all call, "sin(y), cos(y)", y)?;
        let [real, imaginary] = hyperbolic(call, &x, [&cosine, &sine])?;
        call.pair(real, imaginary)
    }),
    (&["aten.tanh"], |call| {
        let formula = "growth = tanh(x); inverse = 1 / cosh(x); cosine = cos(y); sine = sin(y); \
                       below = square(cosine) + square(growth * sine); \
                       growth / below, inverse * (inverse * (sine * cosine)) / below";
        of_parts(call, formula)
    }),
    // tan(z) = -i tanh(i·z).
    (&["aten.tan"], |call| {
        let formula = "growth = tanh(y); inverse = 1 / cosh(y); cosine = cos(x); sine = sin(x); \
                       below = square(cosine) + square(growth * sine); \
                       inverse * (inverse * (sine * cosine)) / below, growth / below";
        of_parts(call, formula)
    }),
    // 1 / (1 + exp(-z)), computed with exp(-|x|). The squared magnitude of the denominator is a sum of positive
    // terms.
    (&["aten.sigmoid", "aten.special_expit"], |call| {
        let formula = "small = exp(-abs(x)); rest = 1 - small; angle = y * 0.5; cosine = cos(angle); \
                       twice = square(cosine) * 2.0; below = square(rest) + small * twice * 2.0; \
                       right = rest + small * twice; left = small * (twice - rest); \
                       where(x < 0, left, right) / below, small * (cosine * sin(angle) * 2.0) / below";
        of_parts(call, formula)
    }),
];

/// Computes both parts from the scaled number.
fn scaled(call: &mut Call<'_>, [real, imaginary]: &[&str; 2]) -> Results {
    of_parts(call, &format!("{SCALED}; {real}, {imaginary}"))
}

/// Parts of a square root. `whole` is the root of the scale. `half` and `rest` are the larger and smaller part of
/// the root of the scaled number. The difference of magnitude and real part is avoided because it cancels.
fn root(call: &mut Call<'_>, names: &str, [real, imaginary]: [&str; 2]) -> Results {
    let formula = format!(
        "{SCALED}; whole = sqrt(most); half = sqrt((abs(u) + length) * 0.5); \
         rest = abs(v) * 0.5 / half; {names}; other = where(x < 0, over, under); {real}, {imaginary}"
    );
    of_parts(call, &formula)
}

/// exp(z). The magnitude is the square of a finite number and is multiplied in two steps, as cosine and sine may
/// bring the product back into range, and zero times infinity would be NaN.
fn exponential(call: &mut Call<'_>, x: &Tensor, y: &Tensor) -> Result<[Tensor; 2]> {
    let most = largest(x.dtype);
    let formula = "root = min(exp(x * 0.5), most); root * (root * cos(y)), root * (root * sin(y))";
    calc!(all call, formula, x, y, most)
}

/// Hyperbolic cosine and sine of a real number, each multiplied by a factor of at most 1.
fn hyperbolic(
    call: &mut Call<'_>,
    x: &Tensor,
    [first, second]: [&Tensor; 2],
) -> Result<[Tensor; 2]> {
    let most = largest(x.dtype);
    // Beyond 9 the smaller exponential is below the precision, and both functions are half of the larger one.
    let formula = "size = abs(x); root = min(exp(size * 0.5), most); far = size > 9; half = root * 0.5; \
                   where(far, root * (half * first), cosh(x) * first), \
                   where(far, root * (half * (second * sign(x))), sinh(x) * second)";
    calc!(all call, formula, x, first, second, most)
}

/// log|z| as the logarithm of the larger part plus the logarithm of the scaled number, because |z| may overflow.
fn logarithm(call: &mut Call<'_>, x: &Tensor, y: &Tensor) -> Result<[Tensor; 2]> {
    let formula = "most = max(abs(x), abs(y)); least = min(abs(x), abs(y)); \
                   ratio = least / where(most == 0 | most == inf, 1.0, most); \
                   log(most) + log1p(where(most == inf, 0.0, ratio * ratio)) * 0.5, atan2(y, x)";
    calc!(all call, formula, x, y)
}

fn logarithm_to(call: &mut Call<'_>, factor: f64) -> Results {
    let [x, y] = call.both_parts("self")?;
    let [real, imaginary] = logarithm(call, &x, &y)?;
    let [real, imaginary] =
        calc!(all call, "real * factor, imaginary * factor", real, imaginary, factor)?;
    call.pair(real, imaginary)
}

/// log(1 + z). For small z the real part uses |1 + z|² - 1, which avoids cancellation.
fn logarithm_beside_one(call: &mut Call<'_>) -> Results {
    let [x, y] = call.both_parts("self")?;
    let sum = calc!(call, "x + 1", x)?;
    let [whole, angle] = logarithm(call, &sum, &y)?;
    let formula = "near = max(abs(x), abs(y)) < 0.5; \
                   where(near, log1p(x * (x + 2.0) + y * y) * 0.5, whole)";
    let real = calc!(call, formula, x, y, whole)?;
    call.pair(real, angle)
}

/// Small integer powers by multiplication, others by logarithm and exponential.
fn power(call: &mut Call<'_>) -> Results {
    const MOST: f64 = 8.0;
    let whole = match call.argument("exponent")? {
        Argument::Int(exponent) => Some(*exponent as f64),
        Argument::Float(exponent) => Some(*exponent),
        _ => None,
    };
    let base = call.both_parts("self")?;
    if let Some(exponent) = whole.filter(|one| one.fract() == 0.0 && (1.0..=MOST).contains(one)) {
        let mut total = base.clone();
        for _ in 1..exponent as u32 {
            total = times(call, &total, &base)?;
        }
        let [real, imaginary] = total;
        return call.pair(real, imaginary);
    }
    let [x, y] = &base;
    let logarithm = logarithm(call, x, y)?;
    let exponent = call.parts("exponent")?;
    let [growth, turn] = match exponent.imaginary {
        Some(imaginary) => times(call, &logarithm, &[exponent.real, imaginary])?,
        None => [
            call.multiply(&logarithm[0], &exponent.real)?,
            call.multiply(&logarithm[1], &exponent.real)?,
        ],
    };
    let [real, imaginary] = exponential(call, &growth, &turn)?;
    call.pair(real, imaginary)
}
