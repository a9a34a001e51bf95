//! Links the artifacts of apps for Apple's systems, on Linux, and checks the kernels in the static library.
//!
//! LLD links a program, and the static library for iOS with every entry point of `coremill.h`. Stubs replace
//! Apple's libraries. They list the exported symbols, so that a symbol that Apple lacks is an error. Nothing
//! is executed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::toolchain::{self, Cross, IOS, cross, libraries};
use crate::registers;
use crate::workspace::{describe, execute, target_directory};

/// A library of Apple's, its installed path, and the exports that are needed.
struct Stub {
    file: &'static str,
    installed: &'static str,
    symbols: &'static str,
}

/// The stubs that replace the SDK.
const STUBS: [Stub; 9] = [
    Stub {
        file: "libSystem.tbd",
        installed: "/usr/lib/libSystem.B.dylib",
        symbols: include_str!("stubs/libSystem.txt"),
    },
    Stub {
        file: "libobjc.tbd",
        installed: "/usr/lib/libobjc.A.dylib",
        symbols: include_str!("stubs/libobjc.txt"),
    },
    // Parts of the library with their own names.
    Stub { file: "libc.tbd", installed: "/usr/lib/libSystem.B.dylib", symbols: "" },
    Stub { file: "libm.tbd", installed: "/usr/lib/libSystem.B.dylib", symbols: "" },
    Stub { file: "libiconv.tbd", installed: "/usr/lib/libiconv.2.dylib", symbols: "" },
    // Classes of frameworks are looked up at run time.
    framework("CoreML.framework/CoreML.tbd", "/System/Library/Frameworks/CoreML.framework/CoreML"),
    framework(
        "Foundation.framework/Foundation.tbd",
        "/System/Library/Frameworks/Foundation.framework/Foundation",
    ),
    framework(
        "CoreFoundation.framework/CoreFoundation.tbd",
        "/System/Library/Frameworks/CoreFoundation.framework/CoreFoundation",
    ),
    // C and Objective-C code of dependencies, which only Apple's compiler can compile.
    Stub {
        file: "libneedsxcode.tbd",
        installed: "/usr/lib/libneedsxcode.dylib",
        symbols: "_blake3_hash_many_neon\n_objc2_exception_helper_0_1_try_catch\n",
    },
];

const fn framework(file: &'static str, installed: &'static str) -> Stub {
    Stub { file, installed, symbols: "" }
}

/// Host of rustup's linker.
const HOST: &str = "x86_64-unknown-linux-gnu";

/// Profile of the artifacts for apps.
const PROFILE: &str = "apple";

/// Maximum size in bytes that the complete, stripped static library for iOS may add to an app.
const LARGEST: u64 = 2_150_000;

/// The linker of rustup's toolchain or of the distribution.
fn linker() -> Option<PathBuf> {
    let rustups = libraries(HOST).map(|path| path.with_file_name("bin").join("rust-lld"));
    rustups.into_iter().chain(["/usr/bin/lld".into()]).find(|path| path.exists())
}

/// The missing requirements of this machine.
pub(super) fn missing() -> Option<String> {
    if !cfg!(target_os = "linux") {
        return Some("this check requires Linux".to_owned());
    }
    toolchain::missing().or_else(|| linker().is_none().then(|| "install lld".to_owned()))
}

/// Links both artifacts, and prints their kind and size.
pub(super) fn run(root: &Path) -> Result<(), String> {
    let linker = linker().ok_or("the linker was not found")?;
    let folder = target_directory(root).join("apple-link");
    let stubs = write_stubs(&folder)?;
    let program = link_program(root, &stubs, &linker)?;
    println!("ok      {}: {} bytes", program.display(), size(&program)?);
    let (library, linked) = link_library(root, &folder, &stubs, &linker)?;
    println!("ok      {}: {} bytes", library.display(), size(&library)?);
    let bytes = size(&linked)?;
    println!("ok      in an app, all entries, stripped: {bytes} bytes; the maximum is {LARGEST}");
    if bytes > LARGEST {
        return Err(format!(
            "the static library for iOS has {bytes} bytes; the maximum is {LARGEST}"
        ));
    }
    Ok(())
}

/// Writes the stubs and returns their directory.
fn write_stubs(folder: &Path) -> Result<PathBuf, String> {
    let stubs = folder.join("stubs");
    for Stub { file, installed, symbols } in &STUBS {
        let path = stubs.join(file);
        let parent = path.parent().unwrap_or(&stubs);
        fs::create_dir_all(parent).map_err(|error| describe("make", parent, &error))?;
        let symbols: Vec<_> = symbols.lines().filter(|line| line.starts_with('_')).collect();
        let targets = "[ arm64-macos, arm64-ios ]";
        let text = format!(
            "--- !tapi-tbd\ntbd-version: 4\ntargets: {targets}\ninstall-name: '{installed}'\nexports:\n  \
             - targets: {targets}\n    symbols: [ {} ]\n...\n",
            symbols.join(", ")
        );
        fs::write(&path, text).map_err(|error| describe("write", &path, &error))?;
    }
    Ok(stubs)
}

/// A cargo command that builds a target of a package for iOS and links with LLD.
fn build(root: &Path, stubs: &Path, linker: &Path) -> Result<Cross, String> {
    let mut built = cross(root, "rustc", IOS)?;
    let name = IOS.replace('-', "_").to_uppercase();
    let flags = [
        format!("-Clinker={}", linker.display()),
        "-Clinker-flavor=ld64.lld".to_owned(),
        format!("-Lnative={}", stubs.display()),
        format!("-Lframework={}", stubs.display()),
        "-Clink-arg=-lneedsxcode".to_owned(),
        // Names of generic functions include their types, for the check of registers.
        "-Csymbol-mangling-version=v0".to_owned(),
    ];
    built.command.env(format!("CARGO_TARGET_{name}_RUSTFLAGS"), flags.join(" "));
    built.command.args(["--no-default-features", "--features", "coreml"]);
    // Debian's toolchain has no strip tool.
    built.command.args(["--profile", PROFILE, "--config", "profile.apple.strip=\"none\""]);
    Ok(built)
}

/// Links a program, for the same target as the library, so that both share their dependencies.
fn link_program(root: &Path, stubs: &Path, linker: &Path) -> Result<PathBuf, String> {
    let Cross { mut command, artifacts } = build(root, stubs, linker)?;
    command.args(["--package", "coremill-runtime", "--example", "serve"]);
    execute(&mut command, "linking a program")?;
    Ok(artifacts.join(PROFILE).join("examples/serve"))
}

/// Builds the static library, and a stripped library linked from it with every entry point.
fn link_library(
    root: &Path,
    folder: &Path,
    stubs: &Path,
    linker: &Path,
) -> Result<(PathBuf, PathBuf), String> {
    let Cross { mut command, artifacts } = build(root, stubs, linker)?;
    command.args(["--package", "coremill-capi", "--lib", "--crate-type", "staticlib"]);
    let assembly = folder.join("coremill.s");
    command.args(["--", &format!("--emit=asm={}", assembly.display())]);
    execute(&mut command, "building the static library for iOS")?;
    registers::check_apple(&assembly)?;
    let library = artifacts.join(PROFILE).join("libcoremill_capi.a");

    let linked = folder.join("coremill.dylib");
    let mut link = Command::new(linker);
    link.args(["-flavor", "darwin", "-arch", "arm64", "-platform_version", "ios", "16.0", "18.0"]);
    // Remove symbols for debuggers and symbols that are not exported, as in released apps.
    link.args(["-dylib", "-dead_strip", "-S", "-x"]);
    for entry in entries(root)? {
        link.args(["-u", &format!("_{entry}")]);
    }
    link.arg("-o").arg(&linked).arg(&library).arg("-L").arg(stubs).arg("-F").arg(stubs);
    link.args(["-lSystem", "-lobjc", "-lneedsxcode"]);
    link.args(["-framework", "CoreML", "-framework", "Foundation", "-framework", "CoreFoundation"]);
    execute(&mut link, "linking the static library for iOS")?;
    Ok((library, linked))
}

/// The functions declared in `coremill.h`.
fn entries(root: &Path) -> Result<Vec<String>, String> {
    let path = root.join("crates/capi/include/coremill.h");
    let header = fs::read_to_string(&path).map_err(|error| describe("read", &path, &error))?;
    let names =
        header.split(|letter: char| !(letter.is_alphanumeric() || letter == '_' || letter == '('));
    let mut names: Vec<_> = names
        .filter_map(|word| word.split_once('(').map(|(name, _)| name))
        .filter(|name| name.starts_with("coremill_"))
        .map(str::to_owned)
        .collect();
    names.sort();
    names.dedup();
    if names.len() < 10 { Err("the header declares no entries".to_owned()) } else { Ok(names) }
}

fn size(path: &Path) -> Result<u64, String> {
    Ok(fs::metadata(path).map_err(|error| describe("read", path, &error))?.len())
}
