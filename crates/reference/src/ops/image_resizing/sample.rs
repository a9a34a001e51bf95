//! Reference kernels that sample images at computed coordinates.

use crate::array::ElementsView;
use crate::call::{Call, Results};
use crate::error::fail;

/// Value of pixels outside the image.
#[derive(Clone, Copy)]
enum Padding {
    /// A constant.
    Constant(f32),
    /// The nearest pixel.
    Border,
    /// Mirrors the image at the centers of its border pixels.
    Reflection,
    /// Mirrors the image at its edges.
    Symmetric,
}

/// Samples an image between its pixels.
#[derive(Clone, Copy)]
struct Sampler {
    bilinear: bool,
    padding: Padding,
    height: usize,
    width: usize,
}

pub(in crate::ops) fn resample(call: &Call) -> Results {
    let (x, coordinates) = (call.tensor("x")?, call.tensor("coordinates")?);
    let &[batch, channels, height, width] = x.shape else {
        fail!("`x` must have shape [batch, channels, height, width], got {:?}", x.shape);
    };
    let &[images, rows, columns, 2] = coordinates.shape else {
        fail!(
            "`coordinates` must have shape [batch, rows, columns, 2], got {:?}",
            coordinates.shape
        );
    };
    if images != batch {
        fail!("`coordinates` has {images} images, but `x` has {batch}");
    }
    let text = |name: &str| call.text(name).map(str::to_ascii_lowercase);
    let padding = match text("padding_mode")?.as_str() {
        "constant" => Padding::Constant(call.float("padding_value")?),
        "border" => Padding::Border,
        "reflection" => Padding::Reflection,
        "symmetric" => Padding::Symmetric,
        other => fail!(
            "`padding_mode` must be `constant`, `border`, `reflection` or `symmetric`, got `{other}`"
        ),
    };
    let bilinear = match text("sampling_mode")?.as_str() {
        "bilinear" => true,
        "nearest" => false,
        other => fail!("`sampling_mode` must be `bilinear` or `nearest`, got `{other}`"),
    };
    let sampler = Sampler { bilinear, padding, height, width };
    let mode = text("coordinates_mode")?;
    let align_corners = call.bool("align_corners")?;
    // The ends of the normalized range are the centers of the border pixels, or the image's edges.
    let place = |coordinate: f32, extent: usize| {
        let extent = extent as f32;
        match (mode.as_str(), align_corners) {
            ("normalized_minus_one_to_one", true) => (coordinate + 1.0) / 2.0 * (extent - 1.0),
            ("normalized_minus_one_to_one", false) => ((coordinate + 1.0) * extent - 1.0) / 2.0,
            ("normalized_zero_to_one", true) => coordinate * (extent - 1.0),
            ("normalized_zero_to_one", false) => coordinate * extent - 0.5,
            _ => coordinate,
        }
    };
    let places: Vec<[f32; 2]> = match coordinates.elements {
        ElementsView::Floats(floats) => floats.as_chunks::<2>().0.to_vec(),
        _ => {
            let pairs = coordinates.ints()?.as_chunks::<2>().0.iter();
            pairs.map(|pair| pair.map(|coordinate| coordinate as f32)).collect()
        }
    };
    let places = places.into_iter().map(|[x, y]| [place(x, width), place(y, height)]).collect();
    give(call, x.floats()?, channels, sampler, [rows, columns], places)
}

pub(in crate::ops) fn affine(call: &Call) -> Results {
    let x = call.tensor("x")?;
    let &[batch, channels, height, width] = x.shape else {
        fail!("`x` must have shape [batch, channels, height, width], got {:?}", x.shape);
    };
    let matrices = call.floats("transform_matrix")?;
    if matrices.len() != 6 && matrices.len() != batch.saturating_mul(6) {
        fail!("`transform_matrix` has {} elements; expected 6, or 6 per image", matrices.len());
    }
    let rows = super::extent(call, "output_height")?;
    let columns = super::extent(call, "output_width")?;
    let align_corners = call.bool("align_corners")?;
    // Normalized coordinates from -1 to 1: at the centers of the border pixels, or at the image's
    // edges.
    let normalized = |at: usize, extent: usize| {
        let (at, extent) = (at as f32, extent as f32);
        match align_corners {
            true if extent == 1.0 => 0.0,
            true => at * 2.0 / (extent - 1.0) - 1.0,
            false => (2.0 * at + 1.0) / extent - 1.0,
        }
    };
    let pixels = |coordinate: f32, extent: usize| match align_corners {
        true => (coordinate + 1.0) / 2.0 * (extent as f32 - 1.0),
        false => ((coordinate + 1.0) * extent as f32 - 1.0) / 2.0,
    };
    let mut places = Vec::with_capacity(call.count(&[batch, rows, columns])?);
    for image in 0..batch {
        let at = if matrices.len() == 6 { 0 } else { 6 * image };
        let matrix = &matrices[at..][..6];
        for row in 0..rows {
            let y = normalized(row, rows);
            places.extend((0..columns).map(|column| {
                let x = normalized(column, columns);
                let moved = |row: &[f32]| row[0] * x + row[1] * y + row[2];
                [pixels(moved(&matrix[..3]), width), pixels(moved(&matrix[3..]), height)]
            }));
        }
    }
    let padding = Padding::Constant(call.float("padding_value")?);
    let sampler = Sampler { bilinear: true, padding, height, width };
    give(call, x.floats()?, channels, sampler, [rows, columns], places)
}

/// Samples each image at its coordinates, in every channel.
fn give(
    call: &Call,
    x: &[f32],
    channels: usize,
    sampler: Sampler,
    [rows, columns]: [usize; 2],
    places: Vec<[f32; 2]>,
) -> Results {
    let batch = call.tensor("x")?.shape[0];
    let shape = [batch, channels, rows, columns];
    let count = call.count(&shape)?;
    if count == 0 {
        return call.give_floats(shape, Vec::new());
    }
    let each = rows * columns;
    let area = sampler.height.saturating_mul(sampler.width);
    if area == 0 && !matches!(sampler.padding, Padding::Constant(_)) {
        fail!("`x` has no pixels to repeat beyond its edges");
    }
    let mut pixels = Vec::with_capacity(count);
    for (image, places) in places.chunks_exact(each).enumerate() {
        for channel in 0..channels {
            let plane =
                if area == 0 { &[] } else { &x[(image * channels + channel) * area..][..area] };
            pixels.extend(places.iter().map(|&[x, y]| sampler.value(plane, x, y)));
        }
    }
    call.give_floats(shape, pixels)
}

impl Sampler {
    fn value(&self, plane: &[f32], x: f32, y: f32) -> f32 {
        let (x, y) = (self.within(x, self.width), self.within(y, self.height));
        if !self.bilinear {
            // Ties round to the even pixel, as in PyTorch.
            return self.pixel(plane, x.round_ties_even(), y.round_ties_even());
        }
        let (left, top) = (x.floor(), y.floor());
        let corners = [
            (left, top, (left + 1.0 - x) * (top + 1.0 - y)),
            (left + 1.0, top, (x - left) * (top + 1.0 - y)),
            (left, top + 1.0, (left + 1.0 - x) * (y - top)),
            (left + 1.0, top + 1.0, (x - left) * (y - top)),
        ];
        let mut value = 0.0;
        for (x, y, weight) in corners {
            // Skip pixels of weight 0, which may be infinite or NaN.
            if weight != 0.0 {
                value += weight * self.pixel(plane, x, y);
            }
        }
        value
    }

    fn pixel(&self, plane: &[f32], x: f32, y: f32) -> f32 {
        let inside = |at: f32, extent: usize| at >= 0.0 && at < extent as f32;
        match self.padding {
            Padding::Constant(value) if !(inside(x, self.width) && inside(y, self.height)) => value,
            _ => {
                let at = |at: f32, extent: usize| (at as usize).min(extent - 1);
                plane[at(y, self.height) * self.width + at(x, self.width)]
            }
        }
    }

    /// Maps a coordinate outside the image to the coordinate inside that replaces it.
    fn within(&self, at: f32, extent: usize) -> f32 {
        let last = extent as f32 - 1.0;
        let inside = match self.padding {
            // Limit the coordinate: far outside, neighbours would round to the same float. Also
            // replaces NaN.
            Padding::Constant(_) => return at.max(-2.0).min(last + 2.0),
            Padding::Border => at,
            Padding::Reflection => mirrored(at, 0.0, last),
            Padding::Symmetric => mirrored(at, -0.5, extent as f32),
        };
        // `clamp` would keep NaN.
        inside.max(0.0).min(last)
    }
}

/// Maps a coordinate to the range from `low` to `low + span`, for an image that is repeated with
/// every other copy mirrored.
fn mirrored(at: f32, low: f32, span: f32) -> f32 {
    if span <= 0.0 {
        return 0.0;
    }
    let distance = (at - low).abs();
    let beyond = distance % span;
    if (distance / span).floor() % 2.0 == 0.0 { low + beyond } else { low + span - beyond }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extreme_coordinates_stay_within_image() {
        let plane: Vec<f32> = (0..6).map(|at| at as f32).collect();
        let every =
            [Padding::Constant(9.0), Padding::Border, Padding::Reflection, Padding::Symmetric];
        for padding in every {
            for bilinear in [false, true] {
                let sampler = Sampler { bilinear, padding, height: 2, width: 3 };
                for x in [f32::NAN, f32::INFINITY, f32::MIN, f32::MAX, -0.5, 2.5, 1e9, 16_777_217.0]
                {
                    let values = [sampler.value(&plane, x, 0.5), sampler.value(&plane, 0.5, x)];
                    assert!(values.iter().all(|value| (0.0..=9.0).contains(value)), "{values:?}");
                }
            }
        }
    }
}
