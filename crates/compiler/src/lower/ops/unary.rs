//! Functions of one number, element by element.

use coremill_mil::ir::ValueId;
use coremill_mil::ops::OpKind;
use coremill_pt2::ScalarType;
use coremill_tensor::DType;

use crate::error::Refusal;
use crate::lower::builder::Builder;
use crate::lower::call::{Call, Results};
use crate::lower::row::{Row, all, some};

pub(crate) const ROWS: &[Row] = &[
    all("aten.abs", abs),
    all("aten.neg", neg),
    all("aten.sign", sign),
    all("aten.exp", |call| plain(call, OpKind::Exp)),
    all("aten.sqrt", |call| plain(call, OpKind::Sqrt)),
    all("aten.sin", |call| plain(call, OpKind::Sin)),
    all("aten.cos", |call| plain(call, OpKind::Cos)),
    all("aten.tan", |call| plain(call, OpKind::Tan)),
    all("aten.asin", |call| plain(call, OpKind::Asin)),
    all("aten.acos", |call| plain(call, OpKind::Acos)),
    all("aten.atan", |call| plain(call, OpKind::Atan)),
    all("aten.sinh", |call| plain(call, OpKind::Sinh)),
    all("aten.cosh", |call| plain(call, OpKind::Cosh)),
    all("aten.tanh", |call| plain(call, OpKind::Tanh)),
    all("aten.atanh", |call| plain(call, OpKind::Atanh)),
    all("aten.erf", |call| plain(call, OpKind::Erf)),
    all("aten.sigmoid", |call| plain(call, OpKind::Sigmoid)),
    all("aten.log", |call| mapped(call, |b, x| b.log(x, 0.0))),
    all("aten.log1p", |call| mapped(call, Builder::log1p)),
    all("aten.rsqrt", |call| mapped(call, Builder::rsqrt)),
    all("aten.reciprocal", |call| mapped(call, Builder::reciprocal)),
    all("aten.square", square),
    all("aten.ceil", |call| whole(call, |b, x| b.unary(OpKind::Ceil, x))),
    all("aten.floor", |call| whole(call, |b, x| b.unary(OpKind::Floor, x))),
    all("aten.trunc", |call| whole(call, Builder::trunc)),
    some("aten.round", &["default"], |call| whole(call, |b, x| b.unary(OpKind::Round, x))),
    all("aten.asinh", |call| mapped(call, Builder::asinh)),
];

/// A function of floats; integers become floats first.
pub(crate) fn mapped(
    call: &mut Call<'_, '_>,
    f: impl Fn(&mut Builder, ValueId) -> Result<ValueId, Refusal>,
) -> Results {
    let x = call.float_tensor("self")?;
    let y = f(call, x)?;
    call.give(y)
}

fn plain(call: &mut Call<'_, '_>, kind: OpKind) -> Results {
    mapped(call, |builder, x| builder.unary(kind, x))
}

/// A function that changes no integer.
fn whole(
    call: &mut Call<'_, '_>,
    f: impl Fn(&mut Builder, ValueId) -> Result<ValueId, Refusal>,
) -> Results {
    let x = call.tensor("self")?.value;
    let y = if call.dtype(x) == DType::Fp32 { f(call, x)? } else { x };
    call.give(y)
}

fn abs(call: &mut Call<'_, '_>) -> Results {
    let x = call.tensor("self")?;
    if call.dtype(x.value) == DType::Bool {
        return call.give(x.value);
    }
    let y = call.unary(OpKind::Abs, x.value)?;
    let y = call.wrapped_if_signed(y, x.dtype)?;
    call.give(y)
}

impl Builder {
    /// The magnitude of the smallest integer of a signed type is beyond the largest.
    fn wrapped_if_signed(&mut self, value: ValueId, dtype: ScalarType) -> Result<ValueId, Refusal> {
        match dtype {
            ScalarType::Int8 | ScalarType::Int16 => self.wrapped(value, dtype),
            _ => Ok(value),
        }
    }

    /// `x · factor`.
    pub(crate) fn times(&mut self, x: ValueId, factor: f32) -> Result<ValueId, Refusal> {
        if factor == 1.0 { Ok(x) } else { self.binary(OpKind::Mul, x, factor) }
    }
}

fn neg(call: &mut Call<'_, '_>) -> Results {
    let x = call.tensor("self")?;
    let y = if call.dtype(x.value) == DType::Int32 {
        let y = call.binary(OpKind::Mul, x.value, -1)?;
        call.wrapped(y, x.dtype)?
    } else {
        call.times(x.value, -1.0)?
    };
    call.give(y)
}

fn sign(call: &mut Call<'_, '_>) -> Results {
    let x = call.tensor("self")?;
    if call.dtype(x.value) == DType::Bool {
        return call.give(x.value);
    }
    let mut y = call.unary(OpKind::Sign, x.value)?;
    if call.dtype(x.value) == DType::Fp32 {
        // NaN has the sign 0 in torch.
        let number = call.binary(OpKind::Equal, x.value, x.value)?;
        y = call.select(number, y, 0.0_f32)?;
    }
    call.give(y)
}

fn square(call: &mut Call<'_, '_>) -> Results {
    let x = call.tensor("self")?;
    let result = call.result_dtype()?;
    let value = call.cast_to(x.value, result)?;
    let y = call.unary(OpKind::Square, value)?;
    let y = call.wrapped(y, result)?;
    call.give(y)
}

impl Builder {
    /// `log(x + 1)`. What the sum loses of a small number is added to its logarithm; where it loses nothing, which
    /// includes infinity and −1, the logarithm is right as it is.
    fn log1p(&mut self, x: ValueId) -> Result<ValueId, Refusal> {
        let sum = self.binary(OpKind::Add, x, 1.0_f32)?;
        let kept = self.binary(OpKind::Sub, sum, 1.0_f32)?;
        let log = self.log(sum, 0.0)?;
        let lost = self.binary(OpKind::Sub, x, kept)?;
        let rest = self.binary(OpKind::RealDiv, lost, sum)?;
        let whole = self.binary(OpKind::Add, log, rest)?;
        let is_exact = self.binary(OpKind::Equal, x, kept)?;
        self.select(is_exact, log, whole)
    }

    /// `log(|x| + √(x² + 1))` with the sign of `x`. Nothing large is squared: the root is the larger of |x| and 1, times
    /// what the smaller one adds. Of a small number, it is what exceeds 1 that counts.
    fn asinh(&mut self, x: ValueId) -> Result<ValueId, Refusal> {
        let magnitude = self.unary(OpKind::Abs, x)?;
        let larger = self.binary(OpKind::Maximum, magnitude, 1.0_f32)?;
        let smaller = self.binary(OpKind::Minimum, magnitude, 1.0_f32)?;
        let ratio = self.binary(OpKind::RealDiv, smaller, larger)?;
        let square = self.unary(OpKind::Square, ratio)?;
        let sum = self.binary(OpKind::Add, square, 1.0_f32)?;
        let root = self.unary(OpKind::Sqrt, sum)?;
        let root = self.binary(OpKind::Mul, root, larger)?;
        let sum = self.binary(OpKind::Add, magnitude, root)?;
        let far = self.binary(OpKind::Sub, sum, 1.0_f32)?;
        let divisor = self.binary(OpKind::Add, root, 1.0_f32)?;
        let excess = self.binary(OpKind::RealDiv, square, divisor)?;
        let near = self.binary(OpKind::Add, magnitude, excess)?;
        let is_small = self.binary(OpKind::Less, magnitude, 1.0_f32)?;
        let argument = self.select(is_small, near, far)?;
        let log = self.log1p(argument)?;
        let sign = self.unary(OpKind::Sign, x)?;
        self.binary(OpKind::Mul, log, sign)
    }
}
