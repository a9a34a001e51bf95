//! Special functions by series and rational approximations; neither Core ML nor ExecuTorch has them.

use crate::decompose::prelude::*;

pub(crate) const ROWS: &[Row] = &[
    by(|call| mapped(call, inverse_erf), &["aten.erfinv", "aten.special_erfinv"]),
    by(|call| mapped(call, erf_complement), &["aten.erfc", "aten.special_erfc"]),
    by(|call| mapped(call, scaled_erf_complement), &["aten.special_erfcx"]),
    by(|call| mapped(call, log_gamma), &["aten.lgamma", "aten.special_gammaln"]),
    by(several_gammas, &["aten.mvlgamma", "aten.special_multigammaln"]),
    by(|call| mapped(call, digamma), &["aten.digamma", "aten.special_digamma", "aten.special_psi"]),
    by(derivative, &["aten.polygamma", "aten.special_polygamma"]),
    by(zeta_of_tensors, &["aten.special_zeta.default"]),
    by(
        |call| mapped(call, bessel_0),
        &["aten.i0", "aten.special_i0", "aten.special_modified_bessel_i0"],
    ),
    by(
        |call| mapped(call, |call, x| bessel(call, x, &ORDER_1, false)),
        &["aten.special_i1", "aten.special_modified_bessel_i1"],
    ),
    by(|call| mapped(call, |call, x| bessel(call, x, &ORDER_0, true)), &["aten.special_i0e"]),
    by(|call| mapped(call, |call, x| bessel(call, x, &ORDER_1, true)), &["aten.special_i1e"]),
    formula(
        "where(self < 0, -inf, where(self == 0, 0, -(self * log(self))))",
        &["aten.special_entr"],
    ),
    // The quotient cancels near 0.
    formula(
        "q = x * x; series = 1 + q * (q * (q * -0.000198412698 + 0.00833333333) - 0.166666667); \
         where(abs(x) < 0.5, series, where(abs(x) == inf, 0, sin(x) / x))",
        &["aten.special_spherical_bessel_j0"],
    ),
    // Normal distribution function.
    by(|call| mapped(call, normal_share), &["aten.special_ndtr"]),
    by(|call| mapped(call, inverse_normal_share), &["aten.special_ndtri"]),
    by(|call| mapped(call, log_normal_share), &["aten.special_log_ndtr"]),
];

/// fp16 is too imprecise for series.
fn computed_in(dtype: ScalarType) -> ScalarType {
    if is_half(dtype) { ScalarType::Float32 } else { dtype }
}

/// Applies a function to the operand in sufficient precision, and casts to the type of the result.
fn mapped<'a>(call: &mut Call<'a>, f: impl Fn(&mut Call<'a>, &Tensor) -> TensorResult) -> Results {
    let dtype = call.result(0)?.dtype;
    let x = call.tensor_as("self", computed_in(dtype))?;
    let y = f(call, &x)?;
    one(call.cast(&y, dtype)?)
}

/// Evaluates a polynomial, highest power first.
fn polynomial(call: &mut Call<'_>, x: &Tensor, coefficients: &[f32]) -> TensorResult {
    let [first, second, rest @ ..] = coefficients else {
        refuse!("a polynomial with {} coefficients is not supported", coefficients.len());
    };
    let (first, second) = (f64::from(*first), f64::from(*second));
    let mut sum = calc!(call, "x * first + second", x, first, second)?;
    for &next in rest {
        let next = f64::from(next);
        sum = calc!(call, "sum * x + next", sum, x, next)?;
    }
    Ok(sum)
}

/// M. Giles, "Approximating the erfinv function": one polynomial for the center, one for the tails.
fn inverse_erf(call: &mut Call<'_>, x: &Tensor) -> TensorResult {
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
    let depth = calc!(call, "-log((1 - x) * (x + 1))", x)?;
    let near = calc!(call, "depth - 2.5", depth)?;
    let near = polynomial(call, &near, &MIDDLE)?;
    let far = calc!(call, "sqrt(depth) - 3", depth)?;
    let far = polynomial(call, &far, &TAILS)?;
    // The polynomials do not reach infinity at both ends.
    let formula = "where(abs(x) == 1, x * inf, where(depth < 5, near, far) * x)";
    calc!(call, formula, x, depth, near, far)
}

/// exp(z²) erfc(z) for z ≥ 0. W. H. Press et al., "Numerical Recipes", section 6.2; relative error 1.2e-7.
fn erf_ratio(call: &mut Call<'_>, z: &Tensor) -> TensorResult {
    const LOGARITHM: [f32; 10] = [
        0.170_872_77,
        -0.822_152_23,
        1.488_515_87,
        -1.135_203_98,
        0.278_868_07,
        -0.186_288_06,
        0.096_784_18,
        0.374_091_96,
        1.000_023_68,
        -1.265_512_23,
    ];
    let t = calc!(call, "1 / (z * 0.5 + 1)", z)?;
    let power = polynomial(call, &t, &LOGARITHM)?;
    calc!(call, "t * exp(power)", t, power)
}

/// erfc(x), computed directly because 1 - erf(x) cancels if erf(x) rounds to 1.
fn erf_complement(call: &mut Call<'_>, x: &Tensor) -> TensorResult {
    call.frame.exact = true;
    let z = call.map("abs", x)?;
    let ratio = erf_ratio(call, &z)?;
    let formula = "right = ratio * exp(-(z * z)); where(x < 0, 2 - right, right)";
    calc!(call, formula, x, z, ratio)
}

/// Scaled complement exp(x²) erfc(x).
fn scaled_erf_complement(call: &mut Call<'_>, x: &Tensor) -> TensorResult {
    call.frame.exact = true;
    let z = call.map("abs", x)?;
    let ratio = erf_ratio(call, &z)?;
    calc!(call, "where(x < 0, exp(z * z) * 2 - ratio, ratio)", x, z, ratio)
}

/// log Γ(x). Eight recurrence steps shift the argument to where Stirling's series has single precision. Arguments
/// below ½ use the reflection formula.
fn log_gamma(call: &mut Call<'_>, x: &Tensor) -> TensorResult {
    // Terms of the series are too large for fp16.
    call.frame.exact = true;
    let small = calc!(call, "x < 0.5", x)?;
    let z = calc!(call, "where(small, 1 - x, x)", small, x)?;
    let mut product = z.clone();
    for step in 1..8i64 {
        product = calc!(call, "product * (z + step)", product, z, step)?;
    }
    // Large arguments are not shifted, as the product would overflow.
    let large = calc!(call, "z > 8", z)?;
    let lifted = calc!(call, "where(large, z, z + 8)", large, z)?;
    let inverse = calc!(call, "1 / lifted", lifted)?;
    let square = call.multiply(&inverse, &inverse)?;
    let series = polynomial(call, &square, &[1.0 / 1260.0, -1.0 / 360.0, 1.0 / 12.0])?;
    // (z − ½)(log z − 1) keeps more digits than (z − ½) log z − z. The reflection uses the distance to the nearest
    // integer, which is exact near all poles, also for negative x near zero.
    let formula = "upper = (lifted - 0.5) * (log(lifted) - 1) + series * inverse + 0.4189385332046727 \
                   - log(where(large, 1, product)); \
                   sine = sin((x - round(x)) * pi); \
                   where(small, log(pi) - log(abs(sine)) - upper, upper)";
    calc!(call, formula, x, small, large, product, lifted, series, inverse)
}

/// Digamma: eight recurrence steps, then the asymptotic series; reflected below ½.
fn digamma(call: &mut Call<'_>, x: &Tensor) -> TensorResult {
    call.frame.exact = true;
    let small = calc!(call, "x < 0.5", x)?;
    let z = calc!(call, "where(small, 1 - x, x)", small, x)?;
    let mut steps = calc!(call, "1 / z", z)?;
    for step in 1..8i64 {
        steps = calc!(call, "steps + 1 / (z + step)", steps, z, step)?;
    }
    let lifted = calc!(call, "z + 8", z)?;
    let inverse = calc!(call, "1 / lifted", lifted)?;
    let square = call.multiply(&inverse, &inverse)?;
    let series = polynomial(call, &square, &[-1.0 / 252.0, 1.0 / 120.0, -1.0 / 12.0])?;
    // π / tan(π x) of the distance to the nearest integer, which is a pole.
    let formula = "upper = log(lifted) - inverse * 0.5 + series * square - steps; rest = x - round(x); \
                   lower = where(rest == 0, nan, upper - pi / tan(rest * pi)); \
                   where(x == 0, -inf, where(small, lower, upper))";
    calc!(call, formula, x, small, lifted, inverse, series, square, steps)
}

/// Hurwitz zeta function ζ(s, q): the first terms, then the Euler-Maclaurin formula for the rest.
fn zeta(call: &mut Call<'_>, s: &Tensor, q: &Tensor) -> TensorResult {
    const TERMS: i64 = 9;
    // Powers leave the range of fp16.
    call.frame.exact = true;
    let minus = call.map("neg", s)?;
    let mut sum = calc!(call, "q ^ minus", q, minus)?;
    for step in 1..TERMS {
        sum = calc!(call, "sum + (q + step) ^ minus", sum, q, step, minus)?;
    }
    let terms = TERMS;
    let last = calc!(call, "q + terms", q, terms)?;
    let power = calc!(call, "last ^ minus", last, minus)?;
    // The integral has a power of its own, because `power` underflows earlier.
    let formula = "sum + last ^ (minus + 1) / (s - 1) + power * 0.5";
    sum = calc!(call, formula, sum, power, last, s, minus)?;
    // s/12 · a⁻ˢ⁻¹ − s(s+1)(s+2)/720 · a⁻ˢ⁻³ + s(s+1)(s+2)(s+3)(s+4)/30240 · a⁻ˢ⁻⁵
    let mut factor = calc!(call, "power * s / last", power, s, last)?;
    for (index, bernoulli) in [1.0 / 12.0, -1.0 / 720.0, 1.0 / 30240.0].into_iter().enumerate() {
        if index > 0 {
            for step in [2 * index as i64 - 1, 2 * index as i64] {
                factor = calc!(call, "factor * (s + step) / last", factor, s, step, last)?;
            }
        }
        sum = calc!(call, "sum + factor * bernoulli", sum, factor, bernoulli)?;
    }
    Ok(sum)
}

fn zeta_of_tensors(call: &mut Call<'_>) -> Results {
    let dtype = call.result(0)?.dtype;
    let s = call.tensor_as("self", computed_in(dtype))?;
    let q = call.tensor_as("other", computed_in(dtype))?;
    let y = zeta(call, &s, &q)?;
    // The formula requires that `q` plus the number of terms is well above 0.
    let y = calc!(call, "where(q < -4, nan, y)", q, y)?;
    one(call.cast(&y, dtype)?)
}

/// Inverse of the normal distribution function. M. Wichura, "Algorithm AS 241", PPND7: relative error 1e-7.
fn inverse_normal_share(call: &mut Call<'_>, x: &Tensor) -> TensorResult {
    /// Numerator and denominator of a rational approximation.
    type Rational = ([f32; 4], &'static [f32]);
    const CENTER: Rational =
        ([59.109_375, 159.291_13, 50.434_27, 3.387_132_7], &[67.187_56, 78.757_76, 17.895_17, 1.0]);
    const TAIL: Rational =
        ([0.170_238_21, 1.306_728_5, 2.756_815_4, 1.423_437_3], &[0.120_211_33, 0.737_001_64, 1.0]);
    const FAR_TAIL: Rational = (
        [0.017_337_204, 0.428_682_95, 3.081_226_4, 6.657_905],
        &[0.012_258_203, 0.241_978_94, 1.0],
    );
    fn ratio(call: &mut Call<'_>, x: &Tensor, (upper, lower): Rational) -> TensorResult {
        let (upper, lower) = (polynomial(call, x, &upper)?, polynomial(call, x, lower)?);
        calc!(call, "upper / lower", upper, lower)
    }
    call.frame.exact = true;
    let offset = calc!(call, "x - 0.5", x)?;
    let inner = calc!(call, "0.180625 - offset * offset", offset)?;
    let center = ratio(call, &inner, CENTER)?;
    let depth = calc!(call, "sqrt(-log(where(offset < 0, x, 1 - x)))", x, offset)?;
    let near = calc!(call, "depth - 1.6", depth)?;
    let near = ratio(call, &near, TAIL)?;
    let far = calc!(call, "depth - 5", depth)?;
    let far = ratio(call, &far, FAR_TAIL)?;
    let formula = "tail = where(depth < 5, near, far); \
                   y = where(abs(offset) <= 0.425, offset * center, where(offset < 0, -tail, tail)); \
                   where(x == 0, -inf, where(x == 1, inf, y))";
    calc!(call, formula, x, offset, center, depth, near, far)
}

fn normal_share(call: &mut Call<'_>, x: &Tensor) -> TensorResult {
    let y = calc!(call, "x * -0.7071067811865476", x)?;
    let y = erf_complement(call, &y)?;
    call.times(&y, 0.5)
}

/// Logarithm of the normal distribution function. Far below zero the function underflows, so the exponential is
/// taken out analytically.
fn log_normal_share(call: &mut Call<'_>, x: &Tensor) -> TensorResult {
    call.frame.exact = true;
    let depth = calc!(call, "abs(x) * 0.7071067811865476", x)?;
    let ratio = erf_ratio(call, &depth)?;
    let formula = "share = ratio * 0.5; gone = exp(-(depth * depth)) * share; \
                   where(x < 0, log(share) - depth * depth, log1p(-gone))";
    calc!(call, formula, x, depth, ratio)
}

/// Modified Bessel function of the first kind, after Abramowitz and Stegun 9.8.1 to 9.8.4.
struct Bessel {
    /// Polynomial in (x / 3.75)² for |x| up to 3.75.
    near: [f32; 7],
    /// Polynomial in 3.75 / x beyond.
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

/// Modified Bessel function of order 0.
pub(super) fn bessel_0(call: &mut Call<'_>, x: &Tensor) -> TensorResult {
    bessel(call, x, &ORDER_0, false)
}

fn bessel(call: &mut Call<'_>, x: &Tensor, of: &Bessel, scaled: bool) -> TensorResult {
    let size = call.map("abs", x)?;
    let inner = calc!(call, "min(size, 3.75)", size)?;
    let square = calc!(call, "square(inner * (1 / 3.75))", inner)?;
    let near = polynomial(call, &square, &of.near)?;
    let outer = calc!(call, "max(size, 3.75)", size)?;
    let share = calc!(call, "3.75 / outer", outer)?;
    let far = polynomial(call, &share, &of.far)?;
    let odd = of.odd;
    let formula = "close = where(odd, near * inner, near); beyond = far * rsqrt(outer); \
                   y = where(size < 3.75, where(scaled, close * exp(-inner), close), \
                   where(scaled, beyond, beyond * exp(outer))); where(odd, y * sign(x), y)";
    calc!(call, formula, x, size, near, far, inner, outer, odd, scaled)
}

/// Multivariate log-gamma: the sum of `p` log-gamma functions, spaced by ½.
fn several_gammas(call: &mut Call<'_>) -> Results {
    let p = call.int("p")?;
    if !(1..=64).contains(&p) {
        refuse!("`p` must be from 1 to 64, got {p}");
    }
    mapped(call, |call, x| {
        let mut sum = log_gamma(call, x)?;
        for step in 1..p {
            let place = calc!(call, "x - step / 2", x, step)?;
            let term = log_gamma(call, &place)?;
            sum = call.add(&sum, &term)?;
        }
        call.add_number(&sum, (p * (p - 1)) as f64 / 4.0 * std::f64::consts::PI.ln())
    })
}

/// Polygamma: derivative of `digamma` of order `n`.
fn derivative(call: &mut Call<'_>) -> Results {
    let order = call.int("n")?;
    mapped(call, |call, x| match order {
        0 => digamma(call, x),
        1..=20 => {
            call.frame.exact = true;
            let negative = calc!(call, "x < 0", x)?;
            let z = calc!(call, "where(negative, 1 - x, x)", negative, x)?;
            let s = call.number_beside(coremill_pt2::Argument::Float(order as f64 + 1.0), x)?;
            let sum = zeta(call, &s, &z)?;
            let factorial: f64 = (1..=order).map(|factor| factor as f64).product();
            let size = call.times(&sum, factorial)?;
            // ψₙ(x) = (−1)ⁿ ψₙ(1 − x) − π dⁿ/dxⁿ cot(π x), where the sign of ψₙ(1 − x) is (−1)ⁿ⁺¹.
            let cotangent = calc!(call, "1 / tan((x - round(x)) * pi)", x)?;
            let slope = polynomial(call, &cotangent, &cotangent_derivative(order))?;
            let even = order % 2 == 0;
            let formula = "where(negative, -size - slope, where(even, -size, size))";
            calc!(call, formula, negative, size, slope, even)
        }
        _ => refuse!("the order of `polygamma` must be from 0 to 20, got {order}"),
    })
}

/// π dⁿ/dxⁿ cot(π x) as a polynomial in cot(π x), highest power first.
fn cotangent_derivative(order: i64) -> Vec<f32> {
    use std::f64::consts::PI;
    let mut factors = vec![0.0, PI];
    for _ in 0..order {
        // The derivative of cot(π x) is −π (1 + cot²(π x)): each slope is added to two powers.
        let terms = factors.iter().enumerate().skip(1);
        let slopes: Vec<f64> = terms.map(|(power, factor)| -PI * power as f64 * factor).collect();
        let low = slopes.iter().copied().chain([0.0, 0.0]);
        let high = [0.0, 0.0].into_iter().chain(slopes.iter().copied());
        factors = low.zip(high).map(|(low, high)| low + high).collect();
    }
    factors.iter().rev().map(|&factor| factor as f32).collect()
}
