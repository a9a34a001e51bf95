//! Reference kernels that resize and crop images, and resize tensors of any rank.

mod grid;
mod sample;

use coremill_mil::ops::OpKind;

use crate::array::{Array, ElementsView, View};
use crate::call::{Call, Results};
use crate::error::{Result, fail};
use crate::geometry::{around, strides};
use crate::movement::{StridedView, moved};

use self::grid::Grid;

pub use self::grid::Tap;

pub(super) use self::sample::{affine, resample};

pub(super) fn crop(call: &Call) -> Results {
    let x = call.tensor("x")?;
    let rank = rank_of_images(x)?;
    let mut seen = StridedView::dense(x.shape);
    for (name, axis) in [("crop_height", rank - 2), ("crop_width", rank - 1)] {
        let amounts = call.ints(name, 0)?;
        let &[before, after] = amounts.as_slice() else {
            fail!("`{name}` must have two elements, got {}", amounts.len());
        };
        let left = x.shape[axis] as i64 - i64::from(before) - i64::from(after);
        let (Ok(before), Ok(left)) = (usize::try_from(before), usize::try_from(left)) else {
            fail!(
                "`{name}` is {amounts:?}, but `x` has {} elements along axis {axis}",
                x.shape[axis]
            );
        };
        if before.saturating_add(left) > x.shape[axis] {
            fail!("`{name}` must not be negative, got {amounts:?}");
        }
        seen.shape[axis] = left;
        seen.start =
            seen.start.saturating_add((seen.strides[axis] as usize).saturating_mul(before));
    }
    call.give_strided(x, &seen)
}

/// In `NEAREST_NEIGHBOR` mode, `DEFAULT` selects the element at the center of the area that a
/// result element covers, like `resize_nearest_neighbor` and `UNALIGN_CORNERS`. The other sampling
/// modes select the element nearest to the point of linear interpolation.
pub(super) fn resize(call: &Call) -> Results {
    let x = call.tensor("x")?;
    let target = call.ints("shape", 0)?;
    let resized = usize::try_from(call.int("resized_dims")?).unwrap_or(usize::MAX);
    if resized > target.len() || resized > x.rank() {
        fail!(
            "`resized_dims` must be at most {}, the length of `shape`, and {}, the rank of `x`, got {resized}",
            target.len(),
            x.rank()
        );
    }
    let mut shape = x.shape.to_vec();
    for (extent, &target) in shape.iter_mut().rev().zip(target.iter().rev()).take(resized) {
        match usize::try_from(target) {
            // 0 keeps the size.
            Ok(0) => {}
            Ok(target) => *extent = target,
            Err(_) => fail!(
                "`shape` must hold 0, which keeps a dimension, or positive sizes, got {target}"
            ),
        }
    }
    let grid = Grid::of_mode(call.text("sampling_mode")?)?;
    match call.text("interpolation_mode")? {
        "LINEAR" => give_linear(call, x, shape, resized, grid),
        _ => give_nearest(call, x, shape, resized, |from, to| grid.nearest(from, to)),
    }
}

pub(super) fn resize_bilinear(call: &Call) -> Results {
    let x = call.tensor("x")?;
    let grid = Grid::of_mode(call.text("sampling_mode")?)?;
    give_linear(call, x, target(call, x)?, 2, grid)
}

pub(super) fn resize_nearest_neighbor(call: &Call) -> Results {
    let x = call.tensor("x")?;
    give_nearest(call, x, target(call, x)?, 2, |from, to| Grid::Unaligned.nearest(from, to))
}

pub(super) fn upsample_bilinear(call: &Call) -> Results {
    let x = call.tensor("x")?;
    let grid = upsampling_grid(call)?;
    give_linear(call, x, scaled(call, x)?, 2, grid)
}

fn upsampling_grid(call: &Call) -> Result<Grid> {
    let align_corners = call.bool("align_corners")?;
    let half_pixel = match call.has("half_pixel_centers") {
        true => call.bool("half_pixel_centers")?,
        false => !align_corners,
    };
    Ok(match (align_corners, half_pixel) {
        (true, false) => Grid::StrictAligned,
        (false, true) => Grid::Unaligned,
        (false, false) => Grid::Default,
        (true, true) => {
            fail!("`align_corners` and `half_pixel_centers` must not both be true")
        }
    })
}

/// Source elements and weights of each index of the result, along an axis that is resized from one
/// size to another.
pub fn taps(call: &Call, from: usize, to: usize) -> Result<Vec<Tap>> {
    let linear = |grid: Grid| grid.taps(from, to);
    let nearest = |places: Vec<usize>| {
        places.into_iter().map(|place| Tap { low: place, high: place, share: 0.0 }).collect()
    };
    Ok(match call.kind() {
        OpKind::Resize => {
            let grid = Grid::of_mode(call.text("sampling_mode")?)?;
            match call.text("interpolation_mode")? {
                "LINEAR" => linear(grid),
                _ => nearest(grid.nearest(from, to)),
            }
        }
        OpKind::ResizeBilinear => linear(Grid::of_mode(call.text("sampling_mode")?)?),
        OpKind::UpsampleBilinear => linear(upsampling_grid(call)?),
        OpKind::ResizeNearestNeighbor => nearest(Grid::Unaligned.nearest(from, to)),
        OpKind::UpsampleNearestNeighbor => nearest(upsampled(from, to)),
        kind => fail!("`{}` is not a resizing operation", kind.name()),
    })
}

/// Source indices. The step is the ratio of the sizes, which may differ from the scale factor.
fn upsampled(from: usize, to: usize) -> Vec<usize> {
    (0..to).map(|at| (at as u128 * from as u128 / to as u128) as usize).collect()
}

pub(super) fn upsample_nearest_neighbor(call: &Call) -> Results {
    let x = call.tensor("x")?;
    give_nearest(call, x, scaled(call, x)?, 2, upsampled)
}

fn rank_of_images(x: View) -> Result<usize> {
    if x.rank() < 3 {
        fail!("`x` must have a rank of at least 3, got shape {:?}", x.shape);
    }
    Ok(x.rank())
}

fn target(call: &Call, x: View) -> Result<Vec<usize>> {
    let rank = rank_of_images(x)?;
    let mut shape = x.shape.to_vec();
    for (name, axis) in [("target_size_height", rank - 2), ("target_size_width", rank - 1)] {
        shape[axis] = extent(call, name)?;
    }
    Ok(shape)
}

fn extent(call: &Call, name: &str) -> Result<usize> {
    let extent = call.int(name)?;
    match usize::try_from(extent) {
        Ok(extent) if extent > 0 => Ok(extent),
        _ => fail!("`{name}` must be at least 1, got {extent}"),
    }
}

/// The shape scaled by both factors and rounded down. Fractional factors are applied in fp32, as in
/// Core ML.
fn scaled(call: &Call, x: View) -> Result<Vec<usize>> {
    let rank = rank_of_images(x)?;
    let mut shape = x.shape.to_vec();
    for (name, axis) in [("scale_factor_height", rank - 2), ("scale_factor_width", rank - 1)] {
        let factor = call.float(name)?;
        if !(factor.is_finite() && factor > 0.0) {
            fail!("`{name}` must be positive, got {factor}");
        }
        shape[axis] = if factor.fract() == 0.0 && factor < i32::MAX as f32 {
            shape[axis].saturating_mul(factor as usize)
        } else {
            (shape[axis] as f32 * factor).floor() as usize
        };
    }
    Ok(shape)
}

/// Interpolates linearly along the last `resized` axes.
fn give_linear(call: &Call, x: View, shape: Vec<usize>, resized: usize, grid: Grid) -> Results {
    if !is_resizable(call, x, &shape)? {
        return Ok(vec![x.runs(shape, &[], 0)]);
    }
    let kept = x.rank() - resized;
    match x.elements {
        ElementsView::Floats(floats) => {
            let blend = |low: f32, high: f32, share: f64| {
                let share = share as f32;
                low * (1.0 - share) + high * share
            };
            let floats = interpolated(call, floats.to_vec(), x.shape, &shape[kept..], grid, blend)?;
            call.give_floats(shape, floats)
        }
        _ => {
            // `f64` represents every 32-bit integer exactly. The results are truncated as in a
            // cast.
            let blend = |low: f64, high: f64, share: f64| low * (1.0 - share) + high * share;
            let exact = x.ints()?.iter().copied().map(f64::from).collect();
            let blended = interpolated(call, exact, x.shape, &shape[kept..], grid, blend)?;
            call.give_ints(shape, blended.into_iter().map(|value| value as i32).collect())
        }
    }
}

/// Resizes the last axes to the sizes `to`.
fn interpolated<T: Copy>(
    call: &Call,
    mut elements: Vec<T>,
    from: &[usize],
    to: &[usize],
    grid: Grid,
    blend: impl Fn(T, T, f64) -> T,
) -> Result<Vec<T>> {
    let mut shape = from.to_vec();
    let kept = from.len() - to.len();
    for axis in (kept..from.len()).rev() {
        let taps = grid.taps(from[axis], to[axis - kept]);
        let is_same = |(at, tap): (usize, &Tap)| tap.low == at && tap.share == 0.0;
        if from[axis] == taps.len() && taps.iter().enumerate().all(is_same) {
            continue;
        }
        let (lines, extent, run) = around(&shape, axis);
        shape[axis] = taps.len();
        let mut resized = Vec::with_capacity(call.count(&shape)?);
        for line in 0..lines {
            for tap in &taps {
                let at = |step: usize| &elements[(line * extent + step) * run..][..run];
                let (low, high) = (at(tap.low), at(tap.high));
                if tap.share == 0.0 {
                    resized.extend_from_slice(low);
                } else {
                    let pairs = low.iter().zip(high);
                    resized.extend(pairs.map(|(&low, &high)| blend(low, high, tap.share)));
                }
            }
        }
        elements = resized;
    }
    Ok(elements)
}

/// Selects elements along the last `resized` axes.
fn give_nearest(
    call: &Call,
    x: View,
    shape: Vec<usize>,
    resized: usize,
    places: impl Fn(usize, usize) -> Vec<usize>,
) -> Results {
    if !is_resizable(call, x, &shape)? {
        return Ok(vec![x.runs(shape, &[], 0)]);
    }
    let (kept, lasting) = x.shape.split_at(x.rank() - resized);
    let lines = kept.iter().product();
    let chosen: Vec<Vec<usize>> =
        lasting.iter().zip(&shape[kept.len()..]).map(|(&from, &to)| places(from, to)).collect();
    let elements = moved!(x, source => nearest(source, lines, lasting, &chosen));
    Ok(vec![Array::from_elements(x.dtype, shape, elements)])
}

/// For each of `lines` tensors, selects elements by their indices along each axis.
fn nearest<T: Clone>(source: &[T], lines: usize, shape: &[usize], chosen: &[Vec<usize>]) -> Vec<T> {
    let Some((inner, outer)) = chosen.split_last() else { return source.to_vec() };
    let mut starts: Vec<usize> = (0..lines).map(|line| line * (source.len() / lines)).collect();
    for (places, stride) in outer.iter().zip(&strides(shape)) {
        starts = starts
            .iter()
            .flat_map(|start| places.iter().map(move |place| start + place * stride))
            .collect();
    }
    let mut elements = Vec::with_capacity(starts.len() * inner.len());
    for start in starts {
        elements.extend(inner.iter().map(|place| source[start + place].clone()));
    }
    elements
}

/// Returns true if the result has elements. Fails if `x` is empty and the result is not.
fn is_resizable(call: &Call, x: View, shape: &[usize]) -> Result<bool> {
    let count = call.count(shape)?;
    if count > 0 && x.is_empty() {
        fail!("`x` is empty, with shape {:?}; it cannot be resized to {shape:?}", x.shape);
    }
    Ok(count > 0)
}

/// Crops boxes from images and resizes each. Outside the image the crop is padded.
pub(super) fn crop_resize(call: &Call) -> Results {
    let x = call.tensor("x")?;
    let &[images, channels, height, width] = x.shape else {
        fail!("`x` must have shape [batch, channels, height, width], got {:?}", x.shape);
    };
    let crops = Crops {
        pixels: x.floats()?,
        extents: [height, width],
        target: [extent(call, "target_height")?, extent(call, "target_width")?],
        grid: Grid::of_mode(call.text("sampling_mode")?)?,
        padding: match call.row.parameter("pad_value") {
            Some(_) => call.float("pad_value")?,
            None => 0.0,
        },
        channels,
    };
    let boxes = Boxes::of(call, images)?;
    let mut shape = vec![boxes.images.len(), channels, crops.target[0], crops.target[1]];
    // Before iOS17 each box is cropped from every image.
    let repeated = call.row.parameter("roi").map(|_| images);
    if let Some(images) = repeated {
        shape.insert(1, images);
    }
    let mut pixels = Vec::with_capacity(call.count(&shape)?);
    for (sides, of) in boxes.sides.iter().zip(&boxes.images) {
        let rows = crops.line(0, [sides[0], sides[2]]);
        let columns = crops.line(1, [sides[1], sides[3]]);
        for image in 0..repeated.unwrap_or(1) {
            crops.cut(of.unwrap_or(image), &rows, &columns, &mut pixels);
        }
    }
    call.give_floats(shape, pixels)
}

/// The boxes to crop.
struct Boxes {
    /// Top, left, bottom, right.
    sides: Vec<[f64; 4]>,
    /// The image of each box, `None` for all images.
    images: Vec<Option<usize>>,
}

impl Boxes {
    fn of(call: &Call, images: usize) -> Result<Boxes> {
        let spatial_scale = f64::from(call.float("spatial_scale")?);
        let normalized = call.bool("normalized_coordinates")?;
        let x = call.tensor("x")?;
        let mode = call.text("box_coordinate_mode")?;
        let by_roi = call.row.parameter("roi").is_some();
        let bound = call.tensor(if by_roi { "roi" } else { "boxes" })?;
        let width = bound.shape.get(if by_roi { 2 } else { 1 }).copied().unwrap_or_default();
        if !matches!((by_roi, width), (_, 4) | (true, 5)) {
            fail!("boxes have shape {:?}; expected four coordinates for each box", bound.shape);
        }
        let numbers: Vec<f64> = match bound.elements {
            ElementsView::Floats(floats) => floats.iter().copied().map(f64::from).collect(),
            _ => bound.ints()?.iter().copied().map(f64::from).collect(),
        };
        let image = |index: f64| {
            if index >= 0.0 && index < images as f64 {
                return Ok(Some(index as usize));
            }
            fail!("a box has image index {index}, but `x` has {images} images")
        };
        let of = match (by_roi, width) {
            (true, 4) => vec![None; numbers.len() / 4],
            (true, _) => {
                numbers.chunks(5).map(|numbers| image(numbers[0])).collect::<Result<_>>()?
            }
            (false, _) => match call.optional("box_indices") {
                Some(indices) => {
                    let indices = indices.ints()?.iter();
                    indices.map(|&index| image(f64::from(index))).collect::<Result<_>>()?
                }
                None => {
                    let each = (0..numbers.len() / 4).map(|at| image(at as f64));
                    each.collect::<Result<_>>()?
                }
            },
        };
        let scale = [x.shape[2], x.shape[3]]
            .map(|extent| if normalized { extent.saturating_sub(1) as f64 } else { 1.0 })
            .map(|scale| scale * spatial_scale);
        let sides = |numbers: &[f64]| {
            let &[first, second, third, fourth] = &numbers[width - 4..] else {
                return [f64::NAN; 4];
            };
            let [top, left, bottom, right] = match mode {
                "CORNERS_WIDTH_FIRST" => [second, first, fourth, third],
                "CENTER_SIZE_HEIGHT_FIRST" => centered([first, second], [third, fourth]),
                "CENTER_SIZE_WIDTH_FIRST" => centered([second, first], [fourth, third]),
                _ => [first, second, third, fourth],
            };
            [top * scale[0], left * scale[1], bottom * scale[0], right * scale[1]]
        };
        let boxes = Boxes { sides: numbers.chunks(width).map(sides).collect(), images: of };
        if boxes.sides.len() != boxes.images.len() {
            fail!("there are {} boxes, but {} box indices", boxes.sides.len(), boxes.images.len());
        }
        Ok(boxes)
    }
}

/// The sides of a box with a given center and size.
fn centered([y, x]: [f64; 2], [height, width]: [f64; 2]) -> [f64; 4] {
    [y - height / 2.0, x - width / 2.0, y + height / 2.0, x + width / 2.0]
}

struct Crops<'a> {
    pixels: &'a [f32],
    /// Height and width of an image.
    extents: [usize; 2],
    /// Height and width of a crop.
    target: [usize; 2],
    grid: Grid,
    padding: f32,
    channels: usize,
}

impl Crops<'_> {
    /// Source pixels of a crop along an axis, `None` for padding.
    fn line(&self, axis: usize, [start, end]: [f64; 2]) -> Vec<Option<Tap>> {
        let last = self.extents[axis] as f64 - 1.0;
        let length = (end - start).abs();
        let way = if end < start { -1.0 } else { 1.0 };
        let point = |at| start + way * self.grid.point(at, length, self.target[axis]);
        let tap = |at| {
            let point = point(at);
            (0.0..=last).contains(&point).then(|| Tap::at(point, self.extents[axis]))
        };
        (0..self.target[axis]).map(tap).collect()
    }

    /// Appends a crop of all channels of an image.
    fn cut(&self, image: usize, rows: &[Option<Tap>], columns: &[Option<Tap>], cut: &mut Vec<f32>) {
        let [height, width] = self.extents;
        for channel in 0..self.channels {
            let plane = (image * self.channels + channel) * height * width;
            for row in rows {
                cut.extend(columns.iter().map(|column| {
                    let (Some(row), Some(column)) = (row, column) else { return self.padding };
                    let line = |row: usize| {
                        let pixels = &self.pixels[plane + row * width..][..width];
                        column.blend(pixels[column.low], pixels[column.high])
                    };
                    row.blend(line(row.low), line(row.high))
                }));
            }
        }
    }
}
