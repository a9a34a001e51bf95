//! Sums, products, quotients and powers, element by element.

use coremill_mil::ir::ValueId;
use coremill_mil::ops::OpKind;
use coremill_pt2::ScalarType;
use coremill_tensor::DType;

use super::operand::{Operand, narrow_range, wider};
use crate::error::{Refusal, refuse};
use crate::lower::builder::{Arg, Builder};
use crate::lower::call::{Call, Results};
use crate::lower::dtype::core_dtype;
use crate::lower::row::{Row, all};
use crate::lower::value::{Int, Number, Real, Truth};

pub(crate) const ROWS: &[Row] = &[
    all("aten.add", |call| sum(call, "self", "other", OpKind::Add)),
    all("aten.sub", |call| sum(call, "self", "other", OpKind::Sub)),
    all("aten.rsub", |call| sum(call, "other", "self", OpKind::Sub)),
    all("aten.mul", product),
    all("aten.div", quotient),
    all("aten.floor_divide", |call| rounded_quotient(call, "floor")),
    all("aten.remainder", |call| rest(call, true)),
    all("aten.fmod", |call| rest(call, false)),
    all("aten.pow", power),
    all("aten.hypot", hypot),
    all("aten.maximum", |call| extremum(call, OpKind::Maximum)),
    all("aten.minimum", |call| extremum(call, OpKind::Minimum)),
    all("aten.clamp", clamp),
    all("aten.atan2", arctangent),
];

/// Both operands in the type of the result, `bool`s as they are.
fn operands(call: &mut Call<'_, '_>, names: [&str; 2], dtype: DType) -> Result<[Arg; 2], Refusal> {
    let (x, y) = (call.operand(names[0])?, call.operand(names[1])?);
    Ok([call.operand_in(x, dtype)?, call.operand_in(y, dtype)?])
}

/// A result of integers wraps where torch's narrow types do.
fn give_wrapped(call: &mut Call<'_, '_>, value: ValueId) -> Results {
    let dtype = call.result_dtype()?;
    let value = call.wrapped(value, dtype)?;
    call.give(value)
}

fn sum(call: &mut Call<'_, '_>, left: &str, right: &str, kind: OpKind) -> Results {
    let (x, y) = (call.operand(left)?, call.operand(right)?);
    let alpha = if call.has("alpha") { call.number("alpha")? } else { Number::Int(Int::Known(1)) };
    let dtype = core_dtype(call.result_dtype()?)?;
    if dtype == DType::Bool {
        if alpha.known() == Some(0.0) {
            let Operand::Tensor(x) = x else { refuse!("a number is added to a number") };
            return call.give(x.value);
        }
        let (x, y) = (call.operand_in(x, dtype)?, call.operand_in(y, dtype)?);
        let either = call.binary(OpKind::LogicalOr, x, y)?;
        return call.give(either);
    }
    let x = call.operand_in(x, dtype)?;
    let (kind, y) = scaled(call, y, alpha, kind, dtype)?;
    let z = call.binary(kind, x, y)?;
    give_wrapped(call, z)
}

/// `alpha · y`, to be added or subtracted: minus one changes which.
fn scaled(
    call: &mut Call<'_, '_>,
    y: Operand,
    alpha: Number,
    kind: OpKind,
    dtype: DType,
) -> Result<(OpKind, Arg), Refusal> {
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

fn product(call: &mut Call<'_, '_>) -> Results {
    let (x, y) = (call.operand("self")?, call.operand("other")?);
    let dtype = core_dtype(call.result_dtype()?)?;
    let (x, y) = (call.operand_in(x, dtype)?, call.operand_in(y, dtype)?);
    let kind = if dtype == DType::Bool { OpKind::LogicalAnd } else { OpKind::Mul };
    let z = call.binary(kind, x, y)?;
    give_wrapped(call, z)
}

fn quotient(call: &mut Call<'_, '_>) -> Results {
    if let Some(mode) = call.has("rounding_mode").then(|| call.text("rounding_mode")).transpose()?
        && let Some(mode) = mode
    {
        return rounded_quotient(call, mode);
    }
    let (x, y) = (call.operand("self")?, call.operand("other")?);
    let x = call.operand_in(x, DType::Fp32)?;
    if let Some(divisor) = y.known() {
        let inverse = 1.0 / divisor as f32;
        // The inverse of a power of two is exact, and products are quicker.
        if inverse.is_normal() && (divisor as f32).to_bits().trailing_zeros() >= 23 {
            let z = call.binary(OpKind::Mul, x, inverse)?;
            return call.give(z);
        }
    }
    let y = call.operand_in(y, DType::Fp32)?;
    let z = call.binary(OpKind::RealDiv, x, y)?;
    call.give(z)
}

fn rounded_quotient(call: &mut Call<'_, '_>, mode: &str) -> Results {
    let dtype = core_dtype(call.result_dtype()?)?;
    let [x, y] = operands(call, ["self", "other"], dtype)?;
    let z = match (mode, dtype) {
        ("floor", _) => call.binary(OpKind::FloorDiv, x, y)?,
        ("trunc", DType::Int32) => {
            let signs = signs(call, &x, &y)?;
            let (x, y) = (magnitude(call, x)?, magnitude(call, y)?);
            let whole = call.binary(OpKind::FloorDiv, x, y)?;
            call.binary(OpKind::Mul, whole, signs)?
        }
        ("trunc", _) => {
            let z = call.binary(OpKind::RealDiv, x, y)?;
            call.trunc(z)?
        }
        _ => refuse!("rounding mode `{mode}` is unknown; accepted are `floor` and `trunc`"),
    };
    give_wrapped(call, z)
}

/// The sign of each.
fn signs(builder: &mut Builder, x: &Arg, y: &Arg) -> Result<ValueId, Refusal> {
    let x = builder.emit(OpKind::Sign, [("x", x.clone())])?;
    let y = builder.emit(OpKind::Sign, [("x", y.clone())])?;
    builder.binary(OpKind::Mul, x, y)
}

fn magnitude(builder: &mut Builder, x: Arg) -> Result<ValueId, Refusal> {
    builder.emit(OpKind::Abs, [("x", x)])
}

/// What a division leaves: with the sign of the divisor, or else with that of the dividend.
fn rest(call: &mut Call<'_, '_>, of_divisor: bool) -> Results {
    let dtype = core_dtype(call.result_dtype()?)?;
    let [x, y] = operands(call, ["self", "other"], dtype)?;
    let z = if of_divisor {
        call.binary(OpKind::Mod, x, y)?
    } else {
        let sign = call.emit(OpKind::Sign, [("x", x.clone())])?;
        let (x, y) = (magnitude(call, x)?, magnitude(call, y)?);
        let rest = call.binary(OpKind::Mod, x, y)?;
        call.binary(OpKind::Mul, rest, sign)?
    };
    give_wrapped(call, z)
}

fn power(call: &mut Call<'_, '_>) -> Results {
    let (x, y) = (call.operand("self")?, call.operand("exponent")?);
    let dtype = match core_dtype(call.result_dtype()?)? {
        // What is left of powers of `bool`s is computed in integers.
        DType::Bool => DType::Int32,
        dtype => dtype,
    };
    let base = call.operand_value(x, dtype)?;
    let z = match (x.known(), y.known()) {
        (_, Some(1.0)) => base,
        (_, Some(2.0)) => call.unary(OpKind::Square, base)?,
        (_, Some(0.5)) if dtype == DType::Fp32 => call.unary(OpKind::Sqrt, base)?,
        (_, Some(-1.0)) if dtype == DType::Fp32 => call.reciprocal(base)?,
        (_, Some(-0.5)) if dtype == DType::Fp32 => call.rsqrt(base)?,
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
    let result = call.result_dtype()?;
    if result == ScalarType::Bool {
        let z = call.truthful_cast(z, DType::Bool)?;
        return call.give(z);
    }
    give_wrapped(call, z)
}

impl Builder {
    /// `1 / √x`.
    pub(crate) fn rsqrt(&mut self, x: ValueId) -> Result<ValueId, Refusal> {
        self.emit(OpKind::Rsqrt, [("x", x.into()), ("epsilon", 0.0_f32.into())])
    }
}

fn hypot(call: &mut Call<'_, '_>) -> Results {
    let (x, y) = (call.float_tensor("self")?, call.float_tensor("other")?);
    let z = call.hypotenuse(x, y)?;
    call.give(z)
}

impl Builder {
    /// `√(x² + y²)`.
    pub(crate) fn hypotenuse(&mut self, x: ValueId, y: ValueId) -> Result<ValueId, Refusal> {
        let (x, y) = (self.unary(OpKind::Square, x)?, self.unary(OpKind::Square, y)?);
        let sum = self.binary(OpKind::Add, x, y)?;
        self.unary(OpKind::Sqrt, sum)
    }
}

pub(super) fn extremum(call: &mut Call<'_, '_>, kind: OpKind) -> Results {
    let dtype = core_dtype(call.result_dtype()?)?;
    let [x, y] = operands(call, ["self", "other"], dtype)?;
    let kind = match (dtype, kind) {
        (DType::Bool, OpKind::Maximum) => OpKind::LogicalOr,
        (DType::Bool, _) => OpKind::LogicalAnd,
        _ => kind,
    };
    let z = call.binary(kind, x, y)?;
    call.give(z)
}

fn clamp(call: &mut Call<'_, '_>) -> Results {
    let x = call.operand("self")?;
    let low = call.optional_operand("min")?;
    let high = call.optional_operand("max")?;
    let dtype = match core_dtype(call.result_dtype()?)? {
        DType::Bool => DType::Int32,
        dtype => dtype,
    };
    let mut x = call.operand_value(x, dtype)?;
    let known = |bound: Option<Operand>| bound.map(Operand::known);
    if let (Some(Some(low)), Some(Some(high)), DType::Fp32) = (known(low), known(high), dtype) {
        let z = match (low as f32, high as f32) {
            (0.0, 6.0) => call.unary(OpKind::Relu6, x)?,
            (low, high) => call.clip(x, low, high)?,
        };
        return call.give(z);
    }
    if dtype == DType::Fp32 && high.is_none() && low.and_then(Operand::known) == Some(0.0) {
        let z = call.unary(OpKind::Relu, x)?;
        return call.give(z);
    }
    for (bound, kind) in [(low, OpKind::Maximum), (high, OpKind::Minimum)] {
        if let Some(bound) = bound {
            let bound = bounding(call, bound)?;
            let bound = call.operand_in(bound, dtype)?;
            x = call.binary(kind, x, bound)?;
        }
    }
    call.give(x)
}

/// A bound that is beyond all integers of a type bounds as the last of them does.
fn bounding(call: &Call<'_, '_>, bound: Operand) -> Result<Operand, Refusal> {
    let (low, high) = narrow_range(call.result_dtype()?).unwrap_or((i32::MIN, i32::MAX));
    Ok(match bound {
        Operand::Number(Number::Int(Int::Known(value))) => {
            let value = value.clamp(low.into(), high.into());
            Operand::Number(Number::Int(Int::Known(value)))
        }
        Operand::Number(Number::Bool(Truth::Known(value))) => {
            Operand::Number(Number::Int(Int::Known(value.into())))
        }
        bound => bound,
    })
}

/// The type in which two operands meet.
pub(crate) fn meeting(x: Operand, y: Operand) -> Result<DType, Refusal> {
    Ok(wider(x.core()?, y.core()?))
}

/// The angle of the vector (x, y), from −π to π.
fn arctangent(call: &mut Call<'_, '_>) -> Results {
    let (y, x) = (call.float_tensor("self")?, call.float_tensor("other")?);
    let z = call.arctangent(y, x)?;
    call.give(z)
}

impl Builder {
    /// The angle of the vector (x, y), from −π to π.
    pub(crate) fn arctangent(&mut self, y: ValueId, x: ValueId) -> Result<ValueId, Refusal> {
        use std::f32::consts::PI;
        let slope = self.binary(OpKind::RealDiv, y, x)?;
        let near = self.unary(OpKind::Atan, slope)?;
        // Of two zeros there is no quotient.
        let flat = self.binary(OpKind::Equal, y, 0.0_f32)?;
        let near = self.select(flat, 0.0_f32, near)?;
        // On the left the angle is half a turn away; of which sign, zero tells too.
        let below = self.is_negative(y)?;
        let turn = self.select(below, -PI, PI)?;
        let left = self.is_negative(x)?;
        let turn = self.select(left, turn, 0.0_f32)?;
        self.binary(OpKind::Add, near, turn)
    }
}
