//! Axes in another order, and elements in another order along them.

use coremill_mil::ir::{Constant, Opset, ValueId};
use coremill_mil::ops::OpKind;
use coremill_tensor::DType;

use super::join::joined;
use super::mapped;
use super::reshape::{resized, to_sizes};
use super::slice::{Range, sliced};
use crate::bounds::{At, back};
use crate::error::{Refusal, refuse};
use crate::lower::builder::Builder;
use crate::lower::call::{Call, Results, normalized};
use crate::lower::row::{Row, all, some};
use crate::lower::value::Int;

pub(super) const ROWS: &[Row] = &[
    all("aten.permute", permute),
    all("aten.permute_copy", permute),
    some("aten.transpose", &["int"], |call| swap(call, "dim0", "dim1")),
    some("aten.transpose_copy", &["int"], |call| swap(call, "dim0", "dim1")),
    all("aten.t", reverse_axes),
    all("aten.t_copy", reverse_axes),
    all("aten.matrix_H", swap_last),
    all("aten.flip", flip),
    all("aten.roll", roll),
    all("aten.pixel_shuffle", pixel_shuffle),
    all("aten.pixel_unshuffle", pixel_unshuffle),
];

fn permute(call: &mut Call<'_, '_>) -> Results {
    mapped(call, "self", |call, x| {
        let rank = call.rank(x);
        let order = call.known_ints("dims")?.into_iter();
        let order = order.map(|axis| normalized(axis, rank)).collect::<Result<Vec<_>, _>>()?;
        call.transpose(x, &order)
    })
}

fn swap(call: &mut Call<'_, '_>, first: &str, second: &str) -> Results {
    mapped(call, "self", |call, x| {
        let rank = call.rank(x);
        let (first, second) = (call.axis(first, rank)?, call.axis(second, rank)?);
        swapped(call, x, first, second)
    })
}

/// A tensor with two axes in each other's place.
pub(super) fn swapped(
    builder: &mut Builder,
    x: ValueId,
    first: usize,
    second: usize,
) -> Result<ValueId, Refusal> {
    let mut order: Vec<_> = (0..builder.rank(x)).collect();
    if order.is_empty() {
        return Ok(x);
    }
    order.exchange(first, second)?;
    builder.transpose(x, &order)
}

fn reverse_axes(call: &mut Call<'_, '_>) -> Results {
    mapped(call, "self", |call, x| {
        let order: Vec<_> = (0..call.rank(x)).rev().collect();
        call.transpose(x, &order)
    })
}

fn swap_last(call: &mut Call<'_, '_>) -> Results {
    mapped(call, "self", |call, x| match call.rank(x) {
        rank @ 2.. => swapped(call, x, back(rank, 2)?, back(rank, 1)?),
        rank => refuse!("a tensor of rank {rank} has no two last axes"),
    })
}

fn flip(call: &mut Call<'_, '_>) -> Results {
    mapped(call, "self", |call, x| {
        let rank = call.rank(x);
        let axes = call.known_ints("dims")?.into_iter();
        let axes = axes.map(|axis| normalized(axis, rank)).collect::<Result<Vec<_>, _>>()?;
        flipped(call, x, &axes)
    })
}

fn flipped(builder: &mut Builder, x: ValueId, axes: &[usize]) -> Result<ValueId, Refusal> {
    if axes.is_empty() || builder.rank(x) == 0 {
        return Ok(x);
    }
    let axes: Vec<_> = axes.iter().map(|&axis| axis as i32).collect();
    builder.emit(OpKind::Reverse, [("x", x.into()), ("axes", axes.as_slice().into())])
}

fn roll(call: &mut Call<'_, '_>) -> Results {
    let shifts = call.int_list("shifts")?;
    let axes = call.known_ints("dims")?;
    mapped(call, "self", |call, x| {
        if axes.is_empty() {
            let [shift] = shifts[..] else { refuse!("rolls a whole tensor by several distances") };
            let sizes = call.dims(x)?;
            let flat = to_sizes(call, x, &[Int::Known(-1)])?;
            let rolled = rolled(call, flat, 0, shift)?;
            return resized(call, rolled, &sizes);
        }
        let rank = call.rank(x);
        let mut y = x;
        for (&shift, &axis) in shifts.iter().zip(&axes) {
            y = rolled(call, y, normalized(axis, rank)?, shift)?;
        }
        Ok(y)
    })
}

/// The elements moved along an axis, those that leave it at its end put before its begin.
fn rolled(builder: &mut Builder, x: ValueId, axis: usize, shift: Int) -> Result<ValueId, Refusal> {
    let extent = builder.dim(x, axis)?;
    let shift = builder.mod_ints(shift, extent)?;
    if shift == Int::Known(0) {
        return Ok(x);
    }
    let first = builder.sub_ints(extent, shift)?;
    if let Int::Known(first) = first {
        let split = Int::Known(first);
        let tail = sliced(builder, x, axis, Range::from(split))?;
        let head = sliced(builder, x, axis, Range::to(split))?;
        return joined(builder, &[tail, head], axis);
    }
    // Neither part may be empty, which nobody knows here: what is taken of the tensor twice never is.
    let twice = joined(builder, &[x, x], axis)?;
    let end = builder.add_ints(first, extent)?;
    sliced(builder, twice, axis, Range::between(first, end))
}

/// The last three axes with all before them as one.
fn as_images(builder: &mut Builder, x: ValueId) -> Result<(ValueId, [Int; 3]), Refusal> {
    let dims = builder.dims(x)?;
    let [.., channels, height, width] = dims[..] else {
        refuse!("a tensor of rank {} is not an image", dims.len());
    };
    let batch = builder.product(dims.part(..back(dims.len(), 3)?)?)?;
    let images = to_sizes(builder, x, &[batch, channels, height, width])?;
    Ok((images, [channels, height, width]))
}

fn pixel_shuffle(call: &mut Call<'_, '_>) -> Results {
    let x = call.tensor("self")?.value;
    let factor = call.known_int("upscale_factor")?;
    let dims = call.dims(x)?;
    let (images, [channels, height, width]) = as_images(call, x)?;
    let known = Int::Known(factor);
    let shuffled = if call.dtype(x) == DType::Fp32 {
        call.emit(
            OpKind::PixelShuffle,
            [("x", images.into()), ("upscale_factor", (factor as i32).into())],
        )?
    } else {
        let channels = call.floor_div_ints(channels, Int::Known(factor * factor))?;
        let batch = call.dim(images, 0)?;
        let pixels = call.product(&[batch, channels])?;
        let parts = to_sizes(call, images, &[pixels, known, known, height, width])?;
        call.transpose(parts, &[0, 3, 1, 4, 2])?
    };
    let mut sizes = dims.part(..back(dims.len(), 3)?)?.to_vec();
    sizes.push(call.floor_div_ints(channels, Int::Known(factor * factor))?);
    sizes.push(call.mul_ints(height, known)?);
    sizes.push(call.mul_ints(width, known)?);
    let y = resized(call, shuffled, &sizes)?;
    call.give(y)
}

fn pixel_unshuffle(call: &mut Call<'_, '_>) -> Results {
    let x = call.tensor("self")?.value;
    let factor = call.known_int("downscale_factor")?;
    let dims = call.dims(x)?;
    let (images, [channels, height, width]) = as_images(call, x)?;
    let known = Int::Known(factor);
    let (rows, columns) = (call.floor_div_ints(height, known)?, call.floor_div_ints(width, known)?);
    let shuffled = if call.dtype(x) == DType::Fp32 && call.opset() >= Opset::Ios16 {
        let factor = Constant::bytes(DType::UInt32, &[], (factor as u32).to_le_bytes().to_vec());
        call.emit(
            OpKind::PixelUnshuffle,
            [("x", images.into()), ("downscale_factor", factor.into())],
        )?
    } else {
        let batch = call.dim(images, 0)?;
        let pixels = call.product(&[batch, channels])?;
        let parts = to_sizes(call, images, &[pixels, rows, known, columns, known])?;
        call.transpose(parts, &[0, 2, 4, 1, 3])?
    };
    let mut sizes = dims.part(..back(dims.len(), 3)?)?.to_vec();
    sizes.push(call.mul_ints(channels, Int::Known(factor * factor))?);
    sizes.extend([rows, columns]);
    let y = resized(call, shuffled, &sizes)?;
    call.give(y)
}
