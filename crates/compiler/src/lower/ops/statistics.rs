//! Variances, norms, distances and what else is put together from reductions.

use coremill_mil::ir::ValueId;
use coremill_mil::ops::OpKind;
use coremill_tensor::DType;

use super::reduction::Axes;
use crate::error::Refusal;
use crate::lower::builder::Builder;
use crate::lower::call::{Call, Results};
use crate::lower::row::{Row, all};
use crate::lower::value::Int;

pub(crate) const ROWS: &[Row] = &[
    all("aten.var", |call| spread(call, false, false)),
    all("aten.std", |call| spread(call, true, false)),
    all("aten.var_mean", |call| spread(call, false, true)),
    all("aten.std_mean", |call| spread(call, true, true)),
    all("aten.linalg_vector_norm", norm),
];

/// How many elements less than there are the squares are divided by.
fn correction(call: &mut Call<'_, '_>) -> Result<f64, Refusal> {
    if call.node.argument("unbiased").is_some() {
        return Ok(f64::from(u8::from(call.flag("unbiased")?)));
    }
    Ok(call.optional_float("correction")?.unwrap_or(1.0))
}

fn spread(call: &mut Call<'_, '_>, root: bool, with_mean: bool) -> Results {
    let x = call.float_tensor("self")?;
    let axes = call.reduced_axes(call.rank(x))?;
    let correction = correction(call)?;
    let kept = Axes { axes: axes.axes.clone(), keep: true };
    let mean = call.reduce(OpKind::ReduceMean, x, &kept)?;
    let gap = call.binary(OpKind::Sub, x, mean)?;
    let square = call.unary(OpKind::Square, gap)?;
    let mut variance = call.reduce(OpKind::ReduceMean, square, &axes)?;
    if correction != 0.0 {
        variance = corrected(call, variance, x, &axes, correction)?;
    }
    if root {
        variance = call.unary(OpKind::Sqrt, variance)?;
    }
    if !with_mean {
        return call.give(variance);
    }
    let mean = if axes.keep {
        mean
    } else {
        let named: Vec<_> = axes.axes.iter().map(|&axis| axis as i32).collect();
        call.squeeze(mean, &named)?
    };
    call.give_all(&[variance, mean])
}

/// A mean of `n` as if it were divided by `n − correction`.
fn corrected(
    builder: &mut Builder,
    mean: ValueId,
    x: ValueId,
    axes: &Axes,
    correction: f64,
) -> Result<ValueId, Refusal> {
    match builder.group_size(x, axes)? {
        Int::Known(count) => {
            let count = count as f64;
            let factor = count / (count - correction).max(0.0);
            builder.binary(OpKind::Mul, mean, factor as f32)
        }
        Int::Computed(count) => {
            let count = builder.cast(count, DType::Fp32)?;
            let rest = builder.binary(OpKind::Sub, count, correction as f32)?;
            let rest = builder.binary(OpKind::Maximum, rest, 0.0_f32)?;
            let factor = builder.binary(OpKind::RealDiv, count, rest)?;
            builder.binary(OpKind::Mul, mean, factor)
        }
    }
}

fn norm(call: &mut Call<'_, '_>) -> Results {
    let value = call.float_tensor("self")?;
    let order = call.float("ord")?;
    let axes = call.reduced_axes(call.rank(value))?;
    let y = call.norm(value, order, &axes)?;
    call.give(y)
}

impl Builder {
    /// A norm of that order along axes.
    pub(crate) fn norm(&mut self, x: ValueId, order: f64, axes: &Axes) -> Result<ValueId, Refusal> {
        if order == 0.0 {
            let other = self.binary(OpKind::NotEqual, x, 0.0_f32)?;
            let ones = self.cast(other, DType::Fp32)?;
            return self.reduce(OpKind::ReduceSum, ones, axes);
        }
        if axes.axes.is_empty() {
            return self.unary(OpKind::Abs, x);
        }
        if order == 2.0 {
            return self.reduce(OpKind::ReduceL2Norm, x, axes);
        }
        if order == 1.0 {
            return self.reduce(OpKind::ReduceL1Norm, x, axes);
        }
        let magnitude = self.unary(OpKind::Abs, x)?;
        if order == f64::INFINITY {
            return self.reduce(OpKind::ReduceMax, magnitude, axes);
        }
        if order == f64::NEG_INFINITY {
            return self.reduce(OpKind::ReduceMin, magnitude, axes);
        }
        let power = self.binary(OpKind::Pow, magnitude, order as f32)?;
        let sum = self.reduce(OpKind::ReduceSum, power, axes)?;
        self.binary(OpKind::Pow, sum, (1.0 / order) as f32)
    }
}
