//! Inputs of each step of a run, validated before the first step.

use std::path::Path;

use coremill::convert;
use coremill::feedback::feed;
use coremill::images::Resize;
use coremill_io::unknown_name;
use coremill_session::{Session, arrays, images, inputs};

use super::{Args, ResizeArg};
use crate::commands::loaded::LoadedFunction;
use crate::inputs::{Arrays, NamedFile, failure, fill, read_steps, table};
use crate::output::Failure;

/// The inputs of each step. The default is the archive's sample inputs.
pub(super) fn gather(
    args: &Args,
    loaded: &LoadedFunction,
    session: &dyn Session,
) -> Result<Vec<Arrays>, Failure> {
    let constant = constant_inputs(args, session)?;
    let specs = session.inputs();
    let mut files: Vec<_> = read_steps(&args.inputs, args.positional, specs)?
        .into_iter()
        .map(|(path, arrays)| (Some(path), arrays))
        .collect();
    if files.is_empty() {
        let nothing_given = constant.is_empty() && args.random.is_none();
        let samples = match loaded.archive.as_ref().filter(|_| nothing_given) {
            Some(archive) => convert::sample_inputs(archive, specs)
                .map_err(|error| crate::commands::failure(&error))?,
            None => None,
        };
        files.push((None, samples.unwrap_or_default()));
    }
    let files = files.into_iter().enumerate();
    let step =
        |(index, (path, given))| step_inputs(args, loaded, session, &constant, index, path, given);
    files.map(step).collect()
}

/// The inputs that are the same in each step.
pub(super) fn constant_inputs(args: &Args, session: &dyn Session) -> Result<Arrays, Failure> {
    let specs = session.inputs();
    let find = |name: &str| {
        specs.iter().find(|spec| spec.name == name).ok_or_else(|| {
            let known = specs.iter().map(|spec| &spec.name);
            Failure::user(unknown_name("input", name, known)).detail(table("inputs", specs))
        })
    };
    let mut constant = Arrays::new();
    for NamedFile { name, path } in &args.input {
        find(name)?;
        constant.push((name.clone(), arrays::read_npy(path).map_err(|error| failure(&error))?));
    }
    let resize = args.resize.map(|resize| match resize {
        ResizeArg::Stretch => Resize::Stretch,
        ResizeArg::Crop => Resize::Crop,
        ResizeArg::Fit => Resize::Fit,
    });
    for NamedFile { name, path } in &args.image {
        let array = images::read(path, find(name)?, resize).map_err(|error| failure(&error))?;
        constant.push((name.clone(), array));
    }
    args.shape.iter().try_for_each(|shape| find(&shape.name).map(drop))?;
    Ok(constant)
}

/// Completes and checks the inputs of a step. `path` is their file. Feedback inputs are optional.
pub(super) fn step_inputs(
    args: &Args,
    loaded: &LoadedFunction,
    session: &dyn Session,
    constant: &Arrays,
    index: usize,
    path: Option<&Path>,
    mut given: Arrays,
) -> Result<Arrays, Failure> {
    let specs = session.inputs();
    let fed = &loaded.fed;
    let is_fed = |name: &str| fed.iter().any(|fed| fed.input == name && fed.first.is_some());
    given.extend(constant.iter().cloned());
    if let Some(seed) = args.random {
        let drawn: Vec<_> = specs.iter().filter(|spec| !is_fed(&spec.name)).cloned().collect();
        let vocabulary = |input: &str| loaded.vocabulary(input);
        fill(&args.shape, &drawn, seed.wrapping_add(index as u64), &mut given, &vocabulary)?;
    }
    let named: Vec<String> = given.iter().map(|(name, _)| name.clone()).collect();
    feed(fed, specs, None, &mut given);
    let checked = session.check(&inputs(&given)).map_err(|error| {
        let place = path.map_or_else(String::new, |path| format!("{}: ", path.display()));
        let hint = given.is_empty().then_some("pass `--inputs FILE.npz`, or `--random SEED`");
        Failure::user(format_args!("{place}{error}"))
            .hint(error.hint().or(hint))
            .detail(table("inputs", specs))
    })?;
    // Feedback inputs are filled in at their step.
    let all = specs.iter().map(|spec| spec.name.clone()).zip(checked);
    Ok(all.filter(|(name, _)| named.contains(name) || !is_fed(name)).collect())
}
