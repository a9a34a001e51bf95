//! Numbers computed by the program, mostly sizes.

use std::cmp::Ordering;

use coremill_pt2::{Argument, Meta};

use super::control_flow::predicate;
use crate::lower::prelude::*;

pub(super) const ROWS: &[Row] = &[
    number("aten.{,sym_}size", size).only(&["int"]),
    number("aten.sym_numel", elements),
    number("aten.{item,_local_scalar_dense}", item),
    number("aten.is_nonzero", is_nonzero),
    number("aten.sym_stride", stride).only(&["int"]),
    number("aten.sym_storage_offset", |_| Ok(LoweredValue::Number(Number::ZERO))),
    number("_operator.{add,sub,mul,mod}", |call| arithmetic(call, call.matching_op()?)),
    number("{torch.sym_,builtins.}{max,min}", |call| arithmetic(call, call.matching_op()?)),
    number("_operator.floordiv", |call| arithmetic(call, OpKind::FloorDiv)),
    number("_operator.truediv", |call| floats(call, OpKind::RealDiv)),
    number("_operator.pow", power),
    number("_operator.neg", negated),
    number("_operator.pos", |call| Ok(LoweredValue::Number(operand(call, 0)?))),
    number("_operator.{eq,ne,lt,le,gt,ge}", comparison),
    number("_operator.and_", |call| logical(call, OpKind::LogicalAnd)),
    number("_operator.or_", |call| logical(call, OpKind::LogicalOr)),
    number("{_operator.not_,torch.sym_not}", not),
    number("{torch.sym_int,math.trunc}", |call| rounded(call, f64::trunc, None)),
    number("torch.sym_float", float),
    number("torch.sym_ite", choice),
    number("torch.sym_sum", sum),
    number("math.floor", |call| rounded(call, f64::floor, Some(OpKind::Floor))),
    number("math.ceil", |call| rounded(call, f64::ceil, Some(OpKind::Ceil))),
    number("{torch._sym_,torch.sym_,math.}sqrt", |call| function(call, f64::sqrt, OpKind::Sqrt)),
    number("math.exp", |call| function(call, f64::exp, OpKind::Exp)),
    number("math.sin", |call| function(call, f64::sin, OpKind::Sin)),
    number("math.cos", |call| function(call, f64::cos, OpKind::Cos)),
    number("math.log2", logarithm),
    number("builtins.round", |call| rounded(call, f64::round_ties_even, Some(OpKind::Round))),
    number("builtins.abs", absolute),
];

/// A lowered number.
type SymbolicResult = Result<LoweredValue>;

/// A number argument by position, as parameters of Python functions have no names.
fn operand(call: &mut Call<'_, '_>, at: usize) -> Result<Number> {
    let Some(argument) = call.node.arguments.get(at) else { refuse!("argument {at} is missing") };
    match call.lowered(argument)?.number() {
        Some(number) => Ok(number),
        None => refuse!("argument {at} is not a number"),
    }
}

/// Converts a number to a float.
fn real(call: &mut Call<'_, '_>, number: Number) -> Result<Real> {
    if let Some(known) = number.known() {
        return Ok(Real::Known(known));
    }
    let value = call.number_value(number)?;
    Ok(Real::Computed(call.cast(value, DType::Fp32)?))
}

/// Returns a computed number, as an integer if torch declares one, else as a float.
fn give_number(call: &mut Call<'_, '_>, value: ValueId) -> SymbolicResult {
    if matches!(call.result_meta(0), Some(Meta::Int(_))) {
        let value = call.cast(value, DType::Int32)?;
        return Ok(call.int_of(value).into());
    }
    Ok(Real::Computed(value).into())
}

fn arithmetic(call: &mut Call<'_, '_>, kind: OpKind) -> SymbolicResult {
    let (left, right) = (operand(call, 0)?, operand(call, 1)?);
    match (left.int(), right.int()) {
        (Some(left), Some(right)) => Ok(call.int_op(kind, left, right)?.into()),
        _ => floats(call, kind),
    }
}

fn floats(call: &mut Call<'_, '_>, kind: OpKind) -> SymbolicResult {
    let (left, right) = (operand(call, 0)?, operand(call, 1)?);
    let (left, right) = (real(call, left)?, real(call, right)?);
    if let (Real::Known(left), Real::Known(right)) = (left, right) {
        let known = match kind {
            OpKind::Add => left + right,
            OpKind::Sub => left - right,
            OpKind::Mul => left * right,
            OpKind::RealDiv => left / right,
            OpKind::FloorDiv => (left / right).floor(),
            OpKind::Mod => left - right * (left / right).floor(),
            OpKind::Maximum => left.max(right),
            OpKind::Minimum => left.min(right),
            _ => left.powf(right),
        };
        return Ok(Real::Known(known).into());
    }
    let value = call.binary(kind, left, right)?;
    if kind == OpKind::Pow { give_number(call, value) } else { Ok(Real::Computed(value).into()) }
}

fn power(call: &mut Call<'_, '_>) -> SymbolicResult {
    let (base, exponent) = (operand(call, 0)?, operand(call, 1)?);
    match (base.int(), exponent.int()) {
        (Some(base), Some(Int::Known(exponent @ 0..=16))) => {
            Ok(call.product(&vec![base; exponent as usize])?.into())
        }
        _ => floats(call, OpKind::Pow),
    }
}

fn negated(call: &mut Call<'_, '_>) -> SymbolicResult {
    let x = operand(call, 0)?;
    if let Some(int) = x.int() {
        return Ok(call.mul_ints(int, Int::Known(-1))?.into());
    }
    Ok(match real(call, x)? {
        Real::Known(value) => Real::Known(-value).into(),
        Real::Computed(value) => Real::Computed(call.scaled(value, -1.0)?).into(),
    })
}

fn absolute(call: &mut Call<'_, '_>) -> SymbolicResult {
    match operand(call, 0)?.int() {
        Some(Int::Known(value)) => Ok(Int::Known(value.abs()).into()),
        Some(Int::Computed(value)) => {
            let value = call.unary(OpKind::Abs, value)?;
            Ok(call.int_of(value).into())
        }
        None => function(call, f64::abs, OpKind::Abs),
    }
}

fn comparison(call: &mut Call<'_, '_>) -> SymbolicResult {
    let (left, right, kind) = (operand(call, 0)?, operand(call, 1)?, call.matching_op()?);
    let truth = |ordering: Ordering| match kind {
        OpKind::Equal => ordering.is_eq(),
        OpKind::NotEqual => ordering.is_ne(),
        OpKind::Less => ordering.is_lt(),
        OpKind::LessEqual => ordering.is_le(),
        OpKind::Greater => ordering.is_gt(),
        _ => ordering.is_ge(),
    };
    if let (Some(left), Some(right)) = (left.int(), right.int()) {
        if call.same_ints(left, right) {
            return Ok(Truth::Known(truth(Ordering::Equal)).into());
        }
        if let (Int::Known(left), Int::Known(right)) = (left, right) {
            return Ok(Truth::Known(truth(left.cmp(&right))).into());
        }
        let (left, right) = (call.int_value(left)?, call.int_value(right)?);
        return Ok(Truth::Computed(call.binary(kind, left, right)?).into());
    }
    let (left, right) = (real(call, left)?, real(call, right)?);
    if let (Real::Known(left), Real::Known(right)) = (left, right) {
        let known = left.partial_cmp(&right).map_or(kind == OpKind::NotEqual, truth);
        return Ok(Truth::Known(known).into());
    }
    Ok(Truth::Computed(call.binary(kind, left, right)?).into())
}

fn truth(call: &mut Call<'_, '_>, at: usize) -> Result<Truth> {
    let operand = LoweredValue::Number(operand(call, at)?);
    predicate(call, &operand)
}

fn logical(call: &mut Call<'_, '_>, kind: OpKind) -> SymbolicResult {
    let absorbing = kind == OpKind::LogicalOr;
    Ok(match (truth(call, 0)?, truth(call, 1)?) {
        (Truth::Known(known), other) | (other, Truth::Known(known)) => {
            if known == absorbing {
                Truth::Known(known)
            } else {
                other
            }
        }
        (left, right) => Truth::Computed(call.binary(kind, left, right)?),
    }
    .into())
}

fn not(call: &mut Call<'_, '_>) -> SymbolicResult {
    Ok(match truth(call, 0)? {
        Truth::Known(value) => Truth::Known(!value),
        Truth::Computed(value) => Truth::Computed(call.unary(OpKind::LogicalNot, value)?),
    }
    .into())
}

fn float(call: &mut Call<'_, '_>) -> SymbolicResult {
    let x = operand(call, 0)?;
    Ok(real(call, x)?.into())
}

/// Rounds a number to an integer. Without an operation, the cast truncates.
fn rounded(call: &mut Call<'_, '_>, known: fn(f64) -> f64, kind: Option<OpKind>) -> SymbolicResult {
    let x = operand(call, 0)?;
    if let Some(int) = x.int() {
        return Ok(int.into());
    }
    match real(call, x)? {
        Real::Known(value) => Ok(Int::Known(known(value) as i64).into()),
        Real::Computed(value) => {
            let whole = kind.map_or(Ok(value), |kind| call.unary(kind, value))?;
            let value = call.cast(whole, DType::Int32)?;
            Ok(call.int_of(value).into())
        }
    }
}

fn function(call: &mut Call<'_, '_>, known: fn(f64) -> f64, kind: OpKind) -> SymbolicResult {
    let x = operand(call, 0)?;
    Ok(match real(call, x)? {
        Real::Known(value) => Real::Known(known(value)),
        Real::Computed(value) => Real::Computed(call.unary(kind, value)?),
    }
    .into())
}

fn logarithm(call: &mut Call<'_, '_>) -> SymbolicResult {
    let x = operand(call, 0)?;
    Ok(match real(call, x)? {
        Real::Known(value) => Real::Known(value.log2()),
        Real::Computed(value) => {
            let natural = call.log(value, f32::MIN_POSITIVE)?;
            Real::Computed(call.times(natural, std::f32::consts::LOG2_E)?)
        }
    }
    .into())
}

fn choice(call: &mut Call<'_, '_>) -> SymbolicResult {
    let condition = truth(call, 0)?;
    let (yes, no) = (operand(call, 1)?, operand(call, 2)?);
    let condition = match condition {
        Truth::Known(known) => return Ok(LoweredValue::Number(if known { yes } else { no })),
        Truth::Computed(value) => value,
    };
    if let (Some(yes), Some(no)) = (yes.int(), no.int()) {
        let (yes, no) = (call.int_value(yes)?, call.int_value(no)?);
        return Ok(Int::Computed(call.select(condition, yes, no)?).into());
    }
    let (yes, no) = (real(call, yes)?, real(call, no)?);
    Ok(Real::Computed(call.select(condition, yes, no)?).into())
}

fn sum(call: &mut Call<'_, '_>) -> SymbolicResult {
    let Some(Argument::List(items)) = call.node.arguments.first() else {
        refuse!("the operand of a sum is not a list");
    };
    let mut total = Int::Known(0);
    for item in items {
        let Some(int) = call.lowered(item)?.number().and_then(Number::int) else {
            refuse!("the operand of a sum is not an integer");
        };
        total = call.add_ints(total, int)?;
    }
    Ok(total.into())
}

/// Axis of a size query; a scalar has none.
fn sized_axis(call: &mut Call<'_, '_>, x: ValueId) -> Result<usize> {
    match call.rank(x) {
        0 => refuse!("`self` is a scalar and has no sizes"),
        rank => call.axis("dim", rank),
    }
}

fn size(call: &mut Call<'_, '_>) -> SymbolicResult {
    let x = call.value("self")?;
    let axis = sized_axis(call, x)?;
    Ok(call.dim(x, axis)?.into())
}

fn elements(call: &mut Call<'_, '_>) -> SymbolicResult {
    let x = call.value("self")?;
    let dims = call.dims(x)?;
    Ok(call.product(&dims)?.into())
}

/// Strides of a contiguous tensor, as Core ML has no others.
fn stride(call: &mut Call<'_, '_>) -> SymbolicResult {
    let x = call.value("self")?;
    let axis = sized_axis(call, x)?;
    let dims = call.dims(x)?;
    Ok(call.product(dims.part(axis + 1..)?)?.into())
}

fn item(call: &mut Call<'_, '_>) -> SymbolicResult {
    let x = call.tensor("self")?;
    let scalar = call.with_sizes(x.value, &[])?;
    let known = call.folded(scalar).and_then(|folded| folded.only().cloned());
    Ok(match call.dtype(scalar) {
        DType::Bool => {
            known.and_then(|it| it.bool()).map_or(Truth::Computed(scalar), Truth::Known).into()
        }
        DType::Int32 => call.int_of(scalar).into(),
        _ if is_float(x.dtype) => {
            known.and_then(|it| it.float()).map_or(Real::Computed(scalar), Real::Known).into()
        }
        other => refuse!("a scalar of `{}` is not a number", other.name()),
    })
}

fn is_nonzero(call: &mut Call<'_, '_>) -> SymbolicResult {
    let x = call.value("self")?;
    let scalar = call.with_sizes(x, &[])?;
    Ok(Truth::Computed(call.cast(scalar, DType::Bool)?).into())
}
