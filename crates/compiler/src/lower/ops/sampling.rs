//! Pictures and volumes looked up at points that are data.
//!
//! Core ML's `resample` looks up pictures, between four pixels or at the nearest one. The rest is brought to
//! that: the planes of a volume one below the other are a picture, and a cubic is sixteen pixels.

use coremill_mil::ir::ValueId;
use coremill_mil::ops::OpKind;

use super::convolution::padded;
use crate::bounds::At;
use crate::error::{Refusal, refuse};
use crate::lower::builder::Builder;
use crate::lower::call::{Call, Results};
use crate::lower::row::{Row, all};
use crate::lower::value::Int;

pub(crate) const ROWS: &[Row] = &[
    all("aten.grid_sampler", grid_sampler),
    all("aten.grid_sampler_2d", grid_sampler),
    all("aten.grid_sampler_3d", grid_sampler),
];

/// What lies outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outside {
    Zeros,
    Border,
    /// Mirrored at the centers of the outermost elements, or at their edges.
    Mirror,
}

fn grid_sampler(call: &mut Call<'_, '_>) -> Results {
    let x = call.tensor("input")?.value;
    let grid = call.tensor("grid")?.value;
    let mode = call.known_int("interpolation_mode")?;
    let align_corners = call.flag("align_corners")?;
    let outside = match call.known_int("padding_mode")? {
        0 => Outside::Zeros,
        1 => Outside::Border,
        2 => Outside::Mirror,
        other => refuse!("`padding_mode` is {other}; accepted are 0 to 2"),
    };
    let y = match (call.rank(x), mode) {
        (4, 0 | 1) => {
            let sampling =
                Sampling { bilinear: mode == 0, outside, align_corners, normalized: true };
            resampled(call, x, grid, sampling)?
        }
        (4, 2) => cubic(call, x, grid, outside, align_corners)?,
        (5, 0 | 1) => volume(call, x, grid, mode == 0, outside, align_corners)?,
        (rank, mode) => refuse!(
            "`interpolation_mode` is {mode} and `input` has rank {rank}; accepted are 0, 1 and 2 of \
             rank 4, and 0 and 1 of rank 5"
        ),
    };
    call.give(y)
}

/// How `resample` looks up pixels.
#[derive(Clone, Copy)]
struct Sampling {
    bilinear: bool,
    outside: Outside,
    align_corners: bool,
    /// Whether coordinates go from -1 to 1, and not by pixels.
    normalized: bool,
}

fn resampled(
    builder: &mut Builder,
    x: ValueId,
    coordinates: ValueId,
    sampling: Sampling,
) -> Result<ValueId, Refusal> {
    // torch mirrors at the centers of the pixels at the edges if those are the corners, else at the
    // edges.
    let padding = match (sampling.outside, sampling.align_corners) {
        (Outside::Zeros, _) => "constant",
        (Outside::Border, _) => "border",
        (Outside::Mirror, true) => "reflection",
        (Outside::Mirror, false) => "symmetric",
    };
    let mode = if sampling.normalized { "normalized_minus_one_to_one" } else { "unnormalized" };
    builder.emit(
        OpKind::Resample,
        [
            ("x", x.into()),
            ("coordinates", coordinates.into()),
            ("sampling_mode", if sampling.bilinear { "bilinear" } else { "nearest" }.into()),
            ("padding_mode", padding.into()),
            ("padding_value", 0.0f32.into()),
            ("coordinates_mode", mode.into()),
            ("align_corners", sampling.align_corners.into()),
        ],
    )
}

fn fixed(builder: &Builder, x: ValueId, what: &str) -> Result<Vec<i64>, Refusal> {
    match builder.fixed_shape(x) {
        Some(shape) => Ok(shape.into_iter().map(|extent| extent as i64).collect()),
        None => refuse!("{what} is lowered for sizes that are fixed"),
    }
}

/// The last axis of a tensor, taken apart.
fn columns(builder: &mut Builder, x: ValueId, count: i32) -> Result<Vec<ValueId>, Refusal> {
    let mut columns = Vec::with_capacity(count as usize);
    for column in builder.split_evenly(x, count, -1)? {
        columns.push(builder.squeeze(column, &[-1])?);
    }
    Ok(columns)
}

/// A coordinate from -1 to 1 in elements.
fn in_elements(
    builder: &mut Builder,
    coordinate: ValueId,
    extent: i64,
    align_corners: bool,
) -> Result<ValueId, Refusal> {
    let extent = extent as f64;
    let (factor, offset) = match align_corners {
        true => ((extent - 1.0) / 2.0, (extent - 1.0) / 2.0),
        false => (extent / 2.0, (extent - 1.0) / 2.0),
    };
    let scaled = builder.scaled(coordinate, factor)?;
    builder.binary(OpKind::Add, scaled, offset as f32)
}

/// The element that stands for one outside, by a mirror.
fn mirrored(
    builder: &mut Builder,
    coordinate: ValueId,
    extent: i64,
    align_corners: bool,
) -> Result<ValueId, Refusal> {
    let (low, span) = match align_corners {
        true => (0.0, (extent - 1) as f64),
        false => (-0.5, extent as f64),
    };
    if span <= 0.0 {
        return builder.scaled(coordinate, 0.0);
    }
    // A wave of twice the span that goes up and down: |d - 2s · round(d / 2s)|.
    let distance = builder.binary(OpKind::Add, coordinate, -low as f32)?;
    let waves = builder.scaled(distance, 0.5 / span)?;
    let nearest = builder.unary(OpKind::Round, waves)?;
    let start = builder.scaled(nearest, 2.0 * span)?;
    let beyond = builder.binary(OpKind::Sub, distance, start)?;
    let size = builder.unary(OpKind::Abs, beyond)?;
    builder.binary(OpKind::Add, size, low as f32)
}

pub(crate) fn clipped(
    builder: &mut Builder,
    x: ValueId,
    low: f32,
    high: f32,
) -> Result<ValueId, Refusal> {
    builder.emit(OpKind::Clip, [("x", x.into()), ("alpha", low.into()), ("beta", high.into())])
}

/// Tensors side by side along a new last axis.
pub(crate) fn side_by_side(builder: &mut Builder, values: &[ValueId]) -> Result<ValueId, Refusal> {
    builder.emit(OpKind::Stack, [("values", values.into()), ("axis", (-1).into())])
}

/// Elements of volumes. The planes of each lie one below the other in a picture, in which no point between
/// two pixels is between two planes.
fn volume(
    builder: &mut Builder,
    x: ValueId,
    grid: ValueId,
    linear: bool,
    outside: Outside,
    align_corners: bool,
) -> Result<ValueId, Refusal> {
    let shape = fixed(builder, x, "sampling of volumes")?;
    let points = fixed(builder, grid, "sampling of volumes")?;
    // A border of zeros is what lies outside.
    let border = i64::from(outside == Outside::Zeros);
    let edge = border as i32;
    let mut volume = x;
    if border > 0 {
        volume = padded(builder, x, &[0, 0, 0, 0, edge, edge, edge, edge, edge, edge], 0.0)?;
    }
    let &[batch, channels, depth, height, width] = &shape[..] else {
        refuse!("samples from a tensor of rank {}; volumes have rank 5", shape.len());
    };
    let [depth, height, width] = [depth, height, width].map(|extent| extent + 2 * border);
    let picture = [batch, channels, depth * height, width].map(Int::Known);
    let picture = builder.reshape(volume, &picture)?;

    let flat = [*points.at(0)?, *points.at(1)?, *points.at(2)? * *points.at(3)?, 3].map(Int::Known);
    let grid = builder.reshape(grid, &flat)?;
    let mut places = Vec::with_capacity(3);
    for (column, axis) in columns(builder, grid, 3)?.into_iter().zip([4, 3, 2]) {
        let mut at = in_elements(builder, column, *shape.at(axis)?, align_corners)?;
        if outside == Outside::Mirror {
            at = mirrored(builder, at, *shape.at(axis)?, align_corners)?;
        }
        if !linear {
            at = builder.unary(OpKind::Round, at)?;
        }
        if border > 0 {
            at = builder.binary(OpKind::Add, at, border as f32)?;
        }
        places.push(clipped(builder, at, 0.0, (*shape.at(axis)? + 2 * border - 1) as f32)?);
    }
    let (column, row, plane) = (*places.at(0)?, *places.at(1)?, *places.at(2)?);
    let sampling = Sampling {
        bilinear: linear,
        outside: Outside::Border,
        align_corners: true,
        normalized: false,
    };
    let seen = |builder: &mut Builder, plane: ValueId| {
        let start = builder.scaled(plane, height as f64)?;
        let row = builder.binary(OpKind::Add, row, start)?;
        let coordinates = side_by_side(builder, &[column, row])?;
        resampled(builder, picture, coordinates, sampling)
    };
    let y = if linear {
        let before = builder.unary(OpKind::Floor, plane)?;
        let share = builder.binary(OpKind::Sub, plane, before)?;
        let next = builder.binary(OpKind::Add, before, 1.0f32)?;
        let next = builder.binary(OpKind::Minimum, next, (depth - 1) as f32)?;
        let (low, high) = (seen(builder, before)?, seen(builder, next)?);
        let share = builder.expand_dims(share, &[1])?;
        let distance = builder.binary(OpKind::Sub, high, low)?;
        let moved = builder.binary(OpKind::Mul, distance, share)?;
        builder.binary(OpKind::Add, low, moved)?
    } else {
        seen(builder, plane)?
    };
    let result = [*shape.at(0)?, *shape.at(1)?, *points.at(1)?, *points.at(2)?, *points.at(3)?]
        .map(Int::Known);
    builder.reshape(y, &result)
}

/// Sixteen pixels around each point, by their weights.
fn cubic(
    builder: &mut Builder,
    x: ValueId,
    grid: ValueId,
    outside: Outside,
    align_corners: bool,
) -> Result<ValueId, Refusal> {
    let shape = fixed(builder, x, "cubic sampling")?;
    let points = fixed(builder, grid, "cubic sampling")?;
    let (batch, rows, columns_count) = (*points.at(0)?, *points.at(1)?, *points.at(2)?);
    let steps = builder.float_constant(&[4], &[-1.0, 0.0, 1.0, 2.0]);
    let mut places = Vec::with_capacity(2);
    let mut weights = Vec::with_capacity(2);
    for (column, axis) in columns(builder, grid, 2)?.into_iter().zip([3, 2]) {
        let at = in_elements(builder, column, *shape.at(axis)?, align_corners)?;
        let low = builder.unary(OpKind::Floor, at)?;
        let share = builder.binary(OpKind::Sub, at, low)?;
        let (low, share) = (builder.expand_dims(low, &[3])?, builder.expand_dims(share, &[3])?);
        places.push(builder.binary(OpKind::Add, low, steps)?);
        let distance = builder.binary(OpKind::Sub, share, steps)?;
        let distance = builder.unary(OpKind::Abs, distance)?;
        weights.push(cubic_weights(builder, distance, -0.75)?);
    }
    // Of each point, all columns of the first row, then those of the next.
    let wide = |builder: &mut Builder, value, axis: i32| builder.expand_dims(value, &[axis]);
    let zeros = builder.float_constant(&[4, 1], &[0.0; 4]);
    let columns = wide(builder, *places.at(0)?, 3)?;
    let columns = builder.binary(OpKind::Add, columns, zeros)?;
    let zeros = builder.float_constant(&[1, 4], &[0.0; 4]);
    let lines = wide(builder, *places.at(1)?, 4)?;
    let lines = builder.binary(OpKind::Add, lines, zeros)?;
    let flat = [batch, rows, columns_count * 16].map(Int::Known);
    let (columns, lines) = (builder.reshape(columns, &flat)?, builder.reshape(lines, &flat)?);
    let coordinates = side_by_side(builder, &[columns, lines])?;
    let sampling = Sampling { bilinear: false, outside, align_corners, normalized: false };
    let pixels = resampled(builder, x, coordinates, sampling)?;
    let apart = [batch, *shape.at(1)?, rows, columns_count, 16].map(Int::Known);
    let pixels = builder.reshape(pixels, &apart)?;
    let of_columns = wide(builder, *weights.at(0)?, 3)?;
    let of_rows = wide(builder, *weights.at(1)?, 4)?;
    let both = builder.binary(OpKind::Mul, of_columns, of_rows)?;
    let both = builder.reshape(both, &[batch, 1, rows, columns_count, 16].map(Int::Known))?;
    let products = builder.binary(OpKind::Mul, pixels, both)?;
    builder.reduced(OpKind::ReduceSum, products, &[4], false)
}

/// Keys' cubic of distances from zero to two.
pub(crate) fn cubic_weights(
    builder: &mut Builder,
    distance: ValueId,
    a: f32,
) -> Result<ValueId, Refusal> {
    // Each by Horner's rule: a x³ + b x² + c x + d.
    let mut polynomial = |terms: [f32; 4]| {
        let mut value = builder.binary(OpKind::Mul, distance, terms[0])?;
        for term in [terms[1], terms[2]] {
            if term != 0.0 {
                value = builder.binary(OpKind::Add, value, term)?;
            }
            value = builder.binary(OpKind::Mul, value, distance)?;
        }
        builder.binary(OpKind::Add, value, terms[3])
    };
    let near = polynomial([a + 2.0, -(a + 3.0), 0.0, 1.0])?;
    let far = polynomial([a, -5.0 * a, 8.0 * a, -4.0 * a])?;
    let is_near = builder.binary(OpKind::LessEqual, distance, 1.0f32)?;
    builder.select(is_near, near, far)
}
