//! Random numbers. Which they are differs from run to run, and from torch's; how they are distributed does
//! not.

use coremill_mil::ir::ValueId;
use coremill_mil::ops::OpKind;
use coremill_tensor::DType;

use crate::error::{Refusal, refuse};
use crate::lower::builder::{Arg, Builder};
use crate::lower::call::{Call, Results};
use crate::lower::row::{Row, all};
use crate::lower::value::{Int, Number};

pub(crate) const ROWS: &[Row] = &[
    all("aten.rand", |call| give_sized(call, uniform)),
    all("aten.randn", |call| give_sized(call, normal)),
    all("aten.randint", |call| {
        let sizes = call.int_list("size")?;
        integers(call, &sizes)
    }),
    all("aten.randint_like", |call| {
        let sizes = sizes_like(call)?;
        integers(call, &sizes)
    }),
    all("aten.normal", distributed),
    all("aten.uniform", uniform_like),
    all("aten.exponential", exponential),
    all("aten.multinomial", multinomial),
];

fn uniform(builder: &mut Builder, sizes: &[Int]) -> Result<ValueId, Refusal> {
    uniform_between(builder, sizes, 0.0, 1.0)
}

fn uniform_between(
    builder: &mut Builder,
    sizes: &[Int],
    low: f32,
    high: f32,
) -> Result<ValueId, Refusal> {
    drawn(builder, sizes, |builder, shape| {
        builder.emit(
            OpKind::RandomUniform,
            [("shape", shape), ("low", low.into()), ("high", high.into())],
        )
    })
}

fn normal(builder: &mut Builder, sizes: &[Int]) -> Result<ValueId, Refusal> {
    normal_of(builder, sizes, 0.0, 1.0)
}

fn normal_of(
    builder: &mut Builder,
    sizes: &[Int],
    mean: f32,
    deviation: f32,
) -> Result<ValueId, Refusal> {
    drawn(builder, sizes, |builder, shape| {
        builder.emit(
            OpKind::RandomNormal,
            [("shape", shape), ("mean", mean.into()), ("stddev", deviation.into())],
        )
    })
}

/// Core ML draws no scalars: one is taken out of a vector.
fn drawn(
    builder: &mut Builder,
    sizes: &[Int],
    draw: impl Fn(&mut Builder, Arg) -> Result<ValueId, Refusal>,
) -> Result<ValueId, Refusal> {
    if sizes.is_empty() {
        let shape = builder.ints(&[Int::Known(1)])?;
        let one = draw(builder, shape)?;
        return builder.squeeze(one, &[0]);
    }
    let shape = builder.ints(sizes)?;
    draw(builder, shape)
}

fn give_sized(
    call: &mut Call<'_, '_>,
    draw: fn(&mut Builder, &[Int]) -> Result<ValueId, Refusal>,
) -> Results {
    let sizes = call.int_list("size")?;
    let y = draw(call, &sizes)?;
    call.give(y)
}

fn sizes_like(call: &mut Call<'_, '_>) -> Result<Vec<Int>, Refusal> {
    let x = call.tensor("self")?.value;
    call.dims(x)
}

fn integers(call: &mut Call<'_, '_>, sizes: &[Int]) -> Results {
    let low = if call.has("low") { call.known_int("low")? } else { 0 };
    let high = call.known_int("high")?;
    if high <= low {
        refuse!("`high` is {high}; more than `low`, which is {low}, is accepted");
    }
    let y = uniform_between(call, sizes, low as f32, high as f32)?;
    let y = call.unary(OpKind::Floor, y)?;
    // A draw just below the end may be rounded up to it.
    let y = call.binary(OpKind::Minimum, y, (high - 1) as f32)?;
    let y = call.cast(y, DType::Int32)?;
    call.give(y)
}

/// `mean + deviation · normal`.
fn distributed(call: &mut Call<'_, '_>) -> Results {
    let (mean, deviation) = (call.operand("mean")?, call.operand("std")?);
    let sizes = if call.has("size") {
        call.int_list("size")?
    } else {
        let known: Option<Vec<_>> = call.result_sizes(0)?.into_iter().collect();
        let Some(known) = known else {
            refuse!("`normal` is lowered for fixed sizes");
        };
        known.into_iter().map(Int::Known).collect()
    };
    let y = normal(call, &sizes)?;
    let deviation = call.operand_in(deviation, DType::Fp32)?;
    let y = call.binary(OpKind::Mul, y, deviation)?;
    let mean = call.operand_in(mean, DType::Fp32)?;
    let y = call.binary(OpKind::Add, y, mean)?;
    call.give(y)
}

fn uniform_like(call: &mut Call<'_, '_>) -> Results {
    let bound = |number: Number| number.known().map(|number| number as f32);
    let (low, high) = (bound(call.number("from")?), bound(call.number("to")?));
    let (Some(low), Some(high)) = (low, high) else {
        refuse!("the bounds of `uniform` are not known before the program runs");
    };
    let sizes = sizes_like(call)?;
    let y = uniform_between(call, &sizes, low, high)?;
    call.give(y)
}

/// `−log(u) / λ`, of what is never zero.
fn exponential(call: &mut Call<'_, '_>) -> Results {
    let rate = call.float("lambd")? as f32;
    let sizes = sizes_like(call)?;
    let draw = uniform_between(call, &sizes, f32::MIN_POSITIVE, 1.0)?;
    let log = call.log(draw, 0.0)?;
    let y = call.times(log, -1.0 / rate)?;
    call.give(y)
}

/// Indices by their weights, with replacement; without it, those of the largest of weights over exponential
/// draws, which come up as often.
fn multinomial(call: &mut Call<'_, '_>) -> Results {
    let x = call.float_tensor("self")?;
    let count = call.known_int("num_samples")?;
    let count = crate::lower::builder::int32(count)?;
    let rank = call.rank(x);
    if call.flag("replacement")? {
        let rows = if rank == 1 { call.expand_dims(x, &[0])? } else { x };
        let total = call.emit(
            OpKind::ReduceSum,
            [("x", rows.into()), ("axes", [-1].into()), ("keep_dims", true.into())],
        )?;
        let shares = call.binary(OpKind::RealDiv, rows, total)?;
        let mut y = call.emit(
            OpKind::RandomCategorical,
            [("x", shares.into()), ("mode", "probs".into()), ("size", count.into())],
        )?;
        if rank == 1 {
            y = call.squeeze(y, &[0])?;
        }
        let y = call.cast(y, DType::Int32)?;
        return call.give(y);
    }
    let sizes = call.dims(x)?;
    let draw = uniform_between(call, &sizes, f32::MIN_POSITIVE, 1.0)?;
    let log = call.log(draw, 0.0)?;
    let draw = call.times(log, -1.0)?;
    let race = call.binary(OpKind::RealDiv, x, draw)?;
    let results = call.emit_many(
        OpKind::Topk,
        [
            ("x", race.into()),
            ("k", count.into()),
            ("axis", (-1).into()),
            ("ascending", false.into()),
        ],
    )?;
    let Some(&y) = results.get(1) else { refuse!("`topk` gives {} values", results.len()) };
    call.give(y)
}
