//! States that callers keep.

use std::collections::HashSet;

use coremill_mil::ir::{Binding, Op, Type};
use coremill_mil::model::{ArrayDataType, FeatureDescription, Model};
use coremill_mil::ops::OpKind;

use crate::error::Error;
use crate::interface::{Interface, Port};
use crate::outputs::array_type;
use crate::{Edit, apply};

/// Name of the output with the new value of an exposed state.
pub fn state_output_name(state: &str) -> String {
    format!("new_{state}")
}

/// Makes the states of all functions inputs and outputs, as [`Edit::ExposeState`] does for one. Returns whether there are any.
pub fn expose_states(model: &mut Model) -> Result<bool, Error> {
    let names = |states: &[FeatureDescription]| -> Vec<String> {
        states.iter().map(|state| state.name.clone()).collect()
    };
    let description = &model.description;
    let functions = description.functions.iter();
    let functions =
        functions.map(|function| (Some(function.name.clone()), names(&function.states)));
    let all: Vec<_> = [(None, names(&description.states))].into_iter().chain(functions).collect();
    let mut found = false;
    for (function, states) in all.into_iter().filter(|(_, states)| !states.is_empty()) {
        let edits: Vec<Edit> = states.into_iter().map(|name| Edit::ExposeState { name }).collect();
        apply(model, &edits, function.as_deref())?;
        found = true;
    }
    Ok(found)
}

/// Makes a state an input, and its value after the program an output.
pub(crate) fn expose(interface: &mut Interface<'_>, name: &str) -> Result<(), Error> {
    let Port::State(at) = interface.port(name)? else {
        return Err(Error::new(format!("`{name}` is not a state")));
    };
    let new_name = state_output_name(name);
    if interface.port(&new_name).is_ok() {
        let message = format!("the model already has an input or output `{new_name}`");
        return Err(Error::new(message).with_hint("rename it first"));
    }
    let state = interface.input_value(name)?;
    let Type::State(held) = interface.function.value(state).ty.clone() else {
        return Err(Error::new(format!("`{name}` is a state only in the description")));
    };
    let tensor = match held.as_tensor() {
        Some(tensor) if ArrayDataType::from_dtype(tensor.dtype).is_some() => tensor.clone(),
        _ => {
            let message = format!("`{name}` holds a `{held}`, which is not supported for inputs");
            return Err(Error::new(message));
        }
    };
    let body = interface.function.body;
    let is_use = |op: &Op| op.binding("input") == Some(&Binding::Value(state));
    let ops = interface.function.block(body).ops.clone();
    let in_body: HashSet<_> = ops.iter().copied().collect();
    let is_inside = |(id, op): (_, &Op)| is_use(op) && !in_body.contains(&id);
    if interface.function.all_ops().any(is_inside) {
        let message = format!("`{name}` is used within a loop or a branch");
        return Err(Error::new(message).with_hint("keep it as a state"));
    }
    interface.function.value_mut(state).ty = Type::Tensor(tensor.clone());
    let (mut current, mut removed) = (state, HashSet::new());
    for id in ops {
        let op = interface.function.op(id);
        match op.kind() {
            Some(OpKind::ReadState) if is_use(op) => {
                let read = op.outputs[0];
                interface.replace_uses(read, current, &HashSet::new());
            }
            Some(OpKind::WriteState) if is_use(op) => match op.binding("data").cloned() {
                Some(Binding::Value(data)) => current = data,
                Some(Binding::Literal(data)) => current = interface.constant(0, &new_name, data),
                None => {
                    return Err(Error::new(format!("a `write_state` of `{name}` has no `data`")));
                }
            },
            _ => continue,
        }
        removed.insert(id);
    }
    interface.function.block_mut(body).ops.retain(|id| !removed.contains(id));
    let can_be_output = interface.can_be_output(current)
        && !interface.function.block(body).outputs.contains(&current);
    if !can_be_output {
        let op = Op::new(OpKind::Identity).with("x", Binding::Value(current));
        let end = interface.end();
        current = interface.insert(end, op, &new_name, Type::Tensor(tensor.clone()));
    }
    interface.claim_name(current, &new_name);
    interface.function.block_mut(body).outputs.push(current);
    let mut input = interface.states.remove(at);
    let ty = array_type(&tensor);
    let mut output = FeatureDescription::new(&new_name, ty.clone());
    output.short_description.clone_from(&input.short_description);
    input.ty = ty;
    interface.inputs.push(input);
    interface.outputs.push(output);
    Ok(())
}
