use clap::CommandFactory;
use clap_complete::Shell;

use crate::output::{self, Failure};

/// Print a completion script for bash, elvish, fish, powershell or zsh
#[derive(clap::Args)]
#[command(after_help = "Example:\n  coremill completions zsh > ~/.zfunc/_coremill")]
pub(crate) struct Args {
    /// Name of the shell
    shell: Shell,
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut crate::Arguments::command(), "coremill", &mut script);
    output::print(&String::from_utf8_lossy(&script))
}
