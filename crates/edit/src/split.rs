//! One model as several: each piece computes a range of the operations, and passes values on.

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use coremill_io::unknown_name;
use coremill_mil::ir::{
    Binding, Constant, Definition, Function, FunctionCopy, Op, OpId, Opset, Program, TensorType,
    Type, Value, ValueId,
};
use coremill_mil::model::{FeatureDescription, FeatureType, Model, ModelDescription};
use coremill_mil::ops::OpKind;
use coremill_tensor::DType;

use crate::error::Error;
use crate::outputs::array_type;

/// Arguments of fewer elements do not count as weights.
const SMALLEST_WEIGHT: u64 = 10;

/// The steps of a function: its operations in order, without constants, which every piece copies for itself.
///
/// ```
/// use coremill_edit::Steps;
/// use coremill_mil::model::describe;
/// use coremill_mil::text::{NoWeights, parse};
///
/// let text = "program(1.3) {
///     func main<ios17>(tensor<fp32, [2]> x) { tensor<fp32, [2]> a = exp(x = x); tensor<fp32, [2]> y = relu(x = a); } -> (y);
/// }";
/// let model = describe(parse(text, &NoWeights).expect("valid text")).expect("arrays");
/// let steps = Steps::of(&model, None)?;
/// let pieces = steps.pieces(&steps.after(&["a".to_owned()])?)?;
/// assert_eq!(pieces[0].description.outputs[0].name, "a");
/// assert_eq!(pieces[1].description.inputs[0].name, "a");
/// # Ok::<(), coremill_edit::Error>(())
/// ```
#[derive(Debug)]
pub struct Steps {
    model: Model,
    steps: Vec<OpId>,
    /// The step that computes each value of the body that is no constant.
    producers: HashMap<ValueId, usize>,
    /// The values that each step uses, in its blocks as well.
    uses: Vec<Vec<ValueId>>,
}

impl Steps {
    /// The steps of a function; of the default one if no name is given.
    pub fn of(model: &Model, function: Option<&str>) -> Result<Steps, Error> {
        let model = crate::function(model, function)?;
        let whole = only(&model);
        let is_step = |op: &OpId| !whole.op(*op).is_constant();
        let computed = |output: &ValueId| match whole.value(*output).definition {
            Definition::Output(op, _) => !whole.op(op).is_constant(),
            Definition::Input(..) => false,
        };
        if let Some(&output) = whole.outputs().iter().find(|output| !computed(output)) {
            let name = &whole.value(output).name;
            return Err(Error::new(format!("no operation computes the output `{name}`")));
        }
        let steps: Vec<OpId> =
            whole.block(whole.body).ops.iter().copied().filter(is_step).collect();
        let mut producers = HashMap::new();
        for (step, &op) in steps.iter().enumerate() {
            producers.extend(whole.op(op).outputs.iter().map(|&output| (output, step)));
        }
        let uses = steps.iter().map(|&op| uses(whole, op)).collect();
        Ok(Steps { steps, producers, uses, model })
    }

    /// The whole function as a model.
    pub fn whole(&self) -> &Model {
        &self.model
    }

    /// Number of steps.
    pub fn len(&self) -> usize {
        self.steps.len()
    }

    /// Whether there is no step.
    pub fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    /// The operator of a step and the name of its first result.
    pub fn name(&self, step: usize) -> (&str, &str) {
        let op = self.function().op(self.steps[step]);
        let output = op.outputs.first().map_or("", |&output| &self.function().value(output).name);
        (op.type_name(), output)
    }

    /// The pieces if each has at most this many bytes of weights.
    pub fn of_size(&self, bytes: u64) -> Result<Vec<Range<usize>>, Error> {
        let mut pieces = Vec::new();
        let (mut start, mut held, mut size) = (0, HashSet::new(), 0);
        for step in 0..self.len() {
            let mut constants = self.constants(step..step + 1);
            let literals = self.literal_bytes(step);
            let alone = self.bytes(&constants) + literals;
            if alone > bytes {
                let (operator, name) = self.name(step);
                let message = format!("`{name}` (`{operator}`) alone has {alone} bytes of weights");
                return Err(Error::new(message).with_hint(format!(
                    "increase the maximum piece size, which is {bytes} bytes"
                )));
            }
            constants.retain(|op| !held.contains(op));
            let added = self.bytes(&constants) + literals;
            if size + added > bytes && step > start {
                pieces.push(start..step);
                start = step;
                held = self.constants(step..step + 1);
                size = alone;
            } else {
                held.extend(constants);
                size += added;
            }
        }
        pieces.push(start..self.len());
        Ok(pieces)
    }

    /// Two pieces whose weights have about the same size; one if there is only one step.
    pub fn halves(&self) -> Vec<Range<usize>> {
        let mut sizes = Vec::with_capacity(self.len());
        let (mut held, mut size) = (HashSet::new(), 0);
        for step in 0..self.len() {
            let mut added = self.constants(step..step + 1);
            added.retain(|op| !held.contains(op));
            size += self.bytes(&added) + self.literal_bytes(step);
            held.extend(added);
            sizes.push(size);
        }
        sizes.pop();
        let cut = (sizes.iter().enumerate()).min_by_key(|(_, held)| (2 * **held).abs_diff(size));
        match cut {
            Some((step, _)) => vec![0..step + 1, step + 1..self.len()],
            None => std::iter::once(0..self.len()).collect(),
        }
    }

    /// The pieces if the model is cut after the operations that compute these values.
    pub fn after(&self, values: &[String]) -> Result<Vec<Range<usize>>, Error> {
        let computed: Vec<(usize, &str)> = (self.steps.iter().enumerate())
            .flat_map(|(step, &op)| {
                let outputs = self.function().op(op).outputs.iter();
                outputs.map(move |&output| (step, self.value_name(output)))
            })
            .collect();
        let mut ends = Vec::new();
        for name in values {
            let Some(&(step, _)) = computed.iter().find(|(_, found)| found == name) else {
                let known = computed.iter().map(|(_, found)| found);
                return Err(Error::new(unknown_name("value", name, known)));
            };
            ends.push(step + 1);
        }
        ends.push(self.len());
        ends.sort_unstable();
        ends.dedup();
        let starts = std::iter::once(0).chain(ends.iter().copied());
        Ok(starts.zip(ends.iter().copied()).map(|(start, end)| start..end).collect())
    }

    /// The pieces as models. A piece takes inputs of the model, and outputs of earlier pieces by their names.
    pub fn pieces(&self, ranges: &[Range<usize>]) -> Result<Vec<Model>, Error> {
        for state in self.function().inputs() {
            let is_used = |range: &Range<usize>| {
                self.uses[range.clone()].iter().any(|uses| uses.contains(state))
            };
            let is_state = matches!(self.function().value(*state).ty, Type::State(_));
            if is_state && ranges.iter().filter(|range| is_used(range)).count() > 1 {
                let name = self.value_name(*state);
                let message = format!("several pieces use the state `{name}`");
                return Err(
                    Error::new(message).with_hint("cut where no state is used on both sides")
                );
            }
        }
        ranges.iter().map(|range| self.piece(range.clone())).collect()
    }

    /// A range of steps as a model. Its outputs are the values that later steps or callers use.
    pub fn piece(&self, range: Range<usize>) -> Result<Model, Error> {
        let whole = self.function();
        let mut used: HashSet<ValueId> = HashSet::new();
        for uses in &self.uses[range.clone()] {
            used.extend(uses);
        }
        let mut used_later: HashSet<ValueId> = whole.outputs().iter().copied().collect();
        for uses in &self.uses[range.end..] {
            used_later.extend(uses);
        }
        let mut copy = Copy::new(whole);
        for &input in whole.inputs() {
            if used.contains(&input) {
                let value = whole.value(input);
                copy.input(input, &value.name, value.ty.clone());
            }
        }
        let earlier =
            |value: &ValueId| self.producers.get(value).is_some_and(|&at| at < range.start);
        let mut incoming: Vec<ValueId> = used.iter().copied().filter(earlier).collect();
        incoming.sort_unstable();
        for value in incoming {
            copy.incoming(value, passed(whole, value)?);
        }
        let constants = self.constants(range.clone());
        let within: HashSet<OpId> = self.steps[range.clone()].iter().copied().collect();
        copy.ops(&|op| constants.contains(&op) || within.contains(&op))?;
        let mut outputs: Vec<ValueId> = (self.producers.iter())
            .filter(|(value, step)| range.contains(*step) && used_later.contains(*value))
            .map(|(&value, _)| value)
            .collect();
        outputs.sort_unstable();
        let order: HashMap<ValueId, usize> =
            whole.outputs().iter().enumerate().map(|(at, &value)| (value, at)).collect();
        outputs.sort_by_key(|value| order.get(value).copied().unwrap_or(usize::MAX));
        for value in outputs {
            match order.contains_key(&value) {
                true => copy.output(value),
                false => copy.outgoing(value, &passed(whole, value)?),
            }
        }
        Ok(self.described(copy.function))
    }

    /// A piece with the descriptions that the whole model has of its inputs and outputs.
    fn described(&self, function: Function) -> Model {
        let given = &self.model.description;
        let is_state = |value: &&ValueId| matches!(function.value(**value).ty, Type::State(_));
        let features = |values: Vec<&ValueId>, known: &[FeatureDescription]| {
            values.into_iter().map(|&value| feature(function.value(value), known)).collect()
        };
        let (states, inputs) = function.inputs().iter().partition(is_state);
        let mut description = ModelDescription {
            inputs: features(inputs, &given.inputs),
            outputs: features(function.outputs().iter().collect(), &given.outputs),
            states: features(states, &given.states),
            metadata: given.metadata.clone(),
            ..ModelDescription::default()
        };
        let label = &given.predicted_feature_name;
        if description.outputs.iter().any(|output| output.name == *label) {
            description.predicted_feature_name.clone_from(label);
            let scores = &given.predicted_probabilities_name;
            description.predicted_probabilities_name.clone_from(scores);
        }
        let program = Program { functions: vec![function], ..self.model.program.clone() };
        Model { description, program, ..self.model.clone() }
    }

    fn function(&self) -> &Function {
        only(&self.model)
    }

    fn value_name(&self, value: ValueId) -> &str {
        &self.function().value(value).name
    }

    /// The constants that steps need, directly or for others.
    fn constants(&self, steps: Range<usize>) -> HashSet<OpId> {
        let whole = self.function();
        let mut found = HashSet::new();
        let mut pending: Vec<ValueId> = self.uses[steps].iter().flatten().copied().collect();
        while let Some(value) = pending.pop() {
            let Definition::Output(op, _) = whole.value(value).definition else { continue };
            if whole.op(op).is_constant() && found.insert(op) {
                pending.extend(whole.op(op).values());
            }
        }
        found
    }

    fn bytes(&self, constants: &HashSet<OpId>) -> u64 {
        constants.iter().map(|&op| own_bytes(self.function().op(op))).sum()
    }

    /// Bytes of the constants that a step binds directly, in its blocks as well.
    fn literal_bytes(&self, step: usize) -> u64 {
        let (mut bytes, mut pending) = (0, vec![self.steps[step]]);
        while let Some(op) = pending.pop() {
            let op = self.function().op(op);
            bytes += own_bytes(op);
            for &block in &op.blocks {
                pending.extend(&self.function().block(block).ops);
            }
        }
        bytes
    }
}

/// The only function of a model.
fn only(model: &Model) -> &Function {
    &model.program.functions[0]
}

/// Bytes of the constants in an operation. Arguments such as axes and bounds are too small to count.
fn own_bytes(op: &Op) -> u64 {
    let attributes = op.attributes.iter().map(|(_, constant)| constant);
    let is_weight = |constant: &&Constant| {
        let count = constant.tensor_type().and_then(TensorType::element_count);
        count.is_some_and(|count| count >= SMALLEST_WEIGHT)
    };
    let constants = attributes.chain(op.literals().filter(is_weight));
    constants.filter_map(|constant| constant.tensor_type()?.storage_bytes()).sum()
}

/// The values that an operation uses, in its blocks as well.
fn uses(function: &Function, op: OpId) -> Vec<ValueId> {
    let (mut found, mut pending) = (Vec::new(), vec![op]);
    while let Some(op) = pending.pop() {
        found.extend(function.op(op).values());
        for &block in &function.op(op).blocks {
            found.extend(&function.block(block).outputs);
            pending.extend(&function.block(block).ops);
        }
    }
    found
}

/// The description that the whole model has of a value, or an array.
fn feature(value: &Value, known: &[FeatureDescription]) -> FeatureDescription {
    if let Some(known) = known.iter().find(|known| known.name == value.name) {
        return known.clone();
    }
    let ty = value.ty.as_tensor().map_or(FeatureType::Unspecified, array_type);
    FeatureDescription::new(&value.name, ty)
}

/// The tensor as which a value is passed between pieces.
fn passed(function: &Function, value: ValueId) -> Result<TensorType, Error> {
    let value = function.value(value);
    let refuse = |reason: &str| {
        Error::new(format!("`{}`, a `{}`, {reason}", value.name, value.ty))
            .with_hint("cut at another operation")
    };
    let Some(tensor) = value.ty.as_tensor() else {
        return Err(refuse("cannot be passed between pieces"));
    };
    let Some(mut shape) = tensor.known_shape() else {
        return Err(refuse("has no fixed shape")
            .with_hint("fix the shapes of the inputs first, or cut at another operation"));
    };
    let dtype = match tensor.dtype {
        DType::Fp32 | DType::Int32 => tensor.dtype,
        DType::Fp16 if function.opset >= Opset::Ios16 => DType::Fp16,
        DType::Fp16 => DType::Fp32,
        DType::Bool | DType::Int8 | DType::UInt8 | DType::Int16 | DType::UInt16 => DType::Int32,
        _ => return Err(refuse("cannot be passed between pieces")),
    };
    if shape.is_empty() {
        shape.push(1);
    }
    Ok(TensorType::fixed(dtype, &shape))
}

/// A function while a part of another one is copied to it.
struct Copy<'f> {
    whole: &'f Function,
    function: Function,
    copied: FunctionCopy<'f>,
    names: HashSet<String>,
}

impl<'f> Copy<'f> {
    fn new(whole: &'f Function) -> Copy<'f> {
        let names = (0..whole.value_count()).map(|at| whole.value(ValueId::from_index(at)));
        Copy {
            whole,
            function: Function::new(whole.name.clone(), whole.opset),
            copied: FunctionCopy::new(whole),
            names: names.map(|value| value.name.clone()).collect(),
        }
    }

    fn fresh_name(&mut self, wanted: &str) -> String {
        let mut name = wanted.to_owned();
        let mut count = 0;
        while !self.names.insert(name.clone()) {
            count += 1;
            name = format!("{wanted}_{count}");
        }
        name
    }

    fn input(&mut self, value: ValueId, name: &str, ty: Type) -> ValueId {
        let input = self.function.add_input(self.function.body, name, ty);
        self.copied.insert(value, input);
        input
    }

    /// A value of an earlier piece, as an input that is converted to the value's type.
    fn incoming(&mut self, value: ValueId, passed: TensorType) {
        let given = self.whole.value(value);
        let input = self.input(value, &given.name, Type::Tensor(passed));
        let Some(wanted) = given.ty.as_tensor() else { return };
        let converted = self.converted(input, wanted, &format!("{}_given", given.name));
        self.copied.insert(value, converted);
    }

    /// A value for a later piece, converted to a type that can be passed. It keeps its name.
    fn outgoing(&mut self, value: ValueId, passed: &TensorType) {
        let Ok(inner) = self.copied.value(value) else { return };
        let name = self.whole.value(value).name.clone();
        let converted = self.converted(inner, passed, &format!("{name}_passed"));
        if converted != inner {
            let fresh = self.fresh_name(&format!("{name}_inner"));
            self.function.value_mut(inner).name = fresh;
            self.function.value_mut(converted).name = name;
        }
        let body = self.function.body;
        self.function.block_mut(body).outputs.push(converted);
    }

    fn output(&mut self, value: ValueId) {
        let Ok(inner) = self.copied.value(value) else { return };
        let body = self.function.body;
        self.function.block_mut(body).outputs.push(inner);
    }

    /// A value as another type: cast, or a scalar as an array of one element, or back.
    fn converted(&mut self, value: ValueId, wanted: &TensorType, name: &str) -> ValueId {
        let Some(given) = self.function.value(value).ty.as_tensor().cloned() else { return value };
        let mut value = value;
        if given.rank() != wanted.rank() {
            let ty = TensorType { dtype: given.dtype, shape: wanted.shape.clone() };
            let shape: Vec<i32> = vec![1; wanted.rank()];
            value = match shape.is_empty() {
                true => self.op(OpKind::Squeeze, value, None, ty, name),
                false => {
                    let axes = ("axes", Constant::int32s(&[0]));
                    self.op(OpKind::ExpandDims, value, Some(axes), ty, name)
                }
            };
        }
        if given.dtype != wanted.dtype {
            let dtype = ("dtype", Constant::string(wanted.dtype.name()));
            value = self.op(OpKind::Cast, value, Some(dtype), wanted.clone(), name);
        }
        value
    }

    fn op(
        &mut self,
        kind: OpKind,
        x: ValueId,
        literal: Option<(&'static str, Constant)>,
        ty: TensorType,
        name: &str,
    ) -> ValueId {
        let mut op = Op::new(kind);
        if let Some((parameter, constant)) = literal {
            op = op.with(parameter, Binding::Literal(constant));
        }
        op = op.with("x", Binding::Value(x));
        let name = self.fresh_name(name);
        let added = self.function.add_op(self.function.body, op, [(name, Type::Tensor(ty))]);
        self.function.op(added).outputs[0]
    }

    /// Copies the chosen operations of the body.
    fn ops(&mut self, chosen: &dyn Fn(OpId) -> bool) -> Result<(), Error> {
        let (whole, to) = (self.whole, self.function.body);
        let body = whole.block(whole.body);
        self.function.block_mut(to).attributes = body.attributes.clone();
        let mut name = |value: ValueId| whole.value(value).name.clone();
        for &op in body.ops.iter().filter(|&&op| chosen(op)) {
            self.copied.op(op, &mut self.function, to, &mut name).map_err(|missing| {
                let name = &whole.value(missing.0).name;
                Error::new(format!("`{name}` is used before it is computed"))
            })?;
        }
        Ok(())
    }
}
