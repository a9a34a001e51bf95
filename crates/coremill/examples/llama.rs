//! A small Llama with a KV cache, described in Rust.
//!
//! `llama FILE TOKEN…` loads the weights of a `.safetensors` or `.gguf` file with 4 heads and 2 key
//! heads, runs them token by token, and prints the logits of each step. Without arguments it writes
//! a GGUF file with random Q8_0 weights and generates from it.
#![expect(clippy::print_stdout, reason = "an example prints its result")]

use std::io::Write as _;
use std::path::{Path, PathBuf};

use coremill::graph::nn::{
    Attention, AttentionOptions, Embedding, KvCache, Linear, RmsNorm, Rope, RopeStyle,
};
use coremill::graph::{DType, Device, Error, Graph, Opset, Params, Precision, Session};

const HEADS: usize = 4;
const KV_HEADS: usize = 2;
const CONTEXT: usize = 64;
const EPSILON: f32 = 1e-6;

/// Converts llama.cpp's names to transformers' names.
fn renamed(name: &str) -> Option<String> {
    let plain = name.strip_suffix(".weight")?;
    let name = match plain {
        "token_embd" => "model.embed_tokens".to_owned(),
        "output_norm" => "model.norm".to_owned(),
        "output" => "lm_head".to_owned(),
        other => {
            let (layer, part) = other.strip_prefix("blk.")?.split_once('.')?;
            let part = match part {
                "attn_q" => "self_attn.q_proj",
                "attn_k" => "self_attn.k_proj",
                "attn_v" => "self_attn.v_proj",
                "attn_output" => "self_attn.o_proj",
                "ffn_gate" => "mlp.gate_proj",
                "ffn_up" => "mlp.up_proj",
                "ffn_down" => "mlp.down_proj",
                "attn_norm" => "input_layernorm",
                "ffn_norm" => "post_attention_layernorm",
                _ => return None,
            };
            format!("model.layers.{layer}.{part}")
        }
    };
    Some(format!("{name}.weight"))
}

/// One decoding step: takes a token and its position, returns logits.
fn decoder(params: &Params, style: RopeStyle) -> Graph {
    let shape = |name: &str| {
        let param = params.get(name).unwrap_or_else(|| panic!("the file has no `{name}`"));
        param.shape().iter().map(|&extent| extent as usize).collect::<Vec<_>>()
    };
    let (vocabulary, width) = {
        let table = shape("model.embed_tokens.weight");
        (table[0], table[1])
    };
    let head = shape("model.layers.0.self_attn.q_proj.weight")[0] / HEADS;
    let layers = (0..)
        .take_while(|layer| {
            params.get(&format!("model.layers.{layer}.input_layernorm.weight")).is_some()
        })
        .count();

    let graph = Graph::for_target(Opset::Ios18);
    let token = graph.input("token", DType::Int32, [1, 1]);
    let position = graph.input("position", DType::Int32, [1]);
    let rope = Rope::new(head, 10000.0).style(style);
    let tables = rope.tables(&graph, CONTEXT).at(position);
    let attention = Attention::new(HEADS, KV_HEADS, head);
    let mut x = Embedding::new(vocabulary, width).apply("model.embed_tokens", token);
    for layer in 0..layers {
        let name = |part: &str| format!("model.layers.{layer}.{part}");
        let cache = KvCache::new(&graph, &format!("layer_{layer}"), [1, KV_HEADS, CONTEXT, head]);
        let normal = RmsNorm::new(EPSILON).apply(&name("input_layernorm"), x);
        let options = AttentionOptions::default();
        x = x + attention.apply_cached(
            &name("self_attn"),
            normal,
            Some(tables),
            cache,
            position,
            &options,
        );
        let normal = RmsNorm::new(EPSILON).apply(&name("post_attention_layernorm"), x);
        let inner = shape(&name("mlp.gate_proj.weight"))[0];
        let gate = Linear::new(inner).without_bias().apply(&name("mlp.gate_proj"), normal).silu();
        let up = Linear::new(inner).without_bias().apply(&name("mlp.up_proj"), normal);
        x = x + Linear::new(width).without_bias().apply(&name("mlp.down_proj"), gate * up);
    }
    let normal = RmsNorm::new(EPSILON).apply("model.norm", x);
    graph.output("logits", Linear::new(vocabulary).without_bias().apply("lm_head", normal));
    graph
}

/// Writes a GGUF file with random Q8_0 weights and F32 norms.
fn random_file(path: &Path) -> std::io::Result<()> {
    let (width, inner, vocabulary, head) = (64u64, 96, 128, 16);
    let mut tensors = vec![
        ("token_embd".to_owned(), vec![width, vocabulary]),
        ("output_norm".to_owned(), vec![width]),
        ("output".to_owned(), vec![width, vocabulary]),
    ];
    for layer in 0..2 {
        let heads = [("attn_q", 4 * head), ("attn_k", 2 * head), ("attn_v", 2 * head)];
        let inwards = heads.into_iter().chain([("ffn_gate", inner), ("ffn_up", inner)]);
        let mut shapes: Vec<_> = inwards.map(|(part, rows)| (part, vec![width, rows])).collect();
        shapes.extend([("attn_output", vec![4 * head, width]), ("ffn_down", vec![inner, width])]);
        shapes.extend([("attn_norm", vec![width]), ("ffn_norm", vec![width])]);
        tensors
            .extend(shapes.into_iter().map(|(part, shape)| (format!("blk.{layer}.{part}"), shape)));
    }
    let mut state = 1u64;
    let mut random = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) as u32
    };
    let (mut header, mut data) = (b"GGUF".to_vec(), Vec::new());
    header.extend(3u32.to_le_bytes());
    header.extend((tensors.len() as u64).to_le_bytes());
    header.extend(0u64.to_le_bytes());
    for (name, shape) in &tensors {
        let name = format!("{name}.weight");
        header.extend((name.len() as u64).to_le_bytes());
        header.extend(name.as_bytes());
        header.extend((shape.len() as u32).to_le_bytes());
        shape.iter().for_each(|extent| header.extend(extent.to_le_bytes()));
        let is_norm = shape.len() == 1;
        header.extend((if is_norm { 0u32 } else { 8 }).to_le_bytes());
        header.extend((data.len() as u64).to_le_bytes());
        let count: u64 = shape.iter().product();
        if is_norm {
            (0..count).for_each(|_| data.extend(1f32.to_le_bytes()));
        } else {
            for _ in 0..count / 32 {
                data.extend(half::f16::from_f32(0.002).to_le_bytes());
                data.extend((0..32).map(|_| random() as u8));
            }
        }
        data.resize(data.len().next_multiple_of(32), 0);
    }
    header.resize(header.len().next_multiple_of(32), 0);
    let mut file = std::fs::File::create(path)?;
    file.write_all(&header)?;
    file.write_all(&data)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let directory = tempfile::tempdir()?;
    let given = arguments.next().map(PathBuf::from);
    let path = given.clone().unwrap_or_else(|| directory.path().join("random.gguf"));
    if given.is_none() {
        random_file(&path)?;
    }
    let is_gguf = path.extension().is_some_and(|extension| extension == "gguf");
    let mut params = Params::new();
    // llama.cpp interleaves the two elements of each rotary pair in queries and keys.
    let style = if is_gguf { RopeStyle::Interleaved } else { RopeStyle::SplitHalves };
    params.load_as(&path, |name| if is_gguf { renamed(name) } else { Some(name.to_owned()) })?;

    let precision = if given.is_some() { Precision::Fp32 } else { Precision::Fp16 };
    let session = Session::new(Device::Host).precision(precision);
    let mut model = session.compile(&decoder(&params, style))?;
    model.set_params(&params)?;
    let mut step = |token: i32, position: i32| -> Result<Vec<f32>, Error> {
        let outputs = model.run(&[("token", &[token]), ("position", &[position])])?;
        Ok(outputs.floats("logits").unwrap_or_default().to_vec())
    };
    if given.is_some() {
        for (position, token) in arguments.enumerate() {
            let logits = step(token.parse()?, position as i32)?;
            let logits: Vec<_> = logits.iter().map(ToString::to_string).collect();
            println!("{}", logits.join(" "));
        }
        return Ok(());
    }
    let mut token = 1;
    for position in 0..16 {
        let logits = step(token, position)?;
        let best = logits.iter().enumerate().max_by(|(_, left), (_, right)| left.total_cmp(right));
        token = best.map_or(0, |(at, _)| at as i32);
        print!("{token} ");
    }
    println!();
    let package = directory.path().join("Llama.mlpackage");
    model.save(&package)?;
    let weights = package.join("Data/com.apple.CoreML/weights/weight.bin");
    let (before, after) = (std::fs::metadata(&path)?.len(), std::fs::metadata(weights)?.len());
    println!("GGUF {before} bytes, weights of the package {after} bytes");
    Ok(())
}
