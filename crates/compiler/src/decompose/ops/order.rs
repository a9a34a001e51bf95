//! Elements in the order of their size.

use coremill_pt2::{Argument, ScalarType, Size};

use crate::bounds::{At, back};
use crate::decompose::call::{Call, Made, Results, Tensor, one};
use crate::decompose::dtype::is_float;
use crate::decompose::formula::calc;
use crate::decompose::row::{Row, by};
use crate::decompose::size;
use crate::error::{Refusal, refuse};

pub(crate) const ROWS: &[Row] = &[
    by(topk_call, &["aten.topk.default"]),
    by(sort, &["aten.sort.default", "aten.sort.stable"]),
    by(argsort, &["aten.argsort.default", "aten.argsort.stable"]),
    by(kth, &["aten.kthvalue.default", "aten.median.dim"]),
    by(median, &["aten.median.default"]),
    by(mode, &["aten.mode.default"]),
    by(
        searched,
        &[
            "aten.searchsorted.Tensor",
            "aten.searchsorted.Scalar",
            "aten.bucketize.Tensor",
            "aten.bucketize.Scalar",
        ],
    ),
    by(histogram, &["aten.histc.default"]),
];

/// The first of a dimension in order, and their places.
pub(super) fn topk(
    call: &mut Call<'_>,
    x: &Tensor,
    at: usize,
    count: &Size,
    largest: bool,
) -> Result<[Tensor; 2], Refusal> {
    let values =
        if x.dtype == ScalarType::Bool { call.cast(x, ScalarType::UInt8)? } else { x.clone() };
    let k = call.size_argument(count)?;
    let mut sizes = x.sizes.clone();
    if let Some(size) = sizes.get_mut(at) {
        *size = count.clone();
    }
    let given = [
        ("self", values.argument()),
        ("k", k),
        ("dim", Argument::Int(at as i64)),
        ("largest", Argument::Bool(largest)),
        ("sorted", Argument::Bool(true)),
    ];
    let types = vec![(values.dtype, sizes.clone()), (ScalarType::Int64, sizes)];
    let mut both = call.emit_several("aten.topk.default", &given, types)?;
    let (Some(places), Some(values)) = (both.pop(), both.pop()) else {
        refuse!("a call of `topk` has two results");
    };
    Ok([call.cast(&values, x.dtype)?, places])
}

fn two(both: [Tensor; 2]) -> Results {
    Ok(both.into_iter().map(Made::Tensor).collect())
}

fn topk_call(call: &mut Call<'_>) -> Results {
    let x = call.tensor("self")?;
    let at = x.dimension(call.int("dim")?)?;
    let count = match call.frame.size_of(call.argument("k")?) {
        Some(count) => count,
        None => refuse!("`k` is not an integer"),
    };
    let largest = call.bool("largest")?;
    two(topk(call, &x, at, &count, largest)?)
}

/// Most elements of a dimension of which each is compared with each.
const MOST: i64 = 2048;

/// In order; those that are equal keep theirs. Each element's place is the number of those that come before it.
fn sorted(
    call: &mut Call<'_>,
    x: &Tensor,
    at: usize,
    descending: bool,
) -> Result<[Tensor; 2], Refusal> {
    let Some(length) = x.sizes.get(at).cloned() else {
        let place = call.full(Vec::new(), Argument::Int(0), ScalarType::Int64)?;
        return Ok([x.clone(), place]);
    };
    if length.fixed().is_none_or(|length| length > MOST) {
        return topk(call, x, at, &length, descending);
    }
    let count = call.count(&length, ScalarType::Int64)?;
    let (row, column) = (call.unsqueeze(&count, 0)?, call.unsqueeze(&count, 1)?);
    let values =
        if x.dtype == ScalarType::Bool { call.cast(x, ScalarType::UInt8)? } else { x.clone() };
    let last = back(values.rank(), 1)?;
    let moved = call.transpose(&values, at, last)?;
    // One is the element, the other runs over all.
    let (one, other) = (call.unsqueeze(&moved, last + 1)?, call.unsqueeze(&moved, last)?);
    // What is not a number counts as larger than all.
    let formula = "before = where(descending, other > one, other < one); equal = other == one; \
                   last = isnan(one); also = isnan(other); \
                   ahead = where(descending, also & !last, !also & last); \
                   is = where(is_float(one), before | ahead, before); \
                   ties = where(is_float(one), equal | last & also, equal); is | ties & row < column";
    let ahead = calc!(call, formula, descending, one, other, row, column)?;
    let rank = call.sum(&ahead, &[last + 1], false)?;
    // The element at place `p` is the one whose rank is `p`.
    let places = call.expand(&count, rank.sizes.clone())?;
    let base = call.full(rank.sizes.clone(), Argument::Int(0), ScalarType::Int64)?;
    let given = [
        ("self", base.argument()),
        ("dim", Argument::Int(last as i64)),
        ("index", rank.argument()),
        ("src", places.argument()),
    ];
    let from = call.emit("aten.scatter.src", &given, ScalarType::Int64, rank.sizes.clone())?;
    let found = call.gather(&moved, last, &from)?;
    let found = call.transpose(&found, at, last)?;
    let from = call.transpose(&from, at, last)?;
    Ok([call.cast(&found, x.dtype)?, from])
}

fn sort(call: &mut Call<'_>) -> Results {
    let x = call.tensor("self")?;
    let at = x.dimension(call.int("dim")?)?;
    let descending = call.bool("descending")?;
    two(sorted(call, &x, at, descending)?)
}

fn argsort(call: &mut Call<'_>) -> Results {
    let x = call.tensor("self")?;
    let at = x.dimension(call.int("dim")?)?;
    let descending = call.bool("descending")?;
    let [_, places] = sorted(call, &x, at, descending)?;
    one(places)
}

/// The element that has so many before it: the `k`th smallest, or the lower one of those in the middle.
fn kth(call: &mut Call<'_>) -> Results {
    let x = call.tensor("self")?;
    let at = x.dimension(call.int("dim")?)?;
    let keep = call.bool("keepdim")?;
    let [values, places] = sorted(call, &x, at, false)?;
    if x.rank() == 0 {
        return two([values, places]);
    }
    let Some(length) = x.extent(at)?.fixed() else {
        refuse!("the length of the dimension is unknown at compile time");
    };
    let is_median = !call.has("k");
    let place = if is_median { (length - 1) / 2 } else { call.int("k")? - 1 };
    let pick = |call: &mut Call<'_>, tensor: &Tensor, place: i64| {
        let picked = call.select(tensor, at, Argument::Int(place))?;
        if keep { call.unsqueeze(&picked, at) } else { Ok(picked) }
    };
    let mut both = [pick(call, &values, place)?, pick(call, &places, place)?];
    if is_median && is_float(x.dtype) {
        // What is not a number comes last, and is the median where there is one; its first place is that.
        let last = pick(call, &values, length - 1)?;
        let no_number = call.test("isnan", &last)?;
        let no_numbers = call.test("isnan", &x)?;
        let given = [
            ("self", call.cast(&no_numbers, ScalarType::UInt8)?.argument()),
            ("dim", Argument::Int(at as i64)),
            ("keepdim", Argument::Bool(keep)),
        ];
        let sizes = both[1].sizes.clone();
        let first = call.emit("aten.argmax.default", &given, ScalarType::Int64, sizes)?;
        both =
            [call.choose(&no_number, &last, &both[0])?, call.choose(&no_number, &first, &both[1])?];
    }
    two(both)
}

fn median(call: &mut Call<'_>) -> Results {
    let x = call.tensor("self")?;
    let flat = call.view(&x, vec![size::product(&x.sizes)])?;
    let Some(length) = flat.extent(0)?.fixed() else {
        refuse!("the number of elements is unknown at compile time");
    };
    let [values, _] = sorted(call, &flat, 0, false)?;
    let middle = call.select(&values, 0, Argument::Int((length - 1) / 2))?;
    if !is_float(x.dtype) {
        return one(middle);
    }
    let last = call.select(&values, 0, Argument::Int(length - 1))?;
    let no_number = call.test("isnan", &last)?;
    one(call.choose(&no_number, &last, &middle)?)
}

/// The number of bounds below each value.
fn searched(call: &mut Call<'_>) -> Results {
    let bounds =
        call.tensor(if call.has("boundaries") { "boundaries" } else { "sorted_sequence" })?;
    let values = call.tensor("self")?;
    if call.has("sorter") {
        let _ = call.tensor("sorter")?;
        refuse!("bounds that are in order by another tensor have no kernel");
    }
    let right = call.bool("right")? || call.has("side") && call.text("side")? == "right";
    let dtype = call.result(0)?.dtype;
    if bounds.rank() == 0 {
        refuse!("the bounds have no dimensions");
    }
    let apart = if bounds.rank() == 1 {
        call.unsqueeze(&values, values.rank())?
    } else {
        let last = call.unsqueeze(&values, values.rank())?;
        let wide = call.unsqueeze(&bounds, back(bounds.rank(), 1)?)?;
        return count_below(call, &wide, &last, right, dtype);
    };
    count_below(call, &bounds, &apart, right, dtype)
}

fn count_below(
    call: &mut Call<'_>,
    bounds: &Tensor,
    values: &Tensor,
    right: bool,
    dtype: ScalarType,
) -> Results {
    let formula = "below = where(right, bounds <= values, bounds < values); \
                   where(is_float(values), below | isnan(values), below)";
    let below = calc!(call, formula, right, bounds, values)?;
    let count = call.sum(&below, &[back(below.rank(), 1)?], false)?;
    one(call.cast(&count, dtype)?)
}

/// How many values lie between each two neighbours of evenly spaced bounds; those that are the same stand for the bounds
/// of the values.
fn histogram(call: &mut Call<'_>) -> Results {
    let x = call.tensor("self")?;
    let bins = call.int("bins")?;
    let (low, high) = (call.float("min")?, call.float("max")?);
    let dtype = call.result(0)?.dtype;
    let flat = call.view(&x, vec![size::product(&x.sizes)])?;
    let wide = if x.dtype == ScalarType::Float64 { x.dtype } else { ScalarType::Float32 };
    let x = call.cast(&flat, wide)?;
    // The last bin has its upper bound.
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
    let count = call.sum(&there, &[0], false)?;
    one(call.cast(&count, dtype)?)
}

/// The element that is there most often, the smallest of several, and its last place.
fn mode(call: &mut Call<'_>) -> Results {
    let x = call.tensor("self")?;
    if x.rank() == 0 {
        let place = call.full(Vec::new(), Argument::Int(0), ScalarType::Int64)?;
        return Ok(vec![Made::Tensor(x), Made::Tensor(place)]);
    }
    let at = x.dimension(call.int("dim")?)?;
    let keep = call.bool("keepdim")?;
    let number = match x.dtype {
        ScalarType::Bool => call.cast(&x, ScalarType::Int32)?,
        _ => x.clone(),
    };
    // Every element is compared with every other of its line, along a dimension of their own.
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
    let beyond = call.full(Vec::new(), beyond, number.dtype)?;
    let candidates =
        calc!(call, "where(counts == most, number, beyond)", counts, most, number, beyond)?;
    let value = call.extreme("amin", &candidates, &[at], true)?;
    let hit = call.compare("eq", &number, &value)?;
    let mut shape = vec![Size::Fixed(1); x.rank()];
    *shape.at_mut(at)? = x.extent(at)?.clone();
    let count = call.count(x.extent(at)?, ScalarType::Int64)?;
    let count = call.view(&count, shape)?;
    let places = calc!(call, "where(hit, count, 0)", hit, count)?;
    let place = call.extreme("amax", &places, &[at], keep)?;
    let value = if keep { value } else { call.squeeze(&value, at)? };
    let value = call.cast(&value, x.dtype)?;
    Ok(vec![Made::Tensor(value), Made::Tensor(place)])
}
