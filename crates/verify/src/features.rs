//! Checks of one feature of a description against the function's value.

use std::collections::HashSet;

use coremill_mil::ir::{Dim, Opset, TensorType, ValueId};
use coremill_mil::model::{
    ArrayType, ColorSpace, DefaultElement, FeatureDescription, FeatureType, ImageSizes, ImageType,
    ShapeFlexibility, SizeRange,
};
use coremill_tensor::DType;

use super::codes::Code;
use super::diagnostic::{FeatureRole, Findings, FunctionContext, Location};

/// A feature and the value with the same name.
pub(super) struct Bound<'p> {
    pub(super) at: FunctionContext<'p>,
    pub(super) role: FeatureRole,
    pub(super) feature: &'p FeatureDescription,
    pub(super) value: ValueId,
}

type Finding = (Code, String);

impl Bound<'_> {
    pub(super) fn location(&self) -> Location {
        self.at.place().feature(self.role, &self.feature.name)
    }
}

/// Number of enumerated shapes; `None` if the shapes are not enumerated.
pub(super) fn enumerated(ty: &FeatureType) -> Option<usize> {
    match ty {
        FeatureType::MultiArray(ArrayType {
            flexibility: ShapeFlexibility::Enumerated(shapes),
            ..
        }) => Some(shapes.len()),
        FeatureType::Image(ImageType { sizes: ImageSizes::Enumerated(sizes), .. }) => {
            Some(sizes.len())
        }
        _ => None,
    }
}

pub(super) fn check(bound: &Bound<'_>, findings: &mut Findings) {
    let ty = &bound.at.function.value(bound.value).ty;
    let Some(tensor) = ty.unwrap_state().as_tensor() else {
        // The interface check already reported it.
        return;
    };
    let mut found = Vec::new();
    match (&bound.feature.ty, bound.role) {
        (FeatureType::MultiArray(array), FeatureRole::Input | FeatureRole::Output)
        | (FeatureType::State(array), FeatureRole::State) => {
            check_array(bound, array, tensor, &mut found);
        }
        (FeatureType::Image(image), FeatureRole::Input | FeatureRole::Output) => {
            check_image(bound, image, tensor, &mut found);
        }
        (described, role) => {
            let accepted = match role {
                FeatureRole::Input | FeatureRole::Output => "an array or an image",
                FeatureRole::State => "a state",
            };
            let message = format!("is described as {}; expected {accepted}", type_name(described));
            found.push((Code::FeatureType, message));
        }
    }
    if bound.feature.is_optional {
        let default = bound.feature.ty.array().and_then(|array| array.default);
        if default.is_none() {
            found.push((Code::FeatureDefault, "is optional, but has no default value".to_owned()));
        }
    }
    for (code, message) in found {
        findings.report(code, bound.location(), message);
    }
}

fn check_array(
    bound: &Bound<'_>,
    array: &ArrayType,
    tensor: &TensorType,
    found: &mut Vec<Finding>,
) {
    if array.data_type.dtype() != Some(tensor.dtype) {
        let message = format!(
            "is described as an array of {}, but the function has `{}`",
            array.data_type, tensor.dtype
        );
        found.push((Code::FeatureType, message));
    }
    if let Some(default) = array.default {
        let fits = match default {
            DefaultElement::Int(_) => true,
            // Converters also write default values of integers as floats.
            DefaultElement::Float(value) => tensor.dtype.is_float() || value.fract() == 0.0,
            DefaultElement::Double(value) => tensor.dtype.is_float() || value.fract() == 0.0,
        };
        if !fits {
            let message = format!("has a default value that does not fit `{}`", tensor.dtype);
            found.push((Code::FeatureDefault, message));
        }
    }
    // The shape of an output may depend on the inputs.
    if bound.role == FeatureRole::Output && array.shape.is_empty() {
        return;
    }
    // Callers see a scalar as an array with one element.
    let scalar = [Dim::Known(1)];
    let dims = if tensor.rank() == 0 { &scalar[..] } else { &tensor.shape[..] };
    if let Err(why) = fits(&array.shape, dims) {
        let message = format!(
            "has the default shape {}, but the function declares `{tensor}`: {why}",
            shown(&array.shape)
        );
        found.push((Code::FeatureType, message));
        return;
    }
    match &array.flexibility {
        ShapeFlexibility::Fixed => {}
        ShapeFlexibility::Enumerated(shapes) => {
            check_enumerated(bound, shapes, &array.shape, dims, found);
        }
        ShapeFlexibility::Ranged(ranges) => check_ranges(ranges, &array.shape, dims, found),
    }
    if bound.role == FeatureRole::State && array.flexibility != ShapeFlexibility::Fixed {
        let message = "is a state with several shapes; expected a fixed shape".to_owned();
        found.push((Code::FeatureShape, message));
    }
}

/// Checks that the dimensions allow a shape.
fn fits(shape: &[i64], dims: &[Dim]) -> Result<(), String> {
    if shape.len() != dims.len() {
        return Err(format!("rank {} is not rank {}", shape.len(), dims.len()));
    }
    for (axis, (&extent, dim)) in shape.iter().zip(dims).enumerate() {
        match u64::try_from(extent) {
            Err(_) => return Err(format!("dimension {axis} is negative: {extent}")),
            Ok(extent) if !dim.may_equal(&Dim::Known(extent)) => {
                return Err(format!("dimension {axis} is {extent}, not {dim}"));
            }
            Ok(_) => {}
        }
    }
    Ok(())
}

fn check_enumerated(
    bound: &Bound<'_>,
    shapes: &[Vec<i64>],
    default: &[i64],
    dims: &[Dim],
    found: &mut Vec<Finding>,
) {
    if shapes.is_empty() {
        found.push((Code::FeatureShape, "enumerates no shapes".to_owned()));
        return;
    }
    for shape in shapes {
        if let Err(why) = fits(shape, dims) {
            let message = format!("enumerates the shape {}, but {why}", shown(shape));
            found.push((Code::FeatureShape, message));
            return;
        }
    }
    if !shapes.iter().any(|shape| shape == default) {
        let message =
            format!("has the default shape {}, which it does not enumerate", shown(default));
        found.push((Code::FeatureShape, message));
    }
    // Since iOS18 the shapes of several inputs belong together, so a shape may occur twice.
    let mut seen = HashSet::new();
    if let Some(twice) = shapes.iter().find(|shape| !seen.insert(*shape))
        && bound.at.target < Opset::Ios18
    {
        let message = format!("enumerates the shape {} twice", shown(twice));
        found.push((Code::FeatureShape, message));
    }
}

fn check_ranges(ranges: &[SizeRange], default: &[i64], dims: &[Dim], found: &mut Vec<Finding>) {
    if ranges.len() != dims.len() {
        let message = format!("has {} ranges for {} dimensions", ranges.len(), dims.len());
        found.push((Code::FeatureShape, message));
        return;
    }
    for (axis, ((range, dim), &default)) in ranges.iter().zip(dims).zip(default).enumerate() {
        if let Some(message) = range_fault(*range, dim, default) {
            found.push((Code::FeatureShape, format!("dimension {axis} {message}")));
        }
    }
}

/// Describes the error of a range; `None` if it is valid.
fn range_fault(range: SizeRange, dim: &Dim, default: i64) -> Option<String> {
    let upper = range.upper_bound().map_or("any".to_owned(), |upper| upper.to_string());
    let shown = format!("ranges from {} to {upper}", range.lower);
    if range.upper_bound().is_some_and(|upper| upper < range.lower) {
        return Some(format!("{shown}, which is empty"));
    }
    if let Some(extent) = dim.known() {
        let fixed = range.is_fixed() && range.lower == extent;
        return (!fixed).then(|| format!("{shown}, but the function fixes it to {extent}"));
    }
    let within = u64::try_from(default).is_ok_and(|default| range.contains(default));
    (!within).then(|| format!("{shown}, which excludes the default {default}"))
}

fn check_image(
    bound: &Bound<'_>,
    image: &ImageType,
    tensor: &TensorType,
    found: &mut Vec<Finding>,
) {
    let mismatch = |message: String| (Code::FeatureType, message);
    let [_, channels, height, width] = tensor.shape.as_slice() else {
        let message = format!(
            "is described as an image, but the function has `{tensor}`; images are tensors of rank 4"
        );
        return found.push(mismatch(message));
    };
    match image.color_space.channels() {
        None => found.push(mismatch(format!(
            "is an image of {}, which is not supported",
            image.color_space
        ))),
        Some(expected) if !channels.may_equal(&Dim::Known(expected)) => {
            let message = format!(
                "is an image of {}, which has {expected} channels, but the function has {channels}",
                image.color_space
            );
            found.push(mismatch(message));
        }
        Some(_) => {}
    }
    let grey_bytes = image.color_space == ColorSpace::Grayscale && bound.at.target >= Opset::Ios17;
    let dtype_fits = matches!(tensor.dtype, DType::Fp32 | DType::Fp16)
        || (tensor.dtype == DType::UInt8 && grey_bytes);
    if !dtype_fits {
        let message = format!("is an image, but the function has `{}`", tensor.dtype);
        found.push(mismatch(message));
    }
    if image.color_space == ColorSpace::GrayscaleFloat16 && bound.at.target < Opset::Ios16 {
        let message = format!(
            "is an image of {}, which needs iOS16; the model is for {}",
            image.color_space, bound.at.target
        );
        found.push(mismatch(message));
    }
    let sides = [("width", image.width, width), ("height", image.height, height)];
    for (side, extent, dim) in sides {
        let fits = u64::try_from(extent).is_ok_and(|extent| dim.may_equal(&Dim::Known(extent)));
        if !fits {
            let message = format!("has the {side} {extent}, but the function declares {dim}");
            return found.push(mismatch(message));
        }
    }
    match &image.sizes {
        ImageSizes::Fixed => {}
        ImageSizes::Enumerated(sizes) => {
            let shapes: Vec<Vec<i64>> = sizes
                .iter()
                .map(|size| {
                    [size.width, size.height].map(|n| i64::try_from(n).unwrap_or(-1)).to_vec()
                })
                .collect();
            let dims = [width.clone(), height.clone()];
            check_enumerated(bound, &shapes, &[image.width, image.height], &dims, found);
        }
        ImageSizes::Ranged { width: widths, height: heights } => {
            for ((side, extent, dim), range) in sides.into_iter().zip([widths, heights]) {
                if let Some(message) = range_fault(*range, dim, extent) {
                    found.push((Code::FeatureShape, format!("the {side} {message}")));
                }
            }
        }
    }
}

fn type_name(ty: &FeatureType) -> &'static str {
    match ty {
        FeatureType::Unspecified => "nothing",
        FeatureType::Int64 => "an integer",
        FeatureType::Double => "a number",
        FeatureType::String => "a string",
        FeatureType::Image(_) => "an image",
        FeatureType::MultiArray(_) => "an array",
        FeatureType::Dictionary(_) => "a dictionary",
        FeatureType::Sequence(_) => "a sequence",
        FeatureType::State(_) => "a state",
    }
}

fn shown(shape: &[i64]) -> String {
    let extents: Vec<_> = shape.iter().map(i64::to_string).collect();
    format!("[{}]", extents.join(", "))
}
