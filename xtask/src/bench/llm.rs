//! Conversion and generation with a language model in a GGUF file, compared with llama.cpp.
//!
//! Runs of coremill and llama.cpp alternate, each in its own process. With one thread, speeds are tokens per second of
//! CPU time, which other processes hardly affect; with more threads the wall-clock time counts. Medians are printed.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use coremill::SaveOptions;
use coremill::graph::Device;
use coremill::llm::{BuildOptions, Bundle, Generator, LanguageModel};
use serde::{Deserialize, Serialize};

use super::measure::{median, own_time, peak_memory};

/// Maximum size of a package in units of the GGUF file.
const MAX_SIZE: f64 = 1.03;

/// Maximum memory of a conversion in MB.
const MAX_MEMORY: f64 = 100.0;

/// Maximum CPU time of a conversion in seconds, for up to 100 MB and for each 100 MB.
const MAX_SECONDS: f64 = 1.0;

/// Minimum speed in the largest context in units of the speed in the smallest one, at the same position.
const MIN_SPEED: f64 = 0.95;

const LLAMA: &str = include_str!("llm.mjs");

/// Options of the measurement.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// The GGUF file
    model: PathBuf,
    /// Directory with `node_modules/node-llama-cpp`, to compare with llama.cpp
    #[arg(long, value_name = "DIRECTORY")]
    node_llama_cpp: Option<PathBuf>,
    /// Number of threads
    #[arg(long, default_value_t = 1)]
    threads: usize,
    /// Number of tokens to generate
    #[arg(long, default_value_t = 48)]
    tokens: usize,
    /// Contexts
    #[arg(long, value_delimiter = ',', default_values_t = [256, 4096])]
    contexts: Vec<usize>,
    /// Number of tokens before the generated ones
    #[arg(long, value_delimiter = ',', default_values_t = [64])]
    positions: Vec<usize>,
    /// Number of rounds
    #[arg(long, default_value_t = 3)]
    rounds: usize,
}

/// One run, in its own process.
#[derive(clap::Subcommand)]
pub(crate) enum RunArguments {
    /// Converts a model
    Convert {
        /// The GGUF file
        model: PathBuf,
        /// The package
        output: PathBuf,
    },
    /// Generates tokens
    Generate {
        /// The converted model
        model: PathBuf,
        /// Number of threads
        threads: usize,
        /// Number of tokens to generate
        tokens: usize,
        /// The prompt
        prompt: Vec<u32>,
    },
}

/// CPU and wall-clock seconds.
type Seconds = [f64; 2];

#[derive(Serialize, Deserialize)]
struct Conversion {
    time: Seconds,
    memory: f64,
}

#[derive(Serialize, Deserialize)]
struct Generation {
    prefill: Seconds,
    decode: Seconds,
    memory: f64,
    tokens: usize,
}

/// Measures and prints tables; the error lists the missed limits.
pub(super) fn run(arguments: &Arguments) -> Result<(), String> {
    let model = LanguageModel::open(&arguments.model).map_err(|error| error.to_string())?;
    let vocabulary = model.config().vocabulary;
    drop(model);
    let own = std::env::current_exe().map_err(|error| error.to_string())?;
    let directory = scratch(&arguments.model)?;
    let result = measure(arguments, &own, &directory, vocabulary);
    std::fs::remove_dir_all(&directory).map_err(|error| error.to_string())?;
    let broken = result?;
    if broken.is_empty() { Ok(()) } else { Err(broken.join("\n")) }
}

/// A directory for packages.
fn scratch(model: &Path) -> Result<PathBuf, String> {
    let name = model.file_stem().unwrap_or_default().to_string_lossy();
    let directory = crate::workspace::root().join(format!("target/bench-llm/{name}"));
    std::fs::create_dir_all(&directory).map_err(|error| error.to_string())?;
    Ok(directory)
}

fn measure(
    arguments: &Arguments,
    own: &Path,
    directory: &Path,
    vocabulary: usize,
) -> Result<Vec<String>, String> {
    let mut broken = Vec::new();
    let megabytes = |path: &Path| super::start::megabytes(path);
    let size = megabytes(&arguments.model)?;
    println!("{:>8} {:>10} {:>8} {:>9} {:>8}", "context", "MB", "of GGUF", "CPU s", "peak MB");
    for &context in &arguments.contexts {
        let package = package_of(directory, context);
        let mut command = Command::new(own);
        command.args(["bench", "llm-run", "convert"]).args([&arguments.model, &package]);
        let Conversion { time, memory } = output(&mut command)?;
        let (made, seconds) = (megabytes(&package)?, time[0]);
        let ratio = made / size;
        println!("{context:>8} {made:>10.1} {ratio:>8.3} {seconds:>9.2} {memory:>8.0}");
        let most = MAX_SECONDS * (size / 100.0).max(1.0);
        let limits = [
            ("size of the package, in GGUF files", ratio, MAX_SIZE),
            ("memory of the conversion, in MB", memory, MAX_MEMORY),
            ("CPU seconds of the conversion", seconds, most),
        ];
        for (what, found, most) in limits.into_iter().filter(|(_, found, most)| found > most) {
            broken.push(format!("{what}: {found:.2}; the target is at most {most:.2}"));
        }
    }
    println!(
        "\n{:>8} {:>8} {:>9} {:>9} {:>6} {:>9} {:>9} {:>6} {:>8} {:>9}",
        "context",
        "position",
        "decode/s",
        "llama.cpp",
        "ratio",
        "prefill/s",
        "llama.cpp",
        "ratio",
        "peak MB",
        "llama.cpp"
    );
    for &position in &arguments.positions {
        let mut speeds = Vec::new();
        for &context in &arguments.contexts {
            if position + arguments.tokens >= context {
                continue;
            }
            let prompt: Vec<String> =
                (0..position).map(|at| ((at * 7919 + 1000) % vocabulary).to_string()).collect();
            speeds.push(row(arguments, own, &package_of(directory, context), context, &prompt)?);
        }
        if let [first, .., last] = speeds[..]
            && last < MIN_SPEED * first
        {
            broken.push(format!(
                "speed at position {position} in the largest context: {:.2} of that in the smallest; the target is \
                 at least {MIN_SPEED}",
                last / first
            ));
        }
    }
    Ok(broken)
}

fn package_of(directory: &Path, context: usize) -> PathBuf {
    directory.join(format!("context{context}.mlpackage"))
}

/// Measures generation in a context, and prints a row. Returns the speed of decoding.
fn row(
    arguments: &Arguments,
    own: &Path,
    package: &Path,
    context: usize,
    prompt: &[String],
) -> Result<f64, String> {
    let Arguments { threads, tokens, .. } = arguments;
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for _ in 0..arguments.rounds.max(1) {
        let mut command = Command::new(own);
        command.args(["bench", "llm-run", "generate"]).arg(package);
        command.args([threads.to_string(), tokens.to_string()]).args(prompt);
        ours.push(output(&mut command)?);
        if let Some(directory) = &arguments.node_llama_cpp {
            let script = directory.join("coremill-bench-llm.mjs");
            std::fs::write(&script, LLAMA).map_err(|error| error.to_string())?;
            let mut command = Command::new("node");
            command.arg(&script);
            let path = arguments.model.canonicalize().map_err(|error| error.to_string())?;
            command.arg(path);
            command.args([context, *threads, *tokens].map(|number| number.to_string()));
            theirs.push(output(command.args(prompt))?);
        }
    }
    // The clock: CPU time for one thread.
    let clock = usize::from(*threads != 1);
    let speeds = |runs: &[Generation]| {
        let speed = |of: &dyn Fn(&Generation) -> f64| {
            let mut all: Vec<f64> = runs.iter().map(of).collect();
            if all.is_empty() { f64::NAN } else { median(&mut all) }
        };
        [
            speed(&|run| run.tokens as f64 / run.decode[clock]),
            speed(&|run| prompt.len() as f64 / run.prefill[clock]),
            speed(&|run| run.memory),
        ]
    };
    let ([decode, prefill, memory], [their_decode, their_prefill, their_memory]) =
        (speeds(&ours), speeds(&theirs));
    println!(
        "{context:>8} {:>8} {decode:>9.1} {their_decode:>9.1} {:>6.2} {prefill:>9.1} {their_prefill:>9.1} {:>6.2} {memory:>8.0} \
         {their_memory:>9.0}",
        prompt.len(),
        decode / their_decode,
        prefill / their_prefill
    );
    Ok(decode)
}

/// Runs a command that prints JSON in its last line.
fn output<T: for<'de> Deserialize<'de>>(command: &mut Command) -> Result<T, String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.output().map_err(|error| format!("{name}: {error}"))?;
    let printed = String::from_utf8_lossy(&output.stdout);
    let last = printed.lines().last().unwrap_or_default();
    serde_json::from_str(last)
        .map_err(|error| format!("{name}: {error}\n{}", String::from_utf8_lossy(&output.stderr)))
}

/// Clocks of the process.
struct Clocks {
    cpu: f64,
    wall: Instant,
}

impl Clocks {
    fn start() -> Clocks {
        let cpu = own_time().map_or(f64::NAN, |time| time.as_secs_f64());
        Clocks { cpu, wall: Instant::now() }
    }

    fn seconds(&self) -> Seconds {
        let now = Clocks::start();
        [now.cpu - self.cpu, self.wall.elapsed().as_secs_f64()]
    }
}

/// One run; prints its figures.
pub(crate) fn run_once(arguments: &RunArguments) -> Result<(), String> {
    let printed = match arguments {
        RunArguments::Convert { model, output } => serde_json::to_string(&convert(model, output)?),
        RunArguments::Generate { model, threads, tokens, prompt } => {
            serde_json::to_string(&generate(model, *threads, *tokens, prompt)?)
        }
    };
    println!("{}", printed.map_err(|error| error.to_string())?);
    Ok(())
}

fn convert(model: &Path, output: &Path) -> Result<Conversion, String> {
    let name = output.file_stem().unwrap_or_default().to_string_lossy();
    let context = name.trim_start_matches("context").parse().map_err(|_| "no context")?;
    let clocks = Clocks::start();
    let model = LanguageModel::open(model).map_err(|error| error.to_string())?;
    model.companions().map_err(|error| error.to_string())?;
    let options = BuildOptions::default().context(context).prefill(64.min(context));
    let built = model.to_model(&options).map_err(|error| error.to_string())?;
    let verified = coremill::verify(&built).map_err(|report| report.summary())?;
    coremill::save(output, &verified, &SaveOptions::default())
        .map_err(|error| error.to_string())?;
    Ok(Conversion { time: clocks.seconds(), memory: peak_memory().unwrap_or(f64::NAN) })
}

fn generate(
    model: &Path,
    threads: usize,
    tokens: usize,
    prompt: &[u32],
) -> Result<Generation, String> {
    let bundle = Bundle::open(model).map_err(|error| error.to_string())?;
    let options = BuildOptions::default();
    let generator = bundle.generator(Device::Host, threads, &options);
    let mut generator = generator.map_err(|error| error.to_string())?;
    generator.prepare().map_err(|error| error.to_string())?;
    let read = |generator: &mut Generator, ids: &[u32]| -> Result<u32, String> {
        let logits = generator.read(ids).map_err(|error| error.to_string())?;
        let best = logits.iter().enumerate().max_by(|(_, a), (_, b)| a.total_cmp(b));
        Ok(best.map_or(0, |(token, _)| token as u32))
    };
    let clocks = Clocks::start();
    let mut next = read(&mut generator, prompt)?;
    let prefill = clocks.seconds();
    let clocks = Clocks::start();
    for _ in 0..tokens {
        next = read(&mut generator, &[next])?;
    }
    let decode = clocks.seconds();
    Ok(Generation { prefill, decode, memory: peak_memory().unwrap_or(f64::NAN), tokens })
}
