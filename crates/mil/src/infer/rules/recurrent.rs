//! Recurrent layers over `[sequence, batch, input]`. The rows of a weight are the gates, with one row of each
//! gate for each element of the hidden state.

use super::expect;
use crate::infer::{InferContext, InferError, InferredValue, Rule};
use crate::ir::{Dim, Expr};

/// Activations of all recurrent operations; the hard sigmoid has two names.
const ACTIVATIONS: [&str; 7] =
    ["tanh", "scaled_tanh", "sigmoid", "hard_sigmoid", "sigmoid_hard", "relu", "linear"];

const ONE_WAY: [&str; 2] = ["forward", "reverse"];

pub(super) fn gru(site: &InferContext) -> Rule {
    let layer = Layer::of(site, 3)?;
    site.choice("direction", &ONE_WAY)?;
    expect::choice_in_any_case(site, "recurrent_activation", &ACTIVATIONS)?;
    expect::choice_in_any_case(site, "activation", &ACTIVATIONS)?;
    layer.check_weights(site, "weight_ih", "weight_hh")?;
    for bias in ["bias", "input_bias"] {
        layer.check_vector(site, bias, 3)?;
    }
    layer.give(site, &["initial_h"], 1)
}

pub(super) fn lstm(site: &InferContext) -> Rule {
    let layer = Layer::of(site, 4)?;
    let direction = site.choice("direction", &["forward", "reverse", "bidirectional"])?;
    for activation in ["recurrent_activation", "cell_activation", "activation"] {
        expect::choice_in_any_case(site, activation, &ACTIVATIONS)?;
    }
    layer.check_weights(site, "weight_ih", "weight_hh")?;
    layer.check_vector(site, "bias", 4)?;
    layer.check_vector(site, "peephole", 3)?;
    let directions = if &*direction == "bidirectional" { 2 } else { 1 };
    if directions == 2 {
        for weight in ["weight_ih_back", "weight_hh_back"] {
            if !site.has(weight) {
                let message = "is required when `direction` is `bidirectional`";
                return Err(InferError::new(message).of(weight));
            }
        }
        layer.check_weights(site, "weight_ih_back", "weight_hh_back")?;
        layer.check_vector(site, "bias_back", 4)?;
        layer.check_vector(site, "peephole_back", 3)?;
    }
    layer.give(site, &["initial_h", "initial_c"], directions)
}

pub(super) fn rnn(site: &InferContext) -> Rule {
    let layer = Layer::of(site, 1)?;
    site.choice("direction", &ONE_WAY)?;
    expect::choice_in_any_case(site, "activation", &ACTIVATIONS)?;
    layer.check_weights(site, "weight_ih", "weight_hh")?;
    layer.check_vector(site, "bias", 1)?;
    layer.give(site, &["initial_h"], 1)
}

/// Properties that the three operations have in common.
struct Layer {
    /// Number of gates.
    gates: i64,
    hidden: Dim,
    sequence: Dim,
    batch: Dim,
    input: Dim,
}

impl Layer {
    fn of(site: &InferContext, gates: i64) -> Result<Layer, InferError> {
        let x = expect::ranked(site, "x", 3, 3)?;
        let weight = expect::ranked(site, "weight_hh", 2, 2)?;
        let [sequence, batch, input] = [0, 1, 2].map(|axis| x.shape[axis].clone());
        Ok(Layer { gates, hidden: weight.shape[1].clone(), sequence, batch, input })
    }

    /// The hidden size times `times`.
    fn hidden_times(&self, site: &InferContext, times: i64) -> Dim {
        site.dim(self.hidden.expr().and_then(|hidden| hidden.mul(&Expr::from(times))))
    }

    fn check_weights(
        &self,
        site: &InferContext,
        of_input: &str,
        of_hidden: &str,
    ) -> Result<(), InferError> {
        let rows = self.hidden_times(site, self.gates);
        let (gates, hidden) = (self.gates, &self.hidden);
        let why = format!("{gates} gates for a hidden size of {hidden}");
        let columns = self.input.clone();
        let for_input = format!("{why} by the last dimension of `x`");
        expect::shape(site, of_input, &[rows.clone(), columns], &for_input)?;
        expect::shape(site, of_hidden, &[rows, hidden.clone()], &why)
    }

    fn check_vector(&self, site: &InferContext, name: &str, gates: i64) -> Result<(), InferError> {
        let extent = self.hidden_times(site, gates);
        let why = format!("{gates} gates for a hidden size of {}", self.hidden);
        expect::shape(site, name, &[extent], &why)
    }

    /// The outputs: the hidden state of every step or of the last step, and one final state for each initial
    /// state.
    fn give(&self, site: &InferContext, initial: &[&str], directions: i64) -> Rule {
        let width = self.hidden_times(site, directions);
        let state = vec![self.batch.clone(), width.clone()];
        for name in initial {
            expect::shape(site, name, &state, "batch size by hidden size")?;
        }
        let steps = match site.bool("output_sequence")? {
            true => self.sequence.clone(),
            false => Dim::Known(1),
        };
        let dtype = site.tensor("x")?.dtype;
        let mut outcomes =
            vec![InferredValue::tensor(dtype, vec![steps, self.batch.clone(), width])];
        outcomes.extend(initial.iter().map(|_| InferredValue::tensor(dtype, state.clone())));
        Ok(outcomes)
    }
}
