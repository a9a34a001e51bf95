//! Floating-point literals in the hexadecimal notation of C, which is exact.
//!
//! `0x1.8p-3` is 1.5 · 2⁻³. Subnormal numbers are written in normalized form, zero as `0x0p+0`, and `-`
//! preserves the sign of zero. Infinities are `inf` and `-inf`. The quiet NaN without payload is `nan`, or
//! `-nan` if the sign bit is set. Any other NaN is `nan(0x1)` with the complete mantissa field in
//! parentheses, as in `strtod`. Apple's text has only `nan`, so payloads never reach a device, but they
//! survive a round trip through this module.

use std::fmt::Write as _;

use coremill_tensor::DType;

/// Bit layout of a float type.
#[derive(Clone, Copy)]
struct Format {
    exponent_bits: u32,
    mantissa_bits: u32,
    /// Whether the highest exponent also represents numbers. Only its last mantissa is then a NaN.
    finite_only: bool,
}

/// Reason for rejecting a literal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// Invalid syntax.
    Malformed,
    /// The number exceeds the largest finite number of the type.
    TooLarge,
    /// The type has no infinities or no such NaN.
    NoSuchValue,
}

/// Maximum length of a literal.
const MAX_DIGITS: usize = 1100;

impl Format {
    fn of(dtype: DType) -> Option<Format> {
        let (exponent_bits, mantissa_bits) = match dtype {
            DType::Fp16 => (5, 10),
            DType::Fp32 => (8, 23),
            DType::Fp64 => (11, 52),
            DType::Bf16 => (8, 7),
            DType::Fp8E4M3Fn => (4, 3),
            DType::Fp8E5M2 => (5, 2),
            _ => return None,
        };
        Some(Format { exponent_bits, mantissa_bits, finite_only: dtype == DType::Fp8E4M3Fn })
    }

    fn mantissa_mask(self) -> u64 {
        (1 << self.mantissa_bits) - 1
    }

    fn highest_exponent(self) -> u64 {
        (1 << self.exponent_bits) - 1
    }

    fn bias(self) -> i64 {
        (1 << (self.exponent_bits - 1)) - 1
    }

    fn sign_bit(self) -> u64 {
        1 << (self.exponent_bits + self.mantissa_bits)
    }

    /// Bits of the largest finite number.
    fn largest(self) -> u64 {
        let infinity = self.highest_exponent() << self.mantissa_bits;
        if self.finite_only { infinity | (self.mantissa_mask() - 1) } else { infinity - 1 }
    }

    /// Mantissa of the NaN that arithmetic produces.
    fn quiet(self) -> u64 {
        if self.finite_only { self.mantissa_mask() } else { 1 << (self.mantissa_bits - 1) }
    }
}

/// Appends the number with encoding `bits` in `dtype`. Other types than floats append no text.
pub(super) fn write(out: &mut String, dtype: DType, bits: u64) {
    let Some(format) = Format::of(dtype) else { return };
    let mantissa = bits & format.mantissa_mask();
    let exponent = (bits >> format.mantissa_bits) & format.highest_exponent();
    if bits & format.sign_bit() != 0 {
        out.push('-');
    }
    if exponent == format.highest_exponent() {
        let nan = if format.finite_only { mantissa == format.quiet() } else { mantissa != 0 };
        if nan && mantissa == format.quiet() {
            return out.push_str("nan");
        } else if nan {
            let _ = write!(out, "nan(0x{mantissa:x})");
            return;
        } else if !format.finite_only {
            return out.push_str("inf");
        }
    }
    if exponent == 0 && mantissa == 0 {
        return out.push_str("0x0p+0");
    }
    let (fraction, power) = if exponent == 0 {
        // Shift until the leading 1 leaves the mantissa field.
        let top = 63 - mantissa.leading_zeros();
        let shift = format.mantissa_bits - top;
        let fraction = (mantissa << shift) & format.mantissa_mask();
        (fraction, 1 - format.bias() - i64::from(shift))
    } else {
        (mantissa, exponent as i64 - format.bias())
    };
    out.push_str("0x1");
    if fraction != 0 {
        let digits = format.mantissa_bits.div_ceil(4);
        let aligned = fraction << (digits * 4 - format.mantissa_bits);
        let text = format!("{aligned:0width$x}", width = digits as usize);
        out.push('.');
        out.push_str(text.trim_end_matches('0'));
    }
    let _ = write!(out, "p{power:+}");
}

/// Parses a number and returns its encoding in `dtype`, rounded to nearest.
pub(super) fn parse(text: &str, dtype: DType) -> Result<u64, Refusal> {
    let format = Format::of(dtype).ok_or(Refusal::NoSuchValue)?;
    if text.len() > MAX_DIGITS {
        return Err(Refusal::Malformed);
    }
    let (sign, magnitude) = match text.strip_prefix('-') {
        Some(rest) => (format.sign_bit(), rest),
        None => (0, text),
    };
    let encoded = if magnitude == "inf" {
        if format.finite_only {
            return Err(Refusal::NoSuchValue);
        }
        format.highest_exponent() << format.mantissa_bits
    } else if magnitude == "nan" {
        (format.highest_exponent() << format.mantissa_bits) | format.quiet()
    } else if let Some(payload) = magnitude.strip_prefix("nan(0x") {
        let payload = payload.strip_suffix(')').ok_or(Refusal::Malformed)?;
        let payload = u64::from_str_radix(payload, 16).map_err(|_| Refusal::Malformed)?;
        let allowed = !format.finite_only || payload == format.quiet();
        if payload == 0 || payload > format.mantissa_mask() || !allowed {
            return Err(Refusal::NoSuchValue);
        }
        (format.highest_exponent() << format.mantissa_bits) | payload
    } else if let Some(digits) = magnitude.strip_prefix("0x") {
        hexadecimal(digits, format)?
    } else {
        decimal(magnitude, dtype, format)?
    };
    Ok(sign | encoded)
}

fn hexadecimal(text: &str, format: Format) -> Result<u64, Refusal> {
    let (digits, power) = match text.split_once('p') {
        Some((digits, power)) => (digits, power.parse::<i32>().map_err(|_| Refusal::Malformed)?),
        None => (text, 0),
    };
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    if whole.len() + fraction.len() == 0 {
        return Err(Refusal::Malformed);
    }
    // Sixteen significant digits fill the 64 bits; further digits only break ties.
    let (mut mantissa, mut lost, mut power) = (0u64, false, i64::from(power));
    for (index, digit) in whole.bytes().chain(fraction.bytes()).enumerate() {
        let digit = char::from(digit).to_digit(16).ok_or(Refusal::Malformed)?;
        let in_fraction = index >= whole.len();
        if mantissa >> 60 == 0 {
            mantissa = mantissa << 4 | u64::from(digit);
            power -= if in_fraction { 4 } else { 0 };
        } else {
            lost |= digit != 0;
            power += if in_fraction { 0 } else { 4 };
        }
    }
    round(mantissa, power, lost, format)
}

fn decimal(text: &str, dtype: DType, format: Format) -> Result<u64, Refusal> {
    let plain = |c: char| c.is_ascii_digit() || matches!(c, '.' | 'e' | 'E' | '+' | '-');
    if !text.starts_with(|c: char| c.is_ascii_digit()) || !text.chars().all(plain) {
        return Err(Refusal::Malformed);
    }
    if dtype == DType::Fp32 {
        let value = text.parse::<f32>().map_err(|_| Refusal::Malformed)?;
        return if value.is_finite() { Ok(value.to_bits().into()) } else { Err(Refusal::TooLarge) };
    }
    let value = text.parse::<f64>().map_err(|_| Refusal::Malformed)?;
    if !value.is_finite() {
        return Err(Refusal::TooLarge);
    }
    // Narrower types are rounded twice. This affects only decimals with more than 16 digits.
    let (exponent, fraction) = ((value.to_bits() >> 52) as i64, value.to_bits() & ((1 << 52) - 1));
    match exponent {
        0 => round(fraction, -1074, false, format),
        _ => round(fraction | 1 << 52, exponent - 1075, false, format),
    }
}

/// Encodes `mantissa · 2^power`, rounded to nearest with ties to even. `lost` means that nonzero digits below
/// the mantissa were dropped.
fn round(mantissa: u64, power: i64, lost: bool, format: Format) -> Result<u64, Refusal> {
    if mantissa == 0 {
        return Ok(0);
    }
    let zeros = mantissa.leading_zeros();
    let mantissa = mantissa << zeros;
    let exponent = power.saturating_sub(i64::from(zeros)).saturating_add(63);
    let lowest = 1 - format.bias();
    if exponent > format.bias() + 1 {
        return Err(Refusal::TooLarge);
    }
    let kept = i64::from(format.mantissa_bits) + 1 - (lowest - exponent).max(0);
    if kept < 0 {
        return Ok(0);
    }
    // Use 65 bits, so that all 64 bits can be dropped.
    let wide = u128::from(mantissa);
    let dropped = 64 - kept as u32;
    let mut quotient = (wide >> dropped) as u64;
    let rest = wide & ((1u128 << dropped) - 1);
    let half = 1u128 << (dropped - 1);
    if rest > half || (rest == half && (lost || quotient & 1 == 1)) {
        quotient += 1;
    }
    let biased = (exponent.max(lowest) - lowest) as u64;
    let encoded = (biased << format.mantissa_bits) + quotient;
    if encoded > format.largest() { Err(Refusal::TooLarge) } else { Ok(encoded) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn show(dtype: DType, bits: u64) -> String {
        let mut text = String::new();
        write(&mut text, dtype, bits);
        text
    }

    #[test]
    fn round_trips_every_16_bit_and_8_bit_float() {
        for dtype in [DType::Fp16, DType::Bf16, DType::Fp8E4M3Fn, DType::Fp8E5M2] {
            for bits in 0..1u64 << dtype.bits().expect("float") {
                let text = show(dtype, bits);
                assert_eq!(parse(&text, dtype), Ok(bits), "{dtype} {bits:#x} {text}");
            }
        }
    }

    #[test]
    fn fp32_hex_literals_have_exact_value() {
        for bits in (0..0x7f80_0000u32).step_by(65_521) {
            let text = show(DType::Fp32, bits.into());
            // The standard library cannot parse this notation; check it with wider arithmetic.
            let (digits, power) = text[2..].split_once('p').expect("power");
            let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
            let all = u64::from_str_radix(&format!("{whole}{fraction}"), 16).expect("digits");
            let power = power.parse::<i32>().expect("power") - 4 * fraction.len() as i32;
            assert_eq!(all as f64 * f64::from(power).exp2(), f64::from(f32::from_bits(bits)));
        }
    }

    #[test]
    fn round_trips_random_fp32_and_fp64() {
        let mut state = 1u64;
        for _ in 0..20_000 {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            for dtype in [DType::Fp32, DType::Fp64] {
                let bits = state >> (64 - dtype.bits().expect("float"));
                assert_eq!(parse(&show(dtype, bits), dtype), Ok(bits), "{dtype} {bits:#x}");
            }
        }
    }

    #[test]
    fn writes_hex_literals_and_special_values() {
        for (bits, text) in [
            (0x0000, "0x0p+0"),
            (0x8000, "-0x0p+0"),
            (0x3c00, "0x1p+0"),
            (0x3555, "0x1.554p-2"),
            (0x0001, "0x1p-24"),
            (0x80a8, "-0x1.5p-17"),
            (0x7bff, "0x1.ffcp+15"),
            (0x7c00, "inf"),
            (0xfc00, "-inf"),
            (0x7e00, "nan"),
            (0xfe00, "-nan"),
            (0x7c01, "nan(0x1)"),
        ] {
            assert_eq!(show(DType::Fp16, bits), text);
        }
        assert_eq!(show(DType::Fp32, 1.7f32.to_bits().into()), "0x1.b33334p+0");
    }

    #[test]
    fn parses_decimals_and_rounds_to_nearest_even() {
        assert_eq!(parse("0.1", DType::Fp32), Ok(0.1f32.to_bits().into()));
        assert_eq!(parse("-500.0", DType::Fp16), Ok(0xdfd0));
        assert_eq!(parse("1e-5", DType::Fp16), Ok(u64::from(half::f16::from_f64(1e-5).to_bits())));
        assert_eq!(parse("2.0", DType::Fp64), Ok(2f64.to_bits()));
        assert_eq!(parse("0x1.00000000000000001p-25", DType::Fp16), Ok(1));
        assert_eq!(parse("0x1p-25", DType::Fp16), Ok(0));
        assert_eq!(parse("0x3p-25", DType::Fp16), Ok(2));
        assert_eq!(parse("0x1p-26", DType::Fp16), Ok(0));
        assert_eq!(parse("448", DType::Fp8E4M3Fn), Ok(0x7e));
    }

    #[test]
    fn rejects_overflowing_and_malformed_literals() {
        assert_eq!(parse("65520", DType::Fp16), Err(Refusal::TooLarge));
        assert_eq!(parse("0x1p+128", DType::Fp32), Err(Refusal::TooLarge));
        assert_eq!(parse("0x1p+2147483647", DType::Fp32), Err(Refusal::TooLarge));
        assert_eq!(parse("1e99999", DType::Fp64), Err(Refusal::TooLarge));
        assert_eq!(parse("465", DType::Fp8E4M3Fn), Err(Refusal::TooLarge));
        assert_eq!(parse("inf", DType::Fp8E4M3Fn), Err(Refusal::NoSuchValue));
        assert_eq!(parse("nan(0x0)", DType::Fp16), Err(Refusal::NoSuchValue));
        assert_eq!(parse("nan(0x400)", DType::Fp16), Err(Refusal::NoSuchValue));
        for text in ["", "-", "0x", "0xp+1", "0x1p", "0x1p99999999999", "1.2.3", "1_0", "--1", "e1"]
        {
            assert_eq!(parse(text, DType::Fp32), Err(Refusal::Malformed), "{text}");
        }
    }
}
