use coremill_io::{ErrorDetail, opaque_error};
use coremill_tensor::DType;

use super::shapes::FlexibleShapes;
use super::{
    ArrayDataType, ArrayType, FeatureDescription, FeatureType, FunctionDescription, KeyType, Model,
    ModelDescription, ShapeFlexibility, SizeRange,
};
use crate::ir::{Function, Program, TensorType, Type, ValueId};
use crate::ops::OpKind;

opaque_error! {
    /// Error of [`describe`]: Core ML does not support the type of an input or an output.
    pub struct DescribeError(pub(crate) DescribeErrorKind);
}

/// Category of a [`DescribeError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DescribeErrorKind {
    /// Unsupported type of an input or a state.
    Input,
    /// Unsupported type of an output.
    Output,
}

impl DescribeError {
    fn new(kind: DescribeErrorKind, message: String, hint: &str) -> DescribeError {
        DescribeError::from_detail(kind, ErrorDetail::new(message).with_hint(hint))
    }
}

/// The function that runs by default if a program has several functions.
const DEFAULT_FUNCTION: &str = "main";

/// Derives a model with a description from a program. Every input and output becomes an array, a class label
/// or the probabilities of a classifier; every state remains a state.
///
/// Inputs with unknown dimensions get their shapes from the function's
/// [`FlexibleShapeInformation`](super::shapes). The specification version is the lowest version that supports
/// the functions' opsets and the features' types.
pub fn describe(program: Program) -> Result<Model, DescribeError> {
    let mut described = Vec::new();
    let mut version = 6;
    for function in &program.functions {
        version = version.max(function.opset.specification_version());
        described.push(describe_function(function)?);
    }
    let features = described.iter().flat_map(|d| d.inputs.iter().chain(&d.outputs));
    for feature in features {
        version = version.max(match feature.ty.array().map(|array| array.data_type) {
            Some(ArrayDataType::Float16) => 7,
            Some(ArrayDataType::Int8) => 10,
            _ => 6,
        });
    }
    if described.len() > 1 || described.iter().any(|d| !d.states.is_empty()) {
        version = version.max(9);
    }

    let description = if described.len() > 1 {
        let main = described.iter().find(|function| function.name == DEFAULT_FUNCTION);
        let default_function = main.unwrap_or(&described[0]).name.clone();
        ModelDescription { functions: described, default_function, ..Default::default() }
    } else {
        let only = described.pop().unwrap_or_default();
        ModelDescription {
            inputs: only.inputs,
            outputs: only.outputs,
            states: only.states,
            predicted_feature_name: only.predicted_feature_name,
            predicted_probabilities_name: only.predicted_probabilities_name,
            ..Default::default()
        }
    };
    let mut model =
        Model { specification_version: version, description, program, ..Model::default() };
    super::shapes::detach(&mut model);
    Ok(model)
}

fn describe_function(function: &Function) -> Result<FunctionDescription, DescribeError> {
    let mut description =
        FunctionDescription { name: function.name.clone(), ..FunctionDescription::default() };
    let shapes = FlexibleShapes::on(function).unwrap_or_default();
    for &input in function.inputs() {
        let feature = describe_input(function, input, &shapes)?;
        match feature.ty {
            FeatureType::State(_) => description.states.push(feature),
            _ => description.inputs.push(feature),
        }
    }
    for &output in function.outputs() {
        description.outputs.push(describe_output(function, output)?);
    }
    for (_, op) in function.all_ops() {
        if op.kind() == Some(OpKind::Classify) {
            let mut names = op.outputs.iter().map(|&output| function.value(output).name.clone());
            description.predicted_feature_name = names.next().unwrap_or_default();
            description.predicted_probabilities_name = names.next().unwrap_or_default();
        }
    }
    Ok(description)
}

fn describe_input(
    function: &Function,
    input: ValueId,
    shapes: &FlexibleShapes,
) -> Result<FeatureDescription, DescribeError> {
    let value = function.value(input);
    let refuse = |what: String, hint: &str| {
        let message = format!("input `{}` of function `{}` {what}", value.name, function.name);
        DescribeError::new(DescribeErrorKind::Input, message, hint)
    };
    let (tensor, is_state) = match &value.ty {
        Type::Tensor(tensor) => (tensor, false),
        Type::State(held) => match &**held {
            Type::Tensor(tensor) => (tensor, true),
            other => return Err(refuse(format!("is a state of `{other}`"), "use a tensor")),
        },
        other => return Err(refuse(format!("has type `{other}`"), "use a tensor or a state")),
    };
    let data_type = array_type_of(tensor)
        .ok_or_else(|| refuse(format!("holds `{}`", tensor.dtype), ARRAY_TYPES))?;
    if is_state {
        let shape = known_shape(tensor).ok_or_else(|| {
            refuse("has an unknown dimension".to_owned(), "states have fixed shapes")
        })?;
        let array = ArrayType::fixed(data_type, &shape);
        return Ok(FeatureDescription::new(&value.name, FeatureType::State(array)));
    }

    let wide = |dims: &[i32]| dims.iter().map(|&dim| i64::from(dim)).collect::<Vec<i64>>();
    let find = |all: &[(String, Vec<i32>)]| {
        all.iter().find(|(name, _)| *name == value.name).map(|(_, dims)| wide(dims))
    };
    let ranges = shapes.ranges.iter().find(|(name, _)| *name == value.name);
    let choices: Option<Vec<_>> = shapes.enumerated.iter().map(|set| find(set)).collect();
    let flexibility = match (ranges, choices) {
        (Some((_, ranges)), _) => {
            let range = |&[lower, upper]: &[i32; 2]| SizeRange {
                lower: u64::try_from(lower).unwrap_or(0),
                upper: upper.into(),
            };
            ShapeFlexibility::Ranged(ranges.iter().map(range).collect())
        }
        (None, Some(choices)) if !choices.is_empty() => ShapeFlexibility::Enumerated(choices),
        _ => ShapeFlexibility::Fixed,
    };
    let shape = match (known_shape(tensor), find(&shapes.defaults)) {
        (_, Some(default)) => default,
        (Some(shape), None) => shape,
        (None, None) => {
            return Err(refuse(
                "has an unknown dimension".to_owned(),
                "declare its shapes in the function's FlexibleShapeInformation attribute",
            ));
        }
    };
    if shape.len() != tensor.rank().max(1) {
        let rank = tensor.rank();
        let message = format!("has rank {rank}, but a default shape of rank {}", shape.len());
        return Err(refuse(message, "correct the function's FlexibleShapeInformation attribute"));
    }
    let array = ArrayType { shape, data_type, flexibility, default: None };
    Ok(FeatureDescription::new(&value.name, FeatureType::MultiArray(array)))
}

fn describe_output(
    function: &Function,
    output: ValueId,
) -> Result<FeatureDescription, DescribeError> {
    let value = function.value(output);
    let refuse = |what: String, hint: &str| {
        let message = format!("output `{}` of function `{}` {what}", value.name, function.name);
        DescribeError::new(DescribeErrorKind::Output, message, hint)
    };
    let ty = match &value.ty {
        Type::Tensor(tensor) if tensor.rank() == 0 && tensor.dtype == DType::String => {
            FeatureType::String
        }
        Type::Tensor(tensor) if tensor.rank() == 0 && tensor.dtype == DType::Int64 => {
            FeatureType::Int64
        }
        Type::Tensor(tensor) => {
            let data_type = array_type_of(tensor)
                .ok_or_else(|| refuse(format!("holds `{}`", tensor.dtype), ARRAY_TYPES))?;
            // If the shape of an output depends on the inputs, the description omits the shape.
            let shape = known_shape(tensor).unwrap_or_default();
            FeatureType::MultiArray(ArrayType::fixed(data_type, &shape))
        }
        Type::Dictionary(key, _) => match key.as_tensor().map(|tensor| tensor.dtype) {
            Some(DType::String) => FeatureType::Dictionary(Some(KeyType::String)),
            Some(DType::Int64) => FeatureType::Dictionary(Some(KeyType::Int64)),
            _ => return Err(refuse(format!("has keys of type `{key}`"), "use string or int64")),
        },
        other => return Err(refuse(format!("has type `{other}`"), "use a tensor")),
    };
    Ok(FeatureDescription::new(&value.name, ty))
}

const ARRAY_TYPES: &str = "arrays of inputs and outputs must be fp32, int32, fp16 (from iOS 16 on) or \
                           int8 (from iOS 26 on): add a cast";

/// The array type for a tensor. `fp64` has a code, but Core ML does not run programs with `fp64` tensors.
fn array_type_of(tensor: &TensorType) -> Option<ArrayDataType> {
    ArrayDataType::from_dtype(tensor.dtype)
}

/// The array shape for a tensor if all dimensions are fixed; `[1]` for a scalar.
fn known_shape(tensor: &TensorType) -> Option<Vec<i64>> {
    if tensor.rank() == 0 {
        return Some(vec![1]);
    }
    let shape = tensor.known_shape()?;
    shape.into_iter().map(|extent| i64::try_from(extent).ok()).collect()
}
