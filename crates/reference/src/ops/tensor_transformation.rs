//! Reference kernels that move elements.

use crate::array::{Array, View};
use crate::call::{Call, Results};
use crate::error::{Result, fail};
use crate::geometry::around;
use crate::movement::StridedView;

pub(super) fn transpose(call: &Call) -> Results {
    let x = call.tensor("x")?;
    let perm = call.axes("perm", x.rank())?;
    if perm.len() != x.rank() {
        fail!("`perm` has {} elements; `x` has {} axes", perm.len(), x.rank());
    }
    call.give_strided(x, &StridedView::dense(x.shape).permuted(&perm))
}

pub(super) fn reverse(call: &Call) -> Results {
    let x = call.tensor("x")?;
    let mut seen = StridedView::dense(x.shape);
    if x.is_empty() {
        return call.give_strided(x, &seen);
    }
    // Reversing an axis twice restores it.
    for axis in call.axes_or_all("axes", x.rank())? {
        let last = seen.start as isize + seen.strides[axis] * (x.shape[axis] as isize - 1);
        seen.start = last as usize;
        seen.strides[axis] = -seen.strides[axis];
    }
    call.give_strided(x, &seen)
}

pub(super) fn reverse_sequence(call: &Call) -> Results {
    let x = call.tensor("x")?;
    let sequence_axis = call.axis("seq_axis", x.rank())?;
    let batch_axis = call.axis("batch_axis", x.rank())?;
    let extent = x.shape[sequence_axis];
    let lengths = call.tensor("lengths")?.ints()?;
    if lengths.len() != x.shape[batch_axis] {
        fail!(
            "`lengths` has {} elements; `x` has {} along axis {batch_axis}",
            lengths.len(),
            x.shape[batch_axis]
        );
    }
    let turned = |&length: &i32| match usize::try_from(length) {
        Ok(length) if length <= extent => Ok(length),
        _ => fail!("`lengths` must hold numbers from 0 to {extent}, got {length}"),
    };
    let lengths: Vec<usize> = lengths.iter().map(turned).collect::<Result<_>>()?;
    let (lines, _, run) = around(x.shape, sequence_axis);
    // The batch axis is outside or inside the sequence axis.
    let (_, batches, after_batch) = around(x.shape, batch_axis);
    let piece = if batch_axis > sequence_axis { after_batch } else { run };
    let mut starts = Vec::with_capacity(x.len() / piece.max(1));
    for line in 0..lines {
        for step in 0..extent {
            for within in (0..run).step_by(piece.max(1)) {
                let at = (line * extent + step) * run + within;
                let length = lengths[at / after_batch % batches];
                let step = if step < length { length - 1 - step } else { step };
                starts.push((line * extent + step) * run + within);
            }
        }
    }
    Ok(vec![x.runs(x.shape.to_vec(), &starts, piece)])
}

/// The channels consist of block rows, block columns and new channels, outermost first.
pub(super) fn depth_to_space(call: &Call) -> Results {
    let x = image(call)?;
    let block = factor(call, "block_size")?;
    let [batch, channels, height, width] = extents(x);
    check_multiple(channels, block.saturating_mul(block), "channels")?;
    let parts = [batch, block, block, channels / (block * block), height, width];
    let shape = [batch, parts[3], by(height, block)?, by(width, block)?];
    rearranged(call, x, &parts, &[0, 3, 4, 1, 5, 2], shape)
}

/// The channels consist of new channels, block rows and block columns, outermost first.
pub(super) fn pixel_shuffle(call: &Call) -> Results {
    let x = image(call)?;
    let block = factor(call, "upscale_factor")?;
    let [batch, channels, height, width] = extents(x);
    check_multiple(channels, block.saturating_mul(block), "channels")?;
    let parts = [batch, channels / (block * block), block, block, height, width];
    let shape = [batch, parts[1], by(height, block)?, by(width, block)?];
    rearranged(call, x, &parts, &[0, 1, 4, 2, 5, 3], shape)
}

/// The inverse of `depth_to_space`.
pub(super) fn space_to_depth(call: &Call) -> Results {
    let x = image(call)?;
    let block = factor(call, "block_size")?;
    let (parts, shape) = deepened(x, block)?;
    rearranged(call, x, &parts, &[0, 3, 5, 1, 2, 4], shape)
}

/// The inverse of `pixel_shuffle`.
pub(super) fn pixel_unshuffle(call: &Call) -> Results {
    let x = image(call)?;
    let block = factor(call, "downscale_factor")?;
    let (parts, shape) = deepened(x, block)?;
    rearranged(call, x, &parts, &[0, 1, 3, 5, 2, 4], shape)
}

/// Splits both spatial axes into blocks. Also returns the shape with the blocks moved to the
/// channels.
fn deepened(x: View, block: usize) -> Result<([usize; 6], [usize; 4])> {
    let [batch, channels, height, width] = extents(x);
    check_multiple(height, block, "rows")?;
    check_multiple(width, block, "columns")?;
    let (rows, columns) = (height / block, width / block);
    let parts = [batch, channels, rows, block, columns, block];
    Ok((parts, [batch, by(by(channels, block)?, block)?, rows, columns]))
}

/// The batch consists of block rows, block columns and the new batch, outermost first.
pub(super) fn batch_to_space(call: &Call) -> Results {
    let x = image(call)?;
    let (block, crops) = (block_shape(call)?, margins(call, "crops")?);
    let [batch, channels, height, width] = extents(x);
    check_multiple(batch, block[0].saturating_mul(block[1]), "images")?;
    let parts = [block[0], block[1], batch / (block[0] * block[1]), channels, height, width];
    let whole = [parts[2], channels, by(height, block[0])?, by(width, block[1])?];
    let spread = rearranged(call, x, &parts, &[2, 3, 4, 0, 5, 1], whole)?;
    let Some(spread) = spread.first().filter(|_| crops != [[0; 2]; 2]) else { return Ok(spread) };

    let mut seen = StridedView::dense(spread.shape());
    for (axis, [before, after]) in [(2, crops[0]), (3, crops[1])] {
        match whole[axis].checked_sub(before.saturating_add(after)) {
            Some(left) => seen.shape[axis] = left,
            None => fail!(
                "`crops` removes {before} and {after} elements from axis {axis} of shape {whole:?}"
            ),
        }
        seen.start =
            seen.start.saturating_add((seen.strides[axis] as usize).saturating_mul(before));
    }
    call.give_strided(spread.view(), &seen)
}

/// The inverse of `batch_to_space`, with zero padding of the image.
pub(super) fn space_to_batch(call: &Call) -> Results {
    let x = image(call)?;
    let (block, margins) = (block_shape(call)?, margins(call, "paddings")?);
    let [batch, channels, height, width] = extents(x);
    let padded = |extent: usize, [before, after]: [usize; 2]| {
        extent.saturating_add(before).saturating_add(after)
    };
    let (height, width) = (padded(height, margins[0]), padded(width, margins[1]));
    let shape = [batch, channels, height, width];
    let mut padding = vec![0.0; call.count(&shape)?];
    let mut inside = StridedView::dense(&shape);
    inside.shape = x.shape.to_vec();
    inside.start = margins[0][0].saturating_mul(width).saturating_add(margins[1][0]);
    inside.write(x.floats()?, &mut padding);

    check_multiple(height, block[0], "rows, including `paddings`")?;
    check_multiple(width, block[1], "columns, including `paddings`")?;
    let (rows, columns) = (height / block[0], width / block[1]);
    let parts = [batch, channels, rows, block[0], columns, block[1]];
    let blocks = by(by(batch, block[0])?, block[1])?;
    let padded = Array::floats(x.dtype, shape, padding);
    rearranged(call, padded.view(), &parts, &[3, 5, 0, 1, 2, 4], [blocks, channels, rows, columns])
}

pub(super) fn sliding_windows(call: &Call) -> Results {
    let x = call.tensor("x")?;
    let axis = call.axis("axis", x.rank())?;
    let (size, stride) = (factor(call, "size")?, factor(call, "stride")?);
    let Some(room) = x.shape[axis].checked_sub(size) else {
        fail!("`size` is {size}, but `x` has only {} elements along axis {axis}", x.shape[axis]);
    };
    let mut seen = StridedView::dense(x.shape);
    let step = seen.strides[axis];
    seen.shape[axis] = room / stride + 1;
    seen.strides[axis] = step.saturating_mul(stride as isize);
    seen.shape.insert(axis + 1, size);
    seen.strides.insert(axis + 1, step);
    call.give_strided(x, &seen)
}

/// The tensor `x`, which must be a batch of images.
fn image<'a>(call: &Call<'a>) -> Result<View<'a>> {
    let x = call.tensor("x")?;
    if x.rank() != 4 {
        fail!("`x` must have shape [batch, channels, height, width], got {:?}", x.shape);
    }
    Ok(x)
}

fn extents(x: View) -> [usize; 4] {
    [x.shape[0], x.shape[1], x.shape[2], x.shape[3]]
}

fn factor(call: &Call, name: &str) -> Result<usize> {
    let factor = call.int(name)?;
    match usize::try_from(factor) {
        Ok(factor) if factor > 0 => Ok(factor),
        _ => fail!("`{name}` must be at least 1, got {factor}"),
    }
}

fn by(extent: usize, factor: usize) -> Result<usize> {
    match extent.checked_mul(factor) {
        Some(product) => Ok(product),
        None => fail!("{extent} times {factor} is too large for a size"),
    }
}

fn check_multiple(extent: usize, divisor: usize, what: &str) -> Result<()> {
    if !extent.is_multiple_of(divisor) {
        fail!("`x` has {extent} {what}; expected a multiple of {divisor}");
    }
    Ok(())
}

fn block_shape(call: &Call) -> Result<[usize; 2]> {
    match call.ints("block_shape", 0)?[..] {
        [height, width] if height > 0 && width > 0 => Ok([height as usize, width as usize]),
        ref block => fail!("`block_shape` must be two sizes of at least 1, got {block:?}"),
    }
}

/// Numbers of elements to pad or crop before and after both spatial axes.
fn margins(call: &Call, name: &str) -> Result<[[usize; 2]; 2]> {
    let margins = call.ints(name, 0)?;
    match margins[..] {
        [top, bottom, left, right] if margins.iter().all(|&margin| margin >= 0) => {
            Ok([[top, bottom], [left, right]].map(|pair| pair.map(|margin| margin as usize)))
        }
        _ => fail!("`{name}` must be four numbers of at least 0, got {margins:?}"),
    }
}

/// Splits the axes into parts, permutes the parts and reshapes the result.
fn rearranged(
    call: &Call,
    x: View,
    parts: &[usize; 6],
    perm: &[usize; 6],
    shape: [usize; 4],
) -> Results {
    call.count(&shape)?;
    let moved = call.strided(x, &StridedView::dense(parts).permuted(perm))?;
    Ok(vec![moved.view().reshaped(shape.to_vec())])
}
