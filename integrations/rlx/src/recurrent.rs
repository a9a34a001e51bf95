//! Recurrent layers in torch's format, and the gated delta net with its gradient.

use coremill_graph::{Error, Tensor, nn, ops};
use rlx_ir::Op;

use crate::site::NodeContext;

pub(crate) fn lower<'g>(site: &NodeContext<'_, 'g>) -> Result<Option<Tensor<'g>>, Error> {
    Ok(Some(match &site.node.op {
        Op::Lstm { hidden_size, num_layers, bidirectional, carry } => {
            layers(site, Cell::Lstm, *hidden_size, *num_layers, *bidirectional, *carry)?
        }
        Op::Gru { hidden_size, num_layers, bidirectional, carry } => {
            layers(site, Cell::Gru, *hidden_size, *num_layers, *bidirectional, *carry)?
        }
        Op::Rnn { hidden_size, num_layers, bidirectional, carry, relu } => {
            let cell = Cell::Plain { relu: *relu };
            layers(site, cell, *hidden_size, *num_layers, *bidirectional, *carry)?
        }
        Op::GatedDeltaNet { state_size, carry_state, .. } => {
            let [query, key, value, gate, beta] = site.operands()?;
            let query = query / (*state_size as f32).sqrt();
            let shape = [query.extent(0), query.extent(2), *state_size, *state_size];
            let start = if *carry_state { site.arg(5)?.view(shape) } else { site.zeros(&shape) };
            nn::gated_delta(query, key, value, gate, beta, start).0
        }
        Op::GatedDeltaNetBackward { state_size, carry_state, gate_per_channel } => {
            delta_gradients(site, *state_size, *carry_state, *gate_per_channel)?
        }
        _ => return Ok(None),
    }))
}

#[derive(Clone, Copy)]
enum Cell {
    Lstm,
    Gru,
    Plain { relu: bool },
}

impl Cell {
    fn gates(self) -> usize {
        match self {
            Cell::Lstm => 4,
            Cell::Gru => 3,
            Cell::Plain { .. } => 1,
        }
    }
}

/// Reads consecutive parts of an operand with the weights of all layers and directions.
struct Cursor<'g> {
    flat: Tensor<'g>,
    at: usize,
}

impl<'g> Cursor<'g> {
    fn new(x: Tensor<'g>) -> Cursor<'g> {
        Cursor { flat: x.view([-1]), at: 0 }
    }

    fn take(&mut self, shape: &[usize]) -> Tensor<'g> {
        let count: usize = shape.iter().product();
        let part = self.flat.narrow(0, self.at as i32..(self.at + count) as i32);
        self.at += count;
        part.view(shape)
    }
}

/// Layers over `[batch, length, inputs]` with one or two directions. Final states are not written back,
/// because a node has a single value.
fn layers<'g>(
    site: &NodeContext<'_, 'g>,
    cell: Cell,
    hidden: usize,
    count: usize,
    bidirectional: bool,
    carry: bool,
) -> Result<Tensor<'g>, Error> {
    let [x, of_input, of_hidden, bias] = site.operands()?;
    let (directions, gates) = (if bidirectional { 2 } else { 1 }, cell.gates() * hidden);
    let batch = x.extent(0);
    let [mut of_input, mut of_hidden, mut bias] = [of_input, of_hidden, bias].map(Cursor::new);
    let (mut hidden_bias, first_state) = match cell {
        Cell::Gru => (Some(Cursor::new(site.arg(4)?)), 5),
        _ => (None, 4),
    };
    let state = |at: usize| {
        let whole = if carry { Some(site.arg(at)?) } else { None };
        Ok::<_, Error>(move |block: usize| match whole {
            Some(whole) => whole.at(0, block as i32),
            None => site.zeros(&[batch, hidden]),
        })
    };
    let h = state(first_state)?;
    let c = match cell {
        Cell::Lstm => Some(state(first_state + 1)?),
        _ => None,
    };
    let mut sequence = x.transpose([1, 0, 2]);
    for layer in 0..count {
        let inputs = sequence.extent(2);
        let mut outputs = Vec::with_capacity(directions);
        for direction in 0..directions {
            let block = layer * directions + direction;
            let of_input = of_input.take(&[gates, inputs]);
            let of_hidden = of_hidden.take(&[gates, hidden]);
            let bias = bias.take(&[gates]);
            let hidden_bias = hidden_bias.as_mut().map(|cursor| cursor.take(&[gates]));
            let mut start = vec![h(block)];
            start.extend(c.as_ref().map(|c| c(block)));
            let reversed = |x: Tensor<'g>| match direction {
                0 => x,
                _ => x.reverse(ops::Reverse::new().axes([0])),
            };
            let projected = reversed(sequence).matmul_t(of_input) + bias;
            let (_, steps) = nn::scan(site.graph, &start, &[projected], |carried, step| {
                let own = carried[0].matmul_t(of_hidden);
                let own = hidden_bias.map_or(own, |bias| own + bias);
                let next = advance(cell, hidden as i32, step[0], own, carried);
                let result = next[0];
                (next, result)
            });
            outputs.push(reversed(steps));
        }
        sequence = site.joined(outputs, 2);
    }
    Ok(sequence.transpose([1, 0, 2]))
}

/// The new states of a cell; its output is the first.
fn advance<'g>(
    cell: Cell,
    hidden: i32,
    input: Tensor<'g>,
    own: Tensor<'g>,
    carried: &[Tensor<'g>],
) -> Vec<Tensor<'g>> {
    let gate = |x: Tensor<'g>, at: i32| x.narrow(1, at * hidden..(at + 1) * hidden);
    match cell {
        Cell::Lstm => {
            let all = input + own;
            let [enter, forget, output] = [0, 1, 3].map(|at| gate(all, at).sigmoid());
            let memory = carried[1] * forget + enter * gate(all, 2).tanh();
            vec![output * memory.tanh(), memory]
        }
        Cell::Gru => {
            let [reset, keep] = [0, 1].map(|at| (gate(input, at) + gate(own, at)).sigmoid());
            let new = (gate(input, 2) + reset * gate(own, 2)).tanh();
            vec![new + keep * (carried[0] - new)]
        }
        Cell::Plain { relu } => {
            let all = input + own;
            vec![if relu { all.relu() } else { all.tanh() }]
        }
    }
}

/// All gradients of a gated delta net in one vector: recomputes the states, then iterates backwards.
fn delta_gradients<'g>(
    site: &NodeContext<'_, 'g>,
    size: usize,
    carry: bool,
    per_channel: bool,
) -> Result<Tensor<'g>, Error> {
    let [query, key, value, gate, beta] = site.operands()?;
    let dy = site.arg(site.args.len() - 1)?;
    let shape = [query.extent(0), query.extent(2), size, size];
    let start = if carry { site.arg(5)?.view(shape) } else { site.zeros(&shape) };
    let scale = 1.0 / (size as f32).sqrt();
    // Time is the first axis; gates and mixing factors are columns that broadcast over keys and values.
    let wide = |x: Tensor<'g>| x.transpose([1, 0, 2, 3]);
    let narrow = |x: Tensor<'g>| x.transpose([1, 0, 2]).unsqueeze(3);
    let gate = if per_channel { wide(gate) } else { narrow(gate) };
    let (query, key, value, beta, dy) =
        (wide(query) * scale, wide(key), wide(value), narrow(beta), wide(dy));
    let factor = gate.exp();
    let update = |state: Tensor<'g>, step: &[Tensor<'g>]| {
        let [key, value, factor, beta] = [step[0], step[1], step[2], step[3]];
        let decayed = state * factor.unsqueeze(3);
        let held = (decayed * key.unsqueeze(3)).sum([2], false);
        let miss = value - held;
        (decayed, miss, decayed + key.unsqueeze(3) * (miss * beta).unsqueeze(2))
    };
    // The state before each step.
    let (_, before) =
        nn::scan(site.graph, &[start], &[key, value, factor, beta], |carried, step| {
            (vec![update(carried[0], step).2], carried[0])
        });
    let back = |x: Tensor<'g>| x.reverse(ops::Reverse::new().axes([0]));
    let sequences = [key, value, factor, beta, query, dy, before].map(back);
    let none = site.zeros(&shape);
    let (last, steps) = nn::scan(site.graph, &[none], &sequences, |carried, step| {
        let [key, _, factor, beta, query, dy, before] =
            [step[0], step[1], step[2], step[3], step[4], step[5], step[6]];
        let (decayed, miss, after) = update(before, step);
        let of_query = (after * dy.unsqueeze(2)).sum([3], false) * scale;
        let slope = carried[0] + query.unsqueeze(3) * dy.unsqueeze(2);
        let of_update = (slope * key.unsqueeze(3)).sum([2], false);
        let of_held = of_update * beta * -1.0;
        let of_key = (slope * (miss * beta).unsqueeze(2)).sum([3], false)
            + (decayed * of_held.unsqueeze(2)).sum([3], false);
        let of_beta = (miss * of_update).sum([2], true);
        let slope = slope + key.unsqueeze(3) * of_held.unsqueeze(2);
        let of_factor = (before * slope).sum([3], false) * factor;
        let of_gate = if per_channel { of_factor } else { of_factor.sum([2], true) };
        let next = slope * factor.unsqueeze(3);
        let parts = [of_query, of_key, of_update * beta, of_gate, of_beta];
        (vec![next], site.joined(parts, 2))
    });
    let steps = back(steps).transpose([1, 0, 2, 3]);
    let size = size as i32;
    let gates = if per_channel { size } else { 1 };
    let part = |from: i32, to: i32| steps.narrow(3, from..to);
    let mut parts = vec![
        part(0, size),
        part(size, 2 * size),
        part(2 * size, 3 * size),
        part(3 * size, 3 * size + gates),
        part(3 * size + gates, 3 * size + gates + 1),
    ];
    if carry {
        parts.push(last[0]);
    }
    Ok(site.packed(parts))
}
