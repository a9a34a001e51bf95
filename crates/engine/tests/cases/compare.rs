//! Comparison of outputs with expected values.

use coremill_engine::{Array, Elements, Outputs, Value};
use coremill_tensor::DType;
use half::f16;

use super::case::Case;

/// Maximum number of elements in a message.
const SHOWN: usize = 12;

/// Relative error of one fp16 rounding on each side.
const HALF_RELATIVE: f32 = 1.0 / 1024.0;
/// Distance between the smallest fp16 numbers.
const HALF_ABSOLUTE: f32 = 6.0e-8;

/// Compares the outputs of a case.
pub(crate) fn outputs(case: &Case, outputs: &Outputs, expected: &[Array]) -> Result<(), String> {
    if outputs.0.len() != expected.len() {
        return Err(format!("{} outputs, not {}", outputs.0.len(), expected.len()));
    }
    for ((name, value), expected) in outputs.0.iter().zip(expected) {
        compare(case, value, expected).map_err(|error| format!("`{name}`: {error}"))?;
    }
    Ok(())
}

fn compare(case: &Case, value: &Value, expected: &Array) -> Result<(), String> {
    let scores;
    let found = match value {
        Value::Array(array) => array,
        Value::Dictionary(entries) => {
            let floats: Vec<f32> = entries.iter().map(|(_, score)| *score).collect();
            scores = Array::floats(DType::Fp32, [floats.len()], floats);
            &scores
        }
        Value::List(_) => return Err("is a list".into()),
    };
    if found.shape() != expected.shape() {
        return Err(format!("has the shape {:?}, not {:?}", found.shape(), expected.shape()));
    }
    let first = match (found.elements(), expected.elements()) {
        (Elements::Floats(found), Elements::Floats(wanted)) => {
            let near = |x: f32, y: f32| near(case, expected.dtype(), x, y);
            found.iter().zip(&**wanted).position(|(&x, &y)| !near(x, y))
        }
        (Elements::Ints(found), Elements::Ints(wanted)) => {
            found.iter().zip(&**wanted).position(|(x, y)| x != y)
        }
        (Elements::Texts(found), Elements::Texts(wanted)) => {
            found.iter().zip(&**wanted).position(|(x, y)| x != y)
        }
        _ => return Err(format!("is of `{}`, not of `{}`", found.dtype(), expected.dtype())),
    };
    match first {
        None => Ok(()),
        Some(at) => {
            let (found, expected) = (part(found, at), part(expected, at));
            Err(format!("from element {at} on it is {found}, not {expected}"))
        }
    }
}

/// fp16 results may be rounded or not, and rounding may produce infinity.
fn near(case: &Case, dtype: DType, found: f32, expected: f32) -> bool {
    if dtype == DType::Fp16 {
        let [found, expected] = [found, expected].map(|x| f16::from_f32(x).to_f32());
        return within(found, expected, case.rel + HALF_RELATIVE, case.abs + HALF_ABSOLUTE);
    }
    within(found, expected, case.rel, case.abs)
}

fn within(found: f32, expected: f32, relative: f32, absolute: f32) -> bool {
    if found.is_nan() || expected.is_nan() {
        return found.is_nan() && expected.is_nan();
    }
    // Also covers infinities.
    found == expected
        || (expected.is_finite()
            && (found - expected).abs() <= absolute + relative * expected.abs())
}

fn part(array: &Array, start: usize) -> String {
    let end = (start + SHOWN).min(array.view().len());
    match array.elements() {
        Elements::Floats(floats) => format!("{:?}", &floats[start..end]),
        Elements::Ints(ints) => format!("{:?}", &ints[start..end]),
        Elements::Texts(texts) => format!("{:?}", &texts[start..end]),
    }
}
