use std::path::Path;

use clap::{Command, CommandFactory};
use clap_mangen::Man;

use crate::help;
use crate::output::{self, Failure, OutputPath};

/// Print the manual page of a command, or write the pages of all commands
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  coremill man convert | man -l -\n  coremill man -o ~/.local/share/man/man1"
)]
pub(crate) struct Args {
    /// Name of the command [default: `coremill` itself]
    #[arg(value_name = "COMMAND", conflicts_with = "output")]
    command: Option<String>,
    /// Output directory for the pages of all commands; created if needed
    #[arg(short, long, value_name = "DIR")]
    output: Option<OutputPath>,
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let root = whole();
    if let Some(output) = &args.output {
        return write_all(&root, output.as_directory()?);
    }
    let Some(name) = &args.command else { return output::print(&page(&root)?) };
    let Some(command) = root.find_subcommand(name) else {
        let names: Vec<_> = root.get_subcommands().map(Command::get_name).collect();
        return Err(Failure::user(coremill_io::unknown_name("command", name, &names)));
    };
    output::print(&page(command)?)
}

/// The command declaration with full names.
fn whole() -> Command {
    let mut command =
        crate::Arguments::command().disable_help_subcommand(true).after_help(help::EXAMPLES);
    command.build();
    command
}

/// The manual page of a command.
fn page(command: &Command) -> Result<String, Failure> {
    let mut page = Vec::new();
    Man::new(command.clone()).render(&mut page).map_err(Failure::internal)?;
    String::from_utf8(page).map_err(Failure::internal)
}

/// Writes the pages of a command and its subcommands.
fn write_all(command: &Command, directory: &Path) -> Result<(), Failure> {
    std::fs::create_dir_all(directory)
        .map_err(|error| Failure::user(format_args!("{}: {error}", directory.display())))?;
    let name = command.get_display_name().unwrap_or(command.get_name());
    let path = directory.join(format!("{name}.1"));
    coremill::write_file(&path, page(command)?.as_bytes())
        .map_err(|error| super::failure(&error))?;
    let mut below = command.get_subcommands().filter(|command| command.get_name() != "help");
    below.try_for_each(|command| write_all(command, directory))
}
