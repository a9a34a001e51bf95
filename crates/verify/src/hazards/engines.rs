//! Operations that an engine rejects or computes incorrectly.

use coremill_mil::infer::Scalar;
use coremill_mil::ir::{Dim, Opset};
use coremill_mil::ops::OpKind;
use coremill_tensor::DType;

use super::{Context, Finding, Subject};

pub(super) fn negative_indices(context: &Context<'_>, subject: Subject<'_>) -> Option<Finding> {
    let indexes = matches!(
        subject.kind,
        OpKind::Gather
            | OpKind::GatherAlongAxis
            | OpKind::GatherNd
            | OpKind::Scatter
            | OpKind::ScatterAlongAxis
            | OpKind::ScatterNd
    );
    if !indexes || context.at.function.opset < Opset::Ios17 {
        return None;
    }
    let indices = context.known(subject, "indices")?;
    let negative = indices.elements.iter().filter_map(Scalar::int).find(|&index| index < 0)?;
    let opset = context.at.function.opset;
    Finding::of(
        "indices",
        format!("has the index {negative}, which {opset} does not count from the end"),
    )
}

pub(super) fn half_attention(context: &Context<'_>, subject: Subject<'_>) -> Option<Finding> {
    let half = subject.kind == OpKind::ScaledDotProductAttention
        && context.operand(subject, "query")?.dtype == DType::Fp16;
    half.then(|| Finding::of("query", "computes attention in `fp16`"))?
}

/// Minimum batch size that is computed incorrectly on the GPU.
const MAX_ATTENTION_BATCH: u64 = 9;

pub(super) fn attention_batch(context: &Context<'_>, subject: Subject<'_>) -> Option<Finding> {
    if subject.kind != OpKind::ScaledDotProductAttention {
        return None;
    }
    let batch = context.operand(subject, "query")?.shape.first().and_then(Dim::known)?;
    (batch > MAX_ATTENTION_BATCH)
        .then(|| Finding::of("query", format!("computes attention over a batch of {batch}")))?
}

pub(super) fn slice_reshape(context: &Context<'_>, subject: Subject<'_>) -> Option<Finding> {
    if subject.kind != OpKind::Reshape {
        return None;
    }
    let slice = context.producer(subject, "x")?;
    if slice.kind != OpKind::SliceBySize {
        return None;
    }
    let begin = context.known(slice, "begin")?.elements.last()?.int()?;
    (begin != 0).then(|| {
        Finding::of("x", format!("reshapes a slice that begins at index {begin} of its last axis"))
    })?
}

pub(super) fn transposed_reduction(context: &Context<'_>, subject: Subject<'_>) -> Option<Finding> {
    if subject.kind != OpKind::Transpose {
        return None;
    }
    let reduction = context.producer(subject, "x")?;
    let is_reduction = reduction.kind.family() == "reduction";
    let inner = context.producer(reduction, "x")?;
    (is_reduction && inner.kind == OpKind::Transpose).then(|| {
        Finding::of("x", format!("transposes a `{}` of a transposed tensor", reduction.kind.name()))
    })?
}

pub(super) fn unfolded_batch_norm(context: &Context<'_>, subject: Subject<'_>) -> Option<Finding> {
    if subject.kind != OpKind::Add {
        return None;
    }
    let either = |subject: Subject<'_>, kind: OpKind| {
        let found = ["x", "y"].into_iter().filter_map(|side| context.producer(subject, side));
        found.into_iter().find(|found| found.kind == kind)
    };
    let first = |subject: Subject<'_>, kind: OpKind| {
        context.producer(subject, "x").filter(|found| found.kind == kind)
    };
    let multiplied = either(subject, OpKind::Mul)?;
    let divided = either(multiplied, OpKind::RealDiv)?;
    let centred = first(divided, OpKind::Sub)?;
    first(centred, OpKind::Conv)?;
    Finding::new("ends a batch norm that is not folded into its convolution")
}
