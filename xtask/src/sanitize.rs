//! `cargo xtask sanitize`: runs tests with several threads under ThreadSanitizer, on Linux.
//!
//! The standard library is instrumented as well, so that the ordering by its locks is visible. This needs its
//! sources and a compiler that can build them: a nightly toolchain of rustup with the component `rust-src`,
//! or Debian's `rustc-web`, `cargo-web` and `rust-web-src` with the sanitizer's runtime and the linker of
//! rustup's toolchain. The C++ side of ExecuTorch is tested by `python -m oracle.checkers.stock_programs --sanitize
//! thread`.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::apple::toolchain::libraries;
use crate::workspace::{describe, execute, root, target_directory};

/// Tests with threads: the package, and arguments that select its tests.
const TESTS: [(&str, &[&str]); 3] = [
    ("coremill-tensor", &["--lib", "pool"]),
    ("coremill-cache", &["--test", "cache", "--test", "processes"]),
    ("coremill-capi", &["--test", "interface"]),
];

const TARGET: &str = "x86_64-unknown-linux-gnu";

/// Optimization levels. The build is only for these tests: some optimization pays off, full optimization
/// takes too long.
const LEVELS: [&str; 3] = [
    "profile.dev.package.\"*\".opt-level=1",
    "profile.dev.package.coremill-tensor.opt-level=1",
    "profile.dev.opt-level=1",
];

/// The sanitizer's runtime is linked statically and does not support shared libraries. The shared library of
/// the C interface, which is built with its tests but not loaded by them, is linked nevertheless.
const LINKED: &str =
    "profile.dev.package.coremill-capi.rustflags=[\"-Clink-arg=-Wl,--noinhibit-exec\"]";

/// Runs the tests, and fails if there are reports.
pub(crate) fn run() -> Result<(), String> {
    let root = root();
    let (mut wrong, folder) = (Vec::new(), target_directory(&root).join("sanitize"));
    for (package, tests) in TESTS {
        let mut command = cargo()?;
        command.current_dir(&root).args(["test", "-Zbuild-std", "--target", TARGET]);
        command.arg("--target-dir").arg(&folder).args(["--package", package]).args(tests);
        command.args(["-Zprofile-rustflags", "--config", LINKED]);
        for level in LEVELS {
            command.args(["--config", level]);
        }
        if let Err(error) = execute(&mut command, &format!("the threads of `{package}`")) {
            wrong.push(error);
        }
    }
    if wrong.is_empty() { Ok(()) } else { Err(wrong.join("; ")) }
}

/// A cargo command that builds with ThreadSanitizer.
fn cargo() -> Result<Command, String> {
    let flags = format!("CARGO_TARGET_{}_RUSTFLAGS", TARGET.replace('-', "_").to_uppercase());
    let sources = "lib/rustlib/src/rust/library";
    let nightly = Command::new("rustc").args(["+nightly", "--print", "sysroot"]).output();
    let nightly = nightly.ok().and_then(|output| String::from_utf8(output.stdout).ok());
    let mut command;
    if nightly.is_some_and(|root| Path::new(root.trim()).join(sources).exists()) {
        command = Command::new("cargo");
        command.arg("+nightly").env(flags, "-Zsanitizer=thread");
        return Ok(command);
    }
    if !Path::new("/usr").join(sources).exists() {
        let install = "rustup toolchain install nightly --component rust-src";
        return Err(format!("the sources of the standard library are missing\nhint: {install}"));
    }
    command = Command::new("/usr/bin/cargo");
    command.env("RUSTC", "/usr/bin/rustc").env("RUSTC_BOOTSTRAP", "1").env("PATH", "/usr/bin:/bin");
    command.env_remove("CARGO").env_remove("RUSTUP_TOOLCHAIN");
    command.env(flags, with_rustups_runtime()?);
    Ok(command)
}

/// Flags for a compiler without its own runtime.
fn with_rustups_runtime() -> Result<String, String> {
    let folder = libraries(TARGET).ok_or("rustup's toolchain is missing")?;
    let entries = fs::read_dir(&folder).map_err(|error| describe("read", &folder, &error))?;
    let mut paths = entries.filter_map(|entry| entry.ok().map(|entry| entry.path()));
    let runtime = paths.find(|path| path.to_string_lossy().ends_with("_rt.tsan.a"));
    let runtime =
        runtime.ok_or_else(|| format!("`{}` has no sanitizer runtime", folder.display()))?;
    let linkers = folder.with_file_name("bin").join("gcc-ld");
    let mut flags = "-Zsanitizer=thread -Zexternal-clangrt".to_owned();
    let linked = [
        format!("-B{}", linkers.display()),
        "-fuse-ld=lld".to_owned(),
        "-Wl,--whole-archive".to_owned(),
        runtime.display().to_string(),
        "-Wl,--no-whole-archive,--export-dynamic,--no-as-needed,-Bdynamic".to_owned(),
    ];
    let libraries = ["dl", "pthread", "rt", "m", "resolv", "c"].map(|name| format!("-l{name}"));
    for argument in linked.into_iter().chain(libraries) {
        flags.push_str(" -Clink-arg=");
        flags.push_str(&argument);
    }
    Ok(flags)
}
