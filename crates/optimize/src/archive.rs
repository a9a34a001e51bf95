//! Sample inputs of an archive, as arrays named like the converted model's inputs.

use coremill_compiler::identifier;
use coremill_engine::{Array, Elements, FeatureSpec};
use coremill_pt2::{Argument, ExportedProgram, InputKind, Meta, SavedValue, StoredValue, Tensor};
use coremill_tensor::DType;

use crate::error::Error;

/// Returns arrays for the inputs of the converted model, `None` if the archive has no sample
/// inputs.
///
/// Inputs that were buffers get the values in the archive.
pub fn sample_inputs(
    program: &ExportedProgram,
    ports: &[FeatureSpec],
) -> Result<Option<Vec<(String, Array)>>, Error> {
    let samples = program.sample_inputs()?;
    let Some(samples) = samples else { return Ok(None) };
    let mut leaves = Vec::new();
    samples.positional.iter().for_each(|value| flatten(value, &mut leaves));
    samples.keywords.iter().for_each(|(_, value)| flatten(value, &mut leaves));
    let kinds = program.inputs.iter().zip(&program.graph.inputs);
    let wanted = kinds.filter(|(kind, _)| matches!(kind, InputKind::User | InputKind::Constant(_)));
    let wanted: Vec<_> = wanted.collect();
    if wanted.len() != leaves.len() {
        return Err(Error::new(format!(
            "the archive holds {} sample inputs, but the program takes {}",
            leaves.len(),
            wanted.len()
        )));
    }
    let mut given = Vec::new();
    // The user's inputs are the model's first inputs, in the same order. Their names may differ.
    let mut of_users = ports.iter();
    for ((kind, argument), leaf) in wanted.into_iter().zip(leaves) {
        let (InputKind::User, Argument::Value(id)) = (kind, argument) else { continue };
        if matches!(program.graph.value(*id).meta, Meta::Token) {
            continue;
        }
        let Some(port) = of_users.next() else {
            return Err(Error::new(format!(
                "the archive holds more sample inputs than the {} inputs of the model",
                ports.len()
            )));
        };
        let array = array(leaf).map_err(|error| error.of_array(&port.name))?;
        given.push((port.name.clone(), fit(array, port)));
    }
    for port in of_users {
        let held = program.tensors.iter().find_map(|(name, stored)| match stored {
            StoredValue::Tensor(tensor) if is_named(&port.name, name) => Some(tensor),
            _ => None,
        });
        if let Some(tensor) = held {
            let array = tensor_array(tensor).map_err(|error| error.of_array(&port.name))?;
            given.push((port.name.clone(), fit(array, port)));
        }
    }
    Ok(Some(given))
}

/// Returns true if an input is the buffer with this name. A numeric suffix resolves name
/// collisions.
fn is_named(port: &str, buffer: &str) -> bool {
    port.strip_prefix(&identifier(buffer)).is_some_and(|rest| {
        rest.is_empty() || rest.strip_prefix('_').is_some_and(|n| n.parse::<u32>().is_ok())
    })
}

/// Flattens arguments like torch: the elements of containers in order, all else as leaves.
fn flatten<'s>(value: &'s SavedValue, leaves: &mut Vec<&'s SavedValue>) {
    // The reader limits the depth of values.
    match value {
        SavedValue::Tuple(items) | SavedValue::List(items) => {
            items.iter().for_each(|item| flatten(item, leaves));
        }
        SavedValue::Dict(pairs) => pairs.iter().for_each(|(_, value)| flatten(value, leaves)),
        _ => leaves.push(value),
    }
}

fn array(value: &SavedValue) -> Result<Array, Error> {
    match value {
        SavedValue::Tensor(StoredValue::Tensor(tensor)) => tensor_array(tensor),
        SavedValue::Int(value) => match i32::try_from(*value) {
            Ok(value) => Ok(Array::ints(DType::Int32, [1], vec![value])),
            Err(_) => Err(Error::new(format!("the sample {value} does not fit in 32 bits"))),
        },
        SavedValue::Float(value) => Ok(Array::floats(DType::Fp32, [1], vec![*value as f32])),
        SavedValue::Bool(value) => Ok(Array::ints(DType::Bool, [1], vec![i32::from(*value)])),
        _ => Err(Error::new("the sample is neither a tensor nor a number")),
    }
}

fn tensor_array(tensor: &Tensor) -> Result<Array, Error> {
    let shape: Vec<usize> = tensor.sizes.iter().map(|&size| size as usize).collect();
    let bytes = tensor.bytes()?;
    let array = tensor.dtype.dtype().and_then(|dtype| Array::from_bytes(dtype, &shape, &bytes));
    array.ok_or_else(|| Error::new(format!("samples of type `{}` are not supported", tensor.dtype)))
}

/// Converts an array to the type of a model's input, which may differ from torch's: bools and
/// narrow integers may be floats, and scalars have a dimension.
pub fn fit(array: Array, port: &FeatureSpec) -> Array {
    let Some(ty) = port.ty.as_tensor() else { return array };
    let shape = match array.shape() {
        [] if ty.rank() == 1 => vec![1],
        shape => shape.to_vec(),
    };
    match array.elements() {
        Elements::Ints(ints) if ty.dtype.is_float() => {
            Array::floats(DType::Fp32, shape, ints.iter().map(|&int| int as f32).collect())
        }
        Elements::Ints(ints) if array.dtype() == DType::Bool && ty.dtype != DType::Bool => {
            Array::ints(DType::Int32, shape, ints.to_vec())
        }
        _ => array.reshaped(shape).unwrap_or(array),
    }
}
