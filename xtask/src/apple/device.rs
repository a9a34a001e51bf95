//! Compares Core ML on the CPU with the engine: golden packages, a sample of the zoo, and packages converted
//! from exported programs. Core ML is called by coremltools and then by `coremill-coreml`, so that a
//! difference can be attributed to the engine or to the bindings. It needs a Mac; on other systems the
//! engine's part runs on request.

use std::fs;
use std::path::Path;
use std::process::Command;

use super::compiler::golden_packages;
use crate::oracle::interpreter;
use crate::workspace::{binary, cargo, describe, execute, target_directory};

/// One of this number of zoo entries is checked.
const STEP: usize = 9;

/// Compares packages; the error states that Core ML and the engine disagree.
pub(super) fn run(root: &Path) -> Result<(), String> {
    let build = ["build", "--release", "--package", "coremill-cli"];
    execute(cargo(root).args(build), "building the coremill command")?;
    let (command, python) = (binary(root), interpreter(root)?);
    let zoo = target_directory(root).join("zoo");
    let oracle = || {
        let mut oracle = Command::new(&python);
        oracle.current_dir(root).arg("-m");
        oracle
    };
    let listed = oracle().args(["oracle.zoo", "--list"]).output();
    let listed = listed.map_err(|error| format!("listing the zoo: {error}"))?;
    let text = String::from_utf8_lossy(&listed.stdout).into_owned();
    let names = text.lines().filter_map(|line| line.split(' ').next()).step_by(STEP);
    let names: Vec<&str> = names.collect();
    if names.len() < 10 {
        return Err(format!("the zoo lists {} entries: {text}", names.len()));
    }
    let package = |name: &&str| zoo.join(format!("{name}.mlpackage"));
    let missing: Vec<&str> = names.iter().filter(|name| !package(name).exists()).copied().collect();
    if !missing.is_empty() {
        let mut make = oracle();
        make.arg("oracle.zoo").arg("--out").arg(&zoo).arg("--only").args(missing);
        execute(&mut make, "making packages of the zoo")?;
    }
    let digits = target_directory(root).join("apple").join("digits.mlpackage");
    let folder = digits.parent().unwrap_or(root);
    fs::create_dir_all(folder).map_err(|error| describe("make", folder, &error))?;
    let mut convert = Command::new(&command);
    convert.arg("convert").arg(root.join("examples/digits.pt2")).arg("-o").arg(&digits);
    execute(&mut convert, "converting an exported program")?;

    let mut packages = golden_packages(root)?;
    packages.push(digits);
    packages.extend(names.iter().map(package));
    let mut checker = oracle();
    checker.arg("oracle.checkers.device").arg(&command);
    if !cfg!(target_os = "macos") {
        checker.arg("--engine-alone");
    }
    execute(checker.args(&packages), "comparison of coremltools' predictions with the engine's")?;
    if !cfg!(target_os = "macos") {
        return Ok(());
    }
    let mut example = cargo(root);
    example.args(["run", "--release", "--package", "coremill-graph"]);
    example.args(["--example", "compare_devices", "--"]);
    execute(example.args(&packages), "comparison of our calls of Core ML with the engine")
}
