//! Developer commands: everything that the project's checks do, as `cargo xtask COMMAND`.
#![expect(clippy::print_stdout, reason = "a command for people reports on standard output")]

mod test;

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
    /// Run the Rust tests, then the oracle tests in a Python environment made for them.
    Test(test::Arguments),
}

fn main() -> ExitCode {
    let outcome = match Arguments::parse().command {
        Command::Test(arguments) => test::run(&arguments),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            println!("error: {error}");
            ExitCode::FAILURE
        }
    }
}
