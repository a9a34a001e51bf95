//! First runs and throughput of sessions from Python and of batches, measured by oracle scripts.

use std::path::PathBuf;
use std::process::Command;

use crate::workspace::{cargo, execute, root};
use crate::{oracle, python};

/// Options of the measurements.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Directory of the models
    #[arg(long, default_value = "target/bench-models")]
    models: PathBuf,
    /// Measure only this model
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// Number of threads [default: 2 for `throughput`, 1 for `startup`]
    #[arg(long)]
    threads: Option<usize>,
    /// Number of rounds
    #[arg(long, default_value_t = 5)]
    rounds: usize,
}

/// Runs `oracle.bench.NAME`; the error states that a limit was missed.
pub(crate) fn run(name: &str, arguments: &Arguments) -> Result<(), String> {
    let root = root();
    let interpreter = oracle::interpreter(&root)?;
    let mut build = cargo(&root);
    build.args(["build", "--release", "--quiet", "--package", "coremill-python"]);
    if name == "throughput" {
        build.args(["--package", "coremill-cli"]);
    }
    execute(&mut build, "building the Python module")?;
    let mut script = Command::new(interpreter);
    script.current_dir(&root).env("PYTHONPATH", python::package(&root)?);
    script.env("COREMILL", root.join("target/release/coremill"));
    script.args(["-m", &format!("oracle.bench.{name}")]).arg(&arguments.models);
    script.arg("--rounds").arg(arguments.rounds.to_string());
    if let Some(threads) = arguments.threads {
        script.arg("--threads").arg(threads.to_string());
    }
    if !arguments.only.is_empty() {
        script.arg("--only").args(&arguments.only);
    }
    execute(&mut script, "measuring sessions")
}
