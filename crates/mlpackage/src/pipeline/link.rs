use std::collections::{HashMap, HashSet};

use coremill_io::ErrorDetail;
use coremill_tensor::DType;

use super::{Pipeline, Stage};
use coremill_mil::ir::{
    Binding, Constant, Function, FunctionCopy, Input, Op, Program, TensorType, Type, ValueId,
};
use coremill_mil::model::{ColorSpace, FeatureDescription, FeatureType, Model};
use coremill_mil::ops::OpKind;

/// Links a pipeline into one model: one function with the operations of all stages in order.
///
/// The function has the newest opset of the stages, and the inputs and outputs of the pipeline's description.
/// Values whose names collide are prefixed with the name of their stage. The error is a message for users.
///
/// ```
/// use coremill_mil::{model::describe, text};
/// use coremill_verify::verify;
/// use coremill_mlpackage::pipeline::{self, Pipeline, Stage};
///
/// let stage = |text: &str| -> Result<Stage, Box<dyn std::error::Error>> {
///     Ok(Stage { model: describe(text::parse(text, &text::NoWeights)?)?, ..Stage::default() })
/// };
/// let first = stage("program(1.3) { func main<ios17>(tensor<fp32, [2]> x) { \
///                    tensor<fp16, [2]> half = cast(x = x, dtype = string(\"fp16\")); } -> (half); }")?;
/// let second = stage("program(1.3) { func main<ios17>(tensor<fp32, [2]> half) { \
///                     tensor<fp32, [2]> y = relu(x = half); } -> (y); }")?;
/// let mut pipeline = Pipeline { specification_version: 8, ..Pipeline::default() };
/// pipeline.description.inputs = first.model.description.inputs.clone();
/// pipeline.description.outputs = second.model.description.outputs.clone();
/// pipeline.stages = vec![first, second];
/// let model = pipeline::link(pipeline)?;
/// let function = &model.program.functions[0];
/// let operators: Vec<_> = function.all_ops().map(|(_, op)| op.type_name()).collect();
/// assert_eq!(operators, ["cast", "cast", "relu"]);
/// assert!(verify(&model).is_ok());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn link(pipeline: Pipeline) -> Result<Model, ErrorDetail> {
    link_stages(pipeline).map_err(|message| {
        ErrorDetail::new(message)
            .with_hint("the stages cannot run as one program; split the pipeline")
    })
}

fn link_stages(pipeline: Pipeline) -> Result<Model, String> {
    let opsets = pipeline.stages.iter().filter_map(|stage| Some(entry(stage)?.opset));
    let Some(opset) = opsets.max() else { return Err("the pipeline has no stages".to_owned()) };
    let mut linker = Linker {
        function: Function::new("main", opset),
        features: HashMap::new(),
        names: Names::default(),
    };
    let named: HashSet<&str> =
        pipeline.description.outputs.iter().map(|output| output.name.as_str()).collect();
    linker.names.used.extend(named.iter().map(|&name| name.to_owned()));
    for input in &pipeline.description.inputs {
        if named.contains(input.name.as_str()) {
            return Err(format!("the pipeline has both an input and an output `{}`", input.name));
        }
        let ty = input_type(&pipeline, input)?;
        let body = linker.function.body;
        let value = linker.function.add_input(body, input.name.clone(), ty);
        linker.names.used.insert(input.name.clone());
        let feature = Feature { value, ty: input.ty.clone(), is_computed: false };
        linker.features.insert(input.name.clone(), feature);
    }
    let last_givers = last_givers(&pipeline.stages);
    for (index, stage) in pipeline.stages.iter().enumerate() {
        let keeps =
            |output: &str| named.contains(output) && last_givers.get(output) == Some(&index);
        let name = pipeline.stage_name(index);
        linker.stage(stage, &name, &keeps).map_err(|error| format!("stage `{name}` {error}"))?;
    }
    let mut outputs = Vec::new();
    for output in &pipeline.description.outputs {
        let Some(feature) = linker.features.get(&output.name) else {
            return Err(format!("no stage computes the pipeline's output `{}`", output.name));
        };
        outputs.push(feature.value);
    }
    let body = linker.function.body;
    linker.function.block_mut(body).outputs = outputs;
    let program = Program { functions: vec![linker.function], ..Program::default() };
    Ok(Model {
        specification_version: pipeline.specification_version,
        is_updatable: pipeline.is_updatable,
        description: pipeline.description,
        program,
        extra: pipeline.extra,
        unknown: pipeline.unknown,
    })
}

/// A feature that later stages may use as an input.
struct Feature {
    value: ValueId,
    ty: FeatureType,
    /// Whether a stage computes it. Inputs of the pipeline are passed unchanged to every stage.
    is_computed: bool,
}

struct Linker {
    function: Function,
    features: HashMap<String, Feature>,
    names: Names,
}

#[derive(Default)]
struct Names {
    /// Names in use, including the names of the pipeline's outputs.
    used: HashSet<String>,
    /// The last numeric suffix for each name that several values would have.
    counts: HashMap<String, u32>,
}

impl Names {
    /// Reserves an unused name.
    fn unique(&mut self, name: &str) -> String {
        let mut candidate = name.to_owned();
        while !self.used.insert(candidate.clone()) {
            let count = self.counts.entry(name.to_owned()).or_default();
            *count += 1;
            candidate = format!("{name}_{count}");
        }
        candidate
    }
}

impl Linker {
    fn stage(
        &mut self,
        stage: &Stage,
        stage_name: &str,
        keeps: &dyn Fn(&str) -> bool,
    ) -> Result<(), String> {
        let model = &stage.model;
        let name = model.default_function_name();
        let (Some(source), Some(signature)) = (model.program.function(name), model.signature(name))
        else {
            return Err(format!("has no function `{name}`"));
        };
        if let Some(state) = signature.states.first() {
            return Err(format!(
                "has the state `{}`; pipeline stages cannot have states",
                state.name
            ));
        }
        let mut copy = FunctionCopy::new(source);
        for &input in source.inputs() {
            let wanted = source.value(input);
            let Some(feature) = self.features.get(&wanted.name) else {
                let message = "which neither the pipeline's inputs nor earlier stages provide";
                return Err(format!("requires `{}`, {message}", wanted.name));
            };
            let (value, described, is_computed) =
                (feature.value, feature.ty.clone(), feature.is_computed);
            let taken = signature.input(&wanted.name).map(|feature| &feature.ty);
            let value = match taken {
                Some(taken) if is_computed => self.as_image(value, &described, taken)?,
                _ => value,
            };
            copy.insert(input, self.converted(value, &wanted.ty, &wanted.name)?);
        }
        let kept: HashSet<ValueId> = (source.outputs().iter().copied())
            .filter(|&output| keeps(&source.value(output).name))
            .collect();
        let body = self.function.body;
        let names = &mut self.names;
        let mut name = |value: ValueId| {
            let name = &source.value(value).name;
            if kept.contains(&value) || names.used.insert(name.clone()) {
                return name.clone();
            }
            names.unique(&format!("{stage_name}_{name}"))
        };
        copy.block(source.body, &mut self.function, body, &mut name).map_err(|missing| {
            format!("uses `{}` before it is computed", source.value(missing.0).name)
        })?;
        for &output in source.outputs() {
            let name = &source.value(output).name;
            let ty = signature.output(name).map_or(FeatureType::Unspecified, |f| f.ty.clone());
            let Ok(value) = copy.value(output) else {
                return Err(format!("declares the output `{name}`, which it does not compute"));
            };
            self.features.insert(name.clone(), Feature { value, ty, is_computed: true });
        }
        Ok(())
    }

    /// Converts an image between two stages: rounds it to 8-bit pixels, and reorders the colors for the next
    /// stage.
    fn as_image(
        &mut self,
        value: ValueId,
        given: &FeatureType,
        taken: &FeatureType,
    ) -> Result<ValueId, String> {
        let FeatureType::Image(image) = given else { return Ok(value) };
        let name = self.function.value(value).name.clone();
        let mut value = value;
        if image.color_space != ColorSpace::GrayscaleFloat16 {
            let dtype = self.function.value(value).ty.as_tensor().map(|tensor| tensor.dtype);
            let bound = |at: f32| match dtype {
                Some(DType::Fp16) => Ok(Constant::fp16(half::f16::from_f32(at))),
                Some(DType::Fp32) => Ok(Constant::fp32(at)),
                _ => Err(format!("requires the image `{name}`, which is not a float tensor")),
            };
            let bounds = [("alpha", bound(0.0)?), ("beta", bound(255.0)?)];
            let clipped = self.op(OpKind::Clip, value, bounds, None)?;
            value = self.op(OpKind::Round, clipped, [], None)?;
        }
        match taken {
            FeatureType::Image(taken) if taken.color_space == image.color_space => Ok(value),
            FeatureType::Image(taken) => match (image.color_space, taken.color_space) {
                (ColorSpace::Rgb, ColorSpace::Bgr) | (ColorSpace::Bgr, ColorSpace::Rgb) => {
                    self.op(OpKind::Reverse, value, [("axes", Constant::int32s(&[1]))], None)
                }
                (given, taken) => Err(format!("expects `{name}` as {taken}, got {given}")),
            },
            // An array with the pixels has the same values.
            _ => Ok(value),
        }
    }

    /// Converts a value to a type: casts it, or reshapes it to the same number of elements.
    fn converted(&mut self, value: ValueId, ty: &Type, name: &str) -> Result<ValueId, String> {
        let given = self.function.value(value).ty.clone();
        if given.is_compatible(ty) {
            return Ok(value);
        }
        let (Some(from), Some(to)) = (given.as_tensor(), ty.as_tensor()) else {
            return Err(format!("expects `{name}` as `{ty}`, got `{given}`"));
        };
        let mut value = value;
        if from.dtype != to.dtype {
            let cast = Type::Tensor(TensorType { dtype: to.dtype, shape: from.shape.clone() });
            let dtype = [("dtype", Constant::string(to.dtype.name()))];
            value = self.op(OpKind::Cast, value, dtype, Some(cast))?;
        }
        if self.function.value(value).ty.is_compatible(ty) {
            return Ok(value);
        }
        let shape: Option<Vec<i32>> = to
            .known_shape()
            .and_then(|shape| shape.into_iter().map(|extent| i32::try_from(extent).ok()).collect());
        match shape {
            // Core ML describes a scalar as an array with one element.
            Some(shape) if from.element_count() == to.element_count() => {
                let shape = [("shape", Constant::int32s(&shape))];
                self.op(OpKind::Reshape, value, shape, Some(ty.clone()))
            }
            _ => Err(format!("expects `{name}` as `{ty}`, got `{given}`")),
        }
    }

    /// Appends an operation on a value. The result has the same type unless another one is given.
    fn op<const N: usize>(
        &mut self,
        kind: OpKind,
        value: ValueId,
        literals: [(&'static str, Constant); N],
        ty: Option<Type>,
    ) -> Result<ValueId, String> {
        let mut op = Op::new(kind);
        op.inputs.push(Input { name: "x".into(), bindings: vec![Binding::Value(value)] });
        for (name, constant) in literals {
            let bindings = vec![Binding::Literal(constant)];
            op.inputs.push(Input { name: name.into(), bindings });
        }
        op.inputs.sort_by(|left, right| left.name.cmp(&right.name));
        let ty = ty.unwrap_or_else(|| self.function.value(value).ty.clone());
        let name = format!("{}_{}", self.function.value(value).name, kind.name());
        let name = self.names.unique(&name);
        let body = self.function.body;
        let op = self.function.add_op(body, op, [(name, ty)]);
        self.function
            .op(op)
            .outputs
            .first()
            .copied()
            .ok_or_else(|| "has an operation without outputs".to_owned())
    }
}

/// The function of a stage that is run.
fn entry(stage: &Stage) -> Option<&Function> {
    stage.model.program.function(stage.model.default_function_name())
}

/// The index of the last stage that computes each feature.
fn last_givers(stages: &[Stage]) -> HashMap<&str, usize> {
    let mut last = HashMap::new();
    for (index, stage) in stages.iter().enumerate() {
        let Some(function) = entry(stage) else { continue };
        for &output in function.outputs() {
            last.insert(function.value(output).name.as_str(), index);
        }
    }
    last
}

/// The type of a pipeline's input, declared by the first stage that uses it.
fn input_type(pipeline: &Pipeline, input: &FeatureDescription) -> Result<Type, String> {
    for function in pipeline.stages.iter().filter_map(entry) {
        let mut inputs = function.inputs().iter().map(|&id| function.value(id));
        if let Some(value) = inputs.find(|value| value.name == input.name) {
            return Ok(value.ty.clone());
        }
        if function.outputs().iter().any(|&id| function.value(id).name == input.name) {
            break;
        }
    }
    let array = input.ty.array().and_then(|array| {
        let shape: Option<Vec<u64>> =
            array.shape.iter().map(|&extent| u64::try_from(extent).ok()).collect();
        Some(Type::tensor(array.data_type.dtype()?, &shape?))
    });
    array.ok_or_else(|| format!("no stage uses the pipeline's input `{}`", input.name))
}
