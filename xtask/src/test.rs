//! `cargo xtask test`: the Rust tests, then the oracle tests.

use std::process::Command;
use std::thread;

use crate::apple;
use crate::oracle::interpreter;
use crate::python;
use crate::registers;
use crate::workspace::{binary, cargo, execute, root};

/// Environment variable with the path of the `coremill` command, for the oracle tests.
const BINARY_VARIABLE: &str = "COREMILL";

/// Which tests to run.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  cargo xtask test\n  cargo xtask test --quick\n  cargo xtask test --oracle-only -k resnet18\n\nSet \
                        COREMILL_ORACLE_PYTHON to an interpreter that has the packages of oracle/requirements*.txt to \
                        use it in place of target/oracle-venv."
)]
pub(crate) struct Arguments {
    /// Run the Rust tests only
    #[arg(long, visible_alias = "quick", conflicts_with = "oracle_only")]
    rust_only: bool,
    /// Run the oracle tests only
    #[arg(long)]
    oracle_only: bool,
    /// Run the oracle tests that match this expression (as in pytest)
    #[arg(short = 'k', value_name = "EXPR", conflicts_with = "rust_only")]
    expression: Option<String>,
}

/// Runs the tests; the error states which step failed.
pub(crate) fn run(arguments: &Arguments) -> Result<(), String> {
    let root = root();
    // Download the packages, which are gigabytes, while the Rust tests run.
    let python = (!arguments.rust_only).then(|| {
        let root = root.clone();
        thread::spawn(move || interpreter(&root))
    });
    if !arguments.oracle_only {
        let mut tests = cargo(&root);
        execute(tests.args(["test", "--workspace", "--no-fail-fast"]), "the Rust tests")?;
        // Check the configuration for apps, without the engine and MIL.
        let mut ships = cargo(&root);
        ships.args(["check", "--package", "coremill-capi", "--no-default-features"]);
        execute(ships.args(["--features", "coreml"]), "checking what apps ship")?;
        apple::run_all(&[apple::Check::Standins, apple::Check::Types, apple::Check::Link])?;
        registers::run()?;
    }
    if let Some(python) = python {
        // Build before the tests, because a build can fail quickly and the tests take minutes. Both packages
        // are built together: separate builds would select different features of shared dependencies, which
        // are then built twice.
        execute(
            cargo(&root)
                .args(["build", "--release", "--package", "coremill-cli"])
                .args(["--package", "coremill-python"]),
            "building the coremill command and the Python package",
        )?;
        let package = python::package(&root)?;
        let python = python.join().map_err(|_| "installing the oracles panicked")??;
        let mut pytest = Command::new(&python);
        pytest.current_dir(&root).env(BINARY_VARIABLE, binary(&root)).env("PYTHONPATH", &package);
        pytest.args(["-m", "pytest", "oracle", "--durations", "15", "--durations-min", "10"]);
        if let Some(expression) = &arguments.expression {
            pytest.args(["-k", expression]);
        }
        execute(&mut pytest, "the oracle tests")?;
    }
    Ok(())
}
