//! Tensors out of numbers.

use std::f64::consts::PI;

use coremill_pt2::{Argument, ScalarType, Size};

use super::special::bessel_0;
use crate::bounds::{At, back};
use crate::decompose::call::{Call, Made, Results, Tensor, one};
use crate::decompose::dtype::is_float;
use crate::decompose::formula::calc;
use crate::decompose::row::{Row, by};
use crate::decompose::size;
use crate::decompose::words::Maybe;
use crate::error::{Refusal, refuse};

pub(crate) const ROWS: &[Row] = &[
    by(
        filled,
        &[
            "aten.full.default",
            "aten.full_like.default",
            "aten.new_full.default",
            "aten.zeros.default",
            "aten.zeros_like.default",
            "aten.new_zeros.default",
            "aten.ones.default",
            "aten.ones_like.default",
            "aten.new_ones.default",
            "aten.fill.Scalar",
            "aten.scalar_tensor.default",
            "aten.zero.default",
        ],
    ),
    by(filled_by_tensor, &["aten.fill.Tensor"]),
    by(counted, &["aten.arange.default", "aten.arange.start", "aten.arange.start_step"]),
    by(linspace, &["aten.linspace.default", "aten.logspace.default"]),
    by(eye, &["aten.eye.default", "aten.eye.m"]),
    by(triangle, &["aten.triu.default", "aten.tril.default"]),
    by(triangle_places, &["aten.tril_indices.default", "aten.triu_indices.default"]),
    by(
        window,
        &[
            "aten.hann_window.default",
            "aten.hann_window.periodic",
            "aten.hamming_window.default",
            "aten.hamming_window.periodic",
            "aten.blackman_window.default",
            "aten.blackman_window.periodic",
        ],
    ),
    by(bartlett_window, &["aten.bartlett_window.default", "aten.bartlett_window.periodic"]),
    by(
        kaiser_window,
        &["aten.kaiser_window.default", "aten.kaiser_window.periodic", "aten.kaiser_window.beta"],
    ),
    by(one_hot, &["aten.one_hot.default"]),
    by(meshgrid, &["aten.meshgrid.default", "aten.meshgrid.indexing"]),
    by(cartesian, &["aten.cartesian_prod.default"]),
    by(vander, &["aten.vander.default", "aten.linalg_vander.default"]),
    by(diag, &["aten.diag.default"]),
    by(diag_embed, &["aten.diag_embed.default"]),
    by(block_diag, &["aten.block_diag.default"]),
];

fn filled(call: &mut Call<'_>) -> Results {
    let noted = call.result(0)?;
    let (dtype, sizes) = (noted.dtype, noted.sizes.clone());
    let name = call.node.target.to_string();
    let value = if call.has("fill_value") {
        call.number("fill_value")?
    } else if call.has("value") {
        call.number("value")?
    } else if call.has("s") {
        call.number("s")?
    } else {
        Argument::Int(i64::from(name.contains("ones")))
    };
    if let Some(Argument::List(items)) = call.node.argument("size")
        && sizes.iter().any(|size| size.fixed().is_none())
    {
        // As the model computes them.
        let given = [
            ("size", Argument::List(items.clone())),
            ("fill_value", value),
            ("dtype", Argument::ScalarType(dtype)),
        ];
        return one(call.emit("aten.full.default", &given, dtype, sizes)?);
    }
    one(call.full(sizes, value, dtype)?)
}

fn filled_by_tensor(call: &mut Call<'_>) -> Results {
    let (x, value) = (call.tensor("self")?, call.tensor("value")?);
    let value = call.cast(&value, x.dtype)?;
    one(call.expand(&value, x.sizes)?)
}

fn counted(call: &mut Call<'_>) -> Results {
    let noted = call.result(0)?;
    let (dtype, sizes) = (noted.dtype, noted.sizes.clone());
    let number = |call: &Call<'_>, name: &str, default: i64| match call.has(name) {
        true => call.number(name),
        false => Ok(Argument::Int(default)),
    };
    let (start, step) = (number(call, "start", 0)?, number(call, "step", 1)?);
    let end = call.number("end")?;
    let given =
        [("start", start), ("end", end), ("step", step), ("dtype", Argument::ScalarType(dtype))];
    one(call.emit("aten.arange.start_step", &given, dtype, sizes)?)
}

fn linspace(call: &mut Call<'_>) -> Results {
    let (start, end) = (call.float("start")?, call.float("end")?);
    let steps = call.int("steps")?;
    let dtype = call.result(0)?.dtype;
    let wide = if dtype == ScalarType::Float64 || !is_float(dtype) {
        ScalarType::Float64
    } else {
        ScalarType::Float32
    };
    let count = call.count(&Size::Fixed(steps), wide)?;
    let step = (end - start) / (steps - 1).max(1) as f64;
    // From both ends, as torch does, so that the last one is exact.
    let formula = "risen = count * step + start; fallen = (steps - 1 - count) * -step + end; \
                   values = where(steps > 1, where(count < half, risen, fallen), risen); \
                   where(given(base), base ^ values, values)";
    let half = steps / 2;
    let values = calc!(call, formula, count, step, start, steps, end, half)?;
    one(call.cast(&values, dtype)?)
}

/// Whether the row's number, plus an offset, is `test` that of the column.
fn rows_and_columns(
    call: &mut Call<'_>,
    rows: &Size,
    columns: &Size,
    offset: i64,
    test: &str,
) -> Maybe {
    let down = call.count(rows, ScalarType::Int64)?;
    let down = if offset == 0 { down } else { call.with("add", &down, Argument::Int(offset))? };
    let down = call.unsqueeze(&down, 1)?;
    let across = call.count(columns, ScalarType::Int64)?;
    call.compare(test, &down, &across)
}

fn eye(call: &mut Call<'_>) -> Results {
    let noted = call.result(0)?;
    let (dtype, sizes) = (noted.dtype, noted.sizes.clone());
    let [rows, columns] = size::at(&sizes, ..)? else {
        refuse!("a matrix has rank {}; it must be 2", sizes.len());
    };
    let found = rows_and_columns(call, rows, columns, 0, "eq")?;
    one(call.cast(&found, dtype)?)
}

fn triangle(call: &mut Call<'_>) -> Results {
    let x = call.tensor("self")?;
    let name = call.node.target.to_string();
    if name.contains("tril") && x.rank() == 2 {
        return call.renamed(&name);
    }
    let offset = call.int("diagonal")?;
    let rank = x.rank();
    if rank < 2 {
        refuse!("a triangle is part of a matrix");
    }
    let (rows, columns) = (x.extent(back(rank, 2)?)?.clone(), x.extent(back(rank, 1)?)?.clone());
    let test = if name.contains("tril") { "ge" } else { "le" };
    let inside = rows_and_columns(call, &rows, &columns, offset, test)?;
    let zero = match x.dtype {
        ScalarType::Bool => Argument::Bool(false),
        _ => Argument::Int(0),
    };
    let zero = call.full(Vec::new(), zero, x.dtype)?;
    one(call.choose(&inside, &x, &zero)?)
}

/// The places of a triangle; only if there are few enough for a list.
fn triangle_places(call: &mut Call<'_>) -> Results {
    const MOST: usize = 1 << 12;
    let (rows, columns) = (call.int("row")?, call.int("col")?);
    let offset = call.int("offset")?;
    let lower = call.node.target.is("aten", "tril_indices", "default");
    let noted = call.result(0)?;
    let (dtype, sizes) = (noted.dtype, noted.sizes.clone());
    let count = sizes.get(1).and_then(Size::fixed);
    let Some(count) = count.and_then(|count| usize::try_from(count).ok()) else {
        refuse!("the number of places is not known");
    };
    if count > MOST || rows > MOST as i64 {
        refuse!("a triangle of {count} elements has more than {MOST}");
    }
    // One run for each row.
    let mut places = [Vec::new(), Vec::new()];
    for row in 0..rows {
        let middle = (row.saturating_add(offset)).clamp(-1, columns);
        let (start, end) =
            if lower { (0, (middle + 1).clamp(0, columns)) } else { (middle.max(0), columns) };
        if start >= end {
            continue;
        }
        let length = Size::Fixed(end - start);
        places[0].push(call.full(vec![length.clone()], Argument::Int(row), dtype)?);
        let count = call.count(&length, dtype)?;
        places[1].push(if start == 0 {
            count
        } else {
            call.with("add", &count, Argument::Int(start))?
        });
    }
    let mut both = Vec::with_capacity(2);
    for runs in &places {
        both.push(match runs.as_slice() {
            [] => call.full(vec![Size::Fixed(0)], Argument::Int(0), dtype)?,
            runs => call.concatenate(runs, 0)?,
        });
    }
    one(call.stack(&both, 0)?)
}

/// Where each element of a window is, from -1 to 1; none if there are not two.
fn window_places(call: &mut Call<'_>) -> Result<Option<Tensor>, Refusal> {
    let noted = call.result(0)?;
    let [size] = &noted.sizes[..] else {
        refuse!("the window has rank {}; accepted is 1", noted.sizes.len());
    };
    let (dtype, size) = (noted.dtype, size.clone());
    let length = call.int("window_length")?;
    if length <= 1 {
        return Ok(None);
    }
    let periodic = !matches!(call.node.argument("periodic"), Some(Argument::Bool(false)));
    let around = if periodic { length } else { length - 1 };
    let count = call.count(&size, dtype)?;
    let scaled = call.times(&count, 2.0 / around as f64)?;
    call.add_number(&scaled, -1.0).map(Some)
}

/// A window of one element, or of none.
fn single(call: &mut Call<'_>) -> Results {
    let noted = call.result(0)?;
    let (dtype, sizes) = (noted.dtype, noted.sizes.clone());
    one(call.full(sizes, Argument::Int(1), dtype)?)
}

fn bartlett_window(call: &mut Call<'_>) -> Results {
    let Some(places) = window_places(call)? else { return single(call) };
    one(calc!(call, "1.0 - abs(places)", places)?)
}

fn kaiser_window(call: &mut Call<'_>) -> Results {
    let beta = call.float_or("beta", 12.0)?;
    let Some(places) = window_places(call)? else { return single(call) };
    // Rounding could leave less than nothing.
    let formula = "sqrt(max(1.0 - square(places), 0)) * beta";
    let above = calc!(call, formula, places, beta)?;
    let above = bessel_0(call, &above)?;
    let most = call.full(Vec::new(), Argument::Float(beta), places.dtype)?;
    let below = bessel_0(call, &most)?;
    one(call.divide(&above, &below)?)
}

fn window(call: &mut Call<'_>) -> Results {
    let noted = call.result(0)?;
    let (dtype, sizes) = (noted.dtype, noted.sizes.clone());
    let length = call.int("window_length")?;
    let periodic = !matches!(call.node.argument("periodic"), Some(Argument::Bool(false)));
    let name = call.node.target.to_string();
    let formula = if name.contains("hamming") {
        "0.54 - 0.46 * cos(turns)"
    } else if name.contains("blackman") {
        "0.42 - 0.5 * cos(turns) + 0.08 * cos(2.0 * turns)"
    } else {
        "0.5 - 0.5 * cos(turns)"
    };
    if length <= 1 {
        return single(call);
    }
    let around = if periodic { length } else { length - 1 };
    let [size] = size::at(&sizes, ..)? else {
        refuse!("the window has rank {}; accepted is 1", sizes.len());
    };
    let count = call.count(size, dtype)?;
    let turns = call.times(&count, 2.0 * PI / around as f64)?;
    one(calc!(call, formula, turns)?)
}

fn one_hot(call: &mut Call<'_>) -> Results {
    let x = call.tensor("self")?;
    let classes = match call.result(0)?.sizes.last() {
        Some(classes) => classes.clone(),
        None => refuse!("the number of classes is not known"),
    };
    let apart = call.unsqueeze(&x, x.rank())?;
    let count = call.count(&classes, ScalarType::Int64)?;
    let same = call.compare("eq", &apart, &count)?;
    one(call.cast(&same, ScalarType::Int64)?)
}

/// Each along a dimension of its own.
fn grid(
    call: &mut Call<'_>,
    all: &[Tensor],
    order: &[usize],
) -> Result<Vec<Tensor>, crate::error::Refusal> {
    let length = |tensor: &Tensor| size::product(&tensor.sizes);
    let mut sizes = vec![Size::Fixed(1); all.len()];
    for (tensor, at) in all.iter().zip(order) {
        *sizes.at_mut(*at)? = length(tensor);
    }
    let mut grids = Vec::with_capacity(all.len());
    for (tensor, at) in all.iter().zip(order) {
        let mut shape = vec![Size::Fixed(1); all.len()];
        *shape.at_mut(*at)? = length(tensor);
        let apart = call.view(tensor, shape)?;
        grids.push(call.expand(&apart, sizes.clone())?);
    }
    Ok(grids)
}

fn meshgrid(call: &mut Call<'_>) -> Results {
    let all = call.tensors("tensors")?;
    let mut order: Vec<usize> = (0..all.len()).collect();
    if call.has("indexing") && call.text("indexing")? == "xy" && order.len() > 1 {
        order.exchange(0, 1)?;
    }
    Ok(grid(call, &all, &order)?.into_iter().map(Made::Tensor).collect())
}

fn cartesian(call: &mut Call<'_>) -> Results {
    let all = call.tensors("tensors")?;
    if let [single] = all.as_slice() {
        return one(single.clone());
    }
    let order: Vec<usize> = (0..all.len()).collect();
    let grids = grid(call, &all, &order)?;
    let mut columns = Vec::with_capacity(grids.len());
    for grid in &grids {
        columns.push(call.view(grid, vec![size::product(&grid.sizes)])?);
    }
    one(call.stack(&columns, 1)?)
}

fn vander(call: &mut Call<'_>) -> Results {
    let x = call.tensor("x")?;
    let noted = call.result(0)?;
    let (dtype, columns) = (noted.dtype, noted.sizes.last().cloned().unwrap_or(Size::Fixed(1)));
    let increasing =
        call.bool("increasing")? || call.node.target.is("aten", "linalg_vander", "default");
    let x = call.cast(&x, dtype)?;
    let apart = call.unsqueeze(&x, x.rank())?;
    let exponents = call.count(&columns, dtype)?;
    let exponents = if increasing { exponents } else { call.flip(&exponents, &[0])? };
    let given = [("self", apart.argument()), ("exponent", exponents.argument())];
    let mut sizes = x.sizes.clone();
    sizes.push(columns);
    one(call.emit("aten.pow.Tensor_Tensor", &given, dtype, sizes)?)
}

/// A diagonal out of a matrix, or a matrix out of a diagonal.
fn diag(call: &mut Call<'_>) -> Results {
    let x = call.tensor("self")?;
    let offset = call.int("diagonal")?;
    if x.rank() == 1 {
        return one(embedded(call, &x, offset)?);
    }
    let sizes = call.result(0)?.sizes.clone();
    let given = [("self", x.argument()), ("offset", Argument::Int(offset))];
    one(call.emit("aten.diagonal_copy.default", &given, x.dtype, sizes)?)
}

/// The last dimension as the diagonal of matrices.
fn embedded(call: &mut Call<'_>, x: &Tensor, offset: i64) -> Maybe {
    let Some(length) = x.sizes.last().and_then(Size::fixed) else {
        refuse!("the length of the diagonal is unknown at compile time");
    };
    let side = Size::Fixed(length.saturating_add(offset.abs()));
    // On a positive offset columns run ahead of rows.
    let (before, after) = if offset >= 0 { (0, offset) } else { (-offset, 0) };
    let zero = match x.dtype {
        ScalarType::Bool => Argument::Bool(false),
        _ => Argument::Int(0),
    };
    let padded = call.pad(x, &[before, after], zero.clone())?;
    let rows = call.unsqueeze(&padded, x.rank())?;
    let on = rows_and_columns(call, &side, &side, offset, "eq")?;
    let zero = call.full(Vec::new(), zero, x.dtype)?;
    call.choose(&on, &rows, &zero)
}

fn diag_embed(call: &mut Call<'_>) -> Results {
    let x = call.tensor("self")?;
    let rank = x.rank() + 1;
    let first = crate::decompose::call::position(call.int("dim1")?, rank)?;
    let second = crate::decompose::call::position(call.int("dim2")?, rank)?;
    let mut offset = call.int("offset")?;
    // Rows and columns change places with the dimensions.
    let (first, second) = if first > second {
        offset = -offset;
        (second, first)
    } else {
        (first, second)
    };
    let matrices = embedded(call, &x, offset)?;
    let mut rest = 0..back(rank, 2)?;
    let mut order = Vec::with_capacity(rank);
    for at in 0..rank {
        order.push(if at == first {
            back(rank, 2)?
        } else if at == second {
            back(rank, 1)?
        } else {
            rest.next().unwrap_or(0)
        });
    }
    one(call.permute(&matrices, &order)?)
}

fn block_diag(call: &mut Call<'_>) -> Results {
    let all = call.tensors("tensors")?;
    let dtype = call.result(0)?.dtype;
    let Some(total) = call.result(0)?.sizes.get(1).and_then(Size::fixed) else {
        refuse!("the sizes of the blocks are unknown at compile time");
    };
    let mut done = 0;
    let mut rows = Vec::with_capacity(all.len());
    for block in &all {
        let sizes = match block.sizes.as_slice() {
            [] => vec![Size::Fixed(1), Size::Fixed(1)],
            [columns] => vec![Size::Fixed(1), columns.clone()],
            sizes => sizes.to_vec(),
        };
        let block = call.view(block, sizes)?;
        let block = call.cast(&block, dtype)?;
        let Some(columns) = block.extent(1)?.fixed() else {
            refuse!("the sizes of the blocks are unknown at compile time");
        };
        let after = total - done - columns;
        rows.push(call.pad(&block, &[done, after], Argument::Int(0))?);
        done += columns;
    }
    one(call.concatenate(&rows, 0)?)
}
