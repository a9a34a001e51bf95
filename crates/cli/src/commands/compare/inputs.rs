//! Inputs of both sides: the same arrays, under each side's names.

use coremill::convert::{fit, sample_inputs};
use coremill::feedback::feed;
use coremill_session::{FeatureSpec, inputs};

use super::{Args, Side};
use crate::commands::loaded::LoadedFunction;
use crate::inputs::{Arrays, fill, read_steps, table};
use crate::output::Failure;

/// Inputs of each step for both sides. Empty for a side that is not a program.
pub(super) fn gather(args: &Args, sides: [&Side<'_>; 2]) -> Result<[Vec<Arrays>; 2], Failure> {
    let loaded = sides.map(Side::loaded);
    let Some(first) = loaded.into_iter().flatten().next() else {
        if args.inputs.is_empty() && args.random.is_none() {
            return Ok([Vec::new(), Vec::new()]);
        }
        return Err(Failure::user("two `.npz` files are compared without inputs"));
    };
    // Feedback inputs need no value from the user.
    let mut specs = first.session()?.inputs().to_vec();
    specs.retain(|spec| !first.fed.iter().any(|fed| fed.input == spec.name));
    let steps = read_steps(&args.inputs, args.positional, &specs)?;
    let mut steps: Vec<Arrays> = steps.into_iter().map(|(_, arrays)| arrays).collect();
    if steps.is_empty() {
        let samples = match args.random {
            Some(_) => None,
            None => samples(loaded, &specs)?,
        };
        steps.push(samples.unwrap_or_default());
    }
    if let Some(seed) = args.random {
        for (index, step) in steps.iter_mut().enumerate() {
            let seed = seed.wrapping_add(index as u64);
            fill(&args.shape, &specs, seed, step, &|input| first.vocabulary(input))?;
        }
    }
    let [reference, other] = [0, 1].map(|index| {
        loaded[index].map(|loaded| named(args, sides[index], loaded, &specs, &steps)).transpose()
    });
    Ok([reference?.unwrap_or_default(), other?.unwrap_or_default()])
}

/// Sample inputs of a side that is an archive, under the names of the first program.
fn samples(
    sides: [Option<&LoadedFunction>; 2],
    names: &[FeatureSpec],
) -> Result<Option<Arrays>, Failure> {
    for loaded in sides.into_iter().flatten() {
        let Some(archive) = &loaded.archive else { continue };
        let session = loaded.session()?;
        let samples = sample_inputs(archive, session.inputs())
            .map_err(|error| crate::commands::failure(&error))?;
        let Some(samples) = samples else { continue };
        // Names that differ are matched by position.
        let position = |name: &str| session.inputs().iter().position(|spec| spec.name == name);
        let is_fed = |name: &str| loaded.fed.iter().any(|fed| fed.input == name);
        let given = samples.into_iter().filter(|(name, _)| !is_fed(name));
        let named = given.map(|(name, array)| {
            let same = names.iter().any(|spec| spec.name == name);
            let spec = position(&name).and_then(|at| names.get(at)).filter(|_| !same);
            (spec.map_or(name, |spec| spec.name.clone()), array)
        });
        return Ok(Some(named.collect()));
    }
    Ok(None)
}

/// The validated inputs of each step for a side. `names` are the inputs that the arrays are named
/// after.
fn named(
    args: &Args,
    side: &Side<'_>,
    loaded: &LoadedFunction,
    names: &[FeatureSpec],
    steps: &[Arrays],
) -> Result<Vec<Arrays>, Failure> {
    let session = loaded.session()?;
    let specs = session.inputs();
    let find = |name: &str| match args.positional {
        true => names.iter().position(|spec| spec.name == name).and_then(|at| specs.get(at)),
        false => specs.iter().find(|spec| spec.name == name),
    };
    let take = |step: &Arrays| {
        let arrays = step.iter().map(|(name, array)| match find(name) {
            Some(spec) => (spec.name.clone(), fit(array.clone(), spec)),
            None => (name.clone(), array.clone()),
        });
        let arrays: Arrays = arrays.collect();
        let mut all = arrays.clone();
        feed(&loaded.fed, specs, None, &mut all);
        session.check(&inputs(&all)).map_err(|error| {
            let hint = if arrays.is_empty() {
                Some("pass `--inputs FILE.npz`, or `--random SEED`")
            } else if args.positional {
                None
            } else {
                Some("inputs are matched by name; pass `--positional` to match them by position")
            };
            side.failure(&error).hint(error.hint().or(hint)).detail(table("inputs", specs))
        })?;
        Ok(arrays)
    };
    steps.iter().map(take).collect()
}
