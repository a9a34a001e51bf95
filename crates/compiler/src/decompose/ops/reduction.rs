//! Reductions along dimensions: sums, extremes, norms, distances.

use crate::decompose::prelude::*;

pub(crate) const ROWS: &[Row] = &[
    by(total, &["aten.sum", "aten.mean"]),
    by(nansum, &["aten.nansum", "aten.nanmean"]),
    by(product, &["aten.prod"]),
    // All elements are true if none is false.
    formula("!any(!self, dim, keepdim)", &["aten.all.dim", "aten.all.dims"]),
    formula("!any(!self)", &["aten.all.default"]),
    formula("any(self, dim, keepdim)", &["aten.any.dim", "aten.any.dims"]),
    formula("any(self)", &["aten.any.default"]),
    to("aten.nonzero", &["aten.argwhere"]),
    by(renormed, &["aten.renorm"]),
    formula("sum(self != 0, dim)", &["aten.count_nonzero"]),
    formula("amax(self)", &["aten.max.default"]),
    formula("amin(self)", &["aten.min.default"]),
    formula("amax(self, dim, keepdim)", &["aten.amax"]),
    formula("amin(self, dim, keepdim)", &["aten.amin"]),
    formula("amin(self, dim, keepdim), amax(self, dim, keepdim)", &["aten.aminmax"]),
    by(extreme_and_place, &["aten.max.dim", "aten.min.dim"]),
    by(place, &["aten.argmax", "aten.argmin"]),
    by(spread, &["aten.var", "aten.std", "aten.var_mean", "aten.std_mean"]),
    by(norm, &["aten.linalg_{,vector_,matrix_}norm", "aten.{,frobenius_}norm"]),
    by(logsumexp, &["aten.logsumexp", "aten.special_logsumexp"]),
    by(cumulated, &["aten.cumsum"]),
    by(by_doubling, &["aten.cumprod", "aten.logcumsumexp"]),
    by(running_extreme, &["aten.cummax", "aten.cummin"]),
    formula(
        "sum(head(y, dim) + tail(y, dim), dim) * (dx / 2.0)",
        &["aten.trapezoid.dx", "aten.trapz.dx"],
    ),
    by(trapezoid_x, &["aten.trapezoid.x", "aten.trapz.x"]),
    by(cumulative_trapezoid, &["aten.cumulative_trapezoid"]),
    by(cosine_similarity, &["aten.cosine_similarity"]),
    // Distance of every row of one matrix to every row of the other.
    formula(
        "norm(unsqueeze(x1, -2) - unsqueeze(x2, -3), where(given(p), p, 2), -1)",
        &["aten.cdist", "aten._cdist_forward", "aten._euclidean_dist"],
    ),
    by(distances_within, &["aten.pdist", "aten._pdist_forward"]),
    formula("norm(x1 - x2 + eps, p, -1, keepdim)", &["aten.pairwise_distance"]),
    formula("norm(self - other, p)", &["aten.dist"]),
    by(trace, &["aten.trace"]),
];

/// Reduced dimensions, and whether they are kept with size 1.
fn over(call: &Call<'_>, x: &Tensor) -> Result<(Vec<usize>, bool)> {
    Ok((call.dimensions("dim", x.rank())?, call.bool("keepdim")?))
}

fn total(call: &mut Call<'_>) -> Results {
    let x = call.tensor("self")?;
    let (dimensions, keep) = over(call, &x)?;
    let dtype = call.result(0)?.dtype;
    if is_complex(x.dtype) || is_complex(dtype) {
        refuse!("sums of complex numbers have no kernel that takes dimensions");
    }
    let x = call.cast(&x, dtype)?;
    one(match call.name() {
        "mean" => call.mean(&x, &dimensions, keep)?,
        _ => call.sum_as(&x, &dimensions, keep, dtype)?,
    })
}

fn nansum(call: &mut Call<'_>) -> Results {
    let x = call.tensor("self")?;
    let (dimensions, keep) = over(call, &x)?;
    let dtype = call.result(0)?.dtype;
    let values = calc!(call, "where(is_float(x), where(isnan(x), 0, x), x)", x)?;
    let sum = call.sum_as(&values, &dimensions, keep, dtype)?;
    if call.name() == "nansum" {
        return one(sum);
    }
    let ones = calc!(call, "number(x == x)", x)?;
    let count = call.sum_as(&ones, &dimensions, keep, dtype)?;
    one(call.divide(&sum, &count)?)
}

fn product(call: &mut Call<'_>) -> Results {
    let x = call.typed("self")?;
    let dtype = x.dtype;
    if !call.has("dim") {
        return one(call.noted("aten.prod.default", given!(self = x, dtype = dtype))?);
    }
    let at = call.dimension("dim", x.rank())?;
    let keep = call.bool("keepdim")?;
    one(call.noted("aten.prod.dim_int", given!(self = x, dim = at, keepdim = keep, dtype = dtype))?)
}

/// Extreme of a scalar: the scalar itself and index 0.
pub(super) fn of_number(call: &mut Call<'_>, x: Tensor) -> Results {
    let place = call.scalar(Argument::Int(0), ScalarType::Int64)?;
    Ok(vec![RewriteResult::Tensor(x), RewriteResult::Tensor(place)])
}

/// Casts booleans to bytes, which kernels can compare.
pub(super) fn ordered(call: &mut Call<'_>, x: &Tensor) -> TensorResult {
    call.cast(x, if x.dtype == ScalarType::Bool { ScalarType::UInt8 } else { x.dtype })
}

fn extreme_and_place(call: &mut Call<'_>) -> Results {
    let x = call.tensor("self")?;
    let at = call.dimension("dim", x.rank())?;
    let keep = call.bool("keepdim")?;
    if x.rank() == 0 {
        return of_number(call, x);
    }
    let values = ordered(call, &x)?;
    let sizes = left(&x, &[at], keep);
    let types = vec![(values.dtype, sizes.clone()), (ScalarType::Int64, sizes)];
    let operator = call.node.target.to_string();
    let given = given!(self = values, dim = at, keepdim = keep);
    let mut both = call.emit_several(&operator, given, types)?;
    *both.at_mut(0)? = call.cast(both.at(0)?, x.dtype)?;
    Ok(both.into_iter().map(RewriteResult::Tensor).collect())
}

fn place(call: &mut Call<'_>) -> Results {
    let x = call.tensor("self")?;
    let operator = call.node.target.to_string();
    if x.rank() == 0 {
        let sizes = call.result_sizes()?;
        return one(call.full(sizes, Argument::Int(0), ScalarType::Int64)?);
    }
    let x = ordered(call, &x)?;
    if call.has("dim") {
        let at = call.dimension("dim", x.rank())?;
        let keep = call.bool("keepdim")?;
        return one(call.noted(&operator, given!(self = x, dim = at, keepdim = keep))?);
    }
    // Flattened, as kernels differ for a missing dimension.
    let flat = call.flat(&x)?;
    let given = given!(self = flat, dim = 0_usize, keepdim = false);
    let found = call.emit(&operator, given, ScalarType::Int64, Vec::new())?;
    one(call.viewed(&found)?)
}

/// Difference between the element count and the divisor.
fn correction(call: &Call<'_>) -> Result<f64> {
    if call.has("correction") {
        return call.float("correction");
    }
    match call.node.argument("unbiased") {
        Some(Argument::Bool(false)) => Ok(0.0),
        _ => Ok(1.0),
    }
}

fn spread(call: &mut Call<'_>) -> Results {
    let x = call.tensor("self")?;
    let (dimensions, keep) = over(call, &x)?;
    let correction = correction(call)?;
    let spread = if call.name().starts_with("std") {
        // The square of an fp16 deviation may overflow or underflow.
        let wide = call.cast(&x, if is_half(x.dtype) { ScalarType::Float32 } else { x.dtype })?;
        let variance = call.variance(&wide, &dimensions, correction, keep)?;
        call.map("sqrt", &variance)?
    } else {
        call.variance(&x, &dimensions, correction, keep)?
    };
    let spread = call.cast(&spread, x.dtype)?;
    if !call.name().ends_with("_mean") {
        return one(spread);
    }
    let mean = call.mean(&x, &dimensions, keep)?;
    Ok(vec![RewriteResult::Tensor(spread), RewriteResult::Tensor(mean)])
}

/// Norm of a given order along dimensions.
fn length(
    call: &mut Call<'_>,
    x: &Tensor,
    degree: f64,
    over: &[usize],
    keep: bool,
) -> TensorResult {
    let formula = match degree {
        0.0 => "sum(number(x != 0.0), over, keep)",
        _ if x.rank() == 0 => "abs(x)",
        2.0 => "sqrt(sum(x * x, over, keep))",
        f64::INFINITY => "amax(abs(x), over, keep)",
        f64::NEG_INFINITY => "amin(abs(x), over, keep)",
        1.0 => "sum(abs(x), over, keep)",
        _ => "sum(abs(x) ^ degree, over, keep) ^ (1.0 / degree)",
    };
    calc!(call, formula, x, degree, over, keep)
}

fn norm(call: &mut Call<'_>) -> Results {
    let x = call.tensor("self")?;
    let (dimensions, keep) = over(call, &x)?;
    if is_complex(x.dtype) {
        refuse!("norms of complex numbers have no kernel");
    }
    let x = call.typed("self")?;
    let order = if call.has("ord") { "ord" } else { "p" };
    if call.text(order).is_ok_and(|order| order == "fro") {
        return one(call.norm(&x, 2.0, &dimensions, keep)?);
    }
    let degree = call.float_or(order, 2.0)?;
    let has_order = call.has("ord");
    one(match (call.name(), dimensions.as_slice()) {
        ("linalg_norm" | "linalg_matrix_norm", &[row, column]) if has_order => {
            matrix_norm(call, &x, degree, [row, column], keep)?
        }
        ("linalg_vector_norm", _) => length(call, &x, degree, &dimensions, keep)?,
        _ => call.norm(&x, degree, &dimensions, keep)?,
    })
}

/// Scales slices along a dimension to a maximum norm.
fn renormed(call: &mut Call<'_>) -> Results {
    let x = call.tensor("self")?;
    let kept = call.dimension("dim", x.rank())?;
    let over: Vec<usize> = (0..x.rank()).filter(|at| *at != kept).collect();
    let norm = call.norm(&x, call.float("p")?, &over, true)?;
    // A maximum norm of zero or less returns zeros, and keeps NaN.
    let formula = "x * where(maxnorm > 0, maxnorm / max(norm, maxnorm), norm * 0.0)";
    one(calc!(call, formula, x, norm)?)
}

/// Matrix norm: the largest or smallest sum along the other dimension.
fn matrix_norm(
    call: &mut Call<'_>,
    x: &Tensor,
    order: f64,
    [row, column]: [usize; 2],
    keep: bool,
) -> TensorResult {
    let (along, other) = match order.abs() {
        1.0 => (row, column),
        f64::INFINITY => (column, row),
        _ => refuse!(
            "norms of matrices of order {order} need singular values, which no kernel computes"
        ),
    };
    let sums = call.norm(x, 1.0, &[along], keep)?;
    let function = if order > 0.0 { "amax" } else { "amin" };
    let other = if !keep && along < other { other - 1 } else { other };
    call.extreme(function, &sums, &[other], keep)
}

fn logsumexp(call: &mut Call<'_>) -> Results {
    let x = call.typed("self")?;
    let (over, keep) = over(call, &x)?;
    if x.rank() == 0 {
        return one(x);
    }
    // Subtracting an infinite maximum would result in NaN.
    let formula = "most = amax(x, over, 1); where(isinf(most), 0, most)";
    let most = calc!(call, formula, x, over)?;
    let log = calc!(call, "log(sum(exp(x - most), over, keep))", x, most, over, keep)?;
    let most = call.view(&most, log.sizes.clone())?;
    one(call.add(&log, &most)?)
}

fn cumulated(call: &mut Call<'_>) -> Results {
    let x = call.typed("self")?;
    if x.rank() == 0 {
        return one(x);
    }
    let at = call.dimension("dim", x.rank())?;
    one(call.like(&x, "aten.cumsum.default", given!(self = x, dim = at, dtype = x.dtype))?)
}

/// Index and static length of a dimension.
fn along(call: &Call<'_>, x: &Tensor) -> Result<(usize, i64)> {
    let at = call.dimension("dim", x.rank())?;
    Ok((at, x.known(at, "the length of the dimension")?))
}

/// The first `step` elements of a dimension, and the elements before and after a shift by `step`.
fn apart(
    call: &mut Call<'_>,
    x: &Tensor,
    at: usize,
    length: i64,
    step: i64,
) -> Result<[Tensor; 3]> {
    Ok([
        call.slice(x, at, 0, step, 1)?,
        call.slice(x, at, 0, length - step, 1)?,
        call.slice(x, at, step, length - step, 1)?,
    ])
}

/// Prefix sums by doubling: after one step per binary digit of the length every element includes all elements before
/// it.
fn by_doubling(call: &mut Call<'_>) -> Results {
    let mut sum = call.typed("self")?;
    if sum.rank() == 0 {
        return one(sum);
    }
    let (at, length) = along(call, &sum)?;
    let is_product = call.name() == "cumprod";
    let mut step = 1;
    while step < length {
        let [start, before, after] = apart(call, &sum, at, length, step)?;
        let formula = "where(is_product, before * after, logaddexp(before, after))";
        let joined = calc!(call, formula, is_product, before, after)?;
        sum = call.concatenate(&[start, joined], at)?;
        step *= 2;
    }
    one(sum)
}

/// Running extreme. As in torch, ties return the last index.
fn running_extreme(call: &mut Call<'_>) -> Results {
    let x = call.tensor("self")?;
    if x.rank() == 0 {
        return of_number(call, x);
    }
    let (at, length) = along(call, &x)?;
    let largest = call.name() == "cummax";
    let count = call.count(&Size::Fixed(length), ScalarType::Int64)?;
    let count = call.along(&count, at, x.rank())?;
    let mut places = call.expand(&count, x.sizes.clone())?;
    let mut values = x.clone();
    let mut step = 1;
    while step < length {
        let [start, before, after] = apart(call, &values, at, length, step)?;
        let [start_place, before_place, after_place] = apart(call, &places, at, length, step)?;
        let formula = "later = where(largest, after >= before, after <= before); \
                       where(is_float(after), later | isnan(after), later)";
        let later = calc!(call, formula, largest, after, before)?;
        let value = call.choose(&later, &after, &before)?;
        let place = call.choose(&later, &after_place, &before_place)?;
        values = call.concatenate(&[start, value], at)?;
        places = call.concatenate(&[start_place, place], at)?;
        step *= 2;
    }
    Ok(vec![RewriteResult::Tensor(values), RewriteResult::Tensor(places)])
}

fn trapezoid_x(call: &mut Call<'_>) -> Results {
    let y = call.typed("y")?;
    let at = call.dimension("dim", y.rank())?;
    let steps = distances(call, y.rank(), at)?;
    one(calc!(call, "sum((head(y, at) + tail(y, at)) * steps, at) * 0.5", y, at, steps)?)
}

/// The distances between the samples `x` along a dimension.
fn distances(call: &mut Call<'_>, rank: usize, at: usize) -> TensorResult {
    let x = call.typed("x")?;
    let x_at = if x.rank() == 1 { 0 } else { at };
    let steps = calc!(call, "tail(x, x_at) - head(x, x_at)", x, x_at)?;
    if x.rank() == 1 && rank > 1 { call.along(&steps, at, rank) } else { Ok(steps) }
}

fn cumulative_trapezoid(call: &mut Call<'_>) -> Results {
    let y = call.typed("y")?;
    let at = call.dimension("dim", y.rank())?;
    let areas = if call.has("x") {
        let steps = distances(call, y.rank(), at)?;
        calc!(call, "(head(y, at) + tail(y, at)) * steps * 0.5", y, at, steps)?
    } else {
        calc!(call, "(head(y, at) + tail(y, at)) * (dx / 2.0)", y, at)?
    };
    one(call.like(&areas, "aten.cumsum.default", given!(self = areas, dim = at))?)
}

fn cosine_similarity(call: &mut Call<'_>) -> Results {
    let (x, y) = (call.typed("x1")?, call.typed("x2")?);
    let rank = broadcast(&x, &y)?.len();
    let at = call.dimension("dim", rank)?;
    let mut units = Vec::with_capacity(2);
    for tensor in [&x, &y] {
        let Some(own) = (at + tensor.rank()).checked_sub(rank) else {
            refuse!("dimension {at} of the product is missing in one factor");
        };
        // Normalizing first avoids overflow in the products.
        units.push(calc!(call, "tensor / max(norm(tensor, 2, own, 1), eps)", tensor, own)?);
    }
    let (first, second) = (units.at(0)?, units.at(1)?);
    one(calc!(call, "sum(first * second, at)", at, first, second)?)
}

/// Distance of each row to every later row.
fn distances_within(call: &mut Call<'_>) -> Results {
    let x = call.tensor("self")?;
    let rows = x.known(0, "the number of rows")?;
    checked_numel(&[rows, rows])?;
    let formula = "flat(norm(unsqueeze(x, -2) - unsqueeze(x, -3), where(given(p), p, 2), -1))";
    let flat = calc!(call, formula, x)?;
    let places: Vec<i64> =
        (0..rows).flat_map(|row| (row + 1..rows).map(move |other| row * rows + other)).collect();
    let places = call.constant_ints(&places)?;
    one(call.index_select(&flat, 0, &places)?)
}

fn trace(call: &mut Call<'_>) -> Results {
    let x = call.tensor("self")?;
    if x.rank() != 2 {
        refuse!("the trace requires a tensor of rank 2, got {}", x.rank());
    }
    let sizes = x.all_known("a size of the matrix")?;
    let length = sizes.into_iter().min().unwrap_or(0);
    let operator = "aten.diagonal_copy.default";
    let diagonal = call.emit(operator, given!(self = x), x.dtype, vec![Size::Fixed(length)])?;
    let dtype = if is_integer(x.dtype) { ScalarType::Int64 } else { x.dtype };
    one(call.sum_as(&diagonal, &[0], false, dtype)?)
}
