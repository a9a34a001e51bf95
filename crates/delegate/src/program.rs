//! Programs whose methods are one call of a delegate.

use coremill_mil::model::{
    ArrayDataType, ArrayType, FeatureDescription, FeatureType, Model, ShapeFlexibility, Signature,
};
use coremill_pte::ByteRope;
use coremill_pte::coreml::{BACKEND, Reference};
use coremill_pte::program::{
    Chain, CompileSpec, ContainerMetadata, Delegate, ExecutionPlan, Instruction, NamedData, Place,
    Placement, Program, ScalarType, ShapeDynamism, Tensor, Value, ValueId,
};

use crate::constant::{Constant, constant_method};
use crate::error::{Error, Result};
use crate::payload::{ModelType, payload};

/// Name of the method of a model with a single function.
pub const FORWARD: &str = "forward";

/// Alignment of tensors in memory.
const ALIGNMENT: u64 = 16;

/// Options of [`program`].
#[derive(Clone, Debug, Default)]
pub struct ProgramOptions {
    /// Format of the model.
    pub model_type: ModelType,
    /// Compile specs stored in the program, which the backend reads at run time.
    pub compile_specs: Vec<CompileSpec>,
    /// Methods that return a constant, such as a vocabulary size.
    pub constant_methods: Vec<(String, Constant)>,
    /// Names of integer inputs that methods take with 64 bits, as PyTorch programs do. The backend converts them.
    pub wide_inputs: Vec<String>,
}

/// Writes a model as a program with a method for each function. Several functions share the model. The method of a model
/// with a single function is [`FORWARD`].
pub fn program(model: &Model, options: &ProgramOptions) -> Result<Program> {
    let mut program = Program::default();
    let signatures = model.signatures();
    let methods: Vec<(&str, Delegate)> = if model.description.functions.is_empty() {
        let (data, _) = payload(model, options.model_type, "lowered_module", None)?;
        vec![(FORWARD, delegate(data, &options.compile_specs, &mut program)?)]
    } else {
        let names: Vec<&str> = signatures.iter().map(|signature| signature.name).collect();
        let specs: Vec<_> = names.iter().map(|&name| (name, &*options.compile_specs)).collect();
        let delegates = shared_delegates(model, options.model_type, 0, &specs, &mut program)?;
        names.into_iter().zip(delegates).collect()
    };
    for ((name, delegate), signature) in methods.into_iter().zip(&signatures) {
        program.plans.push(method(name, delegate, signature, options)?);
    }
    for (name, constant) in &options.constant_methods {
        if program.plans.iter().any(|plan| plan.name == *name) {
            return Err(Error::model(format!("two methods have the name `{name}`")));
        }
        let plan = constant_method(name, constant, &mut program)?;
        program.plans.push(plan);
    }
    program.plans.sort_by(|left, right| left.name.cmp(&right.name));
    Ok(program)
}

/// Adds a payload to a program, and returns a delegate with it.
pub fn delegate(
    data: ByteRope,
    compile_specs: &[CompileSpec],
    program: &mut Program,
) -> Result<Delegate> {
    let Ok(number) = u32::try_from(program.delegate_data.len()) else {
        return Err(Error::model("the number of delegates exceeds 32 bits"));
    };
    program.delegate_data.push(data);
    Ok(Delegate {
        id: BACKEND.to_owned(),
        data: number,
        compile_specs: compile_specs.to_vec(),
        ..Delegate::default()
    })
}

/// Adds a model to a program as named data, and returns a delegate for each function with its compile specs. `part` is the
/// position of the delegates in their methods.
pub fn shared_delegates(
    model: &Model,
    model_type: ModelType,
    part: usize,
    functions: &[(&str, &[CompileSpec])],
    program: &mut Program,
) -> Result<Vec<Delegate>> {
    let name = format!("lowered_module_partition_{part}");
    let (data, identifier) = payload(model, model_type, &name, None)?;
    let key = format!("coreml_{identifier}");
    if !program.named_data.iter().any(|data| data.key == key) {
        let data = NamedData { key: key.clone(), data, alignment: 1, ..NamedData::default() };
        program.named_data.push(data);
    }
    let mut delegates = Vec::with_capacity(functions.len());
    for (function, compile_specs) in functions {
        let reference = Reference { key: key.clone(), function: (*function).to_owned() };
        let data = ByteRope::from(reference.to_bytes());
        delegates.push(delegate(data, compile_specs, program)?);
    }
    Ok(delegates)
}

/// A method that passes its inputs to a delegate.
fn method(
    name: &str,
    delegate: Delegate,
    signature: &Signature<'_>,
    options: &ProgramOptions,
) -> Result<ExecutionPlan> {
    let mut memory = 0u64;
    let mut values = Vec::new();
    let features = signature.inputs.iter().chain(signature.outputs);
    for (index, feature) in features.enumerate() {
        let is_input = index < signature.inputs.len();
        let mut tensor = tensor(feature, is_input, &options.wide_inputs)
            .map_err(|reason| Error::model(format!("feature `{}` {reason}", feature.name)))?;
        let offset = memory.next_multiple_of(ALIGNMENT);
        let end = tensor.byte_length().and_then(|bytes| offset.checked_add(bytes));
        let Some(end) = end.filter(|&end| end <= i64::MAX as u64) else {
            let message = "the inputs and outputs require more memory than can be addressed";
            return Err(
                Error::model(message).with_hint("set smaller upper bounds for dynamic dimensions")
            );
        };
        tensor.placement = Placement::Planned(Place { arena: 0, offset });
        memory = end;
        values.push(Value::Tensor(tensor));
    }
    let ids: Vec<ValueId> = (0..values.len() as u32).map(ValueId).collect();
    let (inputs, outputs) = ids.split_at(signature.inputs.len());
    let (inputs, outputs) = (inputs.to_vec(), outputs.to_vec());
    let call = Instruction::DelegateCall { delegate: 0, arguments: ids };
    Ok(ExecutionPlan {
        name: name.to_owned(),
        container: Some(ContainerMetadata::default()),
        values,
        inputs,
        outputs,
        chains: vec![Chain { instructions: vec![call], ..Chain::default() }],
        delegates: vec![delegate],
        arenas: vec![memory.next_multiple_of(ALIGNMENT)],
        ..ExecutionPlan::default()
    })
}

/// The tensor of a feature, with the largest sizes. The error continues a sentence about the feature.
fn tensor(
    feature: &FeatureDescription,
    is_input: bool,
    wide: &[String],
) -> Result<Tensor, &'static str> {
    let FeatureType::MultiArray(array) = &feature.ty else {
        return Err("is not an array; ExecuTorch only supports tensors");
    };
    let scalar_type = match array.data_type {
        ArrayDataType::Float16 => ScalarType::Half,
        ArrayDataType::Float32 => ScalarType::Float,
        ArrayDataType::Double => ScalarType::Double,
        ArrayDataType::Int32 if is_input && wide.contains(&feature.name) => ScalarType::Long,
        ArrayDataType::Int32 => ScalarType::Int,
        ArrayDataType::Int8 => ScalarType::Char,
        ArrayDataType::Other(_) => return Err("has an unknown element type"),
    };
    if array.shape.is_empty() && !is_input {
        return Err("has a shape that depends on the inputs, without an upper bound");
    }
    let sizes = largest(array).ok_or("has a dimension without an upper bound")?;
    let mut tensor = Tensor::new(scalar_type, sizes, Placement::GivenAtRunTime);
    let is_fixed = match &array.flexibility {
        ShapeFlexibility::Fixed => true,
        ShapeFlexibility::Enumerated(shapes) => shapes.iter().all(|shape| *shape == array.shape),
        ShapeFlexibility::Ranged(ranges) => ranges.iter().all(|range| range.is_fixed()),
    };
    if !is_fixed {
        tensor.dynamism = ShapeDynamism::Bound;
    }
    Ok(tensor)
}

/// The largest size of each dimension.
fn largest(array: &ArrayType) -> Option<Vec<i32>> {
    let mut sizes: Vec<u64> = Vec::new();
    for &size in &array.shape {
        sizes.push(u64::try_from(size).ok()?);
    }
    match &array.flexibility {
        ShapeFlexibility::Fixed => {}
        ShapeFlexibility::Enumerated(shapes) => {
            for shape in shapes {
                for (size, &other) in sizes.iter_mut().zip(shape) {
                    *size = (*size).max(u64::try_from(other).ok()?);
                }
            }
        }
        ShapeFlexibility::Ranged(ranges) => {
            sizes = ranges.iter().map(|range| range.upper_bound()).collect::<Option<_>>()?;
        }
    }
    sizes.into_iter().map(|size| i32::try_from(size).ok()).collect()
}

#[cfg(test)]
mod tests {
    use coremill_mil::model::{SizeRange, describe};
    use coremill_mil::text;
    use coremill_pte::coreml::Payload;

    use super::*;

    fn model(functions: &str) -> Model {
        let source = format!("program(1.3)\n{{\n{functions}}}\n");
        describe(text::parse(&source, &text::NoWeights).expect("text")).expect("described")
    }

    fn function(name: &str, count: usize) -> String {
        let ty = format!("tensor<int32, [{count}]>");
        format!(
            "    func {name}<ios18>({ty} ids, tensor<fp32, [3]> x) {{\n        {ty} y = add(x = ids, y = ids);\n        tensor<fp16, [3]> z = cast(x = x, dtype = string(\"fp16\"));\n    }} -> (y, z);\n"
        )
    }

    fn types(plan: &ExecutionPlan) -> Vec<(ScalarType, Vec<i32>, u64)> {
        let types = plan.values.iter().map(|value| match value {
            Value::Tensor(tensor) => match tensor.placement {
                Placement::Planned(place) => {
                    (tensor.scalar_type, tensor.sizes.clone(), place.offset)
                }
                other => panic!("unplanned: {other:?}"),
            },
            other => panic!("not a tensor: {other:?}"),
        });
        types.collect()
    }

    #[test]
    fn single_function_becomes_forward_method() {
        let options =
            ProgramOptions { wide_inputs: vec!["ids".to_owned()], ..ProgramOptions::default() };
        let program = program(&model(&function("main", 3)), &options).expect("a program");
        let plan = &program.plans[0];
        assert_eq!((plan.name.as_str(), plan.inputs.len(), plan.outputs.len()), ("forward", 2, 2));
        let expected = [
            (ScalarType::Long, vec![3], 0),
            (ScalarType::Float, vec![3], 32),
            (ScalarType::Int, vec![3], 48),
            (ScalarType::Half, vec![3], 64),
        ];
        assert_eq!(types(plan), expected);
        assert_eq!(plan.arenas, [80]);
        let payload = Payload::of(&program, &plan.delegates[0]).expect("a payload");
        assert_eq!(payload.function(), None);
    }

    #[test]
    fn methods_share_one_model_payload() {
        let model = model(&(function("forward", 1) + &function("prefill", 4)));
        let program = program(&model, &ProgramOptions::default()).expect("a program");
        assert_eq!(program.named_data.len(), 1);
        for (plan, count) in program.plans.iter().zip([1, 4]) {
            assert_eq!(types(plan)[0], (ScalarType::Int, vec![count], 0));
            let payload = Payload::of(&program, &plan.delegates[0]).expect("a payload");
            assert_eq!(payload.function(), Some(plan.name.as_str()));
        }
        let data = coremill_pte::to_data(&program).expect("a valid program");
        let read = coremill_pte::from_buffer(&data.to_buffer()).expect("a readable program");
        assert_eq!(read.plans, program.plans);
    }

    #[test]
    fn rejects_unbounded_dimensions() {
        let array = ArrayType {
            flexibility: ShapeFlexibility::Ranged(vec![SizeRange { lower: 1, upper: -1 }]),
            ..ArrayType::fixed(ArrayDataType::Float32, &[3])
        };
        let feature = FeatureDescription::new("x", FeatureType::MultiArray(array.clone()));
        let reason = tensor(&feature, true, &[]).expect_err("no bound");
        assert_eq!(reason, "has a dimension without an upper bound");
        let range = ShapeFlexibility::Ranged(vec![SizeRange { lower: 1, upper: 7 }]);
        let array = FeatureType::MultiArray(ArrayType { flexibility: range, ..array });
        let tensor = tensor(&FeatureDescription::new("x", array), true, &[]).expect("a bound");
        assert_eq!((tensor.sizes, tensor.dynamism), (vec![7], ShapeDynamism::Bound));
    }

    #[test]
    fn rejects_duplicate_method_names() {
        let options = ProgramOptions {
            constant_methods: vec![(FORWARD.to_owned(), true.into())],
            ..ProgramOptions::default()
        };
        let error = program(&model(&function("main", 3)), &options).expect_err("two methods");
        assert_eq!(error.to_string(), "two methods have the name `forward`");
    }
}
