use std::path::PathBuf;

use coremill_mil::text::{Dialect, PrintOptions};

use crate::output::{self, Failure, OutputPath};

/// Print the program of a model as MIL text
///
/// Large constants refer to weight files. With `--output`, these files are written next to the
/// text, so that `coremill pack` can read them.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  coremill text Model.mlpackage | less\n  coremill text Model.mlpackage -o program/model.mil"
)]
pub(crate) struct Args {
    /// A `.mlpackage`, `.mlmodel`, `.mlmodelc`, MIL text or `.pt2` archive; `-` reads MIL text from
    /// standard input
    #[arg(value_name = "MODEL")]
    model: PathBuf,
    /// Output file; `-` is standard output
    #[arg(short, long, value_name = "FILE", default_value = "-")]
    output: OutputPath,
    /// Dialect of the text: `1.3` as written by current Apple compilers, `1.0` as written before
    /// version 3520
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
