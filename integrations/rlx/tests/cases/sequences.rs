//! Recurrences, and nested graphs.

use rlx_ir::op::*;
use rlx_ir::{DType, Graph, Op, Shape};

use super::*;

pub(crate) fn add(cases: &mut Vec<Case>) {
    // Short sequences are unrolled; long ones become loops.
    for length in [3, 11] {
        let delta = between(&[2, length, 4], 1, 0.1, 1.0);
        let a = between(&[4, 3], 2, -1.0, -0.1);
        let all = [x(&[2, length, 4], 3), delta, a, x(&[2, length, 3], 4), x(&[2, length, 3], 5)];
        cases.push(op(Op::SelectiveScan { state_size: 3 }, &all, &[2, length, 4]));
        let all = [
            x(&[1, length, 2, 3], 6),
            between(&[1, length, 2], 7, 0.1, 1.0),
            between(&[2], 8, -1.0, -0.1),
            x(&[1, length, 2, 4], 9),
            x(&[1, length, 2, 4], 10),
        ];
        let of = Op::Mamba2 { head_dim: 3, state_size: 4 };
        cases.push(op(of, &all, &[1, length, 2, 3]));
        for (carry_state, gate_per_channel) in [(false, false), (true, false), (false, true)] {
            let s = [2, length, 2, 3];
            let gates = if gate_per_channel { s.to_vec() } else { s[..3].to_vec() };
            let mut all = vec![
                x(&s, 11),
                between(&s, 12, -0.5, 0.5),
                x(&s, 13),
                between(&gates, 14, -1.0, -0.1),
                between(&s[..3], 15, 0.1, 0.9),
            ];
            if carry_state {
                all.push(x(&[2, 2, 3, 3], 16));
            }
            let of = Op::GatedDeltaNet { state_size: 3, carry_state, gate_per_channel };
            cases.push(op(of, &all, &s));
            all.push(x(&s, 17));
            let of = Op::GatedDeltaNetBackward { state_size: 3, carry_state, gate_per_channel };
            let rows = 2 * length * 2;
            let gates = if gate_per_channel { 3 * rows } else { rows };
            let state = if carry_state { 36 } else { 0 };
            cases.push(op(of, &all, &[9 * rows + gates + rows + state]));
        }
        recurrent(cases, length);
        scans(cases, length);
    }
    branches(cases);
}

fn recurrent(cases: &mut Vec<Case>, length: usize) {
    let (batch, inputs, hidden) = (2, 3, 4);
    for (layers, both) in [(1, false), (2, true)] {
        let directions = if both { 2 } else { 1 };
        let blocks = layers * directions;
        let size = |gates: usize| {
            let of_input: usize = (0..layers)
                .map(|layer| if layer == 0 { inputs } else { directions * hidden })
                .map(|inputs| directions * gates * hidden * inputs)
                .sum();
            [of_input, blocks * gates * hidden * hidden, blocks * gates * hidden]
        };
        let shape = [batch, length, directions * hidden];
        for carry in [false, true] {
            let operands = |gates: usize, salt: u64| -> Vec<OperandCase> {
                let mut all = vec![x(&[batch, length, inputs], salt)];
                all.extend(size(gates).iter().zip(1..).map(|(&size, at)| x(&[size], salt + at)));
                all
            };
            let state = |salt| x(&[blocks, batch, hidden], salt);
            let (hidden_size, num_layers, bidirectional) = (hidden, layers, both);
            let mut all = operands(4, 20);
            if carry {
                all.extend([state(24), state(25)]);
            }
            let of = Op::Lstm { hidden_size, num_layers, bidirectional, carry };
            cases.push(op(of, &all, &shape));
            let mut all = operands(3, 26);
            all.push(x(&[blocks * 3 * hidden], 30));
            if carry {
                all.push(state(31));
            }
            let of = Op::Gru { hidden_size, num_layers, bidirectional, carry };
            cases.push(op(of, &all, &shape));
            let mut all = operands(1, 32);
            if carry {
                all.push(state(36));
            }
            let of = Op::Rnn { hidden_size, num_layers, bidirectional, carry, relu: both };
            cases.push(op(of, &all, &shape));
        }
    }
}

fn input(graph: &mut Graph, name: &str, shape: &[usize]) -> NodeId {
    graph.add_node(Op::Input { name: name.into() }, vec![], Shape::new(shape, DType::F32))
}

fn binary(graph: &mut Graph, of: BinaryOp, x: NodeId, y: NodeId, shape: &[usize]) -> NodeId {
    graph.add_node(Op::Binary(of), vec![x, y], Shape::new(shape, DType::F32))
}

/// `carry · w + x`, or without the factor.
fn body(bcast: bool) -> Graph {
    let mut body = Graph::new("body");
    let s = &[3];
    let mut carry = input(&mut body, "carry", s);
    if bcast {
        let factor = input(&mut body, "w", s);
        carry = binary(&mut body, BinaryOp::Mul, carry, factor, s);
    }
    let x = input(&mut body, "x", s);
    let sum = binary(&mut body, BinaryOp::Add, carry, x, s);
    let tanh = Op::Activation(Activation::Tanh);
    let next = body.add_node(tanh, vec![sum], Shape::new(s, DType::F32));
    body.set_outputs(vec![next]);
    body
}

/// The gradients of `tanh(carry + x)`, which are equal for both operands.
fn body_vjp() -> Graph {
    let mut body = Graph::new("body_vjp");
    let s = &[3];
    let carry = input(&mut body, "carry", s);
    let x = input(&mut body, "x", s);
    let slope = input(&mut body, "d_output", s);
    let sum = binary(&mut body, BinaryOp::Add, carry, x, s);
    let back = Op::ActivationBackward { kind: Activation::Tanh };
    let first = body.add_node(back, vec![sum, slope], Shape::new(s, DType::F32));
    let second = binary(&mut body, BinaryOp::Mul, first, carry, s);
    body.set_outputs(vec![first, second]);
    body
}

fn scans(cases: &mut Vec<Case>, length: usize) {
    let steps = length as u32;
    // With checkpoints, `rlx-cpu` misreads the size of a row; a formula computes the expected result.
    for save_trajectory in [false, true] {
        let of = Op::Scan {
            body: Box::new(body(true)),
            length: steps,
            save_trajectory,
            num_bcast: 1,
            num_xs: 1,
            num_checkpoints: 0,
        };
        let shape = if save_trajectory { vec![length, 3] } else { vec![3] };
        cases.push(op(of, &[x(&[3], 40), x(&[3], 41), x(&[length, 3], 42)], &shape));
    }
    for save_trajectory in [false, true] {
        let slope = if save_trajectory { x(&[length, 3], 43) } else { x(&[3], 43) };
        let all = [x(&[3], 44), x(&[length, 3], 45), slope, x(&[length, 3], 46)];
        let of = Op::ScanBackward {
            body_vjp: Box::new(body_vjp()),
            length: steps,
            save_trajectory,
            num_xs: 1,
            num_checkpoints: 0,
            forward_body: None,
        };
        cases.push(op(of, &all, &[3]));
        let of = Op::ScanBackwardXs {
            body_vjp: Box::new(body_vjp()),
            length: steps,
            save_trajectory,
            num_xs: 1,
            xs_idx: 0,
            num_checkpoints: 0,
            forward_body: None,
        };
        cases.push(op(of, &all, &[length, 3]));
    }
}

fn branches(cases: &mut Vec<Case>) {
    let branch = |factor: f32| {
        let mut branch = Graph::new("branch");
        let x = input(&mut branch, "x", &[3]);
        let data = factor.to_le_bytes().to_vec();
        let factor = branch.add_node(Op::Constant { data }, vec![], Shape::new(&[1], DType::F32));
        let y = binary(&mut branch, BinaryOp::Mul, x, factor, &[3]);
        branch.set_outputs(vec![y]);
        Box::new(branch)
    };
    for truth in [1.0, 0.0] {
        let of = Op::If { then_branch: branch(2.0), else_branch: branch(-3.0) };
        let condition = typed(list(&[truth]), DType::Bool);
        cases.push(op(of, &[condition, x(&[3], 50)], &[3]));
    }
    for max_iterations in [None, Some(2)] {
        let mut cond = Graph::new("cond");
        let carried = input(&mut cond, "x", &[1]);
        let data = 20.0f32.to_le_bytes().to_vec();
        let bound = cond.add_node(Op::Constant { data }, vec![], Shape::new(&[1], DType::F32));
        let less = Shape::new(&[1], DType::Bool);
        let less = cond.add_node(Op::Compare(CmpOp::Lt), vec![carried, bound], less);
        cond.set_outputs(vec![less]);
        let mut body = Graph::new("body");
        let carried = input(&mut body, "x", &[1]);
        let twice = binary(&mut body, BinaryOp::Add, carried, carried, &[1]);
        body.set_outputs(vec![twice]);
        let of = Op::While { cond: Box::new(cond), body: Box::new(body), max_iterations };
        cases.push(op(of, &[list(&[1.5])], &[1]));
    }
    let of = Op::CustomFn { fwd_body: branch(4.0), vjp_body: None, jvp_body: None, num_inputs: 1 };
    cases.push(op(of, &[x(&[3], 51)], &[3]));
}
