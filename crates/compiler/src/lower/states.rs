//! Mutable buffers.
//!
//! A mutable buffer becomes a state, which Core ML keeps between predictions, or an input and an output. A state
//! holds `fp16` and starts as zeros. It is written as soon as its new value is available and read again for later
//! uses, so that it can be updated in place:
//!
//! ```text
//! a = read_state(input = cache)
//! b = slice_update(x = a, …)
//! write_state(input = cache, data = b)
//! c = read_state(input = cache)
//! ```
//!
//! Integer buffers always become inputs and outputs, because fp16 cannot represent all integers above 2048.

use coremill_mil::ir::{TensorType, Type};
use coremill_mil::text::identifier;
use coremill_pt2::{Argument, Meta, OutputKind, Size, StoredValue, TensorMeta};
use serde::Serialize;

use super::builder::operation;
use super::dtype::is_float;
use super::high_rank::MAX_RANK;
use super::{Frame, Lowering, weights};
use crate::lower::prelude::*;
use crate::options::States;

/// A buffer that is an input and an output: each step's output is the next step's input.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LoopedBuffer {
    /// The buffer's name in torch.
    pub buffer: String,
    /// Name of the input.
    pub input: String,
    /// Name of the output.
    pub output: String,
    /// Initial value of the input; `None` if it is too large to store.
    pub first: Option<Vec<i32>>,
}

/// Elements of an integer constant.
fn integers(constant: &Constant) -> Option<Vec<i32>> {
    if constant.tensor_type()?.dtype != DType::Int32 {
        return None;
    }
    let (words, _) = constant.elements()?.as_bytes().as_chunks::<4>();
    Some(words.iter().map(|&word| i32::from_le_bytes(word)).collect())
}

/// Maximum number of stored elements of a buffer's initial value.
const MAX_TOLD: u64 = 4096;

/// A mutable buffer.
pub(super) struct Buffer {
    name: String,
    /// torch's value that is written last.
    written: coremill_pt2::ValueId,
    place: Place,
}

enum Place {
    /// A state. `first` is the buffer's initial value, which is added to the state's contents.
    State { state: ValueId, first: Option<ValueId>, is_written: bool },
    /// An input, and an output with this name.
    Output(ValueId, String),
}

impl<'p> Lowering<'p> {
    /// Declares a mutable buffer, and returns its current value; `None` if nothing writes to it.
    pub(super) fn enter_buffer(
        &mut self,
        name: &'p str,
        id: coremill_pt2::ValueId,
        meta: &'p Meta,
    ) -> Result<Option<LoweredValue>> {
        let outputs = self.program.graph.outputs.iter().zip(&self.program.outputs);
        let mut written = outputs.filter_map(|(argument, kind)| match (argument, kind) {
            (
                Argument::Value(id),
                OutputKind::BufferMutation(target) | OutputKind::ParameterMutation(target),
            ) if target == name => Some(*id),
            _ => None,
        });
        let Some(written) = written.next() else { return Ok(None) };
        let Meta::Tensor(meta) = meta else { refuse!("buffer `{name}` is not a tensor") };
        if meta.sizes.len() > MAX_RANK {
            refuse!(
                "buffer `{name}` has {} axes; Core ML's states and inputs support up to {MAX_RANK}",
                meta.sizes.len()
            );
        }
        let keeps = self.options.states == States::Keep && is_float(meta.dtype);
        if keeps && self.builder.opset() < Opset::Ios18 {
            let what = format!("a state for the buffer `{name}`");
            let refusal = LoweringError::needs(&what, Opset::Ios18, self.builder.opset());
            return Err(match refusal.hint.clone() {
                Some(hint) => refusal
                    .hint(format!("{hint}, or pass the option `states=io` for inputs and outputs")),
                None => refusal,
            });
        }
        let (place, lowered) = if keeps {
            // A buffer that is its own new value is a state that only the app writes to.
            self.state(name, meta, written == id)?
        } else {
            let input = identifier(name);
            let lowered = self.tensor_input(&input, meta)?;
            let Some(&value) = self.builder.function.inputs().last() else {
                refuse!("buffer `{name}` is not an input")
            };
            (Place::Output(value, format!("{input}_out")), lowered)
        };
        self.buffers.push(Buffer { name: name.to_owned(), written, place });
        Ok(Some(lowered))
    }

    fn state(
        &mut self,
        name: &str,
        meta: &TensorMeta,
        is_written: bool,
    ) -> Result<(Place, LoweredValue)> {
        let sizes = meta.sizes.iter().map(Size::extent).collect::<Option<Vec<u64>>>();
        let Some(mut sizes) = sizes else { refuse!("buffer `{name}` must have fixed sizes") };
        if sizes.is_empty() {
            sizes.push(1);
        }
        let held = Type::State(Box::new(Type::tensor(DType::Fp16, &sizes)));
        let state = self.builder.input(&identifier(name), held);
        let first = self.first_value(name, &sizes)?;
        self.builder.label = identifier(name);
        let value = self.read_state(state, first, meta)?;
        let place = Place::State { state, first, is_written };
        Ok((place, LoweredValue::tensor(value, meta.dtype)))
    }

    /// Initial elements of a buffer; `None` if they are zero, like a new state.
    fn first_value(&mut self, name: &str, sizes: &[u64]) -> Result<Option<ValueId>> {
        let Some(stored @ StoredValue::Tensor(_)) = self.program.tensors.get(name) else {
            return Ok(None);
        };
        let constant = weights::constant(name, stored)?;
        let is_zero = constant.elements().is_none_or(|elements| {
            // Negative zeros count as zeros.
            let (words, _) = elements.as_bytes().as_chunks::<4>();
            words.iter().all(|&word| f32::from_le_bytes(word) == 0.0)
        });
        if is_zero {
            return Ok(None);
        }
        let Some(elements) = constant.elements().cloned() else { return Ok(None) };
        let constant = Constant::weight(DType::Fp32, sizes, elements);
        Ok(Some(self.builder.mil.constant(&format!("{}_first", identifier(name)), constant)))
    }

    fn read_state(
        &mut self,
        state: ValueId,
        first: Option<ValueId>,
        meta: &TensorMeta,
    ) -> ValueResult {
        let read = emit!(self.builder, OpKind::ReadState, input = state)?;
        let mut value = self.builder.cast(read, DType::Fp32)?;
        if let Some(first) = first {
            value = self.builder.binary(OpKind::Add, value, first)?;
        }
        if meta.sizes.is_empty() {
            value = self.builder.squeeze(value, &[0])?;
        }
        Ok(value)
    }

    /// Writes states whose new value is available, and reads them again for later uses.
    pub(super) fn write_buffers(
        &mut self,
        frame: &mut Frame<'p>,
        id: coremill_pt2::ValueId,
    ) -> Result<()> {
        if !std::ptr::eq(frame.graph, &self.program.graph) {
            return Ok(());
        }
        for at in 0..self.buffers.len() {
            let buffer = &mut self.buffers[at];
            let Place::State { state, first, is_written } = &mut buffer.place else { continue };
            if buffer.written != id || *is_written {
                continue;
            }
            *is_written = true;
            let (state, first) = (*state, *first);
            let label = identifier(&buffer.name);
            let lowered = self.value(frame, id)?;
            let (LoweredValue::Tensor(tensor), Meta::Tensor(meta)) =
                (lowered, &frame.graph.value(id).meta)
            else {
                refuse!("the new value of buffer `{}` is not a tensor", self.buffers[at].name);
            };
            self.builder.label = label;
            let mut value = tensor.value;
            if meta.sizes.is_empty() {
                value = self.builder.expand_dims(value, &[0])?;
            }
            if let Some(first) = first {
                value = self.builder.binary(OpKind::Sub, value, first)?;
            }
            let value = self.builder.cast(value, DType::Fp16)?;
            let held = self.builder.function.value(state).ty.clone();
            self.check_held(value, &held, at)?;
            let op =
                operation(OpKind::WriteState, [("input", state.into()), ("data", value.into())]);
            self.builder.append(op)?;
            let again = self.read_state(state, first, meta)?;
            frame.set(id, LoweredValue::tensor(again, meta.dtype));
        }
        Ok(())
    }

    /// Checks a value against the type of the state. Inference may lack sizes that torch guarantees.
    fn check_held(&mut self, value: ValueId, held: &Type, at: usize) -> Result<()> {
        let Some(held) = held.unwrap_state().as_tensor() else { return Ok(()) };
        let found = TensorType {
            dtype: self.builder.dtype(value),
            shape: self.builder.shape(value).to_vec(),
        };
        if found == *held {
            return Ok(());
        }
        refuse!(
            "buffer `{}` has type `{held}`, but the new value has type `{found}`; the type of a state is fixed",
            self.buffers[at].name
        )
    }

    /// Writes the remaining states, and declares the outputs of other buffers.
    pub(super) fn leave_buffers(
        &mut self,
        frame: &mut Frame<'p>,
        outputs: &mut Vec<ValueId>,
    ) -> Result<()> {
        for at in 0..self.buffers.len() {
            let written = self.buffers[at].written;
            self.write_buffers(frame, written)?;
            if let Place::Output(input, name) = &self.buffers[at].place {
                let (input, name) = (*input, name.clone());
                let lowered = self.value(frame, written)?;
                self.output(&name, lowered, outputs)?;
                self.note_fed(at, input, outputs);
            }
        }
        Ok(())
    }

    /// Records that the last output is fed back to an input.
    fn note_fed(&mut self, at: usize, input: ValueId, outputs: &[ValueId]) {
        let Some(&output) = outputs.last() else { return };
        let name = |value| self.builder.function.value(value).name.clone();
        let (buffer, input, output) = (self.buffers[at].name.clone(), name(input), name(output));
        let first = match self.program.tensors.get(&buffer) {
            Some(stored @ StoredValue::Tensor(tensor)) if tensor.elements() <= MAX_TOLD => {
                weights::constant(&buffer, stored).ok().and_then(|constant| integers(&constant))
            }
            _ => None,
        };
        self.fed.push(LoopedBuffer { buffer, input, output, first });
    }
}
