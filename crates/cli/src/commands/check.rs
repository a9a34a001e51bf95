use std::io::IsTerminal;
use std::path::PathBuf;

use coremill::mil::verify::{RenderOptions, Severity};

use crate::output::{self, Failure};

/// Say everything that Core ML would refuse about a model, and what keeps it from running well
#[derive(clap::Args)]
#[command(
    after_help = "Exits with 1 if there is an error.\n\nExamples:\n  coremill check Model.mlpackage\n  coremill check Model.mlpackage --deny-warnings --json"
)]
pub(crate) struct Args {
    /// A `.mlpackage`, `.mlmodel`, `.mlmodelc` or MIL text; `-` is text on standard input
    #[arg(value_name = "MODEL")]
    model: PathBuf,
    /// Leave out the warnings
    #[arg(long, conflicts_with = "deny_warnings")]
    no_warnings: bool,
    /// Exit with 1 if there is a warning
    #[arg(long)]
    deny_warnings: bool,
    /// Print the diagnostics as JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let opened = super::open_with_source(&args.model)?;
    let mut report = coremill::check(&opened.model);
    if args.no_warnings {
        report.diagnostics.retain(|diagnostic| diagnostic.severity() == Severity::Error);
    }
    if args.json {
        output::print_json(&report.to_json())?;
    } else {
        let options = RenderOptions {
            // Whether colour is wanted is decided where it is printed, which strips it.
            color: true,
            width: if std::io::stdout().is_terminal() { output::width() } else { 120 },
            ..RenderOptions::default()
        };
        output::print(&opened.render(&report, &options))?;
    }
    let denied = args.deny_warnings && report.warning_count() > 0;
    if report.is_sound() && !denied { Ok(()) } else { Err(Failure::told()) }
}
