//! Two programs value by value.
//!
//! Values are the same if their names are, but for the ending that a change of precision gives them: names survive
//! passes. In ExecuTorch programs, models have names for what they compute and for what they are given; what kernels
//! pass on among themselves has none. The reference's values wait for the other's; where they are more than [`MAX_HELD_BYTES`], both programs
//! run again for the rest.

use std::collections::HashMap;

use coremill_engine::{Array, Engine, Hooks, Value};
use coremill_mil::ir::{Function, Op};
use coremill_mil::model::Model;
use coremill_mil::ops::OpKind;
use coremill_pte::coreml::BACKEND;
use coremill_pte::program::{Instruction, ValueId};
use coremill_runtime::INPUT;

use super::figures::{Figures, figures};
use crate::error::Error;
use crate::executorch::{DelegatedModel, Runner, models};

/// A program that is ready to run, and what it runs on.
pub struct Running<'r> {
    /// What runs.
    pub target: Target<'r>,
    /// The inputs of each step; steps share the states.
    pub steps: &'r [Vec<(String, Array)>],
}

/// What computes values.
#[derive(Clone, Copy)]
pub enum Target<'r> {
    /// A function of a model.
    Model {
        /// What the engine was loaded from.
        model: &'r Model,
        /// The engine.
        engine: &'r Engine,
        /// The function.
        function: &'r str,
    },
    /// A method of an ExecuTorch program. It is run from its first state on.
    Method(&'r Runner),
}

/// The values of a program that have names, by these without the ending of a precision.
type Names = HashMap<String, Named>;

/// A value that has a name of its own.
struct Named {
    /// The whole name.
    name: String,
    /// The kernel that computes it, where no operation of a model does.
    kernel: Option<String>,
}

/// Two programs, value by value.
#[derive(Clone, Debug)]
pub struct PerOp {
    /// Every value that both have, in the order of the second program.
    pub steps: Vec<Step>,
    /// How many values the reference computes.
    pub in_reference: usize,
    /// How many the other computes.
    pub in_other: usize,
}

/// A value that both programs have.
#[derive(Clone, Debug)]
pub struct Step {
    /// What computes it in the second program.
    pub op: String,
    /// Its name there.
    pub name: String,
    /// Its element type there.
    pub dtype: &'static str,
    /// Its shape there.
    pub shape: Vec<usize>,
    /// How often a value of this name came about before: of an earlier step, or in a loop.
    pub repeat: usize,
    /// How far it lies from the reference's; a text if they cannot be put side by side.
    pub figures: Result<Figures, String>,
}

/// The most bytes of the reference's values that are held at once.
const MAX_HELD_BYTES: usize = 1 << 30;

/// A value's name without the ending of a precision, and how often it came about before.
type Key = (String, usize);

/// Compares every value that both programs have.
pub fn per_op(reference: &Running<'_>, other: &Running<'_>) -> Result<PerOp, Error> {
    per_op_within(reference, other, MAX_HELD_BYTES)
}

fn per_op_within(
    reference: &Running<'_>,
    other: &Running<'_>,
    budget: usize,
) -> Result<PerOp, Error> {
    let reference_names = names(reference)?;
    let other_names = names(other)?;
    let mut steps: Vec<(usize, Step)> = Vec::new();
    let mut compared = 0;
    loop {
        let mut held: HashMap<Key, Array> = HashMap::new();
        let (mut seen, mut bytes, mut full) = (0, 0, false);
        observe(reference, &reference_names, &mut |key, _, _, array| {
            if !other_names.contains_key(&key.0) {
                return;
            }
            seen += 1;
            if seen > compared && !full {
                compared = seen;
                bytes += array.view().len() * 4;
                held.insert(key, array.clone());
                full = bytes >= budget;
            }
        })?;
        let mut order = 0;
        observe(other, &other_names, &mut |key, op, name, array| {
            order += 1;
            let Some(expected) = held.remove(&key) else { return };
            let step = Step {
                op: op.to_owned(),
                name: name.to_owned(),
                dtype: array.dtype().name(),
                shape: array.shape().to_vec(),
                repeat: key.1,
                figures: figures(&expected, array),
            };
            steps.push((order, step));
        })?;
        if compared >= seen {
            break;
        }
    }
    steps.sort_by_key(|(order, _)| *order);
    Ok(PerOp {
        steps: steps.into_iter().map(|(_, step)| step).collect(),
        in_reference: reference_names.len(),
        in_other: other_names.len(),
    })
}

/// The values that a program computes and that have names.
fn names(running: &Running<'_>) -> Result<Names, Error> {
    match running.target {
        Target::Model { model, function, .. } => names_in_model(model, function),
        Target::Method(runner) => names_in_method(runner),
    }
}

/// The values that operations compute. Where several have one name, the first does: the others are the same in another
/// precision.
fn names_in_model(model: &Model, function: &str) -> Result<Names, Error> {
    let found = model.program.functions.iter().find(|found| found.name == function);
    let found = found.ok_or_else(|| Error::new(format!("there is no function `{function}`")))?;
    let mut names = Names::new();
    for (_, op) in found.all_ops() {
        if is_constant(op) {
            continue;
        }
        for name in outputs(found, op) {
            let named = || Named { name: name.to_owned(), kernel: None };
            names.entry(base(name).to_owned()).or_insert_with(named);
        }
    }
    Ok(names)
}

/// The values that the models of a method compute, and what kernels compute for these. A name that stands for
/// something in several models stands for nothing here.
fn names_in_method(runner: &Runner) -> Result<Names, Error> {
    let (program, method) = (runner.program(), runner.method());
    let models = models(program)?;
    let model_of = |delegate: usize| {
        let uses = |model: &&DelegatedModel| {
            model.uses.iter().any(|user| user.method == method && user.delegate == delegate)
        };
        models.iter().find(uses)
    };
    let plan = program.plans.iter().find(|plan| plan.name == method);
    let plan = plan.ok_or_else(|| Error::new(format!("there is no method `{method}`")))?;
    let mut names = Names::new();
    let mut ambiguous = Vec::new();
    let mut interfaces = Vec::new();
    for (index, delegate) in plan.delegates.iter().enumerate() {
        let Some(delegated) = model_of(index).filter(|_| delegate.id == BACKEND) else {
            interfaces.push(Vec::new());
            continue;
        };
        let model = delegated.read()?;
        let used =
            delegated.uses.iter().find(|user| user.method == method && user.delegate == index);
        let function = used.and_then(|user| user.function.as_deref());
        let function = function.or(model.program.functions.first().map(|first| &*first.name));
        for (key, named) in names_in_model(&model, function.unwrap_or_default())? {
            if names.insert(key.clone(), named).is_some() {
                ambiguous.push(key);
            }
        }
        interfaces.push(delegated.inputs_of(program, delegate)?);
    }
    let instructions = || plan.chains.iter().flat_map(|chain| &chain.instructions);
    let kernels: HashMap<ValueId, u32> = instructions()
        .filter_map(|instruction| match instruction {
            Instruction::KernelCall { operator, arguments } => {
                Some((*arguments.last()?, *operator))
            }
            _ => None,
        })
        .collect();
    for instruction in instructions() {
        let Instruction::DelegateCall { delegate, arguments } = instruction else { continue };
        let inputs = interfaces.get(*delegate as usize).map_or(&[][..], Vec::as_slice);
        for (value, name) in arguments.iter().zip(inputs) {
            let operator = kernels.get(value).and_then(|at| plan.operators.get(*at as usize));
            if let Some(operator) = operator {
                let named = || Named { name: name.clone(), kernel: Some(operator.to_string()) };
                names.entry(base(name).to_owned()).or_insert_with(named);
            }
        }
    }
    for key in ambiguous {
        names.remove(&key);
    }
    if names.is_empty() {
        let message = format!(
            "the method `{method}` computes nothing in Core ML models, and what kernels compute has no names"
        );
        return Err(Error::new(message)
            .hint("leave `--per-op` out to compare the outputs, or lower without `--portable`"));
    }
    Ok(names)
}

fn is_constant(op: &Op) -> bool {
    op.kind().is_some_and(|kind| kind == OpKind::Const || kind.is_constexpr())
}

fn outputs<'f>(function: &'f Function, op: &'f Op) -> impl Iterator<Item = &'f str> {
    op.outputs.iter().map(|&output| function.value(output).name.as_str())
}

/// A value's name without the ending that a change of precision gives it.
fn base(name: &str) -> &str {
    const ENDINGS: [&str; 2] = ["_fp16", "_fp32"];
    let stripped = ENDINGS.iter().find_map(|ending| name.strip_suffix(ending));
    stripped.filter(|stripped| !stripped.is_empty()).unwrap_or(name)
}

/// Runs all steps from the beginning, and shows each value that has a name of its own.
fn observe(
    running: &Running<'_>,
    names: &Names,
    show: &mut dyn FnMut(Key, &str, &str, &Array),
) -> Result<(), Error> {
    let mut repeats: HashMap<String, usize> = HashMap::new();
    let mut watch = |op: &str, name: &str, value: &Value| {
        let base = base(name);
        let Some(array) = value.as_array() else { return };
        let Some(named) = names.get(base).filter(|named| named.name == name) else { return };
        // What a model is given is also shown where another one has computed it.
        if named.kernel.is_some() != (op == INPUT) {
            return;
        }
        let repeat = repeats.entry(base.to_owned()).or_default();
        let key = (base.to_owned(), *repeat);
        *repeat += 1;
        show(key, named.kernel.as_deref().unwrap_or(op), name, array);
    };
    match running.target {
        Target::Model { engine, function, .. } => {
            let session = engine.session(function);
            let mut session = session.map_err(|error| Error::of_engine(&error))?;
            for step in running.steps {
                let inputs: Vec<_> =
                    step.iter().map(|(name, array)| (&**name, array.clone())).collect();
                let mut hooks = Hooks { observe: Some(&mut watch), ..Hooks::default() };
                session.run_with(&inputs, &mut hooks).map_err(|error| Error::of_engine(&error))?;
            }
        }
        Target::Method(runner) => {
            let mut runner = runner.afresh()?;
            for step in running.steps {
                let observe: coremill_engine::Observer<'_> = &mut watch;
                let observe = Some(observe);
                let mut hooks = coremill_runtime::Hooks { observe, ..Default::default() };
                runner.run_with(step, &mut hooks)?;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use coremill_engine::{LoadOptions, Precision};
    use coremill_mil::{model, text, verify};
    use coremill_tensor::DType;

    use super::*;

    const REFERENCE: &str = "
        program(1.3) {
            func main<ios17>(tensor<fp32, [3]> x) {
                tensor<fp32, [3]> a = add(x = x, y = x);
                tensor<fp32, [3]> only = sqrt(x = a);
                tensor<fp32, [3]> b = mul(x = a, y = a);
                tensor<fp32, [3]> y = relu(x = b);
            } -> (y);
        }";
    const OTHER: &str = "
        program(1.3) {
            func main<ios17>(tensor<fp32, [3]> x) {
                string half = const()[val = string(\"fp16\")];
                string full = const()[val = string(\"fp32\")];
                tensor<fp16, [3]> x_fp16 = cast(dtype = half, x = x);
                tensor<fp16, [3]> a_fp16 = add(x = x_fp16, y = x_fp16);
                tensor<fp16, [3]> b_fp16 = mul(x = a_fp16, y = a_fp16);
                tensor<fp16, [3]> y_fp16 = relu(x = b_fp16);
                tensor<fp32, [3]> y = cast(dtype = full, x = y_fp16);
            } -> (y);
        }";

    #[test]
    fn values_are_found_by_name_in_any_number_of_rounds() {
        let open = |source: &str, precision| {
            let program = text::parse(source, &text::NoWeights).expect("it is MIL");
            let model = model::describe(program).expect("it is complete");
            let verified = verify::verify(&model).expect("it is sound");
            let options = LoadOptions { precision, ..LoadOptions::default() };
            let engine = Engine::load(&verified, &options).expect("it can be run");
            (model, engine)
        };
        let (reference, other) =
            (open(REFERENCE, Precision::Fast), open(OTHER, Precision::Faithful));
        let x = Array::floats(DType::Fp32, [3], vec![0.5, 0.3, 200.0]);
        let steps = [vec![("x".to_owned(), x)]];
        fn running<'r>(
            (model, engine): &'r (Model, Engine),
            steps: &'r [Vec<(String, Array)>],
        ) -> Running<'r> {
            Running { target: Target::Model { model, engine, function: "main" }, steps }
        }
        for budget in [1, 13, usize::MAX] {
            let found =
                per_op_within(&running(&reference, &steps), &running(&other, &steps), budget);
            let found = found.expect("both run");
            let names: Vec<_> = found.steps.iter().map(|step| step.name.as_str()).collect();
            assert_eq!(names, ["a_fp16", "b_fp16", "y_fp16"]);
            // 400² is beyond `fp16`.
            let unlike = |step: &Step| step.figures.as_ref().expect("shapes agree").unlike;
            assert_eq!(found.steps.iter().map(unlike).collect::<Vec<_>>(), [0, 1, 1]);
            assert_eq!((found.in_reference, found.in_other), (4, 4));
        }
    }
}
