//! Inputs and outputs of the program: selection, types and names.

use coremill_mil::ir::{Dim, Opset, TensorType, Type, ValueId};
use coremill_mil::text::identifier;
use coremill_pt2::{Argument, InputKind, Meta, Node, OutputKind, ScalarType, TensorMeta};
use coremill_tensor::DType;

use super::builder::ValueResult;
use super::dtype::core_dtype;
use super::high_rank::MAX_RANK;
use super::value::{Int, LoweredValue, Real, Truth};
use super::{Frame, Lowering, Slot};
use crate::error::{LoweringError, Result, refuse};

impl<'p> Lowering<'p> {
    /// Declares the inputs.
    pub(super) fn enter(&mut self, frame: &mut Frame<'p>) -> Result<()> {
        let program = self.program;
        self.output_labels = self.output_labels();
        for name in &self.output_labels {
            self.builder.reserve_output(name);
        }
        self.check_shapes()?;
        let mut names = Vec::new();
        for (argument, kind) in program.graph.inputs.iter().zip(&program.inputs) {
            if let (Argument::Value(id), None) = (argument, slot(kind)) {
                let name = self.options.input_names.get(names.len());
                let name = identifier(name.unwrap_or(&program.graph.value(*id).name));
                self.builder.reserve_input(&name);
                names.push(name);
            }
        }
        let mut names = names.into_iter();
        for (argument, kind) in program.graph.inputs.iter().zip(&program.inputs) {
            let Argument::Value(id) = argument else { continue };
            frame.values[id.index()] = match slot(kind) {
                Some(slot) => slot,
                None => {
                    let value = program.graph.value(*id);
                    let name = names.next().unwrap_or_default();
                    Slot::Done(self.user_input(&name, &value.meta)?)
                }
            };
        }
        // Buffers follow the user's inputs, so that the positions of the latter do not change.
        for (argument, kind) in program.graph.inputs.iter().zip(&program.inputs) {
            if let Argument::Value(id) = argument
                && let InputKind::Parameter(name) | InputKind::Buffer { name, .. } = kind
                && let Some(lowered) =
                    self.enter_buffer(name, *id, &program.graph.value(*id).meta)?
            {
                frame.set(*id, lowered);
            }
        }
        if self.builder.function.inputs().is_empty() && self.builder.opset() < Opset::Ios18 {
            let what = "a program without inputs";
            return Err(LoweringError::needs(what, Opset::Ios18, self.builder.opset()));
        }
        Ok(())
    }

    /// Names of the user's outputs: the caller's names, or the keys of a dictionary, or torch's names.
    fn output_labels(&self) -> Vec<String> {
        let program = self.program;
        let taken = |name: &String, labels: &[String]| {
            let mut inputs = program.graph.inputs.iter().filter_map(|input| match input {
                Argument::Value(id) => Some(identifier(&program.graph.value(*id).name)),
                _ => None,
            });
            labels.contains(name) || inputs.any(|input| input == *name)
        };
        let is_users = |kind: &OutputKind| matches!(kind, OutputKind::User | OutputKind::Loss);
        let outputs = program.graph.outputs.iter().zip(&program.outputs);
        let outputs = outputs.filter(|(_, kind)| is_users(kind)).zip(program.output_keys());
        let outputs = outputs.filter(|((argument, _), _)| !matches!(argument, Argument::None));
        let mut labels: Vec<String> = Vec::new();
        for (at, ((argument, _), key)) in outputs.enumerate() {
            let asked = self.options.output_names.get(at).map(|name| identifier(name));
            let key = key.map(|key| identifier(&key)).filter(|key| !taken(key, &labels));
            labels.push(asked.or(key).unwrap_or_else(|| match argument {
                Argument::Value(id) => identifier(&program.graph.value(*id).name),
                _ => format!("output_{at}"),
            }));
        }
        labels
    }

    /// Declares an input for every value of a probe. A value that cannot be an input is refused where it is used.
    pub(super) fn enter_probe(&mut self, frame: &mut Frame<'p>) {
        let program = self.program;
        for (argument, kind) in program.graph.inputs.iter().zip(&program.inputs) {
            let Argument::Value(id) = argument else { continue };
            frame.values[id.index()] = slot(kind).unwrap_or_else(|| {
                let value = program.graph.value(*id);
                let given = self.user_input(&identifier(&value.name), &value.meta);
                Slot::Done(given.unwrap_or(LoweredValue::Refused))
            });
        }
    }

    pub(super) fn user_input(&mut self, name: &str, meta: &Meta) -> Result<LoweredValue> {
        self.builder.label = name.to_owned();
        match meta {
            Meta::Tensor(meta) => self.tensor_input(name, meta),
            Meta::Int(_) => Ok(Int::Computed(self.number_input(name, DType::Int32)?).into()),
            Meta::Float(_) => Ok(Real::Computed(self.number_input(name, DType::Fp32)?).into()),
            Meta::Bool(_) => {
                let value = self.number_input(name, DType::Fp32)?;
                Ok(Truth::Computed(self.builder.cast(value, DType::Bool)?).into())
            }
            Meta::CustomObject(class) => refuse!("input `{name}` is an object of class `{class}`"),
            Meta::Token => Ok(LoweredValue::Nothing),
        }
    }

    fn number_input(&mut self, name: &str, dtype: DType) -> ValueResult {
        let value = self.builder.input(name, Type::tensor(dtype, &[1]));
        self.builder.squeeze(value, &[0])
    }

    pub(super) fn tensor_input(&mut self, name: &str, meta: &TensorMeta) -> Result<LoweredValue> {
        if meta.dtype.is_complex() {
            return Err(LoweringError::new(format!(
                "input `{name}` is complex; Core ML has real inputs only"
            ))
            .hint("pass the real and imaginary parts as two inputs"));
        }
        if meta.sizes.len() > MAX_RANK {
            return Err(LoweringError::new(format!(
                "input `{name}` has {} axes; Core ML supports up to {MAX_RANK}",
                meta.sizes.len()
            ))
            .hint("pass it with fewer axes, and reshape it in the model"));
        }
        let mut shape = self.input_shape(name, meta);
        if shape.contains(&Dim::Known(0)) {
            refuse!("input `{name}` is empty; Core ML has no tensors without elements");
        }
        let scalar = shape.is_empty();
        if scalar {
            shape.push(Dim::Known(1));
        }
        // Core ML passes floats and 32-bit integers; all other types are cast inside.
        let dtype = match core_dtype(meta.dtype)? {
            DType::Int32 => DType::Int32,
            _ => DType::Fp32,
        };
        let mut value = self.builder.input(name, Type::Tensor(TensorType { dtype, shape }));
        self.name_shapes(name, value);
        self.share_symbols(value, meta);
        if scalar {
            value = self.builder.squeeze(value, &[0])?;
        }
        let value = self.builder.cast_to(value, meta.dtype)?;
        Ok(LoweredValue::tensor(value, meta.dtype))
    }

    /// Maps dimensions with the same torch symbol to one inference symbol, across inputs.
    fn share_symbols(&mut self, input: ValueId, meta: &TensorMeta) {
        if meta.sizes.is_empty() {
            return;
        }
        let mut shape = self.builder.shape(input).to_vec();
        for (dim, size) in shape.iter_mut().zip(&meta.sizes) {
            if let Some(symbol) = size.symbol() {
                *dim = self.symbols.entry(symbol).or_insert_with(|| dim.clone()).clone();
            }
        }
        self.builder.analysis.set_shape(input, shape);
    }

    /// Declares the outputs.
    pub(super) fn leave(&mut self, frame: &mut Frame<'p>) -> Result<()> {
        let program = self.program;
        let mut outputs: Vec<ValueId> = Vec::new();
        let mut users = 0;
        for (argument, kind) in program.graph.outputs.iter().zip(&program.outputs) {
            match kind {
                OutputKind::User | OutputKind::Loss => {}
                OutputKind::Token
                | OutputKind::BufferMutation(_)
                | OutputKind::ParameterMutation(_)
                | OutputKind::UserInputMutation(_) => continue,
                OutputKind::GradientToParameter(_) | OutputKind::GradientToUserInput(_) => {
                    refuse!("the program computes gradients");
                }
            }
            if matches!(argument, Argument::None) {
                continue;
            }
            let lowered = self.argument(frame, argument)?;
            let Some(name) = self.output_labels.get(users).cloned() else {
                refuse!("output {users} has no name")
            };
            users += 1;
            self.output(&name, lowered, &mut outputs)?;
        }
        // Mutated inputs follow the regular outputs.
        for (argument, kind) in program.graph.outputs.iter().zip(&program.outputs) {
            if let (Argument::Value(id), OutputKind::UserInputMutation(name)) = (argument, kind) {
                let lowered = self.value(frame, *id)?;
                self.output(&format!("{}_out", identifier(name)), lowered, &mut outputs)?;
            }
        }
        self.leave_buffers(frame, &mut outputs)?;
        if outputs.is_empty() {
            refuse!("the program has no outputs");
        }
        let body = self.builder.function.body;
        self.builder.function.block_mut(body).outputs = outputs;
        self.state_shapes();
        Ok(())
    }

    pub(super) fn output(
        &mut self,
        name: &str,
        lowered: LoweredValue,
        outputs: &mut Vec<ValueId>,
    ) -> Result<()> {
        self.builder.label = name.to_owned();
        let value = match lowered {
            LoweredValue::Tensor(tensor) => tensor.value,
            LoweredValue::Pair(parts) => {
                for (part, ending) in parts.into_iter().zip(["real", "imag"]) {
                    let part = LoweredValue::tensor(part, ScalarType::Float32);
                    self.output(&format!("{name}_{ending}"), part, outputs)?;
                }
                return Ok(());
            }
            LoweredValue::Number(number) => self.builder.number_value(number)?,
            LoweredValue::Nothing | LoweredValue::Refused => return Ok(()),
        };
        if self.builder.rank(value) > MAX_RANK {
            return Err(LoweringError::new(format!(
                "output `{name}` has {} axes; Core ML supports up to {MAX_RANK}",
                self.builder.rank(value)
            ))
            .hint("return it with fewer axes"));
        }
        if self.builder.extents(value).contains(&Some(0)) {
            refuse!("output `{name}` is empty; Core ML has no tensors without elements");
        }
        let value = match self.builder.dtype(value) {
            DType::Bool => self.builder.cast(value, DType::Fp32)?,
            _ => value,
        };
        let value = self.builder.with_axes(value)?;
        // An input, a constant or an existing output is copied first, so that the copy can have the output's name.
        let value = match self.builder.is_computed_here(value) && !outputs.contains(&value) {
            true => value,
            false => self.builder.copied(value)?,
        };
        self.builder.rename(value, name);
        outputs.push(value);
        Ok(())
    }
}

/// Initial slot of a graph input; `None` for user inputs.
fn slot(kind: &InputKind) -> Option<Slot<'_>> {
    match kind {
        InputKind::Parameter(name)
        | InputKind::TensorConstant(name)
        | InputKind::Buffer { name, .. } => Some(Slot::Weight(name)),
        InputKind::CustomObject(_) | InputKind::Token => Some(Slot::Done(LoweredValue::Nothing)),
        InputKind::Constant(_) => Some(Slot::Empty),
        InputKind::User => None,
    }
}

/// Base name for values of a call: its module path and operator, so that profiles and reports show their origin.
pub(super) fn label(node: &Node) -> String {
    let operator = node.target.name().rsplit('.').next().unwrap_or_default();
    match node.origin.module_path() {
        // The exporter's name for "no module" is not a path.
        Some(path) if !path.is_empty() && !path.starts_with("_empty_nn_module_stack") => {
            identifier(&format!("{path}_{}", operator.trim_matches('_')))
        }
        _ => identifier(&node.name),
    }
}
