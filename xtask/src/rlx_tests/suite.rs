//! A package of test files, which is built and run.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::workspace::{cargo, describe, target_directory};

/// Whether each test passed, by file and test. Files that do not compile are missing.
pub(super) type Outcomes = BTreeMap<String, BTreeMap<String, bool>>;

pub(super) struct Suite {
    /// Directory of the package.
    pub(super) directory: PathBuf,
    /// The initial lock file, so that versions are pinned and builds are shared.
    pub(super) lock: PathBuf,
    /// Version of the `rlx` crates.
    pub(super) version: String,
    /// Lines of the manifest.
    pub(super) dependencies: Vec<String>,
}

impl Suite {
    /// Builds and runs the files. The output of files with failing tests is printed.
    pub(super) fn run(&self, root: &Path, files: &[(&str, &str)]) -> Result<Outcomes, String> {
        self.make(files)?;
        let mut outcomes = Outcomes::new();
        for (file, executable) in self.build(root)? {
            outcomes.insert(file, outcome(&executable)?);
        }
        Ok(outcomes)
    }

    fn make(&self, files: &[(&str, &str)]) -> Result<(), String> {
        let tests = self.directory.join("tests");
        if tests.exists() {
            fs::remove_dir_all(&tests).map_err(|error| describe("remove", &tests, &error))?;
        }
        let source = self.directory.join("src");
        for folder in [&tests, &source] {
            fs::create_dir_all(folder).map_err(|error| describe("create", folder, &error))?;
        }
        for (name, text) in files {
            write(&tests.join(format!("{name}.rs")), text)?;
        }
        write(&source.join("lib.rs"), "")?;
        write(&self.directory.join("Cargo.toml"), &self.manifest())?;
        let lock = fs::read_to_string(&self.lock);
        let lock = lock.map_err(|error| describe("read", &self.lock, &error))?;
        write(&self.directory.join("Cargo.lock"), &lock)
    }

    fn manifest(&self) -> String {
        let Suite { version, dependencies, .. } = self;
        let dependencies = dependencies.join("\n");
        format!(
            r#"[package]
name = "rlx-tests"
version = "0.0.0"
edition = "2024"

[workspace]

[features]
default = ["training"]
training = []

[lints.rust]
warnings = "allow"

[dev-dependencies]
rlx-cpu = {{ version = "={version}", default-features = false, features = ["splat"] }}
rlx-gguf = "={version}"
rlx-ir = "={version}"
rlx-opt = "={version}"
{dependencies}

# They build fast, but for what computes.
[profile.dev]
debug = false

[profile.dev.package.coremill-tensor]
opt-level = 3
"#
        )
    }

    /// The test programs by file.
    fn build(&self, root: &Path) -> Result<Vec<(String, PathBuf)>, String> {
        let mut command = cargo(root);
        command.args(["test", "--no-run", "--no-fail-fast"]);
        command.args(["--message-format", "json-render-diagnostics", "--manifest-path"]);
        command.arg(self.directory.join("Cargo.toml"));
        command.arg("--target-dir").arg(target_directory(root).join("benches"));
        command.stderr(Stdio::inherit());
        let output = command.output().map_err(|error| format!("cannot run cargo: {error}"))?;
        let messages = String::from_utf8_lossy(&output.stdout);
        let messages = messages.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let programs = messages.filter_map(|message| {
            let target = &message["target"];
            let is_test = target["kind"].as_array()?.iter().any(|kind| kind == "test");
            let file = target["name"].as_str()?.to_owned();
            let executable = PathBuf::from(message["executable"].as_str()?);
            is_test.then_some((file, executable))
        });
        Ok(programs.collect())
    }
}

/// Runs a test program. A test that ends the process has failed, and so have the tests that it prevents from
/// running.
fn outcome(executable: &Path) -> Result<BTreeMap<String, bool>, String> {
    let list = output(Command::new(executable).args(["--list", "--format", "terse"]))?;
    let tests = list.lines().filter_map(|line| line.strip_suffix(": test"));
    let mut outcomes: BTreeMap<String, bool> = tests.map(|test| (test.to_owned(), false)).collect();
    let printed = output(&mut Command::new(executable))?;
    for line in printed.lines() {
        let passed = line.strip_prefix("test ").and_then(|line| line.strip_suffix(" ... ok"));
        if let Some(outcome) = passed.and_then(|test| outcomes.get_mut(test)) {
            *outcome = true;
        }
    }
    if outcomes.values().any(|passed| !passed) {
        println!("{printed}");
    }
    Ok(outcomes)
}

fn output(command: &mut Command) -> Result<String, String> {
    let output = command.stderr(Stdio::inherit()).output().map_err(|error| {
        format!("cannot run `{}`: {error}", command.get_program().to_string_lossy())
    })?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn write(path: &Path, text: &str) -> Result<(), String> {
    fs::write(path, text).map_err(|error| describe("write", path, &error))
}
