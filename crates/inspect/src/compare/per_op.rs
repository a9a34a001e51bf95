//! Two programs value by value.
//!
//! Values are the same if their names are, but for the ending that a change of precision gives them, and the same
//! operation computes them of the same values, or both are outputs: a name alone may stand for the result of a call in
//! one program and for a step on the way to it in the other. Casts and quantization between values make no difference.
//!
//! In ExecuTorch programs, models have names for what they compute and for what they are given; what kernels pass on
//! among themselves has none. What a kernel computes for a model is the result of a call, so it is paired with what is
//! known to be the result of the call of that name, or with what the same kernel computes.
//!
//! Values that a model computes times a power of two, as its metadata says, are compared without it.
//!
//! The reference's values wait for the other's; where they are more than [`MAX_HELD_BYTES`], both programs run again for
//! the rest.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

use coremill_engine::{Array, Hooks, Value};
use coremill_io::unknown_name;
use coremill_mil::ir::{Binding, Op, ValueId as MilValue};
use coremill_mil::model::Model;
use coremill_mil::ops::OpKind;
use coremill_passes::without_precision;
use coremill_pte::Program;
use coremill_pte::coreml::BACKEND;
use coremill_pte::program::{Instruction, ValueId};
use coremill_runtime::INPUT;
use coremill_session::{Executable, inputs};

use super::figures::{ErrorMetrics, figures};
use super::scales::{scales, unscaled};
use crate::error::Error;
use crate::executorch::{DelegatedModel, models};

/// A program that is ready to run, and what it runs on.
pub struct RunningModel<'r> {
    /// What runs.
    pub target: Target<'r>,
    /// The inputs of each step; steps share the states.
    pub steps: &'r [Vec<(String, Array)>],
}

/// A function that computes values.
#[derive(Clone, Copy)]
pub struct Target<'r> {
    /// The model or program that runs.
    pub executable: &'r dyn Executable,
    /// The function, or the method of a program. It is run from its first state on.
    pub function: &'r str,
    /// The content that the executable was loaded from.
    pub contents: Contents<'r>,
}

/// The content that an executable was loaded from.
#[derive(Clone, Copy)]
pub enum Contents<'r> {
    /// A model.
    Model {
        /// The model.
        model: &'r Model,
        /// The values that are results of calls of the exported program, under their names there; `None` if that program
        /// is unknown.
        results: Option<&'r HashSet<String>>,
    },
    /// An ExecuTorch program.
    Program(&'r Program),
}

/// The values of a program that have names, by these without the ending of a precision.
type Names = HashMap<String, NamedValue>;

/// A value that has a name of its own.
struct NamedValue {
    /// The whole name.
    name: String,
    /// What computes it.
    made: ValueSource,
    /// The exponent of the power of two that it is computed times.
    exponent: i32,
}

/// What computes a value.
enum ValueSource {
    /// A kernel, for the model that takes it.
    Kernel(String),
    /// An operation of a model.
    Op {
        /// Its name.
        op: String,
        /// Of which computed values, by their names without endings; none for what another part of a method hands over,
        /// under a name of its own.
        of: Vec<Option<String>>,
        /// Whether the function gives it.
        is_output: bool,
        /// Whether it is known to be the result of the call that it has the name of.
        is_result: bool,
    },
}

impl PerOp {
    /// The first value that has less signal to noise than `threshold` decibels, as an index into the steps. NaN and
    /// infinite elements in one program alone are below every threshold.
    pub fn first_below(&self, threshold: f64) -> Option<usize> {
        let below = |step: &Step| step.figures.as_ref().map_or(true, |f| f.snr() < threshold);
        self.steps.iter().position(below)
    }
}

impl NamedValue {
    fn op(&self) -> &str {
        match &self.made {
            ValueSource::Kernel(op) | ValueSource::Op { op, .. } => op,
        }
    }

    /// Whether two values of one name are the same.
    fn is_same(&self, other: &NamedValue) -> bool {
        match (&self.made, &other.made) {
            (
                ValueSource::Op { op, of, is_output, .. },
                ValueSource::Op { op: other_op, of: other_of, is_output: other_output, .. },
            ) => {
                let same = |(one, two): (&Option<String>, &Option<String>)| {
                    one.as_ref().zip(two.as_ref()).is_none_or(|(one, two)| one == two)
                };
                let operands = of.len() == other_of.len() && of.iter().zip(other_of).all(same);
                (*is_output && *other_output) || (op == other_op && operands)
            }
            // What a kernel computes for a model is the result of the call that it has the name of.
            (ValueSource::Kernel(_), ValueSource::Op { is_result, .. })
            | (ValueSource::Op { is_result, .. }, ValueSource::Kernel(_)) => *is_result,
            (ValueSource::Kernel(one), ValueSource::Kernel(other)) => one == other,
        }
    }
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
    /// The values that have one name in both, but are not known to be the same.
    pub unpaired: Vec<UnmatchedValue>,
}

/// Two values of one name that are not known to be the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnmatchedValue {
    /// The name in the second program.
    pub name: String,
    /// What computes the one in the reference.
    pub reference_op: String,
    /// What computes the one in the other.
    pub op: String,
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
    pub figures: Result<ErrorMetrics, String>,
}

/// The most bytes of the reference's values that are held at once.
const MAX_HELD_BYTES: usize = 1 << 30;

/// A value's name without the ending of a precision, and how often it came about before.
type Key = (String, usize);

/// Compares every value that both programs have.
pub fn per_op(reference: &RunningModel<'_>, other: &RunningModel<'_>) -> Result<PerOp, Error> {
    per_op_within(reference, other, MAX_HELD_BYTES)
}

fn per_op_within(
    reference: &RunningModel<'_>,
    other: &RunningModel<'_>,
    budget: usize,
) -> Result<PerOp, Error> {
    let reference_names = names(reference)?;
    let other_names = names(other)?;
    let same = |key: &str| {
        let named = reference_names.get(key).zip(other_names.get(key));
        named.is_some_and(|(named, other)| named.is_same(other))
    };
    let mut steps: Vec<(usize, Step)> = Vec::new();
    let mut compared = 0;
    loop {
        let mut held: HashMap<Key, Array> = HashMap::new();
        let (mut seen, mut bytes, mut full) = (0, 0, false);
        observe(reference, &reference_names, &mut |key, _, _, array| {
            if !same(&key.0) {
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
                figures: figures(&expected, array).map_err(|error| error.to_string()),
            };
            steps.push((order, step));
        })?;
        if compared >= seen {
            break;
        }
    }
    steps.sort_by_key(|(order, _)| *order);
    let differ = other_names.iter().filter_map(|(key, named)| {
        let (name, op) = (named.name.clone(), named.op().to_owned());
        let reference = reference_names.get(key).filter(|found| !found.is_same(named))?;
        Some(UnmatchedValue { name, reference_op: reference.op().to_owned(), op })
    });
    let mut unpaired: Vec<_> = differ.collect();
    unpaired.sort_by(|one, two| one.name.cmp(&two.name));
    Ok(PerOp {
        steps: steps.into_iter().map(|(_, step)| step).collect(),
        in_reference: reference_names.len(),
        in_other: other_names.len(),
        unpaired,
    })
}

/// The values that a program computes and that have names.
fn names(running: &RunningModel<'_>) -> Result<Names, Error> {
    let Target { function, contents, .. } = running.target;
    match contents {
        Contents::Model { model, results } => names_in_model(model, function, results, false),
        Contents::Program(program) => names_in_method(program, function),
    }
}

/// The values that operations compute. Where several have one name, the first does: the others are the same in another
/// precision.
fn names_in_model(
    model: &Model,
    function: &str,
    results: Option<&HashSet<String>>,
    is_part: bool,
) -> Result<Names, Error> {
    let found = model.program.functions.iter().find(|found| found.name == function);
    let found = found.ok_or_else(|| {
        let known = model.program.functions.iter().map(|function| &function.name);
        Error::new(unknown_name("function", function, known))
    })?;
    let mut makers: HashMap<MilValue, &Op> = HashMap::new();
    for (_, op) in found.all_ops() {
        makers.extend(op.outputs.iter().map(|&output| (output, op)));
    }
    // The value that a conversion of types takes, as far back as there are any.
    let source = |mut value: MilValue| {
        while let Some(op) = makers.get(&value).filter(|op| is_conversion(op)) {
            match op.binding("x").or_else(|| op.binding("input")) {
                Some(Binding::Value(before)) => value = *before,
                Some(Binding::Literal(_)) | None => break,
            }
        }
        value
    };
    let scales = scales(model);
    let given: Vec<MilValue> = found.outputs().iter().map(|&output| source(output)).collect();
    let mut names = Names::new();
    for (_, op) in found.all_ops() {
        if op.is_constant() {
            continue;
        }
        let operands = op.all_bindings().filter_map(|(_, binding)| match binding {
            Binding::Value(value) => Some(source(*value)),
            Binding::Literal(_) => None,
        });
        let computed =
            operands.filter(|value| !makers.get(value).is_some_and(|op| op.is_constant()));
        let of: Vec<_> = computed
            .map(|value| {
                let handed_over = is_part && found.inputs().contains(&value);
                (!handed_over).then(|| base(&found.value(value).name).into_owned())
            })
            .collect();
        for &output in &op.outputs {
            let name = &found.value(output).name;
            let named = || NamedValue {
                name: name.clone(),
                exponent: scales.get(without_precision(name)).copied().unwrap_or(0),
                made: ValueSource::Op {
                    op: op.type_name().to_owned(),
                    of: of.clone(),
                    is_output: given.contains(&source(output)),
                    is_result: results
                        .is_some_and(|results| results.contains(without_precision(name))),
                },
            };
            names.entry(base(name).into_owned()).or_insert_with(named);
        }
    }
    Ok(names)
}

/// Whether an operation gives what it takes in another type.
fn is_conversion(op: &Op) -> bool {
    use OpKind::{Cast, Dequantize, Identity, Quantize};
    op.kind().is_some_and(|kind| matches!(kind, Cast | Dequantize | Identity | Quantize))
}

/// The values that the models of a method compute, and what kernels compute for these. A name that stands for
/// something in several models stands for nothing here.
fn names_in_method(program: &Program, method: &str) -> Result<Names, Error> {
    let models = models(program)?;
    let model_of = |delegate: usize| {
        let uses = |model: &&DelegatedModel| {
            model.uses.iter().any(|user| user.method == method && user.delegate == delegate)
        };
        models.iter().find(uses)
    };
    let plan = program.plans.iter().find(|plan| plan.name == method);
    let plan = plan.ok_or_else(|| {
        let known = program.plans.iter().map(|plan| &plan.name);
        Error::new(unknown_name("method", method, known))
    })?;
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
        for (key, named) in names_in_model(&model, function.unwrap_or_default(), None, true)? {
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
                let made = ValueSource::Kernel(operator.to_string());
                let named = NamedValue { name: name.clone(), made, exponent: 0 };
                names.entry(base(name).into_owned()).or_insert(named);
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
            .with_hint("leave the option `per_op` out to compare the outputs, or lower without the option `portable`"));
    }
    Ok(names)
}

/// A value's name as the graph has it: without the ending that a change of precision gives it. ExecuTorch's backend adds
/// the operator's namespace and overload: `aten_add_tensor_1` is the graph's `add_1`.
pub(super) fn base(name: &str) -> Cow<'_, str> {
    let name = without_precision(name);
    match name.strip_prefix("aten_").and_then(without_overload) {
        Some(name) => Cow::Owned(name),
        None => Cow::Borrowed(name),
    }
}

/// `view_copy_default_1` as the graph has it: `view_1`.
fn without_overload(name: &str) -> Option<String> {
    let is_number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    let numbered = name.rsplit_once('_').filter(|(_, number)| is_number(number));
    let (name, number) = numbered.map_or((name, None), |(name, number)| (name, Some(number)));
    let (operator, _overload) = name.rsplit_once('_')?;
    let operator = operator.strip_suffix("_copy").unwrap_or(operator);
    Some(match number {
        Some(number) => format!("{operator}_{number}"),
        None => operator.to_owned(),
    })
}

/// Runs all steps from the beginning, and shows each value that has a name of its own.
fn observe(
    running: &RunningModel<'_>,
    names: &Names,
    show: &mut dyn FnMut(Key, &str, &str, &Array),
) -> Result<(), Error> {
    let mut repeats: HashMap<String, usize> = HashMap::new();
    let mut watch = |op: &str, name: &str, value: &Value| {
        let base = base(name);
        let Some(array) = value.as_array() else { return };
        let Some(named) = names.get(&*base).filter(|named| named.name == name) else { return };
        // What a model is given is also shown where another one has computed it.
        if matches!(named.made, ValueSource::Kernel(_)) != (op == INPUT) {
            return;
        }
        let repeat = repeats.entry(base.clone().into_owned()).or_default();
        let key = (base.into_owned(), *repeat);
        *repeat += 1;
        match named.exponent {
            0 => show(key, named.op(), name, array),
            exponent => show(key, named.op(), name, &unscaled(array, exponent)),
        }
    };
    let mut session = running.target.executable.session(running.target.function)?;
    for step in running.steps {
        let mut hooks = Hooks { observe: Some(&mut watch), ..Hooks::default() };
        session.run_with(&inputs(step), &mut hooks)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use coremill_engine::Numerics;
    use coremill_mil::{model, text, verify};
    use coremill_session::RunOptions;
    use coremill_tensor::DType;

    use super::*;

    /// A value that is computed times a power of two is compared without it, if the metadata says so.
    #[test]
    fn powers_of_two_are_no_drift() {
        const SCALED: &str = "
            program(1.3) {
                func main<ios17>(tensor<fp32, [3]> x) {
                    tensor<fp32, [3]> a = add(x = x, y = x);
                    fp32 quarter = const()[val = fp32(0.25)];
                    tensor<fp32, [3]> only = sqrt(x = a);
                    tensor<fp32, [3]> b = mul(x = a, y = a);
                    tensor<fp32, [3]> y_scaled = relu(x = b);
                    tensor<fp32, [3]> y = mul(x = y_scaled, y = quarter);
                } -> (y);
            }";
        let one = open(REFERENCE, Numerics::Fast);
        let mut other = open(SCALED, Numerics::Fast);
        let steps = [vec![("x".to_owned(), Array::floats(DType::Fp32, [3], vec![1.0, 2.0, 3.0]))]];
        let told = |other: &(Model, Arc<dyn Executable>)| {
            let found = per_op(&running(&one, &steps), &running(other, &steps));
            let found = found.expect("both run");
            let step = found.steps.iter().find(|step| step.name == "b").expect("it is in both");
            step.figures.as_ref().expect("alike").snr()
        };
        assert_eq!(told(&other), f64::INFINITY);
        let metadata = other.0.description.metadata.get_or_insert_default();
        metadata.set_user_defined(super::super::SCALES_KEY, "{\"b_cast_fp16\": 2, \"a\": 0}");
        assert!(told(&other) < 3.0, "it is taken for four times what it is meant to be");
        let metadata = other.0.description.metadata.get_or_insert_default();
        metadata.set_user_defined(super::super::SCALES_KEY, "{\"b\": 1000000}");
        assert_eq!(told(&other), f64::INFINITY);
        metadata_is_nothing(&mut other.0);
        assert_eq!(told(&other), f64::INFINITY);
    }

    fn metadata_is_nothing(model: &mut Model) {
        let metadata = model.description.metadata.get_or_insert_default();
        metadata.set_user_defined(super::super::SCALES_KEY, "[1, 2]");
    }

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

    fn open(source: &str, numerics: Numerics) -> (Model, Arc<dyn Executable>) {
        let program = text::parse(source, &text::NoWeights).expect("it is MIL");
        let model = model::describe(program).expect("it is complete");
        let verified = verify::verify(&model).expect("it is sound");
        let options = RunOptions { numerics, ..RunOptions::default() };
        let executable = coremill_session::load(&verified, &options).expect("it can be run");
        (model, executable)
    }

    fn running<'r>(
        (model, executable): &'r (Model, Arc<dyn Executable>),
        steps: &'r [Vec<(String, Array)>],
    ) -> RunningModel<'r> {
        let contents = Contents::Model { model, results: None };
        RunningModel {
            target: Target { executable: &**executable, function: "main", contents },
            steps,
        }
    }

    #[test]
    fn values_are_found_by_name_in_any_number_of_rounds() {
        let (reference, other) = (open(REFERENCE, Numerics::Fast), open(OTHER, Numerics::Rounded));
        let x = Array::floats(DType::Fp32, [3], vec![0.5, 0.3, 200.0]);
        let steps = [vec![("x".to_owned(), x)]];
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
            assert_eq!(found.unpaired, []);
        }
    }

    #[test]
    fn a_name_alone_does_not_pair_values() {
        // `a` is a step on the way to `b` here, and the sum that `b` is made of there.
        let renamed = REFERENCE.replace("a = add(x = x, y = x)", "a = mul(x = x, y = x)");
        let (one, two) = (open(REFERENCE, Numerics::Fast), open(&renamed, Numerics::Fast));
        let x = Array::floats(DType::Fp32, [3], vec![0.5, 0.3, 2.0]);
        let steps = [vec![("x".to_owned(), x)]];
        let found = per_op(&running(&one, &steps), &running(&two, &steps)).expect("both run");
        let names: Vec<_> = found.steps.iter().map(|step| step.name.as_str()).collect();
        assert_eq!(names, ["only", "b", "y"]);
        let unpaired = |name: &str, [reference_op, op]: [&str; 2]| UnmatchedValue {
            name: name.to_owned(),
            reference_op: reference_op.to_owned(),
            op: op.to_owned(),
        };
        assert_eq!(found.unpaired, [unpaired("a", ["add", "mul"])]);
    }

    #[test]
    fn a_kernel_is_paired_with_the_result_of_its_call() {
        let named = |made| NamedValue { name: "mul".to_owned(), made, exponent: 0 };
        let kernel = |op: &str| named(ValueSource::Kernel(op.to_owned()));
        let op = |is_result| {
            let op = "mul".to_owned();
            named(ValueSource::Op { op, of: Vec::new(), is_output: false, is_result })
        };
        assert!(kernel("aten::mul.out").is_same(&op(true)));
        assert!(!kernel("aten::mul.out").is_same(&op(false)));
        assert!(op(true).is_same(&kernel("aten::mul.out")));
        assert!(kernel("aten::mul.out").is_same(&kernel("aten::mul.out")));
        assert!(!kernel("aten::mul.out").is_same(&kernel("aten::add.out")));
    }

    #[test]
    fn names_of_executorch_are_those_of_the_graph() {
        for (name, expected) in [
            ("aten_linear_default_1", "linear_1"),
            ("aten_add_tensor_cast_fp16", "add"),
            ("aten_view_copy_default_12", "view_12"),
            ("aten__softmax_default", "_softmax"),
            ("conv_1_fp16", "conv_1"),
            ("attention", "attention"),
        ] {
            assert_eq!(base(name), expected);
        }
    }
}
