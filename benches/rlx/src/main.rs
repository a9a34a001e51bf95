//! Builds and writes a transformer of 12 layers and width 768 with `rlx-coreml` and with coremill, in one run.
//!
//! `cargo xtask bench rlx` prints, for each way and precision, the best time of several processes and the memory that it
//! took beyond the weights, which are there before the clock starts. `coremill-rlx` takes the very graph that the peer
//! takes; `coremill-graph` builds its own, with weights that lie in memory or in a mapped file. The latter is held to the
//! bar.

use std::collections::HashMap;
use std::error::Error;
use std::io::Write as _;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use coremill_graph::nn::{Attention, AttentionOptions, LayerNorm, Linear};
use coremill_graph::{DType, Device, Graph, Param, Params, Precision, Session};
use coremill_rlx::CoremlExecutable;
use rlx_coreml::mil::{LowerOptions, TypedParams, lower_graph_with_options};
use rlx_coreml::mlpackage::write_mlpackage;
use rlx_ir::op::{Activation, BinaryOp, MaskKind};
use rlx_ir::{Graph as RlxGraph, NodeId, Op, Shape};

const LAYERS: usize = 12;
const WIDTH: usize = 768;
const HEADS: usize = 12;
const TOKENS: usize = 128;

/// Processes for each way; the fastest counts.
const ROUNDS: usize = 5;

/// How many times as fast as the peer weights of a mapped file are built in and written, and within which memory, whatever
/// the model's size.
const BAR: f64 = 5.0;
const MOST_MEGABYTES: f64 = 64.0;

const WAYS: [&str; 4] = ["rlx-coreml", "coremill-rlx", "coremill-graph", "coremill-graph, mapped"];

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().collect();
    if let [_, way, precision] = arguments.as_slice() {
        return measure(way, precision == "fp16");
    }
    for precision in ["fp32", "fp16"] {
        let mut best = [(f64::INFINITY, f64::INFINITY, 0.0f64); WAYS.len()];
        for _ in 0..ROUNDS {
            for (way, best) in WAYS.iter().zip(&mut best) {
                let done = Command::new(&arguments[0]).args([way, precision]).output()?;
                if !done.status.success() {
                    return Err(String::from_utf8_lossy(&done.stderr).into());
                }
                let printed = String::from_utf8(done.stdout)?;
                let mut numbers = printed.split_whitespace().map(|word| word.parse::<f64>());
                let mut next = || numbers.next().ok_or("a number is missing");
                let (build, write, memory) = (next()??, next()??, next()??);
                if build + write < best.0 + best.1 {
                    (best.0, best.1) = (build, write);
                }
                best.2 = best.2.max(memory);
            }
        }
        println!("{precision}: seconds to build and to write, times as fast, memory");
        let peer = best[0].0 + best[0].1;
        for (way, (build, write, memory)) in WAYS.iter().zip(best) {
            let ratio = peer / (build + write);
            println!("  {way:24} {build:7.3} s + {write:7.3} s   {ratio:6.1} x   {memory:6.0} MB");
        }
        let (build, write, memory) = best[WAYS.len() - 1];
        if peer < BAR * (build + write) || memory > MOST_MEGABYTES {
            return Err(
                format!("{precision}: the bar is {BAR} x within {MOST_MEGABYTES} MB").into()
            );
        }
    }
    Ok(())
}

/// The shapes of a layer's parameters in the order of torch.
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

fn weights() -> HashMap<String, Vec<f32>> {
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

/// Prints the seconds that building and writing took, and the megabytes beyond what was there before.
fn measure(way: &str, half: bool) -> Result<(), Box<dyn Error>> {
    let weights = weights();
    let directory = tempfile::tempdir()?;
    let path = directory.path().join("model.mlpackage");
    let file = directory.path().join("weights.safetensors");
    let mut mapped = None;
    if way.ends_with("mapped") {
        save(&file, &weights)?;
        mapped = Some(file);
    }
    let typed = TypedParams::new();
    let before = memory("VmHWM:")?;
    let start = Instant::now();
    let precision = if half { Precision::Fp16 } else { Precision::Fp32 };
    let (built, written) = match way {
        "rlx-coreml" => {
            let options = LowerOptions {
                float_dtype: if half { rlx_ir::DType::F16 } else { rlx_ir::DType::F32 },
                ..LowerOptions::default()
            };
            let lowered = lower_graph_with_options(&rlx_graph(), &weights, &typed, &options)?;
            let built = start.elapsed();
            write_mlpackage(&lowered.model, &lowered.blob, &path)?;
            (built, start.elapsed())
        }
        "coremill-rlx" => {
            let mut model = CoremlExecutable::compile_for(rlx_graph(), Device::Host, precision)?;
            for (name, elements) in &weights {
                model.set_param(name, elements)?;
            }
            let built = start.elapsed();
            model.save(&path)?;
            (built, start.elapsed())
        }
        _ => {
            let graph = graph();
            let mut all = Params::new();
            match &mapped {
                Some(file) => drop(all.load(file)?),
                None => {
                    for (name, shape) in graph.params() {
                        let param = Param::floats(shape, &weights[&name])?;
                        all.set(name, param);
                    }
                }
            }
            let session = Session::new(Device::Host).precision(precision);
            let mut model = session.compile(&graph)?;
            model.set_params(&all)?;
            model.model()?;
            let built = start.elapsed();
            model.save(&path)?;
            (built, start.elapsed())
        }
    };
    let used = memory("VmHWM:")? - before;
    println!("{} {} {used}", built.as_secs_f64(), (written - built).as_secs_f64());
    Ok(())
}

/// The model as the peer takes it: weights of matrices are `[inputs, outputs]` there.
fn rlx_graph() -> RlxGraph {
    let mut graph = RlxGraph::new("transformer");
    let shape = |dims: &[usize]| Shape::new(dims, rlx_ir::DType::F32);
    let hidden = shape(&[1, TOKENS, WIDTH]);
    let mut x = graph.add_node(Op::Input { name: "x".into() }, vec![], hidden.clone());
    for layer in 0..LAYERS {
        let name = |part: &str| format!("layers.{layer}.{part}");
        let param = |graph: &mut RlxGraph, part: &str, dims: &[usize]| {
            graph.add_node(Op::Param { name: name(part) }, vec![], shape(dims))
        };
        let product = |graph: &mut RlxGraph, x: NodeId, part: &str, dims: [usize; 2]| {
            let weight = param(graph, part, &dims);
            graph.add_node(Op::MatMul, vec![x, weight], shape(&[1, TOKENS, dims[1]]))
        };
        let norm = |graph: &mut RlxGraph, x: NodeId, part: &str| {
            let weight = param(graph, &format!("{part}.weight"), &[WIDTH]);
            let bias = param(graph, &format!("{part}.bias"), &[WIDTH]);
            graph.add_node(
                Op::LayerNorm { axis: -1, eps: 1e-5 },
                vec![x, weight, bias],
                hidden.clone(),
            )
        };
        let add = |graph: &mut RlxGraph, x: NodeId, y: NodeId, shape: Shape| {
            graph.add_node(Op::Binary(BinaryOp::Add), vec![x, y], shape)
        };
        let normal = norm(&mut graph, x, "norm1");
        let parts = ["q_proj", "k_proj", "v_proj"].map(|part| {
            product(&mut graph, normal, &format!("attn.{part}.weight"), [WIDTH, WIDTH])
        });
        let attention = Op::Attention {
            num_heads: HEADS,
            head_dim: WIDTH / HEADS,
            v_head_dim: None,
            mask_kind: MaskKind::None,
            score_scale: None,
            attn_logit_softcap: None,
        };
        let heads = graph.add_node(attention, parts.to_vec(), hidden.clone());
        let merged = product(&mut graph, heads, "attn.o_proj.weight", [WIDTH, WIDTH]);
        x = add(&mut graph, x, merged, hidden.clone());
        let normal = norm(&mut graph, x, "norm2");
        let wide = shape(&[1, TOKENS, 4 * WIDTH]);
        let up = product(&mut graph, normal, "up.weight", [WIDTH, 4 * WIDTH]);
        let bias = param(&mut graph, "up.bias", &[4 * WIDTH]);
        let up = add(&mut graph, up, bias, wide.clone());
        let active = graph.add_node(Op::Activation(Activation::Gelu), vec![up], wide);
        let down = product(&mut graph, active, "down.weight", [4 * WIDTH, WIDTH]);
        let bias = param(&mut graph, "down.bias", &[WIDTH]);
        let down = add(&mut graph, down, bias, hidden.clone());
        x = add(&mut graph, x, down, hidden.clone());
    }
    graph.set_outputs(vec![x]);
    graph
}

/// The same model in the modules of coremill.
fn graph() -> Graph {
    let graph = Graph::new();
    let mut x = graph.input("x", DType::Fp32, [1, TOKENS, WIDTH]);
    let attention = Attention::new(HEADS, HEADS, WIDTH / HEADS);
    for layer in 0..LAYERS {
        let name = |part: &str| format!("layers.{layer}.{part}");
        let normal = LayerNorm(1e-5).apply(&name("norm1"), x);
        x = x + attention.apply(&name("attn"), normal, None, &AttentionOptions::default());
        let normal = LayerNorm(1e-5).apply(&name("norm2"), x);
        let up = Linear::new(4 * WIDTH).apply(&name("up"), normal);
        x = x + Linear::new(WIDTH).apply(&name("down"), up.gelu(Default::default()));
    }
    graph.output("y", x);
    graph
}

/// Writes weights as `.safetensors`.
fn save(path: &Path, weights: &HashMap<String, Vec<f32>>) -> std::io::Result<()> {
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

/// A line of `/proc/self/status` in megabytes; 0 where there is no such file.
fn memory(line: &str) -> Result<f64, Box<dyn Error>> {
    let Ok(status) = std::fs::read_to_string("/proc/self/status") else { return Ok(0.0) };
    let found = status.lines().find_map(|text| text.strip_prefix(line)).unwrap_or("0");
    Ok(found.split_whitespace().next().unwrap_or("0").parse::<f64>()? / 1024.0)
}
