//! Speed of the matrix kernels on the shapes of real models: `cargo bench -p coremill-tensor --bench
//! kernels [-- FILTER] [--isa NAME]`.

#![expect(clippy::print_stdout, reason = "a benchmark prints what it measures")]

use std::hint::black_box;
use std::time::{Duration, Instant};

use coremill_tensor::kernels::Activation;
use coremill_tensor::kernels::matmul::{
    DenseSource, Epilogue, Matrix, MatrixMut, Order, PackedWeights, Precision, multiply,
};
use coremill_tensor::{Buffer, DType, Isa, Pool};

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
}

/// The shortest of repeated runs: on a shared machine the others measure what else runs.
fn measure(mut run: impl FnMut()) -> Duration {
    run();
    let start = Instant::now();
    let mut times = vec![];
    while times.len() < 5 || times.len() < 400 && start.elapsed() < Duration::from_millis(300) {
        let start = Instant::now();
        run();
        times.push(start.elapsed());
    }
    times.sort();
    times[0]
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
                let time = measure(|| {
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
