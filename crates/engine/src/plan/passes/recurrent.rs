//! Replaces recurrent layers by kernels. One product covers the inputs of all time steps; each step
//! then needs only the product with the state.
//!
//! ```text
//! y, h, c = lstm(x = x, weight_ih = v, weight_hh = w, …)      y, h, c = lstm(x, h0, c0)
//! ```

use coremill_kernels::Activation;
use coremill_kernels::matmul::{
    DenseSource, Epilogue, Matrix, MatrixMut, Order, PackedWeights, Precision, Rounding, multiply,
};
use coremill_kernels::recurrent::{Cell, Direction, RecurrentWeights, run_recurrent};
use coremill_mil::ops::OpKind;
use coremill_reference::array::View;
use coremill_reference::call::Call;
use coremill_reference::error::{Result, fail};
use coremill_simd::math::round_to_fp16;
use coremill_tensor::{Buffer, DType};

use super::super::graph::{Graph, Node, NodeKind, Operand, Region};
use super::super::kernel::{Cost, CpuContext, Kernel};
use super::linear::rounding;
use super::parameters::parameters;
use super::{Editor, Work};

/// Replaces the recurrent layers of a region by kernels.
pub(super) fn lower(work: &mut Work<'_>, region: Region) -> Result<Region> {
    let mut editor = Editor::new(work.graph, region);
    for index in 0..editor.len() {
        let Some(layer) = editor.node(index).and_then(|node| recognise(work, node)) else {
            continue;
        };
        let Some(Node { op, outputs, inputs, kind: NodeKind::Reference(reference) }) =
            editor.take(index)
        else {
            continue;
        };
        let bound = |name: &str| {
            let found = reference.parameters.iter().find(|(parameter, _)| parameter == name);
            found.map(|(_, range)| inputs[range.start].clone())
        };
        let inputs = ["x", "initial_h", "initial_c"].into_iter().filter_map(bound).collect();
        let kind = NodeKind::Kernel(Box::new(layer));
        editor.put(work.graph, index, Node { op, kind, inputs, outputs });
    }
    Ok(editor.finish())
}

/// Weights of one direction.
struct Pass {
    /// From the input to all gates, in the kernels' order.
    projection: PackedWeights,
    bias: Option<Vec<f32>>,
    /// The gates that depend on the state: all for an LSTM, the first two for a GRU, one for a
    /// plain RNN.
    gates: RecurrentWeights,
    /// The candidate gate of a GRU.
    candidate: Option<RecurrentWeights>,
    reset_after: Option<Vec<f32>>,
    peephole: Option<Vec<f32>>,
}

struct Layer {
    kind: OpKind,
    passes: Vec<Pass>,
    steps: usize,
    batch: usize,
    input: usize,
    hidden: usize,
    /// Whether time steps are processed in reverse. The output of the last processed step comes
    /// first.
    reverse: bool,
    sequence: bool,
    recurrent: Activation,
    cell: Activation,
    output: Activation,
    clip: Option<f32>,
    rounding: Rounding,
}

fn recognise(work: &Work<'_>, node: &Node) -> Option<Layer> {
    let kind = node.operation()?;
    let gates = match kind {
        OpKind::Lstm => 4,
        OpKind::Gru => 3,
        OpKind::Rnn => 1,
        _ => return None,
    };
    let graph: &Graph = work.graph;
    let is_float = |operand: &Operand| matches!(graph.dtype(operand), DType::Fp16 | DType::Fp32);
    let [steps, batch, input] = graph.shape(node.bound("x").first()?)?[..] else { return None };
    let hidden = *node.bound("weight_hh").first()?.constant()?.shape.get(1)?;
    if !node.inputs.iter().all(|operand| operand.constant().is_some() || is_float(operand))
        || [steps, batch, input, hidden].contains(&0)
    {
        return None;
    }
    for &output in &node.outputs {
        graph.slot(output).shape.as_ref()?;
    }
    // Large constants are expanded here, since they are repacked.
    let floats = |name: &str| -> Option<Option<Vec<f32>>> {
        match node.bound(name) {
            [] => Some(None),
            [bound] => Some(Some(bound.constant()?.array(work.source).ok()?.as_floats()?.to_vec())),
            _ => None,
        }
    };
    let read = |call: &Call<'_>| {
        let text = |name: &str| activation(call, name);
        let (recurrent, cell, output) = match kind {
            OpKind::Lstm => {
                (text("recurrent_activation")?, text("cell_activation")?, text("activation")?)
            }
            OpKind::Gru => (text("recurrent_activation")?, Activation::Tanh, text("activation")?),
            _ => (Activation::None, Activation::None, text("activation")?),
        };
        let clip = if kind == OpKind::Lstm { call.optional_float("clip")? } else { None };
        let reset_after = call.has("reset_after") && call.bool("reset_after")?;
        let direction = call.text("direction")?.to_owned();
        let sequence = call.bool("output_sequence")?;
        Ok((recurrent, cell, output, clip, reset_after, direction, sequence))
    };
    let (recurrent, cell, output, clip, reset_after, direction, sequence) =
        parameters(work.source, graph, node, read)?;
    let suffixes: &[&str] = match &*direction {
        "forward" | "reverse" => &[""],
        "bidirectional" if kind == OpKind::Lstm => &["", "_back"],
        _ => return None,
    };
    let machine = work.machine;
    let mut passes = Vec::new();
    for suffix in suffixes {
        let get = |name: &str| floats(&format!("{name}{suffix}"));
        let (mut of_input, mut of_hidden) = (get("weight_ih")??, get("weight_hh")??);
        if of_input.len() != gates * hidden * input || of_hidden.len() != gates * hidden * hidden {
            return None;
        }
        let (mut bias, mut input_bias) = (get("bias")?, get("input_bias")?);
        for vector in [&bias, &input_bias].into_iter().flatten() {
            if vector.len() != gates * hidden {
                return None;
            }
        }
        if kind == OpKind::Gru {
            // MIL's gate order is reset, output, update; the kernels' order is reset, update,
            // output.
            swap_last(&mut of_input, hidden * input);
            swap_last(&mut of_hidden, hidden * hidden);
            for vector in [&mut bias, &mut input_bias].into_iter().flatten() {
                swap_last(vector, hidden);
            }
        }
        let after = (kind == OpKind::Gru && reset_after).then(|| match &mut bias {
            // The reset gate also scales this part of the bias.
            Some(bias) => {
                let part = bias[2 * hidden..].to_vec();
                bias[2 * hidden..].fill(0.0);
                part
            }
            None => vec![0.0; hidden],
        });
        let bias = sum(bias, input_bias, gates * hidden);
        let peephole = get("peephole")?;
        if peephole.as_ref().is_some_and(|peephole| peephole.len() != 3 * hidden) {
            return None;
        }
        let bytes: Vec<u8> = of_input.iter().flat_map(|weight| weight.to_le_bytes()).collect();
        let (isa, outputs) = (machine.isa, gates * hidden);
        let buffer = Buffer::from(bytes);
        let source =
            DenseSource::new(isa, buffer, DType::Fp32, input, outputs, Order::OutputsFirst);
        let (pool, precision) = (&machine.pool, Precision::F32);
        let projection = PackedWeights::pack(pool, isa, input, outputs, precision, &source);
        let first = if kind == OpKind::Gru { 2 } else { gates };
        let (in_gates, candidate) = of_hidden.split_at(first * hidden * hidden);
        passes.push(Pass {
            projection,
            bias,
            gates: RecurrentWeights::pack(isa, in_gates, [first, hidden, hidden]),
            candidate: (kind == OpKind::Gru)
                .then(|| RecurrentWeights::pack(isa, candidate, [1, hidden, hidden])),
            reset_after: after,
            peephole,
        });
    }
    let rounding = rounding(work.source, graph, node.outputs[0]);
    let reverse = direction == "reverse";
    Some(Layer {
        kind,
        passes,
        steps,
        batch,
        input,
        hidden,
        reverse,
        sequence,
        recurrent,
        cell,
        output,
        clip,
        rounding,
    })
}

fn activation(call: &Call<'_>, name: &str) -> Result<Activation> {
    Ok(match call.text(name)?.to_ascii_lowercase().as_str() {
        "tanh" | "scaled_tanh" => Activation::Tanh,
        "sigmoid" => Activation::Sigmoid,
        "hard_sigmoid" | "sigmoid_hard" => Activation::HardSigmoid { alpha: 0.2, beta: 0.5 },
        "relu" => Activation::Relu,
        "linear" => Activation::None,
        other => fail!("unknown activation `{other}`"),
    })
}

/// Swaps the second and the third of three equal parts.
fn swap_last(parts: &mut [f32], length: usize) {
    let (second, third) = parts[length..].split_at_mut(length);
    second.swap_with_slice(third);
}

fn sum(left: Option<Vec<f32>>, right: Option<Vec<f32>>, length: usize) -> Option<Vec<f32>> {
    match (left, right) {
        (None, None) => None,
        (left, right) => {
            let mut total = vec![0.0; length];
            for vector in [left, right].into_iter().flatten() {
                total.iter_mut().zip(vector).for_each(|(total, element)| *total += element);
            }
            Some(total)
        }
    }
}

impl Layer {
    fn gates(&self) -> usize {
        match self.kind {
            OpKind::Lstm => 4,
            OpKind::Gru => 3,
            _ => 1,
        }
    }

    fn cell<'a>(&'a self, pass: &'a Pass) -> Cell<'a> {
        let hidden = self.hidden;
        match (self.kind, &pass.candidate) {
            (OpKind::Gru, Some(candidate)) => Cell::Gru {
                gates: &pass.gates,
                candidate,
                recurrent: self.recurrent,
                output: self.output,
                reset_after: pass.reset_after.as_deref(),
            },
            (OpKind::Lstm, _) => Cell::Lstm {
                weights: &pass.gates,
                recurrent: self.recurrent,
                cell: self.cell,
                output: self.output,
                peephole: pass.peephole.as_deref().map(|peephole| {
                    [0, 1, 2].map(|gate| &peephole[gate * hidden..(gate + 1) * hidden])
                }),
                clip: self.clip,
            },
            _ => Cell::Plain { weights: &pass.gates, output: self.output },
        }
    }
}

impl Kernel for Layer {
    fn run(
        &self,
        machine: &CpuContext,
        inputs: &[View<'_>],
        outputs: &mut [&mut [f32]],
        scratch: &mut [f32],
    ) -> Result<()> {
        let Layer { steps, batch, input, hidden, .. } = *self;
        let (count, gates) = (self.passes.len(), self.gates());
        let width = count * hidden;
        let mut x = inputs[0].floats()?;
        let (reversed, rest) = scratch.split_at_mut(if self.reverse { x.len() } else { 0 });
        if self.reverse {
            let row = batch * input;
            for (target, source) in reversed.chunks_exact_mut(row).rev().zip(x.chunks_exact(row)) {
                target.copy_from_slice(source);
            }
            x = reversed;
        }
        let (projected, rest) = rest.split_at_mut(count * steps * batch * gates * hidden);
        let (states, rest) = rest.split_at_mut(batch * width);
        let (memories, rest) = rest.split_at_mut(batch * width);
        let has_memory = self.kind == OpKind::Lstm;
        columns(inputs[1].floats()?, states, batch, hidden, width);
        if has_memory {
            columns(inputs[2].floats()?, memories, batch, hidden, width);
        }
        let each = steps * batch * gates * hidden;
        let mut directions = Vec::with_capacity(count);
        let parts = projected.chunks_exact_mut(each).zip(states.chunks_exact_mut(batch * hidden));
        let parts = parts.zip(memories.chunks_exact_mut(batch * hidden));
        for (index, (pass, ((projected, state), memory))) in
            self.passes.iter().zip(parts).enumerate()
        {
            let left = Matrix { elements: x, stride: input };
            let output = MatrixMut { elements: projected, stride: gates * hidden };
            let epilogue = Epilogue { bias: pass.bias.as_deref(), ..Epilogue::default() };
            multiply(&machine.pool, steps * batch, left, &pass.projection, output, &epilogue);
            directions.push(Direction {
                cell: self.cell(pass),
                inputs: projected,
                reverse: index == 1,
                state,
                memory: if has_memory { memory } else { &mut [] },
            });
        }
        let all = if self.sequence { &mut *outputs[0] } else { &mut rest[..0] };
        let all = self.sequence.then_some(all);
        run_recurrent(&machine.pool, steps, batch, &mut directions, all);
        drop(directions);
        if !self.sequence {
            rows(states, outputs[0], batch, hidden, width);
        }
        rows(states, outputs[1], batch, hidden, width);
        if has_memory {
            rows(memories, outputs[2], batch, hidden, width);
        }
        if self.rounding == Rounding::Fp16 {
            outputs.iter_mut().for_each(|output| round_to_fp16(machine.isa, output));
        }
        Ok(())
    }

    fn label(&self) -> String {
        self.kind.name().to_owned()
    }

    fn cost(&self) -> Cost {
        let Layer { steps, batch, input, hidden, .. } = *self;
        let weights = self.passes.len() * self.gates() * hidden * (input + hidden);
        Cost {
            operations: 2 * (steps * batch * weights) as u64,
            bytes: 4 * (weights * steps.min(2) + steps * batch * (input + hidden)) as u64,
        }
    }

    fn scratch(&self) -> usize {
        let Layer { steps, batch, input, hidden, .. } = *self;
        let count = self.passes.len();
        let reversed = if self.reverse { steps * batch * input } else { 0 };
        reversed + count * steps * batch * self.gates() * hidden + 2 * count * batch * hidden
    }
}

/// Converts `[batch, directions, hidden]` to `[directions, batch, hidden]`.
fn columns(from: &[f32], to: &mut [f32], batch: usize, hidden: usize, width: usize) {
    for (index, row) in to.chunks_exact_mut(hidden).enumerate() {
        let (direction, item) = (index / batch, index % batch);
        row.copy_from_slice(&from[item * width + direction * hidden..][..hidden]);
    }
}

/// Converts `[directions, batch, hidden]` to `[batch, directions, hidden]`.
fn rows(from: &[f32], to: &mut [f32], batch: usize, hidden: usize, width: usize) {
    for (index, row) in from.chunks_exact(hidden).enumerate() {
        let (direction, item) = (index / batch, index % batch);
        to[item * width + direction * hidden..][..hidden].copy_from_slice(row);
    }
}
