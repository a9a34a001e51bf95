//! A transformer with 12 layers of width 768, its weights, and their file.

use std::collections::HashMap;
use std::io::Write as _;
use std::path::Path;

use coremill_graph::nn::{Attention, AttentionOptions, LayerNorm, Linear};
use coremill_graph::{DType, Graph};

/// Number of layers.
pub const LAYERS: usize = 12;
/// Width of the layers.
pub const WIDTH: usize = 768;
/// Number of attention heads.
pub const HEADS: usize = 12;
/// Number of tokens.
pub const TOKENS: usize = 128;

/// The shapes of a layer's parameters, in torch's order.
fn params() -> Vec<(String, Vec<usize>)> {
    let mut all = Vec::new();
    for layer in 0..LAYERS {
        let mut add = |part: &str, shape: &[usize]| {
            all.push((format!("layers.{layer}.{part}"), shape.to_vec()));
        };
        for part in ["q_proj", "k_proj", "v_proj", "o_proj"] {
            add(&format!("attn.{part}.weight"), &[WIDTH, WIDTH]);
        }
        for (part, outputs, inputs) in [("up", 4 * WIDTH, WIDTH), ("down", WIDTH, 4 * WIDTH)] {
            add(&format!("{part}.weight"), &[outputs, inputs]);
            add(&format!("{part}.bias"), &[outputs]);
        }
        for part in ["norm1.weight", "norm1.bias", "norm2.weight", "norm2.bias"] {
            add(part, &[WIDTH]);
        }
    }
    all
}

/// Random weights by name.
pub fn weights() -> HashMap<String, Vec<f32>> {
    let mut state = 1u32;
    let mut next = || {
        state = state.wrapping_mul(1664525).wrapping_add(1013904223);
        (state >> 8) as f32 / (1 << 24) as f32 - 0.5
    };
    let elements = |shape: &[usize]| shape.iter().product::<usize>();
    params()
        .into_iter()
        .map(|(name, shape)| (name, (0..elements(&shape)).map(|_| next()).collect()))
        .collect()
}

/// The model, built with coremill's modules.
pub fn graph() -> Graph {
    let graph = Graph::new();
    let mut x = graph.input("x", DType::Fp32, [1, TOKENS, WIDTH]);
    let attention = Attention::new(HEADS, HEADS, WIDTH / HEADS);
    for layer in 0..LAYERS {
        let name = |part: &str| format!("layers.{layer}.{part}");
        let normal = LayerNorm::new(1e-5).apply(&name("norm1"), x);
        x = x + attention.apply(&name("attn"), normal, None, &AttentionOptions::default());
        let normal = LayerNorm::new(1e-5).apply(&name("norm2"), x);
        let up = Linear::new(4 * WIDTH).apply(&name("up"), normal);
        x = x + Linear::new(WIDTH).apply(&name("down"), up.gelu(Default::default()));
    }
    graph.output("y", x);
    graph
}

/// Writes weights as `.safetensors`.
pub fn save(path: &Path, weights: &HashMap<String, Vec<f32>>) -> std::io::Result<()> {
    let (mut header, mut at) = (Vec::new(), 0);
    for (name, shape) in params() {
        let end = at + weights[&name].len() * 4;
        header.push(format!(
            r#""{name}":{{"dtype":"F32","shape":{shape:?},"data_offsets":[{at},{end}]}}"#
        ));
        at = end;
    }
    let header = format!("{{{}}}", header.join(","));
    let mut file = std::io::BufWriter::new(std::fs::File::create(path)?);
    file.write_all(&(header.len() as u64).to_le_bytes())?;
    file.write_all(header.as_bytes())?;
    for (name, _) in params() {
        weights[&name].iter().try_for_each(|x| file.write_all(&x.to_le_bytes()))?;
    }
    file.flush()
}
