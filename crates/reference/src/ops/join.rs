//! Reference kernels of concatenation and splitting.

use crate::array::{Array, ElementsView, View};
use crate::call::{Call, Results, normalize_axis};
use crate::error::{Result, fail};

pub(super) fn concat(call: &Call) -> Results {
    let values = call.all("values");
    let Some(first) = values.first() else { fail!("`values` is empty") };
    if values.iter().all(|value| value.rank() == 0) {
        // Scalars are joined to a vector.
        normalize_axis(call.int("axis")?, 1)?;
        return gather_rows(call, values, vec![values.len()], 1, |_| 1, 1);
    }
    let axis = call.axis("axis", first.rank())?;
    let mut shape = first.shape.to_vec();
    shape[axis] = 0;
    for value in values {
        let fits = value.rank() == shape.len()
            && (0..shape.len()).all(|at| at == axis || value.shape[at] == shape[at]);
        let total = value.shape.get(axis).and_then(|&extent| shape[axis].checked_add(extent));
        match total {
            Some(total) if fits => shape[axis] = total,
            _ => fail!(
                "shapes {:?} and {:?} differ in an axis other than {axis}",
                first.shape,
                value.shape
            ),
        }
    }
    if call.bool("interleave")? {
        if values.iter().any(|value| value.shape != first.shape) {
            fail!("`interleave` requires tensors of the same shape");
        }
        return join(call, values, axis, shape, 1);
    }
    join(call, values, axis, shape, usize::MAX)
}

pub(super) fn stack(call: &Call) -> Results {
    let values = call.all("values");
    let Some(first) = values.first() else { fail!("`values` is empty") };
    let axis = normalize_axis(call.int("axis")?, first.rank() + 1)?;
    if let Some(other) = values.iter().find(|value| value.shape != first.shape) {
        fail!("expects tensors of the same shape, found {:?} and {:?}", first.shape, other.shape);
    }
    let mut shape = first.shape.to_vec();
    shape.insert(axis, values.len());
    // Each tensor contributes `inner` consecutive elements per outer index.
    let inner: usize = first.shape[axis..].iter().product();
    let outer: usize = first.shape[..axis].iter().product();
    gather_rows(call, values, shape, outer, |_| inner, 1)
}

pub(super) fn split(call: &Call) -> Results {
    let x = call.tensor("x")?;
    let axis = call.axis("axis", x.rank())?;
    let extent = x.shape[axis];
    let sizes: Vec<usize> =
        match (call.optional_ints("split_sizes")?, call.optional_int("num_splits")?) {
            (Some(sizes), _) => {
                let sizes = sizes.into_iter().map(usize::try_from);
                let Ok(sizes) = sizes.collect::<std::result::Result<_, _>>() else {
                    fail!("`split_sizes` must not contain negative sizes");
                };
                sizes
            }
            (None, Some(count)) => {
                let Ok(count @ 1..) = usize::try_from(count) else {
                    fail!("`num_splits` must be positive, got {count}");
                };
                if count > call.dtypes.len() || !extent.is_multiple_of(count) {
                    fail!("cannot split axis {axis}, of size {extent}, into {count} equal parts");
                }
                vec![extent / count; count]
            }
            (None, None) => fail!("neither `num_splits` nor `split_sizes` is bound"),
        };
    let sum = sizes.iter().try_fold(0usize, |sum, &size| sum.checked_add(size));
    if sum != Some(extent) {
        fail!("`split_sizes` {sizes:?} do not add up to {extent}, the size of axis {axis}");
    }
    let mut start = 0;
    let parts = sizes.into_iter().map(|size| {
        let part = part(&x, axis, start, size);
        start += size;
        part
    });
    Ok(parts.collect())
}

/// Concatenates tensors along an axis, or interleaves them by `turn` indices.
fn join(call: &Call, values: &[View], axis: usize, shape: Vec<usize>, turn: usize) -> Results {
    let inner: usize = shape[axis + 1..].iter().product();
    let outer: usize = shape[..axis].iter().product();
    let turns = if turn == usize::MAX { 1 } else { values[0].shape[axis] };
    let width = |value: &View| if turns == 1 { value.shape[axis] * inner } else { inner };
    gather_rows(call, values, shape, outer, width, turns)
}

/// For each of `outer` rows, `turns` times: copies the next `width` elements of each tensor.
fn gather_rows(
    call: &Call,
    values: &[View],
    shape: Vec<usize>,
    outer: usize,
    width: impl Fn(&View) -> usize,
    turns: usize,
) -> Results {
    let count = call.count(&shape)?;
    match values[0].elements {
        ElementsView::Floats(_) => {
            let parts: Vec<_> = values.iter().map(|value| value.floats()).collect::<Result<_>>()?;
            let widths: Vec<_> = values.iter().map(width).collect();
            call.give_floats(shape, rows(&parts, &widths, count, outer * turns))
        }
        ElementsView::Ints(_) => {
            let parts: Vec<_> = values.iter().map(|value| value.ints()).collect::<Result<_>>()?;
            let widths: Vec<_> = values.iter().map(width).collect();
            call.give_ints(shape, rows(&parts, &widths, count, outer * turns))
        }
        ElementsView::Texts(_) => fail!("expects numbers, found `string`"),
    }
}

fn rows<T: Copy>(parts: &[&[T]], widths: &[usize], count: usize, rows: usize) -> Vec<T> {
    let mut joined = Vec::with_capacity(count);
    for row in 0..rows {
        for (part, &width) in parts.iter().zip(widths) {
            joined.extend_from_slice(&part[row * width..(row + 1) * width]);
        }
    }
    joined
}

/// The slice of `size` indices from `start` on along an axis.
fn part(x: &View, axis: usize, start: usize, size: usize) -> Array {
    let inner: usize = x.shape[axis + 1..].iter().product();
    let row = x.shape[axis] * inner;
    let mut shape = x.shape.to_vec();
    shape[axis] = size;
    let range = start * inner..(start + size) * inner;
    match x.elements {
        ElementsView::Floats(floats) => Array::floats(x.dtype, shape, columns(floats, row, range)),
        ElementsView::Ints(ints) => Array::ints(x.dtype, shape, columns(ints, row, range)),
        ElementsView::Texts(texts) => Array::texts(shape, columns(texts, row, range)),
    }
}

fn columns<T: Clone>(elements: &[T], row: usize, range: std::ops::Range<usize>) -> Vec<T> {
    // The width may be 0, which `chunks` does not allow.
    elements.chunks(row.max(1)).flat_map(|row| row[range.clone()].iter().cloned()).collect()
}
