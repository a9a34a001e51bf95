//! Recording of values inside a program, by name.

use std::collections::BTreeSet;

use coremill_engine::{Array, Outputs, Value};
use coremill_io::unknown_name;

use crate::FeatureSpec;
use crate::error::{Result, fail};

/// Collects values by name while a program runs.
pub(crate) struct ValueRecorder<'n> {
    names: &'n [&'n str],
    /// For each name, its values in the order of computation.
    values: Vec<Vec<Value>>,
    /// Names of all values, for the error about an unknown name.
    known: BTreeSet<String>,
}

impl<'n> ValueRecorder<'n> {
    pub(crate) fn new(names: &'n [&'n str]) -> ValueRecorder<'n> {
        ValueRecorder { names, values: vec![Vec::new(); names.len()], known: BTreeSet::new() }
    }

    /// Records a computed value.
    pub(crate) fn record(&mut self, name: &str, value: &Value) {
        if !self.known.contains(name) {
            self.known.insert(name.to_owned());
        }
        for (wanted, values) in self.names.iter().zip(&mut self.values) {
            if *wanted == name {
                values.push(value.clone());
            }
        }
    }

    /// The values by name. Values that were not computed are outputs, inputs or constants.
    pub(crate) fn finish(
        mut self,
        outputs: &Outputs,
        (specs, arrays): (&[FeatureSpec], &[Array]),
        constant: impl Fn(&str) -> Result<Option<Array>>,
    ) -> Result<Outputs> {
        let mut all = Vec::with_capacity(self.names.len());
        for (at, name) in self.names.iter().enumerate() {
            if self.names[..at].contains(name) {
                continue;
            }
            let mut values = std::mem::take(&mut self.values[at]);
            if let Some(output) = outputs.get(name) {
                values = vec![output.clone()];
            } else if values.is_empty() {
                let input = specs.iter().position(|spec| spec.name == *name);
                match input.and_then(|at| arrays.get(at)) {
                    Some(array) => values.push(Value::Array(array.clone())),
                    None => values.extend(constant(name)?.map(Value::Array)),
                }
            }
            if values.is_empty() {
                self.known.extend(outputs.0.iter().map(|(name, _)| name.clone()));
                self.known.extend(specs.iter().map(|spec| spec.name.clone()));
                fail!(Argument, "{}", unknown_name("value", name, &self.known));
            }
            all.extend(values.into_iter().enumerate().map(|(repeat, value)| match repeat {
                0 => ((*name).to_owned(), value),
                _ => (format!("{name}@{repeat}"), value),
            }));
        }
        Ok(Outputs(all))
    }
}
