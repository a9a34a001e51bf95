mod program;

use std::fmt::Write as _;
use std::path::PathBuf;

use coremill::compare::SCALES_KEY;
use coremill::executorch;
use coremill::quantity;
use coremill::summary::{FeatureSummary, FunctionSummary, Summary, WeightSummary, times};

use crate::output::{self, Cell, FAINT, Failure, STRONG, Table, paint};

/// Summarize a model: interface, operations, weights
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  coremill inspect Model.mlpackage\n  coremill inspect Model.mlmodelc --json | jq .weights.bytes"
)]
pub(crate) struct Args {
    /// A `.mlpackage`, `.mlmodel`, `.mlmodelc`, ExecuTorch program, MIL text or `.pt2` archive; `-`
    /// reads MIL text from standard input
    #[arg(value_name = "MODEL")]
    model: PathBuf,
    /// Maximum number of operations and weights to list; 0 lists all
    #[arg(long, value_name = "N", default_value_t = 10)]
    top: usize,
    /// Print the summary as JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let top = if args.top == 0 { usize::MAX } else { args.top };
    let name = args.model.file_name().unwrap_or(args.model.as_os_str()).to_string_lossy();
    if executorch::is_program(&args.model) {
        let summary = executorch::open(&args.model)
            .and_then(|program| executorch::summarize(&program))
            .map_err(|error| super::failure(&error))?;
        return match args.json {
            true => output::print_json(&summary),
            false => output::say(&program::render(&name, &summary, top)),
        };
    }
    let (opened, _) = super::open_or_convert(&args.model)?;
    let summary = coremill::summary::summarize(&opened.model);
    if args.json {
        return output::print_json(&summary);
    }
    output::say(&render(&name, &summary, top))
}

fn render(name: &str, summary: &Summary, top: usize) -> String {
    let mut text = String::new();
    let releases = summary.availability.iter();
    let releases: Vec<_> =
        releases.map(|release| format!("{} {}", release.system, release.version)).collect();
    let _ = writeln!(text, "{}", paint(STRONG, name));
    let _ = writeln!(text, "  ML Program, specification version {}", summary.specification_version);
    let _ = writeln!(text, "  runs on {} and later", releases.join(", "));
    text += &render_metadata(summary);
    for function in &summary.functions {
        let default = summary.functions.len() > 1 && function.name == summary.default_function;
        text += &render_function(function, default, top);
    }
    text += &render_weights(&summary.weights, summary.functions.len() > 1, top);
    text
}

fn render_metadata(summary: &Summary) -> String {
    let metadata = &summary.metadata;
    let mut table = Table::new(2);
    let known = [
        ("description", &metadata.description),
        ("version", &metadata.version),
        ("author", &metadata.author),
        ("license", &metadata.license),
    ];
    for (name, value) in known.into_iter().filter(|(_, value)| !value.is_empty()) {
        table.row([Cell::text(name).style(FAINT), Cell::text(value)]);
    }
    for (name, value) in &metadata.user_defined {
        // Thousands of values may be scaled, so only count them.
        let value = match name.as_str() {
            SCALES_KEY => &format!("{} values", value.matches(':').count()),
            _ => value,
        };
        table.row([Cell::text(name).style(FAINT), Cell::text(value)]);
    }
    table.render()
}

fn render_function(function: &FunctionSummary, default: bool, top: usize) -> String {
    let mut text = String::new();
    let default = if default { ", the default" } else { "" };
    let _ = writeln!(
        text,
        "\nfunction {} {}",
        paint(STRONG, &function.name),
        paint(FAINT, format!("({}{default})", function.opset))
    );
    text += &render_features(function);

    let constants = format!("and {} constants", function.constants);
    let _ = writeln!(text, "\n  {} operations {}", function.operations, paint(FAINT, constants));
    let counts = function.histogram.iter().map(|entry| (&*entry.op, entry.count));
    text + &render_counts(counts, top)
}

/// Counts as a table, in the given order.
fn render_counts<'n>(
    counts: impl ExactSizeIterator<Item = (&'n str, usize)>,
    top: usize,
) -> String {
    let all = counts.len();
    let mut most = None;
    let mut table = Table::new(2);
    for (name, count) in counts.take(top) {
        let most = *most.get_or_insert(count);
        table.row([
            Cell::name(name),
            Cell::number(count),
            Cell::bar(count as f64 / most as f64, 24),
        ]);
    }
    table.render() + &rest(all, top)
}

/// Inputs, outputs and states of a function as a table.
pub(super) fn render_features(function: &FunctionSummary) -> String {
    let mut table = Table::new(2);
    let groups =
        [("input", &function.inputs), ("output", &function.outputs), ("state", &function.states)];
    for (role, features) in groups {
        for feature in features {
            table.row([
                Cell::text(role).style(FAINT),
                Cell::name(&feature.name).style(STRONG),
                Cell::text(kind(feature)),
                Cell::text(shape(feature)).secondary(),
                Cell::text(accepts(feature)).style(FAINT).secondary(),
            ]);
        }
    }
    table.render()
}

fn render_weights(weights: &WeightSummary, several_functions: bool, top: usize) -> String {
    let mut text = String::new();
    let _ = writeln!(
        text,
        "\nweights {}",
        paint(
            FAINT,
            format!(
                "{} parameters, {}",
                quantity::count(weights.parameters),
                quantity::bytes(weights.bytes)
            )
        )
    );
    let total = weights.bytes.max(1) as f64;
    let mut table = Table::new(2);
    for entry in &weights.by_dtype {
        table.row([
            Cell::text(entry.dtype),
            Cell::number(quantity::count(entry.elements)),
            Cell::number(quantity::bytes(entry.bytes)),
            Cell::bar(entry.bytes as f64 / total, 24),
        ]);
    }
    text += &table.render();
    if weights.largest.is_empty() {
        return text;
    }
    let _ = writeln!(text, "\n  {}", paint(FAINT, "largest"));
    let mut table = Table::new(2);
    for entry in weights.largest.iter().take(top) {
        let share = format!("{:.1} %", 100.0 * entry.bytes as f64 / total);
        let name = if several_functions {
            format!("{}: {}", entry.function, entry.name)
        } else {
            entry.name.clone()
        };
        table.row([
            Cell::name(name),
            Cell::text(&entry.ty).secondary(),
            Cell::text(&entry.storage).style(FAINT).minor(),
            Cell::number(quantity::bytes(entry.bytes)),
            Cell::number(share).style(FAINT).minor(),
        ]);
    }
    text += &table.render();
    text + &rest(weights.largest.len(), top)
}

/// A note about the lines that were left out.
fn rest(all: usize, shown: usize) -> String {
    match all.saturating_sub(shown) {
        0 => String::new(),
        more => format!("  {}\n", paint(FAINT, format!("and {more} more; --top 0 lists all"))),
    }
}

fn kind(feature: &FeatureSummary) -> String {
    let name = match feature.kind {
        "multiArray" | "value" | "state" => "",
        kind => kind,
    };
    let optional = if feature.optional { "optional" } else { "" };
    let parts = [optional, name, feature.dtype.as_deref().unwrap_or_default()];
    parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(" ")
}

fn shape(feature: &FeatureSummary) -> String {
    feature.shape.as_deref().map(times).unwrap_or_default()
}

fn accepts(feature: &FeatureSummary) -> String {
    feature.accepts.as_ref().map(|shapes| format!("accepts {shapes}")).unwrap_or_default()
}
