//! Interpolation of lines, images and volumes.
//!
//! torch and Core ML have several conventions for sampling positions. If an operation of Core ML has the requested
//! convention, it is used. Otherwise each axis is resized by a constant matrix or by lookups.

mod points;

use self::points::{Filter, Points};
use super::index::progression;
use super::linear::times_along;
use super::sampling::{between, cubic_weights};
use crate::lower::prelude::*;

pub(crate) const ROWS: &[Row] = &[
    tensor("aten.upsample_nearest{1,2,3}d", |call| nearest(call, false)),
    tensor("aten._upsample_nearest_exact{1,2,3}d", |call| nearest(call, true)),
    tensor("aten.upsample_{linear1,bilinear2}d", linear),
    tensor("aten.upsample_bicubic2d", |call| filtered(call, Filter::Cubic)),
    tensor("aten._upsample_bilinear2d_aa", |call| filtered(call, Filter::SmoothLinear)),
    tensor("aten._upsample_bicubic2d_aa", |call| filtered(call, Filter::SmoothCubic)),
    tensor("aten._upsample_lanczos2d_aa", |call| filtered(call, Filter::SmoothLanczos)),
];

/// Maximum number of elements of a constant matrix if there is an alternative.
const MAX_MATRIX_ELEMENTS: i64 = 1 << 20;

/// Maximum size of a resized axis, whose positions and weights are enumerated.
const MAX_EXTENT: i64 = 1 << 24;

/// A resized axis.
#[derive(Clone, Copy, Debug)]
struct Axis {
    input: Int,
    output: Int,
    /// torch's scale factor, which may differ from the ratio of the sizes.
    factor: Option<f64>,
}

impl Axis {
    /// The factor, if it is an integer.
    fn whole(&self) -> Option<f64> {
        self.factor.filter(|factor| factor.fract() == 0.0)
    }

    /// Input distance of one output step, from the factor or from sizes computed at run time.
    fn scale(&self, builder: &mut Builder) -> Result<Real> {
        if let Some(factor) = self.factor.filter(|factor| *factor > 0.0) {
            return Ok(Real::Known(1.0 / factor));
        }
        let [input, output] = [self.input, self.output].map(|size| {
            let size = builder.int_value(size)?;
            builder.cast(size, DType::Fp32)
        });
        Ok(Real::Computed(builder.binary(OpKind::RealDiv, input?, output?)?))
    }

    fn known(&self) -> Option<(i64, i64)> {
        Some((self.input.known()?, self.output.known()?))
    }

    fn points(&self) -> Option<Points> {
        let (input, output) = self.known()?;
        Some(Points { input, output, factor: self.factor })
    }

    /// The factor as an argument of Core ML's upsampling, if it produces the requested size.
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

/// The resized tensor; the resized axes are its last ones.
struct Resizing {
    x: ValueId,
    axes: Vec<Axis>,
    align_corners: bool,
}

impl Resizing {
    fn of(call: &mut Call<'_, '_>) -> Result<Resizing> {
        let spatial = call.spatial();
        let named = if call.has("self") { "self" } else { "input" };
        let x = call.tensor(named)?.value;
        if call.rank(x) != spatial + 2 {
            refuse!("`{named}` has rank {}; expected {}", call.rank(x), spatial + 2);
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
                (None, None, _) => refuse!("neither output sizes nor scale factors are specified"),
            };
            if let Int::Known(extent) = output
                && !(1..=MAX_EXTENT).contains(&extent)
            {
                refuse!("the output size of an axis must be from 1 to {MAX_EXTENT}, got {extent}");
            }
            axes.push(Axis { input, output, factor });
        }
        let align_corners = call.has("align_corners") && call.flag("align_corners")?;
        Ok(Resizing { x, axes, align_corners })
    }

    fn is_same(&self) -> bool {
        self.axes.iter().all(|axis| axis.known().is_some_and(|(input, output)| input == output))
    }

    fn points(&self) -> Option<Vec<Points>> {
        self.axes.iter().map(Axis::points).collect()
    }

    /// Sizes of the result.
    fn sizes(&self, builder: &mut Builder) -> Result<Vec<Int>> {
        let mut sizes = builder.dims(self.x)?.part(..2)?.to_vec();
        sizes.extend(self.axes.iter().map(|axis| axis.output));
        Ok(sizes)
    }

    /// Nearest-neighbor with positions known at compile time.
    fn nearest_places(
        &self,
        builder: &mut Builder,
        points: &[Points],
        centered: bool,
    ) -> ValueResult {
        let chosen: Vec<_> = points.iter().map(|points| points.nearest(centered)).collect();
        let x = self.x;
        // Core ML's own operations support floats only.
        if let ([height, width], DType::Fp32) = (points, builder.dtype(x)) {
            let equal = |of: fn(&Points) -> Vec<i64>| chosen == [of(height), of(width)];
            let factors = [self.axes.at(0)?.upsampling(), self.axes.at(1)?.upsampling()];
            if let ([Some(rows), Some(columns)], true) = (factors, equal(Points::repeated)) {
                return upsampled(builder, x, [rows, columns]);
            }
            if equal(Points::central) {
                return emit!(
                    builder,
                    OpKind::ResizeNearestNeighbor,
                    x,
                    target_size_height = height.output as i32,
                    target_size_width = width.output as i32,
                );
            }
        }
        let mut y = x;
        for (axis, (points, chosen)) in points.iter().zip(&chosen).enumerate() {
            y = taken(builder, y, axis + 2, points, chosen)?;
        }
        Ok(y)
    }

    /// Nearest-neighbor with positions computed from dynamic sizes.
    fn nearest_computed(&self, builder: &mut Builder, centered: bool) -> ValueResult {
        let float = builder.dtype(self.x) == DType::Fp32;
        if let ([rows, columns], false, true) = (self.axes.as_slice(), centered, float)
            && let (Some(rows), Some(columns)) = (rows.whole(), columns.whole())
        {
            return upsampled(builder, self.x, [rows as f32, columns as f32]);
        }
        let mut y = self.x;
        for (at, axis) in self.axes.iter().enumerate() {
            let mut places = builder.counting_floats(axis.output)?;
            if centered {
                places = builder.binary(OpKind::Add, places, 0.5f32)?;
            }
            let scale = axis.scale(builder)?;
            let places = calc!(builder, "int(places * scale)", places, scale)?;
            let last = last(builder, axis)?;
            let places = builder.binary(OpKind::Minimum, places, last)?;
            y = builder.looked_up(y, places, at + 2)?;
        }
        Ok(y)
    }

    fn static_linear(&self, builder: &mut Builder, points: &[Points]) -> ValueResult {
        // Core ML derives the scale from the sizes.
        let by_size = self.align_corners || points.iter().all(Points::is_by_size);
        let matrices =
            points.iter().all(|points| points.input * points.output <= MAX_MATRIX_ELEMENTS);
        match points {
            [height, width] if by_size => {
                self.pictures(builder, self.x, [height.output, width.output])
            }
            [line] if !matrices && by_size => {
                let picture = builder.expand_dims(self.x, &[2])?;
                let picture = self.pictures(builder, picture, [1, line.output])?;
                builder.squeeze(picture, &[2])
            }
            [depth, height, width] if by_size => {
                let sizes = self.sizes(builder)?;
                let mut y = self.x;
                if height.input != height.output || width.input != width.output {
                    let (rows, columns) = (Int::Known(height.input), Int::Known(width.input));
                    y = builder.reshape(y, &[*sizes.at(0)?, Int::Known(-1), rows, columns])?;
                    y = self.pictures(builder, y, [height.output, width.output])?;
                }
                let area = height.output * width.output;
                if depth.input != depth.output {
                    let planes =
                        [*sizes.at(0)?, *sizes.at(1)?, Int::Known(depth.input), Int::Known(area)];
                    y = builder.reshape(y, &planes)?;
                    y = self.pictures(builder, y, [depth.output, area])?;
                }
                builder.reshape(y, &sizes)
            }
            _ => self.by_matrices(builder, points, Filter::Linear),
        }
    }

    /// Core ML's bilinear resize of images.
    fn pictures(
        &self,
        builder: &mut Builder,
        x: ValueId,
        [height, width]: [i64; 2],
    ) -> ValueResult {
        emit!(
            builder,
            OpKind::ResizeBilinear,
            x,
            target_size_height = height as i32,
            target_size_width = width as i32,
            sampling_mode = self.sampling_mode(),
        )
    }

    /// Multiplies each line along every axis by a constant matrix.
    fn by_matrices(&self, builder: &mut Builder, points: &[Points], filter: Filter) -> ValueResult {
        let mut y = self.x;
        for (axis, points) in points.iter().enumerate().rev() {
            if points.input == points.output && points.is_by_size() {
                continue;
            }
            if points.input * points.output > MAX_MATRIX_ELEMENTS << 4 {
                refuse!(
                    "resizing {} elements to {} requires a matrix with too many elements",
                    points.input,
                    points.output
                );
            }
            let matrix = points.matrix(filter, self.align_corners);
            let shape = [points.output as u64, points.input as u64];
            let matrix = builder.float_constant(&shape, &matrix);
            y = times_along(builder, y, axis + 2, matrix)?;
        }
        Ok(y)
    }

    /// Linear interpolation with dynamic sizes.
    fn computed_linear(&self, builder: &mut Builder) -> ValueResult {
        let x = self.x;
        if let [rows, columns] = self.axes.as_slice() {
            if let (Some(height), Some(width)) = (rows.whole(), columns.whole())
                && !self.align_corners
                && builder.opset() >= Opset::Ios16
            {
                return emit!(
                    builder,
                    OpKind::UpsampleBilinear,
                    x,
                    scale_factor_height = height as f32,
                    scale_factor_width = width as f32,
                    align_corners = false,
                    half_pixel_centers = true,
                );
            }
            let by_size = |axis: &Axis| axis.factor.is_none() || axis.whole().is_some();
            let by_size = self.align_corners || (by_size(rows) && by_size(columns));
            if by_size && builder.opset() >= Opset::Ios17 {
                let shape = builder.ints(&[rows.output, columns.output])?;
                return emit!(
                    builder,
                    OpKind::Resize,
                    x,
                    shape,
                    resized_dims = Constant::bytes(DType::UInt32, &[], 2u32.to_le_bytes().to_vec()),
                    interpolation_mode = "LINEAR",
                    sampling_mode = self.sampling_mode(),
                );
            }
        }
        let mut y = self.x;
        for (at, axis) in self.axes.iter().enumerate() {
            y = self.computed_line(builder, y, at + 2, axis)?;
        }
        Ok(y)
    }

    /// Linear interpolation along one axis by lookups of both neighbors.
    fn computed_line(
        &self,
        builder: &mut Builder,
        x: ValueId,
        at: usize,
        axis: &Axis,
    ) -> ValueResult {
        let numbers = builder.counting_floats(axis.output)?;
        let last = last(builder, axis)?;
        let points = if self.align_corners {
            // The first and last output coincide with the first and last input.
            let end = builder.int_value(axis.output)?;
            let (length, end) = (builder.cast(last, DType::Fp32)?, builder.cast(end, DType::Fp32)?);
            let formula = "step = length / max(end - 1.0, 1.0); numbers * step";
            calc!(builder, formula, length, end, numbers)?
        } else {
            let middle = builder.binary(OpKind::Add, numbers, 0.5f32)?;
            let scale = axis.scale(builder)?;
            calc!(builder, "relu(middle * scale - 0.5)", middle, scale)?
        };
        let formula = "low = floor(points); share = points - low; low = min(int(low), last); \
                       low, min(low + 1, last), share";
        let [low, high, share] = calc!(all builder, formula, points, last)?;
        let low = builder.looked_up(x, low, at)?;
        let high = builder.looked_up(x, high, at)?;
        let share = builder.before(share, at, builder.rank(x))?;
        between(builder, low, high, share)
    }

    /// Multiplies by weight matrices computed from dynamic sizes.
    fn by_computed_matrices(&self, builder: &mut Builder, filter: Filter) -> ValueResult {
        let cubic = match filter {
            Filter::SmoothLinear => false,
            Filter::SmoothCubic => true,
            Filter::Linear | Filter::Cubic | Filter::SmoothLanczos => {
                refuse!("this interpolation requires fixed sizes")
            }
        };
        if self.align_corners {
            refuse!("antialiased resizing to computed sizes requires `align_corners=False`");
        }
        let mut y = self.x;
        for (at, axis) in self.axes.iter().enumerate().rev() {
            let matrix = smooth_weights(builder, axis, cubic)?;
            let mut sizes = builder.dims(y)?;
            y = times_along(builder, y, at + 2, matrix)?;
            *sizes.at_mut(at + 2)? = axis.output;
            builder.note_dims(y, &sizes);
        }
        Ok(y)
    }

    fn sampling_mode(&self) -> &'static str {
        if self.align_corners { "STRICT_ALIGN_CORNERS" } else { "UNALIGN_CORNERS" }
    }
}

/// Scale factors by axis.
fn factors(call: &mut Call<'_, '_>, spatial: usize) -> Result<Vec<Option<f64>>> {
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

/// A dynamic size times a factor.
fn computed_size(builder: &mut Builder, input: Int, factor: f64) -> Result<Int> {
    if factor.fract() == 0.0 {
        return builder.mul_ints(input, Int::Known(factor as i64));
    }
    let size = builder.int_value(input)?;
    let size = builder.cast(size, DType::Fp32)?;
    let larger = builder.scaled(size, factor)?;
    let floor = builder.unary(OpKind::Floor, larger)?;
    Ok(Int::Computed(builder.cast(floor, DType::Int32)?))
}

fn nearest(call: &mut Call<'_, '_>, centered: bool) -> ValueResult {
    let resizing = Resizing::of(call)?;
    if resizing.is_same() {
        return Ok(resizing.x);
    }
    match resizing.points() {
        Some(points) => resizing.nearest_places(call, &points, centered),
        None => resizing.nearest_computed(call, centered),
    }
}

fn upsampled(builder: &mut Builder, x: ValueId, [rows, columns]: [f32; 2]) -> ValueResult {
    emit!(
        builder,
        OpKind::UpsampleNearestNeighbor,
        x,
        scale_factor_height = rows,
        scale_factor_width = columns,
    )
}

/// Elements at these positions along an axis; a slice if they are evenly spaced.
fn taken(
    builder: &mut Builder,
    x: ValueId,
    axis: usize,
    points: &Points,
    chosen: &[i64],
) -> ValueResult {
    if points.input == points.output {
        return Ok(x);
    }
    if let Some(range) = progression(chosen) {
        return builder.sliced(x, axis, range);
    }
    let places: Vec<i32> = chosen.iter().map(|&at| at as i32).collect();
    let places = builder.int_constant(&[places.len() as u64], &places);
    builder.looked_up(x, places, axis)
}

/// Index of the last element.
fn last(builder: &mut Builder, axis: &Axis) -> ValueResult {
    let input = builder.int_value(axis.input)?;
    builder.binary(OpKind::Sub, input, 1)
}

fn linear(call: &mut Call<'_, '_>) -> ValueResult {
    let resizing = Resizing::of(call)?;
    if resizing.is_same() {
        return Ok(resizing.x);
    }
    match resizing.points() {
        Some(points) => resizing.static_linear(call, &points),
        None => resizing.computed_linear(call),
    }
}

fn filtered(call: &mut Call<'_, '_>, filter: Filter) -> ValueResult {
    let resizing = Resizing::of(call)?;
    match resizing.points() {
        Some(points) => resizing.by_matrices(call, &points, filter),
        None => resizing.by_computed_matrices(call, filter),
    }
}

/// Weights like [`Points::matrix`] for antialiased filters, one row per output: filter values normalized by their
/// sum.
fn smooth_weights(builder: &mut Builder, axis: &Axis, cubic: bool) -> ValueResult {
    let centers = |builder: &mut Builder, count: Int| {
        let numbers = builder.counting_floats(count)?;
        builder.binary(OpKind::Add, numbers, 0.5f32)
    };
    let scale = axis.scale(builder)?;
    let scale = builder.bound_value(scale.into())?;
    let width = builder.binary(OpKind::Maximum, scale, 1.0f32)?;
    let points = centers(builder, axis.output)?;
    let points = calc!(builder, "points * scale", points, scale)?;
    let points = builder.expand_dims(points, &[1])?;
    let elements = centers(builder, axis.input)?;
    let distance = calc!(builder, "abs(elements - points) / width", elements, points, width)?;
    let weights = if cubic {
        // The cubic kernel is zero beyond two.
        let near = builder.binary(OpKind::Minimum, distance, 2.0f32)?;
        cubic_weights(builder, near, -0.5)?
    } else {
        calc!(builder, "relu(distance * -1.0 + 1.0)", distance)?
    };
    let total = builder.reduced(OpKind::ReduceSum, weights, &[1], true)?;
    builder.binary(OpKind::RealDiv, weights, total)
}
