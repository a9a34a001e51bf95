//! Compares the times of the engine with the limits of the machine: the time at peak, the measured time, and
//! the kinds of steps that make up the difference.
//!
//! The limits are measured again before each model, and the highest rates count. The ideal time of a
//! program is the longer one of two times: its arithmetic at the peak rate, and the transfer of its constants,
//! inputs and outputs from memory. Steps must also read their operands from the second-level cache.

mod limits;
mod work;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde::Serialize;

use self::limits::{Limits, Probe, last_cache_bytes, processor};
use self::work::{Operations, Work, is_integer, work};
use super::loaded::{LoadedModel, models, run_optimized};
use crate::workspace::{describe, root};

/// Options of the measurement.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Directory of the models
    #[arg(long, default_value = "target/bench-models")]
    models: PathBuf,
    /// Number of threads
    #[arg(long, value_delimiter = ',', default_values_t = [1, 2])]
    threads: Vec<usize>,
    /// Measure only this model
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// Number of runs; the shortest one counts
    #[arg(long, default_value_t = 40)]
    runs: usize,
    /// Write the measurements to a file
    #[arg(long, value_name = "FILE.json")]
    json: Option<PathBuf>,
}

/// The models that are measured by default.
const MODELS: [&str; 10] = [
    "mobilenet_v2",
    "mobilenet_v2_int8",
    "resnet50",
    "resnet50_int8",
    "efficientnet_b0",
    "convnext_tiny",
    "vit_b_16",
    "llama_prefill",
    "llama_decode",
    "lstm",
];

/// All measurements of a run.
#[derive(Serialize)]
struct Report {
    version: u32,
    processor: String,
    isa: String,
    rows: Vec<Row>,
}

/// A model with a number of threads.
#[derive(Serialize)]
struct Row {
    model: String,
    limits: Limits,
    gflop: f64,
    /// Megabytes of constants, inputs and outputs.
    megabytes: f64,
    /// The ideal time at the machine's limits.
    ideal_ms: f64,
    limited_by: &'static str,
    measured_ms: f64,
    /// Time outside steps.
    between_steps_ms: f64,
    kinds: Vec<Kind>,
}

/// The steps of one kind.
#[derive(Serialize)]
struct Kind {
    kind: &'static str,
    /// Whether the steps compute with 8-bit integers.
    integer: bool,
    steps: usize,
    ms: f64,
    /// Part of the measured time.
    share: f64,
    gflop_per_second: f64,
    /// Part of the peak rate.
    of_peak: f64,
    gb_per_second: f64,
    /// The ideal time at the machine's limits.
    ideal_ms: f64,
    /// Time of the smallest number of threads relative to this one.
    speedup: f64,
}

/// Measures, prints tables, and writes the file.
pub(crate) fn run(arguments: &Arguments) -> Result<(), String> {
    if run_optimized("roofline")? {
        return Ok(());
    }
    let directory = root().join(&arguments.models);
    let wanted: Vec<String> = match arguments.only.is_empty() {
        true => MODELS.map(str::to_owned).to_vec(),
        false => arguments.only.clone(),
    };
    let found = models(&directory, &wanted)?;
    let isa = coremill_simd::Isa::detect();
    let probes = arguments.threads.iter().map(|&threads| Probe::new(isa, threads));
    let mut probes = probes.collect::<Result<Vec<_>, _>>()?;
    let mut report =
        Report { version: 1, processor: processor(), isa: isa.to_string(), rows: Vec::new() };
    println!("{}, {isa}; shortest of {} runs", report.processor, arguments.runs);
    for name in wanted.iter().filter(|name| found.contains(name)) {
        let mut first = BTreeMap::new();
        for probe in &mut probes {
            let row = measure(&directory, name, probe, arguments.runs, &mut first);
            let row = row.map_err(|error| format!("`{name}`: {error}"))?;
            row.print();
            report.rows.push(row);
        }
    }
    if let Some(path) = &arguments.json {
        let text = serde_json::to_string_pretty(&report).map_err(|error| error.to_string())?;
        fs::write(path, text + "\n").map_err(|error| describe("write", path, &error))?;
    }
    Ok(())
}

/// Measures a model. `first` has the times of each kind with the smallest number of threads.
fn measure(
    directory: &Path,
    name: &str,
    probe: &mut Probe,
    runs: usize,
    first: &mut BTreeMap<(&'static str, bool), f64>,
) -> Result<Row, String> {
    let limits = probe.measure();
    let mut model = LoadedModel::open(directory, name, limits.threads)?;
    // Weights are packed in the first runs.
    for _ in 0..6 {
        model.time()?;
    }
    let mut measured_ms = f64::INFINITY;
    for _ in 0..runs {
        measured_ms = measured_ms.min(model.time()?.as_secs_f64() * 1e3);
    }
    let (_, steps) = model.steps(runs)?;
    let function = model.engine.default_function().to_owned();
    let mut kinds: BTreeMap<(&'static str, bool), Kind> = BTreeMap::new();
    let mut program = Work::default();
    let mut integer_operations = 0.0;
    let shown = model.engine.inspect(&function, &mut |function| {
        program = work(function);
        let operations = Operations::new(function);
        // Weights that exceed the last-level cache are read from memory in each run.
        let weights = match program.bytes > last_cache_bytes() as f64 {
            true => limits.memory_gb_per_second,
            false => limits.cache_gb_per_second,
        };
        for step in &steps {
            let (kind, weight_bytes) = operations.classify(step);
            let (flop, bytes) = (step.operations as f64, step.bytes as f64);
            let others = (bytes - weight_bytes).max(0.0);
            let transfer = weight_bytes.min(bytes) / weights + others / limits.cache_gb_per_second;
            let integer = is_integer(step);
            if integer {
                integer_operations += flop;
            }
            let key = (kind, integer);
            let entry = kinds.entry(key).or_insert_with(|| Kind::new(kind, integer));
            entry.steps += 1;
            entry.ms += step.elapsed.as_secs_f64() * 1e3;
            entry.ideal_ms += (flop / limits.rate(integer)).max(transfer) / 1e6;
            // Sums for now; `finish` makes them rates.
            entry.gflop_per_second += flop;
            entry.gb_per_second += bytes;
        }
    });
    shown.ok_or_else(|| format!("there is no function `{function}`"))?;
    let mut kinds: Vec<Kind> = kinds.into_values().collect();
    for kind in &mut kinds {
        let before = *first.entry((kind.kind, kind.integer)).or_insert(kind.ms);
        kind.finish(&limits, measured_ms, before);
    }
    kinds.sort_by(|a, b| b.ms.total_cmp(&a.ms));
    let arithmetic = ((program.flop - integer_operations).max(0.0) / limits.rate(false)
        + integer_operations / limits.rate(true))
        / 1e6;
    let transfer = program.bytes / limits.memory_gb_per_second / 1e6;
    Ok(Row {
        model: name.to_owned(),
        limits,
        gflop: program.flop / 1e9,
        megabytes: program.bytes / 1e6,
        ideal_ms: arithmetic.max(transfer),
        limited_by: if arithmetic > transfer { "arithmetic" } else { "memory" },
        measured_ms,
        between_steps_ms: measured_ms - kinds.iter().map(|kind| kind.ms).sum::<f64>(),
        kinds,
    })
}

impl Kind {
    fn new(kind: &'static str, integer: bool) -> Kind {
        Kind {
            kind,
            integer,
            steps: 0,
            ms: 0.0,
            share: 0.0,
            gflop_per_second: 0.0,
            of_peak: 0.0,
            gb_per_second: 0.0,
            ideal_ms: 0.0,
            speedup: 0.0,
        }
    }

    fn name(&self) -> String {
        format!("{}{}", self.kind, if self.integer { " int8" } else { "" })
    }

    fn finish(&mut self, limits: &Limits, measured_ms: f64, before_ms: f64) {
        self.share = self.ms / measured_ms;
        self.gflop_per_second /= self.ms * 1e6;
        self.gb_per_second /= self.ms * 1e6;
        self.of_peak = self.gflop_per_second / limits.rate(self.integer);
        self.speedup = before_ms / self.ms;
    }
}

impl Row {
    fn print(&self) {
        let Limits {
            threads,
            gflop_per_second,
            integer_gop_per_second,
            memory_gb_per_second,
            cache_gb_per_second,
            round_trip_ns: round_trip,
        } = self.limits;
        println!(
            "\n{}, {threads} thread{}: {:.2} GFLOP, {:.1} MB; limited by {} to {:.2} ms; measured {:.2} ms, {:.2} x",
            self.model,
            if threads == 1 { "" } else { "s" },
            self.gflop,
            self.megabytes,
            self.limited_by,
            self.ideal_ms,
            self.measured_ms,
            self.measured_ms / self.ideal_ms,
        );
        println!(
            "  limits: {gflop_per_second:.0} GFLOP/s, {integer_gop_per_second:.0} GOP/s of int8, {memory_gb_per_second:.1} GB/s from memory, {cache_gb_per_second:.0} GB/s from the second-level cache{}",
            round_trip.map_or_else(String::new, |time| format!(
                ", {time:.0} ns from one processor to another and back"
            )),
        );
        println!(
            "  {:<16} {:>5} {:>9} {:>6} {:>9} {:>8} {:>7} {:>9} {:>9} {:>8}",
            "kind",
            "steps",
            "ms",
            "share",
            "GFLOP/s",
            "of peak",
            "GB/s",
            "ideal ms",
            "over ms",
            "speedup"
        );
        for kind in &self.kinds {
            println!(
                "  {:<16} {:>5} {:>9.3} {:>5.0}% {:>9.1} {:>7.0}% {:>7.1} {:>9.3} {:>9.3} {:>8.2}",
                kind.name(),
                kind.steps,
                kind.ms,
                100.0 * kind.share,
                kind.gflop_per_second,
                100.0 * kind.of_peak,
                kind.gb_per_second,
                kind.ideal_ms,
                kind.ms - kind.ideal_ms,
                kind.speedup,
            );
        }
        let (between, share) = (self.between_steps_ms, self.between_steps_ms / self.measured_ms);
        println!("  {:<16} {:>5} {between:>9.3} {:>5.0}%", "between steps", "", 100.0 * share);
    }
}
