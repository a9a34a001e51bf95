//! `coremill report`: an HTML report about a model: operations, devices, costs and drift.

use std::path::{Path, PathBuf};

use coremill::{FileKind, OpenedModel, convert, executorch};
use coremill_compiler::{self as compiler, Options};
use coremill_report::data::{Finding, Severity};
use coremill_report::{ComputePlan, Report};
use coremill_session::{Hooks, RunOptions, inputs};

use super::compare;
use super::loaded::{Content, LoadedFunction};
use super::page::{self, add_arrays, arrays, of_model, of_program, write};
use crate::inputs::{Arrays, NamedShape, failure, fill, read_npz};
use crate::output::{Failure, OutputPath};
use crate::progress::Progress;

/// Write an HTML report about a model: operations, devices, costs and drift
///
/// The report is a self-contained HTML file. An archive of `torch.export` is converted and compared
/// with itself in fp32. With two inputs, the second is compared with the first.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  coremill report Model.mlpackage -o model.html\n  coremill report model.pt2 -o model.html\n  coremill report Model.mlpackage --random 1 -o model.html\n  coremill report model.pt2 Model.mlpackage -o drift.html\n  coremill report Old.mlpackage New.mlpackage --random 1 -o changes.html"
)]
pub(crate) struct Args {
    /// One or two inputs: a `.pt2`, a model or an ExecuTorch program
    #[arg(value_name = "INPUT", required = true, num_args = 1..=2)]
    models: Vec<PathBuf>,
    /// Output path of the report
    #[arg(short, long, value_name = "FILE.html")]
    output: OutputPath,
    /// A `.npz` file of input arrays by name; repeat for several steps [default: the sample inputs
    /// of a `.pt2`]
    #[arg(short, long, value_name = "FILE")]
    inputs: Vec<PathBuf>,
    /// Match inputs and outputs by position, not by name
    #[arg(long)]
    positional: bool,
    /// Fill missing inputs with random elements: floats from −1 to 1, integers 0 or 1
    #[arg(long, value_name = "SEED")]
    random: Option<u64>,
    /// Shape of an input for `--random`
    #[arg(long, value_name = "NAME=1,3,224,224", requires = "random")]
    shape: Vec<NamedShape>,
    /// Function of the models, or method of the programs [default: the default function]
    #[arg(long, value_name = "NAME")]
    function: Option<String>,
    /// A compute plan of the model, or of the second one: what `coremill plan` recorded on a Mac, or an `analytics.mil`. It
    /// replaces the forecast of where operations run
    #[arg(long, value_name = "FILE")]
    plan: Option<PathBuf>,
    /// Number of threads; 0 uses all processors
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = super::threads)]
    threads: usize,
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    super::check_output_paths(
        args.models.iter().chain(&args.inputs).chain(&args.plan),
        [&args.output],
    )?;
    let progress = Progress::start(format!("reading {}", args.models[0].display()));
    // A file that is no plan is told before minutes pass.
    let plan = args.plan.as_deref().map(super::placement::read_plan).transpose()?;
    let mut page = match &args.models[..] {
        [reference, other] => pair(args, reference, other, &progress)?,
        models => single(args, &models[0], &progress)?,
    };
    if let Some(plan) = plan {
        add_plan(&mut page, &plan)?;
    }
    progress.stage(format!("writing {}", args.output));
    write(&args.output, &page)
}

/// Replaces the forecast for the last model by what Core ML itself means to do.
fn add_plan(page: &mut Report, plan: &ComputePlan) -> Result<(), Failure> {
    if page.data.program.is_some() {
        let hint = "`coremill extract` writes the models inside as packages; pass one of these";
        let message = "a compute plan belongs to a model, but this is an ExecuTorch program";
        return Err(Failure::user(message).hint(Some(hint)));
    }
    let Some(last) = page.data.models.len().checked_sub(1) else { return Ok(()) };
    let added = page.add_plan(last, plan);
    added.map_err(|why| Failure::user(why).hint(Some("record the plan of exactly this model")))
}

/// Compares two models. Without inputs for both, only their contents are compared.
fn pair(
    args: &Args,
    reference: &Path,
    other: &Path,
    progress: &Progress,
) -> Result<Report, Failure> {
    let compared = compared(args, other);
    let kinds = [reference, other].map(FileKind::detect);
    let [one, two] = kinds.map(|kind| kind.map_err(|error| failure(&error)));
    let can_run = !args.inputs.is_empty()
        || args.random.is_some()
        || [one?, two?]
            .into_iter()
            .any(|kind| matches!(kind, FileKind::ExportedProgram | FileKind::Arrays));
    let open = |path, index| compare::open(&compared, path, index);
    let (reference, other) = (open(reference, 0)?, open(other, 1)?);
    if can_run {
        return compare::perform(&compared, reference, other, progress)?.page();
    }
    let mut page = compare::Comparison::structural_only(reference, other).page()?;
    page.finding(Finding {
        severity: Severity::Note,
        title: "the models were not run".to_owned(),
        detail: "Pass --inputs FILE.npz or --random SEED to see where their numbers drift apart."
            .to_owned(),
        place: None,
    });
    Ok(page)
}

/// Arguments of the comparison: all values, on the given or default inputs.
fn compared(args: &Args, other: &Path) -> compare::Args {
    compare::Args {
        reference: args.models[0].clone(),
        other: other.to_owned(),
        inputs: args.inputs.clone(),
        positional: args.positional,
        random: args.random,
        shape: args.shape.clone(),
        device: Vec::new(),
        numerics: Vec::new(),
        function: args.function.clone(),
        per_op: true,
        threshold: 40.0,
        fail_below: None,
        threads: args.threads,
        html: None,
        json: false,
    }
}

fn single(args: &Args, path: &Path, progress: &Progress) -> Result<Report, Failure> {
    let options = RunOptions { threads: args.threads, ..RunOptions::default() };
    let can_run = args.random.is_some() || !args.inputs.is_empty();
    let function = args.function.as_deref();
    match FileKind::detect(path).map_err(|error| failure(&error))? {
        FileKind::ExportedProgram => archive(args, path, progress),
        FileKind::Arrays => {
            Err(Failure::user(format_args!("{} holds arrays, not a model", path.display())))
        }
        FileKind::ExecuTorchProgram if can_run => {
            let loaded = LoadedFunction::program(path, function, &options)?;
            timed(args, path, &loaded, progress)
        }
        FileKind::ExecuTorchProgram => {
            let program = executorch::open(path).map_err(|error| super::failure(&error))?;
            of_program(path, &program)
        }
        _ if can_run => {
            let opened = super::open_with_source(path)?;
            let loaded = LoadedFunction::model(opened, None, None, function, &options)?;
            timed(args, path, &loaded, progress)
        }
        _ => Ok(of_model(path, &super::open_with_source(path)?)),
    }
}

/// Converts an archive and compares the model with the program in fp32, on the archive's sample
/// inputs.
fn archive(args: &Args, path: &Path, progress: &Progress) -> Result<Report, Failure> {
    progress.stage("converting");
    let program = convert::read(path).map_err(|error| super::failure(&error))?;
    let conversion = match convert::convert(program.clone(), &Options::default()) {
        Ok(conversion) => conversion,
        Err(compiler::Error::Refused(refused)) => {
            let mut page = Report::new(page::title(path));
            page.add_refused(Severity::Error, &refused);
            return Ok(page);
        }
        Err(error) => {
            let hint = error.hint().map(str::to_owned);
            let message = format!("{}: {error}", path.display());
            return Err(Failure::user(message).hint(hint));
        }
    };
    let compared = compared(args, path);
    let reference = compare::open(&compared, path, 0)?;
    let made = OpenedModel::made(conversion.model, path);
    let mut page = Report::new(page::title(path));
    page.fact("target", format!("{}", conversion.target));
    page.add_model(&path.display().to_string(), &made.model, Some(&conversion.calls));
    progress.stage("running the model");
    let other = compare::candidate(&compared, path, made, (program, conversion.calls))?;
    match compare::perform(&compared, reference, other, progress) {
        Ok(compared) => compared.add_drift(&mut page),
        Err(failure) if args.random.is_some() || !args.inputs.is_empty() => return Err(failure),
        // Without sample inputs the model cannot run.
        Err(failure) => page.finding(Finding {
            severity: Severity::Note,
            title: "numbers were not compared".to_owned(),
            detail: failure.message().unwrap_or_default().to_owned(),
            place: None,
        }),
    }
    Ok(page)
}

/// A report about a model or program with a profile of the first step. The first run creates the
/// plan, the second is measured.
fn timed(
    args: &Args,
    path: &Path,
    loaded: &LoadedFunction,
    progress: &Progress,
) -> Result<Report, Failure> {
    let mut page = match &loaded.content {
        Content::Model(opened) => of_model(path, opened),
        Content::Program(program) => of_program(path, program)?,
    };
    progress.stage("running the model");
    let mut session = loaded.session()?;
    let read = |path: &PathBuf| read_npz(path, session.inputs());
    let mut given: Arrays = args.inputs.first().map_or_else(|| Ok(Vec::new()), read)?;
    if let Some(seed) = args.random {
        let vocabulary = |input: &str| loaded.vocabulary(input);
        fill(&args.shape, session.inputs(), seed, &mut given, &vocabulary)?;
    }
    session.run(&inputs(&given)).map_err(|error| failure(&error))?;
    let mut spans = Vec::new();
    let mut hooks = Hooks { profile: Some(&mut spans), ..Hooks::default() };
    let results = session.run_with(&inputs(&given), &mut hooks).map_err(|error| failure(&error))?;
    let function = &loaded.function;
    let what = if matches!(loaded.content, Content::Model(_)) { "function" } else { "method" };
    page.add_timing(&spans, function, format!("{what} `{function}` on this machine's processor"));
    add_arrays(&mut page, &given, arrays(&results));
    Ok(page)
}
