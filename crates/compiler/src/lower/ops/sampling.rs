//! Sampling of images and volumes at computed points (`grid_sample`).
//!
//! Core ML's `resample` samples images bilinearly or at the nearest pixel. Other cases are reduced to it: the planes
//! of a volume are stacked vertically to an image, and a cubic sample combines sixteen pixels.

use crate::lower::prelude::*;

pub(crate) const ROWS: &[Row] = &[tensor("aten.grid_sampler{,_2d,_3d}", grid_sampler)];

/// Values outside the input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OutOfRange {
    Zeros,
    Border,
    /// Reflection at the centers or at the outer edges of the outermost elements.
    Mirror,
}

fn grid_sampler(call: &mut Call<'_, '_>) -> ValueResult {
    let x = call.value("input")?;
    let grid = call.value("grid")?;
    let mode = call.known_int("interpolation_mode")?;
    let align_corners = call.flag("align_corners")?;
    let outside = match call.known_int("padding_mode")? {
        0 => OutOfRange::Zeros,
        1 => OutOfRange::Border,
        2 => OutOfRange::Mirror,
        other => refuse!("`padding_mode` must be from 0 to 2, got {other}"),
    };
    let sampling = Sampling { bilinear: mode == 0, outside, align_corners, normalized: true };
    match (call.rank(x), mode) {
        (4, 0 | 1) => resampled(call, x, grid, sampling),
        (4, 2) => cubic(call, x, grid, sampling),
        (5, 0 | 1) => volume(call, x, grid, sampling),
        (rank, mode) => refuse!(
            "`interpolation_mode` is {mode} and `input` has rank {rank}; expected 0, 1 or 2 with rank 4, or 0 or 1 with \
             rank 5"
        ),
    }
}

/// Parameters of `resample`.
#[derive(Clone, Copy)]
struct Sampling {
    bilinear: bool,
    outside: OutOfRange,
    align_corners: bool,
    /// Whether coordinates range from -1 to 1 instead of being pixel indices.
    normalized: bool,
}

fn resampled(
    builder: &mut Builder,
    x: ValueId,
    coordinates: ValueId,
    sampling: Sampling,
) -> ValueResult {
    // torch reflects at the centers of the edge pixels with `align_corners`, and at their outer edges without.
    let padding = match (sampling.outside, sampling.align_corners) {
        (OutOfRange::Zeros, _) => "constant",
        (OutOfRange::Border, _) => "border",
        (OutOfRange::Mirror, true) => "reflection",
        (OutOfRange::Mirror, false) => "symmetric",
    };
    let mode = if sampling.normalized { "normalized_minus_one_to_one" } else { "unnormalized" };
    emit!(
        builder,
        OpKind::Resample,
        x,
        coordinates,
        sampling_mode = if sampling.bilinear { "bilinear" } else { "nearest" },
        padding_mode = padding,
        padding_value = 0.0f32,
        coordinates_mode = mode,
        align_corners = sampling.align_corners,
    )
}

fn fixed(builder: &Builder, x: ValueId, what: &str) -> Result<Vec<i64>> {
    match builder.fixed_shape(x) {
        Some(shape) => Ok(shape.into_iter().map(|extent| extent as i64).collect()),
        None => refuse!("{what} requires fixed sizes"),
    }
}

/// Splits the last axis into separate tensors.
fn columns(builder: &mut Builder, x: ValueId, count: i32) -> Result<Vec<ValueId>> {
    let mut columns = Vec::with_capacity(count as usize);
    for column in builder.split_evenly(x, count, -1)? {
        columns.push(builder.squeeze(column, &[-1])?);
    }
    Ok(columns)
}

impl Sampling {
    /// Converts a coordinate from the range -1 to 1 to elements.
    fn in_elements(self, builder: &mut Builder, coordinate: ValueId, extent: i64) -> ValueResult {
        let extent = extent as f64;
        let factor = if self.align_corners { (extent - 1.0) / 2.0 } else { extent / 2.0 };
        let scaled = builder.scaled(coordinate, factor)?;
        builder.binary(OpKind::Add, scaled, ((extent - 1.0) / 2.0) as f32)
    }

    /// Reflects a coordinate into the range.
    fn mirrored(self, builder: &mut Builder, coordinate: ValueId, extent: i64) -> ValueResult {
        let (low, span) = match self.align_corners {
            true => (0.0, (extent - 1) as f64),
            false => (-0.5, extent as f64),
        };
        if span <= 0.0 {
            return builder.scaled(coordinate, 0.0);
        }
        // A triangle wave of period 2s: |d - 2s · round(d / 2s)|.
        let (wave, waves) = (2.0 * span as f32, (0.5 / span) as f32);
        let (low, up) = (low as f32, -low as f32);
        let formula =
            "distance = coordinate + up; abs(distance - round(distance * waves) * wave) + low";
        calc!(builder, formula, coordinate, low, up, wave, waves)
    }
}

/// Linear interpolation between two tensors.
pub(super) fn between(
    builder: &mut Builder,
    low: ValueId,
    high: ValueId,
    share: ValueId,
) -> ValueResult {
    calc!(builder, "low + (high - low) * share", low, high, share)
}

/// Samples volumes. The planes of each volume are stacked vertically to an image; sampling rows never fall between
/// two planes.
fn volume(builder: &mut Builder, x: ValueId, grid: ValueId, sampling: Sampling) -> ValueResult {
    let Sampling { bilinear: linear, outside, .. } = sampling;
    let shape = fixed(builder, x, "sampling of volumes")?;
    let points = fixed(builder, grid, "sampling of volumes")?;
    // A border of zeros represents the outside.
    let border = i64::from(outside == OutOfRange::Zeros);
    let edge = border as i32;
    let mut volume = x;
    if border > 0 {
        volume = builder.padded(x, &[0, 0, 0, 0, edge, edge, edge, edge, edge, edge], 0.0)?;
    }
    let &[batch, channels, depth, height, width] = &shape[..] else {
        refuse!("sampling of volumes requires a tensor of rank 5, got {}", shape.len());
    };
    let [depth, height, width] = [depth, height, width].map(|extent| extent + 2 * border);
    let picture = [batch, channels, depth * height, width].map(Int::Known);
    let picture = builder.reshape(volume, &picture)?;

    let flat = [*points.at(0)?, *points.at(1)?, *points.at(2)? * *points.at(3)?, 3].map(Int::Known);
    let grid = builder.reshape(grid, &flat)?;
    let mut places = Vec::with_capacity(3);
    for (column, axis) in columns(builder, grid, 3)?.into_iter().zip([4, 3, 2]) {
        let mut at = sampling.in_elements(builder, column, *shape.at(axis)?)?;
        if outside == OutOfRange::Mirror {
            at = sampling.mirrored(builder, at, *shape.at(axis)?)?;
        }
        if !linear {
            at = builder.unary(OpKind::Round, at)?;
        }
        if border > 0 {
            at = builder.binary(OpKind::Add, at, border as f32)?;
        }
        places.push(builder.clip(at, 0.0, (*shape.at(axis)? + 2 * border - 1) as f32)?);
    }
    let (column, row, plane) = (*places.at(0)?, *places.at(1)?, *places.at(2)?);
    let sampling = Sampling {
        bilinear: linear,
        outside: OutOfRange::Border,
        align_corners: true,
        normalized: false,
    };
    let seen = |builder: &mut Builder, plane: ValueId| {
        let start = builder.scaled(plane, height as f64)?;
        let row = builder.binary(OpKind::Add, row, start)?;
        let coordinates = builder.stack(&[column, row], -1)?;
        resampled(builder, picture, coordinates, sampling)
    };
    let y = if linear {
        let last = (depth - 1) as f32;
        let formula =
            "before = floor(plane); share = plane - before; before, share, min(before + 1.0, last)";
        let [before, share, next] = calc!(all builder, formula, plane, last)?;
        let (low, high) = (seen(builder, before)?, seen(builder, next)?);
        let share = builder.expand_dims(share, &[1])?;
        between(builder, low, high, share)?
    } else {
        seen(builder, plane)?
    };
    let result = [*shape.at(0)?, *shape.at(1)?, *points.at(1)?, *points.at(2)?, *points.at(3)?]
        .map(Int::Known);
    builder.reshape(y, &result)
}

/// Bicubic sampling: weighted sum of sixteen pixels.
fn cubic(builder: &mut Builder, x: ValueId, grid: ValueId, sampling: Sampling) -> ValueResult {
    let shape = fixed(builder, x, "cubic sampling")?;
    let points = fixed(builder, grid, "cubic sampling")?;
    let (batch, rows, columns_count) = (*points.at(0)?, *points.at(1)?, *points.at(2)?);
    let steps = builder.float_constant(&[4], &[-1.0, 0.0, 1.0, 2.0]);
    let mut places = Vec::with_capacity(2);
    let mut weights = Vec::with_capacity(2);
    for (column, axis) in columns(builder, grid, 2)?.into_iter().zip([3, 2]) {
        let at = sampling.in_elements(builder, column, *shape.at(axis)?)?;
        let [low, share] = calc!(all builder, "low = floor(at); low, at - low", at)?;
        let (low, share) = (builder.expand_dims(low, &[3])?, builder.expand_dims(share, &[3])?);
        places.push(builder.binary(OpKind::Add, low, steps)?);
        let distance = calc!(builder, "abs(share - steps)", share, steps)?;
        weights.push(cubic_weights(builder, distance, -0.75)?);
    }
    // For each point, all columns of its first row, then of the next rows.
    let zeros = builder.float_constant(&[4, 1], &[0.0; 4]);
    let columns = builder.expand_dims(*places.at(0)?, &[3])?;
    let columns = builder.binary(OpKind::Add, columns, zeros)?;
    let zeros = builder.float_constant(&[1, 4], &[0.0; 4]);
    let lines = builder.expand_dims(*places.at(1)?, &[4])?;
    let lines = builder.binary(OpKind::Add, lines, zeros)?;
    let flat = [batch, rows, columns_count * 16].map(Int::Known);
    let (columns, lines) = (builder.reshape(columns, &flat)?, builder.reshape(lines, &flat)?);
    let coordinates = builder.stack(&[columns, lines], -1)?;
    let sampling = Sampling { normalized: false, ..sampling };
    let pixels = resampled(builder, x, coordinates, sampling)?;
    let apart = [batch, *shape.at(1)?, rows, columns_count, 16].map(Int::Known);
    let pixels = builder.reshape(pixels, &apart)?;
    let of_columns = builder.expand_dims(*weights.at(0)?, &[3])?;
    let of_rows = builder.expand_dims(*weights.at(1)?, &[4])?;
    let both = builder.binary(OpKind::Mul, of_columns, of_rows)?;
    let both = builder.reshape(both, &[batch, 1, rows, columns_count, 16].map(Int::Known))?;
    let products = builder.binary(OpKind::Mul, pixels, both)?;
    builder.reduced(OpKind::ReduceSum, products, &[4], false)
}

/// Keys' cubic kernel for distances from zero to two.
pub(crate) fn cubic_weights(builder: &mut Builder, distance: ValueId, a: f32) -> ValueResult {
    let (x, p, q) = (distance, a + 2.0, -(a + 3.0));
    let (b, c, d) = (-5.0 * a, 8.0 * a, -4.0 * a);
    let formula = "near = (x * p + q) * x * x + 1.0; far = ((x * a + b) * x + c) * x + d; \
                   where(x <= 1.0, near, far)";
    calc!(builder, formula, x, a, b, c, d, p, q)
}
