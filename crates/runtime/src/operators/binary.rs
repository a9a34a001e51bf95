//! Elementwise functions of two tensors, or of a tensor and a number.

use coremill_pte::program::ScalarType;

use super::arguments::float_output;
use super::map::{map, map_wrapped, resize_to_broadcast};
use super::{Arguments, Kernel, kernel};
use crate::error::{Result, ensure, fail};
use crate::number::{
    Compute, Number, Scalar, can_cast, compute, compute_float, is_complex, is_floating,
    is_integral, promote, promote_scalar,
};
use crate::view::{OutTensor, View};

pub(super) const TABLE: &[Kernel] = &[
    kernel("aten::add.Scalar_out", "TSS>T", |x, out| linear(x, out, false)),
    kernel("aten::add.out", "TTS>T", |x, out| linear(x, out, false)),
    kernel("aten::atan2.out", "TT>T", atan2),
    kernel("aten::bitwise_and.Scalar_out", "TS>T", |x, out| bitwise(x, out, |a, b, _| a & b)),
    kernel("aten::bitwise_and.Tensor_out", "TT>T", |x, out| bitwise(x, out, |a, b, _| a & b)),
    kernel("aten::bitwise_left_shift.Tensor_Scalar_out", "TS>T", |x, out| bitwise(x, out, left)),
    kernel("aten::bitwise_left_shift.Tensor_out", "TT>T", |x, out| bitwise(x, out, left)),
    kernel("aten::bitwise_or.Scalar_out", "TS>T", |x, out| bitwise(x, out, |a, b, _| a | b)),
    kernel("aten::bitwise_or.Tensor_out", "TT>T", |x, out| bitwise(x, out, |a, b, _| a | b)),
    kernel("aten::bitwise_right_shift.Tensor_Scalar_out", "TS>T", |x, out| bitwise(x, out, right)),
    kernel("aten::bitwise_right_shift.Tensor_out", "TT>T", |x, out| bitwise(x, out, right)),
    kernel("aten::bitwise_xor.Scalar_out", "TS>T", |x, out| bitwise(x, out, |a, b, _| a ^ b)),
    kernel("aten::bitwise_xor.Tensor_out", "TT>T", |x, out| bitwise(x, out, |a, b, _| a ^ b)),
    kernel("aten::div.Scalar_mode_out", "TSc>T", divide_rounded),
    kernel("aten::div.Scalar_out", "TS>T", divide),
    kernel("aten::div.out", "TT>T", divide),
    kernel("aten::div.out_mode", "TTc>T", divide_rounded),
    kernel("aten::eq.Scalar_out", "TS>T", |x, out| compare(x, out, Comparison::Equal)),
    kernel("aten::eq.Tensor_out", "TT>T", |x, out| compare(x, out, Comparison::Equal)),
    kernel("aten::floor_divide.out", "TT>T", |x, out| whole(x, out, DivisionMode::Floor)),
    kernel("aten::fmod.Scalar_out", "TS>T", |x, out| whole(x, out, DivisionMode::Fmod)),
    kernel("aten::fmod.Tensor_out", "TT>T", |x, out| whole(x, out, DivisionMode::Fmod)),
    kernel("aten::ge.Scalar_out", "TS>T", |x, out| compare(x, out, Comparison::GreaterEqual)),
    kernel("aten::ge.Tensor_out", "TT>T", |x, out| compare(x, out, Comparison::GreaterEqual)),
    kernel("aten::gt.Scalar_out", "TS>T", |x, out| compare(x, out, Comparison::Greater)),
    kernel("aten::gt.Tensor_out", "TT>T", |x, out| compare(x, out, Comparison::Greater)),
    kernel("aten::le.Scalar_out", "TS>T", |x, out| compare(x, out, Comparison::LessEqual)),
    kernel("aten::le.Tensor_out", "TT>T", |x, out| compare(x, out, Comparison::LessEqual)),
    kernel("aten::logical_and.out", "TT>T", |x, out| logical(x, out, |a, b| a && b)),
    kernel("aten::logical_or.out", "TT>T", |x, out| logical(x, out, |a, b| a || b)),
    kernel("aten::logical_xor.out", "TT>T", |x, out| logical(x, out, |a, b| a != b)),
    kernel("aten::lt.Scalar_out", "TS>T", |x, out| compare(x, out, Comparison::Less)),
    kernel("aten::lt.Tensor_out", "TT>T", |x, out| compare(x, out, Comparison::Less)),
    kernel("aten::maximum.out", "TT>T", |x, out| extremum(x, out, true)),
    kernel("aten::minimum.out", "TT>T", |x, out| extremum(x, out, false)),
    kernel("aten::mul.Scalar_out", "TS>T", multiply),
    kernel("aten::mul.out", "TT>T", multiply),
    kernel("aten::ne.Scalar_out", "TS>T", |x, out| compare(x, out, Comparison::NotEqual)),
    kernel("aten::ne.Tensor_out", "TT>T", |x, out| compare(x, out, Comparison::NotEqual)),
    kernel("aten::pow.Scalar_out", "ST>T", power),
    kernel("aten::pow.Tensor_Scalar_out", "TS>T", power),
    kernel("aten::pow.Tensor_Tensor_out", "TT>T", power),
    kernel("aten::remainder.Scalar_out", "TS>T", |x, out| whole(x, out, DivisionMode::Remainder)),
    kernel("aten::remainder.Tensor_out", "TT>T", |x, out| whole(x, out, DivisionMode::Remainder)),
    kernel("aten::rsub.Scalar_out", "TSS>T", reverse_subtract),
    kernel("aten::sub.Scalar_out", "TSS>T", |x, out| linear(x, out, true)),
    kernel("aten::sub.out", "TTS>T", |x, out| linear(x, out, true)),
];

/// Two operands; a number is converted to a one-element tensor.
struct Pair<'a> {
    views: [View<'a>; 2],
    /// Promoted type.
    common: ScalarType,
}

/// A number as a tensor element, in a type that represents it exactly.
struct WrappedScalar {
    bytes: [u8; 8],
    dtype: ScalarType,
}

impl WrappedScalar {
    fn new(scalar: Scalar) -> WrappedScalar {
        match scalar {
            Scalar::Double(value) => {
                WrappedScalar { bytes: value.to_le_bytes(), dtype: ScalarType::Double }
            }
            scalar => {
                WrappedScalar { bytes: scalar.as_i64().to_le_bytes(), dtype: ScalarType::Long }
            }
        }
    }

    fn view(&self) -> View<'_> {
        View { dtype: self.dtype, sizes: &[], order: &[], bytes: &self.bytes }
    }
}

/// Calls `run` with the first two arguments, after resizing the output.
fn with_pair(
    x: &Arguments,
    out: &mut OutTensor,
    run: impl FnOnce(Pair, &mut OutTensor) -> Result,
) -> Result {
    let lifted;
    let pair = match (x.scalar(0), x.scalar(1)) {
        (Ok(scalar), _) => {
            lifted = WrappedScalar::new(scalar);
            let view = x.tensor(1)?;
            Pair { views: [lifted.view(), view], common: promote_scalar(view.dtype, scalar) }
        }
        (_, Ok(scalar)) => {
            lifted = WrappedScalar::new(scalar);
            let view = x.tensor(0)?;
            Pair { views: [view, lifted.view()], common: promote_scalar(view.dtype, scalar) }
        }
        _ => {
            let views = [x.tensor(0)?, x.tensor(1)?];
            Pair { views, common: promote(views[0].dtype, views[1].dtype)? }
        }
    };
    resize_to_broadcast(&pair.views, out)?;
    run(pair, out)
}

fn castable(common: ScalarType, out: &OutTensor) -> Result {
    let dtype = out.dtype;
    ensure!(can_cast(common, dtype), "a result of `{common:?}` cannot be written as `{dtype:?}`");
    Ok(())
}

fn not_bool(common: ScalarType) -> Result {
    ensure!(common != ScalarType::Bool, "booleans cannot be divided; expected numbers");
    Ok(())
}

/// Adds a multiple of the second operand to the first, or subtracts it.
fn linear(x: &Arguments, out: &mut [OutTensor], subtracts: bool) -> Result {
    let alpha = x.scalar(2)?;
    with_pair(x, &mut out[0], |Pair { views, common }, out| {
        if is_complex(common) {
            let sign = if subtracts { -1.0 } else { 1.0 };
            return super::complex::add(views, alpha.as_f64() * sign, out);
        }
        castable(common, out)?;
        ensure!(
            !alpha.is_float() || is_floating(common),
            "`alpha` is a float, but the result has type `{common:?}`"
        );
        compute!(Compute::of(common)?, N => {
            let alpha = N::of(alpha);
            let unit = alpha == N::ONE;
            match (subtracts, unit) {
                (false, true) => map_wrapped(views, Some(common), out, |[a, b]: [N; 2]| a.add(b)),
                (false, false) => map_wrapped(views, Some(common), out, |[a, b]: [N; 2]| {
                    a.add(alpha.multiply(b))
                }),
                (true, _) => map_wrapped(views, Some(common), out, |[a, b]: [N; 2]| {
                    a.subtract(alpha.multiply(b))
                }),
            }
        })
    })
}

fn reverse_subtract(x: &Arguments, out: &mut [OutTensor]) -> Result {
    let alpha = x.scalar(2)?;
    with_pair(x, &mut out[0], |Pair { views, common }, out| {
        castable(common, out)?;
        compute!(Compute::of(common)?, N => {
            let alpha = N::of(alpha);
            map_wrapped(views, Some(common), out, |[a, b]: [N; 2]| b.subtract(alpha.multiply(a)))
        })
    })
}

fn multiply(x: &Arguments, out: &mut [OutTensor]) -> Result {
    with_pair(x, &mut out[0], |Pair { views, common }, out| {
        if is_complex(common) {
            return super::complex::multiply(views, out);
        }
        castable(common, out)?;
        compute!(Compute::of(common)?, N => {
            map_wrapped(views, Some(common), out, |[a, b]: [N; 2]| a.multiply(b))
        })
    })
}

fn divide(x: &Arguments, out: &mut [OutTensor]) -> Result {
    float_output(&out[0])?;
    with_pair(x, &mut out[0], |Pair { views, common }, out| {
        Compute::of(common)?;
        compute_float!(Compute::float_of(common), N => {
            map(views, out, |[a, b]: [N; 2]| a / b)
        })
    })
}

fn divide_rounded(x: &Arguments, out: &mut [OutTensor]) -> Result {
    match x.optional_text(2)? {
        None => divide(x, out),
        Some("trunc") => whole(x, out, DivisionMode::Truncate),
        Some("floor") => whole(x, out, DivisionMode::Floor),
        Some(mode) => fail!("`rounding_mode` must be `trunc` or `floor`, got `{mode}`"),
    }
}

/// Variant of an integer division or remainder.
#[derive(Clone, Copy)]
enum DivisionMode {
    Truncate,
    Floor,
    /// Remainder with the dividend's sign.
    Fmod,
    /// Remainder with the divisor's sign.
    Remainder,
}

fn whole(x: &Arguments, out: &mut [OutTensor], kind: DivisionMode) -> Result {
    with_pair(x, &mut out[0], |Pair { views, common }, out| {
        castable(common, out)?;
        not_bool(common)?;
        if Compute::of(common)? == Compute::I64 {
            let divisor = views[1].numbers::<i64>();
            ensure!(!divisor.contains(&0) || out.count() == 0, "integer division by zero");
            return map_wrapped(views, Some(common), out, |[a, b]: [i64; 2]| match kind {
                DivisionMode::Truncate => a.wrapping_div(b),
                DivisionMode::Floor => floor_quotient(a, b),
                DivisionMode::Fmod => a.wrapping_rem(b),
                DivisionMode::Remainder => a.wrapping_sub(floor_quotient(a, b).wrapping_mul(b)),
            });
        }
        compute_float!(Compute::of(common)?, N => map(views, out, |[a, b]: [N; 2]| match kind {
            DivisionMode::Truncate => (a / b).trunc(),
            DivisionMode::Floor if b == 0.0 => a / b,
            DivisionMode::Floor => {
                let rest = a % b;
                let quotient = (a - rest) / b;
                let below = rest != 0.0 && (b < 0.0) != (rest < 0.0);
                let quotient = if below { quotient - 1.0 } else { quotient };
                let floor = quotient.floor();
                if quotient - floor > 0.5 { floor + 1.0 } else { floor }
            }
            DivisionMode::Fmod => a % b,
            DivisionMode::Remainder => {
                let rest = a % b;
                if rest != 0.0 && (b < 0.0) != (rest < 0.0) { rest + b } else { rest }
            }
        }))
    })
}

/// Integer quotient, rounded down.
fn floor_quotient(a: i64, b: i64) -> i64 {
    let quotient = a.wrapping_div(b);
    let exact = a.wrapping_rem(b) == 0;
    if !exact && (a < 0) != (b < 0) { quotient - 1 } else { quotient }
}

#[derive(Clone, Copy)]
enum Comparison {
    Equal,
    NotEqual,
    Less,
    LessEqual,
    Greater,
    GreaterEqual,
}

fn compare(x: &Arguments, out: &mut [OutTensor], comparison: Comparison) -> Result {
    with_pair(x, &mut out[0], |Pair { views, common }, out| {
        Compute::of(out.dtype)?;
        compute!(Compute::of(common)?, N => match comparison {
            Comparison::Equal => map(views, out, |[a, b]: [N; 2]| N::of_bool(a == b)),
            Comparison::NotEqual => map(views, out, |[a, b]: [N; 2]| N::of_bool(a != b)),
            Comparison::Less => map(views, out, |[a, b]: [N; 2]| N::of_bool(a < b)),
            Comparison::LessEqual => map(views, out, |[a, b]: [N; 2]| N::of_bool(a <= b)),
            Comparison::Greater => map(views, out, |[a, b]: [N; 2]| N::of_bool(a > b)),
            Comparison::GreaterEqual => map(views, out, |[a, b]: [N; 2]| N::of_bool(a >= b)),
        })
    })
}

fn logical(x: &Arguments, out: &mut [OutTensor], join: fn(bool, bool) -> bool) -> Result {
    with_pair(x, &mut out[0], |Pair { views, common }, out| {
        Compute::of(out.dtype)?;
        compute!(Compute::of(common)?, N => map(views, out, |[a, b]: [N; 2]| {
            N::of_bool(join(a.is_true(), b.is_true()))
        }))
    })
}

/// Bitwise functions of integers, with the width of the result's type.
fn bitwise(x: &Arguments, out: &mut [OutTensor], join: fn(i64, i64, u32) -> i64) -> Result {
    with_pair(x, &mut out[0], |Pair { views, common }, out| {
        castable(common, out)?;
        ensure!(
            is_integral(common) || common == ScalarType::Bool,
            "bitwise operations require integers or booleans, got `{common:?}`"
        );
        let bits = 8 * common.bytes() as u32;
        map_wrapped(views, Some(common), out, |[a, b]: [i64; 2]| join(a, b, bits))
    })
}

/// Shifts by the width or more result in 0.
fn left(a: i64, b: i64, bits: u32) -> i64 {
    if (0..i64::from(bits)).contains(&b) { a << b } else { 0 }
}

/// Shifts by the width or more result in copies of the sign.
fn right(a: i64, b: i64, bits: u32) -> i64 {
    if (0..i64::from(bits)).contains(&b) { a >> b } else { a >> 63 }
}

fn extremum(x: &Arguments, out: &mut [OutTensor], largest: bool) -> Result {
    with_pair(x, &mut out[0], |Pair { views, common }, out| {
        castable(common, out)?;
        compute!(Compute::of(common)?, N => {
            if largest {
                map(views, out, |[a, b]: [N; 2]| a.greatest(b))
            } else {
                map(views, out, |[a, b]: [N; 2]| a.least(b))
            }
        })
    })
}

fn atan2(x: &Arguments, out: &mut [OutTensor]) -> Result {
    float_output(&out[0])?;
    with_pair(x, &mut out[0], |Pair { views, common }, out| {
        Compute::of(common)?;
        compute_float!(Compute::float_of(common), N => {
            map(views, out, |[a, b]: [N; 2]| a.atan2(b))
        })
    })
}

fn power(x: &Arguments, out: &mut [OutTensor]) -> Result {
    with_pair(x, &mut out[0], |Pair { views, common }, out| {
        castable(common, out)?;
        ensure!(
            common != ScalarType::Bool,
            "booleans cannot be raised to a power; expected numbers"
        );
        if Compute::of(common)? == Compute::I64 {
            return map_wrapped(views, Some(common), out, |[a, b]: [i64; 2]| integer_power(a, b));
        }
        compute_float!(Compute::of(common)?, N => map(views, out, |[a, b]: [N; 2]| a.powf(b)))
    })
}

/// A negative exponent results in the truncated fraction.
fn integer_power(base: i64, exponent: i64) -> i64 {
    match (base, exponent) {
        (base, 0..) => {
            let (mut result, mut base, mut exponent) = (1i64, base, exponent);
            while exponent > 0 {
                if exponent & 1 == 1 {
                    result = result.wrapping_mul(base);
                }
                base = base.wrapping_mul(base);
                exponent >>= 1;
            }
            result
        }
        (1, _) => 1,
        (-1, exponent) => {
            if exponent % 2 == 0 {
                1
            } else {
                -1
            }
        }
        _ => 0,
    }
}
