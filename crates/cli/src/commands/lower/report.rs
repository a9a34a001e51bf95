//! Partitioning of programs into delegates and kernels: text and JSON.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;

use coremill::convert::{self, NumericsReport};
use coremill::precision::MixedPrecisionPlan;
use coremill::quantity;
use coremill_compiler::{FallbackCall, PartReport, Reason, Report, UnsupportedOp};
use coremill_io::quoted_list;
use serde::Serialize;

use crate::commands::convert::Stop;
use crate::commands::convert::numbers::{self, Verified};
use crate::commands::convert::precision::{self, ChosenReport};
use crate::commands::convert::refusals::render_group;
use crate::commands::convert::report::Stopped;
use crate::output::{Cell, ERROR, FAINT, STRONG, Table, paint};

/// Maximum number of weights listed per reason.
const MAX_NAMES: usize = 3;

/// The written program.
pub(super) struct ConvertedModel<'a> {
    pub(super) path: &'a Path,
    pub(super) bytes: u64,
    /// Names of the methods, with their archives.
    pub(super) sources: &'a [(&'a str, &'a str)],
    pub(super) reports: &'a [Report],
    /// Result of `--precision auto`.
    pub(super) chosen: Option<&'a MixedPrecisionPlan>,
    /// Verification of each method. Empty without verification; `None` for a method whose archive
    /// has no sample inputs.
    pub(super) numbers: &'a [Option<NumericsReport>],
    /// Symbols without an upper bound, and the bound that was used.
    pub(super) bounded: (&'a [String], u32),
}

impl ConvertedModel<'_> {
    /// Returns true if verification failed.
    pub(super) fn is_off(&self) -> bool {
        self.numbers.iter().flatten().any(|agreement| !agreement.holds())
    }

    /// The archive of a method.
    fn source(&self, method: &str) -> &str {
        self.sources.iter().find(|(name, _)| *name == method).map_or("", |(_, path)| path)
    }
}

pub(super) fn render(made: &ConvertedModel<'_>, details: bool) -> String {
    let mut text = String::new();
    let path = made.path.display();
    let _ = writeln!(text, "{}  {}", paint(STRONG, path), quantity::bytes(made.bytes));
    let mut table = Table::new(2);
    for report in made.reports {
        let calls: usize = report.parts.iter().map(|part| part.calls).sum();
        let outside = match report.outside.len() {
            0 => "nothing outside".to_owned(),
            count => format!("{} outside", counted(count, "call")),
        };
        table.row([
            Cell::text(&report.method).style(STRONG),
            Cell::text(counted(report.parts.len(), "delegate")),
            Cell::text(counted(calls, "call")),
            Cell::text(outside),
            Cell::text(format_args!("from {}", made.source(&report.method))).style(FAINT),
        ]);
    }
    text += &table.render();
    if let (symbols @ [_, ..], most) = made.bounded {
        let names: Vec<_> = symbols.iter().map(|symbol| format!("`{symbol}`")).collect();
        let (label, verb) =
            (paint(STRONG, "note"), if symbols.len() == 1 { "has" } else { "have" });
        let names = names.join(", ");
        let _ = writeln!(
            text,
            "{label}: {names} {verb} no upper bound; memory is planned for sizes up to {most} (`--max-size`)"
        );
    }
    for report in made.reports {
        text += &render_warnings(report);
    }
    if let Some(chosen) = made.chosen {
        text += &precision::render(chosen);
    }
    for (report, agreement) in made.reports.iter().zip(made.numbers) {
        match agreement {
            Some(agreement) if made.reports.len() > 1 => {
                let _ = writeln!(text, "method {}", paint(STRONG, &report.method));
                text += &numbers::render(agreement);
            }
            Some(agreement) => text += &numbers::render(agreement),
            None => {
                let (label, source) = (paint(ERROR, "warning"), made.source(&report.method));
                let why = format!("{source} holds no sample inputs");
                let _ = writeln!(text, "{label}: numbers were not verified: {why}");
            }
        }
    }
    if details {
        for report in made.reports {
            if made.reports.len() > 1 {
                let _ = writeln!(text, "\nmethod {}", paint(STRONG, &report.method));
            }
            text += &render_report(report);
        }
    }
    text
}

fn counted(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

/// Warnings about options without effect.
fn render_warnings(report: &Report) -> String {
    let mut text = String::new();
    let label = paint(ERROR, "warning");
    for name in &report.skipped_in_vain {
        let _ = writeln!(text, "{label}: method `{}` does not call `{name}`", report.method);
    }
    for group in &convert::groups(&report.delegated_all_the_same) {
        let calls = counted(group.calls, "call");
        let _ = writeln!(
            text,
            "{label}: `{}` is delegated anyway: {} ({calls})",
            group.operator, group.reason
        );
    }
    text
}

fn render_report(report: &Report) -> String {
    let mut table = Table::new(2);
    for (index, part) in report.parts.iter().enumerate() {
        let states = match part.states.len() {
            0 => String::new(),
            _ => format!("keeps {}", part.states.join(", ")),
        };
        table.row([
            Cell::text(format_args!("delegate {index}")).style(FAINT),
            Cell::text(counted(part.calls, "call")),
            Cell::text(part.target),
            Cell::text(format_args!("{} in, {} out", part.inputs, part.outputs)),
            Cell::text(format_args!("{} a run", quantity::bytes(part.bytes))),
            Cell::text(states).style(FAINT),
        ]);
    }
    let mut text = table.render();
    for (index, part) in report.parts.iter().enumerate() {
        text += &render_weights(index, part);
    }
    let (asked, others): (Vec<&FallbackCall>, Vec<&FallbackCall>) =
        report.outside.iter().partition(|outside| matches!(outside.reason, Reason::Asked));
    text += &render_asked(&asked);
    let refused: Vec<UnsupportedOp> = others.iter().map(|outside| outside.call.clone()).collect();
    for group in &convert::groups(&refused) {
        text += &render_group(&paint(STRONG, "outside"), group);
        let is_one = |outside: &&FallbackCall| {
            outside.call.operator == group.operator && outside.call.refusal.reason == group.reason
        };
        text += &render_cost(others.iter().copied().filter(is_one));
    }
    text
}

/// A line about all calls that the options exclude from delegates, and their cost.
fn render_asked(asked: &[&FallbackCall]) -> String {
    if asked.is_empty() {
        return String::new();
    }
    let operators: BTreeSet<&str> =
        asked.iter().map(|outside| outside.call.operator.as_str()).collect();
    let operators: Vec<&str> = operators.into_iter().collect();
    let line = format!(
        "{}: {} excluded by the options: {}\n",
        paint(STRONG, "outside"),
        counted(asked.len(), "call"),
        quoted_list(&operators)
    );
    line + &render_cost(asked.iter().copied())
}

/// The cost of calls outside delegates, empty if there is none.
fn render_cost<'o>(calls: impl Iterator<Item = &'o FallbackCall> + Clone) -> String {
    let bytes = calls.clone().map(|outside| outside.cost.bytes).fold(0, u64::saturating_add);
    let delegates = calls.map(|outside| outside.cost.delegates).max().unwrap_or(0);
    match (bytes, delegates) {
        (0, 0) => String::new(),
        (bytes, 0) => format!("  costs {} a run\n", quantity::bytes(bytes)),
        (bytes, count) => {
            format!("  costs {} a run and {}\n", quantity::bytes(bytes), counted(count, "delegate"))
        }
    }
}

/// Weights of a delegate that could not be quantized.
fn render_weights(index: usize, part: &PartReport) -> String {
    let Some(weights) = &part.weights else { return String::new() };
    let label = paint(STRONG, "weights");
    let mut text = String::new();
    let quantized = counted(weights.quantized, "weight");
    let _ = writeln!(text, "{label} of delegate {index}: {quantized} quantized");
    let mut reasons: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (name, reason) in &weights.kept {
        reasons.entry(reason).or_default().push(name);
    }
    for (reason, names) in reasons {
        let shown: Vec<_> = names.iter().take(MAX_NAMES).map(|name| format!("`{name}`")).collect();
        let more = match names.len().saturating_sub(MAX_NAMES) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        let stay = if names.len() == 1 { "is" } else { "are" };
        let _ = writeln!(text, "  {}{more} {stay} unchanged: {reason}", shown.join(", "));
    }
    text
}

/// Partitioning of the methods. For the same `format_version`, fields are only added.
#[derive(Serialize)]
pub(super) struct Json {
    format_version: u32,
    path: String,
    bytes: u64,
    /// Result of `--precision auto`.
    #[serde(skip_serializing_if = "Option::is_none")]
    chosen: Option<ChosenReport>,
    methods: Vec<JsonMethod>,
}

/// JSON form of a failure.
#[derive(Serialize)]
pub(super) struct JsonStopped {
    format_version: u32,
    path: Option<String>,
    #[serde(flatten)]
    stopped: Stopped,
}

pub(super) fn stopped(models: &Path, stop: &Stop) -> JsonStopped {
    JsonStopped { format_version: 1, path: None, stopped: Stopped::of(models, stop) }
}

#[derive(Serialize)]
struct JsonMethod {
    name: String,
    source: String,
    delegates: Vec<JsonDelegate>,
    outside: Vec<JsonOutside>,
    /// Operators in `--skip-ops` that no call uses.
    skipped_in_vain: Vec<String>,
    /// Operators in `--skip-ops` that are delegated, since no kernel supports them.
    delegated_all_the_same: BTreeSet<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    verified: Option<Verified>,
}

#[derive(Serialize)]
struct JsonDelegate {
    calls: usize,
    target: &'static str,
    inputs: usize,
    outputs: usize,
    bytes: u64,
    states: Vec<String>,
    /// Result of weight quantization.
    #[serde(skip_serializing_if = "Option::is_none")]
    weights: Option<JsonWeights>,
}

#[derive(Serialize)]
struct JsonWeights {
    quantized: usize,
    /// Weights that stay unquantized, with the reason.
    kept: BTreeMap<String, &'static str>,
}

#[derive(Serialize)]
struct JsonOutside {
    node: String,
    operator: String,
    kind: &'static str,
    reason: String,
    hint: Option<String>,
    module: Option<String>,
    file: Option<String>,
    line: Option<u32>,
    bytes: u64,
    delegates: usize,
}

pub(super) fn to_json(made: &ConvertedModel<'_>) -> Json {
    let method = |(index, report): (usize, &Report)| JsonMethod {
        name: report.method.clone(),
        source: made.source(&report.method).to_owned(),
        delegates: report
            .parts
            .iter()
            .map(|part| JsonDelegate {
                calls: part.calls,
                target: part.target.tag(),
                inputs: part.inputs,
                outputs: part.outputs,
                bytes: part.bytes,
                states: part.states.clone(),
                weights: part.weights.as_ref().map(|weights| JsonWeights {
                    quantized: weights.quantized,
                    kept: weights.kept.iter().cloned().collect(),
                }),
            })
            .collect(),
        outside: report.outside.iter().map(outside).collect(),
        skipped_in_vain: report.skipped_in_vain.clone(),
        delegated_all_the_same: report
            .delegated_all_the_same
            .iter()
            .map(|call| call.operator.clone())
            .collect(),
        verified: made.numbers.get(index).and_then(Option::as_ref).map(Verified::of),
    };
    Json {
        format_version: 1,
        path: made.path.display().to_string(),
        bytes: made.bytes,
        chosen: made.chosen.map(ChosenReport::of),
        methods: made.reports.iter().enumerate().map(method).collect(),
    }
}

fn outside(outside: &FallbackCall) -> JsonOutside {
    let call = &outside.call;
    let source = call.source.as_ref();
    JsonOutside {
        node: call.node.clone(),
        operator: call.operator.clone(),
        kind: match outside.reason {
            Reason::Asked => "asked",
            Reason::Refused => "refused",
            Reason::TooSmall => "tooSmall",
        },
        reason: call.refusal.reason.clone(),
        hint: call.refusal.hint.clone(),
        module: call.module.clone(),
        file: source.map(|(file, _, _)| file.clone()),
        line: source.map(|(_, line, _)| *line),
        bytes: outside.cost.bytes,
        delegates: outside.cost.delegates,
    }
}
