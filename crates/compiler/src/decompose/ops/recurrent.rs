//! Unrolled recurrent layers.

use super::linear::affine;
use crate::decompose::prelude::*;

pub(crate) const ROWS: &[Row] = &[
    by(|call| layers(call, Kind::Lstm), &["aten.lstm.input"]),
    by(|call| layers(call, Kind::Gru), &["aten.gru.input"]),
    by(|call| layers(call, Kind::Tanh), &["aten.rnn_tanh.input"]),
    by(|call| layers(call, Kind::Relu), &["aten.rnn_relu.input"]),
    by(|call| cell(call, Kind::Lstm), &["aten.lstm_cell"]),
    by(|call| cell(call, Kind::Gru), &["aten.gru_cell"]),
    by(|call| cell(call, Kind::Tanh), &["aten.rnn_tanh_cell"]),
    by(|call| cell(call, Kind::Relu), &["aten.rnn_relu_cell"]),
];

/// Maximum number of unrolled steps. Longer sequences would create tens of thousands of calls.
const MAX_STEPS: i64 = 256;

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Lstm,
    Gru,
    Tanh,
    Relu,
}

/// Transposed weights of a layer in one direction.
struct Weights {
    of_input: Tensor,
    input_bias: Option<Tensor>,
    of_hidden: Tensor,
    hidden_bias: Option<Tensor>,
    projection: Option<Tensor>,
}

/// Splits concatenated gates.
fn gates<const N: usize>(call: &mut Call<'_>, x: &Tensor) -> Result<[Tensor; N]> {
    let count = N as i64;
    let Some(at) = x.rank().checked_sub(1) else { refuse!("gates have no dimensions") };
    let Some(width) = x.extent(at)?.fixed().filter(|width| width % count == 0) else {
        refuse!("the width of the gates is unknown");
    };
    let width = width / count;
    let part = |index| call.slice(x, at, (checked(index) * width).get()?, width, 1);
    let gates = (0..count).map(part).collect::<Result<Vec<_>, _>>()?;
    gates.try_into().map_err(|_| LoweringError::new("gates are missing"))
}

impl Kind {
    /// The states after a step, from the input's contribution to the gates and the previous states.
    fn step(
        self,
        call: &mut Call<'_>,
        weights: &Weights,
        of_input: &Tensor,
        states: &[Tensor],
    ) -> Result<Vec<Tensor>> {
        let [h, ..] = states else { refuse!("a recurrent layer has no state") };
        let of_hidden = call.addmm(weights.hidden_bias.as_ref(), h, &weights.of_hidden)?;
        match (self, states) {
            (Kind::Tanh, _) => {
                Ok(vec![calc!(call, "tanh(of_input + of_hidden)", of_input, of_hidden)?])
            }
            (Kind::Relu, _) => {
                Ok(vec![calc!(call, "relu(of_input + of_hidden)", of_input, of_hidden)?])
            }
            (Kind::Lstm, [_, c]) => {
                let sum = call.add(of_input, &of_hidden)?;
                let [input, forget, candidate, output] = gates(call, &sum)?;
                let formula = "after = sigmoid(forget) * c + sigmoid(input) * tanh(candidate); \
                               sigmoid(output) * tanh(after), after";
                let [mut h, c] = calc!(all call, formula, forget, c, input, candidate, output)?;
                if let Some(projection) = &weights.projection {
                    h = call.mm(&h, projection)?;
                }
                Ok(vec![h, c])
            }
            (Kind::Lstm, _) => refuse!("a layer of this kind must have two states"),
            (Kind::Gru, _) => {
                let ([a, b, c], [d, e, f]) = (gates(call, of_input)?, gates(call, &of_hidden)?);
                let formula = "reset = sigmoid(a + d); update = sigmoid(b + e); \
                               new = tanh(c + reset * f); new + update * (h - new)";
                Ok(vec![calc!(call, formula, a, b, c, d, e, f, h)?])
            }
        }
    }
}

/// Initial states of a layer.
fn initial(call: &mut Call<'_>) -> Result<Vec<Tensor>> {
    match call.argument("hx")? {
        Argument::List(_) => call.tensors("hx"),
        _ => Ok(vec![call.tensor("hx")?]),
    }
}

fn layers(call: &mut Call<'_>, kind: Kind) -> Results {
    let input = call.tensor("input")?;
    let states = initial(call)?;
    let mut parameters = call.tensors("params")?.into_iter();
    let count = call.int("num_layers")?;
    let both_ways = call.bool("bidirectional")?;
    let has_biases = call.bool("has_biases")?;
    if call.bool("train")? && call.float("dropout")? != 0.0 && count > 1 {
        refuse!("a recurrent layer with dropout is not supported for inference");
    }
    let batched = input.rank() == 3;
    check_ranks(&input, &states, 2)?;
    let batch_first = call.bool("batch_first")? && batched;
    let mut x = if batched { input } else { call.unsqueeze(&input, 1)? };
    if batch_first {
        x = call.transpose(&x, 0, 1)?;
    }
    let Some(steps) = x.extent(0)?.fixed().filter(|steps| *steps <= MAX_STEPS) else {
        refuse!("the number of steps of a recurrent layer must be known and at most {MAX_STEPS}");
    };
    let mut first = Vec::with_capacity(states.len());
    for state in &states {
        first.push(if batched { state.clone() } else { call.unsqueeze(state, 1)? });
    }
    let projects = match first.as_slice() {
        [h, c] => h.extent(2)? != c.extent(2)?,
        _ => false,
    };
    let mut last: Vec<Vec<Tensor>> = vec![Vec::new(); first.len()];
    for layer in 0..count {
        let mut ways = Vec::with_capacity(2);
        for way in 0..=i64::from(both_ways) {
            let mut next = || match parameters.next() {
                Some(tensor) => Ok(tensor),
                None => refuse!("a recurrent layer has too few weights"),
            };
            let (of_input, of_hidden) = (next()?, next()?);
            let (input_bias, hidden_bias) =
                if has_biases { (Some(next()?), Some(next()?)) } else { (None, None) };
            let projection = if projects { Some(next()?) } else { None };
            let weights = Weights {
                of_input,
                input_bias,
                of_hidden: call.turned(&of_hidden)?,
                hidden_bias,
                projection: projection.map(|projection| call.turned(&projection)).transpose()?,
            };
            let place = (checked(layer) * (1 + i64::from(both_ways)) + way).get()?;
            let current = first.iter().map(|state| call.select(state, 0, Argument::Int(place)));
            let mut current = current.collect::<Result<Vec<_>, _>>()?;
            let all = affine(call, &x, &weights.of_input, weights.input_bias.as_ref())?;
            let mut outputs = Vec::new();
            for step in 0..steps {
                let at = if way == 0 { step } else { steps - 1 - step };
                let of_input = call.select(&all, 0, Argument::Int(at))?;
                current = kind.step(call, &weights, &of_input, &current)?;
                outputs.extend(current.first().cloned());
            }
            if way == 1 {
                outputs.reverse();
            }
            ways.push(call.stack(&outputs, 0)?);
            for (all, state) in last.iter_mut().zip(current) {
                all.push(state);
            }
        }
        x = if ways.len() == 1 { take(&mut ways, 0)? } else { call.concatenate(&ways, 2)? };
    }
    if batch_first {
        x = call.transpose(&x, 0, 1)?;
    }
    if !batched {
        x = call.squeeze(&x, 1)?;
    }
    let mut results = vec![RewriteResult::Tensor(x)];
    for states in &last {
        let all = call.stack(states, 0)?;
        results.push(RewriteResult::Tensor(if batched { all } else { call.squeeze(&all, 1)? }));
    }
    Ok(results)
}

/// Checks that input and states are all batched or all unbatched.
fn check_ranks(input: &Tensor, states: &[Tensor], single: usize) -> Result<()> {
    let rank = input.rank();
    if ![single, single + 1].contains(&rank) {
        refuse!("`input` must have rank {single} or {}, got {rank}", single + 1);
    }
    if let Some(state) = states.iter().find(|state| state.rank() != rank) {
        refuse!("`hx` has rank {}, but `input` has rank {rank}", state.rank());
    }
    Ok(())
}

/// A single cell step.
fn cell(call: &mut Call<'_>, kind: Kind) -> Results {
    let input = call.tensor("input")?;
    let states = initial(call)?;
    let batched = input.rank() == 2;
    check_ranks(&input, &states, 1)?;
    let row = |call: &mut Call<'_>, x: &Tensor| match batched {
        true => Ok(x.clone()),
        false => call.view(x, vec![Size::Fixed(1), x.extent(0)?.clone()]),
    };
    let x = row(call, &input)?;
    let current = states.iter().map(|state| row(call, state)).collect::<Result<Vec<_>, _>>()?;
    let of_hidden = call.tensor("w_hh")?;
    let weights = Weights {
        of_input: call.tensor("w_ih")?,
        input_bias: call.optional_tensor("b_ih")?,
        of_hidden: call.turned(&of_hidden)?,
        hidden_bias: call.optional_tensor("b_hh")?,
        projection: None,
    };
    let of_input = affine(call, &x, &weights.of_input, weights.input_bias.as_ref())?;
    let mut results = Vec::with_capacity(2);
    for state in kind.step(call, &weights, &of_input, &current)? {
        let state = if batched { state } else { call.squeeze(&state, 0)? };
        results.push(RewriteResult::Tensor(state));
    }
    Ok(results)
}
