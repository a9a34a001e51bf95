//! Names of a method's inputs and outputs, which an ExecuTorch program does not store.

use std::collections::BTreeSet;

use coremill_pte::coreml::{BACKEND, Payload};
use coremill_pte::program::{Instruction, ValueId};

use crate::error::Result;
use crate::program::Program;

impl Program {
    /// The names of a method's inputs and outputs. Values that a Core ML delegate takes or returns have the delegate's
    /// names; the others are `input_N` and `output_N` by position.
    pub fn names(&self, method: &str) -> Result<(Vec<String>, Vec<String>)> {
        let (program, (_, plan)) = (self.source(), self.plan(method)?);
        let mut inputs: Vec<Option<String>> = vec![None; plan.inputs.len()];
        let mut outputs: Vec<Option<String>> = vec![None; plan.outputs.len()];
        for instruction in plan.chains.iter().flat_map(|chain| &chain.instructions) {
            let Instruction::DelegateCall { delegate, arguments } = instruction else { continue };
            let Some(delegate) = plan.delegates.get(*delegate as usize) else { continue };
            if delegate.id != BACKEND {
                continue;
            }
            // The backend reports an unreadable delegate when it prepares it.
            let Ok(payload) = Payload::of(program, delegate) else { continue };
            let Ok(interface) = payload.interface() else { continue };
            let names = interface.inputs.iter().chain(&interface.outputs);
            for ((at, id), name) in arguments.iter().enumerate().zip(names) {
                let (ids, named): (&[ValueId], _) = match at < interface.inputs.len() {
                    true => (&plan.inputs, &mut inputs),
                    false => (&plan.outputs, &mut outputs),
                };
                for (named, _) in named.iter_mut().zip(ids).filter(|(_, found)| *found == id) {
                    named.get_or_insert_with(|| name.clone());
                }
            }
        }
        Ok((distinct(inputs, "input"), distinct(outputs, "output")))
    }
}

/// Distinct names; a value without a name of its own is numbered.
fn distinct(names: Vec<Option<String>>, what: &str) -> Vec<String> {
    let mut taken = BTreeSet::new();
    let named: Vec<Option<String>> =
        names.into_iter().map(|name| name.filter(|name| taken.insert(name.clone()))).collect();
    let number = |(index, name): (usize, Option<String>)| {
        name.unwrap_or_else(|| {
            let mut name = format!("{what}_{index}");
            while !taken.insert(name.clone()) {
                name.push('_');
            }
            name
        })
    };
    named.into_iter().enumerate().map(number).collect()
}
