//! Recurrences over a sequence.
//!
//! Up to [`MAX_UNROLLED`] steps are unrolled. More steps become a `while_loop`, whose compile time does not
//! depend on their number.

use std::panic::Location;

use super::place;
use crate::graph::Graph;
use crate::ops::{Concat, Gather, Scatter};
use crate::tensor::Tensor;

/// Maximum length of an unrolled sequence.
pub const MAX_UNROLLED: usize = 8;

/// Runs a body for each step of sequences along axis 0. The body receives the carried values and the elements
/// of the step, and returns new carried values and a result. Returns the final carried values and the results
/// of all steps.
#[track_caller]
pub fn scan<'g>(
    graph: &'g Graph,
    carried: &[Tensor<'g>],
    sequences: &[Tensor<'g>],
    mut body: impl FnMut(&[Tensor<'g>], &[Tensor<'g>]) -> (Vec<Tensor<'g>>, Tensor<'g>),
) -> (Vec<Tensor<'g>>, Tensor<'g>) {
    let steps = sequences.first().map_or(0, |sequence| sequence.extent(0));
    if steps <= MAX_UNROLLED {
        let mut carried = carried.to_vec();
        let mut results = Vec::with_capacity(steps);
        for step in 0..place(steps) {
            let elements: Vec<_> = sequences.iter().map(|sequence| sequence.at(0, step)).collect();
            let (next, result) = body(&carried, &elements);
            carried = next;
            results.push(result.unsqueeze(0));
        }
        let results = match results[..] {
            [only] => only,
            _ => graph.concat(results, 0, Concat::new()),
        };
        return (carried, results);
    }
    // The first step determines the shape of the results.
    let elements: Vec<_> = sequences.iter().map(|sequence| sequence.at(0, 0)).collect();
    let (first, result) = body(carried, &elements);
    let mut shape: Vec<i32> = result.shape().iter().map(|&extent| place(extent)).collect();
    let mut reps = vec![1; shape.len() + 1];
    reps[0] = place(steps);
    shape.insert(0, 1);
    let buffer = result.reshape(shape).tile(reps);
    let mut variables = vec![graph.int(1), buffer];
    variables.extend(&first);
    let last = graph.while_loop(
        &variables,
        |variables| variables[0].less(place(steps)),
        |variables| {
            let place = variables[0].expand_dims([0]);
            let elements: Vec<_> = sequences
                .iter()
                .map(|sequence| {
                    let row = sequence.gather(place, Gather::new().axis(0));
                    row.squeeze(crate::ops::Squeeze::new().axes([0]))
                })
                .collect();
            let (next, result) = body(&variables[2..], &elements);
            let options = Scatter::new().axis(0).mode("update");
            let buffer = variables[1].scatter(place, result.unsqueeze(0), options);
            [vec![variables[0] + 1, buffer], next].concat()
        },
    );
    (last[2..].to_vec(), last[1])
}

/// Repeats a body on carried values and returns their final values. The body also receives the index of the
/// step.
#[track_caller]
pub fn repeat<'g>(
    graph: &'g Graph,
    steps: usize,
    carried: &[Tensor<'g>],
    mut body: impl FnMut(Tensor<'g>, &[Tensor<'g>]) -> Vec<Tensor<'g>>,
) -> Vec<Tensor<'g>> {
    if i32::try_from(steps).is_err() {
        let message = format!("the loop must have at most {} steps, got {steps}", i32::MAX);
        graph.note(message, None, Location::caller());
        return vec![graph.nothing(); carried.len()];
    }
    if steps <= MAX_UNROLLED {
        let mut carried = carried.to_vec();
        for step in 0..steps {
            carried = body(graph.int(place(step)), &carried);
        }
        return carried;
    }
    let mut variables = vec![graph.int(0)];
    variables.extend(carried);
    let last = graph.while_loop(
        &variables,
        |variables| variables[0].less(place(steps)),
        |variables| [vec![variables[0] + 1], body(variables[0], &variables[1..])].concat(),
    );
    last[1..].to_vec()
}

/// Mamba's selective scan. `x` and `delta` are `[batch, length, channels]`, `a` is `[channels, state]`, `b`
/// and `c` are `[batch, length, state]`. The initial state is `[batch, channels, state]`. Returns the result
/// and the final state.
#[track_caller]
pub fn selective_scan<'g>(
    x: Tensor<'g>,
    delta: Tensor<'g>,
    a: Tensor<'g>,
    b: Tensor<'g>,
    c: Tensor<'g>,
    start: Tensor<'g>,
) -> (Tensor<'g>, Tensor<'g>) {
    let graph = x.graph();
    let first = |x: Tensor<'g>| x.transpose([1, 0, 2]);
    let sequences = [first(x), first(delta), first(b), first(c)];
    let (last, results) = scan(graph, &[start], &sequences, |carried, step| {
        let [x, delta, b, c] = [step[0], step[1], step[2], step[3]];
        let decay = (delta.unsqueeze(2) * a).exp();
        let state = carried[0] * decay + (delta * x).unsqueeze(2) * b.unsqueeze(1);
        (vec![state], (state * c.unsqueeze(1)).sum([2], false))
    });
    (results.transpose([1, 0, 2]), last[0])
}

/// Mamba 2's recurrence. `x` is `[batch, length, heads, head]`, `delta` is `[batch, length, heads]`, `a` is
/// `[heads]`, `b` and `c` are `[batch, length, heads, state]`. The initial state is `[batch, heads, head,
/// state]`.
#[track_caller]
pub fn state_space_dual<'g>(
    x: Tensor<'g>,
    delta: Tensor<'g>,
    a: Tensor<'g>,
    b: Tensor<'g>,
    c: Tensor<'g>,
    start: Tensor<'g>,
) -> (Tensor<'g>, Tensor<'g>) {
    let graph = x.graph();
    let wide = |x: Tensor<'g>| x.transpose([1, 0, 2, 3]);
    let sequences = [wide(x), delta.transpose([1, 0, 2]), wide(b), wide(c)];
    let (last, results) = scan(graph, &[start], &sequences, |carried, step| {
        let [x, delta, b, c] = [step[0], step[1], step[2], step[3]];
        let decay = (delta * a).exp().expand_dims([2, 3]);
        let scaled = (x * delta.unsqueeze(2)).unsqueeze(3);
        let state = carried[0] * decay + scaled * b.unsqueeze(2);
        (vec![state], (state * c.unsqueeze(2)).sum([3], false))
    });
    (results.transpose([1, 0, 2, 3]), last[0])
}

/// The gated delta rule. `query` and `key` are `[batch, length, heads, key]`, `value` is `[batch, length,
/// heads, value]`, `gate` (a logarithm) and `beta` are `[batch, length, heads]`. With a gate of shape
/// `[batch, length, heads, key]`, each element of the keys decays individually. The initial state is `[batch,
/// heads, key, value]`.
#[track_caller]
pub fn gated_delta<'g>(
    query: Tensor<'g>,
    key: Tensor<'g>,
    value: Tensor<'g>,
    gate: Tensor<'g>,
    beta: Tensor<'g>,
    start: Tensor<'g>,
) -> (Tensor<'g>, Tensor<'g>) {
    let graph = query.graph();
    let wide = |x: Tensor<'g>| x.transpose([1, 0, 2, 3]);
    let narrow = |x: Tensor<'g>| x.transpose([1, 0, 2]);
    let gate = if gate.rank() == 4 { wide(gate) } else { narrow(gate).unsqueeze(3) };
    let sequences = [wide(query), wide(key), wide(value), gate, narrow(beta)];
    let (last, results) = scan(graph, &[start], &sequences, |carried, step| {
        let [query, key, value, gate, beta] = [step[0], step[1], step[2], step[3], step[4]];
        let decayed = carried[0] * gate.exp().unsqueeze(3);
        let held = (decayed * key.unsqueeze(3)).sum([2], false);
        let correction = (value - held) * beta.unsqueeze(2);
        let state = decayed + key.unsqueeze(3) * correction.unsqueeze(2);
        (vec![state], (state * query.unsqueeze(3)).sum([2], false))
    });
    (results.transpose([1, 0, 2, 3]), last[0])
}

/// RWKV's recurrence (versions 5 and 6). `receptance`, `key` and `decay` are `[batch, length, heads, key]`,
/// `value` is `[batch, length, heads, value]`, `bonus` is `[heads, key]`. The decay is a factor. The initial
/// state is `[batch, heads, key, value]`.
#[track_caller]
pub fn wkv<'g>(
    receptance: Tensor<'g>,
    key: Tensor<'g>,
    value: Tensor<'g>,
    decay: Tensor<'g>,
    bonus: Tensor<'g>,
    start: Tensor<'g>,
) -> (Tensor<'g>, Tensor<'g>) {
    let graph = key.graph();
    let first = |x: Tensor<'g>| x.transpose([1, 0, 2, 3]);
    let sequences = [first(receptance), first(key), first(value), first(decay)];
    let (last, results) = scan(graph, &[start], &sequences, |carried, step| {
        let [receptance, key, value, decay] = [step[0], step[1], step[2], step[3]];
        let product = key.unsqueeze(3) * value.unsqueeze(2);
        let seen = carried[0] + product * bonus.unsqueeze(2);
        let result = (seen * receptance.unsqueeze(3)).sum([2], false);
        (vec![carried[0] * decay.unsqueeze(3) + product], result)
    });
    (results.transpose([1, 0, 2, 3]), last[0])
}
