//! `cargo xtask check`: the checks to run before each commit. It needs no Python.

use std::process::Command;
use std::time::Instant;

use crate::workspace::{cargo, execute, root};

/// Runs the checks; the error states which one failed.
pub(crate) fn run() -> Result<(), String> {
    let root = root();
    step("format", cargo(&root).args(["fmt", "--all", "--check"]))?;
    step(
        "lints",
        cargo(&root).args([
            "clippy",
            "--quiet",
            "--workspace",
            "--all-targets",
            "--",
            "-D",
            "warnings",
        ]),
    )?;
    step("tidy", cargo(&root).args(["test", "--quiet", "--workspace", "--test", "tidy"]))?;
    // Selected packages would be built with other features than the workspace, which takes minutes.
    step("unit tests", cargo(&root).args(["test", "--quiet", "--workspace", "--lib", "--bins"]))
}

fn step(name: &str, command: &mut Command) -> Result<(), String> {
    let start = Instant::now();
    execute(command, name)?;
    println!("{name}: passed in {:.0} s", start.elapsed().as_secs_f64());
    Ok(())
}
