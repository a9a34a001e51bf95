//! Runs of ExecuTorch programs.

use std::path::Path;
use std::time::{Duration, Instant};

use coremill::engine::{Array, Outputs, Precision, Value};
use coremill::executorch::{self, Runner};
use coremill::runtime::LoadOptions;
use coremill::tensor::Isa;

use super::inputs::{NamedShape, fill, read_npz, table};
use super::report::{Ran, Report};
use super::{Args, EnginePrecision, Times, tell, write_outputs};
use crate::output::Failure;

/// Loads a method of a program.
pub(in crate::commands) fn load(
    path: &Path,
    method: Option<&str>,
    threads: usize,
    data: &[std::path::PathBuf],
) -> Result<Runner, Failure> {
    let program = executorch::open(path).map_err(|error| super::super::failure(&error))?;
    let options = LoadOptions { threads, data: data.to_vec(), ..LoadOptions::default() };
    Runner::new(program, method, options).map_err(|error| {
        Failure::user(format_args!("{}: {error}", path.display())).hint(error.remedy())
    })
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let only_models = [
        ("--image", !args.image.is_empty()),
        ("--state-in", args.state_in.is_some()),
        ("--state-out", args.state_out.is_some()),
        ("--max-operations", args.max_operations.is_some()),
        ("--profile", args.profile),
        ("--trace", args.trace.is_some()),
        ("--precision faithful", args.precision == EnginePrecision::Faithful),
    ];
    if let Some((option, _)) = only_models.iter().find(|(_, given)| *given) {
        let message = format!("`{option}` is for models, not for ExecuTorch programs");
        return Err(Failure::user(message)
            .hint(Some("`coremill extract` writes the models inside of a program out")));
    }
    let start = Instant::now();
    let mut runner = load(&args.model, args.function.as_deref(), args.threads, &args.data)?;
    let load = start.elapsed();
    let steps = gather(args, &runner)?;
    let mut results = Vec::with_capacity(steps.len());
    let mut times = Times { load, first: Duration::ZERO, repeats: Vec::new() };
    for (index, step) in steps.iter().enumerate() {
        let start = Instant::now();
        results.push(run_step(args, &mut runner, step)?);
        if index == 0 {
            times.first = start.elapsed();
        }
    }
    if let Some(last) = steps.last() {
        for _ in 0..args.repeat.unwrap_or(0) {
            let start = Instant::now();
            run_step(args, &mut runner, last)?;
            times.repeats.push(start.elapsed());
        }
    }
    if let Some(path) = &args.output {
        write_outputs(path, &results, args.positional)?;
    }
    let threads = match args.threads {
        0 => std::thread::available_parallelism().map_or(1, usize::from),
        threads => threads,
    };
    let ran =
        Ran { function: runner.method(), precision: Precision::Fast, threads, isa: Isa::detect() };
    tell(args, &Report::new(args, ran, &results, &times, &[]))
}

type Step = Vec<(String, Array)>;

fn run_step(args: &Args, runner: &mut Runner, step: &Step) -> Result<Outputs, Failure> {
    let outputs = runner.run(step).map_err(|error| {
        Failure::user(format_args!("{}: {error}", args.model.display())).hint(error.remedy())
    })?;
    let value = |(name, array)| (name, Value::Array(array));
    Ok(Outputs(outputs.into_iter().map(value).collect()))
}

/// The inputs of each step, checked before any of them runs.
fn gather(args: &Args, runner: &Runner) -> Result<Vec<Step>, Failure> {
    let ports = runner.ports();
    let expected = || table("inputs", ports);
    let is_unknown = |name: &str| !ports.iter().any(|port| port.name == name);
    let names = args.input.iter().map(|named| &*named.name);
    if let Some(name) =
        names.chain(args.shape.iter().map(NamedShape::name)).find(|name| is_unknown(name))
    {
        return Err(Failure::user(format_args!("there is no input `{name}`")).detail(expected()));
    }
    let mut constant = Vec::new();
    for named in &args.input {
        let array = coremill::arrays::read_npy(&named.path);
        let array = array.map_err(|error| super::super::failure(&error))?;
        constant.push((named.name.clone(), array));
    }
    let mut steps = Vec::new();
    for path in &args.inputs {
        let mut found = read_npz(path)?;
        if args.positional {
            rename(path, &mut found, runner)?;
        }
        steps.push((Some(path), found));
    }
    if steps.is_empty() {
        steps.push((None, Vec::new()));
    }
    let mut checked = Vec::with_capacity(steps.len());
    for (index, (path, mut step)) in steps.into_iter().enumerate() {
        step.extend(constant.iter().cloned());
        if let Some(seed) = args.random {
            let seed = seed.wrapping_add(index as u64);
            fill(&with_largest(&args.shape, runner, &step), ports, seed, &mut step)?;
        }
        runner.check(&step).map_err(|error| {
            let place = path.map_or_else(String::new, |path| format!("{}: ", path.display()));
            let hint = step.is_empty().then_some("pass `--inputs FILE.npz`, or `--random SEED`");
            Failure::user(format_args!("{place}{error}"))
                .hint(error.remedy().or(hint))
                .detail(expected())
        })?;
        checked.push(step);
    }
    Ok(checked)
}

/// Gives arrays the names of inputs, in order.
fn rename(path: &Path, arrays: &mut Step, runner: &Runner) -> Result<(), Failure> {
    let ports = runner.ports();
    if arrays.len() > ports.len() {
        let (found, expected) = (arrays.len(), ports.len());
        let place = path.display();
        return Err(Failure::user(format_args!(
            "{place}: holds {found} arrays, but there are {expected} inputs"
        ))
        .detail(table("inputs", ports)));
    }
    for ((name, _), port) in arrays.iter_mut().zip(ports) {
        name.clone_from(&port.name);
    }
    Ok(())
}

/// The shapes that were asked for, and the largest ones of other inputs whose sizes change.
pub(in crate::commands) fn with_largest(
    shapes: &[NamedShape],
    runner: &Runner,
    given: &[(String, Array)],
) -> Vec<NamedShape> {
    let mut all = shapes.to_vec();
    for port in runner.ports() {
        let is_known = port.default_shape().is_some()
            || shapes.iter().any(|named| named.name() == port.name)
            || given.iter().any(|(name, _)| *name == port.name);
        if let Some(shape) = runner.largest(&port.name).filter(|_| !is_known) {
            all.push(NamedShape::new(port.name.clone(), shape));
        }
    }
    all
}
