use std::path::{Path, PathBuf};

use coremill::inspect::placement::{ComputePlan, ForecastOptions};
use coremill::session::models_in;
use coremill::{FileKind, Model, OpenedModel, Report, executorch};
use coremill_device::Chip;
use coremill_verify::{JsonReport, RenderOptions, Severity};
use serde::Serialize;

use super::placement;
use crate::output::{self, Failure, OutputPath};

/// Check a model for errors that Core ML would report, and for slow or inaccurate operations
#[derive(clap::Args)]
#[command(
    after_help = "Exits with 1 if there is an error, or if the share of operations on the Neural Engine is below --ane-share.\n\nExamples:\n  coremill check Model.mlpackage\n  coremill check Model.mlpackage --ane-share 0.95 --device iphone17pro\n  coremill check Model.mlpackage --device m4 --deny-warnings --json"
)]
pub(crate) struct Args {
    /// A `.mlpackage`, `.mlmodel`, `.mlmodelc`, ExecuTorch program, MIL text or `.pt2` archive, or a directory of
    /// models; `-` reads MIL text from standard input
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
    /// Exit with 1 if a smaller share of the operations runs on the Neural Engine, according to a forecast or to --plan
    #[arg(long, value_name = "SHARE", value_parser = placement::fraction)]
    ane_share: Option<f64>,
    /// Warn for one chip or iPhone, and forecast --ane-share for it: m1 to m6, a12 to a19pro, iphone17pro; by default, warnings
    /// are for every chip that the model's target allows
    #[arg(long, value_name = "CHIP", value_parser = placement::chip)]
    device: Option<&'static Chip>,
    /// The compute plan that `coremill plan` recorded, or an `analytics.mil`, instead of a forecast
    #[arg(long, value_name = "FILE", requires = "ane_share")]
    plan: Option<PathBuf>,
    /// Print the diagnostics as JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    super::check_output_paths([&args.model], &args.html)?;
    if let Some(models) = models_of_several(&args.model)? {
        return run_several(args, &models);
    }
    let (opened, _) = super::open_or_convert(&args.model)?;
    let report = report(args, &opened);
    if let Some(path) = &args.html {
        super::page::write(path, &super::page::of_model(&args.model, &opened))?;
    }
    let plans = plans(args, [&opened.model])?;
    if args.json {
        let ane_share = args.ane_share.map(|_| placement::share(&plans));
        output::print_json(&ReportWithShare { report: report.to_json(), ane_share })?;
    } else {
        output::say(&render(&opened, &report))?;
    }
    verdict(args, [&report], &plans)
}

/// A report, with the share of operations on the Neural Engine if `--ane-share` is given.
#[derive(Serialize)]
struct ReportWithShare<R> {
    #[serde(flatten)]
    report: R,
    #[serde(skip_serializing_if = "Option::is_none")]
    ane_share: Option<f64>,
}

/// The plan of `--plan`, or one of each model; empty without `--ane-share`.
fn plans<'m>(
    args: &Args,
    models: impl IntoIterator<Item = &'m Model>,
) -> Result<Vec<ComputePlan>, Failure> {
    if args.ane_share.is_none() {
        return Ok(Vec::new());
    }
    let options = ForecastOptions::default();
    let options = ForecastOptions { chip: args.device.unwrap_or(options.chip), ..options };
    placement::plans_of(models, args.plan.as_deref(), &options)
}

/// Diagnostics of each Core ML model in a program or directory. The JSON form is stable: for the same
/// `format_version`, fields are only added.
#[derive(Serialize)]
struct SeveralReports<'m> {
    format_version: u32,
    models: Vec<ModelReport<'m>>,
}

#[derive(Serialize)]
struct ModelReport<'m> {
    name: &'m str,
    report: JsonReport,
}

/// The named models of an ExecuTorch program or of a directory; `None` for a single model.
fn models_of_several(path: &Path) -> Result<Option<Vec<(String, OpenedModel)>>, Failure> {
    if executorch::is_program(path) {
        return models_of_program(path).map(Some);
    }
    if !path.is_dir() || FileKind::detect(path).is_ok() {
        return Ok(None);
    }
    let files = models_in(path).map_err(|error| super::failure(&error))?;
    let mut models = Vec::new();
    for file in &files {
        let name = super::page::title(file);
        if executorch::is_program(file) {
            for (model, opened) in models_of_program(file)? {
                models.push((format!("{name}/{model}"), opened));
            }
        } else {
            models.push((name, super::open_with_source(file)?));
        }
    }
    Ok((!files.is_empty()).then_some(models))
}

/// The Core ML models of an ExecuTorch program.
fn models_of_program(path: &Path) -> Result<Vec<(String, OpenedModel)>, Failure> {
    let failed = |error: coremill::inspect::Error| super::failure(&error);
    let program = executorch::open(path).map_err(failed)?;
    let mut models = Vec::new();
    for model in executorch::models(&program).map_err(failed)? {
        let name = format!("{}/{}", path.display(), model.name);
        let opened = OpenedModel::made(model.read().map_err(failed)?, Path::new(&name));
        models.push((model.name, opened));
    }
    Ok(models)
}

fn run_several(args: &Args, models: &[(String, OpenedModel)]) -> Result<(), Failure> {
    if let Some(path) = &args.html {
        super::page::write(path, &super::page::of_models(&args.model, models)?)?;
    }
    let reports: Vec<_> = models.iter().map(|(_, opened)| report(args, opened)).collect();
    let plans = plans(args, models.iter().map(|(_, opened)| &opened.model))?;
    if args.json {
        let told = models.iter().zip(&reports);
        let told = told.map(|((name, _), report)| ModelReport { name, report: report.to_json() });
        let report = SeveralReports { format_version: 1, models: told.collect() };
        let ane_share = args.ane_share.map(|_| placement::share(&plans));
        output::print_json(&ReportWithShare { report, ane_share })?;
    } else if models.is_empty() {
        output::say(&format!("{}: no errors, and no Core ML models\n", args.model.display()))?;
    } else {
        for (index, ((name, opened), report)) in models.iter().zip(&reports).enumerate() {
            if models.len() > 1 {
                let space = if index == 0 { "" } else { "\n" };
                output::say(&format!("{space}{name}:\n"))?;
            }
            output::say(&render(opened, report))?;
        }
    }
    verdict(args, &reports, &plans)
}

fn report(args: &Args, opened: &OpenedModel) -> Report {
    let mut report = match args.device {
        Some(chip) => coremill::check_on(&opened.model, &[chip]),
        None => coremill::check(&opened.model),
    };
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

fn verdict<'r>(
    args: &Args,
    reports: impl IntoIterator<Item = &'r Report>,
    plans: &[ComputePlan],
) -> Result<(), Failure> {
    let denied = |report: &Report| args.deny_warnings && report.warning_count() > 0;
    let sound = reports.into_iter().all(|report| report.is_sound() && !denied(report));
    if let Some(least) = args.ane_share {
        placement::check_share(plans, least)?;
    }
    if sound { Ok(()) } else { Err(Failure::already_reported()) }
}
