//! Where operations run: plans from files, and forecasts.

use std::collections::{BTreeMap, HashSet};
use std::fmt::Write as _;
use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use coremill::Model;
use coremill::inspect::placement::{
    ComputePlan, Device, ForecastOptions, PlannedOperation, Reason, forecast, recorded,
};
use coremill_coreml::ComputeUnits;
use coremill_device::Chip;

use crate::output::{FAINT, Failure, STRONG, paint};

/// The most bytes of a compute plan that are read: a million operations have fewer.
const MAX_PLAN_BYTES: u64 = 256 << 20;
/// The most operations of a group that are named.
const MAX_NAMED: usize = 4;

/// The chip that an argument names.
pub(super) fn chip(text: &str) -> Result<&'static Chip, String> {
    Chip::parse(text).map_err(|unknown| format!("{unknown}; {}", unknown.hint()))
}

/// The compute units that an argument names.
pub(super) fn units(text: &str) -> Result<ComputeUnits, String> {
    text.parse().map_err(|error: coremill_coreml::Error| {
        let hint = error.hint().map(|hint| format!("; {hint}")).unwrap_or_default();
        format!("{error}{hint}")
    })
}

/// Reads a plan: JSON, as `coremill plan` writes it, or the `analytics.mil` of Core ML's cache.
pub(super) fn read_plan(path: &Path) -> Result<ComputePlan, Failure> {
    let named =
        |why: &dyn std::fmt::Display| Failure::user(format_args!("{}: {why}", path.display()));
    let file = File::open(path).map_err(|error| named(&error))?;
    let mut text = String::new();
    file.take(MAX_PLAN_BYTES).read_to_string(&mut text).map_err(|error| named(&error))?;
    if text.trim_start().starts_with("program") {
        let opened = super::open(path)?;
        return recorded(&opened.program).ok_or_else(|| {
            named(&"this program does not say which device runs each operation")
                .hint(Some("Core ML records it in the `analytics.mil` of its cache on a Mac"))
        });
    }
    ComputePlan::from_json(&text).map_err(|why| {
        named(&format_args!("this is not a compute plan: {why}"))
            .hint(Some("`coremill plan` records one on a Mac"))
    })
}

/// The plan in a file for one of several models, or a plan of each model: the one in the program itself, or a forecast.
pub(super) fn plans_of<'m>(
    models: impl IntoIterator<Item = &'m Model>,
    file: Option<&Path>,
    options: &ForecastOptions,
) -> Result<Vec<ComputePlan>, Failure> {
    let mut models = models.into_iter();
    let Some(path) = file else {
        let plan =
            |model: &Model| recorded(&model.program).unwrap_or_else(|| forecast(model, options));
        return Ok(models.map(plan).collect());
    };
    let plan = read_plan(path)?;
    if models.any(|model| describes(&plan, model)) {
        return Ok(vec![plan]);
    }
    let message = format!("{} is a plan of another model", path.display());
    let hint = "no operation of the plan has the name of an operation of this model; `coremill plan` makes a plan of this model";
    Err(Failure::user(message).hint(Some(hint)))
}

/// Whether an operation of a plan is in a model. Core ML inserts operations and renames some.
fn describes(plan: &ComputePlan, model: &Model) -> bool {
    let mut names = HashSet::new();
    for function in &model.program.functions {
        for (block, _) in function.blocks_in_order() {
            let ops = function.block(block).ops.iter().map(|&op| function.op(op));
            let computed = ops.filter(|op| op.kind().is_none_or(|kind| !kind.is_constant()));
            names.extend(
                computed.flat_map(|op| &op.outputs).map(|&output| &*function.value(output).name),
            );
        }
    }
    let mut outputs = plan.placed().flat_map(|(operation, _)| &operation.outputs);
    outputs.any(|output| names.contains(output.as_str()))
}

/// A plan for people: counts by device, then the operations that are not on the Neural Engine, with what to change.
pub(super) fn text(title: &str, plan: &ComputePlan) -> String {
    let mut text = format!("{}\n", paint(STRONG, format!("{title}: {}", plan.origin())));
    if let Some(note) = &plan.forecast {
        let _ = writeln!(
            text,
            "  {}",
            paint(FAINT, format!("a forecast, not a record: {}", note.accuracy))
        );
        let gpu = "GPU times are not published, so operations outside the Neural Engine are shown on the CPU";
        let _ = writeln!(text, "  {}", paint(FAINT, gpu));
    }
    let mut functions: Vec<&str> = Vec::new();
    for operation in &plan.operations {
        if !functions.contains(&&*operation.function) {
            functions.push(&operation.function);
        }
    }
    for function in functions {
        let placed = plan.placed().filter(|(operation, _)| operation.function == function);
        text += &function_text(function, &placed.collect::<Vec<_>>());
    }
    text
}

fn function_text(name: &str, placed: &[(&PlannedOperation, Device)]) -> String {
    let mut counts: BTreeMap<Device, usize> = BTreeMap::new();
    for (_, device) in placed {
        *counts.entry(*device).or_default() += 1;
    }
    let counted =
        counts.iter().rev().map(|(device, count)| format!("{count} on the {}", device.name()));
    let counted = counted.collect::<Vec<_>>().join(", ");
    let title = paint(STRONG, format!("function {name}"));
    let mut text = format!("{title}  {} operations: {counted}\n", placed.len());
    let mut groups: BTreeMap<(Reason, &str, &str), Vec<&PlannedOperation>> = BTreeMap::new();
    for (operation, device) in placed {
        if *device != Device::NeuralEngine {
            let reason = operation.reason.unwrap_or(Reason::NoPath);
            let detail = operation.detail.as_deref().unwrap_or_default();
            let advice = operation.advice.as_deref().unwrap_or_default();
            groups.entry((reason, detail, advice)).or_default().push(operation);
        }
    }
    for ((reason, detail, advice), operations) in groups {
        let mut kinds: BTreeMap<&str, usize> = BTreeMap::new();
        for operation in &operations {
            let kind = operation.operator.rsplit('.').next().unwrap_or_default();
            *kinds.entry(kind).or_default() += 1;
        }
        let kinds: Vec<_> = kinds.iter().map(|(kind, count)| format!("{count} × {kind}")).collect();
        let names = operations.iter().filter_map(|operation| operation.outputs.first());
        let mut names: Vec<_> = names.take(MAX_NAMED).map(|name| format!("`{name}`")).collect();
        if operations.len() > MAX_NAMED {
            names.push("…".to_owned());
        }
        let _ = writeln!(text, "  {}: {}", paint(STRONG, reason.name()), kinds.join(", "));
        let _ = writeln!(text, "    {}", paint(FAINT, names.join(", ")));
        for line in [detail, advice].into_iter().filter(|line| !line.is_empty()) {
            let _ = writeln!(text, "    {}", paint(anstyle::Style::new(), line));
        }
    }
    text
}

/// The failure of a model of which too little runs on the Neural Engine.
pub(super) fn check_share(plans: &[ComputePlan], least: f64) -> Result<(), Failure> {
    let operations = || plans.iter().flat_map(ComputePlan::placed);
    let (total, share) = (operations().count(), share(plans));
    if share >= least {
        return Ok(());
    }
    let within = operations().filter(|(_, device)| *device == Device::NeuralEngine).count();
    let mut outside: BTreeMap<(Reason, &str), usize> = BTreeMap::new();
    for (operation, _) in operations().filter(|(_, device)| *device != Device::NeuralEngine) {
        let kind = operation.operator.rsplit('.').next().unwrap_or_default();
        *outside.entry((operation.reason.unwrap_or(Reason::NoPath), kind)).or_default() += 1;
    }
    let mut outside: Vec<_> = outside.into_iter().collect();
    outside.sort_by_key(|((reason, kind), count)| (std::cmp::Reverse(*count), *reason, *kind));
    let listed = outside
        .iter()
        .take(8)
        .map(|((reason, kind), count)| format!("{count} × {kind} ({})", reason.name()));
    let origin = plans.first().map(ComputePlan::origin).unwrap_or_default();
    let message = format!(
        "{within} of {total} operations are on the Neural Engine, {:.1} %, less than {:.1} % ({origin}); elsewhere: {}",
        100.0 * share,
        100.0 * least,
        listed.collect::<Vec<_>>().join(", ")
    );
    Err(Failure::user(message).hint(Some("`coremill plan` shows what to change")))
}

/// The share of operations on the Neural Engine in all plans.
pub(super) fn share(plans: &[ComputePlan]) -> f64 {
    let operations = plans.iter().flat_map(|plan| plan.operations.iter().cloned()).collect();
    ComputePlan::new("", "", operations).neural_engine_share()
}

/// A share from 0 to 1.
pub(super) fn fraction(text: &str) -> Result<f64, String> {
    let number = text.parse::<f64>().ok().filter(|number| (0.0..=1.0).contains(number));
    number.ok_or_else(|| "expected a share from 0 to 1, such as `0.95`".to_owned())
}
