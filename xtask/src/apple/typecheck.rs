//! Type-checks what apps ship for Apple's targets.
//!
//! On macOS the toolchain has these targets. On Linux, Debian's `rust-web-src` has the sources of the standard library
//! that its `rustc-web` can check for them. One C file, which catches exceptions, is not compiled there: nothing is
//! linked.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::workspace::{cargo, describe, execute, target_directory};

/// What is checked: crates with their features.
const CRATES: [(&str, &[&str]); 2] = [
    ("coremill-coreml", &[]),
    ("coremill-capi", &["--no-default-features", "--features", "coreml"]),
];

/// What is checked on schedule, since it takes a minute: the façade as an app has it that opens and runs models.
const APP: (&str, &[&str]) = ("coremill", &["--no-default-features"]);

/// The variable that a scheduled run sets.
const ALL: &str = "COREMILL_ALL_CASES";

const TARGETS: [&str; 2] = ["aarch64-apple-darwin", "aarch64-apple-ios"];

/// Debian's compiler and cargo.
const RUSTC: &str = "/usr/bin/rustc";
const CARGO: &str = "/usr/bin/cargo";

/// What this machine lacks.
pub(super) fn missing() -> Option<String> {
    let needed = [RUSTC, CARGO, "/usr/lib/rustlib/src/rust/library"];
    let is_there = cfg!(target_os = "macos") || needed.iter().all(|path| Path::new(path).exists());
    (!is_there).then(|| "install rustc-web, cargo-web and rust-web-src".to_owned())
}

/// Checks each crate for each target.
pub(super) fn run(root: &Path) -> Result<(), String> {
    let target_folder = target_directory(root).join("apple-types");
    for target in TARGETS {
        let scheduled = std::env::var_os(ALL).map(|_| APP);
        for (name, features) in CRATES.into_iter().chain(scheduled) {
            let mut command = if cfg!(target_os = "macos") {
                let mut rustup = Command::new("rustup");
                execute(rustup.args(["target", "add", target]), "adding a target")?;
                cargo(root)
            } else {
                on_linux(root, &target_folder, target)?
            };
            command.args(["check", "--package", name, "--target", target]).args(features);
            if !cfg!(target_os = "macos") {
                command.arg("-Zbuild-std=std,panic_abort");
            }
            command.arg("--target-dir").arg(&target_folder);
            execute(&mut command, &format!("type-checking `{name}` for {target}"))?;
            println!("ok      {name} for {target}");
        }
    }
    Ok(())
}

/// Debian's cargo, which may build the standard library.
fn on_linux(root: &Path, folder: &Path, target: &str) -> Result<Command, String> {
    let compiler = folder.join("no-compiler");
    fs::create_dir_all(folder).map_err(|error| describe("make", folder, &error))?;
    // Makes an empty file of whatever it is to make.
    let script = "#!/bin/sh\nwhile [ $# -gt 0 ]; do\n  case $1 in\n    -o) : > \"$2\" ;;\n    *.a) : > \"$1\" ;;\n  esac\n  \
                  shift\ndone\n";
    fs::write(&compiler, script).map_err(|error| describe("write", &compiler, &error))?;
    execute(Command::new("chmod").arg("+x").arg(&compiler), "making a script executable")?;
    let name = target.replace('-', "_");
    let mut command = Command::new(CARGO);
    command.current_dir(root).env("RUSTC", RUSTC).env("RUSTC_BOOTSTRAP", "1");
    command.env("PATH", "/usr/bin:/bin").env_remove("CARGO").env_remove("RUSTUP_TOOLCHAIN");
    // Without them, Apple's software development kit is looked for.
    command
        .env("SDKROOT", folder)
        .env("MACOSX_DEPLOYMENT_TARGET", "13.0")
        .env("IPHONEOS_DEPLOYMENT_TARGET", "16.0");
    command.env(format!("CC_{name}"), &compiler).env(format!("AR_{name}"), &compiler);
    Ok(command)
}
