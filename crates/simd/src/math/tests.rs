use half::{bf16, f16};

use super::*;

/// Numbers of every magnitude and sign, special numbers, and their neighbors.
fn numbers() -> Vec<f32> {
    let step = if cfg!(miri) { 40_000_003 } else { 9_973 };
    let mut numbers: Vec<f32> = (0..=u32::MAX).step_by(step).map(f32::from_bits).collect();
    for special in [
        0.0,
        1.0,
        0.5,
        2.0,
        88.722_84,
        -87.336_54,
        -103.972_08,
        128.0,
        -149.0,
        0.625,
        0.925,
        4.0,
        5.5,
    ] {
        let bits = f32::to_bits(special);
        for near in [bits.saturating_sub(1), bits, bits + 1] {
            numbers.extend([f32::from_bits(near), -f32::from_bits(near)]);
        }
    }
    numbers.extend([f32::INFINITY, f32::NEG_INFINITY, f32::NAN, f32::MAX, f32::MIN]);
    // Arguments of moderate size, where functions change most.
    let steps = if cfg!(miri) { 100 } else { 200_000 };
    numbers.extend((0..steps).map(|step| (step as f32 / steps as f32 - 0.5) * 40.0));
    numbers.extend((0..steps).map(|step| (step as f32 / steps as f32 - 0.5) * 16_384.0));
    numbers
}

/// The error in units in the last place of the exact result.
fn distance(result: f32, exact: f64) -> f64 {
    let rounded = exact as f32;
    if rounded.is_nan() || rounded.is_infinite() || result.is_nan() || result.is_infinite() {
        return if rounded.to_bits() == result.to_bits() || rounded.is_nan() && result.is_nan() {
            0.0
        } else if (f64::from(result.clamp(f32::MIN, f32::MAX)) - exact).abs()
            <= 2.0 * f64::from(f32::MAX).abs() * f64::from(f32::EPSILON)
        {
            // One is infinite and the other is adjacent to it.
            1.0
        } else {
            f64::INFINITY
        };
    }
    let exponent = rounded.abs().max(f32::MIN_POSITIVE).log2().floor() as i32;
    (f64::from(result) - exact).abs() / 2f64.powi(exponent - 23)
}

fn erf(x: f64) -> f64 {
    if x.abs() < 2.5 {
        let mut term = x;
        let mut sum = x;
        for n in 1..60 {
            term *= -x * x / f64::from(n);
            sum += term / f64::from(2 * n + 1);
        }
        sum * 2.0 / std::f64::consts::PI.sqrt()
    } else {
        (1.0 - erfc_of_large(x.abs())).copysign(x)
    }
}

/// Computed by its continued fraction.
fn erfc_of_large(x: f64) -> f64 {
    let mut fraction = x;
    for n in (1..120).rev() {
        fraction = x + f64::from(n) * 0.5 / fraction;
    }
    (-x * x).exp() / (fraction * std::f64::consts::PI.sqrt())
}

fn gelu(x: f64) -> f64 {
    let z = x / std::f64::consts::SQRT_2;
    let upper = if z < -2.0 { 0.5 * erfc_of_large(-z) } else { 0.5 * (1.0 + erf(z)) };
    x * upper
}

fn exact(function: Unary, x: f64) -> f64 {
    match function {
        Unary::Abs => x.abs(),
        Unary::Acos => x.acos(),
        Unary::Acosh => x.acosh(),
        Unary::Asin => x.asin(),
        // The standard library's function is inaccurate for large negative numbers.
        Unary::Asinh => x.abs().asinh().copysign(x),
        Unary::Atan => x.atan(),
        Unary::Atanh => x.atanh(),
        Unary::Ceil => x.ceil(),
        Unary::Cos => x.cos(),
        Unary::Cosh => x.cosh(),
        Unary::Erf => erf(x),
        Unary::Exp => x.exp(),
        Unary::ExpMinusOne => x.exp_m1(),
        Unary::Exp2 => x.exp2(),
        Unary::Floor => x.floor(),
        Unary::Gelu => gelu(x),
        Unary::GeluSigmoid => x / (1.0 + (-1.702 * x).exp()),
        Unary::GeluTanh => {
            let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x * x * x);
            x / (1.0 + (-2.0 * inner).exp())
        }
        Unary::Log => x.ln(),
        Unary::Neg => -x,
        Unary::Reciprocal => 1.0 / x,
        Unary::Relu => {
            if x > 0.0 || x.is_nan() {
                x
            } else {
                0.0
            }
        }
        Unary::Round => x.round_ties_even(),
        Unary::Rsqrt => 1.0 / x.sqrt(),
        Unary::Sigmoid => 1.0 / (1.0 + (-x).exp()),
        Unary::Sign => {
            if x == 0.0 || x.is_nan() {
                x
            } else {
                x.signum()
            }
        }
        Unary::Silu => x / (1.0 + (-x).exp()),
        Unary::Sin => x.sin(),
        Unary::Sinh => x.sinh(),
        Unary::Softplus => x.max(0.0) + (-x.abs()).exp().ln_1p(),
        Unary::Softsign => x / (1.0 + x.abs()),
        Unary::Sqrt => x.sqrt(),
        Unary::Square => x * x,
        Unary::Tan => x.tan(),
        Unary::Tanh => x.tanh(),
        Unary::Trunc => x.trunc(),
    }
}

/// Maximum error in ulp; `None` for functions with another bound.
fn bound(function: Unary) -> Option<f64> {
    Some(match function {
        Unary::Abs
        | Unary::Ceil
        | Unary::Floor
        | Unary::Neg
        | Unary::Relu
        | Unary::Round
        | Unary::Sign
        | Unary::Trunc => 0.0,
        Unary::Reciprocal | Unary::Sqrt | Unary::Square => 0.501,
        Unary::Log => 1.0,
        Unary::Exp => 1.1,
        Unary::Exp2 | Unary::Rsqrt | Unary::Softsign => 1.5,
        Unary::Erf | Unary::ExpMinusOne | Unary::Tanh => 2.0,
        Unary::Cos | Unary::Sin => 2.5,
        Unary::Sigmoid | Unary::Softplus => 3.0,
        Unary::Silu => 4.0,
        Unary::Gelu | Unary::GeluSigmoid | Unary::GeluTanh => return None,
        Unary::Acos
        | Unary::Acosh
        | Unary::Asin
        | Unary::Asinh
        | Unary::Atan
        | Unary::Atanh
        | Unary::Cosh
        | Unary::Sinh
        | Unary::Tan => 4.0,
    })
}

#[test]
fn unary_functions_stay_within_error_bounds() {
    let numbers = numbers();
    let mut results = vec![0.0; numbers.len()];
    let mut failures = vec![];
    for isa in Isa::available() {
        for function in Unary::ALL {
            unary(isa, function, &numbers, &mut results);
            let mut worst = (0.0, 0.0, 0.0);
            for (&x, &result) in numbers.iter().zip(&results) {
                let exact = exact(function, f64::from(x));
                // For infinite inputs some formulas give NaN, for example infinity times zero.
                let undefined = x.is_infinite();
                if undefined && exact.is_nan() {
                    assert!(result.is_nan(), "{isa} {function:?} of {x}: {result}");
                    continue;
                }
                let error = match bound(function) {
                    Some(_)
                        if (f64::from(result) - exact).abs() <= 1e-43
                            && function == Unary::Silu =>
                    {
                        0.0
                    }
                    Some(bound) => distance(result, exact) / bound.max(1e-9),
                    None if x == f32::NEG_INFINITY || exact.is_nan() => {
                        f64::from(u8::from(!result.is_nan()))
                    }
                    None if exact.is_infinite() => f64::from(u8::from(result != exact as f32)),
                    None => (f64::from(result) - exact).abs() / (4e-7 * exact.abs()).max(1e-7),
                };
                if error > worst.0 {
                    worst = (error, x, result);
                }
            }
            let (error, x, result) = worst;
            let exact = exact(function, f64::from(x));
            if error > 1.0 {
                failures.push(format!(
                    "{isa} {function:?} of {x:e} is {result:e} for {exact:e}: {error} times the bound"
                ));
            }
        }
    }
    assert!(failures.is_empty(), "{failures:#?}");
}

#[test]
fn sin_reduces_large_angles_exactly() {
    for isa in Isa::available() {
        let mut angles = [1e9, 3.0e38, 65_536.5, f32::INFINITY, 0.0, -123_456.7, 710.0];
        let expected = angles.map(f32::sin);
        unary_in_place(isa, Unary::Sin, &mut angles);
        for (angle, expected) in angles.iter().zip(expected) {
            assert!((angle - expected).abs() < 1e-7 || angle.is_nan() && expected.is_nan());
        }
    }
}

#[test]
fn handles_every_length_without_overrun() {
    for isa in Isa::available() {
        for length in 0..40 {
            let mut elements = vec![2.0; length + 3];
            unary_in_place(isa, Unary::Square, &mut elements[..length]);
            assert!(elements[..length].iter().all(|&element| element == 4.0));
            assert!(elements[length..].iter().all(|&element| element == 2.0));
        }
    }
}

#[test]
fn pow_matches_libm() {
    let mut bases = vec![];
    let mut exponents = vec![];
    let specials = [
        0.0,
        -0.0,
        1.0,
        -1.0,
        2.0,
        -2.0,
        0.5,
        -0.5,
        3.0,
        -3.0,
        1e-40,
        -1e-40,
        16_777_217.0,
        -8_388_607.0,
        8_388_607.0,
        8_388_606.5,
        f32::MAX,
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::NAN,
        1.000_000_1,
        0.999_999_94,
    ];
    for x in specials {
        for y in specials {
            bases.push(x);
            exponents.push(y);
        }
    }
    let mut state = 1u32;
    let mut random = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / 16_777_216.0
    };
    for _ in 0..if cfg!(miri) { 50 } else { 100_000 } {
        bases.push(2f32.powf(random() * 60.0 - 30.0));
        exponents.push(random() * 8.0 - 4.0);
    }
    let mut results = vec![0.0; bases.len()];
    for isa in Isa::available() {
        pow(isa, &bases, &exponents, &mut results);
        for ((&x, &y), &result) in bases.iter().zip(&exponents).zip(&results) {
            let exact = f64::from(x).powf(f64::from(y));
            let error = distance(result, exact);
            assert!(error <= 1.0, "{isa}: {x}^{y} is {result} for {exact}: {error}");
            assert!(
                result.is_nan() || result.is_sign_negative() == exact.is_sign_negative(),
                "{isa}: {x}^{y} is {result} for {exact}"
            );
        }
    }
}

#[test]
fn fp16_and_bf16_conversions_match_half_crate() {
    let numbers = numbers();
    let halves: Vec<f16> =
        (0..=u16::MAX).step_by(if cfg!(miri) { 997 } else { 1 }).map(f16::from_bits).collect();
    for isa in Isa::available() {
        let mut wide = vec![0.0; halves.len()];
        f16_to_f32(isa, &halves, &mut wide);
        let mut narrow = vec![f16::ZERO; halves.len()];
        f32_to_f16(isa, &wide, &mut narrow);
        for ((half, wide), narrow) in halves.iter().zip(&wide).zip(&narrow) {
            assert!(half.to_f32() == *wide || half.is_nan() && wide.is_nan());
            assert!(half.to_bits() == narrow.to_bits() || half.is_nan() && narrow.is_nan());
        }
        let mut rounded = numbers.clone();
        round_to_fp16(isa, &mut rounded);
        let mut bf16s = vec![bf16::ZERO; numbers.len()];
        f32_to_bf16(isa, &numbers, &mut bf16s);
        let mut widened = vec![0.0; numbers.len()];
        bf16_to_f32(isa, &bf16s, &mut widened);
        let mut rounded_bf16 = numbers.clone();
        round_to_bf16(isa, &mut rounded_bf16);
        for (at, &number) in numbers.iter().enumerate() {
            let expected = f16::from_f32(number).to_f32();
            let result = rounded[at];
            assert!(
                result.to_bits() == expected.to_bits() || result.is_nan() && expected.is_nan(),
                "{isa}: {number:e} rounds to {result:e}, not {expected:e}"
            );
            assert_eq!(bf16s[at].to_bits(), bf16::from_f32(number).to_bits());
            assert_eq!(widened[at].to_bits(), bf16s[at].to_f32().to_bits());
            assert_eq!(rounded_bf16[at].to_bits(), widened[at].to_bits());
        }
        for length in 0..20 {
            let mut narrow = vec![f16::ONE; length + 1];
            f32_to_f16(isa, &vec![2.0; length], &mut narrow[..length]);
            assert!(narrow[..length].iter().all(|half| half.to_f32() == 2.0));
            assert_eq!(narrow[length], f16::ONE);
        }
    }
}
