//! Subcommands: one module per command, each with `Args` and `run`.

pub(crate) mod bisect;
pub(crate) mod cache;
pub(crate) mod check;
pub(crate) mod compare;
pub(crate) mod completions;
pub(crate) mod compress;
pub(crate) mod convert;
pub(crate) mod diff;
pub(crate) mod edit;
mod edits;
pub(crate) mod embed;
pub(crate) mod extract;
mod figures;
pub(crate) mod generate;
pub(crate) mod inspect;
pub(crate) mod llm;
mod loaded;
pub(crate) mod lower;
pub(crate) mod man;
pub(crate) mod merge;
pub(crate) mod ops;
pub(crate) mod pack;
mod page;
mod placement;
pub(crate) mod plan;
pub(crate) mod quantize;
pub(crate) mod record;
pub(crate) mod report;
pub(crate) mod run;
pub(crate) mod score;
pub(crate) mod serve;
pub(crate) mod split;
pub(crate) mod text;
pub(crate) mod tokenize;
pub(crate) mod transcribe;

use std::path::{Path, PathBuf};

use coremill::{FileKind, Model, OpenedModel, Verified};
use coremill_compiler::Options;
use coremill_mil::ir::Program;
use coremill_mil::model::shapes;
use coremill_mil::text::Dialect;
use coremill_pt2::ExportedProgram;
use coremill_verify::{RenderOptions, Severity};

pub(crate) use crate::output::failure;
use crate::output::{self, Failure, OutputPath};

/// Opens a model in any format.
fn open(path: &Path) -> Result<Model, Failure> {
    if path.as_os_str() == "-" {
        return open_with_source(path).map(|opened| opened.model);
    }
    coremill::open(path).map_err(|error| failure(&error))
}

/// Opens a model in any format, with its source text. `-` reads MIL text from standard input;
/// weight files are relative to the current directory.
fn open_with_source(path: &Path) -> Result<OpenedModel, Failure> {
    let opened = if path.as_os_str() == "-" {
        coremill::read_text(&mut std::io::stdin().lock(), "standard input", ".")
    } else {
        coremill::open_with_source(path)
    };
    opened.map_err(|error| failure(&error))
}

/// Opens a model in any format. A `torch.export` archive is converted in memory, and also returned.
fn open_or_convert(path: &Path) -> Result<(OpenedModel, Option<ExportedProgram>), Failure> {
    let is_archive = FileKind::detect(path).is_ok_and(|kind| kind == FileKind::ExportedProgram);
    if path.as_os_str() == "-" || !is_archive {
        return open_with_source(path).map(|opened| (opened, None));
    }
    let (program, conversion) = convert::in_memory(path, &Options::default())?;
    Ok((OpenedModel::made(conversion.model, path), Some(program)))
}

/// Verifies a model. Prints all errors if it is invalid.
fn verify(opened: &OpenedModel) -> Result<Verified<'_>, Failure> {
    coremill::verify(&opened.model).map_err(|mut report| {
        report.diagnostics.retain(|diagnostic| diagnostic.severity() == Severity::Error);
        let width = output::excerpt_width();
        let options = RenderOptions { color: true, width, ..RenderOptions::default() };
        output::tell(&opened.render(&report, &options));
        Failure::already_reported()
    })
}

/// Writes a model in the format of the path's extension.
fn save(
    output: &Path,
    opened: &OpenedModel,
    verified: &Verified<'_>,
    durable: bool,
) -> Result<(), Failure> {
    if output.extension().is_some_and(|extension| extension == "mil") {
        let program = with_shapes(&opened.model)?;
        warn_of_text(&opened.model, &program);
        coremill::save_text(output, &program, Dialect::default())
    } else {
        coremill::save(output, verified, &coremill::SaveOptions { durable })
    }
    .map_err(|error| failure(&error))
}

/// Parses a number of threads.
fn threads(text: &str) -> Result<usize, String> {
    const MOST: usize = coremill_kernels::MAX_THREADS;
    let number = text.parse::<usize>().ok().filter(|number| *number <= MOST);
    number.ok_or_else(|| format!("expected a number from 0 to {MOST}"))
}

/// Rejects outputs that would overwrite an input, its parts or its parent, or another output. `-`
/// is a standard stream. If an output is standard output, reports are printed to standard error.
fn check_output_paths<'p>(
    inputs: impl IntoIterator<Item = &'p PathBuf>,
    outputs: impl IntoIterator<Item = &'p OutputPath>,
) -> Result<(), Failure> {
    let refused = |message: String| Err(Failure::user(message).hint(Some("write to another path")));
    let inputs = inputs.into_iter().filter(|path| path.as_os_str() != "-");
    let inputs: Vec<_> = inputs.filter_map(|path| path.canonicalize().ok()).collect();
    let (on_stdout, outputs): (Vec<_>, Vec<_>) =
        outputs.into_iter().partition(|output| output.is_stdout());
    match on_stdout.len() {
        0 => {}
        1 => output::keep_stdout_for_data(),
        _ => return refused("standard output cannot hold several files".to_owned()),
    }
    let mut before = Vec::new();
    for output in outputs {
        let Some(place) = place(output) else { continue };
        let is_over = |input: &PathBuf| {
            let is_within = is_model_directory(input) && place.starts_with(input);
            is_within || input.starts_with(&place)
        };
        if inputs.iter().any(is_over) {
            return refused(format!("{} is an input, and would be overwritten", output.display()));
        }
        // Devices and pipes can take several outputs.
        let is_replaced = place.is_file() || place.is_dir() || !place.exists();
        if is_replaced && before.contains(&place) {
            return refused(format!("{} would be written twice", output.display()));
        }
        before.push(place);
    }
    Ok(())
}

/// Returns true if a directory is a package or a compiled model.
fn is_model_directory(path: &Path) -> bool {
    ["Manifest.json", "coremldata.bin"].iter().any(|part| path.join(part).is_file())
}

/// The canonical path; the last component need not exist.
fn place(path: &Path) -> Option<PathBuf> {
    path.canonicalize().ok().or_else(|| {
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        let parent = parent.unwrap_or(Path::new(".")).canonicalize().ok()?;
        Some(parent.join(path.file_name()?))
    })
}

/// A model's program, with the flexible shapes of its description.
fn with_shapes(model: &Model) -> Result<Program, Failure> {
    shapes::attach(model).map_err(Failure::user)
}

/// Warns about the parts of a model's description that MIL text cannot represent.
fn warn_of_text(model: &Model, program: &Program) {
    let lost = coremill_report::description::lost_in_text(model, program);
    if !lost.is_empty() {
        let label = output::paint(output::ERROR, "warning");
        let lost = coremill_io::printable_line(&lost.join(", ")).into_owned();
        output::tell(&format!(
            "{label}: MIL text cannot represent {lost}; packages that are built from it will lack them\n"
        ));
    }
}
