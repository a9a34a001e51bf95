//! Execution of methods, instruction by instruction.

use std::time::Instant;

use coremill_pte::program::{ScalarType, Value as PlannedValue};
use coremill_tensor::Buffer;

use crate::error::{Error, ErrorKind, Result, ensure, fail};
use crate::hooks::{Hooks, Span};
use crate::memory::{AlignedBuffer, Part, SplitArena};
use crate::method::{Method, Step};
use crate::number::Scalar;
use crate::operators::{Argument, Arguments, Kernel, Machine, Run};
use crate::slot::{EValue, Place, TensorValue};
use crate::value::{Tensor, Value};
use crate::view::{OutTensor, View};

impl Method {
    pub(crate) fn run(&mut self, inputs: &[Value], hooks: &mut Hooks<'_>) -> Result {
        self.set_inputs(inputs)?;
        let limit = self.program.shared.limits.instructions;
        let mut budget = limit;
        for chain in 0..self.chains.len() {
            let mut next = 0;
            while next < self.chains[chain].len() {
                ensure!(
                    budget > 0,
                    "the method executes more than {limit} instructions; it may contain an infinite loop"
                );
                budget -= 1;
                let start = hooks.profile.is_some().then(Instant::now);
                let after = self.step(chain, next, hooks).map_err(|error| {
                    error.of_instruction(next, self.chains[chain][next].name(&self.delegates))
                })?;
                if let (Some(start), Some(profile)) = (start, &mut hooks.profile) {
                    profile.extend(self.span(&self.chains[chain][next], start));
                }
                next = after;
            }
        }
        Ok(())
    }

    fn set_inputs(&mut self, inputs: &[Value]) -> Result {
        if inputs.len() != self.inputs.len() {
            let message =
                format!("the method has {} inputs, got {}", self.inputs.len(), inputs.len());
            return Err(Error::new(message).with_kind(ErrorKind::Input));
        }
        for (place, value) in inputs.iter().enumerate() {
            self.set_input(place, value).map_err(|error| {
                error.about(format_args!("input {place}")).with_kind(ErrorKind::Input)
            })?;
        }
        Ok(())
    }

    fn set_input(&mut self, place: usize, value: &Value) -> Result {
        let index = self.inputs[place];
        let EValue::Tensor(slot) = &mut self.values[index] else {
            // Inputs other than tensors are compiled into the program, so only the compiled value is valid.
            let planned = self.planned(index);
            let same = match (planned, value) {
                (Some(PlannedValue::Null), Value::None | Value::String(_)) => true,
                (Some(PlannedValue::Int(planned)), Value::Int(given)) => planned == given,
                (Some(PlannedValue::Bool(planned)), Value::Bool(given)) => planned == given,
                (Some(PlannedValue::Double(planned)), Value::Double(given)) => planned == given,
                (Some(PlannedValue::String(planned)), Value::String(given)) => planned == given,
                _ => false,
            };
            ensure!(
                same,
                "got {}; the program was compiled for the fixed value {planned:?}",
                value.kind()
            );
            return Ok(());
        };
        let Value::Tensor(tensor) = value else {
            fail!("expected a tensor, got {}", value.kind());
        };
        let view = tensor.view();
        ensure!(
            view.dtype == slot.dtype,
            "the tensor has type `{:?}`; expected `{:?}`",
            view.dtype,
            slot.dtype
        );
        let fits = match slot.dynamic {
            false => view.sizes == slot.sizes,
            true => view.rank() == slot.sizes.len() && view.bytes.len() <= slot.capacity,
        };
        if !fits {
            let or_less = if slot.dynamic { ", or sizes that need no more memory" } else { "" };
            let largest = match self.planned(index) {
                Some(PlannedValue::Tensor(tensor)) => tensor.sizes.clone(),
                _ => Vec::new(),
            };
            fail!("the tensor must have sizes {largest:?}{or_less}, got {:?}", view.sizes);
        }
        slot.sizes = view.sizes.to_vec();
        match &slot.place {
            Place::Space { space, offset } => {
                let memory = &mut self.spaces[*space].bytes_mut()[*offset..][..slot.capacity];
                let (dtype, sizes, order) = (slot.dtype, slot.sizes.clone(), &slot.order);
                let mut out = OutTensor { dtype, sizes, order, dynamic: false, memory, grow: None };
                crate::operators::copy_elements(view, &mut out)
            }
            Place::Unset | Place::Shared { .. } => {
                let same_order = view.order == slot.order;
                let buffer = match same_order {
                    true => tensor.data().clone(),
                    false => reordered(view, &slot.order)?,
                };
                slot.place = Place::Shared { buffer, origin: None };
                Ok(())
            }
        }
    }

    /// Description of a value in the program.
    pub(crate) fn planned(&self, index: usize) -> Option<&PlannedValue> {
        let plan = self.program.shared.program.plans.iter().find(|plan| plan.name == self.name);
        plan?.values.get(index)
    }

    /// Profile entry of an instruction that was just executed.
    fn span(&self, step: &Step, start: Instant) -> Option<Span> {
        let elapsed = start.elapsed();
        let (read, written, nested) = match step {
            Step::Kernel { inputs, outputs, .. } => (&inputs[..], &outputs[..], false),
            Step::Delegate { delegate, arguments } => {
                let (read, written) =
                    arguments.split_at(self.delegates[*delegate].delegate.inputs());
                (read, written, true)
            }
            // These instructions only direct the control flow or alias memory.
            Step::View { .. } | Step::Move { .. } | Step::JumpFalse { .. } | Step::Free => {
                return None;
            }
        };
        let length = |index: &usize| match &self.values[*index] {
            EValue::Tensor(tensor) => tensor.length() as u64,
            _ => 0,
        };
        Some(Span {
            label: step.name(&self.delegates).to_owned(),
            value: written.first().map_or_else(String::new, |index| format!("%{index}")),
            start,
            elapsed,
            operations: 0,
            // A delegate reports its own memory traffic.
            bytes: if nested { 0 } else { read.iter().chain(written).map(length).sum() },
            nested,
        })
    }

    /// Executes an instruction, and returns the index of the next one.
    fn step(&mut self, chain: usize, index: usize, hooks: &mut Hooks<'_>) -> Result<usize> {
        let Method { program, values, spaces, delegates, chains, seed, .. } = self;
        match &chains[chain][index] {
            Step::Kernel { kernel, inputs, outputs, result } => {
                let machine = program.shared.machine();
                *seed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
                call(kernel, (inputs, outputs, *result), values, spaces, (machine, *seed))?;
            }
            Step::View { from, sizes, to } => make_view(values, *from, *sizes, *to)?,
            Step::Delegate { delegate, arguments } => {
                let delegate = &mut delegates[*delegate].delegate;
                let (inputs, outputs) = arguments.split_at(delegate.inputs());
                with_tensors(inputs, outputs, values, spaces, |values, reader, outs| {
                    let views = inputs.iter().map(|index| reader.tensor(values, *index));
                    let views = views.collect::<Result<Vec<View>>>()?;
                    delegate.execute_with(&views, outs, hooks)
                })?;
            }
            Step::Move { from, to } => values[*to] = values[*from].clone(),
            Step::JumpFalse { condition, target } => {
                if !is_true(values, spaces, *condition)? {
                    return Ok(*target);
                }
            }
            Step::Free => {}
        }
        Ok(index + 1)
    }

    /// A value for the caller. Data that the next run would overwrite is copied.
    pub(crate) fn value(&self, index: usize, nested: bool) -> Result<Value> {
        Ok(match &self.values[index] {
            EValue::Null => Value::None,
            EValue::Scalar(Scalar::Int(value)) => Value::Int(*value),
            EValue::Scalar(Scalar::Bool(value)) => Value::Bool(*value),
            EValue::Scalar(Scalar::Double(value)) => Value::Double(*value),
            EValue::Text(text) => Value::String(text.clone()),
            EValue::Ints(list) => Value::Ints(ints(&self.values, list)?),
            EValue::Doubles(list) => Value::Doubles(list.clone()),
            EValue::Bools(list) => Value::Bools(list.clone()),
            EValue::Tensors(list) if nested => {
                let mut tensors = Vec::with_capacity(list.len());
                for index in list {
                    let value = index.map(|index| self.value(index, false)).transpose()?;
                    tensors.push(value.and_then(|value| value.as_tensor().cloned()));
                }
                Value::Tensors(tensors)
            }
            EValue::Tensors(_) => fail!("value %{index} is a nested list"),
            EValue::Tensor(slot) => {
                let view = self.view(index)?;
                let shared = match &slot.place {
                    Place::Shared { buffer, .. } => buffer.slice(0..view.bytes.len()),
                    Place::Space { .. } | Place::Unset => None,
                };
                let data = shared.unwrap_or_else(|| Buffer::from(view.bytes.to_vec()));
                let (sizes, order) = (slot.sizes.clone(), slot.order.clone());
                Value::Tensor(Tensor::with_order(slot.dtype, sizes, order, data)?)
            }
        })
    }

    /// A tensor in the method's memory.
    pub(crate) fn view(&self, index: usize) -> Result<View<'_>> {
        let slot = tensor(&self.values, index)?;
        let length = slot.length();
        let bytes = match &slot.place {
            Place::Shared { buffer, .. } => shared(buffer, index, length)?,
            Place::Space { space, offset } => &self.spaces[*space].bytes()[*offset..][..length],
            Place::Unset if length == 0 => &[],
            Place::Unset => fail!("value %{index} was never written"),
        };
        Ok(slot.view(bytes))
    }
}

/// The elements of a tensor in another dimension order.
fn reordered(view: View, order: &[u8]) -> Result<Buffer> {
    let mut bytes = vec![0; view.bytes.len()];
    let sizes = view.sizes.to_vec();
    let mut out = OutTensor {
        dtype: view.dtype,
        sizes,
        order,
        dynamic: false,
        memory: &mut bytes,
        grow: None,
    };
    crate::operators::copy_elements(view, &mut out)?;
    drop(out);
    Ok(Buffer::from(bytes))
}

fn tensor(values: &[EValue], index: usize) -> Result<&TensorValue> {
    match values.get(index) {
        Some(EValue::Tensor(tensor)) => Ok(tensor),
        _ => fail!("value %{index} is not a tensor"),
    }
}

fn ints(values: &[EValue], list: &[usize]) -> Result<Vec<i64>> {
    let int = |index: &usize| match values.get(*index) {
        Some(EValue::Scalar(Scalar::Int(value))) => Ok(*value),
        _ => Err(Error::new(format!("value %{index}, an element of a list, is not an integer"))),
    };
    list.iter().map(int).collect()
}

/// Bytes of a value that is stored in the program or by the caller.
fn shared(buffer: &Buffer, index: usize, length: usize) -> Result<&[u8]> {
    let held = buffer.as_bytes();
    let message = || format!("value %{index} needs {length} bytes; its data has {}", held.len());
    held.get(..length).ok_or_else(|| Error::new(message()))
}

/// The arena region of a tensor, if it is stored in an arena.
fn part(tensor: &TensorValue, length: usize) -> Option<Part> {
    match tensor.place {
        Place::Space { space, offset } => Some(Part { space, range: offset..offset + length }),
        Place::Unset | Place::Shared { .. } => None,
    }
}

/// Read access to tensors while others are being written.
struct Reader<'r, 'a> {
    divided: &'r SplitArena<'a>,
}

impl<'r, 'a> Reader<'r, 'a> {
    fn tensor<'v>(&self, values: &'v [EValue], index: usize) -> Result<View<'v>>
    where
        'a: 'v,
    {
        let slot = tensor(values, index)?;
        let length = slot.length();
        let bytes: &'v [u8] = match (&slot.place, part(slot, length)) {
            (Place::Shared { buffer, .. }, _) => shared(buffer, index, length)?,
            (_, Some(part)) => self.divided.read(&part)?,
            (_, None) if length == 0 => &[],
            (_, None) => fail!("value %{index} was never written"),
        };
        Ok(slot.view(bytes))
    }

    fn argument<'v>(&self, values: &'v [EValue], index: usize) -> Result<Argument<'v>>
    where
        'a: 'v,
    {
        Ok(match &values[index] {
            EValue::Null => Argument::Null,
            EValue::Scalar(scalar) => Argument::Scalar(*scalar),
            EValue::Text(text) => Argument::Text(text),
            EValue::Ints(list) => Argument::Ints(ints(values, list)?),
            EValue::Doubles(list) => Argument::Doubles(list),
            EValue::Bools(list) => Argument::Bools(list),
            EValue::Tensor(_) => Argument::Tensor(self.tensor(values, index)?),
            EValue::Tensors(list) => {
                let mut views = Vec::with_capacity(list.len());
                for index in list {
                    views.push(match index.map(|index| (index, values.get(index))) {
                        None | Some((_, Some(EValue::Null))) => None,
                        Some((index, _)) => Some(self.tensor(values, index)?),
                    });
                }
                Argument::Tensors(views)
            }
        })
    }
}

/// Calls `run` with the tensors to write, and read access to the inputs. An output that overlaps an input is written
/// to temporary memory and copied back.
fn with_tensors(
    inputs: &[usize],
    outputs: &[usize],
    values: &mut [EValue],
    spaces: &mut [AlignedBuffer],
    run: impl FnOnce(&[EValue], &Reader<'_, '_>, &mut [OutTensor<'_>]) -> Result,
) -> Result {
    let read = read_parts(values, inputs);
    let mut written: Vec<Part> = Vec::with_capacity(outputs.len());
    let mut aside: Vec<Option<AlignedBuffer>> = Vec::with_capacity(outputs.len());
    for &index in outputs {
        let slot = tensor(values, index)?;
        let Some(part) = part(slot, slot.capacity) else {
            fail!("value %{index} is written, but its memory belongs to the caller or the program");
        };
        let overlaps = |other: &Part| part.overlaps(other);
        let shares = read.iter().any(overlaps) || written.iter().any(overlaps);
        let copy = shares.then(|| {
            let bytes = &spaces[part.space].bytes()[part.range.clone()];
            let mut copy = AlignedBuffer::new(bytes.len())?;
            copy.bytes_mut().copy_from_slice(bytes);
            Ok::<_, Error>(copy)
        });
        written.push(part);
        aside.push(copy.transpose()?);
    }
    let direct: Vec<Part> = written
        .iter()
        .zip(&aside)
        .map(|(part, aside)| match aside {
            None => part.clone(),
            Some(_) => Part { space: part.space, range: 0..0 },
        })
        .collect();
    let mut divided = SplitArena::new(spaces, &direct)?;
    let mut memories = std::mem::take(&mut divided.written);
    for (memory, aside) in memories.iter_mut().zip(&mut aside) {
        if let Some(aside) = aside {
            *memory = aside.bytes_mut();
        }
    }
    let mut outs = Vec::with_capacity(outputs.len());
    for (&index, memory) in outputs.iter().zip(memories) {
        let slot = tensor(values, index)?;
        let (dtype, sizes, dynamic) = (slot.dtype, slot.sizes.clone(), slot.dynamic);
        outs.push(OutTensor { dtype, sizes, order: &slot.order, dynamic, memory, grow: None });
    }
    run(values, &Reader { divided: &divided }, &mut outs)?;
    let sizes: Vec<Vec<usize>> = outs.into_iter().map(|out| out.sizes).collect();
    for ((part, aside), (&index, sizes)) in
        written.iter().zip(&aside).zip(outputs.iter().zip(sizes))
    {
        if let EValue::Tensor(slot) = &mut values[index] {
            slot.sizes = sizes;
            if let Some(aside) = aside {
                let length = slot.length();
                let start = part.range.start;
                spaces[part.space].bytes_mut()[start..start + length]
                    .copy_from_slice(&aside.bytes()[..length]);
            }
        }
    }
    Ok(())
}

/// The arena regions of the inputs.
fn read_parts(values: &[EValue], inputs: &[usize]) -> Vec<Part> {
    let mut parts = Vec::new();
    let mut add = |index: usize| {
        if let Some(EValue::Tensor(slot)) = values.get(index) {
            parts.extend(part(slot, slot.length()));
        }
    };
    for &index in inputs {
        match &values[index] {
            EValue::Tensors(list) => list.iter().flatten().for_each(|index| add(*index)),
            _ => add(index),
        }
    }
    parts
}

/// Calls a kernel.
fn call(
    kernel: &Kernel,
    (inputs, outputs, result): (&[usize], &[usize], usize),
    values: &mut [EValue],
    spaces: &mut [AlignedBuffer],
    (machine, seed): (&Machine, u64),
) -> Result {
    // An argument that a kernel mutates is not read through another argument.
    let is_read = |place: usize| kernel.inputs().as_bytes().get(place) != Some(&b'M');
    let read: Vec<usize> = inputs
        .iter()
        .enumerate()
        .filter(|(place, _)| is_read(*place))
        .map(|(_, index)| *index)
        .collect();
    let mut number = None;
    with_tensors(&read, outputs, values, spaces, |values, reader, outs| {
        let mut list = Vec::with_capacity(inputs.len());
        for (place, &index) in inputs.iter().enumerate() {
            list.push(match is_read(place) {
                true => reader.argument(values, index)?,
                false => Argument::Null,
            });
        }
        let arguments = Arguments { list, machine, seed, slots: (values, inputs) };
        match kernel.run {
            Run::Tensors(run) => run(&arguments, outs),
            Run::Number(run) => {
                number = Some(run(&arguments)?);
                Ok(())
            }
        }
    })?;
    if let Some(number) = number {
        values[result] = EValue::Scalar(number);
    }
    Ok(())
}

/// Makes a tensor an alias of another one's memory, with other sizes.
fn make_view(values: &mut [EValue], from: usize, sizes: usize, to: usize) -> Result {
    let source = tensor(values, from)?.clone();
    let EValue::Ints(list) = &values[sizes] else {
        fail!("value %{sizes} is not a list of integers")
    };
    let count = source.sizes.iter().product();
    let sizes = crate::operators::inferred_sizes(&ints(values, list)?, count)?;
    let wanted = crate::view::count(&sizes)?;
    ensure!(count == wanted, "{count} elements cannot be viewed as a tensor of sizes {sizes:?}");
    let Some(EValue::Tensor(target)) = values.get_mut(to) else {
        fail!("value %{to} is not a tensor")
    };
    ensure!(
        target.dtype == source.dtype && target.order.len() == sizes.len(),
        "a view of `{:?}` with sizes {sizes:?} does not fit `{:?}`",
        target.dtype,
        source.dtype
    );
    target.sizes = sizes;
    target.place = source.place;
    target.capacity = source.capacity;
    Ok(())
}

/// Evaluates a condition: a boolean, or a tensor whose elements are all true.
fn is_true(values: &[EValue], spaces: &mut [AlignedBuffer], index: usize) -> Result<bool> {
    match &values[index] {
        EValue::Scalar(Scalar::Bool(value)) => Ok(*value),
        EValue::Tensor(slot) if slot.dtype == ScalarType::Bool => {
            let divided = SplitArena::new(spaces, &[])?;
            let view = Reader { divided: &divided }.tensor(values, index)?;
            Ok(view.bytes.iter().all(|byte| *byte != 0))
        }
        _ => fail!("the condition must be a boolean; value %{index} is not"),
    }
}
