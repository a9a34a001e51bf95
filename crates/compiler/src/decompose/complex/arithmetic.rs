//! Arithmetic of complex numbers: parts, sums, products and quotients, comparisons, norms.

use super::{Parts, Rule};
use crate::decompose::prelude::*;

pub(super) const RULES: &[(&[&str], Rule)] = &[
    (&["aten.complex"], |call| {
        let (real, imaginary) = (call.tensor("real")?, call.tensor("imag")?);
        call.pair(real, imaginary)
    }),
    (&["aten.polar"], |call| {
        let [real, imaginary] = calc!(all call, "abs * cos(angle), abs * sin(angle)")?;
        call.pair(real, imaginary)
    }),
    (&["aten.view_as_complex", "aten.view_as_complex_copy"], of_last_dimension),
    (&["aten.view_as_real", "aten.view_as_real_copy"], to_last_dimension),
    (&["aten.real"], |call| one(call.parts("self")?.real)),
    (&["aten.imag"], |call| one(real(call, "y")?)),
    (&["aten.abs", "aten.absolute"], |call| one(real(call, MAGNITUDE)?)),
    (&["aten.angle"], |call| one(real(call, "atan2(y, x)")?)),
    (&["aten._conj", "aten.conj", "aten.conj_physical", "aten._conj_physical"], |call| {
        of_parts(call, "x, -y")
    }),
    (&["aten.to", "aten._to_copy", "aten.type_as", "dim_order_ops._to_dim_order_copy"], converted),
    (&["aten.div", "aten.divide", "aten.true_divide"], quotient),
    (&["aten.eq"], |call| compared(call, "a == c & b == d")),
    (&["aten.ne"], |call| compared(call, "a != c | b != d")),
    (&["aten.addmm", "aten.baddbmm"], added_product),
    (&["aten.linalg_vector_norm", "aten.norm"], norm),
    (&["aten.isfinite"], |call| tested(call, "logical_and")),
    (&["aten.isinf", "aten.isnan"], |call| tested(call, "logical_or")),
    (&["aten.isreal"], |call| one(real(call, "y == 0")?)),
    (&["aten.adjoint", "aten.mH"], conjugate_transpose),
    (&["aten.linalg_multi_dot"], |call| chain(call, "tensors")),
    (&["aten.chain_matmul"], |call| chain(call, "matrices")),
    (
        &[
            "aten.resolve_conj",
            "aten.resolve_neg",
            "aten.clone",
            "aten.alias",
            "aten.alias_copy",
            "aten.detach",
            "aten.detach_copy",
            "aten.contiguous",
            "aten.lift_fresh",
            "aten.lift_fresh_copy",
            "aten.positive",
            "dim_order_ops._clone_dim_order",
        ],
        same,
    ),
];

/// Computes a complex result with formulas over the parts `x` and `y` of `self`.
pub(super) fn of_parts(call: &mut Call<'_>, formula: &str) -> Results {
    let [x, y] = call.both_parts("self")?;
    let [real, imaginary] = calc!(all call, formula, x, y)?;
    call.pair(real, imaginary)
}

const MAGNITUDE: &str = "hypot(x, y)";

/// Computes a real result with a formula over both parts.
fn real(call: &mut Call<'_>, formula: &str) -> TensorResult {
    let [x, y] = call.both_parts("self")?;
    calc!(call, formula, x, y)
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

fn same(call: &mut Call<'_>) -> Results {
    Ok(vec![RewriteResult::Pair(Box::new(call.both_parts("self")?))])
}

/// Conversions from real, to real, or between complex types.
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

pub(super) fn times(call: &mut Call<'_>, x: &[Tensor; 2], y: &[Tensor; 2]) -> Result<[Tensor; 2]> {
    let ([a, b], [c, d]) = (x, y);
    calc!(all call, "a * c - b * d, a * d + b * c", a, b, c, d)
}

fn quotient(call: &mut Call<'_>) -> Results {
    if call.has("rounding_mode") {
        refuse!("rounded quotients of complex numbers are not supported");
    }
    let x = call.both_parts("self")?;
    let Parts { real, imaginary } = call.parts("other")?;
    let [real, imaginary] = match imaginary {
        None => {
            let [x, y] = &x;
            calc!(all call, "x / real, y / real", x, y, real)?
        }
        Some(y) => divided(call, &x, &[real, y])?,
    };
    call.pair(real, imaginary)
}

fn compared(call: &mut Call<'_>, formula: &str) -> Results {
    let ([a, b], [c, d]) = (call.both_parts("self")?, call.both_parts("other")?);
    one(calc!(call, formula, a, b, c, d)?)
}

fn matrix_product(
    call: &mut Call<'_>,
    [a, b]: &[Tensor; 2],
    [c, d]: &[Tensor; 2],
) -> Result<[Tensor; 2]> {
    let formula = "matmul(a, c) - matmul(b, d), matmul(a, d) + matmul(b, c)";
    calc!(all call, formula, a, b, c, d)
}

/// Matrix product plus a scaled addend.
fn added_product(call: &mut Call<'_>) -> Results {
    let names = if call.has("mat1") { ["mat1", "mat2"] } else { ["batch1", "batch2"] };
    let (x, y) = (call.both_parts(names[0])?, call.both_parts(names[1])?);
    let (beta, alpha) = (call.float_or("beta", 1.0)?, call.float_or("alpha", 1.0)?);
    let [real, imaginary] = matrix_product(call, &x, &y)?;
    let [x, y] = call.both_parts("self")?;
    let formula = "x * beta + real * alpha, y * beta + imaginary * alpha";
    let [real, imaginary] = calc!(all call, formula, x, y, real, imaginary, beta, alpha)?;
    call.pair(real, imaginary)
}

/// Norm of the magnitudes.
fn norm(call: &mut Call<'_>) -> Results {
    let magnitude = real(call, MAGNITUDE)?;
    let mut results = call.with_self(&magnitude)?;
    match (results.pop(), results.pop()) {
        (Some(norm), None) => one(norm),
        _ => refuse!("a norm must have one result"),
    }
}

/// Applies a test to both parts and combines the results.
fn tested(call: &mut Call<'_>, both: &str) -> Results {
    let parts = call.both_parts("self")?;
    let mut tests = Vec::with_capacity(2);
    for part in &parts {
        tests.extend(call.with_self(part)?);
    }
    match tests.as_slice() {
        [real, imaginary] => one(call.logic(both, real, imaginary)?),
        _ => refuse!("a test must have one result"),
    }
}

fn conjugate_transpose(call: &mut Call<'_>) -> Results {
    let [real, imaginary] = call.both_parts("self")?;
    let imaginary = call.map("neg", &imaginary)?;
    let (real, imaginary) = (call.turned(&real)?, call.turned(&imaginary)?);
    call.pair(real, imaginary)
}

/// Chained matrix product, from left to right.
fn chain(call: &mut Call<'_>, name: &str) -> Results {
    let [first, rest @ ..] = list(name, call.argument(name)?)? else {
        refuse!("`{name}` is empty")
    };
    let mut product = call.both_parts_of(name, first)?;
    for item in rest {
        let y = call.both_parts_of(name, item)?;
        product = matrix_product(call, &product, &y)?;
    }
    let [real, imaginary] = product;
    call.pair(real, imaginary)
}

/// Scales a number by its larger part `most`. The scaled number has a larger part of 1 and a `length` between 1 and
/// √2. The formula avoids division by zero and infinity over infinity.
pub(super) const SCALED: &str = "most = max(abs(x), abs(y)); scale = where(most == 0 | most == inf, 1.0, most); \
                      u = x / scale; v = y / scale; square = max(u * u + v * v, 1.0); length = sqrt(square)";

/// Quotient of two numbers. The scale of the divisor is divided out in two steps, so that intermediate results stay
/// between the magnitudes of dividend and quotient.
fn divided(call: &mut Call<'_>, [a, b]: &[Tensor; 2], [x, y]: &[Tensor; 2]) -> Result<[Tensor; 2]> {
    let formula = format!(
        "{SCALED}; whole = sqrt(most); p = u / square; q = v / square; c = a / whole; d = b / whole; \
         (c * p + d * q) / whole, (d * p - c * q) / whole"
    );
    calc!(all call, &formula, a, b, x, y)
}
