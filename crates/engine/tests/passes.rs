//! Tests that passes do not change results: the cases of `coremill-passes` before and after the pass,
//! and random programs through each pass and all of them. The fuzz target `passes` runs more, and
//! `COREMILL_SECONDS` sets a time for this test.

#[path = "../../../fuzz/src/compare.rs"]
mod compare;
#[path = "../../../fuzz/src/draw.rs"]
mod draw;
#[path = "../../../fuzz/src/flexible.rs"]
mod flexible;
#[path = "../../../fuzz/src/motifs.rs"]
mod motifs;
#[path = "../../../fuzz/src/passes.rs"]
mod passes;
#[path = "../../../fuzz/src/programs.rs"]
mod programs;
#[path = "../../../fuzz/src/seeds.rs"]
mod seeds;
#[path = "../../../fuzz/src/sweep.rs"]
mod sweep;

use std::fs;
use std::path::{Path, PathBuf};

use coremill_engine::{Array, Engine, FeatureSpec, Hooks, LoadOptions, Numerics, Value};
use coremill_mil::ir::{Dim, Function};
use coremill_mil::model::describe;
use coremill_mil::model::shapes::{ATTRIBUTE, FlexibleShapes};
use coremill_mil::text;
use coremill_verify as verify;
use draw::Draw;
use passes::Outcome;

/// Number of programs.
const PROGRAMS: u64 = 2000;

#[test]
fn passes_fuzz_seeds_do_not_panic() {
    seeds::run(env!("CARGO_MANIFEST_DIR"), "passes", |data| {
        passes::passes(data);
    });
}

#[test]
fn passes_preserve_results_of_random_programs() {
    let outcomes = sweep::sweep(PROGRAMS, passes::drawn);
    let count = |wanted| outcomes.iter().filter(|&&outcome| outcome == wanted).count();
    let (changed, compared) = (count(Outcome::Changed), count(Outcome::Compared));
    let at_sizes = count(Outcome::ComparedAtSizes);
    let summary = format!(
        "of {} programs {changed} were changed, {compared} more compared at one size, and {at_sizes} at several",
        outcomes.len()
    );
    println!("{summary}");
    // The test is only meaningful if passes change programs at several sizes.
    assert!(changed > 100 && compared > 100 && at_sizes > 400, "{summary}");
}

/// A case that cannot run: its expected program omits the weights that the pass computes.
const WITHOUT_WEIGHTS: &str = "weights_take_it.mil";

/// Tolerance relative to the largest element, and the bound that clamps elements before the
/// comparison. Conversion to fp16 rounds constants and saturates.
fn tolerance(pass: &str) -> (f32, f32) {
    match pass {
        "to_fp16" | "rescale" => (1e-2, 65504.0),
        _ => (1e-4, f32::INFINITY),
    }
}

fn clamped(array: &Array, most: f32) -> Array {
    let mut array = array.clone();
    if let Some(floats) = array.floats_mut() {
        floats.iter_mut().for_each(|x| *x = x.clamp(-most, most));
    }
    array
}

#[test]
fn pass_cases_compute_same_before_and_after() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../passes/tests/passes");
    let (mut failures, mut count) = (Vec::new(), 0);
    for folder in sorted(&root) {
        let pass = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let (nearness, most) = tolerance(&pass);
        for path in sorted(&folder).iter().filter(|path| !path.ends_with(WITHOUT_WEIGHTS)) {
            let file = fs::read_to_string(path).expect("the case can be read");
            let (before, after) = file.split_once("// becomes\n").expect("a case has two parts");
            let name = path.display();
            match [before, after].map(run_three_times) {
                [Ok(before), Ok(after)] => {
                    count += 1;
                    assert_eq!(before.len(), after.len(), "{name}");
                    for ((output, before), (_, after)) in before.iter().zip(&after) {
                        let [before, after] = [before, after].map(|array| clamped(array, most));
                        if let Some(mismatch) = compare::difference(&before, &after, nearness) {
                            failures.push(format!("{name}: `{output}`: {mismatch}"));
                        }
                    }
                }
                [Err(error), _] | [_, Err(error)] => failures.push(format!("{name}: {error}")),
            }
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    assert!(count > 30, "{count} cases were run");
}

/// Outputs of three runs on the same states, for inputs derived from the function's signature.
fn run_three_times(source: &str) -> Result<Vec<(String, Array)>, String> {
    let mut program = text::parse(source, &text::NoWeights).map_err(|error| error.to_string())?;
    program.functions.iter_mut().for_each(set_default_shapes);
    let model = describe(program).map_err(|error| error.to_string())?;
    let verified = verify::verify(&model).map_err(|report| report.to_string())?;
    let options = LoadOptions { numerics: Numerics::Fast, threads: 1, ..LoadOptions::default() };
    let engine = Engine::load(&verified, &options).map_err(|error| error.to_string())?;
    let session = engine.session(engine.default_function());
    let mut session = session.map_err(|error| error.to_string())?;
    let mut draw = Draw::new(&[], 7);
    let mut found = Vec::new();
    for _ in 0..3 {
        let ports = session.inputs().to_vec();
        let inputs: Option<Vec<_>> =
            ports.iter().map(|port| Some((port.name.as_str(), array(port, &mut draw)?))).collect();
        let inputs = inputs.ok_or("an input for which the test cannot generate a value")?;
        let outputs = session.run_with(&inputs, &mut Hooks::default());
        for (name, value) in outputs.map_err(|error| error.to_string())?.0 {
            if let Value::Array(array) = value {
                found.push((name, array));
            }
        }
    }
    Ok(found)
}

/// Sets the default size of unknown input dimensions to 3.
fn set_default_shapes(function: &mut Function) {
    let mut shapes = FlexibleShapes::default();
    for input in function.inputs() {
        let value = function.value(*input);
        let Some(ty) = value.ty.as_tensor().filter(|ty| ty.known_shape().is_none()) else {
            continue;
        };
        let extents = ty.shape.iter().map(|dim| match dim {
            Dim::Known(extent) => [*extent as i32; 2],
            _ => [3, 64],
        });
        let ranges: Vec<_> = extents.collect();
        shapes.defaults.push((value.name.clone(), ranges.iter().map(|range| range[0]).collect()));
        shapes.ranges.push((value.name.clone(), ranges));
    }
    if !shapes.ranges.is_empty() {
        function.attributes.insert(ATTRIBUTE, shapes.to_constant());
    }
}

/// Small numbers for an input.
fn array(port: &FeatureSpec, draw: &mut Draw<'_>) -> Option<Array> {
    compare::input(port, &port.default_shape()?, draw, true)
}

fn sorted(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).expect("the directory can be read");
    let mut paths: Vec<_> =
        entries.map(|entry| entry.expect("the entry can be read").path()).collect();
    paths.sort();
    paths
}
