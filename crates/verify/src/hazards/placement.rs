//! Operations that leave the Neural Engine, or are needlessly expensive.

use coremill_mil::infer::Scalar;
use coremill_mil::ir::{ConstantData, Dim, Type};
use coremill_mil::model::{FeatureType, ImageSizes, ShapeFlexibility, SizeRange};
use coremill_mil::ops::OpKind;
use coremill_tensor::DType;

use super::super::diagnostic::Location;
use super::{Context, Finding, Subject};

pub(super) fn ranged_dimension(context: &Context<'_>) -> Vec<(Location, String)> {
    let function = context.at.function;
    let mut found = Vec::new();
    for &input in function.inputs() {
        let value = function.value(input);
        let Type::Tensor(tensor) = &value.ty else { continue };
        let feature = context.signature.and_then(|signature| {
            signature.inputs.iter().find(|feature| feature.name == value.name)
        });
        let open = tensor.shape.iter().enumerate().filter(|(_, dim)| dim.known().is_none());
        let described = open.filter_map(|(axis, _)| {
            let Some(feature) = feature else { return Some(format!("dimension {axis} is open")) };
            let range = range(&feature.ty, axis)?;
            if range.is_fixed() {
                return None;
            }
            let upper = range.upper_bound().map_or("any".to_owned(), |upper| upper.to_string());
            Some(format!("dimension {axis} ranges from {} to {upper}", range.lower))
        });
        let described: Vec<_> = described.collect();
        if !described.is_empty() {
            found.push((context.at.value(input), described.join(", ")));
        }
    }
    found
}

/// The range of a dimension; `None` if it is fixed or enumerated.
fn range(ty: &FeatureType, axis: usize) -> Option<SizeRange> {
    match ty {
        FeatureType::MultiArray(array) => match &array.flexibility {
            ShapeFlexibility::Ranged(ranges) => ranges.get(axis).copied(),
            ShapeFlexibility::Fixed | ShapeFlexibility::Enumerated(_) => None,
        },
        FeatureType::Image(image) => match (&image.sizes, axis) {
            (ImageSizes::Ranged { height, .. }, 2) => Some(*height),
            (ImageSizes::Ranged { width, .. }, 3) => Some(*width),
            _ => None,
        },
        _ => None,
    }
}

pub(super) fn high_rank(context: &Context<'_>, subject: Subject<'_>) -> Option<Finding> {
    let output = context.output(subject)?;
    let computed = computes(context, subject) && output.rank() == 5;
    computed.then(|| Finding::new(format!("computes on `{output}`, which has five dimensions")))?
}

pub(super) fn single_precision(context: &Context<'_>, subject: Subject<'_>) -> Option<Finding> {
    // `classify` supports only `fp32`.
    let exempt = matches!(subject.kind, OpKind::Cast | OpKind::Identity | OpKind::Classify);
    let output = context.output(subject)?;
    let computed = !exempt && computes(context, subject) && output.dtype == DType::Fp32;
    computed.then(|| Finding::new("computes in `fp32`"))?
}

pub(super) fn integer_arithmetic(context: &Context<'_>, subject: Subject<'_>) -> Option<Finding> {
    let arithmetic = matches!(
        subject.kind,
        OpKind::Add
            | OpKind::Sub
            | OpKind::Mul
            | OpKind::RealDiv
            | OpKind::FloorDiv
            | OpKind::Mod
            | OpKind::Pow
            | OpKind::Maximum
            | OpKind::Minimum
            | OpKind::Abs
            | OpKind::Cumsum
            | OpKind::ReduceSum
            | OpKind::ReduceProd
    );
    let output = context.output(subject)?;
    let computed = arithmetic && computes(context, subject) && output.dtype == DType::Int32;
    computed.then(|| Finding::new("computes in `int32`"))?
}

pub(super) fn gather_for_slice(context: &Context<'_>, subject: Subject<'_>) -> Option<Finding> {
    if subject.kind != OpKind::Gather || context.is_constant(subject, "x") {
        return None;
    }
    let indices = context.known(subject, "indices")?;
    let index = indices.only()?.int()?;
    Finding::of("indices", format!("selects only element {index}"))
}

pub(super) fn slice_to_end(context: &Context<'_>, subject: Subject<'_>) -> Option<Finding> {
    if subject.kind != OpKind::SliceBySize || !computes(context, subject) {
        return None;
    }
    let size = context.known(subject, "size")?;
    let axis = size.elements.iter().position(|size| *size == Scalar::Int(-1))?;
    Finding::of("size", format!("slices dimension {axis} with a size of -1"))
}

pub(super) fn data_dependent_shape(context: &Context<'_>, subject: Subject<'_>) -> Option<Finding> {
    let depends = subject.kind == OpKind::NonZero && computes(context, subject);
    depends.then(|| Finding::new("returns as many elements as the data has non-zero values"))?
}

pub(super) fn while_loop(_: &Context<'_>, subject: Subject<'_>) -> Option<Finding> {
    (subject.kind == OpKind::WhileLoop).then(|| Finding::new("loops inside the program"))?
}

/// Rows on the Neural Engine are padded to a multiple of this number of elements.
const STATE_ALIGNMENT: u64 = 32;

pub(super) fn state_alignment(context: &Context<'_>) -> Vec<(Location, String)> {
    let function = context.at.function;
    let states = function.inputs().iter().filter_map(|&input| {
        let Type::State(held) = &function.value(input).ty else { return None };
        let last = held.as_tensor()?.shape.last().and_then(Dim::known)?;
        let next = last.checked_next_multiple_of(STATE_ALIGNMENT)?;
        let message = format!("is a state whose last dimension is {last}; the next multiple of {STATE_ALIGNMENT} is {next}");
        (last % STATE_ALIGNMENT != 0).then(|| (context.at.value(input), message))
    });
    states.collect()
}

pub(super) fn unused_weight(context: &Context<'_>, subject: Subject<'_>) -> Option<Finding> {
    let ConstantData::Weight(weight) = &subject.op.attributes.get("val")?.data else { return None };
    let used = subject.op.outputs.iter().any(|output| context.layout.uses[output.index()] > 0);
    let bytes = weight.data.as_ref().map_or("its".to_owned(), |data| data.len().to_string());
    (!used).then(|| Finding::new(format!("is unused and costs {bytes} bytes")))?
}

/// Whether the operation computes at run time; constants and arithmetic on shapes do not.
pub(super) fn computes(context: &Context<'_>, subject: Subject<'_>) -> bool {
    !subject.kind.is_constant()
        && !subject.op.outputs.iter().all(|&output| context.is_constant_value(output))
}
