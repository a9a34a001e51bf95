//! `coremill run`: a model's numbers on this machine.

mod inputs;
mod limits;
mod outputs;
mod profile;
mod program;
mod random;
mod report;

use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use coremill::{convert, executorch, fed, quantity};
use coremill_engine::{Array, Engine, Hooks, LoadOptions, Outputs, Session};
use coremill_runtime::Span;

use super::EnginePrecision;
use crate::output::{self, Failure, OutputPath};
use inputs::{NamedFile, Step};

pub(super) use inputs::{NamedShape, fill, read_npz, table};
pub(super) use outputs::parts;
pub(super) use program::{load as load_method, with_largest};

/// Run a model on this machine's processor
///
/// Inputs are arrays in numpy's files, by name. Their names, shapes and types are checked before anything
/// runs. Without `--output`, a table shows what came out.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  coremill run Model.mlpackage --inputs in.npz -o out.npz\n  coremill run Model.mlpackage --random 1 --repeat 20 --threads 1\n  coremill run Model.mlpackage --random 1 --profile\n  coremill run model.pte --inputs in.npz --positional -o out.npz\n  coremill run Decoder.mlpackage --inputs first.npz --inputs second.npz --state-out cache.npz"
)]
pub(crate) struct Args {
    /// A `.mlpackage`, `.mlmodel`, `.mlmodelc`, ExecuTorch program or MIL text, or a `.pt2`, which is converted in
    /// memory and runs on its sample inputs if none are given; `-` is text on standard input
    #[arg(value_name = "MODEL")]
    model: PathBuf,
    /// A `.npz` file of arrays by input name; `-` is standard input. Each one is a step, run in order on
    /// the same states
    #[arg(short, long, value_name = "FILE")]
    inputs: Vec<PathBuf>,
    /// Take the arrays of `--inputs` in the order of the file, and name outputs `arr_0`, `arr_1`, ...
    #[arg(long, requires = "inputs")]
    positional: bool,
    /// An array for an input, the same in each step
    #[arg(long, value_name = "NAME=FILE.npy")]
    input: Vec<NamedFile>,
    /// A picture for an input that is an image, the same in each step
    #[arg(long, value_name = "NAME=FILE.png")]
    image: Vec<NamedFile>,
    /// How pictures of another size than the input's are made to fit; without, they are refused
    #[arg(long, value_enum, requires = "image", value_name = "HOW")]
    resize: Option<ResizeArg>,
    /// Fill inputs that are not given: floats in −1 to 1, integers 0 or 1
    #[arg(long, value_name = "SEED")]
    random: Option<u64>,
    /// Fill weights whose files are missing: those of a MIL text without its weight files
    #[arg(long, value_enum, value_name = "HOW")]
    fill_weights: Option<FillWeights>,
    /// The shape of an input that `--random` fills
    #[arg(long, value_name = "NAME=1,3,224,224", requires = "random")]
    shape: Vec<NamedShape>,
    /// Where to write the outputs: a `.npz` file, or a `.npy` file if there is one; `-` is standard output.
    /// With several steps, `NAME` is the last one's, `NAME@0` the first one's
    #[arg(short, long, value_name = "FILE")]
    output: Option<OutputPath>,
    /// What the states hold at first, a `.npz` file of arrays by name; zeros if not given
    #[arg(long, value_name = "FILE")]
    state_in: Option<PathBuf>,
    /// Where to write what the states hold at last
    #[arg(long, value_name = "FILE")]
    state_out: Option<OutputPath>,
    /// The function, or the method of a program; the default one if not given
    #[arg(long, value_name = "NAME")]
    function: Option<String>,
    /// A file of tensors that an ExecuTorch program refers to; any number
    #[arg(long, value_name = "FILE.ptd")]
    data: Vec<PathBuf>,
    /// Where results are rounded; of an ExecuTorch program, those of the models in it
    #[arg(long, value_enum, default_value_t = EnginePrecision::Fast)]
    precision: EnginePrecision,
    /// How many threads share the work; 0 is one for each processor
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = super::threads)]
    threads: usize,
    /// End a run that performs more operations, or instructions of a program, those of loops counted each time; about
    /// what a minute computes if not given
    #[arg(long, value_name = "N", default_value_t = 1 << 26, hide_default_value = true)]
    max_operations: u64,
    /// End a run whose values take more memory: `800M`, `4G`; half of the machine's if not given
    #[arg(long, value_name = "BYTES", value_parser = quantity::parse_bytes)]
    max_memory: Option<u64>,
    /// Run the last step N more times, and print how long that takes
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    repeat: Option<u32>,
    /// Print how long each kind of operation takes
    #[arg(long)]
    profile: bool,
    /// Write when each operation ran, for `chrome://tracing` and Perfetto
    #[arg(long, value_name = "FILE.json")]
    trace: Option<OutputPath>,
    /// Write a page that shows the model and where its time goes
    #[arg(long, value_name = "FILE.html", requires = "profile")]
    html: Option<OutputPath>,
    /// Print everything as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum FillWeights {
    /// Random numbers, the same for the same seed of `--random`
    Random,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum ResizeArg {
    /// Width and height each by themselves
    Stretch,
    /// Scaled until the size is covered, cut at the sides
    Crop,
    /// Scaled until it lies within the size, black around it
    Fit,
}

impl Args {
    /// The files that are asked for.
    fn outputs(&self) -> impl Iterator<Item = &OutputPath> {
        [&self.output, &self.state_out, &self.trace, &self.html].into_iter().flatten()
    }
}

/// What came of the steps of a run.
struct Done {
    results: Vec<Outputs>,
    /// What the states hold after them.
    states: Vec<(String, Array)>,
    times: Times,
    /// Of each run that was profiled.
    spans: Vec<Vec<Span>>,
}

/// How long things took.
struct Times {
    load: Duration,
    /// Of the first step, which makes the plan.
    first: Duration,
    /// Of the last step, again and again.
    repeats: Vec<Duration>,
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let readers = args.inputs.iter().chain([&args.model]).filter(|path| is_standard(path));
    if readers.count() > 1 {
        return Err(Failure::user(
            "standard input is read once, but `-` stands for it several times",
        ));
    }
    let inputs = args.inputs.iter().chain([&args.model]).chain(&args.state_in).chain(&args.data);
    super::keep_apart(inputs, args.outputs())?;
    if executorch::is_program(&args.model) {
        return program::run(args);
    }
    if !args.data.is_empty() {
        return Err(Failure::user("`--data` is for ExecuTorch programs"));
    }
    let start = Instant::now();
    let (mut opened, program) = super::open_or_convert(&args.model)?;
    if let Some(FillWeights::Random) = args.fill_weights {
        coremill::fill_weights(&mut opened.model, args.random.unwrap_or_default());
    }
    let verified = super::verify(&opened)?;
    let precision = args.precision.into();
    let mut options = LoadOptions { precision, threads: args.threads, ..LoadOptions::default() };
    options.limits.operations = args.max_operations;
    options.limits.bytes = usize::try_from(limits::memory(args.max_memory)).unwrap_or(usize::MAX);
    let engine = Engine::load(&verified, &options).map_err(|error| failure(&error))?;
    let function = args.function.as_deref().unwrap_or(engine.default_function());
    let mut session = engine.session(function).map_err(|error| failure(&error))?;
    let load = start.elapsed();

    let fed = fed::fed(&opened.model);
    let samples = match &program {
        Some(program) => convert::sample_inputs(program, session.inputs())
            .map_err(|error| super::failure(&error))?,
        None => None,
    };
    let steps = inputs::gather(args, &session, samples, &fed, &|input| {
        super::vocabulary(&opened.model, function, input)
    })?;
    if let Some(path) = &args.state_in {
        set_states(&mut session, path)?;
    }
    let states = |session: &Session| Ok(states_of(session));
    let mut before: Option<Vec<(String, Array)>> = None;
    let run = |session: &mut Session, step: &Step, profile: Option<&mut Vec<Span>>| {
        let mut inputs = step.0.clone();
        fed::feed(&fed, session.inputs(), before.as_deref(), &mut inputs);
        let outputs = run_step(session, &inputs, profile)?;
        let goes_on = |name: &str| fed.iter().any(|fed| fed.output == name);
        let kept = outputs.0.iter().filter(|(name, _)| goes_on(name));
        let kept = kept.filter_map(|(name, value)| Some((name.clone(), value.as_array()?.clone())));
        before = Some(kept.collect());
        Ok(outputs)
    };
    let done = perform(args, load, &mut session, &steps, run, states)?;
    let last = steps.last().map_or(&[][..], |step| &step.0);
    finish(args, report::Ran::of(&engine, function), last, &done)
}

/// Runs all steps, then measures the last one as was asked for.
fn perform<T, S>(
    args: &Args,
    load: Duration,
    target: &mut T,
    steps: &[S],
    mut run: impl FnMut(&mut T, &S, Option<&mut Vec<Span>>) -> Result<Outputs, Failure>,
    states: impl FnOnce(&T) -> Result<Vec<(String, Array)>, Failure>,
) -> Result<Done, Failure> {
    let mut results = Vec::with_capacity(steps.len());
    let mut times = Times { load, first: Duration::ZERO, repeats: Vec::new() };
    for (index, step) in steps.iter().enumerate() {
        let start = Instant::now();
        results.push(run(target, step, None)?);
        if index == 0 {
            times.first = start.elapsed();
        }
    }
    // What is measured comes after what is kept: it changes the states.
    let states = states(target)?;
    let mut spans = Vec::new();
    if let Some(last) = steps.last() {
        for _ in 0..args.repeat.unwrap_or(0) {
            let start = Instant::now();
            run(target, last, None)?;
            times.repeats.push(start.elapsed());
        }
        if args.profile || args.trace.is_some() {
            for _ in 0..args.repeat.unwrap_or(1) {
                let mut profile = Vec::new();
                run(target, last, Some(&mut profile))?;
                spans.push(profile);
            }
        }
    }
    Ok(Done { results, states, times, spans })
}

/// Writes what was asked for, and tells the rest. `given` is what the last step took.
fn finish(
    args: &Args,
    ran: report::Ran<'_>,
    given: &[(String, Array)],
    done: &Done,
) -> Result<(), Failure> {
    if let Some(path) = &args.output {
        write_outputs(path, &done.results, args.positional)?;
    }
    if let Some(path) = &args.state_out {
        write_npz(path, &done.states)?;
    }
    if let Some(path) = &args.trace {
        profile::write_trace(path, done.spans.last().map_or(&[][..], Vec::as_slice))?;
    }
    if let Some(path) = &args.html {
        let mut page = match executorch::is_program(&args.model) {
            true => super::report::of_program(&args.model)?,
            false => super::report::of_model(&args.model, &super::open_or_convert(&args.model)?.0),
        };
        let spans = done.spans.last().map_or(&[][..], Vec::as_slice);
        let place = format!("`{}` on this machine's processor", ran.function);
        page.add_timing(spans, ran.function, place);
        if let Some(outputs) = done.results.last() {
            super::report::add_arrays(&mut page, given, super::report::arrays(outputs));
        }
        super::report::write(path, &page)?;
    }
    tell(args, &report::Report::new(args, ran, done))
}

/// Says what came of it, where standard output does not hold the arrays.
fn tell(args: &Args, report: &report::Report) -> Result<(), Failure> {
    if args.outputs().any(OutputPath::is_stdout) {
        if args.json || args.repeat.is_some() || args.profile {
            output::tell(&report.text(args)?);
        }
        return Ok(());
    }
    output::say(&report.text(args)?)
}

fn run_step(
    session: &mut Session,
    step: &[(String, Array)],
    profile: Option<&mut Vec<Span>>,
) -> Result<Outputs, Failure> {
    let inputs: Vec<(&str, Array)> =
        step.iter().map(|(name, array)| (&**name, array.clone())).collect();
    let mut spans = profile.is_some().then(Vec::new);
    let mut hooks = Hooks { profile: spans.as_mut(), ..Hooks::default() };
    let outputs = session.run_with(&inputs, &mut hooks).map_err(|error| failure(&error))?;
    if let (Some(profile), Some(spans)) = (profile, spans) {
        profile.extend(spans.into_iter().map(Span::from));
    }
    Ok(outputs)
}

fn set_states(session: &mut Session, path: &Path) -> Result<(), Failure> {
    for (name, array) in read_npz(path)? {
        session.set_state(&name, array).map_err(|error| {
            Failure::user(format_args!("{}: {error}", path.display()))
                .hint(error.remedy())
                .detail(table("states", session.states()))
        })?;
    }
    Ok(())
}

fn states_of(session: &Session) -> Vec<(String, Array)> {
    let ports = session.states().iter();
    let held =
        ports.filter_map(|port| Some((port.name.clone(), session.state(&port.name)?.clone())));
    held.collect()
}

fn write_outputs(path: &OutputPath, results: &[Outputs], positional: bool) -> Result<(), Failure> {
    let arrays = outputs::entries(results, positional);
    if path.extension().is_some_and(|extension| extension == "npy") {
        let [(_, array)] = &arrays[..] else {
            let names: Vec<_> = arrays.iter().map(|(name, _)| format!("`{name}`")).collect();
            let message = format!("a `.npy` file holds one array; there are {}", names.join(", "));
            return Err(Failure::user(message).hint(Some("end the name in `.npz`")));
        };
        coremill::arrays::write_npy(path, array).map_err(|error| super::failure(&error))
    } else {
        write_npz(path, &arrays)
    }
}

fn write_npz(path: &OutputPath, arrays: &[(String, Array)]) -> Result<(), Failure> {
    if !path.is_stdout() {
        return coremill::arrays::write_npz(path, arrays).map_err(|error| super::failure(&error));
    }
    let write = || {
        let mut to = BufWriter::new(std::io::stdout().lock());
        coremill::arrays::to_npz(&mut to, arrays)?;
        to.flush()
    };
    write().map_err(|error| Failure::user(format_args!("cannot write to standard output: {error}")))
}

fn is_standard(path: &Path) -> bool {
    path.as_os_str() == "-"
}

fn failure(error: &coremill_engine::Error) -> Failure {
    Failure::user(error).hint(error.remedy())
}
