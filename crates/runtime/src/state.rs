//! States that a method keeps between runs.

use coremill_io::unknown_name;
use coremill_pte::program::Value as PlannedValue;

use crate::error::{Error, ErrorKind, Result, ensure, fail};
use crate::method::{Method, Step};
use crate::slot::{EValue, Place, TensorValue};
use crate::value::Tensor;
use crate::view::OutTensor;

/// Location of a state.
#[derive(Clone, Debug, PartialEq, Eq)]
enum StateStorage {
    /// A value of the method.
    Value(usize),
    /// A state of a delegate, by its name there.
    Delegate(usize, String),
}

impl Method {
    /// The states of the method and its delegates, by name.
    ///
    /// A buffer has its name in the module if the program contains it, otherwise `value_N` with the index of its
    /// value. A delegate's state has its name in the delegate, prefixed with `delegate_N.` if the name is taken.
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

    /// Sets a state to a tensor of the same type and sizes.
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
        let Place::Space { space, offset } = slot.place else { fail!("it has no planned memory") };
        ensure!(
            view.dtype == slot.dtype && view.sizes == slot.sizes,
            "expected a `{:?}` tensor of sizes {:?}, got `{:?}` of sizes {:?}",
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

    /// The states and their locations.
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

    /// Tensors in the method's memory that are read before they are written, without inputs. In-place instructions
    /// read the tensor that they change.
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
