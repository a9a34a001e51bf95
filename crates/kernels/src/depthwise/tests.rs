use super::*;
use crate::Activation;
use crate::matmul::{Matrix, Residual, Rounding};

fn numbers(count: usize, seed: u32) -> Vec<f32> {
    let mut state = seed.wrapping_mul(747_796_405).wrapping_add(1);
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / 16_777_216.0 * 2.0 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

fn reference(extents: &Depthwise, input: &[f32], weights: &[f32]) -> Vec<f64> {
    let mut output = vec![];
    let [height, width] = extents.input;
    let channels = extents.channels * extents.multiplier;
    for image in 0..extents.batch {
        for y in 0..extents.output[0] {
            for x in 0..extents.output[1] {
                for channel in 0..channels {
                    let mut sum = 0.0;
                    for ky in 0..extents.kernel[0] {
                        for kx in 0..extents.kernel[1] {
                            let in_y = (y * extents.stride[0] + ky * extents.dilation[0])
                                .wrapping_sub(extents.pad[0]);
                            let in_x = (x * extents.stride[1] + kx * extents.dilation[1])
                                .wrapping_sub(extents.pad[1]);
                            if in_y < height && in_x < width {
                                let pixel = (image * height + in_y) * width + in_x;
                                let at = pixel * extents.channels + channel / extents.multiplier;
                                let tap = ky * extents.kernel[1] + kx;
                                sum += f64::from(input[at])
                                    * f64::from(weights[tap * channels + channel]);
                            }
                        }
                    }
                    output.push(sum);
                }
            }
        }
    }
    output
}

fn cases() -> Vec<Depthwise> {
    let case =
        |input: [usize; 2], channels, kernel: [usize; 2], stride: [usize; 2], pad: [usize; 2]| {
            let output = [0, 1].map(|axis| {
                (input[axis] + 2 * pad[axis]).saturating_sub(kernel[axis]) / stride[axis] + 1
            });
            Depthwise {
                batch: 1,
                input,
                output,
                channels,
                multiplier: 1,
                kernel,
                stride,
                dilation: [1, 1],
                pad,
            }
        };
    let mut cases = vec![
        case([3, 4], 3, [3, 3], [1, 1], [1, 1]),
        case([1, 9], 5, [1, 4], [1, 2], [0, 1]),
        case([3, 3], 16, [3, 3], [2, 2], [1, 1]),
        case([2, 2], 17, [5, 5], [1, 1], [2, 2]),
        Depthwise { multiplier: 2, ..case([3, 3], 3, [2, 3], [1, 1], [0, 1]) },
        Depthwise { dilation: [2, 3], output: [3, 2], ..case([5, 6], 4, [2, 2], [1, 1], [0, 0]) },
        Depthwise { output: [5, 0], ..case([5, 6], 4, [3, 3], [1, 1], [1, 1]) },
    ];
    if !cfg!(miri) {
        cases.extend([
            case([7, 7], 64, [3, 3], [1, 1], [1, 1]),
            case([14, 15], 40, [3, 3], [1, 1], [1, 1]),
            case([15, 14], 24, [3, 3], [2, 2], [1, 1]),
            Depthwise { batch: 3, ..case([14, 14], 16, [3, 3], [2, 2], [0, 1]) },
            case([17, 19], 33, [5, 5], [1, 1], [2, 2]),
            case([17, 19], 48, [5, 5], [2, 2], [2, 1]),
            case([9, 9], 96, [7, 7], [1, 1], [3, 3]),
            case([1, 40], 24, [1, 31], [1, 1], [0, 15]),
            Depthwise { multiplier: 3, ..case([9, 8], 7, [3, 3], [1, 1], [1, 1]) },
            case([56, 56], 24, [3, 3], [1, 1], [1, 1]),
            case([4, 4], 8, [3, 3], [1, 3], [5, 6]),
        ]);
    }
    cases
}

#[test]
fn depthwise_conv_matches_definition() {
    for (at, extents) in cases().into_iter().enumerate() {
        let channels = extents.channels * extents.multiplier;
        let pixels = extents.batch * extents.output[0] * extents.output[1];
        let input = numbers(
            extents.batch * extents.input[0] * extents.input[1] * extents.channels,
            at as u32,
        );
        let weights = numbers(extents.kernel[0] * extents.kernel[1] * channels, 77);
        let bias = numbers(channels, 78);
        let residual = numbers(pixels * channels, 79);
        let sums = reference(&extents, &input, &weights);
        let rows = Matrix { elements: &residual, stride: channels };
        let epilogues = [
            Epilogue::default(),
            Epilogue {
                bias: Some(&bias),
                activation: Activation::Clamp { low: 0.0, high: 0.5 },
                ..Epilogue::default()
            },
            Epilogue { bias: Some(&bias), activation: Activation::Silu, ..Epilogue::default() },
            Epilogue {
                residual: Some(Residual { rows, after_activation: false }),
                activation: Activation::Relu,
                ..Epilogue::default()
            },
            Epilogue {
                residual: Some(Residual { rows, after_activation: true }),
                activation: Activation::HardSwish { alpha: 1.0 / 6.0, beta: 0.5 },
                rounding: Rounding::Fp16,
                ..Epilogue::default()
            },
        ];
        for isa in Isa::available() {
            for threads in [1, 3] {
                let pool = Pool::new(threads);
                for epilogue in &epilogues {
                    let mut output = vec![f32::NAN; pixels * channels];
                    convolve_depthwise(
                        isa,
                        &pool,
                        &extents,
                        &input,
                        &weights,
                        epilogue,
                        &mut output,
                    );
                    let tolerance = if epilogue.rounding == Rounding::None { 1e-5 } else { 4e-3 };
                    for (at, (&result, &sum)) in output.iter().zip(&sums).enumerate() {
                        let mut expected = sum as f32;
                        if epilogue.bias.is_some() {
                            expected += bias[at % channels];
                        }
                        match epilogue.residual {
                            Some(part) if !part.after_activation => {
                                expected = epilogue.activation.apply(expected + residual[at]);
                            }
                            Some(_) => {
                                expected = epilogue.activation.apply(expected) + residual[at]
                            }
                            None => expected = epilogue.activation.apply(expected),
                        }
                        assert!(
                            (result - expected).abs() < tolerance,
                            "{isa} {threads} {extents:?} at {at}: {result}, not {expected}"
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn nan_stays_within_kernel_window() {
    let extents = Depthwise {
        batch: 1,
        input: [1, 8],
        output: [1, 8],
        channels: 16,
        multiplier: 1,
        kernel: [3, 3],
        stride: [1, 1],
        dilation: [1, 1],
        pad: [1, 1],
    };
    let mut input = vec![1.0; 8 * 16];
    input[4 * 16 + 3] = f32::NAN;
    let epilogue = Epilogue { activation: Activation::Relu, ..Epilogue::default() };
    for isa in Isa::available() {
        let mut output = vec![0.0; 8 * 16];
        let pool = Pool::new(1);
        convolve_depthwise(isa, &pool, &extents, &input, &[1.0; 9 * 16], &epilogue, &mut output);
        for (at, result) in output.iter().enumerate() {
            assert_eq!(result.is_nan(), at % 16 == 3 && (3..6).contains(&(at / 16)), "{isa} {at}");
        }
    }
}

#[test]
fn weights_are_packed_channels_last() {
    let packed = pack_depthwise_weights(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], [1, 3]);
    assert_eq!(packed, [1.0, 4.0, 2.0, 5.0, 3.0, 6.0]);
}
