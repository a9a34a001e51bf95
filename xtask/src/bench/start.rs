//! Time and memory from a package to its first result. Each run is a process of its own, whose CPU time is
//! measured, with the pages of the package in the system's cache.

use std::path::{Path, PathBuf};
use std::process::Command;

use coremill_engine::{Engine, LoadOptions};

use super::measure::{arrays, own_time, peak_memory};

/// Maximum time in milliseconds for a package of up to a hundred megabytes; for larger packages, for each
/// hundred megabytes.
const MAX_MILLISECONDS: f64 = 200.0;

/// Maximum memory in MB in addition to the package, the inputs and the results: intermediate values and the
/// process itself.
const MAX_MEMORY: f64 = 50.0;

/// Number of measurements; the minimum counts.
const REPETITIONS: usize = 3;

/// One run.
#[derive(clap::Args)]
pub(crate) struct RunArguments {
    /// Directory of the models
    models: PathBuf,
    /// Name of the model
    name: String,
}

/// Measurements of one run.
struct Start {
    milliseconds: f64,
    /// Peak memory, and the part of it for inputs and results, in MB.
    memory: Option<(f64, f64)>,
}

/// Measures and prints a table; returns the missed limits.
pub(super) fn run(directory: &Path, names: &[String]) -> Result<Vec<String>, String> {
    let own = std::env::current_exe().map_err(|error| error.to_string())?;
    let mut broken = Vec::new();
    println!(
        "{:<26} {:>9} {:>10} {:>9} {:>9}",
        "to the first result, 1T", "package", "ms", "peak MB", "at most"
    );
    for name in names {
        let mut best: Option<Start> = None;
        for _ in 0..REPETITIONS {
            let mut command = Command::new(&own);
            command.args(["bench", "engine-run"]).arg(directory).arg(name);
            let start = read(&mut command)?;
            if best.as_ref().is_none_or(|best| start.milliseconds < best.milliseconds) {
                best = Some(start);
            }
        }
        let Some(Start { milliseconds, memory }) = best else { continue };
        let package = megabytes(&directory.join(format!("{name}.mlpackage")))?;
        let most = MAX_MILLISECONDS * (package / 100.0).max(1.0);
        if milliseconds > most {
            broken.push(format!(
                "{name} takes {milliseconds:.0} ms to its first result; the target is at most {most:.0} ms"
            ));
        }
        let (peak, allowed) = match memory {
            Some((peak, values)) => (peak, package + values + MAX_MEMORY),
            None => (f64::NAN, f64::NAN),
        };
        if peak > allowed {
            broken.push(format!(
                "{name} uses {peak:.0} MB of memory; the target is at most {allowed:.0} MB"
            ));
        }
        println!("{name:<26} {package:>9.1} {milliseconds:>10.1} {peak:>9.1} {allowed:>9.1}");
    }
    Ok(broken)
}

/// Loads a model, runs it once, and prints the milliseconds, the peak memory, and the memory of the values.
pub(crate) fn run_once(arguments: &RunArguments) -> Result<(), String> {
    let RunArguments { models, name } = arguments;
    let inputs = arrays(models, name, "inputs")?;
    let before = own_time();
    let model = coremill::open(models.join(format!("{name}.mlpackage")))
        .map_err(|error| error.to_string())?;
    let verified = coremill::verify(&model).map_err(|report| report.summary())?;
    let options = LoadOptions { threads: 1, ..LoadOptions::default() };
    let engine = Engine::load(&verified, &options).map_err(|error| error.to_string())?;
    let mut session =
        engine.session(engine.default_function()).map_err(|error| error.to_string())?;
    let taken = |name: &str| session.inputs().iter().any(|port| port.name == name);
    let inputs: Vec<_> = inputs.into_iter().filter(|(name, _)| taken(name)).collect();
    let inputs: Vec<_> =
        inputs.iter().map(|(name, array)| (name.as_str(), array.clone())).collect();
    let outputs = session.run(&inputs).map_err(|error| error.to_string())?;
    let (Some(before), Some(after)) = (before, own_time()) else {
        return Err("this system does not report the time of a process".to_owned());
    };
    let values = inputs.iter().map(|(_, array)| array.view().len()).sum::<usize>()
        + outputs
            .0
            .iter()
            .filter_map(|(_, value)| Some(value.as_array()?.view().len()))
            .sum::<usize>();
    let milliseconds = (after - before).as_secs_f64() * 1e3;
    println!("{milliseconds} {} {}", peak_memory().unwrap_or(f64::NAN), values as f64 * 4e-6);
    Ok(())
}

/// The output of a process.
fn read(command: &mut Command) -> Result<Start, String> {
    let output = command.output().map_err(|error| error.to_string())?;
    let printed = String::from_utf8_lossy(&output.stdout);
    let numbers: Vec<f64> =
        printed.split_whitespace().filter_map(|number| number.parse().ok()).collect();
    match numbers[..] {
        [milliseconds, peak, values] => {
            Ok(Start { milliseconds, memory: (!peak.is_nan()).then_some((peak, values)) })
        }
        _ => Err(format!("{command:?}: {}", String::from_utf8_lossy(&output.stderr))),
    }
}

/// Size of the files in a directory.
pub(super) fn megabytes(path: &Path) -> Result<f64, String> {
    let failed = |error: std::io::Error| format!("{}: {error}", path.display());
    if path.is_file() {
        return Ok(path.metadata().map_err(failed)?.len() as f64 / 1e6);
    }
    let mut sum = 0.0;
    for entry in path.read_dir().map_err(failed)? {
        sum += megabytes(&entry.map_err(failed)?.path())?;
    }
    Ok(sum)
}
