use std::path::{Path, PathBuf};

use coremill::compiler::{self, Options, Precision, States};
use coremill::mil::ir::Opset;

use crate::output::{self, Failure};

/// Take PyTorch programs to Core ML
///
/// Reads what `torch.export.save` wrote and writes a package. What cannot be lowered is said all at once,
/// with its place in the model, and nothing is written then.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  coremill convert model.pt2 -o Model.mlpackage\n  coremill convert model.pt2 -o Model.mlpackage --target ios18 --precision fp32\n  coremill convert exports/*.pt2 --output-dir packages"
)]
pub(crate) struct Args {
    /// The archives
    #[arg(value_name = "MODEL.pt2", required = true)]
    models: Vec<PathBuf>,
    /// What to write: a `.mlpackage`, a `.mlmodelc` or MIL text
    #[arg(short, long, value_name = "PATH", required_unless_present = "output_dir")]
    output: Option<PathBuf>,
    /// Where to write a package for each archive, under its name
    #[arg(long, value_name = "DIR", conflicts_with = "output")]
    output_dir: Option<PathBuf>,
    /// The oldest release that must run it: ios15 to ios18, ios26, or the same as macos12 and so on
    #[arg(long, value_name = "RELEASE", value_parser = parse_target)]
    target: Option<Opset>,
    /// What floats are computed in
    #[arg(long, value_name = "TYPE", value_parser = ["fp16", "fp32"], default_value = "fp16")]
    precision: String,
    /// The shapes that an input may have, of which several inputs take the same at a time by position; once for
    /// each input
    #[arg(long = "shapes", value_name = "NAME=1,3,224,224;1,3,448,448", value_parser = parse_shapes)]
    shapes: Vec<(String, Vec<Vec<u64>>)>,
    /// What becomes of buffers that the model writes to: states (from iOS 18 on), or inputs and outputs
    #[arg(long, value_name = "HOW", value_parser = ["keep", "io"], default_value = "keep")]
    states: String,
    /// A name for an input; once for each, in the order of the model's
    #[arg(long = "input-name", value_name = "NAME")]
    input_names: Vec<String>,
    /// A name for an output; once for each, in the order of the model's
    #[arg(long = "output-name", value_name = "NAME")]
    output_names: Vec<String>,
    /// Write attention out where Core ML has an operation for it
    #[arg(long)]
    decompose_sdpa: bool,
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let options = Options {
        target: args.target,
        precision: if args.precision == "fp32" { Precision::Fp32 } else { Precision::Fp16 },
        states: if args.states == "io" { States::Io } else { States::Keep },
        input_names: args.input_names.clone(),
        output_names: args.output_names.clone(),
        shapes: args.shapes.iter().cloned().collect(),
        decompose_sdpa: args.decompose_sdpa,
        ..Options::default()
    };
    let several = args.models.len() > 1;
    if several && args.output.is_some() {
        return Err(Failure::user("several archives cannot go to one output")
            .hint(Some("pass `--output-dir DIR` instead of `--output`")));
    }
    let mut failures = 0;
    for path in &args.models {
        let output = match (&args.output, &args.output_dir) {
            (Some(output), _) => output.clone(),
            (None, Some(directory)) => {
                // A name may hold points of its own: only the last part of it is its kind.
                let mut name = path.file_stem().unwrap_or(path.as_os_str()).to_owned();
                name.push(".mlpackage");
                directory.join(name)
            }
            (None, None) => return Err(Failure::user("there is no output")),
        };
        match convert(path, &output, &options) {
            Ok(()) => {}
            Err(failure) if several => {
                failures += 1;
                failure.report();
            }
            Err(failure) => return Err(failure),
        }
    }
    if failures > 0 {
        return Err(Failure::user(format!(
            "{failures} of {} could not be converted",
            args.models.len()
        )));
    }
    Ok(())
}

fn convert(path: &Path, output: &Path, options: &Options) -> Result<(), Failure> {
    let named = |message: String| format!("{}: {message}", path.display());
    let program = coremill::pt2::read(path)
        .map_err(|error| Failure::user(named(error.to_string())).hint(error.hint()))?;
    let converted = compiler::convert(program, options)
        .map_err(|error| Failure::user(named(error.to_string())).hint(error.hint()))?;
    let opened = coremill::Opened::made(converted.model, output);
    let verified = super::verify(&opened)?;
    coremill::save(output, &verified, &coremill::SaveOptions::default())
        .map_err(|error| super::failure(&error))?;
    anstream::eprintln!(
        "{} for {}",
        output::paint(output::STRONG, output.display()),
        converted.target
    );
    Ok(())
}

/// A name and shapes, as `--shapes` takes them.
fn parse_shapes(text: &str) -> Result<(String, Vec<Vec<u64>>), String> {
    let (name, shapes) = text
        .split_once('=')
        .ok_or("expected an input's name, `=`, and shapes: x=1,3,224,224;1,3,448,448")?;
    let shape = |shape: &str| -> Result<Vec<u64>, String> {
        let extent = |extent: &str| {
            let extent = extent.trim();
            extent.parse().map_err(|_| format!("`{extent}` is no extent; extents are 1 or more"))
        };
        shape.split(',').map(extent).collect()
    };
    Ok((name.trim().to_owned(), shapes.split(';').map(shape).collect::<Result<_, _>>()?))
}

fn parse_target(text: &str) -> Result<Opset, String> {
    const NAMES: [(&str, Opset); 20] = [
        ("ios15", Opset::Ios15),
        ("ios16", Opset::Ios16),
        ("ios17", Opset::Ios17),
        ("ios18", Opset::Ios18),
        ("ios26", Opset::Ios26),
        ("macos12", Opset::Ios15),
        ("macos13", Opset::Ios16),
        ("macos14", Opset::Ios17),
        ("macos15", Opset::Ios18),
        ("macos26", Opset::Ios26),
        ("watchos8", Opset::Ios15),
        ("watchos9", Opset::Ios16),
        ("watchos10", Opset::Ios17),
        ("watchos11", Opset::Ios18),
        ("watchos26", Opset::Ios26),
        ("tvos15", Opset::Ios15),
        ("tvos16", Opset::Ios16),
        ("tvos17", Opset::Ios17),
        ("tvos18", Opset::Ios18),
        ("tvos26", Opset::Ios26),
    ];
    let wanted = text.to_ascii_lowercase();
    let found = NAMES.iter().find(|(name, _)| *name == wanted);
    found.map(|(_, opset)| *opset).ok_or_else(|| {
        "releases are ios15 to ios18 and ios26, and those of macos, watchos and tvos of the same years"
            .to_owned()
    })
}
