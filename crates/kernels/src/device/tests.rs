use coremill_simd::Isa;
use half::f16;

use super::fixed::Sum;
use super::*;

/// A deterministic random number generator.
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// A half-precision number with an exponent in a range.
    fn half(&mut self, exponents: std::ops::Range<u64>) -> f32 {
        let bits = self.next();
        let exponent = exponents.start + bits % (exponents.end - exponents.start);
        f16::from_bits(((bits >> 40) & 0x83ff) as u16 | (exponent << 10) as u16).to_f32()
    }
}

fn product(numerics: Numerics, isa: Isa, extents: Extents, factors: [&[f32]; 2]) -> Vec<f32> {
    let Extents { rows, depth, columns } = extents;
    let left = StridedMatrix::dense(factors[0], depth);
    let right = StridedMatrix::dense(factors[1], columns);
    let bias: Vec<f32> = (0..rows).map(|row| row as f32 / 3.0).collect();
    let bias: Vec<f32> = bias.into_iter().map(|bias| f16::from_f32(bias).to_f32()).collect();
    let mut product = vec![0.0; rows * columns];
    let bias = Bias::OfRows(&bias);
    multiply(numerics, (&Pool::new(2), isa), &mut product, extents, [left, right], bias);
    product
}

/// The product computed by the Neural Engine's rules, one element at a time, with integer significands and exponents.
fn expected_product(extents: Extents, factors: [&[f32]; 2]) -> Vec<f32> {
    let Extents { rows, depth, columns } = extents;
    let parts = |value: f32| {
        let bits = f16::from_f32(value).to_bits();
        let (exponent, fraction) = (i32::from(bits >> 10 & 31), i128::from(bits & 0x3ff));
        let significand = if exponent == 0 { fraction } else { fraction + 1024 };
        let sign = if bits >> 15 == 1 { -1 } else { 1 };
        (sign * significand, exponent.max(1) - 15)
    };
    // Rounds a fixed-point number with `places` fractional bits to multiples of 2⁻¹⁶.
    let to_units = |value: i128, places: i32| {
        let shift = places - 16;
        if shift <= 0 {
            return value << -shift;
        }
        let magnitude = (value.abs() + (1 << (shift - 1))) >> shift;
        magnitude * value.signum()
    };
    let mut results = Vec::new();
    for row in 0..rows {
        for column in 0..columns {
            let (significand, exponent) = parts(f16::from_f32(row as f32 / 3.0).to_f32());
            let mut sum = to_units(significand, 10 - exponent);
            let mut infinite = None;
            for step in 0..depth {
                let (x, x_exponent) = parts(factors[0][row * depth + step]);
                let (y, y_exponent) = parts(factors[1][step * columns + column]);
                if x_exponent + y_exponent >= -16 {
                    sum += to_units(x * y, 20 - x_exponent - y_exponent);
                }
                if sum.abs() >= 1 << 31 && infinite.is_none() {
                    infinite = Some(f32::INFINITY * sum.signum() as f32);
                }
            }
            let exact = sum as f64 / 65536.0;
            results.push(infinite.unwrap_or_else(|| {
                // Rounds to the nearest fp16 number. Ties go away from zero.
                let near = f16::from_f64(exact).to_f64();
                let other = f16::from_f64(2.0 * exact - near).to_f64();
                let (one, two) = ((near - exact).abs(), (other - exact).abs());
                let farther = if near.abs() > other.abs() { near } else { other };
                (if one == two { farther } else { near }) as f32 + 0.0
            }));
        }
    }
    results
}

#[test]
fn ane_matmul_matches_fixed_point_definition() {
    let mut noise = Noise(0x9e37_79b9_7f4a_7c15);
    let shapes = [(1, 1, 1), (4, 9, 16), (5, 70, 33), (67, 3, 140), (40, 130, 3)];
    // Ordinary numbers, small ones whose products are flushed to zero, large ones whose sums become infinite, and all.
    for exponents in [8..18, 0..10, 10..31, 0..31] {
        for (rows, depth, columns) in shapes {
            let extents = Extents { rows, depth, columns };
            let left: Vec<f32> = (0..rows * depth).map(|_| noise.half(exponents.clone())).collect();
            let right: Vec<f32> =
                (0..depth * columns).map(|_| noise.half(exponents.clone())).collect();
            let wanted = expected_product(extents, [&left, &right]);
            for isa in Isa::available() {
                let found = product(Numerics::Ane, isa, extents, [&left, &right]);
                assert_eq!(found, wanted, "{isa} {exponents:?} {extents:?}");
            }
        }
    }
}

#[test]
fn coreml_cpu_matmul_rounds_to_fp16_after_each_step() {
    let mut noise = Noise(7);
    let extents = Extents { rows: 6, depth: 40, columns: 19 };
    let left: Vec<f32> = (0..6 * 40).map(|_| noise.half(8..16)).collect();
    let right: Vec<f32> = (0..40 * 19).map(|_| noise.half(8..16)).collect();
    let wanted: Vec<f32> = (0..6 * 19)
        .map(|at| {
            let (row, column) = (at / 19, at % 19);
            let sum = (0..40).fold(f16::ZERO, |sum, step| {
                let product =
                    f64::from(left[row * 40 + step]) * f64::from(right[step * 19 + column]);
                f16::from_f32((sum.to_f64() + product) as f32)
            });
            let bias = f16::from_f32(row as f32 / 3.0).to_f32();
            f16::from_f32(sum.to_f32() + bias).to_f32()
        })
        .collect();
    for isa in Isa::available() {
        assert_eq!(product(Numerics::CoremlCpu, isa, extents, [&left, &right]), wanted, "{isa}");
    }
}

#[test]
fn ane_sum_overflow_to_infinity_is_sticky() {
    let sum = Sum::new(0.0).plus_product(16384.0, 1.0).plus_product(16384.0, 1.0);
    assert_eq!(sum.plus_product(-16384.0, 1.0).result(), f32::INFINITY);
    let canceled = Sum::new(-16384.0).plus_product(16384.0, 1.0).plus_product(16384.0, 1.0);
    assert_eq!(canceled.result(), 16384.0);
    assert_eq!(Sum::new(2.0f32.powi(-17)).result(), 2.0f32.powi(-16));
    assert_eq!(Sum::new(-40000.0).plus_product(1.0, 1.0).result(), f32::NEG_INFINITY);
}
