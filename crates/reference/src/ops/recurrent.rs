//! Reference kernels of recurrent layers over `[sequence, batch, input]`.
//!
//! The rows of a weight are the gates, with `hidden` rows each. The order for `lstm` is input,
//! forget, output, cell; for `gru` reset, output, update.

use coremill_kernels::product::{Extents, StridedMatrix, gemm_reference};

use crate::array::Array;
use crate::call::{Call, Results};
use crate::error::{Result, fail};

pub(super) fn lstm(call: &Call) -> Results {
    let layer = Layer::of(call)?;
    let direction = direction(call)?;
    let activations = [
        Activation::of(call, "recurrent_activation")?,
        Activation::of(call, "cell_activation")?,
        Activation::of(call, "activation")?,
    ];
    let clip = call.optional_float("clip")?;
    let passes = match direction {
        Direction::Forward => &[(Order::Forward, "")][..],
        Direction::Reverse => &[(Order::Reverse, "")],
        Direction::Bidirectional => &[(Order::Forward, ""), (Order::ReverseInPlace, "_back")],
    };
    let width = layer.width(call, passes.len())?;
    let initial_h = layer.state(call, "initial_h", width)?;
    let initial_c = layer.state(call, "initial_c", width)?;
    let mut outputs = Outputs::new(call, &layer, width)?;
    let mut last_c = vec![0.0; layer.batch * width];
    for (index, &(order, suffix)) in passes.iter().enumerate() {
        let weights = Weights::of(call, &layer, 4, suffix)?;
        let peephole = layer.vector(call, &format!("peephole{suffix}"), 3)?;
        let columns = index * layer.hidden;
        let mut h = layer.part(initial_h, width, columns);
        let mut c = layer.part(initial_c, width, columns);
        let mut gates = layer.gates(call, 4)?;
        for step in 0..layer.steps {
            weights.gates(&layer, order.of(step, layer.sequence), &h, &mut gates);
            for (item, gates) in layer.items(&gates, 4) {
                let of_item = item * layer.hidden..(item + 1) * layer.hidden;
                let (h, c) = (&mut h[of_item.clone()], &mut c[of_item]);
                let gate = |gate: usize, unit: usize| gates[gate * layer.hidden + unit];
                let peep = |gate: usize, unit: usize, c: f32| {
                    peephole.map_or(0.0, |peephole| peephole[gate * layer.hidden + unit] * c)
                };
                let [recurrent, cell, output] = activations;
                for unit in 0..layer.hidden {
                    let before = c[unit];
                    let input_gate = recurrent.apply(gate(0, unit) + peep(0, unit, before));
                    let forget_gate = recurrent.apply(gate(1, unit) + peep(1, unit, before));
                    let candidate = cell.apply(gate(3, unit));
                    let mut after = forget_gate * before + input_gate * candidate;
                    if let Some(clip) = clip {
                        after = clipped(after, clip);
                    }
                    let output_gate = recurrent.apply(gate(2, unit) + peep(2, unit, after));
                    c[unit] = after;
                    h[unit] = output_gate * output.apply(after);
                }
            }
            outputs.keep(&layer, order.to(step, layer.sequence), columns, &h);
        }
        outputs.finish(&layer, columns, &h);
        layer.put(&mut last_c, width, columns, &c);
    }
    let mut arrays = outputs.arrays(call, &layer);
    arrays.push(Array::floats(call.dtype(), [layer.batch, width], last_c));
    Ok(arrays)
}

/// `clamp` would panic for a negative clip. NaN stays NaN.
fn clipped(x: f32, clip: f32) -> f32 {
    if x > clip {
        clip
    } else if x < -clip {
        -clip
    } else {
        x
    }
}

pub(super) fn gru(call: &Call) -> Results {
    let layer = Layer::of(call)?;
    let order = one_way(call)?;
    let recurrent = Activation::of(call, "recurrent_activation")?;
    let activation = Activation::of(call, "activation")?;
    let reset_after = call.has("reset_after") && call.bool("reset_after")?;
    let hidden = layer.hidden;
    let weights = Weights::of(call, &layer, 3, "")?;
    let bias = layer.vector(call, "bias", 3)?;
    let input_bias = layer.vector(call, "input_bias", 3)?;
    let bias_of = |vector: Option<&[f32]>, at: usize| vector.map_or(0.0, |vector| vector[at]);
    let initial = layer.state(call, "initial_h", hidden)?;
    let mut outputs = Outputs::new(call, &layer, hidden)?;
    let mut h = initial.to_vec();
    let mut of_input = layer.gates(call, 3)?;
    let mut of_hidden = layer.gates(call, 3)?;
    let mut reset = vec![0.0; layer.batch * hidden];
    let mut candidates = vec![0.0; layer.batch * hidden];
    for step in 0..layer.steps {
        let x = layer.step(order.of(step, layer.sequence));
        layer.project(x, layer.input, weights.of_input, &mut of_input);
        layer.project(&h, hidden, weights.of_hidden, &mut of_hidden);
        let gate = |from: &[f32], item: usize, at: usize| from[item * 3 * hidden + at];
        let both = |item: usize, at: usize| {
            gate(&of_input, item, at)
                + gate(&of_hidden, item, at)
                + bias_of(bias, at)
                + bias_of(input_bias, at)
        };
        for (place, reset) in reset.iter_mut().enumerate() {
            let (item, unit) = (place / hidden, place % hidden);
            *reset = recurrent.apply(both(item, unit));
        }
        if reset_after {
            // The reset gate also scales the bias of the hidden state.
            for (place, candidate) in candidates.iter_mut().enumerate() {
                let (item, at) = (place / hidden, hidden + place % hidden);
                let from_hidden = gate(&of_hidden, item, at) + bias_of(bias, at);
                *candidate = gate(&of_input, item, at)
                    + bias_of(input_bias, at)
                    + reset[place] * from_hidden;
            }
        } else {
            let kept: Vec<f32> = reset.iter().zip(&h).map(|(reset, h)| reset * h).collect();
            let of_output = &weights.of_hidden[hidden * hidden..2 * hidden * hidden];
            layer.project(&kept, hidden, of_output, &mut candidates);
            for (place, candidate) in candidates.iter_mut().enumerate() {
                let (item, at) = (place / hidden, hidden + place % hidden);
                *candidate +=
                    gate(&of_input, item, at) + bias_of(bias, at) + bias_of(input_bias, at);
            }
        }
        for (place, h) in h.iter_mut().enumerate() {
            let (item, unit) = (place / hidden, place % hidden);
            let update = recurrent.apply(both(item, 2 * hidden + unit));
            *h = (1.0 - update) * activation.apply(candidates[place]) + update * *h;
        }
        outputs.keep(&layer, step, 0, &h);
    }
    outputs.finish(&layer, 0, &h);
    Ok(outputs.arrays(call, &layer))
}

pub(super) fn rnn(call: &Call) -> Results {
    let layer = Layer::of(call)?;
    let order = one_way(call)?;
    let activation = Activation::of(call, "activation")?;
    let weights = Weights::of(call, &layer, 1, "")?;
    let mut h = layer.state(call, "initial_h", layer.hidden)?.to_vec();
    let mut outputs = Outputs::new(call, &layer, layer.hidden)?;
    let mut gates = layer.gates(call, 1)?;
    for step in 0..layer.steps {
        weights.gates(&layer, order.of(step, layer.sequence), &h, &mut gates);
        h.iter_mut().zip(&gates).for_each(|(h, gate)| *h = activation.apply(*gate));
        outputs.keep(&layer, step, 0, &h);
    }
    outputs.finish(&layer, 0, &h);
    Ok(outputs.arrays(call, &layer))
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    Forward,
    Reverse,
    Bidirectional,
}

fn direction(call: &Call) -> Result<Direction> {
    match call.text("direction")? {
        "forward" => Ok(Direction::Forward),
        "reverse" => Ok(Direction::Reverse),
        "bidirectional" => Ok(Direction::Bidirectional),
        other => fail!(
            "`direction` must be `forward` or `reverse`, or `bidirectional` in an `lstm`, got `{other}`"
        ),
    }
}

fn one_way(call: &Call) -> Result<Order> {
    match direction(call)? {
        Direction::Forward => Ok(Order::Forward),
        Direction::Reverse => Ok(Order::Reverse),
        Direction::Bidirectional => {
            fail!("`direction` must be `forward` or `reverse`, got `bidirectional`")
        }
    }
}

/// Order in which a sequence is processed and its outputs are stored.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Order {
    /// First to last.
    Forward,
    /// Last to first, with outputs in processing order.
    Reverse,
    /// Last to first, with outputs at the index of their input. Used for the reverse direction of a
    /// bidirectional layer.
    ReverseInPlace,
}

impl Order {
    fn of(self, step: usize, sequence: usize) -> usize {
        if self == Order::Forward { step } else { sequence - 1 - step }
    }

    fn to(self, step: usize, sequence: usize) -> usize {
        if self == Order::ReverseInPlace { sequence - 1 - step } else { step }
    }
}

/// An activation with the default parameters of recurrent layers.
#[derive(Clone, Copy)]
enum Activation {
    Tanh,
    Sigmoid,
    HardSigmoid,
    Relu,
    Linear,
}

impl Activation {
    fn of(call: &Call, name: &str) -> Result<Activation> {
        let text = call.text(name)?;
        match text.to_ascii_lowercase().as_str() {
            "tanh" | "scaled_tanh" => Ok(Activation::Tanh),
            "sigmoid" => Ok(Activation::Sigmoid),
            "hard_sigmoid" | "sigmoid_hard" => Ok(Activation::HardSigmoid),
            "relu" => Ok(Activation::Relu),
            "linear" => Ok(Activation::Linear),
            _ => fail!(
                "`{name}` must be `tanh`, `scaled_tanh`, `sigmoid`, `hard_sigmoid`, `sigmoid_hard`, `relu` or `linear`, \
                 got `{text}`"
            ),
        }
    }

    fn apply(self, x: f32) -> f32 {
        match self {
            Activation::Tanh => x.tanh(),
            Activation::Sigmoid => 1.0 / (1.0 + (-x).exp()),
            Activation::HardSigmoid => (0.2 * x + 0.5).clamp(0.0, 1.0),
            // Comparisons with NaN are false, so NaN stays NaN.
            Activation::Relu => {
                if x <= 0.0 {
                    0.0
                } else {
                    x
                }
            }
            Activation::Linear => x,
        }
    }
}

/// The input and sizes of a recurrent layer.
struct Layer<'a> {
    x: &'a [f32],
    sequence: usize,
    /// Number of time steps to compute.
    steps: usize,
    batch: usize,
    input: usize,
    hidden: usize,
}

impl<'a> Layer<'a> {
    fn of(call: &Call<'a>) -> Result<Layer<'a>> {
        let (x, weight) = (call.tensor("x")?, call.tensor("weight_hh")?);
        let ([sequence, batch, input], [_, hidden]) = (x.shape, weight.shape) else {
            fail!(
                "`x` has rank {} and `weight_hh` rank {}; expected 3 and 2",
                x.rank(),
                weight.rank()
            );
        };
        let [sequence, batch, input, hidden] = [*sequence, *batch, *input, *hidden];
        // Check each size separately, since a size of 0 would hide the others in a product.
        for extents in [&[batch, hidden][..], &[batch, input], &[sequence, batch], &[hidden, 8]] {
            call.count(extents)?;
        }
        // Without outputs there is nothing to compute.
        let steps = if batch == 0 || hidden == 0 { 0 } else { sequence };
        Ok(Layer { x: call.floats("x")?, sequence, steps, batch, input, hidden })
    }

    fn width(&self, call: &Call, directions: usize) -> Result<usize> {
        call.count(&[self.hidden, directions])
    }

    /// The input at a time step.
    fn step(&self, step: usize) -> &'a [f32] {
        let size = self.batch * self.input;
        &self.x[step * size..(step + 1) * size]
    }

    fn state(&self, call: &Call<'a>, name: &str, width: usize) -> Result<&'a [f32]> {
        self.expect(call, name, &[self.batch, width])
    }

    fn expect(&self, call: &Call<'a>, name: &str, shape: &[usize]) -> Result<&'a [f32]> {
        let found = call.tensor(name)?;
        if found.shape != shape {
            fail!("`{name}` must have shape {shape:?}, got {:?}", found.shape);
        }
        call.floats(name)
    }

    /// A vector for `gates` gates, `None` if unbound.
    fn vector(&self, call: &Call<'a>, name: &str, gates: usize) -> Result<Option<&'a [f32]>> {
        if !call.has(name) {
            return Ok(None);
        }
        self.expect(call, name, &[gates * self.hidden]).map(Some)
    }

    /// Memory for the gates of the whole batch.
    fn gates(&self, call: &Call, gates: usize) -> Result<Vec<f32>> {
        Ok(vec![0.0; call.count(&[self.batch, gates * self.hidden])?])
    }

    /// Iterates over the batch with the gates of each item.
    fn items<'g>(
        &self,
        gates: &'g [f32],
        count: usize,
    ) -> impl Iterator<Item = (usize, &'g [f32])> {
        gates.chunks_exact((count * self.hidden).max(1)).enumerate()
    }

    /// Computes the products of each batch item and each row of a weight.
    fn project(&self, from: &[f32], depth: usize, weight: &[f32], to: &mut [f32]) {
        to.fill(0.0);
        let columns = to.len().checked_div(self.batch).unwrap_or(0);
        let extents = Extents { rows: self.batch, depth, columns };
        let weight = StridedMatrix::dense(weight, depth).transposed();
        gemm_reference(to, extents, StridedMatrix::dense(from, depth), weight);
    }

    /// The hidden state of one direction, from the concatenated states of all directions.
    fn part(&self, state: &[f32], width: usize, first: usize) -> Vec<f32> {
        let items = state.chunks_exact(width.max(1));
        items.flat_map(|item| &item[first..first + self.hidden]).copied().collect()
    }

    /// Stores the state of one direction in the concatenated states.
    fn put(&self, all: &mut [f32], width: usize, first: usize, state: &[f32]) {
        let items = all.chunks_exact_mut(width.max(1));
        for (to, from) in items.zip(state.chunks_exact(self.hidden.max(1))) {
            to[first..first + self.hidden].copy_from_slice(from);
        }
    }
}

/// Weights of one direction.
struct Weights<'a> {
    of_input: &'a [f32],
    of_hidden: &'a [f32],
    bias: Option<&'a [f32]>,
}

impl<'a> Weights<'a> {
    fn of(call: &Call<'a>, layer: &Layer<'a>, gates: usize, suffix: &str) -> Result<Weights<'a>> {
        let rows = gates * layer.hidden;
        Ok(Weights {
            of_input: layer.expect(call, &format!("weight_ih{suffix}"), &[rows, layer.input])?,
            of_hidden: layer.expect(call, &format!("weight_hh{suffix}"), &[rows, layer.hidden])?,
            bias: layer.vector(call, &format!("bias{suffix}"), gates)?,
        })
    }

    /// Computes the gates of the batch, before their activations.
    fn gates(&self, layer: &Layer, step: usize, h: &[f32], gates: &mut [f32]) {
        layer.project(layer.step(step), layer.input, self.of_input, gates);
        let columns = gates.len().checked_div(layer.batch).unwrap_or(0);
        let extents = Extents { rows: layer.batch, depth: layer.hidden, columns };
        let weight = StridedMatrix::dense(self.of_hidden, layer.hidden).transposed();
        gemm_reference(gates, extents, StridedMatrix::dense(h, layer.hidden), weight);
        if let Some(bias) = self.bias {
            for gates in gates.chunks_exact_mut(columns.max(1)) {
                gates.iter_mut().zip(bias).for_each(|(gate, bias)| *gate += bias);
            }
        }
    }
}

/// Hidden states that a layer returns: of every step or the last one, and the final state.
struct Outputs {
    every: bool,
    width: usize,
    sequence: Vec<f32>,
    last: Vec<f32>,
}

impl Outputs {
    fn new(call: &Call, layer: &Layer, width: usize) -> Result<Outputs> {
        let every = call.bool("output_sequence")?;
        let steps = if every { layer.sequence } else { 1 };
        let sequence = vec![0.0; call.count(&[steps, layer.batch, width])?];
        let last = vec![0.0; call.count(&[layer.batch, width])?];
        Ok(Outputs { every, width, sequence, last })
    }

    fn keep(&mut self, layer: &Layer, step: usize, first: usize, h: &[f32]) {
        if self.every {
            let size = layer.batch * self.width;
            let of_step = &mut self.sequence[step * size..(step + 1) * size];
            layer.put(of_step, self.width, first, h);
        }
    }

    fn finish(&mut self, layer: &Layer, first: usize, h: &[f32]) {
        layer.put(&mut self.last, self.width, first, h);
        if !self.every {
            layer.put(&mut self.sequence, self.width, first, h);
        }
    }

    fn arrays(self, call: &Call, layer: &Layer) -> Vec<Array> {
        let steps = if self.every { layer.sequence } else { 1 };
        let shape = [steps, layer.batch, self.width];
        vec![
            Array::floats(call.dtype(), shape, self.sequence),
            Array::floats(call.dtype(), [layer.batch, self.width], self.last),
        ]
    }
}
