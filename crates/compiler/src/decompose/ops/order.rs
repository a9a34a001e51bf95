//! Sorting, ranking, medians and histograms.

use super::reduction::{of_number, ordered};
use crate::decompose::prelude::*;

pub(crate) const ROWS: &[Row] = &[
    by(topk_call, &["aten.topk"]),
    by(sort, &["aten.{sort,argsort}"]),
    by(kth, &["aten.kthvalue", "aten.median.dim"]),
    by(median, &["aten.median.default"]),
    by(mode, &["aten.mode"]),
    by(searched, &["aten.searchsorted", "aten.bucketize"]),
    by(histogram, &["aten.histc"]),
];

/// The first `count` elements of a dimension in sorted order, and their indices.
pub(super) fn topk(
    call: &mut Call<'_>,
    x: &Tensor,
    at: usize,
    count: &Size,
    largest: bool,
) -> Result<[Tensor; 2]> {
    let values = ordered(call, x)?;
    let k = call.size_argument(count)?;
    let mut sizes = x.sizes.clone();
    if let Some(size) = sizes.get_mut(at) {
        *size = count.clone();
    }
    let given = given!(self = values, k = k, dim = at, largest = largest, sorted = true);
    let types = vec![(values.dtype, sizes.clone()), (ScalarType::Int64, sizes)];
    let mut both = call.emit_several("aten.topk.default", given, types)?;
    let (Some(places), Some(values)) = (both.pop(), both.pop()) else {
        refuse!("`topk` must return two results");
    };
    Ok([call.cast(&values, x.dtype)?, places])
}

fn two(both: [Tensor; 2]) -> Results {
    Ok(both.into_iter().map(RewriteResult::Tensor).collect())
}

fn topk_call(call: &mut Call<'_>) -> Results {
    let x = call.tensor("self")?;
    let at = call.dimension("dim", x.rank())?;
    let count = call.size("k")?;
    let largest = call.bool("largest")?;
    two(topk(call, &x, at, &count, largest)?)
}

/// Maximum length of a dimension sorted by comparing all pairs.
const MOST: i64 = 2048;

/// Stable sort. The rank of an element is the number of elements that precede it.
fn sorted(call: &mut Call<'_>, x: &Tensor, at: usize, descending: bool) -> Result<[Tensor; 2]> {
    let Some(length) = x.sizes.get(at).cloned() else {
        return Ok([x.clone(), call.scalar(Argument::Int(0), ScalarType::Int64)?]);
    };
    if length.fixed().is_none_or(|length| length > MOST) {
        return topk(call, x, at, &length, descending);
    }
    let count = call.count(&length, ScalarType::Int64)?;
    let (row, column) = (call.unsqueeze(&count, 0)?, call.unsqueeze(&count, 1)?);
    let values = ordered(call, x)?;
    let last = axis_from_end(values.rank(), 1)?;
    let moved = call.transpose(&values, at, last)?;
    // `one` is the element, `other` runs over all elements.
    let (one, other) = (call.unsqueeze(&moved, last + 1)?, call.unsqueeze(&moved, last)?);
    // NaN compares greater than all numbers.
    let formula = "before = where(descending, other > one, other < one); equal = other == one; \
                   last = isnan(one); also = isnan(other); \
                   ahead = where(descending, also & !last, !also & last); \
                   is = where(is_float(one), before | ahead, before); \
                   ties = where(is_float(one), equal | last & also, equal); is | ties & row < column";
    let ahead = calc!(call, formula, descending, one, other, row, column)?;
    let rank = call.sum(&ahead, &[last + 1], false)?;
    // Inverts the permutation: index `p` selects the element of rank `p`.
    let places = call.expand(&count, rank.sizes.clone())?;
    let base = call.full(rank.sizes.clone(), Argument::Int(0), ScalarType::Int64)?;
    let given = given!(self = base, dim = last, index = rank, src = places);
    let from = call.like(&base, "aten.scatter.src", given)?;
    let found = call.gather(&moved, last, &from)?;
    let found = call.transpose(&found, at, last)?;
    let from = call.transpose(&from, at, last)?;
    Ok([call.cast(&found, x.dtype)?, from])
}

fn sort(call: &mut Call<'_>) -> Results {
    let x = call.tensor("self")?;
    let at = call.dimension("dim", x.rank())?;
    let descending = call.bool("descending")?;
    let [values, places] = sorted(call, &x, at, descending)?;
    if call.name() == "argsort" { one(places) } else { two([values, places]) }
}

/// The `k`th smallest element, or the lower median.
fn kth(call: &mut Call<'_>) -> Results {
    let x = call.tensor("self")?;
    let at = call.dimension("dim", x.rank())?;
    let keep = call.bool("keepdim")?;
    two(smallest(call, &x, at, keep)?)
}

/// Median of all elements.
fn median(call: &mut Call<'_>) -> Results {
    let x = call.tensor("self")?;
    let flat = call.flat(&x)?;
    let [value, _] = smallest(call, &flat, 0, false)?;
    one(value)
}

fn smallest(call: &mut Call<'_>, x: &Tensor, at: usize, keep: bool) -> Result<[Tensor; 2]> {
    let both = sorted(call, x, at, false)?;
    if x.rank() == 0 {
        return Ok(both);
    }
    let [values, places] = both;
    let length = x.known(at, "the length of the dimension")?;
    let is_median = !call.has("k");
    let place = if is_median { (length - 1) / 2 } else { call.int("k")? - 1 };
    let pick = |call: &mut Call<'_>, tensor: &Tensor, place: i64| {
        let picked = call.select(tensor, at, Argument::Int(place))?;
        if keep { call.unsqueeze(&picked, at) } else { Ok(picked) }
    };
    let [value, found] = [pick(call, &values, place)?, pick(call, &places, place)?];
    if !is_median || !is_float(x.dtype) {
        return Ok([value, found]);
    }
    // NaN sorts last. If there is one, it is the median, and its index is the first NaN.
    let last = pick(call, &values, length - 1)?;
    let no_number = call.test("isnan", &last)?;
    let no_numbers = call.test("isnan", x)?;
    let bytes = call.cast(&no_numbers, ScalarType::UInt8)?;
    let given = given!(self = bytes, dim = at, keepdim = keep);
    let sizes = found.sizes.clone();
    let first = call.emit("aten.argmax.default", given, ScalarType::Int64, sizes)?;
    Ok([call.choose(&no_number, &last, &value)?, call.choose(&no_number, &first, &found)?])
}

/// Number of boundaries below each value.
fn searched(call: &mut Call<'_>) -> Results {
    let bounds =
        call.tensor(if call.has("boundaries") { "boundaries" } else { "sorted_sequence" })?;
    let values = call.tensor("self")?;
    if call.has("sorter") {
        let _ = call.tensor("sorter")?;
        refuse!("no kernel supports bounds with a `sorter`");
    }
    let right = call.bool("right")? || call.has("side") && call.text("side")? == "right";
    let values = call.unsqueeze(&values, values.rank())?;
    let bounds = match bounds.rank() {
        0 => refuse!("the bounds have no dimensions"),
        1 => bounds,
        rank => call.unsqueeze(&bounds, axis_from_end(rank, 1)?)?,
    };
    let formula = "under = where(right, bounds <= values, bounds < values); \
                   below = where(is_float(values), under | isnan(values), under); \
                   number(sum(below, -1))";
    one(calc!(call, formula, right, bounds, values)?)
}

/// Counts of evenly spaced bins. If both bounds are equal, the range of the values is used.
fn histogram(call: &mut Call<'_>) -> Results {
    let x = call.tensor("self")?;
    let bins = call.int("bins")?;
    let (low, high) = (call.float("min")?, call.float("max")?);
    let flat = call.flat(&x)?;
    let wide = if x.dtype == ScalarType::Float64 { x.dtype } else { ScalarType::Float32 };
    let x = call.cast(&flat, wide)?;
    // The last bin includes its upper bound.
    let formula = "place = min(floor((x - low) * bins / (high - low)), bins - 1); \
                   where(x >= low & x <= high, place, -1.0)";
    let place = if low < high {
        calc!(call, formula, x, low, high, bins)?
    } else {
        let low = call.extreme("amin", &x, &[0], false)?;
        let high = call.extreme("amax", &x, &[0], false)?;
        calc!(call, formula, x, low, high, bins)?
    };
    let column = call.unsqueeze(&place, 1)?;
    let numbers = call.count(&Size::Fixed(bins), wide)?;
    let there = call.compare("eq", &column, &numbers)?;
    let there = call.cast(&there, wide)?;
    one(calc!(call, "number(sum(there, 0))", there)?)
}

/// Most frequent element: the smallest one if there are several, with its last index.
fn mode(call: &mut Call<'_>) -> Results {
    let x = call.tensor("self")?;
    if x.rank() == 0 {
        return of_number(call, x);
    }
    let at = call.dimension("dim", x.rank())?;
    let keep = call.bool("keepdim")?;
    let number = match x.dtype {
        ScalarType::Bool => call.cast(&x, ScalarType::Int32)?,
        _ => x.clone(),
    };
    // Compares all pairs of elements along an extra dimension.
    let (own, other) = (call.unsqueeze(&number, at + 1)?, call.unsqueeze(&number, at)?);
    let same = call.compare("eq", &own, &other)?;
    let same = call.cast(&same, ScalarType::Int32)?;
    let counts = call.sum(&same, &[at + 1], false)?;
    let most = call.extreme("amax", &counts, &[at], true)?;
    let beyond = match number.dtype {
        dtype if is_float(dtype) => Argument::Float(f64::INFINITY),
        ScalarType::Int64 => Argument::Int(i64::MAX),
        ScalarType::Int32 => Argument::Int(i32::MAX.into()),
        ScalarType::Int16 => Argument::Int(i16::MAX.into()),
        ScalarType::Int8 => Argument::Int(i8::MAX.into()),
        _ => Argument::Int(u8::MAX.into()),
    };
    let beyond = call.scalar(beyond, number.dtype)?;
    let candidates =
        calc!(call, "where(counts == most, number, beyond)", counts, most, number, beyond)?;
    let value = call.extreme("amin", &candidates, &[at], true)?;
    let hit = call.compare("eq", &number, &value)?;
    let count = call.count(x.extent(at)?, ScalarType::Int64)?;
    let count = call.along(&count, at, x.rank())?;
    let places = calc!(call, "where(hit, count, 0)", hit, count)?;
    let place = call.extreme("amax", &places, &[at], keep)?;
    let value = if keep { value } else { call.squeeze(&value, at)? };
    let value = call.cast(&value, x.dtype)?;
    Ok(vec![RewriteResult::Tensor(value), RewriteResult::Tensor(place)])
}
