//! Slices, selections and splits.

use crate::lower::prelude::*;

pub(super) const ROWS: &[Row] = &[
    tensor("aten.slice", slice).only(&["Tensor"]),
    tensor("aten.select", select).only(&["int"]),
    tensor("aten.narrow", narrow),
    several("aten.split", split_evenly).only(&["Tensor"]),
    several("aten.split", |call| split_sizes(call, "split_size")).only(&["sizes"]),
    several("aten.{,unsafe_}split_with_sizes", |call| split_sizes(call, "split_sizes")),
    several("aten.{,unsafe_}chunk", chunk),
    several("aten.tensor_split", split_by_tensor).only(&["tensor_indices_or_sections"]),
];

fn slice(call: &mut Call<'_, '_>) -> ValueResult {
    let (x, axis) = along(call)?;
    let range = range_of(call)?;
    call.sliced(x, axis, range)
}

/// `self` and the index of `dim`.
fn along(call: &mut Call<'_, '_>) -> Result<(ValueId, usize)> {
    let x = call.value("self")?;
    Ok((x, call.axis("dim", call.rank(x))?))
}

/// Range of `start`, `end` and `step`.
pub(super) fn range_of(call: &mut Call<'_, '_>) -> Result<Range> {
    let begin = call.optional_int("start")?.unwrap_or(Int::Known(0));
    // The largest 64-bit integer, or 32-bit in programs from other tools, means "to the end".
    let end = call.optional_int("end")?;
    let end = end.filter(|end| end.known().is_none_or(|end| end < i64::from(i32::MAX)));
    let step = call.known_int("step")?;
    if step < 1 {
        refuse!("`step` must be at least 1, got {step}");
    }
    Ok(Range { begin, end, step })
}

fn select(call: &mut Call<'_, '_>) -> ValueResult {
    let (x, axis) = along(call)?;
    let index = call.int("index")?;
    call.taken_at(x, axis, index)
}

fn narrow(call: &mut Call<'_, '_>) -> ValueResult {
    let (x, axis) = along(call)?;
    let start = call.argument("start")?;
    let begin = match call.lowered(start)? {
        LoweredValue::Tensor(tensor) => {
            let scalar = call.scalar_of(tensor.value)?;
            call.int_of(scalar)
        }
        _ => call.int("start")?,
    };
    let begin = call.counted_from_begin(x, axis, begin)?;
    let length = call.int("length")?;
    let end = call.add_ints(begin, length)?;
    call.sliced(x, axis, Range::between(begin, end))
}

/// Number of results.
fn parts(call: &Call<'_, '_>) -> usize {
    call.node.results().count()
}

fn split_evenly(call: &mut Call<'_, '_>) -> Results {
    let each = call.int("split_size")?;
    split(call, &vec![each; parts(call)])
}

fn split_sizes(call: &mut Call<'_, '_>, name: &str) -> Results {
    let sizes = call.int_list(name)?;
    split(call, &sizes)
}

fn chunk(call: &mut Call<'_, '_>) -> Results {
    let (x, axis) = along(call)?;
    let chunks = call.known_int("chunks")?;
    let extent = call.dim(x, axis)?;
    let each = call.ceil_div_ints(extent, chunks)?;
    split(call, &vec![each; parts(call)])
}

/// A scalar holds the number of parts, which equals the number of results. A vector holds the end of each part.
fn split_by_tensor(call: &mut Call<'_, '_>) -> Results {
    let indices = call.value("tensor_indices_or_sections")?;
    let count = parts(call) as i64;
    if call.rank(indices) == 0 {
        return split_into(call, count);
    }
    let (x, axis) = along(call)?;
    let mut begin = Int::Known(0);
    let mut values = Vec::new();
    for at in 0..count - 1 {
        let end = call.taken_at(indices, 0, Int::Known(at))?;
        let end = call.int_of(end);
        values.push(call.sliced(x, axis, Range::between(begin, end))?);
        begin = end;
    }
    values.push(call.sliced(x, axis, Range::from(begin))?);
    call.give_all(&values)
}

/// Splits into equal parts; if the size is not divisible, the first parts are larger by one.
fn split_into(call: &mut Call<'_, '_>, sections: i64) -> Results {
    let (x, axis) = along(call)?;
    if sections < 1 {
        refuse!("the number of parts must be at least 1, got {sections}");
    }
    checked_numel(&[sections])?;
    let Some(extent) = call.shape(x).get(axis).and_then(Dim::known) else {
        refuse!("splits an axis of unknown size into {sections} parts of different sizes");
    };
    let (each, rest) = (extent as i64 / sections, extent as i64 % sections);
    let sizes: Vec<_> = (0..sections).map(|at| Int::Known(each + i64::from(at < rest))).collect();
    split(call, &sizes)
}

/// Splits into parts of these sizes; the last part takes the rest.
fn split(call: &mut Call<'_, '_>, sizes: &[Int]) -> Results {
    let (x, axis) = along(call)?;
    let values = match sizes {
        [] | [_] => vec![x; sizes.len()],
        sizes => parts_of(call, x, axis, sizes)?,
    };
    call.give_all(&values)
}

fn parts_of(
    call: &mut Call<'_, '_>,
    x: ValueId,
    axis: usize,
    sizes: &[Int],
) -> Result<Vec<ValueId>> {
    let mut sizes = sizes.to_vec();
    let known: Option<Vec<i64>> = sizes.iter().map(|size| size.known()).collect();
    if let (Some(mut known), Some(extent)) = (known, call.shape(x).get(axis).and_then(Dim::known)) {
        let last = axis_from_end(known.len(), 1)?;
        *known.at_mut(last)? = extent as i64 - known.part(..last)?.iter().sum::<i64>();
        if !known.contains(&0) {
            let even = known.iter().all(|size| Some(size) == known.first());
            let known: Vec<_> = known.into_iter().map(int32).collect::<Result<_, _>>()?;
            let (count, sizes) = match even {
                true => ((known.len() as i32).into(), Arg::Absent),
                false => (Arg::Absent, known.as_slice().into()),
            };
            let arguments = [
                ("x", x.into()),
                ("num_splits", count),
                ("split_sizes", sizes),
                ("axis", axis.into()),
            ];
            return call.append_split(operation(OpKind::Split, arguments), known.len());
        }
        sizes = known.into_iter().map(Int::Known).collect();
    }
    let mut begin = Int::Known(0);
    let mut parts = Vec::with_capacity(sizes.len());
    for (at, &size) in sizes.iter().enumerate() {
        let end = call.add_ints(begin, size)?;
        let is_last = at + 1 == sizes.len();
        let range = if is_last { Range::from(begin) } else { Range::between(begin, end) };
        parts.push(call.sliced(x, axis, range)?);
        begin = end;
    }
    Ok(parts)
}
