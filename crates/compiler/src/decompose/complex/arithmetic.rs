//! What is done to complex numbers one by one.

use coremill_pt2::Argument;

use super::{Parts, Rule};
use crate::bounds::{At, take};
use crate::decompose::call::{Call, Made, Results, Tensor, one};
use crate::decompose::dtype::is_complex;
use crate::decompose::words::Maybe;
use crate::error::{Refusal, refuse};

pub(super) const RULES: &[(&str, Rule)] = &[
    ("aten.complex", |call| {
        let (real, imaginary) = (call.tensor("real")?, call.tensor("imag")?);
        call.pair(real, imaginary)
    }),
    ("aten.polar", |call| {
        let (magnitude, angle) = (call.tensor("abs")?, call.tensor("angle")?);
        let (real, imaginary) = turned(call, &magnitude, &angle)?;
        call.pair(real, imaginary)
    }),
    ("aten.view_as_complex", of_last_dimension),
    ("aten.view_as_complex_copy", of_last_dimension),
    ("aten.view_as_real", to_last_dimension),
    ("aten.view_as_real_copy", to_last_dimension),
    ("aten.real", |call| one(call.parts("self")?.real)),
    ("aten.imag", |call| {
        let [_, imaginary] = call.both_parts("self")?;
        one(imaginary)
    }),
    ("aten.abs", |call| one(magnitude(call)?)),
    ("aten.absolute", |call| one(magnitude(call)?)),
    ("aten.angle", |call| {
        let [real, imaginary] = call.both_parts("self")?;
        one(angle(call, &real, &imaginary)?)
    }),
    ("aten._conj", conjugate),
    ("aten.conj", conjugate),
    ("aten.conj_physical", conjugate),
    ("aten._conj_physical", conjugate),
    ("aten.resolve_conj", same),
    ("aten.resolve_neg", same),
    ("aten.clone", same),
    ("aten.alias", same),
    ("aten.alias_copy", same),
    ("aten.detach", same),
    ("aten.detach_copy", same),
    ("aten.contiguous", same),
    ("aten.lift_fresh", same),
    ("aten.lift_fresh_copy", same),
    ("aten.positive", same),
    ("aten.to", converted),
    ("aten._to_copy", converted),
    ("aten.type_as", converted),
    ("dim_order_ops._to_dim_order_copy", converted),
    ("dim_order_ops._clone_dim_order", same),
    ("aten.div", quotient),
    ("aten.divide", quotient),
    ("aten.true_divide", quotient),
    ("aten.reciprocal", |call| {
        let y = call.both_parts("self")?;
        let [real, imaginary] = inverse(call, &y)?;
        call.pair(real, imaginary)
    }),
    ("aten.square", |call| {
        let x = call.both_parts("self")?;
        let [real, imaginary] = times(call, &x, &x)?;
        call.pair(real, imaginary)
    }),
    ("aten.pow", power),
    ("aten.exp", |call| {
        let [real, imaginary] = call.both_parts("self")?;
        let magnitude = call.map("exp", &real)?;
        let (real, imaginary) = turned(call, &magnitude, &imaginary)?;
        call.pair(real, imaginary)
    }),
    ("aten.log", |call| {
        let [real, imaginary] = call.both_parts("self")?;
        let magnitude = hypotenuse(call, &real, &imaginary)?;
        let angle = angle(call, &real, &imaginary)?;
        let log = call.map("log", &magnitude)?;
        call.pair(log, angle)
    }),
    ("aten.sqrt", root),
    ("aten.sin", |call| wave(call, true)),
    ("aten.cos", |call| wave(call, false)),
    ("aten.tanh", tanh),
    ("aten.sgn", |call| {
        let [real, imaginary] = call.both_parts("self")?;
        let magnitude = hypotenuse(call, &real, &imaginary)?;
        let zero = call.compare_number("eq", &magnitude, Argument::Int(0))?;
        let ones = call.number_beside(Argument::Float(1.0), &magnitude)?;
        let divisor = call.choose(&zero, &ones, &magnitude)?;
        let (real, imaginary) = (call.divide(&real, &divisor)?, call.divide(&imaginary, &divisor)?);
        call.pair(real, imaginary)
    }),
    ("aten.eq", |call| compared(call, "eq", "logical_and")),
    ("aten.ne", |call| compared(call, "ne", "logical_or")),
    ("aten.addmm", added_product),
    ("aten.baddbmm", added_product),
    ("aten.linalg_vector_norm", norm),
    ("aten.norm", norm),
    ("aten.isfinite", |call| tested(call, "logical_and")),
    ("aten.isinf", |call| tested(call, "logical_or")),
    ("aten.isnan", |call| tested(call, "logical_or")),
    ("aten.isreal", |call| {
        let [_, imaginary] = call.both_parts("self")?;
        one(call.compare_number("eq", &imaginary, Argument::Int(0))?)
    }),
    ("aten.adjoint", conjugate_transpose),
    ("aten.mH", conjugate_transpose),
    ("aten.linalg_multi_dot", |call| chain(call, "tensors")),
    ("aten.chain_matmul", |call| chain(call, "matrices")),
];

/// A number from its magnitude and its angle.
fn turned(
    call: &mut Call<'_>,
    magnitude: &Tensor,
    angle: &Tensor,
) -> Result<(Tensor, Tensor), Refusal> {
    let (cosine, sine) = (call.map("cos", angle)?, call.map("sin", angle)?);
    Ok((call.multiply(magnitude, &cosine)?, call.multiply(magnitude, &sine)?))
}

fn angle(call: &mut Call<'_>, real: &Tensor, imaginary: &Tensor) -> Maybe {
    call.join("aten.atan2.default", imaginary, real)
}

fn hypotenuse(call: &mut Call<'_>, real: &Tensor, imaginary: &Tensor) -> Maybe {
    call.join("aten.hypot.default", real, imaginary)
}

fn magnitude(call: &mut Call<'_>) -> Maybe {
    let [real, imaginary] = call.both_parts("self")?;
    hypotenuse(call, &real, &imaginary)
}

fn of_last_dimension(call: &mut Call<'_>) -> Results {
    let x = call.tensor("self")?;
    let Some(at) = x.rank().checked_sub(1) else { refuse!("a number is not a pair") };
    let real = call.select(&x, at, Argument::Int(0))?;
    let imaginary = call.select(&x, at, Argument::Int(1))?;
    call.pair(real, imaginary)
}

fn to_last_dimension(call: &mut Call<'_>) -> Results {
    let parts = call.both_parts("self")?;
    let at = parts[0].rank();
    one(call.stack(&parts, at)?)
}

fn conjugate(call: &mut Call<'_>) -> Results {
    let [real, imaginary] = call.both_parts("self")?;
    let imaginary = call.map("neg", &imaginary)?;
    call.pair(real, imaginary)
}

fn same(call: &mut Call<'_>) -> Results {
    Ok(vec![Made::Pair(Box::new(call.both_parts("self")?))])
}

/// From real, to real, or to parts of another type.
fn converted(call: &mut Call<'_>) -> Results {
    let dtype = call.result(0)?.dtype;
    let Parts { real, imaginary } = call.parts("self")?;
    if !is_complex(dtype) {
        return one(call.cast(&real, dtype)?);
    }
    let real = call.cast(&real, call.part_dtype())?;
    let imaginary = match imaginary {
        Some(imaginary) => imaginary,
        None => call.zeros(&real)?,
    };
    call.pair(real, imaginary)
}

fn times(call: &mut Call<'_>, x: &[Tensor; 2], y: &[Tensor; 2]) -> Result<[Tensor; 2], Refusal> {
    let (plus, minus) = (call.multiply(&x[0], &y[0])?, call.multiply(&x[1], &y[1])?);
    let (left, right) = (call.multiply(&x[0], &y[1])?, call.multiply(&x[1], &y[0])?);
    Ok([call.subtract(&plus, &minus)?, call.add(&left, &right)?])
}

/// The conjugate over the square of the magnitude.
fn inverse(call: &mut Call<'_>, y: &[Tensor; 2]) -> Result<[Tensor; 2], Refusal> {
    let (real, imaginary) = (call.multiply(&y[0], &y[0])?, call.multiply(&y[1], &y[1])?);
    let square = call.add(&real, &imaginary)?;
    let negated = call.map("neg", &y[1])?;
    Ok([call.divide(&y[0], &square)?, call.divide(&negated, &square)?])
}

fn quotient(call: &mut Call<'_>) -> Results {
    if call.has("rounding_mode") {
        refuse!("quotients of complex numbers are not rounded");
    }
    let x = call.both_parts("self")?;
    let y = call.parts("other")?;
    let [real, imaginary] = match y.imaginary {
        None => [call.divide(&x[0], &y.real)?, call.divide(&x[1], &y.real)?],
        Some(imaginary) => {
            let inverse = inverse(call, &[y.real, imaginary])?;
            times(call, &x, &inverse)?
        }
    };
    call.pair(real, imaginary)
}

/// Powers with small whole exponents as products, others by logarithm and exponential.
fn power(call: &mut Call<'_>) -> Results {
    const MOST: f64 = 8.0;
    let whole = match call.argument("exponent")? {
        Argument::Int(exponent) => Some(*exponent as f64),
        Argument::Float(exponent) => Some(*exponent),
        _ => None,
    };
    let base = call.both_parts("self")?;
    if let Some(exponent) = whole.filter(|one| one.fract() == 0.0 && (1.0..=MOST).contains(one)) {
        let mut total = base.clone();
        for _ in 1..exponent as u32 {
            total = times(call, &total, &base)?;
        }
        let [real, imaginary] = total;
        return call.pair(real, imaginary);
    }
    let magnitude = hypotenuse(call, &base[0], &base[1])?;
    let logarithm = [call.map("log", &magnitude)?, angle(call, &base[0], &base[1])?];
    let exponent = call.parts("exponent")?;
    let [growth, turn] = match exponent.imaginary {
        Some(imaginary) => times(call, &logarithm, &[exponent.real, imaginary])?,
        None => [
            call.multiply(&logarithm[0], &exponent.real)?,
            call.multiply(&logarithm[1], &exponent.real)?,
        ],
    };
    let magnitude = call.map("exp", &growth)?;
    let (real, imaginary) = turned(call, &magnitude, &turn)?;
    call.pair(real, imaginary)
}

/// The root on the right half of the plane.
fn root(call: &mut Call<'_>) -> Results {
    let [real, imaginary] = call.both_parts("self")?;
    let magnitude = hypotenuse(call, &real, &imaginary)?;
    let doubles = [call.add(&magnitude, &real)?, call.subtract(&magnitude, &real)?];
    let mut halves = Vec::with_capacity(2);
    for double in &doubles {
        let half = call.times(double, 0.5)?;
        // Rounding could leave less than nothing.
        let half = call.clamp(&half, Some(0.0), None)?;
        halves.push(call.map("sqrt", &half)?);
    }
    let below = call.test("signbit", &imaginary)?;
    let minus = call.map("neg", halves.at(1)?)?;
    let imaginary = call.choose(&below, &minus, halves.at(1)?)?;
    let real = take(&mut halves, 0)?;
    call.pair(real, imaginary)
}

/// The sine or the cosine.
fn wave(call: &mut Call<'_>, is_sine: bool) -> Results {
    let [real, imaginary] = call.both_parts("self")?;
    let (sine, cosine) = (call.map("sin", &real)?, call.map("cos", &real)?);
    let (grown, tilted) = (call.map("cosh", &imaginary)?, call.map("sinh", &imaginary)?);
    if is_sine {
        let (real, imaginary) = (call.multiply(&sine, &grown)?, call.multiply(&cosine, &tilted)?);
        return call.pair(real, imaginary);
    }
    let real = call.multiply(&cosine, &grown)?;
    let imaginary = call.multiply(&sine, &tilted)?;
    let imaginary = call.map("neg", &imaginary)?;
    call.pair(real, imaginary)
}

/// tanh(a + bi) = (sinh 2a + i sin 2b) / (cosh 2a + cos 2b).
fn tanh(call: &mut Call<'_>) -> Results {
    let [real, imaginary] = call.both_parts("self")?;
    let (real, imaginary) = (call.times(&real, 2.0)?, call.times(&imaginary, 2.0)?);
    let (cosh, cosine) = (call.map("cosh", &real)?, call.map("cos", &imaginary)?);
    let below = call.add(&cosh, &cosine)?;
    let (sinh, sine) = (call.map("sinh", &real)?, call.map("sin", &imaginary)?);
    let (real, imaginary) = (call.divide(&sinh, &below)?, call.divide(&sine, &below)?);
    call.pair(real, imaginary)
}

fn compared(call: &mut Call<'_>, function: &str, both: &str) -> Results {
    let (x, y) = (call.both_parts("self")?, call.both_parts("other")?);
    let real = call.compare(function, &x[0], &y[0])?;
    let imaginary = call.compare(function, &x[1], &y[1])?;
    one(call.logic(both, &real, &imaginary)?)
}

fn matrix_product(
    call: &mut Call<'_>,
    x: &[Tensor; 2],
    y: &[Tensor; 2],
) -> Result<[Tensor; 2], Refusal> {
    let [plus, minus] = [call.matmul(&x[0], &y[0])?, call.matmul(&x[1], &y[1])?];
    let [left, right] = [call.matmul(&x[0], &y[1])?, call.matmul(&x[1], &y[0])?];
    Ok([call.subtract(&plus, &minus)?, call.add(&left, &right)?])
}

/// A product of matrices, and what is added to it.
fn added_product(call: &mut Call<'_>) -> Results {
    let names = if call.has("mat1") { ["mat1", "mat2"] } else { ["batch1", "batch2"] };
    let (x, y) = (call.both_parts(names[0])?, call.both_parts(names[1])?);
    let (beta, alpha) = (call.float_or("beta", 1.0)?, call.float_or("alpha", 1.0)?);
    let [real, imaginary] = matrix_product(call, &x, &y)?;
    let [added_real, added_imaginary] = call.both_parts("self")?;
    let real = weighted(call, &added_real, beta, &real, alpha)?;
    let imaginary = weighted(call, &added_imaginary, beta, &imaginary, alpha)?;
    call.pair(real, imaginary)
}

fn weighted(call: &mut Call<'_>, x: &Tensor, of_x: f64, y: &Tensor, of_y: f64) -> Maybe {
    let x = if of_x == 1.0 { x.clone() } else { call.times(x, of_x)? };
    let y = if of_y == 1.0 { y.clone() } else { call.times(y, of_y)? };
    call.add(&x, &y)
}

/// Of the magnitudes.
fn norm(call: &mut Call<'_>) -> Results {
    let magnitude = magnitude(call)?;
    let mut results = call.with_self(&magnitude)?;
    match (results.pop(), results.pop()) {
        (Some(norm), None) => one(norm),
        _ => refuse!("a norm has one result"),
    }
}

/// A test of both parts.
fn tested(call: &mut Call<'_>, both: &str) -> Results {
    let parts = call.both_parts("self")?;
    let mut tests = Vec::with_capacity(2);
    for part in &parts {
        tests.extend(call.with_self(part)?);
    }
    match tests.as_slice() {
        [real, imaginary] => one(call.logic(both, real, imaginary)?),
        _ => refuse!("a test has one result"),
    }
}

fn conjugate_transpose(call: &mut Call<'_>) -> Results {
    let [real, imaginary] = call.both_parts("self")?;
    let imaginary = call.map("neg", &imaginary)?;
    let (real, imaginary) = (call.turned(&real)?, call.turned(&imaginary)?);
    call.pair(real, imaginary)
}

/// Products of matrices from the left to the right.
fn chain(call: &mut Call<'_>, name: &str) -> Results {
    let Argument::List(items) = call.argument(name)? else {
        refuse!("`{name}` is not a list of tensors");
    };
    let mut product: Option<[Tensor; 2]> = None;
    for item in items {
        let y = call.both_parts_of(name, item)?;
        product = Some(match product {
            Some(x) => matrix_product(call, &x, &y)?,
            None => y,
        });
    }
    match product {
        Some([real, imaginary]) => call.pair(real, imaginary),
        None => refuse!("`{name}` is empty"),
    }
}
