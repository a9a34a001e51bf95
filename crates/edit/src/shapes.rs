//! The shapes that an input accepts.

use coremill_mil::infer::analyze;
use coremill_mil::ir::{Dim, TensorType, Type, ValueId};
use coremill_mil::model::{FeatureType, ImageSize, ImageSizes, ShapeFlexibility, SizeRange};
use serde::Deserialize;

use crate::error::Error;
use crate::interface::{Interface, Port};

/// The shapes that an input accepts from now on.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct ShapeEdit {
    /// The input.
    pub name: String,
    /// Allowed shapes. A single one fixes the input.
    pub shapes: Vec<Vec<u64>>,
    /// Default shape; empty for the first.
    #[serde(default)]
    pub default: Vec<u64>,
}

/// The sizes that an input accepts in each dimension.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct RangeEdit {
    /// The input.
    pub name: String,
    /// The smallest and the largest size of each dimension; unbounded if the latter is missing.
    pub ranges: Vec<(u64, Option<u64>)>,
    /// Default size of each dimension; empty to keep it.
    #[serde(default)]
    pub default: Vec<u64>,
}

/// Sets the sizes that an input accepts in dimensions that the program leaves open.
pub(crate) fn set_ranges(interface: &mut Interface<'_>, edit: &RangeEdit) -> Result<(), Error> {
    let name = &edit.name;
    let Port::Input(_) = interface.port(name)? else {
        return Err(Error::new(format!("`{name}` is not an input")));
    };
    let input = interface.input_value(name)?;
    let tensor = interface.tensor(input)?.clone();
    let count = edit.ranges.len();
    if count != tensor.rank() {
        let rank = tensor.rank();
        let message = format!("`{name}` is a `{tensor}`; expected {rank} ranges, got {count}");
        return Err(Error::new(message));
    }
    let FeatureType::MultiArray(array) = &mut interface.feature_mut(name)?.ty else {
        return Err(Error::new(format!("`{name}` is not an array")));
    };
    let size = |&size: &u64| i64::try_from(size).unwrap_or(i64::MAX);
    let shape = match edit.default.len() {
        0 => array.shape.clone(),
        given if given == count => edit.default.iter().map(size).collect(),
        given => {
            let message = format!(
                "`{name}` has {count} dimensions; expected {count} default sizes, got {given}"
            );
            return Err(Error::new(message));
        }
    };
    let mut ranges = Vec::with_capacity(count);
    for (axis, (&(lower, upper), dim)) in edit.ranges.iter().zip(&tensor.shape).enumerate() {
        if let Some(size) = dim.known().filter(|&size| (lower, upper) != (size, Some(size))) {
            let message = format!("dimension {axis} of `{name}` has the fixed size {size}");
            let hint = "export the program again, with dynamic shapes";
            return Err(Error::new(message).with_hint(hint));
        }
        let default = shape.get(axis).copied().unwrap_or_default();
        let upper = upper.map_or(-1, |upper| i64::try_from(upper).unwrap_or(i64::MAX));
        let range = SizeRange { lower, upper };
        if !u64::try_from(default).is_ok_and(|default| range.contains(default)) {
            let message =
                format!("the range of dimension {axis} of `{name}` excludes its default {default}");
            let hint = "choose a range that contains the default";
            return Err(Error::new(message).with_hint(hint));
        }
        ranges.push(range);
    }
    array.shape = shape;
    array.flexibility = ShapeFlexibility::Ranged(ranges);
    Ok(())
}

/// Sets the shapes that an input accepts. Types of all values are inferred again.
pub(crate) fn set(interface: &mut Interface<'_>, edit: &ShapeEdit) -> Result<(), Error> {
    let name = &edit.name;
    let Port::Input(_) = interface.port(name)? else {
        return Err(Error::new(format!("`{name}` is not an input")));
    };
    let input = interface.input_value(name)?;
    let tensor = interface.tensor(input)?.clone();
    let Some(default) = edit.shapes.first() else {
        return Err(Error::new(format!("expected at least one shape for `{name}`")));
    };
    if !edit.default.is_empty() && !edit.shapes.contains(&edit.default) {
        let message = format!("the default shape {:?} of `{name}` is not allowed", edit.default);
        return Err(Error::new(message).with_hint("choose one of the allowed shapes"));
    }
    if let Some(shape) = edit.shapes.iter().find(|shape| shape.len() != tensor.rank()) {
        let message = format!("`{name}` is a `{tensor}`; the shape {shape:?} has a different rank");
        return Err(Error::new(message));
    }
    let shape: Vec<Dim> = (0..tensor.rank())
        .map(|axis| match edit.shapes.iter().all(|shape| shape[axis] == default[axis]) {
            true => Dim::Known(default[axis]),
            false => Dim::Unknown,
        })
        .collect();
    let ty = TensorType { dtype: tensor.dtype, shape };
    interface.function.value_mut(input).ty = Type::Tensor(ty.clone());
    let (analysis, problems) = analyze(interface.function);
    if let Some(problem) = problems.first() {
        let op = interface.function.op(problem.op);
        let at = op.outputs.first().map_or("", |&it| interface.function.value(it).name.as_str());
        let message = format!("`{name}` cannot be a `{ty}`: `{at}` {}", problem.refusal);
        let hint = "export the program again, with dynamic shapes";
        return Err(Error::new(message).with_hint(hint));
    }
    for at in 0..interface.function.value_count() {
        let value = ValueId::from_index(at);
        if let Some(inferred) = analysis.ty(value) {
            interface.function.value_mut(value).ty = inferred.erased();
        }
    }
    describe_input(interface, edit)?;
    describe_outputs(interface)
}

fn describe_input(interface: &mut Interface<'_>, edit: &ShapeEdit) -> Result<(), Error> {
    let wide = |shape: &Vec<u64>| -> Vec<i64> {
        shape.iter().map(|&size| i64::try_from(size).unwrap_or(i64::MAX)).collect()
    };
    let default = if edit.default.is_empty() { &edit.shapes[0] } else { &edit.default };
    match &mut interface.feature_mut(&edit.name)?.ty {
        FeatureType::MultiArray(array) => {
            array.shape = wide(default);
            array.flexibility = match edit.shapes.len() {
                1 => ShapeFlexibility::Fixed,
                _ => ShapeFlexibility::Enumerated(edit.shapes.iter().map(wide).collect()),
            };
        }
        FeatureType::Image(image) => {
            let size = |shape: &Vec<u64>| match shape.as_slice() {
                [_, _, height, width] => ImageSize { width: *width, height: *height },
                _ => ImageSize::default(),
            };
            let default = size(default);
            (image.width, image.height) = (default.width as i64, default.height as i64);
            image.sizes = match edit.shapes.len() {
                1 => ImageSizes::Fixed,
                _ => ImageSizes::Enumerated(edit.shapes.iter().map(size).collect()),
            };
        }
        _ => return Err(Error::new(format!("`{}` is not an array", edit.name))),
    }
    Ok(())
}

/// Describes outputs with the shapes that they have now.
fn describe_outputs(interface: &mut Interface<'_>) -> Result<(), Error> {
    for at in 0..interface.outputs.len() {
        let name = interface.outputs[at].name.clone();
        let value = interface.output_value(&name)?;
        let Some(tensor) = interface.function.value(value).ty.as_tensor() else { continue };
        let known = tensor.known_shape();
        match &mut interface.outputs[at].ty {
            FeatureType::MultiArray(array) if tensor.rank() > 0 => {
                let shape = known.unwrap_or_default();
                array.shape = shape.into_iter().map(|size| size as i64).collect();
            }
            FeatureType::Image(image) => match known.as_deref() {
                Some([_, _, height, width]) => {
                    (image.width, image.height) = (*width as i64, *height as i64);
                    image.sizes = ImageSizes::Fixed;
                }
                _ => {
                    let any = SizeRange { lower: 1, upper: -1 };
                    (image.width, image.height) = (1, 1);
                    image.sizes = ImageSizes::Ranged { width: any, height: any };
                }
            },
            _ => {}
        }
    }
    Ok(())
}
