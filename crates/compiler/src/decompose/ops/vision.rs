//! torchvision's operators.

use crate::decompose::prelude::*;

pub(crate) const ROWS: &[Row] = &[
    by(roi_align, &["torchvision.roi_align"]),
    by(deformed_convolution, &["torchvision.deform_conv2d"]),
];

fn fixed<const N: usize>(x: &Tensor, what: &str) -> Result<[i64; N]> {
    match <[i64; N]>::try_from(x.all_known(&format!("a size of {what}"))?) {
        Ok(sizes) => Ok(sizes),
        Err(sizes) => refuse!("{what} must have rank {N}, got {}", sizes.len()),
    }
}

fn sizes<const N: usize>(sizes: [i64; N]) -> Vec<Size> {
    sizes.map(Size::Fixed).to_vec()
}

/// Bilinear samples of an image at rows and columns; zero outside.
fn between_pixels(
    call: &mut Call<'_>,
    picture: &Tensor,
    rows: &Tensor,
    columns: &Tensor,
) -> TensorResult {
    let [_, _, height, width] = fixed(picture, "the picture")?;
    let mut places = Vec::with_capacity(2);
    // The kernel's coordinates range from -1 to 1.
    for (at, extent) in [(columns, width), (rows, height)] {
        places.push(calc!(call, "at * (2 / extent) + (1 / extent - 1)", at, extent)?);
    }
    let grid = call.stack(&places, rows.rank())?;
    let given = given!(
        input = picture,
        grid = grid,
        interpolation_mode = 0_usize,
        padding_mode = 0_usize,
        align_corners = false,
    );
    let [batch, tall, wide] = fixed(rows, "the grid")?;
    let mut found = sizes([batch, 1, tall, wide]);
    picture.extent(1)?.clone_into(found.at_mut(1)?);
    call.emit("aten.grid_sampler_2d.default", given, picture.dtype, found)
}

/// `roi_align`: means of sample points within parts of boxes.
///
/// The images of a batch are stacked vertically. Rows are clamped to their image, so no sample point is between two
/// images.
fn roi_align(call: &mut Call<'_>) -> Results {
    let (x, rois) = (call.tensor("input")?, call.tensor("rois")?);
    let rois = call.cast(&rois, x.dtype)?;
    let scale = call.float("spatial_scale")?;
    let (rows, columns) = (call.int("pooled_height")?, call.int("pooled_width")?);
    let samples = call.int("sampling_ratio")?;
    let aligned = call.bool("aligned")?;
    if samples < 1 {
        refuse!(
            "`sampling_ratio` must be at least 1, got {samples}: the number of samples would depend on the sizes of \
             the boxes"
        );
    }
    let [batch, channels, height, width] = fixed(&x, "`input`")?;
    let [boxes, _] = fixed(&rois, "`rois`")?;
    let mut parts = Vec::with_capacity(5);
    for at in 0..5 {
        let part = call.slice(&rois, 1, at, 1, 1)?;
        let part = if at == 0 { part } else { call.times(&part, scale)? };
        parts.push(if aligned && at > 0 { call.add_number(&part, -0.5)? } else { part });
    }
    let mut lines = Vec::with_capacity(2);
    let mut inside = Vec::with_capacity(2);
    for (start, end, count, extent) in [(2, 4, rows, height), (1, 3, columns, width)] {
        let start = parts.at(start)?.clone();
        let mut length = call.subtract(parts.at(end)?, &start)?;
        if !aligned {
            length = call.clamp(&length, Some(1.0), None)?;
        }
        let total = (checked(count) * samples).get()?;
        let shares = call.count(&Size::Fixed(total), x.dtype)?;
        let formula = "length * ((shares + 0.5) * (1 / total)) + start";
        let at = calc!(call, formula, length, shares, total, start)?;
        // Points more than one element outside are zero.
        let counts = calc!(call, "at >= -1 & at <= extent", at, extent)?;
        inside.push(call.cast(&counts, x.dtype)?);
        lines.push(call.clamp(&at, Some(0.0), Some((extent - 1) as f64))?);
    }
    if batch > 1 {
        let start = call.times(parts.at(0)?, height as f64)?;
        *lines.at_mut(0)? = call.add(lines.at(0)?, &start)?;
    }
    let (tall, wide) = ((checked(rows) * samples).get()?, (checked(columns) * samples).get()?);
    let mut grid = Vec::with_capacity(2);
    for (at, line) in lines.iter().enumerate() {
        let apart = call.unsqueeze(line, if at == 0 { 2 } else { 1 })?;
        let all = call.expand(&apart, sizes([boxes, tall, wide]))?;
        grid.push(call.view(&all, sizes([1, (checked(boxes) * tall).get()?, wide]))?);
    }
    let picture = call.permute(&x, &[1, 0, 2, 3])?;
    let picture =
        call.view(&picture, sizes([1, channels, (checked(batch) * height).get()?, width]))?;
    let pixels = between_pixels(call, &picture, grid.at(0)?, grid.at(1)?)?;
    let pixels = call.view(&pixels, sizes([channels, boxes, tall, wide]))?;
    let (row, column) = (call.unsqueeze(inside.at(0)?, 2)?, call.unsqueeze(inside.at(1)?, 1)?);
    let counts = call.multiply(&row, &column)?;
    let pixels = call.multiply(&pixels, &counts)?;
    let given = given!(self = pixels, kernel_size = [samples; 2], stride = [samples; 2]);
    let wanted = sizes([channels, boxes, rows, columns]);
    let means = call.emit("aten.avg_pool2d.default", given, x.dtype, wanted)?;
    one(call.permute(&means, &[1, 0, 2, 3])?)
}

/// Deformable convolution: samples the pixels at offset positions, then multiplies matrices.
fn deformed_convolution(call: &mut Call<'_>) -> Results {
    let (x, weight) = (call.tensor("input")?, call.tensor("weight")?);
    let (offset, bias) = (call.tensor("offset")?, call.tensor("bias")?);
    let mask = if call.bool("use_mask")? { Some(call.tensor("mask")?) } else { None };
    let [batch, channels, _, _] = fixed(&x, "`input`")?;
    let [outputs, of_group, kernel_rows, kernel_columns] = fixed(&weight, "`weight`")?;
    let [_, _, rows, columns] = fixed(&offset, "`offset`")?;
    let (groups, offset_groups) = (call.int("groups")?, call.int("offset_groups")?);
    if groups < 1 || offset_groups < 1 {
        refuse!("`groups` is {groups} and `offset_groups` {offset_groups}; expected at least 1");
    }
    let places = (checked(kernel_rows) * kernel_columns).get()?;
    // Window positions without offsets.
    let mut base = Vec::with_capacity(2);
    for (at, side) in ["h", "w"].into_iter().enumerate() {
        let step = call.int(&format!("stride_{side}"))?;
        let (pad, reach) =
            (call.int(&format!("pad_{side}"))?, call.int(&format!("dilation_{side}"))?);
        let extents = *[[rows, kernel_rows], [columns, kernel_columns]].at(at)?;
        let mut lines = Vec::with_capacity(2);
        for (extent, factor) in extents.into_iter().zip([step, reach]) {
            let line = call.count(&Size::Fixed(extent), x.dtype)?;
            lines.push(call.times(&line, factor as f64)?);
        }
        let shape = if at == 0 { [1, 1, rows, 1] } else { [1, 1, 1, columns] };
        let starts = call.view(lines.at(0)?, sizes(shape))?;
        let starts = call.add_number(&starts, -pad as f64)?;
        let shape = if at == 0 { [kernel_rows, 1] } else { [1, kernel_columns] };
        let within = call.view(lines.at(1)?, sizes(shape))?;
        let within = call.expand(&within, sizes([kernel_rows, kernel_columns]))?;
        let within = call.view(&within, sizes([1, places, 1, 1]))?;
        base.push(call.add(&starts, &within)?);
    }
    let each = channels / offset_groups;
    let flat = [batch, (checked(places) * rows).get()?, columns];
    let mut seen = Vec::new();
    for group in 0..offset_groups {
        let picture = call.slice(&x, 1, (checked(group) * each).get()?, each, 1)?;
        let mut at = Vec::with_capacity(2);
        for (side, base) in base.iter().enumerate() {
            // Row and column offsets alternate.
            let start = (checked(group) * 2 * places + side as i64).get()?;
            let moved = call.slice(&offset, 1, start, places, 2)?;
            let moved = call.add(&moved, base)?;
            at.push(call.view(&moved, sizes(flat))?);
        }
        let mut pixels = between_pixels(call, &picture, at.at(0)?, at.at(1)?)?;
        if let Some(mask) = &mask {
            let counts = call.slice(mask, 1, (checked(group) * places).get()?, places, 1)?;
            let counts = call.view(&counts, sizes([batch, 1, flat[1], columns]))?;
            pixels = call.multiply(&pixels, &counts)?;
        }
        seen.push(pixels);
    }
    let pixels = call.concatenate(&seen, 1)?;
    let each = (checked(channels / groups) * places).get()?;
    let all = (checked(batch) * groups).get()?;
    let pixels_of_each = (checked(rows) * columns).get()?;
    let lines = call.view(&pixels, sizes([all, each, pixels_of_each]))?;
    let (rows_of_each, inner) = (outputs / groups, (checked(of_group) * places).get()?);
    let matrices = call.view(&weight, sizes([1, groups, rows_of_each, inner]))?;
    let matrices = call.expand(&matrices, sizes([batch, groups, rows_of_each, inner]))?;
    let matrices = call.view(&matrices, sizes([all, rows_of_each, inner]))?;
    let products = call.bmm(&matrices, &lines)?;
    let y = call.view(&products, sizes([batch, outputs, rows, columns]))?;
    let bias = call.view(&bias, sizes([1, outputs, 1, 1]))?;
    one(call.add(&y, &bias)?)
}
