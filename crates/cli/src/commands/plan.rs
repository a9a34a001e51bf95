use std::path::PathBuf;

use coremill_coreml::{ComputeUnits, DeviceKind, Error, LoadOptions};
use coremill_report::{ComputePlan, Device, PlannedOperation};

use crate::output::{Failure, OutputPath};
use crate::progress::Progress;

/// Record the device on which Core ML will run each operation of a model; needs macOS 14.4
///
/// The plan is a JSON file with the function, operator and outputs of each operation, the device
/// that Core ML prefers, the devices that it supports, and the estimated share of the cost.
/// `coremill report MODEL --plan FILE` shows the plan on any system.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  coremill plan Model.mlpackage -o plan.json\n  coremill plan Model.mlpackage --units cpu_and_ne > plan.json\n  coremill report Model.mlpackage --plan plan.json -o model.html"
)]
pub(crate) struct Args {
    /// The package or compiled model
    #[arg(value_name = "MODEL")]
    model: PathBuf,
    /// Output file; `-` is standard output
    #[arg(short, long, value_name = "FILE.json", default_value = "-")]
    output: OutputPath,
    /// Devices that Core ML may use: all, cpu_only, cpu_and_gpu or cpu_and_ne
    #[arg(long, default_value_t = ComputeUnits::All, value_name = "UNITS")]
    units: ComputeUnits,
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    super::check_output_paths([&args.model], [&args.output])?;
    // Invalid files are reported on every system.
    let opened = super::open_with_source(&args.model)?;
    super::verify(&opened)?;
    coremill_coreml::availability().map_err(|error| {
        let hint =
            "run this command on a Mac; `report` estimates where operations run without a plan";
        Failure::user(error).hint(Some(hint))
    })?;
    let options = LoadOptions { compute_units: args.units, ..LoadOptions::default() };
    let progress = Progress::start(format!("compiling {}", args.model.display()));
    let scratch = tempfile::tempdir()
        .map_err(|error| Failure::user(format_args!("cannot make a scratch directory: {error}")))?;
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
    let operations = plan.operations.into_iter().map(recorded).collect();
    let plan = ComputePlan::new(&chip.name, &chip.build, operations);
    drop(progress);
    let text = serde_json::to_string_pretty(&plan).map_err(Failure::internal)? + "\n";
    args.output.write(text.as_bytes())
}

fn recorded(operation: coremill_coreml::PlannedOperation) -> PlannedOperation {
    let coremill_coreml::PlannedOperation {
        function,
        operator,
        outputs,
        cost,
        preferred,
        supported,
    } = operation;
    let supported = supported.into_iter().map(device).collect();
    PlannedOperation {
        function,
        operator,
        outputs,
        cost,
        preferred: preferred.map(device),
        supported,
    }
}

fn device(kind: DeviceKind) -> Device {
    match kind {
        DeviceKind::Cpu => Device::Cpu,
        DeviceKind::Gpu => Device::Gpu,
        DeviceKind::NeuralEngine => Device::NeuralEngine,
        DeviceKind::Other => Device::Other,
    }
}

fn failure(error: Error) -> Failure {
    Failure::user(&error).hint(error.hint())
}
