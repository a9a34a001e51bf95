//! Indexing by tensors: reads and writes.

mod gather;
mod mask;
mod places;
mod scatter;
mod sort;
mod tensor;
mod unique;
mod write;

pub(crate) use self::gather::gathered_along;
pub(crate) use self::places::{constant_ints, wrapped};
pub(crate) use self::sort::nth_smallest;
pub(crate) use self::unique::set_places;
use crate::lower::prelude::*;

pub(super) const ROWS: &[&[Row]] =
    &[gather::ROWS, mask::ROWS, scatter::ROWS, sort::ROWS, tensor::ROWS, unique::ROWS, write::ROWS];

/// Gathers along an axis; the axes of the indices replace it. Indices must not be negative.
pub(crate) fn gathered(
    builder: &mut Builder,
    x: ValueId,
    indices: ValueId,
    axis: usize,
) -> ValueResult {
    if builder.rank(indices) == 0 {
        let index = builder.int_of(indices);
        return builder.taken_at(x, axis, index);
    }
    if builder.rank(indices) == 1
        && let Some(places) = constant_ints(builder, indices)
        && let Some(range) = progression(&places)
    {
        return builder.sliced(x, axis, range);
    }
    as_numbers(builder, x, |builder, x| builder.looked_up(x, indices, axis))
}

/// Gathers at constant indices along an axis.
pub(crate) fn gathered_at(
    builder: &mut Builder,
    x: ValueId,
    places: &[i64],
    axis: usize,
) -> ValueResult {
    if let Some(range) = progression(places) {
        return builder.sliced(x, axis, range);
    }
    let places: Vec<_> = places.iter().map(|&place| place as i32).collect();
    let indices = builder.constant(Constant::int32s(&places));
    as_numbers(builder, x, |builder, x| builder.looked_up(x, indices, axis))
}

/// The slice that selects these indices, if there is one.
pub(crate) fn progression(places: &[i64]) -> Option<Range> {
    let (&first, &last) = (places.first()?, places.last()?);
    let step = places.get(1).map_or(1, |second| second - first);
    let even = places.iter().zip(places.iter().skip(1)).all(|(place, next)| next - place == step);
    (step >= 1 && first >= 0 && even).then_some(Range {
        begin: Int::Known(first),
        end: Some(Int::Known(last + 1)),
        step,
    })
}

/// Applies an operation without `bool` support to a tensor as integers.
pub(crate) fn as_numbers(
    builder: &mut Builder,
    x: ValueId,
    apply: impl FnOnce(&mut Builder, ValueId) -> ValueResult,
) -> ValueResult {
    let dtype = builder.dtype(x);
    let numbers = builder.numeric(x)?;
    let y = apply(builder, numbers)?;
    if dtype == DType::Bool { builder.cast(y, dtype) } else { Ok(y) }
}

/// Writes elements at indices along an axis, or combines them by `mode`. Indices must not be negative.
pub(crate) fn written_along(
    builder: &mut Builder,
    x: ValueId,
    indices: ValueId,
    update: ValueId,
    axis: usize,
    mode: &str,
) -> ValueResult {
    as_numbers(builder, x, |builder, data| {
        let updates = builder.cast(update, builder.dtype(data))?;
        emit!(builder, OpKind::Scatter, data, indices, updates, axis, mode)
    })
}
