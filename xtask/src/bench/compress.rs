//! Compares `compress` with coremltools; an oracle script runs both alternately.

use std::process::Command;

use crate::oracle;
use crate::workspace::{binary, cargo, execute, root};

/// Options of the measurement.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Number of rounds
    #[arg(long, default_value_t = 1)]
    rounds: usize,
}

/// Measures; the error states that a limit was missed.
pub(crate) fn run(arguments: &Arguments) -> Result<(), String> {
    let root = root();
    let python = oracle::interpreter(&root)?;
    let mut build = cargo(&root);
    build.args(["build", "--release", "--quiet", "--package", "coremill-cli"]);
    execute(&mut build, "building the command")?;
    let mut script = Command::new(python);
    script.current_dir(&root).args(["-m", "oracle.bench.compress", "--coremill"]);
    script.arg(binary(&root)).arg("--rounds").arg(arguments.rounds.to_string());
    execute(&mut script, "measuring the time and memory of compression")
}
