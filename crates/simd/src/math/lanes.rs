//! Functions of vectors, for kernels to call between a load and a store.
//!
//! The polynomials are minimax approximations on their intervals, with rounded coefficients. The result for
//! NaN is NaN.

use crate::vector::{MAX_LANES, Vector};

const LN_2: f32 = std::f32::consts::LN_2;
/// The upper bits of ln 2, few enough that products with exponents are exact, and the remaining bits.
const LN_2_HIGH: f32 = 0.693_359_4;
const LN_2_LOW: f32 = -2.121_944_4e-4;

/// Evaluates a polynomial; coefficients start with the highest power.
#[inline(always)]
fn polynomial<V: Vector, const N: usize>(x: V, coefficients: [f32; N]) -> V {
    let mut sum = V::splat(coefficients[0]);
    for coefficient in &coefficients[1..] {
        sum = sum.mul_add(x, V::splat(*coefficient));
    }
    sum
}

/// Decomposes `x = n · ln 2 + r` with an integer `n` and `|r| ≤ ln 2 / 2`.
#[inline(always)]
fn split_by_ln_2<V: Vector>(x: V) -> (V, V) {
    let n = x.mul(V::splat(std::f32::consts::LOG2_E)).round();
    let r = n.neg_mul_add(V::splat(LN_2_HIGH), x);
    (n, n.neg_mul_add(V::splat(LN_2_LOW), r))
}

/// `e^r` for `|r| ≤ ln 2 / 2`.
#[inline(always)]
fn exp_of_small<V: Vector>(r: V) -> V {
    let q = polynomial(r, [1.393_851_6e-3, 8.368_813e-3, 4.166_642_6e-2, 1.666_652e-1, 0.5]);
    r.mul(r).mul_add(q, r).add(V::splat(1.0))
}

/// `e^x` within 1.1 ulp. Overflows to infinity, and underflows gradually to zero.
#[inline(always)]
pub fn exp<V: Vector>(x: V) -> V {
    // From here on the result is infinity.
    exp_up_to(x, 89.0)
}

/// `e^x`, or `e^most` if `x` is greater.
#[inline(always)]
fn exp_up_to<V: Vector>(x: V, most: f32) -> V {
    // Below the lower bound the result is zero; within the bounds the exponent is valid for `scale`. The order
    // of the operands preserves NaN.
    let x = V::splat(-104.0).max(V::splat(most).min(x));
    let (n, r) = split_by_ln_2(x);
    exp_of_small(r).scale(n)
}

/// `2^x` within 1.5 ulp.
#[inline(always)]
pub fn exp2<V: Vector>(x: V) -> V {
    let x = V::splat(-151.0).max(V::splat(129.0).min(x));
    let n = x.round();
    exp_of_small(x.sub(n).mul(V::splat(LN_2))).scale(n)
}

/// `e^x - 1` within 2 ulp.
#[inline(always)]
pub fn exp_minus_one<V: Vector>(x: V) -> V {
    let x_clamped = V::splat(-18.0).max(V::splat(89.0).min(x));
    let (n, r) = split_by_ln_2(x_clamped);
    let q = polynomial(
        r,
        [1.975_991_3e-4, 1.393_231_8e-3, 8.333_548e-3, 4.166_649_3e-2, 1.666_666_6e-1, 0.5],
    );
    let small = r.mul(r).mul_add(q, r);
    // Use half of the power of two, because the power itself may overflow.
    let power = V::splat(0.5).scale(n);
    let large = small.mul_add(power, power.sub(V::splat(0.5)));
    V::select(n.equal(V::zero()), small, large.add(large))
}

/// Natural logarithm within 1 ulp. The result for zero is minus infinity, and NaN for negative numbers.
#[inline(always)]
pub fn log<V: Vector>(x: V) -> V {
    let subnormal = x.less(V::splat(f32::MIN_POSITIVE));
    let normal = V::select(subnormal, x.mul(V::splat(8_388_608.0)), x);
    let below_one = V::bits(std::f32::consts::FRAC_1_SQRT_2.to_bits());
    let offset = V::bits_sub(normal.to_bits(), below_one);
    let exponent = V::from_int(V::bits_right_signed::<23>(offset));
    let exponent = exponent.sub(V::select(subnormal, V::splat(23.0), V::zero()));
    let mantissa = V::bits_add(V::bits_and(offset, V::bits(0x007f_ffff)), below_one);
    let f = V::from_bits(mantissa).sub(V::splat(1.0));
    let square = f.mul(f);
    let p = polynomial(
        f,
        [
            6.749_540_6e-2,
            -1.167_018_3e-1,
            1.188_347_1e-1,
            -1.240_620_8e-1,
            1.422_036_3e-1,
            -1.666_799e-1,
            2.000_207_2e-1,
            -2.500_001e-1,
            3.333_331_3e-1,
        ],
    );
    let small = square.mul(f).mul(p);
    let small = exponent.mul_add(V::splat(LN_2_LOW), small);
    let small = square.neg_mul_add(V::splat(0.5), small);
    let result = exponent.mul_add(V::splat(LN_2_HIGH), f.add(small));
    let result = V::select(x.equal(V::splat(f32::INFINITY)), x, result);
    let result = V::select(x.equal(V::zero()), V::splat(f32::NEG_INFINITY), result);
    V::select(V::zero().less_equal(x), result, V::splat(f32::NAN))
}

/// `log(1 + x)` for `x` from 0 to 1, within 2 ulp.
#[inline(always)]
fn log_of_one_plus<V: Vector>(x: V) -> V {
    let sum = V::splat(1.0).add(x);
    let lost = x.sub(sum.sub(V::splat(1.0)));
    log(sum).add(lost.div(sum))
}

/// Hyperbolic tangent within 2 ulp.
#[inline(always)]
pub fn tanh<V: Vector>(x: V) -> V {
    let magnitude = x.abs();
    let square = x.mul(x);
    let p = polynomial(
        square,
        [-5.665_714e-3, 2.060_487_1e-2, -5.372_953e-2, 1.333_132_4e-1, -3.333_327_8e-1],
    );
    let small = square.mul(p).mul_add(x, x);
    let power = exp(magnitude.add(magnitude));
    let large = V::splat(1.0).sub(V::splat(2.0).div(power.add(V::splat(1.0))));
    V::select(magnitude.less(V::splat(0.625)), small, large.with_sign_of(x))
}

/// `1 / (1 + e^-x)` within 3 ulp.
#[inline(always)]
pub fn sigmoid<V: Vector>(x: V) -> V {
    // From 20 on the result is 1, and the power is far from infinity.
    let power = exp_up_to(x, 20.0);
    power.div(power.add(V::splat(1.0)))
}

/// `x · sigmoid(x)` within 4 ulp or 1e-43.
#[inline(always)]
pub fn silu<V: Vector>(x: V) -> V {
    x.mul(sigmoid(x))
}

#[inline(always)]
fn erf_of_small<V: Vector>(x: V) -> V {
    let p = polynomial(
        x.mul(x),
        [
            7.996_65e-5,
            -8.049_769_7e-4,
            5.192_405e-3,
            -2.685_573_1e-2,
            1.128_362_6e-1,
            -3.761_263e-1,
            1.283_791_7e-1,
        ],
    );
    x.mul_add(p, x)
}

/// Upper bound of the interval for the first approximation of `erf`.
const ERF_SMALL: f32 = 0.925;

/// Error function within 2 ulp.
#[inline(always)]
pub fn erf<V: Vector>(x: V) -> V {
    let magnitude = x.abs();
    // For 4 and above the result is 1.
    let t = V::splat(4.0).min(magnitude);
    let log_of_rest = polynomial(
        t,
        [
            -2.083_467_7e-5,
            4.314_478e-4,
            -4.156_452_6e-3,
            2.508_099_4e-2,
            -1.082_207_86e-1,
            -6.334_006e-1,
            -1.129_488_5,
            1.692_090_7e-4,
        ],
    );
    let large = V::splat(1.0).sub(exp(log_of_rest)).with_sign_of(x);
    V::select(magnitude.less(V::splat(ERF_SMALL)), erf_of_small(x), large)
}

/// `x · Φ(x)`. The error is at most the larger of 1e-7 and 4e-7 times the magnitude of the result.
#[inline(always)]
pub fn gelu<V: Vector>(x: V) -> V {
    let z = x.mul(V::splat(std::f32::consts::FRAC_1_SQRT_2));
    let magnitude = z.abs();
    let t = V::splat(5.5).min(magnitude);
    let log_of_rest = polynomial(
        t,
        [
            -7.374_775e-7,
            -1.130_763_85e-5,
            3.788_149_6e-4,
            -3.993_967e-3,
            2.477_424_4e-2,
            -1.078_579_2e-1,
            -6.336_635e-1,
            -1.129_381_8,
            1.506_150_3e-4,
        ],
    );
    let half = V::splat(0.5);
    let rest = exp(log_of_rest).mul(half);
    let rest = V::select(V::splat(5.5).less(magnitude), V::zero(), rest);
    let large = V::select(z.less(V::zero()), rest, V::splat(1.0).sub(rest));
    let small = half.mul_add(erf_of_small(z), half);
    x.mul(V::select(magnitude.less(V::splat(ERF_SMALL)), small, large))
}

/// The `tanh` approximation of `gelu`: `x · (1 + tanh(√(2/π) · (x + 0.044715 · x³))) / 2`.
#[inline(always)]
pub fn gelu_tanh<V: Vector>(x: V) -> V {
    // (1 + tanh u) / 2 is sigmoid(2u).
    const TWICE_ROOT: f32 = 1.595_769;
    let cubic = x.mul(x).mul_add(V::splat(0.044_715 * TWICE_ROOT), V::splat(TWICE_ROOT));
    x.mul(sigmoid(x.mul(cubic)))
}

/// The sigmoid approximation of `gelu`: `x · sigmoid(1.702 · x)`.
#[inline(always)]
pub fn gelu_sigmoid<V: Vector>(x: V) -> V {
    x.mul(sigmoid(x.mul(V::splat(1.702))))
}

/// `log(1 + e^x)` within 3 ulp.
#[inline(always)]
pub fn softplus<V: Vector>(x: V) -> V {
    x.max(V::zero()).add(log_of_one_plus(exp(x.abs().neg())))
}

/// `x` if it is positive, else `alpha · (e^x - 1)`.
#[inline(always)]
pub fn elu<V: Vector>(x: V, alpha: V) -> V {
    V::select(V::zero().less(x), x, alpha.mul(exp_minus_one(x)))
}

/// Maximum magnitude for which the reduction of an angle in single precision is accurate enough.
const MAX_RADIANS: f32 = 8192.0;

/// Decomposes `x = n · π/2 + r` with an integer `n` and `|r| ≤ π/4`.
#[inline(always)]
fn split_by_quarter_turns<V: Vector>(x: V) -> (V::Bits, V) {
    let n = x.mul(V::splat(std::f32::consts::FRAC_2_PI)).round();
    // π/2 is split into parts with few bits, so that products with `n` are exact.
    let r = n.neg_mul_add(V::splat(QUARTER[0]), x);
    let r = n.neg_mul_add(V::splat(QUARTER[1]), r);
    let r = n.neg_mul_add(V::splat(QUARTER[2]), r);
    (n.to_int(), n.neg_mul_add(V::splat(QUARTER[3]), r))
}

const QUARTER: [f32; 4] = [1.570_312_5, 4.837_513e-4, 7.549_533_6e-8, 2.563_344e-12];

#[inline(always)]
fn sin_or_cos<V: Vector>(quarters: V::Bits, r: V) -> V {
    let square = r.mul(r);
    let p = polynomial(square, [-1.951_829e-4, 8.332_189e-3, -1.666_665_5e-1]);
    let sin = square.mul(p).mul_add(r, r);
    let p = polynomial(square, [2.443_256_7e-5, -1.388_731_1e-3, 4.166_664_6e-2]);
    let cos = square.mul(square).mul_add(p, square.neg_mul_add(V::splat(0.5), V::splat(1.0)));
    let odd = V::bits_equal(V::bits_and(quarters, V::bits(1)), V::bits(1));
    let sign = V::bits_left::<30>(V::bits_and(quarters, V::bits(2)));
    V::from_bits(V::bits_xor(V::select(odd, cos, sin).to_bits(), sign))
}

/// Sine within 2.5 ulp.
#[inline(always)]
pub fn sin<V: Vector>(x: V) -> V {
    if V::any(V::splat(MAX_RADIANS).less(x.abs())) {
        return each_lane(x, f32::sin);
    }
    let (quarters, r) = split_by_quarter_turns(x);
    sin_or_cos(quarters, r)
}

/// Cosine within 2.5 ulp.
#[inline(always)]
pub fn cos<V: Vector>(x: V) -> V {
    if V::any(V::splat(MAX_RADIANS).less(x.abs())) {
        return each_lane(x, f32::cos);
    }
    let (quarters, r) = split_by_quarter_turns(x);
    sin_or_cos(V::bits_add(quarters, V::bits(1)), r)
}

/// `1 / √x` within 1.5 ulp.
#[inline(always)]
pub fn rsqrt<V: Vector>(x: V) -> V {
    V::splat(1.0).div(x.sqrt())
}

/// `1 / x`.
#[inline(always)]
pub fn reciprocal<V: Vector>(x: V) -> V {
    V::splat(1.0).div(x)
}

/// `x` if it is positive or NaN, else zero.
#[inline(always)]
pub fn relu<V: Vector>(x: V) -> V {
    V::zero().max(x)
}

/// `x · x`.
#[inline(always)]
pub fn square<V: Vector>(x: V) -> V {
    x.mul(x)
}

/// `x / (1 + |x|)`.
#[inline(always)]
pub fn softsign<V: Vector>(x: V) -> V {
    x.div(x.abs().add(V::splat(1.0)))
}

/// -1, 0 or 1; zeros keep their sign.
#[inline(always)]
pub fn sign<V: Vector>(x: V) -> V {
    let one = V::splat(1.0).with_sign_of(x);
    V::select(V::either(x.equal(V::zero()), x.is_nan()), x, one)
}

/// Applies a scalar function to each lane, for rare cases.
#[inline(always)]
pub fn each_lane<V: Vector>(x: V, function: impl Fn(f32) -> f32) -> V {
    let mut lanes = to_lanes(x);
    for lane in &mut lanes[..V::LANES] {
        *lane = function(*lane);
    }
    from_lanes(&lanes)
}

#[inline(always)]
fn to_lanes<V: Vector>(x: V) -> [f32; MAX_LANES] {
    let mut lanes = [0.0; MAX_LANES];
    // SAFETY: the array has at least as many elements as a vector has lanes.
    unsafe {
        x.store(lanes.as_mut_ptr());
    }
    lanes
}

#[inline(always)]
fn from_lanes<V: Vector>(lanes: &[f32; MAX_LANES]) -> V {
    // SAFETY: the array has at least as many elements as a vector has lanes.
    unsafe { V::load(lanes.as_ptr()) }
}

/// `x^y` with the semantics of C's `pow`, within 1 ulp.
#[inline(always)]
pub fn pow<V: Vector>(x: V, y: V) -> V {
    let mut result = to_lanes(x);
    let exponents = to_lanes(y);
    for (x, y) in result[..V::LANES].iter_mut().zip(&exponents) {
        *x = pow_lane(*x, *y);
    }
    from_lanes(&result)
}

/// `x^y` computed by logarithms in double precision, without branches, so that loops over it vectorize.
#[inline(always)]
fn pow_lane(x: f32, y: f32) -> f32 {
    // Adding this number shifts out the bits of a fraction.
    const SHIFTER: f64 = 6_755_399_441_055_744.0;
    const MANTISSA: u64 = 0x000f_ffff_ffff_ffff;
    let magnitude = x.abs();
    let exponent = f64::from(y);

    // log2: the mantissa, between √½ and √2, is evaluated by the series of artanh.
    let below_one = std::f64::consts::FRAC_1_SQRT_2.to_bits();
    let offset = f64::from(magnitude).to_bits().wrapping_sub(below_one);
    // An arithmetic shift by 52, and a conversion to a double through its mantissa.
    let biased = offset.wrapping_add(1 << 62) >> 52;
    let power = f64::from_bits(biased | 0x4330_0000_0000_0000) - (4_503_599_627_370_496.0 + 1024.0);
    let mantissa = f64::from_bits((offset & MANTISSA).wrapping_add(below_one));
    let s = (mantissa - 1.0) / (mantissa + 1.0);
    let square = s * s;
    let mut series = 1.0 / 15.0;
    for odd in [13.0, 11.0, 9.0, 7.0, 5.0, 3.0, 1.0] {
        series = series * square + 1.0 / odd;
    }
    let log = power + series * s * (2.0 * std::f64::consts::LOG2_E);

    let product = exponent * log;
    let product = if product < -200.0 { -200.0 } else { product };
    let product = if product > 200.0 { 200.0 } else { product };
    let shifted = product + SHIFTER;
    let whole = shifted - SHIFTER;
    let r = (product - whole) * std::f64::consts::LN_2;
    let mut sum = 1.0 / 3_628_800.0;
    for inverse in [
        1.0 / 362_880.0,
        1.0 / 40_320.0,
        1.0 / 5_040.0,
        1.0 / 720.0,
        1.0 / 120.0,
        1.0 / 24.0,
        1.0 / 6.0,
        0.5,
        1.0,
        1.0,
    ] {
        sum = sum * r + inverse;
    }
    let scale =
        f64::from_bits(shifted.to_bits().wrapping_sub(SHIFTER.to_bits()).wrapping_add(1023) << 52);
    let result = (sum * scale) as f32;

    let huge_exponent = y.abs() >= 16_777_216.0;
    let whole = (exponent + SHIFTER) - SHIFTER == exponent || huge_exponent;
    let half = exponent * 0.5;
    let odd = whole && !huge_exponent && (half + SHIFTER) - SHIFTER != half;
    let at_zero = if y < 0.0 { f32::INFINITY } else { 0.0 };
    let at_infinity = if y < 0.0 { 0.0 } else { f32::INFINITY };
    let result = if magnitude == 0.0 { at_zero } else { result };
    let result = if magnitude == f32::INFINITY { at_infinity } else { result };
    let result = if magnitude == 1.0 { 1.0 } else { result };
    let result = if x < 0.0 && !whole && magnitude != f32::INFINITY { f32::NAN } else { result };
    let negative = x.to_bits() & if odd { 0x8000_0000 } else { 0 };
    let result = f32::from_bits(result.to_bits() | negative);
    let result = if x.is_nan() || y.is_nan() { f32::NAN } else { result };
    if y == 0.0 || x == 1.0 { 1.0 } else { result }
}
