//! `NAME=MODEL.pt2`: archives that become functions of one package.

use std::path::{Path, PathBuf};
use std::time::Instant;

use coremill::convert::{self as library, NumericsReport};
use coremill_compiler::{Options, TargetRequirements};

use super::report::ConvertedModel;
use super::{Args, Stop, of, read, sound, stop, wide};
use crate::output::Failure;
use crate::progress::Progress;

/// The functions and their archives, `None` if no archive has a name.
pub(super) fn named(models: &[PathBuf]) -> Result<Option<Vec<(String, PathBuf)>>, Failure> {
    let split = |model: &PathBuf| {
        let text = model.to_str().filter(|_| !model.exists())?;
        let (name, path) = text.split_once('=').filter(|(name, _)| !name.contains('/'))?;
        Some((name.to_owned(), PathBuf::from(path)))
    };
    let found: Vec<_> = models.iter().map(split).collect();
    if found.iter().all(Option::is_none) {
        return Ok(None);
    }
    let mut named: Vec<(String, PathBuf)> = Vec::with_capacity(found.len());
    for (found, model) in found.into_iter().zip(models) {
        let Some((name, path)) = found else {
            let message =
                format!("{} has no function name, but other arguments do", model.display());
            return Err(Failure::user(message).hint(Some("pass `NAME=MODEL.pt2` for each")));
        };
        let is_name = name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
        if !is_name || name.is_empty() || name.starts_with(|c: char| c.is_ascii_digit()) {
            let message = format!("`{name}` is not a valid function name");
            return Err(Failure::user(message)
                .hint(Some("use letters, digits and underscores; do not start with a digit")));
        }
        if named.iter().any(|(other, _)| *other == name) {
            return Err(Failure::user(format_args!("two functions have the name `{name}`")));
        }
        named.push((name, path));
    }
    Ok(Some(named))
}

/// Converts archives to functions of one model and writes it.
pub(super) fn convert(
    args: &Args,
    named: &[(String, PathBuf)],
    output: &Path,
    options: &Options,
) -> Result<ConvertedModel, Stop> {
    if !args.interface.edits()?.is_empty() {
        let message = "images, labels, types and descriptions apply only to a single program";
        let hint = "edit the functions of the package: `coremill edit --function NAME`";
        return Err(Failure::user(message).hint(Some(hint)).into());
    }
    let start = Instant::now();
    let listed: Vec<_> = named.iter().map(|(_, path)| path.display().to_string()).collect();
    let path = PathBuf::from(listed.join(", "));
    let progress = Progress::start(format!("reading {}", path.display()));
    let mut programs = Vec::with_capacity(named.len());
    for (name, path) in named {
        let program = read(path)?;
        library::check_options(&program, options).map_err(|error| of(path, &error))?;
        programs.push((name.clone(), program));
    }
    let torch_version = programs[0].1.torch_version.clone();
    progress.stage(format!("converting {}", path.display()));
    let bound = args.program.bound(options.precision);
    let again = bound.map(|_| programs.clone());
    let converted =
        library::convert_functions(programs, options).map_err(|error| stop(&path, error))?;
    let target = converted[0].1.target;
    let mut agreement: Option<NumericsReport> = None;
    let mut unverified = Vec::new();
    for ((name, program), (_, conversion)) in again.into_iter().flatten().zip(&converted) {
        progress.stage(format!("verifying the numbers of `{name}`"));
        let opened = coremill::OpenedModel::made(conversion.model.clone(), output);
        let verified = sound(&path, &opened)?;
        let bound = bound.unwrap_or_default();
        let found =
            library::check_numbers(program, options, &verified, bound, args.program.numerics());
        let found = found.map_err(|error| {
            Failure::user(format_args!("the numbers of `{name}` cannot be verified: {error}"))
                .hint(error.hint())
        })?;
        match found {
            Some(mut found) => {
                for output in &mut found.outputs {
                    output.name = format!("{name}.{}", output.name);
                }
                match &mut agreement {
                    Some(agreement) => agreement.outputs.extend(found.outputs),
                    None => agreement = Some(found),
                }
            }
            None => unverified.push(format!("the archive of `{name}` holds no sample inputs")),
        }
    }
    let models = converted.into_iter().map(|(name, conversion)| (name, conversion.model));
    let opened = coremill::OpenedModel::made(
        coremill::edit::merge(models.collect()).map_err(|error| super::of(&path, &error.into()))?,
        output,
    );
    let verified = sound(&path, &opened)?;
    progress.stage(format!("writing {}", output.display()));
    crate::commands::save(output, &opened, &verified, args.sync)?;
    drop(progress);
    Ok(ConvertedModel {
        path,
        output: output.to_owned(),
        torch_version,
        target,
        asked_for: args.program.has_target(),
        demands: TargetRequirements::default(),
        precision: options.precision,
        wide: wide(options, &opened.model),
        chosen: None,
        summary: coremill::summary::summarize(&opened.model),
        elapsed: start.elapsed(),
        agreement,
        unverified: (!unverified.is_empty()).then(|| unverified.join(", ")),
    })
}
