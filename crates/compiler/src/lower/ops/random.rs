//! Random numbers. The numbers differ between runs and from torch's; their distribution does not.

use crate::lower::prelude::*;

pub(crate) const ROWS: &[Row] = &[
    tensor("aten.rand", |call| {
        let sizes = sizes(call)?;
        uniform(call, &sizes, 0.0, 1.0)
    }),
    tensor("aten.randn", |call| {
        let sizes = sizes(call)?;
        normal(call, &sizes)
    }),
    tensor("aten.randint{,_like}", integers),
    tensor("aten.normal", distributed),
    tensor("aten.uniform", uniform_like),
    tensor("aten.exponential", exponential),
    tensor("aten.multinomial", multinomial),
];

fn uniform(builder: &mut Builder, sizes: &[Int], low: f32, high: f32) -> ValueResult {
    drawn(builder, sizes, |builder, shape| emit!(builder, OpKind::RandomUniform, shape, low, high))
}

/// Uniform numbers above 0, up to 1.
fn positive(builder: &mut Builder, sizes: &[Int]) -> ValueResult {
    uniform(builder, sizes, f32::MIN_POSITIVE, 1.0)
}

fn normal(builder: &mut Builder, sizes: &[Int]) -> ValueResult {
    drawn(builder, sizes, |builder, shape| {
        emit!(builder, OpKind::RandomNormal, shape, mean = 0.0_f32, stddev = 1.0_f32)
    })
}

/// Core ML cannot draw scalars, so one is taken from a vector.
fn drawn(
    builder: &mut Builder,
    sizes: &[Int],
    draw: impl Fn(&mut Builder, Arg) -> ValueResult,
) -> ValueResult {
    if sizes.is_empty() {
        let shape = builder.ints(&[Int::Known(1)])?;
        let one = draw(builder, shape)?;
        return builder.squeeze(one, &[0]);
    }
    let shape = builder.ints(sizes)?;
    draw(builder, shape)
}

/// Explicit sizes, or the sizes of the tensor argument.
fn sizes(call: &mut Call<'_, '_>) -> Result<Vec<Int>> {
    if call.has("size") {
        return call.int_list("size");
    }
    let x = call.value("self")?;
    call.dims(x)
}

fn integers(call: &mut Call<'_, '_>) -> ValueResult {
    let sizes = sizes(call)?;
    let low = if call.has("low") { call.known_int("low")? } else { 0 };
    let high = call.known_int("high")?;
    if high <= low {
        refuse!("`high` must be greater than `low` ({low}), got {high}");
    }
    let y = uniform(call, &sizes, low as f32, high as f32)?;
    let y = call.unary(OpKind::Floor, y)?;
    // A number just below the end may be rounded up to it.
    let y = call.binary(OpKind::Minimum, y, (high - 1) as f32)?;
    call.cast(y, DType::Int32)
}

/// Normal distribution: `mean + deviation · normal`.
fn distributed(call: &mut Call<'_, '_>) -> ValueResult {
    let (mean, deviation) = (call.operand("mean")?, call.operand("std")?);
    let sizes = if call.has("size") {
        call.int_list("size")?
    } else {
        let known: Option<Vec<_>> = call.result_sizes(0)?.into_iter().collect();
        let Some(known) = known else {
            refuse!("`normal` requires fixed sizes");
        };
        known.into_iter().map(Int::Known).collect()
    };
    let y = normal(call, &sizes)?;
    let deviation = call.operand_in(deviation, DType::Fp32)?;
    let mean = call.operand_in(mean, DType::Fp32)?;
    calc!(call, "y * deviation + mean", y, deviation, mean)
}

fn uniform_like(call: &mut Call<'_, '_>) -> ValueResult {
    let (low, high) = (call.float("from")?, call.float("to")?);
    let sizes = sizes(call)?;
    uniform(call, &sizes, low as f32, high as f32)
}

/// `−log(u) / λ` for u > 0.
fn exponential(call: &mut Call<'_, '_>) -> ValueResult {
    let rate = call.float("lambd")? as f32;
    let sizes = sizes(call)?;
    let draw = positive(call, &sizes)?;
    let log = call.log(draw, 0.0)?;
    call.times(log, -1.0 / rate)
}

/// Weighted sampling with replacement. Without replacement, takes the indices of the largest ratios of weights to
/// exponential random numbers, which has the same distribution.
fn multinomial(call: &mut Call<'_, '_>) -> ValueResult {
    let x = call.float_tensor("self")?;
    let count = call.known_int("num_samples")?;
    let rank = call.rank(x);
    if !call.flag("replacement")? {
        let sizes = call.dims(x)?;
        let draw = positive(call, &sizes)?;
        let log = call.log(draw, 0.0)?;
        let draw = call.times(log, -1.0)?;
        let race = call.binary(OpKind::RealDiv, x, draw)?;
        let [_, places] = call.first(race, axis_from_end(rank, 1)?, count, false)?;
        return Ok(places);
    }
    let rows = if rank == 1 { call.expand_dims(x, &[0])? } else { x };
    let total = emit!(call, OpKind::ReduceSum, x = rows, axes = [-1], keep_dims = true)?;
    let x = call.binary(OpKind::RealDiv, rows, total)?;
    let size = int32(count)?;
    let mut y = emit!(call, OpKind::RandomCategorical, x, mode = "probs", size)?;
    if rank == 1 {
        y = call.squeeze(y, &[0])?;
    }
    call.cast(y, DType::Int32)
}
