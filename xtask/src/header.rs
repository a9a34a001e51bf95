//! The C header, generated from the crate `coremill-capi`.

use std::process::Command;

use crate::workspace::root;

/// Whether to write or to check the header.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Write nothing; fail if the header differs from the generated one
    #[arg(long)]
    check: bool,
}

/// Writes or checks the header, by running a test of the crate.
pub(crate) fn run(arguments: &Arguments) -> Result<(), String> {
    let mut command = Command::new(env!("CARGO"));
    command.args(["test", "--quiet", "--package", "coremill-capi", "--test", "header"]);
    if !arguments.check {
        command.env("BLESS", "1");
    }
    let status = command.current_dir(root()).status();
    let status = status.map_err(|error| format!("cannot run cargo: {error}"))?;
    if status.success() { Ok(()) } else { Err("the header is out of date".to_owned()) }
}
