//! Reference kernels of slices, with the semantics of Python and numpy.

use std::sync::Arc;

use crate::array::{Array, Elements, ElementsView, View};
use crate::call::{Call, Results};
use crate::error::{Result, fail};
use crate::movement::StridedView;

pub(super) fn slice_by_index(call: &Call) -> Results {
    let x = call.tensor("x")?;
    call.give_strided(x, &slice(call, x.shape)?)
}

pub(super) fn slice_update(call: &Call) -> Results {
    let x = call.tensor("x")?;
    let (update, seen) = update_and_slice(call, x.shape)?;
    let elements = match (x.elements, update.elements) {
        (ElementsView::Floats(x), ElementsView::Floats(update)) => {
            Elements::Floats(Arc::new(replaced(x, update, &seen)))
        }
        (ElementsView::Ints(x), ElementsView::Ints(update)) => {
            Elements::Ints(Arc::new(replaced(x, update, &seen)))
        }
        _ => fail!("`update` is `{}`, but `x` is `{}`", update.dtype, x.dtype),
    };
    Ok(vec![Array::from_elements(x.dtype, x.shape.to_vec(), elements)])
}

/// Updates the slice of a state in place. The call has no `x` parameter.
pub fn update_in_place(call: &Call, x: &mut Array) -> Result<()> {
    let (update, seen) = update_and_slice(call, x.shape())?;
    match (x.floats_mut(), update.elements) {
        (Some(floats), ElementsView::Floats(update)) => seen.write(update, floats),
        _ => fail!("`update` must hold floats, got `{}`", update.dtype),
    }
    Ok(())
}

/// Calls `write` with the elements that the update of a state of this shape replaces: the offset of the first one, and elements
/// that are adjacent from there on. The call has no `x` parameter.
pub fn each_update(
    call: &Call,
    shape: &[usize],
    write: &mut dyn FnMut(usize, &[f32]),
) -> Result<()> {
    let (update, seen) = update_and_slice(call, shape)?;
    seen.adjacent(update.floats()?, write);
    Ok(())
}

/// The update of a tensor of this shape, and the slice that it replaces.
fn update_and_slice<'c>(call: &Call<'c>, shape: &[usize]) -> Result<(View<'c>, StridedView)> {
    let (update, seen) = (call.tensor("update")?, slice(call, shape)?);
    if update.shape != seen.shape {
        fail!("`update` has shape {:?}, but the slice has shape {:?}", update.shape, seen.shape);
    }
    Ok((update, seen))
}

/// Replaces the elements of `x` that a view covers.
fn replaced<T: Clone>(x: &[T], update: &[T], seen: &StridedView) -> Vec<T> {
    let mut replaced = x.to_vec();
    seen.write(update, &mut replaced);
    replaced
}

/// The view that a slice selects.
fn slice(call: &Call, shape: &[usize]) -> Result<StridedView> {
    let rank = shape.len();
    let begins = call.ints("begin", 0)?;
    let ends = call.ints("end", 0)?;
    let steps = call.optional_ints("stride")?.unwrap_or_else(|| vec![1; rank]);
    let begin_mask = call.bools("begin_mask", rank)?;
    let end_mask = call.bools("end_mask", rank)?;
    let squeeze_mask = call.bools("squeeze_mask", rank)?;
    let lengths = [begins.len(), ends.len(), steps.len()];
    let masks = [begin_mask.len(), end_mask.len(), squeeze_mask.len()];
    if lengths != [rank; 3] || masks != [rank; 3] {
        fail!("bounds, strides and masks need {rank} elements, one for each axis of `x`");
    }

    let dense = StridedView::dense(shape);
    let mut seen = StridedView { start: 0, shape: Vec::new(), strides: Vec::new() };
    for axis in 0..rank {
        let (extent, stride) = (shape[axis], dense.strides[axis]);
        let begin = (!begin_mask[axis]).then_some(begins[axis]);
        let first = if squeeze_mask[axis] {
            place(begin.unwrap_or(0), axis, extent)?
        } else {
            let end = (!end_mask[axis]).then_some(ends[axis]);
            let (first, count) = taken(extent, begin, end, steps[axis])?;
            seen.shape.push(count);
            // A stride that overflows leaves the tensor after one element and is never used.
            seen.strides.push(stride.saturating_mul(steps[axis] as isize));
            first
        };
        seen.start = seen.start.saturating_add((stride as usize).saturating_mul(first));
    }
    Ok(seen)
}

/// Converts an index that may be negative to `0..extent`.
fn place(index: i32, axis: usize, extent: usize) -> Result<usize> {
    let from_start = i64::from(index) + if index < 0 { extent as i64 } else { 0 };
    match usize::try_from(from_start) {
        Ok(place) if place < extent => Ok(place),
        _ => fail!("index {index} is outside axis {axis} of `x`, which has {extent} elements"),
    }
}

/// First index and number of elements of a slice along an axis.
fn taken(extent: usize, begin: Option<i32>, end: Option<i32>, step: i32) -> Result<(usize, usize)> {
    let (extent, step) = (extent as i64, i64::from(step));
    if step == 0 {
        fail!("`stride` must not contain 0");
    }
    // With a negative step the end is before the first element, at -1.
    let (low, high) = if step > 0 { (0, extent) } else { (-1, extent - 1) };
    let clamp = |bound: i32| {
        let from_start = i64::from(bound) + if bound < 0 { extent } else { 0 };
        from_start.clamp(low, high)
    };
    let (first, last) = if step > 0 { (low, high) } else { (high, low) };
    let begin = begin.map_or(first, clamp);
    let end = end.map_or(last, clamp);
    let distance = if step > 0 { end - begin } else { begin - end };
    let count = if distance <= 0 { 0 } else { (distance - 1) / step.abs() + 1 };
    Ok((usize::try_from(begin).unwrap_or(0), count as usize))
}

pub(super) fn slice_by_size(call: &Call) -> Results {
    let x = call.tensor("x")?;
    let rank = x.rank();
    let (begins, sizes) = (call.ints("begin", 0)?, call.ints("size", 0)?);
    if begins.len() != rank || sizes.len() != rank {
        fail!("`begin` and `size` need {rank} elements, one for each axis of `x`");
    }
    let mut seen = StridedView::dense(x.shape);
    for (axis, (&begin, &size)) in begins.iter().zip(&sizes).enumerate() {
        let extent = x.shape[axis];
        // An empty slice may begin at the end of an axis.
        let first = match usize::try_from(begin) {
            Ok(first) if first == extent => first,
            _ => place(begin, axis, extent)?,
        };
        let left = extent - first;
        seen.shape[axis] = match size {
            -1 => left,
            _ => match usize::try_from(size) {
                Ok(size) if size <= left => size,
                _ => fail!(
                    "`size` must be -1 or from 0 to {left} along axis {axis}, the number of elements from index {first} \
                     on, got {size}"
                ),
            },
        };
        seen.start = seen.start.saturating_add((seen.strides[axis] as usize).saturating_mul(first));
    }
    call.give_strided(x, &seen)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slice_bounds_match_python() {
        let whole = |extent, step| taken(extent, None, None, step).ok();
        assert_eq!(whole(5, 1), Some((0, 5)));
        assert_eq!(whole(5, 2), Some((0, 3)));
        assert_eq!(whole(5, -2), Some((4, 3)));
        assert_eq!(whole(0, -1).map(|taken| taken.1), Some(0));
        assert_eq!(taken(5, Some(-2), None, 1).ok(), Some((3, 2)));
        assert_eq!(taken(5, Some(3), Some(-6), -1).ok(), Some((3, 4)));
        assert_eq!(taken(5, Some(i32::MIN), Some(i32::MAX), i32::MAX).ok(), Some((0, 1)));
        assert_eq!(taken(5, Some(i32::MAX), Some(i32::MIN), i32::MIN).ok(), Some((4, 1)));
        assert!(taken(5, None, None, 0).is_err());
    }
}
