//! Numbers outside the range of `fp16`.

use coremill_mil::infer::Scalar;
use coremill_mil::ir::{Binding, Constant, TensorType};
use coremill_mil::ops::{DefaultValue, OpKind};
use coremill_tensor::{Buffer, DType};
use half::f16;

use super::{Context, Finding, Subject};

/// Maximum size of a searched constant in bytes, so that whole weight files are not read. These rules target
/// masks, which are smaller.
const MAX_SEARCHED_BYTES: usize = 16 << 20;

/// Number of bytes searched at a time.
const WINDOW: usize = 1 << 20;

pub(super) fn non_finite(context: &Context<'_>, subject: Subject<'_>) -> Option<Finding> {
    let constant = subject.op.attributes.get("val")?;
    let elements = searched(constant, DType::Fp16)?;
    let (mut infinities, mut nans) = (0u64, 0u64);
    let mut count = |bytes: &[u8]| {
        for half in bytes.as_chunks().0.iter().map(|bytes| f16::from_le_bytes(*bytes)) {
            infinities += u64::from(half.is_infinite());
            nans += u64::from(half.is_nan());
        }
        Ok(())
    };
    elements.for_each_window(0..elements.len(), WINDOW, &mut count).ok()?;
    match (infinities, nans) {
        (0, 0) => None,
        // As a bound, infinity means that there is none.
        (_, 0) if context.only_bounds_clips(subject) => None,
        (infinities, 0) => Finding::of("val", format!("holds infinities: {infinities}")),
        (0, nans) => Finding::of("val", format!("holds NaN: {nans}")),
        (infinities, nans) => {
            Finding::of("val", format!("holds infinities: {infinities}, and NaN: {nans}"))
        }
    }
}

pub(super) fn half_overflow(context: &Context<'_>, subject: Subject<'_>) -> Option<Finding> {
    if subject.kind != OpKind::Cast || context.output(subject)?.dtype != DType::Fp16 {
        return None;
    }
    let overflows = |value: f64| value.is_finite() && f16::from_f64(value).is_infinite();
    let found = match context.known(subject, "x") {
        Some(folded) => folded.elements.iter().filter_map(Scalar::float).find(|v| overflows(*v))?,
        None => {
            let constant = context.at.function.bound_constant(subject.op.binding("x")?)?;
            let elements = searched(constant, DType::Fp32)?;
            let mut found = None;
            let mut search = |bytes: &[u8]| {
                let floats = bytes.as_chunks().0.iter();
                let mut floats = floats.map(|bytes| f64::from(f32::from_le_bytes(*bytes)));
                found = found.or_else(|| floats.find(|value| overflows(*value)));
                Ok(())
            };
            elements.for_each_window(0..elements.len(), WINDOW, &mut search).ok()?;
            found?
        }
    };
    Finding::of("x", format!("casts {} to `fp16`, whose maximum is 65504", shown(found)))
}

pub(super) fn vanishing_epsilon(context: &Context<'_>, subject: Subject<'_>) -> Option<Finding> {
    let row = subject.kind.row(context.at.function.opset)?;
    let parameter = row.parameter("epsilon")?;
    if context.output(subject)?.dtype != DType::Fp16 || context.is_constant(subject, "x") {
        return None;
    }
    let (epsilon, origin) = match context.known(subject, "epsilon") {
        Some(value) => (value.only()?.float()?, ""),
        None => match parameter.default {
            DefaultValue::Float(value) | DefaultValue::FloatByType { fp16: value, .. } => {
                (f64::from(value), ", the default")
            }
            _ => return None,
        },
    };
    let vanishes = f16::from_f64(epsilon).to_f64() == 0.0;
    vanishes.then(|| {
        let epsilon = shown(epsilon);
        Finding::of("epsilon", format!("computes in `fp16` with an epsilon of {epsilon}{origin}"))
    })?
}

pub(super) fn square_overflow(context: &Context<'_>, subject: Subject<'_>) -> Option<Finding> {
    if context.operand(subject, "x")?.dtype != DType::Fp16 {
        return None;
    }
    let message = "sums squares in `fp16`";
    let is_bounded = |squared: Subject<'_>| {
        let count = |ty: Option<&TensorType>| ty.and_then(TensorType::element_count);
        let terms = count(context.operand(subject, "x"))
            .zip(count(context.output(subject)))
            .and_then(|(before, after)| before.checked_div(after));
        let squares = context.magnitude(squared, "x").map(|most| most * most);
        let sum = terms.zip(squares).map(|(terms, squares)| terms as f64 * squares);
        sum.is_some_and(|sum| sum <= f16::MAX.to_f64())
    };
    match subject.kind {
        OpKind::ReduceSumSquare if is_bounded(subject) => None,
        OpKind::ReduceSumSquare => Finding::new(message),
        OpKind::ReduceMean | OpKind::ReduceSum => {
            let producer = context.producer(subject, "x")?;
            let squares = match producer.kind {
                OpKind::Square => true,
                OpKind::Pow => {
                    let exponent = context.known(producer, "y")?;
                    exponent.only().and_then(Scalar::float) == Some(2.0)
                }
                OpKind::Mul => match (producer.op.binding("x")?, producer.op.binding("y")?) {
                    (Binding::Value(x), Binding::Value(y)) => x == y,
                    _ => false,
                },
                _ => false,
            };
            (squares && !is_bounded(producer)).then(|| Finding::of("x", message))?
        }
        _ => None,
    }
}

/// The largest integer up to which `fp16` represents every integer.
const MAX_EXACT_HALF: u64 = 2048;

pub(super) fn half_indices(context: &Context<'_>, subject: Subject<'_>) -> Option<Finding> {
    let indexes =
        matches!(subject.kind, OpKind::Gather | OpKind::GatherAlongAxis | OpKind::GatherNd);
    if !indexes || context.is_constant(subject, "indices") {
        return None;
    }
    let cast = context.producer(subject, "indices").filter(|found| found.kind == OpKind::Cast)?;
    let half = context.operand(cast, "x")?.dtype == DType::Fp16;
    let extents = context.operand(subject, "x")?.shape.iter();
    let long = extents.map(|dim| dim.known().unwrap_or(u64::MAX)).any(|n| n > MAX_EXACT_HALF);
    (half && long)
        .then(|| Finding::of("indices", "uses indices that were converted from `fp16`"))?
}

/// The elements of a constant of this type; `None` if they were not read or exceed the limit.
pub(super) fn searched(constant: &Constant, dtype: DType) -> Option<&Buffer> {
    let elements = constant.elements()?;
    let fits = constant.tensor_type()?.dtype == dtype && elements.len() <= MAX_SEARCHED_BYTES;
    fits.then_some(elements)
}

/// Formats a number with as few digits as distinguish it from its neighbors in `fp32`.
fn shown(number: f64) -> String {
    if number == 0.0 { "0".to_owned() } else { format!("{:e}", number as f32) }
}
