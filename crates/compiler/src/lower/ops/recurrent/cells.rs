//! Unrolled and looped recurrent layers.

use coremill_mil::ir::{Op, Type};

use super::{Kind, Weights};
use crate::lower::ops::index::written_along;
use crate::lower::ops::linear::affine;
use crate::lower::prelude::*;

/// Maximum number of unrolled steps; longer sequences become loops.
const MAX_STEPS: i64 = 64;

/// Hidden states of all steps along the first axis, and the final states.
pub(super) type Run = Result<(ValueId, Vec<ValueId>)>;

/// Kind and weights of a cell.
pub(super) struct Cell {
    pub(super) kind: Kind,
    pub(super) weights: Weights,
}

impl Cell {
    /// The states after a step, from the input's contribution to the gates and the previous states. The gates are
    /// along the last axis.
    pub(super) fn step(
        &self,
        builder: &mut Builder,
        of_input: ValueId,
        states: &[ValueId],
    ) -> Result<Vec<ValueId>> {
        let weights = &self.weights;
        let h = *states.at(0)?;
        let of_hidden = affine(builder, h, weights.of_hidden, weights.hidden_bias)?;
        match self.kind {
            Kind::Rnn(activation) => {
                let formula = format!("{activation}(of_input + of_hidden)");
                Ok(vec![calc!(builder, &formula, of_input, of_hidden)?])
            }
            Kind::Lstm => {
                let sum = builder.binary(OpKind::Add, of_input, of_hidden)?;
                let [i, f, g, o] = gates(builder, sum)?;
                let c = *states.at(1)?;
                let formula = "i = sigmoid(i); f = sigmoid(f); g = tanh(g); o = sigmoid(o); c = f * c + i * g; \
                               o * tanh(c), c";
                let [mut h, c] = calc!(all builder, formula, i, f, g, o, c)?;
                if let Some(projection) = weights.projection {
                    h = affine(builder, h, projection, None)?;
                }
                Ok(vec![h, c])
            }
            Kind::Gru => {
                let [r, u, n] = gates(builder, of_input)?;
                let [of_r, of_u, of_n] = gates(builder, of_hidden)?;
                let formula = "r = sigmoid(r + of_r); u = sigmoid(u + of_u); n = tanh(n + r * of_n); \
                               n + u * (h - n)";
                Ok(vec![calc!(builder, formula, r, u, n, of_r, of_u, of_n, h)?])
            }
        }
    }

    /// Runs all steps, given the input's contribution to their gates.
    pub(super) fn over_time(
        &self,
        builder: &mut Builder,
        gates: ValueId,
        mut states: Vec<ValueId>,
    ) -> Run {
        let steps = builder.dim(gates, 0)?;
        match steps.known() {
            Some(steps @ 1..=MAX_STEPS) => {
                let mut outputs = Vec::new();
                for step in 0..steps {
                    let of_input = builder.taken_at(gates, 0, Int::Known(step))?;
                    states = self.step(builder, of_input, &states)?;
                    outputs.push(*states.at(0)?);
                }
                Ok((builder.stack(&outputs, 0)?, states))
            }
            _ => self.looped(builder, gates, steps, states),
        }
    }

    /// A loop over the steps that writes each hidden state to its index.
    fn looped(
        &self,
        builder: &mut Builder,
        gates: ValueId,
        steps: Int,
        states: Vec<ValueId>,
    ) -> Run {
        let hidden = builder.dims(*states.at(0)?)?;
        let mut sizes = vec![steps];
        sizes.extend(&hidden);
        // The initial value is computed, not constant, so that its type matches the loop's updates.
        let arguments = [("shape", builder.ints(&sizes)?), ("value", 0.0f32.into())];
        let outputs = builder.append_unfolded(operation(OpKind::Fill, arguments))?;
        let count = builder.int_value(steps)?;
        let start = builder.constant(Constant::int32(0));
        let mut variables = vec![start, outputs];
        variables.extend(&states);
        let inputs: Vec<(String, Type)> = variables
            .iter()
            .map(|&value| {
                (format!("{}_step", builder.label), builder.function.value(value).ty.clone())
            })
            .collect();

        let condition = builder.open_block(&inputs);
        let more = builder.binary(OpKind::Less, *condition.at(0)?, count)?;
        let condition = builder.close_block(&[more]);

        let body = builder.open_block(&inputs);
        let step = *body.at(0)?;
        let of_input = builder.looked_up(gates, step, 0)?;
        let after = self.step(builder, of_input, body.part(2..)?)?;
        let place = builder.expand_dims(step, &[0])?;
        let update = builder.expand_dims(*after.at(0)?, &[0])?;
        let written = written_along(builder, *body.at(1)?, place, update, 0, "update")?;
        let next = builder.binary(OpKind::Add, step, 1)?;
        let mut results = vec![next, written];
        results.extend(&after);
        let body = builder.close_block(&results);

        let bindings = variables.into_iter().map(Binding::Value).collect();
        let mut op = Op::new(OpKind::WhileLoop).with_list("loop_vars", bindings);
        op.blocks = vec![condition, body];
        let values = builder.append(op)?;
        let fixed = |value| builder.shape(value).iter().all(|dim| matches!(dim, Dim::Known(_)));
        match values.as_slice() {
            [_, outputs, states @ ..] if fixed(*outputs) || steps.known().is_none() => {
                Ok((*outputs, states.to_vec()))
            }
            _ => refuse!("a loop over {steps:?} steps returns values of unknown sizes"),
        }
    }
}

/// Splits concatenated gates.
fn gates<const N: usize>(builder: &mut Builder, sum: ValueId) -> Result<[ValueId; N]> {
    let gates = builder.split_evenly(sum, N as i32, -1)?;
    gates
        .try_into()
        .map_err(|_| LoweringError::new("a recurrent layer has the wrong number of gates"))
}
