//! Compares `convert` and `lower` with coremltools and ExecuTorch; an oracle script runs them alternately.

use std::path::PathBuf;
use std::process::Command;

use crate::generated;
use crate::oracle;
use crate::workspace::{binary, cargo, execute, root};

/// Options of the measurement.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Directory of the exported programs; missing ones are exported
    #[arg(long, default_value = "target/bench-exports")]
    models: PathBuf,
    /// Measure only this model
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// Number of rounds
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Print the measurements as JSON
    #[arg(long)]
    json: bool,
    /// Write the figures to docs/benchmarks.json, and update the README's table
    #[arg(long)]
    record: bool,
}

/// Measures; the error states that a limit was missed.
pub(crate) fn run(what: &str, arguments: &Arguments) -> Result<(), String> {
    let root = root();
    let python = oracle::interpreter(&root)?;
    let mut build = cargo(&root);
    build.args(["build", "--release", "--quiet", "--package", "coremill-cli"]);
    execute(&mut build, "building the command")?;
    let mut script = Command::new(python);
    script.current_dir(&root).args(["-m", "oracle.bench.compile", what]);
    script.arg("--coremill").arg(binary(&root)).arg("--models").arg(&arguments.models);
    script.arg("--rounds").arg(arguments.rounds.to_string());
    if !arguments.only.is_empty() {
        script.arg("--only").args(&arguments.only);
    }
    if arguments.json {
        script.arg("--json");
    }
    if arguments.record {
        script.arg("--record");
    }
    let measured = execute(&mut script, "measuring the time and memory of the compiler");
    if arguments.record {
        generated::BENCHMARKS.write()?;
    }
    measured
}
