//! Developer commands, `cargo xtask COMMAND`: tests, benchmarks, generated files and releases.
#![expect(clippy::print_stdout, reason = "a command for people reports on standard output")]

mod apple;
mod apple_models;
mod bench;
mod check;
mod devices;
mod docs;
mod fuzz;
mod generated;
mod header;
mod ops;
mod oracle;
mod pt2;
mod pte;
mod python;
mod registers;
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
    /// Check the formatting and the lints, and run the unit tests; under 3 minutes once everything is built.
    Check,
    /// Run the Rust tests, then the oracle tests in their own Python environment.
    Test(test::Arguments),
    /// Generate the table of MIL operations from coremltools' registry, and the files derived from it.
    Ops(ops::Arguments),
    /// Write the schemas of torch's operators, which the reader of `.pt2` archives needs.
    Schemas(generated::Arguments),
    /// Write the list of operators that ExecuTorch's runtime has kernels for.
    Kernels(generated::Arguments),
    /// Write the results of `rlx-cpu` for the test cases of `coremill-rlx`.
    Rlx(generated::Arguments),
    /// Run the published tests of `rlx-coreml` against `coremill-rlx`.
    RlxTests,
    /// Write the list of ATen operators that can be converted, with the oldest release for each.
    Operators(generated::Arguments),
    /// Write docs/commands.md from the help of all commands.
    Commands(generated::Arguments),
    /// Write the tables of docs/devices.md.
    Devices(devices::Arguments),
    /// Write docs/python-api.md from the docstrings of the Python package built last.
    PythonApi(generated::Arguments),
    /// Write the README's benchmark table from docs/benchmarks.json.
    Benchmarks(generated::Arguments),
    /// Generate the C header from the crate that implements it.
    Header(header::Arguments),
    /// Print the contents of `.pt2` archives as JSON.
    #[command(name = "pt2-dump")]
    Pt2Dump(pt2::Arguments),
    /// Print the contents of ExecuTorch programs as JSON.
    #[command(name = "pte-dump")]
    PteDump(pte::Arguments),
    /// Build the documentation site into target/book.
    Docs,
    /// Build and test all artifacts of a release: crates, wheel, and archive of the command.
    Release(release::Arguments),
    /// Fuzz one of the readers for a limited time.
    Fuzz(fuzz::Arguments),
    /// Run the tests with several threads under ThreadSanitizer.
    Sanitize,
    /// Convert every exported program, and check the packages and their results.
    Zoo(zoo::Arguments),
    /// Measure performance, and check that it reaches its targets.
    Bench(bench::Arguments),
    /// Check the code for Apple's systems.
    Apple(apple::Arguments),
    /// Check that the innermost loops of products and convolutions keep their sums in registers.
    Registers,
    /// Measure the models of Apple's compiler and the packages of released products: open, check, run,
    /// compile, compare.
    AppleModels(apple_models::Arguments),
}

fn main() -> ExitCode {
    let outcome = match Arguments::parse().command {
        Command::Check => check::run(),
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
        Command::Devices(arguments) => devices::run(&arguments),
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
        Command::Registers => registers::run(),
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
    fn command_line_definition_is_valid() {
        Arguments::command().debug_assert();
    }
}
