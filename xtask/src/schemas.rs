//! `cargo xtask schemas`: the operator schemas of the pinned torch, for the reader of `.pt2` archives.

use std::fs;
use std::process::Command;

use crate::oracle::interpreter;
use crate::workspace::{describe, root};

const FILE: &str = "crates/pt2/src/schemas.txt";

/// What to do with the schemas.
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
        .args(["-m", "oracle.schemas"])
        .current_dir(&root)
        .output()
        .map_err(|error| format!("cannot run Python: {error}"))?;
    if !dump.status.success() {
        return Err(format!(
            "dumping torch's schemas failed ({}):\n{}",
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
        return Err(format!("{FILE} is out of date; run `cargo xtask schemas`"));
    }
    fs::write(&path, &dump.stdout).map_err(|error| describe("write", &path, &error))?;
    println!("changed: {FILE}");
    Ok(())
}
