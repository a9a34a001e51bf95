//! Arithmetic on registers, without memory accesses, for measurements of a machine's peak rate.

#![expect(unsafe_code, reason = "integer products are selected at run time")]

use std::hint::black_box;

use crate::Isa;
use crate::vector::{
    Bits, DotIsa, DotKernel, Int8Dot, Kernel, MAX_LANES, Vector, dispatch, dispatch_dots,
};

/// Number of independent sums, enough to hide the latency of an addition, and few enough for the registers.
const SUMS: usize = 12;

/// Multiplies and adds fp32 numbers; returns the number of operations, two for each multiply-add.
///
/// ```
/// let isa = coremill_simd::Isa::detect();
/// assert!(coremill_simd::peak::float_operations(isa, 100) >= 2400);
/// ```
///
/// # Panics
/// Panics if the machine does not support the instruction set.
pub fn float_operations(isa: Isa, rounds: usize) -> usize {
    2 * SUMS * rounds * dispatch(isa, Floats { rounds })
}

/// Multiplies and adds 8-bit integers; returns the number of operations, two for each multiply-add.
///
/// # Panics
/// Panics if the machine does not support the instruction set.
pub fn integer_operations(isa: Isa, rounds: usize) -> usize {
    // SAFETY: `of` returns instructions that the machine supports.
    let lanes = unsafe { dispatch_dots(DotIsa::of(isa), Integers { rounds }) };
    // Each lane adds four products.
    2 * 4 * SUMS * rounds * lanes
}

/// Returns the number of lanes.
struct Floats {
    rounds: usize,
}

impl Kernel for Floats {
    type Output = usize;

    #[inline(always)]
    fn run<V: Vector>(self) -> usize {
        let (factor, addend) = (V::splat(black_box(0.5)), V::splat(black_box(1.0)));
        let mut sums = [addend; SUMS];
        for _ in 0..self.rounds {
            for sum in &mut sums {
                *sum = sum.mul_add(factor, addend);
            }
        }
        black_box(sums.into_iter().fold(V::zero(), V::add).sum());
        V::LANES
    }
}

/// Returns the number of lanes.
struct Integers {
    rounds: usize,
}

impl DotKernel for Integers {
    type Output = usize;

    #[inline(always)]
    fn run<D: Int8Dot>(self) -> usize {
        let left = D::left_of(D::Floats::splat(black_box(1.0)).to_bits());
        let bytes = black_box([1; 4 * MAX_LANES]);
        // SAFETY: there are four bytes for each lane.
        let right = unsafe { D::right(bytes.as_ptr()) };
        let mut sums: [Bits<D>; SUMS] = [D::Floats::zero().to_bits(); SUMS];
        for _ in 0..self.rounds {
            for sum in &mut sums {
                *sum = D::dot(*sum, left, right);
            }
        }
        let floats = sums.into_iter().map(D::Floats::from_bits);
        black_box(floats.fold(D::Floats::zero(), Vector::add).sum());
        D::Floats::LANES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operation_counts_match_lane_count() {
        for isa in Isa::available() {
            let lanes = float_operations(isa, 3) / (2 * SUMS * 3);
            assert!([4, 8, 16].contains(&lanes), "{isa}: {lanes}");
            assert_eq!(integer_operations(isa, 3), 8 * SUMS * 3 * DotIsa::of(isa).lanes());
        }
    }
}
