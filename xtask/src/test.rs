//! `cargo xtask test`: the Rust tests, then the oracle tests.

use std::fs;
use std::io::{self, BufRead as _, BufReader, IsTerminal as _};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;

use crate::apple;
use crate::oracle::interpreter;
use crate::python;
use crate::workspace::{binary, cargo, execute, root, target_directory};

/// Environment variable with the path of the `coremill` command, for the oracle tests.
const BINARY_VARIABLE: &str = "COREMILL";

/// Exit code of pytest if all tests ran and some failed.
const SOME_FAILED: i32 = 1;

/// Maximum number of failed oracle tests, or failed targets of Rust tests, that are run a second time.
/// Thousands of tests run in parallel on machines with other load, among them tests with a browser, compilers
/// and runtimes. A test that fails only under this load is reported, but does not fail the run.
const TRIED_AGAIN: usize = 3;

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
        run_rust_tests(&root)?;
        // Check the configuration for apps, without the engine and MIL.
        let mut ships = cargo(&root);
        ships.args(["check", "--package", "coremill-capi", "--no-default-features"]);
        execute(ships.args(["--features", "coreml"]), "checking what apps ship")?;
        apple::run_all(&[apple::Check::Standins, apple::Check::Types, apple::Check::Link])?;
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
        let pytest = || {
            let mut command = Command::new(&python);
            command.current_dir(&root).env(BINARY_VARIABLE, binary(&root));
            command.env("PYTHONPATH", &package).args(["-m", "pytest"]);
            command
        };
        let failed = target_directory(&root).join("oracle-failed.txt");
        run_oracles(pytest, arguments.expression.as_deref(), &failed)?;
    }
    Ok(())
}

/// Runs the Rust tests. If only a few targets fail, they are run a second time.
#[expect(clippy::print_stderr, reason = "what cargo says is passed on")]
fn run_rust_tests(root: &Path) -> Result<(), String> {
    let what = "the Rust tests";
    let failed = |error: io::Error| format!("{what}: {error}");
    let mut all = cargo(root);
    all.args(["test", "--workspace", "--no-fail-fast"]);
    if io::stderr().is_terminal() {
        all.args(["--color", "always"]);
    }
    let mut running = all.stderr(Stdio::piped()).spawn().map_err(failed)?;
    let mut targets = vec![];
    for line in running.stderr.take().into_iter().flat_map(|stderr| BufReader::new(stderr).lines())
    {
        let line = line.map_err(failed)?;
        eprintln!("{line}");
        targets.extend(failed_target(&line).map(str::to_owned));
    }
    let status = running.wait().map_err(failed)?;
    if status.success() {
        return Ok(());
    }
    if !(1..=TRIED_AGAIN).contains(&targets.len()) {
        return Err(format!("{what} failed ({status})"));
    }
    for target in &targets {
        println!("to be run once more: {target}");
        // Name the whole workspace: a single package would be rebuilt with fewer features.
        let mut again = cargo(root);
        again.args(["test", "--workspace"]).args(target.split(' ').skip(2));
        execute(&mut again, &format!("{what} of `{target}`, run once more,"))?;
    }
    println!("warning: these Rust tests only passed when run again: {}", targets.join(", "));
    Ok(())
}

/// The target in a line of cargo's final list, as arguments that select it: "    `-p PACKAGE --test NAME`".
fn failed_target(line: &str) -> Option<&str> {
    let target = line.trim().strip_prefix('`')?.strip_suffix('`')?;
    target.starts_with("-p ").then_some(target)
}

/// Runs the oracle tests. If all tests ran and only a few failed, these are run a second time. `list` is the
/// file to which the tests write the names of failed tests.
fn run_oracles(
    pytest: impl Fn() -> Command,
    expression: Option<&str>,
    list: &Path,
) -> Result<(), String> {
    let mut all = pytest();
    // The failed tests are printed below, after the second run.
    all.args(["oracle", "-r", "N"]);
    if let Some(expression) = expression {
        all.args(["-k", expression]);
    }
    let status = all.status().map_err(|error| format!("the oracle tests: {error}"))?;
    if status.success() {
        return Ok(());
    }
    let names = fs::read_to_string(list).unwrap_or_default();
    let names: Vec<&str> = names.lines().collect();
    if status.code() != Some(SOME_FAILED) || !(1..=TRIED_AGAIN).contains(&names.len()) {
        for name in names {
            println!("FAILED {name}");
        }
        return Err(format!("the oracle tests failed ({status})"));
    }
    println!("{} to be run once more, alone: {}", counted(names.len()), names.join(" "));
    let mut again = pytest();
    again.args(["--numprocesses", "0"]).args(&names);
    execute(&mut again, "the oracle tests, run once more,")?;
    println!("warning: these tests only passed alone: {}", names.join(" "));
    Ok(())
}

fn counted(tests: usize) -> String {
    if tests == 1 { "1 test".to_owned() } else { format!("{tests} tests") }
}
