//! Elementwise functions of one operand.

use crate::lower::prelude::*;

pub(crate) const ROWS: &[Row] = &[
    tensor("aten.abs", abs),
    tensor("aten.neg", neg),
    tensor("aten.sign", sign),
    tensor(
        "aten.{exp,sqrt,sin,cos,tan,asin,acos,atan,sinh,cosh,tanh,atanh,erf,sigmoid,silu}",
        plain,
    ),
    tensor("aten.log", |call| mapped(call, |b, x| b.log(x, 0.0))),
    tensor("aten.log1p", |call| mapped(call, Builder::log1p)),
    tensor("aten.rsqrt", |call| mapped(call, |b, x| b.reciprocal_root(x, 0.0))),
    tensor("aten.reciprocal", |call| mapped(call, Builder::reciprocal)),
    tensor("aten.square", square),
    tensor("aten.trunc", |call| whole(call, Builder::trunc)),
    tensor("aten.{ceil,floor,round}", |call| {
        let kind = call.matching_op()?;
        whole(call, |builder, x| builder.unary(kind, x))
    })
    .only(&["default"]),
    tensor("aten.asinh", |call| mapped(call, Builder::asinh)),
];

/// A function of floats; integers are converted first.
pub(crate) fn mapped(
    call: &mut Call<'_, '_>,
    f: impl Fn(&mut Builder, ValueId) -> ValueResult,
) -> ValueResult {
    let x = call.float_tensor("self")?;
    f(call, x)
}

fn plain(call: &mut Call<'_, '_>) -> ValueResult {
    let (x, kind) = (call.float_tensor("self")?, call.matching_op()?);
    call.unary(kind, x)
}

/// A function that does not change integers.
fn whole(call: &mut Call<'_, '_>, f: impl Fn(&mut Builder, ValueId) -> ValueResult) -> ValueResult {
    let x = call.value("self")?;
    if call.dtype(x) == DType::Fp32 { f(call, x) } else { Ok(x) }
}

fn abs(call: &mut Call<'_, '_>) -> ValueResult {
    let x = call.tensor("self")?;
    if call.dtype(x.value) == DType::Bool {
        return Ok(x.value);
    }
    let y = call.unary(OpKind::Abs, x.value)?;
    match x.dtype {
        // The magnitude of the smallest integer overflows.
        ScalarType::Int8 | ScalarType::Int16 => call.wrapped(y, x.dtype),
        _ => Ok(y),
    }
}

impl Builder {
    /// `x · factor`.
    pub(crate) fn times(&mut self, x: ValueId, factor: f32) -> ValueResult {
        self.scaled(x, f64::from(factor))
    }
}

fn neg(call: &mut Call<'_, '_>) -> ValueResult {
    let x = call.tensor("self")?;
    let y = call.scaled(x.value, -1.0)?;
    call.wrapped(y, x.dtype)
}

fn sign(call: &mut Call<'_, '_>) -> ValueResult {
    let x = call.value("self")?;
    let dtype = call.dtype(x);
    if dtype == DType::Bool {
        return Ok(x);
    }
    let y = call.unary(OpKind::Sign, x)?;
    if dtype != DType::Fp32 {
        return Ok(y);
    }
    // In torch, the sign of NaN is 0.
    calc!(call, "where(x == x, y, 0.0)", x, y)
}

fn square(call: &mut Call<'_, '_>) -> ValueResult {
    let x = call.value("self")?;
    let result = call.result_dtype()?;
    let value = call.cast_to(x, result)?;
    let y = call.unary(OpKind::Square, value)?;
    call.wrapped(y, result)
}

impl Builder {
    /// `log(x + 1)`. The rounding error of the sum is added to its logarithm. If the sum is exact, which includes
    /// infinity and −1, the logarithm needs no correction.
    fn log1p(&mut self, x: ValueId) -> ValueResult {
        let formula = "sum = x + 1.0; kept = sum - 1.0; log = log(sum); whole = log + (x - kept) / sum; \
                       where(x == kept, log, whole)";
        calc!(self, formula, x)
    }

    /// `log(|x| + √(x² + 1))` with the sign of `x`. To avoid overflow, the root is the larger of |x| and 1 times a
    /// factor. For small `x`, only the excess over 1 is computed, to keep precision.
    fn asinh(&mut self, x: ValueId) -> ValueResult {
        let formula = "size = abs(x); larger = max(size, 1.0); square = square(min(size, 1.0) / larger); \
                       root = sqrt(square + 1.0) * larger; far = size + root - 1.0; \
                       near = size + square / (root + 1.0); where(size < 1.0, near, far)";
        let beyond = calc!(self, formula, x)?;
        let log = self.log1p(beyond)?;
        calc!(self, "log * sign(x)", log, x)
    }
}
