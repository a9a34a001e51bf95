//! Arrays that are images.

use coremill_engine::Array;
use coremill_io::base64;

use crate::Report;
use crate::data::Picture;

/// Maximum number of pixels of an image in the page.
const MAX_PIXELS: usize = 256 * 256;
/// Minimum number of rows and columns of an image.
const LEAST_EXTENT: usize = 16;

impl Report {
    /// Adds the inputs or outputs of a run that are images.
    pub fn add_pictures<'a>(
        &mut self,
        role: &str,
        arrays: impl IntoIterator<Item = (&'a str, &'a Array)>,
    ) {
        let picture = |(name, array): (&str, &Array)| picture(&format!("{role} {name}"), array);
        self.data.pictures.extend(arrays.into_iter().filter_map(picture));
    }
}

/// Memory layout of an image.
struct Layout {
    rows: usize,
    columns: usize,
    channels: usize,
    /// Whether the channels of a pixel are contiguous.
    interleaved: bool,
}

/// The layout of a grayscale or color image, planar or interleaved. For a batch, the first image.
fn layout(shape: &[usize]) -> Option<Layout> {
    let inner = match shape {
        [count, inner @ ..] if *count > 0 && inner.len() == 3 => inner,
        _ => shape,
    };
    let (rows, columns, channels, interleaved) = match *inner {
        [channels @ (1 | 3), rows, columns] => (rows, columns, channels, false),
        [rows, columns, channels @ (1 | 3)] => (rows, columns, channels, true),
        _ => return None,
    };
    let large = rows.min(columns) >= LEAST_EXTENT;
    large.then_some(Layout { rows, columns, channels, interleaved })
}

/// Converts an array to an image. The smallest element becomes black, the largest white.
pub(crate) fn picture(label: &str, array: &Array) -> Option<Picture> {
    let Layout { rows, columns, channels, interleaved } = layout(array.shape())?;
    let converted: Vec<f32>;
    let elements = match (array.as_floats(), array.as_ints()) {
        (Some(floats), _) => floats,
        (_, Some(ints)) => {
            converted = ints.iter().map(|&int| int as f32).collect();
            &converted
        }
        _ => return None,
    };
    let elements = elements.get(..rows * columns * channels)?;
    // Every n-th pixel, to limit the size of the page.
    let mut step = 1;
    while rows.div_ceil(step) * columns.div_ceil(step) > MAX_PIXELS {
        step += 1;
    }
    let finite = || elements.iter().copied().filter(|element| element.is_finite());
    let (low, high) =
        finite().fold((f32::MAX, f32::MIN), |(low, high), e| (low.min(e), high.max(e)));
    let scale = 255.0 / (high - low).max(f32::MIN_POSITIVE);
    let (height, width) = (rows.div_ceil(step), columns.div_ceil(step));
    let mut bytes = Vec::with_capacity(height * width * 3);
    for row in (0..rows).step_by(step) {
        for column in (0..columns).step_by(step) {
            for channel in 0..3 {
                let channel = channel % channels;
                let at = match interleaved {
                    true => (row * columns + column) * channels + channel,
                    false => (channel * rows + row) * columns + column,
                };
                bytes.push(((elements[at] - low) * scale) as u8);
            }
        }
    }
    Some(Picture { label: label.to_owned(), width, height, rgb: base64::encode(&bytes) })
}

#[cfg(test)]
mod tests {
    use coremill_tensor::DType;

    use super::*;

    #[test]
    fn channel_first_and_last_images_render_alike() {
        // Red increases downwards, green to the right; blue is 0.
        let value = |channel: usize, row: usize, column: usize| match channel {
            0 => row as f32 / 19.0,
            1 => column as f32 / 16.0,
            _ => 0.0,
        };
        let (rows, columns) = (20, 17);
        let mut planes = Vec::new();
        let mut pixels = Vec::new();
        for at in 0..3 * rows * columns {
            let (channel, row, column) = (at / (rows * columns), at / columns % rows, at % columns);
            planes.push(value(channel, row, column));
            pixels.push(value(at % 3, at / 3 / columns, at / 3 % columns));
        }
        let array = |shape: &[usize], elements: &[f32]| {
            let bytes: Vec<u8> =
                elements.iter().flat_map(|element| element.to_le_bytes()).collect();
            Array::from_bytes(DType::Fp32, shape, &bytes).expect("an array")
        };
        let one = picture("one", &array(&[1, 3, rows, columns], &planes)).expect("a picture");
        let two = picture("two", &array(&[rows, columns, 3], &pixels)).expect("a picture");
        assert_eq!((one.width, one.height, &one.rgb), (columns, rows, &two.rgb));
        // The first pixel, the last pixel of the first row, and the first pixel of the last row.
        let corners: [&str; 3] = [&one.rgb[..4], &one.rgb[64..68], &one.rgb[1292..1296]];
        assert_eq!(corners, ["AAAA", "AP8A", "/wAA"]);
        assert!(picture("rows of features", &array(&[60, 17], &planes)).is_none());
    }
}
