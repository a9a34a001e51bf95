//! `coremill record`: plan, outputs and times of a model on this Mac.

use std::fmt::Write as _;
use std::path::PathBuf;

use coremill::FileKind;
use coremill::inspect::record::{self, Agreement, DeviceRecord, Record, RecordOptions};
use coremill_coreml::ComputeUnits;

use super::placement;
use crate::output::{self, Cell, FAINT, Failure, OutputPath, STRONG, Table, paint};
use crate::progress::Progress;

/// Record a model's plan, outputs and times on this Mac, or show a record
///
/// Core ML runs each function on random inputs, once for each enumerated shape and choice of compute units. The record is a
/// zip archive with the machine, the hash of the model, inputs, outputs, compute plans and times. The report compares it
/// with the forecast of `plan` and with the numerics `ane` and `coreml-cpu`. A record itself is shown on every system.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  coremill record Model.mlpackage -o record.zip\n  coremill record Model.mlpackage -o record.zip --include-model --repeat 100\n  coremill record record.zip\n  coremill record record.zip --model Model.mlpackage"
)]
pub(crate) struct Args {
    /// A `.mlpackage`, `.mlmodel`, `.mlmodelc`, MIL text or `.pt2` archive to record, or a record to show
    #[arg(value_name = "MODEL")]
    model: PathBuf,
    /// Output file: a `.zip`; required for a model
    #[arg(short, long, value_name = "FILE.zip")]
    output: Option<OutputPath>,
    /// Compute units to record: cpu_only, cpu_and_gpu, cpu_and_ne, all
    #[arg(
        long,
        value_name = "UNITS",
        value_delimiter = ',',
        value_parser = placement::units,
        default_value = "cpu_only,cpu_and_ne,all"
    )]
    units: Vec<ComputeUnits>,
    /// Seed of the random inputs
    #[arg(long, value_name = "SEED", default_value_t = 0)]
    seed: u64,
    /// Number of timed predictions after the first
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u16))]
    repeat: u16,
    /// Include the model, so that anyone can compare the record with forecasts and numerics
    #[arg(long)]
    include_model: bool,
    /// The model of a record that does not include it
    #[arg(long = "model", value_name = "MODEL", conflicts_with = "output")]
    of: Option<PathBuf>,
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    super::check_output_paths([&args.model], &args.output)?;
    if record::is_record(&args.model) {
        return show(args);
    }
    let kind = match args.model.as_os_str().to_str() {
        Some("-") => FileKind::MilText,
        _ => FileKind::detect(&args.model).map_err(|error| super::failure(&error))?,
    };
    let Some(path) = &args.output else {
        // An output file would not help if there is no model. An archive is not converted only to find out.
        if kind != FileKind::ExportedProgram {
            super::open_with_source(&args.model)?;
        }
        let hint =
            format!("pass `-o record.zip`; `coremill plan {}` needs no file", args.model.display());
        return Err(Failure::user("a record of a model needs an output file").hint(Some(hint)));
    };
    if path.is_stdout() {
        let message = "`-` is standard output, which receives the report";
        return Err(Failure::user(message).hint(Some("name a file")));
    }
    // Reported before a `.pt2` archive is converted.
    coremill_coreml::availability().map_err(|error| {
        let hint = "run this command on a Mac; on this system, `coremill plan` forecasts the engines, and `coremill run --numerics ane` computes as the Neural Engine";
        Failure::user(error).hint(Some(hint))
    })?;
    let (opened, _) = super::open_or_convert(&args.model)?;
    let verified = super::verify(&opened)?;
    let mut units = args.units.clone();
    units.dedup();
    let options = RecordOptions {
        units,
        seed: args.seed,
        repeat: args.repeat.into(),
        include_model: args.include_model,
        ..RecordOptions::default()
    };
    let name = args.model.file_name().unwrap_or(args.model.as_os_str()).to_string_lossy();
    let progress = Progress::start("preparing");
    let recorded = record::record(&verified, &name, &options, &mut |step| progress.stage(step));
    let recorded = recorded.map_err(|error| super::failure(&error))?;
    record::write(path, &recorded).map_err(|error| super::failure(&error))?;
    progress.stage("comparing with the forecast and the engine");
    let agreement = record::agreement(&recorded, &opened.model);
    drop(progress);
    output::say(&text(&recorded, Some(&agreement.map_err(|error| super::failure(&error))?)))
}

/// Shows a record, compared with the forecast and the engine if its model is known.
fn show(args: &Args) -> Result<(), Failure> {
    if args.output.is_some() {
        let message = format!("{} is already a record", args.model.display());
        return Err(Failure::user(message).hint(Some("pass the model, or leave out `--output`")));
    }
    let failed = |error| super::failure(&error);
    let recorded = record::read(&args.model).map_err(failed)?;
    let model = match &args.of {
        Some(path) => Some(super::open_or_convert(path)?.0.model),
        None => recorded.included_model().map_err(failed)?,
    };
    let agreement = model.map(|model| record::agreement(&recorded, &model)).transpose();
    let agreement = agreement.map_err(failed)?;
    output::say(&text(&recorded, agreement.as_ref()))?;
    if agreement.is_none() {
        let label = paint(output::GOOD, "hint");
        output::tell(&format!(
            "{label}: pass `--model MODEL` to compare the record with the forecast and the engine\n"
        ));
    }
    Ok(())
}

fn text(recorded: &Record, agreement: Option<&Agreement>) -> String {
    let mut text = format!("{}\n", paint(STRONG, recorded.title()));
    let cases = recorded.cases.len();
    let _ = writeln!(
        text,
        "  {}",
        paint(
            FAINT,
            format!("coremill {}, {cases} cases, seed {}", recorded.coremill, recorded.seed)
        )
    );
    let mut table = Table::new(2);
    for device in &recorded.devices {
        for row in rows(device, recorded) {
            table.row(row);
        }
    }
    text += &table.render();
    if let Some(agreement) = agreement {
        text.push('\n');
        text += &coremill_io::printable(&agreement.to_string());
    }
    text
}

fn rows(device: &DeviceRecord, recorded: &Record) -> Vec<[Cell; 5]> {
    let placed = match (&device.plan, &device.plan_error) {
        (Some(plan), _) => {
            let counts = plan.counts().into_iter().rev();
            let counts = counts.map(|(device, count)| format!("{count} on the {}", device.name()));
            counts.collect::<Vec<_>>().join(", ")
        }
        (None, Some(error)) => format!("no plan: {error}"),
        (None, None) => "no plan".to_owned(),
    };
    let row = |run: &record::RecordedRun| {
        let function = recorded.cases.get(run.case).map_or("", |case| &case.function);
        let load = device.load_ms.get(function).copied().unwrap_or_default();
        [
            Cell::name(&device.units).style(STRONG),
            Cell::text(format!("{function}, case {}", run.case)),
            Cell::text(format!("{:.3} ms", run.median_ms())),
            Cell::text(format!("load {load:.1} ms, first {:.3} ms", run.first_ms)),
            Cell::text(&placed),
        ]
    };
    device.runs.iter().map(row).collect()
}
