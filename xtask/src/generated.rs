//! Files of the sources that the oracles write.

use std::fs;
use std::process::Command;

use crate::oracle::interpreter;
use crate::workspace::{describe, root};

/// A file that a module of the oracles prints.
pub(crate) struct Generated {
    command: &'static str,
    module: &'static str,
    file: &'static str,
}

/// The operator schemas of the pinned torch, for the reader of `.pt2` archives.
pub(crate) const SCHEMAS: Generated =
    Generated { command: "schemas", module: "oracle.schemas", file: "crates/pt2/src/schemas.txt" };

/// The operators that the pinned executorch has kernels for, for what stays outside delegates.
pub(crate) const KERNELS: Generated = Generated {
    command: "kernels",
    module: "oracle.kernels",
    file: "crates/compiler/src/portable/kernels.txt",
};

/// What to do with the file.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Write nothing; fail if the file is not what would be written
    #[arg(long)]
    check: bool,
}

impl Generated {
    /// Writes or checks the file.
    pub(crate) fn run(&self, arguments: &Arguments) -> Result<(), String> {
        let Generated { command, module, file } = self;
        let root = root();
        let printed = Command::new(interpreter(&root)?)
            .args(["-m", module])
            .current_dir(&root)
            .output()
            .map_err(|error| format!("cannot run Python: {error}"))?;
        if !printed.status.success() {
            let said = String::from_utf8_lossy(&printed.stderr);
            return Err(format!("{module} failed ({}):\n{said}", printed.status));
        }
        let path = root.join(file);
        if fs::read(&path).is_ok_and(|found| found == printed.stdout) {
            println!("{file} is up to date");
            return Ok(());
        }
        if arguments.check {
            return Err(format!("{file} is out of date; run `cargo xtask {command}`"));
        }
        fs::write(&path, &printed.stdout).map_err(|error| describe("write", &path, &error))?;
        println!("changed: {file}");
        Ok(())
    }
}
