//! Compares the Python drop-in for ExecuTorch's Core ML backend with stock ExecuTorch; an oracle script runs
//! them alternately.

use std::process::Command;

use crate::workspace::{cargo, execute, root};
use crate::{oracle, python};

/// Options of the measurement.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Measure only this model, `static_llama` or `imports`
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// Number of rounds
    #[arg(long, default_value_t = 3)]
    rounds: usize,
}

/// Measures; the error states that a limit was missed.
pub(crate) fn run(arguments: &Arguments) -> Result<(), String> {
    let root = root();
    let interpreter = oracle::interpreter(&root)?;
    let mut build = cargo(&root);
    build.args(["build", "--release", "--quiet", "--package", "coremill-python"]);
    execute(&mut build, "building the Python module")?;
    let mut script = Command::new(interpreter);
    script.current_dir(&root).env("PYTHONPATH", python::package(&root)?);
    script.args(["-m", "oracle.bench.dropin", "--whole", "--rounds"]);
    script.arg(arguments.rounds.to_string());
    if !arguments.only.is_empty() {
        script.arg("--only").args(&arguments.only);
    }
    execute(&mut script, "measuring the drop-in")
}
