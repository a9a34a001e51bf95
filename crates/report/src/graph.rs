//! The graph of a model's functions.

use std::collections::{BTreeMap, HashMap};

use coremill::executorch::ProgramSummary;
use coremill::inspect::placement::{Device, ForecastOptions, forecast};
use coremill::quantity::{bytes, count};
use coremill::summary::{self, Summary};
use coremill_compiler::SourceMap;
use coremill_mil::ir::{
    Binding, Constant, ConstantData, Function, Op as MilOp, OpId, Type, ValueId,
};
use coremill_mil::model::Model as MilModel;
use coremill_mil::ops::OpKind;
use coremill_passes::without_precision;
use coremill_tensor::DType;

use crate::data::{Fact, Feature, Function as FunctionData, Model, Op};
use crate::devices::set_devices;
use crate::weights::Weights;

/// The fact that sums the forecast up.
pub(crate) const NEURAL_ENGINE: &str = "Neural Engine";
/// Maximum number of elements in the text of a constant argument.
const MAX_SHOWN: u64 = 8;
/// Maximum length of an argument's text.
const MAX_TEXT: usize = 120;

/// Converts a model with its functions and weights.
pub(crate) fn model(name: &str, model: &MilModel, calls: Option<&SourceMap>) -> Model {
    let summary = summary::summarize(model);
    let mut weights = Weights::default();
    let mut functions = Vec::with_capacity(model.program.functions.len());
    for function in &model.program.functions {
        functions.push(Builder::new(function, calls, &mut weights).build());
    }
    let (order, weights) = weights.finish();
    for op in functions.iter_mut().flat_map(|function| &mut function.ops) {
        for weight in &mut op.weights {
            *weight = order[*weight];
        }
    }
    set_devices(&mut functions, &forecast(model, &ForecastOptions::default()));
    Model {
        name: name.to_owned(),
        facts: facts(&summary, &functions),
        functions,
        weights,
        planned: None,
        forecast: Some(forecast_chip()),
    }
}

/// The chip that forecasts are for.
pub(crate) fn forecast_chip() -> String {
    ForecastOptions::default().chip.name.to_owned()
}

fn facts(summary: &Summary, functions: &[FunctionData]) -> Vec<Fact> {
    let fact = |label: &str, value: String| {
        (!value.is_empty()).then(|| Fact { label: label.into(), value })
    };
    let releases: Vec<_> = summary
        .availability
        .iter()
        .map(|release| format!("{} {}", release.system, release.version))
        .collect();
    let stored: Vec<_> = summary
        .weights
        .by_dtype
        .iter()
        .map(|entry| format!("{} {}", bytes(entry.bytes), entry.dtype))
        .collect();
    let names: Vec<_> = functions.iter().map(|function| function.name.as_str()).collect();
    [
        fact("runs on", releases.join(", ")),
        fact("functions", if names.len() > 1 { names.join(", ") } else { String::new() }),
        fact("parameters", count(summary.weights.parameters)),
        fact("weights", stored.join(", ")),
        fact("author", summary.metadata.author.clone()),
        fact("license", summary.metadata.license.clone()),
        fact("description", summary.metadata.description.clone()),
    ]
    .into_iter()
    .flatten()
    .chain(counted(functions))
    .collect()
}

/// Summary entries about all functions.
fn counted(functions: &[FunctionData]) -> Vec<Fact> {
    let ops = || functions.iter().flat_map(|function| &function.ops);
    let flops: u64 = ops().map(|op| op.flops).fold(0, u64::saturating_add);
    let fact = |label: &str, value: String| Fact { label: label.into(), value };
    let mut facts = vec![fact("operations", ops().count().to_string())];
    if flops > 0 {
        facts.push(fact("arithmetic", format!("about {} FLOP", count(flops))));
    }
    let placed = ops().filter(|op| op.device.is_some()).count();
    let within = ops().filter(|op| op.device == Some(Device::NeuralEngine)).count();
    let value = format!("forecast for {}: {within} of {placed} operations", forecast_chip());
    facts.push(fact(NEURAL_ENGINE, value));
    facts
}

/// Summary entries about a program.
pub(crate) fn program_facts(summary: &ProgramSummary, functions: &[FunctionData]) -> Vec<Fact> {
    let fact = |label: &str, value: String| Fact { label: label.into(), value };
    let methods: Vec<_> = summary.methods.iter().map(|method| method.name.as_str()).collect();
    let mut facts = vec![fact("methods", methods.join(", "))];
    let delegates: usize = summary.methods.iter().map(|method| method.delegates.len()).sum();
    let shared = summary.models.len();
    let models = if shared < delegates { format!(", of {shared} models") } else { String::new() };
    facts.push(fact("delegates", format!("{delegates}{models}")));
    facts.push(fact("delegated", bytes(summary.delegate_bytes + summary.named_bytes)));
    facts.push(fact("constants outside", bytes(summary.constant_bytes)));
    facts.extend(counted(functions));
    facts
}

struct Builder<'a> {
    function: &'a Function,
    calls: Option<&'a SourceMap>,
    weights: &'a mut Weights,
    ops: Vec<Op>,
    /// Index of the operation that computes each value.
    made_by: HashMap<ValueId, usize>,
    /// Index of each input.
    inputs: HashMap<ValueId, usize>,
    /// The operation that defines each value, including constants.
    defined_by: HashMap<ValueId, OpId>,
}

impl<'a> Builder<'a> {
    fn new(
        function: &'a Function,
        calls: Option<&'a SourceMap>,
        weights: &'a mut Weights,
    ) -> Builder<'a> {
        let inputs = function.inputs().iter().enumerate().map(|(at, &value)| (value, at)).collect();
        let defined_by = function
            .all_ops()
            .flat_map(|(id, op)| op.outputs.iter().map(move |&output| (output, id)))
            .collect();
        Builder {
            function,
            calls,
            weights,
            ops: Vec::new(),
            made_by: HashMap::new(),
            inputs,
            defined_by,
        }
    }

    fn build(mut self) -> FunctionData {
        let mut pending = vec![(self.function.body, None)];
        while let Some((block, parent)) = pending.pop() {
            for &id in &self.function.block(block).ops {
                let op = self.function.op(id);
                if op.is_constant() {
                    continue;
                }
                let at = self.ops.len();
                let described = self.op(op, parent);
                self.ops.push(described);
                self.made_by.extend(op.outputs.iter().map(|&output| (output, at)));
                pending.extend(op.blocks.iter().map(|&inner| (inner, Some(at))));
            }
        }
        file_by_module(&mut self.ops);
        let feature = |&id: &ValueId| {
            let value = self.function.value(id);
            Feature {
                name: value.name.clone(),
                ty: value.ty.to_string(),
                op: self.made_by.get(&id).copied(),
            }
        };
        let is_state = |id: &&ValueId| matches!(self.function.value(**id).ty, Type::State(_));
        let inputs = self.function.inputs();
        let without_state = inputs.iter().filter(|id| !is_state(id)).count();
        let (mut input, mut state) = (0..without_state, without_state..);
        let position = |id: &ValueId| if is_state(&id) { state.next() } else { input.next() };
        let mut function = FunctionData {
            input_order: inputs.iter().filter_map(position).collect(),
            name: self.function.name.clone(),
            opset: self.function.opset.name(),
            inputs: inputs.iter().filter(|id| !is_state(id)).map(feature).collect(),
            outputs: self.function.outputs().iter().map(feature).collect(),
            states: inputs.iter().filter(is_state).map(feature).collect(),
            live_bytes: Vec::new(),
            ops: self.ops,
        };
        function.live_bytes = live_bytes(&function);
        function
    }

    fn op(&mut self, op: &MilOp, parent: Option<usize>) -> Op {
        let mut from = Vec::new();
        let mut arguments = Vec::new();
        let mut weights = Vec::new();
        for (parameter, binding) in op.all_bindings() {
            let value = match binding {
                Binding::Literal(constant) => {
                    arguments.push((parameter.to_string(), shown(constant)));
                    continue;
                }
                Binding::Value(value) => *value,
            };
            if let Some(&made) = self.made_by.get(&value) {
                from.push(made as i64);
            } else if let Some(&input) = self.inputs.get(&value) {
                from.push(-1 - input as i64);
            } else if let Some(weight) = self.weight(value) {
                weights.push(weight);
            } else if let Some(constant) = self.function.constant(value) {
                arguments.push((parameter.to_string(), shown(constant)));
            }
        }
        from.dedup();
        let first = op.outputs.first().map(|&output| self.function.value(output));
        let name = first.map_or_else(|| op.type_name().to_owned(), |value| value.name.clone());
        let outputs = || op.outputs.iter().map(|&output| &self.function.value(output).ty);
        let sized = |ty: &Type| ty.as_tensor().and_then(|tensor| tensor.storage_bytes());
        let call = self.calls.and_then(|calls| calls.of(&name));
        let origin = call.map(|(_, origin)| origin);
        let line = origin.and_then(|origin| origin.model_source().or_else(|| origin.source()));
        Op {
            kind: op.type_name().to_owned(),
            module: origin.and_then(|origin| origin.module_path()).unwrap_or_default().to_owned(),
            operator: call.map(|(operator, _)| operator.to_owned()),
            source: line.map(|line| format!("{}:{}", line.file, line.line)),
            code: line.and_then(|line| line.code).map(str::to_owned),
            flops: self.flops(op),
            bytes: outputs().filter_map(sized).sum(),
            leaves: None,
            device: None,
            cost: None,
            partition: None,
            types: outputs().map(ToString::to_string).collect(),
            name,
            parent,
            from,
            arguments,
            weights,
            marks: Vec::new(),
        }
    }

    /// Index of the weight of a value, if it is one.
    fn weight(&mut self, value: ValueId) -> Option<usize> {
        let op = self.function.op(*self.defined_by.get(&value)?);
        self.weights.add(self.function, value, op)
    }

    /// Estimates floating-point operations. A multiply-add counts as two. Operations without
    /// products count as one per element.
    fn flops(&self, op: &MilOp) -> u64 {
        let Some(kind) = op.kind() else { return 0 };
        let count = |value: ValueId| {
            self.function.value(value).ty.as_tensor().and_then(|tensor| tensor.element_count())
        };
        let Some(result) = op.outputs.first().and_then(|&output| count(output)) else { return 0 };
        let extents = |parameter: &str| {
            let Some(Binding::Value(value)) = op.bindings(parameter).first() else { return None };
            self.function.value(*value).ty.as_tensor()?.known_shape()
        };
        let per_element = match kind {
            OpKind::Conv => extents("weight").map(|shape| 2 * shape[1..].iter().product::<u64>()),
            OpKind::ConvTranspose => {
                // Each input element is multiplied with the whole kernel.
                let kernel = extents("weight").map(|shape| 2 * shape[1..].iter().product::<u64>());
                let taken = extents("x").map(|shape| shape.iter().product::<u64>());
                return kernel.zip(taken).map_or(0, |(kernel, taken)| kernel.saturating_mul(taken));
            }
            OpKind::Linear => extents("weight").and_then(|shape| Some(2 * shape.last()?)),
            OpKind::Matmul => extents("x").and_then(|shape| Some(2 * shape.last()?)),
            OpKind::ScaledDotProductAttention => {
                let keys = extents("key").and_then(|shape| shape.iter().rev().nth(1).copied());
                keys.map(|keys| 4 * keys)
            }
            OpKind::Reshape | OpKind::Transpose | OpKind::Squeeze | OpKind::ExpandDims => Some(0),
            _ => Some(1),
        };
        per_element.map_or(0, |each| each.saturating_mul(result))
    }
}

/// Bytes of live activations after each operation.
pub(crate) fn live_bytes(function: &FunctionData) -> Vec<u64> {
    let ops = &function.ops;
    let mut last: Vec<usize> = (0..ops.len()).collect();
    for (at, op) in ops.iter().enumerate() {
        for from in op.from.iter().filter_map(|&from| usize::try_from(from).ok()) {
            last[from] = last[from].max(at);
        }
    }
    for made in function.outputs.iter().filter_map(|output| output.op) {
        last[made] = ops.len();
    }
    let mut released: BTreeMap<usize, u64> = BTreeMap::new();
    let mut live = 0u64;
    let mut series = Vec::with_capacity(ops.len());
    for (at, op) in ops.iter().enumerate() {
        live += op.bytes;
        series.push(live);
        *released.entry(last[at]).or_default() += op.bytes;
        live -= released.remove(&at).unwrap_or(0);
    }
    series
}

/// Gives operations without a module the nearest one around them: what passes made comes from the calls next to it.
/// Where no operation has one, names tell: those with a common beginning belong together.
fn file_by_module(ops: &mut [Op]) {
    if ops.iter().all(|op| op.module.is_empty() && op.source.is_none()) {
        for op in ops {
            op.module = module_of_name(&op.name);
        }
        return;
    }
    let mut before = String::new();
    for op in ops {
        if op.source.is_none() && op.module.is_empty() {
            op.module.clone_from(&before);
        } else {
            before.clone_from(&op.module);
        }
    }
}

/// Guesses a module path from a name: the parts up to the last number, and the part after it if
/// there is one, as in `layers_0_attn_q_proj_linear`.
fn module_of_name(name: &str) -> String {
    let parts: Vec<_> = without_precision(name).split('_').collect();
    let is_number = |part: &&str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
    // A number at the end only makes the name unique.
    let inner = &parts[..parts.len().saturating_sub(1)];
    let Some(last) = inner.iter().rposition(&is_number) else { return String::new() };
    let mut path = Vec::new();
    let mut words: Vec<&str> = Vec::new();
    for part in &parts[..=last] {
        if is_number(part) {
            if !words.is_empty() {
                path.push(words.join("_"));
                words.clear();
            }
            path.push((*part).to_owned());
        } else {
            words.push(part);
        }
    }
    path.join(".")
}

/// Formats a constant. Large constants are shown by their type.
fn shown(constant: &Constant) -> String {
    if let Some(text) = constant.as_str() {
        return shortened(&format!("\"{text}\""));
    }
    let few = constant.tensor_type().and_then(|tensor| tensor.element_count());
    if few.is_some_and(|count| count <= MAX_SHOWN)
        && !matches!(constant.data, ConstantData::Weight(_))
        && let Ok(array) = coremill_engine::Array::from_constant(constant)
    {
        let elements: Vec<String> = match (array.as_floats(), array.as_ints()) {
            (Some(floats), _) => floats.iter().map(|float| format!("{float:?}")).collect(),
            (_, Some(ints)) if array.dtype() == DType::Bool => {
                ints.iter().map(|&int| (int != 0).to_string()).collect()
            }
            (_, Some(ints)) => ints.iter().map(ToString::to_string).collect(),
            _ => return constant.ty.to_string(),
        };
        return match array.shape() {
            [] => elements.concat(),
            _ => format!("[{}]", elements.join(", ")),
        };
    }
    shortened(&constant.ty.to_string())
}

fn shortened(text: &str) -> String {
    match text.char_indices().nth(MAX_TEXT) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn derives_module_path_from_value_name() {
        assert_eq!(module_of_name("layers_0_attn_q_proj_linear"), "layers.0");
        assert_eq!(module_of_name("model_layers_11_mlp_3_add_fp16"), "model_layers.11.mlp.3");
        assert_eq!(module_of_name("relu_1"), "");
        assert_eq!(module_of_name("y"), "");
    }
}
