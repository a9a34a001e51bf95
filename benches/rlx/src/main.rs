//! Builds and writes a transformer with 12 layers of width 768, with `rlx-coreml` and with coremill.
//!
//! `cargo xtask bench rlx` prints the best time of several processes for each way and precision, and the
//! memory used in addition to the weights, which exist before the measurement. For comparison, it prints the
//! time for writing the same bytes. It measures on disk and in memory. `coremill-rlx` converts the same graph
//! as `rlx-coreml`. `coremill-graph` builds its own graph, with weights that are copied, moved, or mapped
//! from a file. Only the last way has a limit.

use std::error::Error;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use coremill_bench_rlx::{HEADS, LAYERS, TOKENS, WIDTH, graph, save, weights};
use coremill_graph::{Device, Param, Params, Precision, Session};
use coremill_rlx::CoremlExecutable;
use rlx_coreml::mil::{LowerOptions, TypedParams, lower_graph_with_options};
use rlx_coreml::mlpackage::write_mlpackage;
use rlx_ir::op::{Activation, BinaryOp, MaskKind};
use rlx_ir::{Graph as RlxGraph, NodeId, Op, Shape};

/// Number of processes for each way; the fastest counts.
const ROUNDS: usize = 5;

/// The required speedup over `rlx-coreml` for building and writing with mapped weights, and the maximum
/// memory, which is independent of the model's size.
const BAR: f64 = 5.0;
const MAX_MEGABYTES: f64 = 64.0;

const WAYS: [&str; 6] = [
    "rlx-coreml",
    "coremill-rlx",
    "coremill-graph, copied",
    "coremill-graph, moved",
    "coremill-graph, mapped",
    "the same bytes alone",
];

/// The way that has a limit.
const MAPPED: usize = 4;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().collect();
    if let [_, way, precision, directory] = arguments.as_slice() {
        return measure(way, precision == "fp16", directory.as_ref());
    }
    // A busy disk slows down all ways equally, so measure in memory as well.
    let memory = PathBuf::from("/dev/shm");
    let mut places = vec![std::env::temp_dir()];
    places.extend(memory.is_dir().then_some(memory));
    let mut missed = Vec::new();
    for precision in ["fp32", "fp16"] {
        let mut reached = 0.0f64;
        for place in &places {
            reached = reached.max(compare(&arguments[0], precision, place)?);
        }
        if reached < BAR {
            missed.push(format!(
                "{precision}: {reached:.1} x as fast as rlx-coreml; the minimum is {BAR} x"
            ));
        }
    }
    if missed.is_empty() { Ok(()) } else { Err(missed.join("\n").into()) }
}

/// Measurements of a process.
#[derive(Clone, Copy)]
struct Cost {
    build: f64,
    write: f64,
    /// CPU time in seconds.
    busy: f64,
    megabytes: f64,
}

impl Cost {
    fn total(&self) -> f64 {
        self.build + self.write
    }
}

/// Prints the measurements of each way in a directory; returns the speedup of the mapped way over
/// `rlx-coreml`.
fn compare(own: &str, precision: &str, place: &Path) -> Result<f64, Box<dyn Error>> {
    let mut best: [Option<Cost>; WAYS.len()] = [None; WAYS.len()];
    for _ in 0..ROUNDS {
        for (way, best) in WAYS.iter().zip(&mut best) {
            let done = Command::new(own).args([way, precision]).arg(place).output()?;
            if !done.status.success() {
                return Err(String::from_utf8_lossy(&done.stderr).into());
            }
            let printed = String::from_utf8(done.stdout)?;
            let numbers =
                printed.split_whitespace().map(str::parse).collect::<Result<Vec<f64>, _>>()?;
            let &[build, write, busy, megabytes] = numbers.as_slice() else {
                return Err(format!("`{way}` printed {printed}").into());
            };
            let cost = Cost { build, write, busy, megabytes };
            let most = best.map_or(megabytes, |best| best.megabytes.max(megabytes));
            if best.is_none_or(|best| cost.total() < best.total()) {
                *best = Some(cost);
            }
            if let Some(best) = best {
                best.megabytes = most;
            }
        }
    }
    println!("{precision}, written to {}; the fastest of {ROUNDS} processes", place.display());
    println!(
        "  {:24} {:>7} {:>7} {:>7} {:>9} {:>6}",
        "", "build s", "write s", "CPU s", "as fast", "MB"
    );
    let best: Vec<Cost> = best.into_iter().flatten().collect();
    let peer = best[0].total();
    for (way, cost) in WAYS.iter().zip(&best) {
        let Cost { build, write, busy, megabytes } = cost;
        let ratio = peer / cost.total();
        println!("  {way:24} {build:7.3} {write:7.3} {busy:7.3} {ratio:7.1} x {megabytes:6.0}");
    }
    let mapped = &best[MAPPED];
    if mapped.megabytes > MAX_MEGABYTES {
        return Err(format!(
            "{} uses {} MB; the limit is {MAX_MEGABYTES} MB",
            WAYS[MAPPED], mapped.megabytes
        )
        .into());
    }
    Ok(peer / mapped.total())
}

/// Prints the seconds for building and for writing, the CPU time in seconds, and the megabytes used in
/// addition to the weights.
fn measure(way: &str, half: bool, place: &Path) -> Result<(), Box<dyn Error>> {
    let mut weights = weights();
    let directory = tempfile::tempdir_in(place)?;
    let path = directory.path().join("model.mlpackage");
    let file = directory.path().join("weights.safetensors");
    let mut mapped = None;
    if way.ends_with("mapped") {
        save(&file, &weights)?;
        mapped = Some(file);
    }
    let typed = TypedParams::new();
    let (before, busy) = (memory("VmHWM:")?, busy()?);
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
        // The lower limit: writing all bytes from memory to a file.
        "the same bytes alone" => {
            let length: usize =
                weights.values().map(|one| if half { 2 } else { 4 } * one.len()).sum();
            let bytes = vec![1u8; 1 << 20];
            let start = Instant::now();
            let mut file = std::fs::File::create(&path)?;
            for at in (0..length).step_by(bytes.len()) {
                file.write_all(&bytes[..bytes.len().min(length - at)])?;
            }
            (Duration::ZERO, start.elapsed())
        }
        _ => {
            let graph = graph();
            let mut all = Params::new();
            match &mapped {
                Some(file) => drop(all.load(file)?),
                None => {
                    for (name, shape) in graph.params() {
                        let param = match way.ends_with("moved") {
                            true => {
                                Param::floats(shape, weights.remove(&name).unwrap_or_default())?
                            }
                            false => Param::floats(shape, &weights[&name])?,
                        };
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
    let (used, busy) = (memory("VmHWM:")? - before, self::busy()? - busy);
    println!("{} {} {busy} {used}", built.as_secs_f64(), (written - built).as_secs_f64());
    Ok(())
}

/// The model as a graph of `rlx-ir`, in which weight matrices are `[inputs, outputs]`.
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

/// A line of `/proc/self/status` in megabytes; 0 if the file does not exist.
fn memory(line: &str) -> Result<f64, Box<dyn Error>> {
    let Ok(status) = std::fs::read_to_string("/proc/self/status") else { return Ok(0.0) };
    let found = status.lines().find_map(|text| text.strip_prefix(line)).unwrap_or("0");
    Ok(found.split_whitespace().next().unwrap_or("0").parse::<f64>()? / 1024.0)
}

/// The CPU time of this process in seconds; 0 if the system does not report it.
fn busy() -> Result<f64, Box<dyn Error>> {
    let Ok(stat) = std::fs::read_to_string("/proc/self/stat") else { return Ok(0.0) };
    // The fields after the name in parentheses begin with field 3. Times are in hundredths of a second.
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or("").split_whitespace().collect();
    let field = |at: usize| fields.get(at).unwrap_or(&"0").parse::<f64>();
    Ok((field(11)? + field(12)?) / 100.0)
}
