//! Recurrent layers and cells.
//!
//! Core ML's layers take `[sequence, batch, input]` and constant weights. Their gates are in another order
//! than torch's, and `gru` is torch's from iOS18 on only: before that, as for projected states, the steps
//! are written out.

mod cells;

use coremill_mil::ir::{Opset, ValueId};
use coremill_mil::ops::OpKind;

use self::cells::{Cell, over_time};
use super::linear::affine;
use crate::bounds::At;
use crate::error::{Refusal, refuse};
use crate::lower::builder::{Arg, Builder};
use crate::lower::call::{Call, Results};
use crate::lower::dtype::is_float;
use crate::lower::row::{Row, all, some};
use crate::lower::value::{Int, Lowered};

pub(crate) const ROWS: &[Row] = &[
    some("aten.lstm", &["input"], |call| layers(call, Kind::Lstm)),
    some("aten.gru", &["input"], |call| layers(call, Kind::Gru)),
    some("aten.rnn_tanh", &["input"], |call| layers(call, Kind::Rnn("tanh"))),
    some("aten.rnn_relu", &["input"], |call| layers(call, Kind::Rnn("relu"))),
    some("aten.lstm", &["data"], packed),
    some("aten.gru", &["data"], packed),
    some("aten.rnn_tanh", &["data"], packed),
    some("aten.rnn_relu", &["data"], packed),
    all("aten.lstm_cell", |call| cell(call, Kind::Lstm)),
    all("aten.gru_cell", |call| cell(call, Kind::Gru)),
    all("aten.rnn_tanh_cell", |call| cell(call, Kind::Rnn("tanh"))),
    all("aten.rnn_relu_cell", |call| cell(call, Kind::Rnn("relu"))),
];

/// What kind of layer, and for plain ones which activation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Lstm,
    Gru,
    Rnn(&'static str),
}

impl Kind {
    /// The gates of torch in the order that Core ML has them: of `lstm` input, forget, output and cell, of
    /// `gru` reset, output and update.
    fn gates(self) -> &'static [i64] {
        match self {
            Kind::Lstm => &[0, 1, 3, 2],
            Kind::Gru => &[0, 2, 1],
            Kind::Rnn(_) => &[0],
        }
    }

    /// How many states there are.
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

    /// The rows of both biases added up.
    fn bias(&self, builder: &mut Builder) -> Result<Option<ValueId>, Refusal> {
        match (self.input_bias, self.hidden_bias) {
            (Some(input), Some(hidden)) => builder.binary(OpKind::Add, input, hidden).map(Some),
            (input, hidden) => Ok(input.or(hidden)),
        }
    }
}

fn packed(_: &mut Call<'_, '_>) -> Results {
    Err(Refusal::new(
        "a packed sequence has lengths that are data, which Core ML's layers do not take",
    )
    .hint("pass padded sequences, and take the outputs that count"))
}

/// Layers on top of each other, each in one direction or in both.
fn layers(call: &mut Call<'_, '_>, kind: Kind) -> Results {
    let dtype = call.result_dtype()?;
    if !is_float(dtype) {
        refuse!("Core ML has recurrent layers of floats, not of `{dtype}`");
    }
    if call.flag("train")? && call.float("dropout")? != 0.0 {
        return Err(Refusal::new("layers with dropout in training give random numbers")
            .hint("export the model after `eval()`"));
    }
    let mut x = call.tensor("input")?.value;
    let batch_first = call.flag("batch_first")?;
    let count = call.known_int("num_layers")?;
    let directions = if call.flag("bidirectional")? { 2 } else { 1 };
    let initial = match kind {
        Kind::Lstm => call.tensors("hx")?.into_iter().map(|state| state.value).collect(),
        _ => vec![call.tensor("hx")?.value],
    };
    if initial.len() != kind.states() {
        refuse!("`hx` has {} tensors; accepted are {}", initial.len(), kind.states());
    }
    let weights = all_weights(call, kind, directions)?;
    if weights.len() as i64 != count * directions as i64 {
        refuse!("`params` are of {} layers, but there are {count}", weights.len());
    }
    if batch_first {
        x = call.transpose(x, &[1, 0, 2])?;
    }
    // By state, the last values of each layer in each direction.
    let mut last = vec![Vec::new(); kind.states()];
    for (layer, weights) in weights.chunks(directions).enumerate() {
        let first = layer * directions;
        let outcome = if kind == Kind::Lstm && native(call, kind, weights) {
            lstm(call, x, &initial, first, weights)?
        } else {
            by_direction(call, kind, x, &initial, first, weights)?
        };
        x = outcome.output;
        last.iter_mut().zip(outcome.last).for_each(|(all, more)| all.extend(more));
    }
    if batch_first {
        x = call.transpose(x, &[1, 0, 2])?;
    }
    let mut results = vec![Lowered::tensor(x, dtype)];
    for (index, states) in last.into_iter().enumerate() {
        if !call.is_used(index + 1) {
            results.push(Lowered::Nothing);
            continue;
        }
        let state = stacked(call, &states)?;
        results.push(Lowered::tensor(state, dtype));
    }
    Ok(results)
}

/// The weights of every layer and direction, in torch's order.
fn all_weights(
    call: &mut Call<'_, '_>,
    kind: Kind,
    directions: usize,
) -> Result<Vec<Weights>, Refusal> {
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

/// Whether Core ML's operation computes what torch does.
fn native(builder: &Builder, kind: Kind, weights: &[Weights]) -> bool {
    let constant =
        weights.iter().all(|weights| weights.are_constant(builder) && weights.projection.is_none());
    constant && (kind != Kind::Gru || builder.opset() >= Opset::Ios18)
}

/// What a layer gives.
struct Outcome {
    /// The hidden states of every step, the directions side by side.
    output: ValueId,
    /// By state, the last one of each direction.
    last: Vec<Vec<ValueId>>,
}

/// Both directions in one operation.
fn lstm(
    call: &mut Call<'_, '_>,
    x: ValueId,
    initial: &[ValueId],
    first: usize,
    weights: &[Weights],
) -> Result<Outcome, Refusal> {
    let mut arguments: Vec<(Arg, Arg, Arg)> = Vec::new();
    for weights in weights {
        let of_input = in_order(call, Kind::Lstm, weights.of_input)?;
        let of_hidden = in_order(call, Kind::Lstm, weights.of_hidden)?;
        let bias = weights.bias(call)?;
        let bias = bias.map(|bias| in_order(call, Kind::Lstm, bias)).transpose()?;
        arguments.push((of_input.into(), of_hidden.into(), bias.into()));
    }
    let mut states = Vec::with_capacity(2);
    for &initial in initial {
        let parts = (0..weights.len()).map(|at| picked(call, initial, first + at));
        let parts = parts.collect::<Result<Vec<_>, _>>()?;
        states.push(call.concat(&parts, 1)?);
    }
    let both = weights.len() == 2;
    let mut arguments = arguments.into_iter();
    let (forward, back) = (arguments.next(), arguments.next());
    let Some((of_input, of_hidden, bias)) = forward else { refuse!("a layer has no weights") };
    let back = back.unwrap_or((Arg::Absent, Arg::Absent, Arg::Absent));
    let outputs = call.emit_many(
        OpKind::Lstm,
        [
            ("x", x.into()),
            ("initial_h", (*states.at(0)?).into()),
            ("initial_c", (*states.at(1)?).into()),
            ("weight_ih", of_input),
            ("weight_hh", of_hidden),
            ("bias", bias),
            ("weight_ih_back", back.0),
            ("weight_hh_back", back.1),
            ("bias_back", back.2),
            ("direction", if both { "bidirectional" } else { "forward" }.into()),
            ("output_sequence", true.into()),
        ],
    )?;
    let &[output, h, c] = outputs.as_slice() else {
        refuse!("`lstm` gives {} values", outputs.len())
    };
    let mut last = Vec::with_capacity(2);
    for (index, state) in [h, c].into_iter().enumerate() {
        last.push(if !both {
            vec![state]
        } else if call.is_used(index + 1) {
            call.split_evenly(state, 2, 1)?
        } else {
            Vec::new()
        });
    }
    Ok(Outcome { output, last })
}

/// One direction after the other.
fn by_direction(
    call: &mut Call<'_, '_>,
    kind: Kind,
    x: ValueId,
    initial: &[ValueId],
    first: usize,
    weights: &[Weights],
) -> Result<Outcome, Refusal> {
    let mut outputs = Vec::with_capacity(weights.len());
    let mut last = vec![Vec::new(); kind.states()];
    for (direction, weights) in weights.iter().enumerate() {
        let backward = direction == 1;
        let mut states = Vec::with_capacity(kind.states());
        for &initial in initial {
            states.push(picked(call, initial, first + direction)?);
        }
        let x = if backward { reversed(call, x)? } else { x };
        let (output, after) = if native(call, kind, std::slice::from_ref(weights)) {
            one_way(call, kind, x, &states, weights)?
        } else {
            written_out(call, kind, x, states, weights)?
        };
        outputs.push(if backward { reversed(call, output)? } else { output });
        last.iter_mut().zip(after).for_each(|(all, state)| all.push(state));
    }
    Ok(Outcome { output: call.concat(&outputs, 2)?, last })
}

fn reversed(builder: &mut Builder, x: ValueId) -> Result<ValueId, Refusal> {
    builder.emit(OpKind::Reverse, [("x", x.into()), ("axes", [0].into())])
}

/// One of Core ML's layers, forward.
fn one_way(
    builder: &mut Builder,
    kind: Kind,
    x: ValueId,
    states: &[ValueId],
    weights: &Weights,
) -> Result<(ValueId, Vec<ValueId>), Refusal> {
    let of_input = in_order(builder, kind, weights.of_input)?;
    let of_hidden = in_order(builder, kind, weights.of_hidden)?;
    let ordered = |builder: &mut Builder, bias: Option<ValueId>| {
        bias.map(|bias| in_order(builder, kind, bias)).transpose()
    };
    let outputs = match kind {
        Kind::Lstm => {
            let bias = weights.bias(builder)?;
            let bias = ordered(builder, bias)?;
            builder.emit_many(
                OpKind::Lstm,
                [
                    ("x", x.into()),
                    ("initial_h", (*states.at(0)?).into()),
                    ("initial_c", (*states.at(1)?).into()),
                    ("weight_ih", of_input.into()),
                    ("weight_hh", of_hidden.into()),
                    ("bias", bias.into()),
                    ("direction", "forward".into()),
                    ("output_sequence", true.into()),
                ],
            )?
        }
        Kind::Gru => {
            let input_bias = ordered(builder, weights.input_bias)?;
            let hidden_bias = ordered(builder, weights.hidden_bias)?;
            builder.emit_many(
                OpKind::Gru,
                [
                    ("x", x.into()),
                    ("initial_h", (*states.at(0)?).into()),
                    ("weight_ih", of_input.into()),
                    ("weight_hh", of_hidden.into()),
                    ("bias", hidden_bias.into()),
                    ("input_bias", input_bias.into()),
                    ("reset_after", true.into()),
                    ("output_sequence", true.into()),
                ],
            )?
        }
        Kind::Rnn(activation) => {
            let bias = weights.bias(builder)?;
            builder.emit_many(
                OpKind::Rnn,
                [
                    ("x", x.into()),
                    ("initial_h", (*states.at(0)?).into()),
                    ("weight_ih", of_input.into()),
                    ("weight_hh", of_hidden.into()),
                    ("bias", bias.into()),
                    ("activation", activation.into()),
                    ("output_sequence", true.into()),
                ],
            )?
        }
    };
    match outputs.split_first() {
        Some((&output, states)) => Ok((output, states.to_vec())),
        None => refuse!("a recurrent layer gives nothing"),
    }
}

/// The steps one by one.
fn written_out(
    builder: &mut Builder,
    kind: Kind,
    x: ValueId,
    states: Vec<ValueId>,
    weights: &Weights,
) -> Result<(ValueId, Vec<ValueId>), Refusal> {
    let cell = Cell { kind, weights: *weights };
    let gates = affine(builder, x, weights.of_input, weights.input_bias)?;
    over_time(builder, gates, states, &cell)
}

/// The gates of a weight or a bias as Core ML has them.
fn in_order(builder: &mut Builder, kind: Kind, weight: ValueId) -> Result<ValueId, Refusal> {
    let gates = kind.gates();
    if gates.len() == 1 {
        return Ok(weight);
    }
    let Some(rows) = builder.extents(weight).first().copied().flatten() else {
        refuse!("the weights of a recurrent layer have sizes that are not known");
    };
    let hidden = rows as i64 / gates.len() as i64;
    let mut parts = Vec::with_capacity(gates.len());
    for gate in gates {
        parts.push(builder.slice(weight, 0, gate * hidden, Some((gate + 1) * hidden))?);
    }
    builder.concat(&parts, 0)
}

/// One of the tensors that lie along the first axis.
pub(super) fn picked(builder: &mut Builder, x: ValueId, at: usize) -> Result<ValueId, Refusal> {
    if builder.extents(x).first() == Some(&Some(1)) {
        return builder.squeeze(x, &[0]);
    }
    let rank = builder.rank(x);
    let first = |value: i32| -> Vec<i32> {
        (0..rank).map(|axis| if axis == 0 { value } else { 0 }).collect()
    };
    let of_first: Vec<_> = (0..rank).map(|axis| axis == 0).collect();
    let of_others: Vec<_> = (0..rank).map(|axis| axis != 0).collect();
    builder.emit(
        OpKind::SliceByIndex,
        [
            ("x", x.into()),
            ("begin", first(at as i32).as_slice().into()),
            ("end", first(at as i32 + 1).as_slice().into()),
            ("end_mask", Arg::bools(&of_others)),
            ("squeeze_mask", Arg::bools(&of_first)),
        ],
    )
}

/// Tensors along a new first axis.
pub(super) fn stacked(builder: &mut Builder, values: &[ValueId]) -> Result<ValueId, Refusal> {
    if let [only] = values {
        return builder.expand_dims(*only, &[0]);
    }
    builder.emit(OpKind::Stack, [("values", values.into()), ("axis", 0.into())])
}

/// A single step.
fn cell(call: &mut Call<'_, '_>, kind: Kind) -> Results {
    let dtype = call.result_dtype()?;
    let x = call.tensor("input")?.value;
    let states: Vec<_> = match kind {
        Kind::Lstm => call.tensors("hx")?.into_iter().map(|state| state.value).collect(),
        _ => vec![call.tensor("hx")?.value],
    };
    if states.len() != kind.states() {
        refuse!("`hx` has {} tensors; accepted are {}", states.len(), kind.states());
    }
    let weights = Weights {
        of_input: call.tensor("w_ih")?.value,
        of_hidden: call.tensor("w_hh")?.value,
        input_bias: call.optional_tensor("b_ih")?.map(|bias| bias.value),
        hidden_bias: call.optional_tensor("b_hh")?.map(|bias| bias.value),
        projection: None,
    };
    let batched = call.rank(x) == 2;
    let after = if batched && native(call, kind, &[weights]) {
        let sequence = call.expand_dims(x, &[0])?;
        one_way(call, kind, sequence, &states, &weights)?.1
    } else {
        let gates = affine(call, x, weights.of_input, weights.input_bias)?;
        Cell { kind, weights }.step(call, gates, &states)?
    };
    Ok(after.into_iter().map(|state| Lowered::tensor(state, dtype)).collect())
}

/// The known extent of a dimension, if it is small enough to be gone through step by step.
fn known_steps(steps: Int) -> Option<usize> {
    steps.known().and_then(|steps| usize::try_from(steps).ok())
}
