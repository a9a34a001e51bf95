//! Reads, verifies and writes a large package, compared with `cp -r` of it.
//!
//! Both run as processes of their own, alternately, so that both include their start and have the same
//! conditions. The package is the same on every machine: a chain of linear layers with deterministic weights.
//! [Casting floats of a file into a package](super::cast) follows.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use coremill_mil::ir::{Binding, Constant, Function, Op, Opset, Program, Type, ValueId};
use coremill_mil::model::{ArrayDataType, ArrayType, FeatureDescription, FeatureType, Model};
use coremill_mil::ops::OpKind;
use coremill_mlpackage::package::{self, WriteOptions};
use coremill_tensor::DType;

use super::cast;
use super::measure::{median, peak_memory, timed, write};
use crate::workspace::{execute, root};

/// Maximum time relative to `cp -r`.
const RATIO: f64 = 1.5;

/// Maximum memory in MB.
const MEMORY: f64 = 100.0;

/// Number of inputs and of outputs of each layer.
const WIDTH: u64 = 1024;

/// Options of the measurement.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Size of the package, in MB
    #[arg(long, default_value_t = 346)]
    megabytes: u64,
    /// Number of measurements
    #[arg(long, default_value_t = 9)]
    repetitions: usize,
    /// Directory for the files
    #[arg(long, default_value = "target/bench")]
    directory: PathBuf,
}

/// Source and target.
#[derive(clap::Args)]
pub(crate) struct RunArguments {
    from: PathBuf,
    to: PathBuf,
    /// Wait for the disk
    #[arg(long)]
    durable: bool,
}

/// Measures, prints a table, and checks the limits.
pub(crate) fn run(arguments: &Arguments) -> Result<(), String> {
    if cfg!(debug_assertions) {
        let mut optimized = Command::new("cargo");
        optimized.current_dir(root()).args(["run", "--quiet", "--release", "--package", "xtask"]);
        optimized.args(["--", "bench", "package", "--megabytes", &arguments.megabytes.to_string()]);
        optimized.args(["--repetitions", &arguments.repetitions.to_string()]);
        optimized.arg("--directory").arg(&arguments.directory);
        return execute(&mut optimized, "the optimized run");
    }
    let failed = |error: std::io::Error| error.to_string();
    let directory = root().join(&arguments.directory);
    fs::create_dir_all(&directory).map_err(failed)?;
    let source = directory.join("large.mlpackage");
    let model = large_model(arguments.megabytes);
    write(&source, &model, &WriteOptions { durable: true })?;
    drop(model);

    let own = std::env::current_exe().map_err(failed)?;
    let target = directory.join("copy.mlpackage");
    let run = |durable: bool| {
        let mut command = Command::new(&own);
        command.args(["bench", "package-run"]).arg(&source).arg(&target);
        if durable {
            command.arg("--durable");
        }
        command
    };
    let copy = || {
        let mut command = Command::new("cp");
        command.arg("-r").arg(&source).arg(&target);
        command
    };

    let mut copies = Vec::new();
    let mut runs = Vec::new();
    let mut durable_runs = Vec::new();
    let mut memory = Vec::new();
    for _ in 0..arguments.repetitions {
        copies.push(timed(&mut copy(), &target)?.0);
        let (time, printed) = timed(&mut run(false), &target)?;
        runs.push(time);
        memory.extend(printed.trim().parse::<f64>().ok());
        durable_runs.push(timed(&mut run(true), &target)?.0);
    }
    fs::remove_dir_all(&target).map_err(failed)?;
    fs::remove_dir_all(&source).map_err(failed)?;

    let base = median(&mut copies);
    let ratio = median(&mut runs) / base;
    println!("{} MB, median of {}:", arguments.megabytes, arguments.repetitions);
    println!("{:<28} {:>9} {:>8} {:>9}", "", "ms", "ratio", "fastest");
    for (name, times) in [
        ("cp -r", &mut copies),
        ("read, verify and write", &mut runs),
        ("the same, synced to disk", &mut durable_runs),
    ] {
        let time = median(times);
        println!("{name:<28} {:>9.1} {:>8.2} {:>9.1}", time, time / base, times[0]);
    }
    let peak = memory.iter().copied().reduce(f64::max);
    match peak {
        Some(peak) => println!("peak resident memory: {peak:.1} MB"),
        None => println!("peak resident memory: not reported by this system"),
    }
    if ratio > RATIO {
        return Err(format!(
            "it takes {ratio:.2} times as long as `cp -r`; the target is at most {RATIO}"
        ));
    }
    match peak {
        Some(peak) if peak > MEMORY => {
            return Err(format!(
                "it uses {peak:.1} MB of memory; the target is at most {MEMORY} MB"
            ));
        }
        _ => {}
    }
    cast::run(&directory, arguments.megabytes, arguments.repetitions)
}

/// Reads, verifies and writes once, and prints the peak memory in MB.
pub(crate) fn run_once(arguments: &RunArguments) -> Result<(), String> {
    let model = package::read(&arguments.from).map_err(|error| error.to_string())?;
    write(&arguments.to, &model, &WriteOptions { durable: arguments.durable })?;
    if let Some(peak) = peak_memory() {
        println!("{peak}");
    }
    Ok(())
}

/// A chain of linear layers whose weights have `megabytes`.
fn large_model(megabytes: u64) -> Model {
    let mut function = Function::new("main", Opset::Ios18);
    let body = function.body;
    let activations = Type::tensor(DType::Fp16, &[1, WIDTH]);
    let mut value = function.add_input(body, "x", activations.clone());
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    let layers = (megabytes * 1_000_000).div_ceil(WIDTH * (WIDTH + 1) * 2);
    for layer in 0..layers {
        let weight =
            constant(&mut function, format!("weight_{layer}"), &[WIDTH, WIDTH], &mut random);
        let bias = constant(&mut function, format!("bias_{layer}"), &[WIDTH], &mut random);
        let op = Op::new(OpKind::Linear)
            .with("x", Binding::Value(value))
            .with("weight", Binding::Value(weight))
            .with("bias", Binding::Value(bias));
        let op = function.add_op(body, op, [(format!("y_{layer}"), activations.clone())]);
        value = function.op(op).outputs[0];
    }
    let output = function.value(value).name.clone();
    function.block_mut(body).outputs.push(value);

    let feature = |name: &str| {
        let array = ArrayType::fixed(ArrayDataType::Float16, &[1, WIDTH.cast_signed()]);
        FeatureDescription::new(name, FeatureType::MultiArray(array))
    };
    let mut model = Model {
        specification_version: Opset::Ios18.specification_version(),
        program: Program { functions: vec![function], ..Program::default() },
        ..Model::default()
    };
    model.description.inputs.push(feature("x"));
    model.description.outputs.push(feature(&output));
    model
}

/// Adds a constant of pseudorandom numbers below one.
fn constant(function: &mut Function, name: String, shape: &[u64], random: &mut u64) -> ValueId {
    let count = shape.iter().product::<u64>();
    let mut bytes = Vec::with_capacity(count as usize * 2);
    for _ in 0..count {
        *random ^= *random << 13;
        *random ^= *random >> 7;
        *random ^= *random << 17;
        // A random sign, an exponent below that of one, and a random mantissa.
        let bits = (*random as u16 & 0xabff) | 0x1000;
        bytes.extend_from_slice(&bits.to_le_bytes());
    }
    let constant = Constant::weight(DType::Fp16, shape, bytes);
    let ty = constant.ty.clone();
    let mut op = Op::constant(constant);
    op.attributes.insert("name", Constant::string(name.clone()));
    let op = function.add_op(function.body, op, [(name, ty)]);
    function.op(op).outputs[0]
}
