//! Arithmetic on known elements.
//!
//! Integers wrap around in their element type. Floats are computed in double precision and rounded to the
//! element type. Symbolic integers stay symbolic as long as [`Expr`] supports the operation. An fp32 element
//! may be symbolic too: programs scale dimensions in floats, and fp32 represents every realistic dimension
//! exactly.

use std::cmp::Ordering;

use coremill_tensor::DType;

use super::folded::{KnownElements, MAX_FOLDED_ELEMENTS, Scalar, round_to};
use crate::ir::Expr;

/// Maps the elements; `None` if no element of the result would be known.
pub(crate) fn map(
    x: &KnownElements,
    dtype: DType,
    f: impl Fn(&Scalar) -> Scalar,
) -> Option<KnownElements> {
    known(KnownElements {
        dtype,
        shape: x.shape.clone(),
        elements: x.elements.iter().map(f).collect(),
    })
}

/// Combines pairs of elements of two tensors, broadcast to `shape`. Returns `None` if the shape is too large,
/// or if no element of the result would be known.
pub(crate) fn zip(
    x: &KnownElements,
    y: &KnownElements,
    shape: &[u64],
    dtype: DType,
    f: impl Fn(&Scalar, &Scalar) -> Scalar,
) -> Option<KnownElements> {
    let (x, y) = (expand(x, shape)?, expand(y, shape)?);
    let elements = x.elements.iter().zip(&y.elements).map(|(x, y)| f(x, y)).collect();
    known(KnownElements { dtype, shape: shape.to_vec(), elements })
}

/// Broadcasts the elements to a shape; `None` if the shape is too large or not compatible.
pub(crate) fn expand(x: &KnownElements, shape: &[u64]) -> Option<KnownElements> {
    let count = shape.iter().try_fold(1u64, |count, &extent| count.checked_mul(extent))?;
    if count > MAX_FOLDED_ELEMENTS {
        return None;
    }
    let missing = shape.len().checked_sub(x.shape.len())?;
    let agree = |(&from, &to): (&u64, &u64)| from == to || from == 1;
    if !x.shape.iter().zip(&shape[missing..]).all(agree) {
        return None;
    }
    let element = |mut index: u64| {
        // Go from the last axis to the first; axes of size 1 are broadcast.
        let (mut source, mut stride) = (0, 1);
        for (axis, &extent) in shape.iter().enumerate().rev() {
            let position = index % extent;
            index /= extent;
            if let Some(&from) = axis.checked_sub(missing).and_then(|axis| x.shape.get(axis)) {
                source += if from == 1 { 0 } else { position * stride };
                stride *= from;
            }
        }
        x.elements.get(source as usize).cloned()
    };
    let elements = (0..count).map(element).collect::<Option<_>>()?;
    KnownElements::new(x.dtype, shape.to_vec(), elements)
}

fn known(folded: KnownElements) -> Option<KnownElements> {
    let unknown = folded.elements.iter().all(|element| *element == Scalar::Unknown);
    (!unknown || folded.elements.is_empty()).then_some(folded)
}

/// A float rounded to an element type.
pub(crate) fn float(dtype: DType, value: f64) -> Scalar {
    Scalar::Float(round_to(dtype, value))
}

/// An integer in an element type, wrapped around on overflow.
pub(crate) fn integer(dtype: DType, value: Option<i64>) -> Scalar {
    let (Some(value), Some(bits)) = (value, dtype.bits()) else { return Scalar::Unknown };
    if bits >= 64 {
        return Scalar::Int(value);
    }
    let low = value & ((1 << bits) - 1);
    let negative = dtype.is_signed_integer() && low >> (bits - 1) != 0;
    Scalar::Int(if negative { low - (1 << bits) } else { low })
}

/// A float converted to an integer type by truncation. The result is unknown if the value does not fit,
/// because it depends on the machine.
pub(crate) fn truncated(dtype: DType, value: f64) -> Scalar {
    let whole = value.trunc();
    let fits = dtype.integer_range().is_some_and(|(low, high)| {
        whole.is_finite() && whole.abs() < 9e18 && (low..=high).contains(&(whole as i128))
    });
    if fits { Scalar::Int(whole as i64) } else { Scalar::Unknown }
}

/// Converts an expression to an element.
pub(crate) fn expression(dtype: DType, expr: Option<Expr>) -> Scalar {
    match Scalar::from_expr(expr) {
        Scalar::Int(value) if dtype.is_float() => float(dtype, value as f64),
        Scalar::Int(value) => integer(dtype, Some(value)),
        scalar => scalar,
    }
}

/// Converts an element to an expression if the element type represents it exactly.
pub(crate) fn as_expr(dtype: DType, element: &Scalar) -> Option<Expr> {
    match element {
        Scalar::Float(value) if dtype == DType::Fp32 && value.fract() == 0.0 => {
            (value.abs() < 9e15).then(|| Expr::from(*value as i64))
        }
        Scalar::Float(_) => None,
        Scalar::Symbolic(_) if dtype.is_float() && dtype != DType::Fp32 => None,
        _ => element.expr(),
    }
}

/// Compares two elements; `None` if the order is unknown.
pub(crate) fn compare(dtype: DType, left: &Scalar, right: &Scalar) -> Option<Ordering> {
    match (left, right) {
        (Scalar::Float(left), Scalar::Float(right)) => left.partial_cmp(right),
        _ => {
            let difference = as_expr(dtype, left)?.sub(&as_expr(dtype, right)?)?;
            Some(difference.constant()?.cmp(&0))
        }
    }
}

/// Converts an element to another type, as `cast` does.
pub(crate) fn cast(element: &Scalar, to: DType) -> Scalar {
    let target = |value: i64| match to {
        DType::Bool => Scalar::Bool(value != 0),
        _ if to.is_float() => float(to, value as f64),
        _ => integer(to, Some(value)),
    };
    match element {
        Scalar::Bool(_) | Scalar::Int(_) => element.int().map_or(Scalar::Unknown, target),
        Scalar::Float(value) if to == DType::Bool => Scalar::Bool(*value != 0.0),
        Scalar::Float(value) if to.is_float() => float(to, *value),
        Scalar::Float(value) => truncated(to, *value),
        Scalar::Symbolic(_) if to != DType::Bool => element.clone(),
        Scalar::Symbolic(_) | Scalar::Text(_) | Scalar::Unknown => Scalar::Unknown,
    }
}
