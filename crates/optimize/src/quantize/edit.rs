//! The changes that quantization makes to a program.
//!
//! ```text
//! y = conv(x = x, weight = w);                 x_q = quantize(input = x, …);      x_d = dequantize(input = x_q, …);
//! z = relu(x = y);                  becomes    y = conv(x = x_d, weight = w_q);   z = relu(x = y);
//!                                              z_q = quantize(input = z, …);      z_d = dequantize(input = z_q, …);
//! ```

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};

use coremill_compiler::SourceMap;
use coremill_engine::Array;
use coremill_mil::ir::{Binding, Constant, Op, OpId, ValueId};
use coremill_mil::ops::OpKind;
use coremill_passes::{AnalyzedFunction, Editor};
use coremill_tensor::DType;

use super::config::{Config, Facts, LayerAction, Scheme};
use super::moments::{InputHessian, Metric};
use super::observe::Range;
use super::rows::Rows;
use super::weights::{SkipReason, compressed, fits, floats};
use crate::error::Error;

/// A layer that can be quantized, with its activation.
#[derive(Clone, Debug)]
pub(super) struct Layer {
    /// Name of its output.
    pub(super) name: String,
    op: OpId,
    pub(super) kind: OpKind,
    /// Path of its module.
    pub(super) module: Option<String>,
    /// Output of its activation.
    end: ValueId,
    /// Name of its input.
    pub(super) input: String,
    /// The vectors of the input that are multiplied by the weight's rows, if known.
    pub(super) rows: Option<Rows>,
    /// Number of elements of the weight; 0 if there is none.
    elements: u64,
    /// Quantization scheme.
    pub(super) scheme: Scheme,
}

impl Layer {
    pub(super) fn facts(&self) -> Facts<'_> {
        let Layer { name, module, kind, elements, .. } = self;
        Facts { name, module: module.as_deref(), kind: *kind, elements: *elements }
    }
}

/// The quantizable layers of a program.
#[derive(Default)]
pub(super) struct QuantizableLayers {
    /// All layers that some recipe could quantize.
    pub(super) all: Vec<Layer>,
    /// Layers to quantize.
    pub(super) layers: Vec<Layer>,
    /// Layers to leave unquantized, with the reason.
    pub(super) kept: Vec<(Layer, String)>,
    /// Describes a layer whose weight does not support its scheme, and the reason.
    pub(super) unfit: Option<String>,
    /// Names of activations to observe.
    pub(super) observed: HashSet<String>,
}

/// Finds the layers that a configuration applies to. Fails if weights are not finite.
pub(super) fn find(
    draft: &mut AnalyzedFunction,
    calls: &SourceMap,
    config: &Config,
) -> Result<QuantizableLayers, Error> {
    let editor = Editor::new(draft);
    let mut found = QuantizableLayers::default();
    for mut layer in candidates(&editor, calls, config) {
        found.all.push(layer.clone());
        match config.wanted(&layer.facts()) {
            LayerAction::Nothing => {}
            LayerAction::Kept(why) => found.kept.push((layer, why)),
            LayerAction::Scheme(scheme) => {
                layer.scheme = scheme;
                match unfit(&editor, &layer)? {
                    Some(why) => {
                        let name = layer.facts().module.unwrap_or(&layer.name).to_owned();
                        found.unfit.get_or_insert(format!("`{name}`: {why}"));
                        found.kept.push((layer, why));
                    }
                    None => found.layers.push(layer),
                }
            }
        }
    }
    let layers: Vec<&Layer> = found.layers.iter().collect();
    let sources = activations(&editor, &layers).into_iter().map(|(_, source)| source);
    found.observed = sources.map(|source| editor.name(source).to_owned()).collect();
    Ok(found)
}

/// The reason why a layer's weight does not support its scheme, `None` if it does.
fn unfit(editor: &Editor<'_>, layer: &Layer) -> Result<Option<String>, Error> {
    let Some(storage) = layer.scheme.storage() else { return Ok(None) };
    let Some(weight) = weight(editor, layer)? else { return Ok(None) };
    let bias = editor.constant_argument(layer.op, "bias").map(Array::from_constant).transpose()?;
    let elements = bias.as_ref().and_then(Array::as_floats).unwrap_or_default();
    if let Some(found) = elements.iter().find(|element| !element.is_finite()) {
        return Err(Error::new(format!("the bias of `{}` holds {found}", layer.name))
            .with_hint("correct the bias, or exclude the layer with the option `keep`"));
    }
    match fits(&weight, output_axis(layer.kind), storage) {
        Ok(()) => Ok(None),
        Err(SkipReason::Form(why)) => Ok(Some(format!("its weight {why}"))),
        Err(SkipReason::Numbers(why)) => {
            let message = format!("the weight of `{}` {why}", layer.name);
            Err(Error::new(message)
                .with_hint("correct the weight, or exclude the layer with the option `keep`"))
        }
    }
}

fn weight(editor: &Editor<'_>, layer: &Layer) -> Result<Option<Array>, Error> {
    let parameter = weight_of(layer.kind);
    let weight = parameter.and_then(|name| editor.constant_argument(layer.op, name));
    Ok(weight.map(Array::from_constant).transpose()?)
}

/// All operations that can be quantized.
fn candidates(editor: &Editor<'_>, calls: &SourceMap, config: &Config) -> Vec<Layer> {
    let mut found = Vec::new();
    for id in editor.ops() {
        let Some((op, kind)) = editor.op(id).and_then(|op| Some((op, op.kind()?))) else {
            continue;
        };
        let computes_alone = matches!(kind, OpKind::Matmul | OpKind::Add | OpKind::Mul);
        if weight_of(kind).is_none() && !computes_alone {
            continue;
        }
        let weight = weight_of(kind).and_then(|name| editor.constant_argument(id, name));
        let ty = weight.and_then(Constant::tensor_type);
        let elements = ty.filter(|ty| ty.dtype == DType::Fp32 && ty.rank() >= 2);
        let elements = elements.and_then(|ty| ty.element_count());
        if weight_of(kind).is_some() && elements.is_none() {
            continue;
        }
        let output = op.outputs[0];
        let is_float = |value: ValueId| editor.dtype(value) == Some(DType::Fp32);
        if weight_of(kind).is_none() && (!is_float(output) || !computes(editor, id)) {
            continue;
        }
        let name = editor.name(output).to_owned();
        let module = calls.of(&name).and_then(|(_, origin)| origin.module_path());
        found.push(Layer {
            module: module.map(str::to_owned),
            op: id,
            kind,
            end: behind_activation(editor, output),
            input: editor.argument(id, "x").map_or_else(String::new, |x| editor.name(x).to_owned()),
            rows: Rows::of(editor, id, kind),
            elements: elements.unwrap_or(0),
            name,
            scheme: config.scheme,
        });
    }
    found
}

/// Returns true if both operands are computed tensors.
fn computes(editor: &Editor<'_>, id: OpId) -> bool {
    ["x", "y"].iter().all(|name| {
        editor.argument(id, name).is_some_and(|value| {
            editor.constant(value).is_none() && !editor.shape(value).is_empty()
        })
    })
}

/// The parameter that holds an operation's weight.
fn weight_of(kind: OpKind) -> Option<&'static str> {
    match kind {
        OpKind::Conv | OpKind::ConvTranspose | OpKind::Linear => Some("weight"),
        OpKind::Gather => Some("x"),
        _ => None,
    }
}

/// The axis of a weight's output channels.
fn output_axis(kind: OpKind) -> usize {
    usize::from(kind == OpKind::ConvTranspose)
}

/// The output of the activation that is the value's only user, otherwise the value itself. Core ML
/// fuses the two.
fn behind_activation(editor: &Editor<'_>, value: ValueId) -> ValueId {
    use OpKind::{
        Clip, Elu, Gelu, LeakyRelu, Relu, Relu6, Sigmoid, SigmoidHard, Silu, Softplus, Tanh,
    };
    let user = editor.sole_user(value).and_then(|id| editor.op(id));
    let is_activation = |op: &&Op| {
        matches!(
            op.kind(),
            Some(
                Clip | Elu
                    | Gelu
                    | LeakyRelu
                    | Relu
                    | Relu6
                    | Sigmoid
                    | SigmoidHard
                    | Silu
                    | Softplus
                    | Tanh
            )
        )
    };
    user.filter(is_activation).map_or(value, |op| op.outputs[0])
}

/// The activations that layers quantize, each with the value that determines its range.
fn activations(editor: &Editor<'_>, layers: &[&Layer]) -> Vec<(ValueId, ValueId)> {
    let mut wanted: HashMap<ValueId, ValueId> = HashMap::new();
    let outputs: HashSet<ValueId> = editor.function().outputs().iter().copied().collect();
    let can = |value: ValueId| {
        editor.dtype(value) == Some(DType::Fp32)
            && editor.constant(value).is_none()
            && !editor.shape(value).is_empty()
    };
    for layer in layers.iter().filter(|layer| layer.scheme.recipe.is_static()) {
        for name in ["x", "y"] {
            if let Some(value) = editor.argument(layer.op, name).filter(|&value| can(value)) {
                wanted.entry(value).or_insert(value);
            }
        }
        if can(layer.end) && !outputs.contains(&layer.end) {
            wanted.entry(layer.end).or_insert(layer.end);
        }
    }
    // Operations that only move, select or average elements keep the range of their input.
    for id in editor.ops() {
        let Some(op) = editor.op(id) else { continue };
        let shares = matches!(op.kind(), Some(OpKind::MaxPool | OpKind::AvgPool | OpKind::Reshape));
        if !shares {
            continue;
        }
        let (Some(x), y) = (editor.argument(id, "x"), op.outputs[0]) else { continue };
        if let Some(&source) = wanted.get(&x)
            && !outputs.contains(&y)
        {
            wanted.insert(y, source);
        }
    }
    let mut all: Vec<_> = wanted.into_iter().collect();
    all.sort_by_key(|(value, _)| value.index());
    all
}

/// Calibration results, by name.
#[derive(Clone, Debug, Default)]
pub(super) struct CalibratedProgram {
    /// Effort of rounding, see [`Config::effort`].
    pub(super) effort: u8,
    /// Ranges of activations.
    pub(super) ranges: HashMap<String, Range>,
    /// Mean error of each layer's output channels.
    pub(super) shifts: HashMap<String, Vec<f32>>,
    /// Second moments of layer inputs, for each group of channels.
    pub(super) moments: Arc<HashMap<(String, Rows), Vec<InputHessian>>>,
    /// Quantized weights by layer name, computed once.
    pub(super) made: Arc<Mutex<HashMap<String, Op>>>,
}

impl CalibratedProgram {
    /// The error metric for each group of channels.
    fn metrics(&self, layer: &Layer) -> Vec<Option<Metric>> {
        let key = layer.rows.clone().map(|rows| (layer.input.clone(), rows));
        let moments = key.and_then(|key| self.moments.get(&key));
        moments.map_or_else(Vec::new, |groups| groups.iter().map(InputHessian::metric).collect())
    }
}

/// Quantizes the named layers of a program.
pub(super) fn apply(
    draft: &mut AnalyzedFunction,
    calls: &SourceMap,
    chosen: &HashSet<String>,
    config: &Config,
    tuning: &CalibratedProgram,
) -> Result<(), Error> {
    let mut editor = Editor::new(draft);
    let mut layers = candidates(&editor, calls, config);
    layers.retain_mut(|layer| {
        let wanted = config.wanted(&layer.facts());
        if let LayerAction::Scheme(scheme) = wanted {
            layer.scheme = scheme;
        }
        matches!(wanted, LayerAction::Scheme(_)) && chosen.contains(&layer.name)
    });
    for (value, source) in activations(&editor, &layers.iter().collect::<Vec<_>>()) {
        if let Some(range) = tuning.ranges.get(editor.name(source)) {
            quantize_activation(&mut editor, value, *range)?;
        }
    }
    for layer in &layers {
        let Some(storage) = layer.scheme.storage() else { continue };
        let Some(parameter) = weight_of(layer.kind) else { continue };
        let Some(weight) = weight(&editor, layer)? else { continue };
        let opset = editor.opset();
        let made = || tuning.made.lock().unwrap_or_else(PoisonError::into_inner);
        let known = made().get(&layer.name).cloned();
        let op = match known {
            Some(op) => op,
            None => {
                let metrics = tuning.metrics(layer);
                let axis = output_axis(layer.kind);
                let op = compressed(&weight, axis, storage, opset, tuning.effort, &metrics);
                let op = op.map_err(|unfit| {
                    let (SkipReason::Form(why) | SkipReason::Numbers(why)) = unfit;
                    Error::new(format!("the weight of `{}` {why}", layer.name))
                })?;
                made().insert(layer.name.clone(), op.clone());
                op
            }
        };
        let label = format!("{}_weight", layer.name);
        let stored = inserted(&mut editor, layer.op, op, &label)?;
        let Some(mut new) = editor.op(layer.op).cloned() else { continue };
        new.outputs.clear();
        new.set_input(parameter.into(), vec![Binding::Value(stored)]);
        if let Some(shift) = tuning.shifts.get(&layer.name)
            && let Some(bias) = corrected(&editor, layer.op, shift)
        {
            let bias = editor.constant_before(layer.op, bias, &format!("{}_bias", layer.name));
            new.set_input("bias".into(), vec![Binding::Value(bias)]);
        }
        editor.rewrite(layer.op, new).map_err(|refusals| refused(&layer.name, &refusals))?;
    }
    Ok(())
}

/// A layer's bias, corrected for the mean error of its outputs.
fn corrected(editor: &Editor<'_>, layer: OpId, shift: &[f32]) -> Option<Constant> {
    let mut bias = match editor.constant_argument(layer, "bias") {
        Some(bias) => Array::from_constant(bias).ok()?.as_floats()?.to_vec(),
        None => vec![0.0; shift.len()],
    };
    if bias.len() != shift.len() {
        return None;
    }
    bias.iter_mut().zip(shift).for_each(|(bias, shift)| *bias += shift);
    Some(floats(&[bias.len()], &bias))
}

/// Replaces a value by its 8-bit quantization in all operations that use it.
fn quantize_activation(editor: &mut Editor<'_>, value: ValueId, range: Range) -> Result<(), Error> {
    let order = editor.ops();
    let users: HashSet<OpId> = editor.uses(value).ops.iter().copied().collect();
    let Some(&first) = order.iter().find(|id| users.contains(id)) else { return Ok(()) };
    let block = editor.block_of(first);
    if users.iter().any(|&user| editor.block_of(user) != block) {
        return Ok(());
    }
    let name = editor.name(value).to_owned();
    let parameters = |op: Op| {
        let zero_point = Constant::bytes(DType::UInt8, &[], vec![range.zero_point]);
        op.with("scale", Binding::Literal(Constant::fp32(range.scale)))
            .with("zero_point", Binding::Literal(zero_point))
    };
    let op = parameters(Op::new(OpKind::Quantize).with("input", Binding::Value(value)))
        .with("output_dtype", Binding::Literal(Constant::string("uint8")));
    let bytes = inserted(editor, first, op, &format!("{name}_quantized"))?;
    let op = parameters(Op::new(OpKind::Dequantize).with("input", Binding::Value(bytes)));
    let back = inserted(editor, first, op, &format!("{name}_dequantized"))?;
    for user in users {
        let Some(mut op) = editor.op(user).cloned() else { continue };
        op.outputs.clear();
        for binding in op.inputs.iter_mut().flat_map(|input| &mut input.bindings) {
            if *binding == Binding::Value(value) {
                *binding = Binding::Value(back);
            }
        }
        editor.rewrite(user, op).map_err(|refusals| refused(&name, &refusals))?;
    }
    Ok(())
}

fn inserted(editor: &mut Editor<'_>, before: OpId, op: Op, label: &str) -> Result<ValueId, Error> {
    let values = editor.insert(before, op, label);
    values.map(|values| values[0]).map_err(|refusals| refused(label, &refusals))
}

fn refused(name: &str, refusals: &[coremill_mil::infer::InferError]) -> Error {
    let reasons: Vec<_> = refusals.iter().map(ToString::to_string).collect();
    Error::new(format!("`{name}` cannot be quantized: {}", reasons.join("; ")))
}
