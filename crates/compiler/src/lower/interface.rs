//! Inputs and outputs of the program: which there are, of which types, and what they are called.

use coremill_mil::ir::{Dim, TensorType, Type, ValueId};
use coremill_mil::model::shapes;
use coremill_mil::ops::OpKind;
use coremill_pt2::{
    Argument, Hint, InputKind, Meta, Node, Number, OutputKind, ScalarType, Size, Symbol, Target,
    TensorMeta,
};
use coremill_tensor::DType;

use super::dtype::core_dtype;
use super::value::{Int, Lowered, Real, Tensor, Truth};
use super::{Frame, Lowering, Slot};
use crate::error::{Refusal, refuse};

/// The largest extent that a dimension without a bound is given: what Core ML takes for none.
const UNBOUNDED: i32 = -1;

impl<'p> Lowering<'p> {
    /// Declares the inputs.
    pub(super) fn enter(&mut self, frame: &mut Frame<'p>) -> Result<(), Refusal> {
        let program = self.program;
        let mut users = 0;
        for (argument, kind) in program.graph.outputs.iter().zip(&program.outputs) {
            if let (Argument::Value(id), OutputKind::User) = (argument, kind) {
                let name = self.options.output_names.get(users);
                let name = name.unwrap_or(&program.graph.value(*id).name);
                self.builder.reserve(&identifier(name));
                users += 1;
            }
        }
        users = 0;
        for (argument, kind) in program.graph.inputs.iter().zip(&program.inputs) {
            let Argument::Value(id) = argument else { continue };
            let slot = match kind {
                InputKind::Parameter(name)
                | InputKind::TensorConstant(name)
                | InputKind::Buffer { name, .. } => Slot::Weight(name),
                InputKind::CustomObject(_) | InputKind::Token => Slot::Done(Lowered::Nothing),
                InputKind::Constant(_) => Slot::Empty,
                InputKind::User => {
                    let value = program.graph.value(*id);
                    let name = self.options.input_names.get(users).unwrap_or(&value.name);
                    users += 1;
                    Slot::Done(self.user_input(&identifier(name), &value.meta)?)
                }
            };
            frame.values[id.index()] = slot;
        }
        Ok(())
    }

    fn user_input(&mut self, name: &str, meta: &Meta) -> Result<Lowered, Refusal> {
        self.builder.label = name.to_owned();
        match meta {
            Meta::Tensor(meta) => self.tensor_input(name, meta),
            Meta::Int(_) => {
                let value = self.builder.input(name, Type::tensor(DType::Int32, &[1]));
                Ok(Lowered::Int(Int::Computed(self.builder.squeeze(value, &[0])?)))
            }
            Meta::Float(_) => {
                let value = self.builder.input(name, Type::tensor(DType::Fp32, &[1]));
                Ok(Lowered::Float(Real::Computed(self.builder.squeeze(value, &[0])?)))
            }
            Meta::Bool(_) => {
                let value = self.builder.input(name, Type::tensor(DType::Fp32, &[1]));
                let value = self.builder.squeeze(value, &[0])?;
                Ok(Lowered::Bool(Truth::Computed(self.builder.cast(value, DType::Bool)?)))
            }
            Meta::CustomObject(class) => refuse!("input `{name}` is an object of class `{class}`"),
            Meta::Token => Ok(Lowered::Nothing),
        }
    }

    fn tensor_input(&mut self, name: &str, meta: &TensorMeta) -> Result<Lowered, Refusal> {
        if meta.dtype.is_complex() {
            return Err(Refusal::new(format!(
                "input `{name}` is complex; Core ML has real inputs only"
            ))
            .hint("take real and imaginary part as two inputs"));
        }
        let mut shape: Vec<_> = meta
            .sizes
            .iter()
            .map(|size| match size.fixed().and_then(|size| u64::try_from(size).ok()) {
                Some(size) => Dim::Known(size),
                None => Dim::Unknown,
            })
            .collect();
        let scalar = shape.is_empty();
        if scalar {
            shape.push(Dim::Known(1));
        }
        // Core ML passes floats and 32-bit integers; everything else is cast once inside.
        let dtype = match core_dtype(meta.dtype)? {
            DType::Int32 => DType::Int32,
            _ => DType::Fp32,
        };
        if shape.contains(&Dim::Unknown) {
            let (default, ranges): (Vec<_>, Vec<_>) =
                meta.sizes.iter().map(|size| self.range(size)).unzip();
            self.shapes.defaults.push((name.to_owned(), default));
            self.shapes.ranges.push((name.to_owned(), ranges));
        }
        let mut value = self.builder.input(name, Type::Tensor(TensorType { dtype, shape }));
        self.share_symbols(value, meta);
        if scalar {
            value = self.builder.squeeze(value, &[0])?;
        }
        let value = self.builder.cast_to(value, meta.dtype)?;
        Ok(Lowered::tensor(value, meta.dtype))
    }

    /// Dimensions that are one symbol for torch are one for inference, in whichever inputs they occur.
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

    /// The extent at export, and the lowest and the highest that the program promises.
    fn range(&self, size: &Size) -> (i32, [i32; 2]) {
        let narrow = |value: i64| i32::try_from(value).unwrap_or(i32::MAX);
        let symbolic = match size {
            Size::Fixed(extent) => return (narrow(*extent), [narrow(*extent); 2]),
            Size::Symbolic(symbolic) => symbolic,
        };
        let symbols = &self.program.symbols;
        let at = |pick: &dyn Fn(&Symbol) -> Option<i64>| {
            let value = symbolic.expression.evaluate(&|id| pick(symbols.get(id)));
            value.and_then(Number::integer)
        };
        // Sizes grow with the symbols that they are expressions of.
        let lowest = at(&|symbol| symbol.minimum).map_or(1, narrow).max(1);
        let highest = at(&|symbol| symbol.maximum).map_or(UNBOUNDED, narrow);
        let default = match symbolic.hint {
            Some(Hint::Int(value)) => narrow(value),
            _ => at(&|symbol| symbol.hint).map_or(lowest, narrow),
        };
        (default.max(lowest), [lowest, highest])
    }

    /// Declares the outputs.
    pub(super) fn leave(&mut self, frame: &mut Frame<'p>) -> Result<(), Refusal> {
        let program = self.program;
        let mut outputs: Vec<ValueId> = Vec::new();
        let mut users = 0;
        for (argument, kind) in program.graph.outputs.iter().zip(&program.outputs) {
            match kind {
                OutputKind::User | OutputKind::Loss => {}
                OutputKind::Token => continue,
                OutputKind::BufferMutation(name) | OutputKind::ParameterMutation(name) => {
                    refuse!("the program writes to the buffer `{name}`");
                }
                OutputKind::UserInputMutation(name) => {
                    refuse!("the program writes to its input `{name}`");
                }
                OutputKind::GradientToParameter(_) | OutputKind::GradientToUserInput(_) => {
                    refuse!("the program computes gradients");
                }
            }
            let (lowered, name) = match argument {
                Argument::Value(id) => {
                    (self.value(frame, *id)?, program.graph.value(*id).name.clone())
                }
                Argument::None => continue,
                Argument::Int(value) => {
                    (Lowered::Int(Int::Known(*value)), format!("output_{users}"))
                }
                Argument::Float(value) => {
                    (Lowered::Float(Real::Known(*value)), format!("output_{users}"))
                }
                Argument::Bool(value) => {
                    (Lowered::Bool(Truth::Known(*value)), format!("output_{users}"))
                }
                _ => refuse!("output {users} is no tensor and no number"),
            };
            let wanted = self.options.output_names.get(users).cloned().unwrap_or(name);
            users += 1;
            self.output(&identifier(&wanted), lowered, &mut outputs)?;
        }
        if outputs.is_empty() {
            refuse!("the program has no outputs");
        }
        let body = self.builder.function.body;
        self.builder.function.block_mut(body).outputs = outputs;
        if !self.shapes.defaults.is_empty() {
            self.shapes.defaults.sort();
            self.shapes.ranges.sort();
            let shapes = self.shapes.to_constant();
            self.builder.function.attributes.insert(shapes::ATTRIBUTE, shapes);
        }
        Ok(())
    }

    fn output(
        &mut self,
        name: &str,
        lowered: Lowered,
        outputs: &mut Vec<ValueId>,
    ) -> Result<(), Refusal> {
        self.builder.label = name.to_owned();
        let value = match lowered {
            Lowered::Tensor(Tensor { value, imaginary: None, .. }) => value,
            Lowered::Tensor(Tensor { value, imaginary: Some(imaginary), dtype }) => {
                let _ = dtype;
                let real = Lowered::tensor(value, ScalarType::Float32);
                self.output(&format!("{name}_real"), real, outputs)?;
                let imaginary = Lowered::tensor(imaginary, ScalarType::Float32);
                return self.output(&format!("{name}_imag"), imaginary, outputs);
            }
            Lowered::Int(int) => self.builder.int_value(int)?,
            Lowered::Float(Real::Computed(value)) | Lowered::Bool(Truth::Computed(value)) => value,
            Lowered::Float(Real::Known(value)) => {
                self.builder.constant(coremill_mil::ir::Constant::fp32(value as f32))
            }
            Lowered::Bool(Truth::Known(value)) => {
                self.builder.constant(coremill_mil::ir::Constant::bool(value))
            }
            Lowered::Nothing | Lowered::Refused => return Ok(()),
        };
        let value = match self.builder.dtype(value) {
            DType::Bool => self.builder.cast(value, DType::Fp32)?,
            _ => value,
        };
        let value = match self.builder.rank(value) {
            0 => self.builder.expand_dims(value, &[0])?,
            _ => value,
        };
        // What is an input, a constant or an output already gets an operation of its own, which the
        // caller's name then belongs to.
        let value = if self.is_computed(value) && !outputs.contains(&value) {
            value
        } else {
            self.builder.emit_unfolded(OpKind::Identity, [("x", value.into())])?
        };
        self.builder.rename(value, name);
        outputs.push(value);
        Ok(())
    }

    fn is_computed(&self, value: ValueId) -> bool {
        !self.builder.function.inputs().contains(&value) && self.builder.known(value).is_none()
    }
}

/// What values of a call are named: after its module, so that profiles and reports tell where they are.
pub(super) fn label(node: &Node) -> String {
    let operator = match &node.target {
        Target::Operator { name, .. } | Target::HigherOrder(name) | Target::Function(name) => {
            name.rsplit('.').next().unwrap_or(name)
        }
    };
    match node.origin.module_path() {
        // The exporter's own name for "no module" is no path.
        Some(path) if !path.is_empty() && !path.starts_with("_empty_nn_module_stack") => {
            identifier(&format!("{path}_{}", operator.trim_matches('_')))
        }
        _ => identifier(&node.name),
    }
}

/// The name with everything replaced that MIL's identifiers cannot have.
pub(crate) fn identifier(name: &str) -> String {
    /// What MIL's text reads as something else.
    const RESERVED: [&str; 28] = [
        "any", "bf16", "block", "bool", "dict", "false", "fp16", "fp32", "fp64", "func", "int16",
        "int32", "int4", "int64", "int8", "list", "program", "state", "string", "tensor", "true",
        "tuple", "uint16", "uint32", "uint4", "uint64", "uint8", "unknown",
    ];
    let mut text: String =
        name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
    if text.is_empty() || text.starts_with(|c: char| c.is_ascii_digit()) {
        text.insert_str(0, "var_");
    }
    if RESERVED.contains(&text.as_str()) {
        text.push_str("_value");
    }
    text
}
