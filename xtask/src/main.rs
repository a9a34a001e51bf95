//! Developer commands: everything that the project's checks do, as `cargo xtask COMMAND`.
#![expect(clippy::print_stdout, reason = "a command for people reports on standard output")]

mod apple;
mod apple_models;
mod bench;
mod check;
mod docs;
mod fuzz;
mod generated;
mod header;
mod ops;
mod oracle;
mod pt2;
mod pte;
mod python;
mod release;
mod rlx_tests;
mod sanitize;
mod test;
mod workspace;
mod zoo;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Developer commands of coremill.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Check the format, the lints, and the crates that changed; under 3 minutes once everything is built.
    Check(check::Arguments),
    /// Run the Rust tests, then the oracle tests in a Python environment made for them.
    Test(test::Arguments),
    /// Generate the op table from coremltools' registry, and what is made of the table.
    Ops(ops::Arguments),
    /// Dump torch's operator schemas, which the reader of `.pt2` archives needs.
    Schemas(generated::Arguments),
    /// List the operators that ExecuTorch's runtime has kernels for.
    Kernels(generated::Arguments),
    /// Compute what `rlx-cpu` gives for the cases of `coremill-rlx`.
    Rlx(generated::Arguments),
    /// Run the tests that `rlx-coreml` publishes against `coremill-rlx`.
    RlxTests,
    /// List the ATen operators that convert, with the oldest release that has them.
    Operators(generated::Arguments),
    /// Write down what the commands' help says.
    Commands(generated::Arguments),
    /// Write docs/python-api.md from the docstrings of the Python package that was built last.
    PythonApi(generated::Arguments),
    /// Write the README's table from docs/benchmarks.json.
    Benchmarks(generated::Arguments),
    /// Generate the C header from the crate that implements it.
    Header(header::Arguments),
    /// Print what is read from `.pt2` archives as JSON.
    #[command(name = "pt2-dump")]
    Pt2Dump(pt2::Arguments),
    /// Print what is read from ExecuTorch programs as JSON.
    #[command(name = "pte-dump")]
    PteDump(pte::Arguments),
    /// Build the documentation site into target/book.
    Docs,
    /// Build and try what a release publishes: crates, wheel, archive of the command.
    Release(release::Arguments),
    /// Fuzz one of the readers for a while.
    Fuzz(fuzz::Arguments),
    /// Run tests whose threads meet under ThreadSanitizer.
    Sanitize,
    /// Convert every exported program, and judge what came of it.
    Zoo(zoo::Arguments),
    /// Measure what the project promises.
    Bench(bench::Arguments),
    /// Check what is made for Apple's systems.
    Apple(apple::Arguments),
    /// Measure models of Apple's compiler and packages of products: open, check, run, compile, compare.
    AppleModels(apple_models::Arguments),
}

fn main() -> ExitCode {
    let outcome = match Arguments::parse().command {
        Command::Check(arguments) => check::run(&arguments),
        Command::Test(arguments) => test::run(&arguments),
        Command::Ops(arguments) => ops::run(&arguments),
        Command::Schemas(arguments) => generated::SCHEMAS.run(&arguments),
        Command::Kernels(arguments) => generated::KERNELS.run(&arguments),
        Command::Rlx(arguments) => generated::RLX.run(&arguments),
        Command::RlxTests => rlx_tests::run(),
        Command::Operators(arguments) => generated::OPERATORS.run(&arguments),
        Command::Commands(arguments) => generated::COMMANDS.run(&arguments),
        Command::PythonApi(arguments) => generated::PYTHON_API.run(&arguments),
        Command::Benchmarks(arguments) => generated::BENCHMARKS.run(&arguments),
        Command::Header(arguments) => header::run(&arguments),
        Command::Pt2Dump(arguments) => pt2::run(&arguments),
        Command::PteDump(arguments) => pte::run(&arguments),
        Command::Docs => docs::run(),
        Command::Release(arguments) => release::run(&arguments),
        Command::Fuzz(arguments) => fuzz::run(&arguments),
        Command::Sanitize => sanitize::run(),
        Command::Zoo(arguments) => zoo::run(&arguments),
        Command::Bench(arguments) => bench::run(&arguments),
        Command::Apple(arguments) => apple::run(&arguments),
        Command::AppleModels(arguments) => apple_models::run(&arguments),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            println!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::Arguments;

    #[test]
    fn the_command_line_is_consistent() {
        Arguments::command().debug_assert();
    }
}
