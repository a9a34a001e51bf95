//! Elementary functions of complex numbers, element by element.
//!
//! Nothing is squared that was not divided by the larger part before, and nothing is infinite on the way to a result
//! that is not: the formulas hold over the whole range of the parts' type. `oracle/aten/ranges.py` states how well.

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
    // tanh, turned by a quarter.
    (&["aten.tan"], |call| {
        let formula = "growth = tanh(y); inverse = 1 / cosh(y); cosine = cos(x); sine = sin(x); \
                       below = square(cosine) + square(growth * sine); \
                       inverse * (inverse * (sine * cosine)) / below, growth / below";
        of_parts(call, formula)
    }),
    // 1 / (1 + exp(-z)) with exp(-|x|), the square of the magnitude of the sum as one of positive terms.
    (&["aten.sigmoid", "aten.special_expit"], |call| {
        let formula = "small = exp(-abs(x)); rest = 1 - small; angle = y * 0.5; cosine = cos(angle); \
                       twice = square(cosine) * 2.0; below = square(rest) + small * twice * 2.0; \
                       right = rest + small * twice; left = small * (twice - rest); \
                       where(x < 0, left, right) / below, small * (cosine * sin(angle) * 2.0) / below";
        of_parts(call, formula)
    }),
];

/// Both parts by formulas of the scaled number.
fn scaled(call: &mut Call<'_>, [real, imaginary]: &[&str; 2]) -> Results {
    of_parts(call, &format!("{SCALED}; {real}, {imaginary}"))
}

/// The parts of a root: `whole` is that of the scale, and `half` and `rest` are the parts of that of the scaled number,
/// the larger one first. Of a difference of magnitude and real part little would be left.
fn root(call: &mut Call<'_>, names: &str, [real, imaginary]: [&str; 2]) -> Results {
    let formula = format!(
        "{SCALED}; whole = sqrt(most); half = sqrt((abs(u) + length) * 0.5); \
         rest = abs(v) * 0.5 / half; {names}; other = where(x < 0, over, under); {real}, {imaginary}"
    );
    of_parts(call, &formula)
}

/// A power of e. Its magnitude is the square of a number that is finite, multiplied in two steps: cosine and sine may
/// bring it back into range, and zero times an infinity is not a number.
fn exponential(call: &mut Call<'_>, x: &Tensor, y: &Tensor) -> Result<[Tensor; 2]> {
    let most = largest(x.dtype);
    let formula = "root = min(exp(x * 0.5), most); root * (root * cos(y)), root * (root * sin(y))";
    calc!(all call, formula, x, y, most)
}

/// The hyperbolic cosine and sine of a real number, each times another number that is at most 1.
fn hyperbolic(
    call: &mut Call<'_>,
    x: &Tensor,
    [first, second]: [&Tensor; 2],
) -> Result<[Tensor; 2]> {
    let most = largest(x.dtype);
    // Beyond 9 the other power of e is below the precision, and both are half of one.
    let formula = "size = abs(x); root = min(exp(size * 0.5), most); far = size > 9; half = root * 0.5; \
                   where(far, root * (half * first), cosh(x) * first), \
                   where(far, root * (half * (second * sign(x))), sinh(x) * second)";
    calc!(all call, formula, x, first, second, most)
}

/// The logarithm of the larger part and that of the scaled number, whose magnitude may be beyond the largest number.
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

/// The logarithm of 1 + z: by what the square of the magnitude exceeds 1 for a small z, else as it is.
fn logarithm_beside_one(call: &mut Call<'_>) -> Results {
    let [x, y] = call.both_parts("self")?;
    let sum = calc!(call, "x + 1", x)?;
    let [whole, angle] = logarithm(call, &sum, &y)?;
    let formula = "near = max(abs(x), abs(y)) < 0.5; \
                   where(near, log1p(x * (x + 2.0) + y * y) * 0.5, whole)";
    let real = calc!(call, formula, x, y, whole)?;
    call.pair(real, angle)
}

/// Powers with small whole exponents as products, others by logarithm and exponential.
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
