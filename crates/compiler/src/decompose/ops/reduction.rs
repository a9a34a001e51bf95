//! Along dimensions: sums, extremes, norms, distances.

use coremill_pt2::{Argument, ScalarType, Size};

use crate::bounds::{At, back, created};
use crate::decompose::call::{Call, Made, Results, Tensor, one};
use crate::decompose::dtype::{is_complex, is_float, is_integer};
use crate::decompose::formula::calc;
use crate::decompose::row::{Row, by, to};
use crate::decompose::size;
use crate::decompose::words::Maybe;
use crate::error::{Refusal, refuse};

pub(crate) const ROWS: &[Row] = &[
    by(total, &["aten.sum.default", "aten.sum.dim_IntList", "aten.mean.default", "aten.mean.dim"]),
    by(nansum, &["aten.nansum.default", "aten.nanmean.default"]),
    by(product, &["aten.prod.default", "aten.prod.dim_int"]),
    by(
        all,
        &[
            "aten.all.default",
            "aten.all.dim",
            "aten.all.dims",
            "aten.any.default",
            "aten.any.dim",
            "aten.any.dims",
        ],
    ),
    to("aten.nonzero.default", &["aten.argwhere.default"]),
    by(renormed, &["aten.renorm.default"]),
    by(count_nonzero, &["aten.count_nonzero.default", "aten.count_nonzero.dim_IntList"]),
    by(
        extremes,
        &["aten.max.default", "aten.min.default", "aten.amax.default", "aten.amin.default"],
    ),
    by(aminmax, &["aten.aminmax.default"]),
    by(extreme_and_place, &["aten.max.dim", "aten.min.dim"]),
    by(place, &["aten.argmax.default", "aten.argmin.default"]),
    by(
        spread,
        &[
            "aten.var.default",
            "aten.var.dim",
            "aten.var.correction",
            "aten.std.default",
            "aten.std.dim",
            "aten.std.correction",
            "aten.var_mean.default",
            "aten.var_mean.dim",
            "aten.var_mean.correction",
            "aten.std_mean.default",
            "aten.std_mean.dim",
            "aten.std_mean.correction",
        ],
    ),
    by(
        norm,
        &[
            "aten.linalg_vector_norm.default",
            "aten.linalg_norm.default",
            "aten.linalg_norm.ord_str",
            "aten.linalg_matrix_norm.default",
            "aten.linalg_matrix_norm.str_ord",
            "aten.norm.Scalar",
            "aten.norm.ScalarOpt_dim",
            "aten.norm.ScalarOpt_dtype",
            "aten.norm.ScalarOpt_dim_dtype",
            "aten.frobenius_norm.dim",
        ],
    ),
    by(logsumexp, &["aten.logsumexp.default", "aten.special_logsumexp.default"]),
    by(cumulated, &["aten.cumsum.default"]),
    by(by_doubling, &["aten.cumprod.default", "aten.logcumsumexp.default"]),
    by(running_extreme, &["aten.cummax.default", "aten.cummin.default"]),
    by(trapezoid, &["aten.trapezoid.dx", "aten.trapz.dx"]),
    by(trapezoid_x, &["aten.trapezoid.x", "aten.trapz.x"]),
    by(cosine_similarity, &["aten.cosine_similarity.default"]),
    by(
        distances,
        &["aten.cdist.default", "aten._cdist_forward.default", "aten._euclidean_dist.default"],
    ),
    by(distances_within, &["aten.pdist.default", "aten._pdist_forward.default"]),
    by(pairwise, &["aten.pairwise_distance.default"]),
    by(distance, &["aten.dist.default"]),
    by(trace, &["aten.trace.default"]),
];

/// Positions of the dimensions, and whether they are kept with a size of 1.
fn over(call: &Call<'_>, x: &Tensor) -> Result<(Vec<usize>, bool), Refusal> {
    Ok((call.dimensions("dim", x.rank())?, call.bool("keepdim")?))
}

/// The sizes that are left.
fn left(x: &Tensor, dimensions: &[usize], keep: bool) -> Vec<Size> {
    let of = |(at, size): (usize, &Size)| match (dimensions.contains(&at), keep) {
        (false, _) => Some(size.clone()),
        (true, true) => Some(Size::Fixed(1)),
        (true, false) => None,
    };
    x.sizes.iter().enumerate().filter_map(of).collect()
}

fn total(call: &mut Call<'_>) -> Results {
    let x = call.tensor("self")?;
    let (dimensions, keep) = over(call, &x)?;
    let dtype = call.result(0)?.dtype;
    if is_complex(x.dtype) || is_complex(dtype) {
        refuse!("sums of complex numbers have no kernel that takes dimensions");
    }
    let is_mean = call.node.target.to_string().contains("mean");
    if x.rank() == 0 {
        return one(call.cast(&x, dtype)?);
    }
    let x = call.cast(&x, dtype)?;
    one(if is_mean {
        call.mean(&x, &dimensions, keep)?
    } else {
        sum_as(call, &x, &dimensions, keep, dtype)?
    })
}

fn sum_as(
    call: &mut Call<'_>,
    x: &Tensor,
    dimensions: &[usize],
    keep: bool,
    dtype: ScalarType,
) -> Maybe {
    let sizes = left(x, dimensions, keep);
    let given = [
        ("self", x.argument()),
        ("dim", crate::decompose::words::places(dimensions)),
        ("keepdim", Argument::Bool(keep)),
        ("dtype", Argument::ScalarType(dtype)),
    ];
    call.emit("aten.sum.dim_IntList", &given, dtype, sizes)
}

fn nansum(call: &mut Call<'_>) -> Results {
    let x = call.tensor("self")?;
    let (dimensions, keep) = over(call, &x)?;
    let dtype = call.result(0)?.dtype;
    let mut values = x.clone();
    if is_float(x.dtype) {
        values = calc!(call, "where(isnan(x), 0, x)", x)?;
    }
    let sum = sum_as(call, &values, &dimensions, keep, dtype)?;
    if call.node.target.is("aten", "nansum", "default") {
        return one(sum);
    }
    let number = call.compare("eq", &x, &x)?;
    let ones = call.cast(&number, dtype)?;
    let count = sum_as(call, &ones, &dimensions, keep, dtype)?;
    one(call.divide(&sum, &count)?)
}

fn product(call: &mut Call<'_>) -> Results {
    let x = call.tensor("self")?;
    let dtype = call.result(0)?.dtype;
    let x = call.cast(&x, dtype)?;
    let kind = ("dtype", Argument::ScalarType(dtype));
    if call.has("dim") {
        let at = x.dimension(call.int("dim")?)?;
        let keep = call.bool("keepdim")?;
        let sizes = if x.rank() == 0 { Vec::new() } else { left(&x, &[at], keep) };
        let given = [
            ("self", x.argument()),
            ("dim", Argument::Int(at as i64)),
            ("keepdim", Argument::Bool(keep)),
            kind,
        ];
        return one(call.emit("aten.prod.dim_int", &given, dtype, sizes)?);
    }
    one(call.emit("aten.prod.default", &[("self", x.argument()), kind], dtype, Vec::new())?)
}

/// All are true if none is false.
fn all(call: &mut Call<'_>) -> Results {
    let x = call.tensor("self")?;
    let (dimensions, keep) = over(call, &x)?;
    let dtype = call.result(0)?.dtype;
    let every = call.node.target.to_string().contains(".all.");
    let asked = if every { call.test("logical_not", &x)? } else { x.clone() };
    let found = if x.rank() == 0 {
        call.cast(&asked, ScalarType::Bool)?
    } else {
        call.any(&asked, &dimensions, keep)?
    };
    let found = if every { call.test("logical_not", &found)? } else { found };
    one(call.cast(&found, dtype)?)
}

fn count_nonzero(call: &mut Call<'_>) -> Results {
    let x = call.tensor("self")?;
    let (dimensions, _) = over(call, &x)?;
    let there = call.compare_number("ne", &x, Argument::Int(0))?;
    one(sum_as(call, &there, &dimensions, false, ScalarType::Int64)?)
}

fn extremes(call: &mut Call<'_>) -> Results {
    let x = call.tensor("self")?;
    if x.rank() == 0 {
        return one(x);
    }
    let (dimensions, keep) = over(call, &x)?;
    let largest = call.node.target.to_string().contains("max");
    one(call.extreme(if largest { "amax" } else { "amin" }, &x, &dimensions, keep)?)
}

fn aminmax(call: &mut Call<'_>) -> Results {
    let x = call.tensor("self")?;
    let (dimensions, keep) = over(call, &x)?;
    let mut results = Vec::with_capacity(2);
    for function in ["amin", "amax"] {
        results.push(Made::Tensor(if x.rank() == 0 {
            x.clone()
        } else {
            call.extreme(function, &x, &dimensions, keep)?
        }));
    }
    Ok(results)
}

fn extreme_and_place(call: &mut Call<'_>) -> Results {
    let x = call.tensor("self")?;
    let at = x.dimension(call.int("dim")?)?;
    let keep = call.bool("keepdim")?;
    let operator = call.node.target.to_string();
    if x.rank() == 0 {
        let place = call.full(Vec::new(), Argument::Int(0), ScalarType::Int64)?;
        return Ok(vec![Made::Tensor(x), Made::Tensor(place)]);
    }
    // Bytes order truth.
    let values =
        if x.dtype == ScalarType::Bool { call.cast(&x, ScalarType::UInt8)? } else { x.clone() };
    let sizes = left(&x, &[at], keep);
    let given = [
        ("self", values.argument()),
        ("dim", Argument::Int(at as i64)),
        ("keepdim", Argument::Bool(keep)),
    ];
    let types = vec![(values.dtype, sizes.clone()), (ScalarType::Int64, sizes)];
    let mut both = call.emit_several(&operator, &given, types)?;
    *both.at_mut(0)? = call.cast(both.at(0)?, x.dtype)?;
    Ok(both.into_iter().map(Made::Tensor).collect())
}

fn place(call: &mut Call<'_>) -> Results {
    let x = call.tensor("self")?;
    let operator = call.node.target.to_string();
    let sizes = call.result(0)?.sizes.clone();
    if x.rank() == 0 {
        return one(call.full(sizes, Argument::Int(0), ScalarType::Int64)?);
    }
    let x = if x.dtype == ScalarType::Bool { call.cast(&x, ScalarType::UInt8)? } else { x };
    if call.has("dim") {
        let given = [
            ("self", x.argument()),
            ("dim", Argument::Int(x.dimension(call.int("dim")?)? as i64)),
            ("keepdim", Argument::Bool(call.bool("keepdim")?)),
        ];
        return one(call.emit(&operator, &given, ScalarType::Int64, sizes)?);
    }
    // In a row, so that it is of no matter what the kernel thinks of no dimension.
    let flat = call.view(&x, vec![size::product(&x.sizes)])?;
    let given =
        [("self", flat.argument()), ("dim", Argument::Int(0)), ("keepdim", Argument::Bool(false))];
    let found = call.emit(&operator, &given, ScalarType::Int64, Vec::new())?;
    one(call.view(&found, sizes)?)
}

/// How much the divisor is less than the count.
fn correction(call: &Call<'_>) -> Result<f64, Refusal> {
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
    let name = call.node.target.to_string();
    let sizes = left(&x, &dimensions, keep);
    let given = [
        ("self", x.argument()),
        ("dim", crate::decompose::words::places(&dimensions)),
        ("correction", Argument::Float(correction)),
        ("keepdim", Argument::Bool(keep)),
    ];
    let mut spread = call.emit("aten.var.correction", &given, x.dtype, sizes)?;
    if name.contains("std") {
        spread = call.map("sqrt", &spread)?;
    }
    if !name.contains("_mean") {
        return one(spread);
    }
    let mean = call.mean(&x, &dimensions, keep)?;
    Ok(vec![Made::Tensor(spread), Made::Tensor(mean)])
}

/// The norm of a degree of what is along some dimensions.
fn length(call: &mut Call<'_>, x: &Tensor, degree: f64, dimensions: &[usize], keep: bool) -> Maybe {
    if x.rank() == 0 {
        return if degree == 0.0 {
            let there = call.compare_number("ne", x, Argument::Float(0.0))?;
            call.cast(&there, x.dtype)
        } else {
            call.map("abs", x)
        };
    }
    if degree == 2.0 {
        let squared = call.multiply(x, x)?;
        let sum = sum_as(call, &squared, dimensions, keep, x.dtype)?;
        return call.map("sqrt", &sum);
    }
    if degree == 0.0 {
        let there = call.compare_number("ne", x, Argument::Float(0.0))?;
        let counts = call.cast(&there, x.dtype)?;
        return sum_as(call, &counts, dimensions, keep, x.dtype);
    }
    let size = call.map("abs", x)?;
    if degree.is_infinite() {
        let function = if degree > 0.0 { "amax" } else { "amin" };
        return call.extreme(function, &size, dimensions, keep);
    }
    if degree == 1.0 {
        return sum_as(call, &size, dimensions, keep, x.dtype);
    }
    let power = call.power(&size, Argument::Float(degree))?;
    let sum = sum_as(call, &power, dimensions, keep, x.dtype)?;
    call.power(&sum, Argument::Float(1.0 / degree))
}

fn norm(call: &mut Call<'_>) -> Results {
    let x = call.tensor("self")?;
    let (dimensions, keep) = over(call, &x)?;
    if is_complex(x.dtype) {
        refuse!("norms of complex numbers have no kernel");
    }
    let dtype = call.result(0)?.dtype;
    let x = call.cast(&x, dtype)?;
    let name = if call.has("ord") { "ord" } else { "p" };
    if call.text(name).is_ok_and(|order| order == "fro") {
        return one(call.norm(&x, 2.0, &dimensions, keep)?);
    }
    let degree = call.float_or(name, 2.0)?;
    let is_of_matrices = ["linalg_norm", "linalg_matrix_norm"]
        .iter()
        .any(|name| call.node.target.is("aten", name, "default"));
    match dimensions[..] {
        [row, column] if is_of_matrices && call.has("ord") => {
            one(matrix_norm(call, &x, degree, [row, column], keep)?)
        }
        _ if call.node.target.is("aten", "linalg_vector_norm", "default") => {
            one(length(call, &x, degree, &dimensions, keep)?)
        }
        _ => one(call.norm(&x, degree, &dimensions, keep)?),
    }
}

/// Parts along a dimension whose norm is more than is allowed, made that long.
fn renormed(call: &mut Call<'_>) -> Results {
    let x = call.tensor("self")?;
    let (degree, most) = (call.float("p")?, call.float("maxnorm")?);
    let kept = x.dimension(call.int("dim")?)?;
    let over: Vec<usize> = (0..x.rank()).filter(|at| *at != kept).collect();
    let norm = call.norm(&x, degree, &over, true)?;
    // Of what may have no norm nothing is left.
    let formula = "x * where(most > 0, most / max(norm, most), norm * 0.0)";
    one(calc!(call, formula, x, most, norm)?)
}

/// The norm of an order of matrices: the largest or smallest of the sums along the other dimension.
fn matrix_norm(
    call: &mut Call<'_>,
    x: &Tensor,
    order: f64,
    [row, column]: [usize; 2],
    keep: bool,
) -> Maybe {
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
    let x = call.tensor("self")?;
    let (dimensions, keep) = over(call, &x)?;
    let dtype = call.result(0)?.dtype;
    let x = call.cast(&x, dtype)?;
    if x.rank() == 0 {
        return one(x);
    }
    let most = call.extreme("amax", &x, &dimensions, true)?;
    // An infinite one would leave no number.
    let most = calc!(call, "where(isinf(most), 0, most)", most)?;
    let power = calc!(call, "exp(x - most)", x, most)?;
    let sum = sum_as(call, &power, &dimensions, keep, dtype)?;
    let log = call.map("log", &sum)?;
    let sizes = log.sizes.clone();
    let most = call.view(&most, sizes)?;
    one(call.add(&log, &most)?)
}

fn cumulated(call: &mut Call<'_>) -> Results {
    let x = call.tensor("self")?;
    let dtype = call.result(0)?.dtype;
    let x = call.cast(&x, dtype)?;
    if x.rank() == 0 {
        return one(x);
    }
    let at = x.dimension(call.int("dim")?)?;
    let given = [
        ("self", x.argument()),
        ("dim", Argument::Int(at as i64)),
        ("dtype", Argument::ScalarType(dtype)),
    ];
    one(call.emit("aten.cumsum.default", &given, dtype, x.sizes.clone())?)
}

/// Where a dimension is and how long it is.
fn along(call: &Call<'_>, x: &Tensor) -> Result<(usize, i64), Refusal> {
    let at = x.dimension(call.int("dim")?)?;
    match x.extent(at)?.fixed() {
        Some(length) => Ok((at, length)),
        None => refuse!("the length of the dimension is unknown at compile time"),
    }
}

/// Every place has the whole run before it after as many steps as the length has binary digits.
fn by_doubling(call: &mut Call<'_>) -> Results {
    let x = call.tensor("self")?;
    let dtype = call.result(0)?.dtype;
    let mut sum = call.cast(&x, dtype)?;
    if x.rank() == 0 {
        return one(sum);
    }
    let (at, length) = along(call, &x)?;
    let is_product = call.node.target.is("aten", "cumprod", "default");
    let mut step = 1;
    while step < length {
        let start = call.slice(&sum, at, 0, step, 1)?;
        let before = call.slice(&sum, at, 0, length - step, 1)?;
        let after = call.slice(&sum, at, step, length - step, 1)?;
        let joined = if is_product {
            call.multiply(&before, &after)?
        } else {
            call.join("aten.logaddexp.default", &before, &after)?
        };
        sum = call.concatenate(&[start, joined], at)?;
        step *= 2;
    }
    one(sum)
}

/// The places of equal elements are the last ones, as torch's are.
fn running_extreme(call: &mut Call<'_>) -> Results {
    let x = call.tensor("self")?;
    if x.rank() == 0 {
        let place = call.full(Vec::new(), Argument::Int(0), ScalarType::Int64)?;
        return Ok(vec![Made::Tensor(x), Made::Tensor(place)]);
    }
    let (at, length) = along(call, &x)?;
    let largest = call.node.target.is("aten", "cummax", "default");
    let count = call.count(&Size::Fixed(length), ScalarType::Int64)?;
    let mut shape = vec![Size::Fixed(1); x.rank()];
    *shape.at_mut(at)? = Size::Fixed(length);
    let count = call.view(&count, shape)?;
    let mut places = call.expand(&count, x.sizes.clone())?;
    let mut values = x.clone();
    let mut step = 1;
    while step < length {
        let part = |call: &mut Call<'_>, tensor: &Tensor| -> Result<[Tensor; 3], Refusal> {
            Ok([
                call.slice(tensor, at, 0, step, 1)?,
                call.slice(tensor, at, 0, length - step, 1)?,
                call.slice(tensor, at, step, length - step, 1)?,
            ])
        };
        let [start, before, after] = part(call, &values)?;
        let [start_place, before_place, after_place] = part(call, &places)?;
        let formula = "later = where(largest, after >= before, after <= before); \
                       where(is_float(after), later | isnan(after), later)";
        let later = calc!(call, formula, largest, after, before)?;
        let value = call.choose(&later, &after, &before)?;
        let place = call.choose(&later, &after_place, &before_place)?;
        values = call.concatenate(&[start, value], at)?;
        places = call.concatenate(&[start_place, place], at)?;
        step *= 2;
    }
    Ok(vec![Made::Tensor(values), Made::Tensor(places)])
}

/// Means of neighbours.
fn between(
    call: &mut Call<'_>,
    y: &Tensor,
    at: usize,
    length: i64,
) -> Result<[Tensor; 2], Refusal> {
    Ok([call.slice(y, at, 0, length - 1, 1)?, call.slice(y, at, 1, length - 1, 1)?])
}

fn trapezoid(call: &mut Call<'_>) -> Results {
    let y = call.tensor("y")?;
    let (at, length) = along(call, &y)?;
    let step = call.float("dx")?;
    let dtype = call.result(0)?.dtype;
    let y = call.cast(&y, dtype)?;
    let [before, after] = between(call, &y, at, length)?;
    let sums = call.add(&before, &after)?;
    let sum = sum_as(call, &sums, &[at], false, dtype)?;
    one(call.times(&sum, step / 2.0)?)
}

fn trapezoid_x(call: &mut Call<'_>) -> Results {
    let (y, x) = (call.tensor("y")?, call.tensor("x")?);
    let (at, length) = along(call, &y)?;
    let dtype = call.result(0)?.dtype;
    let (y, x) = (call.cast(&y, dtype)?, call.cast(&x, dtype)?);
    let x_at = if x.rank() == 1 { 0 } else { at };
    let [before, after] = between(call, &y, at, length)?;
    let [start, end] = between(call, &x, x_at, length)?;
    let mut steps = call.subtract(&end, &start)?;
    if x.rank() == 1 && y.rank() > 1 {
        let mut shape = vec![Size::Fixed(1); y.rank()];
        *shape.at_mut(at)? = Size::Fixed(length - 1);
        steps = call.view(&steps, shape)?;
    }
    let areas = calc!(call, "(before + after) * steps", before, after, steps)?;
    let sum = sum_as(call, &areas, &[at], false, dtype)?;
    one(call.times(&sum, 0.5)?)
}

fn cosine_similarity(call: &mut Call<'_>) -> Results {
    let (x, y) = (call.tensor("x1")?, call.tensor("x2")?);
    let epsilon = call.float("eps")?;
    let dtype = call.result(0)?.dtype;
    let (x, y) = (call.cast(&x, dtype)?, call.cast(&y, dtype)?);
    let product = call.multiply(&x, &y)?;
    let at = product.dimension(call.int("dim")?)?;
    let mut norms = Vec::with_capacity(2);
    for tensor in [&x, &y] {
        let Some(own) = (at + tensor.rank()).checked_sub(product.rank()) else {
            refuse!("dimension {at} of the product is missing in one factor");
        };
        let norm = call.norm(tensor, 2.0, &[own], false)?;
        norms.push(call.clamp(&norm, Some(epsilon), None)?);
    }
    let sum = sum_as(call, &product, &[at], false, dtype)?;
    let (first, second) = (norms.at(0)?, norms.at(1)?);
    one(calc!(call, "sum / (first * second)", sum, first, second)?)
}

/// Every row of the one from every row of the other.
fn distances(call: &mut Call<'_>) -> Results {
    let (x, y) = (call.tensor("x1")?, call.tensor("x2")?);
    let degree = call.float_or("p", 2.0)?;
    one(distances_between(call, &x, &y, degree)?)
}

fn distances_between(call: &mut Call<'_>, x: &Tensor, y: &Tensor, degree: f64) -> Maybe {
    if x.rank() < 2 || y.rank() < 2 {
        refuse!("distances are of the rows of matrices");
    }
    let left = call.unsqueeze(x, back(x.rank(), 1)?)?;
    let right = call.unsqueeze(y, back(y.rank(), 2)?)?;
    let difference = call.subtract(&left, &right)?;
    call.norm(&difference, degree, &[back(difference.rank(), 1)?], false)
}

/// Every row from those after it.
fn distances_within(call: &mut Call<'_>) -> Results {
    let x = call.tensor("self")?;
    let degree = call.float_or("p", 2.0)?;
    let Some(rows) = x.sizes.first().and_then(Size::fixed) else {
        refuse!("the number of rows is unknown at compile time");
    };
    created(&[rows, rows])?;
    let all = distances_between(call, &x, &x, degree)?;
    let flat = call.view(&all, vec![Size::Fixed(rows * rows)])?;
    let places: Vec<i64> =
        (0..rows).flat_map(|row| (row + 1..rows).map(move |other| row * rows + other)).collect();
    let places = call.constant_ints(&places)?;
    one(call.index_select(&flat, 0, &places)?)
}

fn pairwise(call: &mut Call<'_>) -> Results {
    let (x, y) = (call.tensor("x1")?, call.tensor("x2")?);
    let (degree, epsilon) = (call.float("p")?, call.float("eps")?);
    let moved = calc!(call, "x - y + epsilon", x, y, epsilon)?;
    let keep = call.bool("keepdim")?;
    one(call.norm(&moved, degree, &[back(moved.rank(), 1)?], keep)?)
}

fn distance(call: &mut Call<'_>) -> Results {
    let (x, y) = (call.tensor("self")?, call.tensor("other")?);
    let degree = call.float("p")?;
    let difference = call.subtract(&x, &y)?;
    let all: Vec<usize> = (0..difference.rank()).collect();
    one(call.norm(&difference, degree, &all, false)?)
}

fn trace(call: &mut Call<'_>) -> Results {
    let x = call.tensor("self")?;
    let [rows, columns] = x.extent(..)? else {
        refuse!("the trace of a tensor of rank {}; it must be 2", x.rank());
    };
    let length = match (rows.fixed(), columns.fixed()) {
        (Some(rows), Some(columns)) => Size::Fixed(rows.min(columns)),
        _ => refuse!("the sizes of the matrix are unknown at compile time"),
    };
    let given = [("self", x.argument())];
    let diagonal = call.emit("aten.diagonal_copy.default", &given, x.dtype, vec![length])?;
    let dtype = if is_integer(x.dtype) { ScalarType::Int64 } else { x.dtype };
    one(sum_as(call, &diagonal, &[0], false, dtype)?)
}
