//! Comparison of two models.
//!
//! Operations are matched in three rounds: by name and kind; by kind, arguments and operands; by
//! kind and operands. Unmatched operations were removed or added.

use std::collections::{BTreeMap, HashMap, HashSet};

use coremill::quantity;
use coremill_mil::ir::{Constant, Function as MilFunction};
use coremill_mil::model::{FeatureDescription, Model as MilModel};
use coremill_passes::without_precision;

use crate::data::{
    Change, ChangeKind, Changes, Fact, Feature, Function, FunctionChanges, Model, MovedOperation,
    Op,
};
use crate::description::{self, differing};
use crate::graph;
use crate::weights::constants_of;

/// Compares two models.
pub fn changes(before: &MilModel, after: &MilModel) -> Changes {
    let (old, new) = (graph::model("", before, None), graph::model("", after, None));
    let mut facts = facts(&old.facts, &new.facts);
    facts.extend(differing(&description::of_model(before), &description::of_model(after)));
    let mut changes = Changes { format_version: 1, facts, ..Changes::default() };
    let mut names: Vec<&str> = new.functions.iter().map(|function| &*function.name).collect();
    let olds = old.functions.iter().map(|function| &*function.name);
    names.extend(olds.filter(|name| !new.functions.iter().any(|new| new.name == *name)));
    for name in names {
        let sides = (Side::of(before, &old, name), Side::of(after, &new, name));
        changes.functions.push(match sides {
            (Some(old), Some(new)) => function(name, &old, &new),
            (old, new) => FunctionChanges {
                name: name.to_owned(),
                operations: [old, new].map(|side| side.map(|side| side.function.ops.len())),
                ..FunctionChanges::default()
            },
        });
    }
    changes
}

fn facts(before: &[Fact], after: &[Fact]) -> Vec<(String, String, String)> {
    let value = |facts: &[Fact], label: &str| {
        facts.iter().find(|fact| fact.label == label).map(|fact| fact.value.clone())
    };
    let mut labels: Vec<&str> = Vec::new();
    for fact in before.iter().chain(after) {
        if !labels.contains(&&*fact.label) {
            labels.push(&fact.label);
        }
    }
    // Metadata is compared as a whole.
    labels.retain(|label| !["author", "license", "description"].contains(label));
    let differs = |label: &str| {
        let (old, new) = (value(before, label), value(after, label));
        (old != new).then(|| (label.to_owned(), old.unwrap_or_default(), new.unwrap_or_default()))
    };
    labels.into_iter().filter_map(differs).collect()
}

/// A function in one of the two models.
struct Side<'a> {
    described: &'a MilModel,
    function: &'a Function,
    model: &'a Model,
    mil: &'a MilFunction,
}

impl<'a> Side<'a> {
    fn of(model: &'a MilModel, data: &'a Model, name: &str) -> Option<Side<'a>> {
        let function = data.functions.iter().find(|function| function.name == name)?;
        Some(Side { described: model, function, model: data, mil: model.program.function(name)? })
    }

    /// The descriptions of inputs, outputs and states.
    fn features(&self) -> [&'a [FeatureDescription]; 3] {
        let signature = self.described.signature(&self.function.name);
        signature.map_or([&[]; 3], |found| [found.inputs, found.outputs, found.states])
    }

    /// The constants of an operation's weights.
    fn constants(&self, op: &Op) -> Vec<&'a Constant> {
        let names = op.weights.iter().map(|&at| self.model.weights[at].name.as_str());
        names.flat_map(|name| constants_of(self.mil, name)).collect()
    }
}

fn function(name: &str, old: &Side<'_>, new: &Side<'_>) -> FunctionChanges {
    let mut found = FunctionChanges {
        name: name.to_owned(),
        operations: [Some(old.function.ops.len()), Some(new.function.ops.len())],
        ..FunctionChanges::default()
    };
    if old.function.opset != new.function.opset {
        let (before, after) = (old.function.opset.to_owned(), new.function.opset.to_owned());
        found.changes.push(Change {
            differences: vec![("opset".to_owned(), before, after)],
            ..change(ChangeKind::Changed, "function", name)
        });
    }
    let fields = [old, new].map(|side| description::of_function(side.described, side.mil));
    let of_fields = differing(&fields[0], &fields[1]);
    if !of_fields.is_empty() {
        let change = change(ChangeKind::Changed, "function", name);
        found.changes.push(Change { differences: of_fields, ..change });
    }
    let features = [
        ("input", &old.function.inputs, &new.function.inputs),
        ("output", &old.function.outputs, &new.function.outputs),
        ("state", &old.function.states, &new.function.states),
    ];
    let described = old.features().into_iter().zip(new.features());
    for ((what, before, after), (told, told_after)) in features.into_iter().zip(described) {
        found.changes.extend(feature_changes(what, [before, after], [told, told_after]));
    }
    let matched = matched(&old.function.ops, &new.function.ops);
    let kept: HashSet<usize> = matched.iter().flatten().copied().collect();
    // A removed operation is listed before the operations that followed it.
    let mut removed = (0..old.function.ops.len()).filter(|at| !kept.contains(at)).peekable();
    for (at, op) in new.function.ops.iter().enumerate() {
        let Some(before) = matched[at] else {
            found.changes.push(Change { after: Some(at), ..of_op(ChangeKind::Added, op) });
            continue;
        };
        while let Some(gone) = removed.next_if(|gone| *gone < before) {
            let change = of_op(ChangeKind::Removed, &old.function.ops[gone]);
            found.changes.push(Change { before: Some(gone), ..change });
        }
        found.moved.extend(moved(&old.function.ops[before], op));
        let differences = differences(old, &old.function.ops[before], new, op);
        if differences.is_empty() {
            found.same += 1;
            continue;
        }
        let change = of_op(ChangeKind::Changed, op);
        found.changes.push(Change { differences, before: Some(before), after: Some(at), ..change });
    }
    for gone in removed {
        let change = of_op(ChangeKind::Removed, &old.function.ops[gone]);
        found.changes.push(Change { before: Some(gone), ..change });
    }
    found
}

/// The devices of an operation, if the forecast moves it to another one.
fn moved(old: &Op, new: &Op) -> Option<MovedOperation> {
    let (before, after) = (old.device?, new.device?);
    (before != after).then(|| MovedOperation {
        what: new.kind.clone(),
        name: new.name.clone(),
        before,
        after,
        reason: new.leaves.clone(),
    })
}

fn change(kind: ChangeKind, what: &str, name: &str) -> Change {
    Change {
        kind,
        what: what.to_owned(),
        name: name.to_owned(),
        module: String::new(),
        differences: Vec::new(),
        before: None,
        after: None,
    }
}

fn of_op(kind: ChangeKind, op: &Op) -> Change {
    Change { module: op.module.clone(), ..change(kind, &op.kind, &op.name) }
}

/// Changes of a function's inputs, outputs or states, in the program and in the description.
fn feature_changes(
    what: &str,
    features: [&[Feature]; 2],
    described: [&[FeatureDescription]; 2],
) -> Vec<Change> {
    let mut names: Vec<&str> = Vec::new();
    for (features, described) in features.iter().zip(described) {
        names.extend(features.iter().map(|feature| &*feature.name));
        names.extend(described.iter().map(|feature| &*feature.name));
    }
    let mut seen = HashSet::new();
    names.retain(|name| seen.insert(*name));
    let mut changes = Vec::new();
    for name in names {
        let [before, after] =
            features.map(|features| features.iter().find(|feature| feature.name == name));
        let kind = match (before, after) {
            (Some(_), None) => ChangeKind::Removed,
            (None, Some(_)) => ChangeKind::Added,
            _ => ChangeKind::Changed,
        };
        let mut differences = Vec::new();
        if kind == ChangeKind::Changed {
            let types = [before, after].map(|feature| feature.map(|feature| feature.ty.clone()));
            if types[0] != types[1] {
                let [before, after] = types.map(Option::unwrap_or_default);
                differences.push(("type".to_owned(), before, after));
            }
            let told = described.map(|all| all.iter().find(|feature| feature.name == name));
            differences.extend(match told {
                [Some(before), Some(after)] => {
                    differing(&description::of_feature(before), &description::of_feature(after))
                }
                [None, None] => Vec::new(),
                told => {
                    let [before, after] =
                        told.map(|told| if told.is_some() { "yes" } else { "no" });
                    vec![("described".to_owned(), before.to_owned(), after.to_owned())]
                }
            });
        }
        if kind != ChangeKind::Changed || !differences.is_empty() {
            changes.push(Change { differences, ..change(kind, what, name) });
        }
    }
    changes
}

/// For each new operation, the index of the matching old one.
fn matched(old: &[Op], new: &[Op]) -> Vec<Option<usize>> {
    let mut matched = vec![None; new.len()];
    let mut taken = vec![false; old.len()];
    let mut by_name: HashMap<(&str, &str), usize> = HashMap::new();
    for (at, op) in old.iter().enumerate() {
        by_name.entry((&op.kind, without_precision(&op.name))).or_insert(at);
    }
    for (at, op) in new.iter().enumerate() {
        if let Some(&before) = by_name.get(&(&*op.kind, without_precision(&op.name)))
            && !taken[before]
        {
            (matched[at], taken[before]) = (Some(before), true);
        }
    }
    for exact in [true, false] {
        // Old operations by their structure, in reverse order, so that `pop` returns the first free
        // one.
        let mut by_inputs: BTreeMap<String, Vec<usize>> = BTreeMap::new();
        for (at, op) in old.iter().enumerate().rev().filter(|(at, _)| !taken[*at]) {
            let key = structure(op, exact, Some);
            by_inputs.entry(key.unwrap_or_default()).or_default().push(at);
        }
        for (at, op) in new.iter().enumerate() {
            if matched[at].is_some() {
                continue;
            }
            let translated = |from: i64| match usize::try_from(from) {
                Ok(op) => matched[op].map(|before| before as i64),
                Err(_) => Some(from),
            };
            let Some(key) = structure(op, exact, translated) else { continue };
            if let Some(before) = by_inputs.get_mut(&key).and_then(Vec::pop) {
                (matched[at], taken[before]) = (Some(before), true);
            }
        }
    }
    matched
}

/// The kind and operands of an operation as a key. `None` if an operand has no counterpart.
fn structure(op: &Op, exact: bool, translate: impl Fn(i64) -> Option<i64>) -> Option<String> {
    let from: Option<Vec<i64>> = op.from.iter().map(|&from| translate(from)).collect();
    let arguments =
        if exact { format!("{:?} {:?}", op.arguments, op.types) } else { String::new() };
    Some(format!("{} {:?} {arguments}", op.kind, from?))
}

fn differences(
    old_side: &Side<'_>,
    old: &Op,
    new_side: &Side<'_>,
    new: &Op,
) -> Vec<(String, String, String)> {
    let mut found = Vec::new();
    let mut differ = |label: &str, before: String, after: String| {
        if before != after {
            found.push((label.to_owned(), before, after));
        }
    };
    differ("type", old.types.join(", "), new.types.join(", "));
    let argument = |op: &Op, name: &str| {
        op.arguments.iter().find(|(known, _)| known == name).map(|(_, text)| text.clone())
    };
    let mut names: Vec<&String> = old.arguments.iter().map(|(name, _)| name).collect();
    names.extend(new.arguments.iter().map(|(name, _)| name));
    names.sort();
    names.dedup();
    for name in names {
        let text = |op: &Op| argument(op, name).unwrap_or_else(|| "–".to_owned());
        differ(name, text(old), text(new));
    }
    let weights = |side: &Side<'_>, op: &Op| {
        let weights = op.weights.iter().map(|&at| &side.model.weights[at]);
        let shown = weights.map(|weight| {
            format!("{} {} {}", weight.ty, weight.form, quantity::bytes(weight.bytes))
        });
        shown.collect::<Vec<_>>().join(", ")
    };
    let (before, after) = (weights(old_side, old), weights(new_side, new));
    if before == after && !old.weights.is_empty() {
        let (x, y) = (old_side.constants(old), new_side.constants(new));
        if x != y {
            differ("weight", "elements".to_owned(), "different elements".to_owned());
        }
    } else {
        differ("weight", before, after);
    }
    found
}

#[cfg(test)]
mod tests {
    use coremill_mil::{model, text};

    use super::*;

    fn read(body: &str) -> MilModel {
        let source = format!(
            "program(1.3) {{ func main<ios17>(tensor<fp32, [2, 3]> x) {{ {body} }} -> (y); }}"
        );
        let program = text::parse(&source, &text::NoWeights).expect("it is MIL");
        model::describe(program).expect("it is complete")
    }

    fn summarize(before: &str, after: &str) -> Vec<(ChangeKind, String, usize)> {
        let changes = changes(&read(before), &read(after));
        let found = changes.functions.into_iter().flat_map(|function| function.changes);
        found.map(|change| (change.kind, change.name, change.differences.len())).collect()
    }

    #[test]
    fn matches_operations_by_name_then_structure() {
        let before = "tensor<fp32, [2, 3]> a = add(x = x, y = x);
                      tensor<fp32, [2, 3]> b = relu(x = a);
                      tensor<fp32, [2, 3]> y = exp(x = b);";
        assert_eq!(summarize(before, before), []);
        let renamed = before.replace("a = add", "sum = add").replace("x = a)", "x = sum)");
        assert_eq!(summarize(before, &renamed), []);
        let inserted = before.replace("exp(x = b)", "exp(x = c)").replace(
            "tensor<fp32, [2, 3]> y",
            "tensor<fp32, [2, 3]> c = tanh(x = b); tensor<fp32, [2, 3]> y",
        );
        assert_eq!(summarize(before, &inserted), [(ChangeKind::Added, "c".to_owned(), 0)]);
        assert_eq!(summarize(&inserted, before), [(ChangeKind::Removed, "c".to_owned(), 0)]);
    }

    #[test]
    fn reports_differing_arguments_and_weights() {
        let before = "fp32 alpha = const()[val = fp32(0.5)];
                      tensor<fp32, [2, 3]> y = leaky_relu(alpha = alpha, x = x);";
        let after = before.replace("0.5", "0.25");
        let found = changes(&read(before), &read(&after));
        let change = &found.functions[0].changes[0];
        let expected = ("alpha".to_owned(), "0.5".to_owned(), "0.25".to_owned());
        assert_eq!((change.kind, &change.differences), (ChangeKind::Changed, &vec![expected]));
        let weight = |first: &str| {
            let rest = "[3, 4, 5], [6, 7, 8], [9, 10, 11]";
            format!(
                "tensor<fp32, [4, 3]> w = const()[val = tensor<fp32, [4, 3]>([[{first}, 1, 2], {rest}])];
                 tensor<fp32, [2, 4]> y = linear(weight = w, x = x);"
            )
        };
        let found = changes(&read(&weight("0")), &read(&weight("0.5")));
        assert_eq!(found.functions[0].changes[0].differences[0].0, "weight");
        assert!(changes(&read(&weight("0")), &read(&weight("0"))).is_empty());
    }
}
