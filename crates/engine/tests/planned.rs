//! Runs packages with their plans and operation by operation, and compares the results.
//!
//! These are the golden packages, and the packages in the directory `COREMILL_PACKAGES`.

use std::path::{Path, PathBuf};

use coremill_engine::{
    Array, Engine, Error, FeatureSpec, Hooks, LoadOptions, Numerics, Outputs, Value,
};
use coremill_mil::ir::Dim;
use coremill_mlpackage::package;
use coremill_tensor::DType;
use coremill_verify as verify;

fn packages() -> Vec<PathBuf> {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../mlpackage/tests/packages");
    let mut directories = vec![golden];
    directories.extend(std::env::var_os("COREMILL_PACKAGES").map(PathBuf::from));
    let mut found = Vec::new();
    for directory in directories {
        let entries = std::fs::read_dir(&directory)
            .unwrap_or_else(|error| panic!("{}: {error}", directory.display()));
        let paths = entries.map(|entry| entry.expect("it can be listed").path());
        found.extend(paths.filter(|path| path.extension().is_some_and(|it| it == "mlpackage")));
    }
    found.sort();
    found
}

/// A deterministic random number generator.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u32 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as u32
    }
}

/// A valid input. Unknown dimensions get the description's default size.
fn input(port: &FeatureSpec, numbers: &mut Numbers) -> Array {
    let ty = port.ty.as_tensor().expect("inputs are tensors");
    let described = port.description.as_ref().and_then(|feature| feature.ty.array());
    let extent = |(axis, dim): (usize, &Dim)| match dim {
        Dim::Known(extent) => *extent as usize,
        Dim::Unknown | Dim::Symbolic(_) => {
            described.and_then(|array| array.shape.get(axis)).map_or(5, |&extent| extent as usize)
        }
    };
    let shape: Vec<usize> = ty.shape.iter().enumerate().map(extent).collect();
    let count = shape.iter().product();
    match ty.dtype {
        DType::Fp16 | DType::Fp32 => {
            let float = |_| numbers.next() as f32 / (1u32 << 31) as f32 * 2.0 - 0.9;
            Array::floats(DType::Fp32, shape, (0..count).map(float).collect())
        }
        DType::Bool => Array::ints(
            DType::Bool,
            shape,
            (0..count).map(|_| (numbers.next() % 2) as i32).collect(),
        ),
        dtype => {
            Array::ints(dtype, shape, (0..count).map(|_| (numbers.next() % 7) as i32).collect())
        }
    }
}

fn run_both_ways(path: &Path, numerics: Numerics, threads: usize) -> Result<String, String> {
    let model = package::read(path).map_err(|error| error.to_string())?;
    let verified = verify::verify(&model).map_err(|report| report.summary())?;
    let options = LoadOptions { numerics, threads, ..LoadOptions::default() };
    let text = |error: Error| error.to_string();
    let engine = Engine::load(&verified, &options).map_err(text)?;
    let mut worst: f64 = 0.0;
    let mut skipped = String::new();
    for name in engine.functions() {
        let mut numbers = Numbers(7);
        let mut planned = engine.session(name).map_err(text)?;
        let mut observed = engine.session(name).map_err(text)?;
        let is_random = |op: &coremill_mil::ir::Op| op.type_name().starts_with("random_");
        let function = model.program.function(name).ok_or("the model has no such function")?;
        if function.all_ops().any(|(_, op)| is_random(op)) {
            skipped += &format!("; `{name}` draws random numbers");
            continue;
        }
        // Run twice, so that states are set and memory is reused.
        for _ in 0..2 {
            let inputs: Vec<(String, Array)> = planned
                .inputs()
                .iter()
                .map(|port| (port.name.clone(), input(port, &mut numbers)))
                .collect();
            let inputs: Vec<(&str, Array)> =
                inputs.iter().map(|(name, array)| (name.as_str(), array.clone())).collect();
            let one = planned.run(&inputs);
            let mut ignore = |_: &str, _: &str, _: &Value| {};
            let mut hooks = Hooks { observe: Some(&mut ignore), ..Hooks::default() };
            let other = observed.run_with(&inputs, &mut hooks);
            match (one, other) {
                (Ok(one), Ok(other)) => worst = worst.max(difference(&one, &other)?),
                // Both may reject random inputs, with the same error.
                (Err(one), Err(other)) if one.to_string() == other.to_string() => {
                    skipped += &format!("; `{name}` rejects the inputs both ways: {one}");
                    break;
                }
                (one, other) => {
                    return Err(format!("planned: {:?}\nobserved: {:?}", one.err(), other.err()));
                }
            }
        }
    }
    let tolerance = match numerics {
        Numerics::Fast => 2e-3,
        Numerics::Rounded | Numerics::Ane | Numerics::CoremlCpu => 3e-2,
    };
    if worst > tolerance {
        Err(format!("differ by {worst:.1e}"))
    } else {
        Ok(format!("{worst:.1e}{skipped}"))
    }
}

/// The largest difference, relative to the largest element of an output.
fn difference(one: &Outputs, other: &Outputs) -> Result<f64, String> {
    let mut worst: f64 = 0.0;
    for ((name, one), (_, other)) in one.0.iter().zip(&other.0) {
        let (Some(one), Some(other)) = (one.as_array(), other.as_array()) else {
            continue;
        };
        if one.shape() != other.shape() || one.dtype() != other.dtype() {
            return Err(format!("`{name}` is {:?} and {:?}", one.shape(), other.shape()));
        }
        match (one.as_floats(), other.as_floats()) {
            (Some(one), Some(other)) => {
                let finite = other.iter().filter(|x| x.is_finite());
                let scale = finite.fold(1e-6f64, |most, &x| most.max(f64::from(x.abs())));
                for (&x, &y) in one.iter().zip(other) {
                    let same = x == y || (x.is_nan() && y.is_nan());
                    if !same {
                        let error = f64::from((x - y).abs()) / scale;
                        worst = worst.max(if error.is_nan() { f64::INFINITY } else { error });
                    }
                }
            }
            _ if one != other => return Err(format!("`{name}` differs")),
            _ => {}
        }
    }
    Ok(worst)
}

#[test]
fn plans_match_op_by_op_execution() {
    let only = std::env::var("COREMILL_ONLY").unwrap_or_default();
    let mut failures = Vec::new();
    for path in packages() {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if !only.split(',').any(|only| name.contains(only)) {
            continue;
        }
        for (numerics, threads) in [(Numerics::Fast, 1), (Numerics::Rounded, 3)] {
            match run_both_ways(&path, numerics, threads) {
                Ok(found) => println!("{name} {numerics:?}: {found}"),
                Err(found) => {
                    println!("{name} {numerics:?}: FAILED {found}");
                    failures.push(format!("{name} {numerics:?}: {found}"));
                }
            }
        }
    }
    assert!(failures.is_empty(), "{} runs failed:\n{}", failures.len(), failures.join("\n"));
}
