//! Interpolation: the same pictures, lines and volumes with more or fewer elements.
//!
//! torch and Core ML place the points of a result in several ways. Where an operation of Core ML has the same
//! one it is used; otherwise each axis is resized by a constant matrix, or by lookups.

mod points;

use coremill_mil::ir::{Constant, Opset, ValueId};
use coremill_mil::ops::OpKind;
use coremill_tensor::DType;

use self::points::{Filter, Points};
use super::adaptive::times_along;
use super::pooling::gathered;
use super::sampling::cubic_weights;
use crate::bounds::At;
use crate::error::{Refusal, refuse};
use crate::lower::builder::Builder;
use crate::lower::call::{Call, Results};
use crate::lower::row::{Row, all};
use crate::lower::value::Int;

pub(crate) const ROWS: &[Row] = &[
    all("aten.upsample_nearest1d", |call| nearest(call, 1, false)),
    all("aten.upsample_nearest2d", |call| nearest(call, 2, false)),
    all("aten.upsample_nearest3d", |call| nearest(call, 3, false)),
    all("aten._upsample_nearest_exact1d", |call| nearest(call, 1, true)),
    all("aten._upsample_nearest_exact2d", |call| nearest(call, 2, true)),
    all("aten._upsample_nearest_exact3d", |call| nearest(call, 3, true)),
    all("aten.upsample_linear1d", |call| linear(call, 1)),
    all("aten.upsample_bilinear2d", |call| linear(call, 2)),
    all("aten.upsample_bicubic2d", |call| filtered(call, Filter::Cubic)),
    all("aten._upsample_bilinear2d_aa", |call| filtered(call, Filter::SmoothLinear)),
    all("aten._upsample_bicubic2d_aa", |call| filtered(call, Filter::SmoothCubic)),
    all("aten._upsample_lanczos2d_aa", |call| filtered(call, Filter::SmoothLanczos)),
];

/// Matrices of more elements are not written into a program where something else does.
const MAX_MATRIX_ELEMENTS: i64 = 1 << 20;

/// Elements along an axis of a result; places and weights are listed for each.
const MAX_EXTENT: i64 = 1 << 24;

/// One axis that is resized.
#[derive(Clone, Copy, Debug)]
struct Axis {
    input: Int,
    output: Int,
    /// The factor that torch was given, which need not be the ratio of the sizes.
    factor: Option<f64>,
}

impl Axis {
    fn known(&self) -> Option<(i64, i64)> {
        Some((self.input.known()?, self.output.known()?))
    }

    fn points(&self) -> Option<Points> {
        let (input, output) = self.known()?;
        Some(Points { input, output, factor: self.factor })
    }

    /// The factor as Core ML's upsampling takes it, if it gives the size that is asked for.
    fn upsampling(&self) -> Option<f32> {
        let Some((input, output)) = self.known() else {
            return self.factor.map(|factor| factor as f32);
        };
        if output % input == 0 {
            return Some((output / input) as f32);
        }
        let ratio = output as f32 / input as f32;
        let tried = [ratio, ratio.next_up(), ratio.next_up().next_up()];
        tried.into_iter().find(|ratio| (input as f32 * ratio).floor() == output as f32)
    }
}

/// The tensor that is resized, with as many axes at its end as are resized.
struct Resizing {
    x: ValueId,
    axes: Vec<Axis>,
}

impl Resizing {
    fn of(call: &mut Call<'_, '_>, spatial: usize) -> Result<Resizing, Refusal> {
        let named = if call.has("self") { "self" } else { "input" };
        let x = call.tensor(named)?.value;
        if call.rank(x) != spatial + 2 {
            refuse!("`{named}` has rank {}; accepted is {}", call.rank(x), spatial + 2);
        }
        let factors = factors(call, spatial)?;
        let sizes = call.int_list("output_size")?;
        let mut axes = Vec::with_capacity(spatial);
        for (axis, factor) in factors.into_iter().enumerate() {
            let input = call.dim(x, axis + 2)?;
            let output = match (sizes.get(axis), factor, input.known()) {
                (Some(size), ..) => *size,
                (None, Some(factor), Some(input)) => {
                    Int::Known((input as f64 * factor).floor() as i64)
                }
                (None, Some(factor), None) => computed_size(call, input, factor)?,
                (None, None, _) => refuse!("neither sizes nor factors are given"),
            };
            if let Int::Known(extent) = output
                && !(1..=MAX_EXTENT).contains(&extent)
            {
                refuse!(
                    "resizes to {extent} elements along an axis; accepted are 1 to {MAX_EXTENT}"
                );
            }
            axes.push(Axis { input, output, factor });
        }
        Ok(Resizing { x, axes })
    }

    fn is_static(&self) -> bool {
        self.axes.iter().all(|axis| axis.known().is_some())
    }

    fn is_same(&self) -> bool {
        self.axes.iter().all(|axis| axis.known().is_some_and(|(input, output)| input == output))
    }

    fn points(&self) -> Option<Vec<Points>> {
        self.axes.iter().map(Axis::points).collect()
    }

    /// The sizes of the result.
    fn sizes(&self, builder: &mut Builder) -> Result<Vec<Int>, Refusal> {
        let mut sizes = builder.dims(self.x)?.part(..2)?.to_vec();
        sizes.extend(self.axes.iter().map(|axis| axis.output));
        Ok(sizes)
    }
}

/// The factors that are given, by axis.
fn factors(call: &mut Call<'_, '_>, spatial: usize) -> Result<Vec<Option<f64>>, Refusal> {
    if call.node.argument("scale_factors").is_some() {
        let factors = call.floats("scale_factors")?;
        return Ok((0..spatial).map(|axis| factors.get(axis).copied()).collect());
    }
    let names: &[&str] = match spatial {
        1 => &["scales"],
        2 => &["scales_h", "scales_w"],
        _ => &["scales_d", "scales_h", "scales_w"],
    };
    names.iter().map(|name| call.optional_float(name)).collect()
}

/// A size that is known when the program runs, times a factor.
fn computed_size(builder: &mut Builder, input: Int, factor: f64) -> Result<Int, Refusal> {
    let size = builder.int_value(input)?;
    if factor.fract() == 0.0 {
        let factor = factor as i32;
        return Ok(Int::Computed(builder.binary(OpKind::Mul, size, factor)?));
    }
    let size = builder.cast(size, DType::Fp32)?;
    let larger = builder.scaled(size, factor)?;
    let floor = builder.unary(OpKind::Floor, larger)?;
    Ok(Int::Computed(builder.cast(floor, DType::Int32)?))
}

fn nearest(call: &mut Call<'_, '_>, spatial: usize, centered: bool) -> Results {
    let resizing = Resizing::of(call, spatial)?;
    let y = if resizing.is_same() {
        resizing.x
    } else {
        match resizing.points() {
            Some(points) => nearest_places(call, &resizing, &points, centered)?,
            None => nearest_computed(call, &resizing, centered)?,
        }
    };
    call.give(y)
}

/// Every element of the result is one whose place is known now.
fn nearest_places(
    builder: &mut Builder,
    resizing: &Resizing,
    points: &[Points],
    centered: bool,
) -> Result<ValueId, Refusal> {
    let chosen: Vec<_> = points.iter().map(|points| points.nearest(centered)).collect();
    let x = resizing.x;
    // Core ML's own operations take floats only.
    if let ([height, width], DType::Fp32) = (points, builder.dtype(x)) {
        let equal = |of: fn(&Points) -> Vec<i64>| chosen == [of(height), of(width)];
        let factors = [resizing.axes.at(0)?.upsampling(), resizing.axes.at(1)?.upsampling()];
        if let ([Some(rows), Some(columns)], true) = (factors, equal(Points::repeated)) {
            return upsampled(builder, x, [rows, columns]);
        }
        if equal(Points::central) {
            let (rows, columns) = (height.output as i32, width.output as i32);
            return builder.emit(
                OpKind::ResizeNearestNeighbor,
                [
                    ("x", x.into()),
                    ("target_size_height", rows.into()),
                    ("target_size_width", columns.into()),
                ],
            );
        }
    }
    let mut y = x;
    for (axis, (points, chosen)) in points.iter().zip(&chosen).enumerate() {
        y = taken(builder, y, axis + 2, points, chosen)?;
    }
    Ok(y)
}

fn upsampled(
    builder: &mut Builder,
    x: ValueId,
    [rows, columns]: [f32; 2],
) -> Result<ValueId, Refusal> {
    builder.emit(
        OpKind::UpsampleNearestNeighbor,
        [
            ("x", x.into()),
            ("scale_factor_height", rows.into()),
            ("scale_factor_width", columns.into()),
        ],
    )
}

/// Elements at these places along an axis: a slice, if they are equally far apart.
fn taken(
    builder: &mut Builder,
    x: ValueId,
    axis: usize,
    points: &Points,
    chosen: &[i64],
) -> Result<ValueId, Refusal> {
    if points.input == points.output {
        return Ok(x);
    }
    let (&first, &last) = match (chosen.first(), chosen.last()) {
        (Some(first), Some(last)) => (first, last),
        _ => refuse!("an axis is resized to no elements"),
    };
    let step = chosen.get(1).map_or(1, |second| second - first);
    if step > 0 && chosen.iter().zip(chosen.iter().skip(1)).all(|(at, next)| next - at == step) {
        return builder.strided_slice(x, axis, first, Some(last + 1), step);
    }
    let places: Vec<i32> = chosen.iter().map(|&at| at as i32).collect();
    let places = builder.int_constant(&[places.len() as u64], &places);
    gathered(builder, x, places, axis as i32)
}

/// Elements at places that are computed from the sizes.
fn nearest_computed(
    builder: &mut Builder,
    resizing: &Resizing,
    centered: bool,
) -> Result<ValueId, Refusal> {
    let float = builder.dtype(resizing.x) == DType::Fp32;
    if let ([rows, columns], false, true) = (resizing.axes.as_slice(), centered, float) {
        let whole = |axis: &Axis| axis.factor.filter(|factor| factor.fract() == 0.0);
        if let (Some(rows), Some(columns)) = (whole(rows), whole(columns)) {
            return upsampled(builder, resizing.x, [rows as f32, columns as f32]);
        }
    }
    let mut y = resizing.x;
    for (at, axis) in resizing.axes.iter().enumerate() {
        let end = builder.int_value(axis.output)?;
        let range = builder.emit(
            OpKind::Range1d,
            [("end", end.into()), ("start", 0.into()), ("step", 1.into())],
        )?;
        let mut places = builder.cast(range, DType::Fp32)?;
        if centered {
            places = builder.binary(OpKind::Add, places, 0.5f32)?;
        }
        let scaled = match axis.factor {
            Some(factor) => builder.scaled(places, f64::from((1.0 / factor) as f32))?,
            None => {
                let sizes = [axis.input, axis.output].map(|size| -> Result<_, Refusal> {
                    let size = builder.int_value(size)?;
                    builder.cast(size, DType::Fp32)
                });
                let [input, output] = sizes;
                let scale = builder.binary(OpKind::RealDiv, input?, output?)?;
                builder.binary(OpKind::Mul, places, scale)?
            }
        };
        let places = builder.cast(scaled, DType::Int32)?;
        let input = builder.int_value(axis.input)?;
        let last = builder.binary(OpKind::Sub, input, 1)?;
        let places = builder.binary(OpKind::Minimum, places, last)?;
        y = gathered(builder, y, places, at as i32 + 2)?;
    }
    Ok(y)
}

fn linear(call: &mut Call<'_, '_>, spatial: usize) -> Results {
    let resizing = Resizing::of(call, spatial)?;
    let align_corners = call.flag("align_corners")?;
    if resizing.is_same() {
        return call.give(resizing.x);
    }
    let y = if resizing.is_static() {
        static_linear(call, &resizing, align_corners)?
    } else {
        computed_linear(call, &resizing, align_corners)?
    };
    call.give(y)
}

fn static_linear(
    builder: &mut Builder,
    resizing: &Resizing,
    align_corners: bool,
) -> Result<ValueId, Refusal> {
    let Some(points) = resizing.points() else { refuse!("the sizes are not known") };
    // Core ML goes by the sizes.
    let by_size = align_corners || points.iter().all(Points::is_by_size);
    let matrices = points.iter().all(|points| points.input * points.output <= MAX_MATRIX_ELEMENTS);
    match points.as_slice() {
        [height, width] if by_size => {
            pictures(builder, resizing.x, [height.output, width.output], align_corners)
        }
        [line] if !matrices && by_size => {
            let picture = builder.expand_dims(resizing.x, &[2])?;
            let picture = pictures(builder, picture, [1, line.output], align_corners)?;
            builder.squeeze(picture, &[2])
        }
        [depth, height, width] if by_size => {
            let sizes = resizing.sizes(builder)?;
            let mut y = resizing.x;
            if height.input != height.output || width.input != width.output {
                let (rows, columns) = (Int::Known(height.input), Int::Known(width.input));
                y = builder.reshape(y, &[*sizes.at(0)?, Int::Known(-1), rows, columns])?;
                y = pictures(builder, y, [height.output, width.output], align_corners)?;
            }
            let area = height.output * width.output;
            if depth.input != depth.output {
                let planes =
                    [*sizes.at(0)?, *sizes.at(1)?, Int::Known(depth.input), Int::Known(area)];
                y = builder.reshape(y, &planes)?;
                y = pictures(builder, y, [depth.output, area], align_corners)?;
            }
            builder.reshape(y, &sizes)
        }
        _ => by_matrices(builder, resizing, &points, Filter::Linear, align_corners),
    }
}

/// Pictures resized as Core ML does it.
fn pictures(
    builder: &mut Builder,
    x: ValueId,
    [height, width]: [i64; 2],
    align_corners: bool,
) -> Result<ValueId, Refusal> {
    let mode = if align_corners { "STRICT_ALIGN_CORNERS" } else { "UNALIGN_CORNERS" };
    builder.emit(
        OpKind::ResizeBilinear,
        [
            ("x", x.into()),
            ("target_size_height", (height as i32).into()),
            ("target_size_width", (width as i32).into()),
            ("sampling_mode", mode.into()),
        ],
    )
}

/// The product of a constant matrix with every line along each axis.
fn by_matrices(
    builder: &mut Builder,
    resizing: &Resizing,
    points: &[Points],
    filter: Filter,
    align_corners: bool,
) -> Result<ValueId, Refusal> {
    let mut y = resizing.x;
    for (axis, points) in points.iter().enumerate().rev() {
        if points.input == points.output && points.is_by_size() {
            continue;
        }
        if points.input * points.output > MAX_MATRIX_ELEMENTS << 4 {
            refuse!(
                "resizing {} elements to {} needs a matrix of too many elements",
                points.input,
                points.output
            );
        }
        let matrix = points.matrix(filter, align_corners);
        let shape = [points.output as u64, points.input as u64];
        let matrix = builder.float_constant(&shape, &matrix);
        y = times_along(builder, y, axis + 2, matrix)?;
    }
    Ok(y)
}

/// Sizes that are known when the program runs.
fn computed_linear(
    builder: &mut Builder,
    resizing: &Resizing,
    align_corners: bool,
) -> Result<ValueId, Refusal> {
    let whole = |axis: &Axis| axis.factor.filter(|factor| factor.fract() == 0.0);
    if let [rows, columns] = resizing.axes.as_slice() {
        let factors = (whole(rows), whole(columns));
        if let ((Some(height), Some(width)), false, true) =
            (factors, align_corners, builder.opset() >= Opset::Ios16)
        {
            return builder.emit(
                OpKind::UpsampleBilinear,
                [
                    ("x", resizing.x.into()),
                    ("scale_factor_height", (height as f32).into()),
                    ("scale_factor_width", (width as f32).into()),
                    ("align_corners", false.into()),
                    ("half_pixel_centers", true.into()),
                ],
            );
        }
        let by_size = |axis: &Axis| axis.factor.is_none() || whole(axis).is_some();
        let by_size = align_corners || (by_size(rows) && by_size(columns));
        if by_size && builder.opset() >= Opset::Ios17 {
            let mode = if align_corners { "STRICT_ALIGN_CORNERS" } else { "UNALIGN_CORNERS" };
            let resized = Constant::bytes(DType::UInt32, &[], 2u32.to_le_bytes().to_vec());
            let shape = builder.ints(&[rows.output, columns.output])?;
            return builder.emit(
                OpKind::Resize,
                [
                    ("x", resizing.x.into()),
                    ("shape", shape),
                    ("resized_dims", resized.into()),
                    ("interpolation_mode", "LINEAR".into()),
                    ("sampling_mode", mode.into()),
                ],
            );
        }
    }
    let mut y = resizing.x;
    for (at, axis) in resizing.axes.iter().enumerate() {
        y = computed_line(builder, y, at + 2, axis, align_corners)?;
    }
    Ok(y)
}

/// Points along one axis, each between two elements that are looked up.
fn computed_line(
    builder: &mut Builder,
    x: ValueId,
    at: usize,
    axis: &Axis,
    align_corners: bool,
) -> Result<ValueId, Refusal> {
    let end = builder.int_value(axis.output)?;
    let range = builder
        .emit(OpKind::Range1d, [("end", end.into()), ("start", 0.into()), ("step", 1.into())])?;
    let numbers = builder.cast(range, DType::Fp32)?;
    let input = builder.int_value(axis.input)?;
    let last = builder.binary(OpKind::Sub, input, 1)?;
    let float = |builder: &mut Builder, value| builder.cast(value, DType::Fp32);
    let points = if align_corners {
        // The first point is the first element, and the last the last one.
        let (length, end) = (float(builder, last)?, float(builder, end)?);
        let gaps = builder.binary(OpKind::Sub, end, 1.0f32)?;
        let gaps = builder.binary(OpKind::Maximum, gaps, 1.0f32)?;
        let step = builder.binary(OpKind::RealDiv, length, gaps)?;
        builder.binary(OpKind::Mul, numbers, step)?
    } else {
        let middle = builder.binary(OpKind::Add, numbers, 0.5f32)?;
        let scaled = match axis.factor {
            Some(factor) => builder.scaled(middle, 1.0 / factor)?,
            None => {
                let (input, end) = (float(builder, input)?, float(builder, end)?);
                let step = builder.binary(OpKind::RealDiv, input, end)?;
                builder.binary(OpKind::Mul, middle, step)?
            }
        };
        let points = builder.binary(OpKind::Sub, scaled, 0.5f32)?;
        builder.unary(OpKind::Relu, points)?
    };
    let low = builder.unary(OpKind::Floor, points)?;
    let share = builder.binary(OpKind::Sub, points, low)?;
    let low = builder.cast(low, DType::Int32)?;
    let low = builder.binary(OpKind::Minimum, low, last)?;
    let high = builder.binary(OpKind::Add, low, 1)?;
    let high = builder.binary(OpKind::Minimum, high, last)?;
    let low = gathered(builder, x, low, at as i32)?;
    let high = gathered(builder, x, high, at as i32)?;
    let behind: Vec<_> = (1..(builder.rank(x) - at) as i32).collect();
    let share = builder.expand_dims(share, &behind)?;
    let distance = builder.binary(OpKind::Sub, high, low)?;
    let moved = builder.binary(OpKind::Mul, distance, share)?;
    builder.binary(OpKind::Add, low, moved)
}

fn filtered(call: &mut Call<'_, '_>, filter: Filter) -> Results {
    let resizing = Resizing::of(call, 2)?;
    let align_corners = call.flag("align_corners")?;
    let y = match resizing.points() {
        Some(points) => by_matrices(call, &resizing, &points, filter, align_corners)?,
        None => by_computed_matrices(call, &resizing, filter, align_corners)?,
    };
    call.give(y)
}

/// Products with matrices whose weights are computed from the sizes.
fn by_computed_matrices(
    builder: &mut Builder,
    resizing: &Resizing,
    filter: Filter,
    align_corners: bool,
) -> Result<ValueId, Refusal> {
    let cubic = match filter {
        Filter::SmoothLinear => false,
        Filter::SmoothCubic => true,
        Filter::Linear | Filter::Cubic | Filter::SmoothLanczos => {
            refuse!("this interpolation is lowered for sizes that are fixed")
        }
    };
    if align_corners {
        refuse!("antialiased resizing to sizes from data is lowered for `align_corners=False`");
    }
    let mut y = resizing.x;
    for (at, axis) in resizing.axes.iter().enumerate().rev() {
        let matrix = smooth_weights(builder, axis, cubic)?;
        let mut sizes = builder.dims(y)?;
        y = times_along(builder, y, at + 2, matrix)?;
        *sizes.at_mut(at + 2)? = axis.output;
        builder.note_dims(y, &sizes);
    }
    Ok(y)
}

/// What `Points::smooth` gives, a row for each point: a filter as wide as the elements lie apart, in parts of its sum.
fn smooth_weights(builder: &mut Builder, axis: &Axis, cubic: bool) -> Result<ValueId, Refusal> {
    let centers = |builder: &mut Builder, count: Int| {
        let end = builder.int_value(count)?;
        let range = builder.emit(
            OpKind::Range1d,
            [("end", end.into()), ("start", 0.into()), ("step", 1.into())],
        )?;
        let numbers = builder.cast(range, DType::Fp32)?;
        builder.binary(OpKind::Add, numbers, 0.5f32)
    };
    let scale = match axis.factor {
        Some(factor) if factor > 0.0 => builder.float_constant(&[], &[(1.0 / factor) as f32]),
        _ => {
            let (input, output) = (builder.int_value(axis.input)?, builder.int_value(axis.output)?);
            let input = builder.cast(input, DType::Fp32)?;
            let output = builder.cast(output, DType::Fp32)?;
            builder.binary(OpKind::RealDiv, input, output)?
        }
    };
    let width = builder.binary(OpKind::Maximum, scale, 1.0f32)?;
    let points = centers(builder, axis.output)?;
    let points = builder.binary(OpKind::Mul, points, scale)?;
    let points = builder.expand_dims(points, &[1])?;
    let elements = centers(builder, axis.input)?;
    let apart = builder.binary(OpKind::Sub, elements, points)?;
    let apart = builder.unary(OpKind::Abs, apart)?;
    let distance = builder.binary(OpKind::RealDiv, apart, width)?;
    let weights = if cubic {
        // Beyond two the cubic is zero.
        let near = builder.binary(OpKind::Minimum, distance, 2.0f32)?;
        cubic_weights(builder, near, -0.5)?
    } else {
        let below = builder.scaled(distance, -1.0)?;
        let below = builder.binary(OpKind::Add, below, 1.0f32)?;
        builder.unary(OpKind::Relu, below)?
    };
    let total = builder.reduced(OpKind::ReduceSum, weights, &[1], true)?;
    builder.binary(OpKind::RealDiv, weights, total)
}
