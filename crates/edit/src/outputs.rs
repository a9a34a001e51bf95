//! Outputs that are added and removed.

use coremill_io::unknown_name;
use coremill_mil::ir::{TensorType, ValueId};
use coremill_mil::model::{ArrayDataType, ArrayType, FeatureDescription, FeatureType};
use coremill_passes::keep_unused_inputs;
use coremill_tensor::DType;

use crate::error::Error;
use crate::interface::{Interface, Port};

/// Removes an output, and what only it needs.
pub(crate) fn drop(interface: &mut Interface<'_>, name: &str) -> Result<(), Error> {
    let Port::Output(at) = interface.port(name)? else {
        return Err(Error::new(format!("`{name}` is not an output")));
    };
    if name == interface.predicted_probabilities {
        let hint = format!("drop `{}` to get the scores as an array", interface.predicted_feature);
        return Err(
            Error::new(format!("`{name}` holds the scores of the classifier")).with_hint(hint)
        );
    }
    if interface.outputs.len() == 1 {
        return Err(Error::new(format!("`{name}` is the only output"))
            .with_hint("expose another value first"));
    }
    let value = interface.output_value(name)?;
    let body = interface.function.body;
    interface.function.block_mut(body).outputs.retain(|&held| held != value);
    interface.outputs.remove(at);
    interface.sweep();
    keep_unused_inputs(interface.function);
    Ok(())
}

/// Makes a value of the program an output.
pub(crate) fn expose(interface: &mut Interface<'_>, name: &str) -> Result<(), Error> {
    if interface.port(name).is_ok() {
        return Err(Error::new(format!("`{name}` is already an input or an output")));
    }
    let body = interface.function.block(interface.function.body);
    let computed = body.ops.iter().flat_map(|&op| &interface.function.op(op).outputs);
    let computed: Vec<ValueId> =
        computed.copied().filter(|&value| interface.can_be_output(value)).collect();
    let named = |value: &ValueId| interface.function.value(*value).name.as_str();
    let Some(value) = computed.iter().copied().find(|value| named(value) == name) else {
        return Err(Error::new(unknown_name("value", name, computed.iter().map(named))));
    };
    expose_value(interface, value, name)
}

/// Makes a value an output with a name, of a type that outputs can have.
pub(crate) fn expose_value(
    interface: &mut Interface<'_>,
    value: ValueId,
    name: &str,
) -> Result<(), Error> {
    let tensor = interface.tensor(value)?.clone();
    let opset = interface.function.opset;
    let dtype = match tensor.dtype {
        DType::Fp32 | DType::Int32 => tensor.dtype,
        DType::Fp16 if opset >= coremill_mil::ir::Opset::Ios16 => DType::Fp16,
        DType::Fp16 | DType::Bool => DType::Fp32,
        _ => DType::Int32,
    };
    let value = match dtype == tensor.dtype {
        true => value,
        false => {
            let end = interface.end();
            interface.cast(end, value, dtype, name)
        }
    };
    interface.claim_name(value, name);
    let body = interface.function.body;
    interface.function.block_mut(body).outputs.push(value);
    let ty = array_type(&TensorType { dtype, ..tensor });
    interface.outputs.push(FeatureDescription::new(name, ty));
    Ok(())
}

/// The description of a tensor that callers get: an array, with one element if the tensor is a scalar.
pub(crate) fn array_type(tensor: &TensorType) -> FeatureType {
    let data_type = ArrayDataType::from_dtype(tensor.dtype).unwrap_or(ArrayDataType::Float32);
    let shape = tensor.known_shape().unwrap_or_default();
    let shape: Vec<i64> = match tensor.rank() {
        0 => vec![1],
        _ => shape.into_iter().map(|size| i64::try_from(size).unwrap_or(i64::MAX)).collect(),
    };
    FeatureType::MultiArray(ArrayType::fixed(data_type, &shape))
}
