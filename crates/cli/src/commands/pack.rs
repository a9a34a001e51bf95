use std::path::PathBuf;

use crate::output::{Failure, OutputPath};

/// Write a model as a package or a compiled model
///
/// The model is verified first. If it is invalid, all errors are printed and nothing is written. An
/// existing output is replaced atomically. A pipeline keeps its stages.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  coremill pack model.mil -o Model.mlpackage\n  coremill pack Model.mlpackage -o Model.mlmodelc   # compile it, on any system"
)]
pub(crate) struct Args {
    /// A `.mlpackage`, `.mlmodel`, `.mlmodelc` or MIL text; `-` reads MIL text from standard input
    #[arg(value_name = "MODEL")]
    model: PathBuf,
    /// Output path: a `.mlpackage` or a `.mlmodelc`
    #[arg(short, long, value_name = "PATH")]
    output: OutputPath,
    /// Wait until all data is on disk
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
