//! Results of conversions: text and JSON.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use coremill::convert::{self, Fp32Op, NumericsReport};
use coremill::precision::MixedPrecisionPlan;
use coremill::quantity;
use coremill::summary::{FunctionSummary, Summary};
use coremill_compiler::{Precision, TargetRequirements};
use coremill_mil::ir::Opset;
use serde::Serialize;

use super::Stop;
use super::numbers::{self, Verified};
use super::precision::ChosenReport;
use crate::commands::inspect;
use crate::output::{Cell, ERROR, FAINT, STRONG, Table, paint};

/// Maximum number of operations and of requirements in the text.
const TOP: usize = 8;
const MAX_DEMANDS: usize = 3;

/// A converted model.
pub(super) struct ConvertedModel {
    pub(super) path: PathBuf,
    pub(super) output: PathBuf,
    pub(super) torch_version: Option<String>,
    pub(super) target: Opset,
    /// Whether the user chose the target.
    pub(super) asked_for: bool,
    /// Reasons why the previous release is not sufficient.
    pub(super) demands: TargetRequirements,
    pub(super) precision: Precision,
    /// Operations that stay in `fp32`.
    pub(super) wide: Vec<Fp32Op>,
    /// Result of `--precision auto`.
    pub(super) chosen: Option<MixedPrecisionPlan>,
    pub(super) summary: Summary,
    pub(super) elapsed: Duration,
    pub(super) agreement: Option<NumericsReport>,
    /// Reason why verification was not possible.
    pub(super) unverified: Option<String>,
}

pub(super) fn render(made: &ConvertedModel) -> String {
    let mut text = String::new();
    let torch = made.torch_version.as_ref();
    let torch = torch.map_or_else(String::new, |version| format!(", torch {version}"));
    let from = paint(FAINT, format!("from {}{torch}", made.path.display()));
    let _ = writeln!(text, "{}  {from}", paint(STRONG, made.output.display()));
    let mut table = Table::new(2);
    let mut row = |name: &str, value: String, note: String| {
        table.row([
            Cell::text(name).style(FAINT),
            Cell::text(value),
            Cell::text(note).style(FAINT),
        ]);
    };
    row("target", made.target.to_string(), reason(made));
    let tried = made.chosen.as_ref().map(tried);
    let notes = [tried.unwrap_or_default(), exceptions(&made.wide)];
    let notes: Vec<_> = notes.into_iter().filter(|note| !note.is_empty()).collect();
    row("precision", precision(made.precision).to_owned(), notes.join("; "));
    let weights = &made.summary.weights;
    let parameters = format!("{} parameters", quantity::count(weights.parameters));
    row("weights", quantity::bytes(weights.bytes), parameters);
    row("time", format!("{:.3} s", made.elapsed.as_secs_f64()), String::new());
    text += &table.render();
    for function in &made.summary.functions {
        text += &inspect::render_features(function);
        text += &operations(function);
    }
    if let Some(chosen) = &made.chosen {
        text += &super::precision::render(chosen);
    }
    if let Some(agreement) = &made.agreement {
        text += &numbers::render(agreement);
    }
    if let Some(why) = &made.unverified {
        let _ = writeln!(text, "  {}: numbers were not verified: {why}", paint(ERROR, "warning"));
    }
    text
}

fn tried(chosen: &MixedPrecisionPlan) -> String {
    match chosen.samples {
        1 => "chosen with 1 sample".to_owned(),
        count => format!("chosen with {count} samples"),
    }
}

fn precision(precision: Precision) -> &'static str {
    match precision {
        Precision::Fp16 => "fp16",
        Precision::Fp32 => "fp32",
    }
}

/// Describes the operations that stay in `fp32`, and the release that supports fp16.
fn exceptions(wide: &[Fp32Op]) -> String {
    let exception = |one: &Fp32Op| match one.narrow_from {
        Some(release) => format!("`{}` in fp32; pass `--target {release}` for fp16", one.op),
        None => format!("`{}` in fp32", one.op),
    };
    wide.iter().map(exception).collect::<Vec<_>>().join(", ")
}

/// Explains the choice of the target.
fn reason(made: &ConvertedModel) -> String {
    if made.asked_for {
        return "as requested".to_owned();
    }
    if let Some(refusal) = &made.demands.program {
        // Cut the part about the release that is not sufficient.
        let reason = refusal.reason.split("; this program targets").next();
        return reason.unwrap_or(&refusal.reason).to_owned();
    }
    let groups = convert::groups(&made.demands.calls);
    if groups.is_empty() {
        return "the oldest, which supports the whole program".to_owned();
    }
    let mut named: Vec<_> =
        groups.iter().take(MAX_DEMANDS).map(|group| format!("`{}`", group.operator)).collect();
    named.dedup();
    let more = groups.len().saturating_sub(MAX_DEMANDS);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("the oldest that supports {}{more}", named.join(", "))
}

fn operations(function: &FunctionSummary) -> String {
    let most = function.histogram.first().map_or(1, |entry| entry.count);
    let mut table = Table::new(2);
    for entry in function.histogram.iter().take(TOP) {
        table.row([
            Cell::name(&entry.op),
            Cell::number(entry.count),
            Cell::bar(entry.count as f64 / most as f64, 24),
        ]);
    }
    let rest = function.histogram.len().saturating_sub(TOP);
    let rest = match rest {
        0 => String::new(),
        1 => format!("  {}\n", paint(FAINT, "and one more kind")),
        more => format!("  {}\n", paint(FAINT, format!("and {more} more kinds"))),
    };
    format!("  {} operations\n{}{rest}", function.operations, table.render())
}

/// JSON form of the results. For the same `format_version`, fields are only added.
#[derive(Serialize)]
pub(super) struct Reports {
    format_version: u32,
    conversions: Vec<Report>,
}

#[derive(Serialize)]
struct Report {
    model: String,
    /// Path of the output, `None` if nothing was written.
    output: Option<String>,
    #[serde(flatten)]
    outcome: Outcome,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Outcome {
    Made {
        torch_version: Option<String>,
        target: &'static str,
        target_reason: String,
        precision: &'static str,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        kept_in_fp32: Vec<Fp32Op>,
        #[serde(skip_serializing_if = "Option::is_none")]
        chosen: Option<ChosenReport>,
        functions: Vec<FunctionSummary>,
        parameters: u64,
        weight_bytes: u64,
        seconds: f64,
        #[serde(skip_serializing_if = "Option::is_none")]
        verified: Option<Verified>,
    },
    Stopped(Stopped),
}

/// Reason why an archive was not converted.
#[derive(Serialize)]
pub(in crate::commands) struct Stopped {
    error: String,
    refused: Vec<RefusedCalls>,
}

#[derive(Serialize)]
struct RefusedCalls {
    operator: String,
    reason: String,
    hint: Option<String>,
    calls: usize,
    places: Vec<RefusedPlace>,
}

#[derive(Serialize)]
struct RefusedPlace {
    file: Option<String>,
    line: Option<u32>,
    code: Option<String>,
    modules: Vec<String>,
    node: String,
    calls: usize,
}

impl Default for Reports {
    fn default() -> Reports {
        Reports { format_version: 2, conversions: Vec::new() }
    }
}

impl Reports {
    pub(super) fn made(&mut self, made: &ConvertedModel) {
        let verified = made.agreement.as_ref().map(Verified::of);
        self.conversions.push(Report {
            model: made.path.display().to_string(),
            output: Some(made.output.display().to_string()),
            outcome: Outcome::Made {
                torch_version: made.torch_version.clone(),
                target: made.target.tag(),
                target_reason: reason(made),
                precision: precision(made.precision),
                kept_in_fp32: made.wide.clone(),
                chosen: made.chosen.as_ref().map(ChosenReport::of),
                functions: made.summary.functions.clone(),
                parameters: made.summary.weights.parameters,
                weight_bytes: made.summary.weights.bytes,
                seconds: made.elapsed.as_secs_f64(),
                verified,
            },
        });
    }

    pub(super) fn stopped(&mut self, path: &Path, stop: &Stop) {
        self.conversions.push(Report {
            model: path.display().to_string(),
            output: None,
            outcome: Outcome::Stopped(Stopped::of(path, stop)),
        });
    }
}

impl Stopped {
    pub(in crate::commands) fn of(path: &Path, stop: &Stop) -> Stopped {
        let groups = convert::groups(&stop.refused);
        let error = match stop.failure.message() {
            Some(message) => message.to_owned(),
            None => {
                let path = path.display().to_string();
                convert::sum_refused(Some(&path), stop.refused.len(), groups.len())
            }
        };
        let refused = groups.iter().map(|group| RefusedCalls {
            operator: group.operator.to_owned(),
            reason: group.reason.to_owned(),
            hint: group.hint.map(str::to_owned),
            calls: group.calls,
            places: group
                .places
                .iter()
                .map(|place| RefusedPlace {
                    file: place.line.map(|(file, _)| file.to_owned()),
                    line: place.line.map(|(_, line)| line),
                    code: place.code.map(str::to_owned),
                    modules: place.modules.iter().map(|&module| module.to_owned()).collect(),
                    node: place.node.to_owned(),
                    calls: place.calls,
                })
                .collect(),
        });
        Stopped { error, refused: refused.collect() }
    }
}
