//! `coremill run`: execution of a model.

mod batch;
mod files;
mod inputs;
mod limits;
mod outputs;
mod profile;
mod report;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use coremill::feedback::feed;
use coremill::{executorch, quantity};
use coremill_engine::Limits;
use coremill_session::{
    Array, Device, FeatureSpec, Hooks, Outputs, RunOptions, Session, Span, inputs,
};

use super::loaded::{Content, DeviceArg, LoadedFunction, NumericsArg};
use crate::inputs::{Arrays, NamedFile, NamedShape, failure, is_standard, read_npz, table};
use crate::output::{self, Failure, OutputPath};

pub(super) use outputs::parts;

/// Run a model on this machine's CPU, or on a Core ML device
///
/// Inputs are numpy files, with arrays by name. Names, shapes and types are validated before the
/// model runs. Without `--output`, a table shows the results.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  coremill run Model.mlpackage --inputs in.npz -o out.npz\n  coremill run Model.mlpackage --random 1 --repeat 20 --threads 1\n  coremill run Model.mlpackage --random 1 --profile\n  coremill run Model.mlpackage --random 1 --values linear_1,softmax -o values.npz\n  coremill run model.pte --inputs in.npz --positional -o out.npz\n  coremill run Filter.mlpackage --image x=in.png -o out.png\n  coremill run Model.mlpackage --batch --inputs samples/ -o results/\n  coremill run Decoder.mlpackage --inputs first.npz --inputs second.npz --state-out cache.npz"
)]
pub(crate) struct Args {
    /// A `.mlpackage`, `.mlmodel`, `.mlmodelc`, ExecuTorch program, MIL text or `.pt2` archive,
    /// which runs on its sample inputs by default; `-` reads MIL text from standard input
    #[arg(value_name = "MODEL")]
    model: PathBuf,
    /// A `.npz` file of input arrays by name; `-` is standard input; repeat for several steps on
    /// the same states
    #[arg(short, long, value_name = "FILE")]
    inputs: Vec<PathBuf>,
    /// Use the arrays of `--inputs` in the order of the file, and name outputs `arr_0`, `arr_1`,
    /// ...
    #[arg(long, requires = "inputs")]
    positional: bool,
    /// Run each file of `--inputs` by itself, several at a time; a directory selects its `.npz`
    /// files. `--output` is a directory, with a file of the same name for each
    #[arg(
        long,
        requires = "inputs",
        conflicts_with_all = ["values", "state_in", "state_out", "repeat", "profile", "trace", "html"]
    )]
    batch: bool,
    /// An array for an input, the same in each step
    #[arg(long, value_name = "NAME=FILE.npy")]
    input: Vec<NamedFile>,
    /// An image file for an image input, the same in each step
    #[arg(long, value_name = "NAME=FILE.png")]
    image: Vec<NamedFile>,
    /// Resizing of images whose size differs from the input's; an error by default
    #[arg(long, value_enum, requires = "image", value_name = "HOW")]
    resize: Option<ResizeArg>,
    /// Fill missing inputs with random elements: floats from −1 to 1, integers 0 or 1
    #[arg(long, value_name = "SEED")]
    random: Option<u64>,
    /// Fill weights whose files are missing, for a MIL text without its weight files
    #[arg(long, value_enum, value_name = "HOW")]
    fill_weights: Option<FillWeights>,
    /// Shape of an input for `--random`
    #[arg(long, value_name = "NAME=1,3,224,224", requires = "random")]
    shape: Vec<NamedShape>,
    /// Output file: a `.npz`; for a single output also a `.npy`, or a `.png` if it is an image; `-` is
    /// standard output. A directory, such as `out/`, receives `NAME.png` for each image and `NAME.npy`
    /// for each array. With several steps, `NAME` belongs to the last and `NAME@0` to the first
    #[arg(short, long, value_name = "FILE")]
    output: Option<OutputPath>,
    /// Intermediate values to return as well, by the names in `text` and `compare --per-op`;
    /// repeatable. Later values of a loop are `NAME@1`, `NAME@2`, ...
    #[arg(long, value_name = "NAME", value_delimiter = ',', num_args = 1..)]
    values: Vec<String>,
    /// Initial values of the states, a `.npz` file of arrays by name [default: zeros]
    #[arg(long, value_name = "FILE")]
    state_in: Option<PathBuf>,
    /// Output file for the final values of the states
    #[arg(long, value_name = "FILE")]
    state_out: Option<OutputPath>,
    /// Function of the model, or method of the program [default: the default function]
    #[arg(long, value_name = "NAME")]
    function: Option<String>,
    /// A file of external tensors of an ExecuTorch program; repeatable
    #[arg(long, value_name = "FILE.ptd")]
    data: Vec<PathBuf>,
    /// Device; for an ExecuTorch program, the device of its models
    #[arg(long, value_enum, value_name = "DEVICE", default_value_t = DeviceArg::Host)]
    device: DeviceArg,
    /// Rounding on the host; for an ExecuTorch program, the rounding of its models
    #[arg(long, value_enum, alias = "precision", default_value_t = NumericsArg::Fast)]
    numerics: NumericsArg,
    /// Number of threads; 0 uses all processors
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = super::threads)]
    threads: usize,
    /// Maximum number of operations or instructions, counting each iteration of a loop [default:
    /// about one minute of work]
    #[arg(long, value_name = "N", default_value_t = 1 << 26, hide_default_value = true)]
    max_operations: u64,
    /// Maximum memory of all values, such as `800M` or `4G` [default: half of the machine's memory]
    #[arg(long, value_name = "BYTES", value_parser = quantity::parse_bytes)]
    max_memory: Option<u64>,
    /// Run the last step N more times, and print the duration
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    repeat: Option<u32>,
    /// Print the duration of each kind of operation
    #[arg(long)]
    profile: bool,
    /// Write a trace of the operations for `chrome://tracing` and Perfetto
    #[arg(long, value_name = "FILE.json")]
    trace: Option<OutputPath>,
    /// Write an HTML report with the model and its profile
    #[arg(long, value_name = "FILE.html", requires = "profile")]
    html: Option<OutputPath>,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum FillWeights {
    /// Random elements, deterministic for a seed of `--random`
    Random,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum ResizeArg {
    /// Scale width and height independently
    Stretch,
    /// Scale to cover the size, and crop the rest
    Crop,
    /// Scale to fit into the size, with a black border
    Fit,
}

impl Args {
    /// All output paths.
    fn outputs(&self) -> impl Iterator<Item = &OutputPath> {
        [&self.output, &self.state_out, &self.trace, &self.html].into_iter().flatten()
    }
}

/// Result of a run.
struct Done {
    results: Vec<Outputs>,
    /// Final values of the states.
    states: Arrays,
    times: Times,
    /// Profile of each measured run.
    spans: Vec<Vec<Span>>,
}

/// Durations of a run.
struct Times {
    load: Duration,
    /// Duration of the first step, including planning.
    first: Duration,
    /// Durations of the repeated last step.
    repeats: Vec<Duration>,
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    if args.batch {
        return batch::run(args);
    }
    let readers = args.inputs.iter().chain([&args.model]).filter(|path| is_standard(path));
    if readers.count() > 1 {
        return Err(Failure::user(
            "standard input can be read once, but `-` is passed several times",
        ));
    }
    let inputs = args.inputs.iter().chain([&args.model]).chain(&args.state_in).chain(&args.data);
    super::check_output_paths(inputs, args.outputs())?;
    let start = Instant::now();
    let loaded = load(args, &options(args))?;
    let mut session = loaded.session()?;
    let load = start.elapsed();
    let steps = self::inputs::gather(args, &loaded, &*session)?;
    if let Some(path) = &args.state_in {
        set_states(&mut *session, path)?;
    }
    let done = perform(args, load, &loaded, &mut *session, &steps)?;
    let given = steps.last().map_or(&[][..], Vec::as_slice);
    finish(args, &loaded, session.outputs(), given, &done)
}

fn options(args: &Args) -> RunOptions {
    let bytes = usize::try_from(limits::memory(args.max_memory)).unwrap_or(usize::MAX);
    RunOptions {
        device: args.device.into(),
        threads: args.threads,
        numerics: args.numerics.into(),
        limits: Limits { operations: args.max_operations, bytes, ..Limits::default() },
        data: args.data.clone(),
        ..RunOptions::default()
    }
}

fn load(args: &Args, options: &RunOptions) -> Result<LoadedFunction, Failure> {
    let function = args.function.as_deref();
    let loaded = match args.fill_weights {
        Some(FillWeights::Random) if !executorch::is_program(&args.model) => {
            let (mut opened, archive) = super::open_or_convert(&args.model)?;
            coremill::fill_weights(&mut opened.model, args.random.unwrap_or_default());
            LoadedFunction::model(opened, archive, None, function, options)?
        }
        _ => LoadedFunction::load(&args.model, function, options)?,
    };
    if !args.data.is_empty() && matches!(loaded.content, Content::Model(_)) {
        return Err(Failure::user("`--data` requires an ExecuTorch program"));
    }
    Ok(loaded)
}

/// Additional results of a run.
enum Observation<'w> {
    Nothing,
    /// Intermediate values by name.
    Values(&'w [&'w str]),
    /// Profile of the operations.
    Times(&'w mut Vec<Span>),
}

/// Appends intermediate values that are not outputs.
fn with_values((mut outputs, values): (Outputs, Outputs)) -> Outputs {
    for (name, value) in values.0 {
        if outputs.get(&name).is_none() {
            outputs.0.push((name, value));
        }
    }
    outputs
}

/// Runs all steps, then measures the last one as requested.
fn perform(
    args: &Args,
    load: Duration,
    loaded: &LoadedFunction,
    session: &mut dyn Session,
    steps: &[Arrays],
) -> Result<Done, Failure> {
    let fed = &loaded.fed;
    let mut before: Option<Arrays> = None;
    let mut run = |session: &mut dyn Session, step: &Arrays, how: Observation<'_>| {
        let mut given = step.clone();
        feed(fed, session.inputs(), before.as_deref(), &mut given);
        let outputs = match how {
            Observation::Values(names) => {
                session.run_values(&inputs(&given), names).map(with_values)
            }
            Observation::Times(profile) => session.run_with(
                &inputs(&given),
                &mut Hooks { profile: Some(profile), ..Hooks::default() },
            ),
            Observation::Nothing => session.run(&inputs(&given)),
        };
        let outputs = outputs.map_err(|error| failure(&error))?;
        let goes_on = |name: &str| fed.iter().any(|fed| fed.output == name);
        let kept = outputs.0.iter().filter(|(name, _)| goes_on(name));
        let kept = kept.filter_map(|(name, value)| Some((name.clone(), value.as_array()?.clone())));
        before = Some(kept.collect());
        Ok::<Outputs, Failure>(outputs)
    };
    let mut results = Vec::with_capacity(steps.len());
    let mut times = Times { load, first: Duration::ZERO, repeats: Vec::new() };
    let names: Vec<&str> = args.values.iter().map(String::as_str).collect();
    for (index, step) in steps.iter().enumerate() {
        let start = Instant::now();
        let how = if names.is_empty() { Observation::Nothing } else { Observation::Values(&names) };
        results.push(run(session, step, how)?);
        if index == 0 {
            times.first = start.elapsed();
        }
    }
    // Read the states first, since measured runs change them.
    let states = match &args.state_out {
        Some(_) => session.read_states().map_err(|error| failure(&error))?,
        None => Vec::new(),
    };
    let mut spans = Vec::new();
    if let Some(last) = steps.last() {
        for _ in 0..args.repeat.unwrap_or(0) {
            let start = Instant::now();
            run(session, last, Observation::Nothing)?;
            times.repeats.push(start.elapsed());
        }
        if args.profile || args.trace.is_some() {
            for _ in 0..args.repeat.unwrap_or(1) {
                let mut profile = Vec::new();
                run(session, last, Observation::Times(&mut profile))?;
                spans.push(profile);
            }
        }
    }
    Ok(Done { results, states, times, spans })
}

/// Writes the requested files and prints the report. `specs` are the outputs, and `given` the inputs of the last step.
fn finish(
    args: &Args,
    loaded: &LoadedFunction,
    specs: &[FeatureSpec],
    given: &[(String, Array)],
    done: &Done,
) -> Result<(), Failure> {
    if let Some(path) = &args.output {
        files::write(path, &done.results, args.positional, specs)?;
    }
    if let Some(path) = &args.state_out {
        files::write_npz(path, &done.states)?;
    }
    if let Some(path) = &args.trace {
        profile::write_trace(path, done.spans.last().map_or(&[][..], Vec::as_slice))?;
    }
    if let Some(path) = &args.html {
        let mut page = match &loaded.content {
            Content::Program(program) => super::page::of_program(&args.model, program)?,
            Content::Model(opened) => super::page::of_model(&args.model, opened),
        };
        let spans = done.spans.last().map_or(&[][..], Vec::as_slice);
        let function = &loaded.function;
        page.add_timing(spans, function, format!("`{function}` on {}", place(loaded.device)));
        if let Some(outputs) = done.results.last() {
            super::page::add_arrays(&mut page, given, super::page::arrays(outputs));
        }
        super::page::write(path, &page)?;
    }
    tell(args, &report::Report::new(args, loaded, done))
}

/// Prints the report, unless standard output is used for arrays.
fn tell(args: &Args, report: &report::Report) -> Result<(), Failure> {
    if args.outputs().any(OutputPath::is_stdout) {
        if args.json || args.repeat.is_some() || args.profile {
            output::tell(&report.text(args)?);
        }
        return Ok(());
    }
    output::say(&report.text(args)?)
}

fn set_states(session: &mut dyn Session, path: &Path) -> Result<(), Failure> {
    for (name, array) in read_npz(path, session.states())? {
        session.set_state(&name, &array).map_err(|error| {
            Failure::user(format_args!("{}: {error}", path.display()))
                .hint(error.hint())
                .detail(table("states", session.states()))
        })?;
    }
    Ok(())
}

/// Name of a device.
pub(super) fn place(device: Device) -> String {
    match device {
        Device::Host => "this machine's processor".to_owned(),
        device => device.to_string(),
    }
}
