//! Permutations of axes, and of elements along them.

use crate::lower::prelude::*;

pub(super) const ROWS: &[Row] = &[
    tensor("aten.permute", permute),
    tensor("aten.transpose", swap).only(&["int"]),
    tensor("aten.t", reverse_axes),
    tensor("aten.matrix_H", swap_last),
    tensor("aten.flip", flip),
    tensor("aten.roll", roll),
    tensor("aten.pixel_shuffle", pixel_shuffle),
    tensor("aten.pixel_unshuffle", pixel_unshuffle),
];

fn permute(call: &mut Call<'_, '_>) -> ValueResult {
    let x = call.value("self")?;
    let order = call.axes("dims", call.rank(x))?;
    call.transpose(x, &order)
}

fn swap(call: &mut Call<'_, '_>) -> ValueResult {
    let x = call.value("self")?;
    let rank = call.rank(x);
    let (first, second) = (call.axis("dim0", rank)?, call.axis("dim1", rank)?);
    swapped(call, x, first, second)
}

/// Swaps two axes.
fn swapped(builder: &mut Builder, x: ValueId, first: usize, second: usize) -> ValueResult {
    let mut order: Vec<_> = (0..builder.rank(x)).collect();
    if order.is_empty() {
        return Ok(x);
    }
    order.exchange(first, second)?;
    builder.transpose(x, &order)
}

fn reverse_axes(call: &mut Call<'_, '_>) -> ValueResult {
    let x = call.value("self")?;
    let order: Vec<_> = (0..call.rank(x)).rev().collect();
    call.transpose(x, &order)
}

fn swap_last(call: &mut Call<'_, '_>) -> ValueResult {
    let x = call.value("self")?;
    match call.rank(x) {
        rank @ 2.. => swapped(call, x, axis_from_end(rank, 2)?, axis_from_end(rank, 1)?),
        rank => refuse!("a tensor of rank {rank} has fewer than two axes"),
    }
}

fn flip(call: &mut Call<'_, '_>) -> ValueResult {
    let x = call.value("self")?;
    let axes = call.axes("dims", call.rank(x))?;
    if axes.is_empty() || call.rank(x) == 0 {
        return Ok(x);
    }
    emit!(call, OpKind::Reverse, x, axes = places(&axes).as_slice())
}

fn roll(call: &mut Call<'_, '_>) -> ValueResult {
    let x = call.value("self")?;
    let shifts = call.int_list("shifts")?;
    let axes = call.known_ints("dims")?;
    if axes.is_empty() {
        let [shift] = shifts[..] else {
            refuse!("`shifts` must have one element if `dims` is empty")
        };
        let sizes = call.dims(x)?;
        let flat = call.with_sizes(x, &[Int::Known(-1)])?;
        let rolled = rolled(call, flat, 0, shift)?;
        return call.resized(rolled, &sizes);
    }
    let rank = call.rank(x);
    let mut y = x;
    for (&shift, &axis) in shifts.iter().zip(&axes) {
        y = rolled(call, y, position(axis, rank)?, shift)?;
    }
    Ok(y)
}

/// Rolls elements along an axis.
fn rolled(builder: &mut Builder, x: ValueId, axis: usize, shift: Int) -> ValueResult {
    let extent = builder.dim(x, axis)?;
    let shift = builder.int_op(OpKind::Mod, shift, extent)?;
    if shift == Int::Known(0) {
        return Ok(x);
    }
    let first = builder.sub_ints(extent, shift)?;
    if first.known().is_some() {
        let tail = builder.sliced(x, axis, Range::from(first))?;
        let head = builder.sliced(x, axis, Range::to(first))?;
        return builder.concat(&[tail, head], axis);
    }
    // Slicing a doubled tensor avoids empty parts, which computed shifts cannot rule out.
    let twice = builder.concat(&[x, x], axis)?;
    let end = builder.add_ints(first, extent)?;
    builder.sliced(twice, axis, Range::between(first, end))
}

/// Images with merged leading axes.
struct Images {
    x: ValueId,
    /// Sizes of the axes before the channels.
    before: Vec<Int>,
    batch: Int,
    channels: Int,
    height: Int,
    width: Int,
}

impl Images {
    fn of(call: &mut Call<'_, '_>) -> Result<Images> {
        let x = call.value("self")?;
        let dims = call.dims(x)?;
        let [ref before @ .., channels, height, width] = dims[..] else {
            refuse!("a tensor of rank {} is not an image", dims.len());
        };
        let batch = call.product(before)?;
        let x = call.with_sizes(x, &[batch, channels, height, width])?;
        Ok(Images { x, before: before.to_vec(), batch, channels, height, width })
    }

    /// Reshapes the result to the original leading axes.
    fn give(self, call: &mut Call<'_, '_>, y: ValueId, image: [Int; 3]) -> ValueResult {
        let mut sizes = self.before;
        sizes.extend(image);
        call.resized(y, &sizes)
    }
}

fn pixel_shuffle(call: &mut Call<'_, '_>) -> ValueResult {
    let factor = call.known_int("upscale_factor")?;
    let images = Images::of(call)?;
    let known = Int::Known(factor);
    let channels = call.floor_div_ints(images.channels, Int::Known(factor * factor))?;
    let shuffled = if call.dtype(images.x) == DType::Fp32 {
        emit!(call, OpKind::PixelShuffle, x = images.x, upscale_factor = factor as i32)?
    } else {
        let pixels = call.product(&[images.batch, channels])?;
        let parts = [pixels, known, known, images.height, images.width];
        let parts = call.with_sizes(images.x, &parts)?;
        call.transpose(parts, &[0, 3, 1, 4, 2])?
    };
    let rows = call.mul_ints(images.height, known)?;
    let columns = call.mul_ints(images.width, known)?;
    images.give(call, shuffled, [channels, rows, columns])
}

fn pixel_unshuffle(call: &mut Call<'_, '_>) -> ValueResult {
    let factor = call.known_int("downscale_factor")?;
    let images = Images::of(call)?;
    let known = Int::Known(factor);
    let rows = call.floor_div_ints(images.height, known)?;
    let columns = call.floor_div_ints(images.width, known)?;
    let shuffled = if call.dtype(images.x) == DType::Fp32 && call.opset() >= Opset::Ios16 {
        let factor = Constant::bytes(DType::UInt32, &[], (factor as u32).to_le_bytes().to_vec());
        emit!(call, OpKind::PixelUnshuffle, x = images.x, downscale_factor = factor)?
    } else {
        let pixels = call.product(&[images.batch, images.channels])?;
        let parts = call.with_sizes(images.x, &[pixels, rows, known, columns, known])?;
        call.transpose(parts, &[0, 2, 4, 1, 3])?
    };
    let channels = call.mul_ints(images.channels, Int::Known(factor * factor))?;
    images.give(call, shuffled, [channels, rows, columns])
}
