//! Images as inputs and outputs.
//!
//! Core ML passes pixels to the program unchanged, from 0 to 255; scaling is part of the program. An image must have
//! a size that the input accepts. On a device, Vision resizes it in one of the ways of [`Resize`]. [`to_png`] encodes
//! outputs.
//!
//! ```no_run
//! use coremill_session::images::{self, Resize};
//! use coremill_session::{RunOptions, inputs};
//!
//! let model = coremill_mlpackage::package::read("Classifier.mlpackage".as_ref()).expect("a package");
//! let verified = coremill_verify::verify(&model).expect("a sound model");
//! let executable = coremill_session::load(&verified, &RunOptions::default())?;
//! let mut session = executable.session(executable.default_function()?)?;
//! let spec = session.inputs()[0].clone();
//! let pixels = images::read("cat.jpg", &spec, Some(Resize::Crop))?;
//! let outputs = session.run(&inputs(&[(spec.name, pixels)]))?;
//! # Ok::<(), coremill_session::Error>(())
//! ```

use std::fs::File;
use std::io::{self, BufReader, Cursor, Seek};
use std::path::Path;

use coremill_engine::Array;
use coremill_mil::model::{ColorSpace, ImageType};
use image::imageops::FilterType;
use image::{
    DynamicImage, GrayImage, ImageBuffer, ImageDecoder, ImageFormat, ImageReader, RgbImage,
};

use crate::FeatureSpec;
use crate::error::Error;

/// Maximum size in bytes of a decoded image.
pub const MAX_BYTES: u64 = 1 << 30;

/// Maximum width and height in pixels.
pub const MAX_SIDE: u32 = 1 << 15;

/// Method of resizing an image to the input's size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resize {
    /// Scales width and height independently, like Vision's `scaleFill`.
    Stretch,
    /// Scales to cover the size and crops the rest, like Vision's `centerCrop`.
    Crop,
    /// Scales to fit into the size with black borders, like Vision's `scaleFit`.
    Fit,
}

/// Reads a PNG or JPEG image for an input, applying its orientation and ignoring transparency. An image of another
/// size is resized to the default size, or refused without `resize`.
pub fn read(
    path: impl AsRef<Path>,
    spec: &FeatureSpec,
    resize: Option<Resize>,
) -> Result<Array, Error> {
    let path = path.as_ref();
    let file = File::open(path).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => Error::missing(path),
        _ => Error::io("read", path, error),
    })?;
    from_reader(BufReader::new(file), spec, resize).map_err(|error| error.within(path))
}

/// Reads a PNG or JPEG image from a reader.
pub fn from_reader(
    from: impl io::BufRead + Seek,
    spec: &FeatureSpec,
    resize: Option<Resize>,
) -> Result<Array, Error> {
    let name = &spec.name;
    let described = spec.description.as_ref().and_then(|description| description.ty.image());
    let (Some(described), Some(ty)) = (described, spec.ty.as_tensor()) else {
        let message = format!("input `{name}` is not an image, but a `{}`", spec.ty);
        return Err(Error::new(message).with_hint("pass an array"));
    };
    if !ty.dtype.is_float() {
        return Err(Error::new(format!(
            "image input `{name}` must have float elements, got `{ty}`"
        )));
    }
    let target = |width, height| target(width, height, spec, described, resize);
    let picture = decode(from, &|width, height| target(width, height).map(drop))?;
    let picture = match target(picture.width(), picture.height())? {
        Some((width, height, resize)) => resized(&picture, width, height, resize),
        None => picture,
    };
    let (width, height) = (picture.width() as usize, picture.height() as usize);
    let floats = match described.color_space {
        ColorSpace::Rgb => planes(&picture.to_rgb8(), [0, 1, 2]),
        ColorSpace::Bgr => planes(&picture.to_rgb8(), [2, 1, 0]),
        ColorSpace::Grayscale => {
            picture.to_luma8().as_raw().iter().map(|&grey| f32::from(grey)).collect()
        }
        // Pixels of a 16-bit float buffer range from 0 to 1.
        ColorSpace::GrayscaleFloat16 => {
            picture.to_luma16().as_raw().iter().map(|&grey| f32::from(grey) / 65535.0).collect()
        }
        ColorSpace::Other(_) => {
            let found = described.color_space;
            return Err(Error::new(format!("input `{name}` has an unsupported format: {found}")));
        }
    };
    let channels = floats.len() / (width * height).max(1);
    let shape = vec![1, channels, height, width];
    if !spec.accepts_shape(&shape) {
        let accepted = spec.accepted_shapes();
        let message = format!("input `{name}` accepts images of shape {accepted}, got {shape:?}");
        return Err(Error::new(message));
    }
    // The engine rounds to the input's type.
    Ok(Array::floats(coremill_tensor::DType::Fp32, shape, floats))
}

/// Encodes the value of an image output as a PNG file. Pixels are rounded and limited to 0 to 255, and the channels are
/// written as red, green and blue. Grayscale images of 16-bit floats range from 0 to 1, and have 16 bits per pixel in the
/// file.
pub fn to_png(array: &Array, spec: &FeatureSpec) -> Result<Vec<u8>, Error> {
    let name = &spec.name;
    let refuse = |reason: String| Error::new(format!("output `{name}` {reason}"));
    let Some(described) = spec.description.as_ref().and_then(|found| found.ty.image()) else {
        return Err(refuse("is not an image".to_owned()).with_hint("write an array"));
    };
    let shape = array.shape();
    let (Some(pixels), &[1, channels, height, width]) = (array.as_floats(), shape) else {
        return Err(refuse(format!("must be floats of shape [1, C, H, W], found {shape:?}")));
    };
    let color_space = described.color_space;
    if color_space.channels() != Some(channels as u64) {
        return Err(refuse(format!("must be a {color_space} image, found shape {shape:?}")));
    }
    let side = |size: usize| u32::try_from(size).ok().filter(|side| (1..=MAX_SIDE).contains(side));
    let (Some(width), Some(height)) = (side(width), side(height)) else {
        return Err(refuse(format!("must have sides of 1 to {MAX_SIDE} pixels, found {shape:?}")));
    };
    // NaN becomes 0.
    let byte = |pixel: f32| pixel.round_ties_even().clamp(0.0, 255.0) as u8;
    let plane = pixels.len() / channels.max(1);
    let picture = match color_space {
        ColorSpace::Rgb | ColorSpace::Bgr => {
            let order = if color_space == ColorSpace::Bgr { [2, 1, 0] } else { [0, 1, 2] };
            let pixel = |at: usize| order.map(|channel| byte(pixels[channel * plane + at]));
            let bytes = (0..plane).flat_map(pixel).collect();
            RgbImage::from_raw(width, height, bytes).map(DynamicImage::ImageRgb8)
        }
        ColorSpace::Grayscale => {
            let bytes = pixels.iter().map(|&pixel| byte(pixel)).collect();
            GrayImage::from_raw(width, height, bytes).map(DynamicImage::ImageLuma8)
        }
        ColorSpace::GrayscaleFloat16 => {
            let word = |pixel: f32| (pixel * 65535.0).round_ties_even().clamp(0.0, 65535.0) as u16;
            let words = pixels.iter().map(|&pixel| word(pixel)).collect();
            ImageBuffer::from_raw(width, height, words).map(DynamicImage::ImageLuma16)
        }
        ColorSpace::Other(_) => None,
    };
    let Some(picture) = picture else {
        return Err(refuse(format!("has an unsupported format: {color_space}")));
    };
    let mut bytes = Cursor::new(Vec::new());
    let written = picture.write_to(&mut bytes, ImageFormat::Png);
    written.map_err(|error| refuse(format!("cannot be encoded: {error}")))?;
    Ok(bytes.into_inner())
}

/// Decodes an image and applies its orientation. `accept` checks width and height before memory is allocated.
fn decode(
    from: impl io::BufRead + Seek,
    accept: &dyn Fn(u32, u32) -> Result<(), Error>,
) -> Result<DynamicImage, Error> {
    let broken = |error: image::ImageError| {
        Error::new(format!("the image cannot be read: {error}"))
            .with_hint("pass a PNG or JPEG file")
    };
    let unread = |error: io::Error| Error::new(format!("the image cannot be read: {error}"));
    let mut reader = ImageReader::new(from).with_guessed_format().map_err(unread)?;
    let mut limits = image::Limits::default();
    limits.max_image_width = Some(MAX_SIDE);
    limits.max_image_height = Some(MAX_SIDE);
    limits.max_alloc = Some(MAX_BYTES);
    reader.limits(limits);
    let mut decoder = reader.into_decoder().map_err(broken)?;
    // Cameras store images in sensor orientation, with a tag.
    let orientation = decoder.orientation().map_err(broken)?;
    let (mut width, mut height) = decoder.dimensions();
    if orientation.to_exif() > 4 {
        // The image is rotated by 90 degrees.
        (width, height) = (height, width);
    }
    accept(width, height)?;
    let bytes = decoder.total_bytes();
    if bytes > MAX_BYTES {
        return Err(Error::new(format!(
            "the decoded image must have at most {MAX_BYTES} bytes, got {bytes}"
        )));
    }
    let mut picture = DynamicImage::from_decoder(decoder).map_err(broken)?;
    picture.apply_orientation(orientation);
    Ok(picture)
}

/// Target size and method of resizing; `None` if the input accepts the image unchanged.
fn target(
    width: u32,
    height: u32,
    spec: &FeatureSpec,
    described: &ImageType,
    resize: Option<Resize>,
) -> Result<Option<(u32, u32, Resize)>, Error> {
    let channels = described.color_space.channels().unwrap_or(3) as usize;
    if spec.accepts_shape(&[1, channels, height as usize, width as usize]) {
        return Ok(None);
    }
    let side =
        |extent: i64| u32::try_from(extent).ok().filter(|side| (1..=MAX_SIDE).contains(side));
    let (Some(to_width), Some(to_height)) = (side(described.width), side(described.height)) else {
        return Err(Error::new(format!(
            "the image size of input `{}` must be from 1 to {MAX_SIDE}, got {} × {}",
            spec.name, described.height, described.width
        )));
    };
    let Some(resize) = resize else {
        let (name, accepted) = (&spec.name, spec.accepted_shapes());
        let message =
            format!("the image has {height} × {width} pixels; input `{name}` accepts {accepted}");
        return Err(Error::new(message).with_hint("pass `resize` as `stretch`, `crop` or `fit`"));
    };
    Ok(Some((to_width, to_height, resize)))
}

/// Resizes an image.
fn resized(picture: &DynamicImage, width: u32, height: u32, resize: Resize) -> DynamicImage {
    let filter = FilterType::Triangle;
    match resize {
        Resize::Stretch => picture.resize_exact(width, height, filter),
        Resize::Crop => picture.resize_to_fill(width, height, filter),
        Resize::Fit => {
            let within = picture.resize(width, height, filter).to_rgb8();
            let mut whole = RgbImage::new(width, height);
            let left = i64::from((width - within.width()) / 2);
            let top = i64::from((height - within.height()) / 2);
            image::imageops::replace(&mut whole, &within, left, top);
            DynamicImage::ImageRgb8(whole)
        }
    }
}

/// The channels in the given order, as planes.
fn planes(picture: &RgbImage, order: [usize; 3]) -> Vec<f32> {
    let mut floats = Vec::with_capacity(picture.as_raw().len());
    for channel in order {
        floats.extend(picture.pixels().map(|pixel| f32::from(pixel.0[channel])));
    }
    floats
}

#[cfg(test)]
mod tests {
    use coremill_mil::ir::Type;
    use coremill_mil::model::{FeatureDescription, FeatureType, ImageSizes};
    use coremill_tensor::DType;
    use image::Rgb;

    use super::*;

    fn spec(color_space: ColorSpace, height: i64, width: i64) -> FeatureSpec {
        let channels = color_space.channels().expect("known");
        let image = ImageType { width, height, color_space, sizes: ImageSizes::Fixed };
        FeatureSpec {
            name: "picture".to_owned(),
            ty: Type::tensor(DType::Fp32, &[1, channels, height as u64, width as u64]),
            description: Some(FeatureDescription::new("picture", FeatureType::Image(image))),
        }
    }

    fn png(width: u32, height: u32, pixel: impl Fn(u32, u32) -> [u8; 3]) -> Vec<u8> {
        let picture = RgbImage::from_fn(width, height, |x, y| Rgb(pixel(x, y)));
        let mut bytes = Cursor::new(Vec::new());
        picture.write_to(&mut bytes, ImageFormat::Png).expect("memory");
        bytes.into_inner()
    }

    fn floats(bytes: &[u8], spec: &FeatureSpec, resize: Option<Resize>) -> Vec<f32> {
        let array = from_reader(Cursor::new(bytes), spec, resize).expect("a picture");
        array.as_floats().expect("floats").to_vec()
    }

    #[test]
    fn converts_pixels_to_planes_by_color_space() {
        let bytes = png(2, 1, |x, _| [10 + x as u8, 20 + x as u8, 30 + x as u8]);
        let rgb = floats(&bytes, &spec(ColorSpace::Rgb, 1, 2), None);
        assert_eq!(rgb, [10.0, 11.0, 20.0, 21.0, 30.0, 31.0]);
        let bgr = floats(&bytes, &spec(ColorSpace::Bgr, 1, 2), None);
        assert_eq!(bgr, [30.0, 31.0, 20.0, 21.0, 10.0, 11.0]);
        let grey = png(2, 1, |x, _| [255 * x as u8; 3]);
        assert_eq!(floats(&grey, &spec(ColorSpace::Grayscale, 1, 2), None), [0.0, 255.0]);
        let half = spec(ColorSpace::GrayscaleFloat16, 1, 2);
        assert_eq!(floats(&grey, &half, None), [0.0, 1.0]);
    }

    #[test]
    fn rejects_image_size_mismatch_unless_resizing() {
        // Black to the left, white to the right.
        let bytes = png(4, 2, |x, _| [if x < 2 { 0 } else { 255 }; 3]);
        let spec = spec(ColorSpace::Grayscale, 2, 2);
        let error = from_reader(Cursor::new(&bytes), &spec, None).expect_err("another size");
        assert_eq!(
            error.to_string(),
            "the image has 2 × 4 pixels; input `picture` accepts [1, 1, 2, 2]"
        );
        let crop = floats(&bytes, &spec, Some(Resize::Crop));
        assert_eq!(crop, [0.0, 255.0, 0.0, 255.0]);
        let fit = floats(&bytes, &spec, Some(Resize::Fit));
        assert_eq!(fit.len(), 4);
        assert!(fit[0] < fit[1] && fit[2..] == [0.0, 0.0], "{fit:?}");
        let stretch = floats(&bytes, &spec, Some(Resize::Stretch));
        assert!(stretch[0] < 64.0 && stretch[1] > 191.0, "{stretch:?}");
    }

    #[test]
    fn encodes_output_planes_as_png_by_color_space() {
        let array = |channels: usize, pixels: &[f32]| {
            Array::floats(DType::Fp32, [1, channels, 1, 2], pixels.to_vec())
        };
        let decoded = |bytes: &[u8]| image::load_from_memory(bytes).expect("a picture");
        let planes = array(3, &[-7.0, 300.0, 0.5, 1.5, 7.4, f32::NAN]);
        let rgb = to_png(&planes, &spec(ColorSpace::Rgb, 1, 2)).expect("a picture");
        assert_eq!(decoded(&rgb).as_bytes(), [0, 0, 7, 255, 2, 0]);
        let bgr = to_png(&planes, &spec(ColorSpace::Bgr, 1, 2)).expect("a picture");
        assert_eq!(decoded(&bgr).as_bytes(), [7, 0, 0, 0, 2, 255]);
        let gray = array(1, &[12.0, 254.6]);
        let gray = to_png(&gray, &spec(ColorSpace::Grayscale, 1, 2)).expect("a picture");
        assert_eq!(decoded(&gray).as_bytes(), [12, 255]);
        let half = to_png(&array(1, &[0.5, 2.0]), &spec(ColorSpace::GrayscaleFloat16, 1, 2));
        let half = decoded(&half.expect("a picture"));
        assert_eq!(half.as_luma16().expect("16 bits").as_raw()[..], [32768, 65535]);
        let error = to_png(&planes, &spec(ColorSpace::Grayscale, 1, 2)).expect_err("3 channels");
        let message = "output `picture` must be a grayscale image, found shape [1, 3, 1, 2]";
        assert_eq!(error.to_string(), message);
    }

    #[test]
    fn rejects_invalid_image_files_and_non_image_inputs() {
        let spec = spec(ColorSpace::Rgb, 1, 2);
        let whole = png(2, 1, |_, _| [1, 2, 3]);
        for bytes in [&b""[..], b"GIF89a rubbish", &whole[..whole.len() / 2]] {
            let error = from_reader(Cursor::new(bytes), &spec, None).expect_err("no picture");
            assert_eq!(error.hint(), Some("pass a PNG or JPEG file"), "{error}");
        }
        let array = FeatureSpec { description: None, ..spec };
        let error = from_reader(Cursor::new(&whole), &array, None).expect_err("no image");
        assert!(error.to_string().starts_with("input `picture` is not an image"), "{error}");
    }
}
