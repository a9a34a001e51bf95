use super::*;
use crate::Pool;
use coremill_simd::Isa;

fn numbers(count: usize, seed: u32) -> Vec<f32> {
    let mut state = seed.wrapping_mul(747_796_405).wrapping_add(1);
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / 16_777_216.0 * 2.0 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

/// Weights for which states neither explode nor vanish.
fn weights(gates: usize, units: usize, seed: u32) -> Vec<f32> {
    let scale = 1.5 / (units as f32).sqrt();
    numbers(gates * units * units, seed).iter().map(|weight| weight * scale).collect()
}

fn apply(activation: Activation, x: f64) -> f64 {
    match activation {
        Activation::Sigmoid => 1.0 / (1.0 + (-x).exp()),
        Activation::Tanh => x.tanh(),
        Activation::Relu => x.max(0.0),
        Activation::HardSigmoid { alpha, beta } => {
            (f64::from(alpha) * x + f64::from(beta)).clamp(0.0, 1.0)
        }
        Activation::ScaledTanh { alpha, beta } => f64::from(alpha) * (f64::from(beta) * x).tanh(),
        _ => x,
    }
}

#[derive(Clone, Copy)]
struct Extents {
    steps: usize,
    batch: usize,
    units: usize,
}

/// The states of all steps, and the final cell state, computed by the equations. `weights` are `[gates,
/// units, units]`.
fn reference(
    kind: &Kind,
    extents: Extents,
    inputs: &[f32],
    weights: &[f32],
    reverse: bool,
) -> (Vec<f64>, Vec<f64>) {
    let Extents { steps, batch, units } = extents;
    let gates = kind.gates();
    let mut states = vec![0.0; steps * batch * units];
    let mut memories = vec![];
    for row in 0..batch {
        let start = numbers(batch * units, 50);
        let mut state: Vec<f64> =
            start[row * units..(row + 1) * units].iter().map(|&x| f64::from(x)).collect();
        let mut memory = state.iter().map(|x| x * 0.5).collect::<Vec<f64>>();
        for step in 0..steps {
            let time = if reverse { steps - 1 - step } else { step };
            let x = |gate: usize, unit: usize| {
                f64::from(inputs[((time * batch + row) * gates + gate) * units + unit])
            };
            let product = |gate: usize, unit: usize, state: &[f64]| -> f64 {
                let weights = &weights[(gate * units + unit) * units..][..units];
                weights.iter().zip(state).map(|(&weight, state)| f64::from(weight) * state).sum()
            };
            let mut next = vec![0.0; units];
            match kind {
                Kind::Lstm { recurrent, cell, output, peephole, clip } => {
                    for unit in 0..units {
                        let peep = |gate: usize, memory: f64| {
                            peephole.as_ref().map_or(0.0, |all| f64::from(all[gate][unit]) * memory)
                        };
                        let sum = |gate: usize| x(gate, unit) + product(gate, unit, &state);
                        let input = apply(*recurrent, sum(0) + peep(0, memory[unit]));
                        let forget = apply(*recurrent, sum(1) + peep(1, memory[unit]));
                        let candidate = apply(*cell, sum(3));
                        memory[unit] = forget * memory[unit] + input * candidate;
                        if let Some(most) = clip {
                            memory[unit] = memory[unit].clamp(-f64::from(*most), f64::from(*most));
                        }
                        let out = apply(*recurrent, sum(2) + peep(2, memory[unit]));
                        next[unit] = out * apply(*output, memory[unit]);
                    }
                }
                Kind::Gru { recurrent, output, reset_after } => {
                    let gate = |gate: usize, unit: usize| {
                        apply(*recurrent, x(gate, unit) + product(gate, unit, &state))
                    };
                    let reset: Vec<f64> =
                        (0..units).map(|unit| gate(0, unit) * state[unit]).collect();
                    for unit in 0..units {
                        let sum = match reset_after {
                            Some(bias) => {
                                let inner = product(2, unit, &state) + f64::from(bias[unit]);
                                x(2, unit) + gate(0, unit) * inner
                            }
                            None => x(2, unit) + product(2, unit, &reset),
                        };
                        let update = gate(1, unit);
                        next[unit] = (1.0 - update) * apply(*output, sum) + update * state[unit];
                    }
                }
                Kind::Plain { output } => {
                    for (unit, next) in next.iter_mut().enumerate() {
                        *next = apply(*output, x(0, unit) + product(0, unit, &state));
                    }
                }
            }
            state = next;
            states[(time * batch + row) * units..][..units].copy_from_slice(&state);
        }
        memories.extend(memory);
    }
    (states, memories)
}

enum Kind {
    Lstm {
        recurrent: Activation,
        cell: Activation,
        output: Activation,
        peephole: Option<[Vec<f32>; 3]>,
        clip: Option<f32>,
    },
    Gru {
        recurrent: Activation,
        output: Activation,
        reset_after: Option<Vec<f32>>,
    },
    Plain {
        output: Activation,
    },
}

impl Kind {
    fn gates(&self) -> usize {
        match self {
            Kind::Lstm { .. } => 4,
            Kind::Gru { .. } => 3,
            Kind::Plain { .. } => 1,
        }
    }

    fn pack(&self, isa: Isa, weights: &[f32], units: usize) -> Vec<RecurrentWeights> {
        let square = units * units;
        let pack = |part: &[f32], gates| RecurrentWeights::pack(isa, part, [gates, units, units]);
        match self {
            Kind::Gru { .. } => {
                vec![pack(&weights[..2 * square], 2), pack(&weights[2 * square..], 1)]
            }
            _ => vec![pack(weights, self.gates())],
        }
    }

    fn cell<'a>(&'a self, weights: &'a [RecurrentWeights]) -> Cell<'a> {
        match self {
            Kind::Lstm { recurrent, cell, output, peephole, clip } => Cell::Lstm {
                weights: &weights[0],
                recurrent: *recurrent,
                cell: *cell,
                output: *output,
                peephole: peephole.as_ref().map(|all| [0, 1, 2].map(|gate| all[gate].as_slice())),
                clip: *clip,
            },
            Kind::Gru { recurrent, output, reset_after } => Cell::Gru {
                gates: &weights[0],
                candidate: &weights[1],
                recurrent: *recurrent,
                output: *output,
                reset_after: reset_after.as_deref(),
            },
            Kind::Plain { output } => Cell::Plain { weights: &weights[0], output: *output },
        }
    }
}

fn kinds(units: usize) -> Vec<Kind> {
    vec![
        Kind::Lstm {
            recurrent: Activation::Sigmoid,
            cell: Activation::Tanh,
            output: Activation::Tanh,
            peephole: None,
            clip: None,
        },
        Kind::Lstm {
            recurrent: Activation::HardSigmoid { alpha: 0.2, beta: 0.5 },
            cell: Activation::ScaledTanh { alpha: 1.2, beta: 0.7 },
            output: Activation::Linear { alpha: 1.0, beta: 0.0 },
            peephole: Some([70, 71, 72].map(|seed| numbers(units, seed))),
            clip: Some(0.25),
        },
        Kind::Gru { recurrent: Activation::Sigmoid, output: Activation::Tanh, reset_after: None },
        Kind::Gru {
            recurrent: Activation::Sigmoid,
            output: Activation::Tanh,
            reset_after: Some(numbers(units, 73)),
        },
        Kind::Plain { output: Activation::Tanh },
        Kind::Plain { output: Activation::Relu },
    ]
}

fn close(results: impl Iterator<Item = f32>, expected: &[f64], what: &str) {
    let mut count = 0;
    for (result, &expected) in results.zip(expected) {
        assert!(
            (f64::from(result) - expected).abs() < 2e-5,
            "{what} at {count}: {result}, not {expected}"
        );
        count += 1;
    }
    assert_eq!(count, expected.len());
}

#[test]
fn recurrent_layers_match_definitions() {
    let mut cases = vec![(3, 1, 5), (2, 3, 3), (1, 2, 17), (0, 1, 4)];
    if !cfg!(miri) {
        cases.extend([(5, 1, 33), (4, 5, 64), (3, 1, 200), (3, 2, 257)]);
    }
    for isa in Isa::available() {
        for threads in [1, 3] {
            let pool = Pool::new(threads);
            for &(steps, batch, units) in &cases {
                let extents = Extents { steps, batch, units };
                for (number, kind) in kinds(units).iter().enumerate() {
                    let what = format!("{isa} {threads} {steps} {batch} {units} {number}");
                    let gates = kind.gates();
                    let inputs = [80, 81].map(|seed| numbers(steps * batch * gates * units, seed));
                    let weights = [82, 83].map(|seed| weights(gates, units, seed));
                    let packed = [0, 1].map(|at| kind.pack(isa, &weights[at], units));
                    let start = numbers(batch * units, 50);
                    let mut states = [start.clone(), start.clone()];
                    let memory: Vec<f32> = match kind {
                        Kind::Lstm { .. } => start.iter().map(|x| x * 0.5).collect(),
                        _ => vec![],
                    };
                    let mut memories = [memory.clone(), memory];
                    let mut directions: Vec<_> = states
                        .iter_mut()
                        .zip(&mut memories)
                        .enumerate()
                        .map(|(at, (state, memory))| Direction {
                            cell: kind.cell(&packed[at]),
                            inputs: &inputs[at],
                            reverse: at == 1,
                            state,
                            memory,
                        })
                        .collect();
                    let mut output = vec![9.0; steps * batch * 2 * units];
                    run_recurrent(&pool, steps, batch, &mut directions, Some(&mut output));
                    for at in [0, 1] {
                        let (expected, memory) =
                            reference(kind, extents, &inputs[at], &weights[at], at == 1);
                        let rows = output.chunks_exact(2 * units);
                        let rows = rows.flat_map(|row| row[at * units..(at + 1) * units].to_vec());
                        close(rows, &expected, &what);
                        if !memories[at].is_empty() {
                            close(memories[at].iter().copied(), &memory, &what);
                        }
                    }
                    // A single direction has the same results, and the final state is computed without an
                    // output as well.
                    let mut state = start.clone();
                    let mut memory: Vec<f32> = match kind {
                        Kind::Lstm { .. } => start.iter().map(|x| x * 0.5).collect(),
                        _ => vec![],
                    };
                    let direction = Direction {
                        cell: kind.cell(&packed[1]),
                        inputs: &inputs[1],
                        reverse: true,
                        state: &mut state,
                        memory: &mut memory,
                    };
                    run_recurrent(&pool, steps, batch, &mut [direction], None);
                    assert_eq!(state, states[1], "{what}");
                    assert_eq!(memory, memories[1], "{what}");
                }
            }
        }
    }
}

#[test]
fn nan_input_propagates_to_state() {
    for isa in Isa::available() {
        let kinds = kinds(4);
        let packed = kinds[0].pack(isa, &weights(4, 4, 1), 4);
        let (mut state, mut memory) = ([0.0; 4], [0.0; 4]);
        let mut inputs = [0.5; 16];
        inputs[3] = f32::NAN;
        let direction = Direction {
            cell: kinds[0].cell(&packed),
            inputs: &inputs,
            reverse: false,
            state: &mut state,
            memory: &mut memory,
        };
        run_recurrent(&Pool::new(1), 1, 1, &mut [direction], None);
        assert!(state[3].is_nan() && !state[2].is_nan());
    }
}
