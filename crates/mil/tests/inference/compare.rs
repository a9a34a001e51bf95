//! Compares inference results with recorded results.

use coremill_mil::infer::{InferredValue, KnownElements, Scalar};
use coremill_mil::ir::{Dim, Expr, Symbol, TensorType, Type};
use coremill_tensor::DType;
use serde_json::Value as Json;

use crate::build::{at_assignment, at_assignments};
use crate::text;

/// Describes the difference between a result and the expected one. `folds` is whether elements must be known.
pub(crate) fn outcome(expected: &Json, found: &InferredValue, folds: bool) -> Result<(), String> {
    let differ = |why: &str| Err(format!("found `{}`, expected {expected}: {why}", found.ty));
    if !ty(expected, &found.ty) {
        return differ("the types differ");
    }
    let Some(elements) = expected.get("value").and_then(Json::as_array) else { return Ok(()) };
    let Some(value) = &found.value else {
        return if folds { differ("the elements are known to coremltools") } else { Ok(()) };
    };
    if elements.len() != value.elements.len() {
        return differ(&format!("{} elements are known", value.elements.len()));
    }
    for (at, expected) in elements.iter().enumerate() {
        if !element(expected, value, at) {
            return differ(&format!("element {at} is {:?}", value.elements[at]));
        }
    }
    Ok(())
}

/// Describes the difference between the result for fixed dimensions and the result for unknown ones at an
/// assignment.
pub(crate) fn instantiated(
    open: &InferredValue,
    fixed: &InferredValue,
    assignment: usize,
) -> Result<(), String> {
    let differ = |why: String| {
        Err(format!("`{}` at assignment {assignment} is `{}`: {why}", open.ty, fixed.ty))
    };
    if let (Some(open), Some(fixed)) = (open.ty.as_tensor(), fixed.ty.as_tensor()) {
        if open.dtype != fixed.dtype || open.rank() != fixed.rank() {
            return differ("element type or rank differ".to_owned());
        }
        for (axis, (open, fixed)) in open.shape.iter().zip(&fixed.shape).enumerate() {
            let Some(open) = open.expr().and_then(|expr| at_assignment(&expr, assignment)) else {
                continue;
            };
            if Some(open) != fixed.known().and_then(|extent| i64::try_from(extent).ok()) {
                return differ(format!("dimension {axis} is {open}"));
            }
        }
    }
    let (Some(open), Some(fixed)) = (&open.value, &fixed.value) else { return Ok(()) };
    for (at, (open, fixed)) in open.elements.iter().zip(&fixed.elements).enumerate() {
        let same = match open {
            Scalar::Unknown => true,
            Scalar::Symbolic(expr) => match at_assignment(expr, assignment) {
                // Expressions in a float tensor have integer values.
                Some(value) => fixed.float() == Some(value as f64),
                None => true,
            },
            Scalar::Float(value) if value.is_nan() => fixed.float().is_some_and(f64::is_nan),
            known => known == fixed,
        };
        if !same {
            return differ(format!("element {at} is {open:?} and {fixed:?}"));
        }
    }
    Ok(())
}

fn ty(expected: &Json, found: &Type) -> bool {
    if expected.get("list").is_some() {
        let Type::List(held, length) = found else { return false };
        let same = match (expected["dtype"].is_null(), held.as_tensor()) {
            (true, _) => true,
            (false, Some(held)) => tensor(expected, &opened(held)),
            (false, None) => false,
        };
        return same && expected.get("length").is_none_or(|expected| dim(expected, length));
    }
    if expected.get("state").is_some() {
        let Type::State(held) = found else { return false };
        return held.as_tensor().is_some_and(|held| tensor(expected, held));
    }
    if let Some(parts) = expected.get("dict") {
        let Type::Dictionary(key, value) = found else { return false };
        let scalar = |part: &Json, found: &Type| {
            found.as_tensor().is_some_and(|found| found.dtype.name() == text(part))
        };
        return scalar(&parts[0], key) && scalar(&parts[1], value);
    }
    found.as_tensor().is_some_and(|found| tensor(expected, found))
}

/// Replaces each unknown dimension of a list's elements by a symbol, as inference does.
fn opened(held: &TensorType) -> TensorType {
    let open = |dim: &Dim| match dim {
        Dim::Unknown => Dim::Symbolic(Expr::from(Symbol(u32::MAX))),
        Dim::Known(_) | Dim::Symbolic(_) => dim.clone(),
    };
    TensorType { dtype: held.dtype, shape: held.shape.iter().map(open).collect() }
}

fn tensor(expected: &Json, found: &TensorType) -> bool {
    let shape = expected["shape"].as_array().expect("a shape");
    text(&expected["dtype"]) == found.dtype.name()
        && shape.len() == found.rank()
        && shape.iter().zip(&found.shape).all(|(expected, found)| dim(expected, found))
}

/// Compares a dimension. A number is fixed and an object is an expression. `?` is a dimension that
/// coremltools cannot compute; ours may then be any expression but not fixed.
fn dim(expected: &Json, found: &Dim) -> bool {
    match expected {
        Json::Number(extent) => found.known() == extent.as_u64(),
        Json::String(_) => matches!(found, Dim::Symbolic(_)),
        _ => {
            let Dim::Symbolic(expr) = found else { return false };
            at_assignments(expr).is_some_and(|found| same_values(&expected["at"], &found))
        }
    }
}

fn element(expected: &Json, found: &KnownElements, at: usize) -> bool {
    let element = &found.elements[at];
    match (expected, element) {
        (Json::Object(_), Scalar::Symbolic(expr)) => {
            at_assignments(expr).is_some_and(|found| same_values(&expected["at"], &found))
        }
        (Json::String(expected), Scalar::Text(found)) => **expected == **found,
        (Json::String(expected), Scalar::Float(found)) => {
            expected.parse::<f64>().is_ok_and(|expected| close(expected, *found, DType::Fp64))
        }
        (Json::String(expected), Scalar::Symbolic(_) | Scalar::Unknown) => expected == "?",
        (Json::Bool(expected), Scalar::Bool(found)) => expected == found,
        (Json::Number(expected), Scalar::Int(found)) => expected.as_i64() == Some(*found),
        (Json::Number(expected), Scalar::Float(value)) => {
            expected.as_f64().is_some_and(|expected| close(expected, *value, found.dtype))
        }
        _ => false,
    }
}

fn same_values(expected: &Json, found: &[i64]) -> bool {
    let expected = expected.as_array().expect("a list").iter().map(Json::as_i64);
    expected.eq(found.iter().map(|&value| Some(value)))
}

/// Whether two numbers are equal up to the rounding of one operation in the type.
fn close(expected: f64, found: f64, dtype: DType) -> bool {
    let relative = if dtype == DType::Fp16 { 2e-3 } else { 1e-5 };
    (expected.is_nan() && found.is_nan())
        || expected == found
        || (expected - found).abs() <= relative * expected.abs().max(1e-6)
}
