//! Checks of the model around the program: versions, functions, and the description.

use std::collections::HashSet;

use coremill_mil::ir::{Function, Opset, Type, ValueId};
use coremill_mil::model::{FeatureDescription, FeatureType, KeyType, Model, Signature};
use coremill_mil::ops::OpKind;

use super::codes::Code;
use super::diagnostic::{FeatureRole, Findings, FunctionContext, Location};
use super::features::{self, Bound};

pub(super) fn check(model: &Model, findings: &mut Findings) {
    versions(model, findings);
    functions(model, findings);
    for signature in model.signatures() {
        let found = model.program.functions.iter().enumerate();
        let mut found = found.filter(|(_, function)| function.name == signature.name);
        if let Some((index, function)) = found.next() {
            let target = target(model, function);
            check_signature(FunctionContext { index, function, target }, signature, findings);
        }
    }
}

/// The minimum release for a function, according to its opset and the specification version.
pub(super) fn target(model: &Model, function: &Function) -> Opset {
    let version = Opset::from_specification_version(model.specification_version);
    version.map_or(function.opset, |version| version.max(function.opset))
}

fn versions(model: &Model, findings: &mut Findings) {
    let version = model.specification_version;
    if Opset::from_specification_version(version).is_none() {
        let [first, .., last] = Opset::ALL.map(Opset::specification_version);
        let message = format!(
            "the specification version is {version}; supported versions are {first} to {last}"
        );
        findings.report(Code::SpecificationVersion, Location::model(), message);
        return;
    }
    for (index, function) in model.program.functions.iter().enumerate() {
        let needed = function.opset.specification_version();
        if needed > version {
            let message = format!(
                "the opset `{}` needs specification version {needed}; the model's is {version}",
                function.opset.name()
            );
            let at = FunctionContext { index, function, target: function.opset };
            findings.report(Code::OpsetTooNew, at.place(), message);
        }
    }
    let count = model.program.functions.len();
    let needed = Opset::Ios18.specification_version();
    if count > 1 && version < needed {
        let message = format!(
            "{count} functions need specification version {needed}; the model's is {version}"
        );
        findings.report(Code::FunctionsTooNew, Location::model(), message);
    }
}

/// Checks that program and description have the same functions.
fn functions(model: &Model, findings: &mut Findings) {
    let functions = &model.program.functions;
    let name = model.default_function_name();
    let names: HashSet<&str> = functions.iter().map(|function| function.name.as_str()).collect();
    if !functions.is_empty() && !names.contains(name) {
        let message = format!("`{name}` runs by default, but the program has no such function");
        findings.report(Code::DefaultFunction, Location::model(), message);
    }
    let mut described = HashSet::new();
    for signature in model.signatures() {
        // A missing default function was already reported.
        if !names.contains(signature.name) && signature.name != name {
            let message = format!(
                "the description has a function `{}`, which the program lacks",
                signature.name
            );
            findings.report(Code::DescriptionFunction, Location::model(), message);
        }
        if !described.insert(signature.name) {
            let message = format!("the description has two functions `{}`", signature.name);
            findings.report(Code::DescriptionFunction, Location::model(), message);
        }
    }
    for (index, function) in functions.iter().enumerate() {
        if !described.contains(function.name.as_str()) {
            let at = FunctionContext { index, function, target: function.opset };
            let message = "the description does not contain this function";
            findings.report(Code::DescriptionFunction, at.place(), message);
        }
    }
}

fn check_signature(at: FunctionContext<'_>, signature: Signature<'_>, findings: &mut Findings) {
    let function = at.function;
    let values = |ids: &[ValueId]| -> Vec<ValueId> {
        ids.iter().copied().filter(|id| id.index() < function.value_count()).collect()
    };
    let is_state = |id: &ValueId| matches!(function.value(*id).ty, Type::State(_));
    let (states, inputs): (Vec<_>, Vec<_>) =
        values(function.inputs()).into_iter().partition(is_state);
    let outputs = values(function.outputs());
    let sides = [
        (FeatureRole::Input, signature.inputs, inputs),
        (FeatureRole::State, signature.states, states),
        (FeatureRole::Output, signature.outputs, outputs),
    ];

    let classes = Classes::of(at, &sides[2].2);
    let mut taken = HashSet::new();
    for (role, features, values) in &sides {
        let mut names = HashSet::new();
        for feature in *features {
            // Inputs and states share a namespace.
            let shared = *role != FeatureRole::Output && !taken.insert(feature.name.as_str());
            if !names.insert(feature.name.as_str()) || shared {
                let location = at.place().feature(*role, &feature.name);
                let message = "another feature has the same name";
                findings.report(Code::FeatureDuplicate, location, message);
                continue;
            }
            let value = values.iter().find(|&&id| function.value(id).name == feature.name);
            match value {
                Some(&value) => {
                    let bound = Bound { at, role: *role, feature, value };
                    match &classes {
                        Some(classes) if *role == FeatureRole::Output && classes.give(value) => {
                            classes.check_feature(&bound, findings);
                        }
                        _ => features::check(&bound, findings),
                    }
                }
                None => unknown_feature(at, *role, feature, findings),
            }
        }
        for &value in values {
            let name = function.value(value).name.as_str();
            if !names.contains(name) {
                let message = format!("the description lacks this {role}, `{name}`");
                findings.report(Code::FeatureMissing, at.value(value), message);
            }
        }
    }
    enumerations(at, signature.inputs, findings);
    classifier(at, signature, classes.as_ref(), findings);
}

fn unknown_feature(
    at: FunctionContext<'_>,
    role: FeatureRole,
    feature: &FeatureDescription,
    findings: &mut Findings,
) {
    let location = at.place().feature(role, &feature.name);
    let message = format!("the function has no {role} of this name");
    findings.report(Code::FeatureUnknown, location, message);
}

/// Since iOS18 several inputs may have enumerated shapes. The n-th shapes of all inputs belong together, so
/// their numbers must be equal.
fn enumerations(at: FunctionContext<'_>, inputs: &[FeatureDescription], findings: &mut Findings) {
    let counted = inputs.iter().filter_map(|input| Some((input, features::enumerated(&input.ty)?)));
    let counted: Vec<_> = counted.collect();
    let Some(((first, count), others)) = counted.split_first() else { return };
    for (other, other_count) in others {
        let location = at.place().feature(FeatureRole::Input, &other.name);
        if at.target < Opset::Ios18 {
            let message = format!(
                "has enumerated shapes, and so does `{}`; this needs iOS18, but the model is for {}",
                first.name, at.target
            );
            findings.report(Code::EnumeratedTooNew, location, message);
        } else if other_count != count {
            let message = format!(
                "has {other_count} enumerated shapes, but `{}` has {count}; the numbers must be equal",
                first.name
            );
            findings.report(Code::FeatureShape, location, message);
        }
    }
}

/// Outputs of a `classify`.
struct Classes {
    label: ValueId,
    probabilities: ValueId,
    key: Option<KeyType>,
}

impl Classes {
    /// Finds the first `classify` whose label is an output.
    fn of(at: FunctionContext<'_>, outputs: &[ValueId]) -> Option<Classes> {
        use coremill_mil::ir::Definition;
        let function = at.function;
        outputs.iter().find_map(|&output| {
            let Definition::Output(op, _) = function.value(output).definition else { return None };
            if op.index() >= function.op_count() {
                return None;
            }
            let op = function.op(op);
            if op.kind() != Some(OpKind::Classify) {
                return None;
            }
            let &[label, probabilities] = op.outputs.as_slice() else { return None };
            let key = match &function.value(label).ty {
                Type::Tensor(tensor) if tensor.dtype == coremill_tensor::DType::String => {
                    Some(KeyType::String)
                }
                Type::Tensor(tensor) if tensor.dtype == coremill_tensor::DType::Int64 => {
                    Some(KeyType::Int64)
                }
                _ => None,
            };
            Some(Classes { label, probabilities, key })
        })
    }

    fn give(&self, value: ValueId) -> bool {
        value == self.label || value == self.probabilities
    }

    fn check_feature(&self, bound: &Bound<'_>, findings: &mut Findings) {
        let fits = if bound.value == self.label {
            match self.key {
                Some(KeyType::String) => bound.feature.ty == FeatureType::String,
                Some(KeyType::Int64) => bound.feature.ty == FeatureType::Int64,
                None => true,
            }
        } else {
            matches!(bound.feature.ty, FeatureType::Dictionary(key) if key.is_none() || self.key.is_none() || key == self.key)
        };
        if !fits {
            let what = if bound.value == self.label { "label" } else { "probabilities" };
            let key = match self.key {
                Some(KeyType::Int64) => "integers",
                Some(KeyType::String) | None => "strings",
            };
            let message = format!(
                "is described with a type that does not match the {what}; the labels are {key}"
            );
            findings.report(Code::Classifier, bound.location(), message);
        }
    }
}

fn classifier(
    at: FunctionContext<'_>,
    signature: Signature<'_>,
    classes: Option<&Classes>,
    findings: &mut Findings,
) {
    let roles = [
        (signature.predicted_feature_name, classes.map(|classes| classes.label), "feature"),
        (
            signature.predicted_probabilities_name,
            classes.map(|classes| classes.probabilities),
            "probabilities",
        ),
    ];
    for (stated, given, what) in roles {
        let given = given.map(|value| at.function.value(value).name.as_str());
        let message = match (stated, given) {
            (Some(stated), Some(given)) if stated != given => {
                format!(
                    "the description names `{stated}` as predicted {what}, but `classify` returns `{given}`"
                )
            }
            (None, Some(given)) => {
                format!(
                    "`classify` returns `{given}`, but the description names no predicted {what}"
                )
            }
            (Some(stated), None) if signature.output(stated).is_none() => {
                format!(
                    "the description names `{stated}` as predicted {what}, which is not an output"
                )
            }
            _ => continue,
        };
        findings.report(Code::Classifier, at.place(), message);
    }
}
