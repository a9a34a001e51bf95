//! Properties of every run of a program. The fuzz target and the test of the seeds share them.

use std::panic::{AssertUnwindSafe, catch_unwind};

use coremill_engine::{
    Array, Engine, Error, FeatureSpec, Hooks, LoadOptions, Numerics, Outputs, Session, Value,
};
use coremill_mil::ir::{Binding, Function, Program};
use coremill_mil::model::{Model, describe};
use coremill_mil::ops::OpKind;
use coremill_mil::text;
use coremill_verify as verify;

use crate::compare::{
    LIMITS, difference, has_steady_shapes, input, is_steady, is_tame, message, run, show,
};
use crate::draw::Draw;
use crate::flexible;
use crate::programs::generate;

/// Outcome of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The bytes are not a program, or the verifier refuses it.
    Refused,
    /// Loading or running it fails.
    Failed,
    /// It runs.
    Ran,
    /// It runs, and its results were compared.
    Compared,
}

/// Programs, as text or generated from bytes, run or fail. The results of the planned program equal those of running
/// operation by operation.
pub(crate) fn execute(data: &[u8]) -> Outcome {
    if let Some(source) = std::str::from_utf8(data).ok().filter(|text| text.contains("program")) {
        let Ok(program) = text::parse(source, &text::NoWeights) else { return Outcome::Refused };
        let seed = data.iter().fold(1u64, |seed, &byte| seed.wrapping_mul(31) ^ u64::from(byte));
        return run_program(program, &mut Draw::new(&[], seed), false);
    }
    drawn(&mut Draw::new(data, data.len() as u64))
}

/// Generates a program from decisions and runs it.
pub(crate) fn drawn(draw: &mut Draw<'_>) -> Outcome {
    let Some(generated) = generate(draw, &OpKind::ALL) else { return Outcome::Refused };
    let open = draw.one_in(2).then(|| flexible::open(&generated.function, draw)).flatten();
    let function = open.unwrap_or(generated.function);
    let program = Program { functions: vec![function], ..Program::default() };
    run_program(program, draw, generated.benign)
}

fn run_program(program: Program, draw: &mut Draw<'_>, benign: bool) -> Outcome {
    let Ok(model) = describe(program) else { return Outcome::Refused };
    let Ok(verified) = verify::verify(&model) else { return Outcome::Refused };
    // On a panic, print the program first.
    let run = AssertUnwindSafe(|| run_model(&model, &verified, draw, benign));
    catch_unwind(run)
        .unwrap_or_else(|cause| panic!("{}\n{}", message(&*cause), show(&model.program)))
}

fn run_model(
    model: &Model,
    verified: &verify::Verified<'_>,
    draw: &mut Draw<'_>,
    benign: bool,
) -> Outcome {
    let threads = 1 + draw.below(2);
    let mut outcome = Outcome::Failed;
    for numerics in Numerics::ALL {
        let options = LoadOptions { numerics, threads, limits: LIMITS, ..LoadOptions::default() };
        let Ok(engine) = Engine::load(verified, &options) else { return Outcome::Failed };
        for function in &model.program.functions {
            let found = run_function(&engine, function, draw, benign);
            if found == Outcome::Ran || found == Outcome::Compared {
                outcome = found;
            }
        }
    }
    outcome
}

fn run_function(
    engine: &Engine,
    function: &Function,
    draw: &mut Draw<'_>,
    benign: bool,
) -> Outcome {
    let Ok(mut session) = engine.session(&function.name) else { return Outcome::Failed };
    let ports = session.inputs().to_vec();
    let shapes: Option<Vec<_>> = ports.iter().map(FeatureSpec::default_shape).collect();
    let Some(mut shapes) = shapes else { return Outcome::Failed };
    let is_open =
        |port: &FeatureSpec| port.ty.as_tensor().is_some_and(|ty| ty.known_shape().is_none());
    let others = if ports.iter().any(is_open) { 3 } else { 0 };
    let mut outcome = run_shapes(engine, &mut session, function, &shapes, draw, benign);
    for _ in 0..others {
        let fits = |index: usize, shape: &[usize]| ports[index].accepts_shape(shape);
        shapes = flexible::reshape(&shapes, &fits, draw);
        let found = run_shapes(engine, &mut session, function, &shapes, draw, benign);
        if outcome == Outcome::Failed {
            outcome = found;
        }
    }
    outcome
}

fn run_shapes(
    engine: &Engine,
    session: &mut Session,
    function: &Function,
    shapes: &[Vec<usize>],
    draw: &mut Draw<'_>,
    benign: bool,
) -> Outcome {
    let ports = session.inputs().to_vec();
    let inputs: Option<Vec<(&str, Array)>> = ports
        .iter()
        .zip(shapes)
        .map(|(port, shape)| Some((port.name.as_str(), input(port, shape, draw, benign)?)))
        .collect();
    let Some(inputs) = inputs else { return Outcome::Failed };

    let mut tame = benign;
    let observed = {
        let mut look = |_: &str, _: &str, value: &Value| tame &= is_tame(value);
        let mut hooks = Hooks { observe: Some(&mut look), ..Hooks::default() };
        run(session, &inputs, &mut hooks)
    };
    let planned = run(session, &inputs, &mut Hooks::default());
    // A random result may suit the next operation in one run, and not in another.
    if function.all_ops().any(|(_, op)| op.kind().is_none_or(OpKind::is_random)) {
        return if observed.is_ok() { Outcome::Ran } else { Outcome::Failed };
    }
    let has_steady_shapes = has_steady_shapes(function);
    let Ok(observed) = observed else {
        // Passes remove unused operations and their errors; and plans may need less memory.
        let reason = shown(&observed);
        assert!(
            planned.is_err()
                || !has_steady_shapes
                || !all_read(function)
                || reason.contains(" tensors are limited to "),
            "runs as planned, but fails operation by operation: {reason}"
        );
        return Outcome::Failed;
    };
    let planned = match planned {
        Ok(planned) => planned,
        Err(_) if !has_steady_shapes => return Outcome::Ran,
        Err(error) => panic!("runs operation by operation, but fails as planned: {error}"),
    };
    // Results must not depend on memory contents of an earlier run.
    let again = run(session, &inputs, &mut Hooks::default());
    let again = again.unwrap_or_else(|error| panic!("ran once: {error}"));
    for ((name, first), (_, second)) in planned.0.iter().zip(&again.0) {
        assert!(same(first, second), "`{name}` differs from run to run");
    }

    let steady = match engine.numerics() {
        Numerics::Fast => is_steady,
        Numerics::Rounded | Numerics::Ane | Numerics::CoremlCpu => is_steady_when_rounded,
    };
    let compared = tame && function.all_ops().all(|(_, op)| op.kind().is_some_and(steady));
    for ((name, expected), (_, found)) in observed.0.iter().zip(&planned.0) {
        let (Value::Array(expected), Value::Array(found)) = (expected, found) else { continue };
        let shapes = (expected.shape(), expected.dtype()) == (found.shape(), found.dtype());
        let (expected_is, found_is) = (expected.shape(), found.shape());
        assert!(shapes || !has_steady_shapes, "`{name}`: {expected_is:?} became {found_is:?}");
        let tolerance = match engine.numerics() {
            Numerics::Fast => 1e-3,
            Numerics::Rounded | Numerics::Ane | Numerics::CoremlCpu => 4e-2,
        };
        if compared && let Some(difference) = difference(expected, found, tolerance) {
            // A program may amplify rounding errors of its inputs.
            if is_sensitive(session, &inputs, &observed, tolerance) {
                return Outcome::Ran;
            }
            let numerics = engine.numerics();
            panic!("`{name}` ({numerics:?}): {difference}");
        }
    }
    if compared { Outcome::Compared } else { Outcome::Ran }
}

/// Whether rounding errors in the inputs, of fp32 or of fp16 if the tolerance is that of fp16, move results by a
/// significant part of the tolerance.
fn is_sensitive(
    session: &mut Session,
    inputs: &[(&str, Array)],
    expected: &Outputs,
    tolerance: f32,
) -> bool {
    let rounding = if tolerance > 1e-2 { f32::powi(2.0, -11) } else { f32::powi(2.0, -22) };
    [rounding, -rounding].into_iter().any(|rounding| {
        let nudge = |array: &Array| {
            let mut array = array.clone();
            if let Some(floats) = array.floats_mut() {
                for (index, float) in floats.iter_mut().enumerate() {
                    let sign = if index % 3 == 0 { -1.0 } else { 1.0 };
                    *float += sign * rounding * float.abs().max(f32::MIN_POSITIVE);
                }
            }
            array
        };
        let nudged: Vec<_> = inputs.iter().map(|input| (input.0, nudge(&input.1))).collect();
        let mut look = |_: &str, _: &str, _: &Value| {};
        let mut hooks = Hooks { observe: Some(&mut look), ..Hooks::default() };
        let Ok(moved) = run(session, &nudged, &mut hooks) else { return true };
        expected.0.iter().zip(&moved.0).any(|((_, expected), (_, moved))| {
            let (Value::Array(expected), Value::Array(moved)) = (expected, moved) else {
                return false;
            };
            difference(expected, moved, tolerance / 8.0).is_some()
        })
    })
}

/// Whether every operation contributes to the outputs.
fn all_read(function: &Function) -> bool {
    let mut read: Vec<_> = function.outputs().to_vec();
    let ops: Vec<_> = function.all_ops().map(|(_, op)| op).collect();
    ops.iter().rev().all(|op| {
        read.extend(op.all_bindings().filter_map(|(_, binding)| match binding {
            Binding::Value(value) => Some(*value),
            Binding::Literal(_) => None,
        }));
        op.outputs.iter().any(|output| read.contains(output))
    })
}

fn shown(result: &Result<Outputs, Error>) -> String {
    result.as_ref().err().map(ToString::to_string).unwrap_or_default()
}

fn same(one: &Value, other: &Value) -> bool {
    let (Value::Array(one), Value::Array(other)) = (one, other) else { return true };
    match (one.as_floats(), other.as_floats()) {
        (Some(one), Some(other)) => one
            .iter()
            .zip(other)
            .all(|(x, y)| x.to_bits() == y.to_bits() || x.is_nan() && y.is_nan()),
        _ => one == other,
    }
}

/// Whether rounding an operand to fp16 changes results by no more than that.
fn is_steady_when_rounded(kind: OpKind) -> bool {
    is_steady(kind)
        && !matches!(
            kind,
            OpKind::BatchNorm
                | OpKind::InstanceNorm
                | OpKind::LayerNorm
                | OpKind::ReduceProd
                | OpKind::ReduceL2Norm
                | OpKind::LocalResponseNorm
        )
}
