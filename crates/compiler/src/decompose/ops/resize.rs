//! Image resizing, unfold and fold, sampling grids.
//!
//! Interpolations without a kernel multiply each dimension by a weight matrix, which is computed at run time.

use crate::decompose::prelude::*;

pub(crate) const ROWS: &[Row] = &[
    by(|call| plain(call, false), &["aten.upsample_nearest{1,2,3}d"]),
    by(|call| plain(call, true), &["aten.upsample_{linear1,bilinear2,trilinear3}d"]),
    by(exact, &["aten._upsample_nearest_exact{1,2,3}d"]),
    by(|call| weighted(call, false, true), &["aten.upsample_bicubic2d"]),
    by(|call| weighted(call, true, true), &["aten._upsample_bicubic2d_aa"]),
    by(|call| weighted(call, true, false), &["aten._upsample_bilinear2d_aa"]),
    by(grid_sampler, &["aten.grid_sampler{,_2d,_3d}"]),
    by(affine_grid, &["aten.affine_grid_generator"]),
    by(im2col, &["aten.im2col"]),
    by(col2im, &["aten.col2im"]),
];

/// The image, and the explicit scale of each dimension, if any.
fn image(call: &mut Call<'_>) -> Result<(Tensor, Vec<Option<f64>>)> {
    let x = call.tensor(if call.has("input") { "input" } else { "self" })?;
    let (rank, noted) = (x.rank(), call.result(0)?.sizes.len());
    if rank < 3 || noted != rank {
        refuse!(
            "cannot resize an image of rank {rank} to rank {noted}; the ranks must be equal and at least 3"
        );
    }
    let spatial = axis_from_end(rank, 2)?;
    let mut scales = vec![None; spatial];
    if call.has("scale_factors") {
        if let Argument::List(items) = call.argument("scale_factors")? {
            for (scale, item) in scales.iter_mut().zip(items) {
                *scale = match item {
                    Argument::Float(value) => Some(*value),
                    Argument::Int(value) => Some(*value as f64),
                    _ => refuse!("a scale is unknown at compile time"),
                };
            }
        }
    } else {
        let names: &[&str] = match spatial {
            1 => &["scales"],
            2 => &["scales_h", "scales_w"],
            _ => &["scales_d", "scales_h", "scales_w"],
        };
        for (scale, name) in scales.iter_mut().zip(names) {
            if call.has(name) {
                *scale = Some(call.float(name)?);
            }
        }
    }
    Ok((x, scales))
}

/// Resizes in 2-D with a kernel. Explicit scales are passed on, so that sampling positions match torch.
fn planes(
    call: &mut Call<'_>,
    x: &Tensor,
    linear: bool,
    sizes: Vec<Size>,
    scales: [Option<f64>; 2],
) -> TensorResult {
    let (size, scales) = match scales {
        [Some(height), Some(width)] => (Argument::None, [height, width].given()),
        _ => (call.sizes_argument(size::at(&sizes, 2..)?)?, Argument::None),
    };
    if !linear {
        let given = given!(input = x, output_size = size, scale_factors = scales);
        return call.emit("aten.upsample_nearest2d.vec", given, x.dtype, sizes);
    }
    let align = call.bool("align_corners")?;
    let given =
        given!(input = x, output_size = size, align_corners = align, scale_factors = scales);
    call.emit("aten.upsample_bilinear2d.vec", given, x.dtype, sizes)
}

/// 1-D input becomes 2-D with height 1; volumes are resized in 2-D and then along their depth.
fn plain(call: &mut Call<'_>, linear: bool) -> Results {
    let (x, scales) = image(call)?;
    let sizes = call.result_sizes()?;
    let unit = Size::Fixed(1);
    // Explicit scales only matter without `align_corners`.
    let one_of = |scale: Option<f64>| scale.map(|_| 1.0);
    match (scales.as_slice(), sizes.as_slice()) {
        (&[scale], [batch, channels, width]) => {
            let flat = call.unsqueeze(&x, 2)?;
            let wanted = vec![batch.clone(), channels.clone(), unit, width.clone()];
            let done = planes(call, &flat, linear, wanted, [one_of(scale), scale])?;
            one(call.squeeze(&done, 2)?)
        }
        (&[tall, wide], _) => one(planes(call, &x, linear, sizes, [tall, wide])?),
        (&[deep, tall, wide], [_, _, new_depth, height, width]) => {
            let [batch, channels, depth, rows, columns] = x.extent(..)? else {
                refuse!("a tensor of rank {} is not a volume", x.rank());
            };
            let batch = size::multiply(batch, channels);
            let flat = vec![batch.clone(), depth.clone(), rows.clone(), columns.clone()];
            let flat = call.view(&x, flat)?;
            let wanted = vec![batch.clone(), depth.clone(), height.clone(), width.clone()];
            let done = planes(call, &flat, linear, wanted, [tall, wide])?;
            let area = size::multiply(height, width);
            let columns = vec![batch.clone(), unit.clone(), depth.clone(), area.clone()];
            let columns = call.view(&done, columns)?;
            let wanted = vec![batch, unit, new_depth.clone(), area];
            let done = planes(call, &columns, linear, wanted, [deep, one_of(deep)])?;
            one(call.view(&done, sizes)?)
        }
        _ => refuse!("a tensor of rank {} is not an image", x.rank()),
    }
}

/// Input distance of one output step.
fn step(before: &Size, after: &Size, scale: Option<f64>, align: bool) -> Result<f64> {
    let before = size::known(before, "the size of the image")?;
    let after = size::known(after, "the size of the image")?;
    if align {
        return Ok(if after > 1 { (before - 1) as f64 / (after - 1) as f64 } else { 0.0 });
    }
    Ok(match scale {
        Some(scale) if scale > 0.0 => 1.0 / scale,
        _ => before as f64 / after as f64,
    })
}

/// Nearest element to the center of each output element.
fn exact(call: &mut Call<'_>) -> Results {
    let (x, scales) = image(call)?;
    let sizes = call.result_sizes()?;
    let mut done = x.clone();
    for (index, scale) in scales.iter().enumerate() {
        let at = index + 2;
        let step = step(x.extent(at)?, size::at(&sizes, at)?, *scale, false)?;
        let count = call.count(size::at(&sizes, at)?, ScalarType::Float32)?;
        let last = x.extent(at)?.fixed().unwrap_or(1) - 1;
        let place = calc!(call, "clamp(floor((count + 0.5) * step), 0, last)", count, step, last)?;
        let place = call.cast(&place, ScalarType::Int64)?;
        done = call.index_select(&done, at, &place)?;
    }
    one(done)
}

/// Keys' cubic kernel with parameter `a`, applied to distances.
fn cubic(call: &mut Call<'_>, x: &Tensor, a: f64) -> TensorResult {
    let formula = "near = x * x * ((a + 2) * x - (a + 3)) + 1; far = (((x - 5) * x + 8) * x - 4) * a; \
                   where(x <= 1, near, where(x < 2, far, 0))";
    calc!(call, formula, x, a)
}

/// Weight of each input position for each output position.
fn weights(
    call: &mut Call<'_>,
    before: &Size,
    after: &Size,
    scale: Option<f64>,
    antialias: bool,
    is_cubic: bool,
) -> TensorResult {
    let align = call.bool("align_corners")?;
    let step = step(before, after, scale, align)?;
    let rows = call.count(after, ScalarType::Float32)?;
    let rows = call.unsqueeze(&rows, 1)?;
    let columns = call.count(before, ScalarType::Float32)?;
    // Antialiasing ignores `align_corners`.
    let place = if align && !antialias {
        call.times(&rows, step)?
    } else {
        calc!(call, "(rows + 0.5) * step - 0.5", rows, step)?
    };
    if antialias {
        // Weights of positions outside the image are dropped; the rest is renormalized.
        let distance = calc!(call, "abs(columns - place) / max(step, 1.0)", columns, place, step)?;
        let weights = match is_cubic {
            true => cubic(call, &distance, -0.5)?,
            false => calc!(call, "max(1.0 - distance, 0)", distance)?,
        };
        let sum = call.sum(&weights, &[1], true)?;
        return call.divide(&weights, &sum);
    }
    // Positions outside the image repeat the edge.
    let base = call.map("floor", &place)?;
    let fraction = call.subtract(&place, &base)?;
    let last = before.fixed().unwrap_or(1) - 1;
    let mut sum: Option<Tensor> = None;
    for tap in -1..=2i64 {
        let distance = calc!(call, "abs(fraction - tap)", fraction, tap)?;
        let weight = cubic(call, &distance, -0.75)?;
        let here = calc!(call, "columns == clamp(base + tap, 0, last)", columns, base, tap, last)?;
        let here = call.cast(&here, ScalarType::Float32)?;
        let part = call.multiply(&here, &weight)?;
        sum = Some(plus(call, sum, part)?);
    }
    sum.ok_or_else(|| LoweringError::new("an empty kernel"))
}

/// Adds to an optional sum.
fn plus(call: &mut Call<'_>, sum: Option<Tensor>, part: Tensor) -> TensorResult {
    match sum {
        Some(sum) => call.add(&sum, &part),
        None => Ok(part),
    }
}

fn weighted(call: &mut Call<'_>, antialias: bool, is_cubic: bool) -> Results {
    let (x, scales) = image(call)?;
    let sizes = call.result_sizes()?;
    let wide = if is_half(x.dtype) || !is_float(x.dtype) { ScalarType::Float32 } else { x.dtype };
    let mut done = call.cast(&x, wide)?;
    for (index, scale) in scales.iter().enumerate() {
        let at = index + 2;
        let (before, after) = (x.extent(at)?, size::at(&sizes, at)?);
        let weights = weights(call, before, after, *scale, antialias, is_cubic)?;
        let weights = call.cast(&weights, wide)?;
        let turned = call.turned(&weights)?;
        let moved = call.transpose(&done, at, 3)?;
        let rows = size::product(moved.sizes.part(..3)?);
        let flat = call.view(&moved, vec![rows, before.clone()])?;
        let product = call.mm(&flat, &turned)?;
        let apart = call.view(&product, moved.with_size(3, after.clone())?)?;
        done = call.transpose(&apart, at, 3)?;
    }
    if !is_float(x.dtype) {
        done = calc!(call, "clamp(round(done), 0, 255)", done)?;
    }
    one(call.cast(&done, x.dtype)?)
}

fn grid_sampler(call: &mut Call<'_>) -> Results {
    let (x, grid) = (call.tensor("input")?, call.tensor("grid")?);
    match x.rank() {
        4 => {}
        5 => return one(volume(call, &x, &grid)?),
        rank => refuse!("the input must be images of rank 4 or volumes of rank 5, got rank {rank}"),
    }
    let grid = call.cast(&grid, x.dtype)?;
    one(call.again("aten.grid_sampler_2d.default", given!(input = x, grid = grid))?)
}

/// Converts normalized grid coordinates to positions along a dimension of this size.
fn along(call: &mut Call<'_>, place: &Tensor, size: i64) -> TensorResult {
    let align = call.bool("align_corners")?;
    let (factor, offset) = match align {
        true => ((size - 1) as f64 / 2.0, (size - 1) as f64 / 2.0),
        false => (size as f64 / 2.0, (size - 1) as f64 / 2.0),
    };
    let at = calc!(call, "place * factor + offset", place, factor, offset)?;
    let last = Some((size - 1) as f64);
    match call.int("padding_mode")? {
        0 => Ok(at),
        1 => call.clamp(&at, Some(0.0), last),
        2 => {
            // Reflects at the corners, or half an element outside them.
            let (first, span) = if align { (0.0, (size - 1) as f64) } else { (-0.5, size as f64) };
            if span == 0.0 {
                return call.times(&at, 0.0);
            }
            let formula = "span + first - abs((at - first) % (2.0 * span) - span)";
            let there = calc!(call, formula, at, first, span)?;
            call.clamp(&there, Some(0.0), last)
        }
        other => refuse!("`padding_mode` must be from 0 to 2, got {other}"),
    }
}

/// Position and weight of a neighboring element along a dimension; a weight of `None` means 1.
type Neighbour = (Tensor, Option<Tensor>);

/// The elements of a dimension that contribute to a sample.
fn neighbours(
    call: &mut Call<'_>,
    at: &Tensor,
    size: i64,
    is_nearest: bool,
) -> Result<Vec<Neighbour>> {
    let found = if is_nearest {
        vec![(call.map("round", at)?, None)]
    } else {
        let formula = "low = floor(at); share = at - low; low, low + 1.0, share, 1.0 - share";
        let [low, high, share, rest] = calc!(all call, formula, at)?;
        vec![(low, Some(rest)), (high, Some(share))]
    };
    let mut inside = Vec::with_capacity(found.len());
    for (position, mut weight) in found {
        if call.int("padding_mode")? == 0 {
            // Elements outside are zero.
            let counts = calc!(call, "position >= 0 & position <= size - 1", position, size)?;
            let counts = call.cast(&counts, at.dtype)?;
            weight = Some(match weight {
                Some(weight) => call.multiply(&weight, &counts)?,
                None => counts,
            });
        }
        let position = call.clamp(&position, Some(0.0), Some((size - 1) as f64))?;
        inside.push((call.cast(&position, ScalarType::Int64)?, weight));
    }
    Ok(inside)
}

/// Samples a volume at grid positions, interpolating between the surrounding elements.
fn volume(call: &mut Call<'_>, x: &Tensor, grid: &Tensor) -> TensorResult {
    let mode = call.int("interpolation_mode")?;
    if mode != 0 && mode != 1 {
        refuse!("`interpolation_mode` must be 0 (bilinear) or 1 (nearest), got {mode}");
    }
    let grid = call.cast(grid, ScalarType::Float32)?;
    let (batch, channels) = (x.extent(0)?.clone(), x.extent(1)?.clone());
    let extents = x.sizes.part(2..)?.iter();
    let extents = extents.map(|size| size::known(size, "a size of the volume"));
    let extents = extents.collect::<Result<Vec<_>, _>>()?;
    // Linear positions and weights. The first grid coordinate belongs to the last dimension.
    let mut corners: Vec<Neighbour> = Vec::new();
    for (axis, size) in extents.iter().enumerate() {
        let place = call.select(&grid, 4, Argument::Int(2 - axis as i64))?;
        let at = along(call, &place, *size)?;
        let own = neighbours(call, &at, *size, mode == 1)?;
        let mut joined = Vec::new();
        for (position, weight) in &corners {
            let start = call.with("mul", position, Argument::Int(*size))?;
            for (own_position, own_weight) in &own {
                let position = call.add(&start, own_position)?;
                let weight = match (weight, own_weight) {
                    (Some(one), Some(other)) => Some(call.multiply(one, other)?),
                    (one, other) => one.clone().or_else(|| other.clone()),
                };
                joined.push((position, weight));
            }
        }
        corners = if axis == 0 { own } else { joined };
    }
    let wide = call.cast(x, ScalarType::Float32)?;
    let elements = Size::Fixed(product(&extents).get()?);
    let flat = call.view(&wide, vec![batch.clone(), channels.clone(), elements])?;
    let points = size::product(grid.sizes.part(1..4)?);
    let line = vec![batch.clone(), Size::Fixed(1), points.clone()];
    let mut sum: Option<Tensor> = None;
    for (position, weight) in corners {
        let index = call.view(&position, line.clone())?;
        let index = call.expand(&index, vec![batch.clone(), channels.clone(), points.clone()])?;
        let mut part = call.gather(&flat, 2, &index)?;
        if let Some(weight) = weight {
            let weight = call.view(&weight, line.clone())?;
            part = call.multiply(&part, &weight)?;
        }
        sum = Some(plus(call, sum, part)?);
    }
    let Some(sum) = sum else { refuse!("a volume has no dimensions") };
    let mut sizes = vec![batch, channels];
    sizes.extend_from_slice(grid.sizes.part(1..4)?);
    let sum = call.view(&sum, sizes)?;
    call.cast(&sum, x.dtype)
}

/// Normalized coordinates from -1 to 1, transformed by a matrix.
fn affine_grid(call: &mut Call<'_>) -> Results {
    let theta = call.tensor("theta")?;
    let sizes = call.sizes("size")?;
    let align = call.bool("align_corners")?;
    let spatial = sizes.len().saturating_sub(2);
    if spatial != 2 && spatial != 3 {
        refuse!("a grid requires images or volumes");
    }
    // The first grid coordinate belongs to the last dimension.
    let grid = size::at(&sizes, 2..)?;
    let mut columns = Vec::with_capacity(spatial + 1);
    for at in (0..spatial).rev() {
        let length = size::known(grid.at(at)?, "the size of the grid")?;
        let count = call.count(grid.at(at)?, theta.dtype)?;
        let (step, start) = if align {
            (2.0 / (length - 1).max(1) as f64, if length > 1 { -1.0 } else { 0.0 })
        } else {
            (2.0 / length as f64, 1.0 / length as f64 - 1.0)
        };
        let place = calc!(call, "count * step + start", count, step, start)?;
        let place = call.along(&place, at, spatial)?;
        columns.push(call.expand(&place, grid.to_vec())?);
    }
    columns.push(call.full(grid.to_vec(), Argument::Int(1), theta.dtype)?);
    let places = call.stack(&columns, spatial)?;
    let count = size::product(grid);
    let wide = Size::Fixed(spatial as i64 + 1);
    let rows = call.view(&places, vec![Size::Fixed(1), count.clone(), wide.clone()])?;
    let rows = call.expand(&rows, vec![theta.extent(0)?.clone(), count, wide])?;
    let turned = call.turned(&theta)?;
    let product = call.bmm(&rows, &turned)?;
    one(call.viewed(&product)?)
}

/// Sliding windows of an image: size, spacing and count.
struct Windows {
    kernel: [i64; 2],
    dilation: [i64; 2],
    padding: [i64; 2],
    stride: [i64; 2],
    count: [Size; 2],
}

/// Maximum number of unrolled window positions.
const MAX_PLACES: i64 = 256;

fn windows(call: &Call<'_>, image: &[Size]) -> Result<Windows> {
    let two = |name: &str| -> Result<[i64; 2]> {
        match call.ints(name)?.as_slice() {
            [single] => Ok([*single; 2]),
            [first, second] => Ok([*first, *second]),
            _ => refuse!("`{name}` must hold two numbers"),
        }
    };
    let (kernel, dilation) = (two("kernel_size")?, two("dilation")?);
    let (padding, stride) = (two("padding")?, two("stride")?);
    let count = |at: usize| -> Result<Size> {
        let size = size::at(image, at)?;
        let reach = reach(*kernel.at(at)?, *dilation.at(at)?)?;
        let more = checked(*padding.at(at)?) * 2 - reach;
        let step = (*stride.at(at)?).max(1);
        Ok(match size.fixed() {
            Some(size) => Size::Fixed(((more + size).over(step) + 1).get()?),
            None => {
                let room = size::add(size, &Size::Fixed(more.get()?));
                size::add(&size::divided(&room, &Size::Fixed(step)), &Size::Fixed(1))
            }
        })
    };
    let count = [count(0)?, count(1)?];
    let [rows, columns] = kernel;
    if rows.saturating_mul(columns) > MAX_PLACES {
        refuse!("windows of {rows} by {columns} exceed the maximum of {MAX_PLACES} elements");
    }
    Ok(Windows { kernel, dilation, padding, stride, count })
}

/// Number of elements spanned by a dilated kernel.
fn reach(kernel: i64, dilation: i64) -> Result<i64> {
    (checked(dilation) * (kernel - 1) + 1).get()
}

impl Windows {
    /// The elements at one position of every window along a dimension: 0 for rows, 1 for columns.
    fn at_place(
        &self,
        call: &mut Call<'_>,
        x: &Tensor,
        dimension: usize,
        place: i64,
    ) -> TensorResult {
        let (axis, step) = (dimension + 2, *self.stride.at(dimension)?);
        let dilation = *self.dilation.at(dimension)?;
        let start = (checked(place) * dilation).get()?;
        let count = self.count.at(dimension)?;
        if let Some(count) = count.fixed() {
            return call.slice(x, axis, start, count, step);
        }
        // Leaves out the elements that only later window positions reach.
        let left = (checked(reach(*self.kernel.at(dimension)?, dilation)?) - 1 - start).get()?;
        let end = if left > 0 { -left } else { i64::MAX };
        let given = given!(self = x, dim = axis, start = start, end = end, step = step);
        let sizes = x.with_size(axis, count.clone())?;
        call.emit("aten.slice_copy.Tensor", given, x.dtype, sizes)
    }
}

fn im2col(call: &mut Call<'_>) -> Results {
    let x = call.tensor("self")?;
    let image = if x.rank() == 3 { call.unsqueeze(&x, 0)? } else { x };
    let found = windows(call, image.extent(2..)?)?;
    let [height, width] = found.padding;
    let zero = Argument::Int(0);
    let padded = call.pad(&image, &[width, width, height, height], zero)?;
    let mut parts = Vec::new();
    for row in 0..found.kernel[0] {
        let rows = found.at_place(call, &padded, 0, row)?;
        for column in 0..found.kernel[1] {
            parts.push(found.at_place(call, &rows, 1, column)?);
        }
    }
    let all = call.stack(&parts, 2)?;
    one(call.viewed(&all)?)
}

fn col2im(call: &mut Call<'_>) -> Results {
    let x = call.tensor("self")?;
    let output = call.sizes("output_size")?;
    let found = windows(call, &output)?;
    let sizes = call.result_sizes()?;
    let Some(at) = sizes.len().checked_sub(3) else {
        refuse!("a result of rank {} is not an image", sizes.len());
    };
    let batch = size::product(size::at(&sizes, ..at)?);
    let channels = size::at(&sizes, at)?.clone();
    let places = product(&found.kernel).get()?;
    let known = |count: &Size| size::known(count, "the size of the image");
    let [rows, columns] = [known(&found.count[0])?, known(&found.count[1])?];
    let height = size::known(output.at(0)?, "the size of the image")?;
    let width = size::known(output.at(1)?, "the size of the image")?;
    let around = |size: i64, padding: i64| (checked(size) + checked(padding) * 2).get();
    let (tall, wide) = (around(height, found.padding[0])?, around(width, found.padding[1])?);
    let fixed = Size::Fixed;
    let apart = call.view(
        &x,
        vec![batch.clone(), channels.clone(), fixed(places), fixed(rows), fixed(columns)],
    )?;
    let narrow = vec![batch.clone(), channels.clone(), fixed(rows), fixed(wide)];
    let narrow = call.full(narrow, Argument::Int(0), x.dtype)?;
    let blank = vec![batch, channels, fixed(tall), fixed(wide)];
    let blank = call.full(blank, Argument::Int(0), x.dtype)?;
    let mut sum = blank.clone();
    for place in 0..places {
        let part = call.select(&apart, 2, Argument::Int(place))?;
        let (row, column) = (place / found.kernel[1], place % found.kernel[1]);
        let start = (checked(column) * found.dilation[1]).get()?;
        let spread = written(call, &narrow, &part, 3, start, columns, found.stride[1])?;
        let start = (checked(row) * found.dilation[0]).get()?;
        let spread = written(call, &blank, &spread, 2, start, rows, found.stride[0])?;
        sum = call.add(&sum, &spread)?;
    }
    let kept = call.slice(&sum, 2, found.padding[0], height, 1)?;
    let kept = call.slice(&kept, 3, found.padding[1], width, 1)?;
    one(call.view(&kept, sizes)?)
}

/// Writes a part to `count` positions of a dimension, `step` apart.
fn written(
    call: &mut Call<'_>,
    on: &Tensor,
    part: &Tensor,
    at: usize,
    start: i64,
    count: i64,
    step: i64,
) -> TensorResult {
    let end = ((checked(count) - 1) * step + start + 1).get()?;
    let given = given!(self = on, src = part, dim = at, start = start, end = end, step = step);
    call.like(on, "aten.slice_scatter.default", given)
}
