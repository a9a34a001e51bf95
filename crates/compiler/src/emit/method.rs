//! Values and calls of a method.

use std::collections::HashMap;

use coremill_pt2::{
    Argument, ExportedProgram, Graph, InputKind, Meta, Node, Output, OutputKind, Size, Symbols,
    Target, TensorMeta, ValueId as TorchId,
};
use coremill_pte::program::{
    Chain, ContainerMetadata, Delegate, ExecutionPlan, Instruction, Operator, Place, Placement,
    ScalarType, ShapeDynamism, Tensor, Value, ValueId,
};

use super::memory::{self, Allocation};
use super::pool::{self, Pool};
use crate::error::{Error, LoweringError, Result, UnsupportedOp, refuse};
use crate::partition::DELEGATE;

/// All-zero buffers above this size in bytes are not stored, because memory starts zeroed.
const MAX_STORED_ZEROS: usize = 64 << 10;

/// Creates the plan of a method. Every call of the program must have a kernel or call a delegate by number.
pub(crate) fn plan(
    name: &str,
    program: &ExportedProgram,
    delegates: Vec<Delegate>,
    pool: &mut Pool,
) -> Result<ExecutionPlan, Error> {
    let mut emitter = Emitter {
        program,
        pool,
        plan: ExecutionPlan {
            name: name.to_owned(),
            container: Some(container(program)),
            delegates,
            ..ExecutionPlan::default()
        },
        instructions: Vec::new(),
        storages: Vec::new(),
        storage_of: HashMap::new(),
        literals: HashMap::new(),
        operators: HashMap::new(),
        reordered: HashMap::new(),
    };
    let mut frame = Frame::new(&program.graph);
    emitter.enter(&mut frame).map_err(Error::Program)?;
    emitter.run(&mut frame)?;
    emitter.leave(&mut frame).map_err(Error::Program)?;
    emitter.finish()
}

/// Nesting of inputs and outputs in Python.
fn container(program: &ExportedProgram) -> ContainerMetadata {
    let outermost = program.modules.iter().find(|module| module.path.is_empty());
    let signature = outermost.and_then(|module| module.signature.as_ref());
    ContainerMetadata {
        inputs: signature.map(|signature| signature.inputs.to_text()),
        outputs: signature.map(|signature| signature.outputs.to_text()),
    }
}

pub(super) struct Emitter<'m> {
    pub(super) program: &'m ExportedProgram,
    pool: &'m mut Pool,
    pub(super) plan: ExecutionPlan,
    pub(super) instructions: Vec<Instruction>,
    /// Tensors that need memory.
    pub(super) storages: Vec<Storage>,
    storage_of: HashMap<ValueId, usize>,
    /// Literal values, shared between calls.
    literals: HashMap<Literal, ValueId>,
    operators: HashMap<Operator, u32>,
    /// Inputs in another dimension order, mapped to copies in the standard order.
    reordered: HashMap<TorchId, ValueId>,
}

/// Memory of a tensor.
pub(super) struct Storage {
    /// The tensor and its views.
    values: Vec<ValueId>,
    bytes: u64,
    pub(super) first: usize,
    pub(super) last: usize,
    /// Index of the initial data.
    initial: Option<u32>,
}

/// A constant argument.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Literal {
    Null,
    Int(i64),
    Bool(bool),
    /// Bit pattern of the float.
    Double(u64),
    String(String),
    IntList(Vec<ValueId>),
    DoubleList(Vec<u64>),
    BoolList(Vec<bool>),
    TensorList(Vec<ValueId>),
    OptionalTensorList(Vec<Option<ValueId>>),
    EmptyTensor,
}

/// A graph during emission: the program's graph or a nested one.
pub(super) struct Frame<'m> {
    pub(super) graph: &'m Graph,
    pub(super) slots: Vec<Option<ValueId>>,
}

impl<'m> Frame<'m> {
    pub(super) fn new(graph: &'m Graph) -> Frame<'m> {
        Frame { graph, slots: vec![None; graph.values.len()] }
    }
}

impl<'m> Emitter<'m> {
    fn enter(&mut self, frame: &mut Frame<'m>) -> Result<()> {
        let program = self.program;
        let mut reordered = Vec::new();
        for (argument, kind) in program.graph.inputs.iter().zip(&program.inputs) {
            match (kind, argument) {
                (InputKind::User | InputKind::Constant(_), Argument::Value(id)) => {
                    let meta = &program.graph.value(*id).meta;
                    let value = self.new_value(meta)?;
                    self.touch(value);
                    self.plan.inputs.push(value);
                    frame.slots[id.index()] = Some(value);
                    if let Meta::Tensor(tensor) = meta
                        && let Some(order) = self.dim_order(tensor)
                    {
                        reordered.push((*id, value, order));
                    }
                }
                (InputKind::User | InputKind::Constant(_), argument) => {
                    let value = self.add(plain(argument))?;
                    self.plan.inputs.push(value);
                }
                _ => {}
            }
        }
        // Inside the program every tensor is in standard dimension order.
        for (id, value, order) in reordered {
            let inside = self.copy_in_order(value, None)?;
            if let Value::Tensor(tensor) = &mut self.plan.values[value.index()] {
                tensor.dim_order = order;
            }
            frame.slots[id.index()] = Some(inside);
            self.reordered.insert(id, value);
        }
        Ok(())
    }

    /// Memory order of an input's dimensions, outermost first; `None` for the standard order.
    fn dim_order(&self, meta: &TensorMeta) -> Option<Vec<u8>> {
        let symbols = &self.program.symbols;
        let number = |size: &Size| match size {
            Size::Fixed(extent) => Some(*extent),
            Size::Symbolic(symbolic) => {
                symbolic.expression.evaluate(&|id| symbols.get(id).hint)?.integer()
            }
        };
        let sizes: Vec<i64> = meta.sizes.iter().map(number).collect::<Option<_>>()?;
        let strides: Vec<i64> = meta.strides.iter().map(number).collect::<Option<_>>()?;
        let is_dense = |order: &[u8]| {
            let mut wanted = 1i64;
            order.iter().rev().all(|&axis| {
                let (size, stride) = (sizes[usize::from(axis)], strides[usize::from(axis)]);
                let fits = size == 1 || stride == wanted;
                wanted = wanted.saturating_mul(size);
                fits
            })
        };
        let mut order: Vec<u8> = (0..sizes.len()).map(|axis| axis as u8).collect();
        if sizes.len() != strides.len() || sizes.contains(&0) || is_dense(&order) {
            return None;
        }
        order.sort_by_key(|&axis| {
            let axis = usize::from(axis);
            (std::cmp::Reverse(strides[axis]), std::cmp::Reverse(sizes[axis]))
        });
        is_dense(&order).then_some(order)
    }

    /// Copies a tensor to the standard dimension order, or into an existing tensor with its own order.
    fn copy_in_order(&mut self, from: ValueId, to: Option<ValueId>) -> Result<ValueId> {
        let to = match to {
            Some(to) => to,
            None => match self.plan.values[from.index()].clone() {
                Value::Tensor(tensor) => self.add_planned(tensor)?,
                _ => refuse!("has a dimension order, but is not a tensor"),
            },
        };
        let Value::Tensor(tensor) = &self.plan.values[to.index()] else {
            refuse!("has a dimension order, but is not a tensor")
        };
        let order = tensor.dim_order.clone();
        let axes = order.into_iter().map(|axis| self.literal(Literal::Int(axis.into())));
        let axes = axes.collect::<Result<_, _>>()?;
        let order = self.literal(Literal::IntList(axes))?;
        let blocking = self.literal(Literal::Bool(false))?;
        let arguments = vec![from, blocking, order, to, to];
        self.call("dim_order_ops::_to_dim_order_copy", "out", arguments)?;
        Ok(to)
    }

    /// Emits the calls of a graph.
    pub(super) fn run(&mut self, frame: &mut Frame<'m>) -> Result<(), Error> {
        for node in &frame.graph.nodes {
            let emitted = self.node(frame, node);
            emitted.map_err(|refusal| Error::Refused(vec![UnsupportedOp::of(node, refusal)]))?;
        }
        Ok(())
    }

    fn node(&mut self, frame: &mut Frame<'m>, node: &'m Node) -> Result<()> {
        match &node.target {
            Target::HigherOrder(name) if name == DELEGATE => self.delegate_call(frame, node),
            Target::HigherOrder(name) => self.control_flow(frame, name, node),
            Target::Operator { .. } => self.kernel_call(frame, node),
            Target::Function(name) => {
                refuse!("ExecuTorch's runtime has no function `{name}`")
            }
        }
    }

    fn delegate_call(&mut self, frame: &mut Frame<'m>, node: &'m Node) -> Result<()> {
        let mut arguments = node.arguments.iter();
        let number = match arguments.next() {
            Some(Argument::Int(number)) => u32::try_from(*number).unwrap_or(u32::MAX),
            _ => refuse!("the call does not name a delegate"),
        };
        let mut values = Vec::new();
        for argument in arguments {
            match argument {
                Argument::Value(id) => values.push(self.slot(frame, *id)?),
                _ => refuse!("an argument of a delegate is not a tensor"),
            }
        }
        for output in &node.outputs {
            if let Output::Value(id) = output {
                values.push(self.define(frame, *id)?);
            }
        }
        self.touch_all(&values);
        self.instructions.push(Instruction::DelegateCall { delegate: number, arguments: values });
        Ok(())
    }

    fn leave(&mut self, frame: &mut Frame<'m>) -> Result<()> {
        let program = self.program;
        // Outputs must not change when buffers and inputs get their new values.
        let mut changes = Vec::new();
        for (argument, kind) in program.graph.outputs.iter().zip(&program.outputs) {
            let place = match kind {
                OutputKind::BufferMutation(name) | OutputKind::ParameterMutation(name) => {
                    self.input_of(|kind, _| matches!(kind,
                        InputKind::Buffer { name: own, .. } | InputKind::Parameter(own) if own == name))
                }
                OutputKind::UserInputMutation(name) => {
                    self.input_of(|kind, value| *kind == InputKind::User && value == name)
                }
                _ => continue,
            };
            let (Some(place), Argument::Value(new)) = (place, argument) else {
                refuse!("the program writes to a value that is not one of its inputs");
            };
            if place != *new {
                let new = self.slot(frame, *new)?;
                let place = match self.reordered.get(&place) {
                    Some(&input) => input,
                    None => self.slot(frame, place)?,
                };
                changes.push((place, new));
            }
        }
        let changed: Vec<ValueId> = changes.iter().map(|(place, _)| *place).collect();
        for (_, new) in &mut changes {
            if changed.contains(new) {
                *new = self.copy(*new)?;
            }
        }
        for (argument, kind) in program.graph.outputs.iter().zip(&program.outputs) {
            if !matches!(kind, OutputKind::User | OutputKind::Loss) {
                continue;
            }
            let value = match argument {
                Argument::Value(id) => self.slot(frame, *id)?,
                Argument::Text(text) => self.add(Value::String(text.clone()))?,
                argument => self.add(plain(argument))?,
            };
            let value = if changed.contains(&value) { self.copy(value)? } else { value };
            self.plan.outputs.push(value);
        }
        let reordered: Vec<ValueId> = self.reordered.values().copied().collect();
        for (place, new) in changes {
            if reordered.contains(&place) {
                self.copy_in_order(new, Some(place))?;
                continue;
            }
            let blocking = self.literal(Literal::Bool(false))?;
            self.call("aten::copy_", "", vec![place, new, blocking, place])?;
        }
        let outputs = self.plan.outputs.clone();
        let end = self.instructions.len();
        for output in outputs {
            self.touch_at(output, end);
        }
        Ok(())
    }

    /// Finds the graph input with a given kind and name.
    fn input_of(&self, is_it: impl Fn(&InputKind, &str) -> bool) -> Option<TorchId> {
        let graph = &self.program.graph;
        graph.inputs.iter().zip(&self.program.inputs).find_map(|(argument, kind)| match argument {
            Argument::Value(id) if is_it(kind, &graph.value(*id).name) => Some(*id),
            _ => None,
        })
    }

    fn finish(self) -> Result<ExecutionPlan, Error> {
        let Emitter { mut plan, storages, instructions, .. } = self;
        let claims: Vec<_> = storages
            .iter()
            .map(|storage| Allocation {
                bytes: storage.bytes,
                first: storage.first,
                last: storage.last,
            })
            .collect();
        let Some((offsets, total)) = memory::place(&claims) else {
            let refusal =
                LoweringError::new("the tensors require more memory than can be addressed")
                    .hint("set smaller maxima of dynamic dimensions at export");
            return Err(Error::Program(refusal));
        };
        for (storage, offset) in storages.iter().zip(offsets) {
            let place = Place { arena: 0, offset };
            for value in &storage.values {
                if let Value::Tensor(tensor) = &mut plan.values[value.index()] {
                    tensor.placement = match storage.initial {
                        Some(initial) => Placement::Initialized { initial, place },
                        None => Placement::Planned(place),
                    };
                }
            }
        }
        if !storages.is_empty() {
            plan.arenas = vec![total];
        }
        plan.chains = vec![Chain { instructions, ..Chain::default() }];
        Ok(plan)
    }

    /// The value for a value of the exported program.
    pub(super) fn slot(&mut self, frame: &mut Frame<'m>, id: TorchId) -> Result<ValueId> {
        if let Some(value) = frame.slots[id.index()] {
            return Ok(value);
        }
        if !std::ptr::eq(frame.graph, &self.program.graph) {
            refuse!("`{}` is not defined before it is used", frame.graph.value(id).name);
        }
        let value = self.stored(id)?;
        frame.slots[id.index()] = Some(value);
        Ok(value)
    }

    /// Adds a parameter, buffer or constant on first use.
    fn stored(&mut self, id: TorchId) -> Result<ValueId> {
        let program = self.program;
        let value = program.graph.value(id);
        let mut inputs = program.graph.inputs.iter().zip(&program.inputs);
        let kind = inputs.find(|(argument, _)| **argument == Argument::Value(id));
        let name = match kind {
            Some((
                _,
                InputKind::Parameter(name)
                | InputKind::TensorConstant(name)
                | InputKind::Buffer { name, .. },
            )) => name,
            Some((_, InputKind::CustomObject(name))) => refuse!("`{name}` is an object"),
            _ => refuse!("`{}` is not defined before it is used", value.name),
        };
        let Meta::Tensor(meta) = &value.meta else { refuse!("`{name}` is not a tensor") };
        let is_written = program.written(name).is_some();
        let data = match program.tensors.get(name) {
            Some(stored) => pool::elements(name, stored)?,
            None => refuse!("the archive has no tensor `{name}`"),
        };
        let mut tensor = self.tensor(meta)?;
        tensor.name = Some(name.clone());
        let fault = |error: Error| LoweringError::new(error.to_string());
        if is_written {
            let is_stored = data.len() <= MAX_STORED_ZEROS || !pool::is_zero(&data);
            let initial = match is_stored && !data.is_empty() {
                true => Some(self.pool.initial(data).map_err(fault)?),
                false => None,
            };
            let value = self.add_planned(tensor)?;
            let storage = &mut self.storages[self.storage_of[&value]];
            (storage.first, storage.last, storage.initial) = (0, usize::MAX, initial);
            return Ok(value);
        }
        if data.is_empty() {
            return self.add_planned(tensor);
        }
        tensor.placement = Placement::Constant(self.pool.constant(data).map_err(fault)?);
        self.add(Value::Tensor(tensor))
    }

    /// Defines the value of a call's result.
    pub(super) fn define(&mut self, frame: &mut Frame<'m>, id: TorchId) -> Result<ValueId> {
        let value = frame.graph.value(id);
        let made = self.new_value(&value.meta).map_err(|refusal| LoweringError {
            reason: format!("`{}`: {}", value.name, refusal.reason),
            ..refusal
        })?;
        frame.slots[id.index()] = Some(made);
        Ok(made)
    }

    pub(super) fn new_value(&mut self, meta: &Meta) -> Result<ValueId> {
        match meta {
            Meta::Tensor(meta) => {
                let tensor = self.tensor(meta)?;
                self.add_planned(tensor)
            }
            Meta::Int(_) => self.add(Value::Int(0)),
            Meta::Float(_) => self.add(Value::Double(0.0)),
            Meta::Bool(_) => self.add(Value::Bool(false)),
            Meta::CustomObject(_) | Meta::Token => self.add(Value::Null),
        }
    }

    /// Describes a tensor without allocating memory.
    fn tensor(&self, meta: &TensorMeta) -> Result<Tensor> {
        let mut sizes = Vec::with_capacity(meta.sizes.len());
        let mut dynamism = ShapeDynamism::Static;
        for (axis, size) in meta.sizes.iter().enumerate() {
            let largest = match size {
                Size::Fixed(extent) => Some(*extent),
                Size::Symbolic(_) => {
                    dynamism = ShapeDynamism::Bound;
                    largest(size, &self.program.symbols)
                }
            };
            let largest = largest.and_then(|extent| i32::try_from(extent).ok());
            let Some(largest) = largest.filter(|extent| *extent >= 0) else {
                return Err(LoweringError::new(format!(
                    "dimension {axis} has no upper bound, which memory planning requires"
                ))
                .hint("set a maximum of the dimension at export: `Dim(\"n\", max=512)`"));
            };
            sizes.push(largest);
        }
        let mut tensor = Tensor::new(scalar_type(meta)?, sizes, Placement::GivenAtRunTime);
        tensor.dynamism = dynamism;
        Ok(tensor)
    }

    /// Adds a tensor that occupies the arena from its first to its last use.
    pub(super) fn add_planned(&mut self, tensor: Tensor) -> Result<ValueId> {
        let Some(bytes) = tensor.byte_length() else {
            refuse!(
                "a tensor of sizes {:?} requires more memory than can be addressed",
                tensor.sizes
            );
        };
        let value = self.add(Value::Tensor(tensor))?;
        let now = self.instructions.len();
        self.storage_of.insert(value, self.storages.len());
        self.storages.push(Storage {
            values: vec![value],
            bytes,
            first: now,
            last: now,
            initial: None,
        });
        Ok(value)
    }

    pub(super) fn add(&mut self, value: Value) -> Result<ValueId> {
        let Ok(id) = u32::try_from(self.plan.values.len()) else {
            refuse!("the program has too many values for 32-bit indices");
        };
        self.plan.values.push(value);
        Ok(ValueId(id))
    }

    /// Returns the value for a literal, adding it on first use.
    pub(super) fn literal(&mut self, literal: Literal) -> Result<ValueId> {
        if let Some(&value) = self.literals.get(&literal) {
            return Ok(value);
        }
        let value = match literal.clone() {
            Literal::Null => self.add(Value::Null)?,
            Literal::Int(number) => self.add(Value::Int(number))?,
            Literal::Bool(truth) => self.add(Value::Bool(truth))?,
            Literal::Double(bits) => self.add(Value::Double(f64::from_bits(bits)))?,
            Literal::String(text) => self.add(Value::String(text))?,
            Literal::IntList(items) => self.add(Value::IntList(items))?,
            Literal::DoubleList(items) => {
                self.add(Value::DoubleList(items.into_iter().map(f64::from_bits).collect()))?
            }
            Literal::BoolList(items) => self.add(Value::BoolList(items))?,
            Literal::TensorList(items) => self.add(Value::TensorList(items))?,
            Literal::OptionalTensorList(items) => self.add(Value::OptionalTensorList(items))?,
            Literal::EmptyTensor => {
                let tensor = Tensor::new(ScalarType::Byte, vec![0], Placement::GivenAtRunTime);
                self.add_planned(tensor)?
            }
        };
        self.literals.insert(literal, value);
        Ok(value)
    }

    /// Views an existing tensor with other dimensions, or returns `None` if it cannot be viewed.
    ///
    /// Buffers and loop variables change while values derived from them must not, so they are not viewed. Only
    /// nested graphs see loop variables.
    pub(super) fn view(
        &mut self,
        frame: &mut Frame<'m>,
        of: ValueId,
        id: TorchId,
    ) -> Result<Option<ValueId>> {
        let Some(&storage) = self.storage_of.get(&of) else { return Ok(None) };
        let Meta::Tensor(meta) = &frame.graph.value(id).meta else { return Ok(None) };
        let tensor = self.tensor(meta)?;
        let Value::Tensor(base) = &self.plan.values[of.index()] else { return Ok(None) };
        let is_same = base.scalar_type == tensor.scalar_type
            && base.byte_length() == tensor.byte_length()
            && [base, &tensor].iter().all(|one| one.dynamism == ShapeDynamism::Static);
        if !is_same
            || !std::ptr::eq(frame.graph, &self.program.graph)
            || self.storages[storage].last == usize::MAX
        {
            return Ok(None);
        }
        let value = self.add(Value::Tensor(tensor))?;
        self.storages[storage].values.push(value);
        self.storage_of.insert(value, storage);
        frame.slots[id.index()] = Some(value);
        Ok(Some(value))
    }

    /// Marks a value as used by the next instruction.
    pub(super) fn touch(&mut self, value: ValueId) {
        self.touch_at(value, self.instructions.len());
    }

    pub(super) fn touch_all(&mut self, values: &[ValueId]) {
        values.iter().for_each(|&value| self.touch(value));
    }

    fn touch_at(&mut self, value: ValueId, now: usize) {
        match &self.plan.values[value.index()] {
            Value::TensorList(items) => {
                items.clone().into_iter().for_each(|item| self.touch_at(item, now));
            }
            Value::OptionalTensorList(items) => {
                items.clone().into_iter().flatten().for_each(|item| self.touch_at(item, now));
            }
            _ => {
                if let Some(&storage) = self.storage_of.get(&value) {
                    let storage = &mut self.storages[storage];
                    storage.first = storage.first.min(now);
                    storage.last = storage.last.max(now);
                }
            }
        }
    }

    /// Emits a kernel call.
    pub(super) fn call(
        &mut self,
        name: &str,
        overload: &str,
        arguments: Vec<ValueId>,
    ) -> Result<()> {
        self.touch_all(&arguments);
        let operator = Operator { name: name.to_owned(), overload: overload.to_owned() };
        let operator = match self.operators.get(&operator) {
            Some(&number) => number,
            None => {
                let number = u32::try_from(self.plan.operators.len()).unwrap_or(u32::MAX);
                self.plan.operators.push(operator.clone());
                self.operators.insert(operator, number);
                number
            }
        };
        self.instructions.push(Instruction::KernelCall { operator, arguments });
        Ok(())
    }

    /// Copies a tensor or number to a new value that may change afterwards.
    pub(super) fn copy(&mut self, value: ValueId) -> Result<ValueId> {
        let copy = match self.plan.values[value.index()].clone() {
            Value::Tensor(tensor) => self.add_planned(Tensor {
                placement: Placement::GivenAtRunTime,
                name: None,
                ..tensor
            })?,
            other => self.add(other)?,
        };
        self.assign(copy, value)?;
        Ok(copy)
    }

    /// Copies a tensor's elements or a number to an existing value.
    pub(super) fn assign(&mut self, to: ValueId, from: ValueId) -> Result<()> {
        if !matches!(self.plan.values[to.index()], Value::Tensor(_)) {
            self.instructions.push(Instruction::Move { from, to });
            return Ok(());
        }
        let format = self.literal(Literal::Null)?;
        self.call("aten::clone", "out", vec![from, format, to, to])
    }
}

/// Placeholder value of a number that is an input or output of the program.
fn plain(argument: &Argument) -> Value {
    match argument {
        Argument::Int(number) => Value::Int(*number),
        Argument::Float(number) => Value::Double(*number),
        Argument::Bool(truth) => Value::Bool(*truth),
        _ => Value::Null,
    }
}

/// Upper bound of a size.
pub(super) fn largest(size: &Size, symbols: &Symbols) -> Option<i64> {
    let symbolic = match size {
        Size::Fixed(extent) => return Some(*extent),
        Size::Symbolic(symbolic) => symbolic,
    };
    let high = symbolic.expression.evaluate(&|id| symbols.get(id).maximum)?.integer()?;
    // An expression may also decrease as its symbols grow.
    let low = symbolic.expression.evaluate(&|id| symbols.get(id).minimum);
    Some(low.and_then(|low| low.integer()).map_or(high, |low| low.max(high)))
}

fn scalar_type(meta: &TensorMeta) -> Result<ScalarType> {
    let number = i8::try_from(meta.dtype.c10()).ok();
    match number.and_then(ScalarType::from_number) {
        Some(known) if !meta.dtype.is_complex() => Ok(known),
        _ => refuse!("ExecuTorch has no tensors of type `{}`", meta.dtype),
    }
}
