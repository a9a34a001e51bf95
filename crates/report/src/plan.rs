//! Compute plans: on which device Core ML runs each operation, as a Mac recorded it or as a forecast.

use std::collections::BTreeMap;

use coremill::inspect::placement::{ComputePlan, Device};
use coremill_io::ErrorDetail;

use crate::Report;
use crate::data::{Fact, Finding, Severity};
use crate::devices::set_devices;
use crate::graph::NEURAL_ENGINE;

impl Report {
    /// Replaces a model's forecast by a plan. The error states why the plan is not the
    /// model's.
    pub fn add_plan(&mut self, model: usize, plan: &ComputePlan) -> Result<(), ErrorDetail> {
        let data = &mut self.data.models[model];
        let total: usize = data.functions.iter().map(|function| function.ops.len()).sum();
        let found = set_devices(&mut data.functions, plan);
        let mut counts: BTreeMap<Device, usize> = BTreeMap::new();
        let mut outside: BTreeMap<&str, usize> = BTreeMap::new();
        for op in data.functions.iter().flat_map(|function| &function.ops) {
            let Some(device) = op.device else { continue };
            *counts.entry(device).or_default() += 1;
            if device != Device::NeuralEngine {
                *outside.entry(&op.kind).or_default() += 1;
            }
        }
        if found == 0 && total > 0 {
            return Err(ErrorDetail::new(format!(
                "the plan is for another model: it names none of the {total} operations of {}",
                data.name
            )));
        }
        let on: Vec<_> = counts
            .iter()
            .rev()
            .map(|(device, count)| format!("{count} {}", device.name()))
            .collect();
        let origin = plan.origin();
        data.facts.retain(|fact| fact.label != NEURAL_ENGINE);
        let value = format!("{} ({origin})", on.join(", "));
        let (label, runs, by) = match &plan.forecast {
            Some(_) => ("forecast", "is forecast to run", "a cost model"),
            None => ("Core ML's plan", "runs", "its compute plan"),
        };
        data.facts.push(Fact { label: label.to_owned(), value });
        data.forecast = plan.forecast.as_ref().map(|note| note.chip.clone());
        data.planned = plan.forecast.is_none().then(|| origin.clone());
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
            title: format!("Core ML {runs} {within} of {total} operations on the Neural Engine"),
            detail: format!("According to {by}, {origin}.{elsewhere}{missing}"),
            place: None,
        });
        Ok(())
    }
}
