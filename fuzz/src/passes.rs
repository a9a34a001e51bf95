//! Properties of the passes for every program: the result is valid, computes the same, and supports every size that
//! the program supports. The fuzz target and the test of the engine share them.

use std::panic::{AssertUnwindSafe, catch_unwind};

use coremill_engine::{
    Array, Engine, FeatureSpec, Hooks, LoadOptions, Numerics, Outputs, Session, Value,
};
use coremill_mil::infer::analyze;
use coremill_mil::ir::{Binding, Dim, Function, Op, Program, Type};
use coremill_mil::model::describe;
use coremill_mil::ops::OpKind;
use coremill_mil::text;
use coremill_passes::{self as pass, AnalyzedFunction, Editor, PASSES, Pass};
use coremill_verify as verify;

use crate::compare::{
    LIMITS, difference, has_steady_shapes, input, is_steady, is_tame, message, run, show,
};
use crate::draw::Draw;
use crate::flexible;
use crate::motifs::{Motif, motif};
use crate::programs::generate;

/// Outcome of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Outcome {
    /// It does not run unchanged, or no pass changes it.
    Same,
    /// Passes change it.
    Changed,
    /// Passes change it, and results before and after were compared.
    Compared,
    /// Passes change it, and results before and after were compared for several sizes.
    ComparedAtSizes,
}

/// Operations that passes match, which random programs contain too rarely.
const SOUGHT: [OpKind; 34] = [
    OpKind::Add,
    OpKind::BatchNorm,
    OpKind::Cast,
    OpKind::Concat,
    OpKind::Conv,
    OpKind::Erf,
    OpKind::ExpandDims,
    OpKind::Gather,
    OpKind::Identity,
    OpKind::LayerNorm,
    OpKind::Linear,
    OpKind::Matmul,
    OpKind::Mul,
    OpKind::Pad,
    OpKind::RealDiv,
    OpKind::ReduceMean,
    OpKind::ReduceSum,
    OpKind::Relu,
    OpKind::Reshape,
    OpKind::Reshape,
    OpKind::Rsqrt,
    OpKind::Shape,
    OpKind::Sigmoid,
    OpKind::SliceByIndex,
    OpKind::SliceBySize,
    OpKind::Softmax,
    OpKind::Split,
    OpKind::Sqrt,
    OpKind::Squeeze,
    OpKind::Sub,
    OpKind::Tanh,
    OpKind::Tile,
    OpKind::Transpose,
    OpKind::Transpose,
];

/// Number of shapes to try in addition to the default one, many of which are invalid for the program, and number of
/// runs to keep.
const OTHER_SHAPES: usize = 5;
const MAX_RUNS: usize = 3;

/// Relative to the largest element: passes fold constants, and change the order of sums.
const TOLERANCE: f32 = 2e-3;

/// Runs a program, as text or generated from bytes, through each pass and through all of them.
pub(crate) fn passes(data: &[u8]) -> Outcome {
    if let Some(source) = std::str::from_utf8(data).ok().filter(|text| text.contains("program")) {
        let Ok(mut program) = text::parse(source, &text::NoWeights) else { return Outcome::Same };
        if program.functions.len() != 1 {
            return Outcome::Same;
        }
        let seed = data.iter().fold(1u64, |seed, &byte| seed.wrapping_mul(31) ^ u64::from(byte));
        let function = program.functions.remove(0);
        return check(function, &mut Draw::new(&[], seed), false);
    }
    drawn(&mut Draw::new(data, data.len() as u64))
}

/// A program generated from decisions: random operations, or a pattern that passes match.
pub(crate) fn drawn(draw: &mut Draw<'_>) -> Outcome {
    if draw.one_in(2) {
        let Some(Motif { draft, shapes }) = motif(draw) else { return Outcome::Same };
        return check_draft(draft, shapes, draw, true);
    }
    let kinds = if draw.one_in(4) { &OpKind::ALL[..] } else { &SOUGHT[..] };
    let Some(generated) = generate(draw, kinds) else { return Outcome::Same };
    let open = (!draw.one_in(3)).then(|| flexible::open(&generated.function, draw)).flatten();
    check(open.unwrap_or(generated.function), draw, generated.benign)
}

fn check(function: Function, draw: &mut Draw<'_>, benign: bool) -> Outcome {
    let Ok(draft) = AnalyzedFunction::new(function) else { return Outcome::Same };
    check_draft(draft, Vec::new(), draw, benign)
}

/// Input shapes are random unless given.
fn check_draft(
    draft: AnalyzedFunction,
    shapes: Vec<Vec<Vec<usize>>>,
    draw: &mut Draw<'_>,
    benign: bool,
) -> Outcome {
    // On a panic, print the program first.
    let run = AssertUnwindSafe(|| check_passes(&draft, shapes, draw, benign));
    let failed = |cause: Box<dyn std::any::Any + Send>| -> Outcome {
        panic!("{}\n{}", message(&*cause), shown(&draft.function))
    };
    catch_unwind(run).unwrap_or_else(failed)
}

fn check_passes(
    draft: &AnalyzedFunction,
    shapes: Vec<Vec<Vec<usize>>>,
    draw: &mut Draw<'_>,
    benign: bool,
) -> Outcome {
    let function = &draft.function;
    let Some(engine) = loaded(function) else { return Outcome::Same };
    let Some(runs) = runs(&engine, function, shapes, draw, benign) else { return Outcome::Same };
    let each = PASSES.iter().map(|pass| (pass.name, Some(pass)));
    let mut outcome = Outcome::Same;
    for (name, pass) in each.chain([("all of them", None)]) {
        let after = AssertUnwindSafe(|| through(draft.clone(), pass));
        let after = catch_unwind(after);
        let after = after.unwrap_or_else(|cause| panic!("`{name}`: {}", message(&*cause)));
        let Some(after) = after else { continue };
        let Some(engine) = loaded(&after) else {
            panic!("`{name}` produces an invalid program:\n{}", shown(&after));
        };
        let mut compared: Vec<Vec<&[usize]>> = Vec::new();
        for run in &runs {
            let fault = run.refusal(&after).or_else(|| run.differs(&engine, &after));
            if let Some(fault) = fault {
                panic!("`{name}` at {:?}: {fault}; it produces\n{}", run.shapes(), shown(&after));
            }
            if run.steady && !compared.contains(&run.shapes()) {
                compared.push(run.shapes());
            }
        }
        outcome = outcome.max(match compared.len() {
            0 => Outcome::Changed,
            1 => Outcome::Compared,
            _ => Outcome::ComparedAtSizes,
        });
    }
    outcome
}

/// Whether inference accepts the function for these shapes and finds the declared types. For instance, the rank of a
/// `squeeze` without axes depends on the sizes.
fn is_sound_at(function: &Function, shapes: &[Vec<usize>]) -> bool {
    let shapes: Vec<_> = shapes.iter().map(Vec::as_slice).collect();
    let (analysis, problems) = analyze(&at_shapes(function, &shapes));
    let mut outputs = function.all_ops().flat_map(|(_, op)| &op.outputs);
    let declared = |output| &function.value(output).ty;
    problems.is_empty()
        && outputs.all(|&output| {
            analysis.ty(output).is_some_and(|found| found.is_compatible(declared(output)))
        })
}

/// The function for these input shapes alone.
fn at_shapes(function: &Function, shapes: &[&[usize]]) -> Function {
    let mut fixed = function.clone();
    for (input, shape) in function.inputs().iter().zip(shapes) {
        if let Type::Tensor(ty) = &mut fixed.value_mut(*input).ty {
            ty.shape = shape.iter().map(|extent| Dim::Known(*extent as u64)).collect();
        }
    }
    fixed
}

/// The draft after a pass, or after all of them; `None` if nothing changed.
fn through(mut draft: AnalyzedFunction, pass: Option<&Pass>) -> Option<Function> {
    match pass {
        Some(pass) => {
            let mut editor = Editor::new(&mut draft);
            if (pass.run)(&mut editor) == 0 {
                return None;
            }
            editor.sweep_all();
        }
        None => pass::simplify(&mut draft, &[]),
    }
    // Core ML refuses unused inputs; callers of the passes call this after them.
    pass::keep_unused_inputs(&mut draft.function);
    Some(draft.function)
}

/// The function in an engine; `None` if it is invalid or the engine does not run it.
fn loaded(function: &Function) -> Option<Engine> {
    let model = describe(program(function)).ok()?;
    let verified = verify::verify(&model).ok()?;
    let options = LoadOptions {
        numerics: Numerics::Fast,
        threads: 1,
        limits: LIMITS,
        ..LoadOptions::default()
    };
    Engine::load(&verified, &options).ok()
}

fn program(function: &Function) -> Program {
    Program { functions: vec![function.clone()], ..Program::default() }
}

fn shown(function: &Function) -> String {
    show(&program(function))
}

/// Inputs, and their results before the passes.
struct Run {
    inputs: Vec<(String, Array)>,
    outputs: Outputs,
    /// Whether the numbers can be compared.
    steady: bool,
    /// Whether the shapes of the results can be compared.
    has_steady_shapes: bool,
}

/// Runs with the function's shapes, and with others if it has dynamic dimensions.
fn runs(
    engine: &Engine,
    function: &Function,
    given: Vec<Vec<Vec<usize>>>,
    draw: &mut Draw<'_>,
    benign: bool,
) -> Option<Vec<Run>> {
    let mut session = engine.session(&function.name).ok()?;
    let ports = session.inputs().to_vec();
    let mut all = given;
    if all.is_empty() {
        let default: Vec<_> =
            ports.iter().map(FeatureSpec::default_shape).collect::<Option<_>>()?;
        let is_open =
            |port: &FeatureSpec| port.ty.as_tensor().is_some_and(|ty| ty.known_shape().is_none());
        let others = if ports.iter().any(is_open) { OTHER_SHAPES } else { 0 };
        all.push(default);
        for _ in 0..others {
            let fits = |index: usize, shape: &[usize]| ports[index].accepts_shape(shape);
            let other = all.last().map(|last| flexible::reshape(last, &fits, draw));
            all.extend(other);
        }
    }
    let has_steady_shapes = has_steady_shapes(function);
    let steady = benign && function.all_ops().all(|(_, op)| is_smooth(function, op));
    let mut runs: Vec<Run> = Vec::new();
    for shapes in all {
        if runs.len() == MAX_RUNS {
            break;
        }
        let arrays = ports.iter().zip(&shapes);
        let arrays = arrays
            .map(|(port, shape)| Some((port.name.clone(), input(port, shape, draw, benign)?)));
        let Some(inputs) = arrays.collect::<Option<Vec<_>>>() else { continue };
        if !is_sound_at(function, &shapes) {
            continue;
        }
        let mut tame = steady;
        let mut look = |_: &str, _: &str, value: &Value| tame &= is_tame(value);
        let mut hooks = Hooks { observe: Some(&mut look), ..Hooks::default() };
        if let Ok(outputs) = run(&mut session, &named(&inputs), &mut hooks) {
            runs.push(Run { inputs, outputs, steady: tame, has_steady_shapes });
        }
    }
    (!runs.is_empty()).then_some(runs)
}

fn named(inputs: &[(String, Array)]) -> Vec<(&str, Array)> {
    inputs.iter().map(|(name, array)| (name.as_str(), array.clone())).collect()
}

/// Whether small changes of operands cause only small changes of results; truncating casts do not qualify.
fn is_smooth(function: &Function, op: &Op) -> bool {
    let dtype = |value| function.value(value).ty.as_tensor().map(|ty| ty.dtype);
    match op.kind() {
        Some(OpKind::Cast) => {
            let is_float =
                |found: Option<coremill_tensor::DType>| found.is_some_and(|found| found.is_float());
            let from = match op.binding("x") {
                Some(Binding::Value(value)) => dtype(*value),
                _ => None,
            };
            !is_float(from) || is_float(dtype(op.outputs[0]))
        }
        kind => kind.is_some_and(is_steady),
    }
}

impl Run {
    fn shapes(&self) -> Vec<&[usize]> {
        self.inputs.iter().map(|(_, array)| array.shape()).collect()
    }

    /// Reason why inference refuses the changed function for the shapes of this run, although it accepts the
    /// original.
    fn refusal(&self, after: &Function) -> Option<String> {
        let (_, problems) = analyze(&at_shapes(after, &self.shapes()));
        let problem = problems.into_iter().next()?;
        Some(format!("inference rejects it: {}", problem.refusal))
    }

    /// The difference of the changed function's results.
    fn differs(&self, engine: &Engine, after: &Function) -> Option<String> {
        let session = engine.session(&after.name);
        let mut session: Session = match session {
            Ok(session) => session,
            Err(error) => return Some(format!("it no longer loads: {error}")),
        };
        let found = match run(&mut session, &named(&self.inputs), &mut Hooks::default()) {
            Ok(found) => found,
            Err(_) if !self.has_steady_shapes => return None,
            Err(error) => return Some(format!("it no longer runs: {error}")),
        };
        self.outputs.0.iter().zip(&found.0).find_map(|((name, before), (other, after))| {
            if name != other {
                return Some(format!("the output `{name}` became `{other}`"));
            }
            let (Value::Array(before), Value::Array(after)) = (before, after) else { return None };
            if (before.shape(), before.dtype()) != (after.shape(), after.dtype()) {
                if !self.has_steady_shapes {
                    return None;
                }
                let (from, to) = (before.shape(), after.shape());
                return Some(format!(
                    "`{name}`: the shape changed from {from:?} to {to:?}, or the type changed"
                ));
            }
            let off = if self.steady { difference(before, after, TOLERANCE) } else { None };
            off.map(|off| format!("`{name}`: {off}"))
        })
    }
}
