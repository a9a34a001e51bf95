//! Compares type inference with coremltools.
//!
//! `oracle/inference` generates small programs with one operation each and records in `inference/*.json` the
//! types that coremltools infers, or that it rejects the program. This test builds the same programs and
//! compares element types, dimensions (symbolic ones by value, at three assignments of the symbols), known
//! elements, and rejections. If coremltools is wrong, the instance contains the reason and the correct
//! result.
//!
//! `cargo test -p coremill-mil --test inference -- --nocapture` prints the counts.

#[path = "inference/build.rs"]
mod build;
#[path = "inference/compare.rs"]
mod compare;
#[path = "inference/hostile.rs"]
mod hostile;
#[path = "inference/messages.rs"]
mod messages;
#[path = "support/random.rs"]
mod random;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use coremill_mil::infer::{Analysis, InferredValue, Problem, analyze};
use coremill_mil::ir::{Function, OpId, Opset};
use coremill_mil::ops::OpKind;
use serde_json::Value as Json;

/// Definitions that no coremltools program contains, with the reason.
const NOT_COMPARED: &[(&str, &str)] = &[
    ("_const_symbolic", "used only by the tests of coremltools; cannot be stored in a file"),
    ("conv_quantized", "exists only in the neural network format, not in ML Programs"),
];

/// Operations whose elements no type depends on in a realistic program. Inference does not compute them.
const NOT_FOLDED: &[&str] = &["l2_norm", "layer_norm", "prelu", "softmax", "softplus_parametric"];

/// Minimum number of accepted signatures for each definition.
const ACCEPTED_SIGNATURES: usize = 3;
const REFUSED_INSTANCES: usize = 2;

/// Maximum number of outputs with which a rejected instance is tried.
const MAX_OUTPUTS: usize = 16;

struct Family {
    name: String,
    operations: Vec<String>,
    /// Definitions that cannot have enough instances.
    rare: BTreeSet<(String, String)>,
    instances: Vec<Json>,
}

#[derive(Default)]
struct Row {
    accepted: BTreeSet<String>,
    refused: usize,
}

#[test]
fn inference_agrees_with_coremltools() {
    let mut failures = Vec::new();
    let (mut rows, mut accepted, mut refused, mut exceptions) = (0, 0, 0, 0);
    for family in families() {
        let mut shown: BTreeMap<(String, String), Row> = BTreeMap::new();
        for operation in &family.operations {
            for row in kind(operation).rows() {
                shown.insert((operation.clone(), row.since.to_string()), Row::default());
            }
        }
        for instance in &family.instances {
            let id = text(&instance["id"]);
            let expected = instance.get("instead").unwrap_or(instance);
            match compare_with_coremltools(instance, expected) {
                Ok(()) if instance.get("instead").is_none() => {}
                Ok(()) => match compare_with_coremltools(instance, instance) {
                    Ok(()) => failures.push(format!(
                        "{id}: coremltools now gives the correct result; remove the exception"
                    )),
                    Err(_) => exceptions += 1,
                },
                Err(error) => failures.push(format!("{id}: {error}")),
            }
            let is_refused = expected.get("refused").is_some();
            if is_refused {
                refused += 1
            } else {
                accepted += 1
            }
            let Some(row) = kind(text(&instance["op"])).row(opset(instance)) else { continue };
            let definition = (text(&instance["op"]).to_owned(), row.since.to_string());
            let row = shown.get_mut(&definition).expect("the file lists its operations");
            if is_refused {
                row.refused += 1;
            } else {
                row.accepted.insert(signature(instance));
            }
        }
        rows += shown.len();
        failures.extend(thin_rows(&family, &shown));
    }
    report(&format!(
        "{rows} definitions, {accepted} instances accepted, {refused} refused, {exceptions} exceptions"
    ));
    assert!(failures.is_empty(), "{} failures:\n{}", failures.len(), failures.join("\n"));
}

#[test]
fn every_operation_is_compared_with_coremltools() {
    let mut compared: BTreeSet<String> = BTreeSet::new();
    for family in families() {
        for operation in family.operations {
            assert!(compared.insert(operation.clone()), "`{operation}` is in two families");
        }
    }
    for (name, _) in NOT_COMPARED {
        assert!(OpKind::from_name(name).is_some(), "no operation is called `{name}`");
        assert!(
            compared.insert((*name).to_owned()),
            "`{name}` has instances; remove it from NOT_COMPARED"
        );
    }
    for kind in OpKind::ALL {
        assert!(compared.contains(kind.name()), "no instances for operation `{}`", kind.name());
    }
}

/// Results for unknown dimensions must hold for every size. If the symbols of an instance are replaced by
/// numbers, inference must return the values of the expressions.
#[test]
fn symbolic_dimensions_agree_with_fixed_ones() {
    let mut failures = Vec::new();
    let (mut compared, mut refused) = (0, 0);
    for instance in families().iter().flat_map(|family| &family.instances) {
        let Some(outputs) = instance.get("outputs").and_then(Json::as_array) else { continue };
        let Ok((open, function, op)) = analyzed(instance, outputs.len()) else { continue };
        for assignment in 0..build::ASSIGNMENTS.len() {
            let Some(fixed_instance) = build::with_symbols_fixed(instance, assignment) else {
                break;
            };
            let Ok((fixed, fixed_function, fixed_op)) = analyzed(&fixed_instance, outputs.len())
            else {
                // Unknown dimensions may be incompatible once they are fixed.
                refused += 1;
                continue;
            };
            compared += 1;
            let pairs = function.op(op).outputs.iter().zip(&fixed_function.op(fixed_op).outputs);
            for (&open_value, &fixed_value) in pairs {
                let outcomes: [&InferredValue; 2] = [(&open, open_value), (&fixed, fixed_value)]
                    .map(|(analysis, value)| analysis.outcome(value).expect("accepted"));
                if let Err(error) = compare::instantiated(outcomes[0], outcomes[1], assignment) {
                    failures.push(format!("{}: {error}", text(&instance["id"])));
                }
            }
        }
    }
    report(&format!("{compared} instances with fixed dimensions compared, {refused} refused"));
    assert!(compared > refused);
    assert!(failures.is_empty(), "{} failures:\n{}", failures.len(), failures.join("\n"));
}

/// Compares our inference with the expected result.
fn compare_with_coremltools(instance: &Json, expected: &Json) -> Result<(), String> {
    if let Some(outputs) = expected.get("outputs") {
        let outputs = outputs.as_array().expect("a list");
        let (analysis, function, op) = analyzed(instance, outputs.len())?;
        let folds = !NOT_FOLDED.contains(&text(&instance["op"]));
        for (expected, &value) in outputs.iter().zip(&function.op(op).outputs) {
            let found = analysis.outcome(value).expect("accepted");
            compare::outcome(expected, found, folds)?;
        }
        return Ok(());
    }
    // The program must be rejected with any number of outputs, not only with a wrong one.
    let accepted = (0..MAX_OUTPUTS).find(|&count| analyzed(instance, count).is_ok());
    match accepted {
        None => Ok(()),
        Some(count) => {
            let (analysis, function, op) = analyzed(instance, count)?;
            let types: Vec<_> = function.op(op).outputs.iter().map(|&v| analysis.ty(v)).collect();
            Err(format!("accepted as {types:?}, but must be refused: {}", expected["refused"]))
        }
    }
}

/// The instance's program with its inference results; an error if it is rejected.
fn analyzed(instance: &Json, outputs: usize) -> Result<(Analysis, Function, OpId), String> {
    let (function, op) = build::function(instance, outputs);
    let (analysis, problems) = analyze(&function);
    let body = &function.block(function.body).ops;
    let operand = |problem: &&Problem| problem.op != op && body.contains(&problem.op);
    if let Some(problem) = problems.iter().find(operand) {
        panic!("{}: an operand is refused: {}", instance["id"], problem.refusal);
    }
    match problems.first() {
        None => Ok((analysis, function, op)),
        Some(problem) => Err(format!("refused: {}", problem.refusal)),
    }
}

/// Definitions with too few instances in a file, or with an unnecessary exception.
fn thin_rows(family: &Family, shown: &BTreeMap<(String, String), Row>) -> Vec<String> {
    let mut failures = Vec::new();
    for (definition, row) in shown {
        let enough = row.accepted.len() >= ACCEPTED_SIGNATURES && row.refused >= REFUSED_INSTANCES;
        if enough == family.rare.contains(definition) {
            failures.push(format!(
                "{}: {} of {} has {} different accepted instances and {} refused, and is {}in RARE",
                family.name,
                definition.0,
                definition.1,
                row.accepted.len(),
                row.refused,
                if enough { "" } else { "not " }
            ));
        }
    }
    failures
}

/// Signature of an accepted instance: element type, rank and dynamic dimensions of each operand.
fn signature(instance: &Json) -> String {
    fn of(operand: &Json) -> String {
        if let Some(values) = operand.get("values") {
            return format!(
                "{:?}",
                values.as_array().expect("a list").iter().map(of).collect::<Vec<_>>()
            );
        }
        let Some(shape) = operand.get("shape").and_then(Json::as_array) else {
            return operand.to_string();
        };
        let open = shape.iter().any(Json::is_string);
        format!("{}{}{}", operand["dtype"], shape.len(), if open { "?" } else { "" })
    }
    let bound = ["inputs", "attributes"].into_iter().filter_map(|part| instance.get(part));
    let bound = bound.flat_map(|part| part.as_object().expect("a map"));
    bound.map(|(name, operand)| format!("{name}:{} ", of(operand))).collect()
}

fn families() -> Vec<Family> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/inference");
    let mut families = Vec::new();
    for entry in std::fs::read_dir(directory).expect("the directory of the files") {
        let path = entry.expect("an entry").path();
        if path.extension().is_none_or(|extension| extension != "json") {
            continue;
        }
        let content = std::fs::read_to_string(&path).expect("a text file");
        let file: Json = serde_json::from_str(&content).expect("a JSON file");
        let list = |name: &str| file[name].as_array().expect("a list").clone();
        families.push(Family {
            name: text(&file["family"]).to_owned(),
            operations: list("operations").iter().map(|name| text(name).to_owned()).collect(),
            rare: list("rare")
                .iter()
                .map(|rare| (text(&rare[0]).to_owned(), text(&rare[1]).to_owned()))
                .collect(),
            instances: list("instances"),
        });
    }
    assert!(!families.is_empty());
    families
}

fn kind(name: &str) -> OpKind {
    OpKind::from_name(name).unwrap_or_else(|| panic!("no operation is called `{name}`"))
}

fn opset(instance: &Json) -> Opset {
    let name = text(&instance["opset"]);
    let found = Opset::ALL.into_iter().find(|opset| opset.to_string() == name);
    found.unwrap_or_else(|| panic!("no opset is called `{name}`"))
}

fn text(value: &Json) -> &str {
    value.as_str().unwrap_or_else(|| panic!("expected text, found {value}"))
}

#[expect(clippy::print_stdout, reason = "the test prints its counts")]
fn report(line: &str) {
    println!("{line}");
}
