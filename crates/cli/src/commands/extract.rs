use std::path::PathBuf;

use coremill::executorch::{self, ExtractedModel, Use};
use coremill::quantity;
use coremill::{SaveOptions, executorch::open};
use serde::Serialize;

use crate::output::{self, Cell, FAINT, Failure, OutputPath, STRONG, Table};

/// Write the Core ML models of an ExecuTorch program to files
///
/// Each model is written byte for byte, as a package or a compiled model. A model that several
/// methods share is written once.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  coremill extract model.pte -o models\n  coremill inspect models/forward.mlpackage"
)]
pub(crate) struct Args {
    /// The ExecuTorch program
    #[arg(value_name = "MODEL.pte")]
    program: PathBuf,
    /// Output directory for the models; created if needed
    #[arg(short, long, value_name = "DIR")]
    output: OutputPath,
    /// Wait until all data is on disk
    #[arg(long)]
    sync: bool,
    /// Print the written files as JSON
    #[arg(long)]
    json: bool,
}

/// The written files. The JSON form is stable: for the same `format_version`, fields are only
/// added.
#[derive(Serialize)]
struct Report {
    format_version: u32,
    models: Vec<ExtractedFile>,
}

#[derive(Serialize)]
struct ExtractedFile {
    path: String,
    bytes: u64,
    uses: Vec<User>,
}

#[derive(Serialize)]
struct User {
    method: String,
    delegate: usize,
    function: Option<String>,
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let output = args.output.as_directory()?;
    let program = open(&args.program).map_err(|error| super::failure(&error))?;
    let options = SaveOptions { durable: args.sync };
    let extracted = executorch::extract(&program, output, &options);
    let extracted = extracted.map_err(|error| super::failure(&error))?;
    if extracted.is_empty() && !args.json {
        let name = args.program.display();
        return Err(Failure::user(format_args!("{name} delegates nothing to Core ML")));
    }
    if args.json {
        let models = extracted.iter().map(written).collect();
        return output::print_json(&Report { format_version: 1, models });
    }
    let mut table = Table::new(0);
    for model in &extracted {
        table.row([
            Cell::text(model.path.display()).style(STRONG),
            Cell::number(quantity::bytes(model.bytes)),
            Cell::text(users(&model.uses)).style(FAINT),
        ]);
    }
    output::say(&table.render())
}

fn written(model: &ExtractedModel) -> ExtractedFile {
    let user = |user: &Use| User {
        method: user.method.clone(),
        delegate: user.delegate,
        function: user.function.clone(),
    };
    ExtractedFile {
        path: model.path.display().to_string(),
        bytes: model.bytes,
        uses: model.uses.iter().map(user).collect(),
    }
}

/// Describes the delegates that use a model.
pub(super) fn users(uses: &[Use]) -> String {
    let shown = |user: &Use| {
        let function = user.function.iter().filter(|function| **function != user.method);
        let function: String = function.map(|name| format!(" by `{name}`")).collect();
        format!("{}, delegate {}{function}", user.method, user.delegate)
    };
    uses.iter().map(shown).collect::<Vec<_>>().join("; ")
}
