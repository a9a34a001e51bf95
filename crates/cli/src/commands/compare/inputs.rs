//! What both sides run on: the same arrays, each under the names that the side has for them.

use coremill::convert::{fit, sample_inputs};
use coremill::fed::feed;
use coremill_engine::{Array, Port, Session};

use super::{Args, Arrays, Program, Side, Takes};
use crate::commands::run::{NamedShape, fill, read_npz, table, with_largest};
use crate::output::Failure;

/// The inputs of each step for both sides; none for a side that is not a program.
pub(super) fn gather(args: &Args, sides: [&Side<'_>; 2]) -> Result<[Vec<Arrays>; 2], Failure> {
    let programs = sides.map(Side::takes);
    let Some(first) = programs.into_iter().flatten().next() else {
        if args.inputs.is_empty() && args.random.is_none() {
            return Ok([Vec::new(), Vec::new()]);
        }
        return Err(Failure::user("two `.npz` files take no inputs"));
    };
    // What a side feeds itself is given by nobody.
    let mut ports = first.ports()?;
    ports.retain(|port| !first.fed().iter().any(|fed| fed.input == port.name));
    let mut steps: Vec<Arrays> = Vec::new();
    for path in &args.inputs {
        let mut arrays = read_npz(path)?;
        if args.positional {
            if arrays.len() > ports.len() {
                return Err(Failure::user(format_args!(
                    "{}: holds {} arrays, but there are {} inputs",
                    path.display(),
                    arrays.len(),
                    ports.len()
                ))
                .detail(table("inputs", &ports)));
            }
            for ((name, _), port) in arrays.iter_mut().zip(&ports) {
                name.clone_from(&port.name);
            }
        }
        steps.push(arrays);
    }
    if steps.is_empty() {
        let samples = match args.random {
            Some(_) => None,
            None => samples(programs, &ports)?,
        };
        steps.push(samples.unwrap_or_default());
    }
    if let Some(seed) = args.random {
        for (index, step) in steps.iter_mut().enumerate() {
            let shapes = first.shapes(&args.shape, step);
            let seed = seed.wrapping_add(index as u64);
            fill(&shapes, &ports, seed, step, &|input| first.vocabulary(input))?;
        }
    }
    let names: Vec<&Port> = ports.iter().collect();
    let [reference, other] = [0, 1]
        .map(|index| programs[index].map(|takes| named(args, sides[index], takes, &names, &steps)));
    Ok([reference.transpose()?.unwrap_or_default(), other.transpose()?.unwrap_or_default()])
}

fn session(program: &Program) -> Result<Session, Failure> {
    let session = program.engine.session(&program.function);
    session.map_err(|error| Failure::user(&error).hint(error.remedy()))
}

impl Takes<'_> {
    /// The inputs, in order.
    fn ports(self) -> Result<Vec<Port>, Failure> {
        match self {
            Takes::Program(program) => Ok(session(program)?.inputs().to_vec()),
            Takes::Method(method) => Ok(method.runner.ports().to_vec()),
        }
    }

    /// How many values an input may have that is looked up in a table.
    fn vocabulary(self, input: &str) -> Option<u64> {
        match self {
            Takes::Program(program) => {
                crate::commands::vocabulary(&program.opened.model, &program.function, input)
            }
            Takes::Method(method) => method.runner.vocabulary(input),
        }
    }

    /// The shapes for inputs that are filled by chance.
    fn shapes(self, asked: &[NamedShape], given: &Arrays) -> Vec<NamedShape> {
        match self {
            Takes::Program(_) => asked.to_vec(),
            Takes::Method(method) => with_largest(asked, &method.runner, given),
        }
    }

    /// What is wrong with the inputs of a step, and what to do about it.
    fn check(self, arrays: &[(String, Array)]) -> Result<(), (String, Option<String>)> {
        match self {
            Takes::Program(program) => {
                let borrowed: Vec<_> =
                    arrays.iter().map(|(name, array)| (&**name, array.clone())).collect();
                let checked = program.engine.session(&program.function);
                let checked = checked.and_then(|session| session.check(&borrowed));
                let told = |error: coremill_engine::Error| {
                    (error.to_string(), error.remedy().map(str::to_owned))
                };
                checked.map(drop).map_err(told)
            }
            Takes::Method(method) => {
                let told =
                    |error: coremill::Error| (error.to_string(), error.remedy().map(str::to_owned));
                method.runner.check(arrays).map_err(told)
            }
        }
    }
}

/// The sample inputs of the side that is an archive, under the names of the first program.
fn samples(sides: [Option<Takes<'_>>; 2], names: &[Port]) -> Result<Option<Arrays>, Failure> {
    for side in sides.into_iter().flatten() {
        let Takes::Program(program) = side else { continue };
        let Some(archive) = &program.archive else { continue };
        let session = session(program)?;
        let samples = sample_inputs(archive, session.inputs())
            .map_err(|error| Failure::user(&error).hint(error.remedy()))?;
        let Some(samples) = samples else { continue };
        // Both sides go by position then, if they do at all; by name the names are the same.
        let position = |name: &str| session.inputs().iter().position(|port| port.name == name);
        let fed = side.fed();
        let given =
            samples.into_iter().filter(|(name, _)| !fed.iter().any(|fed| fed.input == *name));
        let named = given.map(|(name, array)| {
            let same = names.iter().any(|port| port.name == name);
            let port = position(&name).and_then(|at| names.get(at)).filter(|_| !same);
            (port.map_or(name, |port| port.name.clone()), array)
        });
        return Ok(Some(named.collect()));
    }
    Ok(None)
}

/// The steps as a side takes them, checked. `names` are the ports under whose names the arrays are.
fn named(
    args: &Args,
    side: &Side<'_>,
    takes: Takes<'_>,
    names: &[&Port],
    steps: &[Arrays],
) -> Result<Vec<Arrays>, Failure> {
    let ports = takes.ports()?;
    let find = |name: &str| match args.positional {
        true => names.iter().position(|port| port.name == name).and_then(|at| ports.get(at)),
        false => ports.iter().find(|port| port.name == name),
    };
    let take = |step: &Arrays| {
        let arrays = step.iter().map(|(name, array)| match find(name) {
            Some(port) => (port.name.clone(), fit(array.clone(), port)),
            None => (name.clone(), array.clone()),
        });
        let arrays: Vec<(String, Array)> = arrays.collect();
        let mut all = arrays.clone();
        feed(&takes.fed(), &ports, None, &mut all);
        takes.check(&all).map_err(|(error, remedy)| {
            let hint = if arrays.is_empty() {
                Some("pass `--inputs FILE.npz`, or `--random SEED`")
            } else if args.positional {
                None
            } else {
                Some("inputs go by name; pass `--positional` to go by their order")
            };
            Failure::user(format_args!("{}: {error}", side.path.display()))
                .hint(remedy.as_deref().or(hint))
                .detail(table("inputs", &ports))
        })?;
        Ok(arrays)
    };
    steps.iter().map(take).collect()
}
