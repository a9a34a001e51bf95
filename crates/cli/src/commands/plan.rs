use std::path::PathBuf;

use coremill::OpenedModel;
use coremill::inspect::placement::{ComputePlan, ForecastOptions, forecast, recorded};
use coremill_coreml::{ComputeUnits, Error, LoadOptions};
use coremill_device::Chip;
use coremill_verify::{Code, RenderOptions, Severity};

use super::placement;
use crate::output::{self, Failure, OutputPath};
use crate::progress::Progress;

/// Show on which device Core ML runs each operation of a model: recorded on a Mac, elsewhere a forecast
///
/// On a Mac with macOS 14.4, Core ML's own plan is recorded. On other systems, with --forecast or --device, a cost model
/// forecasts it: supported operations and limits of the chip, and the costs of segments and switches that a public study
/// found. Operations that are not on the Neural Engine are shown with the reason and what to change. The `analytics.mil`
/// that Core ML writes into its cache on a Mac is shown as a record.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  coremill plan Model.mlpackage\n  coremill plan Model.mlpackage --device iphone17pro --json\n  coremill plan Model.mlpackage -o plan.json\n  coremill plan analytics.mil\n  coremill report Model.mlpackage --plan plan.json -o model.html"
)]
pub(crate) struct Args {
    /// The package, compiled model or MIL text; a forecast also accepts a `.pt2`, which is converted in memory
    #[arg(value_name = "MODEL")]
    model: PathBuf,
    /// Write the plan as JSON, for `report` and `check`; `-` is standard output
    #[arg(short, long, value_name = "FILE.json")]
    output: Option<OutputPath>,
    /// Print the plan as JSON
    #[arg(long)]
    json: bool,
    /// The devices that Core ML may use: all, cpu_only, cpu_and_gpu or cpu_and_ne
    #[arg(long, default_value_t = ComputeUnits::All, value_name = "UNITS", value_parser = placement::units)]
    units: ComputeUnits,
    /// Forecast, even on a Mac
    #[arg(long)]
    forecast: bool,
    /// Forecast for a chip or an iPhone: m1 to m6, a12 to a19pro, iphone17pro [default: m4, the chip of the study]
    #[arg(long, value_name = "CHIP", value_parser = placement::chip)]
    device: Option<&'static Chip>,
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    super::check_output_paths([&args.model], &args.output)?;
    let (opened, archive) = super::open_or_convert(&args.model)?;
    let forecast_wanted = args.forecast || args.device.is_some() || archive.is_some();
    let plan = match recorded(&opened.model.program) {
        Some(plan) => plan,
        None => {
            verify(&opened)?;
            match forecast_wanted || coremill_coreml::availability().is_err() {
                true => forecast(&opened.model, &options(args)?),
                false => record(args)?,
            }
        }
    };
    let json = || serde_json::to_string_pretty(&plan).map_err(Failure::internal);
    if let Some(path) = &args.output {
        path.write((json()? + "\n").as_bytes())?;
    }
    match (args.json, &args.output) {
        (true, Some(path)) if path.is_stdout() => Ok(()),
        (true, _) => output::print_json(&plan),
        (false, Some(_)) => Ok(()),
        (false, None) => output::say(&placement::text(&args.model.display().to_string(), &plan)),
    }
}

fn options(args: &Args) -> Result<ForecastOptions, Failure> {
    let neural_engine = match args.units {
        ComputeUnits::All | ComputeUnits::CpuAndNeuralEngine => true,
        ComputeUnits::CpuOnly => false,
        ComputeUnits::CpuAndGpu => {
            let hint = "record the plan on a Mac, or forecast with `--units cpu_and_ne`";
            let message = "GPU times are not published, so `cpu_and_gpu` has no forecast";
            return Err(Failure::user(message).hint(Some(hint)));
        }
    };
    let options = ForecastOptions { neural_engine, ..ForecastOptions::default() };
    Ok(ForecastOptions { chip: args.device.unwrap_or(options.chip), ..options })
}

/// Reports the errors of a model. Missing weight files are no error here: a plan does not need their elements.
fn verify(opened: &OpenedModel) -> Result<(), Failure> {
    let Err(mut report) = coremill::verify(&opened.model) else { return Ok(()) };
    let matters = |code: Code| code != Code::WeightMissing;
    report.diagnostics.retain(|found| found.severity() == Severity::Error && matters(found.code));
    if report.diagnostics.is_empty() {
        return Ok(());
    }
    let width = output::excerpt_width();
    let options = RenderOptions { color: true, width, ..RenderOptions::default() };
    output::tell(&opened.render(&report, &options));
    Err(Failure::already_reported())
}

fn record(args: &Args) -> Result<ComputePlan, Failure> {
    let options = LoadOptions { compute_units: args.units, ..LoadOptions::default() };
    let progress = Progress::start(format!("compiling {}", args.model.display()));
    let scratch = tempfile::tempdir().map_err(|error| {
        Failure::user(format_args!("cannot create a temporary directory: {error}"))
    })?;
    let compiled = match args.model.join("coremldata.bin").is_file() {
        true => args.model.clone(),
        false => {
            let compiled = scratch.path().join("model.mlmodelc");
            coremill_coreml::compile(&args.model, &compiled, &options).map_err(failure)?;
            compiled
        }
    };
    progress.stage("planning");
    let plan = coremill_coreml::plan(&compiled, &options).map_err(failure)?;
    let chip = coremill_coreml::chip_info().unwrap_or_default();
    let operations = plan.operations.into_iter().map(Into::into).collect();
    Ok(ComputePlan::new(&chip.name, &chip.build, operations))
}

fn failure(error: Error) -> Failure {
    Failure::user(&error).hint(error.hint())
}
