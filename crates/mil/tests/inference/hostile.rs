//! Runs the instances' programs with hostile constants and sizes. Inference may reject them, but must neither
//! panic nor run forever.

use std::panic::{AssertUnwindSafe, catch_unwind};

use coremill_mil::infer::{MAX_FOLDED_ELEMENTS, MAX_RANK, analyze};
use serde_json::Value as Json;

use crate::random::Draw;
use crate::{build, families, report, text};

/// Number of variants of each instance.
const VARIANTS: u64 = 6;

#[test]
fn hostile_constants_and_sizes_do_not_panic() {
    let mut draw = Draw(0x9e37_79b9_7f4a_7c15);
    let (mut accepted, mut refused) = (0, 0);
    let mut failures = Vec::new();
    for instance in families().iter().flat_map(|family| &family.instances) {
        for _ in 0..VARIANTS {
            let mut hostile = instance.clone();
            let outputs = hostile.get("outputs").and_then(Json::as_array).map_or(1, Vec::len);
            let program = hostile.as_object_mut().expect("a map");
            program.remove("outputs");
            for part in ["inputs", "attributes"] {
                if let Some(operands) = program.get_mut(part).and_then(Json::as_object_mut) {
                    operands.values_mut().for_each(|operand| corrupt(operand, &mut draw));
                }
            }
            let run = catch_unwind(AssertUnwindSafe(|| {
                let (function, op) = build::function(&hostile, outputs);
                let (analysis, problems) = analyze(&function);
                for &value in &function.op(op).outputs {
                    let outcome = analysis.outcome(value).expect("analyzed");
                    let known = outcome.value.as_ref().map_or(0, |value| value.elements.len());
                    assert!(known as u64 <= MAX_FOLDED_ELEMENTS);
                    assert!(outcome.ty.as_tensor().is_none_or(|ty| ty.rank() <= MAX_RANK));
                }
                problems.is_empty()
            }));
            match run {
                Ok(true) => accepted += 1,
                Ok(false) => refused += 1,
                Err(_) => {
                    failures.push(format!("{}: {}", text(&instance["id"]), hostile["inputs"]))
                }
            }
        }
    }
    report(&format!("{accepted} hostile programs accepted, {refused} refused"));
    assert!(accepted > 1000 && refused > 1000);
    assert!(failures.is_empty(), "{} failures:\n{}", failures.len(), failures.join("\n"));
}

/// Replaces some numbers of an operand by extreme ones: elements of a constant, or sizes of an input.
fn corrupt(operand: &mut Json, draw: &mut Draw) {
    let Some(entries) = operand.as_object_mut() else { return };
    for part in ["values", "inputs"] {
        match entries.get_mut(part) {
            Some(Json::Array(parts)) => parts.iter_mut().for_each(|part| corrupt(part, draw)),
            Some(Json::Object(parts)) => parts.values_mut().for_each(|part| corrupt(part, draw)),
            _ => {}
        }
    }
    let constant = entries.contains_key("const");
    let extremes: Vec<Json> = match entries.get("dtype").and_then(Json::as_str) {
        _ if !constant => {
            [0, 1, 2, 3, 4097, 1 << 31, 1 << 40, i64::MAX as u64, u64::MAX].map(Json::from).into()
        }
        Some("int32") => {
            [i32::MIN, i32::MIN + 1, -2, -1, 0, 1, 2, 4097, i32::MAX].map(Json::from).into()
        }
        Some("uint32") => [0, 1, 2, 4097, u32::MAX].map(Json::from).into(),
        Some("int16") => [i16::MIN, -1, 0, 1, i16::MAX].map(Json::from).into(),
        Some("int8") => [i8::MIN, -1, 0, 1, i8::MAX].map(Json::from).into(),
        Some("fp16" | "fp32") => {
            ["nan", "inf", "-inf", "0", "-0", "1e30", "-1e-30", "65504"].map(Json::from).into()
        }
        _ => return,
    };
    let numbers_of = entries.get_mut(if constant { "value" } else { "shape" });
    for number in numbers_of.and_then(Json::as_array_mut).into_iter().flatten() {
        if draw.below(3) == 0 {
            *number = draw.of(&extremes);
        }
    }
}
