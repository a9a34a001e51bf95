//! Elements at places that other tensors tell, and writing to them.

use coremill_pt2::{Argument, ScalarType, Size};

use crate::bounds::{At, back};
use crate::decompose::call::{Call, Results, Tensor, first, one};
use crate::decompose::formula::calc;
use crate::decompose::row::{Row, by};
use crate::decompose::size;
use crate::decompose::words::Maybe;
use crate::error::{Refusal, refuse};

pub(crate) const ROWS: &[Row] = &[
    by(embedding, &["aten.embedding.default"]),
    by(index, &["aten.index.Tensor", "aten._unsafe_index.Tensor"]),
    by(index_put, &["aten.index_put.default", "aten._unsafe_index_put.default"]),
    by(index_write, &["aten.index_copy.default", "aten.index_add.default"]),
    by(index_fill, &["aten.index_fill.int_Scalar", "aten.index_fill.int_Tensor"]),
    by(gathered, &["aten.gather.default", "aten.index_select.default"]),
    by(take, &["aten.take.default"]),
    by(take_along, &["aten.take_along_dim.default"]),
    by(put, &["aten.put.default"]),
    by(scattered, &["aten.scatter.src", "aten.scatter.value", "aten.scatter_add.default"]),
    by(
        scatter_reduce,
        &["aten.scatter_reduce.two", "aten.scatter.reduce", "aten.scatter.value_reduce"],
    ),
    by(
        chosen,
        &[
            "aten.where.self",
            "aten.where.ScalarOther",
            "aten.where.ScalarSelf",
            "aten.where.Scalar",
        ],
    ),
    by(masked_fill, &["aten.masked_fill.Scalar", "aten.masked_fill.Tensor"]),
    by(masked_scatter, &["aten.masked_scatter.default"]),
    by(diagonal_scatter, &["aten.diagonal_scatter.default"]),
    by(copy, &["aten.copy.default"]),
    by(
        embedding_bag,
        &[
            "aten.embedding_bag.default",
            "aten.embedding_bag.padding_idx",
            "aten._embedding_bag.default",
            "aten._embedding_bag_forward_only.default",
        ],
    ),
];

/// Indices as kernels take them.
fn long(call: &mut Call<'_>, index: &Tensor) -> Maybe {
    call.cast(index, ScalarType::Int64)
}

fn embedding(call: &mut Call<'_>) -> Results {
    let (weight, indices) = (call.tensor("weight")?, call.tensor("indices")?);
    let mut sizes = indices.sizes.clone();
    let [_, width] = weight.extent(..)? else {
        refuse!("`weight` has rank {}; accepted is 2", weight.rank());
    };
    sizes.push(width.clone());
    let given = [("weight", weight.argument()), ("indices", indices.argument())];
    one(call.emit("aten.embedding.default", &given, weight.dtype, sizes)?)
}

/// The indices of a call: bytes count as truth.
fn indices(call: &mut Call<'_>) -> Result<(Vec<Option<Tensor>>, Argument), Refusal> {
    let mut found = call.optional_tensors("indices")?;
    for index in found.iter_mut().flatten() {
        *index = match index.dtype {
            ScalarType::Bool | ScalarType::Int64 => index.clone(),
            ScalarType::UInt8 => call.cast(index, ScalarType::Bool)?,
            _ => call.cast(index, ScalarType::Int64)?,
        };
    }
    let argument = |index: &Option<Tensor>| index.as_ref().map_or(Argument::None, Tensor::argument);
    let list = Argument::List(found.iter().map(argument).collect());
    Ok((found, list))
}

fn index(call: &mut Call<'_>) -> Results {
    let x = call.tensor("self")?;
    let sizes = call.result(0)?.sizes.clone();
    let (_, list) = indices(call)?;
    let given = [("self", x.argument()), ("indices", list)];
    one(call.emit("aten.index.Tensor", &given, x.dtype, sizes)?)
}

fn index_put(call: &mut Call<'_>) -> Results {
    let (x, values) = (call.tensor("self")?, call.tensor("values")?);
    let values = call.cast(&values, x.dtype)?;
    let (found, list) = indices(call)?;
    // One mask of the leading dimensions, and one number, choose.
    if let ([Some(mask)], [], false) =
        (found.as_slice(), values.sizes.as_slice(), call.bool("accumulate")?)
        && mask.dtype == ScalarType::Bool
    {
        let mut sizes = mask.sizes.clone();
        sizes.resize(x.rank(), Size::Fixed(1));
        let mask = call.view(mask, sizes)?;
        return one(call.choose(&mask, &values, &x)?);
    }
    let given = [
        ("self", x.argument()),
        ("indices", list),
        ("values", values.argument()),
        ("accumulate", Argument::Bool(call.bool("accumulate")?)),
    ];
    one(call.emit("aten.index_put.default", &given, x.dtype, x.sizes.clone())?)
}

/// `values` at places of one dimension.
fn put_along(
    call: &mut Call<'_>,
    x: &Tensor,
    at: usize,
    index: &Tensor,
    values: &Tensor,
    accumulate: bool,
) -> Maybe {
    let index = long(call, index)?;
    let index = call.view(&index, vec![size::product(&index.sizes)])?;
    let mut list = vec![Argument::None; at];
    list.push(index.argument());
    let given = [
        ("self", x.argument()),
        ("indices", Argument::List(list)),
        ("values", values.argument()),
        ("accumulate", Argument::Bool(accumulate)),
    ];
    call.emit("aten.index_put.default", &given, x.dtype, x.sizes.clone())
}

fn index_write(call: &mut Call<'_>) -> Results {
    let (x, index) = (call.tensor("self")?, call.tensor("index")?);
    let source = call.tensor("source")?;
    let adds = call.node.target.is("aten", "index_add", "default");
    let mut source = call.cast(&source, x.dtype)?;
    if adds {
        let alpha = call.number("alpha")?;
        if !matches!(alpha, Argument::Int(1)) {
            let scaled = call.with("mul", &source, alpha)?;
            source = call.cast(&scaled, x.dtype)?;
        }
    }
    if x.rank() == 0 {
        let source = call.view(&source, Vec::new())?;
        return one(if adds { call.add(&x, &source)? } else { source });
    }
    let at = x.dimension(call.int("dim")?)?;
    one(put_along(call, &x, at, &index, &source, adds)?)
}

fn index_fill(call: &mut Call<'_>) -> Results {
    let (x, index) = (call.tensor("self")?, call.tensor("index")?);
    let value = call.tensor("value")?;
    let value = call.cast(&value, x.dtype)?;
    if x.rank() == 0 {
        return one(value);
    }
    let at = x.dimension(call.int("dim")?)?;
    one(put_along(call, &x, at, &index, &value, false)?)
}

fn gathered(call: &mut Call<'_>) -> Results {
    let (x, index) = (call.tensor("self")?, call.tensor("index")?);
    let index = long(call, &index)?;
    let at = x.dimension(call.int("dim")?)?;
    if call.node.target.is("aten", "gather", "default") {
        return one(call.gather(&x, at, &index)?);
    }
    if x.rank() == 0 {
        return one(x);
    }
    let index = call.view(&index, vec![size::product(&index.sizes)])?;
    one(call.index_select(&x, at, &index)?)
}

/// Of all elements in a row; negative places count from the end.
fn take(call: &mut Call<'_>) -> Results {
    let (x, index) = (call.tensor("self")?, call.tensor("index")?);
    let flat = call.view(&x, vec![size::product(&x.sizes)])?;
    let index = long(call, &index)?;
    let given = [("self", flat.argument()), ("indices", Argument::List(vec![index.argument()]))];
    one(call.emit("aten.index.Tensor", &given, x.dtype, index.sizes.clone())?)
}

fn take_along(call: &mut Call<'_>) -> Results {
    let (mut x, index) = (call.tensor("self")?, call.tensor("indices")?);
    let mut index = long(call, &index)?;
    if !call.has("dim") {
        x = call.view(&x, vec![size::product(&x.sizes)])?;
        index = call.view(&index, vec![size::product(&index.sizes)])?;
        return one(call.gather(&x, 0, &index)?);
    }
    let at = x.dimension(call.int("dim")?)?;
    let own = (x.extent(at)?.clone(), index.extent(at)?.clone());
    let (mut x_sizes, mut index_sizes) = (x.sizes.clone(), index.sizes.clone());
    *x_sizes.at_mut(at)? = Size::Fixed(1);
    *index_sizes.at_mut(at)? = Size::Fixed(1);
    let Some(mut sizes) = size::broadcast(&x_sizes, &index_sizes) else {
        refuse!("the tensor and its indices do not broadcast");
    };
    *sizes.at_mut(at)? = own.0;
    let x = call.expand(&x, sizes.clone())?;
    *sizes.at_mut(at)? = own.1;
    let index = call.expand(&index, sizes)?;
    one(call.gather(&x, at, &index)?)
}

fn put(call: &mut Call<'_>) -> Results {
    let (x, index) = (call.tensor("self")?, call.tensor("index")?);
    let source = call.tensor("source")?;
    let accumulate = call.bool("accumulate")?;
    let source = call.cast(&source, x.dtype)?;
    let source = call.view(&source, vec![size::product(&source.sizes)])?;
    let flat = call.view(&x, vec![size::product(&x.sizes)])?;
    let done = put_along(call, &flat, 0, &index, &source, accumulate)?;
    one(call.view(&done, x.sizes)?)
}

fn scattered(call: &mut Call<'_>) -> Results {
    let (x, index) = (call.tensor("self")?, call.tensor("index")?);
    let index = long(call, &index)?;
    let operator = call.node.target.to_string();
    let mut given = vec![
        ("self", x.argument()),
        ("dim", Argument::Int(x.dimension(call.int("dim")?)? as i64)),
        ("index", index.argument()),
    ];
    if call.has("value") {
        given.push(("value", call.number("value")?));
    } else {
        given.push(("src", call.tensor("src")?.argument()));
    }
    one(call.emit(&operator, &given, x.dtype, x.sizes.clone())?)
}

fn scatter_reduce(call: &mut Call<'_>) -> Results {
    let (x, index) = (call.tensor("self")?, call.tensor("index")?);
    let how = call.text("reduce")?.to_owned();
    let include = !matches!(call.node.argument("include_self"), Some(Argument::Bool(false)));
    if call.has("value") {
        refuse!("one value that is written by `{how}` has no kernel");
    }
    if !matches!(how.as_str(), "sum" | "add" | "mean") {
        return meeting(call, &x, &index, &how, include);
    }
    let index = long(call, &index)?;
    let source = call.tensor("src")?;
    let at = Argument::Int(x.dimension(call.int("dim")?)? as i64);
    let add = |call: &mut Call<'_>, to: &Tensor, source: &Tensor| {
        let given = [
            ("self", to.argument()),
            ("dim", at.clone()),
            ("index", index.argument()),
            ("src", source.argument()),
        ];
        call.emit("aten.scatter_add.default", &given, to.dtype, to.sizes.clone())
    };
    let mut start = x.clone();
    if !include {
        let given = [
            ("self", x.argument()),
            ("dim", at.clone()),
            ("index", index.argument()),
            ("value", Argument::Int(0)),
        ];
        start = call.emit("aten.scatter.value", &given, x.dtype, x.sizes.clone())?;
    }
    let sum = add(call, &start, &source)?;
    if how != "mean" {
        return one(sum);
    }
    let ones = call.full(index.sizes.clone(), Argument::Int(1), x.dtype)?;
    let own = Argument::Int(i64::from(include));
    let base = call.full(x.sizes.clone(), own, x.dtype)?;
    let count = add(call, &base, &ones)?;
    let count = call.clamp(&count, Some(1.0), None)?;
    let count = call.cast(&count, x.dtype)?;
    if crate::decompose::dtype::is_float(x.dtype) {
        return one(call.divide(&sum, &count)?);
    }
    one(call.join("aten.floor_divide.default", &sum, &count)?)
}

/// Places that a decomposition asks each value for.
const MOST_PLACES: i64 = 1 << 12;

/// The extreme or the product of the values that meet at each place: every place sees all of them, and those that are
/// for others as what changes nothing.
fn meeting(call: &mut Call<'_>, x: &Tensor, index: &Tensor, how: &str, include: bool) -> Results {
    let neutral = match (how, crate::decompose::dtype::is_float(x.dtype)) {
        ("prod" | "multiply", _) => Argument::Int(1),
        ("amax", true) => Argument::Float(f64::NEG_INFINITY),
        ("amin", true) => Argument::Float(f64::INFINITY),
        _ => refuse!("`{how}` of integers that meet at one place has no kernel"),
    };
    let source = call.tensor("src")?;
    let at = x.dimension(call.int("dim")?)?;
    let index = long(call, index)?;
    let (Some(sizes), Some(counts)) = (
        x.sizes.iter().map(Size::fixed).collect::<Option<Vec<_>>>(),
        index.sizes.iter().map(Size::fixed).collect::<Option<Vec<_>>>(),
    ) else {
        refuse!("the sizes are unknown at compile time");
    };
    if x.rank() == 0 || *sizes.at(at)? > MOST_PLACES {
        refuse!("values meet along a dimension of at most {MOST_PLACES} places");
    }
    // The part of the source that the indices are for, and the part of the tensor that they can reach.
    let (mut source, mut base) = (source, x.clone());
    for (axis, count) in counts.iter().enumerate() {
        source = call.slice(&source, axis, 0, *count, 1)?;
        if axis != at {
            base = call.slice(&base, axis, 0, *count, 1)?;
        }
    }
    // The values run along a new last dimension, the places along the old one.
    let apart = |call: &mut Call<'_>, tensor: &Tensor| {
        let wide = call.unsqueeze(tensor, tensor.rank())?;
        let last = back(wide.rank(), 1)?;
        call.transpose(&wide, at, last)
    };
    let (index, source) = (apart(call, &index)?, apart(call, &source)?);
    let count = call.count(x.extent(at)?, ScalarType::Int64)?;
    let mut shape = vec![Size::Fixed(1); x.rank() + 1];
    *shape.at_mut(at)? = x.extent(at)?.clone();
    let places = call.view(&count, shape)?;
    let here = call.compare("eq", &index, &places)?;
    let neutral = call.full(Vec::new(), neutral, x.dtype)?;
    let seen = call.choose(&here, &source, &neutral)?;
    let last = x.rank();
    let product = matches!(how, "prod" | "multiply");
    let met = if product {
        let given = [
            ("self", seen.argument()),
            ("dim", Argument::Int(last as i64)),
            ("dtype", Argument::ScalarType(x.dtype)),
        ];
        call.emit("aten.prod.dim_int", &given, x.dtype, base.sizes.clone())?
    } else {
        call.extreme(how, &seen, &[last], false)?
    };
    let both = match how {
        "amax" => call.join("aten.maximum.default", &base, &met)?,
        "amin" => call.join("aten.minimum.default", &base, &met)?,
        _ => call.multiply(&base, &met)?,
    };
    let mut done = both;
    if !include {
        let any = call.any(&here, &[last], false)?;
        done = call.choose(&any, &met, &base)?;
    }
    // What lies outside the indices' reach stays.
    for axis in (0..counts.len()).rev() {
        if axis == at || counts.at(axis)? >= sizes.at(axis)? {
            continue;
        }
        let mut rest = x.clone();
        for (other, count) in counts.iter().enumerate().take(axis) {
            if other != at {
                rest = call.slice(&rest, other, 0, *count, 1)?;
            }
        }
        let after =
            call.slice(&rest, axis, *counts.at(axis)?, *sizes.at(axis)? - *counts.at(axis)?, 1)?;
        done = call.concatenate(&[done, after], axis)?;
    }
    one(done)
}

fn chosen(call: &mut Call<'_>) -> Results {
    let condition = call.tensor("condition")?;
    let dtype = call.result(0)?.dtype;
    let mut both = Vec::with_capacity(2);
    for name in ["self", "other"] {
        let argument = call.argument(name)?.clone();
        both.push(match call.number_dtype(&argument) {
            Some(_) => call.full(Vec::new(), argument, dtype)?,
            None => {
                let tensor = call.tensor(name)?;
                call.cast(&tensor, dtype)?
            }
        });
    }
    one(call.choose(&condition, both.at(0)?, both.at(1)?)?)
}

fn masked_fill(call: &mut Call<'_>) -> Results {
    let (x, mask) = (call.tensor("self")?, call.tensor("mask")?);
    let value = call.argument("value")?.clone();
    let value = match call.number_dtype(&value) {
        Some(_) => call.full(Vec::new(), value, x.dtype)?,
        None => {
            let value = call.tensor("value")?;
            call.cast(&value, x.dtype)?
        }
    };
    one(call.choose(&mask, &value, &x)?)
}

fn masked_scatter(call: &mut Call<'_>) -> Results {
    let (x, mask) = (call.tensor("self")?, call.tensor("mask")?);
    let source = call.tensor("source")?;
    let source = call.cast(&source, x.dtype)?;
    let sizes = call.result(0)?.sizes.clone();
    let x = call.expand(&x, sizes.clone())?;
    let mask = call.expand(&mask, sizes.clone())?;
    let given = [("self", x.argument()), ("mask", mask.argument()), ("source", source.argument())];
    one(call.emit("aten.masked_scatter.default", &given, x.dtype, sizes)?)
}

/// The source as the diagonal of matrices, where there is one.
fn diagonal_scatter(call: &mut Call<'_>) -> Results {
    let (x, source) = (call.tensor("self")?, call.tensor("src")?);
    let (first, second) = (x.dimension(call.int("dim1")?)?, x.dimension(call.int("dim2")?)?);
    let offset = call.int("offset")?;
    let (Some(rows), Some(columns)) = (x.extent(first)?.fixed(), x.extent(second)?.fixed()) else {
        refuse!("the sizes of the matrices are unknown at compile time");
    };
    let mut order: Vec<usize> = (0..x.rank()).filter(|at| *at != first && *at != second).collect();
    order.extend([first, second]);
    let turned = call.permute(&x, &order)?;
    let Some(length) = source.sizes.last().and_then(Size::fixed) else {
        refuse!("the length of the diagonal is unknown at compile time");
    };
    // Row `r` of the matrices has element `r - before` of the diagonal.
    let before = (-offset).max(0);
    let source = call.cast(&source, x.dtype)?;
    let zero = if x.dtype == ScalarType::Bool { Argument::Bool(false) } else { Argument::Int(0) };
    let padded = call.pad(&source, &[before, (rows - before - length).max(0)], zero)?;
    let padded = call.unsqueeze(&padded, padded.rank())?;
    let down = call.count(&Size::Fixed(rows), ScalarType::Int64)?;
    let down = call.with("add", &down, Argument::Int(offset))?;
    let down = call.unsqueeze(&down, 1)?;
    let across = call.count(&Size::Fixed(columns), ScalarType::Int64)?;
    let on = call.compare("eq", &down, &across)?;
    let done = call.choose(&on, &padded, &turned)?;
    let mut back = vec![0; order.len()];
    for (to, from) in order.iter().enumerate() {
        *back.at_mut(*from)? = to;
    }
    one(call.permute(&done, &back)?)
}

fn copy(call: &mut Call<'_>) -> Results {
    let (x, source) = (call.tensor("self")?, call.tensor("src")?);
    let source = call.cast(&source, x.dtype)?;
    one(call.expand(&source, x.sizes)?)
}

/// The index that does not count. Negative ones count from the end where torch's function takes one, and are none in
/// what it calls.
fn ignored_index(call: &Call<'_>, weight: &Tensor) -> Result<Option<i64>, Refusal> {
    if !call.has("padding_idx") {
        return Ok(None);
    }
    let padding = call.int("padding_idx")?;
    if padding >= 0 {
        return Ok(Some(padding));
    }
    if !call.node.target.is("aten", "embedding_bag", "padding_idx") {
        return Ok(None);
    }
    match weight.extent(0)?.fixed() {
        Some(rows) => Ok(Some(padding + rows)),
        None => refuse!("the number of rows is unknown at compile time"),
    }
}

/// Bags of a known number of rows: all of one length, or one index for each bag and nothing else.
fn embedding_bag(call: &mut Call<'_>) -> Results {
    let (weight, indices) = (call.tensor("weight")?, call.tensor("indices")?);
    let offsets = call.tensor("offsets")?;
    let mode = call.int("mode")?;
    let padding = ignored_index(call, &weight)?;
    let extra = (1..call.node.outputs.len()).any(|index| call.wants(index));
    if extra || indices.rank() != 1 {
        refuse!("of bags only the sums, means and largest elements have kernels");
    }
    let sizes = call.result(0)?.sizes.clone();
    let weights = call.optional_tensor("per_sample_weights")?;
    // Which bag each index is in: how many bags begin at its place or before, less one.
    let length = indices.extent(0)?.clone();
    let place = call.count(&length, ScalarType::Int64)?;
    let column = call.unsqueeze(&place, 1)?;
    let starts = long(call, &offsets)?;
    let starts = match size::at(&sizes, 0)?.fixed() {
        Some(bags) => call.slice(&starts, 0, 0, bags, 1)?,
        None if call.bool("include_last_offset")? => {
            refuse!("the number of bags is unknown at compile time")
        }
        None => starts,
    };
    let begun = call.compare("le", &starts, &column)?;
    let count = call.sum(&begun, &[1], true)?;
    let bag = call.with("sub", &count, Argument::Int(1))?;
    let bags = call.count(starts.extent(0)?, ScalarType::Int64)?;
    let mut within = call.compare("eq", &bag, &bags)?;
    if let Some(padding) = padding {
        let counts = call.compare_number("ne", &indices, Argument::Int(padding))?;
        let counts = call.unsqueeze(&counts, 1)?;
        within = call.logic("logical_and", &within, &counts)?;
    }
    let given = [("weight", weight.argument()), ("indices", indices.argument())];
    let rows = vec![length, weight.extent(1)?.clone()];
    let mut rows = call.emit("aten.embedding.default", &given, weight.dtype, rows)?;
    if mode == 2 {
        // Rows of other bags count for nothing; empty bags are zeros.
        let apart = call.turned(&within)?;
        let apart = call.unsqueeze(&apart, 2)?;
        let masked = calc!(call, "where(apart, rows, -inf)", apart, rows)?;
        let most = call.extreme("amax", &masked, &[1], false)?;
        let done = calc!(call, "where(most == -inf, 0, most)", most)?;
        return first(call, done);
    }
    if let Some(weights) = weights {
        let weights = call.unsqueeze(&weights, 1)?;
        rows = call.multiply(&rows, &weights)?;
    }
    let belongs = call.cast(&within, rows.dtype)?;
    let turned = call.turned(&belongs)?;
    let mut done = call.mm(&turned, &rows)?;
    if mode == 1 {
        let count = call.sum(&belongs, &[0], false)?;
        let count = call.clamp(&count, Some(1.0), None)?;
        let count = call.unsqueeze(&count, 1)?;
        done = call.divide(&done, &count)?;
    }
    first(call, done)
}
