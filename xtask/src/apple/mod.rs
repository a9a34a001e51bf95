//! `cargo xtask apple`: checks for Apple's systems. On macOS, they use Apple's own software. On other
//! systems, the code is type-checked and linked for Apple's targets, and runs against a replacement of Core
//! ML.

mod compiler;
mod device;
mod link;
mod package;
pub(crate) mod standin;
pub(crate) mod toolchain;
mod typecheck;

use crate::workspace::root;

/// Which checks to run.
#[derive(clap::Args)]
#[command(
    after_help = "Without options, runs all checks that this machine has tools for, and lists the skipped ones.\n\nExamples:\n  \
                        cargo xtask apple\n  cargo xtask apple --only standins\n  cargo xtask apple --only package"
)]
pub(crate) struct Arguments {
    /// Run one check, and fail if its tools are missing
    #[arg(long, value_enum)]
    only: Option<Check>,
}

/// A check.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Check {
    /// Type-check the crates for apps on macOS; on Linux with rustup's targets or Debian's rustc-web,
    /// cargo-web, rust-web-src
    Types,
    /// Link a program and the static library for iOS with LLD against stubs; on Linux, with the same packages
    Link,
    /// Run our calls of Core ML against a replacement library; with Debian's gobjc, libgnustep-base-dev,
    /// libblocksruntime-dev
    Standins,
    /// Compile every golden package with Apple's compiler, and compare the results; on macOS
    Compiler,
    /// Run packages on Core ML and on the engine, and compare the results; on macOS. On other systems it runs
    /// only the engine, on request
    Device,
    /// Build an XCFramework and a Swift package; on macOS, only on request
    Package,
}

impl Check {
    fn name(self) -> &'static str {
        match self {
            Check::Types => "type-check for Apple's targets",
            Check::Link => "link for Apple's targets",
            Check::Standins => "stand-ins for Core ML",
            Check::Compiler => "Apple's compiler",
            Check::Device => "Core ML compared with the engine",
            Check::Package => "XCFramework and Swift package",
        }
    }

    /// The missing requirements of this machine.
    fn missing(self) -> Option<String> {
        let on_mac =
            || (!cfg!(target_os = "macos")).then(|| "this check requires macOS".to_owned());
        match self {
            Check::Types => toolchain::missing(),
            Check::Link => link::missing(),
            Check::Standins => standin::missing(),
            Check::Compiler | Check::Device | Check::Package => on_mac(),
        }
    }

    fn run(self) -> Result<(), String> {
        let root = root();
        match self {
            Check::Types => typecheck::run(&root),
            Check::Link => link::run(&root),
            Check::Standins => standin::run(&root),
            Check::Compiler => compiler::run(),
            Check::Device => device::run(&root),
            Check::Package => package::run(&root),
        }
    }
}

/// Runs checks; the error names the first that fails.
pub(crate) fn run(arguments: &Arguments) -> Result<(), String> {
    match arguments.only {
        Some(Check::Device) => Check::Device.run(),
        Some(check) => match check.missing() {
            Some(missing) => Err(format!("{}: {missing}", check.name())),
            None => check.run(),
        },
        None => {
            run_all(&[Check::Standins, Check::Types, Check::Link, Check::Compiler, Check::Device])
        }
    }
}

/// Runs the checks for which the tools are installed, and prints one line about the skipped ones.
pub(crate) fn run_all(checks: &[Check]) -> Result<(), String> {
    let mut left_out = Vec::new();
    for check in checks {
        match check.missing() {
            Some(missing) => left_out.push(format!("{} ({missing})", check.name())),
            None => check.run().map_err(|error| format!("{}: {error}", check.name()))?,
        }
    }
    if !left_out.is_empty() {
        println!("skipped: {}", left_out.join("; "));
    }
    Ok(())
}
