//! Execution of plans.

use std::time::Instant;

use coremill_io::cancel;
use coremill_kernels::{Arena, recycle_vec};
use coremill_mil::ir::OpId;
use coremill_mil::ops::OpKind;
use coremill_reference::arithmetic::Arithmetic;
use coremill_reference::array::{Array, ElementsView, View};
use coremill_reference::call::count_within;
use coremill_reference::error::{Error, Result, fail};
use coremill_tensor::DType;

use crate::hooks::{Hooks, Span};
use crate::lists;
use crate::plan::{
    CpuContext, FunctionContext, Kernel, MemoryPlan, Node, NodeKind, Operand, Plan, ReferenceOp,
    Region, SlotId, SlotKind,
};
use crate::recycled::{Memory, NodeMemory, RunScratch, SlotValue};
use crate::spare::BufferPool;
use crate::states::StateValue;
use crate::value::{Key, Value};

/// An input of a run.
#[derive(Clone, Debug)]
pub enum Input<'i> {
    /// An owned tensor.
    Array(Array),
    /// A borrowed tensor, read in place.
    View(View<'i>),
}

impl Input<'_> {
    /// Size of each dimension, outermost first.
    pub fn shape(&self) -> &[usize] {
        match self {
            Input::Array(array) => array.shape(),
            Input::View(view) => view.shape,
        }
    }

    /// Returns an owned tensor.
    pub fn to_array(&self) -> Array {
        match self {
            Input::Array(array) => array.clone(),
            Input::View(view) => view.to_array(),
        }
    }
}

/// One run of a plan.
pub(crate) struct Run<'r, 'h> {
    source: &'r FunctionContext,
    machine: &'r CpuContext,
    plan: &'r Plan,
    arena: &'r mut Arena,
    states: &'r mut [StateValue],
    spare: &'r mut BufferPool,
    hooks: &'r mut Hooks<'h>,
    seed: u64,
    /// Values of slots outside the arena, by [`SlotId::index`].
    held: Vec<Option<SlotValue<'r>>>,
    /// The caller's buffers for results, with the slots that are written there.
    targets: Vec<(SlotId, &'r mut [f32])>,
    node: NodeMemory<'static>,
    bytes: usize,
    operations: u64,
}

/// Memory and state of a session that a run uses.
pub(crate) struct Resources<'r, 'h> {
    pub(crate) arena: &'r mut Arena,
    pub(crate) states: &'r mut [StateValue],
    pub(crate) spare: &'r mut BufferPool,
    pub(crate) recycled: &'r mut RunScratch,
    pub(crate) hooks: &'r mut Hooks<'h>,
    pub(crate) seed: u64,
}

/// Runs a plan. `inputs` have the plan's shapes and omit the states.
///
/// Results that a kernel computes are written to the target of their output, if it has one of the
/// right length. All other results are returned with the index of their output.
pub(crate) fn execute<'r, 'i: 'r, 't: 'r>(
    source: &'r FunctionContext,
    machine: &'r CpuContext,
    plan: &'r Plan,
    inputs: &mut Vec<Input<'i>>,
    targets: &mut Vec<Option<&'t mut [f32]>>,
    resources: Resources<'r, '_>,
) -> Result<Vec<(usize, Value)>> {
    let Resources { arena, states, spare, recycled, hooks, seed } = resources;
    if arena.len() < plan.places.length {
        *arena = reserved(plan.places.length)?;
    }
    for (index, state) in states.iter_mut().enumerate() {
        state.convert(plan.graph.word_states.contains(&index), machine.isa);
    }
    let mut held: Vec<Option<SlotValue<'r>>> = recycle_vec(std::mem::take(&mut recycled.held));
    held.resize_with(plan.graph.slots.len(), || None);
    let bytes = plan.places.length * 4;
    let operations = 0;
    let body = &plan.graph.body;
    // The slot that is written to each output's target.
    let mut written = std::mem::take(&mut recycled.written);
    written.clear();
    written.resize(body.outputs.len(), None);
    let mut into: Vec<(SlotId, &'r mut [f32])> = recycle_vec(std::mem::take(&mut recycled.targets));
    for ((output, target), written) in body.outputs.iter().zip(targets.drain(..)).zip(&mut written)
    {
        let (Some(slot), Some(target)) = (output.slot(), target) else { continue };
        let slot = plan.shown.get(&slot).copied().unwrap_or(slot);
        if into.iter().all(|(taken, _)| *taken != slot) {
            *written = Some(slot);
            into.push((slot, target));
        }
    }
    let mut run = Run {
        source,
        machine,
        plan,
        arena,
        states,
        spare,
        hooks,
        seed,
        held,
        targets: into,
        node: std::mem::take(&mut recycled.node),
        bytes,
        operations,
    };
    run.check_bytes()?;
    for (&slot, input) in body.inputs.iter().zip(inputs.drain(..)) {
        run.put(
            slot,
            match input {
                Input::Array(array) => SlotValue::Value(Value::Array(array)),
                Input::View(view) => SlotValue::View(view),
            },
        )?;
    }
    run.nodes(body, Some(&plan.places))?;
    let mut values = Vec::new();
    for (at, (output, written)) in body.outputs.iter().zip(&written).enumerate() {
        // A target that is still here was not written.
        let is_left = |slot: &SlotId| run.targets.iter().any(|(left, _)| left == slot);
        if written.as_ref().is_none_or(is_left) {
            values.push((at, run.value(output)?));
        }
    }
    // Drop intermediate values first: a result that is also an intermediate value would look
    // shared.
    run.held.clear();
    run.spare.keep(values.iter().map(|(_, value)| value));
    recycled.held = recycle_vec(run.held);
    recycled.targets = recycle_vec(run.targets);
    recycled.node = run.node;
    recycled.written = written;
    Ok(values)
}

/// Allocates an arena of `length` floats.
pub(crate) fn reserved(length: usize) -> Result<Arena> {
    Arena::reserve(length).ok_or_else(|| exhausted(length.saturating_mul(4)))
}

/// From this number of bytes on, allocation is tried before memory is used.
const WORTH_ASKING: usize = 1 << 20;

fn exhausted(bytes: usize) -> Error {
    Error::new(format!("cannot allocate {bytes} bytes for values"))
        .with_hint("run the model with smaller shapes, or on a machine with more memory")
}

/// Fails if `bytes` more would exceed the limit or the available memory. This runs before a result
/// is allocated, because a failed allocation aborts the process.
fn room(held: usize, limit: usize, bytes: usize) -> Result<()> {
    within(held.saturating_add(bytes), limit)?;
    let mut probe: Vec<u8> = Vec::new();
    // Some kernels need as much memory again for intermediate results.
    if bytes >= WORTH_ASKING && probe.try_reserve_exact(bytes.saturating_mul(2)).is_err() {
        return Err(exhausted(bytes));
    }
    Ok(())
}

fn within(bytes: usize, limit: usize) -> Result<()> {
    if bytes > limit {
        return Err(Error::limit(format!("values need {bytes} bytes; the limit is {limit}"))
            .with_hint("raise the limit with the option `max_memory` or with `Limits::bytes`"));
    }
    Ok(())
}

impl<'r> Run<'r, '_> {
    /// Runs a region whose inputs are set, and returns its outputs.
    fn region(&mut self, region: &'r Region) -> Result<Vec<Value>> {
        self.nodes(region, None)?;
        region.outputs.iter().map(|output| self.value(output)).collect()
    }

    /// Runs the nodes of a region. Only the body of the function has offsets in the arena.
    fn nodes(&mut self, region: &'r Region, places: Option<&MemoryPlan>) -> Result<()> {
        for (index, (node, released)) in region.nodes.iter().zip(&region.releases).enumerate() {
            cancel::point();
            self.operations += 1;
            if self.operations > self.source.limits.operations {
                let limit = self.source.limits.operations;
                let error = Error::limit(format!("the run executes more than {limit} operations"))
                    .with_hint(
                        "a loop may be infinite; otherwise raise the limit with the option \
                         `max_operations` or with `Limits::operations`",
                    );
                return Err(self.source.place(node.op, error));
            }
            let start = self.hooks.profile.is_some().then(Instant::now);
            let scratch = places.map(|places| places.scratch[index].clone());
            self.node(node, scratch).map_err(|error| self.source.place(node.op, error))?;
            if let Some(start) = start {
                self.note_span(node, start);
            }
            if self.hooks.observe.is_some() {
                self.show(node);
            }
            for &slot in released {
                self.release(slot);
            }
            if let Some(after_step) = &mut self.hooks.after_step {
                after_step();
            }
        }
        Ok(())
    }

    fn node(&mut self, node: &'r Node, scratch: Option<std::ops::Range<usize>>) -> Result<()> {
        match &node.kind {
            NodeKind::Kernel(kernel) => self.kernel(node, &**kernel, scratch),
            NodeKind::Reference(reference) => self.reference(node, reference),
            NodeKind::Alias => {
                let [output] = node.outputs[..] else { return Ok(()) };
                if self.plan.places.slots[output.index()].is_some() {
                    return Ok(());
                }
                let plan = self.plan;
                if let Operand::Slot(slot) = &node.inputs[0]
                    && let Some(SlotValue::View(view)) = self.held[slot.index()]
                    && let Some(shape) = plan.graph.slot(output).shape.as_deref()
                    && shape.iter().product::<usize>() == view.len()
                {
                    return self.put(output, SlotValue::View(View { shape, ..view }));
                }
                let array = self.array(&node.inputs[0])?;
                let shape = self.plan.graph.slot(output).shape.clone().unwrap_or_default();
                let reshaped = array.reshaped(shape.clone()).ok_or_else(|| {
                    let found = array.shape();
                    Error::new(format!(
                        "a tensor of shape {found:?} cannot be reshaped to {shape:?}"
                    ))
                })?;
                self.hold(output, Value::Array(reshaped))
            }
            NodeKind::ReadState(state) => {
                self.hold(node.outputs[0], Value::Array(self.states[*state].to_array()))
            }
            NodeKind::WriteState(state) => {
                let array = self.array(&node.inputs[0])?;
                let held = &self.states[*state];
                if array.shape() != held.shape() {
                    let (found, expected) = (array.shape(), held.shape());
                    fail!("writes a tensor of shape {found:?} to a state of shape {expected:?}");
                }
                self.states[*state] = array.into();
                Ok(())
            }
            NodeKind::UpdateState(state, reference) => self.update_state(node, *state, reference),
            NodeKind::List(reference, kind) => self.list(node, reference, *kind),
            NodeKind::Cond(regions) => {
                let taken = if self.bool(&node.inputs[0])? { &regions[0] } else { &regions[1] };
                let values = self.region(taken)?;
                self.release_region(taken);
                self.hold_all(&node.outputs, values)
            }
            NodeKind::Loop(regions) => {
                let [condition, body] = &**regions;
                let mut variables = self.values(&node.inputs)?;
                loop {
                    self.hold_all(&condition.inputs, variables.clone())?;
                    let go_on = self.region(condition)?;
                    self.release_region(condition);
                    if !as_bool(go_on.first())? {
                        break;
                    }
                    self.hold_all(&body.inputs, variables)?;
                    variables = self.region(body)?;
                    self.release_region(body);
                }
                self.hold_all(&node.outputs, variables)
            }
        }
    }

    fn reference(&mut self, node: &Node, reference: &ReferenceOp) -> Result<()> {
        let operands = self.views(&node.inputs)?;
        room(self.bytes, self.source.limits.bytes, self.expected_bytes(node, &operands))?;
        // Every operation draws different numbers, also when a loop repeats it.
        let seed = self.seed.wrapping_add(self.operations);
        let arithmetic = Arithmetic { numerics: self.source.numerics, machine: Some(self.machine) };
        let results = reference.call(self.source, node.op, &operands, seed, arithmetic)?;
        if results.len() != node.outputs.len() {
            fail!("returned {} values; expected {}", results.len(), node.outputs.len());
        }
        let mut values = Vec::with_capacity(results.len());
        for (array, &slot) in results.into_iter().zip(&node.outputs) {
            let expected = self.plan.graph.slot(slot);
            if expected.holds == SlotKind::Dictionary {
                let classes = reference.parameters.iter().find(|(name, _)| name == "classes");
                let classes = classes.map(|(_, range)| operands[range.start]);
                values.push(Value::Dictionary(scores(classes, &array)?));
                continue;
            }
            if let Some(shape) = &expected.shape
                && shape.as_slice() != array.shape()
            {
                let found = array.shape();
                fail!("returned a tensor of shape {found:?}; the inferred shape is {shape:?}");
            }
            values.push(Value::Array(array));
        }
        self.hold_all(&node.outputs, values)
    }

    fn kernel(
        &mut self,
        node: &Node,
        kernel: &dyn Kernel,
        scratch: Option<std::ops::Range<usize>>,
    ) -> Result<()> {
        let graph = &self.plan.graph;
        let places = &self.plan.places.slots;
        // Inputs and outputs in the arena are borrowed from it together. All other values are in
        // `held`.
        let place =
            |operand: &Operand| operand.slot().and_then(|slot| places[slot.index()].clone());
        let memory = std::mem::take(&mut self.node).recycle();
        let NodeMemory {
            mut reads,
            mut writes,
            mut read,
            mut written,
            mut inputs,
            mut outputs,
            ..
        } = memory;
        let mut heap: Vec<(SlotId, Memory<'r>)> = recycle_vec(memory.heap);
        reads.extend(node.inputs.iter().filter_map(place));
        writes.extend(node.outputs.iter().filter_map(|slot| places[slot.index()].clone()));
        writes.extend(scratch.clone());
        let (bytes, limit) = (self.bytes, self.source.limits.bytes);
        self.arena.parts(&reads, &writes, &mut read, &mut written);
        let mut in_arena = read.drain(..);
        for operand in &node.inputs {
            inputs.push(match operand {
                Operand::Slot(slot) if places[slot.index()].is_some() => {
                    let slot = graph.slot(*slot);
                    View {
                        dtype: slot.dtype,
                        shape: slot.shape.as_deref().unwrap_or_default(),
                        elements: ElementsView::Floats(in_arena.next().unwrap_or_default()),
                    }
                }
                Operand::Slot(slot) => held_view(&self.held, *slot)?,
                Operand::Constant(known) => constant(known)?.view(),
            });
        }
        drop(in_arena);
        for &slot in &node.outputs {
            if places[slot.index()].is_none() {
                let shape = graph.slot(slot).shape.as_deref();
                let shape =
                    shape.ok_or_else(|| Error::new("a kernel returned an unknown shape"))?;
                let count = count_within(shape, &self.source.limits)?;
                let fits =
                    |(of, floats): &(SlotId, &mut [f32])| *of == slot && floats.len() == count;
                let given = self.targets.iter().position(fits);
                heap.push((
                    slot,
                    match given {
                        Some(at) => Memory::Given(self.targets.swap_remove(at).1),
                        None => {
                            room(bytes, limit, count * 4)?;
                            Memory::Own(self.spare.take(count))
                        }
                    },
                ));
            }
        }
        let mut own_scratch = Vec::new();
        let mut in_arena = written.drain(..);
        let mut on_heap = heap.iter_mut();
        for slot in &node.outputs {
            let part = match places[slot.index()] {
                Some(_) => in_arena.next(),
                None => on_heap.next().map(|(_, memory)| match memory {
                    Memory::Own(floats) => floats.as_mut_slice(),
                    Memory::Given(floats) => &mut **floats,
                }),
            };
            outputs.push(part.unwrap_or_default());
        }
        let scratch = match scratch {
            Some(_) => in_arena.next().unwrap_or_default(),
            None => {
                room(bytes, limit, kernel.scratch() * 4)?;
                own_scratch.resize(kernel.scratch(), 0.0);
                &mut own_scratch[..]
            }
        };
        kernel.run_on_states(self.machine, self.states, &inputs, &mut outputs, scratch)?;
        drop(in_arena);
        let node = NodeMemory { reads, writes, read, written, inputs, outputs, heap: Vec::new() };
        self.node = node.recycle();
        for (slot, memory) in heap.drain(..) {
            let info = graph.slot(slot);
            let dtype = info.dtype;
            let shape = info.shape.as_deref().unwrap_or_default();
            let held = match memory {
                Memory::Own(floats) => {
                    SlotValue::Value(Value::Array(Array::floats(dtype, shape, floats)))
                }
                Memory::Given(floats) => {
                    SlotValue::View(View { dtype, shape, elements: ElementsView::Floats(floats) })
                }
            };
            self.put(slot, held)?;
        }
        self.node.heap = recycle_vec(heap);
        Ok(())
    }

    fn update_state(&mut self, node: &Node, state: usize, reference: &ReferenceOp) -> Result<()> {
        // The state is moved out, because the operands are borrowed from the run.
        let mut value = self.states[state].take();
        let operands = self.views(&node.inputs);
        let updated = operands.and_then(|operands| {
            let call = reference.as_call(self.source, &operands, &[], self.seed);
            value.update(self.machine.isa, &call)
        });
        self.states[state] = value;
        updated
    }

    fn list(&mut self, node: &Node, reference: &ReferenceOp, kind: OpKind) -> Result<()> {
        let values = self.values(&node.inputs)?;
        let arguments = lists::Arguments { reference, values: &values };
        let dtypes = self.source.output_dtypes(node.op);
        let result = lists::perform(kind, &arguments, &dtypes, &self.source.limits)?;
        self.hold(node.outputs[0], result)
    }

    fn hold(&mut self, slot: SlotId, value: Value) -> Result<()> {
        self.put(slot, SlotValue::Value(value))
    }

    fn put(&mut self, slot: SlotId, held: SlotValue<'r>) -> Result<()> {
        self.release(slot);
        self.bytes += held.bytes();
        self.held[slot.index()] = Some(held);
        self.check_bytes()
    }

    fn hold_all(&mut self, slots: &[SlotId], values: Vec<Value>) -> Result<()> {
        if slots.len() != values.len() {
            fail!("returned {} values; expected {}", values.len(), slots.len());
        }
        slots.iter().zip(values).try_for_each(|(&slot, value)| self.hold(slot, value))
    }

    fn check_bytes(&self) -> Result<()> {
        within(self.bytes, self.source.limits.bytes)
    }

    /// Size of an operation's results in bytes. A result of unknown shape is estimated by the size
    /// of the operands.
    fn expected_bytes(&self, node: &Node, operands: &[View<'_>]) -> usize {
        let taken: usize = operands.iter().map(View::len).sum();
        let given = node.outputs.iter().map(|slot| {
            let shape = self.plan.graph.slot(*slot).shape.as_deref();
            shape.map_or(taken, |shape| shape.iter().product())
        });
        given.sum::<usize>().saturating_mul(4)
    }

    fn release(&mut self, slot: SlotId) {
        if let Some(value) = self.held[slot.index()].take() {
            self.bytes -= value.bytes();
        }
    }

    /// Releases the values that a region leaves: its outputs, and the inputs that it did not use.
    fn release_region(&mut self, region: &Region) {
        let written = region.nodes.iter().flat_map(|node| &node.outputs);
        for &slot in region.inputs.iter().chain(written) {
            self.release(slot);
        }
    }

    fn values(&self, operands: &[Operand]) -> Result<Vec<Value>> {
        operands.iter().map(|operand| self.value(operand)).collect()
    }

    fn value(&self, operand: &Operand) -> Result<Value> {
        match operand {
            Operand::Constant(known) => Ok(Value::Array(constant(known)?.clone())),
            Operand::Slot(slot) if self.plan.places.slots[slot.index()].is_some() => {
                Ok(Value::Array(self.view(operand)?.to_array()))
            }
            Operand::Slot(slot) => held(&self.held, *slot).map(SlotValue::to_value),
        }
    }

    fn array(&self, operand: &Operand) -> Result<Array> {
        match self.value(operand)? {
            Value::Array(array) => Ok(array),
            Value::List(_) | Value::Dictionary(_) => {
                fail!("expects a tensor, found a list or a dictionary")
            }
        }
    }

    fn bool(&self, operand: &Operand) -> Result<bool> {
        as_bool(Some(&self.value(operand)?))
    }

    fn views<'a>(&'a self, operands: &'a [Operand]) -> Result<Vec<View<'a>>> {
        operands.iter().map(|operand| self.view(operand)).collect()
    }

    fn view<'a>(&'a self, operand: &'a Operand) -> Result<View<'a>> {
        match operand {
            Operand::Constant(known) => Ok(constant(known)?.view()),
            Operand::Slot(slot) => match &self.plan.places.slots[slot.index()] {
                Some(place) => {
                    let info = self.plan.graph.slot(*slot);
                    Ok(View {
                        dtype: info.dtype,
                        shape: info.shape.as_deref().unwrap_or_default(),
                        elements: ElementsView::Floats(&self.arena.as_slice()[place.clone()]),
                    })
                }
                None => held_view(&self.held, *slot),
            },
        }
    }

    fn note_span(&mut self, node: &Node, start: Instant) {
        let elapsed = start.elapsed();
        let (label, cost) = match &node.kind {
            NodeKind::Kernel(kernel) => (kernel.label(), kernel.cost()),
            NodeKind::Reference(reference) => {
                (reference.row.kind.name().to_owned(), crate::plan::Cost::default())
            }
            NodeKind::Alias => ("alias".to_owned(), Default::default()),
            _ => (self.source.function.op(node.op).type_name().to_owned(), Default::default()),
        };
        let value = self.name_of(node.op);
        if let Some(profile) = &mut self.hooks.profile {
            profile.push(Span {
                label,
                value,
                start,
                elapsed,
                operations: cost.operations,
                bytes: cost.bytes,
                nested: matches!(node.kind, NodeKind::Cond(_) | NodeKind::Loop(_)),
            });
        }
    }

    fn name_of(&self, op: OpId) -> String {
        let outputs = &self.source.function.op(op).outputs;
        outputs
            .first()
            .map_or_else(String::new, |&value| self.source.function.value(value).name.clone())
    }

    /// Passes the outputs of a node to the observer.
    fn show(&mut self, node: &Node) {
        let mut shown = Vec::new();
        for &slot in &node.outputs {
            let Some(value) = self.plan.graph.slot(slot).value else { continue };
            if let Ok(value_held) = self.value(&Operand::Slot(slot)) {
                shown.push((&self.source.function.value(value).name, value_held));
            }
        }
        if let Some(observe) = &mut self.hooks.observe {
            let operation = self.source.function.op(node.op).type_name();
            for (name, value) in &shown {
                observe(operation, name, value);
            }
        }
    }
}

fn held<'a, 'r>(held: &'a [Option<SlotValue<'r>>], slot: SlotId) -> Result<&'a SlotValue<'r>> {
    held[slot.index()].as_ref().ok_or_else(|| Error::new("a value is used before it is computed"))
}

fn held_view<'a>(values: &'a [Option<SlotValue<'_>>], slot: SlotId) -> Result<View<'a>> {
    match held(values, slot)? {
        SlotValue::View(view) => Ok(*view),
        SlotValue::Value(Value::Array(array)) => Ok(array.view()),
        SlotValue::Value(Value::List(_) | Value::Dictionary(_)) => {
            fail!("expects a tensor, found a list or a dictionary")
        }
    }
}

fn constant(known: &crate::plan::ConstantTensor) -> Result<&Array> {
    known.expanded().ok_or_else(|| Error::new("a constant was not expanded"))
}

fn as_bool(value: Option<&Value>) -> Result<bool> {
    match value.and_then(Value::as_array).and_then(Array::as_ints) {
        Some([value]) => Ok(*value != 0),
        _ => fail!("expects one bool"),
    }
}

/// Pairs each class with its score.
fn scores(classes: Option<View<'_>>, scores: &Array) -> Result<Vec<(Key, f32)>> {
    let scores = scores.as_floats().unwrap_or_default();
    let keys: Vec<Key> = match classes.map(|classes| (classes.elements, classes.dtype)) {
        Some((ElementsView::Texts(texts), DType::String)) => {
            texts.iter().cloned().map(Key::Text).collect()
        }
        Some((ElementsView::Ints(ints), _)) => {
            ints.iter().map(|&int| Key::Int(i64::from(int))).collect()
        }
        _ => fail!("`classes` must be a list of strings or integers"),
    };
    if keys.len() != scores.len() {
        fail!(
            "the numbers of classes and scores must be equal, got {} and {}",
            keys.len(),
            scores.len()
        );
    }
    Ok(keys.into_iter().zip(scores.iter().copied()).collect())
}
