//! Shapes, slices and indexing.

use rlx_ir::op::*;
use rlx_ir::{DType, Op};

use super::*;

pub(crate) fn add(cases: &mut Vec<Case>) {
    let s = &[3, 4];
    let one = |salt| [x(s, salt)];
    cases.push(op(Op::Reshape { new_shape: vec![2, 6] }, &one(1), &[2, 6]));
    let three = [x(&[2, 3, 4], 2)];
    cases.push(op(Op::Transpose { perm: vec![2, 0, 1] }, &three, &[4, 2, 3]));
    cases.push(op(Op::Narrow { axis: 1, start: 1, len: 2 }, &one(3), &[3, 2]));
    cases.push(op(Op::Slice { axis: 1, start: 0, len: 2, step: 2 }, &one(4), &[3, 2]));
    cases.push(op(Op::Slice { axis: 1, start: 3, len: 2, step: -2 }, &one(5), &[3, 2]));
    cases.push(op(Op::Concat { axis: 1 }, &[x(s, 6), x(&[3, 2], 7)], &[3, 6]));
    cases.push(op(Op::Reverse { axes: vec![0, 1] }, &one(8), s));
    cases.push(op(Op::Roll { shifts: vec![1, -2], dims: vec![0, 1] }, &one(9), s));
    for upper in [true, false] {
        cases.push(op(Op::Trilu { upper, diagonal: 1 }, &three, &[2, 3, 4]));
    }
    let modes = [PadMode::Constant(0.5), PadMode::Reflect, PadMode::Replicate, PadMode::Circular];
    for mode in modes {
        cases.push(op(Op::Pad { pads: vec![[1, 0], [1, 2]], mode }, &one(10), &[4, 7]));
    }
    cases.push(op(Op::Expand { target_shape: vec![3, 4] }, &[x(&[1, 4], 11)], s));
    cases.push(op(Op::Tile { reps: vec![2, 3] }, &one(12), &[6, 12]));
    cases.push(op(Op::Gather { axis: 0 }, &[x(s, 13), list(&[2.0, 0.0])], &[2, 4]));
    cases.push(op(Op::Gather { axis: 1 }, &[x(s, 14), list(&[3.0, 0.0, 1.0])], &[3, 3]));
    let places = typed(indices(&[3, 2], 15, 4), DType::I64);
    cases.push(op(Op::GatherElements { axis: 1 }, &[x(s, 16), places], &[3, 2]));
    let places = typed(given(&[2, 1], vec![2.0, 0.0]), DType::I64);
    cases.push(op(Op::GatherNd { batch_dims: 0 }, &[x(s, 17), places.clone()], &[2, 4]));
    let updates = [x(&[3, 2], 18), list(&[1.0, 0.0, 1.0])];
    cases.push(op(Op::ScatterAdd { axis: 0 }, &updates, &[4, 2]));
    for reduction in [ScatterNdReduction::None, ScatterNdReduction::Add] {
        let nd = [x(s, 19), places.clone(), x(&[2, 4], 20)];
        cases.push(op(Op::ScatterNd { reduction }, &nd, s));
        let along = typed(given(&[3, 2], vec![2., 0., 1., 3., 0., 1.]), DType::I64);
        let elements = [x(s, 21), along, x(&[3, 2], 22)];
        cases.push(op(Op::ScatterElements { axis: 1, reduction }, &elements, s));
    }
    let cache = [x(&[1, 5, 2], 23), x(&[1, 1, 2], 24)];
    cases.push(op(Op::KvAppend { axis: 1, pos: 3 }, &cache, &[1, 4, 2]));
    let update = [x(&[1, 5, 2], 25), x(&[1, 2, 2], 26), list(&[2.0])];
    cases.push(op(Op::DynamicUpdateSlice { axis: 1 }, &update, &[1, 5, 2]));
    cases.push(op(
        Op::GatherBackward { axis: 0 },
        &[x(&[4, 2], 27), list(&[2., 0., 2., 1.])],
        &[3, 2],
    ));
    cases.push(op(
        Op::Interpolate3d { size: vec![3, 4, 1] },
        &[x(&[1, 2, 2, 3, 2], 28)],
        &[1, 2, 3, 4, 1],
    ));
    cases.push(op(Op::ResizeNearest2x, &[x(&[1, 2, 3, 2], 29)], &[1, 2, 6, 4]));
    let of = Op::Im2Col {
        kernel_size: vec![2, 3],
        stride: vec![2, 1],
        padding: vec![1, 1],
        dilation: vec![1, 2],
    };
    cases.push(op(of, &[x(&[2, 3, 4, 5], 30)], &[2 * 3 * 3, 18]));
}
