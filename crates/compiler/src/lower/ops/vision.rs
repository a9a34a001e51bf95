//! torchvision's operators.

use coremill_mil::ir::ValueId;
use coremill_mil::ops::OpKind;

use super::linear::product;
use super::sampling::{between_pixels, clipped, side_by_side};
use crate::bounds::created;
use crate::error::{Refusal, refuse};
use crate::lower::builder::Builder;
use crate::lower::call::{Call, Results};
use crate::lower::table::{Row, all};
use crate::lower::value::Int;

pub(crate) const ROWS: &[Row] = &[
    all("torchvision.roi_align", roi_align),
    all("torchvision.deform_conv2d", deformed_convolution),
    all("torchvision.nms", suppression),
];

/// How many boxes are left is data, and so is the size of the result.
fn suppression(_: &mut Call<'_, '_>) -> Results {
    Err(Refusal::new(
        "how many boxes `nms` leaves depends on the data; Core ML's results have sizes that \
         inputs decide",
    )
    .hint("return boxes and scores, and suppress them in the app, or export the network before it"))
}

fn known_sizes<const N: usize>(
    builder: &Builder,
    value: ValueId,
    what: &str,
) -> Result<[i64; N], Refusal> {
    let shape = builder
        .fixed_shape(value)
        .map(|shape| shape.into_iter().map(|extent| extent as i64).collect::<Vec<_>>());
    match shape.map(<[i64; N]>::try_from) {
        Some(Ok(shape)) => Ok(shape),
        Some(Err(shape)) => refuse!("{what} has rank {}; accepted is {N}", shape.len()),
        None => refuse!("{what} has sizes that are not known before the program runs"),
    }
}

/// Means of points within parts of boxes.
///
/// The pictures of a batch lie one below the other in a single one. Rows are bounded by the first and the
/// last of their picture, so that no point is between two pictures.
fn roi_align(call: &mut Call<'_, '_>) -> Results {
    let x = call.tensor("input")?.value;
    let rois = call.tensor("rois")?.value;
    let scale = call.float("spatial_scale")?;
    let rows = call.known_int("pooled_height")?;
    let columns = call.known_int("pooled_width")?;
    let samples = call.known_int("sampling_ratio")?;
    let aligned = call.flag("aligned")?;
    if samples < 1 {
        return Err(Refusal::new(format!(
            "`sampling_ratio` is {samples}: how many points are looked at then depends on the sizes of \
             the boxes; accepted are 1 and more"
        ))
        .hint("pass `sampling_ratio=2`, as torchvision's models do"));
    }
    let [batch, channels, height, width] = known_sizes(call, x, "`input`")?;
    let [boxes, _] = known_sizes(call, rois, "`rois`")?;

    let mut parts = Vec::with_capacity(5);
    for (at, part) in call.split_evenly(rois, 5, 1)?.into_iter().enumerate() {
        let part = if at == 0 { part } else { call.scaled(part, scale)? };
        let moved = aligned && at > 0;
        parts.push(if moved { call.binary(OpKind::Sub, part, 0.5f32)? } else { part });
    }
    let mut lines = Vec::with_capacity(2);
    let mut inside = Vec::with_capacity(2);
    for (start, end, count, extent) in
        [(parts[2], parts[4], rows, height), (parts[1], parts[3], columns, width)]
    {
        let mut length = call.binary(OpKind::Sub, end, start)?;
        if !aligned {
            length = call.binary(OpKind::Maximum, length, 1.0f32)?;
        }
        let total = count * samples;
        let shares: Vec<f32> =
            (0..total).map(|at| ((at as f64 + 0.5) / total as f64) as f32).collect();
        let shares = call.float_constant(&[1, total as u64], &shares);
        let offsets = call.binary(OpKind::Mul, length, shares)?;
        let at = call.binary(OpKind::Add, offsets, start)?;
        // Points more than one element outside count as zero.
        let after = call.binary(OpKind::GreaterEqual, at, -1.0f32)?;
        let before = call.binary(OpKind::LessEqual, at, extent as f32)?;
        let counts = call.binary(OpKind::LogicalAnd, after, before)?;
        inside.push(call.cast(counts, coremill_tensor::DType::Fp32)?);
        lines.push(clipped(call, at, 0.0, (extent - 1) as f32)?);
    }
    if batch > 1 {
        let start = call.scaled(parts[0], height as f64)?;
        lines[0] = call.binary(OpKind::Add, lines[0], start)?;
    }
    let (all_rows, all_columns) = (rows * samples, columns * samples);
    let grid = grid_of(call, lines[0], lines[1], [boxes, all_rows, all_columns])?;
    let picture = if batch > 1 {
        let picture = call.transpose(x, &[1, 0, 2, 3])?;
        call.reshape(picture, &[1, channels, batch * height, width].map(Int::Known))?
    } else {
        x
    };
    let pixels = between_pixels(call, picture, grid)?;
    let apart = [channels, boxes, all_rows, all_columns].map(Int::Known);
    let pixels = call.reshape(pixels, &apart)?;
    let (row, column) = (call.expand_dims(inside[0], &[2])?, call.expand_dims(inside[1], &[1])?);
    let counts = call.binary(OpKind::Mul, row, column)?;
    let pixels = call.binary(OpKind::Mul, pixels, counts)?;
    let kernel = [samples as i32; 2];
    let means = call.emit(
        OpKind::AvgPool,
        [
            ("x", pixels.into()),
            ("kernel_sizes", kernel.into()),
            ("strides", kernel.into()),
            ("pad_type", "valid".into()),
        ],
    )?;
    let y = call.transpose(means, &[1, 0, 2, 3])?;
    call.give(y)
}

/// The points where rows and columns of each box meet, as the coordinates of one picture.
fn grid_of(
    builder: &mut Builder,
    rows: ValueId,
    columns: ValueId,
    [boxes, row_count, column_count]: [i64; 3],
) -> Result<ValueId, Refusal> {
    created(&[boxes, row_count, column_count])?;
    let zeros = vec![0.0; column_count as usize];
    let zeros = builder.float_constant(&[1, 1, column_count as u64], &zeros);
    let rows = builder.expand_dims(rows, &[2])?;
    let rows = builder.binary(OpKind::Add, rows, zeros)?;
    let zeros = vec![0.0; row_count as usize];
    let zeros = builder.float_constant(&[1, row_count as u64, 1], &zeros);
    let columns = builder.expand_dims(columns, &[1])?;
    let columns = builder.binary(OpKind::Add, columns, zeros)?;
    let grid = side_by_side(builder, &[columns, rows])?;
    builder.reshape(grid, &[1, boxes * row_count, column_count, 2].map(Int::Known))
}

/// A convolution whose windows look at pixels that are moved by so much: the pixels are looked up, and a
/// product of matrices follows.
fn deformed_convolution(call: &mut Call<'_, '_>) -> Results {
    let x = call.tensor("input")?.value;
    let weight = call.tensor("weight")?.value;
    let offset = call.tensor("offset")?.value;
    let bias = call.tensor("bias")?.value;
    let mask = if call.flag("use_mask")? { Some(call.tensor("mask")?.value) } else { None };
    let [batch, channels, ..]: [i64; 4] = known_sizes(call, x, "`input`")?;
    let [outputs, of_group, kernel_rows, kernel_columns] = known_sizes(call, weight, "`weight`")?;
    let [_, _, rows, columns] = known_sizes(call, offset, "`offset`")?;
    let groups = call.known_int("groups")?;
    let offset_groups = call.known_int("offset_groups")?;
    if groups < 1 || offset_groups < 1 {
        refuse!(
            "`groups` is {groups} and `offset_groups` {offset_groups}; accepted are 1 and more"
        );
    }
    let mut steps = Vec::with_capacity(6);
    for name in ["stride_h", "stride_w", "pad_h", "pad_w", "dilation_h", "dilation_w"] {
        steps.push(call.known_int(name)?);
    }
    let places = kernel_rows * kernel_columns;
    // Where each place of the window is without offsets.
    let mut base = [Vec::new(), Vec::new()];
    for row in 0..kernel_rows {
        for column in 0..kernel_columns {
            for y in 0..rows {
                for x in 0..columns {
                    base[0].push((y * steps[0] - steps[2] + row * steps[4]) as f32);
                    base[1].push((x * steps[1] - steps[3] + column * steps[5]) as f32);
                }
            }
        }
    }
    let shape = [1, places as u64, rows as u64, columns as u64];
    let [base_rows, base_columns] = base.map(|line| call.float_constant(&shape, &line));

    let each = channels / offset_groups;
    let mut seen = Vec::new();
    for group in 0..offset_groups {
        let picture = call.slice(x, 1, group * each, Some((group + 1) * each))?;
        let moved = call.slice(offset, 1, group * 2 * places, Some((group + 1) * 2 * places))?;
        // Rows and columns take turns.
        let of_rows = call.strided_slice(moved, 1, 0, None, 2)?;
        let of_columns = call.strided_slice(moved, 1, 1, None, 2)?;
        let at_rows = call.binary(OpKind::Add, of_rows, base_rows)?;
        let at_columns = call.binary(OpKind::Add, of_columns, base_columns)?;
        let grid = side_by_side(call, &[at_columns, at_rows])?;
        let grid = call.reshape(grid, &[batch, places * rows, columns, 2].map(Int::Known))?;
        let mut pixels = between_pixels(call, picture, grid)?;
        if let Some(mask) = mask {
            let counts = call.slice(mask, 1, group * places, Some((group + 1) * places))?;
            let flat = [batch, 1, places * rows, columns].map(Int::Known);
            let counts = call.reshape(counts, &flat)?;
            pixels = call.binary(OpKind::Mul, pixels, counts)?;
        }
        seen.push(pixels);
    }
    let pixels = call.concat(&seen, 1)?;
    let each = channels / groups * places;
    let lines = call.reshape(pixels, &[batch, groups, each, rows * columns].map(Int::Known))?;
    let matrices = [1, groups, outputs / groups, of_group * places].map(Int::Known);
    let matrices = call.reshape(weight, &matrices)?;
    let products = product(call, matrices, lines, false, false)?;
    let y = call.reshape(products, &[batch, outputs, rows, columns].map(Int::Known))?;
    let bias = call.along_channels(bias, 4)?;
    let y = call.binary(OpKind::Add, y, bias)?;
    call.give(y)
}
