//! Elements picked and written where other tensors say.

mod embedding;
mod gather;
mod mask;
mod places;
mod scatter;
mod sort;
mod tensor;
mod unique;
mod write;

use coremill_mil::ir::ValueId;
use coremill_mil::ops::OpKind;
use coremill_tensor::DType;

pub(crate) use self::places::{constant_ints, wrapped};
use super::shape::{Range, sliced, taken_at};
use crate::error::Refusal;
use crate::lower::builder::{Arg, Builder};
use crate::lower::row::Row;
use crate::lower::value::Int;
use coremill_mil::ir::Constant;

pub(super) const ROWS: &[&[Row]] = &[
    embedding::ROWS,
    gather::ROWS,
    mask::ROWS,
    scatter::ROWS,
    sort::ROWS,
    tensor::ROWS,
    unique::ROWS,
    write::ROWS,
];

/// The elements at indices along an axis, in whose place the axes of the indices are. No index counts from the
/// end.
pub(crate) fn gathered(
    builder: &mut Builder,
    x: ValueId,
    indices: ValueId,
    axis: usize,
) -> Result<ValueId, Refusal> {
    if builder.rank(indices) == 0 {
        let index = builder.int_of(indices);
        return taken_at(builder, x, axis, index);
    }
    if builder.rank(indices) == 1
        && let Some(places) = constant_ints(builder, indices)
        && let Some(range) = progression(&places)
    {
        return sliced(builder, x, axis, range);
    }
    as_numbers(builder, x, |builder, x| {
        let axis = axis as i32;
        builder.emit(
            OpKind::Gather,
            [("x", x.into()), ("indices", indices.into()), ("axis", axis.into())],
        )
    })
}

/// The elements at known places along an axis.
pub(crate) fn gathered_at(
    builder: &mut Builder,
    x: ValueId,
    places: &[i64],
    axis: usize,
) -> Result<ValueId, Refusal> {
    if let Some(range) = progression(places) {
        return sliced(builder, x, axis, range);
    }
    let places: Vec<_> = places.iter().map(|&place| place as i32).collect();
    let indices = builder.constant(Constant::int32s(&places));
    as_numbers(builder, x, |builder, x| {
        let axis = axis as i32;
        builder.emit(
            OpKind::Gather,
            [("x", x.into()), ("indices", indices.into()), ("axis", axis.into())],
        )
    })
}

/// The slice that takes these places, if there is one.
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

/// Applies an operation that takes no `bool`s to the tensor as numbers.
pub(crate) fn as_numbers(
    builder: &mut Builder,
    x: ValueId,
    apply: impl FnOnce(&mut Builder, ValueId) -> Result<ValueId, Refusal>,
) -> Result<ValueId, Refusal> {
    if builder.dtype(x) != DType::Bool {
        return apply(builder, x);
    }
    let numbers = builder.cast(x, DType::Int32)?;
    let y = apply(builder, numbers)?;
    builder.cast(y, DType::Bool)
}

/// A tensor with elements written, or combined by `mode`, at indices along an axis. No index counts from the end.
pub(crate) fn written_along(
    builder: &mut Builder,
    x: ValueId,
    indices: ValueId,
    update: ValueId,
    axis: usize,
    mode: &str,
) -> Result<ValueId, Refusal> {
    let update = match builder.dtype(x) {
        DType::Bool => builder.cast(update, DType::Int32)?,
        dtype => builder.cast(update, dtype)?,
    };
    as_numbers(builder, x, |builder, x| {
        builder.emit(
            OpKind::Scatter,
            [
                ("data", x.into()),
                ("indices", indices.into()),
                ("updates", update.into()),
                ("axis", (axis as i32).into()),
                ("mode", mode.into()),
            ],
        )
    })
}

/// Running sums along an axis.
pub(crate) fn cumulative(
    builder: &mut Builder,
    x: ValueId,
    axis: usize,
) -> Result<ValueId, Refusal> {
    builder.emit(
        OpKind::Cumsum,
        [
            ("x", x.into()),
            ("axis", (axis as i32).into()),
            ("exclusive", false.into()),
            ("reverse", false.into()),
        ],
    )
}

/// The sum of an integer tensor's elements along an axis, which goes.
pub(crate) fn summed(builder: &mut Builder, x: ValueId, axis: usize) -> Result<ValueId, Refusal> {
    builder.emit(
        OpKind::ReduceSum,
        [("x", x.into()), ("axes", Arg::from([axis as i32])), ("keep_dims", false.into())],
    )
}
