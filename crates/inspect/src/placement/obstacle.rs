//! Obstacles that keep an operation off the Neural Engine, independent of cost.

use std::borrow::Cow;

use coremill_device::{Chip, Engine, Generation, Limit, SupportRow, Work, support};
use coremill_mil::infer::{Analysis, InferredValue, KnownElements, Scalar};
use coremill_mil::ir::{Binding, Dim, Function, Op, Type, ValueId};
use coremill_mil::model::{FeatureType, ImageSizes, ShapeFlexibility, Signature};
use coremill_mil::ops::OpKind;
use coremill_tensor::DType;

use super::plan::Reason;

/// A function with the analysis of its values.
pub(super) struct Context<'a> {
    pub(super) function: &'a Function,
    pub(super) analysis: &'a Analysis,
    pub(super) signature: Option<Signature<'a>>,
    pub(super) chip: &'a Chip,
}

/// An operation of a function.
pub(super) struct Subject<'a> {
    pub(super) context: &'a Context<'a>,
    pub(super) op: &'a Op,
    pub(super) kind: OpKind,
}

/// Obstacle that keeps an operation off the Neural Engine.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Obstacle {
    pub(super) reason: Reason,
    pub(super) detail: String,
    pub(super) advice: Cow<'static, str>,
}

/// `gather` and padding by reflection came with these chips.
const HARDWARE_GATHER: Generation = Generation::from(14, 2);

/// The obstacle of an operation, `None` if the Neural Engine runs it.
pub(super) fn obstacle(subject: &Subject<'_>) -> Option<Obstacle> {
    without_path(subject)
        .or_else(|| integers(subject))
        .or_else(|| single_precision(subject))
        .or_else(|| dynamic_shape(subject))
        .or_else(|| sizes(subject))
        .or_else(|| windows(subject))
}

/// Engines other than the Neural Engine.
pub(super) fn other_engines(subject: &Subject<'_>) -> Vec<Engine> {
    let support = support(subject.kind.name());
    let shrinks = subject.kind == OpKind::Resize && {
        let sizes = [subject.operand("x"), subject.output_shape()];
        let [before, after] = sizes.map(|shape| shape.map(|s| s.iter().product::<u64>()));
        after < before
    };
    match support.gpu && !shrinks {
        true => vec![Engine::Cpu, Engine::Gpu],
        false => vec![Engine::Cpu],
    }
}

impl Obstacle {
    pub(super) fn new(
        reason: Reason,
        detail: impl Into<String>,
        advice: impl Into<Cow<'static, str>>,
    ) -> Option<Obstacle> {
        Some(Obstacle { reason, detail: detail.into(), advice: advice.into() })
    }
}

fn without_path(subject: &Subject<'_>) -> Option<Obstacle> {
    let (kind, chip) = (subject.kind, subject.context.chip);
    // An index is an integer; the integer is the reason then.
    let gives_index = matches!(kind, OpKind::ReduceArgmax | OpKind::ReduceArgmin | OpKind::Argsort);
    if let Some(row) = SupportRow::of(kind.name())
        && !row.support.on_neural_engine(chip)
    {
        let detail = match (gives_index, row.support.neural_engine) {
            (true, _) => "returns indices in `int32`".to_owned(),
            (false, None) => "no Neural Engine supports the operation".to_owned(),
            (false, Some(since)) => format!("runs on the Neural Engine only since {since}"),
        };
        let reason = if gives_index { Reason::Int32 } else { Reason::NoPath };
        return Obstacle::new(reason, detail, row.advice);
    }
    let at_run_time = |parameter: &str| {
        !subject.op.bindings(parameter).is_empty() && !subject.is_constant(parameter)
    };
    match kind {
        OpKind::Gather | OpKind::GatherNd if at_run_time("indices") => Obstacle::new(
            Reason::NoPath,
            "its indices are unknown until the model runs",
            "look the rows up outside the model and pass them in, or use fixed indices",
        ),
        OpKind::Gather if !HARDWARE_GATHER.includes(chip) => {
            let batch = *subject.operand("x")?.first()?;
            let detail =
                format!("gathers from a batch of {batch}; this chip supports only a batch of 1");
            (batch != 1).then(|| Obstacle::new(Reason::NoPath, detail, "use slices"))?
        }
        OpKind::SliceByIndex | OpKind::SliceBySize | OpKind::SliceUpdate
            if at_run_time("begin") =>
        {
            Obstacle::new(
                Reason::NoPath,
                "its start is unknown until the model runs",
                "slice at a fixed offset, or select with a mask",
            )
        }
        OpKind::Pad if !HARDWARE_GATHER.includes(chip) => {
            let mode = subject.known("mode")?;
            let Some(Scalar::Text(mode)) = mode.elements.first() else { return None };
            let reflects = matches!(&**mode, "reflect" | "symmetric");
            let detail = format!("uses `{mode}` padding, supported only since {HARDWARE_GATHER}");
            reflects.then(|| Obstacle::new(Reason::NoPath, detail, "concatenate slices"))?
        }
        OpKind::Cast => {
            let target = subject.output_dtype()?;
            let is_byte = |dtype: DType| matches!(dtype, DType::Int8 | DType::UInt8);
            let source = subject.dtype_of("x")?;
            let bytes = is_byte(target) || is_byte(source);
            let detail = format!("casts {} to {}", source.name(), target.name());
            bytes.then(|| {
                Obstacle::new(Reason::NoPath, detail, "use `quantize` followed by `dequantize`")
            })?
        }
        _ => None,
    }
}

fn integers(subject: &Subject<'_>) -> Option<Obstacle> {
    // Pairs of these run on int8 weights and activations.
    if matches!(subject.kind, OpKind::Quantize | OpKind::Dequantize) {
        return None;
    }
    // What `topk` gives second are indices.
    let given = subject.output_dtype();
    let taken = subject.op.all_bindings().filter_map(|(parameter, binding)| {
        let Binding::Value(value) = binding else { return None };
        let is_index =
            matches!(subject.kind, OpKind::GatherAlongAxis | OpKind::Gather | OpKind::GatherNd)
                && parameter == "indices";
        let runs = !is_index && !subject.context.is_static(*value);
        runs.then(|| subject.context.dtype(*value))?
    });
    let mut all = given.into_iter().chain(taken);
    let integer =
        all.find(|&dtype| !dtype.is_float() && !matches!(dtype, DType::Bool | DType::String))?;
    let advice = match subject.kind {
        OpKind::Cast => "pass the value in as `fp16`, or cast it outside the model",
        _ => "compute it in `fp16`, or outside the model",
    };
    Obstacle::new(Reason::Int32, format!("works on {}", integer.name()), advice)
}

fn single_precision(subject: &Subject<'_>) -> Option<Obstacle> {
    if subject.kind == OpKind::Cast {
        return None;
    }
    let values = subject.op.all_bindings().filter_map(|(_, binding)| match binding {
        Binding::Value(value) if !subject.context.is_static(*value) => Some(*value),
        _ => None,
    });
    let mut all = subject.op.outputs.iter().copied().chain(values);
    let single = all.any(|value| subject.context.dtype(value) == Some(DType::Fp32));
    let advice = "compute in `fp16`, and cast at the edges";
    single.then(|| Obstacle::new(Reason::Fp32, "computes in `fp32`", advice))?
}

fn dynamic_shape(subject: &Subject<'_>) -> Option<Obstacle> {
    let open = subject.tensors().find(|(_, shape)| shape.is_none());
    let (value, _) = open?;
    let name = &subject.context.function.value(value).name;
    let detail = format!("a size of `{name}` is unknown until the model runs");
    Obstacle::new(Reason::DynamicShape, detail, "fix the shapes of the inputs, or enumerate them")
}

fn sizes(subject: &Subject<'_>) -> Option<Obstacle> {
    let chip = subject.context.chip;
    let advice = "split the tensor, or fold the dimension into others";
    for (_, shape) in subject.tensors() {
        let shape = shape?;
        let rank = Limit::Rank.most(chip);
        if shape.len() as u64 > rank {
            let detail = format!("has {} dimensions, more than {rank}", shape.len());
            return Obstacle::new(Reason::Limit, detail, "merge dimensions");
        }
        let (any, spatial) = (Limit::Dimension.most(chip), Limit::Spatial.most(chip));
        let first_spatial = shape.len().saturating_sub(2);
        for (axis, &size) in shape.iter().enumerate() {
            let most = if axis >= first_spatial { spatial.min(any) } else { any };
            if size > most {
                let detail = format!("has a dimension of size {size}, more than {most}");
                return Obstacle::new(Reason::Limit, detail, advice);
            }
        }
    }
    let contracted = subject.contracted().unwrap_or(0);
    let most = Limit::Contracted.most(chip);
    (contracted > most).then(|| {
        let detail = format!("sums over {contracted} products, more than {most}");
        Obstacle::new(Reason::Limit, detail, "split the sum into parts and add them")
    })?
}

fn windows(subject: &Subject<'_>) -> Option<Obstacle> {
    let most = |limit: Limit| limit.most(subject.context.chip);
    match subject.kind {
        OpKind::Conv | OpKind::ConvTranspose | OpKind::ConvQuantized => {
            let weight = subject.operand("weight")?;
            let (height, width) = kernel_extent(weight.get(2..)?)?;
            let fits = match height == width {
                true => width <= most(Limit::KernelSquare),
                false => width <= most(Limit::KernelWidth) && height <= most(Limit::KernelHeight),
            };
            let detail = format!(
                "has a kernel of {height} by {width}; the maximum is {} wide, {} high, {} square",
                most(Limit::KernelWidth),
                most(Limit::KernelHeight),
                most(Limit::KernelSquare)
            );
            let advice = "split the kernel into smaller ones and add the results";
            (!fits).then(|| Obstacle::new(Reason::Limit, detail, advice))?
        }
        OpKind::MaxPool => {
            let sizes = subject.known("kernel_sizes")?;
            let width = u64::try_from(sizes.elements.last()?.int()?).ok()?;
            let most = most(Limit::MaxPoolWidth);
            let detail = format!("has a window {width} wide, more than {most}");
            (width > most).then(|| {
                Obstacle::new(Reason::Limit, detail, "pool several times with smaller windows")
            })?
        }
        _ => None,
    }
}

/// Height and width of a kernel; one-dimensional ones are as high as 1.
fn kernel_extent(spatial: &[u64]) -> Option<(u64, u64)> {
    match spatial {
        [] => None,
        [width] => Some((1, *width)),
        [.., height, width] => Some((*height, *width)),
    }
}

impl<'a> Context<'a> {
    pub(super) fn subject(&'a self, op: &'a Op, kind: OpKind) -> Subject<'a> {
        Subject { context: self, op, kind }
    }

    fn outcome(&self, value: ValueId) -> Option<&InferredValue> {
        self.analysis.outcome(value)
    }

    /// Whether a value is known before the model runs.
    pub(super) fn is_static(&self, value: ValueId) -> bool {
        let fixed = |elements: &KnownElements| {
            let open = |element: &Scalar| matches!(element, Scalar::Symbolic(_) | Scalar::Unknown);
            !elements.elements.iter().any(open)
        };
        self.outcome(value)
            .is_some_and(|found| found.constant || found.value.as_deref().is_some_and(fixed))
    }

    fn ty(&self, value: ValueId) -> &Type {
        let declared = &self.function.value(value).ty;
        self.analysis.ty(value).unwrap_or(declared).unwrap_state()
    }

    fn dtype(&self, value: ValueId) -> Option<DType> {
        self.ty(value).as_tensor().map(|tensor| tensor.dtype)
    }

    /// Sizes of a tensor, by default of the enumerated shapes; `None` if one is unknown until the model runs.
    pub(super) fn shape(&self, value: ValueId) -> Option<Vec<u64>> {
        let tensor = self.ty(value).as_tensor()?;
        tensor.shape.iter().map(|dim| self.size(dim)).collect()
    }

    fn size(&self, dim: &Dim) -> Option<u64> {
        match dim {
            Dim::Known(size) => Some(*size),
            Dim::Unknown => None,
            Dim::Symbolic(expr) => {
                let size = expr.evaluate(&|symbol| {
                    let (input, axis) = self.analysis.origin(symbol)?;
                    self.enumerated(&self.function.value(input).name, axis)
                });
                u64::try_from(size?).ok()
            }
        }
    }

    /// The default size of a dimension of an input with enumerated shapes.
    fn enumerated(&self, input: &str, axis: usize) -> Option<i64> {
        let inputs = self.signature.as_ref()?.inputs;
        match &inputs.iter().find(|feature| feature.name == input)?.ty {
            FeatureType::MultiArray(array) => match &array.flexibility {
                ShapeFlexibility::Enumerated(shapes) => {
                    let first = shapes.first().map_or(&[][..], Vec::as_slice);
                    let default = if array.shape.is_empty() { first } else { &array.shape };
                    default.get(axis).copied()
                }
                ShapeFlexibility::Ranged(ranges) => {
                    let range = ranges.get(axis).filter(|range| range.is_fixed())?;
                    i64::try_from(range.lower).ok()
                }
                ShapeFlexibility::Fixed => None,
            },
            FeatureType::Image(image) => match (&image.sizes, axis) {
                (ImageSizes::Ranged { .. }, _) => None,
                (_, 2) => Some(image.height),
                (_, 3) => Some(image.width),
                _ => None,
            },
            _ => None,
        }
    }
}

impl Subject<'_> {
    /// Whether it computes something when the model runs.
    pub(super) fn runs(&self) -> bool {
        !self.kind.is_constant()
            // Random numbers differ from run to run, though they depend on constants alone.
            && (self.kind.is_random()
                || !self.op.outputs.iter().all(|&output| self.context.is_static(output)))
    }

    pub(super) fn shape(&self, value: ValueId) -> Option<Vec<u64>> {
        self.context.shape(value)
    }

    pub(super) fn output_shape(&self) -> Option<Vec<u64>> {
        self.shape(*self.op.outputs.first()?)
    }

    fn output_dtype(&self) -> Option<DType> {
        self.context.dtype(*self.op.outputs.first()?)
    }

    fn dtype_of(&self, parameter: &str) -> Option<DType> {
        match self.op.binding(parameter)? {
            Binding::Value(value) => self.context.dtype(*value),
            Binding::Literal(constant) => constant.tensor_type().map(|tensor| tensor.dtype),
        }
    }

    /// Sizes of the argument of a parameter.
    pub(super) fn operand(&self, parameter: &str) -> Option<Vec<u64>> {
        match self.op.binding(parameter)? {
            Binding::Value(value) => self.shape(*value),
            Binding::Literal(constant) => constant.tensor_type()?.known_shape(),
        }
    }

    fn is_constant(&self, parameter: &str) -> bool {
        self.op.bindings(parameter).iter().all(|binding| match binding {
            Binding::Value(value) => self.context.is_static(*value),
            Binding::Literal(_) => true,
        })
    }

    fn known(&self, parameter: &str) -> Option<Cow<'_, KnownElements>> {
        match self.op.binding(parameter)? {
            Binding::Value(value) => self.context.analysis.folded(*value).map(Cow::Borrowed),
            Binding::Literal(constant) => KnownElements::from_constant(constant).map(Cow::Owned),
        }
    }

    /// Results and run-time operands.
    fn tensors(&self) -> impl Iterator<Item = (ValueId, Option<Vec<u64>>)> {
        let taken = self.op.all_bindings().filter_map(|(_, binding)| match binding {
            Binding::Value(value) if !self.context.is_static(*value) => Some(*value),
            _ => None,
        });
        let all = self.op.outputs.iter().copied().chain(taken);
        let tensors = all.filter(|&value| self.context.ty(value).as_tensor().is_some());
        tensors.map(|value| (value, self.shape(value)))
    }

    /// The dimension that a product of matrices sums over.
    pub(super) fn contracted(&self) -> Option<u64> {
        let shape = |value| self.shape(value);
        coremill_verify::contracted(self.context.analysis, self.op, self.kind, &shape)
    }

    /// Arithmetic and memory traffic. Unknown sizes count as zero.
    pub(super) fn work(&self) -> Work {
        coremill_verify::work(self.context.analysis, self.op, self.kind, &|value| self.shape(value))
    }
}
