//! `coremill compare`: comparison of two models, or of a model and arrays.

mod inputs;
mod page;
mod report;

use std::path::{Path, PathBuf};

use coremill::compare::{self as library, PerOp, RunningModel};
use coremill::feedback::feed;
use coremill::{FileKind, OpenedModel, arrays};
use coremill_compiler::SourceMap;
use coremill_engine::Numerics;
use coremill_pt2::ExportedProgram;
use coremill_session::{Outputs, RunOptions, inputs as named};

use super::loaded::{DeviceArg, LoadedFunction, NumericsArg};
use super::run::parts;
use crate::inputs::{Arrays, NamedShape};
use crate::output::{self, Failure, OutputPath};
use crate::progress::Progress;

use report::{OutputComparison, Report};

/// Compare the results of two models, and find where they diverge
///
/// Either side is an archive of `torch.export` (runs in fp32), a model, an ExecuTorch program, or a
/// `.npz` file of outputs. The first one is the reference.
#[derive(clap::Args)]
#[command(
    after_help = "Exits with 1 if the SNR of an output is below --fail-below.\n\nExamples:\n  coremill compare model.pt2 Model.mlpackage\n  coremill compare model.pt2 Model.mlpackage --inputs in.npz --per-op\n  coremill compare model.pt2 model.pte --positional\n  coremill compare expected.npz Model.mlpackage --inputs in.npz --fail-below 40\n  coremill compare Old.mlpackage New.mlpackage --random 1 --numerics fast"
)]
pub(crate) struct Args {
    /// The reference: a `.pt2`, a model, a `.pte`, or a `.npz` file of outputs
    #[arg(value_name = "A")]
    pub(super) reference: PathBuf,
    /// The model, program or outputs to compare with the reference
    #[arg(value_name = "B")]
    pub(super) other: PathBuf,
    /// A `.npz` file of input arrays by name; repeat for several steps on the same states [default:
    /// the sample inputs of a `.pt2`]
    #[arg(short, long, value_name = "FILE")]
    pub(super) inputs: Vec<PathBuf>,
    /// Match inputs and outputs by position, not by name
    #[arg(long)]
    pub(super) positional: bool,
    /// Fill missing inputs with random elements: floats from −1 to 1, integers 0 or 1
    #[arg(long, value_name = "SEED")]
    pub(super) random: Option<u64>,
    /// Shape of an input for `--random`
    #[arg(long, value_name = "NAME=1,3,224,224", requires = "random")]
    pub(super) shape: Vec<NamedShape>,
    /// Device of both sides, or two devices separated by a comma, A first [default: host]
    #[arg(long, value_enum, value_name = "DEVICE", value_delimiter = ',')]
    pub(super) device: Vec<DeviceArg>,
    /// Rounding on the host for both sides, or two values separated by a comma, A first [default:
    /// fast for a `.pt2`, rounded for models and programs]
    #[arg(long, alias = "precision", value_enum, value_name = "NUMERICS", value_delimiter = ',')]
    pub(super) numerics: Vec<NumericsArg>,
    /// Function of the models, or method of the programs [default: the default function]
    #[arg(long, value_name = "NAME")]
    pub(super) function: Option<String>,
    /// Compare all values that both programs compute, in order; for ExecuTorch programs, the values
    /// of their models
    #[arg(long)]
    pub(super) per_op: bool,
    /// SNR in decibels below which a value counts as drift
    #[arg(long, value_name = "DB", default_value_t = 40.0, allow_negative_numbers = true)]
    pub(super) threshold: f64,
    /// Exit with 1 if the SNR of an output is below this value, in decibels
    #[arg(long, value_name = "DB", allow_negative_numbers = true)]
    pub(super) fail_below: Option<f64>,
    /// Number of threads; 0 uses all processors
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = super::threads)]
    pub(super) threads: usize,
    /// Write an HTML report with both models, the drift and the outputs
    #[arg(long, value_name = "FILE.html")]
    pub(super) html: Option<OutputPath>,
    /// Print the result as JSON
    #[arg(long)]
    pub(super) json: bool,
}

/// Two sides and their comparison.
pub(super) struct Comparison<'a> {
    sides: [Side<'a>; 2],
    /// Inputs of the candidate in each step.
    inputs: Vec<Arrays>,
    expected: Vec<Arrays>,
    found: Vec<Arrays>,
    /// Comparison of the outputs in each step.
    steps: Vec<Vec<OutputComparison>>,
    per_op: Option<PerOp>,
}

/// One of the two sides.
pub(super) struct Side<'a> {
    path: &'a Path,
    content: Content,
}

enum Content {
    /// A function to run.
    Function(Box<LoadedFunction>),
    /// Outputs by name.
    Arrays(Arrays),
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    for (option, count) in [("device", args.device.len()), ("numerics", args.numerics.len())] {
        if count > 2 {
            let message = format!("`--{option}` accepts one value for both sides, or two values");
            return Err(Failure::user(message));
        }
    }
    super::check_output_paths(
        [&args.reference, &args.other].into_iter().chain(&args.inputs),
        &args.html,
    )?;
    let progress = Progress::start(format!("reading {}", args.reference.display()));
    let reference = open(args, &args.reference, 0)?;
    progress.stage(format!("reading {}", args.other.display()));
    let other = open(args, &args.other, 1)?;
    let compared = perform(args, reference, other, &progress)?;
    if let Some(path) = &args.html {
        progress.stage(format!("writing {path}"));
        super::page::write(path, &compared.page()?)?;
    }
    drop(progress);
    let mut report =
        Report::new(args, compared.sides.each_ref(), &compared.steps, compared.per_op.as_ref());
    report.add_first_not_finite(|| compared.first_not_finite());
    report.add_origins(compared.calls());
    if args.json {
        output::print_json(&report)?;
    } else {
        output::say(&report.text(args.threshold))?;
    }
    verdict(args, &compared.steps)
}

/// Runs both sides and compares their outputs.
pub(super) fn perform<'a>(
    args: &Args,
    reference: Side<'a>,
    other: Side<'a>,
    progress: &Progress,
) -> Result<Comparison<'a>, Failure> {
    if args.per_op && (reference.loaded().is_none() || other.loaded().is_none()) {
        let message = "`--per-op` compares two programs; a `.npz` file holds only outputs";
        return Err(Failure::user(message).hint(Some("leave `--per-op` out")));
    }
    progress.stage("gathering inputs");
    let [mut of_reference, mut of_other] = inputs::gather(args, [&reference, &other])?;

    progress.stage(format!("running {}", args.reference.display()));
    let count = of_reference.len().max(of_other.len()).max(1);
    let mut expected = outputs(&reference, &mut of_reference, count)?;
    progress.stage(format!("running {}", args.other.display()));
    let mut found = outputs(&other, &mut of_other, count)?;
    drop_fed([&reference, &other], &mut expected, &mut found);
    let steps: Vec<_> = expected
        .iter()
        .zip(&found)
        .map(|(expected, found)| align(args, expected, found))
        .collect::<Result<_, _>>()?;
    let mut per_op: Option<PerOp> = None;
    if args.per_op
        && let (Some(one), Some(two)) = (reference.loaded(), other.loaded())
    {
        progress.stage("running both, value by value");
        let compared = library::per_op(
            &RunningModel { target: one.target(), steps: &of_reference },
            &RunningModel { target: two.target(), steps: &of_other },
        );
        let compared = compared.map_err(|error| Failure::user(&error).hint(error.hint()))?;
        per_op = Some(compared);
    }
    Ok(Comparison { sides: [reference, other], inputs: of_other, expected, found, steps, per_op })
}

/// Fails if an output is below the required SNR.
fn verdict(args: &Args, steps: &[Vec<OutputComparison>]) -> Result<(), Failure> {
    let Some(least) = args.fail_below else { return Ok(()) };
    let below = steps.iter().flatten().filter(|output| !output.is_at_least(least));
    let names: Vec<_> = below.map(|output| format!("`{}`", output.name)).collect();
    if names.is_empty() {
        return Ok(());
    }
    let verb = if names.len() == 1 { "is" } else { "are" };
    Err(Failure::user(format_args!("{} {verb} below {least} dB", names.join(", "))))
}

impl Side<'_> {
    /// The model or program, `None` for arrays.
    fn loaded(&self) -> Option<&LoadedFunction> {
        match &self.content {
            Content::Function(loaded) => Some(loaded),
            Content::Arrays(_) => None,
        }
    }

    fn failure(&self, error: &coremill_session::Error) -> Failure {
        Failure::user(format_args!("{}: {error}", self.path.display())).hint(error.hint())
    }
}

impl Args {
    /// Run options of a side.
    fn run_options(&self, index: usize, default: Numerics) -> RunOptions {
        let device = self.device.get(index).or(self.device.first());
        let numerics = self.numerics.get(index).or(self.numerics.first());
        RunOptions {
            device: device.map_or_else(Default::default, |&device| device.into()),
            numerics: numerics.map_or(default, |&numerics| numerics.into()),
            threads: self.threads,
            ..RunOptions::default()
        }
    }
}

pub(super) fn open<'a>(args: &Args, path: &'a Path, index: usize) -> Result<Side<'a>, Failure> {
    match FileKind::detect(path).map_err(|error| crate::inputs::failure(&error))? {
        FileKind::Arrays => {
            let arrays = arrays::read_npz(path).map_err(|error| crate::inputs::failure(&error))?;
            Ok(Side { path, content: Content::Arrays(arrays) })
        }
        FileKind::ExecuTorchProgram => {
            let options = args.run_options(index, Numerics::Rounded);
            let loaded = LoadedFunction::program(path, args.function.as_deref(), &options)?;
            Ok(Side { path, content: Content::Function(Box::new(loaded)) })
        }
        FileKind::ExportedProgram => {
            let (program, conversion) = super::convert::reference(path)?;
            let opened = OpenedModel::made(conversion.model, path);
            let options = args.run_options(index, Numerics::Fast);
            side(args, path, opened, Some((program, conversion.calls)), &options)
        }
        _ => {
            let options = args.run_options(index, Numerics::Rounded);
            side(args, path, super::open_with_source(path)?, None, &options)
        }
    }
}

/// A model as the second side, rounded as on a device.
pub(super) fn candidate<'a>(
    args: &Args,
    path: &'a Path,
    opened: OpenedModel,
    made_from: (ExportedProgram, SourceMap),
) -> Result<Side<'a>, Failure> {
    side(args, path, opened, Some(made_from), &args.run_options(1, Numerics::Rounded))
}

/// A model as a side.
fn side<'a>(
    args: &Args,
    path: &'a Path,
    opened: OpenedModel,
    made_from: Option<(ExportedProgram, SourceMap)>,
    options: &RunOptions,
) -> Result<Side<'a>, Failure> {
    // A model converted from an archive has one function.
    let function = args.function.as_deref().filter(|_| made_from.is_none());
    let (archive, calls) = made_from.unzip();
    let loaded = LoadedFunction::model(opened, archive, calls, function, options);
    let loaded = loaded.map_err(|failure| failure.within(path))?;
    Ok(Side { path, content: Content::Function(Box::new(loaded)) })
}

/// Removes feedback outputs of one side that are states of the other.
fn drop_fed(sides: [&Side<'_>; 2], expected: &mut [Arrays], found: &mut [Arrays]) {
    let fed = sides.into_iter().filter_map(Side::loaded).flat_map(|loaded| &loaded.fed);
    let fed: Vec<String> = fed.map(|fed| fed.output.clone()).collect();
    for (expected, found) in expected.iter_mut().zip(found) {
        let has = |arrays: &Arrays, name: &str| arrays.iter().any(|(other, _)| other == name);
        let alone: Vec<String> =
            fed.iter().filter(|name| has(expected, name) != has(found, name)).cloned().collect();
        expected.retain(|(name, _)| !alone.contains(name));
        found.retain(|(name, _)| !alone.contains(name));
    }
}

/// Runs a side, or takes its arrays. Returns the outputs of each step. Feedback inputs are added to
/// the steps.
fn outputs(side: &Side<'_>, steps: &mut [Arrays], count: usize) -> Result<Vec<Arrays>, Failure> {
    match &side.content {
        Content::Function(loaded) => {
            let mut session = loaded.session()?;
            let specs = session.inputs().to_vec();
            let mut results: Vec<Arrays> = Vec::with_capacity(steps.len());
            for step in steps {
                feed(&loaded.fed, &specs, results.last().map(Vec::as_slice), step);
                let outputs = session.run(&named(step)).map_err(|error| side.failure(&error))?;
                results.push(flat(outputs));
            }
            Ok(results)
        }
        // As written by `run`: with several steps, `NAME@0` belongs to the first.
        Content::Arrays(arrays) if count > 1 => Ok((0..count)
            .map(|step| {
                let ending = format!("@{step}");
                let of_step = arrays.iter().filter_map(|(name, array)| {
                    Some((name.strip_suffix(&ending)?.to_owned(), array.clone()))
                });
                of_step.collect()
            })
            .collect()),
        Content::Arrays(arrays) => Ok(vec![arrays.clone()]),
    }
}

fn flat(outputs: Outputs) -> Arrays {
    let arrays = outputs.0.iter().flat_map(|(name, value)| {
        parts(value).into_iter().map(move |(part, array)| (format!("{name}{part}"), array))
    });
    arrays.collect()
}

/// Pairs the outputs of a step.
fn align(args: &Args, expected: &Arrays, found: &Arrays) -> Result<Vec<OutputComparison>, Failure> {
    if args.positional && expected.len() != found.len() {
        return Err(Failure::user(format_args!(
            "{} has {} outputs, but {} has {}",
            args.reference.display(),
            expected.len(),
            args.other.display(),
            found.len()
        )));
    }
    let find = |index: usize, name: &str| match args.positional {
        true => found.get(index),
        false => found.iter().find(|(other, _)| other == name),
    };
    let mut compared: Vec<OutputComparison> = expected
        .iter()
        .enumerate()
        .map(|(index, (name, expected))| {
            let figures = match find(index, name) {
                Some((_, found)) => {
                    library::figures(expected, found).map_err(|error| error.to_string())
                }
                None => Err(format!("is not in {}", args.other.display())),
            };
            OutputComparison { name: name.clone(), shape: expected.shape().to_vec(), figures }
        })
        .collect();
    if !args.positional {
        let common = found.iter().any(|(name, _)| expected.iter().any(|(other, _)| other == name));
        if !common {
            let list = |arrays: &Arrays| {
                let names: Vec<_> = arrays.iter().map(|(name, _)| format!("`{name}`")).collect();
                if names.is_empty() { "nothing".to_owned() } else { names.join(", ") }
            };
            return Err(Failure::user(format_args!(
                "no outputs have the same names: {} has {}, {} has {}",
                args.reference.display(),
                list(expected),
                args.other.display(),
                list(found)
            ))
            .hint(Some("pass `--positional` to match them by position")));
        }
        let only =
            found.iter().filter(|(name, _)| !expected.iter().any(|(other, _)| other == name));
        compared.extend(only.map(|(name, array)| OutputComparison {
            name: name.clone(),
            shape: array.shape().to_vec(),
            figures: Err(format!("is not in {}", args.reference.display())),
        }));
    }
    Ok(compared)
}
