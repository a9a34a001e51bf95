//! Casting and writing weights of three gigabytes needs little memory.
//!
//! The test runs itself as a child process: if it is called with paths, it writes a package from a file of
//! floats and prints its peak memory. Source and package are sparse files, so they need almost no disk space.

#[path = "support/layers.rs"]
mod layers;

use std::fs::{self, File};
use std::io::{Seek, SeekFrom, Write};
use std::path::Path;
use std::process::Command;

use coremill_mlpackage::package;
use coremill_tensor::{Buffer, DType, LazyTensor};

/// Number of inputs and of outputs of each layer.
const WIDTH: u64 = 4096;

/// Number of layers: 3 GB of fp32 weights.
const LAYERS: u64 = 45;

/// Maximum memory of the writer in MB.
const MEMORY: f64 = 100.0;

const LAYER_BYTES: u64 = WIDTH * WIDTH * 4;

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    if let [_, flag, source, target] = arguments.as_slice()
        && flag == "--write"
    {
        write(Path::new(source), Path::new(target));
        return;
    }
    if !cfg!(target_os = "linux") {
        report("skipped: only Linux tells how much memory a process took");
        return;
    }
    let directory = tempfile::tempdir().expect("a temporary directory");
    let (source, target) =
        (directory.path().join("source.bin"), directory.path().join("large.mlpackage"));
    fill(&source).expect("a source with holes");
    let own = std::env::current_exe().expect("a path");
    let output = Command::new(own).arg("--write").args([&source, &target]).output();
    let output = output.expect("the child ran");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let printed = String::from_utf8_lossy(&output.stdout);
    let peak: f64 = printed.trim().parse().expect("the child prints a number");
    assert!(peak < MEMORY, "writing took {peak:.0} MB; at most {MEMORY:.0} are promised");

    let model = package::read(&target).expect("a sound package");
    let weights: Vec<Buffer> = model.program.functions[0]
        .all_ops()
        .filter_map(|(_, op)| op.attributes.get("val")?.elements().cloned())
        .collect();
    assert_eq!(weights.len() as u64, LAYERS);
    for (layer, weight) in weights.iter().enumerate() {
        let mut element = [0; 2];
        weight.read_at(place(layer as u64) as usize / 2, &mut element).expect("an element");
        // The third layer equals the second.
        let expected = if layer == 2 { 1 } else { layer };
        let found = half::f16::from_le_bytes(element).to_f32();
        assert_eq!(found, expected as f32 + 1.0, "layer {layer}");
    }
    let place = |layer: usize| weights[layer].file_span().expect("it is mapped").offset;
    assert_eq!(place(1), place(2));
    report(&format!("3 GB of weights were cast and written within {peak:.0} MB"));
}

/// The index of the only nonzero element of a layer. For most layers it is not among the first or last
/// samples.
fn place(layer: u64) -> u64 {
    let layer = if layer == 2 { 1 } else { layer };
    (layer * 77_777 % WIDTH) * WIDTH * 4 + 4000
}

fn fill(path: &Path) -> std::io::Result<()> {
    let mut file = File::create(path)?;
    file.set_len(LAYERS * LAYER_BYTES)?;
    for layer in 0..LAYERS {
        let number = if layer == 2 { 2.0 } else { layer as f32 + 1.0 };
        file.seek(SeekFrom::Start(layer * LAYER_BYTES + place(layer)))?;
        file.write_all(&number.to_le_bytes())?;
    }
    Ok(())
}

/// Main function of the child.
fn write(source: &Path, target: &Path) {
    let source = Buffer::map(source).expect("a source");
    let weights = (0..LAYERS).map(|layer| {
        let bytes = layer * LAYER_BYTES..(layer + 1) * LAYER_BYTES;
        let bytes = source.slice(bytes.start as usize..bytes.end as usize).expect("a layer");
        let weight = LazyTensor::new(bytes, DType::Fp32, &[WIDTH, WIDTH]).expect("a layer");
        weight.cast(DType::Fp16).expect("floats").to_buffer()
    });
    layers::write(target, &layers::model(WIDTH, weights));

    let status = fs::read_to_string("/proc/self/status").expect("Linux tells");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kilobytes = line.and_then(|line| line.trim().strip_suffix("kB")).expect("a size");
    report(&(kilobytes.trim().parse::<f64>().expect("a number") * 1024.0 / 1e6).to_string());
}

#[expect(clippy::print_stdout, reason = "the test is a program that reports to its caller")]
fn report(line: &str) {
    println!("{line}");
}
