//! Special functions that Core ML has no operations for, by series and rational approximations.

use coremill_mil::ir::ValueId;
use coremill_mil::ops::OpKind;
use coremill_tensor::DType;

use super::unary::mapped;
use crate::error::{Refusal, refuse};
use crate::lower::builder::{Arg, Builder};
use crate::lower::call::{Call, Results};
use crate::lower::table::{Row, all};

pub(crate) const ROWS: &[Row] = &[
    all("aten.erfinv", |call| mapped(call, inverse_erf)),
    all("aten.special_erfinv", |call| mapped(call, inverse_erf)),
    all("aten.lgamma", |call| mapped(call, log_gamma)),
    all("aten.special_gammaln", |call| mapped(call, log_gamma)),
    all("aten.mvlgamma", multivariate_log_gamma),
    all("aten.special_multigammaln", multivariate_log_gamma),
    all("aten.digamma", |call| mapped(call, digamma)),
    all("aten.special_digamma", |call| mapped(call, digamma)),
    all("aten.special_psi", |call| mapped(call, digamma)),
    all("aten.polygamma", polygamma),
    all("aten.special_polygamma", polygamma),
    all("aten.special_zeta", zeta_of_tensors),
    all("aten.special_modified_bessel_i0", |call| {
        mapped(call, |b, x| bessel(b, x, &ORDER_0, false))
    }),
    all("aten.special_modified_bessel_i1", |call| {
        mapped(call, |b, x| bessel(b, x, &ORDER_1, false))
    }),
    all("aten.special_entr", |call| mapped(call, entropy)),
    all("aten.special_ndtr", |call| mapped(call, normal_share)),
    all("aten.special_ndtri", |call| mapped(call, inverse_normal_share)),
    all("aten.special_log_ndtr", |call| mapped(call, log_normal_share)),
    all("aten.i0", |call| mapped(call, |b, x| bessel(b, x, &ORDER_0, false))),
    all("aten.special_i0", |call| mapped(call, |b, x| bessel(b, x, &ORDER_0, false))),
    all("aten.special_i0e", |call| mapped(call, |b, x| bessel(b, x, &ORDER_0, true))),
    all("aten.special_i1", |call| mapped(call, |b, x| bessel(b, x, &ORDER_1, false))),
    all("aten.special_i1e", |call| mapped(call, |b, x| bessel(b, x, &ORDER_1, true))),
];

/// A polynomial, the coefficient of the highest power first.
fn polynomial(builder: &mut Builder, x: ValueId, coefficients: &[f32]) -> Result<ValueId, Refusal> {
    let Some((&first, rest)) = coefficients.split_first() else {
        refuse!("a polynomial has no coefficients");
    };
    let Some((&second, rest)) = rest.split_first() else {
        return builder.binary(OpKind::Mul, x, first);
    };
    let mut sum = builder.binary(OpKind::Mul, x, first)?;
    sum = builder.binary(OpKind::Add, sum, second)?;
    for &coefficient in rest {
        sum = builder.binary(OpKind::Mul, sum, x)?;
        sum = builder.binary(OpKind::Add, sum, coefficient)?;
    }
    Ok(sum)
}

/// M. Giles, "Approximating the erfinv function": one polynomial for the middle, one for the tails.
fn inverse_erf(builder: &mut Builder, x: ValueId) -> Result<ValueId, Refusal> {
    const MIDDLE: [f32; 9] = [
        2.810_226_4e-8,
        3.432_739_4e-7,
        -3.523_387_7e-6,
        -4.391_506_5e-6,
        0.000_218_580_87,
        -0.001_253_725,
        -0.004_177_681_6,
        0.246_640_73,
        1.501_409_4,
    ];
    const TAILS: [f32; 9] = [
        -0.000_200_214_26,
        0.000_100_950_56,
        0.001_349_343_2,
        -0.003_673_428_4,
        0.005_739_507_7,
        -0.007_622_461_3,
        0.009_438_870_5,
        1.001_674,
        2.832_976_8,
    ];
    let below = builder.binary(OpKind::Sub, 1.0_f32, x)?;
    let above = builder.binary(OpKind::Add, x, 1.0_f32)?;
    let product = builder.binary(OpKind::Mul, below, above)?;
    let depth = builder.log(product, 0.0)?;
    let depth = builder.times(depth, -1.0)?;
    let near = builder.binary(OpKind::Sub, depth, 2.5_f32)?;
    let near = polynomial(builder, near, &MIDDLE)?;
    let far = builder.unary(OpKind::Sqrt, depth)?;
    let far = builder.binary(OpKind::Sub, far, 3.0_f32)?;
    let far = polynomial(builder, far, &TAILS)?;
    let in_middle = builder.binary(OpKind::Less, depth, 5.0_f32)?;
    let slope = builder.select(in_middle, near, far)?;
    let inside = builder.binary(OpKind::Mul, slope, x)?;
    // At both ends the polynomials do not reach infinity.
    let magnitude = builder.unary(OpKind::Abs, x)?;
    let end = builder.binary(OpKind::Equal, magnitude, 1.0_f32)?;
    let infinite = builder.binary(OpKind::Mul, x, f32::INFINITY)?;
    builder.select(end, infinite, inside)
}

/// Eight factors lift the argument, above which Stirling's series is exact to single precision; below one
/// half the reflection formula is.
fn log_gamma(builder: &mut Builder, x: ValueId) -> Result<ValueId, Refusal> {
    const HALF_LOG_TAU: f32 = 0.918_938_5;
    // Its series adds up what halves are too small for.
    builder.exact = true;
    let reflected = builder.binary(OpKind::Sub, 1.0_f32, x)?;
    let small = builder.binary(OpKind::Less, x, 0.5_f32)?;
    let z = builder.select(small, reflected, x)?;
    let mut product = z;
    for step in 1..8 {
        let factor = builder.binary(OpKind::Add, z, step as f32)?;
        product = builder.binary(OpKind::Mul, product, factor)?;
    }
    // What is large already is not lifted: the product would overflow.
    let large = builder.binary(OpKind::Greater, z, 8.0_f32)?;
    let lifted = builder.binary(OpKind::Add, z, 8.0_f32)?;
    let lifted = builder.select(large, z, lifted)?;
    let product = builder.select(large, 1.0_f32, product)?;
    let log = builder.log(lifted, 0.0)?;
    let offset = builder.binary(OpKind::Sub, lifted, 0.5_f32)?;
    // (z − ½)(log z − 1) keeps its digits where (z − ½) log z − z does not.
    let less = builder.binary(OpKind::Sub, log, 1.0_f32)?;
    let main = builder.binary(OpKind::Mul, offset, less)?;
    let inverse = builder.reciprocal(lifted)?;
    let square = builder.unary(OpKind::Square, inverse)?;
    let series = polynomial(builder, square, &[1.0 / 1260.0, -1.0 / 360.0, 1.0 / 12.0])?;
    let series = builder.binary(OpKind::Mul, series, inverse)?;
    let sum = builder.binary(OpKind::Add, main, series)?;
    let sum = builder.binary(OpKind::Add, sum, HALF_LOG_TAU - 0.5)?;
    let log_product = builder.log(product, 0.0)?;
    let upper = builder.binary(OpKind::Sub, sum, log_product)?;
    let angle = sine_of_half_turns(builder, x)?;
    let angle = builder.unary(OpKind::Abs, angle)?;
    let log_sine = builder.log(angle, 0.0)?;
    let lower = builder.binary(OpKind::Sub, std::f32::consts::PI.ln(), log_sine)?;
    let lower = builder.binary(OpKind::Sub, lower, upper)?;
    builder.select(small, lower, upper)
}

/// `sin(π x)`, of what is left of `x` after whole turns.
fn sine_of_half_turns(builder: &mut Builder, x: ValueId) -> Result<ValueId, Refusal> {
    let rest = builder.binary(OpKind::Mod, x, 2.0_f32)?;
    let angle = builder.times(rest, std::f32::consts::PI)?;
    let sine = builder.unary(OpKind::Sin, angle)?;
    // Half turns have no sine, which rounding would hide.
    let whole = builder.unary(OpKind::Floor, x)?;
    let none = builder.binary(OpKind::Equal, whole, x)?;
    builder.select(none, 0.0_f32, sine)
}

/// The sum of the logarithms of `p` gamma functions, half a step from each other.
fn multivariate_log_gamma(call: &mut Call<'_, '_>) -> Results {
    let p = call.known_int("p")?;
    if !(1..=64).contains(&p) {
        refuse!("`p` is {p}; 1 to 64 are accepted");
    }
    mapped(call, |builder, x| {
        let mut sum = log_gamma(builder, x)?;
        for step in 1..p {
            let place = builder.binary(OpKind::Sub, x, step as f32 / 2.0)?;
            let term = log_gamma(builder, place)?;
            sum = builder.binary(OpKind::Add, sum, term)?;
        }
        let constant = (p * (p - 1)) as f64 / 4.0 * std::f64::consts::PI.ln();
        builder.binary(OpKind::Add, sum, constant as f32)
    })
}

/// Lifted by eight steps to where the asymptotic series holds; reflected below one half.
fn digamma(builder: &mut Builder, x: ValueId) -> Result<ValueId, Refusal> {
    builder.exact = true;
    let small = builder.binary(OpKind::Less, x, 0.5_f32)?;
    let reflected = builder.binary(OpKind::Sub, 1.0_f32, x)?;
    let z = builder.select(small, reflected, x)?;
    let mut steps = builder.reciprocal(z)?;
    for step in 1..8 {
        let place = builder.binary(OpKind::Add, z, step as f32)?;
        let term = builder.reciprocal(place)?;
        steps = builder.binary(OpKind::Add, steps, term)?;
    }
    let lifted = builder.binary(OpKind::Add, z, 8.0_f32)?;
    let inverse = builder.reciprocal(lifted)?;
    let square = builder.unary(OpKind::Square, inverse)?;
    let series = polynomial(builder, square, &[-1.0 / 252.0, 1.0 / 120.0, -1.0 / 12.0])?;
    let series = builder.binary(OpKind::Mul, series, square)?;
    let half = builder.times(inverse, 0.5)?;
    let log = builder.log(lifted, 0.0)?;
    let upper = builder.binary(OpKind::Sub, log, half)?;
    let upper = builder.binary(OpKind::Add, upper, series)?;
    let upper = builder.binary(OpKind::Sub, upper, steps)?;
    // π / tan(π x), of the part of a turn that is left; at whole numbers there is a pole.
    let rest = builder.binary(OpKind::Mod, x, 1.0_f32)?;
    let angle = builder.times(rest, std::f32::consts::PI)?;
    let tangent = builder.unary(OpKind::Tan, angle)?;
    let correction = builder.binary(OpKind::RealDiv, std::f32::consts::PI, tangent)?;
    let lower = builder.binary(OpKind::Sub, upper, correction)?;
    let pole = builder.binary(OpKind::Equal, rest, 0.0_f32)?;
    let lower = builder.select(pole, f32::NAN, lower)?;
    let y = builder.select(small, lower, upper)?;
    let zero = builder.binary(OpKind::Equal, x, 0.0_f32)?;
    builder.select(zero, f32::NEG_INFINITY, y)
}

/// Hurwitz's zeta function of `q`, by the first terms and Euler's and Maclaurin's formula for the rest.
fn zeta(builder: &mut Builder, s: Arg, q: ValueId) -> Result<ValueId, Refusal> {
    const TERMS: u8 = 9;
    let minus = builder.binary(OpKind::Mul, s.clone(), -1.0_f32)?;
    let mut sum = builder.binary(OpKind::Pow, q, minus)?;
    for step in 1..TERMS {
        let place = builder.binary(OpKind::Add, q, f32::from(step))?;
        let term = builder.binary(OpKind::Pow, place, minus)?;
        sum = builder.binary(OpKind::Add, sum, term)?;
    }
    let last = builder.binary(OpKind::Add, q, f32::from(TERMS))?;
    let power = builder.binary(OpKind::Pow, last, minus)?;
    let below = builder.binary(OpKind::Sub, s.clone(), 1.0_f32)?;
    let tail = builder.binary(OpKind::Mul, power, last)?;
    let tail = builder.binary(OpKind::RealDiv, tail, below)?;
    let half = builder.times(power, 0.5)?;
    sum = builder.binary(OpKind::Add, sum, tail)?;
    sum = builder.binary(OpKind::Add, sum, half)?;
    // s/12 · a⁻ˢ⁻¹ − s(s+1)(s+2)/720 · a⁻ˢ⁻³ + s(s+1)(s+2)(s+3)(s+4)/30240 · a⁻ˢ⁻⁵
    let mut factor = builder.binary(OpKind::Mul, power, s.clone())?;
    factor = builder.binary(OpKind::RealDiv, factor, last)?;
    for (index, bernoulli) in [1.0 / 12.0, -1.0 / 720.0, 1.0 / 30240.0].into_iter().enumerate() {
        if index > 0 {
            for step in [2 * index - 1, 2 * index] {
                let rising = builder.binary(OpKind::Add, s.clone(), step as f32)?;
                factor = builder.binary(OpKind::Mul, factor, rising)?;
                factor = builder.binary(OpKind::RealDiv, factor, last)?;
            }
        }
        let term = builder.times(factor, bernoulli)?;
        sum = builder.binary(OpKind::Add, sum, term)?;
    }
    Ok(sum)
}

fn zeta_of_tensors(call: &mut Call<'_, '_>) -> Results {
    let (s, q) = (call.operand("self")?, call.operand("other")?);
    let s = call.operand_in(s, DType::Fp32)?;
    let q = call.operand_value(q, DType::Fp32)?;
    let y = zeta(call, s, q)?;
    call.give(y)
}

/// The derivative of that order of `digamma`.
fn polygamma(call: &mut Call<'_, '_>) -> Results {
    let order = call.known_int("n")?;
    match order {
        0 => mapped(call, digamma),
        1..=20 => mapped(call, |builder, x| {
            let sum = zeta(builder, (order as f32 + 1.0).into(), x)?;
            let factorial: f64 = (1..=order).map(|factor| factor as f64).product();
            let sign = if order % 2 == 0 { -1.0 } else { 1.0 };
            builder.times(sum, (sign * factorial) as f32)
        }),
        _ => refuse!("`polygamma` is lowered for orders 0 to 20, found {order}"),
    }
}

/// `−x log x`: zero at zero, minus infinity below.
fn entropy(builder: &mut Builder, x: ValueId) -> Result<ValueId, Refusal> {
    let log = builder.log(x, 0.0)?;
    let product = builder.binary(OpKind::Mul, x, log)?;
    let y = builder.times(product, -1.0)?;
    let zero = builder.binary(OpKind::Equal, x, 0.0_f32)?;
    let y = builder.select(zero, 0.0_f32, y)?;
    let below = builder.binary(OpKind::Less, x, 0.0_f32)?;
    builder.select(below, f32::NEG_INFINITY, y)
}

/// The share of a normal distribution below `x`.
fn normal_share(builder: &mut Builder, x: ValueId) -> Result<ValueId, Refusal> {
    let inner = builder.times(x, std::f32::consts::FRAC_1_SQRT_2)?;
    let erf = builder.unary(OpKind::Erf, inner)?;
    let sum = builder.binary(OpKind::Add, erf, 1.0_f32)?;
    builder.times(sum, 0.5)
}

fn inverse_normal_share(builder: &mut Builder, x: ValueId) -> Result<ValueId, Refusal> {
    let double = builder.times(x, 2.0)?;
    let inner = builder.binary(OpKind::Sub, double, 1.0_f32)?;
    let y = inverse_erf(builder, inner)?;
    builder.times(y, std::f32::consts::SQRT_2)
}

/// Far below zero the share is less than the smallest number; its logarithm is found by a series.
fn log_normal_share(builder: &mut Builder, x: ValueId) -> Result<ValueId, Refusal> {
    const HALF_LOG_TAU: f32 = 0.918_938_5;
    let share = normal_share(builder, x)?;
    let near = builder.log(share, 0.0)?;
    let far = builder.binary(OpKind::Minimum, x, -4.0_f32)?;
    let square = builder.unary(OpKind::Square, far)?;
    let inverse = builder.reciprocal(square)?;
    let series = polynomial(builder, inverse, &[-945.0, 105.0, -15.0, 3.0, -1.0, 1.0])?;
    let series = builder.log(series, 0.0)?;
    let magnitude = builder.times(far, -1.0)?;
    let log = builder.log(magnitude, 0.0)?;
    let half = builder.times(square, -0.5)?;
    let tail = builder.binary(OpKind::Sub, half, log)?;
    let tail = builder.binary(OpKind::Sub, tail, HALF_LOG_TAU)?;
    let tail = builder.binary(OpKind::Add, tail, series)?;
    let below = builder.binary(OpKind::Less, x, -4.0_f32)?;
    builder.select(below, tail, near)
}

/// A modified Bessel function of the first kind, after Abramowitz and Stegun 9.8.1 to 9.8.4.
struct Bessel {
    /// Of the square of x / 3.75, up to there.
    near: [f32; 7],
    /// Of 3.75 / x, beyond.
    far: [f32; 9],
    odd: bool,
}

const ORDER_0: Bessel = Bessel {
    near: [0.004_581_3, 0.036_076_8, 0.265_973_2, 1.206_749_2, 3.089_942_4, 3.515_622_9, 1.0],
    far: [
        0.003_923_77,
        -0.016_476_33,
        0.026_355_37,
        -0.020_577_06,
        0.009_162_81,
        -0.001_575_65,
        0.002_253_19,
        0.013_285_92,
        0.398_942_3,
    ],
    odd: false,
};

const ORDER_1: Bessel = Bessel {
    near: [0.000_324_11, 0.003_015_32, 0.026_587_33, 0.150_849_34, 0.514_988_69, 0.878_905_94, 0.5],
    far: [
        -0.004_200_59,
        0.017_876_54,
        -0.028_953_12,
        0.022_829_67,
        -0.010_315_55,
        0.001_638_01,
        -0.003_620_18,
        -0.039_880_24,
        0.398_942_3,
    ],
    odd: true,
};

fn bessel(
    builder: &mut Builder,
    x: ValueId,
    of: &Bessel,
    scaled: bool,
) -> Result<ValueId, Refusal> {
    const BORDER: f32 = 3.75;
    let magnitude = builder.unary(OpKind::Abs, x)?;
    let inner = builder.binary(OpKind::Minimum, magnitude, BORDER)?;
    let share = builder.times(inner, 1.0 / BORDER)?;
    let square = builder.unary(OpKind::Square, share)?;
    let mut near = polynomial(builder, square, &of.near)?;
    if of.odd {
        near = builder.binary(OpKind::Mul, near, inner)?;
    }
    let outer = builder.binary(OpKind::Maximum, magnitude, BORDER)?;
    let share = builder.binary(OpKind::RealDiv, BORDER, outer)?;
    let far = polynomial(builder, share, &of.far)?;
    let root = builder.rsqrt(outer)?;
    let mut far = builder.binary(OpKind::Mul, far, root)?;
    if scaled {
        let minus = builder.times(inner, -1.0)?;
        let decay = builder.unary(OpKind::Exp, minus)?;
        near = builder.binary(OpKind::Mul, near, decay)?;
    } else {
        let growth = builder.unary(OpKind::Exp, outer)?;
        far = builder.binary(OpKind::Mul, far, growth)?;
    }
    let is_near = builder.binary(OpKind::Less, magnitude, BORDER)?;
    let y = builder.select(is_near, near, far)?;
    if of.odd {
        let sign = builder.unary(OpKind::Sign, x)?;
        return builder.binary(OpKind::Mul, y, sign);
    }
    Ok(y)
}
