//! Casts floats of a file into a package, compared with `cp` of the package and with the lower limit.
//!
//! The lower limit is one thread that reads the source while another thread writes the bytes of the package,
//! without computing.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

use coremill_mil::ir::{Binding, Constant, Function, Op, Opset, Program, Type, ValueId};
use coremill_mil::model::{ArrayDataType, ArrayType, FeatureDescription, FeatureType, Model};
use coremill_mil::ops::OpKind;
use coremill_mlpackage::package::WriteOptions;
use coremill_tensor::{Buffer, DType, LazyTensor};

use super::measure::{median, peak_memory, timed, write};

/// Maximum time relative to `cp` of the package.
const RATIO: f64 = 2.5;

/// Maximum memory in MB.
const MEMORY: f64 = 100.0;

/// Widths of the layers in turn, as in a vision transformer.
const WIDTHS: [u64; 4] = [768, 2304, 768, 3072];

/// Source and target.
#[derive(clap::Args)]
pub(crate) struct RunArguments {
    from: PathBuf,
    to: PathBuf,
    /// Only read and write
    #[arg(long)]
    floor: bool,
}

/// Measures, prints a table, and checks the limits.
pub(super) fn run(directory: &Path, megabytes: u64, repetitions: usize) -> Result<(), String> {
    let failed = |error: io::Error| error.to_string();
    let source = directory.join("large.bin");
    let layers = fill(&source, megabytes * 1_000_000).map_err(failed)?;
    let own = std::env::current_exe().map_err(failed)?;
    let (package, target) = (directory.join("cast.mlpackage"), directory.join("copy"));
    let cast = || {
        let mut command = Command::new(&own);
        command.args(["bench", "cast-run"]).arg(&source).arg(&package);
        command
    };
    let copy = || {
        let mut command = Command::new("cp");
        command.arg("-r").arg(&package).arg(&target);
        command
    };
    let floor = || {
        let mut command = Command::new(&own);
        command.args(["bench", "cast-run", "--floor"]).arg(&source).arg(&target);
        command
    };
    let (mut casts, mut copies, mut floors, mut memory) =
        (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for _ in 0..repetitions {
        let (time, printed) = timed(&mut cast(), &package)?;
        casts.push(time);
        memory.extend(printed.trim().parse::<f64>().ok());
        copies.push(timed(&mut copy(), &target)?.0);
        floors.push(timed(&mut floor(), &target)?.0);
    }
    for path in [&package, &target] {
        fs::remove_dir_all(path).map_err(failed)?;
    }
    fs::remove_file(&source).map_err(failed)?;

    let base = median(&mut copies);
    let ratio = median(&mut casts) / base;
    println!("{megabytes} MB of fp32 in {layers} layers cast to fp16, median of {repetitions}:");
    println!("{:<28} {:>9} {:>8} {:>9}", "", "ms", "ratio", "fastest");
    for (name, times) in [
        ("cp -r of the package", &mut copies),
        ("read, and write half of it", &mut floors),
        ("map, cast, hash and write", &mut casts),
    ] {
        let time = median(times);
        println!("{name:<28} {:>9.1} {:>8.2} {:>9.1}", time, time / base, times[0]);
    }
    let peak = memory.iter().copied().reduce(f64::max);
    if let Some(peak) = peak {
        println!("peak resident memory: {peak:.1} MB");
    }
    if ratio > RATIO {
        return Err(format!(
            "casting takes {ratio:.2} times as long as `cp -r` of the package; the target is at most {RATIO}"
        ));
    }
    match peak {
        Some(peak) if peak > MEMORY => {
            Err(format!("casting uses {peak:.1} MB of memory; the target is at most {MEMORY} MB"))
        }
        _ => Ok(()),
    }
}

/// Casts and writes once, and prints the peak memory in MB.
pub(super) fn run_once(arguments: &RunArguments) -> Result<(), String> {
    let failed = |error: io::Error| error.to_string();
    if arguments.floor {
        return read_and_write(&arguments.from, &arguments.to).map_err(failed);
    }
    let model = model(Buffer::map(&arguments.from).map_err(failed)?)?;
    write(&arguments.to, &model, &WriteOptions::default())?;
    if let Some(peak) = peak_memory() {
        println!("{peak}");
    }
    Ok(())
}

fn read_and_write(from: &Path, to: &Path) -> io::Result<()> {
    const WINDOW: usize = 256 << 10;
    fs::create_dir(to)?;
    let mut from = File::open(from)?;
    let mut left = from.metadata()?.len() / 2;
    let mut to = File::create(to.join("half"))?;
    std::thread::scope(|scope| {
        let reader = scope.spawn(move || {
            let mut window = vec![0; WINDOW];
            while from.read(&mut window)? > 0 {}
            io::Result::Ok(())
        });
        let window = vec![1; WINDOW];
        while left > 0 {
            let length = left.min(WINDOW as u64);
            to.write_all(&window[..length as usize])?;
            left -= length;
        }
        reader.join().unwrap_or_else(|_| Err(io::Error::other("the reader panicked")))
    })
}

/// Inputs, outputs and the first float of each layer, as many as there are floats for.
fn layers(floats: u64) -> impl Iterator<Item = (u64, u64, u64)> {
    let widths = WIDTHS.into_iter().cycle();
    let pairs = widths.clone().zip(widths.skip(1));
    let placed = pairs.scan(0, |end, (inputs, outputs)| {
        let start = *end;
        *end += (inputs + 1) * outputs;
        Some((inputs, outputs, start))
    });
    placed.take_while(move |(inputs, outputs, start)| start + (inputs + 1) * outputs <= floats)
}

/// Writes floats with the magnitude of weights; returns the number of layers.
fn fill(path: &Path, bytes: u64) -> io::Result<usize> {
    let floats = bytes / 4;
    let Some((inputs, outputs, start)) = layers(floats).last() else {
        return Err(io::Error::other("there is no room for a layer"));
    };
    let mut to = io::BufWriter::with_capacity(1 << 20, File::create(path)?);
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    for _ in 0..start + (inputs + 1) * outputs {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let number = (random as u32 as f32 / u32::MAX as f32 - 0.5) * 0.1;
        to.write_all(&number.to_le_bytes())?;
    }
    to.into_inner()?.sync_all()?;
    Ok(layers(floats).count())
}

/// A chain of layers whose weights are consecutive in a file.
fn model(source: Buffer) -> Result<Model, String> {
    let mut function = Function::new("main", Opset::Ios18);
    let body = function.body;
    let activations = |width: u64| Type::tensor(DType::Fp16, &[1, width]);
    let mut value = function.add_input(body, "x", activations(WIDTHS[0]));
    let mut width = WIDTHS[0];
    for (layer, (inputs, outputs, start)) in layers(source.len() as u64 / 4).enumerate() {
        let bias = start + inputs * outputs;
        let weight = cast(&source, start, &[outputs, inputs])?;
        let weight = add(&mut function, format!("weight_{layer}"), weight);
        let bias = cast(&source, bias, &[outputs])?;
        let bias = add(&mut function, format!("bias_{layer}"), bias);
        let op = Op::new(OpKind::Linear)
            .with("x", Binding::Value(value))
            .with("weight", Binding::Value(weight))
            .with("bias", Binding::Value(bias));
        let op = function.add_op(body, op, [(format!("y_{layer}"), activations(outputs))]);
        (value, width) = (function.op(op).outputs[0], outputs);
    }
    let output = function.value(value).name.clone();
    function.block_mut(body).outputs.push(value);
    let feature = |name: &str, width: u64| {
        let array = ArrayType::fixed(ArrayDataType::Float16, &[1, width.cast_signed()]);
        FeatureDescription::new(name, FeatureType::MultiArray(array))
    };
    let mut model = Model {
        specification_version: Opset::Ios18.specification_version(),
        program: Program { functions: vec![function], ..Program::default() },
        ..Model::default()
    };
    model.description.inputs.push(feature("x", WIDTHS[0]));
    model.description.outputs.push(feature(&output, width));
    Ok(model)
}

/// The constant of the floats from `start` on.
fn cast(source: &Buffer, start: u64, shape: &[u64]) -> Result<Constant, String> {
    let strides: Vec<u64> =
        (0..shape.len()).map(|axis| shape[axis + 1..].iter().product()).collect();
    let floats = LazyTensor::strided(source.clone(), DType::Fp32, shape, &strides, start);
    let clamped = floats.and_then(|floats| floats.clamp_to_fp16(true));
    let halves = clamped.and_then(|floats| floats.cast(DType::Fp16));
    let halves = halves.map_err(|error| error.to_string())?;
    Ok(Constant::weight(DType::Fp16, shape, halves.to_buffer()))
}

fn add(function: &mut Function, name: String, constant: Constant) -> ValueId {
    let ty = constant.ty.clone();
    let mut op = Op::constant(constant);
    op.attributes.insert("name", Constant::string(name.clone()));
    let op = function.add_op(function.body, op, [(name, ty)]);
    function.op(op).outputs[0]
}
