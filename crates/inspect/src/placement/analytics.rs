use std::collections::BTreeMap;

use coremill_mil::ir::{Constant, ConstantData, Op, Program};

use super::plan::{ComputePlan, Device, Estimate, PlannedOperation, Reason};

/// The plan that Core ML noted at the operations of an `analytics.mil`; `None` for programs without notes.
pub fn recorded(program: &Program) -> Option<ComputePlan> {
    let mut operations = Vec::new();
    let mut times = Vec::new();
    for function in &program.functions {
        for (_, op) in function.all_ops() {
            let Some(selected) = op.attributes.get("SelectedBackend").and_then(Constant::as_str)
            else {
                continue;
            };
            let runtimes = numbers(op, "EstimatedRuntime");
            times.push(runtimes.get(selected).copied());
            let name = |&output: &_| function.value(output).name.clone();
            operations.push(PlannedOperation {
                function: function.name.clone(),
                operator: format!("{}.{}", function.opset.tag(), op.type_name()),
                outputs: op.outputs.iter().map(name).collect(),
                ..noted(op, selected, &runtimes)
            });
        }
    }
    if operations.is_empty() {
        return None;
    }
    let total: f64 = times.iter().flatten().sum();
    for (operation, time) in operations.iter_mut().zip(times) {
        operation.cost = time.filter(|_| total > 0.0).map(|time| time / total);
    }
    Some(ComputePlan::new("", "", operations))
}

/// Core ML's note on an operation.
fn noted(op: &Op, selected: &str, runtimes: &BTreeMap<String, f64>) -> PlannedOperation {
    let mut supported: Vec<_> =
        texts(op, "BackendSupport").iter().filter_map(|name| device(name)).collect();
    supported.sort();
    supported.dedup();
    let preferred = device(selected);
    let refusal = entries(op, "ValidationMessage")
        .find(|(backend, _)| *backend == "ane")
        .and_then(|(_, message)| message.as_str());
    let could = supported.contains(&Device::NeuralEngine);
    let reason = match (preferred, could, refusal) {
        (Some(Device::NeuralEngine), ..) => None,
        (_, true, _) => Some(Reason::NotWorthIt),
        (_, false, Some(_)) => Some(Reason::Limit),
        (_, false, None) => Some(Reason::NoPath),
    };
    let fastest_cpu = ["bnns", "classic_cpu"].iter().filter_map(|name| runtimes.get(*name));
    let cpu = fastest_cpu.copied().reduce(f64::min);
    let neural_engine = runtimes.get("ane").copied();
    PlannedOperation {
        preferred: preferred.or(Some(Device::Other)),
        supported,
        reason,
        detail: refusal.map(|message| message.trim_start_matches("Error: ").to_owned()),
        estimate: (!runtimes.is_empty()).then_some(Estimate { cpu, neural_engine }),
        ..PlannedOperation::default()
    }
}

/// The device of a backend of Core ML.
fn device(backend: &str) -> Option<Device> {
    match backend {
        "ane" => Some(Device::NeuralEngine),
        "bnns" | "classic_cpu" => Some(Device::Cpu),
        "unsupported" | "" => None,
        name if name.starts_with("mps") || name.contains("gpu") => Some(Device::Gpu),
        _ => Some(Device::Other),
    }
}

fn entries<'o>(op: &'o Op, name: &str) -> impl Iterator<Item = (&'o str, &'o Constant)> {
    let entries = match op.attributes.get(name).map(|constant| &constant.data) {
        Some(ConstantData::Entries(entries)) => &entries[..],
        _ => &[],
    };
    entries.iter().filter_map(|(key, value)| Some((key.as_str()?, value)))
}

fn texts(op: &Op, name: &str) -> Vec<String> {
    match op.attributes.get(name).map(|constant| &constant.data) {
        Some(ConstantData::Strings(texts)) => texts.clone(),
        Some(ConstantData::Sequence(parts)) => {
            parts.iter().filter_map(|part| part.as_str().map(str::to_owned)).collect()
        }
        _ => Vec::new(),
    }
}

fn numbers(op: &Op, name: &str) -> BTreeMap<String, f64> {
    let number = |constant: &Constant| {
        let elements = constant.elements()?;
        let read = |bytes: &[u8]| bytes.try_into().ok().map(f64::from_le_bytes);
        elements.with_window(0..elements.len(), read).ok()?
    };
    let numbers = entries(op, name).filter_map(|(key, value)| {
        Some((key.to_owned(), number(value).filter(|number| number.is_finite())?))
    });
    numbers.collect()
}
