use std::path::{Path, PathBuf};

use coremill::{OpenedModel, Report, executorch};
use coremill_mil::verify::{JsonReport, RenderOptions, Severity};
use serde::Serialize;

use crate::output::{self, Failure, OutputPath};

/// Check a model for errors that Core ML would report, and for slow or inaccurate operations
#[derive(clap::Args)]
#[command(
    after_help = "Exits with 1 if there is an error.\n\nExamples:\n  coremill check Model.mlpackage\n  coremill check Model.mlpackage --deny-warnings --json"
)]
pub(crate) struct Args {
    /// A `.mlpackage`, `.mlmodel`, `.mlmodelc`, ExecuTorch program, MIL text or `.pt2` archive; `-`
    /// reads MIL text from standard input
    #[arg(value_name = "MODEL")]
    model: PathBuf,
    /// Hide warnings
    #[arg(long, conflicts_with = "deny_warnings")]
    no_warnings: bool,
    /// Exit with 1 if there is a warning
    #[arg(long)]
    deny_warnings: bool,
    /// Write an HTML report with the diagnostics at the operations concerned
    #[arg(long, value_name = "FILE.html")]
    html: Option<OutputPath>,
    /// Print the diagnostics as JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    super::check_output_paths([&args.model], &args.html)?;
    if executorch::is_program(&args.model) {
        return run_program(args);
    }
    let (opened, _) = super::open_or_convert(&args.model)?;
    let report = report(args, &opened);
    if let Some(path) = &args.html {
        super::page::write(path, &super::page::of_model(&args.model, &opened))?;
    }
    if args.json {
        output::print_json(&report.to_json())?;
    } else {
        output::say(&render(&opened, &report))?;
    }
    verdict(args, [&report])
}

/// Diagnostics of each Core ML model in a program. The JSON form is stable: for the same
/// `format_version`, fields are only added.
#[derive(Serialize)]
struct ProgramReport {
    format_version: u32,
    models: Vec<ModelReport>,
}

#[derive(Serialize)]
struct ModelReport {
    name: String,
    report: JsonReport,
}

fn run_program(args: &Args) -> Result<(), Failure> {
    let failed = |error: coremill::inspect::Error| super::failure(&error);
    let program = executorch::open(&args.model).map_err(failed)?;
    if let Some(path) = &args.html {
        super::page::write(path, &super::page::of_program(&args.model, &program)?)?;
    }
    let mut reports = Vec::new();
    let mut told = Vec::new();
    for model in executorch::models(&program).map_err(failed)? {
        let name = format!("{}/{}", args.model.display(), model.name);
        let opened = OpenedModel::made(model.read().map_err(failed)?, Path::new(&name));
        let report = report(args, &opened);
        if !args.json {
            output::say(&render(&opened, &report))?;
        }
        told.push(ModelReport { name: model.name, report: report.to_json() });
        reports.push(report);
    }
    if args.json {
        output::print_json(&ProgramReport { format_version: 1, models: told })?;
    } else if reports.is_empty() {
        output::say(&format!("{}: no fault, and no Core ML model\n", args.model.display()))?;
    }
    verdict(args, &reports)
}

fn report(args: &Args, opened: &OpenedModel) -> Report {
    let mut report = coremill::check(&opened.model);
    if args.no_warnings {
        report.diagnostics.retain(|diagnostic| diagnostic.severity() == Severity::Error);
    }
    report
}

fn render(opened: &OpenedModel, report: &Report) -> String {
    let options = RenderOptions {
        // The printer removes colors if they are unwanted.
        color: true,
        width: output::excerpt_width(),
        ..RenderOptions::default()
    };
    opened.render(report, &options)
}

fn verdict<'r>(args: &Args, reports: impl IntoIterator<Item = &'r Report>) -> Result<(), Failure> {
    let denied = |report: &Report| args.deny_warnings && report.warning_count() > 0;
    let sound = reports.into_iter().all(|report| report.is_sound() && !denied(report));
    if sound { Ok(()) } else { Err(Failure::already_reported()) }
}
