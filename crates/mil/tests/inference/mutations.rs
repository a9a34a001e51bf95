//! The recorded programs with one number in them replaced by an extreme one: inference may refuse them,
//! but must not panic.

use coremill_mil::infer::analyze;
use serde_json::{Value as Json, json};

use crate::{build, families, text};

const EXTENTS: [u64; 5] = [0, 1, 1 << 31, i64::MAX as u64, u64::MAX];

/// Elements of a constant that are replaced; the others are like the first ones.
const MAX_ELEMENTS: usize = 4;

#[test]
fn extreme_numbers_do_not_make_inference_panic() {
    let mut analyzed = 0;
    for instance in families().iter().flat_map(|family| &family.instances) {
        let mut places = Vec::new();
        for part in ["inputs", "attributes", "blocks"] {
            if let Some(operands) = instance.get(part) {
                find(operands, &format!("/{part}"), &mut places);
            }
        }
        let outputs = instance.get("outputs").and_then(Json::as_array).map_or(1, Vec::len);
        for (place, replacements) in places {
            for replacement in replacements {
                let mut mutated = instance.clone();
                *mutated.pointer_mut(&place).expect("a place that was found") = replacement;
                let (function, _) = build::function(&mutated, outputs);
                analyze(&function);
                analyzed += 1;
            }
        }
    }
    assert!(analyzed > 10_000, "{analyzed}");
}

/// The numbers of operands, by JSON pointer, with what stands in for each.
fn find(value: &Json, path: &str, places: &mut Vec<(String, Vec<Json>)>) {
    match value {
        Json::Object(operand) if operand.get("shape").is_some_and(Json::is_array) => {
            let extremes: Vec<Json> = match (operand.get("const"), operand.get("value")) {
                (None, _) => EXTENTS.into_iter().map(Json::from).collect(),
                (Some(_), Some(_)) => elements(text(&operand["dtype"])),
                (Some(_), None) => return,
            };
            let numbers = if operand.contains_key("const") { "value" } else { "shape" };
            let count = operand[numbers].as_array().map_or(0, Vec::len).min(MAX_ELEMENTS);
            for at in 0..count {
                places.push((format!("{path}/{numbers}/{at}"), extremes.clone()));
            }
        }
        Json::Object(entries) => {
            for (key, part) in entries {
                find(part, &format!("{path}/{key}"), places);
            }
        }
        Json::Array(parts) => {
            for (at, part) in parts.iter().enumerate() {
                find(part, &format!("{path}/{at}"), places);
            }
        }
        _ => {}
    }
}

/// The extreme elements of an element type.
fn elements(dtype: &str) -> Vec<Json> {
    match dtype {
        "string" => vec![json!(""), json!("valid")],
        "bool" => vec![json!(true), json!(false)],
        "fp16" | "fp32" | "fp64" => {
            vec![json!(0.0), json!(-1.5), json!(1e30), json!("inf"), json!("-inf"), json!("nan")]
        }
        "int64" => vec![json!(0), json!(-1), json!(i64::MAX), json!(i64::MIN)],
        "uint64" => vec![json!(0), json!(i64::MAX)],
        _ => {
            let bits: u32 = dtype.trim_start_matches(char::is_alphabetic).parse().expect("a width");
            match dtype.starts_with('u') {
                true => vec![json!(0), json!((1u64 << bits) - 1)],
                false => {
                    let most = (1i64 << (bits - 1)) - 1;
                    vec![json!(0), json!(1), json!(-1), json!(most), json!(-most - 1)]
                }
            }
        }
    }
}
