use std::path::PathBuf;

use crate::output::{Failure, OutputPath};

/// Write a model as a package or as a compiled model
///
/// The model may come as text, as a package or as a compiled model. It must be sound; if it is not,
/// nothing is written and everything that is wrong is said. What stood at the output is replaced in one
/// step. A pipeline stays one, its stages apart.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  coremill pack model.mil -o Model.mlpackage\n  coremill pack Model.mlpackage -o Model.mlmodelc   # compile it, on any system"
)]
pub(crate) struct Args {
    /// A `.mlpackage`, `.mlmodel`, `.mlmodelc` or MIL text; `-` is text on standard input
    #[arg(value_name = "MODEL")]
    model: PathBuf,
    /// What to write: a `.mlpackage` or a `.mlmodelc`
    #[arg(short, long, value_name = "PATH")]
    output: OutputPath,
    /// Wait until everything is on the disk
    #[arg(long)]
    sync: bool,
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    super::check_output_paths([&args.model], [&args.output])?;
    let output = args.output.as_directory()?;
    let options = coremill::SaveOptions { durable: args.sync };
    if args.model.as_os_str() != "-" {
        let pipeline = coremill::open_pipeline(&args.model);
        if let Some(pipeline) = pipeline.map_err(|error| super::failure(&error))? {
            let saved = coremill::save_pipeline(output, &pipeline, &options);
            return saved.map_err(|error| super::failure(&error));
        }
    }
    let opened = super::open_with_source(&args.model)?;
    let verified = super::verify(&opened)?;
    coremill::save(output, &verified, &options).map_err(|error| super::failure(&error))
}
