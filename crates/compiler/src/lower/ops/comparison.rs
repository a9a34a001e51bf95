//! Elementwise comparisons, logic and selections.

use super::arithmetic::meeting;
use super::operand::Operand;
use crate::lower::prelude::*;

pub(crate) const ROWS: &[Row] = &[
    tensor("aten.{eq,ne,lt,le,gt,ge}", compare),
    tensor("aten.logical_{and,or,xor}", logic),
    tensor("aten.logical_not", logical_not),
    tensor("aten.where", choose).only(&["self", "Scalar", "ScalarOther", "ScalarSelf"]),
    tensor("aten.isnan", is_nan),
    tensor("aten.isinf", |call| against_infinity(call, OpKind::Equal)),
    tensor("aten.isfinite", |call| against_infinity(call, OpKind::Less)),
    tensor("aten.isreal", |call| {
        let x = call.value("self")?;
        everywhere(call, x, true)
    }),
    number("aten.equal", whole_equal),
];

fn compare(call: &mut Call<'_, '_>) -> ValueResult {
    let (x, y) = (call.operand("self")?, call.operand("other")?);
    compared(call, x, y, call.matching_op()?)
}

/// `x op y` for operands of any type.
fn compared(call: &mut Call<'_, '_>, x: Operand, y: Operand, kind: OpKind) -> ValueResult {
    let dtype = meeting(x, y)?;
    if dtype != DType::Bool {
        let (x, y) = (call.operand_in(x, dtype)?, call.operand_in(y, dtype)?);
        return call.binary(kind, x, y);
    }
    if let (Operand::Tensor(x), Operand::Number(Number::Bool(Truth::Known(truth)))) = (x, y)
        && matches!(kind, OpKind::Equal | OpKind::NotEqual)
    {
        return match truth == (kind == OpKind::Equal) {
            true => Ok(x.value),
            false => call.unary(OpKind::LogicalNot, x.value),
        };
    }
    match kind {
        OpKind::Equal | OpKind::NotEqual => {
            let (x, y) = (call.operand_in(x, dtype)?, call.operand_in(y, dtype)?);
            let differ = call.binary(OpKind::LogicalXor, x, y)?;
            match kind {
                OpKind::NotEqual => Ok(differ),
                _ => call.unary(OpKind::LogicalNot, differ),
            }
        }
        _ => {
            let (x, y) = (call.operand_in(x, DType::Int32)?, call.operand_in(y, DType::Int32)?);
            call.binary(kind, x, y)
        }
    }
}

fn logic(call: &mut Call<'_, '_>) -> ValueResult {
    let [x, y] = call.operands_in(["self", "other"], DType::Bool)?;
    let kind = call.matching_op()?;
    call.binary(kind, x, y)
}

fn logical_not(call: &mut Call<'_, '_>) -> ValueResult {
    let x = call.value("self")?;
    if call.dtype(x) == DType::Bool {
        return call.unary(OpKind::LogicalNot, x);
    }
    let zero = call.scalar_like(x, 0.0)?;
    call.binary(OpKind::Equal, x, zero)
}

/// `condition ? a : b` in the result type.
fn choose(call: &mut Call<'_, '_>) -> ValueResult {
    let condition = call.value("condition")?;
    let condition = call.truthful_cast(condition, DType::Bool)?;
    let [a, b] = call.operands(["self", "other"])?;
    call.select(condition, a, b)
}

/// The same boolean for every element.
fn everywhere(call: &mut Call<'_, '_>, x: ValueId, truth: bool) -> ValueResult {
    let x = call.cast(x, DType::Int32)?;
    let kind = if truth { OpKind::Equal } else { OpKind::NotEqual };
    call.binary(kind, x, x)
}

fn is_nan(call: &mut Call<'_, '_>) -> ValueResult {
    let x = call.value("self")?;
    if call.dtype(x) != DType::Fp32 {
        return everywhere(call, x, false);
    }
    call.binary(OpKind::NotEqual, x, x)
}

/// Compares the magnitude with infinity.
fn against_infinity(call: &mut Call<'_, '_>, kind: OpKind) -> ValueResult {
    let x = call.value("self")?;
    if call.dtype(x) != DType::Fp32 {
        return everywhere(call, x, kind == OpKind::Less);
    }
    let magnitude = call.unary(OpKind::Abs, x)?;
    call.binary(kind, magnitude, f32::INFINITY)
}

/// Whether two tensors are equal, as a boolean.
fn whole_equal(call: &mut Call<'_, '_>) -> Result<LoweredValue> {
    let (x, y) = (call.tensor("self")?, call.tensor("other")?);
    if call.extents(x.value) != call.extents(y.value) {
        return Ok(Truth::Known(false).into());
    }
    let same = compared(call, Operand::Tensor(x), Operand::Tensor(y), OpKind::Equal)?;
    let x = call.cast(same, DType::Int32)?;
    let all = match call.rank(x) {
        0 => x,
        _ => emit!(call, OpKind::ReduceMin, x, keep_dims = false)?,
    };
    Ok(Truth::Computed(call.truthful_cast(all, DType::Bool)?).into())
}
