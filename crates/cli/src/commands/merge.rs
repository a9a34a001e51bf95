use std::path::PathBuf;

use coremill::edit;

use crate::output::{Failure, OutputPath};

/// Combine models into one with several functions
///
/// Weights of equal content are stored once. The first function runs by default. Core ML supports several functions since
/// iOS 18.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  coremill merge prefill=Prefill.mlpackage decode=Decode.mlpackage -o Llm.mlpackage\n  coremill merge french=Base.mlpackage:adapted main=Other.mlpackage -o Both.mlpackage"
)]
pub(crate) struct Args {
    /// Name of a function and the model that provides it. If the model has several functions, `:FUNCTION` selects one
    /// [default: the model's default function]
    #[arg(value_name = "NAME=MODEL[:FUNCTION]", required = true)]
    models: Vec<String>,
    /// Output: a `.mlpackage` or a `.mlmodelc`
    #[arg(short, long, value_name = "PATH")]
    output: OutputPath,
    /// Wait until all data is on disk
    #[arg(long)]
    sync: bool,
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let mut sources = Vec::with_capacity(args.models.len());
    for text in &args.models {
        let Some((name, source)) = text.split_once('=') else {
            return Err(Failure::user(format_args!("`{text}` has no function name"))
                .hint(Some("pass `NAME=MODEL` for each")));
        };
        let whole = PathBuf::from(source);
        let (path, function) = match source.rsplit_once(':').filter(|_| !whole.exists()) {
            Some((path, function)) => (PathBuf::from(path), Some(function.to_owned())),
            None => (whole, None),
        };
        sources.push((name.to_owned(), path, function));
    }
    super::check_output_paths(sources.iter().map(|(_, path, _)| path), [&args.output])?;
    let output = args.output.as_directory()?;
    let mut models = Vec::with_capacity(sources.len());
    for (name, path, function) in &sources {
        let model = super::open(path)?;
        let alone = edit::function(&model, function.as_deref());
        models.push((name.clone(), alone.map_err(|error| super::failure(&error))?));
    }
    let merged = edit::merge(models).map_err(|error| super::failure(&error))?;
    let opened = coremill::OpenedModel::made(merged, output);
    let verified = super::verify(&opened)?;
    coremill::save(output, &verified, &coremill::SaveOptions { durable: args.sync })
        .map_err(|error| super::failure(&error))
}
