//! Unique elements, rows or runs. The number of results is dynamic.
//!
//! Elements are sorted, so that equal ones are adjacent, and the first of each run represents it. Core ML cannot
//! sort rows, so every pair of rows is compared. Everything stays in `fp32`, because values that are distinct in
//! fp32 may be equal in `fp16`.

use super::sort::{numbers, sorted};
use super::{gathered, written_along};
use crate::lower::prelude::*;

pub(super) const ROWS: &[Row] = &[
    several("aten._unique{,2}", elements),
    several("aten.unique_dim", rows),
    several("aten.unique_{,dim_}consecutive", consecutive),
];

/// Maximum number of element comparisons for equal rows.
const MAX_COMPARISONS: i64 = 1 << 24;

/// Results of a `unique` call.
struct Unique {
    /// The unique elements or rows.
    values: ValueId,
    /// For each input element, the index of its equal in `values`.
    inverse: ValueId,
    counts: ValueId,
}

/// Returns the results that the call requests.
fn give(call: &Call<'_, '_>, dtype: ScalarType, unique: &Unique) -> Results {
    let wanted = |name: &str, value: ValueId| {
        let is_wanted = call.node.argument(name).is_some() && call.flag(name)?;
        // torch has an empty tensor for a result that is not requested; it cannot be used.
        let whole = LoweredValue::tensor(value, ScalarType::Int64);
        Ok(if is_wanted { whole } else { LoweredValue::Nothing })
    };
    Ok(vec![
        LoweredValue::tensor(unique.values, dtype),
        wanted("return_inverse", unique.inverse)?,
        wanted("return_counts", unique.counts)?,
    ])
}

/// Runs of equal neighbors.
struct Runs {
    /// Start of each run.
    places: ValueId,
    counts: ValueId,
    /// For each element, the number of its run.
    numbers: ValueId,
}

impl Runs {
    /// Runs, given which neighbors differ.
    fn between(builder: &mut Builder, differ: ValueId) -> Result<Runs> {
        let differ = builder.cast(differ, DType::Int32)?;
        let one = builder.constant(Constant::int32s(&[1]));
        let first = builder.concat(&[one, differ], 0)?;
        let last = builder.concat(&[differ, one], 0)?;
        let places = set_places(builder, first)?;
        let ends = set_places(builder, last)?;
        let counts = calc!(builder, "ends - places + 1", ends, places)?;
        let numbers = builder.cumulative(first, 0)?;
        let numbers = builder.binary(OpKind::Sub, numbers, 1)?;
        Ok(Runs { places, counts, numbers })
    }

    /// A single run of one element.
    fn single(builder: &mut Builder) -> Runs {
        let mut vector = |element| builder.constant(Constant::int32s(&[element]));
        Runs { places: vector(0), counts: vector(1), numbers: vector(0) }
    }
}

/// Indices of the nonzero elements of a vector.
pub(crate) fn set_places(builder: &mut Builder, flags: ValueId) -> ValueResult {
    let rows = builder.unary(OpKind::NonZero, flags)?;
    builder.squeeze(rows, &[1])
}

/// Which neighbors along an axis differ; `None` for a single element.
fn differing(builder: &mut Builder, x: ValueId, axis: usize) -> Result<Option<ValueId>> {
    let last = match *builder.extents(x).at(axis)? {
        Some(1) => return Ok(None),
        Some(extent) => extent as i64 - 1,
        None => -1,
    };
    let later = builder.slice(x, axis, 1, None)?;
    let earlier = builder.slice(x, axis, 0, Some(last))?;
    builder.binary(OpKind::NotEqual, later, earlier).map(Some)
}

fn runs(builder: &mut Builder, differ: Option<ValueId>) -> Result<Runs> {
    match differ {
        Some(differ) => Runs::between(builder, differ),
        None => Ok(Runs::single(builder)),
    }
}

fn elements(call: &mut Call<'_, '_>) -> Results {
    call.exact = true;
    let (x, dtype) = (numbers(call)?, call.tensor("self")?.dtype);
    let dims = call.dims(x)?;
    let line = call.flat(x)?;
    let [line, order] = sorted(call, line, 0, true)?;
    let differ = differing(call, line, 0)?;
    let runs = runs(call, differ)?;
    let values = gathered(call, line, runs.places, 0)?;
    // The sort order is a permutation, so every element is overwritten.
    let inverse = written_along(call, runs.numbers, order, runs.numbers, 0, "update")?;
    let inverse = call.with_sizes(inverse, &dims)?;
    give(call, dtype, &Unique { values, inverse, counts: runs.counts })
}

fn consecutive(call: &mut Call<'_, '_>) -> Results {
    call.exact = true;
    let (x, dtype) = (numbers(call)?, call.tensor("self")?.dtype);
    let rank = call.rank(x);
    if !call.has("dim") {
        let dims = call.dims(x)?;
        let line = call.flat(x)?;
        let differ = differing(call, line, 0)?;
        let runs = runs(call, differ)?;
        let values = gathered(call, line, runs.places, 0)?;
        let inverse = call.with_sizes(runs.numbers, &dims)?;
        return give(call, dtype, &Unique { values, inverse, counts: runs.counts });
    }
    let axis = call.axis("dim", rank)?;
    let differ = match differing(call, x, axis)? {
        Some(differ) if rank > 1 => {
            let axes: Vec<_> = (0..rank).filter(|&other| other != axis).collect();
            let differ = call.cast(differ, DType::Int32)?;
            Some(call.reduced(OpKind::ReduceMax, differ, &axes, false)?)
        }
        differ => differ,
    };
    let runs = runs(call, differ)?;
    let values = gathered(call, x, runs.places, axis)?;
    give(call, dtype, &Unique { values, inverse: runs.numbers, counts: runs.counts })
}

fn rows(call: &mut Call<'_, '_>) -> Results {
    call.exact = true;
    let (x, dtype) = (numbers(call)?, call.tensor("self")?.dtype);
    let rank = call.rank(x);
    let axis = call.axis("dim", rank)?;
    let order: Vec<_> =
        std::iter::once(axis).chain((0..rank).filter(|&other| other != axis)).collect();
    let front = call.transpose(x, &order)?;
    let count = call.dim(front, 0)?;
    let length = match call.dims(front)?.get(1..) {
        Some(others) => call.product(others)?,
        None => Int::Known(1),
    };
    if let (Int::Known(count), Int::Known(length)) = (count, length)
        && count.saturating_mul(count).saturating_mul(length) > MAX_COMPARISONS
    {
        refuse!(
            "compares each of {count} rows of {length} elements with all others; the maximum is \
             {MAX_COMPARISONS} comparisons"
        );
    }
    let flat = call.with_sizes(front, &[count, length])?;
    let RowComparison { before, same } = RowComparison::of(call, flat)?;

    // A row represents its equals if none of them precedes it.
    let counting = call.counting(count)?;
    let (upper, lower) = (call.expand_dims(counting, &[0])?, call.expand_dims(counting, &[1])?);
    let above = calc!(call, "same * int(upper < lower)", same, upper, lower)?;
    let repeated = call.reduced(OpKind::ReduceMax, above, &[1], false)?;
    let leads = call.binary(OpKind::Sub, 1, repeated)?;
    // The index of a representative is the number of representatives that are smaller.
    let smaller = call.binary(OpKind::Mul, before, leads)?;
    let inverse = call.reduced(OpKind::ReduceSum, smaller, &[1], false)?;
    let leaders = set_places(call, leads)?;
    let ranks = gathered(call, inverse, leaders, 0)?;
    let in_order = emit!(call, OpKind::Argsort, x = ranks, axis = 0, ascending = true)?;
    let chosen = gathered(call, leaders, in_order, 0)?;
    let values = gathered(call, x, chosen, axis)?;
    let counts = call.reduced(OpKind::ReduceSum, same, &[1], false)?;
    let counts = gathered(call, counts, chosen, 0)?;
    give(call, dtype, &Unique { values, inverse, counts })
}

/// Pairwise comparison of rows: whether the row of the second axis is less than the row of the first, and whether
/// they are equal.
struct RowComparison {
    before: ValueId,
    same: ValueId,
}

impl RowComparison {
    fn of(builder: &mut Builder, rows: ValueId) -> Result<RowComparison> {
        let one = builder.expand_dims(rows, &[1])?;
        let other = builder.expand_dims(rows, &[0])?;
        let differ = calc!(builder, "int(one != other)", one, other)?;
        // The first differing element decides; there the cumulative count of differences is one.
        let so_far = builder.cumulative(differ, 2)?;
        let formula = "int(so_far * differ == 1 & other < one)";
        let before = calc!(builder, formula, so_far, differ, other, one)?;
        let before = builder.reduced(OpKind::ReduceMax, before, &[2], false)?;
        let any = builder.reduced(OpKind::ReduceMax, differ, &[2], false)?;
        let same = builder.binary(OpKind::Sub, 1, any)?;
        Ok(RowComparison { before, same })
    }
}
