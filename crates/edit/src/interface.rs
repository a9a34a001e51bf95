//! The function and the description that edits change.

use std::collections::HashSet;

use coremill_io::unknown_name;
use coremill_mil::ir::{
    Binding, Constant, Definition, Function, Op, OpId, Opset, TensorType, Type, ValueId,
};
use coremill_mil::model::{FeatureDescription, Model};
use coremill_mil::ops::OpKind;
use coremill_passes::keep_unused_inputs;
use coremill_tensor::DType;

use crate::error::Error;

/// A function with its description.
pub(crate) struct Interface<'m> {
    pub(crate) function: &'m mut Function,
    pub(crate) inputs: &'m mut Vec<FeatureDescription>,
    pub(crate) outputs: &'m mut Vec<FeatureDescription>,
    pub(crate) states: &'m mut Vec<FeatureDescription>,
    pub(crate) predicted_feature: &'m mut String,
    pub(crate) predicted_probabilities: &'m mut String,
    version: i32,
    names: HashSet<String>,
}

/// Position of a feature.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Port {
    Input(usize),
    Output(usize),
    State(usize),
}

impl<'m> Interface<'m> {
    pub(crate) fn of(model: &'m mut Model, name: Option<&str>) -> Result<Interface<'m>, Error> {
        let name = name.unwrap_or(model.default_function_name()).to_owned();
        let functions = &mut model.program.functions;
        let known: Vec<String> = functions.iter().map(|function| function.name.clone()).collect();
        let Some(function) = functions.iter_mut().find(|function| function.name == name) else {
            return Err(Error::new(unknown_name("function", &name, &known)));
        };
        let names = (0..function.value_count())
            .map(|at| function.value(ValueId::from_index(at)).name.clone())
            .collect();
        let version = model.specification_version;
        let description = &mut model.description;
        if description.functions.is_empty() {
            return Ok(Interface {
                function,
                inputs: &mut description.inputs,
                outputs: &mut description.outputs,
                states: &mut description.states,
                predicted_feature: &mut description.predicted_feature_name,
                predicted_probabilities: &mut description.predicted_probabilities_name,
                version,
                names,
            });
        }
        let described = description.functions.iter_mut().find(|described| described.name == name);
        let Some(described) = described else {
            return Err(Error::new(format!("function `{name}` has no description")));
        };
        Ok(Interface {
            function,
            inputs: &mut described.inputs,
            outputs: &mut described.outputs,
            states: &mut described.states,
            predicted_feature: &mut described.predicted_feature_name,
            predicted_probabilities: &mut described.predicted_probabilities_name,
            version,
            names,
        })
    }

    /// Fails if the function's release lacks the feature.
    pub(crate) fn require(&self, needed: Opset) -> Result<(), Error> {
        let version = Opset::from_specification_version(self.version);
        let found = version.map_or(self.function.opset, |found| found.max(self.function.opset));
        if needed <= found {
            return Ok(());
        }
        let message = format!("the edit requires {needed}; the model targets {found}");
        Err(Error::new(message).with_hint(format!("convert the program for {needed}")))
    }

    /// Position of a feature by name.
    pub(crate) fn port(&self, name: &str) -> Result<Port, Error> {
        let find = |features: &[FeatureDescription]| features.iter().position(|it| it.name == name);
        let found = find(self.inputs)
            .map(Port::Input)
            .or_else(|| find(self.outputs).map(Port::Output))
            .or_else(|| find(self.states).map(Port::State));
        found.ok_or_else(|| {
            let all = self.inputs.iter().chain(&*self.outputs).chain(&*self.states);
            let all: Vec<&String> = all.map(|feature| &feature.name).collect();
            Error::new(unknown_name("name", name, all))
        })
    }

    /// The description of an input, an output or a state.
    pub(crate) fn feature_mut(&mut self, name: &str) -> Result<&mut FeatureDescription, Error> {
        Ok(match self.port(name)? {
            Port::Input(at) => &mut self.inputs[at],
            Port::Output(at) => &mut self.outputs[at],
            Port::State(at) => &mut self.states[at],
        })
    }

    /// The value of an input or a state.
    pub(crate) fn input_value(&self, name: &str) -> Result<ValueId, Error> {
        self.found(self.function.inputs(), name)
    }

    /// The value of an output.
    pub(crate) fn output_value(&self, name: &str) -> Result<ValueId, Error> {
        self.found(self.function.outputs(), name)
    }

    fn found(&self, values: &[ValueId], name: &str) -> Result<ValueId, Error> {
        let found = values.iter().find(|&&value| self.function.value(value).name == name);
        found.copied().ok_or_else(|| {
            Error::new(format!("the description lists `{name}`, which the program does not have"))
        })
    }

    /// The tensor that a value holds.
    pub(crate) fn tensor(&self, value: ValueId) -> Result<&TensorType, Error> {
        let value = self.function.value(value);
        value.ty.as_tensor().ok_or_else(|| {
            Error::new(format!("`{}` is a `{}`; expected a tensor", value.name, value.ty))
        })
    }

    /// A name that no value has: the one wanted, or that and a number.
    pub(crate) fn fresh_name(&mut self, wanted: &str) -> String {
        let mut name = wanted.to_owned();
        let mut count = 0;
        while !self.names.insert(name.clone()) {
            name = format!("{wanted}_{count}");
            count += 1;
        }
        name
    }

    /// Renames a value. Another value with the name gets a fresh one.
    pub(crate) fn claim_name(&mut self, value: ValueId, name: &str) {
        let holders: Vec<ValueId> = (0..self.function.value_count())
            .map(ValueId::from_index)
            .filter(|&other| other != value && self.function.value(other).name == name)
            .collect();
        for holder in holders {
            let fresh = self.fresh_name(name);
            self.function.value_mut(holder).name = fresh;
        }
        self.names.insert(name.to_owned());
        name.clone_into(&mut self.function.value_mut(value).name);
    }

    /// Puts an operation with one result into the body, before its operation `at`.
    pub(crate) fn insert(&mut self, at: usize, op: Op, name: &str, ty: Type) -> ValueId {
        let name = self.fresh_name(name);
        let body = self.function.body;
        let id = self.function.add_op(body, op, [(name, ty)]);
        let ops = &mut self.function.block_mut(body).ops;
        ops.pop();
        ops.insert(at.min(ops.len()), id);
        self.function.op(id).outputs[0]
    }

    /// Puts a constant into the body, before its operation `at`.
    pub(crate) fn constant(&mut self, at: usize, name: &str, constant: Constant) -> ValueId {
        let ty = constant.ty.clone();
        self.insert(at, Op::constant(constant), name, ty)
    }

    /// Puts a cast into the body, before its operation `at`.
    pub(crate) fn cast(&mut self, at: usize, value: ValueId, dtype: DType, name: &str) -> ValueId {
        let ty = match &self.function.value(value).ty {
            Type::Tensor(tensor) => Type::Tensor(TensorType { dtype, ..tensor.clone() }),
            other => other.clone(),
        };
        let named = self.constant(at, &format!("{name}_dtype"), Constant::string(dtype.name()));
        let op = Op::new(OpKind::Cast)
            .with("x", Binding::Value(value))
            .with("dtype", Binding::Value(named));
        self.insert(at + 1, op, name, ty)
    }

    /// The number of operations in the body.
    pub(crate) fn end(&self) -> usize {
        self.function.block(self.function.body).ops.len()
    }

    /// Replaces a value in all operations but some, and in the outputs of blocks.
    pub(crate) fn replace_uses(&mut self, old: ValueId, new: ValueId, keep: &HashSet<OpId>) {
        for at in 0..self.function.op_count() {
            let id = OpId::from_index(at);
            if keep.contains(&id) {
                continue;
            }
            for input in &mut self.function.op_mut(id).inputs {
                for binding in &mut input.bindings {
                    if *binding == Binding::Value(old) {
                        *binding = Binding::Value(new);
                    }
                }
            }
        }
        for (block, _) in self.function.blocks_in_order() {
            for output in &mut self.function.block_mut(block).outputs {
                if *output == old {
                    *output = new;
                }
            }
        }
    }

    /// The operation that computes a value.
    pub(crate) fn producer(&self, value: ValueId) -> Option<OpId> {
        match self.function.value(value).definition {
            Definition::Output(op, _) => Some(op),
            Definition::Input(..) => None,
        }
    }

    /// The source of a cast.
    pub(crate) fn cast_source(&self, op: OpId) -> Option<ValueId> {
        let op = self.function.op(op);
        match op.binding("x") {
            Some(Binding::Value(source)) if op.kind() == Some(OpKind::Cast) => Some(*source),
            _ => None,
        }
    }

    /// Whether a value is given by an operation of the body that is no constant: only such values are outputs.
    pub(crate) fn can_be_output(&self, value: ValueId) -> bool {
        let body = &self.function.block(self.function.body).ops;
        self.function.constant(value).is_none()
            && self.producer(value).is_some_and(|op| body.contains(&op))
    }

    /// The number of operations that use a value.
    pub(crate) fn use_count(&self, value: ValueId) -> usize {
        self.function
            .all_ops()
            .flat_map(|(_, op)| op.values())
            .filter(|&used| used == value)
            .count()
    }

    /// Removes operations of the body whose results nothing uses, except for the only use of an input: Core ML
    /// rejects programs with unused inputs.
    pub(crate) fn sweep(&mut self) {
        self.remove_unused();
        let before = self.function.value_count();
        keep_unused_inputs(self.function);
        for at in before..self.function.value_count() {
            self.names.insert(self.function.value(ValueId::from_index(at)).name.clone());
        }
    }

    fn remove_unused(&mut self) {
        loop {
            let used = self.function.used_values();
            let only_use = |op: &Op| match op.binding("x") {
                Some(Binding::Value(x)) if op.kind() == Some(OpKind::Identity) => {
                    self.function.inputs().contains(x) && self.use_count(*x) == 1
                }
                _ => false,
            };
            let body = self.function.body;
            let is_dead = |op: &Op| {
                let has_effect = matches!(op.kind(), Some(OpKind::WriteState) | None);
                // Loops and branches may write states.
                let is_plain = op.blocks.is_empty();
                let is_unused = op.outputs.iter().all(|output| !used.contains(output));
                !has_effect && is_plain && is_unused && !only_use(op)
            };
            let ops = &self.function.block(body).ops;
            let kept: Vec<OpId> =
                ops.iter().copied().filter(|&op| !is_dead(self.function.op(op))).collect();
            if kept.len() == ops.len() {
                return;
            }
            self.function.block_mut(body).ops = kept;
        }
    }
}
