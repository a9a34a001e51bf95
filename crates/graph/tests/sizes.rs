//! Layers with unrealistic sizes: each results in an error at the caller's line or in a graph, never in a
//! panic or an excessive allocation.

use coremill_graph::nn::*;
use coremill_graph::{DType, Graph, Tensor};

/// Small sizes, and sizes at the limits of `i32`, `isize` and `usize`.
const SIZES: [usize; 7] = [0, 1, 3, i32::MAX as usize, 1 << 31, usize::MAX / 2 + 1, usize::MAX];

/// Builds a graph with one input and returns whether it is valid. All errors must be at a line of this file.
fn build(shape: &[usize], module: impl for<'g> FnOnce(Tensor<'g>) -> Tensor<'g>) -> bool {
    let graph = Graph::new();
    let y = module(graph.input("x", DType::Fp32, shape));
    graph.output("y", y);
    let Err(error) = graph.check() else { return true };
    for mistake in error.mistakes() {
        assert!(mistake.location.file().ends_with("sizes.rs"), "{mistake}");
        assert!(!mistake.message.is_empty());
    }
    false
}

/// Calls a function with every pair of sizes.
fn pairs(mut call: impl FnMut(usize, usize)) {
    for first in SIZES {
        SIZES.iter().for_each(|&second| call(first, second));
    }
}

#[test]
fn layers_of_any_size_do_not_panic() {
    pairs(|a, b| {
        build(&[2, 3], |x| {
            Linear::new(a).apply("l", x) + Linear::new(b).without_bias().apply("m", x)
        });
        build(&[2, 3], |x| Embedding::new(a, b).apply("l", x.cast(DType::Int32)));
        build(&[2, 3], |x| Lora::new(Linear::new(a), b, 1.0).apply("l", x));
        build(&[1, 6, 4], |x| GroupNorm::new(a, 1e-5).apply("n", x));
        for rank in 1..=3 {
            let shape = [vec![1, 4], vec![5; rank]].concat();
            let all = vec![b; rank];
            let conv = |outputs: usize, kernel: usize| Conv::new(outputs, vec![kernel; rank]);
            let plain = conv(4, 2);
            let stride = plain.clone().stride(all.clone());
            let padding = plain.clone().padding(all.clone());
            let dilation = plain.clone().dilation(all.clone());
            let groups = conv(a, 2).groups(b);
            let uneven = conv(a, 2).stride(vec![1; b.min(5)]).padding(vec![1; a.min(5)]);
            for conv in [conv(a, b), stride, padding, dilation, groups, uneven] {
                build(&shape, |x| conv.apply("c", x));
                let transpose = ConvTranspose::new(conv);
                build(&shape, |x| transpose.apply("c", x));
                let more = transpose.output_padding(vec![a; rank]);
                build(&shape, |x| more.apply("c", x));
            }
        }
        build(&[1, 2, 4, 4], |x| max_pool(x, &[a, a], &[b, b], &[0, 0]));
        build(&[1, 2, 4, 4], |x| max_pool(x, &[2, 2], &[a, b], &[b, a]));
        build(&[1, 2, 4, 4], |x| avg_pool(x, &[a, 2], &[1, b], &[b, 0], true));
        build(&[1, 2, 4, 4], |x| adaptive_avg_pool(x, &[a, b]));
        build(&[1, 2, 4, 4], |x| resize_bilinear(x, a, b, true));
        build(&[1, 2, 4, 4], |x| resize_nearest(x, a as f32, b as f32));
        build(&[3, 1, 4], |x| Lstm::new(a).bidirectional().apply("l", x, None).0);
        build(&[3, 1, 4], |x| Lstm::new(a).apply("l", x, None).1);
        build(&[3, 1, 4], |x| Gru::new(a).apply("l", x, None).0);
        build(&[2, 8], |x| Experts::new(a, b, 4).normalized().apply("e", x));
        build(&[2, 8], |x| Experts::new(4, 2, a).shared(b).apply("e", x));
        build(&[2, 8], |x| top_experts(x, a, true).0);
    });
}

#[test]
fn attention_of_any_size_does_not_panic() {
    for heads in SIZES {
        pairs(|kv_heads, head| {
            let module = Attention::new(heads, kv_heads, head).qkv_bias().out_bias().qk_norm(1e-6);
            build(&[1, 3, 8], |x| module.apply("a", x, None, &AttentionOptions::new().causal()));
        });
    }
    pairs(|a, b| {
        build(&[1, 2, 3, 4], |x| attention(x, x, x, &AttentionOptions::new().window(a)));
        build(&[1, 3, 8], |x| {
            let graph = x.graph();
            let position = graph.ints([1], &[0]);
            let cache = KvCache::new(graph, "cache", [1, 2, a, 4]);
            let options = AttentionOptions::new().window(b);
            Attention::new(2, 2, 4).apply_cached("a", x, None, cache, position, &options)
        });
        build(&[1, 2, 3, 8], |x| {
            let (latent, shared) = (x.at(1, 0), x.narrow(1, ..1).narrow(-1, ..4));
            let up = x.graph().param("up", [16, 8]);
            latent_attention(x, latent, shared, up, a, &AttentionOptions::new())
        });
        build(&[1, 2, 3, 4], |x| {
            let scaling = RopeScaling::Ntk { factor: 2.0 };
            rotate(x, Rope::new(a, 1e4).scaling(scaling).tables(x.graph(), b))
        });
        for axis in SIZES {
            build(&[1, 2, 3, 4], |x| rotate(x, axial_tables(x.graph(), axis, 1e4, a, b)));
        }
    });
}

#[test]
fn mamba_log_mel_and_sampling_of_any_size_do_not_panic() {
    for inner in SIZES {
        pairs(|a, b| {
            build(&[1, 3, 8], |x| Mamba::new(inner, a, b).apply("m", x, None));
            build(&[1, 3, 8], |x| {
                let mamba = Mamba::new(inner, a, 2).taps(b);
                let cache = mamba.cache(x.graph(), "cache", a);
                mamba.apply("m", x, Some(cache))
            });
            build(&[1, 3, 8], |x| {
                let mamba = Mamba2::new(inner, 2, a).groups(b);
                let cache = mamba.cache(x.graph(), "cache", 1);
                mamba.apply("m", x, Some(cache))
            });
            build(&[1, 3, 8], |x| GatedDeltaNet::new(inner, a, b, 4).apply("m", x, None));
            build(&[1, 3, 8], |x| {
                let net = GatedDeltaNet::new(2, inner, 4, a).taps(b);
                let cache = net.cache(x.graph(), "cache", 1);
                net.apply("m", x, Some(cache))
            });
            build(&[1, 64], |x| LogMel::new(inner, a, b).apply(x));
        });
    }
    pairs(|a, b| {
        build(&[1, 8], |x| top_k_filter(x, a));
        build(&[1, 8], |x| sample(top_p_filter(x, b as f32), a as f32, Some(1)));
        build(&[1, 8], |x| repeat(x.graph(), a, &[x], |_, carried| vec![carried[0] + 1.0])[0]);
    });
}

#[test]
fn inputs_of_any_size_do_not_panic() {
    for size in SIZES {
        build(&[size], |x| fft(x, None, true).0);
        build(&[1, size, 4], |x| Lstm::new(4).apply("l", x, None).0);
        build(&[size, size, 4], |x| {
            Attention::new(2, 1, 4).apply("a", x, None, &AttentionOptions::new().causal())
        });
        build(&[1, size, size], |x| solve(x, x));
        build(&[1, size, 1], |x| qr(x).0);
        build(&[1, size, size], |x| svd(x).1);
        build(&[1, size, size], |x| eigh(x).0);
        build(&[1, size, size], |x| cholesky(x) + solve_triangular(x, x, true));
        build(&[size, size], |x| determinant(x).0);
        build(&[size, 2, size, 2], |x| InstanceNorm::new(1e-5).affine().apply("n", x));
        build(&[size, size, size, size, size], |x| GroupNorm::new(1, 1e-5).apply("n", x));
        build(&[1, size], |x| LogMel::new(4, 2, 3).apply(x));
        build(&[1, size], |x| x.broadcast_to([size, size]).view([size, size, 1]));
        build(&[1, size, 8], |x| GatedDeltaNet::new(2, 2, 4, 4).apply("m", x, None));
    }
}

#[test]
fn accepts_realistic_sizes() {
    assert!(build(&[2, 3], |x| Linear::new(4).apply("l", x)));
    assert!(build(&[1, 3, 8], |x| Mamba::new(8, 4, 2).apply("m", x, None)));
    assert!(build(&[1, 3, 8], |x| Mamba2::new(4, 4, 2).groups(2).apply("m", x, None)));
    assert!(build(&[3, 8], |x| Experts::new(4, 2, 8).dense().apply("m", x)));
    assert!(build(&[1, 64], |x| LogMel::new(16, 8, 4).apply(x)));
    assert!(build(&[1, 3, 8], |x| {
        Attention::new(4, 2, 4).apply("a", x, None, &AttentionOptions::new().window(usize::MAX))
    }));
}
