//! `cargo xtask test`: the Rust tests, then the oracle tests.

use std::process::Command;
use std::thread;

use crate::apple;
use crate::oracle::interpreter;
use crate::python;
use crate::workspace::{binary, cargo, execute, root};

/// Tells the oracle tests where the `coremill` command is.
const BINARY_VARIABLE: &str = "COREMILL";

/// What to run.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  cargo xtask test\n  cargo xtask test --oracle-only -k resnet18\n\nSet \
                        COREMILL_ORACLE_PYTHON to an interpreter that has the packages of oracle/requirements*.txt to \
                        use it in place of target/oracle-venv."
)]
pub(crate) struct Arguments {
    /// Run the Rust tests only
    #[arg(long, conflicts_with = "oracle_only")]
    rust_only: bool,
    /// Run the oracle tests only
    #[arg(long)]
    oracle_only: bool,
    /// Run the oracle tests that match this expression, as pytest takes it
    #[arg(short = 'k', value_name = "EXPR", conflicts_with = "rust_only")]
    expression: Option<String>,
}

/// Runs the tests; the error says which step failed.
pub(crate) fn run(arguments: &Arguments) -> Result<(), String> {
    let root = root();
    // Gigabytes are downloaded while the Rust tests run.
    let python = (!arguments.rust_only).then(|| {
        let root = root.clone();
        thread::spawn(move || interpreter(&root))
    });
    if !arguments.oracle_only {
        execute(cargo(&root).args(["test", "--workspace"]), "the Rust tests")?;
        // What apps ship has neither the engine nor MIL.
        let mut ships = cargo(&root);
        ships.args(["check", "--package", "coremill-capi", "--no-default-features"]);
        execute(ships.args(["--features", "coreml"]), "checking what apps ship")?;
        apple::run_all(&[apple::Check::Standins, apple::Check::Types, apple::Check::Link])?;
    }
    if let Some(python) = python {
        // First what is quick to fail, then what takes minutes.
        // Both at once: built one by one, they ask for other features of what they share, which is built twice then.
        execute(
            cargo(&root)
                .args(["build", "--release", "--package", "coremill-cli"])
                .args(["--package", "coremill-python"]),
            "building the coremill command and the Python package",
        )?;
        let package = python::package(&root)?;
        let python = python.join().map_err(|_| "installing the oracles panicked")??;
        let mut pytest = Command::new(python);
        pytest.current_dir(&root).env(BINARY_VARIABLE, binary(&root));
        pytest.env("PYTHONPATH", package);
        pytest.args(["-m", "pytest", "oracle"]);
        if let Some(expression) = &arguments.expression {
            pytest.args(["-k", expression]);
        }
        execute(&mut pytest, "the oracle tests")?;
    }
    Ok(())
}
