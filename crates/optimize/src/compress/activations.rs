//! 8-bit activations of finished models, with ranges from samples.
//!
//! ```text
//!                                              x_q = quantize(input = x, …);
//! y = conv(x = x, weight = w);                 x_d = dequantize(input = x_q, …);
//! z = relu(x = y);                  becomes    y = conv(x = x_d, weight = w);      z = relu(x = y);
//!                                              z_q = quantize(input = z, …);       z_d = dequantize(input = z_q, …);
//! ```
//!
//! The operations and the rounding of scales match coremltools' `linear_quantize_activations`.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::PathBuf;

use coremill_compress::linear::{Integer, Mode, quantization_step, scale_constant};
use coremill_compress::upgrade_opset;
use coremill_engine::Numerics;
use coremill_mil::ir::{Binding, Constant, Op, OpId, Opset, ValueId};
use coremill_mil::model::Model;
use coremill_mil::ops::OpKind;
use coremill_passes::Editor;
use coremill_tensor::DType;
use serde::Deserialize;

use crate::error::Error;
use crate::samples::{self, Pixels};
use crate::trial::{Artifact, Machine};

/// Quantization of the activations of selected operations.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ActivationRule {
    /// MIL name of the operations; all if `None`.
    pub op: Option<String>,
    /// Name of an operation's result; all if `None`.
    pub name: Option<String>,
    /// `int8` or `uint8`; `None` does not quantize the operations.
    pub dtype: Option<String>,
    /// Whether zero points are 0, or the center of the range for `uint8`.
    pub symmetric: bool,
}

/// Integer type of an activation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Scheme {
    integer: Integer,
    mode: Mode,
}

/// An activation to quantize.
struct Activation {
    value: ValueId,
    scheme: Scheme,
    /// Operations that get the quantized value; `None` for all.
    users: Option<Vec<OpId>>,
}

/// Quantizes the inputs and results of convolutions, linear layers, pooling and sums. The first rule that selects
/// an operation applies. Returns the number of quantized activations.
pub fn quantize_activations(
    model: &mut Model,
    samples: &[PathBuf],
    rules: &[ActivationRule],
) -> Result<usize, Error> {
    let rules =
        rules.iter().map(|rule| Ok((rule, scheme(rule)?))).collect::<Result<Vec<_>, Error>>()?;
    if model.program.functions.len() > 1 {
        return Err(Error::new(format!(
            "quantizing activations requires a model with one function, got {} functions",
            model.program.functions.len()
        ))
        .with_hint("quantize the models before they are merged"));
    }
    let Some(function) = model.program.functions.first() else { return Ok(0) };
    let mut draft = upgrade_opset(function, function.opset.max(Opset::Ios17))?;
    let mut editor = Editor::new(&mut draft);
    let found = activations(&editor, &rules);
    let ranges = observed(model, samples, &editor, &found)?;
    let mut count = 0;
    for activation in &found {
        count += usize::from(quantize(&mut editor, activation, &ranges)?);
    }
    model.specification_version =
        model.specification_version.max(draft.function.opset.specification_version());
    model.program.functions[0] = draft.function;
    Ok(count)
}

fn scheme(rule: &ActivationRule) -> Result<Option<Scheme>, Error> {
    let integer = match rule.dtype.as_deref() {
        None => return Ok(None),
        Some("int8") => Integer::Int8,
        Some("uint8") => Integer::UInt8,
        Some(other) => {
            return Err(Error::new(format!(
                "activations must be `int8` or `uint8`, got `{other}`"
            )));
        }
    };
    let mode = if rule.symmetric { Mode::Symmetric } else { Mode::Linear };
    Ok(Some(Scheme { integer, mode }))
}

/// The activations to quantize, in the order of the program.
fn activations(
    editor: &Editor<'_>,
    rules: &[(&ActivationRule, Option<Scheme>)],
) -> Vec<Activation> {
    let mut found: BTreeMap<usize, Activation> = BTreeMap::new();
    for id in editor.ops() {
        let Some(op) = editor.op(id) else { continue };
        let operands: &[&str] = match op.kind() {
            Some(OpKind::Conv | OpKind::AvgPool | OpKind::MaxPool | OpKind::Linear) => &["x"],
            Some(OpKind::Add) => &["x", "y"],
            _ => continue,
        };
        let inputs: Option<Vec<ValueId>> = operands
            .iter()
            .map(|name| editor.argument(id, name).filter(|&value| is_activation(editor, value)))
            .collect();
        let (Some(inputs), &[output, ..]) = (inputs, op.outputs.as_slice()) else { continue };
        let selects = |rule: &ActivationRule| {
            rule.op.as_deref().is_none_or(|name| name == op.type_name())
                && rule.name.as_deref().is_none_or(|name| name == editor.name(output))
        };
        let rule = rules.iter().find(|(rule, _)| selects(rule));
        let Some(scheme) = rule.and_then(|(_, scheme)| *scheme) else { continue };
        for value in inputs {
            let users = || Some(Vec::new());
            let entry = found.entry(value.index());
            let entry = entry.or_insert_with(|| Activation { value, scheme, users: users() });
            entry.users.iter_mut().for_each(|users| users.push(id));
        }
        let end = behind_activation(editor, output);
        if !editor.uses(end).ops.is_empty() && !editor.is_output(end) {
            found.insert(end.index(), Activation { value: end, scheme, users: None });
        }
    }
    found.into_values().collect()
}

/// Whether a value is a computed tensor of floats.
fn is_activation(editor: &Editor<'_>, value: ValueId) -> bool {
    let is_computed = match editor.producer(value) {
        None => true,
        Some(id) => editor.op(id).and_then(Op::kind).is_some_and(|kind| {
            kind != OpKind::Const && !kind.is_constexpr() && kind != OpKind::Dequantize
        }),
    };
    let is_float = matches!(editor.dtype(value), Some(DType::Fp16 | DType::Fp32));
    is_computed && is_float && !editor.shape(value).is_empty()
}

/// The result of the function that is the only user of a value, or the value itself.
fn behind_activation(editor: &Editor<'_>, value: ValueId) -> ValueId {
    use OpKind::{LeakyRelu, Relu, Relu6, ScaledTanh, Sigmoid, SigmoidHard, Tanh};
    let known = [LeakyRelu, Tanh, ScaledTanh, Sigmoid, SigmoidHard, Relu, Relu6];
    let user = editor.sole_user(value).and_then(|id| editor.op(id));
    let user = user.filter(|op| op.kind().is_some_and(|kind| known.contains(&kind)));
    user.map_or(value, |op| op.outputs[0])
}

/// Smallest and largest number of each activation in all samples, by name. Operands and results of `concat` share
/// a range, so that their scales are equal.
fn observed(
    model: &Model,
    paths: &[PathBuf],
    editor: &Editor<'_>,
    activations: &[Activation],
) -> Result<HashMap<String, (f32, f32)>, Error> {
    let groups = concatenated(editor);
    let mut wanted: HashSet<&str> =
        activations.iter().map(|activation| editor.name(activation.value)).collect();
    wanted.extend(groups.iter().flatten().map(|&value| editor.name(value)));
    let machine = Machine::new(Artifact::Model(model.clone()), Numerics::Fast)?;
    let ports = machine.ports()?;
    let check = |sample: &samples::Sample| machine.check(sample);
    let samples = samples::read(paths, &ports, &Pixels::default(), &check)?;
    if samples.is_empty() {
        return Err(Error::new("measuring the ranges of activations requires samples")
            .with_hint("pass inputs that are typical of the model's use"));
    }
    let mut ranges: HashMap<String, (f32, f32)> = HashMap::new();
    for (index, sample) in samples.iter().enumerate() {
        let mut bad = None;
        let mut look = |name: &str, array: &coremill_engine::Array| {
            let Some(elements) = array.as_floats().filter(|_| wanted.contains(name)) else {
                return;
            };
            let start = ranges.get(name).copied().unwrap_or((f32::INFINITY, f32::NEG_INFINITY));
            let (min, max) = elements
                .iter()
                .fold(start, |(min, max), &number| (min.min(number), max.max(number)));
            if !elements.iter().all(|number| number.is_finite()) {
                bad.get_or_insert_with(|| name.to_owned());
            }
            ranges.insert(name.to_owned(), (min, max));
        };
        sample.iter().for_each(|(name, array)| look(name, array));
        machine.run(sample, &mut look)?;
        if let Some(name) = bad {
            let message = format!("sample {index} makes `{name}` NaN or infinite");
            return Err(Error::new(message).with_hint("check the sample, or leave it out"));
        }
    }
    for group in groups {
        let names: Vec<&str> = group.iter().map(|&value| editor.name(value)).collect();
        let all = names.iter().filter_map(|name| ranges.get(*name).copied());
        let joint = all.reduce(|one, two| (one.0.min(two.0), one.1.max(two.1)));
        for name in names {
            if let (Some(range), Some(joint)) = (ranges.get_mut(name), joint) {
                *range = joint;
            }
        }
    }
    Ok(ranges)
}

/// Groups of values that concatenations join: operands and results, merged if they have a value in common.
fn concatenated(editor: &Editor<'_>) -> Vec<Vec<ValueId>> {
    let mut groups: Vec<Vec<ValueId>> = Vec::new();
    for id in editor.ops() {
        let Some(op) = editor.op_of(id, OpKind::Concat) else { continue };
        let bound = op.all_bindings().filter(|(name, _)| *name == "values");
        let mut group: Vec<ValueId> = bound
            .filter_map(|(_, binding)| match binding {
                Binding::Value(value) => Some(*value),
                Binding::Literal(_) => None,
            })
            .chain(op.outputs.iter().copied())
            .collect();
        let (shared, rest) = groups
            .into_iter()
            .partition::<Vec<_>, _>(|held: &Vec<ValueId>| held.iter().any(|it| group.contains(it)));
        group.extend(shared.into_iter().flatten());
        group.sort_unstable_by_key(|value| value.index());
        group.dedup();
        groups = rest;
        groups.push(group);
    }
    groups
}

/// Replaces a value by its quantization in the operations that use it. Returns false without users in one block.
fn quantize(
    editor: &mut Editor<'_>,
    activation: &Activation,
    ranges: &HashMap<String, (f32, f32)>,
) -> Result<bool, Error> {
    let Activation { value, scheme, users } = activation;
    let name = editor.name(*value).to_owned();
    let all: HashSet<OpId> = match users {
        Some(users) => users.iter().copied().collect(),
        None => editor.uses(*value).ops.iter().copied().collect(),
    };
    let order = editor.ops();
    let Some(&first) = order.iter().find(|id| all.contains(id)) else { return Ok(false) };
    let block = editor.block_of(first);
    let Some(&(min, max)) = ranges.get(&name) else { return Ok(false) };
    if all.iter().any(|&user| editor.block_of(user) != block) {
        return Ok(false);
    }
    // coremltools computes scales in fp16.
    let step = quantization_step(scheme.integer, scheme.mode, DType::Fp16, min, max);
    let Some((scale, zero_point)) = step else {
        let message = format!("`{name}` has values from {min} to {max}, beyond the range of fp16");
        return Err(Error::new(message).with_hint("exclude its operation with a rule"));
    };
    // A scale of zero is that of zeros, or too small for fp16.
    let scale = if scale == 0.0 { 1.0 } else { scale };
    let scale = scale_constant(editor.dtype(*value), scale);
    let integer = scheme.integer.dtype();
    let bytes = match scheme.integer {
        Integer::Int8 => vec![zero_point as i8 as u8],
        _ => vec![zero_point as u8],
    };
    let parameters = |op: Op| {
        let op = op.with("scale", Binding::Literal(scale.clone()));
        match zero_point {
            0.0 => op,
            _ => op
                .with("zero_point", Binding::Literal(Constant::bytes(integer, &[], bytes.clone()))),
        }
    };
    let op = parameters(Op::new(OpKind::Quantize).with("input", Binding::Value(*value)))
        .with("output_dtype", Binding::Literal(Constant::string(integer.to_string())));
    let quantized = inserted(editor, first, op, &format!("{name}_quantized"))?;
    let op = parameters(Op::new(OpKind::Dequantize).with("input", Binding::Value(quantized)));
    let back = inserted(editor, first, op, &format!("{name}_dequantized"))?;
    for user in all {
        let Some(mut op) = editor.op(user).cloned() else { continue };
        op.outputs.clear();
        for binding in op.inputs.iter_mut().flat_map(|input| &mut input.bindings) {
            if *binding == Binding::Value(*value) {
                *binding = Binding::Value(back);
            }
        }
        editor.rewrite(user, op).map_err(|refusals| refused(&name, &refusals))?;
    }
    Ok(true)
}

fn inserted(editor: &mut Editor<'_>, before: OpId, op: Op, label: &str) -> Result<ValueId, Error> {
    let values = editor.insert(before, op, label);
    values.map(|values| values[0]).map_err(|refusals| refused(label, &refusals))
}

fn refused(name: &str, refusals: &[coremill_mil::infer::InferError]) -> Error {
    let reasons: Vec<String> = refusals.iter().map(ToString::to_string).collect();
    Error::new(format!("`{name}` cannot be quantized: {}", reasons.join("; ")))
}
