//! Values of a program that a run was asked for by name.

use std::collections::BTreeSet;

use coremill_engine::{Outputs, Value};
use coremill_io::unknown_name;

use crate::backend::{Inputs, Session};
use crate::error::{Result, fail};

/// The values that an observer has seen.
struct Watch<'n> {
    names: &'n [&'n str],
    /// For each name its values, in the order in which they were computed.
    found: Vec<Vec<Value>>,
    /// The names of all values, for the error about a name that is unknown.
    known: BTreeSet<String>,
}

impl<'n> Watch<'n> {
    fn new(names: &'n [&'n str]) -> Watch<'n> {
        Watch { names, found: vec![Vec::new(); names.len()], known: BTreeSet::new() }
    }

    fn see(&mut self, name: &str, value: &Value) {
        if !self.known.contains(name) {
            self.known.insert(name.to_owned());
        }
        for (wanted, found) in self.names.iter().zip(&mut self.found) {
            if *wanted == name {
                found.push(value.clone());
            }
        }
    }
}

/// Runs a function. Returns its outputs and the values of these names.
pub(crate) fn run<S: Session + ?Sized>(
    session: &mut S,
    inputs: &Inputs<'_>,
    names: &[&str],
) -> Result<(Outputs, Outputs)> {
    let arrays = session.check(inputs)?;
    let mut watch = Watch::new(names);
    let mut see = |_: &str, name: &str, value: &Value| watch.see(name, value);
    let mut hooks = crate::Hooks { observe: Some(&mut see), ..crate::Hooks::default() };
    let outputs = session.run_with(inputs, &mut hooks)?;

    let mut values = Vec::with_capacity(names.len());
    for (at, name) in names.iter().enumerate() {
        if names[..at].contains(name) {
            continue;
        }
        let mut found = std::mem::take(&mut watch.found[at]);
        if let Some(output) = outputs.get(name) {
            found = vec![output.clone()];
        } else if found.is_empty() {
            let input = session.inputs().iter().position(|spec| spec.name == *name);
            match input.and_then(|at| arrays.get(at)) {
                Some(array) => found.push(Value::Array(array.clone())),
                None => found.extend(session.constant(name)?.map(Value::Array)),
            }
        }
        if found.is_empty() {
            watch.known.extend(outputs.0.iter().map(|(name, _)| name.clone()));
            watch.known.extend(session.inputs().iter().map(|spec| spec.name.clone()));
            fail!(Argument, "{}", unknown_name("value", name, &watch.known));
        }
        values.extend(found.into_iter().enumerate().map(|(repeat, value)| match repeat {
            0 => ((*name).to_owned(), value),
            _ => (format!("{name}@{repeat}"), value),
        }));
    }
    Ok((outputs, Outputs(values)))
}
