//! Runs the bindings of Core ML against a replacement library on GNUstep.
//!
//! The crates of objc2 link frameworks, and look up classes by symbols that GCC's runtime lacks. One line is
//! patched in copies of two of these crates, which only the workspace in `standin` uses.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::workspace::{cargo, describe, execute, target_directory};

/// A patched line: the crate, the file, the old text and the new text.
const CHANGES: [(&str, &str, &str, &str); 2] = [
    (
        "objc2",
        "Cargo.toml",
        "gnustep-1-7 = [\n    \"unstable-static-class\",\n",
        "gnustep-1-7 = [\n",
    ),
    (
        "objc2-core-ml",
        "src/generated/mod.rs",
        "#[link(name = \"CoreML\", kind = \"framework\")]",
        "#[cfg_attr(target_vendor = \"apple\", link(name = \"CoreML\", kind = \"framework\"))]",
    ),
];

/// The missing requirements of this machine.
pub(crate) fn missing() -> Option<String> {
    if !cfg!(target_os = "linux") {
        return Some("these checks require Linux".to_owned());
    }
    let runs = |program: &str, argument: &str| {
        let output = Command::new(program).arg(argument).output();
        output.is_ok_and(|output| output.status.success())
    };
    let has_headers = Path::new("/usr/include/Block.h").exists();
    let compiles = Path::new("/usr/lib/gcc").exists() && runs("gcc", "-print-prog-name=cc1obj");
    let is_there = compiles && has_headers && runs("gnustep-config", "--objc-flags");
    (!is_there).then(|| "install gobjc, libgnustep-base-dev and libblocksruntime-dev".to_owned())
}

/// Runs the tests of the workspace `standin`.
pub(super) fn run(root: &Path) -> Result<(), String> {
    // Each test prints its number of leaked objects.
    let mut command = tests(root)?;
    execute(
        command.args(["--", "--show-output"]),
        "our calls of Core ML with a replacement library",
    )
}

/// A cargo command for tests of the workspace `standin`.
pub(crate) fn tests(root: &Path) -> Result<Command, String> {
    let patched = target_directory(root).join("standin/patched");
    let mut command = cargo(root);
    command.arg("test").arg("--manifest-path").arg(root.join("standin/Cargo.toml"));
    command.arg("--target-dir").arg(target_directory(root));
    for (name, file, old, new) in CHANGES {
        let copy = patched.join(name);
        patch(&sources(root, name)?, &copy, file, old, new)?;
        command
            .arg("--config")
            .arg(format!("patch.crates-io.{name}.path={:?}", copy.display().to_string()));
    }
    Ok(command)
}

/// The directory in which cargo stores the sources of a crate; they are fetched if necessary.
fn sources(root: &Path, name: &str) -> Result<PathBuf, String> {
    let mut command = cargo(root);
    command.args([
        "metadata",
        "--format-version",
        "1",
        "--filter-platform",
        "aarch64-apple-darwin",
    ]);
    let output = command.output().map_err(|error| format!("cargo metadata: {error}"))?;
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout).map_err(|error| {
        format!("cargo metadata: {error}: {}", String::from_utf8_lossy(&output.stderr))
    })?;
    let packages = metadata["packages"].as_array().map(Vec::as_slice).unwrap_or_default();
    let found = packages.iter().find(|package| package["name"] == name);
    let manifest = found.and_then(|package| package["manifest_path"].as_str());
    let folder = manifest.and_then(|manifest| Path::new(manifest).parent());
    folder
        .map(Path::to_owned)
        .ok_or_else(|| format!("no dependency on the crate `{name}` was found"))
}

/// Copies a crate and patches one of its files. An existing copy keeps its times, so that it is not built
/// again.
fn patch(from: &Path, to: &Path, file: &str, old: &str, new: &str) -> Result<(), String> {
    let marker = to.join(".copied-from");
    let source = from.display().to_string();
    if fs::read_to_string(&marker).is_ok_and(|copied| copied == source) {
        return Ok(());
    }
    if to.exists() {
        fs::remove_dir_all(to).map_err(|error| describe("remove", to, &error))?;
    }
    copy(from, to).map_err(|error| describe("copy", from, &error))?;
    let path = to.join(file);
    let text = fs::read_to_string(&path).map_err(|error| describe("read", &path, &error))?;
    if text.matches(old).count() != 1 {
        return Err(format!("`{}` does not contain `{old}` exactly once", path.display()));
    }
    fs::write(&path, text.replace(old, new)).map_err(|error| describe("write", &path, &error))?;
    fs::write(&marker, source).map_err(|error| describe("write", &marker, &error))
}

fn copy(from: &Path, to: &Path) -> std::io::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy(&entry.path(), &target)?;
        } else {
            fs::copy(entry.path(), target)?;
        }
    }
    Ok(())
}
