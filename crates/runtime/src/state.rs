//! What a method keeps from run to run.

use coremill_io::unknown_name;
use coremill_pte::program::Value as PlannedValue;

use crate::error::{Error, ErrorKind, Result, ensure, fail};
use crate::method::{Method, Step};
use crate::slot::{EValue, Place, TensorValue};
use crate::value::Tensor;
use crate::view::OutTensor;

/// Where a state lies.
#[derive(Clone, Debug, PartialEq, Eq)]
enum StateStorage {
    /// With the method, as a value.
    Value(usize),
    /// With a delegate, under its own name.
    Delegate(usize, String),
}

impl Method {
    /// What the method and its delegates keep from run to run, by name.
    ///
    /// Buffers have the name that they have in the module if the program tells, and `value_N` otherwise, where `N` is
    /// the number of their value. A state of a delegate is called as there; with `delegate_N.` before it if something
    /// else has that name.
    pub fn states(&self) -> Result<Vec<(String, Tensor)>> {
        let state = |(name, held): (String, StateStorage)| {
            let tensor = match &held {
                StateStorage::Value(index) => self.value(*index, false)?.as_tensor().cloned(),
                StateStorage::Delegate(delegate, own) => {
                    let states = self.delegates[*delegate].delegate.states()?;
                    states.into_iter().find(|(name, _)| name == own).map(|(_, tensor)| tensor)
                }
            };
            match tensor {
                Some(tensor) => Ok((name, tensor)),
                None => fail!("the state `{name}` is not a tensor"),
            }
        };
        self.held()?.into_iter().map(state).collect()
    }

    /// Sets a state to a tensor of its type and sizes.
    pub fn set_state(&mut self, name: &str, value: &Tensor) -> Result<()> {
        let held = self.held()?;
        let Some((_, found)) = held.iter().find(|(known, _)| known == name) else {
            let message = unknown_name("state", name, held.iter().map(|(name, _)| name));
            return Err(Error::new(message).with_kind(ErrorKind::Input));
        };
        match found {
            StateStorage::Delegate(delegate, own) => {
                self.delegates[*delegate].delegate.set_state(own, value)
            }
            StateStorage::Value(index) => self.put_value(*index, value).map_err(|error| {
                error.about(format_args!("state `{name}`")).with_kind(ErrorKind::Input)
            }),
        }
    }

    fn put_value(&mut self, index: usize, value: &Tensor) -> Result {
        let view = value.view();
        let EValue::Tensor(slot) = &mut self.values[index] else { fail!("it is not a tensor") };
        let Place::Space { space, offset } = slot.place else { fail!("it has no memory") };
        ensure!(
            view.dtype == slot.dtype && view.sizes == slot.sizes,
            "expected a tensor of `{:?}` with the sizes {:?}, got `{:?}` with {:?}",
            slot.dtype,
            slot.sizes,
            view.dtype,
            view.sizes
        );
        let memory = &mut self.spaces[space].bytes_mut()[offset..][..slot.capacity];
        let (dtype, sizes, order) = (slot.dtype, slot.sizes.clone(), &slot.order);
        let mut out = OutTensor { dtype, sizes, order, dynamic: false, memory, grow: None };
        crate::operators::copy_elements(view, &mut out)
    }

    /// The states, by name.
    fn held(&self) -> Result<Vec<(String, StateStorage)>> {
        let mut held: Vec<(String, StateStorage)> = Vec::new();
        for index in self.kept() {
            let name = match self.planned(index) {
                Some(PlannedValue::Tensor(tensor)) => tensor.name.clone(),
                _ => None,
            };
            held.push((
                name.unwrap_or_else(|| format!("value_{index}")),
                StateStorage::Value(index),
            ));
        }
        for (index, delegate) in self.delegates.iter().enumerate() {
            for (own, _) in delegate.delegate.states()? {
                let is_taken = held.iter().any(|(name, _)| *name == own);
                let name = if is_taken { format!("delegate_{index}.{own}") } else { own.clone() };
                held.push((name, StateStorage::Delegate(index, own)));
            }
        }
        Ok(held)
    }

    /// The tensors in the memory of the method that are read before anything has written them, inputs aside. What an
    /// instruction changes it reads, too.
    fn kept(&self) -> Vec<usize> {
        let mut is_known = vec![false; self.values.len()];
        self.inputs.iter().for_each(|index| is_known[*index] = true);
        let mut kept = Vec::new();
        for step in self.chains.iter().flatten() {
            let (read, written) = match step {
                Step::Kernel { inputs, outputs, .. } => (&inputs[..], &outputs[..]),
                Step::Delegate { delegate, arguments } => {
                    arguments.split_at(self.delegates[*delegate].delegate.inputs())
                }
                Step::View { from, to, .. } | Step::Move { from, to } => {
                    (std::slice::from_ref(from), std::slice::from_ref(to))
                }
                Step::JumpFalse { .. } | Step::Free => continue,
            };
            let listed = read.iter().flat_map(|index| match &self.values[*index] {
                EValue::Tensors(list) => list.iter().flatten().copied().collect(),
                _ => vec![*index],
            });
            for index in listed {
                let is_own = matches!(
                    &self.values[index],
                    EValue::Tensor(TensorValue { place: Place::Space { .. }, .. })
                );
                if is_own && !std::mem::replace(&mut is_known[index], true) {
                    kept.push(index);
                }
            }
            written.iter().for_each(|index| is_known[*index] = true);
        }
        kept
    }
}
