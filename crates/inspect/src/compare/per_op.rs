//! Compares two programs value by value.
//!
//! Values are paired by name, without the suffix that a change of precision adds. In addition, the
//! same operation must compute them from the same values, or both must be outputs. The name alone
//! is not sufficient, since it may be the result of a call in one program and an intermediate value
//! in the other. Casts and quantization between values are ignored.
//!
//! In ExecuTorch programs, only the models' values and inputs have names; values between kernels
//! have none. An input that a kernel computes is the result of a call. It is paired with the result
//! of the call of that name, or with the output of the same kernel.
//!
//! Values that a model scales by a power of two, according to its metadata, are compared without
//! the factor.
//!
//! The reference's values are held until the other program computes theirs. If they exceed
//! [`MAX_HELD_BYTES`], both programs run again for the rest.

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

/// A program and its inputs.
pub struct RunningModel<'r> {
    /// The function to run.
    pub target: Target<'r>,
    /// Inputs of each step. The steps share the states.
    pub steps: &'r [Vec<(String, Array)>],
}

/// A function to run.
#[derive(Clone, Copy)]
pub struct Target<'r> {
    /// The loaded model or program.
    pub executable: &'r dyn Executable,
    /// The function, or the method of a program. Runs start from its initial states.
    pub function: &'r str,
    /// The content of the loaded model or program.
    pub contents: Contents<'r>,
}

/// The content of a loaded model or program.
#[derive(Clone, Copy)]
pub enum Contents<'r> {
    /// A Core ML model.
    Model {
        /// The model.
        model: &'r Model,
        /// Names of values that are results of calls in the exported program. `None` if that
        /// program is unknown.
        results: Option<&'r HashSet<String>>,
    },
    /// An ExecuTorch program.
    Program(&'r Program),
}

/// Named values of a program, by name without precision suffix.
type Names = HashMap<String, NamedValue>;

/// A named value.
struct NamedValue {
    /// Full name.
    name: String,
    /// Origin of the value.
    made: ValueSource,
    /// Exponent of the power of two that scales the value.
    exponent: i32,
}

/// Origin of a value.
enum ValueSource {
    /// Output of a kernel that is a model's input.
    Kernel(String),
    /// Output of an operation in a model.
    Op {
        /// Type of the operation.
        op: String,
        /// Names of the computed operands, without suffix. `None` for inputs from another part of
        /// the method, which have other names.
        of: Vec<Option<String>>,
        /// Whether the value is an output of the function.
        is_output: bool,
        /// Whether the value is known to be the result of the call with its name.
        is_result: bool,
    },
}

impl PerOp {
    /// Index in `steps` of the first value with an SNR below `threshold` decibels. Values with
    /// elements that are NaN or infinite in only one program count as below.
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

    /// Returns true if two values with the same name correspond to each other.
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
            // A kernel's output that a model reads is the result of the call with its name.
            (ValueSource::Kernel(_), ValueSource::Op { is_result, .. })
            | (ValueSource::Op { is_result, .. }, ValueSource::Kernel(_)) => *is_result,
            (ValueSource::Kernel(one), ValueSource::Kernel(other)) => one == other,
        }
    }
}

/// Result of a comparison, value by value.
#[derive(Clone, Debug)]
pub struct PerOp {
    /// All values in both programs, in the order of the second program.
    pub steps: Vec<Step>,
    /// Number of values in the reference.
    pub in_reference: usize,
    /// Number of values in the other program.
    pub in_other: usize,
    /// Values with the same name in both programs that do not correspond.
    pub unpaired: Vec<UnmatchedValue>,
}

/// Two values with the same name that do not correspond.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnmatchedValue {
    /// Name in the second program.
    pub name: String,
    /// Operation or kernel that computes the value in the reference.
    pub reference_op: String,
    /// Operation or kernel that computes the value in the other program.
    pub op: String,
}

/// A value in both programs.
#[derive(Clone, Debug)]
pub struct Step {
    /// Operation or kernel in the second program.
    pub op: String,
    /// Name in the second program.
    pub name: String,
    /// Element type in the second program.
    pub dtype: &'static str,
    /// Shape in the second program.
    pub shape: Vec<usize>,
    /// Number of earlier values with this name, from earlier steps or iterations of a loop.
    pub repeat: usize,
    /// Error compared with the reference. A message if the values are not comparable.
    pub figures: Result<ErrorMetrics, String>,
}

/// Maximum bytes of reference values that are held at once.
const MAX_HELD_BYTES: usize = 1 << 30;

/// Name without precision suffix, and number of earlier values with this name.
type Key = (String, usize);

/// Compares all values that both programs compute.
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

/// The named values that a program computes.
fn names(running: &RunningModel<'_>) -> Result<Names, Error> {
    let Target { function, contents, .. } = running.target;
    match contents {
        Contents::Model { model, results } => names_in_model(model, function, results, false),
        Contents::Program(program) => names_in_method(program, function),
    }
}

/// The outputs of a model's operations. If several have one name, the first is used; the others are
/// the same value in another precision.
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
    // Follows a chain of type conversions back to its source.
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

/// Returns true for operations that only convert the element type.
fn is_conversion(op: &Op) -> bool {
    use OpKind::{Cast, Dequantize, Identity, Quantize};
    op.kind().is_some_and(|kind| matches!(kind, Cast | Dequantize | Identity | Quantize))
}

/// The values that a method's models compute, and their inputs that kernels compute. Names that
/// occur in several models are ambiguous and are omitted.
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
            "the method `{method}` computes nothing in Core ML models, and values that kernels compute have no names"
        );
        return Err(Error::new(message)
            .with_hint("omit the option `per_op` to compare the outputs, or lower without the option `portable`"));
    }
    Ok(names)
}

/// Removes the precision suffix from a value's name. ExecuTorch's backend also adds the operator's
/// namespace and overload, so `aten_add_tensor_1` becomes the graph's `add_1`.
pub(super) fn base(name: &str) -> Cow<'_, str> {
    let name = without_precision(name);
    match name.strip_prefix("aten_").and_then(without_overload) {
        Some(name) => Cow::Owned(name),
        None => Cow::Borrowed(name),
    }
}

/// Converts `view_copy_default_1` to the graph's `view_1`.
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

/// Runs all steps from the initial states and passes each named value to `show`.
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
        // An observer also sees a model's inputs that another model has computed; skip these.
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
    use coremill_mil::{model, text};
    use coremill_session::RunOptions;
    use coremill_tensor::DType;
    use coremill_verify as verify;

    use super::*;

    /// Values that the metadata marks as scaled by a power of two are scaled back before they are compared.
    #[test]
    fn scaling_exponents_are_undone_before_comparison() {
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
        let snr_of_b = |other: &(Model, Arc<dyn Executable>)| {
            let found = per_op(&running(&one, &steps), &running(other, &steps));
            let found = found.expect("both run");
            let step = found.steps.iter().find(|step| step.name == "b").expect("a step for `b`");
            step.figures.as_ref().expect("comparable arrays").snr()
        };
        assert_eq!(snr_of_b(&other), f64::INFINITY);
        let metadata = other.0.description.metadata.get_or_insert_default();
        metadata.set_user_defined(super::super::SCALES_KEY, "{\"b_cast_fp16\": 2, \"a\": 0}");
        assert!(
            snr_of_b(&other) < 3.0,
            "the exponent 2 wrongly divides `b` by 4, so the SNR must drop"
        );
        let metadata = other.0.description.metadata.get_or_insert_default();
        metadata.set_user_defined(super::super::SCALES_KEY, "{\"b\": 1000000}");
        assert_eq!(snr_of_b(&other), f64::INFINITY);
        set_malformed_scales(&mut other.0);
        assert_eq!(snr_of_b(&other), f64::INFINITY);
    }

    fn set_malformed_scales(model: &mut Model) {
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
    fn pairs_values_by_name_under_any_memory_budget() {
        let (reference, other) = (open(REFERENCE, Numerics::Fast), open(OTHER, Numerics::Rounded));
        let x = Array::floats(DType::Fp32, [3], vec![0.5, 0.3, 200.0]);
        let steps = [vec![("x".to_owned(), x)]];
        for budget in [1, 13, usize::MAX] {
            let found =
                per_op_within(&running(&reference, &steps), &running(&other, &steps), budget);
            let found = found.expect("both run");
            let names: Vec<_> = found.steps.iter().map(|step| step.name.as_str()).collect();
            assert_eq!(names, ["a_fp16", "b_fp16", "y_fp16"]);
            // 400² overflows in `fp16`.
            let unlike = |step: &Step| step.figures.as_ref().expect("shapes agree").unlike;
            assert_eq!(found.steps.iter().map(unlike).collect::<Vec<_>>(), [0, 1, 1]);
            assert_eq!((found.in_reference, found.in_other), (4, 4));
            assert_eq!(found.unpaired, []);
        }
    }

    #[test]
    fn same_name_with_different_op_is_not_paired() {
        // One program computes `a` with `add`, the other with `mul`.
        let changed = REFERENCE.replace("a = add(x = x, y = x)", "a = mul(x = x, y = x)");
        let (one, two) = (open(REFERENCE, Numerics::Fast), open(&changed, Numerics::Fast));
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
    fn kernel_pairs_only_with_result_of_its_call() {
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
    fn base_strips_executorch_and_cast_affixes() {
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
