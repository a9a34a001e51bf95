//! Samples: inputs of calls, for calibration and comparison.

use std::path::{Path, PathBuf};

use coremill_engine::{Array, FeatureSpec};
use coremill_mil::model::{ColorSpace, FeatureDescription, FeatureType, ImageSizes, ImageType};
use coremill_session::arrays;
#[cfg(feature = "images")]
use coremill_session::images;

use crate::error::Error;

/// Inputs of one call, by name.
pub type Sample = Vec<(String, Array)>;

/// Normalization of image pixels per channel: `(pixel − mean) / std`, for pixels from 0 to 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pixels {
    /// Subtrahend of each channel.
    pub mean: [f32; 3],
    /// Divisor of each channel.
    pub std: [f32; 3],
}

impl Default for Pixels {
    fn default() -> Pixels {
        Pixels { mean: [0.0; 3], std: [1.0; 3] }
    }
}

impl Pixels {
    /// Rejects numbers that are not finite, and divisors of 0.
    pub(crate) fn check(&self) -> Result<(), Error> {
        let sound = |all: [f32; 3]| all.iter().all(|number| number.is_finite());
        if sound(self.mean) && sound(self.std) && !self.std.contains(&0.0) {
            return Ok(());
        }
        let Pixels { mean, std } = self;
        let message = format!("cannot normalize pixels with means {mean:?} and deviations {std:?}");
        Err(Error::new(message).with_hint("pass finite means, and finite deviations other than 0"))
    }
}

/// Reads samples: `.npz` files, and folders of `.npz` files or images. `check` validates a sample.
pub(crate) fn read(
    paths: &[PathBuf],
    ports: &[FeatureSpec],
    pixels: &Pixels,
    check: &dyn Fn(&Sample) -> Result<(), Error>,
) -> Result<Vec<Sample>, Error> {
    let mut samples = Vec::new();
    for path in paths {
        let files = if path.is_dir() { files_in(path)? } else { vec![path.clone()] };
        for file in files {
            let sample = read_one(&file, ports, pixels)?;
            let checked = check(&sample).and_then(|()| has_numbers(&sample));
            checked.map_err(|error| error.within(&file))?;
            samples.push(sample);
        }
    }
    Ok(samples)
}

/// Rejects samples with NaN. Infinities may be masks.
fn has_numbers(sample: &Sample) -> Result<(), Error> {
    let has_nan =
        |array: &Array| array.as_floats().is_some_and(|all| all.iter().any(|it| it.is_nan()));
    match sample.iter().find(|(_, array)| has_nan(array)) {
        None => Ok(()),
        Some((name, _)) => Err(Error::new(format!("`{name}` holds NaN"))
            .with_hint("correct the sample, or leave it out")),
    }
}

/// Files of a folder, sorted by name.
fn files_in(path: &Path) -> Result<Vec<PathBuf>, Error> {
    let entries = std::fs::read_dir(path).map_err(|error| Error::io("read", path, error))?;
    let mut files: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    files.retain(|file| is_picture(file) || has_extension(file, &["npz"]));
    files.sort();
    if files.is_empty() {
        let message = format!("{} holds neither images nor `.npz` files", path.display());
        return Err(
            Error::new(message).with_hint("pass PNG or JPEG files, or files from `numpy.savez`")
        );
    }
    // Reading a named pipe would block.
    if let Some(file) = files.iter().find(|file| file.exists() && !file.is_file()) {
        return Err(Error::new(format!("{} is not a regular file", file.display()))
            .with_hint("keep nothing but samples in the folder"));
    }
    Ok(files)
}

fn read_one(path: &Path, ports: &[FeatureSpec], pixels: &Pixels) -> Result<Sample, Error> {
    if !is_picture(path) {
        return Ok(arrays::read_npz_for(path, ports)?);
    }
    let [port] = ports else {
        let count = ports.len();
        return Err(Error::new(format!("an image is one input, but the model has {count}"))
            .with_hint("pass `.npz` files that hold all inputs by name"));
    };
    #[cfg(feature = "images")]
    let read =
        |described: &FeatureSpec| Ok(images::read(path, described, Some(images::Resize::Crop))?);
    #[cfg(not(feature = "images"))]
    let read = |_: &FeatureSpec| {
        let message = format!("{} is an image, which this build does not support", path.display());
        Err(Error::new(message).with_hint("enable the feature `images` of the crate `coremill`"))
    };
    Ok(vec![(port.name.clone(), picture(port, pixels, &read)?)])
}

/// Converts an image to a model input: crops it to the input's size and normalizes the pixels.
/// `read` decodes the image for an input with an image description.
pub(crate) fn picture(
    port: &FeatureSpec,
    pixels: &Pixels,
    read: &dyn Fn(&FeatureSpec) -> Result<Array, Error>,
) -> Result<Array, Error> {
    let shape = port.default_shape().unwrap_or_default();
    let (color_space, height, width) = match *shape.as_slice() {
        [1, 3, height, width] => (ColorSpace::Rgb, height, width),
        [1, 1, height, width] => (ColorSpace::Grayscale, height, width),
        _ => {
            let message =
                format!("input `{}` has type `{}`, which is not an image", port.name, port.ty);
            return Err(Error::new(message).with_hint(
                "images require an input [1, 3, H, W] or [1, 1, H, W]; pass `.npz` files",
            ));
        }
    };
    let sizes = ImageSizes::Fixed;
    let image = ImageType { width: width as i64, height: height as i64, color_space, sizes };
    let description = FeatureDescription::new(&port.name, FeatureType::Image(image));
    let described = FeatureSpec { description: Some(description), ..port.clone() };
    let mut picture = read(&described)?;
    let Pixels { mean, std } = pixels;
    let channels = shape[1];
    if let Some(pixels) = picture.floats_mut() {
        for (channel, plane) in pixels.chunks_mut(height * width).enumerate() {
            let at = channel % channels;
            plane.iter_mut().for_each(|pixel| *pixel = (*pixel / 255.0 - mean[at]) / std[at]);
        }
    }
    Ok(picture)
}

fn is_picture(path: &Path) -> bool {
    has_extension(path, &["png", "jpg", "jpeg"])
}

fn has_extension(path: &Path, extensions: &[&str]) -> bool {
    let extension = path.extension().and_then(|extension| extension.to_str());
    extension.is_some_and(|found| extensions.iter().any(|it| it.eq_ignore_ascii_case(found)))
}
