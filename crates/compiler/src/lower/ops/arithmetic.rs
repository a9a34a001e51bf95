//! Elementwise arithmetic.

use super::operand::{Operand, narrow_range, wider};
use crate::lower::prelude::*;

pub(crate) const ROWS: &[Row] = &[
    tensor("aten.add", |call| sum(call, "self", "other", OpKind::Add)),
    tensor("aten.sub", |call| sum(call, "self", "other", OpKind::Sub)),
    tensor("aten.rsub", |call| sum(call, "other", "self", OpKind::Sub)),
    tensor("aten.mul", product),
    tensor("aten.div", quotient),
    tensor("aten.floor_divide", |call| rounded_quotient(call, "floor")),
    tensor("aten.remainder", |call| rest(call, true)),
    tensor("aten.fmod", |call| rest(call, false)),
    tensor("aten.pow", power),
    tensor("aten.{maximum,minimum}", |call| extremum(call, call.matching_op()?)),
    tensor("aten.clamp", clamp),
    tensor("aten.atan2", arctangent),
];

/// Wraps an integer result to torch's narrow type.
fn wrapped(call: &mut Call<'_, '_>, value: ValueId) -> ValueResult {
    let dtype = call.result_dtype()?;
    call.wrapped(value, dtype)
}

fn sum(call: &mut Call<'_, '_>, left: &str, right: &str, kind: OpKind) -> ValueResult {
    let (x, y) = (call.operand(left)?, call.operand(right)?);
    let alpha = if call.has("alpha") { call.number("alpha")? } else { Number::ONE };
    let dtype = core_dtype(call.result_dtype()?)?;
    let x = if dtype == DType::Bool && alpha.known() == Some(0.0) {
        return call.operand_value(x, dtype);
    } else {
        call.operand_in(x, dtype)?
    };
    if dtype == DType::Bool {
        let y = call.operand_in(y, dtype)?;
        return call.binary(OpKind::LogicalOr, x, y);
    }
    let (kind, y) = scaled(call, y, alpha, kind, dtype)?;
    let z = call.binary(kind, x, y)?;
    wrapped(call, z)
}

/// `alpha · y` as the second operand of an addition or subtraction. A factor of −1 swaps the operation.
fn scaled(
    call: &mut Call<'_, '_>,
    y: Operand,
    alpha: Number,
    kind: OpKind,
    dtype: DType,
) -> Result<(OpKind, Arg)> {
    let opposite = if kind == OpKind::Add { OpKind::Sub } else { OpKind::Add };
    if alpha.known() == Some(1.0) {
        return Ok((kind, call.operand_in(y, dtype)?));
    }
    if alpha.known() == Some(-1.0) {
        return Ok((opposite, call.operand_in(y, dtype)?));
    }
    if let (Some(y), Some(alpha)) = (y.known(), alpha.known()) {
        let number = match dtype {
            DType::Int32 => Number::Int(Int::Known((y * alpha) as i64)),
            _ => Number::Float(Real::Known(y * alpha)),
        };
        return Ok((kind, call.operand_in(Operand::Number(number), dtype)?));
    }
    let y = call.operand_in(y, dtype)?;
    let alpha = call.operand_in(Operand::Number(alpha), dtype)?;
    Ok((kind, call.binary(OpKind::Mul, y, alpha)?.into()))
}

fn product(call: &mut Call<'_, '_>) -> ValueResult {
    let is_bool = core_dtype(call.result_dtype()?)? == DType::Bool;
    let [x, y] = call.operands(["self", "other"])?;
    let z = call.binary(if is_bool { OpKind::LogicalAnd } else { OpKind::Mul }, x, y)?;
    wrapped(call, z)
}

fn quotient(call: &mut Call<'_, '_>) -> ValueResult {
    if call.has("rounding_mode")
        && let Some(mode) = call.text("rounding_mode")?
    {
        return rounded_quotient(call, mode);
    }
    let (x, y) = (call.operand("self")?, call.operand("other")?);
    let x = call.operand_in(x, DType::Fp32)?;
    if let Some(divisor) = y.known() {
        let inverse = 1.0 / divisor as f32;
        // The reciprocal of a power of two is exact, and multiplication is faster.
        if inverse.is_normal() && (divisor as f32).to_bits().trailing_zeros() >= 23 {
            return call.binary(OpKind::Mul, x, inverse);
        }
    }
    let y = call.operand_in(y, DType::Fp32)?;
    call.binary(OpKind::RealDiv, x, y)
}

fn rounded_quotient(call: &mut Call<'_, '_>, mode: &str) -> ValueResult {
    let [x, y] = call.operands(["self", "other"])?;
    let is_whole = core_dtype(call.result_dtype()?)? == DType::Int32;
    let z = match mode {
        "floor" => call.binary(OpKind::FloorDiv, x, y)?,
        "trunc" if is_whole => {
            calc!(call, "signs = sign(x) * sign(y); floor_div(abs(x), abs(y)) * signs", x, y)?
        }
        "trunc" => {
            let z = call.binary(OpKind::RealDiv, x, y)?;
            call.trunc(z)?
        }
        _ => refuse!("rounding mode `{mode}` is not supported; expected `floor` or `trunc`"),
    };
    wrapped(call, z)
}

/// Remainder of a division, with the sign of the divisor or of the dividend.
fn rest(call: &mut Call<'_, '_>, of_divisor: bool) -> ValueResult {
    let [x, y] = call.operands(["self", "other"])?;
    let z = if of_divisor {
        call.binary(OpKind::Mod, x, y)?
    } else {
        calc!(call, "sign = sign(x); abs(x) % abs(y) * sign", x, y)?
    };
    wrapped(call, z)
}

fn power(call: &mut Call<'_, '_>) -> ValueResult {
    let (x, y) = (call.operand("self")?, call.operand("exponent")?);
    let dtype = call.numeric_result()?;
    let base = call.operand_value(x, dtype)?;
    let z = match (x.known(), y.known()) {
        (_, Some(1.0)) => base,
        (_, Some(2.0)) => call.unary(OpKind::Square, base)?,
        (_, Some(0.5)) if dtype == DType::Fp32 => call.unary(OpKind::Sqrt, base)?,
        (_, Some(-1.0)) if dtype == DType::Fp32 => call.reciprocal(base)?,
        (_, Some(-0.5)) if dtype == DType::Fp32 => call.reciprocal_root(base, 0.0)?,
        (Some(2.0), None) => {
            let exponent = call.operand_value(y, dtype)?;
            if dtype == DType::Fp32 {
                call.unary(OpKind::Exp2, exponent)?
            } else {
                call.binary(OpKind::Pow, base, exponent)?
            }
        }
        _ => {
            let exponent = call.operand_in(y, dtype)?;
            call.binary(OpKind::Pow, base, exponent)?
        }
    };
    if call.result_dtype()? == ScalarType::Bool {
        return call.truthful_cast(z, DType::Bool);
    }
    wrapped(call, z)
}

pub(super) fn extremum(call: &mut Call<'_, '_>, kind: OpKind) -> ValueResult {
    let [x, y] = call.operands(["self", "other"])?;
    let kind = match (core_dtype(call.result_dtype()?)?, kind) {
        (DType::Bool, OpKind::Maximum) => OpKind::LogicalOr,
        (DType::Bool, _) => OpKind::LogicalAnd,
        (_, kind) => kind,
    };
    call.binary(kind, x, y)
}

fn clamp(call: &mut Call<'_, '_>) -> ValueResult {
    let x = call.operand("self")?;
    let low = call.optional_operand("min")?;
    let high = call.optional_operand("max")?;
    let dtype = call.numeric_result()?;
    let mut x = call.operand_value(x, dtype)?;
    let known = |bound: Option<Operand>| bound.map(Operand::known);
    match (known(low), known(high), dtype) {
        (Some(Some(low)), Some(Some(high)), DType::Fp32) => {
            return call.between(x, low as f32, high as f32);
        }
        (Some(Some(0.0)), None, DType::Fp32) => return call.unary(OpKind::Relu, x),
        _ => {}
    }
    for (bound, kind) in [(low, OpKind::Maximum), (high, OpKind::Minimum)] {
        if let Some(bound) = bound {
            let bound = bounding(call, bound)?;
            let bound = call.operand_in(bound, dtype)?;
            x = call.binary(kind, x, bound)?;
        }
    }
    Ok(x)
}

/// Clamps a bound to the range of the result's integer type.
fn bounding(call: &Call<'_, '_>, bound: Operand) -> Result<Operand> {
    let (low, high) = narrow_range(call.result_dtype()?).unwrap_or((i32::MIN, i32::MAX));
    Ok(match bound {
        Operand::Number(number) => match number.int() {
            Some(Int::Known(value)) => {
                Operand::Number(Number::Int(Int::Known(value.clamp(low.into(), high.into()))))
            }
            _ => bound,
        },
        bound => bound,
    })
}

impl Builder {
    /// Clamps a float tensor.
    pub(crate) fn between(&mut self, x: ValueId, low: f32, high: f32) -> ValueResult {
        match (low, high) {
            (0.0, 6.0) => self.unary(OpKind::Relu6, x),
            (low, high) => self.clip(x, low, high),
        }
    }
}

/// Common computation type of two operands.
pub(crate) fn meeting(x: Operand, y: Operand) -> Result<DType> {
    Ok(wider(x.core()?, y.core()?))
}

/// Angle of the vector (x, y), from −π to π.
fn arctangent(call: &mut Call<'_, '_>) -> ValueResult {
    use std::f32::consts::PI;
    let (y, x) = (call.float_tensor("self")?, call.float_tensor("other")?);
    // Zero over zero would be NaN.
    let near = calc!(call, "angle = atan(y / x); where(y == 0.0, 0.0, angle)", x, y)?;
    // In the left half-plane the angle differs by π. Its sign is the sign of y, including a signed zero.
    let below = call.is_negative(y)?;
    let turn = call.select(below, -PI, PI)?;
    let left = call.is_negative(x)?;
    calc!(call, "turn = where(left, turn, 0.0); near + turn", left, turn, near)
}
