//! Core ML's compute plan, recorded on a Mac: the device of each operation.

use std::collections::{BTreeMap, HashMap};

use coremill_io::ErrorDetail;
use serde::{Deserialize, Serialize};

use crate::Report;
use crate::data::{Device, Fact, Finding, Severity};
use crate::graph::NEURAL_ENGINE;

/// Version of the JSON form of [`ComputePlan`].
const FORMAT_VERSION: u32 = 1;

/// A compute plan. The JSON form is stable: for the same `format_version`, fields are only added.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ComputePlan {
    /// Version of the JSON form.
    pub format_version: u32,
    /// The machine that recorded the plan, such as `Apple M3 Pro`.
    #[serde(default)]
    pub machine: String,
    /// Build of its operating system, such as `24A335`.
    #[serde(default)]
    pub system: String,
    /// Planned operations.
    pub operations: Vec<PlannedOperation>,
}

/// An operation of a compute plan.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PlannedOperation {
    /// Name of the function.
    pub function: String,
    /// Operator, as in `ios17.conv`.
    #[serde(default)]
    pub operator: String,
    /// Names of the outputs.
    pub outputs: Vec<String>,
    /// Share of the estimated cost of the model, `None` for constants.
    #[serde(default)]
    pub cost: Option<f64>,
    /// Preferred device, `None` for constants.
    #[serde(default)]
    pub preferred: Option<Device>,
    /// Supported devices.
    #[serde(default)]
    pub supported: Vec<Device>,
}

impl ComputePlan {
    /// Creates a plan of the current version.
    pub fn new(machine: &str, system: &str, operations: Vec<PlannedOperation>) -> ComputePlan {
        let (machine, system) = (machine.to_owned(), system.to_owned());
        ComputePlan { format_version: FORMAT_VERSION, machine, system, operations }
    }

    /// Parses the JSON form.
    pub fn from_json(text: &str) -> Result<ComputePlan, ErrorDetail> {
        let plan: ComputePlan = serde_json::from_str(text)
            .map_err(|error| ErrorDetail::new(error.to_string()).with_source(error))?;
        match plan.format_version {
            FORMAT_VERSION => Ok(plan),
            version => Err(ErrorDetail::new(format!(
                "`format_version` must be {FORMAT_VERSION}, got {version}"
            ))),
        }
    }

    fn recorded_on(&self) -> String {
        match (&*self.machine, &*self.system) {
            ("", _) => "a Mac".to_owned(),
            (machine, "") => machine.to_owned(),
            (machine, system) => format!("{machine}, system {system}"),
        }
    }
}

impl Report {
    /// Replaces a model's estimated devices by Core ML's compute plan. Fails if the plan belongs to
    /// another model.
    pub fn add_plan(&mut self, model: usize, plan: &ComputePlan) -> Result<(), ErrorDetail> {
        let data = &mut self.data.models[model];
        let named: HashMap<(&str, &str), &PlannedOperation> = plan
            .operations
            .iter()
            .filter_map(|planned| {
                Some(((&*planned.function, &**planned.outputs.first()?), planned))
            })
            .collect();
        let mut counts: BTreeMap<Device, usize> = BTreeMap::new();
        let mut outside: BTreeMap<&str, usize> = BTreeMap::new();
        let mut total = 0;
        for function in &mut data.functions {
            for op in &mut function.ops {
                total += 1;
                op.leaves = None;
                let planned = named.get(&(&*function.name, &*op.name));
                let Some((planned, device)) =
                    planned.and_then(|planned| Some((planned, planned.preferred?)))
                else {
                    continue;
                };
                (op.device, op.cost) = (Some(device), planned.cost);
                *counts.entry(device).or_default() += 1;
                if device != Device::NeuralEngine {
                    *outside.entry(&op.kind).or_default() += 1;
                    let could = match planned.supported.contains(&Device::NeuralEngine) {
                        true => "the Neural Engine could run it, too",
                        false => "the Neural Engine does not support it",
                    };
                    op.leaves = Some(format!("runs on the {}; {could}", device.name()));
                }
            }
        }
        let found: usize = counts.values().sum();
        if found == 0 && total > 0 {
            return Err(ErrorDetail::new(format!(
                "the plan is of another model: it names none of the {total} operations of {}",
                data.name
            )));
        }
        let on: Vec<_> = counts
            .iter()
            .rev()
            .map(|(device, count)| format!("{count} {}", device.name()))
            .collect();
        let recorded = plan.recorded_on();
        data.facts.retain(|fact| fact.label != NEURAL_ENGINE);
        let value = format!("{} (recorded on {recorded})", on.join(", "));
        data.facts.push(Fact { label: "Core ML's plan".to_owned(), value });
        data.planned = Some(recorded.clone());
        let within = counts.get(&Device::NeuralEngine).copied().unwrap_or(0);
        let mut kinds: Vec<_> = outside.into_iter().collect();
        kinds.sort_by_key(|&(kind, count)| (std::cmp::Reverse(count), kind));
        let kinds: Vec<_> =
            kinds.iter().take(8).map(|(kind, count)| format!("{count} × {kind}")).collect();
        let elsewhere = match kinds.is_empty() {
            true => String::new(),
            false => format!(" Elsewhere: {}.", kinds.join(", ")),
        };
        let missing = match total - found {
            0 => String::new(),
            count => format!(" The plan does not list {count} operations."),
        };
        self.data.findings.push(Finding {
            severity: Severity::Note,
            title: format!("Core ML runs {within} of {total} operations on the Neural Engine"),
            detail: format!("By its compute plan, recorded on {recorded}.{elsewhere}{missing}"),
            place: None,
        });
        Ok(())
    }
}
