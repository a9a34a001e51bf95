//! Functions of one number, element by element.

use coremill_mil::ir::ValueId;
use coremill_mil::ops::OpKind;
use coremill_pt2::ScalarType;
use coremill_tensor::DType;

use crate::error::{Refusal, refuse};
use crate::lower::builder::Builder;
use crate::lower::call::{Call, Results};
use crate::lower::row::{Row, all};

pub(crate) const ROWS: &[Row] = &[
    all("aten.abs", abs),
    all("aten.neg", neg),
    all("aten.sign", sign),
    all("aten.exp", |call| plain(call, OpKind::Exp)),
    all("aten.exp2", |call| plain(call, OpKind::Exp2)),
    all("aten.special_exp2", |call| plain(call, OpKind::Exp2)),
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
    all("aten.special_erfc", |call| mapped(call, erfc)),
    all("aten.log", |call| mapped(call, |b, x| b.log(x, 0.0))),
    all("aten.log1p", |call| mapped(call, |b, x| b.log(x, 1.0))),
    all("aten.log2", |call| mapped(call, |b, x| log_to(b, x, std::f32::consts::LOG2_E))),
    all("aten.log10", |call| mapped(call, |b, x| log_to(b, x, std::f32::consts::LOG10_E))),
    all("aten.rsqrt", |call| mapped(call, Builder::rsqrt)),
    all("aten.reciprocal", |call| mapped(call, Builder::reciprocal)),
    all("aten.special_sinc", |call| mapped(call, sinc)),
    all("aten.square", square),
    all("aten.ceil", |call| whole(call, |b, x| b.unary(OpKind::Ceil, x))),
    all("aten.floor", |call| whole(call, |b, x| b.unary(OpKind::Floor, x))),
    all("aten.trunc", |call| whole(call, Builder::trunc)),
    all("aten.round", round),
    all("aten.nan_to_num", nan_to_num),
    all("aten.asinh", |call| mapped(call, Builder::asinh)),
    all("aten.acosh", |call| mapped(call, acosh)),
    all("aten.expm1", |call| mapped(call, expm1)),
    all("aten.logit", logit),
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

fn erfc(builder: &mut Builder, x: ValueId) -> Result<ValueId, Refusal> {
    let erf = builder.unary(OpKind::Erf, x)?;
    builder.binary(OpKind::Sub, 1.0_f32, erf)
}

/// The logarithm to a base of which the natural logarithm is `1 / factor`.
fn log_to(builder: &mut Builder, x: ValueId, factor: f32) -> Result<ValueId, Refusal> {
    let log = builder.log(x, 0.0)?;
    builder.times(log, factor)
}

fn sinc(builder: &mut Builder, x: ValueId) -> Result<ValueId, Refusal> {
    let angle = builder.times(x, std::f32::consts::PI)?;
    let sine = builder.unary(OpKind::Sin, angle)?;
    let ratio = builder.binary(OpKind::RealDiv, sine, angle)?;
    let zero = builder.binary(OpKind::Equal, x, 0.0_f32)?;
    builder.select(zero, 1.0_f32, ratio)
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

/// To the nearest whole number or decimal, ties to the even one.
fn round(call: &mut Call<'_, '_>) -> Results {
    let decimals = if call.has("decimals") { call.known_int("decimals")? } else { 0 };
    whole(call, |builder, x| {
        let scale = 10_f64.powi(decimals.unsigned_abs().min(38) as i32) as f32;
        let (up, down) = match decimals {
            0 => return builder.unary(OpKind::Round, x),
            1.. => (OpKind::Mul, OpKind::RealDiv),
            _ => (OpKind::RealDiv, OpKind::Mul),
        };
        let scaled = builder.binary(up, x, scale)?;
        let rounded = builder.unary(OpKind::Round, scaled)?;
        builder.binary(down, rounded, scale)
    })
}

/// The largest finite number of a type of floats.
pub(crate) fn largest_finite(dtype: ScalarType) -> f32 {
    match dtype {
        ScalarType::Float16 => 65504.0,
        ScalarType::BFloat16 => f32::from_bits(0x7f7f_0000),
        _ => f32::MAX,
    }
}

fn nan_to_num(call: &mut Call<'_, '_>) -> Results {
    let x = call.tensor("self")?;
    if call.dtype(x.value) != DType::Fp32 {
        return call.give(x.value);
    }
    let for_nan = call.optional_float("nan")?.unwrap_or(0.0) as f32;
    let (above, below) = (call.optional_float("posinf")?, call.optional_float("neginf")?);
    let number = call.binary(OpKind::Equal, x.value, x.value)?;
    let y = call.select(number, x.value, for_nan)?;
    let largest = largest_finite(x.dtype);
    if above.is_none() && below.is_none() {
        let y = call.clip(y, -largest, largest)?;
        return call.give(y);
    }
    let above = above.map_or(largest, |above| above as f32);
    let below = below.map_or(-largest, |below| below as f32);
    let highest = call.binary(OpKind::Equal, x.value, f32::INFINITY)?;
    let y = call.select(highest, above, y)?;
    let lowest = call.binary(OpKind::Equal, x.value, f32::NEG_INFINITY)?;
    let y = call.select(lowest, below, y)?;
    call.give(y)
}

impl Builder {
    /// `√(x² + 1)` without squares of large numbers: the larger of |x| and 1, times what the smaller one adds.
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
        let log = self.log(sum, 0.0)?;
        let sign = self.unary(OpKind::Sign, x)?;
        self.binary(OpKind::Mul, log, sign)
    }
}

/// `log(x + √(x − 1) · √(x + 1))`, in which nothing is squared.
fn acosh(builder: &mut Builder, x: ValueId) -> Result<ValueId, Refusal> {
    let below = builder.binary(OpKind::Sub, x, 1.0_f32)?;
    let below = builder.unary(OpKind::Sqrt, below)?;
    let above = builder.binary(OpKind::Add, x, 1.0_f32)?;
    let above = builder.unary(OpKind::Sqrt, above)?;
    let root = builder.binary(OpKind::Mul, below, above)?;
    let sum = builder.binary(OpKind::Add, x, root)?;
    builder.log(sum, 0.0)
}

fn expm1(builder: &mut Builder, x: ValueId) -> Result<ValueId, Refusal> {
    let power = builder.unary(OpKind::Exp, x)?;
    builder.binary(OpKind::Sub, power, 1.0_f32)
}

/// `log(x / (1 − x))`, of `x` between `eps` and `1 − eps`.
fn logit(call: &mut Call<'_, '_>) -> Results {
    let mut x = call.float_tensor("self")?;
    if let Some(epsilon) = call.optional_float("eps")? {
        if !(0.0..=0.5).contains(&epsilon) {
            refuse!("`eps` of `logit` is {epsilon}; from 0 to 0.5 is accepted");
        }
        x = call.clip(x, epsilon as f32, (1.0 - epsilon) as f32)?;
    }
    let rest = call.binary(OpKind::Sub, 1.0_f32, x)?;
    let odds = call.binary(OpKind::RealDiv, x, rest)?;
    let y = call.log(odds, 0.0)?;
    call.give(y)
}
