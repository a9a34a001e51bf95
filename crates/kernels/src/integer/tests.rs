use super::*;
use crate::Pool;
use crate::matmul::Window;
use coremill_simd::Isa;

/// Deterministic pseudorandom numbers.
struct Draw(u64);

impl Draw {
    fn below(&mut self, end: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }

    fn codes(&mut self, count: usize) -> Vec<u8> {
        (0..count + SLACK).map(|_| self.below(256) as u8).collect()
    }
}

fn scaling(outputs: usize) -> Scaling {
    let padded = outputs.next_multiple_of(64);
    let number = |step: f32| (0..padded).map(|at| (at % 7 + 1) as f32 * step).collect();
    Scaling { scale: number(1e-3), shift: number(0.3), low: -100.0, high: 120.0 }
}

#[test]
fn int8_matmul_matches_definition() {
    let mut draw = Draw(1);
    let pool = Pool::new(2);
    let shapes = [[1, 1, 1], [1, 7, 5], [3, 64, 16], [13, 30, 33], [25, 129, 40], [49, 16, 70]];
    for [rows, inputs, outputs] in shapes {
        let left = draw.codes(rows * inputs);
        let right: Vec<i8> = (0..inputs * outputs).map(|_| draw.below(256) as u8 as i8).collect();
        let other = draw.codes(rows * outputs);
        for zeros in [vec![0; outputs], (0..outputs).map(|at| at as i32 % 9 - 200).collect()] {
            let scaling = scaling(outputs);
            let left_zero = 131u8;
            let result = |row: usize, output: usize| {
                let sum: i32 = (0..inputs)
                    .map(|at| {
                        let weight = i32::from(right[output * inputs + at]) - zeros[output];
                        (i32::from(left[row * inputs + at]) - i32::from(left_zero)) * weight
                    })
                    .sum();
                let value = sum as f32 * scaling.scale[output] + scaling.shift[output];
                value.clamp(scaling.low, scaling.high)
            };
            for isa in Isa::available() {
                let weights =
                    IntegerWeights::pack(isa, [1, inputs, outputs], &zeros, left_zero, |o, i| {
                        right[o * inputs + i]
                    });
                let left_rows = Rows::Dense { codes: &left, stride: inputs, rows };
                let mut floats = vec![0.0; rows * outputs];
                let target = Target::Floats(&mut floats);
                multiply(&pool, left_rows, &weights, &scaling, target, outputs);
                let mut codes = vec![0; rows * outputs];
                let sum =
                    Sum { factor: 0.7, other_factor: 0.4, shift: -60.0, low: -90.0, high: 90.0 };
                let target =
                    Target::Codes { codes: &mut codes, zero: 128, sum: Some((&other, sum)) };
                multiply(&pool, left_rows, &weights, &scaling, target, outputs);
                for row in 0..rows {
                    for output in 0..outputs {
                        let (at, expected) = (row * outputs + output, result(row, output));
                        assert!((floats[at] - expected).abs() <= 1e-4 * (1.0 + expected.abs()));
                        let both = expected.round_ties_even() * sum.factor
                            + f32::from(other[at]) * sum.other_factor
                            + sum.shift;
                        let code = both.clamp(sum.low, sum.high).round_ties_even() as i32 + 128;
                        assert!((code - i32::from(codes[at])).abs() <= 1, "{isa} {row} {output}");
                    }
                }
            }
        }
    }
}

/// The sum of a window: the input's codes minus their zero point, times the weights.
fn convolved(
    window: &Window,
    (input, zero): (&[u8], u8),
    at: [usize; 4],
    group: usize,
    weight: impl Fn(usize, usize) -> i32,
) -> i32 {
    let [image, z, y, x] = at;
    let mut sum = 0;
    let [depth, height, width] = window.kernel;
    for tap in 0..depth * height * width {
        let taps = [tap / width / height, tap / width % height, tap % width];
        let place = |axis: usize, result: usize| {
            let at = result * window.stride[axis] + taps[axis] * window.dilation[axis];
            at.checked_sub(window.padding[axis]).filter(|&at| at < window.input[axis])
        };
        let (Some(z), Some(y), Some(x)) = (place(0, z), place(1, y), place(2, x)) else { continue };
        let pixel = ((image * window.input[0] + z) * window.input[1] + y) * window.input[2] + x;
        for channel in 0..window.channels {
            let code = input[pixel * window.pixel_stride + group * window.channels + channel];
            sum += (i32::from(code) - i32::from(zero)) * weight(tap, channel);
        }
    }
    sum
}

fn windows() -> Vec<Window> {
    let window = |input, output, kernel, stride, dilation, padding, channels, groups| Window {
        images: 2,
        input,
        output,
        kernel,
        stride,
        dilation,
        padding,
        channels,
        groups,
        pixel_stride: channels * groups,
    };
    vec![
        window([1, 9, 11], [1, 5, 6], [1, 3, 3], [1, 2, 2], [1; 3], [0, 1, 1], 3, 1),
        window([1, 6, 7], [1, 6, 7], [1, 3, 3], [1; 3], [1; 3], [0, 1, 1], 21, 1),
        window([1, 8, 8], [1, 6, 4], [1, 3, 3], [1; 3], [1, 2, 3], [0, 1, 1], 6, 2),
        window([1, 1, 30], [1, 1, 9], [1, 1, 5], [1, 1, 3], [1; 3], [0; 3], 17, 1),
        window([3, 4, 5], [3, 4, 5], [3, 3, 3], [1; 3], [1; 3], [1; 3], 2, 1),
    ]
}

#[test]
fn int8_conv_pads_with_zero_point() {
    let (mut draw, pool, outputs) = (Draw(2), Pool::new(2), 19);
    for window in windows() {
        let taps: usize = window.kernel.iter().product();
        let pixels: usize = window.input.iter().product();
        let input = draw.codes(window.images * pixels * window.pixel_stride);
        let zero = draw.below(256) as u8;
        let inputs = taps * window.channels;
        let right: Vec<i8> =
            (0..inputs * outputs * window.groups).map(|_| draw.below(256) as u8 as i8).collect();
        let pieces = IndirectionTable::new(window.clone(), zero).expect("the image is small");
        let mut scratch = vec![0; pieces.scratch() + SLACK];
        let padded = pieces.padded(&input, &mut scratch);
        let all = outputs * window.groups;
        let results = window.images * window.output.iter().product::<usize>();
        let scaling = Scaling {
            scale: vec![1.0; outputs + 64],
            shift: vec![0.5; outputs + 64],
            low: f32::MIN,
            high: f32::MAX,
        };
        for isa in Isa::available() {
            let mut floats = vec![0.0; results * all];
            for group in 0..window.groups {
                let [pieces_each, length] = pieces.shape();
                let weights = IntegerWeights::pack(
                    isa,
                    [pieces_each, length, outputs],
                    &vec![0; outputs],
                    zero,
                    |output, at| right[(group * outputs + output) * inputs + at],
                );
                let rows = Rows::Pieces(&padded[group * window.channels..], &pieces);
                let target = Target::Floats(&mut floats[group * outputs..]);
                multiply(&pool, rows, &weights, &scaling, target, all);
            }
            let [depth, height, width] = window.output;
            for (row, floats) in floats.chunks_exact(all).enumerate() {
                let at = [
                    row / width / height / depth,
                    row / width / height % depth,
                    row / width % height,
                    row % width,
                ];
                for (output, &found) in floats.iter().enumerate() {
                    let weight = |tap: usize, channel: usize| {
                        i32::from(right[output * inputs + tap * window.channels + channel])
                    };
                    let sum = convolved(&window, (&input, zero), at, output / outputs, weight);
                    assert_eq!(found, sum as f32 + 0.5, "{isa} {window:?} {row} {output}");
                }
            }
        }
    }
}

#[test]
fn int8_depthwise_conv_matches_definition() {
    let (mut draw, pool) = (Draw(3), Pool::new(2));
    // Includes small channel counts, of which several pixels fit a vector, and images so small that every window reaches into
    // the padding.
    for (channels, kernel, stride, dilation, extent) in [
        (1, 3, 1, 1, 19usize),
        (8, 3, 1, 2, 9),
        (16, 3, 1, 1, 9),
        (24, 3, 2, 1, 9),
        (32, 5, 1, 1, 3),
        (32, 3, 1, 1, 10),
        (70, 3, 1, 1, 9),
        (70, 3, 2, 2, 4),
        (130, 5, 1, 1, 9),
    ] {
        let output = (extent - 1) / stride + 1;
        let window = Window {
            images: 2,
            input: [1, extent, extent],
            output: [1, output, output],
            kernel: [1, kernel, kernel],
            stride: [1, stride, stride],
            dilation: [1, dilation, dilation],
            padding: [0, kernel / 2 * dilation, kernel / 2 * dilation],
            channels,
            groups: 1,
            pixel_stride: channels,
        };
        let taps = kernel * kernel;
        let input = draw.codes(2 * extent * extent * channels);
        let zero = 77;
        // Each piece is a single pixel, for any number of channels.
        let pieces = IndirectionTable::of_pixels(window.clone(), zero).expect("the image is small");
        for most in [128, 255] {
            let right: Vec<i32> = (0..taps * channels)
                .map(|_| draw.below(2 * most) as i32 - most as i32)
                .map(|weight| weight.clamp(-255, 255).min(most as i32 - 1))
                .collect();
            let scaling = scaling(channels);
            for isa in Isa::available() {
                let weights =
                    ChannelWeights::pack(isa, [channels, taps], zero, &scaling, |c, t| {
                        right[c * taps + t]
                    });
                let count = 2 * output * output * channels;
                let (mut floats, mut codes) = (vec![0.0; count], vec![0; count]);
                let target = ChannelTarget::Floats(&mut floats);
                convolve_channels(&pool, &pieces, &input, &weights, target);
                let target = ChannelTarget::Codes(&mut codes, 128);
                convolve_channels(&pool, &pieces, &input, &weights, target);
                for (at, (&float, &code)) in floats.iter().zip(&codes).enumerate() {
                    let (pixel, channel) = (at / channels, at % channels);
                    let place =
                        [pixel / output / output, 0, pixel / output % output, pixel % output];
                    let one = Window { channels: 1, groups: channels, ..window.clone() };
                    let sum = convolved(&one, (&input, zero), place, channel, |tap, _| {
                        right[channel * taps + tap]
                    });
                    let value = sum as f32 * scaling.scale[channel] + scaling.shift[channel];
                    let value = value.clamp(scaling.low, scaling.high);
                    assert!((float - value).abs() < 1e-3, "{isa} {channels} {at}: {float} {value}");
                    let expected = value.round_ties_even() as i32 + 128;
                    assert!((i32::from(code) - expected).abs() <= 1, "{isa} {channels} {at}");
                }
            }
        }
    }
}

#[test]
fn quantizes_to_nearest_step_in_either_layout() {
    let (mut draw, pool) = (Draw(4), Pool::new(2));
    let floats: Vec<f32> = (0..999).map(|_| draw.below(4000) as f32 * 0.01 - 20.0).collect();
    let special = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1e30];
    let floats = [&floats[..], &special].concat();
    for isa in Isa::available() {
        for signed in [false, true] {
            let steps = Steps { scale: 0.1, zero: 120, signed };
            let mut codes = vec![0; floats.len()];
            quantize(isa, &pool, steps, &floats, &mut codes);
            let (low, high) = if signed { (-128, 127) } else { (0, 255) };
            for (&float, &code) in floats.iter().zip(&codes) {
                let number = (float / 0.1).round_ties_even() + 120.0 + low as f32;
                let expected = number.clamp(low as f32, high as f32) as i32;
                assert_eq!(i32::from(code) + low, expected, "{isa} {float}");
            }
            for channels in [1, 2, 3, 4, 5, 9] {
                let pixels = 999 / channels / 2;
                let count = 2 * channels * pixels;
                let mut last = vec![0; count];
                let extents = [2, channels, pixels];
                quantize_to_last(isa, &pool, steps, extents, &floats[..count], &mut last);
                for (at, &code) in last.iter().enumerate() {
                    let (image, place) = (at / channels / pixels, at % (channels * pixels));
                    let from = (image * channels + place % channels) * pixels + place / channels;
                    assert_eq!(code, codes[from], "{isa} {channels} {at}");
                }
            }
            let mut last = vec![0; 999];
            quantize_to_last(isa, &pool, steps, [1, 3, 333], &floats[..999], &mut last);
            assert!((0..999).all(|at| last[at] == codes[at % 3 * 333 + at / 3]));
            let mut back = vec![0.0; 999];
            permute(&pool, &last, &[333, 3], &[1, 0], &mut codes);
            dequantize(isa, &pool, 0.1, 120, &codes, &mut back);
            let close =
                |(one, other): (&f32, &f32)| (one - other.clamp(-12.0, 13.5)).abs() < 0.0501;
            assert!(back.iter().zip(&floats).all(close));
        }
    }
}

#[test]
fn quantized_add_mean_max_and_lookup_match_definition() {
    let (mut draw, pool) = (Draw(5), Pool::new(2));
    let (left, right) = (draw.codes(333), draw.codes(333));
    for isa in Isa::available() {
        let sum = Sum { factor: 0.5, other_factor: 0.25, shift: -20.0, low: -100.0, high: 90.0 };
        let mut both = vec![0; 333];
        add(isa, &pool, (&left[..333], 100), &right[..333], &sum, &mut both, 110);
        for at in 0..333 {
            let value = (f32::from(left[at]) - 100.0) * 0.5 + f32::from(right[at]) * 0.25 - 20.0;
            assert_eq!(both[at], (value.clamp(-100.0, 90.0).round_ties_even() + 110.0) as u8);
        }
        let mut means = vec![0.0; 37];
        mean(isa, &pool, [1, 9, 37], (0.5, 30), &left, &mut means);
        for (channel, mean) in means.iter().enumerate() {
            let sum: u32 = (0..9).map(|pixel| u32::from(left[pixel * 37 + channel])).sum();
            assert!((mean - 0.5 * (sum as f32 / 9.0 - 30.0)).abs() < 1e-3);
        }
        let ranges = [0..2, 1..3];
        let mut most = vec![0; 2 * 2 * 37];
        let windows = [&[0..1][..], &ranges, &ranges];
        maximum(isa, &pool, (1, [1, 3, 3], 37), windows, &left, &mut most);
        for (at, &found) in most.iter().enumerate() {
            let (y, x, channel) = (at / 37 / 2, at / 37 % 2, at % 37);
            let under = |y: usize, x: usize| left[(y * 3 + x) * 37 + channel];
            let all = [under(y, x), under(y, x + 1), under(y + 1, x), under(y + 1, x + 1)];
            assert_eq!(Some(found), all.into_iter().max());
        }
    }
    let table: Table = std::array::from_fn(|code| 255 - code as u8);
    let mut turned = vec![0; 333];
    look_up(&pool, &table, &left[..333], &mut turned);
    assert!(turned.iter().zip(&left).all(|(one, other)| *one == 255 - other));
}
