//! Compares the Python drop-ins for ExecuTorch's Core ML backend and for coremltools with the originals; oracle scripts run
//! them alternately.

use std::process::Command;

use crate::workspace::{cargo, execute, root};
use crate::{oracle, python};

/// Options of the measurement.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Measure only this model; `dropin` also has `static_llama` and `imports`
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// Number of rounds
    #[arg(long, default_value_t = 3)]
    rounds: usize,
}

/// Measures with a script and its options; the error states that a limit was missed.
pub(crate) fn run(script: &[&str], arguments: &Arguments) -> Result<(), String> {
    let root = root();
    let interpreter = oracle::interpreter(&root)?;
    let mut build = cargo(&root);
    build.args(["build", "--release", "--quiet", "--package", "coremill-python"]);
    execute(&mut build, "building the Python module")?;
    let mut measure = Command::new(interpreter);
    measure.current_dir(&root).env("PYTHONPATH", python::package(&root)?);
    measure.arg("-m").args(script).arg("--rounds").arg(arguments.rounds.to_string());
    if !arguments.only.is_empty() {
        measure.arg("--only").args(&arguments.only);
    }
    execute(&mut measure, "measuring the drop-in")
}
