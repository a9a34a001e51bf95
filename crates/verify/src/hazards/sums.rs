//! Sums of products on the Neural Engine, and integers on the CPU.

use std::rc::Rc;

use coremill_mil::infer::Scalar;
use coremill_mil::ir::{Binding, Constant};
use coremill_mil::ops::OpKind;
use coremill_tensor::DType;
use half::f16;

use super::numerics::searched;
use super::placement::computes;
use super::{Context, Finding, Subject};

/// The Neural Engine's sums of products are infinite from this magnitude on.
const SUM_LIMIT: f64 = 32_768.0;

pub(super) fn sum_overflow(context: &Context<'_>, subject: Subject<'_>) -> Option<Finding> {
    if !matches!(subject.kind, OpKind::Conv | OpKind::Linear)
        || context.output(subject)?.dtype != DType::Fp16
    {
        return None;
    }
    // The bias is the first value of the sum.
    let bias = row_sums(context, subject, "bias");
    let bias = bias.as_deref().unwrap_or_default();
    if let Some(large) = bias.iter().find(|value| value.is_finite() && **value >= SUM_LIMIT) {
        let message = format!("starts sums at {large}; sums from {SUM_LIMIT} on are infinite");
        return Finding::of("bias", message);
    }
    let most = context.magnitude(subject, "x").filter(|most| most.is_finite())?;
    let rows = row_sums(context, subject, "weight")?;
    let sums = rows.iter().enumerate();
    let sums = sums.map(|(row, sum)| most * sum + bias.get(row).copied().unwrap_or(0.0));
    let largest = sums.fold(0.0, f64::max);
    (largest.is_finite() && largest >= SUM_LIMIT).then(|| {
        let message =
            format!("sums products up to {largest:.0}; sums from {SUM_LIMIT} on are infinite");
        Finding::of("weight", message)
    })?
}

/// Sums of the magnitudes of a constant's elements along all axes but the first; `None` if the elements are
/// unknown.
fn row_sums(context: &Context<'_>, subject: Subject<'_>, parameter: &str) -> Option<Rc<[f64]>> {
    match subject.op.binding(parameter)? {
        Binding::Literal(constant) => summed(constant),
        Binding::Value(value) => {
            if let Some(sums) = context.row_sums.borrow().get(value) {
                return sums.clone();
            }
            let sums = context.at.function.constant(*value).and_then(summed);
            context.row_sums.borrow_mut().insert(*value, sums.clone());
            sums
        }
    }
}

fn summed(constant: &Constant) -> Option<Rc<[f64]>> {
    let elements = searched(constant, DType::Fp16)?;
    let shape = constant.tensor_type()?.known_shape()?;
    let rows = usize::try_from(shape.first().copied().unwrap_or(1)).ok()?;
    let size = (elements.len() / 2).checked_div(rows)?.max(1);
    let sums = |bytes: &[u8]| {
        let halves: &[[u8; 2]] = bytes.as_chunks().0;
        let magnitude = |bytes: &[u8; 2]| f16::from_le_bytes(*bytes).to_f64().abs();
        halves.chunks(size).map(|row| row.iter().map(magnitude).sum()).collect()
    };
    elements.with_window(0..elements.len(), sums).ok()
}

/// Number of keys from which average probabilities are close to the resolution of the Neural Engine's sums.
const MANY_KEYS: u64 = 4096;

pub(super) fn small_probabilities(context: &Context<'_>, subject: Subject<'_>) -> Option<Finding> {
    let (tensor, from_end, parameter) = match subject.kind {
        OpKind::ScaledDotProductAttention => (context.operand(subject, "key")?, 2, "key"),
        OpKind::Matmul if context.producer(subject, "x")?.kind == OpKind::Softmax => {
            (context.operand(subject, "x")?, 1, "x")
        }
        _ => return None,
    };
    let axis = tensor.shape.len().checked_sub(from_end)?;
    let keys = tensor.shape.get(axis)?.known()?;
    (tensor.dtype == DType::Fp16 && keys >= MANY_KEYS)
        .then(|| Finding::of(parameter, format!("weights {keys} values by probabilities")))?
}

/// The largest integer up to which `fp32` represents every integer.
const MAX_EXACT_SINGLE: u64 = 1 << 24;

pub(super) fn large_integer(context: &Context<'_>, subject: Subject<'_>) -> Option<Finding> {
    let through_floats = matches!(
        subject.kind,
        OpKind::Identity
            | OpKind::Select
            | OpKind::BandPart
            | OpKind::Add
            | OpKind::Sub
            | OpKind::Mul
            | OpKind::Maximum
            | OpKind::Minimum
    );
    if !through_floats
        || !computes(context, subject)
        || context.output(subject)?.dtype != DType::Int32
    {
        return None;
    }
    ["x", "y", "a", "b"].into_iter().find_map(|parameter| {
        let known = context.known(subject, parameter)?;
        let mut integers = known.elements.iter().filter_map(Scalar::int);
        let large = integers.find(|integer| integer.unsigned_abs() > MAX_EXACT_SINGLE)?;
        Finding::of(parameter, format!("computes with {large} in `int32`"))
    })
}
