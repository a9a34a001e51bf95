//! Measures the allocations of Rust sessions after warm-up. Bookkeeping allocates nothing. Elementwise chains allocate a
//! few hundred bytes, and operations without a kernel allocate their results.
#![expect(unsafe_code, reason = "the allocator counts bytes")]

mod counting;

use std::sync::atomic::Ordering;

use coremill_graph::nn::{
    Activation, Attention, AttentionOptions, Conv, KvCache, LayerNorm, Linear, Rope, max_pool,
};
use coremill_graph::{DType, Device, Executable, Graph, Input, Precision, Session};
use counting::ALLOCATED;

/// Compiles a graph and fills its parameters with varying values.
fn model(graph: &Graph, precision: Precision, threads: usize) -> Executable {
    let session = Session::new(Device::Host).precision(precision).threads(threads);
    let mut model = session.compile(graph).expect("it compiles");
    for (name, shape) in graph.params() {
        let count: u64 = shape.iter().product();
        let elements: Vec<f32> = (0..count).map(|at| (at * 37 % 83) as f32 / 410.0 - 0.1).collect();
        model.set_param(&name, elements).expect("a parameter");
    }
    model
}

/// Bytes allocated by a run after warm-up; the second to fifth runs pack weights. The minimum of several runs, because a
/// thread allocates its scratch memory when it first takes part in a kernel, which may be late.
fn allocated_bytes(
    model: &mut Executable,
    inputs: &[(&str, &dyn Input)],
    output: &mut [f32],
) -> usize {
    let mut run = || {
        let before = ALLOCATED.load(Ordering::Relaxed);
        model.run_into(inputs, &mut [("y", output)]).expect("it runs");
        ALLOCATED.load(Ordering::Relaxed) - before
    };
    for _ in 0..5 {
        run();
    }
    (0..8).map(|_| run()).min().expect("there are runs")
}

fn perceptron() -> Graph {
    let graph = Graph::new();
    let x = graph.input("x", DType::Fp32, [4, 64]);
    let hidden = Activation::Gelu.apply(Linear::new(128).apply("up", x));
    graph.output("y", Linear::new(10).apply("down", hidden).softmax_on(-1));
    graph
}

fn images() -> Graph {
    let graph = Graph::new();
    let x = graph.input("x", DType::Fp32, [1, 3, 32, 32]);
    let x = Conv::new(16, [3, 3]).padding([1, 1]).apply("conv1", x).relu();
    let x = max_pool(x, &[2, 2], &[2, 2], &[0, 0]);
    let x = Conv::new(32, [3, 3]).padding([1, 1]).stride([2, 2]).apply("conv2", x).relu();
    let x = x.mean([2, 3], false);
    graph.output("y", Linear::new(10).apply("head", x));
    graph
}

fn transformer() -> Graph {
    let graph = Graph::new();
    let mut x = graph.input("x", DType::Fp32, [1, 16, 64]);
    for layer in 0..2 {
        let name = |part: &str| format!("{layer}.{part}");
        let normal = LayerNorm::new(1e-5).apply(&name("norm1"), x);
        let options = AttentionOptions::new().causal();
        x = x + Attention::new(4, 4, 16).apply(&name("attn"), normal, None, &options);
        let normal = LayerNorm::new(1e-5).apply(&name("norm2"), x);
        let up = Activation::Gelu.apply(Linear::new(256).apply(&name("up"), normal));
        x = x + Linear::new(64).apply(&name("down"), up);
    }
    graph.output("y", x);
    graph
}

fn decoder() -> Graph {
    let graph = Graph::new();
    let x = graph.input("x", DType::Fp32, [1, 1, 64]);
    let position = graph.input("position", DType::Int32, [1]);
    let tables = Rope::new(16, 1e4).tables(&graph, 32).at(position);
    let cache = KvCache::new(&graph, "cache", [1, 2, 32, 16]);
    let options = AttentionOptions::new();
    let attention = Attention::new(4, 2, 16);
    let y = attention.apply_cached("attn", x, Some(tables), cache, position, &options);
    graph.output("y", x + y);
    graph
}

/// A single test, as allocations are counted per process.
#[test]
fn warm_session_runs_allocate_little_memory() {
    let x = [0.25f32; 3 * 32 * 32];
    for precision in [Precision::Fp32, Precision::Fp16] {
        for threads in [1, 2] {
            let count = |graph: &Graph, input_count: usize, output_count: usize| {
                let mut model = model(graph, precision, threads);
                let mut y = vec![0.0f32; output_count];
                let allocated = allocated_bytes(&mut model, &[("x", &&x[..input_count])], &mut y);
                assert!(y.iter().any(|&y| y != 0.0) && y.iter().all(|y| y.is_finite()));
                allocated
            };
            let found = [
                count(&perceptron(), 4 * 64, 40),
                count(&images(), 3 * 32 * 32, 10),
                count(&transformer(), 16 * 64, 16 * 64),
            ];
            let mut model = model(&decoder(), precision, threads);
            let mut y = [0.0f32; 64];
            let inputs: [(&str, &dyn Input); 2] = [("x", &&x[..64]), ("position", &[3i32])];
            let allocated = allocated_bytes(&mut model, &inputs, &mut y);
            println!("{precision:?}, {threads} threads: {found:?}, {allocated}");
            let limits = match precision {
                Precision::Fp32 => [0, 512, 1 << 10, 8 << 10],
                _ => [512, 1 << 10, 2 << 10, 8 << 10],
            };
            let found = [found[0], found[1], found[2], allocated];
            assert!(found.iter().zip(limits).all(|(found, limit)| *found <= limit), "{found:?}");
        }
    }
}
