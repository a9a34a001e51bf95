//! Models of the benches, loaded for the engine, and the times of their runs and steps.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use coremill_engine::{Array, Engine, Hooks, LoadOptions, Outputs, Session, Span};

use super::measure::{arrays, own_time};
use crate::workspace::{execute, root};

/// Runs this subject of the benches in an optimized build if this one is not. Returns whether it did.
pub(super) fn run_optimized(subject: &str) -> Result<bool, String> {
    if cfg!(debug_assertions) {
        let mut optimized = Command::new("cargo");
        optimized.current_dir(root()).args(["run", "--quiet", "--release", "--package", "xtask"]);
        optimized.args(["--", "bench", subject]).args(std::env::args_os().skip(3));
        execute(&mut optimized, "the optimized run")?;
        return Ok(true);
    }
    Ok(false)
}

/// The models in a directory, by name.
pub(super) fn models(directory: &Path, only: &[String]) -> Result<Vec<String>, String> {
    let found = fs::read_dir(directory).map_err(|error| {
        format!(
            "no models found in {} ({error}); make them with `python -m oracle.bench.models --out {}`",
            directory.display(),
            directory.display()
        )
    })?;
    let mut names: Vec<String> = found
        .filter_map(|entry| {
            Some(entry.ok()?.file_name().to_str()?.strip_suffix(".mlpackage")?.to_owned())
        })
        .filter(|name| only.is_empty() || only.contains(name))
        .collect();
    names.sort();
    match names.is_empty() {
        true => Err(format!("{} has none of the requested models", directory.display())),
        false => Ok(names),
    }
}

/// A model with its recorded inputs.
pub(super) struct LoadedModel {
    pub(super) engine: Engine,
    session: Session,
    inputs: Vec<(String, Array)>,
}

impl LoadedModel {
    pub(super) fn open(
        directory: &Path,
        name: &str,
        threads: usize,
    ) -> Result<LoadedModel, String> {
        let model = coremill::open(directory.join(format!("{name}.mlpackage")))
            .map_err(|error| error.to_string())?;
        let verified = coremill::verify(&model).map_err(|report| report.summary())?;
        let options = LoadOptions { threads, ..LoadOptions::default() };
        let engine = Engine::load(&verified, &options).map_err(|error| error.to_string())?;
        let session =
            engine.session(engine.default_function()).map_err(|error| error.to_string())?;
        let mut inputs = arrays(directory, name, "inputs")?;
        inputs.retain(|(name, _)| session.inputs().iter().any(|port| port.name == *name));
        Ok(LoadedModel { engine, session, inputs })
    }

    /// Runs once.
    pub(super) fn run(&mut self) -> Result<Outputs, String> {
        let inputs = named(&self.inputs);
        self.session.run(&inputs).map_err(|error| error.to_string())
    }

    /// The time of one run: processor time with one thread, else wall-clock time.
    pub(super) fn time(&mut self) -> Result<Duration, String> {
        let inputs = named(&self.inputs);
        let (start, start_own) = (Instant::now(), own_time());
        self.session.run(&inputs).map_err(|error| error.to_string())?;
        let elapsed = start.elapsed();
        Ok(match (self.engine.threads(), start_own, own_time()) {
            (1, Some(start), Some(end)) => end - start,
            _ => elapsed,
        })
    }

    /// Times of runs in milliseconds, and the steps, each with the duration of its shortest run.
    pub(super) fn steps(&mut self, runs: usize) -> Result<(Vec<f64>, Vec<Span>), String> {
        let inputs = named(&self.inputs);
        let (mut times, mut steps): (Vec<f64>, Vec<Span>) = Default::default();
        for _ in 0..runs {
            let mut spans = Vec::new();
            let mut hooks = Hooks { profile: Some(&mut spans), ..Hooks::default() };
            let start = Instant::now();
            self.session.run_with(&inputs, &mut hooks).map_err(|error| error.to_string())?;
            times.push(start.elapsed().as_secs_f64() * 1e3);
            if steps.len() != spans.len() {
                steps = spans;
                continue;
            }
            for (step, span) in steps.iter_mut().zip(spans) {
                step.elapsed = step.elapsed.min(span.elapsed);
            }
        }
        Ok((times, steps))
    }
}

fn named(inputs: &[(String, Array)]) -> Vec<(&str, Array)> {
    inputs.iter().map(|(name, array)| (name.as_str(), array.clone())).collect()
}
