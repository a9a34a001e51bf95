//! Random numbers, derived from the kernels for uniform and normal distributions.

use super::order::topk;
use crate::decompose::prelude::*;

pub(crate) const ROWS: &[Row] = &[
    by(|call| like(call, "aten.rand.default"), &["aten.rand_like.default"]),
    by(|call| like(call, "aten.randn.default"), &["aten.randn_like.default"]),
    by(bernoulli, &["aten.bernoulli.default", "aten.bernoulli.p"]),
    by(normal, &["aten.normal_functional"]),
    by(integers, &["aten.randint.default", "aten.randint.low"]),
    by(permutation, &["aten.randperm.default"]),
];

fn drawn(call: &mut Call<'_>, operator: &str, sizes: Vec<Size>, dtype: ScalarType) -> TensorResult {
    let wanted = call.sizes_argument(&sizes)?;
    call.emit(operator, given!(size = wanted, dtype = dtype), dtype, sizes)
}

fn like(call: &mut Call<'_>, operator: &str) -> Results {
    let (dtype, sizes) = call.result_type()?;
    one(drawn(call, operator, sizes, dtype)?)
}

/// Uniform floats in the shape of the result.
fn evenly(call: &mut Call<'_>) -> TensorResult {
    let (dtype, sizes) = call.result_type()?;
    let dtype = if is_float(dtype) { dtype } else { ScalarType::Float32 };
    drawn(call, "aten.rand.default", sizes, dtype)
}

/// One with the given probability, otherwise zero.
fn bernoulli(call: &mut Call<'_>) -> Results {
    let drawn = evenly(call)?;
    if call.has("p") {
        return one(calc!(call, "number(drawn < p)", drawn)?);
    }
    let chance = call.tensor("self")?;
    one(calc!(call, "number(drawn < chance)", drawn, chance)?)
}

fn normal(call: &mut Call<'_>) -> Results {
    let (dtype, sizes) = call.result_type()?;
    let (mean, deviation) = (call.float_or("mean", 0.0)?, call.float_or("std", 1.0)?);
    let drawn = drawn(call, "aten.randn.default", sizes, dtype)?;
    one(calc!(call, "drawn * deviation + mean", drawn, deviation, mean)?)
}

/// Uniform integers in `low..high`.
fn integers(call: &mut Call<'_>) -> Results {
    let (low, high) = (call.int_or("low", 0)?, call.int("high")?);
    if low >= high {
        refuse!("`high` must be greater than `low` ({low}), got {high}");
    }
    let drawn = evenly(call)?;
    // Rounding could produce `high`.
    let formula = "number(min(floor(drawn * (high - low)), high - low - 1) + low)";
    one(calc!(call, formula, drawn, low, high)?)
}

/// Random permutation: the order of random numbers.
fn permutation(call: &mut Call<'_>) -> Results {
    let (dtype, mut sizes) = call.result_type()?;
    let drawn = drawn(call, "aten.rand.default", sizes.clone(), ScalarType::Float32)?;
    let [_, places] = topk(call, &drawn, 0, &take(&mut sizes, 0)?, true)?;
    one(call.cast(&places, dtype)?)
}
