//! `cargo xtask test`: the Rust tests, then the oracle tests.
//!
//! The oracles are Python packages, pinned in `oracle/requirements.txt`. They are installed into `target/oracle-venv`,
//! anew whenever that file changes.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Names an interpreter that has the oracles already; no environment is made then.
const INTERPRETER_VARIABLE: &str = "COREMILL_ORACLE_PYTHON";

/// Tells the oracle tests where the `coremill` command is.
const BINARY_VARIABLE: &str = "COREMILL";

/// What to run.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  cargo xtask test\n  cargo xtask test --oracle-only -k resnet18\n\nSet \
                        COREMILL_ORACLE_PYTHON to an interpreter that has the packages of oracle/requirements.txt to \
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
    if !arguments.oracle_only {
        execute(cargo(&root).args(["test", "--workspace"]), "the Rust tests")?;
    }
    if !arguments.rust_only {
        // First what is quick to fail, then what takes minutes.
        execute(
            cargo(&root).args(["build", "--release", "--package", "coremill-cli"]),
            "building the coremill command",
        )?;
        let python = interpreter(&root)?;
        let mut pytest = Command::new(python);
        pytest.current_dir(&root).env(BINARY_VARIABLE, binary(&root));
        pytest.args(["-m", "pytest", "oracle"]);
        if let Some(expression) = &arguments.expression {
            pytest.args(["-k", expression]);
        }
        execute(&mut pytest, "the oracle tests")?;
    }
    Ok(())
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().map(Path::to_path_buf).unwrap_or_default()
}

/// The cargo that runs us, so that a toolchain chosen for the outer command holds for the inner one.
fn cargo(root: &Path) -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo")));
    command.current_dir(root);
    command
}

fn target_directory(root: &Path) -> PathBuf {
    env::var_os("CARGO_TARGET_DIR")
        .map_or_else(|| root.join("target"), |directory| root.join(directory))
}

fn binary(root: &Path) -> PathBuf {
    target_directory(root).join("release").join(format!("coremill{}", env::consts::EXE_SUFFIX))
}

/// The interpreter that has the oracles, made ready if need be.
fn interpreter(root: &Path) -> Result<PathBuf, String> {
    if let Some(given) = env::var_os(INTERPRETER_VARIABLE) {
        return Ok(PathBuf::from(given));
    }
    let requirements = root.join("oracle/requirements.txt");
    let wanted =
        fs::read(&requirements).map_err(|error| describe("read", &requirements, &error))?;
    let environment = target_directory(root).join("oracle-venv");
    let (folder, name) = if cfg!(windows) { ("Scripts", "python.exe") } else { ("bin", "python") };
    let python = environment.join(folder).join(name);
    // The stamp is written last: an installation that was cut short is done again.
    let stamp = environment.join("requirements.stamp");
    if python.is_file() && fs::read(&stamp).is_ok_and(|installed| installed == wanted) {
        return Ok(python);
    }
    println!("installing the oracles into {}; this takes some minutes once", environment.display());
    if environment.exists() {
        fs::remove_dir_all(&environment)
            .map_err(|error| describe("remove", &environment, &error))?;
    }
    let base = if cfg!(windows) { "python" } else { "python3" };
    execute(
        Command::new(base).args(["-m", "venv"]).arg(&environment),
        "making a Python environment",
    )?;
    let mut install = Command::new(&python);
    install
        .args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r"])
        .arg(&requirements);
    execute(&mut install, "installing the oracles")?;
    fs::write(&stamp, &wanted).map_err(|error| describe("write", &stamp, &error))?;
    Ok(python)
}

fn execute(command: &mut Command, what: &str) -> Result<(), String> {
    let status = command.status().map_err(|error| {
        format!("{what}: cannot start `{}`: {error}", command.get_program().to_string_lossy())
    })?;
    if status.success() { Ok(()) } else { Err(format!("{what} failed ({status})")) }
}

fn describe(action: &str, path: &Path, error: &io::Error) -> String {
    format!("cannot {action} `{}`: {error}", path.display())
}
