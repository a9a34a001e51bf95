use std::path::PathBuf;

use coremill_mil::text::{Dialect, PrintOptions};

use crate::output::{self, Failure, OutputPath};

/// Print the program of a model as MIL text
///
/// The text refers to the large constants by their place in the weight files. With `--output` these
/// files are written beside the text, so that `coremill pack` can put both together again.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  coremill text Model.mlpackage | less\n  coremill text Model.mlpackage -o program/model.mil"
)]
pub(crate) struct Args {
    /// A `.mlpackage`, `.mlmodel`, `.mlmodelc` or MIL text, or a `.pt2`, which is converted in memory; `-` is text on
    /// standard input
    #[arg(value_name = "MODEL")]
    model: PathBuf,
    /// The file to write; `-` is standard output
    #[arg(short, long, value_name = "FILE", default_value = "-")]
    output: OutputPath,
    /// The form: `1.3` is what Apple's compiler writes now, `1.0` what compilers before 3520 wrote
    #[arg(long, value_enum, default_value_t = Form::New)]
    dialect: Form,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Form {
    #[value(name = "1.3")]
    New,
    #[value(name = "1.0")]
    Old,
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    super::check_output_paths([&args.model], [&args.output])?;
    let model = super::open_or_convert(&args.model)?.0.model;
    let dialect = match args.dialect {
        Form::New => Dialect::V1_3,
        Form::Old => Dialect::V1_0,
    };
    let program = super::with_shapes(&model)?;
    super::warn_of_text(&model, &program);
    if args.output.is_stdout() {
        let options = PrintOptions { dialect, ..PrintOptions::default() };
        return output::print(&coremill_mil::text::print(&program, &options).text);
    }
    coremill::save_text(&args.output, &program, dialect).map_err(|error| super::failure(&error))
}
