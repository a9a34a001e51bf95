//! Converting a sparse GGUF file to a package needs little memory.
//!
//! The file has 64 MB, or 4 GB if `COREMILL_ALL_CASES` is set. The test runs itself as a child process, so
//! that only its own memory is measured: if `COREMILL_LARGE_GGUF` is set, it writes the package and prints
//! its peak memory.

use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::path::Path;
use std::process::Command;

use coremill_graph::{DType, Device, Graph, Params, Scheme, Session};
use coremill_mlpackage::package;

/// Number of inputs and of outputs of each layer.
const WIDTH: u64 = 4096;

/// Maximum memory for writing the package in MB.
const MEMORY: f64 = 300.0;

/// Schemes of the layers, in turn.
const SCHEMES: [Scheme; 4] = [Scheme::Q8_0, Scheme::Q4_0, Scheme::Mxfp4, Scheme::Q5_0];

const CHILD: &str = "COREMILL_LARGE_GGUF";

fn bytes(layer: u64) -> u64 {
    SCHEMES[layer as usize % 4].storage_bytes(&[WIDTH, WIDTH]).expect("whole blocks")
}

#[test]
fn large_gguf_converts_within_memory_limit() {
    if let Some(directory) = std::env::var_os(CHILD) {
        return convert(Path::new(&directory));
    }
    let size: u64 =
        if std::env::var_os("COREMILL_ALL_CASES").is_some() { 4 << 30 } else { 64 << 20 };
    let layers = (1..)
        .find(|&count| (0..count).map(bytes).sum::<u64>() >= size)
        .expect("a number of layers");
    let directory = tempfile::tempdir().expect("a temporary directory");
    fill(&directory.path().join("large.gguf"), layers).expect("a sparse file");
    let executable = std::env::current_exe().expect("the path of this test");
    let output = Command::new(executable)
        .args(["--exact", "large_gguf_converts_within_memory_limit", "--nocapture"])
        .env(CHILD, directory.path())
        .output()
        .expect("the child process can run");
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{printed}{}", String::from_utf8_lossy(&output.stderr));
    let weights = directory.path().join("large.mlpackage/Data/com.apple.CoreML/weights/weight.bin");
    let made = std::fs::metadata(&weights).expect("the package has weights").len();
    assert!(made.abs_diff(size) < size / 10, "weight.bin has {made} bytes, the GGUF file {size}");
    let read = package::read(&directory.path().join("large.mlpackage")).expect("a sound package");
    let function = &read.program.functions[0];
    let scales =
        function.all_ops().filter_map(|(_, op)| function.bound_constant(op.binding("scale")?));
    // The first layer uses Q8_0, whose blocks have a half-precision scale.
    let mut scale = [0; 2];
    let scales: Vec<_> = scales.filter_map(|constant| constant.elements()).collect();
    scales[0].read_at(0, &mut scale).expect("a scale");
    assert_eq!(half::f16::from_le_bytes(scale).to_f32(), 0.5);
    if !cfg!(target_os = "linux") {
        return;
    }
    let peak = printed.lines().find_map(|line| line.strip_prefix("peak ")).expect("a peak");
    let peak: f64 = peak.parse().expect("a number");
    println!("converting {} MB of GGUF takes {peak:.0} MB of memory", size >> 20);
    assert!(peak < MEMORY, "peak memory is {peak:.0} MB; the limit is {MEMORY:.0} MB");
}

#[expect(clippy::print_stdout, reason = "the child process reports to its parent")]
fn convert(directory: &Path) {
    let mut params = Params::new();
    let layers = params.load(directory.join("large.gguf")).expect("the file can be read");
    let graph = Graph::new();
    let mut x = graph.input("x", DType::Fp32, [1, WIDTH as usize]);
    for layer in 0..layers {
        x = x.matmul_t(graph.param(&format!("w{layer}"), [WIDTH as usize, WIDTH as usize]));
    }
    graph.output("y", x);
    let mut model = Session::new(Device::Host).compile(&graph).expect("it compiles");
    assert_eq!(model.set_params(&params).expect("all parameters have the declared shapes"), layers);
    model.save(directory.join("large.mlpackage")).expect("the package can be written");
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kilobytes = peak.and_then(|line| line.split_whitespace().next()?.parse::<f64>().ok());
    if let Some(kilobytes) = kilobytes {
        println!("\npeak {}", kilobytes / 1024.0);
    }
}

fn fill(path: &Path, layers: u64) -> std::io::Result<()> {
    let mut header = b"GGUF".to_vec();
    header.extend(3u32.to_le_bytes());
    header.extend(layers.to_le_bytes());
    header.extend(0u64.to_le_bytes());
    let mut at = 0u64;
    let mut places = Vec::new();
    for layer in 0..layers {
        let name = format!("w{layer}");
        header.extend((name.len() as u64).to_le_bytes());
        header.extend(name.as_bytes());
        header.extend(2u32.to_le_bytes());
        header.extend(WIDTH.to_le_bytes());
        header.extend(WIDTH.to_le_bytes());
        header.extend(SCHEMES[layer as usize % 4].code().to_le_bytes());
        header.extend(at.to_le_bytes());
        places.push(at);
        at = (at + bytes(layer)).next_multiple_of(32);
    }
    header.resize(header.len().next_multiple_of(32), 0);
    let mut file = File::create(path)?;
    file.write_all(&header)?;
    file.set_len(header.len() as u64 + at)?;
    for (layer, place) in places.into_iter().enumerate() {
        // The scale and the first codes of the first block. The codes differ between layers.
        file.seek(SeekFrom::Start(header.len() as u64 + place))?;
        file.write_all(&half::f16::from_f32(0.5).to_le_bytes())?;
        file.write_all(&(layer as u32).to_le_bytes())?;
    }
    Ok(())
}
