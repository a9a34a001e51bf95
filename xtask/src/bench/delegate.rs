//! What the C interface and the ExecuTorch delegate cost beside the work, and how soon a model is there that was loaded
//! before: tests that hold each to its bar, built for release, print the figures.

use std::process::Command;

use crate::apple::standin;
use crate::oracle::interpreter;
use crate::workspace::{binary, cargo, execute, root, target_directory};

/// What is built for release: as the tests build it, so that it is built once.
const BUILT: [&str; 7] = [
    "--release",
    "--package",
    "coremill-capi",
    "--package",
    "coremill-cli",
    "--package",
    "coremill-python",
];

/// Runs the tests; the error says which bar was missed.
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
    calls.args(["-m", "pytest", "-q", "-s", "-n0", "oracle/test_delegate.py", "-k", "cost_little"]);
    execute(&mut calls, "calls in ExecuTorch's runtime")?;

    if let Some(missing) = standin::missing() {
        println!("left out: the second load of a large model ({missing})");
        return Ok(());
    }
    let mut loads = standin::tests(&root)?;
    loads.args(["--release", "--package", "coremill-runtime", "large_models", "--", "--nocapture"]);
    execute(&mut loads, "the second load of a large model")
}
