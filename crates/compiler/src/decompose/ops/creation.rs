//! Creation of tensors.

use std::f64::consts::PI;

use super::special::bessel_0;
use crate::decompose::prelude::*;

pub(crate) const ROWS: &[Row] = &[
    by(
        filled,
        &[
            "aten.{full,zeros,ones}{,_like}",
            "aten.new_{full,zeros,ones}",
            "aten.{fill.Scalar,scalar_tensor,zero}",
        ],
    ),
    by(filled_by_tensor, &["aten.fill.Tensor"]),
    by(counted, &["aten.arange"]),
    by(linspace, &["aten.linspace.default", "aten.logspace.default"]),
    by(linspace_of_tensors, &["aten.linspace.{Scalar_Tensor,Tensor_Scalar,Tensor_Tensor}"]),
    by(eye, &["aten.eye"]),
    by(triangle, &["aten.triu", "aten.tril"]),
    by(triangle_places, &["aten.tril_indices", "aten.triu_indices"]),
    by(|call| window(call, "0.5 - 0.5 * cos(turns)"), &["aten.hann_window"]),
    by(|call| window(call, "0.54 - 0.46 * cos(turns)"), &["aten.hamming_window"]),
    by(
        |call| window(call, "0.42 - 0.5 * cos(turns) + 0.08 * cos(2.0 * turns)"),
        &["aten.blackman_window"],
    ),
    by(bartlett_window, &["aten.bartlett_window"]),
    by(kaiser_window, &["aten.kaiser_window"]),
    by(one_hot, &["aten.one_hot"]),
    by(meshgrid, &["aten.meshgrid"]),
    by(cartesian, &["aten.cartesian_prod"]),
    by(vander, &["aten.vander", "aten.linalg_vander"]),
    by(diag, &["aten.diag"]),
    by(diag_embed, &["aten.diag_embed"]),
    by(block_diag, &["aten.block_diag"]),
];

fn filled(call: &mut Call<'_>) -> Results {
    let (dtype, sizes) = call.result_type()?;
    let value = match ["fill_value", "value", "s"].into_iter().find(|name| call.has(name)) {
        Some(name) => call.number(name)?,
        None => Argument::Int(i64::from(call.name().contains("ones"))),
    };
    if let Some(Argument::List(items)) = call.node.argument("size")
        && sizes.iter().any(|size| size.fixed().is_none())
    {
        // Uses the sizes that the model computes.
        let given = given!(size = Argument::List(items.clone()), fill_value = value, dtype = dtype);
        return one(call.noted("aten.full.default", given)?);
    }
    one(call.full(sizes, value, dtype)?)
}

fn filled_by_tensor(call: &mut Call<'_>) -> Results {
    let (value, sizes) = (call.typed("value")?, call.result_sizes()?);
    one(call.expand(&value, sizes)?)
}

fn counted(call: &mut Call<'_>) -> Results {
    let dtype = call.result(0)?.dtype;
    let number = |name: &str, default: i64| match call.has(name) {
        true => call.number(name),
        false => Ok(Argument::Int(default)),
    };
    let (start, step, end) = (number("start", 0)?, number("step", 1)?, call.number("end")?);
    let given = given!(start = start, end = end, step = step, dtype = dtype);
    one(call.noted("aten.arange.start_step", given)?)
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
    let step = (end - start) / steps.saturating_sub(1).max(1) as f64;
    // Counts from both ends like torch, so that the last element is exact.
    let formula = "risen = count * step + start; fallen = (steps - 1 - count) * -step + end; \
                   values = where(steps > 1, where(count < half, risen, fallen), risen); \
                   where(given(base), base ^ values, values)";
    let half = steps / 2;
    let values = calc!(call, formula, count, step, start, steps, end, half)?;
    one(call.cast(&values, dtype)?)
}

fn linspace_of_tensors(call: &mut Call<'_>) -> Results {
    let dtype = call.result(0)?.dtype;
    let wide = if is_float(dtype) { dtype } else { ScalarType::Float32 };
    let (start, end) = (call.tensor_as("start", wide)?, call.tensor_as("end", wide)?);
    let steps = call.int("steps")?;
    let count = call.count(&Size::Fixed(steps), wide)?;
    let (half, parts) = (steps / 2, steps.saturating_sub(1).max(1));
    // Counts from both ends like torch, so that the last element is exact.
    let formula = "step = (end - start) / parts; \
                   where(count < half, start + step * count, end - step * (parts - count))";
    let values = match steps {
        ..=1 => call.expand(&start, vec![Size::Fixed(steps)])?,
        _ => calc!(call, formula, start, end, parts, count, half)?,
    };
    one(call.cast(&values, dtype)?)
}

/// Compares the row index plus an offset with the column index.
fn rows_and_columns(
    call: &mut Call<'_>,
    rows: &Size,
    columns: &Size,
    offset: i64,
    test: &str,
) -> TensorResult {
    let down = call.count(rows, ScalarType::Int64)?;
    let down = if offset == 0 { down } else { call.with("add", &down, Argument::Int(offset))? };
    let down = call.unsqueeze(&down, 1)?;
    let across = call.count(columns, ScalarType::Int64)?;
    call.compare(test, &down, &across)
}

fn eye(call: &mut Call<'_>) -> Results {
    let (dtype, sizes) = call.result_type()?;
    let [rows, columns] = &sizes[..] else {
        refuse!("a matrix must have rank 2, got {}", sizes.len());
    };
    let found = rows_and_columns(call, rows, columns, 0, "eq")?;
    one(call.cast(&found, dtype)?)
}

/// Zero of an element type.
fn zero(dtype: ScalarType) -> Argument {
    if dtype == ScalarType::Bool { Argument::Bool(false) } else { Argument::Int(0) }
}

fn triangle(call: &mut Call<'_>) -> Results {
    let x = call.tensor("self")?;
    let is_lower = call.name() == "tril";
    if is_lower && x.rank() == 2 {
        return call.renamed("aten.tril.default");
    }
    let offset = call.int("diagonal")?;
    let [.., rows, columns] = &x.sizes[..] else { refuse!("a triangle requires a matrix") };
    let test = if is_lower { "ge" } else { "le" };
    let inside = rows_and_columns(call, rows, columns, offset, test)?;
    let zero = call.scalar(zero(x.dtype), x.dtype)?;
    one(call.choose(&inside, &x, &zero)?)
}

/// Indices of a triangle, limited to a size that fits in a list.
fn triangle_places(call: &mut Call<'_>) -> Results {
    const MOST: usize = 1 << 12;
    let (rows, columns) = (call.int("row")?, call.int("col")?);
    if rows < 0 || columns < 0 {
        refuse!("`row` and `col` must be at least 0, got {rows} and {columns}");
    }
    let offset = call.int("offset")?;
    let lower = call.name() == "tril_indices";
    let (dtype, sizes) = call.result_type()?;
    let count = sizes.get(1).and_then(Size::fixed);
    let Some(count) = count.and_then(|count| usize::try_from(count).ok()) else {
        refuse!("the number of indices is unknown at compile time");
    };
    if count > MOST || rows > MOST as i64 {
        refuse!("a triangle of {count} elements exceeds the maximum of {MOST}");
    }
    // One range of columns per row.
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

/// Relative positions in a window, times `scale`; `None` for windows of fewer than two elements.
fn window_places(call: &mut Call<'_>, scale: f64) -> Result<Option<Tensor>> {
    let (dtype, sizes) = call.result_type()?;
    let [size] = &sizes[..] else { refuse!("the window must have rank 1, got {}", sizes.len()) };
    let length = call.int("window_length")?;
    if length <= 1 {
        return Ok(None);
    }
    let periodic = !matches!(call.node.argument("periodic"), Some(Argument::Bool(false)));
    let around = if periodic { length } else { length - 1 };
    let count = call.count(size, dtype)?;
    call.times(&count, scale / around as f64).map(Some)
}

/// A window with at most one element.
fn single(call: &mut Call<'_>) -> Results {
    let (dtype, sizes) = call.result_type()?;
    one(call.full(sizes, Argument::Int(1), dtype)?)
}

/// A window given by a formula of the angle.
fn window(call: &mut Call<'_>, formula: &str) -> Results {
    let Some(turns) = window_places(call, 2.0 * PI)? else { return single(call) };
    one(calc!(call, formula, turns)?)
}

fn bartlett_window(call: &mut Call<'_>) -> Results {
    let Some(places) = window_places(call, 2.0)? else { return single(call) };
    one(calc!(call, "1.0 - abs(places + -1.0)", places)?)
}

fn kaiser_window(call: &mut Call<'_>) -> Results {
    let beta = call.float_or("beta", 12.0)?;
    let Some(places) = window_places(call, 2.0)? else { return single(call) };
    // Rounding could make the argument negative.
    let formula = "sqrt(max(1.0 - square(places + -1.0), 0)) * beta";
    let above = calc!(call, formula, places, beta)?;
    let above = bessel_0(call, &above)?;
    let most = call.scalar(Argument::Float(beta), places.dtype)?;
    let below = bessel_0(call, &most)?;
    one(call.divide(&above, &below)?)
}

fn one_hot(call: &mut Call<'_>) -> Results {
    let x = call.tensor("self")?;
    let classes = match call.result(0)?.sizes.last() {
        Some(classes) => classes.clone(),
        None => refuse!("the number of classes is unknown"),
    };
    let apart = call.unsqueeze(&x, x.rank())?;
    let count = call.count(&classes, ScalarType::Int64)?;
    one(calc!(call, "number(apart == count)", apart, count)?)
}

/// Broadcasts each tensor along its own dimension.
fn grid(call: &mut Call<'_>, all: &[Tensor], order: &[usize]) -> Result<Vec<Tensor>> {
    let mut sizes = vec![Size::Fixed(1); all.len()];
    for (tensor, at) in all.iter().zip(order) {
        *sizes.at_mut(*at)? = size::product(&tensor.sizes);
    }
    let mut grids = Vec::with_capacity(all.len());
    for (tensor, at) in all.iter().zip(order) {
        let apart = call.along(tensor, *at, all.len())?;
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
    Ok(grid(call, &all, &order)?.into_iter().map(RewriteResult::Tensor).collect())
}

fn cartesian(call: &mut Call<'_>) -> Results {
    let all = call.tensors("tensors")?;
    if let [single] = all.as_slice() {
        return one(single.clone());
    }
    let order: Vec<usize> = (0..all.len()).collect();
    let grids = grid(call, &all, &order)?;
    let columns = grids.iter().map(|grid| call.flat(grid)).collect::<Result<Vec<_>, _>>()?;
    one(call.stack(&columns, 1)?)
}

fn vander(call: &mut Call<'_>) -> Results {
    let x = call.typed("x")?;
    let (dtype, sizes) = call.result_type()?;
    let columns = sizes.last().cloned().unwrap_or(Size::Fixed(1));
    let apart = call.unsqueeze(&x, x.rank())?;
    let mut exponents = call.count(&columns, dtype)?;
    if call.name() != "linalg_vander" && !call.bool("increasing")? {
        exponents = call.flip(&exponents, &[0])?;
    }
    one(calc!(call, "apart ^ exponents", apart, exponents)?)
}

/// Extracts a diagonal, or creates a matrix from one.
fn diag(call: &mut Call<'_>) -> Results {
    let x = call.tensor("self")?;
    let offset = call.int("diagonal")?;
    if x.rank() == 1 {
        return one(matrices(call, &x, offset)?);
    }
    one(call.noted("aten.diagonal_copy.default", given!(self = x, offset = offset))?)
}

/// Diagonal matrices of the last dimension.
fn matrices(call: &mut Call<'_>, x: &Tensor, offset: i64) -> TensorResult {
    let length = x.known(axis_from_end(x.rank(), 1)?, "the length of the diagonal")?;
    let side = Size::Fixed(length.saturating_add(offset.saturating_abs()));
    embedded(call, x, &[side.clone(), side], offset, None)
}

/// Matrices with the last dimension as diagonal. Other elements are zero or come from `others`.
pub(super) fn embedded(
    call: &mut Call<'_>,
    x: &Tensor,
    sides: &[Size; 2],
    offset: i64,
    others: Option<&Tensor>,
) -> TensorResult {
    let [rows, columns] = sides;
    let length = x.known(axis_from_end(x.rank(), 1)?, "the length of the diagonal")?;
    let height = size::known(rows, "the height of the matrices")?;
    // Row `r` holds element `r - before` of the diagonal.
    let before = offset.saturating_neg().max(0);
    let after = height.saturating_sub(before).saturating_sub(length).max(0);
    let padded = call.pad(x, &[before, after], zero(x.dtype))?;
    let padded = call.unsqueeze(&padded, x.rank())?;
    let on = rows_and_columns(call, rows, columns, offset, "eq")?;
    let others = match others {
        Some(others) => others.clone(),
        None => call.scalar(zero(x.dtype), x.dtype)?,
    };
    call.choose(&on, &padded, &others)
}

fn diag_embed(call: &mut Call<'_>) -> Results {
    let x = call.tensor("self")?;
    let rank = x.rank() + 1;
    let (first, second) = (call.dimension("dim1", rank)?, call.dimension("dim2", rank)?);
    if first == second {
        refuse!("`dim1` and `dim2` must be different, got dimension {first} twice");
    }
    let offset = call.int("offset")?;
    // Swapping the dimensions transposes the matrix, which negates the offset.
    let offset = if first > second { offset.saturating_neg() } else { offset };
    let (first, second) = (first.min(second), first.max(second));
    let matrices = matrices(call, &x, offset)?;
    let mut order: Vec<usize> = (0..axis_from_end(rank, 2)?).collect();
    order.insert(first, axis_from_end(rank, 2)?);
    order.insert(second, axis_from_end(rank, 1)?);
    one(call.permute(&matrices, &order)?)
}

fn block_diag(call: &mut Call<'_>) -> Results {
    let all = call.tensors("tensors")?;
    let (dtype, sizes) = call.result_type()?;
    let total = size::known(size::at(&sizes, 1)?, "the width of the matrix")?;
    let mut done = 0;
    let mut rows = Vec::with_capacity(all.len());
    for block in &all {
        let mut sizes = block.sizes.clone();
        while sizes.len() < 2 {
            sizes.insert(0, Size::Fixed(1));
        }
        let block = call.view(block, sizes)?;
        let block = call.cast(&block, dtype)?;
        let columns = block.known(1, "the width of a block")?;
        rows.push(call.pad(&block, &[done, total - done - columns], Argument::Int(0))?);
        done += columns;
    }
    one(call.concatenate(&rows, 0)?)
}
