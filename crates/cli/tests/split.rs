//! Tests that `split` needs little memory for large weights. The weight file is sparse.

#![cfg(target_os = "linux")]

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use coremill_session::{Array, arrays};
use coremill_tensor::DType;

/// Number of linear layers.
const LAYERS: usize = 24;

/// Writes a chain of linear layers as MIL text. Their weights have few elements that are not 0.
fn place(directory: &Path, size: usize, layers: usize) {
    fs::create_dir(directory.join("weights")).expect("a directory");
    let file = File::create(directory.join("weights/weight.bin")).expect("a file");
    let bytes = (size * size * 2) as u64;
    let mut text = format!("program(1.3) {{ func main<ios17>(tensor<fp16, [1, {size}]> x0) {{\n");
    let mut offset: u64 = 64;
    for layer in 0..layers {
        let data = offset + 64;
        let mut record = [0; 64];
        record[..4].copy_from_slice(&0xdead_beef_u32.to_le_bytes());
        record[4..8].copy_from_slice(&1_u32.to_le_bytes());
        record[8..16].copy_from_slice(&bytes.to_le_bytes());
        record[16..24].copy_from_slice(&data.to_le_bytes());
        file.write_all_at(&record, offset).expect("written");
        for row in (0..size).step_by(size / 16) {
            let at = (row + layer) * size + (row * 5 + layer.saturating_sub(1)) % size;
            // From 1 to 2.
            let element = 0x3c00 + (row * 1024 / size) as u16;
            file.write_all_at(&element.to_le_bytes(), data + 2 * at as u64).expect("written");
        }
        let weight = format!("tensor<fp16, [{size}, {size}]>");
        text += &format!(
            "{weight} w{layer} = const()[val = {weight}(BLOBFILE(path = string(\"@model_path/weights/weight.bin\"), offset = uint64({offset})))];\n"
        );
        let ty = format!("tensor<fp16, [1, {size}]>");
        text += &format!("{ty} h{layer} = linear(x = x{layer}, weight = w{layer});\n");
        text += &format!("{ty} x{} = tanh(x = h{layer});\n", layer + 1);
        offset = (data + bytes).next_multiple_of(64);
    }
    let mut header = [0; 64];
    header[..4].copy_from_slice(&(layers as u32).to_le_bytes());
    header[4..8].copy_from_slice(&2_u32.to_le_bytes());
    file.write_all_at(&header, 0).expect("written");
    file.set_len(offset).expect("a length");
    text += &format!("}} -> (x{layers}); }}");
    fs::write(directory.join("model.mil"), text).expect("written");
}

fn command(directory: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_coremill"));
    command.args(arguments).current_dir(directory);
    command
}

/// Splits the model in a directory. Returns the peak resident memory in bytes, including pages of mapped files.
fn split(directory: &Path, max_size: &str) -> u64 {
    let call = ["split", "model.mil", "-o", "out", "--max-size", max_size];
    let mut child = command(directory, &call).spawn().expect("the command starts");
    let status = format!("/proc/{}/status", child.id());
    let mut peak = 0;
    let done = loop {
        // `VmHWM` is the peak so far and never decreases, so the last value read is the result.
        let now = fs::read_to_string(&status).unwrap_or_default();
        let line = now.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kilobytes = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
        peak = peak.max(kilobytes.unwrap_or_default() << 10);
        if let Some(done) = child.try_wait().expect("a child") {
            break done;
        }
        std::thread::sleep(Duration::from_millis(2));
    };
    assert!(done.success());
    peak
}

fn run(directory: &Path, model: &str, inputs: &str, output: &str) {
    let call = ["run", model, "--inputs", inputs, "-o", output, "--numerics", "rounded"];
    let done = command(directory, &call).output().expect("the command starts");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
}

#[test]
fn split_of_large_weights_uses_little_memory() {
    // Weights of 3 GB take half a minute.
    let is_large = std::env::var_os("COREMILL_ALL_CASES").is_some();
    let (size, max_size, limit) =
        if is_large { (8192, "800MB", 300 << 20) } else { (2048, "50MB", 80 << 20) };
    let scratch = tempfile::tempdir().expect("a directory");
    let path = scratch.path();
    place(path, size, LAYERS);
    let peak = split(path, max_size);
    let length = fs::metadata(path.join("weights/weight.bin")).expect("a file").len();
    println!("{} MB of weights were split within {} MB", length >> 20, peak >> 20);
    assert!(peak > 0 && peak < limit, "the peak is {} MB", peak >> 20);
    // The weight files of the pieces are sparse, too, and their lengths add up to that of the model.
    let pieces: Vec<_> = (1..=5).map(|piece| format!("out/piece_{piece}.mlpackage")).collect();
    let files = pieces.iter().map(|piece| {
        let file = path.join(piece).join("Data/com.apple.CoreML/weights/weight.bin");
        fs::metadata(file).expect("a file")
    });
    let (lengths, held) = files
        .fold((0, 0), |(lengths, held), file| (lengths + file.len(), held + file.blocks() * 512));
    assert!(
        lengths.abs_diff(length) < 4096,
        "the pieces have {lengths} bytes of weights; the model has {length}"
    );
    // `split` leaves out windows of zeros. Small weights have no such windows.
    assert!(!is_large || held < length / 2, "the pieces take {held} bytes on disk, of {length}");
    // The pieces compute exactly the outputs of the whole model.
    let x: Vec<f32> = (0..size).map(|at| (at % 97) as f32 / 64.0 - 0.75).collect();
    let x = Array::floats(DType::Fp16, [1, size], x);
    arrays::write_npz(path.join("in.npz"), &[("x0".to_owned(), x)]).expect("a file");
    run(path, "model.mil", "in.npz", "whole.npz");
    let mut inputs = "in.npz".to_owned();
    for (at, piece) in pieces.iter().enumerate() {
        let output = format!("{at}.npz");
        run(path, piece, &inputs, &output);
        inputs = output;
    }
    let read = |name: &str| arrays::read_npz(path.join(name)).expect("arrays");
    let (whole, pieces) = (read("whole.npz"), read(&inputs));
    assert_eq!(whole[0].1.to_bytes(), pieces[0].1.to_bytes());
    let floats = whole[0].1.as_floats().expect("floats");
    assert!(floats.iter().any(|&float| float != 0.0));
}
