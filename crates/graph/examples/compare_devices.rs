//! `compare_devices PACKAGE…`: runs models on Core ML (CPU only) and on the engine, and compares the results.
//!
//! Every function runs some steps on random inputs and keeps its states from step to step. Outputs and states
//! must agree relative to their largest element. Models with inputs or outputs other than arrays are skipped.

#![expect(clippy::print_stdout, reason = "an example prints its result")]

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use coremill_graph::{Array, DType, Device, Error, Executable, FeatureSpec, Input, Session};
use coremill_mil::ir::Function;
use coremill_mil::model::FeatureType;

/// Number of runs of each function.
const STEPS: usize = 3;

/// Maximum error of an element relative to the largest element: for models with `fp16` values, and for others.
const BOUNDS: [f64; 2] = [2e-2, 1e-3];

fn main() -> ExitCode {
    let cache = std::env::temp_dir().join("coremill-compare-devices");
    let mut failed = 0;
    for path in std::env::args_os().skip(1).map(PathBuf::from) {
        let name = path.file_stem().unwrap_or_default().to_string_lossy();
        match compare(&path, Device::Cpu, &cache) {
            Ok(Some(error)) => {
                println!("ok\t{name}\tmaximum error {error:.1e} of the largest element")
            }
            Ok(None) => println!("skipped\t{name}\tan input or output is not an array"),
            Err(problem) => {
                failed += 1;
                println!("FAILED\t{name}\t{problem}");
            }
        }
    }
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Maximum error of a device relative to the engine; `None` if the model cannot be compared.
pub fn compare(path: &Path, device: Device, cache: &Path) -> Result<Option<f64>, String> {
    let message = |error: Error| error.to_string();
    let mut model = Session::new(Device::Host).open(path).map_err(message)?;
    let functions = model.functions().map_err(message)?;
    let session = Session::new(device).cache(cache);
    let mut other: Option<Executable> = None;
    let mut largest_error = 0.0f64;
    for function in &functions {
        let inputs = model.inputs(function).map_err(message)?;
        let outputs = model.outputs(function).map_err(message)?;
        let states = model.states(function).map_err(message)?;
        if !inputs.iter().chain(&outputs).all(is_array) {
            return Ok(None);
        }
        let uses_fp16 = has_fp16_values(&mut model).map_err(message)?;
        let bound = BOUNDS[usize::from(!uses_fp16)];
        if other.is_none() {
            other = Some(session.open(path).map_err(message)?);
        }
        let Some(other) = &mut other else { continue };
        let mut random = Random(42);
        for step in 0..STEPS {
            let arrays: Option<Vec<_>> =
                inputs.iter().map(|port| Some((port, random.array(port)?))).collect();
            let Some(arrays) = arrays else { return Ok(None) };
            let arguments: Vec<(&str, &dyn Input)> = arrays
                .iter()
                .map(|(port, array)| (port.name.as_str(), array as &dyn Input))
                .collect();
            let expected = model.run_function(function, &arguments).map_err(message)?;
            let found = other.run_function(function, &arguments).map_err(message)?;
            let mut pairs = Vec::new();
            for port in &outputs {
                pairs.push((
                    port,
                    expected.array(&port.name).cloned(),
                    found.array(&port.name).cloned(),
                ));
            }
            for port in &states {
                let [expected, found] =
                    [&mut model, &mut *other].map(|model| model.state(&port.name));
                pairs.push((port, Some(expected.map_err(message)?), Some(found.map_err(message)?)));
            }
            for (port, expected, found) in pairs {
                let value = format!("`{}` of `{function}` in step {step}", port.name);
                let (Some(expected), Some(found)) = (expected, found) else {
                    return Err(format!("{value} is missing"));
                };
                let error =
                    relative_error(&expected, &found).map_err(|why| format!("{value}: {why}"))?;
                if error > bound {
                    return Err(format!(
                        "{value} has an error of {error:.1e} of its largest element; the limit is {bound:.0e}"
                    ));
                }
                largest_error = largest_error.max(error);
            }
        }
        model.reset().map_err(message)?;
        other.reset().map_err(message)?;
    }
    Ok(Some(largest_error))
}

fn is_array(port: &FeatureSpec) -> bool {
    let described = port.description.as_ref().map(|description| &description.ty);
    port.ty.as_tensor().is_some() && !matches!(described, Some(FeatureType::Image(_)))
}

fn has_fp16_values(model: &mut Executable) -> Result<bool, Error> {
    let functions = &model.model()?.program.functions;
    let has_fp16_output = |function: &Function| {
        let mut values = function.all_ops().flat_map(|(_, op)| &op.outputs);
        values.any(|&value| {
            let ty = function.value(value).ty.as_tensor();
            ty.is_some_and(|tensor| tensor.dtype == DType::Fp16)
        })
    };
    Ok(functions.iter().any(has_fp16_output))
}

/// Maximum difference of arrays relative to the largest element.
fn relative_error(expected: &Array, found: &Array) -> Result<f64, String> {
    if expected.shape() != found.shape() {
        return Err(format!(
            "the shape is {:?} on the engine and {:?} on Core ML",
            expected.shape(),
            found.shape()
        ));
    }
    let numbers = |array: &Array| -> Vec<f64> {
        let floats = array.as_floats().map(|floats| floats.iter().map(|&x| f64::from(x)).collect());
        let ints = || array.as_ints().unwrap_or_default().iter().map(|&x| f64::from(x)).collect();
        floats.unwrap_or_else(ints)
    };
    let (expected, found) = (numbers(expected), numbers(found));
    let mut largest = 1e-6f64;
    let mut largest_error = 0.0f64;
    for (expected, found) in expected.iter().zip(&found) {
        if !expected.is_finite() || !found.is_finite() {
            if expected.to_bits() == found.to_bits() || (expected.is_nan() && found.is_nan()) {
                continue;
            }
            return Err(format!("an element is {expected} on the engine and {found} on Core ML"));
        }
        largest = largest.max(expected.abs());
        largest_error = largest_error.max((expected - found).abs());
    }
    Ok(largest_error / largest)
}

/// Xorshift generator; the quality of the numbers does not matter.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// A random input: floats from -1 to 1, or integers 0 and 1, which are valid indices for almost
    /// everything.
    fn array(&mut self, port: &FeatureSpec) -> Option<Array> {
        let (shape, dtype) = (port.default_shape()?, port.ty.as_tensor()?.dtype);
        let count = shape.iter().product();
        if dtype.is_float() {
            let float = |_| (self.next() % 20_001) as f32 / 10_000.0 - 1.0;
            return Some(Array::floats(dtype, shape, (0..count).map(float).collect()));
        }
        let int = |_| (self.next() >> 20 & 1) as i32;
        Some(Array::ints(dtype, shape, (0..count).map(int).collect()))
    }
}
