//! Overhead of the C interface and of the ExecuTorch delegate, and time of the second load of a model.
//! Release builds of tests check the limits and print the figures.

use std::process::Command;

use crate::apple::standin;
use crate::oracle::interpreter;
use crate::workspace::{binary, cargo, execute, root, target_directory};

/// The release build, with the same options as the tests so that it is built once.
const BUILT: [&str; 7] = [
    "--release",
    "--package",
    "coremill-capi",
    "--package",
    "coremill-cli",
    "--package",
    "coremill-python",
];

/// Runs the tests; the error states which limit was missed.
pub(super) fn run() -> Result<(), String> {
    let root = root();
    let mut interface = cargo(&root);
    interface.arg("test").args(BUILT).args(["--test", "overhead", "--", "--nocapture"]);
    execute(&mut interface, "calls through the C interface")?;

    let mut build = cargo(&root);
    execute(build.arg("build").args(BUILT), "building the C interface and the command")?;
    let mut calls = Command::new(interpreter(&root)?);
    let library = target_directory(&root).join("release/libcoremill_capi.so");
    calls.current_dir(&root).env("COREMILL", binary(&root)).env("COREMILL_LIBRARY", library);
    calls.args([
        "-m",
        "pytest",
        "-q",
        "-s",
        "-n0",
        "oracle/tests/test_delegate.py",
        "-k",
        "cost_little",
    ]);
    execute(&mut calls, "calls in ExecuTorch's runtime")?;

    if let Some(missing) = standin::missing() {
        println!("skipped: the second load of a large model ({missing})");
        return Ok(());
    }
    let mut loads = standin::tests(&root)?;
    loads.args(["--release", "--package", "coremill-runtime", "large_models", "--", "--nocapture"]);
    execute(&mut loads, "the second load of a large model")
}
