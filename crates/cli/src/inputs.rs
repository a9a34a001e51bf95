//! Inputs from the command line: array files, shapes, random elements.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use coremill_session::{Array, FeatureSpec, arrays, random};

use crate::output::{Cell, FAINT, Failure, STRONG, Table};

/// Arrays by name.
pub(crate) type Arrays = Vec<(String, Array)>;

/// An argument `NAME=FILE`.
#[derive(Clone, Debug)]
pub(crate) struct NamedFile {
    pub(crate) name: String,
    pub(crate) path: PathBuf,
}

/// An argument `NAME=1,3,224,224`.
#[derive(Clone, Debug)]
pub(crate) struct NamedShape {
    pub(crate) name: String,
    shape: Vec<usize>,
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
            // A scalar has no sizes.
            let extents = (!shape.trim().is_empty()).then(|| shape.split(','));
            let extents = extents.into_iter().flatten();
            let shape = extents.map(|extent| extent.trim().parse().ok()).collect::<Option<_>>()?;
            Some(NamedShape { name: name.to_owned(), shape })
        };
        parse().ok_or_else(|| "expects `NAME=1,3,224,224`".to_owned())
    }
}

/// Reads the arrays of each step. With `positional`, they get the names of the inputs, in order.
pub(crate) fn read_steps<'p>(
    paths: &'p [PathBuf],
    positional: bool,
    specs: &[FeatureSpec],
) -> Result<Vec<(&'p Path, Arrays)>, Failure> {
    let read = |path: &'p PathBuf| Ok((path.as_path(), read_step(path, positional, specs)?));
    paths.iter().map(read).collect()
}

/// Reads the arrays of a step.
pub(crate) fn read_step(
    path: &Path,
    positional: bool,
    specs: &[FeatureSpec],
) -> Result<Arrays, Failure> {
    let mut arrays = read_npz(path, specs)?;
    if positional {
        if arrays.len() > specs.len() {
            let (found, expected) = (arrays.len(), specs.len());
            return Err(Failure::user(format_args!(
                "{}: holds {found} arrays, but the number of inputs is {expected}",
                path.display()
            ))
            .detail(table("inputs", specs)));
        }
        for ((name, _), spec) in arrays.iter_mut().zip(specs) {
            name.clone_from(&spec.name);
        }
    }
    Ok(arrays)
}

/// Adds random elements for missing inputs.
pub(crate) fn fill(
    shapes: &[NamedShape],
    specs: &[FeatureSpec],
    seed: u64,
    given: &mut Arrays,
    vocabulary: &dyn Fn(&str) -> Option<u64>,
) -> Result<(), Failure> {
    for (at, NamedShape { name, .. }) in shapes.iter().enumerate() {
        if shapes[..at].iter().any(|earlier| earlier.name == *name) {
            return Err(Failure::user(format_args!("the shape of `{name}` is specified twice")));
        }
    }
    for spec in specs {
        let stated = shapes.iter().find(|named| named.name == spec.name);
        if given.iter().any(|(name, _)| *name == spec.name) {
            if stated.is_some() {
                let name = &spec.name;
                return Err(Failure::user(format_args!(
                    "`--shape` only applies to inputs that `--random` fills, but `{name}` has a value"
                )));
            }
            continue;
        }
        let optional = spec.description.as_ref().is_some_and(|description| description.is_optional);
        if optional && stated.is_none() {
            continue;
        }
        let shape = stated.map(|named| named.shape.clone()).or_else(|| spec.default_shape());
        let Some(shape) = shape else {
            let name = &spec.name;
            return Err(Failure::user(format_args!("input `{name}` has no default shape"))
                .hint(Some(format!("pass `--shape {name}=...`")))
                .detail(table("inputs", specs)));
        };
        if !spec.accepts_shape(&shape) {
            let (name, accepted) = (&spec.name, spec.accepted_shapes());
            return Err(Failure::user(format_args!(
                "`{name}` expects a `{}` of shape {accepted}, found shape {shape:?}",
                spec.ty
            ))
            .detail(table("inputs", specs)));
        }
        let array = random(spec, shape, seed, vocabulary(&spec.name));
        given.push((spec.name.clone(), array.map_err(|error| failure(&error))?));
    }
    Ok(())
}

/// Reads arrays of some inputs or states from a `.npz` file or standard input.
pub(crate) fn read_npz(path: &Path, specs: &[FeatureSpec]) -> Result<Arrays, Failure> {
    let read = if is_standard(path) {
        arrays::read_all(&mut std::io::stdin().lock(), "standard input")
            .and_then(|bytes| arrays::from_npz_for(bytes, specs))
    } else {
        arrays::read_npz_for(path, specs)
    };
    read.map_err(|error| failure(&error))
}

/// The features as a table, for error messages.
pub(crate) fn table(title: &str, specs: &[FeatureSpec]) -> String {
    let mut table = Table::new(2);
    for spec in specs {
        let optional = spec.description.as_ref().is_some_and(|description| description.is_optional);
        let dtype = spec.ty.as_tensor().map_or_else(String::new, |ty| ty.dtype.to_string());
        table.row([
            Cell::name(&spec.name).style(STRONG),
            Cell::text(dtype),
            Cell::text(spec.accepted_shapes()),
            Cell::text(if optional { "optional" } else { "" }).style(FAINT),
        ]);
    }
    if specs.is_empty() {
        table.row([Cell::text("none").style(FAINT)]);
    }
    format!("{title}:\n{}", table.render())
}

/// Returns true if a path is a standard stream.
pub(crate) fn is_standard(path: &Path) -> bool {
    path.as_os_str() == "-"
}

/// Converts an error of a session.
pub(crate) fn failure(error: &coremill_session::Error) -> Failure {
    Failure::user(error).hint(error.hint())
}
