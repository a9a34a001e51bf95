//! Variances, norms, distances and other statistics composed of reductions.

use crate::lower::prelude::*;

pub(crate) const ROWS: &[Row] = &[
    several("aten.var", |call| spread(call, false, false)),
    several("aten.std", |call| spread(call, true, false)),
    several("aten.var_mean", |call| spread(call, false, true)),
    several("aten.std_mean", |call| spread(call, true, true)),
    tensor("aten.linalg_vector_norm", norm),
];

/// Difference between the element count and the divisor.
fn correction(call: &mut Call<'_, '_>) -> Result<f64> {
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
    let mut gap = call.binary(OpKind::Sub, x, mean)?;
    // The square of a deviation may overflow, so deviations are scaled by the largest one.
    let mut largest = None;
    if root {
        let size = call.unary(OpKind::Abs, gap)?;
        let most = call.reduce(OpKind::ReduceMax, size, &kept)?;
        gap = calc!(call, "gap / where(most == 0.0, 1.0, most)", gap, most)?;
        largest = Some(most);
    }
    let square = call.unary(OpKind::Square, gap)?;
    let mut variance = call.reduce(OpKind::ReduceMean, square, &axes)?;
    if correction != 0.0 {
        variance = corrected(call, variance, x, &axes, correction)?;
    }
    if let Some(most) = largest {
        let most = if axes.keep { most } else { call.squeeze(most, &places(&axes.axes))? };
        variance = calc!(call, "sqrt(variance) * most", variance, most)?;
    }
    if !with_mean {
        return call.give_all(&[variance]);
    }
    let mean = if axes.keep { mean } else { call.squeeze(mean, &places(&axes.axes))? };
    call.give_all(&[variance, mean])
}

/// Rescales a mean of `n` elements to a divisor of `n − correction`.
fn corrected(
    builder: &mut Builder,
    mean: ValueId,
    x: ValueId,
    axes: &Axes,
    correction: f64,
) -> ValueResult {
    match builder.group_size(x, axes)? {
        Int::Known(count) => {
            let count = count as f64;
            let factor = count / (count - correction).max(0.0);
            builder.binary(OpKind::Mul, mean, factor as f32)
        }
        Int::Computed(count) => {
            let correction = correction as f32;
            let formula = "count = float(count); factor = count / max(count - correction, 0.0); mean * factor";
            calc!(builder, formula, mean, count, correction)
        }
    }
}

fn norm(call: &mut Call<'_, '_>) -> ValueResult {
    let x = call.float_tensor("self")?;
    let order = call.float("ord")?;
    let axes = call.reduced_axes(call.rank(x))?;
    if order == 0.0 {
        let other = call.binary(OpKind::NotEqual, x, 0.0_f32)?;
        let ones = call.cast(other, DType::Fp32)?;
        return call.reduce(OpKind::ReduceSum, ones, &axes);
    }
    if axes.axes.is_empty() {
        return call.unary(OpKind::Abs, x);
    }
    if order == 2.0 {
        return call.reduce(OpKind::ReduceL2Norm, x, &axes);
    }
    if order == 1.0 {
        return call.reduce(OpKind::ReduceL1Norm, x, &axes);
    }
    let magnitude = call.unary(OpKind::Abs, x)?;
    if order.is_infinite() {
        let kind = if order > 0.0 { OpKind::ReduceMax } else { OpKind::ReduceMin };
        return call.reduce(kind, magnitude, &axes);
    }
    let power = call.binary(OpKind::Pow, magnitude, order as f32)?;
    let sum = call.reduce(OpKind::ReduceSum, power, &axes)?;
    call.binary(OpKind::Pow, sum, (1.0 / order) as f32)
}
