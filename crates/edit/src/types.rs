//! Element types of inputs and outputs, and inputs that callers may leave out.

use std::collections::HashSet;

use coremill_mil::ir::{Opset, TensorType, Type};
use coremill_mil::model::{ArrayDataType, DefaultElement, FeatureType};
use coremill_tensor::DType;
use serde::Deserialize;

use crate::error::Error;
use crate::interface::{Interface, Port};

/// An element type that callers see.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ElementType {
    /// 16-bit floats, from iOS 16 on.
    Fp16,
    /// 32-bit floats.
    Fp32,
    /// 32-bit integers.
    Int32,
    /// 8-bit integers, from iOS 26 on.
    Int8,
}

impl ElementType {
    /// The type of tensors.
    pub fn dtype(self) -> DType {
        match self {
            ElementType::Fp16 => DType::Fp16,
            ElementType::Fp32 => DType::Fp32,
            ElementType::Int32 => DType::Int32,
            ElementType::Int8 => DType::Int8,
        }
    }

    /// The oldest release whose callers pass it.
    pub fn needs(self) -> Opset {
        match self {
            ElementType::Fp16 => Opset::Ios16,
            ElementType::Fp32 | ElementType::Int32 => Opset::Ios15,
            ElementType::Int8 => Opset::Ios26,
        }
    }

    /// The element type of a name: `fp16`, `fp32`, `int32` or `int8`.
    pub fn parse(name: &str) -> Result<ElementType, Error> {
        match name {
            "fp16" => Ok(ElementType::Fp16),
            "fp32" => Ok(ElementType::Fp32),
            "int32" => Ok(ElementType::Int32),
            "int8" => Ok(ElementType::Int8),
            _ => {
                let message = format!("unknown element type `{name}`");
                Err(Error::new(message).with_hint("pass `fp16`, `fp32`, `int32` or `int8`"))
            }
        }
    }
}

/// Sets the element type of an input or an output.
pub(crate) fn retype(
    interface: &mut Interface<'_>,
    name: &str,
    to: ElementType,
) -> Result<(), Error> {
    match interface.port(name)? {
        Port::Input(_) => retype_input(interface, name, to.dtype())?,
        Port::Output(_) => retype_output(interface, name, to.dtype())?,
        Port::State(_) => {
            return Err(Error::new(format!(
                "`{name}` is a state; the element type of states is fp16"
            )));
        }
    }
    match &mut interface.feature_mut(name)?.ty {
        FeatureType::MultiArray(array) => {
            if let Some(data_type) = ArrayDataType::from_dtype(to.dtype()) {
                array.data_type = data_type;
            }
            Ok(())
        }
        FeatureType::Image(_) => {
            Err(Error::new(format!("`{name}` is an image")).with_hint("make it an array first"))
        }
        other => Err(Error::new(format!("`{name}` is {other:?}; expected an array"))),
    }
}

/// Changes the element type of an input; the program casts to the former one.
pub(crate) fn retype_input(
    interface: &mut Interface<'_>,
    name: &str,
    dtype: DType,
) -> Result<(), Error> {
    let input = interface.input_value(name)?;
    let tensor = interface.tensor(input)?.clone();
    if tensor.dtype == dtype {
        return Ok(());
    }
    interface.function.value_mut(input).ty = Type::Tensor(TensorType { dtype, ..tensor.clone() });
    let cast = interface.cast(0, input, tensor.dtype, &format!("{name}_{}", tensor.dtype.name()));
    let keep: HashSet<_> = interface.producer(cast).into_iter().collect();
    interface.replace_uses(input, cast, &keep);
    // A cast to what the input holds now gives the input itself.
    let back: Vec<_> = interface
        .function
        .all_ops()
        .filter(|(id, op)| {
            let is_back = op.outputs.iter().any(|&output| {
                let value = interface.function.value(output);
                value.ty.as_tensor().is_some_and(|ty| ty.dtype == dtype)
                    && !interface.function.outputs().contains(&output)
            });
            is_back && interface.cast_source(*id) == Some(cast)
        })
        .map(|(_, op)| op.outputs[0])
        .collect();
    for value in back {
        interface.replace_uses(value, input, &HashSet::new());
    }
    interface.sweep();
    Ok(())
}

/// Changes the element type of an output.
pub(crate) fn retype_output(
    interface: &mut Interface<'_>,
    name: &str,
    dtype: DType,
) -> Result<(), Error> {
    let output = interface.output_value(name)?;
    if interface.tensor(output)?.dtype == dtype {
        return Ok(());
    }
    // What was cast for callers may have the wanted type before the cast.
    let source = interface.producer(output).and_then(|op| interface.cast_source(op));
    let source = source.filter(|&source| {
        let has_type = interface.tensor(source).is_ok_and(|tensor| tensor.dtype == dtype);
        has_type
            && interface.can_be_output(source)
            && !interface.function.outputs().contains(&source)
            && interface.use_count(output) == 0
    });
    let value = match source {
        Some(source) => source,
        None => {
            let end = interface.end();
            interface.cast(end, output, dtype, name)
        }
    };
    let body = interface.function.body;
    for held in &mut interface.function.block_mut(body).outputs {
        if *held == output {
            *held = value;
        }
    }
    interface.claim_name(value, name);
    interface.sweep();
    Ok(())
}

/// Lets callers leave an input out.
pub(crate) fn optional(
    interface: &mut Interface<'_>,
    name: &str,
    default: f64,
) -> Result<(), Error> {
    let feature = interface.feature_mut(name)?;
    let FeatureType::MultiArray(array) = &mut feature.ty else {
        return Err(Error::new(format!("`{name}` is not an array; only arrays can be optional")));
    };
    array.default = Some(match array.data_type {
        ArrayDataType::Int32 | ArrayDataType::Int8 => {
            if default.fract() != 0.0 {
                let message = format!("the default of `{name}` must be an integer, got {default}");
                return Err(Error::new(message));
            }
            DefaultElement::Int(default as i32)
        }
        _ => DefaultElement::Float(default as f32),
    });
    feature.is_optional = true;
    Ok(())
}
