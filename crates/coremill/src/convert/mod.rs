//! Conversion of PyTorch programs to Core ML.
//!
//! [`read`] reads an archive, [`check_options`] validates the options, and [`convert`] converts the
//! program. [`groups`] groups calls that cannot be lowered. [`check_numbers`] runs the result on
//! the archive's sample inputs; [`check_method`] does the same for a method of an ExecuTorch
//! program. [`coremill::convert`](crate::convert()) combines these steps.
//!
//! ```
//! use coremill::convert;
//!
//! let archive = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/digits.pt2");
//! let program = convert::read(archive)?;
//! let options = convert::Options::default();
//! convert::check_options(&program, &options)?;
//! let conversion = convert::convert(program, &options)?;
//! assert_eq!(conversion.model.program.functions.len(), 1);
//! # Ok::<(), coremill::Error>(())
//! ```

mod functions;
mod numbers;
mod refusals;
mod target;
mod wide;

use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::path::Path;

use coremill_compiler as compiler;
use coremill_mil::ops::OpKind;
use coremill_pt2::{self as pt2, Argument, InputKind, Node, OutputKind};

pub use coremill_compiler::{
    Conversion, Error as CompileError, ErrorKind as CompileErrorKind, LowerOptions, LoweringError,
    Options, Rewrite, UnsupportedOp,
};
pub use coremill_optimize::{fit, sample_inputs};
pub use coremill_pt2::ExportedProgram;
pub use functions::convert_functions;
pub use numbers::{
    FP16_BOUND, FP32_BOUND, NumericsReport, OutputAgreement, bound, check_method, check_numbers,
};
pub use refusals::{Group, Paint, Part, Place, groups, render_group, render_refused, sum_refused};
pub use target::parse_target;
pub use wide::{Fp32Op, kept_in_fp32};

use coremill_session::FileKind;

use crate::error::Error;

/// Metadata key of the coremill version that created a model.
pub const VERSION_KEY: &str = "coremill.version";
/// Metadata key of a model's source, such as `torch==2.8.0`.
pub const SOURCE_KEY: &str = "coremill.source";

/// Reads an archive written by `torch.export.save`. Errors contain the path.
pub fn read(path: impl AsRef<Path>) -> Result<ExportedProgram, Error> {
    let path = path.as_ref();
    match std::fs::metadata(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return Err(Error::missing(path));
        }
        Err(error) => return Err(Error::io("read", path, error)),
        Ok(metadata) if metadata.is_dir() => {
            let package = path.join("Manifest.json").exists();
            let what = if package { "already a package" } else { "a directory, not an archive" };
            let message = format!("{} is {what}", path.display());
            return Err(Error::new(message).with_hint("pass a file saved by `torch.export.save`"));
        }
        Ok(metadata) if !metadata.is_file() => {
            // Only regular files can be mapped; reading a pipe would block.
            let message = format!("{} is not a regular file", path.display());
            return Err(Error::new(message).with_hint("write the archive to a file first"));
        }
        Ok(_) => {}
    }
    pt2::read(path).map_err(|error| match FileKind::of_content(path) {
        Err(_) | Ok(FileKind::ModelFile | FileKind::ExportedProgram) => {
            of_archive(&error).within(path)
        }
        Ok(other) => other.instead_of(path, "a program saved by `torch.export.save`").into(),
    })
}

/// Converts a program, and records its source and the coremill version in the metadata.
pub fn convert(program: ExportedProgram, options: &Options) -> Result<Conversion, compiler::Error> {
    let options = with_notes(&program, options);
    let conversion = compiler::convert(program, &options)?;
    compiler::check_fp32_values(&conversion.model.program.functions, &options)?;
    Ok(conversion)
}

/// Adds the program's source and the coremill version to the metadata of the options.
fn with_notes(program: &ExportedProgram, options: &Options) -> Options {
    let mut options = options.clone();
    let mut notes =
        BTreeMap::from([(VERSION_KEY.to_owned(), env!("CARGO_PKG_VERSION").to_owned())]);
    if let Some(version) = &program.torch_version {
        notes.insert(SOURCE_KEY.to_owned(), format!("torch=={version}"));
    }
    // The caller's entries take precedence.
    notes.extend(std::mem::take(&mut options.metadata.user_defined));
    options.metadata.user_defined = notes.into_iter().collect();
    options
}

/// Validates options against a program. Names that do not occur in it are errors, since they would
/// have no effect.
pub fn check_options(program: &ExportedProgram, options: &Options) -> Result<(), Error> {
    let inputs = program.inputs.iter().zip(&program.graph.inputs);
    let inputs = inputs.filter(|(kind, argument)| {
        matches!(kind, InputKind::User) && matches!(argument, Argument::Value(_))
    });
    let inputs: Vec<_> = inputs.map(|(_, argument)| argument).collect();
    names_fit("input", &options.input_names, inputs.len())?;
    let outputs = program.outputs.iter().zip(&program.graph.outputs);
    let outputs = outputs.filter(|(kind, argument)| {
        matches!(kind, OutputKind::User | OutputKind::Loss) && !matches!(argument, Argument::None)
    });
    let outputs: Vec<_> = outputs.map(|(_, argument)| argument).collect();
    names_fit("output", &options.output_names, outputs.len())?;
    let named = |asked_for: &[String], at: usize, argument: &Argument| match argument {
        _ if at < asked_for.len() => Some(asked_for[at].clone()),
        Argument::Value(id) => Some(compiler::identifier(&program.graph.value(*id).name)),
        _ => None,
    };
    let of_outputs = |name: &String| {
        let mut names =
            outputs.iter().enumerate().map(|(at, it)| named(&options.output_names, at, it));
        names.any(|output| output.as_ref() == Some(name))
    };
    for (at, input) in inputs.iter().enumerate() {
        let Some(name) = named(&options.input_names, at, input) else { continue };
        let is_asked_for =
            options.input_names.contains(&name) || options.output_names.contains(&name);
        if is_asked_for && of_outputs(&name) {
            let message = format!("an input and an output cannot both be named `{name}`");
            return Err(Error::new(message).with_hint("rename one of them"));
        }
    }
    check_fp32([program], options)
}

/// Validates the fp32 options. Each name must occur in one of the programs.
pub fn check_fp32<'p>(
    programs: impl IntoIterator<Item = &'p ExportedProgram>,
    options: &Options,
) -> Result<(), Error> {
    for name in &options.fp32_ops {
        OpKind::parse(name)
            .map_err(|unknown| Error::new(unknown.message).with_hint(unknown.hint))?;
    }
    if options.fp32_modules.is_empty() {
        return Ok(());
    }
    let mut paths = BTreeSet::new();
    for program in programs {
        modules(&program.graph.nodes, &mut paths);
    }
    for wanted in &options.fp32_modules {
        if !paths.iter().any(|path| compiler::is_within(path, wanted)) {
            let last = wanted.rsplit('.').next().unwrap_or(wanted);
            let similar = paths.iter().filter(|path| path.rsplit('.').next() == Some(last)).take(5);
            let mut shown: Vec<_> = similar.map(|path| format!("`{path}`")).collect();
            if shown.is_empty() {
                shown = paths.iter().take(5).map(|path| format!("`{path}`")).collect();
            }
            let error = Error::new(format!("the program has no module `{wanted}`"));
            return Err(if shown.is_empty() {
                error.with_hint("the archive records no modules")
            } else {
                error.with_hint(format!("it has modules such as {}", shown.join(", ")))
            });
        }
    }
    Ok(())
}

fn names_fit(what: &str, names: &[String], count: usize) -> Result<(), Error> {
    if names.len() > count {
        let (given, plural) = (names.len(), if count == 1 { "" } else { "s" });
        return Err(Error::new(format!(
            "got {given} names for {what}s, but the program has {count} {what}{plural}"
        )));
    }
    for (index, name) in names.iter().enumerate() {
        if names[..index].contains(name) {
            return Err(Error::new(format!("two {what}s cannot both be named `{name}`")));
        }
        let identifier = compiler::identifier(name);
        if identifier != *name {
            return Err(Error::new(format!("Core ML does not accept the name `{name}`"))
                .with_hint(format!("use `{identifier}`")));
        }
    }
    Ok(())
}

/// Collects the module paths of all calls.
fn modules<'p>(nodes: &'p [Node], paths: &mut BTreeSet<&'p str>) {
    let mut pending = vec![nodes];
    while let Some(nodes) = pending.pop() {
        for node in nodes {
            paths.extend(node.origin.module_path().filter(|path| !path.is_empty()));
            let arguments = node.all_arguments();
            for argument in arguments {
                if let Argument::Graph(subgraph) = argument {
                    pending.push(&subgraph.graph.nodes);
                }
            }
        }
    }
}

fn of_archive(error: &pt2::Error) -> Error {
    Error::new(error.located_message()).with_hint_of(error.hint()).with_source(error.clone())
}
