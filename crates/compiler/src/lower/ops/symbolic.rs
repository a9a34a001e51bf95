//! Integers, floats and truths that a program computes beside its tensors: sizes, mostly.

use coremill_mil::ir::{Constant, ValueId};
use coremill_mil::ops::OpKind;
use coremill_pt2::{Argument, Meta};
use coremill_tensor::DType;

use super::shape::to_sizes;
use crate::bounds::At;
use crate::error::{Refusal, refuse};
use crate::lower::builder::Arg;
use crate::lower::call::{Call, Results};
use crate::lower::dtype::is_float;
use crate::lower::row::{Row, all, some};
use crate::lower::value::{Int, Lowered, Real, Truth};

pub(super) const ROWS: &[Row] = &[
    some("aten.sym_size", &["int"], size),
    some("aten.size", &["int"], size),
    all("aten.sym_numel", elements),
    all("aten.item", item),
    all("aten._local_scalar_dense", item),
    all("aten.is_nonzero", is_nonzero),
    some("aten.sym_stride", &["int"], stride),
    all("aten.sym_storage_offset", |_| Ok(vec![Lowered::Int(Int::Known(0))])),
    all("_operator.add", |call| arithmetic(call, Arithmetic::Add)),
    all("_operator.sub", |call| arithmetic(call, Arithmetic::Sub)),
    all("_operator.mul", |call| arithmetic(call, Arithmetic::Mul)),
    all("_operator.floordiv", |call| arithmetic(call, Arithmetic::FloorDiv)),
    all("_operator.mod", |call| arithmetic(call, Arithmetic::Mod)),
    all("_operator.truediv", true_division),
    all("_operator.pow", power),
    all("_operator.neg", negated),
    all("_operator.pos", |call| Ok(vec![operand(call, 0)?])),
    all("_operator.eq", |call| comparison(call, OpKind::Equal)),
    all("_operator.ne", |call| comparison(call, OpKind::NotEqual)),
    all("_operator.lt", |call| comparison(call, OpKind::Less)),
    all("_operator.le", |call| comparison(call, OpKind::LessEqual)),
    all("_operator.gt", |call| comparison(call, OpKind::Greater)),
    all("_operator.ge", |call| comparison(call, OpKind::GreaterEqual)),
    all("_operator.and_", |call| logical(call, OpKind::LogicalAnd)),
    all("_operator.or_", |call| logical(call, OpKind::LogicalOr)),
    all("_operator.not_", not),
    all("torch.sym_not", not),
    all("torch.sym_max", |call| arithmetic(call, Arithmetic::Max)),
    all("torch.sym_min", |call| arithmetic(call, Arithmetic::Min)),
    all("torch.sym_int", |call| rounded(call, Rounding::Truncate)),
    all("torch.sym_float", float),
    all("torch.sym_ite", choice),
    all("torch.sym_sum", sum),
    all("torch._sym_sqrt", |call| function(call, f64::sqrt, Some(OpKind::Sqrt))),
    all("torch.sym_sqrt", |call| function(call, f64::sqrt, Some(OpKind::Sqrt))),
    all("math.trunc", |call| rounded(call, Rounding::Truncate)),
    all("math.floor", |call| rounded(call, Rounding::Floor)),
    all("math.ceil", |call| rounded(call, Rounding::Ceil)),
    all("math.sqrt", |call| function(call, f64::sqrt, Some(OpKind::Sqrt))),
    all("math.exp", |call| function(call, f64::exp, Some(OpKind::Exp))),
    all("math.sin", |call| function(call, f64::sin, Some(OpKind::Sin))),
    all("math.cos", |call| function(call, f64::cos, Some(OpKind::Cos))),
    all("math.log2", |call| function(call, f64::log2, None)),
    all("builtins.round", |call| rounded(call, Rounding::Nearest)),
    all("builtins.abs", absolute),
    all("builtins.max", |call| arithmetic(call, Arithmetic::Max)),
    all("builtins.min", |call| arithmetic(call, Arithmetic::Min)),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Arithmetic {
    Add,
    Sub,
    Mul,
    FloorDiv,
    Mod,
    Max,
    Min,
}

impl Arithmetic {
    fn kind(self) -> OpKind {
        match self {
            Arithmetic::Add => OpKind::Add,
            Arithmetic::Sub => OpKind::Sub,
            Arithmetic::Mul => OpKind::Mul,
            Arithmetic::FloorDiv => OpKind::FloorDiv,
            Arithmetic::Mod => OpKind::Mod,
            Arithmetic::Max => OpKind::Maximum,
            Arithmetic::Min => OpKind::Minimum,
        }
    }

    fn floats(self, left: f64, right: f64) -> f64 {
        match self {
            Arithmetic::Add => left + right,
            Arithmetic::Sub => left - right,
            Arithmetic::Mul => left * right,
            Arithmetic::FloorDiv => (left / right).floor(),
            Arithmetic::Mod => left - right * (left / right).floor(),
            Arithmetic::Max => left.max(right),
            Arithmetic::Min => left.min(right),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rounding {
    Truncate,
    Floor,
    Ceil,
    Nearest,
}

/// The argument at a position, of which functions of Python have no names.
fn operand(call: &mut Call<'_, '_>, at: usize) -> Result<Lowered, Refusal> {
    match call.node.arguments.get(at) {
        Some(argument) => call.lowered(argument),
        None => refuse!("argument {at} is missing"),
    }
}

/// A number as an integer, if it is one.
fn integer(lowered: &Lowered) -> Option<Int> {
    match lowered {
        Lowered::Int(int) => Some(*int),
        Lowered::Bool(Truth::Known(value)) => Some(Int::Known(i64::from(*value))),
        _ => None,
    }
}

/// A number as a float.
fn real(call: &mut Call<'_, '_>, lowered: &Lowered) -> Result<Real, Refusal> {
    Ok(match *lowered {
        Lowered::Float(real) => real,
        Lowered::Int(Int::Known(value)) => Real::Known(value as f64),
        Lowered::Int(Int::Computed(value)) => Real::Computed(call.cast(value, DType::Fp32)?),
        Lowered::Bool(Truth::Known(value)) => Real::Known(f64::from(u8::from(value))),
        Lowered::Bool(Truth::Computed(value)) => Real::Computed(call.cast(value, DType::Fp32)?),
        _ => refuse!("an operand is not a number"),
    })
}

fn float_arg(real: Real) -> Arg {
    match real {
        Real::Known(value) => (value as f32).into(),
        Real::Computed(value) => value.into(),
    }
}

fn given_float(value: ValueId) -> Results {
    Ok(vec![Lowered::Float(Real::Computed(value))])
}

fn arithmetic(call: &mut Call<'_, '_>, what: Arithmetic) -> Results {
    let (left, right) = (operand(call, 0)?, operand(call, 1)?);
    if let (Some(left), Some(right)) = (integer(&left), integer(&right)) {
        let int = match what {
            Arithmetic::Add => call.add_ints(left, right)?,
            Arithmetic::Sub => call.sub_ints(left, right)?,
            Arithmetic::Mul => call.mul_ints(left, right)?,
            Arithmetic::FloorDiv => call.floor_div_ints(left, right)?,
            Arithmetic::Mod => call.mod_ints(left, right)?,
            Arithmetic::Max => call.max_ints(left, right)?,
            Arithmetic::Min => call.min_ints(left, right)?,
        };
        return Ok(vec![Lowered::Int(int)]);
    }
    let (left, right) = (real(call, &left)?, real(call, &right)?);
    if let (Real::Known(left), Real::Known(right)) = (left, right) {
        return Ok(vec![Lowered::Float(Real::Known(what.floats(left, right)))]);
    }
    let value = call.binary(what.kind(), float_arg(left), float_arg(right))?;
    given_float(value)
}

fn true_division(call: &mut Call<'_, '_>) -> Results {
    let (left, right) = (operand(call, 0)?, operand(call, 1)?);
    let (left, right) = (real(call, &left)?, real(call, &right)?);
    if let (Real::Known(left), Real::Known(right)) = (left, right) {
        return Ok(vec![Lowered::Float(Real::Known(left / right))]);
    }
    let value = call.binary(OpKind::RealDiv, float_arg(left), float_arg(right))?;
    given_float(value)
}

fn power(call: &mut Call<'_, '_>) -> Results {
    let (base, exponent) = (operand(call, 0)?, operand(call, 1)?);
    if let (Some(base), Some(Int::Known(exponent @ 0..=16))) = (integer(&base), integer(&exponent))
    {
        let factors = vec![base; exponent as usize];
        return Ok(vec![Lowered::Int(call.product(&factors)?)]);
    }
    let (base, exponent) = (real(call, &base)?, real(call, &exponent)?);
    if let (Real::Known(base), Real::Known(exponent)) = (base, exponent) {
        return Ok(vec![Lowered::Float(Real::Known(base.powf(exponent)))]);
    }
    let value = call.binary(OpKind::Pow, float_arg(base), float_arg(exponent))?;
    give_number(call, value)
}

/// A computed number as what torch says that it is.
fn give_number(call: &mut Call<'_, '_>, value: ValueId) -> Results {
    if matches!(call.result_meta(0), Some(Meta::Int(_))) {
        let value = call.cast(value, DType::Int32)?;
        return Ok(vec![Lowered::Int(call.int_of(value))]);
    }
    given_float(value)
}

fn negated(call: &mut Call<'_, '_>) -> Results {
    let x = operand(call, 0)?;
    if let Some(int) = integer(&x) {
        return Ok(vec![Lowered::Int(call.mul_ints(int, Int::Known(-1))?)]);
    }
    match real(call, &x)? {
        Real::Known(value) => Ok(vec![Lowered::Float(Real::Known(-value))]),
        Real::Computed(value) => {
            let value = call.binary(OpKind::Mul, value, -1.0f32)?;
            given_float(value)
        }
    }
}

fn absolute(call: &mut Call<'_, '_>) -> Results {
    match operand(call, 0)? {
        Lowered::Int(Int::Known(value)) => Ok(vec![Lowered::Int(Int::Known(value.abs()))]),
        Lowered::Int(Int::Computed(value)) => {
            let value = call.unary(OpKind::Abs, value)?;
            Ok(vec![Lowered::Int(call.int_of(value))])
        }
        Lowered::Float(Real::Known(value)) => Ok(vec![Lowered::Float(Real::Known(value.abs()))]),
        Lowered::Float(Real::Computed(value)) => {
            let value = call.unary(OpKind::Abs, value)?;
            given_float(value)
        }
        _ => refuse!("takes the absolute value of what is not a number"),
    }
}

fn comparison(call: &mut Call<'_, '_>, kind: OpKind) -> Results {
    let (left, right) = (operand(call, 0)?, operand(call, 1)?);
    let truth = |ordering: std::cmp::Ordering| match kind {
        OpKind::Equal => ordering.is_eq(),
        OpKind::NotEqual => ordering.is_ne(),
        OpKind::Less => ordering.is_lt(),
        OpKind::LessEqual => ordering.is_le(),
        OpKind::Greater => ordering.is_gt(),
        _ => ordering.is_ge(),
    };
    if let (Some(left), Some(right)) = (integer(&left), integer(&right)) {
        if call.same_ints(left, right) {
            return Ok(vec![Lowered::Bool(Truth::Known(truth(std::cmp::Ordering::Equal)))]);
        }
        if let (Int::Known(left), Int::Known(right)) = (left, right) {
            return Ok(vec![Lowered::Bool(Truth::Known(truth(left.cmp(&right))))]);
        }
        let (left, right) = (call.int_value(left)?, call.int_value(right)?);
        let value = call.binary(kind, left, right)?;
        return Ok(vec![Lowered::Bool(Truth::Computed(value))]);
    }
    let (left, right) = (real(call, &left)?, real(call, &right)?);
    if let (Real::Known(left), Real::Known(right)) = (left, right) {
        let known = left.partial_cmp(&right).map_or(kind == OpKind::NotEqual, truth);
        return Ok(vec![Lowered::Bool(Truth::Known(known))]);
    }
    let value = call.binary(kind, float_arg(left), float_arg(right))?;
    Ok(vec![Lowered::Bool(Truth::Computed(value))])
}

/// A truth; numbers are true if they are not zero.
fn truth(call: &mut Call<'_, '_>, at: usize) -> Result<Truth, Refusal> {
    Ok(match operand(call, at)? {
        Lowered::Bool(truth) => truth,
        Lowered::Int(Int::Known(value)) => Truth::Known(value != 0),
        Lowered::Int(Int::Computed(value)) => Truth::Computed(call.cast(value, DType::Bool)?),
        _ => refuse!("operand {at} is neither true nor false"),
    })
}

fn truth_arg(truth: Truth) -> Arg {
    match truth {
        Truth::Known(value) => Constant::bool(value).into(),
        Truth::Computed(value) => value.into(),
    }
}

fn logical(call: &mut Call<'_, '_>, kind: OpKind) -> Results {
    let (left, right) = (truth(call, 0)?, truth(call, 1)?);
    let absorbing = kind == OpKind::LogicalOr;
    let result = match (left, right) {
        (Truth::Known(known), other) | (other, Truth::Known(known)) => {
            if known == absorbing {
                Truth::Known(known)
            } else {
                other
            }
        }
        (left, right) => Truth::Computed(call.binary(kind, truth_arg(left), truth_arg(right))?),
    };
    Ok(vec![Lowered::Bool(result)])
}

fn not(call: &mut Call<'_, '_>) -> Results {
    let result = match truth(call, 0)? {
        Truth::Known(value) => Truth::Known(!value),
        Truth::Computed(value) => Truth::Computed(call.unary(OpKind::LogicalNot, value)?),
    };
    Ok(vec![Lowered::Bool(result)])
}

fn float(call: &mut Call<'_, '_>) -> Results {
    let x = operand(call, 0)?;
    Ok(vec![Lowered::Float(real(call, &x)?)])
}

fn rounded(call: &mut Call<'_, '_>, rounding: Rounding) -> Results {
    let x = operand(call, 0)?;
    if let Some(int) = integer(&x) {
        return Ok(vec![Lowered::Int(int)]);
    }
    match real(call, &x)? {
        Real::Known(value) => {
            let value = match rounding {
                Rounding::Truncate => value.trunc(),
                Rounding::Floor => value.floor(),
                Rounding::Ceil => value.ceil(),
                Rounding::Nearest => value.round_ties_even(),
            };
            Ok(vec![Lowered::Int(Int::Known(value as i64))])
        }
        Real::Computed(value) => {
            let value = match rounding {
                // The cast cuts the fraction off.
                Rounding::Truncate => value,
                Rounding::Floor => call.unary(OpKind::Floor, value)?,
                Rounding::Ceil => call.unary(OpKind::Ceil, value)?,
                Rounding::Nearest => call.unary(OpKind::Round, value)?,
            };
            let value = call.cast(value, DType::Int32)?;
            Ok(vec![Lowered::Int(call.int_of(value))])
        }
    }
}

fn function(call: &mut Call<'_, '_>, known: fn(f64) -> f64, kind: Option<OpKind>) -> Results {
    let x = operand(call, 0)?;
    match (real(call, &x)?, kind) {
        (Real::Known(value), _) => Ok(vec![Lowered::Float(Real::Known(known(value)))]),
        (Real::Computed(value), Some(kind)) => {
            let value = call.unary(kind, value)?;
            given_float(value)
        }
        (Real::Computed(value), None) => {
            let natural = call
                .emit(OpKind::Log, [("x", value.into()), ("epsilon", f32::MIN_POSITIVE.into())])?;
            let value = call.binary(OpKind::Mul, natural, std::f32::consts::LOG2_E)?;
            given_float(value)
        }
    }
}

fn choice(call: &mut Call<'_, '_>) -> Results {
    let condition = truth(call, 0)?;
    let (yes, no) = (operand(call, 1)?, operand(call, 2)?);
    let condition = match condition {
        Truth::Known(true) => return Ok(vec![yes]),
        Truth::Known(false) => return Ok(vec![no]),
        Truth::Computed(value) => value,
    };
    if let (Some(yes), Some(no)) = (integer(&yes), integer(&no)) {
        let (yes, no) = (call.int_value(yes)?, call.int_value(no)?);
        let value = call.select(condition, yes, no)?;
        return Ok(vec![Lowered::Int(Int::Computed(value))]);
    }
    let (yes, no) = (real(call, &yes)?, real(call, &no)?);
    let value = call.select(condition, float_arg(yes), float_arg(no))?;
    given_float(value)
}

fn sum(call: &mut Call<'_, '_>) -> Results {
    let Some(Argument::List(items)) = call.node.arguments.first() else {
        refuse!("sums up what is not a list");
    };
    let mut total = Int::Known(0);
    for item in items {
        let lowered = call.lowered(item)?;
        let Some(int) = integer(&lowered) else { refuse!("sums up what is not an integer") };
        total = call.add_ints(total, int)?;
    }
    Ok(vec![Lowered::Int(total)])
}

/// The axis that a size is asked of, which a scalar has not.
fn sized_axis(call: &mut Call<'_, '_>, x: ValueId) -> Result<usize, Refusal> {
    match call.rank(x) {
        0 => refuse!("`self` is a scalar, which has no sizes"),
        rank => call.axis("dim", rank),
    }
}

fn size(call: &mut Call<'_, '_>) -> Results {
    let x = call.tensor("self")?.value;
    let axis = sized_axis(call, x)?;
    Ok(vec![Lowered::Int(call.dim(x, axis)?)])
}

fn elements(call: &mut Call<'_, '_>) -> Results {
    let x = call.tensor("self")?.value;
    let dims = call.dims(x)?;
    Ok(vec![Lowered::Int(call.product(&dims)?)])
}

/// Strides are those of a tensor without gaps: nothing else exists in Core ML.
fn stride(call: &mut Call<'_, '_>) -> Results {
    let x = call.tensor("self")?.value;
    let axis = sized_axis(call, x)?;
    let dims = call.dims(x)?;
    Ok(vec![Lowered::Int(call.product(dims.part(axis + 1..)?)?)])
}

fn item(call: &mut Call<'_, '_>) -> Results {
    let x = call.tensor("self")?;
    let scalar = to_sizes(call, x.value, &[])?;
    let known = call.folded(scalar).and_then(|folded| folded.only().cloned());
    Ok(vec![match call.dtype(scalar) {
        DType::Bool => Lowered::Bool(
            known.and_then(|it| it.bool()).map_or(Truth::Computed(scalar), Truth::Known),
        ),
        DType::Int32 => Lowered::Int(call.int_of(scalar)),
        _ if is_float(x.dtype) => Lowered::Float(
            known.and_then(|it| it.float()).map_or(Real::Computed(scalar), Real::Known),
        ),
        other => refuse!("a scalar of `{}` is not a number", other.name()),
    }])
}

fn is_nonzero(call: &mut Call<'_, '_>) -> Results {
    let x = call.tensor("self")?.value;
    let scalar = to_sizes(call, x, &[])?;
    let value = call.cast(scalar, DType::Bool)?;
    Ok(vec![Lowered::Bool(Truth::Computed(value))])
}
