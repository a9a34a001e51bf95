//! `coremill convert`: conversion of `torch.export` archives to Core ML.

mod functions;
pub(super) mod numbers;
pub(super) mod options;
pub(super) mod precision;
pub(super) mod refusals;
pub(super) mod report;
pub(super) mod shapes;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::time::Instant;

use super::edits::{InterfaceArgs, MetadataArgs};
use coremill::convert::{self as library, NumericsReport};
use coremill::edit;
use coremill::precision::Output;
use coremill_compiler::{self as compiler, Conversion, LowerOptions, Options, Precision, States};
use coremill_io::unsupported_extension;
use coremill_mil::model::Metadata;
use coremill_pt2::ExportedProgram;
use coremill_verify::{RenderOptions, Severity, Verified};

use crate::output::{self, Failure, OutputPath};
use crate::progress::Progress;
use options::ProgramArgs;
use report::{ConvertedModel, Reports};

/// Convert PyTorch programs to Core ML
///
/// Reads an archive written by `torch.export.save` and writes a package. If some calls cannot be
/// lowered, all of them are reported with their location in the model, and nothing is written.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  coremill convert model.pt2 -o Model.mlpackage\n  coremill convert model.pt2 -o Model.mlpackage --target ios18 --precision fp32\n  coremill convert model.pt2 -o Model.mlpackage --shapes 'x=1,3,224,224;1,3,448,448' --verify\n  coremill convert model.pt2 -o Model.mlpackage --precision auto --samples calibration/\n  coremill convert main=decode.pt2 prefill=prefill.pt2 -o Llm.mlpackage\n  coremill convert exports/*.pt2 --output-dir packages"
)]
pub(crate) struct Args {
    /// One or more archives, each for a package of its own; with a function name before each, all
    /// become functions of one package and share weights
    #[arg(value_name = "[FUNCTION=]MODEL.pt2", required = true)]
    models: Vec<PathBuf>,
    /// Output path: a `.mlpackage`, a `.mlmodelc`, or MIL text (`.mil`)
    #[arg(short, long, value_name = "PATH", required_unless_present = "output_dir")]
    output: Option<OutputPath>,
    /// Output directory for one package per archive, named like the archive; created if needed
    #[arg(long, value_name = "DIR", conflicts_with = "output")]
    output_dir: Option<OutputPath>,
    #[command(flatten)]
    program: ProgramArgs,
    /// Treatment of buffers that the model writes to
    #[arg(long, value_enum, default_value_t = StatesArg::Keep, help_heading = "Interface")]
    states: StatesArg,
    /// Name of an input; repeat in the order of the model's inputs
    #[arg(long = "input-name", value_name = "NAME", help_heading = "Interface")]
    input_names: Vec<String>,
    /// Name of an output; repeat in the order of the model's outputs
    #[arg(long = "output-name", value_name = "NAME", help_heading = "Interface")]
    output_names: Vec<String>,
    #[command(flatten)]
    interface: InterfaceArgs,
    #[command(flatten)]
    metadata: MetadataArgs,
    /// Wait until all data is on disk
    #[arg(long)]
    sync: bool,
    /// Print the result for each archive as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum StatesArg {
    /// Keep them as states between predictions; needs iOS 18
    Keep,
    /// Turn them into inputs, and their new values into outputs
    Io,
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let options = options(args)?;
    let is_auto = args.program.auto()?.is_some();
    let named = functions::named(&args.models)?;
    if is_auto && named.is_some() {
        return Err(precision::of_several());
    }
    let outputs = outputs(args, named.is_some())?;
    let inputs: Vec<_> = match &named {
        Some(named) => named.iter().map(|(_, path)| path).collect(),
        None => args.models.iter().collect(),
    };
    let paths: Vec<_> = outputs.iter().cloned().map(OutputPath::from).collect();
    super::check_output_paths(inputs, &paths)?;
    if let Some(directory) = &args.output_dir {
        std::fs::create_dir_all(directory).map_err(|error| {
            Failure::user(format_args!(
                "cannot create the directory {}: {error}",
                directory.display()
            ))
        })?;
    }
    let mut reports = Reports::default();
    let mut failures = Vec::new();
    let joined: Vec<_> = args.models.iter().map(|path| path.display().to_string()).collect();
    let models = match named {
        Some(_) => vec![PathBuf::from(joined.join(", "))],
        None => args.models.clone(),
    };
    for (path, output) in models.iter().zip(&outputs) {
        // A failure in one conversion must not prevent the others.
        let outcome = catch_unwind(AssertUnwindSafe(|| match &named {
            Some(named) => functions::convert(args, named, output, &options),
            None => convert(args, path, output, &options),
        }));
        let outcome = outcome.unwrap_or_else(|_| {
            let message = format!("{}: coremill failed, as reported above", path.display());
            Err(Stop::from(Failure::internal(message)))
        });
        match outcome {
            Ok(made) => {
                output::tell(&report::render(&made));
                let off = made.agreement.as_ref().is_some_and(|agreement| !agreement.holds());
                let is_far = made.chosen.as_ref().is_some_and(|chosen| !chosen.holds());
                reports.made(&made);
                if is_far {
                    failures.push(
                        Failure::user(format_args!(
                            "{}: only fp32 is accurate enough; the package was written",
                            output.display()
                        ))
                        .hint(Some(precision::REMEDY)),
                    );
                } else if off {
                    failures.push(
                        Failure::user(format_args!(
                            "{}: verification failed; the package was written",
                            output.display()
                        ))
                        .hint(Some(numbers::REMEDY)),
                    );
                }
            }
            Err(stop) => {
                reports.stopped(path, &stop);
                failures.push(stop.failure);
            }
        }
        // With several archives, each error is printed next to its archive.
        if models.len() > 1
            && let Some(failure) = failures.last_mut()
        {
            failure.tell();
        }
    }
    if args.json {
        output::print_json(&reports)?;
    }
    let count = failures.len();
    match failures.into_iter().max_by_key(Failure::code) {
        None => Ok(()),
        Some(failure) if models.len() == 1 => Err(failure),
        Some(worst) => Err(worst.instead(format_args!(
            "{count} of {} archives failed to convert or to verify",
            models.len()
        ))),
    }
}

/// Reason why an archive was not converted, with unsupported calls if known.
pub(super) struct Stop {
    pub(super) failure: Failure,
    refused: Vec<compiler::UnsupportedOp>,
}

impl From<Failure> for Stop {
    fn from(failure: Failure) -> Stop {
        Stop { failure, refused: Vec::new() }
    }
}

fn options(args: &Args) -> Result<Options, Failure> {
    let mut metadata = Metadata::default();
    args.metadata.apply(&mut metadata)?;
    Ok(Options {
        states: match args.states {
            StatesArg::Keep => States::Keep,
            StatesArg::Io => States::Io,
        },
        input_names: args.input_names.clone(),
        output_names: args.output_names.clone(),
        metadata,
        at_least: Some(edit::needs(&args.interface.edits()?)),
        ..args.program.options()?
    })
}

/// The output path of each archive.
fn outputs(args: &Args, is_one: bool) -> Result<Vec<PathBuf>, Failure> {
    if is_one && args.output_dir.is_some() {
        return Err(Failure::user("functions are written to one package")
            .hint(Some("pass `--output PATH` instead of `--output-dir`")));
    }
    let Some(directory) = &args.output_dir else {
        if args.models.len() > 1 && !is_one {
            return Err(Failure::user("several archives cannot be written to one output")
                .hint(Some("pass `--output-dir DIR` instead of `--output`")));
        }
        let output = args.output.as_ref().map(|output| {
            let path = output.as_directory().map_err(|failure| {
                failure.hint(Some("`coremill text MODEL.pt2` prints the program as text"))
            })?;
            check_output(path)?;
            Ok(path.to_owned())
        });
        return output.into_iter().collect();
    };
    let directory = directory.as_directory()?;
    let mut outputs: Vec<PathBuf> = Vec::new();
    for (index, path) in args.models.iter().enumerate() {
        let mut name = path.file_stem().unwrap_or(path.as_os_str()).to_owned();
        name.push(".mlpackage");
        let output = directory.join(name);
        if let Some(other) = outputs.iter().position(|known| *known == output) {
            return Err(Failure::user(format_args!(
                "{} and {} would both become {}",
                args.models[other].display(),
                args.models[index].display(),
                output.display()
            ))
            .hint(Some("convert them one by one, with `--output`")));
        }
        outputs.push(output);
    }
    Ok(outputs)
}

/// Validates the output path before the conversion starts.
fn check_output(path: &Path) -> Result<(), Failure> {
    if path.extension().is_some_and(|extension| extension == "pte") {
        let message = format!("{}: `convert` writes Core ML models, not `.pte`", path.display());
        let hint = format!("`coremill lower MODEL.pt2 -o {}` writes that", path.display());
        return Err(Failure::user(message).hint(Some(hint)));
    }
    let known = ["mlpackage", "mlmodelc", "mil"];
    if !path.extension().is_some_and(|extension| known.iter().any(|known| extension == *known)) {
        return Err(Failure::user(unsupported_extension(path, &known)));
    }
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    if let Some(parent) = parent.filter(|parent| !parent.is_dir()) {
        return Err(Failure::user(format_args!("{}: no such directory", parent.display())));
    }
    if let Some(outer) = path.ancestors().skip(1).find(|outer| outer.join("Manifest.json").exists())
    {
        return Err(Failure::user(format_args!(
            "{} is inside the package {}",
            path.display(),
            outer.display()
        )));
    }
    Ok(())
}

fn convert(
    args: &Args,
    path: &Path,
    output: &Path,
    options: &Options,
) -> Result<ConvertedModel, Stop> {
    let start = Instant::now();
    let progress = Progress::start(format!("reading {}", path.display()));
    let program = read(path)?;
    library::check_options(&program, options).map_err(|error| of(path, &error))?;
    let torch_version = program.torch_version.clone();
    progress.stage(format!("converting {}", path.display()));
    let bound = args.program.bound(options.precision);
    let is_again = bound.is_some() || args.program.auto()?.is_some();
    let again = is_again.then(|| program.clone());
    let mut conversion = library::convert(program, options).map_err(|error| stop(path, error))?;
    let mut options = LowerOptions { options: options.clone(), ..LowerOptions::default() };
    let mut chosen = None;
    if let Some(program) = &again {
        progress.stage("choosing the precision");
        chosen = precision::chosen(&args.program, program, Output::Model, &mut options)?;
        if options.options.rewrite.is_some() {
            let converted = library::convert(program.clone(), &options.options);
            conversion = converted.map_err(|error| stop(path, error))?;
        }
    }
    let options = options.options;
    let Conversion { model, target, demands, .. } = conversion;
    let opened = coremill::OpenedModel::made(model, output);
    // Numbers are verified on arrays, before inputs become images and scores labels.
    let verified = sound(path, &opened)?;
    let mut edited = opened.model.clone();
    edit::apply(&mut edited, &args.interface.edits()?, None)
        .map_err(|error| of(path, &error.into()))?;
    let edited = coremill::OpenedModel::made(edited, output);
    progress.stage(format!("writing {}", output.display()));
    super::save(output, &edited, &sound(path, &edited)?, args.sync)?;
    let elapsed = start.elapsed();

    let mut agreement: Option<NumericsReport> = None;
    let mut unverified = None;
    if let (Some(bound), Some(program)) = (bound, again) {
        progress.stage("verifying the numbers");
        agreement =
            library::check_numbers(program, &options, &verified, bound, args.program.numerics())
                .map_err(|error| {
                    Failure::user(format_args!(
                        "{}: the numbers cannot be verified: {error}; the package was written",
                        path.display()
                    ))
                    .hint(error.hint())
                })?;
        if agreement.is_none() {
            unverified = Some(format!("{} holds no sample inputs", path.display()));
        }
    }
    drop(progress);
    Ok(ConvertedModel {
        path: path.to_owned(),
        output: output.to_owned(),
        torch_version,
        target,
        asked_for: args.program.has_target(),
        demands,
        precision: options.precision,
        wide: wide(&options, &edited.model),
        chosen,
        summary: coremill::summary::summarize(&edited.model),
        elapsed,
        agreement,
        unverified,
    })
}

/// The operations of an fp16 model that compute in fp32.
fn wide(options: &Options, model: &coremill::Model) -> Vec<library::Fp32Op> {
    match options.precision {
        Precision::Fp16 => library::kept_in_fp32(model),
        Precision::Fp32 => Vec::new(),
    }
}

fn read(path: &Path) -> Result<ExportedProgram, Failure> {
    library::read(path).map_err(|error| super::failure(&error))
}

fn of(path: &Path, error: &coremill::Error) -> Failure {
    Failure::user(format_args!("{}: {error}", path.display())).hint(error.hint())
}

/// The failure of a conversion.
pub(super) fn stop(path: &Path, error: compiler::Error) -> Stop {
    let named = format!("{}: {error}", path.display());
    match error {
        compiler::Error::Refused(refused) => {
            let failure = Failure::already_reported().detail(refusals::render(path, &refused));
            Stop { failure, refused }
        }
        compiler::Error::Fault(_) => Failure::internal(named).into(),
        compiler::Error::Archive(_) | compiler::Error::Program(_) => {
            Failure::user(named).hint(error.hint()).into()
        }
    }
}

/// Verifies the converted model. An invalid model is a bug in coremill.
fn sound<'o>(path: &Path, opened: &'o coremill::OpenedModel) -> Result<Verified<'o>, Failure> {
    coremill::verify(&opened.model).map_err(|mut report| {
        report.diagnostics.retain(|diagnostic| diagnostic.severity() == Severity::Error);
        let options = RenderOptions {
            color: true,
            width: output::excerpt_width(),
            ..RenderOptions::default()
        };
        Failure::internal(format_args!(
            "{}: Core ML would refuse the converted model; nothing was written",
            path.display()
        ))
        .detail(opened.render(&report, &options))
        .hint(Some("this is a bug in coremill; please report it"))
    })
}

/// A program converted in fp32, as a reference.
pub(super) fn reference(path: &Path) -> Result<(ExportedProgram, Conversion), Failure> {
    in_memory(path, &Options { precision: Precision::Fp32, ..Options::default() })
}

/// A program and the model converted from it.
pub(super) fn in_memory(
    path: &Path,
    options: &Options,
) -> Result<(ExportedProgram, Conversion), Failure> {
    let program = read(path)?;
    let conversion = library::convert(program.clone(), options);
    Ok((program, conversion.map_err(|error| stop(path, error).failure)?))
}
