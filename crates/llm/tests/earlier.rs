//! Packages of earlier versions, which have two states for each layer, are still read.

use coremill_graph::nn::{AttentionOptions, Embedding, KvCache, Linear, attention};
use coremill_graph::ops::Gather;
use coremill_graph::{CompileOptions, DType, Device, Graph, Opset, Param, Precision, Session};
use coremill_llm::{BuildOptions, Bundle};

const WIDTH: usize = 8;
const VOCABULARY: usize = 12;
const LAYERS: usize = 2;
const CONTEXT: usize = 10;
const BLOCK: usize = 3;

/// A function of a model whose layers add attention without projections.
fn function(name: &str, tokens: usize) -> Graph {
    let graph = Graph::named(name, Opset::Ios18);
    let ids = graph.input("tokens", DType::Int32, [1, tokens]);
    let position = graph.input("position", DType::Int32, [1]);
    let last = (tokens > 1).then(|| graph.input("last", DType::Int32, [1]));
    let mut x = Embedding::new(VOCABULARY, WIDTH).apply("table", ids);
    for layer in 0..LAYERS {
        let [keys, values] = ["keys", "values"]
            .map(|part| graph.state(&format!("layer_{layer}_{part}"), [1, 1, CONTEXT, WIDTH]));
        let cache = KvCache::of_states(keys, values);
        let query = x.view([1, 1, tokens as i64, WIDTH as i64]);
        let (keys, values) = cache.append(position, query, query * 0.5);
        let mask = cache.mask(position, tokens, None);
        let attended = attention(query, keys, values, &AttentionOptions::new().bias(mask));
        x = x + attended.view([1, tokens as i64, WIDTH as i64]);
    }
    if let Some(last) = last {
        x = x.gather(last, Gather::new().axis(1));
    }
    let logits = Linear::new(VOCABULARY).without_bias().apply("head", x);
    graph.output("logits", logits.view([1, VOCABULARY as i64]));
    graph
}

/// Numbers from −1 to 1.
fn weights(seed: u32) -> Vec<f32> {
    let mut random = seed;
    let next = |_| {
        random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (random >> 16) as f32 / 32_768.0 - 1.0
    };
    (0..VOCABULARY * WIDTH).map(next).collect()
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// The logits after each token.
fn expected(table: &[f32], head: &[f32], ids: &[u32]) -> Vec<Vec<f64>> {
    let row = |matrix: &[f32], row: usize| -> Vec<f64> {
        matrix[row * WIDTH..][..WIDTH].iter().map(|&x| f64::from(x)).collect()
    };
    let mut x: Vec<Vec<f64>> = ids.iter().map(|&id| row(table, id as usize)).collect();
    for _ in 0..LAYERS {
        let next = (0..x.len()).map(|at| {
            let scores = x[..=at].iter().map(|key| dot(&x[at], key) / (WIDTH as f64).sqrt());
            let exponentials: Vec<f64> = scores.map(f64::exp).collect();
            let sum: f64 = exponentials.iter().sum();
            let mut sums = x[at].clone();
            for (key, weight) in x.iter().zip(&exponentials) {
                sums.iter_mut().zip(key).for_each(|(to, value)| *to += value * 0.5 * weight / sum);
            }
            sums
        });
        x = next.collect();
    }
    let logits = |x: &Vec<f64>| (0..VOCABULARY).map(|token| dot(x, &row(head, token))).collect();
    x.iter().map(logits).collect()
}

#[test]
fn reads_earlier_packages_with_two_states_per_layer() {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    let path = scratch.path().join("model.mlpackage");
    let (table, head) = (weights(1), weights(2));
    let functions = [function("decode", 1), function("prefill", BLOCK)];
    let options = CompileOptions::new().precision(Precision::Fp32);
    let session = Session::new(Device::Host).options(options);
    let mut executable = session.compile_all(&[&functions[0], &functions[1]]).expect("compiles");
    for (name, values) in [("table.weight", &table), ("head.weight", &head)] {
        let param = Param::floats([VOCABULARY as u64, WIDTH as u64], values).expect("sound");
        executable.set(name, param).expect("set");
    }
    executable.save(&path).expect("written");

    let bundle = Bundle::open(&path).expect("opens");
    let generator = bundle.generator(Device::Host, 1, &BuildOptions::default());
    let mut generator = generator.expect("loads");
    assert_eq!((generator.context(), generator.vocabulary()), (CONTEXT, VOCABULARY));
    let ids = [3, 7, 0, 11, 5, 2, 7, 9];
    let expected = expected(&table, &head, &ids);
    for prompt in [1, 3, 5] {
        // Unlike a recurrent state, a KV cache can be truncated, so the common prefix is reused.
        let kept = generator.keep_prefix(&ids[..prompt]);
        assert_eq!(kept, if prompt == 1 { 0 } else { prompt - 1 });
        let mut found = generator.read(&ids[kept..prompt]).expect("runs");
        for at in prompt - 1..ids.len() {
            let pairs = found.iter().zip(&expected[at]);
            let max_error = pairs.map(|(a, b)| (f64::from(*a) - b).abs()).fold(0.0, f64::max);
            // States are fp16.
            assert!(max_error < 1e-2, "prompt of {prompt}, token {at}: maximum error {max_error}");
            if at + 1 < ids.len() {
                found = generator.read(&ids[at + 1..at + 2]).expect("runs");
            }
        }
    }
    let [first, second] = [0, 4].map(|at: usize| expected[at][0] - expected[at + 1][0]);
    assert!(
        first.abs() > 0.1 && second.abs() > 0.1,
        "logits after different tokens must differ, or the comparison above proves nothing"
    );
}
