//! Benchmarks of the matrix kernels with the shapes of real models: `cargo bench -p coremill-kernels --bench
//! kernels [-- FILTER] [--isa NAME]`.

#![expect(clippy::print_stdout, reason = "a benchmark prints its results")]

use std::hint::black_box;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

use coremill_kernels::Activation;
use coremill_kernels::Pool;
use coremill_kernels::depthwise::{Depthwise, convolve_depthwise};
use coremill_kernels::matmul::{
    DenseSource, Epilogue, Matrix, MatrixMut, Order, PackedWeights, Precision, multiply,
};
use coremill_kernels::stored::{
    Blocks, ElementValues, NestedBlocks, QuantizedMatrix, multiply_stored, multiply_words,
};
use coremill_simd::Isa;
use coremill_tensor::{Buffer, DType};

/// Name, rows, inputs, outputs.
const PRODUCTS: [(&str, usize, usize, usize); 16] = [
    ("square 1024", 1024, 1024, 1024),
    ("vit qkv", 197, 768, 2304),
    ("vit mlp up", 197, 768, 3072),
    ("vit mlp down", 197, 3072, 768),
    ("llama up", 128, 1024, 2816),
    ("llama down", 128, 2816, 1024),
    ("llama up, few rows", 8, 1024, 2816),
    ("llama up, one row", 1, 1024, 2816),
    ("resnet 1x1 56", 3136, 64, 256),
    ("resnet 1x1 56 back", 3136, 256, 64),
    ("resnet 1x1 28", 784, 128, 512),
    ("resnet 1x1 14", 196, 1024, 256),
    ("resnet 1x1 7", 49, 2048, 512),
    ("resnet 1x1 7 back", 49, 512, 2048),
    ("mobilenet expand", 12544, 16, 96),
    ("mobilenet project", 3136, 144, 24),
];

fn main() {
    let arguments: Vec<String> =
        std::env::args().skip(1).filter(|name| name != "--bench").collect();
    let isa = arguments.iter().position(|name| name == "--isa");
    let isa = isa.and_then(|at| arguments.get(at + 1)?.parse().ok()).unwrap_or_else(Isa::detect);
    let filter = arguments.first().filter(|name| *name != "--isa").map_or("", String::as_str);
    let pools = [Pool::new(1), Pool::new(2)];
    println!("{isa}");
    products(&pools, isa, filter);
    depthwise(&pools, isa, filter);
    stored(&pools, isa, filter);
    words(&pools, isa, filter);
}

/// The minimum time of repeated runs, since other processes disturb longer ones. With one thread it is the
/// thread's CPU time, with more threads the wall-clock time.
fn measure(pool: &Pool, mut run: impl FnMut()) -> Duration {
    let clock = match pool.threads() {
        1 => ClockId::ThreadCPUTime,
        _ => ClockId::Monotonic,
    };
    let now = || {
        let time = clock_gettime(clock);
        Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
    };
    run();
    let begin = Instant::now();
    let (mut best, mut runs) = (Duration::MAX, 0);
    while runs < 5 || runs < 400 && begin.elapsed() < Duration::from_millis(400) {
        let start = now();
        run();
        best = best.min(now() - start);
        runs += 1;
    }
    best
}

fn elements(count: usize) -> Vec<f32> {
    (0..count).map(|index| (index * 7919 % 1009) as f32 / 500.0 - 1.0).collect()
}

fn bytes(elements: &[f32]) -> Buffer {
    Buffer::from(elements.iter().flat_map(|element| element.to_le_bytes()).collect::<Vec<_>>())
}

fn products(pools: &[Pool], isa: Isa, filter: &str) {
    println!("{:24}{:>18}{:>20}{:>20}", "GFLOP/s", "m,k,n", "f32 1T, 2T", "f16 1T, 2T");
    for (name, rows, inputs, outputs) in PRODUCTS {
        if !name.contains(filter) {
            continue;
        }
        let left = elements(rows * inputs);
        let data = bytes(&elements(inputs * outputs));
        let source = DenseSource::new(isa, data, DType::Fp32, inputs, outputs, Order::OutputsFirst);
        let bias = elements(outputs);
        let epilogue =
            Epilogue { bias: Some(&bias), activation: Activation::Relu, ..Epilogue::default() };
        let mut output = vec![0.0; rows * outputs];
        let mut line = format!("{name:24}{:>18}", format!("{rows},{inputs},{outputs}"));
        for precision in [Precision::F32, Precision::F16] {
            let weights = PackedWeights::pack(&pools[1], isa, inputs, outputs, precision, &source);
            for pool in pools {
                let time = measure(pool, || {
                    let left = Matrix { elements: black_box(&left), stride: inputs };
                    let target = MatrixMut { elements: &mut output, stride: outputs };
                    multiply(pool, rows, left, &weights, target, &epilogue);
                });
                let work = 2.0 * (rows * inputs * outputs) as f64;
                line += &format!("{:10.1}", work / time.as_secs_f64() / 1e9);
            }
        }
        println!("{line}");
    }
}

/// Name, width and height of the output, channels, size of the kernel, stride.
const DEPTHWISE: [(&str, usize, usize, usize, usize); 12] = [
    ("mobilenet 112", 112, 32, 3, 1),
    ("mobilenet 56 from 112", 56, 96, 3, 2),
    ("mobilenet 56", 56, 144, 3, 1),
    ("mobilenet 28 from 56", 28, 144, 3, 2),
    ("mobilenet 28", 28, 192, 3, 1),
    ("mobilenet 14", 14, 384, 3, 1),
    ("mobilenet 14, wide", 14, 576, 3, 1),
    ("mobilenet 7", 7, 960, 3, 1),
    ("efficientnet 28 from 56", 28, 144, 5, 2),
    ("efficientnet 28", 28, 240, 5, 1),
    ("efficientnet 14", 14, 672, 5, 1),
    ("efficientnet 7", 7, 1152, 5, 1),
];

/// Depthwise convolutions of one image. The rate of bytes counts the input and the output once.
fn depthwise(pools: &[Pool], isa: Isa, filter: &str) {
    println!("{:24}{:>18}{:>20}{:>20}", "depthwise", "us 1T, 2T", "GFLOP/s", "GB/s");
    for (name, size, channels, kernel, stride) in DEPTHWISE {
        if !format!("depthwise {name}").contains(filter) {
            continue;
        }
        let extents = Depthwise {
            batch: 1,
            input: [size * stride; 2],
            output: [size; 2],
            channels,
            multiplier: 1,
            kernel: [kernel; 2],
            stride: [stride; 2],
            dilation: [1; 2],
            pad: [kernel / 2; 2],
        };
        // Aligned to a cache line, as in the engine.
        let length = size * size * stride * stride * channels;
        let all = elements(length + 16);
        let input = &all[all.as_ptr().align_offset(64)..][..length];
        let weights = elements(kernel * kernel * channels);
        let bias = elements(channels);
        let mut all = vec![0.0; size * size * channels + 16];
        let start = all.as_ptr().align_offset(64);
        let output = &mut all[start..][..size * size * channels];
        let activation = Activation::Clamp { low: 0.0, high: 6.0 };
        let epilogue = Epilogue { bias: Some(&bias), activation, ..Epilogue::default() };
        let (mut line, mut rates) = (format!("{name:24}"), [String::new(), String::new()]);
        for pool in pools {
            let time = measure(pool, || {
                let input = black_box(input);
                convolve_depthwise(isa, pool, &extents, input, &weights, &epilogue, output);
            });
            let work = 2.0 * (output.len() * kernel * kernel) as f64;
            let bytes = 4.0 * (input.len() + output.len()) as f64;
            line += &format!("{:9.0}", time.as_secs_f64() * 1e6);
            for (rate, amount) in rates.iter_mut().zip([work, bytes]) {
                *rate += &format!("{:10.1}", amount / time.as_secs_f64() / 1e9);
            }
        }
        println!("{line}{}{}", rates[0], rates[1]);
    }
}

/// The weights of a decoder with 8 layers and hidden size 1024: outputs, inputs, count.
const DECODER: [(usize, usize, usize); 5] =
    [(1024, 1024, 16), (256, 1024, 16), (2816, 1024, 16), (1024, 2816, 8), (4096, 1024, 1)];

/// Multiplies one row by all weights of a decoder, which exceed the caches.
fn stored(pools: &[Pool], isa: Isa, filter: &str) {
    println!(
        "{:24}{:>18}{:>20}{:>20}{:>20}",
        "one row, stored", "MB", "ms 1T, 2T", "GB/s 1T, 2T", "G weights/s cached"
    );
    for name in ["f32", "f16", "int8", "int4 block 32", "lut4", "lut6", "lut8", "int8 block 32"] {
        if !format!("stored {name}").contains(filter) {
            continue;
        }
        let mut bytes = 0;
        let weights = decoder_weights(name, &mut bytes);
        let left = elements(2816);
        let mut output = vec![0.0; 4096];
        let mut times = vec![];
        for pool in pools {
            times.push(measure(pool, || {
                for weights in &weights {
                    let left = Matrix { elements: black_box(&left), stride: 2816 };
                    let target = MatrixMut { elements: &mut output, stride: 4096 };
                    multiply_stored(pool, isa, 1, left, weights, target, &Epilogue::default());
                }
            }));
        }
        let mut unused = 0;
        let small = format(name, 256, 1024, &mut unused);
        let cached = measure(&pools[0], || {
            let left = Matrix { elements: black_box(&left), stride: 2816 };
            let target = MatrixMut { elements: &mut output, stride: 4096 };
            multiply_stored(&pools[0], isa, 1, left, &small, target, &Epilogue::default());
        });
        let rate = |time: &Duration| bytes as f64 / time.as_secs_f64() / 1e9;
        println!(
            "{name:24}{:18.1}{:10.2}{:10.2}{:10.1}{:10.1}{:20.1}",
            bytes as f64 / 1e6,
            times[0].as_secs_f64() * 1e3,
            times[1].as_secs_f64() * 1e3,
            rate(&times[0]),
            rate(&times[1]),
            256.0 * 1024.0 / cached.as_secs_f64() / 1e9
        );
    }
}

/// Multiplies one row and many rows by the same weights in 16-bit arithmetic.
fn words(pools: &[Pool], isa: Isa, filter: &str) {
    println!(
        "{:24}{:>18}{:>20}{:>24}{:>20}",
        "words", "MB", "GB/s 1T, 2T", "G products/s 1T, 2T", "G products/s cached"
    );
    for rows in [1, 256] {
        for name in ["int4 block 32", "int8 block 32", "lut6 block 16", "q4_k", "q6_k"] {
            let label = format!("{rows} rows, {name}");
            if !format!("words {label}").contains(filter) {
                continue;
            }
            let mut bytes = 0;
            let weights = decoder_weights(name, &mut bytes);
            let count: usize = weights.iter().map(|it| it.rows() * it.columns()).sum();
            let left = elements(rows * 2816);
            let mut output = vec![0.0; rows * 4096];
            let mut run = |pool: &Pool, weights: &[QuantizedMatrix]| {
                measure(pool, || {
                    for weights in weights {
                        let left = Matrix { elements: black_box(&left), stride: 2816 };
                        let target = MatrixMut { elements: &mut output, stride: 4096 };
                        let epilogue = Epilogue::default();
                        multiply_words(pool, isa, rows, left, weights, target, &epilogue);
                    }
                })
                .as_secs_f64()
            };
            let times: Vec<f64> = pools.iter().map(|pool| run(pool, &weights)).collect();
            let small = format(name, 256, 2048, &mut 0);
            let cached = run(&pools[0], &[small]);
            let mut line = format!("{label:24}{:18.1}", bytes as f64 / 1e6);
            for amount in [bytes, rows * count] {
                for time in &times {
                    line += &format!("{:10.1}", amount as f64 / time / 1e9);
                }
            }
            println!("{line}{:20.1}", (rows * 256 * 2048) as f64 / cached / 1e9);
        }
    }
}

/// Random weights of the decoder in a format; adds their bytes to `total`.
fn decoder_weights(name: &str, total: &mut usize) -> Vec<QuantizedMatrix> {
    let sizes = DECODER.iter().flat_map(|&size| std::iter::repeat_n(size, size.2));
    sizes.map(|(outputs, inputs, _)| format(name, outputs, inputs, total)).collect()
}

/// Random weights in a format; adds their bytes to `total`.
fn format(name: &str, outputs: usize, inputs: usize, total: &mut usize) -> QuantizedMatrix {
    let count = outputs * inputs;
    let mut noise = |bytes: usize| {
        *total += bytes;
        // Aligned to a cache line, as in a package.
        let all =
            Buffer::from((0..bytes + 64).map(|at| (at * 7919 % 61) as u8 + 1).collect::<Vec<_>>());
        let start = all.as_bytes().as_ptr().align_offset(64);
        all.slice(start..start + bytes).expect("the bytes are there")
    };
    let halves = |count: usize| Buffer::from(vec![0x20; count * 2]);
    let blocks =
        |shape: [usize; 2]| Blocks { data: halves(shape[0] * shape[1]), dtype: DType::Fp16, shape };
    let weights = match name {
        "f32" => QuantizedMatrix::float(noise(count * 4), DType::Fp32, outputs, inputs),
        "f16" => QuantizedMatrix::float(noise(count * 2), DType::Fp16, outputs, inputs),
        "int8" => {
            let scale = blocks([outputs, 1]);
            QuantizedMatrix::affine(noise(count), DType::Int8, outputs, inputs, &scale, None)
        }
        "int8 block 32" => {
            let scale = blocks([outputs, inputs / 32]);
            QuantizedMatrix::affine(noise(count), DType::Int8, outputs, inputs, &scale, None)
        }
        "int4 block 32" => {
            let scale = blocks([outputs, inputs / 32]);
            QuantizedMatrix::affine(noise(count / 2), DType::Int4, outputs, inputs, &scale, None)
        }
        "q4_k" => {
            let steps = Blocks {
                data: noise(count / 32 * 6 / 8),
                dtype: DType::UInt6,
                shape: [outputs, inputs / 32],
            };
            let units = Some(blocks([outputs, inputs.div_ceil(256)]));
            let scale = NestedBlocks { steps, table: None, units, factor: 1.0 };
            let shift = NestedBlocks { factor: -1.0, ..scale.clone() };
            let data = noise(count / 2);
            let values = ElementValues::Integers;
            let (dtype, shift) = (DType::UInt4, Some(&shift));
            QuantizedMatrix::nested(data, dtype, outputs, inputs, &values, &scale, shift)
        }
        "q6_k" => {
            let steps = Blocks {
                data: noise(count / 16),
                dtype: DType::Int8,
                shape: [outputs, inputs / 16],
            };
            let units = Some(blocks([outputs, inputs.div_ceil(256)]));
            let scale = NestedBlocks { steps, table: None, units, factor: 1.0 };
            let values = ElementValues::Palette((-32..32).map(|entry| entry as f32).collect());
            let data = noise(count * 6 / 8);
            QuantizedMatrix::nested(data, DType::UInt6, outputs, inputs, &values, &scale, None)
        }
        "lut6 block 16" => {
            let values = ElementValues::Palette((-32..32).map(|entry| entry as f32).collect());
            let scale = NestedBlocks::plain(blocks([outputs, inputs / 16]));
            let data = noise(count * 6 / 8);
            QuantizedMatrix::nested(data, DType::UInt6, outputs, inputs, &values, &scale, None)
        }
        _ => {
            let (dtype, bits) = match name {
                "lut4" => (DType::UInt4, 4),
                "lut6" => (DType::UInt6, 6),
                _ => (DType::UInt8, 8),
            };
            let (data, palette) = (noise(count * bits / 8), halves(1 << bits));
            QuantizedMatrix::palette(data, dtype, outputs, inputs, &palette, DType::Fp16, [1, 1])
        }
    };
    weights.expect("the data fits")
}
