//! The `coremill` command.
//!
//! Data goes to standard output, everything else to standard error. The exit code is 0 for success,
//! 1 if the user's input is invalid, 2 for a bug in coremill.

mod commands;
mod help;
mod inputs;
mod output;
mod progress;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;

use clap::{FromArgMatches, Parser, Subcommand};

use crate::output::Failure;

/// Core ML models on any operating system: convert them from PyTorch, inspect, check, run, compare,
/// and compress them.
#[derive(Parser)]
#[command(name = "coremill", version, arg_required_else_help = true, max_term_width = 100)]
struct Arguments {
    #[command(flatten)]
    output: output::Options,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Convert(commands::convert::Args),
    Lower(commands::lower::Args),
    Quantize(commands::quantize::Args),
    Check(commands::check::Args),
    Inspect(commands::inspect::Args),
    Run(commands::run::Args),
    Compare(commands::compare::Args),
    Diff(commands::diff::Args),
    Report(commands::report::Args),
    Plan(commands::plan::Args),
    Record(commands::record::Args),
    Text(commands::text::Args),
    Pack(commands::pack::Args),
    Extract(commands::extract::Args),
    Cache(commands::cache::Args),
    Compress(commands::compress::Args),
    Llm(commands::llm::Args),
    Generate(commands::generate::Args),
    Score(commands::score::Args),
    Tokenize(commands::tokenize::Args),
    Embed(commands::embed::Args),
    Transcribe(commands::transcribe::Args),
    Serve(commands::serve::Args),
    Edit(commands::edit::Args),
    Merge(commands::merge::Args),
    Split(commands::split::Args),
    Bisect(commands::bisect::Args),
    Ops(commands::ops::Args),
    Completions(commands::completions::Args),
    Man(commands::man::Args),
}

fn main() -> ExitCode {
    let parsed = help::command().try_get_matches();
    let arguments = match parsed.and_then(|matches| Arguments::from_arg_matches(&matches)) {
        Ok(arguments) => arguments,
        Err(error) => {
            // A request for help is not a failure. clap also exits with 2 for invalid arguments.
            let code = if error.use_stderr() { Failure::USER } else { 0 };
            let _ = error.print();
            return ExitCode::from(code);
        }
    };
    arguments.output.install();
    coremill_io::remove_staged_on_signals();
    coremill_io::guard();
    // A panic is a bug in coremill, and its message is already on standard error.
    let outcome = catch_unwind(AssertUnwindSafe(|| perform(arguments.command)));
    // A signal received meanwhile ends the process here.
    coremill_io::uninterrupted(|| ());
    // If an input file changed while it was read, the result is unreliable.
    if let Some(path) = coremill_io::changed() {
        let hint = "run the command again once nothing writes to it";
        let message = format!("`{}` changed while it was read", path.display());
        return Failure::user(message).hint(Some(hint)).report();
    }
    match outcome {
        Ok(Ok(())) => ExitCode::SUCCESS,
        Ok(Err(failure)) => failure.report(),
        Err(_) => ExitCode::from(Failure::OURS),
    }
}

fn perform(command: Command) -> Result<(), Failure> {
    match command {
        Command::Convert(args) => commands::convert::run(&args),
        Command::Lower(args) => commands::lower::run(&args),
        Command::Quantize(args) => commands::quantize::run(&args),
        Command::Check(args) => commands::check::run(&args),
        Command::Inspect(args) => commands::inspect::run(&args),
        Command::Run(args) => commands::run::run(&args),
        Command::Compare(args) => commands::compare::run(&args),
        Command::Diff(args) => commands::diff::run(&args),
        Command::Report(args) => commands::report::run(&args),
        Command::Plan(args) => commands::plan::run(&args),
        Command::Record(args) => commands::record::run(&args),
        Command::Text(args) => commands::text::run(&args),
        Command::Pack(args) => commands::pack::run(&args),
        Command::Extract(args) => commands::extract::run(&args),
        Command::Cache(args) => commands::cache::run(&args),
        Command::Compress(args) => commands::compress::run(&args),
        Command::Llm(args) => commands::llm::run(&args),
        Command::Generate(args) => commands::generate::run(&args),
        Command::Score(args) => commands::score::run(&args),
        Command::Tokenize(args) => commands::tokenize::run(&args),
        Command::Embed(args) => commands::embed::run(&args),
        Command::Transcribe(args) => commands::transcribe::run(&args),
        Command::Serve(args) => commands::serve::run(&args),
        Command::Edit(args) => commands::edit::run(&args),
        Command::Merge(args) => commands::merge::run(&args),
        Command::Split(args) => commands::split::run(&args),
        Command::Bisect(args) => commands::bisect::run(&args),
        Command::Ops(args) => commands::ops::run(&args),
        Command::Completions(args) => commands::completions::run(&args),
        Command::Man(args) => commands::man::run(&args),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use clap::CommandFactory;
    use clap::builder::ValueParser;

    use super::*;
    use crate::output::OutputPath;

    /// The options of a command: the name, such as `run --trace`, whether it is an output path, and
    /// the help.
    fn options(command: &clap::Command) -> Vec<(String, bool, String)> {
        let output = ValueParser::from(clap::value_parser!(OutputPath)).type_id();
        let own = command.get_arguments().map(|argument| {
            let name = argument.get_long().map(|long| format!("{} --{long}", command.get_name()));
            let help = argument.get_help().map(ToString::to_string).unwrap_or_default();
            (name.unwrap_or_default(), argument.get_value_parser().type_id() == output, help)
        });
        own.chain(command.get_subcommands().flat_map(options)).collect()
    }

    #[test]
    fn every_output_option_is_listed_in_outputs_txt() {
        let all = options(&Arguments::command());
        let rows = include_str!("../tests/outputs.txt").lines();
        let rows = rows.filter(|row| !row.starts_with('#'));
        let tested: BTreeSet<_> = rows.filter_map(|row| row.split(" | ").next()).collect();
        let outputs = all.iter().filter(|(_, is_output, _)| *is_output);
        let outputs: BTreeSet<_> = outputs.map(|(name, ..)| name.as_str()).collect();
        assert_eq!(
            outputs, tested,
            "tests/outputs.txt must list exactly the options of type OutputPath"
        );
        for (name, is_output, help) in &all {
            let phrases = ["Write a", "Output "];
            let is_written = phrases.iter().any(|phrase| help.contains(phrase));
            assert!(*is_output || !is_written, "`{name}` should be an `OutputPath`: {help}");
        }
    }

    #[test]
    fn clap_definitions_pass_debug_assert() {
        Arguments::command().debug_assert();
    }
}
