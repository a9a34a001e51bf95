//! What the steps of a run take, checked before any of them runs.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use coremill::fed::{Fed, feed};
use coremill::images::Resize;
use coremill::{arrays, images};
use coremill_engine::{Array, Port, Session};

use super::{Args, ResizeArg, is_standard, random};
use crate::output::{Cell, FAINT, Failure, STRONG, Table};

/// The inputs of one run, by name.
pub(super) struct Step(pub(super) Vec<(String, Array)>);

/// `NAME=FILE`.
#[derive(Clone, Debug)]
pub(crate) struct NamedFile {
    pub(super) name: String,
    pub(super) path: PathBuf,
}

/// `NAME=1,3,224,224`.
#[derive(Clone, Debug)]
pub(crate) struct NamedShape {
    name: String,
    shape: Vec<usize>,
}

impl NamedShape {
    pub(in crate::commands) fn new(name: String, shape: Vec<usize>) -> NamedShape {
        NamedShape { name, shape }
    }

    pub(in crate::commands) fn name(&self) -> &str {
        &self.name
    }
}

impl FromStr for NamedFile {
    type Err = String;

    fn from_str(text: &str) -> Result<NamedFile, String> {
        match text.split_once('=') {
            Some((name, path)) if !name.is_empty() && !path.is_empty() => {
                Ok(NamedFile { name: name.to_owned(), path: path.into() })
            }
            _ => Err("expects `NAME=FILE`".to_owned()),
        }
    }
}

impl FromStr for NamedShape {
    type Err = String;

    fn from_str(text: &str) -> Result<NamedShape, String> {
        let parse = || {
            let (name, shape) = text.split_once('=').filter(|(name, _)| !name.is_empty())?;
            // A scalar has no extents.
            let extents = (!shape.trim().is_empty()).then(|| shape.split(','));
            let extents = extents.into_iter().flatten();
            let shape = extents.map(|extent| extent.trim().parse().ok()).collect::<Option<_>>()?;
            Some(NamedShape { name: name.to_owned(), shape })
        };
        parse().ok_or_else(|| "expects `NAME=1,3,224,224`".to_owned())
    }
}

/// The inputs of each step.
///
/// `samples` are those of an archive, for who gives nothing. Inputs that outputs feed need not be given.
pub(super) fn gather(
    args: &Args,
    session: &Session,
    samples: Option<Vec<(String, Array)>>,
    fed: &[Fed],
    vocabulary: &dyn Fn(&str) -> Option<u64>,
) -> Result<Vec<Step>, Failure> {
    let ports = session.inputs();
    let expected = || table("inputs", ports);
    let unknown =
        |name: &str| Failure::user(format_args!("there is no input `{name}`")).detail(expected());
    let mut constant = Vec::new();
    for NamedFile { name, path } in &args.input {
        if !ports.iter().any(|port| port.name == *name) {
            return Err(unknown(name));
        }
        let array = arrays::read_npy(path).map_err(|error| super::super::failure(&error))?;
        constant.push((name.clone(), array));
    }
    let resize = args.resize.map(|resize| match resize {
        ResizeArg::Stretch => Resize::Stretch,
        ResizeArg::Crop => Resize::Crop,
        ResizeArg::Fit => Resize::Fit,
    });
    for NamedFile { name, path } in &args.image {
        let port = ports.iter().find(|port| port.name == *name).ok_or_else(|| unknown(name))?;
        let array =
            images::read(path, port, resize).map_err(|error| super::super::failure(&error))?;
        constant.push((name.clone(), array));
    }
    if let Some(named) = args.shape.iter().find(|named| !ports.iter().any(|p| p.name == named.name))
    {
        return Err(unknown(&named.name));
    }

    let mut files = Vec::new();
    for path in &args.inputs {
        let mut found = read_npz(path)?;
        if args.positional {
            if found.len() > ports.len() {
                let (found, expected_count) = (found.len(), ports.len());
                let place = path.display();
                return Err(Failure::user(format_args!(
                    "{place}: holds {found} arrays, but there are {expected_count} inputs"
                ))
                .detail(expected()));
            }
            for ((name, _), port) in found.iter_mut().zip(ports) {
                name.clone_from(&port.name);
            }
        }
        files.push((Some(path), found));
    }
    if files.is_empty() {
        let nothing_given = constant.is_empty() && args.random.is_none();
        files.push((None, samples.filter(|_| nothing_given).unwrap_or_default()));
    }

    let mut steps = Vec::with_capacity(files.len());
    for (index, (path, mut given)) in files.into_iter().enumerate() {
        given.extend(constant.iter().cloned());
        let is_fed = |name: &str| fed.iter().any(|fed| fed.input == name && fed.first.is_some());
        if let Some(seed) = args.random {
            let drawn: Vec<_> = ports.iter().filter(|port| !is_fed(&port.name)).cloned().collect();
            fill(&args.shape, &drawn, seed.wrapping_add(index as u64), &mut given, vocabulary)?;
        }
        let named: Vec<String> = given.iter().map(|(name, _)| name.clone()).collect();
        feed(fed, ports, None, &mut given);
        let borrowed: Vec<(&str, Array)> =
            given.iter().map(|(name, array)| (&**name, array.clone())).collect();
        let checked = session.check(&borrowed).map_err(|error| {
            let place = path.map_or_else(String::new, |path| format!("{}: ", path.display()));
            let missing =
                ports.iter().any(|port| !given.iter().any(|(name, _)| *name == port.name));
            let nothing_given = given.is_empty() && missing;
            let hint = nothing_given.then_some("pass `--inputs FILE.npz`, or `--random SEED`");
            Failure::user(format_args!("{place}{error}"))
                .hint(error.remedy().or(hint))
                .detail(expected())
        })?;
        // What is fed is filled in when its step comes.
        let all = ports.iter().map(|port| port.name.clone()).zip(checked);
        let is_given = |name: &String| named.contains(name) || !is_fed(name);
        steps.push(Step(all.filter(|(name, _)| is_given(name)).collect()));
    }
    Ok(steps)
}

/// Adds elements by chance for what is not given.
pub(in crate::commands) fn fill(
    shapes: &[NamedShape],
    ports: &[Port],
    seed: u64,
    given: &mut Vec<(String, Array)>,
    vocabulary: &dyn Fn(&str) -> Option<u64>,
) -> Result<(), Failure> {
    for (at, NamedShape { name, .. }) in shapes.iter().enumerate() {
        if shapes[..at].iter().any(|earlier| earlier.name == *name) {
            return Err(Failure::user(format_args!("the shape of `{name}` is given twice")));
        }
    }
    for port in ports {
        let stated = shapes.iter().find(|named| named.name == port.name);
        if given.iter().any(|(name, _)| *name == port.name) {
            if stated.is_some() {
                let name = &port.name;
                return Err(Failure::user(format_args!(
                    "`--shape` is for inputs that `--random` fills; `{name}` is given"
                )));
            }
            continue;
        }
        let optional = port.description.as_ref().is_some_and(|description| description.is_optional);
        if optional && stated.is_none() {
            continue;
        }
        let shape = stated.map(|named| named.shape.clone()).or_else(|| port.default_shape());
        let Some(shape) = shape else {
            let name = &port.name;
            return Err(Failure::user(format_args!("input `{name}` has no default shape"))
                .hint(Some(format!("pass `--shape {name}=...`")))
                .detail(table("inputs", ports)));
        };
        if !port.accepts_shape(&shape) {
            let (name, accepted) = (&port.name, port.accepted_shapes());
            return Err(Failure::user(format_args!(
                "`{name}` expects a `{}`, found the shape {shape:?}; accepted is {accepted}",
                port.ty
            ))
            .detail(table("inputs", ports)));
        }
        let drawn = random::array(port, shape, seed, vocabulary(&port.name));
        let array = drawn.map_err(Failure::user)?;
        given.push((port.name.clone(), array));
    }
    Ok(())
}

/// The arrays of a `.npz` file, or of standard input.
pub(in crate::commands) fn read_npz(path: &Path) -> Result<Vec<(String, Array)>, Failure> {
    let read = if is_standard(path) {
        arrays::read_all(&mut std::io::stdin().lock(), "standard input").and_then(arrays::from_npz)
    } else {
        arrays::read_npz(path)
    };
    read.map_err(|error| super::super::failure(&error))
}

/// What there is to pass in, for somebody who passed in something else.
pub(in crate::commands) fn table(title: &str, ports: &[Port]) -> String {
    let mut table = Table::new(2);
    for port in ports {
        let optional = port.description.as_ref().is_some_and(|description| description.is_optional);
        let dtype = port.ty.as_tensor().map_or_else(String::new, |ty| ty.dtype.to_string());
        table.row([
            Cell::name(&port.name).style(STRONG),
            Cell::text(dtype),
            Cell::text(port.accepted_shapes()),
            Cell::text(if optional { "optional" } else { "" }).style(FAINT),
        ]);
    }
    if ports.is_empty() {
        table.row([Cell::text("none").style(FAINT)]);
    }
    format!("{title}:\n{}", table.render())
}
