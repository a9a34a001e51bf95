//! Recurrent layers and cells.
//!
//! Core ML's layers expect `[sequence, batch, input]` and constant weights, with another order of gates than torch.
//! Its `gru` matches torch's from iOS 18 on only. Older targets and projected states are unrolled.

mod cells;

use self::cells::{Cell, Run};
use super::linear::affine;
use crate::lower::builder::emit_many;
use crate::lower::prelude::*;

pub(crate) const ROWS: &[Row] = &[
    several("aten.{lstm,gru,rnn_tanh,rnn_relu}", layers).only(&["input"]),
    several("aten.{lstm,gru,rnn_tanh,rnn_relu}", packed).only(&["data"]),
    several("aten.{lstm,gru,rnn_tanh,rnn_relu}_cell", cell),
];

/// Kind of layer, with the activation of a plain RNN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Lstm,
    Gru,
    Rnn(&'static str),
}

impl Kind {
    /// Derives the kind from the operator's name.
    fn of(call: &Call<'_, '_>) -> Kind {
        match call.node.target.name().trim_end_matches("_cell") {
            "lstm" => Kind::Lstm,
            "gru" => Kind::Gru,
            "rnn_relu" => Kind::Rnn("relu"),
            _ => Kind::Rnn("tanh"),
        }
    }

    /// torch's gates in Core ML's order: input, forget, output and cell for `lstm`; reset, output and update for
    /// `gru`.
    fn gates(self) -> &'static [i64] {
        match self {
            Kind::Lstm => &[0, 1, 3, 2],
            Kind::Gru => &[0, 2, 1],
            Kind::Rnn(_) => &[0],
        }
    }

    /// Number of states.
    fn states(self) -> usize {
        if self == Kind::Lstm { 2 } else { 1 }
    }
}

/// The weights of one layer in one direction.
#[derive(Clone, Copy)]
pub(super) struct Weights {
    of_input: ValueId,
    of_hidden: ValueId,
    input_bias: Option<ValueId>,
    hidden_bias: Option<ValueId>,
    projection: Option<ValueId>,
}

impl Weights {
    fn values(&self) -> impl Iterator<Item = ValueId> {
        let optional = [self.input_bias, self.hidden_bias, self.projection];
        [Some(self.of_input), Some(self.of_hidden)].into_iter().chain(optional).flatten()
    }

    fn are_constant(&self, builder: &Builder) -> bool {
        self.values().all(|value| builder.is_constant(value))
    }

    /// Input and hidden weights in Core ML's gate order.
    fn matrices(&self, builder: &mut Builder, kind: Kind) -> Result<[ValueId; 2]> {
        Ok([in_order(builder, kind, self.of_input)?, in_order(builder, kind, self.of_hidden)?])
    }

    /// Sum of both biases.
    fn bias(&self, builder: &mut Builder) -> Result<Option<ValueId>> {
        match (self.input_bias, self.hidden_bias) {
            (Some(input), Some(hidden)) => builder.binary(OpKind::Add, input, hidden).map(Some),
            (input, hidden) => Ok(input.or(hidden)),
        }
    }
}

fn packed(_: &mut Call<'_, '_>) -> Results {
    Err(LoweringError::new(
        "a packed sequence has computed lengths, which Core ML's layers do not support",
    )
    .hint("pass padded sequences, and select the valid outputs"))
}

/// Stacked layers, each in one direction or both.
fn layers(call: &mut Call<'_, '_>) -> Results {
    let kind = Kind::of(call);
    let dtype = call.result_dtype()?;
    if !is_float(dtype) {
        refuse!("Core ML supports recurrent layers of floats only, got `{dtype}`");
    }
    if call.flag("train")? && call.float("dropout")? != 0.0 {
        return Err(LoweringError::new("layers with dropout in training mode are random")
            .hint("export the model after `eval()`"));
    }
    let mut x = call.value("input")?;
    let batch_first = call.flag("batch_first")?;
    let count = call.known_int("num_layers")?;
    let directions = if call.flag("bidirectional")? { 2 } else { 1 };
    let initial = states(call, kind)?;
    let weights = all_weights(call, kind, directions)?;
    if weights.len() as i64 != count * directions as i64 {
        refuse!("`params` has weights for {} layers; expected {count}", weights.len());
    }
    if batch_first {
        x = call.transpose(x, &[1, 0, 2])?;
    }
    // For each state, the final values of each layer and direction.
    let mut last = vec![Vec::new(); kind.states()];
    for (layer, weights) in weights.chunks(directions).enumerate() {
        let first = layer * directions;
        let outcome = if kind == Kind::Lstm && native(call, kind, weights) {
            both_ways(call, x, &initial, first, weights)?
        } else {
            by_direction(call, kind, x, &initial, first, weights)?
        };
        x = outcome.output;
        last.iter_mut().zip(outcome.last).for_each(|(all, more)| all.extend(more));
    }
    if batch_first {
        x = call.transpose(x, &[1, 0, 2])?;
    }
    let mut results = vec![LoweredValue::tensor(x, dtype)];
    for (index, states) in last.into_iter().enumerate() {
        if !call.is_used(index + 1) {
            results.push(LoweredValue::Nothing);
            continue;
        }
        let state = call.stack(&states, 0)?;
        results.push(LoweredValue::tensor(state, dtype));
    }
    Ok(results)
}

/// Weights of every layer and direction, in torch's order.
fn all_weights(call: &mut Call<'_, '_>, kind: Kind, directions: usize) -> Result<Vec<Weights>> {
    let biased = call.flag("has_biases")?;
    let params: Vec<_> = call.tensors("params")?.into_iter().map(|param| param.value).collect();
    let count = call.known_int("num_layers")?.max(0) as usize * directions;
    let each = params.len().checked_div(count).unwrap_or(0);
    let plain = if biased { 4 } else { 2 };
    let projected = kind == Kind::Lstm && each == plain + 1;
    if params.len() != count * each || !(each == plain || projected) {
        refuse!("`params` has {} tensors for {count} layers", params.len());
    }
    let weights = params.chunks(each).map(|params| {
        let given = |there: bool, at: usize| params.get(at).copied().filter(|_| there);
        Ok(Weights {
            of_input: *params.at(0)?,
            of_hidden: *params.at(1)?,
            input_bias: given(biased, 2),
            hidden_bias: given(biased, 3),
            projection: given(projected, plain),
        })
    });
    weights.collect()
}

/// Whether Core ML's operation is equivalent to torch's.
fn native(builder: &Builder, kind: Kind, weights: &[Weights]) -> bool {
    let constant =
        weights.iter().all(|weights| weights.are_constant(builder) && weights.projection.is_none());
    constant && (kind != Kind::Gru || builder.opset() >= Opset::Ios18)
}

/// Results of a layer.
struct Outcome {
    /// Hidden states of every step, with the directions concatenated.
    output: ValueId,
    /// For each state, the final value of each direction.
    last: Vec<Vec<ValueId>>,
}

/// Runs both directions in a single operation.
fn both_ways(
    call: &mut Call<'_, '_>,
    x: ValueId,
    initial: &[ValueId],
    first: usize,
    weights: &[Weights],
) -> Result<Outcome> {
    let bound = bound(call, weights)?;
    let mut states = Vec::with_capacity(2);
    for &initial in initial {
        let parts = (0..weights.len()).map(|at| picked(call, initial, first + at));
        let parts = parts.collect::<Result<Vec<_>, _>>()?;
        states.push(call.concat(&parts, 1)?);
    }
    let outputs = lstm(call, x, &states, bound)?;
    let &[output, h, c] = outputs.as_slice() else {
        refuse!("`lstm` returns {} values", outputs.len())
    };
    let mut last = Vec::with_capacity(2);
    for (index, state) in [h, c].into_iter().enumerate() {
        last.push(match weights.len() {
            1 => vec![state],
            _ if call.is_used(index + 1) => call.split_evenly(state, 2, 1)?,
            _ => Vec::new(),
        });
    }
    Ok(Outcome { output, last })
}

/// Input weight, hidden weight and bias.
type Bound = [Option<ValueId>; 3];

/// Weights of one or both directions as arguments of Core ML's `lstm`.
fn bound(builder: &mut Builder, weights: &[Weights]) -> Result<[Bound; 2]> {
    let mut bound = [[None; 3]; 2];
    for (bound, weights) in bound.iter_mut().zip(weights) {
        let [of_input, of_hidden] = weights.matrices(builder, Kind::Lstm)?;
        let bias = weights.bias(builder)?;
        *bound = [Some(of_input), Some(of_hidden), ordered(builder, Kind::Lstm, bias)?];
    }
    Ok(bound)
}

fn lstm(
    builder: &mut Builder,
    x: ValueId,
    states: &[ValueId],
    bound: [Bound; 2],
) -> Result<Vec<ValueId>> {
    let [[weight_ih, weight_hh, bias], [weight_ih_back, weight_hh_back, bias_back]] = bound;
    let direction = if weight_ih_back.is_some() { "bidirectional" } else { "forward" };
    let (initial_h, initial_c) = (*states.at(0)?, *states.at(1)?);
    emit_many!(
        builder,
        OpKind::Lstm,
        x,
        initial_h,
        initial_c,
        weight_ih,
        weight_hh,
        bias,
        weight_ih_back,
        weight_hh_back,
        bias_back,
        direction,
        output_sequence = true,
    )
}

/// Runs one direction after the other.
fn by_direction(
    call: &mut Call<'_, '_>,
    kind: Kind,
    x: ValueId,
    initial: &[ValueId],
    first: usize,
    weights: &[Weights],
) -> Result<Outcome> {
    let mut outputs = Vec::with_capacity(weights.len());
    let mut last = vec![Vec::new(); kind.states()];
    for (direction, weights) in weights.iter().enumerate() {
        let backward = direction == 1;
        let mut states = Vec::with_capacity(kind.states());
        for &initial in initial {
            states.push(picked(call, initial, first + direction)?);
        }
        let x = if backward { reversed(call, x)? } else { x };
        let cell = Cell { kind, weights: *weights };
        let (output, after) = if native(call, kind, std::slice::from_ref(weights)) {
            one_way(call, cell, x, &states)?
        } else {
            let gates = affine(call, x, weights.of_input, weights.input_bias)?;
            cell.over_time(call, gates, states)?
        };
        outputs.push(if backward { reversed(call, output)? } else { output });
        last.iter_mut().zip(after).for_each(|(all, state)| all.push(state));
    }
    Ok(Outcome { output: call.concat(&outputs, 2)?, last })
}

fn reversed(builder: &mut Builder, x: ValueId) -> ValueResult {
    emit!(builder, OpKind::Reverse, x, axes = [0])
}

/// Runs one of Core ML's layers forward.
fn one_way(builder: &mut Builder, cell: Cell, x: ValueId, states: &[ValueId]) -> Run {
    let Cell { kind, weights } = cell;
    let initial_h = *states.at(0)?;
    let outputs = match kind {
        Kind::Lstm => {
            let bound = bound(builder, &[weights])?;
            lstm(builder, x, states, bound)?
        }
        Kind::Gru => {
            let [weight_ih, weight_hh] = weights.matrices(builder, kind)?;
            let input_bias = ordered(builder, kind, weights.input_bias)?;
            let bias = ordered(builder, kind, weights.hidden_bias)?;
            emit_many!(
                builder,
                OpKind::Gru,
                x,
                initial_h,
                weight_ih,
                weight_hh,
                bias,
                input_bias,
                reset_after = true,
                output_sequence = true,
            )?
        }
        Kind::Rnn(activation) => {
            let (weight_ih, weight_hh) = (weights.of_input, weights.of_hidden);
            let bias = weights.bias(builder)?;
            emit_many!(
                builder,
                OpKind::Rnn,
                x,
                initial_h,
                weight_ih,
                weight_hh,
                bias,
                activation,
                output_sequence = true,
            )?
        }
    };
    match outputs.split_first() {
        Some((&output, states)) => Ok((output, states.to_vec())),
        None => refuse!("a recurrent layer has no results"),
    }
}

/// Reorders the gates of a weight or bias to Core ML's order.
fn in_order(builder: &mut Builder, kind: Kind, weight: ValueId) -> ValueResult {
    let gates = kind.gates();
    if gates.len() == 1 {
        return Ok(weight);
    }
    let Some(rows) = builder.extents(weight).first().copied().flatten() else {
        refuse!("the sizes of the weights of a recurrent layer are unknown");
    };
    let hidden = rows as i64 / gates.len() as i64;
    let mut parts = Vec::with_capacity(gates.len());
    for gate in gates {
        parts.push(builder.slice(weight, 0, gate * hidden, Some((gate + 1) * hidden))?);
    }
    builder.concat(&parts, 0)
}

fn ordered(builder: &mut Builder, kind: Kind, bias: Option<ValueId>) -> Result<Option<ValueId>> {
    bias.map(|bias| in_order(builder, kind, bias)).transpose()
}

/// Selects one index of the first axis.
pub(super) fn picked(builder: &mut Builder, x: ValueId, at: usize) -> ValueResult {
    builder.taken_at(x, 0, Int::Known(at as i64))
}

/// The initial states in `hx`.
fn states(call: &mut Call<'_, '_>, kind: Kind) -> Result<Vec<ValueId>> {
    let states: Vec<_> = match kind {
        Kind::Lstm => call.tensors("hx")?.into_iter().map(|state| state.value).collect(),
        _ => vec![call.value("hx")?],
    };
    if states.len() != kind.states() {
        refuse!("`hx` has {} tensors; expected {}", states.len(), kind.states());
    }
    Ok(states)
}

/// A single cell step.
fn cell(call: &mut Call<'_, '_>) -> Results {
    let kind = Kind::of(call);
    let dtype = call.result_dtype()?;
    let x = call.value("input")?;
    let states = states(call, kind)?;
    let weights = Weights {
        of_input: call.value("w_ih")?,
        of_hidden: call.value("w_hh")?,
        input_bias: call.optional_value("b_ih")?,
        hidden_bias: call.optional_value("b_hh")?,
        projection: None,
    };
    let batched = call.rank(x) == 2;
    let cell = Cell { kind, weights };
    let after = if batched && native(call, kind, &[weights]) {
        let sequence = call.expand_dims(x, &[0])?;
        one_way(call, cell, sequence, &states)?.1
    } else {
        let gates = affine(call, x, weights.of_input, weights.input_bias)?;
        cell.step(call, gates, &states)?
    };
    Ok(after.into_iter().map(|state| LoweredValue::tensor(state, dtype)).collect())
}
