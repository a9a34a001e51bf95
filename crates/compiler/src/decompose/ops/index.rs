//! Indexing by tensors: gathers, scatters and embeddings.

use super::creation::embedded;
use crate::decompose::prelude::*;

pub(crate) const ROWS: &[Row] = &[
    by(embedding, &["aten.embedding"]),
    by(index, &["aten.index.Tensor", "aten._unsafe_index.Tensor"]),
    by(index_put, &["aten.index_put", "aten._unsafe_index_put"]),
    by(index_write, &["aten.index_copy", "aten.index_add"]),
    by(index_fill, &["aten.index_fill"]),
    formula("gather(self, dim, long(index))", &["aten.gather"]),
    formula("index_select(self, dim, flat(long(index)))", &["aten.index_select"]),
    by(take, &["aten.take"]),
    by(take_along, &["aten.take_along_dim"]),
    by(put, &["aten.put"]),
    by(scattered, &["aten.scatter.src", "aten.scatter.value", "aten.scatter_add"]),
    by(
        scatter_reduce,
        &["aten.scatter_reduce.two", "aten.scatter.reduce", "aten.scatter.value_reduce"],
    ),
    by(chosen, &["aten.where.{self,ScalarOther,ScalarSelf,Scalar}"]),
    by(masked_fill, &["aten.masked_fill"]),
    by(masked_scatter, &["aten.masked_scatter"]),
    by(diagonal_scatter, &["aten.diagonal_scatter"]),
    by(copy, &["aten.copy.default"]),
    by(embedding_bag, &["aten.{,_}embedding_bag", "aten._embedding_bag_forward_only"]),
];

/// Converts indices to `int64`, which the kernels require.
fn long(call: &mut Call<'_>, index: &Tensor) -> TensorResult {
    call.cast(index, ScalarType::Int64)
}

fn embedding(call: &mut Call<'_>) -> Results {
    let (weight, indices) = (call.tensor("weight")?, call.tensor("indices")?);
    one(call.rows(&weight, &indices)?)
}

/// Index tensors of a call; bytes count as booleans.
fn indices(call: &mut Call<'_>) -> Result<Vec<Option<Tensor>>> {
    let mut found = call.optional_tensors("indices")?;
    for index in found.iter_mut().flatten() {
        let kind = match index.dtype {
            ScalarType::Bool | ScalarType::UInt8 => ScalarType::Bool,
            _ => ScalarType::Int64,
        };
        *index = call.cast(index, kind)?;
    }
    Ok(found)
}

fn index(call: &mut Call<'_>) -> Results {
    let x = call.tensor("self")?;
    let indices = indices(call)?;
    one(call.noted("aten.index.Tensor", given!(self = x, indices = indices))?)
}

fn index_put(call: &mut Call<'_>) -> Results {
    let (x, values) = (call.tensor("self")?, call.tensor("values")?);
    let values = call.cast(&values, x.dtype)?;
    let found = indices(call)?;
    let accumulate = call.bool("accumulate")?;
    // A mask of the leading dimensions with a scalar value is a selection.
    if let ([Some(mask)], [], false) = (found.as_slice(), values.sizes.as_slice(), accumulate)
        && mask.dtype == ScalarType::Bool
    {
        let mut sizes = mask.sizes.clone();
        sizes.resize(x.rank(), Size::Fixed(1));
        let mask = call.view(mask, sizes)?;
        return one(call.choose(&mask, &values, &x)?);
    }
    one(put_at(call, &x, found.given(), &values, accumulate)?)
}

fn put_at(
    call: &mut Call<'_>,
    x: &Tensor,
    indices: Argument,
    values: &Tensor,
    accumulate: bool,
) -> TensorResult {
    let given = given!(self = x, indices = indices, values = values, accumulate = accumulate);
    call.like(x, "aten.index_put.default", given)
}

/// Puts `values` at indices of one dimension.
fn put_along(
    call: &mut Call<'_>,
    x: &Tensor,
    at: usize,
    index: &Tensor,
    values: &Tensor,
    accumulate: bool,
) -> TensorResult {
    let index = long(call, index)?;
    let index = call.flat(&index)?;
    let mut indices = vec![None; at];
    indices.push(Some(index));
    put_at(call, x, indices.given(), values, accumulate)
}

fn index_write(call: &mut Call<'_>) -> Results {
    let (x, index) = (call.tensor("self")?, call.tensor("index")?);
    let source = call.tensor("source")?;
    let adds = call.name() == "index_add";
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
    let at = call.dimension("dim", x.rank())?;
    one(put_along(call, &x, at, &index, &source, adds)?)
}

fn index_fill(call: &mut Call<'_>) -> Results {
    let (x, index) = (call.tensor("self")?, call.tensor("index")?);
    let value = call.typed("value")?;
    if x.rank() == 0 {
        return one(value);
    }
    let at = call.dimension("dim", x.rank())?;
    one(put_along(call, &x, at, &index, &value, false)?)
}

/// Indexes the flattened tensor; negative indices count from the end.
fn take(call: &mut Call<'_>) -> Results {
    let (x, index) = (call.tensor("self")?, call.tensor("index")?);
    let flat = call.flat(&x)?;
    let index = long(call, &index)?;
    one(call.noted("aten.index.Tensor", given!(self = flat, indices = [index]))?)
}

fn take_along(call: &mut Call<'_>) -> Results {
    let (mut x, index) = (call.tensor("self")?, call.tensor("indices")?);
    let mut index = long(call, &index)?;
    if !call.has("dim") {
        x = call.flat(&x)?;
        index = call.flat(&index)?;
        return one(call.gather(&x, 0, &index)?);
    }
    let at = call.dimension("dim", x.rank())?;
    let one_place = [x.with_size(at, Size::Fixed(1))?, index.with_size(at, Size::Fixed(1))?];
    let Some(mut sizes) = size::broadcast(&one_place[0], &one_place[1]) else {
        refuse!("the tensor and its indices do not broadcast");
    };
    *sizes.at_mut(at)? = x.extent(at)?.clone();
    let x = call.expand(&x, sizes.clone())?;
    *sizes.at_mut(at)? = index.extent(at)?.clone();
    let index = call.expand(&index, sizes)?;
    one(call.gather(&x, at, &index)?)
}

fn put(call: &mut Call<'_>) -> Results {
    let (x, index) = (call.tensor("self")?, call.tensor("index")?);
    let source = call.tensor("source")?;
    let accumulate = call.bool("accumulate")?;
    let source = call.cast(&source, x.dtype)?;
    let source = call.flat(&source)?;
    let flat = call.flat(&x)?;
    let done = put_along(call, &flat, 0, &index, &source, accumulate)?;
    one(call.view(&done, x.sizes)?)
}

fn scattered(call: &mut Call<'_>) -> Results {
    let (x, index) = (call.tensor("self")?, call.tensor("index")?);
    let index = long(call, &index)?;
    let at = call.dimension("dim", x.rank())?;
    let operator = call.node.target.to_string();
    one(call.again(&operator, given!(self = x, dim = at, index = index))?)
}

/// Adds the source to the elements at the indices.
fn scatter_add(
    call: &mut Call<'_>,
    to: &Tensor,
    at: usize,
    index: &Tensor,
    src: &Tensor,
) -> TensorResult {
    let given = given!(self = to, dim = at, index = index, src = src);
    call.like(to, "aten.scatter_add.default", given)
}

fn scatter_reduce(call: &mut Call<'_>) -> Results {
    let (x, index) = (call.tensor("self")?, call.tensor("index")?);
    let how = call.text("reduce")?;
    let include = !matches!(call.node.argument("include_self"), Some(Argument::Bool(false)));
    if call.has("value") {
        refuse!("no kernel writes a scalar with the reduction `{how}`");
    }
    let index = long(call, &index)?;
    if !matches!(how, "sum" | "add" | "mean") {
        return meeting(call, &x, &index, how, include);
    }
    let source = call.tensor("src")?;
    let at = call.dimension("dim", x.rank())?;
    let mut start = x.clone();
    if !include {
        let given = given!(self = x, dim = at, index = index, value = 0_i64);
        start = call.like(&x, "aten.scatter.value", given)?;
    }
    let sum = scatter_add(call, &start, at, &index, &source)?;
    if how != "mean" {
        return one(sum);
    }
    let ones = call.full(index.sizes.clone(), Argument::Int(1), x.dtype)?;
    let base = call.full(x.sizes.clone(), Argument::Int(i64::from(include)), x.dtype)?;
    let count = scatter_add(call, &base, at, &index, &ones)?;
    let formula = "some = number(max(count, 1.0)); \
                   where(is_float(sum), sum / some, floor_divide(sum, some))";
    one(calc!(call, formula, count, sum)?)
}

/// Maximum number of index positions that are compared with every value.
const MAX_PLACES: i64 = 1 << 12;

/// Reduces all values with the same index by product or extreme. Every index position is compared with every value,
/// and values for other positions are replaced by the neutral element.
fn meeting(call: &mut Call<'_>, x: &Tensor, index: &Tensor, how: &str, include: bool) -> Results {
    let neutral = match (how, is_float(x.dtype)) {
        ("prod" | "multiply", _) => Argument::Int(1),
        ("amax", true) => Argument::Float(f64::NEG_INFINITY),
        ("amin", true) => Argument::Float(f64::INFINITY),
        _ => refuse!("no kernel reduces integers with the same index by `{how}`"),
    };
    let source = call.tensor("src")?;
    let at = call.dimension("dim", x.rank())?;
    let (sizes, counts) = (x.all_known("a size")?, index.all_known("a size")?);
    if x.rank() == 0 || *sizes.at(at)? > MAX_PLACES {
        refuse!("the reduced dimension must have a size of at most {MAX_PLACES}");
    }
    // Crops the source to the shape of the indices, and the tensor to the region they can reach.
    let (mut source, mut base) = (source, x.clone());
    for (axis, count) in counts.iter().enumerate() {
        source = call.slice(&source, axis, 0, *count, 1)?;
        if axis != at {
            base = call.slice(&base, axis, 0, *count, 1)?;
        }
    }
    // Values run along a new last dimension, positions along the old one.
    let apart = |call: &mut Call<'_>, tensor: &Tensor| {
        let wide = call.unsqueeze(tensor, tensor.rank())?;
        let last = axis_from_end(wide.rank(), 1)?;
        call.transpose(&wide, at, last)
    };
    let (index, source) = (apart(call, index)?, apart(call, &source)?);
    let count = call.count(x.extent(at)?, ScalarType::Int64)?;
    let places = call.along(&count, at, x.rank() + 1)?;
    let here = call.compare("eq", &index, &places)?;
    let neutral = call.scalar(neutral, x.dtype)?;
    let seen = call.choose(&here, &source, &neutral)?;
    let last = x.rank();
    let (met, formula) = match how {
        "amax" => (call.extreme(how, &seen, &[last], false)?, "max(base, met)"),
        "amin" => (call.extreme(how, &seen, &[last], false)?, "min(base, met)"),
        _ => {
            let given = given!(self = seen, dim = last, dtype = x.dtype);
            let product = call.emit("aten.prod.dim_int", given, x.dtype, base.sizes.clone())?;
            (product, "base * met")
        }
    };
    let mut done = calc!(call, formula, base, met)?;
    if !include {
        let any = call.any(&here, &[last], false)?;
        done = call.choose(&any, &met, &base)?;
    }
    // Elements outside the reach of the indices are kept.
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
    let x = call.tensor_as("self", dtype)?;
    let y = call.tensor_as("other", dtype)?;
    one(call.choose(&condition, &x, &y)?)
}

fn masked_fill(call: &mut Call<'_>) -> Results {
    let (x, mask) = (call.tensor("self")?, call.tensor("mask")?);
    let value = call.tensor_as("value", x.dtype)?;
    one(call.choose(&mask, &value, &x)?)
}

fn masked_scatter(call: &mut Call<'_>) -> Results {
    let (x, mask) = (call.tensor("self")?, call.tensor("mask")?);
    let source = call.typed("source")?;
    let sizes = call.result_sizes()?;
    let (x, mask) = (call.expand(&x, sizes.clone())?, call.expand(&mask, sizes)?);
    one(call.noted("aten.masked_scatter.default", given!(self = x, mask = mask, source = source))?)
}

/// Writes the source to a diagonal.
fn diagonal_scatter(call: &mut Call<'_>) -> Results {
    let (x, source) = (call.tensor("self")?, call.typed("src")?);
    let (first, second) = (call.dimension("dim1", x.rank())?, call.dimension("dim2", x.rank())?);
    let sides = [x.extent(first)?.clone(), x.extent(second)?.clone()];
    let mut order: Vec<usize> = (0..x.rank()).filter(|at| *at != first && *at != second).collect();
    order.extend([first, second]);
    let turned = call.permute(&x, &order)?;
    let offset = call.int("offset")?;
    let done = embedded(call, &source, &sides, offset, Some(&turned))?;
    let mut back = vec![0; order.len()];
    for (to, from) in order.iter().enumerate() {
        *back.at_mut(*from)? = to;
    }
    one(call.permute(&done, &back)?)
}

fn copy(call: &mut Call<'_>) -> Results {
    let source = call.typed("src")?;
    let sizes = call.result_sizes()?;
    one(call.expand(&source, sizes)?)
}

/// Index of the padding row. torch's public function counts negative indices from the end; for the internal operator
/// a negative index means none.
fn ignored_index(call: &Call<'_>, weight: &Tensor) -> Result<Option<i64>> {
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
    Ok(Some(padding + weight.known(0, "the number of rows")?))
}

/// `embedding_bag` for a static number of bags: bags of equal length, or one index per bag.
fn embedding_bag(call: &mut Call<'_>) -> Results {
    let (weight, indices) = (call.tensor("weight")?, call.tensor("indices")?);
    let offsets = call.tensor("offsets")?;
    let mode = call.int("mode")?;
    let padding = ignored_index(call, &weight)?;
    let extra = (1..call.node.outputs.len()).any(|index| call.wants(index));
    if extra || indices.rank() != 1 {
        refuse!("only the sums, means and maxima of bags have kernels");
    }
    let sizes = call.result_sizes()?;
    let weights = call.optional_tensor("per_sample_weights")?;
    // Bag of each index: number of offsets at or before its position, minus one.
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
    let bag = calc!(call, "sum(starts <= column, 1, 1) - 1", starts, column)?;
    let bags = call.count(starts.extent(0)?, ScalarType::Int64)?;
    let mut within = call.compare("eq", &bag, &bags)?;
    if let Some(padding) = padding {
        let formula = "within & unsqueeze(indices != padding, 1)";
        within = calc!(call, formula, within, indices, padding)?;
    }
    let mut rows = call.rows(&weight, &indices)?;
    if mode == 2 {
        // Rows of other bags are ignored; empty bags are zero.
        let formula = "most = amax(where(unsqueeze(mT(within), 2), rows, -inf), 1); \
                       where(most == -inf, 0, most)";
        let done = calc!(call, formula, within, rows)?;
        return first(call, done);
    }
    if let Some(weights) = weights {
        rows = calc!(call, "rows * unsqueeze(weights, 1)", rows, weights)?;
    }
    let belongs = call.cast(&within, rows.dtype)?;
    let mut done = calc!(call, "mm(mT(belongs), rows)", belongs, rows)?;
    if mode == 1 {
        done = calc!(call, "done / unsqueeze(max(sum(belongs, 0), 1.0), 1)", belongs, done)?;
    }
    first(call, done)
}
