//! Copies that rearrange elements.

use super::arguments::same_type;
use super::map::{copy, move_elements, take, take_by_tables};
use super::{Arguments, Kernel, kernel};
use crate::error::{Result, ensure, fail};
use crate::number::can_cast;
use crate::view::{OutTensor, View, dense, sizes_of, wrap_dimension};

pub(super) const TABLE: &[Kernel] = &[
    kernel("aten::as_strided_copy.out", "TNNi>T", as_strided),
    kernel("aten::cat.out", "LI>T", concatenate),
    kernel("aten::diagonal_copy.out", "TIII>T", diagonal),
    kernel("aten::expand_copy.out", "TNB>T", expand),
    kernel("aten::flip.out", "TN>T", flip),
    kernel("aten::narrow_copy.out", "TIII>T", narrow),
    kernel("aten::permute_copy.out", "TN>T", permute),
    kernel("aten::pixel_shuffle.out", "TI>T", pixel_shuffle),
    kernel("aten::pixel_unshuffle.out", "TI>T", pixel_unshuffle),
    kernel("aten::repeat.out", "TN>T", repeat),
    kernel("aten::repeat_interleave.Tensor_out", "Ti>T", repeat_interleave),
    kernel("aten::roll.out", "TNN>T", roll),
    kernel("aten::select_copy.int_out", "TII>T", select),
    kernel("aten::slice_copy.Tensor_out", "TIiiI>T", slice),
    kernel("aten::split_copy.Tensor_out", "TII>L", split),
    kernel("aten::split_with_sizes_copy.out", "TNI>L", split_with_sizes),
    kernel("aten::squeeze_copy.dim_out", "TI>T", squeeze),
    kernel("aten::squeeze_copy.dims_out", "TN>T", squeeze),
    kernel("aten::stack.out", "LI>T", stack),
    kernel("aten::t_copy.out", "T>T", transpose_matrix),
    kernel("aten::transpose_copy.int_out", "TII>T", transpose),
    kernel("aten::unbind_copy.int_out", "TI>L", unbind),
    kernel("aten::unfold_copy.out", "TIII>T", unfold),
    kernel("aten::unsqueeze_copy.out", "TI>T", unsqueeze),
    kernel("aten::view_copy.out", "TN>T", reshape),
];

/// The input tensor, which must have the output's type.
fn source<'a>(x: &Arguments<'a>, out: &[OutTensor]) -> Result<View<'a>> {
    let view = x.tensor(0)?;
    for out in out {
        same_type(&view, out)?;
    }
    Ok(view)
}

/// Index of a dimension of a tensor with rank 1 or higher.
fn axis_of(view: &View, dimension: i64) -> Result<usize> {
    ensure!(view.rank() > 0, "a scalar has no dimensions");
    view.dimension(dimension)
}

fn permute_by(view: View, axes: &[usize], out: &mut OutTensor) -> Result {
    let strides = view.strides();
    let sizes: Vec<usize> = axes.iter().map(|axis| view.sizes[*axis]).collect();
    out.resize(&sizes)?;
    let strides: Vec<usize> = axes.iter().map(|axis| strides[*axis]).collect();
    take(view, 0, &strides, out);
    Ok(())
}

fn permute(x: &Arguments, out: &mut [OutTensor]) -> Result {
    let view = source(x, out)?;
    let dims = x.ints(1)?;
    let mut axes = Vec::with_capacity(dims.len());
    for &dim in dims {
        let axis = axis_of(&view, dim)?;
        ensure!(!axes.contains(&axis), "dimension {axis} is repeated in {dims:?}");
        axes.push(axis);
    }
    ensure!(
        axes.len() == view.rank(),
        "{dims:?} is not a permutation of {} dimensions",
        view.rank()
    );
    permute_by(view, &axes, &mut out[0])
}

fn transpose(x: &Arguments, out: &mut [OutTensor]) -> Result {
    let view = source(x, out)?;
    let [first, second] = [view.dimension(x.int(1)?)?, view.dimension(x.int(2)?)?];
    let mut axes: Vec<usize> = (0..view.rank()).collect();
    if !axes.is_empty() {
        axes.swap(first, second);
    }
    permute_by(view, &axes, &mut out[0])
}

fn transpose_matrix(x: &Arguments, out: &mut [OutTensor]) -> Result {
    let view = source(x, out)?;
    let rank = view.rank();
    ensure!(rank <= 2, "the rank must be at most 2, got {rank}");
    let axes: Vec<usize> = (0..rank).rev().collect();
    permute_by(view, &axes, &mut out[0])
}

fn expand(x: &Arguments, out: &mut [OutTensor]) -> Result {
    let view = source(x, out)?;
    let wanted = x.ints(1)?;
    let lead = wanted.len().checked_sub(view.rank());
    let Some(lead) = lead else {
        fail!("a tensor of sizes {:?} cannot be expanded to {wanted:?}", view.sizes);
    };
    let size = |(axis, wanted): (usize, &i64)| match (axis.checked_sub(lead), *wanted) {
        (Some(axis), -1) => view.sizes[axis] as i64,
        (_, wanted) => wanted,
    };
    let sizes: Vec<i64> = wanted.iter().enumerate().map(size).collect();
    out[0].resize(&sizes_of(&sizes)?)?;
    copy(view, &mut out[0])
}

fn repeat(x: &Arguments, out: &mut [OutTensor]) -> Result {
    let view = source(x, out)?;
    let repeats = sizes_of(x.ints(1)?)?;
    let lead = repeats.len().checked_sub(view.rank());
    let Some(lead) = lead else {
        fail!("{repeats:?} has too few repeats for rank {}", view.rank());
    };
    let sizes: Vec<usize> =
        std::iter::repeat_n(1, lead).chain(view.sizes.iter().copied()).collect();
    let mut repeated = Vec::with_capacity(sizes.len());
    for (size, times) in sizes.iter().zip(&repeats) {
        repeated.push(crate::view::count(&[*size, *times])?);
    }
    out[0].resize(&repeated)?;
    // Each dimension is split into a repeat count and a size.
    let (from, to) = (view.strides(), out[0].strides());
    let mut split = [Vec::new(), Vec::new(), Vec::new()];
    for (axis, (size, times)) in sizes.iter().zip(&repeats).enumerate() {
        let step = axis.checked_sub(lead).map_or(0, |axis| from[axis]);
        split[0].extend([*times, *size]);
        split[1].extend([0, step]);
        split[2].extend([size.wrapping_mul(to[axis]), to[axis]]);
    }
    let width = out[0].width();
    move_elements((view.bytes, 0, &split[1]), (out[0].bytes(), 0, &split[2]), &split[0], width);
    Ok(())
}

fn repeat_interleave(x: &Arguments, out: &mut [OutTensor]) -> Result {
    let view = source(x, out)?;
    ensure!(view.rank() == 1, "the repeats must have rank 1, got {}", view.rank());
    crate::number::Compute::of(view.dtype)?;
    let repeats = view.numbers::<i64>();
    ensure!(repeats.iter().all(|times| *times >= 0), "repeats must not be negative");
    let total = repeats.iter().try_fold(0i64, |total, times| total.checked_add(*times));
    let expected = x.optional_int(1)?;
    let total = total.filter(|total| expected.is_none_or(|expected| expected == *total));
    let Some(total) = total else {
        fail!("`output_size` must be the sum of the repeats, got {expected:?}");
    };
    out[0].resize(&[total as usize])?;
    let numbers = repeats
        .iter()
        .enumerate()
        .flat_map(|(index, times)| std::iter::repeat_n(index as i64, *times as usize));
    out[0].put_all(&numbers.collect::<Vec<i64>>());
    Ok(())
}

fn flip(x: &Arguments, out: &mut [OutTensor]) -> Result {
    let view = source(x, out)?;
    out[0].resize(view.sizes)?;
    let mut strides = view.strides();
    let mut start = 0;
    let mut seen = Vec::new();
    for &dim in x.ints(1)? {
        let axis = view.dimension(dim)?;
        ensure!(!seen.contains(&axis), "dimension {axis} is repeated");
        seen.push(axis);
        if axis < view.rank() {
            start += strides[axis] * view.sizes[axis].saturating_sub(1);
            strides[axis] = strides[axis].wrapping_neg();
        }
    }
    take(view, start, &strides, &mut out[0]);
    Ok(())
}

fn roll(x: &Arguments, out: &mut [OutTensor]) -> Result {
    let view = source(x, out)?;
    out[0].resize(view.sizes)?;
    let (shifts, dims) = (x.ints(1)?, x.ints(2)?);
    let shifted = |size: usize, shift: i64| -> Vec<usize> {
        (0..size as i64).map(|index| (index - shift).rem_euclid(size as i64) as usize).collect()
    };
    if dims.is_empty() {
        ensure!(
            shifts.len() == 1,
            "`shifts` must have one element if `dims` is empty, got {shifts:?}"
        );
        let shift = shifts[0] % view.count().max(1) as i64;
        let flat = View { sizes: &[view.count()], order: &[0], ..view };
        let bytes = view.contiguous_bytes();
        let flat = View { bytes: &bytes, ..flat };
        let width = view.width();
        let mut moved = vec![0; bytes.len()];
        for (target, source) in shifted(view.count(), shift).into_iter().enumerate() {
            moved[target * width..][..width]
                .copy_from_slice(&flat.bytes[source * width..][..width]);
        }
        out[0].put_contiguous_bytes(&moved);
        return Ok(());
    }
    ensure!(
        shifts.len() == dims.len(),
        "the numbers of shifts and dimensions must be equal, got {shifts:?} and {dims:?}"
    );
    let mut total = vec![0i64; view.rank()];
    for (&shift, &dim) in shifts.iter().zip(dims) {
        let axis = axis_of(&view, dim)?;
        let size = view.sizes[axis].max(1) as i64;
        total[axis] = (total[axis] + shift % size) % size;
    }
    let tables: Vec<Vec<usize>> =
        view.sizes.iter().zip(total).map(|(size, shift)| shifted(*size, shift)).collect();
    take_by_tables(view, &tables, &mut out[0]);
    Ok(())
}

/// Copies `length` elements along a dimension, from `start` in steps of `step`.
fn take_part(
    view: View,
    axis: usize,
    [start, length, step]: [usize; 3],
    out: &mut OutTensor,
) -> Result {
    let mut sizes = view.sizes.to_vec();
    sizes[axis] = length;
    out.resize(&sizes)?;
    let mut strides = view.strides();
    let first = start * strides[axis];
    strides[axis] *= step;
    take(view, first, &strides, out);
    Ok(())
}

fn narrow(x: &Arguments, out: &mut [OutTensor]) -> Result {
    let view = source(x, out)?;
    let axis = axis_of(&view, x.int(1)?)?;
    let (start, length, size) = (x.int(2)?, x.int(3)?, view.sizes[axis] as i64);
    let first = if start < 0 { start.saturating_add(size) } else { start };
    ensure!(
        first >= 0 && length >= 0 && first.checked_add(length).is_some_and(|end| end <= size),
        "{length} elements from index {start} are out of range for size {size}"
    );
    take_part(view, axis, [first as usize, length as usize, 1], &mut out[0])
}

/// Start, length and step of a slice.
pub(super) fn slice_of(size: usize, x: &Arguments, first: usize) -> Result<[usize; 3]> {
    let size = size as i64;
    let wrap = |index: i64| if index < 0 { index.saturating_add(size) } else { index };
    let start = wrap(x.optional_int(first)?.unwrap_or(0)).clamp(0, size);
    let end = wrap(x.optional_int(first + 1)?.unwrap_or(size)).clamp(start, size);
    let step = x.int(first + 2)?;
    ensure!(step > 0, "the slice's step must be at least 1, got {step}");
    let length = (end - start + (step - 1).min(size)) / step;
    let length = if step > size { i64::from(end > start) } else { length };
    Ok([start, length, step.min(size.max(1))].map(|number| number as usize))
}

fn slice(x: &Arguments, out: &mut [OutTensor]) -> Result {
    let view = source(x, out)?;
    let axis = axis_of(&view, x.int(1)?)?;
    let part = slice_of(view.sizes[axis], x, 2)?;
    take_part(view, axis, part, &mut out[0])
}

/// An index along a dimension, which may count from the end.
pub(super) fn index_of(index: i64, size: usize) -> Result<usize> {
    let wrapped = if index < 0 { index.checked_add(size as i64) } else { Some(index) };
    match wrapped {
        Some(wrapped) if (0..size as i64).contains(&wrapped) => Ok(wrapped as usize),
        _ => fail!("index {index} is out of range for {size} elements"),
    }
}

fn without<T: Copy>(list: &[T], axis: usize) -> Vec<T> {
    let kept = list.iter().enumerate().filter(|(other, _)| *other != axis);
    kept.map(|(_, element)| *element).collect()
}

fn select_at(view: View, axis: usize, index: usize, out: &mut OutTensor) -> Result {
    out.resize(&without(view.sizes, axis))?;
    let strides = view.strides();
    take(view, index * strides[axis], &without(&strides, axis), out);
    Ok(())
}

fn select(x: &Arguments, out: &mut [OutTensor]) -> Result {
    let view = source(x, out)?;
    let axis = axis_of(&view, x.int(1)?)?;
    let index = index_of(x.int(2)?, view.sizes[axis])?;
    select_at(view, axis, index, &mut out[0])
}

fn unbind(x: &Arguments, out: &mut [OutTensor]) -> Result {
    let view = source(x, out)?;
    let axis = axis_of(&view, x.int(1)?)?;
    let size = view.sizes[axis];
    ensure!(out.len() == size, "cannot unbind {size} tensors to {} outputs", out.len());
    for (index, out) in out.iter_mut().enumerate() {
        select_at(view, axis, index, out)?;
    }
    Ok(())
}

fn split_into(view: View, axis: usize, lengths: &[usize], out: &mut [OutTensor]) -> Result {
    let size = view.sizes[axis];
    let total = lengths.iter().try_fold(0usize, |total, length| total.checked_add(*length));
    ensure!(
        total == Some(size) && lengths.len() == out.len(),
        "cannot split {size} elements into {lengths:?} for {} outputs",
        out.len()
    );
    let mut start = 0;
    for (length, out) in lengths.iter().zip(out) {
        take_part(view, axis, [start, *length, 1], out)?;
        start += length;
    }
    Ok(())
}

fn split(x: &Arguments, out: &mut [OutTensor]) -> Result {
    let view = source(x, out)?;
    let axis = axis_of(&view, x.int(2)?)?;
    let (size, length) = (view.sizes[axis], x.int(1)?);
    ensure!(
        length > 0 || (size == 0 && length == 0),
        "the size of the parts must be positive, got {length}"
    );
    let length = (length as usize).clamp(1, size.max(1));
    let count = size.div_ceil(length).max(1);
    ensure!(
        count == out.len(),
        "{size} elements split into {count} parts, but there are {} outputs",
        out.len()
    );
    let lengths: Vec<usize> =
        (0..count).map(|part| length.min(size - (part * length).min(size))).collect();
    split_into(view, axis, &lengths, out)
}

fn split_with_sizes(x: &Arguments, out: &mut [OutTensor]) -> Result {
    let view = source(x, out)?;
    let axis = axis_of(&view, x.int(2)?)?;
    let lengths = x.ints(1)?.iter().map(|length| usize::try_from(*length).ok());
    let Some(lengths) = lengths.collect::<Option<Vec<usize>>>() else {
        fail!("sizes of parts must not be negative, got {:?}", x.ints(1)?);
    };
    split_into(view, axis, &lengths, out)
}

/// A copy with other sizes and the same element order.
fn take_reshaped(view: View, sizes: &[usize], out: &mut OutTensor) -> Result {
    let (count, wanted) = (view.count(), crate::view::count(sizes)?);
    ensure!(count == wanted, "{count} elements cannot be reshaped to sizes {sizes:?}");
    out.resize(sizes)?;
    out.put_contiguous_bytes(&view.contiguous_bytes());
    Ok(())
}

/// Resolves a size of -1 from the element count.
pub(crate) fn inferred_sizes(wanted: &[i64], count: usize) -> Result<Vec<usize>> {
    let mut sizes = wanted.to_vec();
    if let Some(unknown) = wanted.iter().position(|size| *size == -1) {
        sizes[unknown] = 1;
        let known = crate::view::count(&sizes_of(&sizes)?)?;
        ensure!(known > 0, "the size -1 in {wanted:?} cannot be inferred");
        sizes[unknown] = (count / known) as i64;
    }
    sizes_of(&sizes)
}

fn reshape(x: &Arguments, out: &mut [OutTensor]) -> Result {
    let view = source(x, out)?;
    let sizes = inferred_sizes(x.ints(1)?, view.count())?;
    take_reshaped(view, &sizes, &mut out[0])
}

fn squeeze(x: &Arguments, out: &mut [OutTensor]) -> Result {
    let view = source(x, out)?;
    let one;
    let dims = match x.int(1) {
        Ok(dim) => {
            one = [dim];
            &one[..]
        }
        Err(_) => x.ints(1)?,
    };
    let mut axes = Vec::new();
    for &dim in dims {
        let axis = view.dimension(dim)?;
        ensure!(!axes.contains(&axis), "dimension {axis} is repeated");
        axes.push(axis);
    }
    let kept = view.sizes.iter().enumerate();
    let kept = kept.filter(|(axis, size)| **size != 1 || !axes.contains(axis));
    let sizes: Vec<usize> = kept.map(|(_, size)| *size).collect();
    take_reshaped(view, &sizes, &mut out[0])
}

fn unsqueeze(x: &Arguments, out: &mut [OutTensor]) -> Result {
    let view = source(x, out)?;
    let axis = wrap_dimension(x.int(1)?, view.rank() + 1)?;
    let mut sizes = view.sizes.to_vec();
    sizes.insert(axis, 1);
    take_reshaped(view, &sizes, &mut out[0])
}

/// Concatenates tensors along a dimension of the output, which is already resized.
fn join(views: &[View], axis: usize, lengths: &[usize], out: &mut OutTensor) -> Result {
    let to = out.strides();
    let width = out.width();
    let mut start = 0;
    for (view, length) in views.iter().zip(lengths) {
        let mut sizes = out.sizes.clone();
        sizes[axis] = *length;
        // A stacked tensor lacks the dimension.
        let mut from = view.strides();
        if view.rank() < sizes.len() {
            from.insert(axis, 0);
        }
        let converted;
        let mut bytes = view.bytes;
        if view.dtype != out.dtype {
            ensure!(
                can_cast(view.dtype, out.dtype),
                "a `{:?}` tensor cannot be written as `{:?}`",
                view.dtype,
                out.dtype
            );
            converted = convert(*view, out)?;
            bytes = &converted;
        }
        move_elements((bytes, 0, &from), (out.bytes(), start * to[axis], &to), &sizes, width);
        start += length;
    }
    Ok(())
}

/// The elements in memory order, converted to another type.
fn convert(view: View, out: &OutTensor) -> Result<Vec<u8>> {
    let mut bytes = vec![0; view.count() * out.width()];
    let mut converted = OutTensor {
        dtype: out.dtype,
        sizes: view.sizes.to_vec(),
        order: view.order,
        dynamic: false,
        memory: &mut bytes,
        grow: None,
    };
    copy(view, &mut converted)?;
    drop(converted);
    Ok(bytes)
}

/// Empty vectors are skipped, as in PyTorch.
fn concatenate(x: &Arguments, out: &mut [OutTensor]) -> Result {
    let mut views = x.tensors(0)?;
    ensure!(!views.is_empty(), "expected at least one tensor to concatenate");
    if views.iter().any(|view| view.sizes != [0]) {
        views.retain(|view| view.sizes != [0]);
    }
    let first = views[0];
    let axis = axis_of(&first, x.int(1)?)?;
    for view in &views {
        let fits = view.rank() == first.rank()
            && (0..first.rank())
                .all(|other| other == axis || view.sizes[other] == first.sizes[other]);
        ensure!(
            fits,
            "tensors of sizes {:?} and {:?} cannot be concatenated along dimension {axis}",
            first.sizes,
            view.sizes
        );
    }
    let lengths: Vec<usize> = views.iter().map(|view| view.sizes[axis]).collect();
    let total = lengths.iter().try_fold(0usize, |total, length| total.checked_add(*length));
    let mut sizes = first.sizes.to_vec();
    sizes[axis] = total.unwrap_or(usize::MAX);
    out[0].resize(&sizes)?;
    join(&views, axis, &lengths, &mut out[0])
}

fn stack(x: &Arguments, out: &mut [OutTensor]) -> Result {
    let views = x.tensors(0)?;
    let Some(first) = views.first() else { fail!("expected at least one tensor to stack") };
    let axis = wrap_dimension(x.int(1)?, first.rank() + 1)?;
    for view in &views {
        ensure!(
            view.sizes == first.sizes,
            "tensors of sizes {:?} and {:?} cannot be stacked",
            first.sizes,
            view.sizes
        );
    }
    let mut sizes = first.sizes.to_vec();
    sizes.insert(axis, views.len());
    out[0].resize(&sizes)?;
    join(&views, axis, &vec![1; views.len()], &mut out[0])
}

fn diagonal(x: &Arguments, out: &mut [OutTensor]) -> Result {
    let view = source(x, out)?;
    let offset = x.int(1)?;
    let [first, second] = [axis_of(&view, x.int(2)?)?, axis_of(&view, x.int(3)?)?];
    ensure!(first != second, "the two dimensions of a diagonal must differ, both are {first}");
    let [down, right] = [(-offset).max(0), offset.max(0)].map(|start| start as usize);
    let length =
        view.sizes[first].saturating_sub(down).min(view.sizes[second].saturating_sub(right));
    let strides = view.strides();
    let rest = |list: &[usize]| -> Vec<usize> {
        let kept = list.iter().enumerate().filter(|(axis, _)| *axis != first && *axis != second);
        kept.map(|(_, element)| *element).collect()
    };
    let (mut sizes, mut from) = (rest(view.sizes), rest(&strides));
    sizes.push(length);
    from.push(strides[first] + strides[second]);
    out[0].resize(&sizes)?;
    if length > 0 {
        take(view, down * strides[first] + right * strides[second], &from, &mut out[0]);
    }
    Ok(())
}

fn unfold(x: &Arguments, out: &mut [OutTensor]) -> Result {
    let view = source(x, out)?;
    let axis = axis_of(&view, x.int(1)?)?;
    let (size, step) = (x.int(2)?, x.int(3)?);
    let whole = view.sizes[axis];
    ensure!(
        size >= 0 && size as usize <= whole && step > 0,
        "windows of {size} elements with step {step} do not fit dimension {axis} of size {whole}"
    );
    let size = size as usize;
    let step = (step as usize).min(whole.max(1));
    let mut sizes = view.sizes.to_vec();
    sizes[axis] = if x.int(3)? as u64 > whole as u64 { 1 } else { (whole - size) / step + 1 };
    sizes.push(size);
    out[0].resize(&sizes)?;
    let mut strides = view.strides();
    strides.push(strides[axis]);
    strides[axis] *= step;
    take(view, 0, &strides, &mut out[0]);
    Ok(())
}

fn as_strided(x: &Arguments, out: &mut [OutTensor]) -> Result {
    let view = source(x, out)?;
    let (sizes, strides) = (sizes_of(x.ints(1)?)?, sizes_of(x.ints(2)?)?);
    ensure!(
        sizes.len() == strides.len(),
        "sizes {sizes:?} and strides {strides:?} differ in length"
    );
    let offset = usize::try_from(x.optional_int(3)?.unwrap_or(0)).ok();
    let mut last = offset;
    for (size, stride) in sizes.iter().zip(&strides) {
        let reach = size.saturating_sub(1).checked_mul(*stride);
        last = last.zip(reach).and_then(|(last, reach)| last.checked_add(reach));
    }
    out[0].resize(&sizes)?;
    if out[0].count() == 0 {
        return Ok(());
    }
    let Some(offset) = offset.filter(|_| last.is_some_and(|last| last < view.count())) else {
        fail!(
            "sizes {sizes:?} with strides {strides:?} exceed the tensor's {} elements",
            view.count()
        );
    };
    take(view, offset, &strides, &mut out[0]);
    Ok(())
}

/// The last three dimensions, and the product of the preceding ones.
fn planes(view: &View) -> Result<[usize; 4]> {
    match view.sizes {
        [outer @ .., channels, height, width] => {
            Ok([outer.iter().product(), *channels, *height, *width])
        }
        sizes => fail!("the tensor has sizes {sizes:?}; expected at least three dimensions"),
    }
}

/// Permutes a contiguous copy, viewed with more dimensions, into the contiguous output.
fn take_shuffled(view: View, sizes: &[usize], axes: &[usize], out: &mut OutTensor) {
    let strides = dense(sizes);
    let moved: Vec<usize> = axes.iter().map(|axis| sizes[*axis]).collect();
    let from: Vec<usize> = axes.iter().map(|axis| strides[*axis]).collect();
    let bytes = view.contiguous_bytes();
    let width = view.width();
    let mut shuffled = vec![0; bytes.len()];
    move_elements((&bytes, 0, &from), (&mut shuffled, 0, &dense(&moved)), &moved, width);
    out.put_contiguous_bytes(&shuffled);
}

fn pixel_shuffle(x: &Arguments, out: &mut [OutTensor]) -> Result {
    let view = source(x, out)?;
    let [outer, channels, height, width] = planes(&view)?;
    let factor = usize::try_from(x.int(1)?).unwrap_or(0).min(1 << 15);
    ensure!(
        factor > 0 && channels % (factor * factor) == 0,
        "the number of channels, {channels}, must be a multiple of the square of the factor {}",
        x.int(1)?
    );
    let channels = channels / (factor * factor);
    let mut sizes = view.sizes.to_vec();
    let rank = sizes.len();
    sizes[rank - 3..].copy_from_slice(&[channels, height * factor, width * factor]);
    out[0].resize(&sizes)?;
    let split = [outer, channels, factor, factor, height, width];
    take_shuffled(view, &split, &[0, 1, 4, 2, 5, 3], &mut out[0]);
    Ok(())
}

fn pixel_unshuffle(x: &Arguments, out: &mut [OutTensor]) -> Result {
    let view = source(x, out)?;
    let [outer, channels, height, width] = planes(&view)?;
    let factor = usize::try_from(x.int(1)?).unwrap_or(0).min(1 << 15);
    ensure!(
        factor > 0 && height % factor == 0 && width % factor == 0,
        "height {height} and width {width} must be multiples of the factor {}",
        x.int(1)?
    );
    let (height, width) = (height / factor, width / factor);
    let mut sizes = view.sizes.to_vec();
    let rank = sizes.len();
    sizes[rank - 3..].copy_from_slice(&[channels * factor * factor, height, width]);
    out[0].resize(&sizes)?;
    let split = [outer, channels, height, factor, width, factor];
    take_shuffled(view, &split, &[0, 1, 3, 5, 2, 4], &mut out[0]);
    Ok(())
}
