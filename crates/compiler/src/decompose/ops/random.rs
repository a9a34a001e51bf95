//! Random numbers, of those that kernels draw: evenly from 0 to 1, or normally.

use coremill_pt2::{Argument, ScalarType, Size};

use super::order::topk;
use crate::decompose::call::{Call, Results, Tensor, one};
use crate::decompose::dtype::is_float;
use crate::decompose::formula::calc;
use crate::decompose::row::{Row, by};
use crate::decompose::words::Maybe;
use crate::error::refuse;

pub(crate) const ROWS: &[Row] = &[
    by(|call| like(call, "aten.rand.default"), &["aten.rand_like.default"]),
    by(|call| like(call, "aten.randn.default"), &["aten.randn_like.default"]),
    by(bernoulli, &["aten.bernoulli.default", "aten.bernoulli.p"]),
    by(normal, &["aten.normal_functional.default"]),
    by(integers, &["aten.randint.default", "aten.randint.low"]),
    by(permutation, &["aten.randperm.default"]),
];

fn drawn(call: &mut Call<'_>, operator: &str, sizes: Vec<Size>, dtype: ScalarType) -> Maybe {
    let wanted = call.sizes_argument(&sizes)?;
    let given = [("size", wanted), ("dtype", Argument::ScalarType(dtype))];
    call.emit(operator, &given, dtype, sizes)
}

fn like(call: &mut Call<'_>, operator: &str) -> Results {
    let noted = call.result(0)?;
    let (dtype, sizes) = (noted.dtype, noted.sizes.clone());
    one(drawn(call, operator, sizes, dtype)?)
}

/// Evenly drawn numbers of the result's sizes, as floats.
fn evenly(call: &mut Call<'_>) -> Maybe {
    let noted = call.result(0)?;
    let (dtype, sizes) = (noted.dtype, noted.sizes.clone());
    let dtype = if is_float(dtype) { dtype } else { ScalarType::Float32 };
    drawn(call, "aten.rand.default", sizes, dtype)
}

/// One with a chance, else zero.
fn bernoulli(call: &mut Call<'_>) -> Results {
    let drawn = evenly(call)?;
    let dtype = call.result(0)?.dtype;
    let below = if call.has("p") {
        call.compare_number("lt", &drawn, Argument::Float(call.float("p")?))?
    } else {
        let chance = call.tensor("self")?;
        call.compare("lt", &drawn, &chance)?
    };
    one(call.cast(&below, dtype)?)
}

fn normal(call: &mut Call<'_>) -> Results {
    let noted = call.result(0)?;
    let (dtype, sizes) = (noted.dtype, noted.sizes.clone());
    let (mean, deviation) = (call.float_or("mean", 0.0)?, call.float_or("std", 1.0)?);
    let drawn = drawn(call, "aten.randn.default", sizes, dtype)?;
    one(calc!(call, "drawn * deviation + mean", drawn, deviation, mean)?)
}

/// From `low`, below `high`.
fn integers(call: &mut Call<'_>) -> Results {
    let (low, high) = (call.int_or("low", 0)?, call.int("high")?);
    if low >= high {
        refuse!("there is no integer from {low} below {high}");
    }
    let dtype = call.result(0)?.dtype;
    let drawn = evenly(call)?;
    // Rounding could give `high`.
    let formula = "min(floor(drawn * (high - low)), high - low - 1) + low";
    let moved = calc!(call, formula, drawn, low, high)?;
    one(call.cast(&moved, dtype)?)
}

/// The order of numbers that are drawn.
fn permutation(call: &mut Call<'_>) -> Results {
    let noted = call.result(0)?;
    let Some(size) = noted.sizes.first().cloned() else {
        refuse!("gives a tensor without dimensions")
    };
    let dtype = noted.dtype;
    let drawn: Tensor = drawn(call, "aten.rand.default", vec![size.clone()], ScalarType::Float32)?;
    let [_, places] = topk(call, &drawn, 0, &size, true)?;
    one(call.cast(&places, dtype)?)
}
