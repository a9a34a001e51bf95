//! Measures the overhead of sessions on the host: the time that a session adds to the engine's run, and the
//! start of a transformer with 12 layers of width 768. The starts are the first one, the second one, and one
//! after a parameter was set.
//!
//! `cargo xtask bench session` prints the result. Only the overhead of a run has a limit.

use std::error::Error;
use std::path::Path;
use std::time::{Duration, Instant};

use coremill_bench_rlx::{TOKENS, WIDTH, graph, save, weights};
use coremill_engine::{Array, Engine, Hooks, Input, LoadOptions};
use coremill_graph::{DType, Device, Executable, Graph, Precision, Session};
use coremill_verify::verify;

/// The maximum time that a session may add to the engine's time.
const BAR: Duration = Duration::from_micros(5);

/// Number of batches, of which the fastest counts, and of runs in a batch.
const BATCHES: usize = 300;
const RUNS: u32 = 50;

/// Number of starts, of which the fastest counts.
const STARTS: usize = 5;

fn main() -> Result<(), Box<dyn Error>> {
    let mut most = Duration::ZERO;
    println!(
        "what a session adds to a run of the engine, which is given arrays and gives new ones"
    );
    for inputs in [1, 8] {
        most = most.max(overhead(inputs)?);
    }
    starts()?;
    if most > BAR {
        return Err(format!("a session adds {most:?} to a run; the limit is {BAR:?}").into());
    }
    Ok(())
}

/// A graph that adds its inputs.
fn sum(inputs: usize) -> Graph {
    let graph = Graph::new();
    let all: Vec<_> =
        (0..inputs).map(|at| graph.input(&format!("x{at}"), DType::Fp32, [1, 64])).collect();
    let first = all[0] * 2.0;
    graph.output("y", all[1..].iter().fold(first, |sum, &one| sum + one));
    graph
}

/// The shortest time of a run.
fn least(act: &mut dyn FnMut()) -> Duration {
    let mut time = || {
        let start = Instant::now();
        (0..RUNS).for_each(|_| act());
        start.elapsed() / RUNS
    };
    (0..BATCHES).map(|_| time()).min().unwrap_or_default()
}

/// Prints the time that a session adds to a run of a small model; returns the maximum.
fn overhead(count: usize) -> Result<Duration, Box<dyn Error>> {
    let session = Session::new(Device::Host).precision(Precision::Fp32).threads(1);
    let mut model = session.compile(&sum(count))?;
    let names: Vec<String> = (0..count).map(|at| format!("x{at}")).collect();
    let x = [1.5f32; 64];
    let given: Vec<(&str, &dyn coremill_graph::Input)> =
        names.iter().map(|name| (name.as_str(), &x as _)).collect();
    let mut y = [0.0f32; 64];
    let plain = least(&mut || drop(model.run(&given).expect("it runs")));
    let into = least(&mut || model.run_into(&given, &mut [("y", &mut y)]).expect("it runs"));

    let verified = verify(model.model()?).map_err(|report| report.summary())?;
    let engine = Engine::load(&verified, &LoadOptions { threads: 1, ..LoadOptions::default() })?;
    let mut direct = engine.session(engine.default_function())?;
    let arrays = vec![Array::floats(DType::Fp32, [1, 64], x.to_vec()); count];
    let alone = least(&mut || {
        let mut inputs = arrays.iter().map(|array| Input::View(array.view())).collect();
        let results = direct.run_in_place(&mut inputs, &mut Vec::new(), &mut Hooks::default());
        drop(results.expect("it runs"));
    });
    let added = [plain, into].map(|time| time.saturating_sub(alone));
    println!(
        "  {count} inputs: engine {alone:?}; `run` adds {:?}, `run_into` adds {:?}",
        added[0], added[1]
    );
    Ok(added[0].max(added[1]))
}

/// Prints the time to the first result: in a new process, a second time, and after a parameter was set.
fn starts() -> Result<(), Box<dyn Error>> {
    let directory = tempfile::tempdir()?;
    let file = directory.path().join("weights.safetensors");
    let package = directory.path().join("model.mlpackage");
    save(&file, &weights())?;
    let x = vec![0.5f32; TOKENS * WIDTH];
    let weight = vec![0.01f32; WIDTH * WIDTH];
    println!("milliseconds of a transformer of 12 x 768, {TOKENS} tokens; the least of {STARTS}");
    for precision in [Precision::Fp32, Precision::Fp16] {
        let mut best = [f64::INFINITY; 6];
        for _ in 0..STARTS {
            let start = Instant::now();
            let mut model = built(&file, precision)?;
            model.model()?;
            let made = start.elapsed();
            run(&mut model, &x)?;
            let first = start.elapsed();
            // The next runs pack the weights.
            for _ in 0..4 {
                run(&mut model, &x)?;
            }
            let again = timed(|| run(&mut model, &x))?;
            model.set_param("layers.5.attn.q_proj.weight", &weight)?;
            let set = timed(|| run(&mut model, &x))?;
            if !package.exists() {
                model.save(&package)?;
            }
            drop(model);
            let opened = timed(|| {
                let mut model = Session::new(Device::Host).open(&package)?;
                run(&mut model, &x)
            })?;
            let times = [made, first, again, set, opened, set.saturating_sub(again)];
            for (best, time) in best.iter_mut().zip(times) {
                *best = best.min(time.as_secs_f64() * 1e3);
            }
        }
        std::fs::remove_dir_all(&package)?;
        let [made, first, again, set, opened, more] = best;
        println!("  {precision:?}:");
        println!("    {made:8.2}  to build and compile the graph, weights mapped");
        println!("    {first:8.2}  to the first result from nothing");
        println!("    {opened:8.2}  to the first result from the package");
        println!("    {again:8.2}  a run");
        println!("    {set:8.2}  a run after a parameter of 768 x 768 was set, {more:.2} more");
    }
    Ok(())
}

fn built(file: &Path, precision: Precision) -> Result<Executable, Box<dyn Error>> {
    let mut model = Session::new(Device::Host).precision(precision).compile(&graph())?;
    model.load_params(file)?;
    Ok(model)
}

fn run(model: &mut Executable, x: &Vec<f32>) -> Result<(), Box<dyn Error>> {
    std::hint::black_box(model.run(&[("x", x)])?);
    Ok(())
}

fn timed(act: impl FnOnce() -> Result<(), Box<dyn Error>>) -> Result<Duration, Box<dyn Error>> {
    let start = Instant::now();
    act()?;
    Ok(start.elapsed())
}
