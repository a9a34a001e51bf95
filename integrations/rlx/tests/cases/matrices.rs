//! Linear algebra, and layers on positive definite matrices.

use rlx_ir::op::*;
use rlx_ir::{DType, Op, Shape};

use super::*;

pub(crate) fn add(cases: &mut Vec<Case>) {
    // A few steps are unrolled; more become a loop.
    for size in [3, 9] {
        let mut a = x(&[size, size], size as u64);
        for at in 0..size {
            a.elements[at * size + (at + 1) % size] += 2.0;
        }
        for b in [x(&[size], 2), x(&[size, 2], 3)] {
            let shape = b.shape.clone();
            cases.push(op(Op::DenseSolve, &[a.clone(), b.clone()], &shape));
            for (lower, transpose) in [(true, false), (false, false), (true, true)] {
                let mut a = x(&[size, size], 4);
                for at in 0..size {
                    a.elements[at * (size + 1)] += 3.0;
                }
                let of = Op::TriangularSolve { lower, transpose };
                cases.push(op(of, &[a, b.clone()], &shape));
            }
        }
        cases.push(op(Op::Det, &[a.clone()], &[]));
        cases.push(op(Op::LogDet, &[a], &[]));
        let spd = given(&[size, size], definite(1, size, 5));
        cases.push(op(Op::Cholesky, std::slice::from_ref(&spd), &[size, size]));
        for (rows, columns) in [(size, size), (size + 2, size), (size, size + 1)] {
            let a = || [x(&[rows, columns], 6)];
            let rank = rows.min(columns);
            cases.push(op(Op::Qr { part: QrPart::Q }, &a(), &[rows, rank]));
            cases.push(op(Op::Qr { part: QrPart::R }, &a(), &[rank, columns]));
            let of = Op::Svd { part: SvdPart::U };
            cases.push(op(of, &a(), &[rows, rank]).magnitudes().within(1e-3));
            cases.push(op(Op::Svd { part: SvdPart::S }, &a(), &[rank]));
            let of = Op::Svd { part: SvdPart::Vt };
            cases.push(op(of, &a(), &[rank, columns]).magnitudes().within(1e-3));
        }
        doubles(cases, size);
    }
    let batch = [x(&[2, 3, 3], 7), x(&[2, 3], 8)];
    cases.push(op(Op::BatchedDenseSolve, &batch, &[2, 3]).within(1e-3));
}

/// Operations that `rlx-cpu` computes in double precision and this crate in single precision.
fn doubles(cases: &mut Vec<Case>, size: usize) {
    let one = &[size, size];
    let many = &[2, size, size];
    let double = |given: OperandCase| typed(given, DType::F64);
    let spd = |salt| double(given(one, definite(1, size, salt)));
    let batch = |salt| double(given(many, definite(2, size, salt)));
    let symmetric = |salt: u64| {
        let mut found = x(one, salt);
        for row in 0..size {
            for column in 0..row {
                found.elements[row * size + column] = found.elements[column * size + row];
            }
        }
        double(found)
    };
    let slopes = |shape: &[usize], salt| double(x(shape, salt));
    let mut add = |of: Op, operands: &[OperandCase], shape: &[usize]| {
        cases.push(typed_op(of, operands, shape, DType::F64).within(2e-3));
    };
    add(Op::BiMap, &[slopes(&[2, size], 1), spd(2)], &[2, 2]);
    let eps = 1e-4;
    add(Op::SpdBatchNorm { eps }, &[batch(9), spd(10), spd(11)], many);
    add(Op::SpdBatchNormBackwardX { eps }, &[spd(12), spd(13), slopes(many, 14)], many);
    let all = [batch(15), spd(16), spd(17), slopes(many, 18)];
    add(Op::SpdBatchNormBackwardG { eps }, &all, one);
    let (iters, tol) = (4, 1e-6);
    add(Op::SpdKarcherMean { iters, tol }, &[batch(19)], one);
    let weights = double(list(&[0.3, 0.9]));
    add(Op::SpdKarcherMeanWeighted { iters, tol }, &[batch(20), weights], one);
    add(Op::SpdLogMap, &[spd(21), spd(22)], one);
    add(Op::SpdExpMap, &[spd(23), symmetric(24)], one);
    add(Op::SpdParallelTransport, &[spd(25), spd(26), symmetric(27)], one);
    add(Op::SpdLogMapBackward, &[spd(28), spd(29), slopes(one, 30)], many);
    add(Op::SpdExpMapBackward, &[spd(31), symmetric(32), slopes(one, 33)], many);
    let all = [spd(34), spd(35), symmetric(36), slopes(one, 37)];
    add(Op::SpdParallelTransportBackward, &all, &[3, size, size]);
    for kind in [SpdMatFn::Logm, SpdMatFn::Expm, SpdMatFn::Sqrtm, SpdMatFn::Invsqrtm] {
        add(Op::SpdMatrixFnBatch { kind }, &[batch(38)], many);
        add(Op::SpdMatrixFnBatchBackward { kind }, &[batch(39), slopes(many, 40)], many);
    }
    // The spectral layers return their eigenvectors after the result.
    for (forward, back) in [
        (Op::ReEig { eps: 0.8 }, Op::ReEigBackward { eps: 0.8 }),
        (Op::LogEig { eps }, Op::LogEigBackward { eps }),
    ] {
        let name = format!("{:?}", forward.kind());
        let packed = Shape::new(&[2 * size * size + size], DType::F64);
        let own = graph(&name, &[spd(3)], |graph, ids| {
            let all = graph.add_node(forward.clone(), ids.to_vec(), packed.clone());
            let part = Op::Narrow { axis: 0, start: 0, len: size * size };
            graph.add_node(part, vec![all], Shape::new(&[size * size], DType::F64))
        });
        cases.push(own.within(2e-3));
        let name = format!("{:?}", back.kind());
        let own = graph(&name, &[spd(3), slopes(one, 4)], |graph, ids| {
            let all = graph.add_node(forward, vec![ids[0]], packed);
            let mut part = |start: usize, len: usize| {
                let part = Op::Narrow { axis: 0, start, len };
                graph.add_node(part, vec![all], Shape::new(&[len], DType::F64))
            };
            let values = part(size * size, size);
            let vectors = part(size * size + size, size * size);
            let operands = vec![values, vectors, ids[1]];
            graph.add_node(back, operands, Shape::new(one, DType::F64))
        });
        cases.push(own.within(2e-3));
    }
    let mut add = |of: Op, operands: &[OperandCase], shape: &[usize]| {
        cases.push(typed_op(of, operands, shape, DType::F64).within(2e-3));
    };
    let length = size + size * size;
    let ladder = |count: usize, salt| {
        let mut found = slopes(&[count, length], salt);
        for row in found.elements.chunks_mut(length) {
            row[..size].iter_mut().enumerate().for_each(|(at, x)| *x = at as f32 * 0.7 + *x * 0.2);
        }
        found
    };
    let flat = |given: OperandCase| OperandCase { shape: vec![length], ..given };
    let all = [flat(ladder(1, 41)), slopes(&[length], 42)];
    add(Op::EighBackward, &all, one);
    add(Op::EighBatchBackward, &[ladder(2, 43), slopes(&[2, length], 44)], many);
    cases.push(typed_op(Op::Eigh, &[spd(45)], &[length], DType::F64).within(2e-3).magnitudes());
    let of = typed_op(Op::EighBatch, &[batch(46)], &[2, length], DType::F64);
    cases.push(of.within(2e-3).magnitudes());
}
