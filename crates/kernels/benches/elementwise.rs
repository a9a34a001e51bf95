//! Benchmarks of the kernels other than matrix products: `cargo bench -p coremill-kernels --bench elementwise
//! [PART OF A NAME]`. Prints the minimum and the median of many runs, on one thread and on two.

#![expect(clippy::print_stdout, reason = "a benchmark prints its results")]

use std::hint::black_box;
use std::time::{Duration, Instant};

use coremill_kernels::Activation;
use coremill_kernels::Pool;
use coremill_kernels::depthwise::{Depthwise, convolve_depthwise};
use coremill_kernels::layout::channels_to_last;
use coremill_kernels::map::{Binary, MapInput, MapProgram, map};
use coremill_kernels::matmul::Epilogue;
use coremill_kernels::normalize::{Affine, Norm, normalize_rows, softmax};
use coremill_kernels::recurrent::{Cell, Direction, RecurrentWeights, run_recurrent};
use coremill_kernels::reduce::{Reduction, reduce};
use coremill_simd::Isa;
use coremill_simd::math::{Unary, unary};

struct Bench {
    filter: String,
    pools: [Pool; 2],
}

impl Bench {
    /// Times the body on both pools. `bytes` is the number of bytes moved, for the rate.
    fn time(&self, name: &str, bytes: usize, mut body: impl FnMut(&Pool)) {
        if !name.contains(&self.filter) {
            return;
        }
        for pool in &self.pools {
            let mut times = vec![];
            let start = Instant::now();
            while times.len() < 20 || start.elapsed() < Duration::from_millis(300) {
                let start = Instant::now();
                body(pool);
                times.push(start.elapsed());
            }
            times.sort();
            let (least, median) = (times[0].as_secs_f64(), times[times.len() / 2].as_secs_f64());
            println!(
                "{name:<40} {}T  minimum {:>9.1} us  median {:>9.1} us  {:>6.1} GB/s",
                pool.threads(),
                least * 1e6,
                median * 1e6,
                bytes as f64 / least / 1e9,
            );
        }
    }
}

fn main() {
    let filter = std::env::args().skip(1).find(|argument| !argument.starts_with('-'));
    let bench = Bench { filter: filter.unwrap_or_default(), pools: [Pool::new(1), Pool::new(2)] };
    let isa = Isa::detect();
    println!("{isa}");
    functions(&bench, isa);
    maps(&bench, isa);
    rows(&bench, isa);
    lstm(&bench, isa);
    mobilenet(&bench, isa);
}

fn rows(bench: &Bench, isa: Isa) {
    let (rows, columns) = (197, 768);
    let source = ramp(rows * columns);
    let gamma = ramp(columns);
    let mut target = vec![0.0; source.len()];
    let bytes = source.len() * 8;
    bench.time("softmax of 197 x 768", bytes, |pool| {
        softmax(isa, pool, &source, [rows, columns, 1], &mut target);
    });
    bench.time("softmax along axis 0 of 768 x 197", bytes, |pool| {
        softmax(isa, pool, &source, [1, columns, rows], &mut target);
    });
    bench.time("layer norm of 197 x 768", bytes, |pool| {
        let affine = Affine { gamma: Some(&gamma), beta: Some(&gamma) };
        normalize_rows(isa, pool, Norm::Layer, &source, columns, affine, 1e-5, &mut target);
    });
    bench.time("sums of 197 x 768", bytes / 2, |pool| {
        let target = &mut target[..rows];
        reduce(isa, pool, Reduction::Sum, &source, &[rows, columns], &[1], target);
    });
    bench.time("sums of columns of 197 x 768", bytes / 2, |pool| {
        let target = &mut target[..columns];
        reduce(isa, pool, Reduction::Sum, &source, &[rows, columns], &[0], target);
    });
    let image = ramp(64 * 56 * 56);
    let mut target = vec![0.0; image.len()];
    bench.time("64 x 56 x 56 to channels last", image.len() * 8, |pool| {
        channels_to_last(pool, [1, 64, 56 * 56], &image, &mut target);
    });
}

/// The steps of an LSTM layer with a state of 256.
fn lstm(bench: &Bench, isa: Isa) {
    let (units, steps) = (256, 100);
    let weights: Vec<f32> = ramp(4 * units * units).iter().map(|x| x / 100.0).collect();
    let weights = RecurrentWeights::pack(isa, &weights, [4, units, units]);
    let inputs = ramp(steps * 4 * units);
    let mut output = vec![0.0; steps * units];
    bench.time("100 steps of LSTM 256", steps * weights.bytes(), |pool| {
        let (mut state, mut memory) = (vec![0.0; units], vec![0.0; units]);
        let cell = Cell::Lstm {
            weights: &weights,
            recurrent: Activation::Sigmoid,
            cell: Activation::Tanh,
            output: Activation::Tanh,
            peephole: None,
            clip: None,
        };
        let direction = Direction {
            cell,
            inputs: &inputs,
            reverse: false,
            state: &mut state,
            memory: &mut memory,
        };
        run_recurrent(pool, steps, 1, &mut [direction], Some(&mut output));
    });
}

fn ramp(count: usize) -> Vec<f32> {
    (0..count).map(|at| (at % 1000) as f32 / 100.0 - 5.0).collect()
}

fn functions(bench: &Bench, isa: Isa) {
    let source = ramp(16_384);
    let mut target = vec![0.0; source.len()];
    for function in [
        Unary::Exp,
        Unary::Log,
        Unary::Tanh,
        Unary::Sigmoid,
        Unary::Silu,
        Unary::Erf,
        Unary::Gelu,
        Unary::GeluTanh,
        Unary::Softplus,
        Unary::Sin,
        Unary::Rsqrt,
    ] {
        bench.time(&format!("16 K {function:?}"), 16_384 * 8, |_| {
            unary(isa, function, black_box(&source), &mut target);
        });
    }
}

fn maps(bench: &Bench, isa: Isa) {
    let count = 1 << 20;
    let (a, b) = (ramp(count), ramp(count));
    let mut target = vec![0.0; count];
    let dense = MapInput { elements: &a, strides: &[1] };
    let other = MapInput { elements: &b, strides: &[1] };

    let mut program = MapProgram::new();
    let (x, y) = (program.input(0), program.input(1));
    let sum = program.binary(Binary::Add, x, y);
    program.output(sum);
    bench.time("1 M adds", count * 12, |pool| {
        map(isa, pool, &program, &[count], &[dense, other], &mut [&mut target]);
    });

    let mut program = MapProgram::new();
    let (x, y) = (program.input(0), program.input(1));
    let sum = program.binary(Binary::Add, x, y);
    let sum = program.round_to_fp16(sum);
    let active = program.unary(Unary::Silu, sum);
    let active = program.round_to_fp16(active);
    let product = program.binary(Binary::Mul, active, x);
    let product = program.round_to_fp16(product);
    program.output(product);
    bench.time("1 M round(silu(round(a + b))) * a", count * 12, |pool| {
        map(isa, pool, &program, &[count], &[dense, other], &mut [&mut target]);
    });

    let mut program = MapProgram::new();
    let (x, y) = (program.input(0), program.input(1));
    let sum = program.binary(Binary::Add, x, y);
    program.output(sum);
    let rows = MapInput { elements: &a, strides: &[64, 1] };
    let bias = MapInput { elements: &b, strides: &[0, 1] };
    bench.time("1 M rows of 64 plus a bias", count * 8, |pool| {
        map(isa, pool, &program, &[count / 64, 64], &[rows, bias], &mut [&mut target]);
    });
    let small = [1.0; 8];
    let few = MapInput { elements: &small, strides: &[1] };
    bench.time("8 adds", 96, |pool| {
        map(isa, pool, &program, &[8], &[few, few], &mut [&mut target[..8]]);
    });
}

/// The depthwise convolutions in MobileNetV2 with an input of 224 × 224.
fn mobilenet(bench: &Bench, isa: Isa) {
    let layers = [
        (112, 32, 1, 1),
        (112, 96, 2, 1),
        (56, 144, 1, 1),
        (56, 144, 2, 1),
        (28, 192, 1, 2),
        (28, 192, 2, 1),
        (14, 384, 1, 4),
        (14, 576, 1, 2),
        (14, 576, 2, 1),
        (7, 960, 1, 3),
    ];
    let mut all = vec![];
    for (size, channels, stride, count) in layers {
        let output = size / stride;
        let extents = Depthwise {
            batch: 1,
            input: [size; 2],
            output: [output; 2],
            channels,
            multiplier: 1,
            kernel: [3; 2],
            stride: [stride; 2],
            dilation: [1; 2],
            pad: [1; 2],
        };
        let input = ramp(size * size * channels);
        let weights = ramp(9 * channels);
        let bias = ramp(channels);
        let result = vec![0.0; output * output * channels];
        all.push((extents, count, input, weights, bias, result));
    }
    let layer =
        |pool: &Pool, layer: &mut (Depthwise, usize, Vec<f32>, Vec<f32>, Vec<f32>, Vec<f32>)| {
            let (extents, count, input, weights, bias, result) = layer;
            let activation = Activation::Clamp { low: 0.0, high: 6.0 };
            let epilogue = Epilogue { bias: Some(bias), activation, ..Epilogue::default() };
            for _ in 0..*count {
                convolve_depthwise(isa, pool, extents, input, weights, &epilogue, result);
            }
        };
    bench.time("depthwise 3x3 of MobileNetV2", 0, |pool| {
        for entry in &mut all {
            layer(pool, entry);
        }
    });
    for entry in &mut all {
        let extents = entry.0;
        let bytes = entry.1 * 4 * (entry.2.len() + entry.5.len());
        let name =
            format!("depthwise {} {} /{}", extents.input[0], extents.channels, extents.stride[0]);
        bench.time(&name, bytes, |pool| layer(pool, entry));
    }
}
