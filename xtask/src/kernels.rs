//! `cargo xtask kernels`: the operators that the pinned executorch has kernels for, for what stays outside of delegates.

use std::fs;
use std::process::Command;

use crate::oracle::interpreter;
use crate::workspace::{describe, root};

const FILE: &str = "crates/compiler/src/portable/kernels.txt";

/// What to do with the list.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Write nothing; fail if the file is not what would be written
    #[arg(long)]
    check: bool,
}

/// Writes or checks the file.
pub(crate) fn run(arguments: &Arguments) -> Result<(), String> {
    let root = root();
    let dump = Command::new(interpreter(&root)?)
        .args(["-m", "oracle.kernels"])
        .current_dir(&root)
        .output()
        .map_err(|error| format!("cannot run Python: {error}"))?;
    if !dump.status.success() {
        return Err(format!(
            "listing executorch's kernels failed ({}):\n{}",
            dump.status,
            String::from_utf8_lossy(&dump.stderr)
        ));
    }
    let path = root.join(FILE);
    if fs::read(&path).is_ok_and(|found| found == dump.stdout) {
        println!("{FILE} is up to date");
        return Ok(());
    }
    if arguments.check {
        return Err(format!("{FILE} is out of date; run `cargo xtask kernels`"));
    }
    fs::write(&path, &dump.stdout).map_err(|error| describe("write", &path, &error))?;
    println!("changed: {FILE}");
    Ok(())
}
