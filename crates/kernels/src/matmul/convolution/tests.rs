use super::super::tests::{Random, bytes_of, compare, finished};
use super::super::{DenseSource, Order, Precision};
use super::*;
use crate::Activation;
use coremill_simd::Isa;
use coremill_tensor::DType;

/// The convolution computed by its definition, with weights `[outputs, channels, taps]`.
fn expected(
    window: &Window,
    input: &[f32],
    weights: &[f32],
    outputs: usize,
    epilogue: &Epilogue,
) -> Vec<f32> {
    let taps = window.taps();
    let mut results = vec![];
    let mut row = 0;
    for image in 0..window.images {
        for at in indices(window.output) {
            for output in 0..outputs {
                let group = output / (outputs / window.groups);
                let mut sum = 0.0;
                for (tap, offsets) in indices(window.kernel).enumerate() {
                    let mut pixel = image;
                    let mut inside = true;
                    for axis in 0..3 {
                        let place =
                            at[axis] * window.stride[axis] + offsets[axis] * window.dilation[axis];
                        let place = place as isize - window.padding[axis] as isize;
                        inside &= place >= 0 && place < window.input[axis] as isize;
                        pixel = pixel.wrapping_mul(window.input[axis]).wrapping_add_signed(place);
                    }
                    for channel in 0..if inside { window.channels } else { 0 } {
                        let element =
                            input[pixel * window.pixel_stride + group * window.channels + channel];
                        let weight = weights[(output * window.channels + channel) * taps + tap];
                        sum += f64::from(element) * f64::from(weight);
                    }
                }
                results.push(finished(epilogue, row, output, sum));
            }
            row += 1;
        }
    }
    results
}

fn check(isa: Isa, pool: &Pool, seed: u64, window: &Window, outputs: usize, gap: usize) {
    let mut random = Random::new(seed);
    let rows = window.images * window.results();
    let input = random.elements(window.images * window.pixels() * window.pixel_stride);
    let inputs = window.taps() * window.channels;
    let weights = random.elements(outputs * inputs);
    let each = outputs / window.groups;
    let packed: Vec<_> = (0..window.groups)
        .map(|group| {
            let data = bytes_of(&weights[group * each * inputs..][..each * inputs]);
            let order = Order::ChannelsFirst { taps: window.taps() };
            let source = DenseSource::new(isa, data, DType::Fp32, inputs, each, order);
            PackedWeights::pack(pool, isa, inputs, each, Precision::F32, &source)
        })
        .collect();
    let (bias, addend) = (random.elements(outputs), random.elements(rows * outputs));
    let residual = Residual {
        rows: Matrix { elements: &addend, stride: outputs },
        after_activation: seed % 2 == 1,
    };
    let epilogue = Epilogue {
        bias: Some(&bias),
        residual: seed.is_multiple_of(3).then_some(residual),
        activation: if seed.is_multiple_of(5) { Activation::Silu } else { Activation::Relu },
        ..Epilogue::default()
    };
    let expected = expected(window, &input, &weights, outputs, &epilogue);
    let stride = outputs + gap;
    let mut output = vec![12345.0; rows * stride];
    let target = MatrixMut { elements: &mut output, stride };
    convolve(pool, &IndirectionTable::new(window.clone()), &input, &packed, target, &epilogue);
    compare(&format!("{isa} {window:?}"), &output, stride, outputs, &expected, 2e-5);
}

/// Output size with equal padding before and after.
fn extent(
    input: usize,
    kernel: usize,
    stride: usize,
    dilation: usize,
    padding: usize,
) -> Option<usize> {
    Some((input + 2 * padding).checked_sub((kernel - 1) * dilation + 1)? / stride + 1)
}

#[test]
fn random_convs_match_definition() {
    let rounds = if cfg!(miri) { 6 } else { 250 };
    let largest = if cfg!(miri) { 4 } else { 12 };
    for isa in Isa::available() {
        for threads in [1, 3] {
            let pool = Pool::new(threads);
            let mut random = Random::new(threads as u64);
            let mut run = 0;
            while run < rounds {
                let mut window = Window {
                    images: 1 + random.below(2),
                    input: [1; 3],
                    output: [1; 3],
                    kernel: [1; 3],
                    stride: [1; 3],
                    dilation: [1; 3],
                    padding: [0; 3],
                    channels: [1, 3, 4, 17, 20][random.below(5)],
                    groups: [1, 1, 1, 2, 3][random.below(5)],
                    pixel_stride: 0,
                };
                window.pixel_stride =
                    window.channels * window.groups + if random.below(3) == 0 { 2 } else { 0 };
                let mut fits = true;
                for axis in random.below(3)..3 {
                    window.input[axis] = 1 + random.below(if axis == 0 { 4 } else { largest });
                    window.kernel[axis] = 1 + random.below(4);
                    window.stride[axis] = 1 + random.below(3);
                    window.dilation[axis] = [1, 1, 2][random.below(3)];
                    window.padding[axis] = random.below(4);
                    let Window { input, kernel, stride, dilation, padding, .. } = &window;
                    let output = extent(
                        input[axis],
                        kernel[axis],
                        stride[axis],
                        dilation[axis],
                        padding[axis],
                    );
                    fits &= output.is_some();
                    window.output[axis] = output.unwrap_or(1);
                }
                if fits {
                    run += 1;
                    let outputs =
                        window.groups * (1 + random.below(if cfg!(miri) { 3 } else { 40 }));
                    check(isa, &pool, run, &window, outputs, random.below(3));
                }
            }
        }
    }
}

#[test]
fn pointwise_conv_matches_definition() {
    let window = Window {
        images: 2,
        input: [1, 3, 5],
        output: [1, 3, 5],
        kernel: [1; 3],
        stride: [1; 3],
        dilation: [1; 3],
        padding: [0; 3],
        channels: 7,
        groups: 1,
        pixel_stride: 9,
    };
    assert!(window.is_pointwise());
    for isa in Isa::available() {
        check(isa, &Pool::new(2), 1, &window, 10, 1);
    }
}

#[test]
#[should_panic(expected = "do not fit")]
fn rejects_too_short_input() {
    let window = Window {
        images: 1,
        input: [1, 1, 4],
        output: [1, 1, 3],
        kernel: [1, 1, 2],
        stride: [1; 3],
        dilation: [1; 3],
        padding: [0; 3],
        channels: 2,
        groups: 1,
        pixel_stride: 2,
    };
    let isa = Isa::detect();
    let pool = Pool::new(1);
    let source = DenseSource::new(isa, bytes_of(&[1.0; 4]), DType::Fp32, 4, 1, Order::InputsFirst);
    let packed = PackedWeights::pack(&pool, isa, 4, 1, Precision::F32, &source);
    let target = MatrixMut { elements: &mut [0.0; 3], stride: 1 };
    convolve(
        &pool,
        &IndirectionTable::new(window),
        &[1.0; 7],
        &[packed],
        target,
        &Epilogue::default(),
    );
}
