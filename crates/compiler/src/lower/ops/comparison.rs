//! Comparisons, logic and choices, element by element.

use coremill_mil::ir::ValueId;
use coremill_mil::ops::OpKind;
use coremill_tensor::DType;

use super::arithmetic::meeting;
use super::operand::Operand;
use crate::error::Refusal;
use crate::lower::call::{Call, Results};
use crate::lower::dtype::core_dtype;
use crate::lower::row::{Row, all, some};
use crate::lower::value::{Lowered, Number, Truth};

pub(crate) const ROWS: &[Row] = &[
    all("aten.eq", |call| compare(call, OpKind::Equal)),
    all("aten.ne", |call| compare(call, OpKind::NotEqual)),
    all("aten.lt", |call| compare(call, OpKind::Less)),
    all("aten.le", |call| compare(call, OpKind::LessEqual)),
    all("aten.gt", |call| compare(call, OpKind::Greater)),
    all("aten.ge", |call| compare(call, OpKind::GreaterEqual)),
    all("aten.logical_and", |call| logic(call, OpKind::LogicalAnd)),
    all("aten.logical_or", |call| logic(call, OpKind::LogicalOr)),
    all("aten.logical_xor", |call| logic(call, OpKind::LogicalXor)),
    all("aten.logical_not", logical_not),
    some("aten.where", &["self", "Scalar", "ScalarOther", "ScalarSelf"], choose),
    all("aten.isnan", is_nan),
    all("aten.isinf", |call| against_infinity(call, OpKind::Equal)),
    all("aten.isfinite", |call| against_infinity(call, OpKind::Less)),
    all("aten.isreal", |call| {
        let x = call.tensor("self")?.value;
        everywhere(call, x, true)
    }),
    all("aten.equal", whole_equal),
];

fn compare(call: &mut Call<'_, '_>, kind: OpKind) -> Results {
    let (x, y) = (call.operand("self")?, call.operand("other")?);
    let z = compared(call, x, y, kind)?;
    call.give(z)
}

/// `x op y` for operands of any types.
fn compared(
    call: &mut Call<'_, '_>,
    x: Operand,
    y: Operand,
    kind: OpKind,
) -> Result<ValueId, Refusal> {
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

fn logic(call: &mut Call<'_, '_>, kind: OpKind) -> Results {
    let (x, y) = (call.operand("self")?, call.operand("other")?);
    let (x, y) = (call.operand_in(x, DType::Bool)?, call.operand_in(y, DType::Bool)?);
    let z = call.binary(kind, x, y)?;
    call.give(z)
}

fn logical_not(call: &mut Call<'_, '_>) -> Results {
    let x = call.tensor("self")?.value;
    let z = if call.dtype(x) == DType::Bool {
        call.unary(OpKind::LogicalNot, x)?
    } else {
        let zero = call.scalar_like(x, 0.0)?;
        call.binary(OpKind::Equal, x, zero)?
    };
    call.give(z)
}

fn choose(call: &mut Call<'_, '_>) -> Results {
    let condition = call.tensor("condition")?.value;
    let condition = call.truthful_cast(condition, DType::Bool)?;
    let (a, b) = (call.operand("self")?, call.operand("other")?);
    chosen(call, condition, a, b)
}

/// `condition ? a : b`, of the type of the result.
fn chosen(call: &mut Call<'_, '_>, condition: ValueId, a: Operand, b: Operand) -> Results {
    let dtype = core_dtype(call.result_dtype()?)?;
    let (a, b) = (call.operand_in(a, dtype)?, call.operand_in(b, dtype)?);
    let z = call.select(condition, a, b)?;
    call.give(z)
}

/// The same answer for every element.
fn everywhere(call: &mut Call<'_, '_>, x: ValueId, truth: bool) -> Results {
    let x = call.cast(x, DType::Int32)?;
    let kind = if truth { OpKind::Equal } else { OpKind::NotEqual };
    let z = call.binary(kind, x, x)?;
    call.give(z)
}

fn is_nan(call: &mut Call<'_, '_>) -> Results {
    let x = call.tensor("self")?;
    if call.dtype(x.value) != DType::Fp32 {
        return everywhere(call, x.value, false);
    }
    let z = call.binary(OpKind::NotEqual, x.value, x.value)?;
    call.give(z)
}

/// How the magnitude compares with infinity.
fn against_infinity(call: &mut Call<'_, '_>, kind: OpKind) -> Results {
    let x = call.tensor("self")?;
    if call.dtype(x.value) != DType::Fp32 {
        return everywhere(call, x.value, kind == OpKind::Less);
    }
    let magnitude = call.unary(OpKind::Abs, x.value)?;
    let z = call.binary(kind, magnitude, f32::INFINITY)?;
    call.give(z)
}

/// Whether two tensors are the same, as one `bool`.
fn whole_equal(call: &mut Call<'_, '_>) -> Results {
    let (x, y) = (call.tensor("self")?, call.tensor("other")?);
    if call.extents(x.value) != call.extents(y.value) {
        return Ok(vec![Lowered::Bool(Truth::Known(false))]);
    }
    let same = compared(call, Operand::Tensor(x), Operand::Tensor(y), OpKind::Equal)?;
    let same = call.cast(same, DType::Int32)?;
    let all = if call.rank(same) == 0 {
        same
    } else {
        call.emit(OpKind::ReduceMin, [("x", same.into()), ("keep_dims", false.into())])?
    };
    let all = call.truthful_cast(all, DType::Bool)?;
    Ok(vec![Lowered::Bool(Truth::Computed(all))])
}
