//! Half-precision numbers as the Neural Engine reads and writes them.

use half::f16;

/// The Neural Engine's infinity: the exponent field 31 is an ordinary exponent.
pub const INFINITY_AS_NUMBER: f32 = 65536.0;

/// The smallest positive normal number.
pub(crate) const MIN_NORMAL: f32 = 6.103_515_625e-5;

/// Bits of an `f32` below half precision.
const BELOW_HALF: u32 = 0x1fff;

/// A number as the Neural Engine reads it: infinity is 2¹⁶, NaN is 2¹⁶ times its significand, and −0 is 0.
#[inline]
pub fn read(value: f32) -> f32 {
    let bits = value.to_bits();
    if bits & 0x7f80_0000 != 0x7f80_0000 && bits & BELOW_HALF == 0 {
        return value + 0.0;
    }
    read_special(value)
}

#[cold]
fn read_special(value: f32) -> f32 {
    let half = f16::from_f32(value).to_bits();
    if half & 0x7c00 != 0x7c00 {
        return f16::from_bits(half).to_f32() + 0.0;
    }
    let significand = 1.0 + f32::from(half & 0x3ff) / 1024.0;
    (INFINITY_AS_NUMBER * significand).copysign(value)
}

/// Whether [`read`] changes nothing.
#[inline]
fn is_plain(value: f32) -> bool {
    let bits = value.to_bits();
    (bits & 0x7f80_0000 != 0x7f80_0000) & (bits & BELOW_HALF == 0) & (bits != 0x8000_0000)
}

/// Whether [`read`] changes none of the numbers.
#[inline]
pub(super) fn all_plain(values: &[f32]) -> bool {
    // Without an early end, many are looked at together.
    values.iter().fold(true, |plain, &value| plain & is_plain(value))
}

/// The nearest half-precision number, the one farther from zero in ties; never −0. NaN is given as 0, the result of
/// an operation without a value.
#[inline]
pub fn round_away(value: f32) -> f32 {
    let bits = value.to_bits();
    let magnitude = f32::from_bits(bits & 0x7fff_ffff);
    let large = f32::from_bits((magnitude.to_bits() + 0x1000) & !BELOW_HALF);
    let large = if large < INFINITY_AS_NUMBER { large } else { f32::INFINITY };
    // Numbers below 2⁻¹⁴ are multiples of 2⁻²⁴.
    let steps = magnitude * 16_777_216.0;
    // Adding 2²³ rounds to whole numbers, to even ones in ties.
    let whole = (steps + 8_388_608.0) - 8_388_608.0;
    let small = (if steps - whole < 0.5 { whole } else { whole + 1.0 }) / 16_777_216.0;
    let rounded = if magnitude < MIN_NORMAL { small } else { large };
    let signed = f32::from_bits(rounded.to_bits() | bits & 0x8000_0000);
    if value.is_nan() { 0.0 } else { signed + 0.0 }
}

/// [`round_away`] of each number.
pub fn round_all_away(values: &mut [f32]) {
    values.iter_mut().for_each(|value| *value = round_away(*value));
}

/// Applies [`read`] to each number; `None` if nothing changes.
pub fn read_all(values: &[f32]) -> Option<Vec<f32>> {
    (!all_plain(values)).then(|| values.iter().map(|&value| read(value)).collect())
}

/// Power of two of a number's exponent; 2⁻¹⁴ for zero and subnormal numbers.
#[inline]
pub(crate) fn power(value: f32) -> f32 {
    f32::from_bits(value.to_bits() & 0x7f80_0000).max(MIN_NORMAL)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_to_nearest_with_ties_away_from_zero() {
        for bits in 0..0x7bff_u16 {
            let (low, high) = (f16::from_bits(bits).to_f32(), f16::from_bits(bits + 1).to_f32());
            let middle = f32::midpoint(low, high);
            assert_eq!(round_away(low), low);
            assert_eq!(round_away(middle), high, "{middle}");
            assert_eq!(round_away(-middle), -high, "{middle}");
            assert_eq!(round_away(middle.next_down()), low, "{middle}");
        }
        assert_eq!(round_away(65519.0), 65504.0);
        assert_eq!(round_away(65520.0), f32::INFINITY);
        assert_eq!(round_away(f32::NEG_INFINITY), f32::NEG_INFINITY);
        assert_eq!(round_away(-1e-9).to_bits(), 0);
        assert_eq!(round_away(f32::NAN), 0.0);
    }

    #[test]
    fn reads_exponent_31_as_finite_number() {
        let of_bits = |bits: u16| read(f16::from_bits(bits).to_f32());
        assert_eq!(of_bits(0x7c00), 65536.0);
        assert_eq!(of_bits(0xfc00), -65536.0);
        assert_eq!(of_bits(0x7e00), 98304.0);
        assert_eq!(of_bits(0x7fff), 131_008.0);
        assert_eq!(of_bits(0x8000).to_bits(), 0);
        assert_eq!(of_bits(0x0001), 2.0f32.powi(-24));
        assert_eq!(read(1.0 + 2.0f32.powi(-12)), 1.0);
    }
}
