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
    let [_, _, height, width] = fixed(picture, "the image")?;
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
        return adaptive_roi_align(call, &x, &rois);
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

/// `roi_align` whose number of sample points per part is the size of the part, rounded up.
///
/// A sample point weights the two nearest rows and columns, so the result is a matrix product: the mean row weights, the
/// image, and the mean column weights. The images of a batch are stacked vertically.
fn adaptive_roi_align(call: &mut Call<'_>, x: &Tensor, rois: &Tensor) -> Results {
    // Sums of coordinates exceed the precision of fp16.
    call.frame.exact = true;
    let dtype = x.dtype;
    let x = call.cast(x, ScalarType::Float32)?;
    let rois = call.cast(rois, ScalarType::Float32)?;
    let (rows, columns) = (call.int("pooled_height")?, call.int("pooled_width")?);
    let [batch, channels, height, width] = fixed(&x, "`input`")?;
    let [boxes, _] = fixed(&rois, "`rois`")?;
    let of_rows = mean_weights(call, &rois, 2, rows, height)?;
    let of_columns = mean_weights(call, &rois, 1, columns, width)?;
    let image = call.slice(&rois, 1, 0, 1, 1)?;
    let image = call.view(&image, sizes([boxes, 1, 1, 1]))?;
    let images = call.count(&Size::Fixed(batch), ScalarType::Float32)?;
    let images = call.view(&images, sizes([1, 1, batch, 1]))?;
    let is_image = call.compare("eq", &image, &images)?;
    let is_image = call.cast(&is_image, ScalarType::Float32)?;
    let of_rows = call.view(&of_rows, sizes([boxes, rows, 1, height]))?;
    let of_rows = call.multiply(&of_rows, &is_image)?;
    let stacked = (checked(batch) * height).get()?;
    let of_rows = call.view(&of_rows, sizes([(checked(boxes) * rows).get()?, stacked]))?;
    let x = call.permute(&x, &[1, 0, 2, 3])?;
    let x = call.view(&x, sizes([channels, stacked, width]))?;
    let means = call.matmul(&of_rows, &x)?;
    let means = call.view(&means, sizes([channels, boxes, rows, width]))?;
    let means = call.permute(&means, &[1, 0, 2, 3])?;
    let lines = (checked(channels) * rows).get()?;
    let means = call.view(&means, sizes([boxes, lines, width]))?;
    let of_columns = call.permute(&of_columns, &[0, 2, 1])?;
    let means = call.bmm(&means, &of_columns)?;
    let means = call.view(&means, sizes([boxes, channels, rows, columns]))?;
    one(call.cast(&means, dtype)?)
}

/// For each box and each of its `count` parts, the mean weights with which its sample points take the elements of an axis.
///
/// The points are `first + step * i`. An element is weighted by 1 minus its distance, so the sum of the weights of a range
/// of points follows from their number and the sum of their distances. Points up to one element outside take the element
/// at the edge.
fn mean_weights(
    call: &mut Call<'_>,
    rois: &Tensor,
    column: i64,
    count: i64,
    extent: i64,
) -> TensorResult {
    let scale = call.float("spatial_scale")?;
    let offset = if call.bool("aligned")? { -0.5 } else { 0.0 };
    let [boxes, _] = fixed(rois, "`rois`")?;
    let mut ends = Vec::with_capacity(2);
    for column in [column, column + 2] {
        let end = call.slice(rois, 1, column, 1, 1)?;
        let end = call.view(&end, sizes([boxes, 1, 1]))?;
        let end = call.times(&end, scale)?;
        ends.push(call.add_number(&end, offset)?);
    }
    let (start, end) = (ends.at(0)?.clone(), ends.at(1)?.clone());
    let mut length = call.subtract(&end, &start)?;
    if offset == 0.0 {
        length = call.clamp(&length, Some(1.0), None)?;
    }
    let part = call.times(&length, 1.0 / count as f64)?;
    let samples = calc!(call, "max(ceil(part), 0)", part)?;
    let divisor = call.clamp(&samples, Some(1.0), None)?;
    let whole = call.divide(&part, &divisor)?;
    // Boxes of negative size have no samples; their step only must not be 0.
    let step = calc!(call, "where(part > 0, whole, 1)", part, whole)?;
    let parts = call.count(&Size::Fixed(count), ScalarType::Float32)?;
    let parts = call.view(&parts, sizes([1, count, 1]))?;
    let elements = call.count(&Size::Fixed(extent), ScalarType::Float32)?;
    let elements = call.view(&elements, sizes([1, 1, extent]))?;
    // The first point, relative to each element.
    let first = calc!(
        call,
        "start + part * parts + step * 0.5 - elements",
        start,
        part,
        parts,
        step,
        elements
    )?;
    let position = calc!(call, "-first / step", first, step)?;
    let inverse = calc!(call, "1 / step", step)?;
    // The numbers of points up to one element before, at, and one element after.
    let before =
        calc!(call, "min(max(ceil(position - inverse), 0), samples)", position, inverse, samples)?;
    let at = calc!(call, "min(max(floor(position) + 1, 0), samples)", position, samples)?;
    let after = calc!(
        call,
        "min(max(floor(position + inverse) + 1, 0), samples)",
        position,
        inverse,
        samples
    )?;
    let mut sums = Vec::with_capacity(3);
    for number in [&before, &at, &after] {
        sums.push(calc!(
            call,
            "number * (first + step * 0.5 * (number - 1))",
            number,
            first,
            step
        )?);
    }
    let (sum_before, sum_at, sum_after) = (sums.at(0)?, sums.at(1)?, sums.at(2)?);
    let rising = calc!(call, "at - before + sum_at - sum_before", at, before, sum_at, sum_before)?;
    let falling = calc!(call, "after - at - sum_after + sum_at", after, at, sum_after, sum_at)?;
    let last = extent - 1;
    let rising =
        calc!(call, "where(elements <= 0, at - before, rising)", elements, at, before, rising)?;
    let falling = calc!(
        call,
        "where(elements >= last, after - at, falling)",
        elements,
        last,
        after,
        at,
        falling
    )?;
    let sum = call.add(&rising, &falling)?;
    call.divide(&sum, &divisor)
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
