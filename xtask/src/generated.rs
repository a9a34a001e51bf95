//! Source files that other programs generate.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::oracle::interpreter;
use crate::workspace::{describe, root};

/// A file whose contents a program prints.
pub(crate) struct GeneratedFile {
    command: &'static str,
    source: Source,
    file: &'static str,
}

/// The program that prints the file.
enum Source {
    /// A Python module.
    Module(&'static str),
    /// A Rust program outside the workspace, identified by its directory.
    Program(&'static str),
}

impl Source {
    fn command(&self, root: &Path) -> Result<Command, String> {
        match self {
            Source::Module(module) => {
                let mut command = Command::new(interpreter(root)?);
                command.args(["-m", module]);
                Ok(command)
            }
            Source::Program(directory) => {
                let mut command = Command::new("cargo");
                command.args(["run", "--quiet", "--manifest-path"]);
                command.arg(root.join(directory).join("Cargo.toml"));
                command.arg("--target-dir").arg(root.join("target").join("reference"));
                Ok(command)
            }
        }
    }

    fn name(&self) -> &str {
        match self {
            Source::Module(name) | Source::Program(name) => name,
        }
    }
}

/// The operator schemas of the pinned torch version, for the reader of `.pt2` archives.
pub(crate) const SCHEMAS: GeneratedFile = GeneratedFile {
    command: "schemas",
    source: Source::Module("oracle.dumps.schemas"),
    file: "crates/pt2/src/schemas.txt",
};

/// The operators that the pinned executorch version has kernels for. Operators outside delegates need them.
pub(crate) const KERNELS: GeneratedFile = GeneratedFile {
    command: "kernels",
    source: Source::Module("oracle.dumps.kernels"),
    file: "crates/compiler/src/kernels.txt",
};

/// The results of `rlx-cpu` for the test cases of `coremill-rlx`.
pub(crate) const RLX: GeneratedFile = GeneratedFile {
    command: "rlx",
    source: Source::Program("oracle/dumps/rlx"),
    file: "integrations/rlx/tests/expected.txt",
};

/// The page with the ATen operators that the oracle tests convert.
pub(crate) const OPERATORS: GeneratedFile = GeneratedFile {
    command: "operators",
    source: Source::Module("oracle.aten.table"),
    file: "docs/operators.md",
};

/// The page with the commands and their options.
pub(crate) const COMMANDS: GeneratedFile = GeneratedFile {
    command: "commands",
    source: Source::Module("oracle.dumps.commands"),
    file: "docs/commands.md",
};

/// The page with the functions and classes of the Python package, from their docstrings.
pub(crate) const PYTHON_API: GeneratedFile = GeneratedFile {
    command: "python-api",
    source: Source::Module("oracle.dumps.python_api"),
    file: "docs/python-api.md",
};

/// The README with the table of recorded benchmarks.
pub(crate) const BENCHMARKS: GeneratedFile = GeneratedFile {
    command: "benchmarks",
    source: Source::Module("oracle.dumps.benchmarks"),
    file: "README.md",
};

/// Whether to write or to check the file.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Write nothing; fail if the file differs from the generated contents
    #[arg(long)]
    check: bool,
}

impl GeneratedFile {
    /// Writes the file.
    pub(crate) fn write(&self) -> Result<(), String> {
        self.run(&Arguments { check: false })
    }

    /// Writes or checks the file.
    pub(crate) fn run(&self, arguments: &Arguments) -> Result<(), String> {
        let GeneratedFile { command, source, file } = self;
        let root = root();
        let (mut program, name) = (source.command(&root)?, source.name());
        let printed = program.current_dir(&root).output();
        let printed = printed.map_err(|error| format!("cannot run {name}: {error}"))?;
        if !printed.status.success() {
            let said = String::from_utf8_lossy(&printed.stderr);
            return Err(format!("{name} failed ({}):\n{said}", printed.status));
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
