//! Sums of products as the Neural Engine computes them, bit by bit (M4 and M6 agree).
//!
//! The accumulator is fixed point with 16 fractional bits. It starts with the bias, rounded to the grid. A product
//! counts if the sum of both exponents, where that of a subnormal number is −14, is at least −16, and is rounded to the
//! grid, away from zero in ties; it is lost as a whole otherwise. A partial sum of magnitude 32768 or more is infinite
//! and stays so. The result is rounded to half precision, away from zero in ties.

use coremill_simd::vector::Vector;

use super::number;
use super::panel::{Arithmetic, PackedPanel, WIDTH};

/// Units of the accumulator in one.
pub const UNITS: f32 = 65536.0;

/// Units from which on a partial sum is infinite.
const LIMIT: i64 = 1 << 31;

/// Units from which on an `f32` does not hold every sum.
const EXACT: u32 = 1 << 24;

/// A sum of products, with all of the accumulator's states.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sum(i64);

impl Sum {
    /// A sum that starts with a bias, a number that [`number::read`] gave.
    pub fn new(bias: f32) -> Sum {
        Sum(0).plus(f64::from(bias * UNITS).round() as i64)
    }

    /// Adds the product of two numbers that [`number::read`] gave.
    #[must_use]
    pub fn plus_product(self, x: f32, y: f32) -> Sum {
        if number::power(x) * number::power(y) * UNITS < 1.0 {
            return self;
        }
        self.plus((x * UNITS * y).round() as i64)
    }

    /// Adds another sum.
    #[must_use]
    pub fn plus_sum(self, other: Sum) -> Sum {
        self.plus(other.0)
    }

    fn plus(self, units: i64) -> Sum {
        if self.0.abs() >= LIMIT {
            return self;
        }
        let sum = self.0.saturating_add(units);
        Sum(if sum.abs() < LIMIT { sum } else { LIMIT * sum.signum() })
    }

    /// The sum as a half-precision number.
    pub fn result(self) -> f32 {
        let magnitude = self.0.unsigned_abs();
        if magnitude >= LIMIT as u64 {
            return if self.0 < 0 { f32::NEG_INFINITY } else { f32::INFINITY };
        }
        let bits = u64::BITS - magnitude.leading_zeros();
        let excess = bits.saturating_sub(11);
        let half = if excess > 0 { 1 << (excess - 1) } else { 0 };
        let rounded = (magnitude + half) >> excess << excess;
        let result = rounded as f32 / UNITS;
        if self.0 < 0 { -result } else { result }
    }
}

/// The arithmetic of a panel.
pub(super) struct FixedPoint;

impl Arithmetic for FixedPoint {
    /// The largest magnitude in a panel.
    type Panel = f32;

    /// The number and the power of two of its exponent; both of the left factor in units.
    #[inline(always)]
    fn pack(value: f32, is_left: bool) -> [f32; 2] {
        let value = number::read(value);
        let scale = if is_left { UNITS } else { 1.0 };
        [value * scale, number::power(value) * scale]
    }

    #[inline(always)]
    fn pack_right(values: &[f32], elements: &mut [f32], others: &mut [f32]) {
        if number::all_plain(values) {
            // Without calls for special numbers, the compiler packs several elements at a time.
            for ((&value, element), other) in values.iter().zip(elements).zip(others) {
                (*element, *other) = (value, number::power(value));
            }
            return;
        }
        for ((&value, element), other) in values.iter().zip(elements).zip(others) {
            [*element, *other] = Self::pack(value, false);
        }
    }

    #[inline(always)]
    fn survey(panel: &PackedPanel<'_, WIDTH>) -> f32 {
        let mut largest = [0.0f32; WIDTH];
        for row in panel.elements {
            for (largest, element) in largest.iter_mut().zip(row) {
                let magnitude = element.abs();
                *largest = if magnitude > *largest { magnitude } else { *largest };
            }
        }
        largest_of(&largest)
    }

    #[inline(always)]
    fn sums<V: Vector, const ROWS: usize>(
        left: &PackedPanel<'_, ROWS>,
        right: &PackedPanel<'_, WIDTH>,
        &largest: &f32,
        bias: &[[f32; WIDTH]; ROWS],
    ) -> [[f32; WIDTH]; ROWS] {
        if !is_bounded(left, right, largest, bias) {
            return checked(left, right, bias);
        }
        let mut sums = [[0i32; WIDTH]; ROWS];
        for first in (0..WIDTH).step_by(V::LANES) {
            unchecked::<V, ROWS>(left, right, first, &mut sums);
        }
        let mut results = [[0.0; WIDTH]; ROWS];
        for ((results, sums), bias) in results.iter_mut().zip(&mut sums).zip(bias) {
            // Bounded sums fit 32 bits, with the bias as well.
            let mut magnitudes = 0;
            for (sum, &bias) in sums.iter_mut().zip(bias) {
                // A bias has 11 bits: either the sum with a half is exact, or the bias has no fraction and stays.
                let bias = number::read(bias) * UNITS;
                *sum += (bias + 0.5f32.copysign(bias)) as i32;
                magnitudes |= sum.unsigned_abs();
            }
            if magnitudes < EXACT {
                for (result, &sum) in results.iter_mut().zip(&*sums) {
                    *result = number::round_away(sum as f32 / UNITS);
                }
            } else {
                for (result, &sum) in results.iter_mut().zip(&*sums) {
                    *result = Sum(i64::from(sum)).result();
                }
            }
        }
        results
    }
}

/// The largest of positive numbers.
#[inline(always)]
fn largest_of(numbers: &[f32]) -> f32 {
    numbers.iter().copied().fold(0.0, f32::max)
}

/// Whether no partial sum of a tile can reach the limit, for any signs.
#[inline(always)]
fn is_bounded<const ROWS: usize>(
    left: &PackedPanel<'_, ROWS>,
    right: &PackedPanel<'_, WIDTH>,
    largest: f32,
    bias: &[[f32; WIDTH]; ROWS],
) -> bool {
    // Each product is rounded by half a unit at most; sums of `f32` lose some more.
    let slack = left.elements.len() as f32;
    let bias = bias.as_flattened().iter().map(|bias| number::read(*bias).abs());
    let start = bias.fold(0.0, f32::max) * UNITS + slack;
    let limit = LIMIT as f32 * 0.999;
    let mut magnitudes = [0.0f32; ROWS];
    for row in left.elements {
        magnitudes.iter_mut().zip(row).for_each(|(sum, element)| *sum += element.abs());
    }
    if magnitudes.iter().all(|sum| start + sum * largest < limit) {
        return true;
    }
    let mut bounds = [start; ROWS];
    for (row, right) in left.elements.iter().zip(right.elements) {
        let largest = right.iter().fold(0.0f32, |most, element| most.max(element.abs()));
        bounds.iter_mut().zip(row).for_each(|(sum, element)| *sum += element.abs() * largest);
    }
    bounds.iter().all(|&bound| bound < limit)
}

/// The sums of a tile in units, without the bias, for as many columns as a vector has lanes.
#[inline(always)]
fn unchecked<V: Vector, const ROWS: usize>(
    left: &PackedPanel<'_, ROWS>,
    right: &PackedPanel<'_, WIDTH>,
    first: usize,
    sums: &mut [[i32; WIDTH]; ROWS],
) {
    let (half, one) = (V::splat(0.5), V::splat(1.0));
    let mut accumulators = [V::bits(0); ROWS];
    let steps = left.elements.iter().zip(left.others);
    for ((left, left_powers), (right, right_powers)) in
        steps.zip(right.elements.iter().zip(right.others))
    {
        // SAFETY: the lanes from `first` on are within the panel, whose width is a multiple of theirs.
        #[expect(unsafe_code, reason = "vectors are loaded from panels")]
        let (right, right_powers) =
            unsafe { (V::load(right[first..].as_ptr()), V::load(right_powers[first..].as_ptr())) };
        for ((accumulator, left), left_power) in accumulators.iter_mut().zip(left).zip(left_powers)
        {
            // Both factors have 11 bits, so that the product is exact, and its sum with a half as well.
            let product = V::splat(*left).mul(right);
            let rounded = product.add(half.with_sign_of(product)).trunc();
            let is_lost = V::splat(*left_power).mul(right_powers).less(one);
            let counted = V::select(is_lost, V::zero(), rounded);
            *accumulator = V::bits_add(*accumulator, counted.to_int());
        }
    }
    for (sums, accumulator) in sums.iter_mut().zip(accumulators) {
        let mut lanes = [0.0; WIDTH];
        // SAFETY: the lanes fit a panel's width.
        #[expect(unsafe_code, reason = "vectors are stored to arrays")]
        unsafe {
            V::from_bits(accumulator).store(lanes.as_mut_ptr());
        }
        for (sum, lane) in sums[first..first + V::LANES].iter_mut().zip(lanes) {
            *sum = lane.to_bits() as i32;
        }
    }
}

/// The results of a tile whose sums may become infinite on the way.
#[inline(never)]
fn checked<const ROWS: usize>(
    left: &PackedPanel<'_, ROWS>,
    right: &PackedPanel<'_, WIDTH>,
    bias: &[[f32; WIDTH]; ROWS],
) -> [[f32; WIDTH]; ROWS] {
    let mut results = [[0.0; WIDTH]; ROWS];
    for (row, results) in results.iter_mut().enumerate() {
        for (column, result) in results.iter_mut().enumerate() {
            let mut sum = Sum::new(number::read(bias[row][column]));
            for (left, right) in left.elements.iter().zip(right.elements) {
                sum = sum.plus_product(left[row] / UNITS, right[column]);
            }
            *result = sum.result();
        }
    }
    results
}
