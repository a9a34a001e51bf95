//! HTML reports about models and runs.

use std::path::Path;

use coremill::{OpenedModel, executorch};
use coremill_compiler as compiler;
use coremill_report::Report;
use coremill_report::data::Severity;
use coremill_session::{Array, Outputs};

use super::failure;
use crate::output::{Failure, OutputPath};

/// Title of a report about a file: its name without folders.
pub(super) fn title(path: &Path) -> String {
    path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned()
}

/// Title of a report about two files. Equal names are shown with their folders.
pub(super) fn title_of_two(paths: [&Path; 2]) -> String {
    let [one, other] = paths.map(title);
    match one == other {
        true => format!("{} and {}", paths[0].display(), paths[1].display()),
        false => format!("{one} and {other}"),
    }
}

/// Report about a model.
pub(super) fn of_model(path: &Path, opened: &OpenedModel) -> Report {
    let mut page = Report::new(title(path));
    page.add_model(&path.display().to_string(), &opened.model, None);
    page
}

/// Report about an ExecuTorch program.
pub(super) fn of_program(path: &Path, program: &executorch::Program) -> Result<Report, Failure> {
    let mut page = Report::new(title(path));
    let added = page.add_program(&path.display().to_string(), program);
    added.map_err(|error| failure(&error))?;
    Ok(page)
}

/// Report about an ExecuTorch program or the models of a directory.
pub(super) fn of_models(path: &Path, models: &[(String, OpenedModel)]) -> Result<Report, Failure> {
    if executorch::is_program(path) {
        let program = executorch::open(path).map_err(|error| failure(&error))?;
        return of_program(path, &program);
    }
    let mut page = Report::new(title(path));
    for (name, opened) in models {
        page.add_model(name, &opened.model, None);
    }
    Ok(page)
}

/// Report about a lowered program, with the calls outside delegates.
pub(super) fn of_lowered(path: &Path, reports: &[compiler::Report]) -> Result<Report, Failure> {
    let program = executorch::open(path).map_err(|error| failure(&error))?;
    let mut page = of_program(path, &program)?;
    for report in reports {
        let refused: Vec<_> = report.outside.iter().map(|outside| outside.call.clone()).collect();
        page.add_refused(Severity::Warning, &refused);
    }
    Ok(page)
}

/// The outputs that are arrays.
pub(super) fn arrays(outputs: &Outputs) -> impl Iterator<Item = (&str, &Array)> {
    outputs.0.iter().filter_map(|(name, value)| Some((&**name, value.as_array()?)))
}

/// Adds the inputs and outputs of a run that are images.
pub(super) fn add_arrays<'a>(
    page: &mut Report,
    given: &[(String, Array)],
    given_back: impl IntoIterator<Item = (&'a str, &'a Array)>,
) {
    page.add_pictures("input", given.iter().map(|(name, array)| (&**name, array)));
    page.add_pictures("output", given_back);
}

/// Writes a report atomically.
pub(super) fn write(path: &OutputPath, page: &Report) -> Result<(), Failure> {
    path.write(page.to_html().as_bytes())
}
