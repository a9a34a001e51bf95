//! Arrays as images, and back.
//!
//! Core ML passes pixels from 0 to 255 into the program. Scale and bias are operations of the program:
//!
//! ```text
//! x_scaled = mul(x = x, y = scale);
//! x_biased = add(x = x_scaled, y = bias);
//! ```

use std::collections::HashSet;
use std::str::FromStr;

use coremill_mil::ir::{Binding, Constant, Dim, Op, TensorType, ValueId};
use coremill_mil::model::{
    ArrayDataType, ArrayType, ColorSpace, FeatureType, ImageSize, ImageSizes, ImageType,
    ShapeFlexibility, SizeRange,
};
use coremill_mil::ops::OpKind;
use coremill_tensor::DType;
use half::f16;
use serde::Deserialize;

use crate::error::Error;
use crate::interface::{Interface, Port};
use crate::types::{retype_input, retype_output};

/// An array of `[1, channels, height, width]` that becomes an image.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct ImageEdit {
    /// The input or output.
    pub name: String,
    /// The meaning of the pixels.
    #[serde(default)]
    pub layout: Layout,
    /// Factor of the pixels: one, or one for each channel; 1 if empty.
    #[serde(default)]
    pub scale: Vec<f32>,
    /// Summand of the scaled pixels: one, or one for each channel; 0 if empty.
    #[serde(default)]
    pub bias: Vec<f32>,
}

/// The meaning of an image's pixels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Layout {
    /// 8 bits each of red, green and blue.
    #[default]
    Rgb,
    /// 8 bits each of blue, green and red.
    Bgr,
    /// 8 bits of gray.
    Grayscale,
    /// A 16-bit float of gray, from iOS 16 on.
    GrayscaleFp16,
}

impl Layout {
    /// Color space in descriptions.
    pub fn color_space(self) -> ColorSpace {
        match self {
            Layout::Rgb => ColorSpace::Rgb,
            Layout::Bgr => ColorSpace::Bgr,
            Layout::Grayscale => ColorSpace::Grayscale,
            Layout::GrayscaleFp16 => ColorSpace::GrayscaleFloat16,
        }
    }

    /// The number of channels.
    pub fn channels(self) -> u64 {
        match self {
            Layout::Rgb | Layout::Bgr => 3,
            Layout::Grayscale | Layout::GrayscaleFp16 => 1,
        }
    }
}

const FORM: &str =
    "expected `NAME=LAYOUT,scale=S,bias=B`, for instance `x=rgb,scale=1/255,bias=-0.5`";

impl FromStr for ImageEdit {
    type Err = Error;

    /// Reads `x=rgb,scale=1/255,bias=-0.485/0.229:-0.456/0.224:-0.406/0.225`.
    fn from_str(text: &str) -> Result<ImageEdit, Error> {
        let form = || Error::new(format!("`{text}` does not describe an image")).with_hint(FORM);
        let (name, rest) = text.split_once('=').ok_or_else(form)?;
        let mut words = rest.split(',').map(str::trim);
        let layout = match words.next().unwrap_or_default() {
            "rgb" => Layout::Rgb,
            "bgr" => Layout::Bgr,
            "grayscale" | "gray" => Layout::Grayscale,
            "grayscale-fp16" | "gray-fp16" => Layout::GrayscaleFp16,
            other => {
                let message = format!("image `{}` has the unknown layout `{other}`", name.trim());
                let hint = "pass `rgb`, `bgr`, `grayscale` or `grayscale-fp16`";
                return Err(Error::new(message).with_hint(hint));
            }
        };
        let name = name.trim().to_owned();
        let mut edit = ImageEdit { name, layout, scale: Vec::new(), bias: Vec::new() };
        for word in words {
            match word.split_once('=') {
                Some(("scale", numbers)) => edit.scale = self::numbers(numbers)?,
                Some(("bias", numbers)) => edit.bias = self::numbers(numbers)?,
                _ => return Err(form()),
            }
        }
        if edit.name.is_empty() { Err(form()) } else { Ok(edit) }
    }
}

/// One number, or one for each channel with `:` between them; each may be a quotient.
fn numbers(text: &str) -> Result<Vec<f32>, Error> {
    text.split(':').map(number).collect()
}

fn number(text: &str) -> Result<f32, Error> {
    let refused = || {
        Error::new(format!("`{text}` is not a number"))
            .with_hint("pass a number or a quotient: `0.5`, `1/255`, `-0.485/0.229`")
    };
    let mut parts = text.split('/').map(|part| part.trim().parse::<f64>().map_err(|_| refused()));
    let first = parts.next().unwrap_or_else(|| Err(refused()))?;
    let quotient = parts.try_fold(first, |all, part| part.map(|part| all / part))?;
    let number = quotient as f32;
    if number.is_finite() { Ok(number) } else { Err(refused()) }
}

/// Makes an array an image.
pub(crate) fn to_image(interface: &mut Interface<'_>, edit: &ImageEdit) -> Result<(), Error> {
    let name = &edit.name;
    let port = interface.port(name)?;
    let value = match port {
        Port::Input(_) => interface.input_value(name)?,
        Port::Output(_) => interface.output_value(name)?,
        Port::State(_) => {
            return Err(Error::new(format!("`{name}` is a state; states cannot be images")));
        }
    };
    let FeatureType::MultiArray(array) = interface.feature_mut(name)?.ty.clone() else {
        return Err(
            Error::new(format!("`{name}` is not an array")).with_hint("make it an array first")
        );
    };
    let tensor = interface.tensor(value)?.clone();
    let is_input = matches!(port, Port::Input(_));
    let image = image_type(edit, &tensor, &array, is_input)?;
    let dtype = match edit.layout {
        Layout::GrayscaleFp16 => DType::Fp16,
        _ => DType::Fp32,
    };
    for (what, numbers) in [("scale", &edit.scale), ("bias", &edit.bias)] {
        let count = numbers.len() as u64;
        if count > 1 && count != edit.layout.channels() {
            let channels = edit.layout.channels();
            let message =
                format!("image `{name}` has {channels} channels, but {count} `{what}` values");
            return Err(Error::new(message).with_hint("pass one number, or one per channel"));
        }
    }
    if is_input {
        retype_input(interface, name, dtype)?;
        adjust_input(interface, edit, value, dtype)?;
    } else {
        retype_output(interface, name, dtype)?;
        adjust_output(interface, edit, dtype)?;
    }
    interface.feature_mut(name)?.ty = FeatureType::Image(image);
    Ok(())
}

/// Scale and bias before anything that uses the input.
fn adjust_input(
    interface: &mut Interface<'_>,
    edit: &ImageEdit,
    input: ValueId,
    dtype: DType,
) -> Result<(), Error> {
    let (result, added) = adjusted(interface, edit, input, dtype, 0)?;
    let keep: HashSet<_> = added.iter().filter_map(|&value| interface.producer(value)).collect();
    if result != input {
        interface.replace_uses(input, result, &keep);
    }
    Ok(())
}

/// Scale and bias after the operation that computes the output.
fn adjust_output(
    interface: &mut Interface<'_>,
    edit: &ImageEdit,
    dtype: DType,
) -> Result<(), Error> {
    let output = interface.output_value(&edit.name)?;
    let end = interface.end();
    let (result, _) = adjusted(interface, edit, output, dtype, end)?;
    let body = interface.function.body;
    for held in &mut interface.function.block_mut(body).outputs {
        if *held == output {
            *held = result;
        }
    }
    interface.claim_name(result, &edit.name);
    Ok(())
}

/// The scaled and biased value, and the values that were added.
fn adjusted(
    interface: &mut Interface<'_>,
    edit: &ImageEdit,
    value: ValueId,
    dtype: DType,
    mut at: usize,
) -> Result<(ValueId, Vec<ValueId>), Error> {
    let ty = interface.function.value(value).ty.clone();
    let mut result = value;
    let mut added = Vec::new();
    let steps = [
        (OpKind::Mul, "scale", "scaled", &edit.scale, 1.0),
        (OpKind::Add, "bias", "biased", &edit.bias, 0.0),
    ];
    for (kind, what, done, numbers, neutral) in steps {
        if numbers.iter().all(|&number| number == neutral) {
            continue;
        }
        let label = format!("{}_{what}", edit.name);
        let operand = interface.constant(at, &label, constant(numbers, dtype));
        let op = Op::new(kind).with("x", Binding::Value(result)).with("y", Binding::Value(operand));
        result = interface.insert(at + 1, op, &format!("{}_{done}", edit.name), ty.clone());
        added.push(result);
        at += 2;
    }
    Ok((result, added))
}

/// One number, or a number for each channel of `[1, channels, height, width]`.
fn constant(numbers: &[f32], dtype: DType) -> Constant {
    let bytes: Vec<u8> = match dtype {
        DType::Fp16 => {
            numbers.iter().flat_map(|&number| f16::from_f32(number).to_le_bytes()).collect()
        }
        _ => numbers.iter().flat_map(|number| number.to_le_bytes()).collect(),
    };
    match numbers.len() {
        1 => Constant::bytes(dtype, &[], bytes),
        count => Constant::bytes(dtype, &[1, count as u64, 1, 1], bytes),
    }
}

fn image_type(
    edit: &ImageEdit,
    tensor: &TensorType,
    array: &ArrayType,
    is_input: bool,
) -> Result<ImageType, Error> {
    let (name, channels) = (&edit.name, edit.layout.channels());
    let shown = || format!("`{name}` is a `{tensor}`");
    let [batch, found, height, width] = tensor.shape.as_slice() else {
        return Err(Error::new(format!("{}; an image must have rank 4", shown()))
            .with_hint("images are tensors of `[1, channels, height, width]`"));
    };
    if !batch.may_equal(&Dim::Known(1)) || !found.may_equal(&Dim::Known(channels)) {
        let message = format!("{}; an image must be `[1, {channels}, height, width]`", shown());
        return Err(Error::new(message)
            .with_hint("export the program for one image, with its channels as the second axis"));
    }
    let side = |dim: &Dim, at: usize| match dim.known() {
        Some(size) => i64::try_from(size).unwrap_or(i64::MAX),
        None => array.shape.get(at).copied().unwrap_or(1),
    };
    let sizes = match &array.flexibility {
        ShapeFlexibility::Fixed if height.known().is_none() || width.known().is_none() => {
            let any = SizeRange { lower: 1, upper: -1 };
            match is_input {
                true => ImageSizes::Fixed,
                false => ImageSizes::Ranged { width: any, height: any },
            }
        }
        ShapeFlexibility::Fixed => ImageSizes::Fixed,
        ShapeFlexibility::Enumerated(shapes) => {
            let size = |shape: &Vec<i64>| match shape.as_slice() {
                [_, _, height, width] => Some(ImageSize {
                    width: u64::try_from(*width).ok()?,
                    height: u64::try_from(*height).ok()?,
                }),
                _ => None,
            };
            ImageSizes::Enumerated(shapes.iter().filter_map(size).collect())
        }
        ShapeFlexibility::Ranged(ranges) => match ranges.as_slice() {
            [_, _, height, width] => ImageSizes::Ranged { width: *width, height: *height },
            _ => ImageSizes::Fixed,
        },
    };
    Ok(ImageType {
        width: side(width, 3),
        height: side(height, 2),
        color_space: edit.layout.color_space(),
        sizes,
    })
}

/// Makes an image an array of pixels. Operations that scale and shift pixels stay.
pub(crate) fn to_array(interface: &mut Interface<'_>, name: &str) -> Result<(), Error> {
    let value = match interface.port(name)? {
        Port::Output(_) => interface.output_value(name)?,
        _ => interface.input_value(name)?,
    };
    let tensor = interface.tensor(value)?.clone();
    let feature = interface.feature_mut(name)?;
    let FeatureType::Image(image) = &feature.ty else {
        return Err(Error::new(format!("`{name}` is not an image")));
    };
    let channels = image.color_space.channels().unwrap_or(3);
    let whole = |height: i64, width: i64| vec![1, channels as i64, height, width];
    let known = |size: u64| i64::try_from(size).unwrap_or(i64::MAX);
    let flexibility = match &image.sizes {
        ImageSizes::Fixed => ShapeFlexibility::Fixed,
        ImageSizes::Enumerated(sizes) => ShapeFlexibility::Enumerated(
            sizes.iter().map(|size| whole(known(size.height), known(size.width))).collect(),
        ),
        ImageSizes::Ranged { width, height } => {
            let (one, channels) = (SizeRange::exactly(1), SizeRange::exactly(channels));
            ShapeFlexibility::Ranged(vec![one, channels, *height, *width])
        }
    };
    let data_type = ArrayDataType::from_dtype(tensor.dtype).unwrap_or(ArrayDataType::Float32);
    let shape = whole(image.height, image.width);
    feature.ty =
        FeatureType::MultiArray(ArrayType { shape, data_type, flexibility, default: None });
    Ok(())
}
