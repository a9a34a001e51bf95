//! Special functions by series and rational approximations, for Core ML and for ExecuTorch's kernels, which both lack
//! them.

use crate::error::{Refusal, refuse};

/// Functions of two operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Binary {
    Add,
    Sub,
    Mul,
    RealDiv,
    /// What is left after division, with the sign of the divisor.
    Mod,
    Pow,
    Minimum,
    Maximum,
    Less,
    Greater,
    Equal,
}

/// Functions of one operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unary {
    Abs,
    Erf,
    Exp,
    Floor,
    Sign,
    Sin,
    Sqrt,
    Square,
    Tan,
}

/// What functions are written in: operations of MIL, or calls of kernels.
pub(crate) trait Medium {
    /// A tensor of floats, or of truth values where they are asked for.
    type Value: Copy;
    /// A tensor or a number.
    type Operand: From<f32> + From<Self::Value> + Clone;

    /// `x op y`.
    fn binary(
        &mut self,
        kind: Binary,
        x: impl Into<Self::Operand>,
        y: impl Into<Self::Operand>,
    ) -> Result<Self::Value, Refusal>;

    /// `op(x)`.
    fn unary(&mut self, kind: Unary, x: Self::Value) -> Result<Self::Value, Refusal>;

    /// `condition ? a : b`.
    fn select(
        &mut self,
        condition: Self::Value,
        a: impl Into<Self::Operand>,
        b: impl Into<Self::Operand>,
    ) -> Result<Self::Value, Refusal>;

    /// The natural logarithm.
    fn log(&mut self, x: Self::Value) -> Result<Self::Value, Refusal>;

    /// `1 / √x`.
    fn rsqrt(&mut self, x: Self::Value) -> Result<Self::Value, Refusal>;

    /// `1 / x`.
    fn reciprocal(&mut self, x: Self::Value) -> Result<Self::Value, Refusal>;

    /// What follows is too fine for halves.
    fn keep_exact(&mut self);

    /// A multiple.
    fn times(&mut self, x: Self::Value, factor: f32) -> Result<Self::Value, Refusal> {
        self.binary(Binary::Mul, x, factor)
    }
}

/// A polynomial, the coefficient of the highest power first.
fn polynomial<M: Medium>(
    medium: &mut M,
    x: M::Value,
    coefficients: &[f32],
) -> Result<M::Value, Refusal> {
    let Some((&first, rest)) = coefficients.split_first() else {
        refuse!("a polynomial has no coefficients");
    };
    let Some((&second, rest)) = rest.split_first() else {
        return medium.binary(Binary::Mul, x, first);
    };
    let mut sum = medium.binary(Binary::Mul, x, first)?;
    sum = medium.binary(Binary::Add, sum, second)?;
    for &coefficient in rest {
        sum = medium.binary(Binary::Mul, sum, x)?;
        sum = medium.binary(Binary::Add, sum, coefficient)?;
    }
    Ok(sum)
}

/// M. Giles, "Approximating the erfinv function": one polynomial for the middle, one for the tails.
pub(crate) fn inverse_erf<M: Medium>(medium: &mut M, x: M::Value) -> Result<M::Value, Refusal> {
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
    let below = medium.binary(Binary::Sub, 1.0_f32, x)?;
    let above = medium.binary(Binary::Add, x, 1.0_f32)?;
    let product = medium.binary(Binary::Mul, below, above)?;
    let depth = medium.log(product)?;
    let depth = medium.times(depth, -1.0)?;
    let near = medium.binary(Binary::Sub, depth, 2.5_f32)?;
    let near = polynomial(medium, near, &MIDDLE)?;
    let far = medium.unary(Unary::Sqrt, depth)?;
    let far = medium.binary(Binary::Sub, far, 3.0_f32)?;
    let far = polynomial(medium, far, &TAILS)?;
    let in_middle = medium.binary(Binary::Less, depth, 5.0_f32)?;
    let slope = medium.select(in_middle, near, far)?;
    let inside = medium.binary(Binary::Mul, slope, x)?;
    // At both ends the polynomials do not reach infinity.
    let magnitude = medium.unary(Unary::Abs, x)?;
    let end = medium.binary(Binary::Equal, magnitude, 1.0_f32)?;
    let infinite = medium.binary(Binary::Mul, x, f32::INFINITY)?;
    medium.select(end, infinite, inside)
}

/// Eight factors lift the argument, above which Stirling's series is exact to single precision; below one
/// half the reflection formula is.
pub(crate) fn log_gamma<M: Medium>(medium: &mut M, x: M::Value) -> Result<M::Value, Refusal> {
    const HALF_LOG_TAU: f32 = 0.918_938_5;
    // Its series adds up what halves are too small for.
    medium.keep_exact();
    let reflected = medium.binary(Binary::Sub, 1.0_f32, x)?;
    let small = medium.binary(Binary::Less, x, 0.5_f32)?;
    let z = medium.select(small, reflected, x)?;
    let mut product = z;
    for step in 1..8 {
        let factor = medium.binary(Binary::Add, z, step as f32)?;
        product = medium.binary(Binary::Mul, product, factor)?;
    }
    // What is large already is not lifted: the product would overflow.
    let large = medium.binary(Binary::Greater, z, 8.0_f32)?;
    let lifted = medium.binary(Binary::Add, z, 8.0_f32)?;
    let lifted = medium.select(large, z, lifted)?;
    let product = medium.select(large, 1.0_f32, product)?;
    let log = medium.log(lifted)?;
    let offset = medium.binary(Binary::Sub, lifted, 0.5_f32)?;
    // (z − ½)(log z − 1) keeps its digits where (z − ½) log z − z does not.
    let less = medium.binary(Binary::Sub, log, 1.0_f32)?;
    let main = medium.binary(Binary::Mul, offset, less)?;
    let inverse = medium.reciprocal(lifted)?;
    let square = medium.unary(Unary::Square, inverse)?;
    let series = polynomial(medium, square, &[1.0 / 1260.0, -1.0 / 360.0, 1.0 / 12.0])?;
    let series = medium.binary(Binary::Mul, series, inverse)?;
    let sum = medium.binary(Binary::Add, main, series)?;
    let sum = medium.binary(Binary::Add, sum, HALF_LOG_TAU - 0.5)?;
    let log_product = medium.log(product)?;
    let upper = medium.binary(Binary::Sub, sum, log_product)?;
    let angle = sine_of_half_turns(medium, x)?;
    let angle = medium.unary(Unary::Abs, angle)?;
    let log_sine = medium.log(angle)?;
    let lower = medium.binary(Binary::Sub, std::f32::consts::PI.ln(), log_sine)?;
    let lower = medium.binary(Binary::Sub, lower, upper)?;
    medium.select(small, lower, upper)
}

/// `sin(π x)`, of what is left of `x` after whole turns.
fn sine_of_half_turns<M: Medium>(medium: &mut M, x: M::Value) -> Result<M::Value, Refusal> {
    let rest = medium.binary(Binary::Mod, x, 2.0_f32)?;
    let angle = medium.times(rest, std::f32::consts::PI)?;
    let sine = medium.unary(Unary::Sin, angle)?;
    // Half turns have no sine, which rounding would hide.
    let whole = medium.unary(Unary::Floor, x)?;
    let none = medium.binary(Binary::Equal, whole, x)?;
    medium.select(none, 0.0_f32, sine)
}

/// Lifted by eight steps to where the asymptotic series holds; reflected below one half.
pub(crate) fn digamma<M: Medium>(medium: &mut M, x: M::Value) -> Result<M::Value, Refusal> {
    medium.keep_exact();
    let small = medium.binary(Binary::Less, x, 0.5_f32)?;
    let reflected = medium.binary(Binary::Sub, 1.0_f32, x)?;
    let z = medium.select(small, reflected, x)?;
    let mut steps = medium.reciprocal(z)?;
    for step in 1..8 {
        let place = medium.binary(Binary::Add, z, step as f32)?;
        let term = medium.reciprocal(place)?;
        steps = medium.binary(Binary::Add, steps, term)?;
    }
    let lifted = medium.binary(Binary::Add, z, 8.0_f32)?;
    let inverse = medium.reciprocal(lifted)?;
    let square = medium.unary(Unary::Square, inverse)?;
    let series = polynomial(medium, square, &[-1.0 / 252.0, 1.0 / 120.0, -1.0 / 12.0])?;
    let series = medium.binary(Binary::Mul, series, square)?;
    let half = medium.times(inverse, 0.5)?;
    let log = medium.log(lifted)?;
    let upper = medium.binary(Binary::Sub, log, half)?;
    let upper = medium.binary(Binary::Add, upper, series)?;
    let upper = medium.binary(Binary::Sub, upper, steps)?;
    // π / tan(π x), of the part of a turn that is left; at whole numbers there is a pole.
    let rest = medium.binary(Binary::Mod, x, 1.0_f32)?;
    let angle = medium.times(rest, std::f32::consts::PI)?;
    let tangent = medium.unary(Unary::Tan, angle)?;
    let correction = medium.binary(Binary::RealDiv, std::f32::consts::PI, tangent)?;
    let lower = medium.binary(Binary::Sub, upper, correction)?;
    let pole = medium.binary(Binary::Equal, rest, 0.0_f32)?;
    let lower = medium.select(pole, f32::NAN, lower)?;
    let y = medium.select(small, lower, upper)?;
    let zero = medium.binary(Binary::Equal, x, 0.0_f32)?;
    medium.select(zero, f32::NEG_INFINITY, y)
}

/// Hurwitz's zeta function of `q`, by the first terms and Euler's and Maclaurin's formula for the rest.
pub(crate) fn zeta<M: Medium>(
    medium: &mut M,
    s: M::Operand,
    q: M::Value,
) -> Result<M::Value, Refusal> {
    const TERMS: u8 = 9;
    let minus = medium.binary(Binary::Mul, s.clone(), -1.0_f32)?;
    let mut sum = medium.binary(Binary::Pow, q, minus)?;
    for step in 1..TERMS {
        let place = medium.binary(Binary::Add, q, f32::from(step))?;
        let term = medium.binary(Binary::Pow, place, minus)?;
        sum = medium.binary(Binary::Add, sum, term)?;
    }
    let last = medium.binary(Binary::Add, q, f32::from(TERMS))?;
    let power = medium.binary(Binary::Pow, last, minus)?;
    let below = medium.binary(Binary::Sub, s.clone(), 1.0_f32)?;
    let tail = medium.binary(Binary::Mul, power, last)?;
    let tail = medium.binary(Binary::RealDiv, tail, below)?;
    let half = medium.times(power, 0.5)?;
    sum = medium.binary(Binary::Add, sum, tail)?;
    sum = medium.binary(Binary::Add, sum, half)?;
    // s/12 · a⁻ˢ⁻¹ − s(s+1)(s+2)/720 · a⁻ˢ⁻³ + s(s+1)(s+2)(s+3)(s+4)/30240 · a⁻ˢ⁻⁵
    let mut factor = medium.binary(Binary::Mul, power, s.clone())?;
    factor = medium.binary(Binary::RealDiv, factor, last)?;
    for (index, bernoulli) in [1.0 / 12.0, -1.0 / 720.0, 1.0 / 30240.0].into_iter().enumerate() {
        if index > 0 {
            for step in [2 * index - 1, 2 * index] {
                let rising = medium.binary(Binary::Add, s.clone(), step as f32)?;
                factor = medium.binary(Binary::Mul, factor, rising)?;
                factor = medium.binary(Binary::RealDiv, factor, last)?;
            }
        }
        let term = medium.times(factor, bernoulli)?;
        sum = medium.binary(Binary::Add, sum, term)?;
    }
    Ok(sum)
}

/// `−x log x`: zero at zero, minus infinity below.
pub(crate) fn entropy<M: Medium>(medium: &mut M, x: M::Value) -> Result<M::Value, Refusal> {
    let log = medium.log(x)?;
    let product = medium.binary(Binary::Mul, x, log)?;
    let y = medium.times(product, -1.0)?;
    let zero = medium.binary(Binary::Equal, x, 0.0_f32)?;
    let y = medium.select(zero, 0.0_f32, y)?;
    let below = medium.binary(Binary::Less, x, 0.0_f32)?;
    medium.select(below, f32::NEG_INFINITY, y)
}

/// The share of a normal distribution below `x`.
pub(crate) fn normal_share<M: Medium>(medium: &mut M, x: M::Value) -> Result<M::Value, Refusal> {
    let inner = medium.times(x, std::f32::consts::FRAC_1_SQRT_2)?;
    let erf = medium.unary(Unary::Erf, inner)?;
    let sum = medium.binary(Binary::Add, erf, 1.0_f32)?;
    medium.times(sum, 0.5)
}

pub(crate) fn inverse_normal_share<M: Medium>(
    medium: &mut M,
    x: M::Value,
) -> Result<M::Value, Refusal> {
    let double = medium.times(x, 2.0)?;
    let inner = medium.binary(Binary::Sub, double, 1.0_f32)?;
    let y = inverse_erf(medium, inner)?;
    medium.times(y, std::f32::consts::SQRT_2)
}

/// Far below zero the share is less than the smallest number; its logarithm is found by a series.
pub(crate) fn log_normal_share<M: Medium>(
    medium: &mut M,
    x: M::Value,
) -> Result<M::Value, Refusal> {
    const HALF_LOG_TAU: f32 = 0.918_938_5;
    let share = normal_share(medium, x)?;
    let near = medium.log(share)?;
    let far = medium.binary(Binary::Minimum, x, -4.0_f32)?;
    let square = medium.unary(Unary::Square, far)?;
    let inverse = medium.reciprocal(square)?;
    let series = polynomial(medium, inverse, &[-945.0, 105.0, -15.0, 3.0, -1.0, 1.0])?;
    let series = medium.log(series)?;
    let magnitude = medium.times(far, -1.0)?;
    let log = medium.log(magnitude)?;
    let half = medium.times(square, -0.5)?;
    let tail = medium.binary(Binary::Sub, half, log)?;
    let tail = medium.binary(Binary::Sub, tail, HALF_LOG_TAU)?;
    let tail = medium.binary(Binary::Add, tail, series)?;
    let below = medium.binary(Binary::Less, x, -4.0_f32)?;
    medium.select(below, tail, near)
}

/// A modified Bessel function of the first kind, after Abramowitz and Stegun 9.8.1 to 9.8.4.
pub(crate) struct Bessel {
    /// Of the square of x / 3.75, up to there.
    near: [f32; 7],
    /// Of 3.75 / x, beyond.
    far: [f32; 9],
    odd: bool,
}

pub(crate) const ORDER_0: Bessel = Bessel {
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

pub(crate) const ORDER_1: Bessel = Bessel {
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

pub(crate) fn bessel<M: Medium>(
    medium: &mut M,
    x: M::Value,
    of: &Bessel,
    scaled: bool,
) -> Result<M::Value, Refusal> {
    const BORDER: f32 = 3.75;
    let magnitude = medium.unary(Unary::Abs, x)?;
    let inner = medium.binary(Binary::Minimum, magnitude, BORDER)?;
    let share = medium.times(inner, 1.0 / BORDER)?;
    let square = medium.unary(Unary::Square, share)?;
    let mut near = polynomial(medium, square, &of.near)?;
    if of.odd {
        near = medium.binary(Binary::Mul, near, inner)?;
    }
    let outer = medium.binary(Binary::Maximum, magnitude, BORDER)?;
    let share = medium.binary(Binary::RealDiv, BORDER, outer)?;
    let far = polynomial(medium, share, &of.far)?;
    let root = medium.rsqrt(outer)?;
    let mut far = medium.binary(Binary::Mul, far, root)?;
    if scaled {
        let minus = medium.times(inner, -1.0)?;
        let decay = medium.unary(Unary::Exp, minus)?;
        near = medium.binary(Binary::Mul, near, decay)?;
    } else {
        let growth = medium.unary(Unary::Exp, outer)?;
        far = medium.binary(Binary::Mul, far, growth)?;
    }
    let is_near = medium.binary(Binary::Less, magnitude, BORDER)?;
    let y = medium.select(is_near, near, far)?;
    if of.odd {
        let sign = medium.unary(Unary::Sign, x)?;
        return medium.binary(Binary::Mul, y, sign);
    }
    Ok(y)
}

/// The sum of the logarithms of `p` gamma functions, half a step from each other.
pub(crate) fn multivariate_log_gamma<M: Medium>(
    medium: &mut M,
    x: M::Value,
    p: i64,
) -> Result<M::Value, Refusal> {
    if !(1..=64).contains(&p) {
        refuse!("`p` is {p}; 1 to 64 are accepted");
    }
    let mut sum = log_gamma(medium, x)?;
    for step in 1..p {
        let place = medium.binary(Binary::Sub, x, step as f32 / 2.0)?;
        let term = log_gamma(medium, place)?;
        sum = medium.binary(Binary::Add, sum, term)?;
    }
    let constant = (p * (p - 1)) as f64 / 4.0 * std::f64::consts::PI.ln();
    medium.binary(Binary::Add, sum, constant as f32)
}

/// The derivative of that order of `digamma`.
pub(crate) fn polygamma<M: Medium>(
    medium: &mut M,
    x: M::Value,
    order: i64,
) -> Result<M::Value, Refusal> {
    match order {
        0 => digamma(medium, x),
        1..=20 => {
            let sum = zeta(medium, (order as f32 + 1.0).into(), x)?;
            let factorial: f64 = (1..=order).map(|factor| factor as f64).product();
            let sign = if order % 2 == 0 { -1.0 } else { 1.0 };
            medium.times(sum, (sign * factorial) as f32)
        }
        _ => refuse!("`polygamma` is lowered for orders 0 to 20, found {order}"),
    }
}
