//! Failures found by the published tests of `rlx-coreml`: `cargo xtask rlx-tests`.

use rlx_ir::{DType, Op, Shape};

use super::{Case, given, graph, list, op, x};

pub(crate) fn add(cases: &mut Vec<Case>) {
    // The seed determines the samples.
    for (top_k, top_p, temperature) in [(4, 0.9, 1.0), (0, 1.0, 0.3), (40, 0.5, 2.0)] {
        let of = Op::Sample { top_k, top_p, temperature, seed: 42 };
        cases.push(op(of, &[x(&[5, 16], 240)], &[5]));
    }
    // Real and imaginary parts are stored along the points.
    let of = Op::FftButterflyStage { stage: 1, n_fft: 4 };
    let flags = [list(&[1.0, 0.0]), list(&[0.0, 1.0])];
    let operands = [&[x(&[2, 8], 241)], &flags[..], &[x(&[2], 242), x(&[2], 243)]].concat();
    cases.push(op(of, &operands, &[2, 8]));
    // A single number is broadcast to a gradient.
    let operands = [x(&[1, 1, 4, 4], 246), given(&[1, 1, 1, 1], vec![0.7])];
    cases.push(graph("Conv2dBackwardWeight", &operands, |graph, ids| {
        let shape = |dims: &[usize]| Shape::new(dims, DType::F32);
        let fill = Op::Expand { target_shape: vec![1, 2, 4, 3] };
        let dy = graph.add_node(fill, vec![ids[1]], shape(&[1, 2, 4, 3]));
        let of = Op::Conv2dBackwardWeight {
            kernel_size: vec![1, 2],
            stride: vec![1, 1],
            padding: vec![0, 0],
            dilation: vec![1, 1],
            groups: 1,
        };
        graph.add_node(of, vec![ids[0], dy], shape(&[2, 1, 1, 2]))
    }));
}
