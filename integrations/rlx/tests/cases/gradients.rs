//! Gradients of norms, convolutions, pooling, losses, splines.

use rlx_ir::Op;
use rlx_ir::op::*;

use super::*;

pub(crate) fn add(cases: &mut Vec<Case>) {
    let (s, eps) = (&[3, 4], 1e-5);
    let vector = |salt| x(&[4], salt);
    cases.push(op(Op::LayerNormBackwardInput { axis: -1, eps }, &[x(s, 1), vector(2), x(s, 3)], s));
    cases.push(op(Op::LayerNormBackwardGamma { axis: -1, eps }, &[x(s, 4), x(s, 5)], &[4]));
    let four = [x(s, 6), vector(7), vector(8), x(s, 9)];
    cases.push(op(Op::RmsNormBackwardInput { axis: -1, eps }, &four, s));
    cases.push(op(Op::RmsNormBackwardGamma { axis: -1, eps }, &four, &[4]));
    cases.push(op(Op::RmsNormBackwardBeta { axis: -1, eps }, &four, &[4]));
    let image = &[2, 4, 3, 2];
    let four = [x(image, 10), vector(11), vector(12), x(image, 13)];
    cases.push(op(Op::GroupNormBackwardInput { num_groups: 2, eps }, &four, image));
    let two = [x(image, 14), x(image, 15)];
    cases.push(op(Op::GroupNormBackwardGamma { num_groups: 2, eps }, &two, &[4]));
    cases.push(op(Op::GroupNormBackwardBeta { num_groups: 2, eps }, &two, &[4]));
    let variance = || between(&[4], 16, 0.5, 2.0);
    let five = [x(s, 17), vector(18), vector(19), variance(), x(s, 20)];
    cases.push(op(Op::BatchNormInferenceBackwardInput { eps }, &five, s));
    let four = [x(s, 21), vector(22), variance(), x(s, 23)];
    cases.push(op(Op::BatchNormInferenceBackwardGamma { eps }, &four, &[4]));
    cases.push(op(Op::BatchNormInferenceBackwardBeta, &[x(s, 24)], &[4]));
    let labels = list(&[2.0, 0.0, 3.0]);
    let targets = between(s, 25, 0.0, 0.5);
    cases.push(op(Op::SoftmaxCrossEntropy, &[x(s, 26), targets], &[3]));
    let logits = [x(s, 27), labels.clone()];
    cases.push(op(Op::SoftmaxCrossEntropyWithLogits, &logits, &[3]));
    let slopes = [x(s, 28), labels, x(&[3], 29)];
    cases.push(op(Op::SoftmaxCrossEntropyBackward, &slopes, s));
    windows(cases);
    let (num_basis, grid_min, grid_max) = (5, -1.0, 1.0);
    let [wide, book] = [x(&[2, 3, 4], 50), x(&[4, 5], 51)];
    let of = Op::SplineActivation { num_basis, grid_min, grid_max };
    cases.push(op(of, &[wide.clone(), book.clone()], &[2, 3, 4]));
    let of = Op::SplineActivationBackwardX { num_basis, grid_min, grid_max };
    cases.push(op(of, &[wide.clone(), book, x(&[2, 3, 4], 52)], &[2, 3, 4]));
    let of = Op::SplineActivationBackwardCoeff { num_basis, grid_min, grid_max };
    cases.push(op(of, &[wide.clone(), x(&[2, 3, 4], 53)], &[4, 5]));
    for norm in [AdaNormKind::LayerNorm, AdaNormKind::RmsNorm] {
        let all = [wide.clone(), x(&[2, 1, 4], 54), x(&[2, 1, 4], 55), x(&[2, 3, 4], 56)];
        cases.push(op(Op::AdaLayerNormBackward { norm, eps }, &all, &[24 + 16]));
    }
    let all = [wide, x(&[2, 3, 4], 57), x(&[2, 1, 4], 58), x(&[2, 3, 4], 59)];
    cases.push(op(Op::GatedResidualBackward, &all, &[48 + 8]));
}

fn windows(cases: &mut Vec<Case>) {
    let (kernel_size, stride, padding) = (vec![2, 3], vec![2, 1], vec![1, 1]);
    let of = Op::MaxPool2dBackward { kernel_size, stride, padding };
    cases.push(op(of, &[x(&[1, 2, 4, 5], 30), x(&[1, 2, 3, 5], 31)], &[1, 2, 4, 5]));
    let (kernel_size, stride, padding) = (vec![2, 2, 2], vec![1, 2, 2], vec![0, 0, 0]);
    let of = Op::MaxPool3dBackward { kernel_size, stride, padding };
    cases.push(op(of, &[x(&[1, 2, 3, 4, 5], 32), x(&[1, 2, 2, 2, 2], 33)], &[1, 2, 3, 4, 5]));
    let (kernel_size, stride, padding, dilation) = (vec![3, 2], vec![2, 1], vec![1, 0], vec![1, 2]);
    let of = Op::Conv2dBackwardInput {
        kernel_size: kernel_size.clone(),
        stride: stride.clone(),
        padding: padding.clone(),
        dilation: dilation.clone(),
        groups: 2,
    };
    let (image, result, weight) = (&[2, 4, 5, 6], &[2, 6, 3, 4], &[6, 2, 3, 2]);
    cases.push(op(of, &[x(result, 34), x(weight, 35)], image));
    let of = Op::Conv2dBackwardWeight { kernel_size, stride, padding, dilation, groups: 2 };
    cases.push(op(of, &[x(image, 36), x(result, 37)], weight));
    let (kernel_size, stride, padding, dilation) =
        (vec![2, 2, 2], vec![1, 2, 1], vec![1, 0, 1], vec![1, 1, 1]);
    let of = Op::Conv3dBackwardInput {
        kernel_size: kernel_size.clone(),
        stride: stride.clone(),
        padding: padding.clone(),
        dilation: dilation.clone(),
        groups: 1,
    };
    let (image, result, weight) = (&[1, 2, 3, 5, 4], &[1, 3, 4, 2, 5], &[3, 2, 2, 2, 2]);
    cases.push(op(of, &[x(result, 38), x(weight, 39)], image));
    let of = Op::Conv3dBackwardWeight { kernel_size, stride, padding, dilation, groups: 1 };
    cases.push(op(of, &[x(image, 40), x(result, 41)], weight));
}
