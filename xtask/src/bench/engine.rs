//! Compares the engine with torch, onnxruntime and OpenVINO on whole models.
//!
//! The others run in a process of their own, alternately with the engine, so that all have the same
//! conditions: a round is some runs of the engine, then some runs of each other. With one thread the CPU time
//! of the process is measured, which other processes hardly affect; with more threads the wall-clock time.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use coremill_engine::Array;
use serde_json::Value;

use super::loaded::{LoadedModel, models, run_optimized};
use super::measure::{arrays, round_trip_ns};
use super::start;
use crate::oracle;
use crate::workspace::root;

/// Options of the measurement.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Directory of the models
    #[arg(long, default_value = "target/bench-models")]
    models: PathBuf,
    /// Number of threads of the engine and of each peer
    #[arg(long, value_delimiter = ',', default_values_t = [1, 2])]
    threads: Vec<usize>,
    /// Measure only this model
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// Number of rounds
    #[arg(long, default_value_t = 8)]
    rounds: usize,
    /// Number of runs in a round
    #[arg(long, default_value_t = 3)]
    runs: usize,
    /// Compare the shortest runs instead of the medians
    #[arg(long)]
    shortest: bool,
    /// Print the time of the engine's kinds of steps, each in its shortest run, without measuring peers
    #[arg(long)]
    profile: bool,
    /// Print each step, not each kind of step
    #[arg(long, requires = "profile")]
    each: bool,
}

/// A limit: the maximum time of the engine relative to another implementation.
struct Promise {
    model: &'static str,
    peer: &'static str,
    most: f64,
}

const fn promise(model: &'static str, peer: &'static str, most: f64) -> Promise {
    Promise { model, peer, most }
}

const PROMISES: &[Promise] = &[
    promise("mobilenet_v2", "onnxruntime", 1.15),
    promise("resnet50", "onnxruntime", 1.15),
    promise("lstm", "onnxruntime", 1.15),
    promise("mobilenet_v2_int8", "onnxruntime", 1.0),
    promise("resnet50_int8", "onnxruntime", 1.0),
    promise("vit_b_16", "onnxruntime", 1.0),
    promise("llama_prefill", "onnxruntime", 1.0),
    promise("llama_decode", "onnxruntime", 1.0),
    promise("llama_decode_fp16", "onnxruntime", 0.5),
    promise("llama_decode_int4", "onnxruntime", 0.5),
    promise("llama_decode_lut4", "onnxruntime", 0.5),
    promise("mobilenet_v2", "torch", 1.0),
    promise("resnet50", "torch", 1.0),
    promise("lstm", "torch", 1.0),
    promise("vit_b_16", "torch", 1.0),
    promise("llama_prefill", "torch", 1.0),
    promise("llama_decode", "torch", 1.0),
];

const PEERS: [&str; 3] = ["torch", "onnxruntime", "openvino"];

/// The peers whose faster one is the best alternative.
const RUNTIMES: [&str; 2] = ["onnxruntime", "openvino"];

/// Measures, prints a table, and reports missed limits.
pub(crate) fn run(arguments: &Arguments) -> Result<(), String> {
    if run_optimized("engine")? {
        return Ok(());
    }
    let directory = root().join(&arguments.models);
    let names = models(&directory, &arguments.only)?;
    let mut broken = Vec::new();
    println!(
        "{:<26} {:>2} {:>10} {:>10} {:>12} {:>10} {:>8} {:>8} {:>9} {:>8}",
        if arguments.shortest { "shortest ms" } else { "median ms" },
        "T",
        "engine",
        "torch",
        "onnxruntime",
        "openvino",
        "/ torch",
        "/ best",
        "error",
        "apart ns"
    );
    for &threads in &arguments.threads {
        let mut peers = match arguments.profile {
            true => None,
            false => Some(Peers::start(&directory, threads)?),
        };
        for name in &names {
            let row = measure(arguments, &directory, name, threads, peers.as_mut());
            let row = row.map_err(|error| format!("`{name}`: {error}"))?;
            row.print(name, threads);
            broken.extend(row.broken(name, threads));
        }
    }
    if !arguments.profile {
        broken.extend(start::run(&directory, &names)?);
    }
    if broken.is_empty() { Ok(()) } else { Err(broken.join("\n       ")) }
}

/// Measurements of one model.
struct Row {
    engine: f64,
    peers: BTreeMap<&'static str, f64>,
    /// Error relative to the largest result of eager torch; `None` if there are no reference results.
    error: Option<f32>,
    /// From one processor to another and back.
    round_trip_ns: Option<f64>,
}

impl Row {
    fn print(&self, name: &str, threads: usize) {
        let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
        let time = |peer: &str| self.peers.get(peer).copied();
        let shown = |time: Option<f64>| or_dash(time.map(|time| format!("{time:.2}")));
        let [torch, onnxruntime, openvino] = PEERS.map(|peer| shown(time(peer)));
        let best = RUNTIMES.into_iter().filter_map(time).min_by(f64::total_cmp);
        let to_torch = shown(time("torch").map(|time| self.engine / time));
        let to_best = shown(best.map(|time| self.engine / time));
        let error = or_dash(self.error.map(|error| format!("{error:.1e}")));
        let apart = or_dash(self.round_trip_ns.map(|time| format!("{time:.0}")));
        println!(
            "{name:<26} {threads:>2} {:>10.2} {torch:>10} {onnxruntime:>12} {openvino:>10} {to_torch:>8} {to_best:>8} {error:>9} {apart:>8}",
            self.engine
        );
    }

    fn broken(&self, name: &str, threads: usize) -> Vec<String> {
        let promises = PROMISES.iter().filter(|promise| promise.model == name);
        promises
            .filter_map(|promise| {
                let ratio = self.engine / self.peers.get(promise.peer)?;
                let Promise { peer, most, .. } = promise;
                (ratio > *most).then(|| {
                    format!(
                        "{name} takes {ratio:.2} times as long as {peer} on {threads} threads; \
                         the target is at most {most}"
                    )
                })
            })
            .collect()
    }
}

fn measure(
    arguments: &Arguments,
    directory: &Path,
    name: &str,
    threads: usize,
    mut peers: Option<&mut Peers>,
) -> Result<Row, String> {
    let mut model = LoadedModel::open(directory, name, threads)?;
    let error = error_of(&mut model, directory, name)?;
    for _ in 0..3 {
        model.time()?;
    }
    if arguments.profile {
        return profile(arguments, &mut model, error);
    }
    // A variant without a counterpart is compared with the counterpart of its base model.
    let twin = (1..=name.len())
        .rev()
        .filter_map(|end| name.get(..end))
        .find(|name| directory.join(format!("{name}.onnx")).exists());
    let (mut own, mut theirs): (Vec<f64>, BTreeMap<&str, Vec<f64>>) = Default::default();
    for _ in 0..arguments.rounds {
        for _ in 0..arguments.runs {
            own.push(model.time()?.as_secs_f64() * 1e3);
        }
        if let (Some(peers), Some(twin)) = (peers.as_deref_mut(), twin) {
            for peer in PEERS {
                theirs.entry(peer).or_default().extend(peers.run(twin, arguments.runs, peer)?);
            }
        }
    }
    if let (Some(peers), Some(twin)) = (peers, twin) {
        peers.ask(&format!("drop {twin}"))?;
    }
    let middle = |mut times: Vec<f64>| {
        times.sort_by(f64::total_cmp);
        let at = if arguments.shortest { 0 } else { times.len() / 2 };
        times.get(at).copied().unwrap_or(f64::NAN)
    };
    let peers = theirs.into_iter().map(|(peer, times)| (peer, middle(times))).collect();
    Ok(Row { engine: middle(own), peers, error, round_trip_ns: round_trip_ns(threads) })
}

/// Prints the time of each kind of step.
fn profile(
    arguments: &Arguments,
    model: &mut LoadedModel,
    error: Option<f32>,
) -> Result<Row, String> {
    let (mut own, steps) = model.steps(arguments.rounds * arguments.runs)?;
    let mut kinds: BTreeMap<String, (usize, Duration, u64, u64)> = BTreeMap::new();
    for (index, step) in steps.into_iter().enumerate() {
        let label = match arguments.each {
            true => format!("{index:>4} {} {}", step.label, step.value),
            false => step.label,
        };
        let kind = kinds.entry(label).or_default();
        kind.0 += 1;
        kind.1 += step.elapsed;
        kind.2 += step.operations;
        kind.3 += step.bytes;
    }
    let mut kinds: Vec<_> = kinds.into_iter().collect();
    kinds.sort_by_key(|(_, (_, elapsed, ..))| std::cmp::Reverse(*elapsed));
    println!("{:<44} {:>6} {:>9} {:>9} {:>8}", "step", "runs", "ms", "GFLOP/s", "GB/s");
    for (label, (count, elapsed, operations, bytes)) in kinds {
        let seconds = elapsed.as_secs_f64();
        println!(
            "{:<44} {:>6} {:>9.3} {:>9.1} {:>8.1}",
            label.chars().take(44).collect::<String>(),
            count,
            seconds * 1e3,
            operations as f64 / seconds / 1e9,
            bytes as f64 / seconds / 1e9
        );
    }
    own.sort_by(f64::total_cmp);
    let engine = own.get(own.len() / 2).copied().unwrap_or(f64::NAN);
    Ok(Row { engine, peers: BTreeMap::new(), error, round_trip_ns: None })
}

/// Runs once; returns the error relative to the results of eager torch.
fn error_of(model: &mut LoadedModel, directory: &Path, name: &str) -> Result<Option<f32>, String> {
    let outputs = model.run()?;
    if !directory.join(format!("{name}.outputs.npz")).exists() {
        return Ok(None);
    }
    let mut worst = 0.0f32;
    for (name, expected) in arrays(directory, name, "outputs")? {
        let (Some(found), Some(expected)) =
            (outputs.array(&name).and_then(Array::as_floats), expected.as_floats())
        else {
            continue;
        };
        let scale = expected.iter().fold(0.0f32, |most, x| most.max(x.abs()));
        let pairs = found.iter().zip(expected);
        let error =
            pairs.fold(0.0f32, |most, (found, expected)| most.max((found - expected).abs()));
        worst = worst.max(error / scale);
    }
    Ok(Some(worst))
}

/// The process that runs the peers on command.
struct Peers {
    process: Child,
    commands: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Peers {
    fn start(models: &Path, threads: usize) -> Result<Peers, String> {
        let python = oracle::interpreter(&root())?;
        let mut command = Command::new(python);
        command.current_dir(root()).args(["-m", "oracle.bench.engine"]).arg(models);
        command.args(["--threads", &threads.to_string()]);
        let failed = |why: String| {
            format!(
                "cannot run the peers: {why}; they require the packages in oracle/requirements-bench.txt"
            )
        };
        let mut process = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| failed(error.to_string()))?;
        let (Some(commands), Some(answers)) = (process.stdin.take(), process.stdout.take()) else {
            return Err(failed("its streams are not available".to_owned()));
        };
        Ok(Peers { process, commands, answers: BufReader::new(answers) })
    }

    /// The times of some runs in milliseconds.
    fn run(&mut self, model: &str, count: usize, peer: &str) -> Result<Vec<f64>, String> {
        let answer = self.ask(&format!("run {model} {count} {peer}"))?;
        let times = answer["milliseconds"][peer].as_array();
        let times = times.ok_or_else(|| format!("unexpected answer of the peers: `{answer}`"))?;
        Ok(times.iter().filter_map(Value::as_f64).collect())
    }

    fn ask(&mut self, command: &str) -> Result<Value, String> {
        let failed = |error: &dyn std::fmt::Display| format!("the peers do not answer: {error}");
        writeln!(self.commands, "{command}").map_err(|error| failed(&error))?;
        let mut line = String::new();
        self.answers.read_line(&mut line).map_err(|error| failed(&error))?;
        serde_json::from_str(&line).map_err(|error| failed(&error))
    }
}

impl Drop for Peers {
    fn drop(&mut self) {
        // It ends when it is told to; a failure no longer matters.
        let _ = writeln!(self.commands, "end");
        let _ = self.process.wait();
    }
}
