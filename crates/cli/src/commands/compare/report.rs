//! Result of a comparison: tables and JSON.

use std::fmt::Write as _;

use coremill::compare::{ErrorMetrics, Line, NotFinite, PerOp, PerOpReport, ValueOrigin};
use coremill_compiler::SourceMap;
use coremill_engine::Numerics;
use coremill_session::Device;
use serde::Serialize;

use super::{Args, Side};
use crate::commands::figures::{decibels, distance};
use crate::output::{Cell, ERROR, FAINT, GOOD, STRONG, Table, paint};

/// SNR at which bars of `--per-op` have length 0. fp16 has a precision of about 70 dB.
const BAR_FROM: f64 = 100.0;
const BAR_WIDTH: usize = 16;

/// Comparison of an output.
pub(super) struct OutputComparison {
    pub(super) name: String,
    pub(super) shape: Vec<usize>,
    /// A message if the values are not comparable.
    pub(super) figures: Result<ErrorMetrics, String>,
}

impl OutputComparison {
    pub(super) fn is_at_least(&self, decibels: f64) -> bool {
        self.figures.as_ref().is_ok_and(|figures| figures.snr() >= decibels)
    }
}

/// Result of a comparison. The JSON form is stable: for the same `format_version`, fields are only
/// added.
#[derive(Serialize)]
pub(super) struct Report {
    format_version: u32,
    reference: SideReport,
    other: SideReport,
    /// Outputs of each step.
    outputs: Vec<Vec<Line>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    per_op: Option<PerOpReport>,
}

#[derive(Serialize)]
struct SideReport {
    path: String,
    /// `None` for arrays.
    function: Option<String>,
    /// Deprecated name of `numerics`.
    precision: Option<&'static str>,
    numerics: Option<&'static str>,
    /// `None` for the host.
    #[serde(skip_serializing_if = "Option::is_none")]
    device: Option<String>,
}

impl Report {
    pub(super) fn new(
        args: &Args,
        sides: [&Side<'_>; 2],
        steps: &[Vec<OutputComparison>],
        per_op: Option<&PerOp>,
    ) -> Report {
        let [reference, other] = sides.map(|side| {
            let loaded = side.loaded();
            let on_host = loaded.filter(|loaded| loaded.device == Device::Host);
            let device = loaded.filter(|_| on_host.is_none());
            SideReport {
                path: side.path.display().to_string(),
                function: loaded.map(|loaded| loaded.function.clone()),
                precision: on_host.map(|loaded| match loaded.numerics {
                    Numerics::Fast => "fast",
                    // The older name of `rounded`; what came later has one name.
                    Numerics::Rounded => "faithful",
                    Numerics::Ane | Numerics::CoremlCpu => loaded.numerics.name(),
                }),
                numerics: on_host.map(|loaded| loaded.numerics.name()),
                device: device.map(|loaded| loaded.device.to_string()),
            }
        });
        let line = |output: &OutputComparison| Line {
            name: output.name.clone(),
            op: None,
            dtype: None,
            shape: output.shape.clone(),
            figures: output.figures.clone().ok(),
            mismatch: output.figures.clone().err(),
        };
        Report {
            format_version: 1,
            reference,
            other,
            outputs: steps.iter().map(|step| step.iter().map(line).collect()).collect(),
            per_op: per_op.map(|per_op| PerOpReport::new(per_op, args.threshold)),
        }
    }

    /// Adds the first value that is not finite, if some elements are not finite on only one side.
    /// The reference may have no corresponding value.
    pub(super) fn add_first_not_finite(&mut self, find: impl FnOnce() -> Option<NotFinite>) {
        let Some(per_op) = &mut self.per_op else { return };
        let mut lines = per_op.values.iter().chain(self.outputs.iter().flatten());
        if lines.any(|line| line.figures.as_ref().is_some_and(|figures| figures.unlike > 0)) {
            per_op.first_not_finite = find();
        }
    }

    /// Adds the origins of the first bad values.
    pub(super) fn add_origins(&mut self, calls: Option<&SourceMap>) {
        if let Some(per_op) = &mut self.per_op {
            per_op.add_origins(calls);
        }
    }

    pub(super) fn text(&self, threshold: f64) -> String {
        let mut text = String::new();
        let mut table = Table::new(2);
        for (letter, side) in [("A", &self.reference), ("B", &self.other)] {
            table.row([
                Cell::text(letter).style(FAINT),
                Cell::text(&side.path).style(STRONG),
                Cell::text(side.device.as_deref().or(side.numerics).unwrap_or("arrays"))
                    .style(FAINT),
            ]);
        }
        text += &table.render();
        for (step, outputs) in self.outputs.iter().enumerate() {
            let title = match self.outputs.len() {
                1 => "outputs".to_owned(),
                _ => format!("outputs of step {step}"),
            };
            let _ = writeln!(text, "\n{}", paint(STRONG, title));
            text += &render_outputs(outputs, threshold);
        }
        if let Some(per_op) = &self.per_op {
            text += &render_values(per_op);
        }
        text
    }
}

/// The compared values as a table.
fn render_values(per_op: &PerOpReport) -> String {
    let note = format!(
        "{} values, of {} in A and {} in B; bars show the noise",
        per_op.values_in_both, per_op.values_in_reference, per_op.values_in_other
    );
    let mut table = Table::new(2);
    table.row(
        [("value", false), ("op", false), ("shape", false), ("max abs", true)]
            .into_iter()
            .chain([("SNR", true), ("", false), ("", false)])
            .map(head),
    );
    for (index, line) in per_op.values.iter().enumerate() {
        let mut cells = vec![
            Cell::name(&line.name),
            Cell::text(line.op.as_deref().unwrap_or_default()).style(FAINT).secondary(),
            Cell::text(format!("{:?}", line.shape)).style(FAINT).secondary(),
        ];
        match &line.figures {
            Some(figures) => {
                let snr = figures.snr();
                let share = (BAR_FROM - snr) / BAR_FROM;
                cells.push(Cell::number(distance(figures, figures.max_absolute)));
                cells.push(Cell::number(decibels(snr)).style(grade(snr, per_op.threshold_db)));
                cells.push(Cell::bar(share, BAR_WIDTH));
                if figures.unlike > 0 {
                    let unlike =
                        format!("{} of {} finite in only one", figures.unlike, figures.elements);
                    cells.push(Cell::text(unlike).style(ERROR));
                }
            }
            None => {
                cells.extend([Cell::number(""), Cell::number(""), Cell::text("")]);
                let why = line.mismatch.as_deref().unwrap_or_default();
                cells.push(Cell::text(why).style(ERROR));
            }
        }
        if per_op.drift_begins_at == Some(index) && line.figures.is_some() {
            cells.push(Cell::words("← drift begins").style(ERROR));
        }
        table.row(cells);
    }
    let mut text =
        format!("\n{}  {}\n{}", paint(STRONG, "per op"), paint(FAINT, note), table.render());
    if let Some(first) = per_op.unpaired.first() {
        let others = match per_op.unpaired.len() {
            1 => String::new(),
            count => format!(", and {} more", count - 1),
        };
        let _ = writeln!(
            text,
            "  {}: `{}` (`{}` in A, `{}` in B){others} cannot be compared: the programs compute them differently",
            paint(FAINT, "not paired"),
            first.name,
            first.reference_op,
            first.op,
        );
    }
    if let Some(NotFinite { name, op, count, elements }) = &per_op.first_not_finite {
        let _ = writeln!(
            text,
            "  {}: {count} of {elements} elements of `{name}` ({op}) are NaN or infinite; it is the first such value",
            paint(ERROR, "not finite"),
        );
        text += &per_op.not_finite_origin.as_ref().map_or_else(String::new, render_origin);
    }
    let threshold = per_op.threshold_db;
    let _ = match per_op.drift_begins_at.and_then(|index| per_op.values.get(index)) {
        Some(line) => writeln!(
            text,
            "  {}: `{}` is the first value below {threshold} dB",
            paint(ERROR, "drift"),
            line.name
        ),
        None => {
            writeln!(text, "  {}", paint(GOOD, format!("no value is below {threshold} dB")))
        }
    };
    // The origin is already printed with the first value that is not finite.
    let is_told = per_op.not_finite_origin == per_op.drift_origin;
    if let Some(origin) = per_op.drift_origin.as_ref().filter(|_| !is_told) {
        text += &render_origin(origin);
    }
    text
}

/// Formats the call that a value comes from, and the options that keep it in fp32.
fn render_origin(origin: &ValueOrigin) -> String {
    let ValueOrigin { fp32_value, operator, module, source, code } = origin;
    let mut text = String::new();
    if let Some(operator) = operator {
        let module = module.as_ref().map(|module| format!(" in module `{module}`"));
        let source = source.as_ref().map(|source| format!(" at {source}"));
        let code = code.as_ref().filter(|_| source.is_some()).map(|code| format!(": {code}"));
        let parts = [module, source, code].into_iter().flatten().collect::<String>();
        let _ = writeln!(text, "    {}", paint(FAINT, format!("from `{operator}`{parts}")));
    }
    let _ = write!(
        text,
        "    {}: keep it in fp32 with `--fp32-values {fp32_value}`",
        paint(FAINT, "hint")
    );
    if let Some(module) = module {
        let _ = write!(text, ", or its module with `--fp32-modules {module}`");
    }
    text + "\n"
}

fn render_outputs(outputs: &[Line], threshold: f64) -> String {
    let mut table = Table::new(2);
    let heads = [
        ("", false),
        ("shape", false),
        ("max abs", true),
        ("mean abs", true),
        ("max rel", true),
        ("cosine", true),
        ("SNR", true),
        ("", false),
    ];
    table.row(heads.map(head));
    for line in outputs {
        let mut cells = vec![
            Cell::name(&line.name).style(STRONG),
            Cell::text(format!("{:?}", line.shape)).secondary(),
        ];
        match &line.figures {
            Some(figures) => {
                let snr = figures.snr();
                cells.push(Cell::number(distance(figures, figures.max_absolute)));
                cells.push(Cell::number(distance(figures, figures.mean_absolute)).minor());
                cells.push(Cell::number(distance(figures, figures.max_relative)));
                let cosine =
                    figures.cosine.map_or_else(String::new, |cosine| format!("{cosine:.6}"));
                cells.push(Cell::number(cosine).minor());
                cells.push(Cell::number(decibels(snr)).style(grade(snr, threshold)));
                cells.push(Cell::text(unusual(figures)).style(ERROR));
            }
            None => {
                cells.extend((0..5).map(|_| Cell::number("")));
                cells.push(Cell::text(line.mismatch.as_deref().unwrap_or_default()).style(ERROR));
            }
        }
        table.row(cells);
    }
    table.render()
}

/// Describes elements that are not finite, and integers that differ.
fn unusual(figures: &ErrorMetrics) -> String {
    let mut notes = Vec::new();
    for (what, [reference, other]) in [("NaN", figures.nan), ("infinite", figures.infinite)] {
        if reference > 0 || other > 0 {
            notes.push(format!("{reference} {what} in A, {other} in B"));
        }
    }
    if figures.integers && figures.differing > 0 {
        notes.push(format!("{} of {} differ", figures.differing, figures.elements));
    }
    notes.join("; ")
}

fn head((title, right): (&str, bool)) -> Cell {
    let cell = if right { Cell::number(title) } else { Cell::text(title) };
    cell.style(FAINT)
}

fn grade(snr: f64, threshold: f64) -> anstyle::Style {
    if snr < threshold { ERROR } else { anstyle::Style::new() }
}
