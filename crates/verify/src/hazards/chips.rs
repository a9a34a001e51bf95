//! Operations that single chips run on other engines, or compute incorrectly.

use coremill_device::{Chip, END_MS, Limit, SEGMENT_MS, SupportRow, cost_class, costs};
use coremill_mil::infer::Scalar;
use coremill_mil::ir::{ConstantData, Type, ValueId};
use coremill_mil::ops::OpKind;
use coremill_tensor::DType;

use super::super::diagnostic::Location;
use super::placement::computes;
use super::{Context, Finding, Subject};
use crate::work::work;

/// The Neural Engines of the chips for which a condition holds; `None` if there are none.
fn engines_with(context: &Context<'_>, holds: impl Fn(&Chip) -> bool) -> Option<String> {
    let chips = context.chips.iter().filter(|chip| holds(chip));
    let names: Vec<_> = chips.map(|chip| chip.name).collect();
    match names.len() {
        0 => None,
        count if count > 1 && count == context.chips.len() => {
            Some("every Neural Engine".to_owned())
        }
        _ => Some(format!("the Neural Engine of {}", names.join(", "))),
    }
}

pub(super) fn runtime_index(context: &Context<'_>, subject: Subject<'_>) -> Option<Finding> {
    let at_run_time = |parameter: &str| {
        subject.op.binding(parameter).is_some() && !context.is_constant(subject, parameter)
    };
    if !computes(context, subject) {
        return None;
    }
    match subject.kind {
        OpKind::Gather | OpKind::GatherNd if at_run_time("indices") => {
            Finding::of("indices", "gathers at indices that are computed at run time")
        }
        OpKind::SliceByIndex | OpKind::SliceBySize if at_run_time("begin") => {
            Finding::of("begin", "slices from an offset that is computed at run time")
        }
        OpKind::Scatter | OpKind::ScatterAlongAxis | OpKind::ScatterNd => {
            Finding::new("scatters, which no Neural Engine supports")
        }
        _ => None,
    }
}

pub(super) fn unsupported_on_ane(context: &Context<'_>, subject: Subject<'_>) -> Option<Finding> {
    // Other rules say more about these operations, and every classifier ends with `classify`.
    let has_own_rule = matches!(
        subject.kind,
        OpKind::NonZero
            | OpKind::WhileLoop
            | OpKind::Scatter
            | OpKind::ScatterAlongAxis
            | OpKind::ScatterNd
            | OpKind::Classify
    );
    if has_own_rule || !(subject.kind.is_random() || computes(context, subject)) {
        return None;
    }
    let row = SupportRow::of(subject.kind.name())?;
    let engines = engines_with(context, |chip| !row.support.on_neural_engine(chip))?;
    Finding::new(format!("is unsupported on {engines}; instead, {}", row.advice))
}

pub(super) fn large_dimension(context: &Context<'_>, subject: Subject<'_>) -> Option<Finding> {
    if !computes(context, subject) {
        return None;
    }
    let shape = &context.output(subject)?.shape;
    let first_spatial = shape.len().saturating_sub(2);
    for (axis, dim) in shape.iter().enumerate() {
        let Some(size) = dim.known() else { continue };
        let most = |chip: &Chip| match Limit::Dimension.most(chip) {
            any if axis >= first_spatial => any.min(Limit::Spatial.most(chip)),
            any => any,
        };
        if let Some(engines) = engines_with(context, |chip| size > most(chip)) {
            return Finding::new(format!("has a dimension of {size}, too large for {engines}"));
        }
    }
    if subject.kind != OpKind::Matmul {
        return None;
    }
    let transposes = context.known(subject, "transpose_x");
    let transposes = transposes.is_some_and(|known| known.only() == Some(&Scalar::Bool(true)));
    let from_end = if transposes { 2 } else { 1 };
    let shape = &context.operand(subject, "x")?.shape;
    let terms = shape.get(shape.len().checked_sub(from_end)?)?.known()?;
    let engines = engines_with(context, |chip| terms > Limit::Contracted.most(chip))?;
    Finding::of("x", format!("sums {terms} products, too many for {engines}"))
}

pub(super) fn wide_kernel(context: &Context<'_>, subject: Subject<'_>) -> Option<Finding> {
    match subject.kind {
        OpKind::Conv | OpKind::ConvTranspose => {
            let weight = context.operand(subject, "weight")?;
            let (height, width) = match weight.shape.get(2..)? {
                [width] => (1, width.known()?),
                [.., height, width] => (height.known()?, width.known()?),
                [] => return None,
            };
            let is_wide = |chip: &Chip| match height == width {
                true => width > Limit::KernelSquare.most(chip),
                false => {
                    width > Limit::KernelWidth.most(chip) || height > Limit::KernelHeight.most(chip)
                }
            };
            let engines = engines_with(context, is_wide)?;
            Finding::of(
                "weight",
                format!("has a kernel of {height} by {width} elements, too large for {engines}"),
            )
        }
        OpKind::MaxPool => {
            let sizes = context.known(subject, "kernel_sizes")?;
            let width = u64::try_from(sizes.elements.last()?.int()?).ok()?;
            let engines = engines_with(context, |chip| width > Limit::MaxPoolWidth.most(chip))?;
            Finding::of(
                "kernel_sizes",
                format!("has a window {width} wide, too wide for {engines}"),
            )
        }
        _ => None,
    }
}

/// Number of states from which predictions fail.
const MANY_STATES: usize = 3;

pub(super) fn many_states(context: &Context<'_>) -> Vec<(Location, String)> {
    let function = context.at.function;
    let is_state = |input: &&_| matches!(function.value(**input).ty, Type::State(_));
    let states: Vec<_> = function.inputs().iter().filter(is_state).collect();
    let found = states.get(MANY_STATES - 1).map(|&&state| {
        (context.at.value(state), format!("is the third of {} states", states.len()))
    });
    found.into_iter().collect()
}

/// Size of the weights in bytes from which models are reported to run on the GPU.
const LARGE_WEIGHTS: u64 = 1_000_000_000;

pub(super) fn large_weights(context: &Context<'_>) -> Vec<(Location, String)> {
    let function = context.at.function;
    let sizes = context.layout.ops.iter().filter_map(|&id| {
        let op = function.op(id);
        let value = op.attributes.get("val").filter(|_| op.kind() == Some(OpKind::Const))?;
        matches!(value.data, ConstantData::Weight(_))
            .then(|| value.tensor_type()?.storage_bytes())?
    });
    let bytes = sizes.fold(0_u64, u64::saturating_add);
    let message = || format!("has {:.2} GB of weights", bytes as f64 / 1e9);
    let found = (bytes > LARGE_WEIGHTS).then(|| (context.at.place(), message()));
    found.into_iter().collect()
}

/// Reports a function if the Neural Engine saves less time than a segment on it costs, by the times of the cost model.
///
/// Only for a single chip: most small models are meant to run on the CPU, and their authors need no warning.
pub(super) fn small_model(context: &Context<'_>) -> Vec<(Location, String)> {
    let saved = match context.chips {
        [_] => saved_milliseconds(context),
        _ => None,
    };
    let needed = SEGMENT_MS + END_MS;
    let message = |saved: f64| {
        format!("the Neural Engine saves at most {saved:.3} ms; a segment on it costs {needed} ms")
    };
    let found = saved.filter(|saved| *saved < needed);
    found.map(|saved| (context.at.place(), message(saved))).into_iter().collect()
}

/// Time that the Neural Engine would save if it ran every operation at no cost of segments; `None` if a size is unknown or
/// nothing is computed.
fn saved_milliseconds(context: &Context<'_>) -> Option<f64> {
    let shape = |value: ValueId| context.tensor(value)?.known_shape();
    let (mut saved, mut computes) = (0.0, false);
    for &id in &context.layout.ops {
        let op = context.at.function.op(id);
        let is_constant = op.outputs.iter().all(|&output| context.is_constant_value(output));
        let Some(kind) = op.kind().filter(|kind| !kind.is_constant() && !is_constant) else {
            continue;
        };
        let is_tensor = |value: &ValueId| context.tensor(*value).is_some();
        if op.outputs.iter().filter(|value| is_tensor(value)).any(|&value| shape(value).is_none()) {
            return None;
        }
        let (row, work) =
            (costs(cost_class(kind.name())), work(context.analysis, op, kind, &shape));
        saved += (row.cpu.milliseconds(work) - row.neural_engine.milliseconds(work)).max(0.0);
        computes = true;
    }
    computes.then_some(saved)
}

pub(super) fn quantized_product(context: &Context<'_>, subject: Subject<'_>) -> Option<Finding> {
    if subject.kind != OpKind::Quantize {
        return None;
    }
    let product = context.producer(subject, "input").filter(|found| found.kind == OpKind::Mul)?;
    let branches = ["x", "y"].map(|side| context.producer(product, side));
    let quantized = branches.iter().flatten().filter(|found| found.kind == OpKind::Dequantize);
    (quantized.count() == 2)
        .then(|| Finding::of("input", "quantizes the product of two quantized branches"))?
}

pub(super) fn input_group_scale(context: &Context<'_>, subject: Subject<'_>) -> Option<Finding> {
    if !matches!(subject.kind, OpKind::Conv | OpKind::Linear) {
        return None;
    }
    let weight = context.producer(subject, "weight")?;
    if weight.kind != OpKind::ConstexprBlockwiseShiftScale {
        return None;
    }
    let groups = context.operand(weight, "scale")?.shape.get(1)?.known()?;
    (groups > 1).then(|| {
        Finding::of("weight", format!("has a scale for each of {groups} groups of input channels"))
    })?
}

/// Larger values become infinite in slices with an offset.
const MAX_SLICED: f64 = 4094.0;

pub(super) fn late_slice(context: &Context<'_>, subject: Subject<'_>) -> Option<Finding> {
    let slices = matches!(subject.kind, OpKind::SliceByIndex | OpKind::SliceBySize);
    if !slices || !computes(context, subject) || context.output(subject)?.dtype != DType::Fp16 {
        return None;
    }
    let mask = context.known(subject, "begin_mask");
    if mask.is_some_and(|mask| mask.elements.last() == Some(&Scalar::Bool(true))) {
        return None;
    }
    let begin = context.known(subject, "begin")?.elements.last()?.int()?;
    let is_small = || context.magnitude(subject, "x").is_some_and(|most| most <= MAX_SLICED);
    (begin != 0 && !is_small())
        .then(|| Finding::of("begin", format!("begins at index {begin} of the last axis")))?
}

pub(super) fn transposed_values(context: &Context<'_>, subject: Subject<'_>) -> Option<Finding> {
    if subject.kind != OpKind::Matmul {
        return None;
    }
    let transposes = context.known(subject, "transpose_y");
    let transposes = transposes.is_some_and(|known| known.only() == Some(&Scalar::Bool(true)));
    let right = context.producer(subject, "y")?;
    let probabilities = match right.kind {
        OpKind::Transpose => context.producer(right, "x")?,
        _ if transposes => right,
        _ => return None,
    };
    (probabilities.kind == OpKind::Softmax)
        .then(|| Finding::of("y", "multiplies by transposed attention probabilities"))?
}
