//! `cargo xtask apple`: checks of what is made for Apple's systems. On macOS, Apple's own software judges; elsewhere the
//! code is type-checked for Apple's targets, and runs against stand-ins for Core ML.

mod compiler;
mod package;
mod standin;
mod typecheck;

use crate::workspace::root;

/// What to check.
#[derive(clap::Args)]
#[command(
    after_help = "Without options: everything that this machine has tools for; what is left out is told.\n\nExamples:\n  \
                        cargo xtask apple\n  cargo xtask apple --only standins\n  cargo xtask apple --only package"
)]
pub(crate) struct Arguments {
    /// Check one thing, and fail if the tools for it are missing
    #[arg(long, value_enum)]
    only: Option<Check>,
}

/// A check.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Check {
    /// Type-check the crates that apps ship for macOS and iOS; on Linux with Debian's rustc-web, cargo-web, rust-web-src
    Types,
    /// Run our calls of Core ML against stand-ins; with Debian's gobjc, libgnustep-base-dev, libblocksruntime-dev
    Standins,
    /// Compile every golden package with Apple's compiler, and compare; on macOS
    Compiler,
    /// Build an XCFramework and a Swift package; on macOS, and never without being asked
    Package,
}

impl Check {
    fn name(self) -> &'static str {
        match self {
            Check::Types => "type-check for Apple's targets",
            Check::Standins => "stand-ins for Core ML",
            Check::Compiler => "Apple's compiler",
            Check::Package => "XCFramework and Swift package",
        }
    }

    /// What this machine lacks for it.
    fn missing(self) -> Option<String> {
        let on_mac = || (!cfg!(target_os = "macos")).then(|| "it runs on macOS".to_owned());
        match self {
            Check::Types => typecheck::missing(),
            Check::Standins => standin::missing(),
            Check::Compiler | Check::Package => on_mac(),
        }
    }

    fn run(self) -> Result<(), String> {
        let root = root();
        match self {
            Check::Types => typecheck::run(&root),
            Check::Standins => standin::run(&root),
            Check::Compiler => compiler::run(),
            Check::Package => package::run(&root),
        }
    }
}

/// Performs checks; the error names the first that fails.
pub(crate) fn run(arguments: &Arguments) -> Result<(), String> {
    match arguments.only {
        Some(check) => match check.missing() {
            Some(missing) => Err(format!("{}: {missing}", check.name())),
            None => check.run(),
        },
        None => run_all(&[Check::Standins, Check::Types, Check::Compiler]),
    }
}

/// Performs the checks that there are tools for, and tells in one line what was left out.
pub(crate) fn run_all(checks: &[Check]) -> Result<(), String> {
    let mut left_out = Vec::new();
    for check in checks {
        match check.missing() {
            Some(missing) => left_out.push(format!("{} ({missing})", check.name())),
            None => check.run().map_err(|error| format!("{}: {error}", check.name()))?,
        }
    }
    if !left_out.is_empty() {
        println!("left out: {}", left_out.join("; "));
    }
    Ok(())
}
