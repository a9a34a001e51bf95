//! Runs of ExecuTorch programs.

use std::path::Path;
use std::time::Instant;

use coremill::executorch::{self, Runner};
use coremill_engine::{Array, Outputs, Value};
use coremill_runtime::{Hooks, LoadOptions, Span};
use coremill_simd::Isa;

use super::inputs::{NamedShape, fill, read_npz, table};
use super::report::Ran;
use super::{Args, EnginePrecision, finish, limits, perform};
use crate::output::Failure;

/// Loads a method of a program.
pub(in crate::commands) fn load(
    path: &Path,
    method: Option<&str>,
    options: LoadOptions,
) -> Result<Runner, Failure> {
    let program = executorch::open(path).map_err(|error| super::super::failure(&error))?;
    Runner::new(program, method, options).map_err(|error| failure(path, &error))
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    if !args.image.is_empty() {
        let message = "`--image` is for models; methods of ExecuTorch programs take tensors";
        return Err(Failure::user(message).hint(Some(
            "pass the picture's elements as an array, scaled as the method expects them: `--input NAME=FILE.npy`",
        )));
    }
    let start = Instant::now();
    let faithful = args.precision == EnginePrecision::Faithful;
    let (threads, data) = (args.threads, args.data.clone());
    let mut options = LoadOptions { threads, data, faithful, ..LoadOptions::default() };
    options.limits.instructions = args.max_operations;
    options.limits.memory = limits::memory(args.max_memory);
    let mut runner = load(&args.model, args.function.as_deref(), options)?;
    let load = start.elapsed();
    let steps = gather(args, &runner)?;
    if let Some(path) = &args.state_in {
        set_states(&mut runner, path)?;
    }
    let step = |runner: &mut Runner, step: &Step, profile: Option<&mut Vec<Span>>| {
        run_step(args, runner, step, profile)
    };
    let states = |runner: &Runner| match &args.state_out {
        Some(_) => runner.states().map_err(|error| failure(&args.model, &error)),
        None => Ok(Vec::new()),
    };
    let done = perform(args, load, &mut runner, &steps, step, states)?;
    let threads = match args.threads {
        0 => std::thread::available_parallelism().map_or(1, usize::from),
        threads => threads,
    };
    let precision = args.precision.into();
    let ran = Ran { function: runner.method(), precision, threads, isa: Isa::detect() };
    finish(args, ran, steps.last().map_or(&[], Vec::as_slice), &done)
}

type Step = Vec<(String, Array)>;

fn run_step(
    args: &Args,
    runner: &mut Runner,
    step: &Step,
    profile: Option<&mut Vec<Span>>,
) -> Result<Outputs, Failure> {
    let outputs = runner
        .run_with(step, &mut Hooks { profile, ..Hooks::default() })
        .map_err(|error| failure(&args.model, &error))?;
    let value = |(name, array)| (name, Value::Array(array));
    Ok(Outputs(outputs.into_iter().map(value).collect()))
}

fn set_states(runner: &mut Runner, path: &Path) -> Result<(), Failure> {
    for (name, array) in read_npz(path)? {
        if let Err(error) = runner.set_state(&name, &array) {
            let ports = runner.state_ports().map_err(|error| super::super::failure(&error))?;
            return Err(failure(path, &error).detail(table("states", &ports)));
        }
    }
    Ok(())
}

fn failure(path: &Path, error: &coremill::Error) -> Failure {
    Failure::user(format_args!("{}: {error}", path.display())).hint(error.remedy())
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
            let shapes = with_largest(&args.shape, runner, &step);
            fill(&shapes, ports, seed, &mut step, &|input| runner.vocabulary(input))?;
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
