//! Recurrent layers step by step.

use coremill_mil::ir::{Binding, Constant, Dim, Op, Type, ValueId};
use coremill_mil::ops::OpKind;

use super::{Kind, Weights, picked, stacked};
use crate::bounds::At;
use crate::error::{Refusal, refuse};
use crate::lower::builder::Builder;
use crate::lower::ops::linear::affine;
use crate::lower::value::Int;

/// Sequences of more steps become loops: programs grow with every step that is written out.
const MAX_STEPS: usize = 64;

/// What a step computes.
pub(super) struct Cell {
    pub(super) kind: Kind,
    pub(super) weights: Weights,
}

impl Cell {
    /// The states after a step, from what the input contributes to the gates and from the states before;
    /// the axis of the gates is the last one.
    pub(super) fn step(
        &self,
        builder: &mut Builder,
        of_input: ValueId,
        states: &[ValueId],
    ) -> Result<Vec<ValueId>, Refusal> {
        let weights = &self.weights;
        let h = *states.at(0)?;
        let of_hidden = affine(builder, h, weights.of_hidden, weights.hidden_bias)?;
        match self.kind {
            Kind::Rnn(activation) => {
                let sum = builder.binary(OpKind::Add, of_input, of_hidden)?;
                let kind = if activation == "relu" { OpKind::Relu } else { OpKind::Tanh };
                Ok(vec![builder.unary(kind, sum)?])
            }
            Kind::Lstm => {
                let sum = builder.binary(OpKind::Add, of_input, of_hidden)?;
                let gates = builder.split_evenly(sum, 4, -1)?;
                let input = builder.unary(OpKind::Sigmoid, *gates.at(0)?)?;
                let forget = builder.unary(OpKind::Sigmoid, *gates.at(1)?)?;
                let candidate = builder.unary(OpKind::Tanh, *gates.at(2)?)?;
                let output = builder.unary(OpKind::Sigmoid, *gates.at(3)?)?;
                let kept = builder.binary(OpKind::Mul, forget, *states.at(1)?)?;
                let new = builder.binary(OpKind::Mul, input, candidate)?;
                let c = builder.binary(OpKind::Add, kept, new)?;
                let seen = builder.unary(OpKind::Tanh, c)?;
                let mut h = builder.binary(OpKind::Mul, output, seen)?;
                if let Some(projection) = weights.projection {
                    h = affine(builder, h, projection, None)?;
                }
                Ok(vec![h, c])
            }
            Kind::Gru => {
                let of_input = builder.split_evenly(of_input, 3, -1)?;
                let of_hidden = builder.split_evenly(of_hidden, 3, -1)?;
                let reset = builder.binary(OpKind::Add, *of_input.at(0)?, *of_hidden.at(0)?)?;
                let reset = builder.unary(OpKind::Sigmoid, reset)?;
                let update = builder.binary(OpKind::Add, *of_input.at(1)?, *of_hidden.at(1)?)?;
                let update = builder.unary(OpKind::Sigmoid, update)?;
                let kept = builder.binary(OpKind::Mul, reset, *of_hidden.at(2)?)?;
                let new = builder.binary(OpKind::Add, *of_input.at(2)?, kept)?;
                let new = builder.unary(OpKind::Tanh, new)?;
                // new + update · (h - new)
                let distance = builder.binary(OpKind::Sub, h, new)?;
                let moved = builder.binary(OpKind::Mul, update, distance)?;
                Ok(vec![builder.binary(OpKind::Add, new, moved)?])
            }
        }
    }
}

/// The hidden states of all steps along the first axis, and the states after the last one.
pub(super) fn over_time(
    builder: &mut Builder,
    gates: ValueId,
    mut states: Vec<ValueId>,
    cell: &Cell,
) -> Result<(ValueId, Vec<ValueId>), Refusal> {
    let steps = builder.dim(gates, 0)?;
    match super::known_steps(steps) {
        Some(steps @ 1..=MAX_STEPS) => {
            let mut outputs = Vec::with_capacity(steps);
            for step in 0..steps {
                let of_input = picked(builder, gates, step)?;
                states = cell.step(builder, of_input, &states)?;
                outputs.push(*states.at(0)?);
            }
            Ok((stacked(builder, &outputs)?, states))
        }
        _ => looped(builder, gates, steps, states, cell),
    }
}

/// A loop over the steps, which puts each hidden state in its place.
fn looped(
    builder: &mut Builder,
    gates: ValueId,
    steps: Int,
    states: Vec<ValueId>,
    cell: &Cell,
) -> Result<(ValueId, Vec<ValueId>), Refusal> {
    let hidden = builder.dims(*states.at(0)?)?;
    let mut sizes = vec![steps];
    sizes.extend(&hidden);
    let shape = builder.ints(&sizes)?;
    // What the loop changes is computed, so that it has the type of what replaces it.
    let outputs =
        builder.emit_unfolded(OpKind::Fill, [("shape", shape), ("value", 0.0f32.into())])?;
    let count = builder.int_value(steps)?;
    let start = builder.constant(Constant::int32(0));
    let mut variables = vec![start, outputs];
    variables.extend(&states);
    let inputs: Vec<(String, Type)> = variables
        .iter()
        .map(|&value| (format!("{}_step", builder.label), builder.function.value(value).ty.clone()))
        .collect();

    let condition = builder.open_block(&inputs);
    let more = builder.binary(OpKind::Less, *condition.at(0)?, count)?;
    let condition = builder.close_block(&[more]);

    let body = builder.open_block(&inputs);
    let step = *body.at(0)?;
    let of_input = builder.emit(
        OpKind::Gather,
        [("x", gates.into()), ("indices", step.into()), ("axis", 0.into())],
    )?;
    let after = cell.step(builder, of_input, body.part(2..)?)?;
    let place = builder.expand_dims(step, &[0])?;
    let update = builder.expand_dims(*after.at(0)?, &[0])?;
    let written = builder.emit(
        OpKind::Scatter,
        [
            ("data", (*body.at(1)?).into()),
            ("indices", place.into()),
            ("updates", update.into()),
            ("axis", 0.into()),
            ("mode", "update".into()),
        ],
    )?;
    let next = builder.binary(OpKind::Add, step, 1)?;
    let mut results = vec![next, written];
    results.extend(&after);
    let body = builder.close_block(&results);

    let mut op = Op::new(OpKind::WhileLoop);
    let bindings: Vec<_> = variables.into_iter().map(Binding::Value).collect();
    op.set_input("loop_vars".into(), bindings);
    op.blocks = vec![condition, body];
    let values = builder.append(op)?;
    let fixed = |value| builder.shape(value).iter().all(|dim| matches!(dim, Dim::Known(_)));
    match values.as_slice() {
        [_, outputs, states @ ..] if fixed(*outputs) || steps.known().is_none() => {
            Ok((*outputs, states.to_vec()))
        }
        _ => refuse!("a loop over {steps:?} steps gives values whose sizes are lost"),
    }
}
