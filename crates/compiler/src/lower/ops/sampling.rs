//! Pictures looked up at points that are data.

use coremill_mil::ir::ValueId;
use coremill_mil::ops::OpKind;

use crate::error::refuse;
use crate::lower::call::{Call, Results};
use crate::lower::table::{Row, all};
use crate::lower::value::Int;

pub(crate) const ROWS: &[Row] = &[
    all("aten.grid_sampler", grid_sampler),
    all("aten.grid_sampler_2d", grid_sampler),
    all("aten.affine_grid_generator", affine_grid),
];

fn grid_sampler(call: &mut Call<'_, '_>) -> Results {
    let x = call.tensor("input")?.value;
    let grid = call.tensor("grid")?.value;
    if call.rank(x) != 4 {
        refuse!("`input` has rank {}; accepted is 4", call.rank(x));
    }
    let mode = match call.known_int("interpolation_mode")? {
        0 => "bilinear",
        1 => "nearest",
        other => {
            refuse!("`interpolation_mode` is {other}; accepted are 0, bilinear, and 1, nearest")
        }
    };
    let align_corners = call.flag("align_corners")?;
    // torch mirrors at the centers of the pixels at the edges if those are the corners, else at the
    // edges.
    let padding = match (call.known_int("padding_mode")?, align_corners) {
        (0, _) => "constant",
        (1, _) => "border",
        (2, true) => "reflection",
        (2, false) => "symmetric",
        (other, _) => refuse!("`padding_mode` is {other}; accepted are 0 to 2"),
    };
    let y = call.emit(
        OpKind::Resample,
        [
            ("x", x.into()),
            ("coordinates", grid.into()),
            ("sampling_mode", mode.into()),
            ("padding_mode", padding.into()),
            ("padding_value", 0.0f32.into()),
            ("coordinates_mode", "normalized_minus_one_to_one".into()),
            ("align_corners", align_corners.into()),
        ],
    )?;
    call.give(y)
}

/// The points of a grid, moved by a matrix for each picture.
fn affine_grid(call: &mut Call<'_, '_>) -> Results {
    let theta = call.tensor("theta")?.value;
    let sizes = call.known_ints("size")?;
    let align_corners = call.flag("align_corners")?;
    let Some(extents) = sizes.get(2..) else { refuse!("`size` is {sizes:?}; accepted are 4 or 5") };
    let base = base_grid(call, extents, align_corners);
    let points = call.emit(
        OpKind::Matmul,
        [("x", base.into()), ("y", theta.into()), ("transpose_y", true.into())],
    )?;
    let mut result: Vec<_> = vec![Int::Known(-1)];
    result.extend(extents.iter().map(|&extent| Int::Known(extent)));
    result.push(Int::Known(extents.len() as i64));
    let grid = call.reshape(points, &result)?;
    call.give(grid)
}

/// Each point of a grid by its coordinates, the last axis first, and a one.
fn base_grid(call: &mut Call<'_, '_>, extents: &[i64], align_corners: bool) -> ValueId {
    let line = |at: i64, extent: i64| match align_corners {
        true if extent == 1 => 0.0,
        true => (2.0 * at as f64 / (extent - 1) as f64 - 1.0) as f32,
        false => ((2.0 * at as f64 + 1.0) / extent as f64 - 1.0) as f32,
    };
    let mut points: Vec<Vec<f32>> = vec![vec![1.0]];
    for &extent in extents {
        let longer = points.iter().flat_map(|point| {
            (0..extent).map(move |at| {
                let mut longer = vec![line(at, extent)];
                longer.extend(point);
                longer
            })
        });
        points = longer.collect();
    }
    let shape = [points.len() as u64, extents.len() as u64 + 1];
    let elements: Vec<f32> = points.into_iter().flatten().collect();
    call.float_constant(&shape, &elements)
}
