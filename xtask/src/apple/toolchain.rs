//! Compilers for Apple's targets.
//!
//! rustup provides the standard library of installed targets. On Linux without an installed target, Debian's
//! `rustc-web` builds the standard library from the sources in `rust-web-src`. C and Objective-C code of
//! dependencies needs Apple's compiler; on Linux it is replaced by an empty archive.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::workspace::{cargo, describe, execute, target_directory};

pub(super) const MACOS: &str = "aarch64-apple-darwin";
pub(super) const IOS: &str = "aarch64-apple-ios";

/// Debian's compiler and cargo.
const RUSTC: &str = "/usr/bin/rustc";
const CARGO: &str = "/usr/bin/cargo";

/// Sources from which Debian's cargo builds the standard library.
const SOURCES: &str = "/usr/lib/rustlib/src/rust/library";

/// A cargo command that builds for a target.
pub(super) struct Cross {
    pub(super) command: Command,
    /// Output directory, which contains the profiles.
    pub(super) artifacts: PathBuf,
}

/// Directory of the libraries of rustup's toolchain for a target, if they are installed.
pub(crate) fn libraries(target: &str) -> Option<PathBuf> {
    let mut rustc = Command::new("rustc");
    let output = rustc.args(["--print", "target-libdir", "--target", target]).output().ok()?;
    let path = PathBuf::from(String::from_utf8(output.stdout).ok()?.trim());
    path.exists().then_some(path)
}

/// Missing requirements for building for Apple's targets.
pub(super) fn missing() -> Option<String> {
    let has_debians = [RUSTC, CARGO, SOURCES].iter().all(|path| Path::new(path).exists());
    let has = |target: &&str| libraries(target).is_some();
    let is_there = cfg!(target_os = "macos") || has_debians || [MACOS, IOS].iter().all(has);
    let install = format!("install rustc-web, cargo-web and rust-web-src, or {MACOS} and {IOS}");
    (!is_there).then(|| format!("{install} with rustup"))
}

/// A cargo command that runs a subcommand for a target.
pub(super) fn cross(root: &Path, subcommand: &str, target: &str) -> Result<Cross, String> {
    if cfg!(target_os = "macos") {
        let mut rustup = Command::new("rustup");
        execute(rustup.args(["target", "add", target]), "adding a target")?;
    }
    let is_installed = libraries(target).is_some();
    let mut folder = target_directory(root);
    let mut command = cargo(root);
    if !is_installed {
        folder = folder.join("apple-types");
        command = Command::new(CARGO);
        command.current_dir(root).env("RUSTC", RUSTC).env("RUSTC_BOOTSTRAP", "1");
        command.env("PATH", "/usr/bin:/bin").env_remove("CARGO").env_remove("RUSTUP_TOOLCHAIN");
    }
    if !cfg!(target_os = "macos") {
        without_xcode(&mut command, &target_directory(root).join("apple-link"), target)?;
    }
    command.arg(subcommand).args(["--target", target]).arg("--target-dir").arg(&folder);
    if !is_installed {
        command.arg("-Zbuild-std=std,panic_unwind");
        // Macros and build scripts run only once.
        command.args(["--config", "profile.dev.package.\"*\".opt-level=0"]);
    }
    Ok(Cross { command, artifacts: folder.join(target) })
}

/// Sets a compiler that produces empty output.
fn without_xcode(command: &mut Command, folder: &Path, target: &str) -> Result<(), String> {
    let compiler = folder.join("no-compiler");
    fs::create_dir_all(folder).map_err(|error| describe("make", folder, &error))?;
    // Writes an empty object file or archive.
    let script = "#!/bin/sh\nwhile [ $# -gt 0 ]; do\n  case $1 in\n    -o) : > \"$2\" ;;\n    \
                  *.a) printf '!<arch>\\n' > \"$1\" ;;\n  esac\n  shift\ndone\n";
    fs::write(&compiler, script).map_err(|error| describe("write", &compiler, &error))?;
    execute(Command::new("chmod").arg("+x").arg(&compiler), "making a script executable")?;
    let name = target.replace('-', "_");
    command.env(format!("CC_{name}"), &compiler).env(format!("AR_{name}"), &compiler);
    // Without these variables, the build searches for Apple's SDK.
    command.env("SDKROOT", folder).env("MACOSX_DEPLOYMENT_TARGET", "13.0");
    command.env("IPHONEOS_DEPLOYMENT_TARGET", "16.0");
    Ok(())
}
