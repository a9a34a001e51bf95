//! Methods of ExecuTorch programs.
//!
//! An ExecuTorch program does not name its inputs and outputs. Values that a Core ML delegate uses have the
//! delegate's names; the others are `input_0`, `output_0` and so on by position. `input_N` and `output_N` are also
//! valid for values that have another name.

use std::sync::{Arc, OnceLock};

use coremill_coreml::ComputeUnits;
use coremill_engine::{Array, Outputs, Value as Computed};
use coremill_mil::ir::{Dim, TensorType, Type};
use coremill_mil::model::{
    ArrayDataType, ArrayType, FeatureDescription, FeatureType, ShapeFlexibility, SizeRange,
};
use coremill_mlpackage::{compiled, package};
use coremill_pte::Program as Source;
use coremill_pte::coreml::{BACKEND, Payload};
use coremill_pte::program::{CompileSpec, Value as Planned};
use coremill_runtime::{Hooks, Method, Program, ScalarType, Tensor, Value, ValueSpec as Argument};
use coremill_tensor::{Buffer, DType};

use crate::FeatureSpec;
use crate::backend::{
    Backend, Executable, Inputs, OutputSlices, Session, Signature, check_slices, checked,
    copy_into, find, quoted,
};
use crate::coreml;
use crate::error::{Error, ErrorKind, Result, fail};
use crate::input::Input;
use crate::options::RunOptions;

/// Runs ExecuTorch programs: kernels on this machine's CPU, delegates on the device.
pub struct ExecuTorchBackend;

/// An ExecuTorch program that is ready to run.
pub struct ProgramExecutable(Program);

/// A method, with its memory and states.
pub struct MethodSession {
    program: Program,
    method: Method,
    arguments: Vec<Parameter>,
    inputs: Vec<FeatureSpec>,
    /// The tensor outputs.
    outputs: Vec<FeatureSpec>,
    /// The names of all outputs.
    output_names: Vec<String>,
    states: OnceLock<Vec<FeatureSpec>>,
}

/// A parameter of a method.
enum Parameter {
    /// An array, by its index among the inputs.
    Array(usize),
    /// A constant that the program was compiled for.
    Fixed(Value),
}

/// An output of a method without loss of precision.
pub enum ExactValue {
    /// An array.
    Array(Array),
    /// A shape and doubles, which an [`Array`] would round to `f32`.
    Doubles(Vec<usize>, Vec<f64>),
}

impl Backend<Source> for ExecuTorchBackend {
    fn prepare(&self, program: Source, options: &RunOptions) -> Result<Arc<dyn Executable>> {
        Ok(Arc::new(ProgramExecutable::load(program, options)?))
    }
}

impl ProgramExecutable {
    /// Loads a program. Its delegates run on the options' device.
    pub fn load(mut program: Source, options: &RunOptions) -> Result<ProgramExecutable> {
        let units = options.device.compute_units();
        let cache = options.cache.as_deref().map(|path| match path.to_str() {
            Some(path) => Ok(path),
            None => fail!(File, "the directory path `{}` is not valid UTF-8", path.display()),
        });
        let settings =
            [("compute_units", units.map(ComputeUnits::name)), ("cache_dir", cache.transpose()?)];
        let settings = settings.into_iter().filter_map(|(key, value)| {
            Some(CompileSpec { key: key.to_owned(), value: value?.as_bytes().to_vec() })
        });
        let settings: Vec<_> = settings.collect();
        let delegates = program.plans.iter_mut().flat_map(|plan| &mut plan.delegates);
        for delegate in delegates.filter(|delegate| delegate.id == BACKEND) {
            // The caller's settings take precedence over the program's.
            delegate.compile_specs.splice(0..0, settings.iter().cloned());
        }
        let backend = match units {
            Some(_) => coreml::delegates()?,
            None => coremill_runtime::host(),
        };
        let mut loading = options.runtime();
        loading.backends = vec![backend];
        Ok(ProgramExecutable(Program::new(program, loading)?))
    }

    /// The program that was loaded.
    pub fn source(&self) -> &Source {
        self.0.source()
    }

    /// A new instance of a method, in its initial state.
    pub fn method(&self, name: &str) -> Result<MethodSession> {
        MethodSession::new(&self.0, name)
    }
}

impl Executable for ProgramExecutable {
    fn functions(&self) -> Vec<String> {
        self.0.methods().map(str::to_owned).collect()
    }

    fn default_function(&self) -> Result<&str> {
        let names: Vec<&str> = self.0.methods().collect();
        match &names[..] {
            [only] => Ok(only),
            _ if names.contains(&"forward") => Ok("forward"),
            [] => fail!(File, "the program has no methods"),
            _ => {
                let message = format!("the program has several methods: {}", quoted(names));
                Err(Error::new(message).with_hint("select one with the option `function`"))
            }
        }
    }

    fn signature(&self, function: &str) -> Result<Signature> {
        let method = self.method(function)?;
        let states = method.states().to_vec();
        Ok(Signature { inputs: method.inputs, outputs: method.outputs, states })
    }

    fn session(&self, function: &str) -> Result<Box<dyn Session>> {
        Ok(Box::new(self.method(function)?))
    }

    fn vocabulary(&self, function: &str, input: &str) -> Option<u64> {
        let program = self.source();
        let plan = program.plans.iter().find(|plan| plan.name == function)?;
        let delegates = plan.delegates.iter().filter(|delegate| delegate.id == BACKEND);
        let rows = delegates.filter_map(|delegate| {
            let payload = Payload::of(program, delegate).ok()?;
            let (is_compiled, files) = payload.model().ok()?;
            let model = match is_compiled {
                true => compiled::from_tree(files),
                false => package::from_tree(files),
            };
            let model = model.ok()?;
            let name = payload.function().unwrap_or(model.default_function_name());
            let function = model.program.functions.iter().find(|function| function.name == name)?;
            crate::vocabulary(function, input)
        });
        rows.min()
    }
}

impl MethodSession {
    fn new(program: &Program, name: &str) -> Result<MethodSession> {
        let method = program.method(name)?;
        let (input_names, output_names) = method.names()?;
        let (mut arguments, mut inputs) = (Vec::new(), Vec::new());
        for (argument, name) in method.inputs()?.into_iter().zip(input_names) {
            arguments.push(match argument {
                Argument::Tensor { scalar_type, sizes, dynamic, .. } => {
                    inputs.push(spec(name, scalar_type, &sizes, dynamic)?);
                    Parameter::Array(inputs.len() - 1)
                }
                Argument::Fixed(value) => Parameter::Fixed(fixed(&value, &name)?),
            });
        }
        let outputs = method.outputs()?.into_iter().zip(&output_names);
        let tensors = outputs.filter_map(|(output, name)| match output {
            Argument::Tensor { scalar_type, sizes, dynamic, .. } => {
                Some(spec(name.clone(), scalar_type, &sizes, dynamic))
            }
            Argument::Fixed(_) => None,
        });
        let outputs = tensors.collect::<Result<_>>()?;
        let (program, states) = (program.clone(), OnceLock::new());
        Ok(MethodSession { program, method, arguments, inputs, outputs, output_names, states })
    }

    /// Runs the method without rounding doubles.
    pub fn run_exactly(&mut self, inputs: &Inputs<'_>) -> Result<Vec<(String, ExactValue)>> {
        let exact = |(name, value): (String, Value)| {
            let exact = match &value {
                Value::Double(number) => ExactValue::Doubles(Vec::new(), vec![*number]),
                Value::Doubles(numbers) => {
                    ExactValue::Doubles(vec![numbers.len()], numbers.clone())
                }
                Value::Tensor(tensor) if tensor.scalar_type() == ScalarType::Double => {
                    let bytes = tensor.contiguous_bytes();
                    let numbers = bytes.as_chunks().0.iter().map(|&it| f64::from_le_bytes(it));
                    ExactValue::Doubles(tensor.sizes().to_vec(), numbers.collect())
                }
                value => ExactValue::Array(array(&name, value)?),
            };
            Ok((name, exact))
        };
        let values = self.execute(inputs, &mut Hooks::default())?;
        values.into_iter().map(exact).collect()
    }

    /// Runs the method. A list of tensors becomes several values.
    fn execute(
        &mut self,
        inputs: &Inputs<'_>,
        hooks: &mut Hooks<'_>,
    ) -> Result<Vec<(String, Value)>> {
        let mut arrays: Vec<_> = self.check(inputs)?.into_iter().map(Some).collect();
        let value = |argument: &Parameter| match argument {
            Parameter::Fixed(value) => Ok(value.clone()),
            Parameter::Array(at) => {
                let array = arrays[*at].take();
                Ok(Value::Tensor(tensor(&self.inputs[*at].name, array)?))
            }
        };
        let values = self.arguments.iter().map(value).collect::<Result<Vec<_>>>()?;
        let results = self.method.execute_with(&values, hooks);
        let results = results.and_then(|results| results.values()).map_err(|error| {
            // An error without an instruction concerns an argument.
            let kind = error.instruction().map_or(ErrorKind::Input, |_| ErrorKind::Run);
            Error::from(error).with_kind(kind)
        })?;
        let named = self.output_names.iter().zip(results);
        Ok(named.flat_map(|(name, value)| leaves(name, value)).collect())
    }

    /// Resolves `input_N` or `output_N` to the name of the feature.
    fn canonical<'n>(specs: &'n [FeatureSpec], name: &'n str, what: &str) -> &'n str {
        let is_known = specs.iter().any(|spec| spec.name == name);
        let number = || name.strip_prefix(what)?.strip_prefix('_')?.parse::<usize>().ok();
        match number().filter(|_| !is_known).and_then(|number| specs.get(number)) {
            Some(spec) => &spec.name,
            None => name,
        }
    }
}

impl Session for MethodSession {
    fn function(&self) -> &str {
        self.method.name()
    }

    fn inputs(&self) -> &[FeatureSpec] {
        &self.inputs
    }

    fn outputs(&self) -> &[FeatureSpec] {
        &self.outputs
    }

    fn states(&self) -> &[FeatureSpec] {
        self.states.get_or_init(|| {
            let states = self.method.states().unwrap_or_default().into_iter();
            let spec = |(name, tensor): (String, Tensor)| {
                spec(name, tensor.scalar_type(), tensor.sizes(), false).ok()
            };
            states.filter_map(spec).collect()
        })
    }

    fn check(&self, inputs: &Inputs<'_>) -> Result<Vec<Array>> {
        let named: Vec<(&str, MethodInput<'_>)> = inputs
            .iter()
            .map(|(name, input)| {
                (Self::canonical(&self.inputs, name, "input"), MethodInput(*input))
            })
            .collect();
        let named: Vec<_> = named.iter().map(|(name, it)| (*name, it as &dyn Input)).collect();
        checked(&self.inputs, &named)
    }

    fn run_with(&mut self, inputs: &Inputs<'_>, hooks: &mut Hooks<'_>) -> Result<Outputs> {
        let values = self.execute(inputs, hooks)?.into_iter().map(|(name, value)| {
            let array = array(&name, &value)?;
            Ok((name, Computed::Array(array)))
        });
        Ok(Outputs(values.collect::<Result<_>>()?))
    }

    fn run_into(&mut self, inputs: &Inputs<'_>, outputs: &mut OutputSlices<'_, '_>) -> Result {
        let specs = self.outputs.clone();
        let named = outputs
            .iter_mut()
            .map(|(name, slice)| (Self::canonical(&specs, name, "output"), &mut **slice));
        let mut named: Vec<_> = named.collect();
        check_slices(&specs, &named)?;
        copy_into(&self.run(inputs)?, &mut named)
    }

    fn state(&self, name: &str) -> Result<Array> {
        let states = self.method.states()?;
        match states.into_iter().find(|(known, _)| known == name) {
            Some((_, tensor)) => array(name, &Value::Tensor(tensor)),
            None => find(self.states(), name, "state")
                .and(Err(Error::new(format!("the state `{name}` cannot be read")))),
        }
    }

    fn read_states(&self) -> Result<Vec<(String, Array)>> {
        let states = self.method.states()?.into_iter();
        let named = states.map(|(name, tensor)| {
            let array = array(&name, &Value::Tensor(tensor))?;
            Ok((name, array))
        });
        named.collect()
    }

    fn set_state(&mut self, name: &str, content: &dyn Input) -> Result {
        let spec = find(self.states(), name, "state")?;
        let array = spec.accept(MethodInput(content).array(spec)?);
        let array = array.map_err(|error| Error::from(error).with_kind(ErrorKind::Input))?;
        let value = tensor(name, Some(array))?;
        Ok(self.method.set_state(name, &value)?)
    }

    fn reset(&mut self) -> Result {
        self.method = self.program.method(self.method.name())?;
        Ok(())
    }
}

/// An input of a method, which also accepts integers for floats, and integers 0 and 1 for booleans.
struct MethodInput<'i>(&'i dyn Input);

impl Input for MethodInput<'_> {
    fn array(&self, spec: &FeatureSpec) -> Result<Array> {
        let array = self.0.array(spec)?;
        let Some(ty) = spec.ty.as_tensor() else { return Ok(array) };
        let shape = array.shape();
        let is_flag = |int: &i32| matches!(int, 0 | 1);
        Ok(match array.as_ints() {
            Some(ints) if ty.dtype.is_float() => {
                Array::floats(DType::Fp32, shape, ints.iter().map(|&int| int as f32).collect())
            }
            Some(ints) if ty.dtype == DType::Bool && ints.iter().all(is_flag) => {
                Array::ints(DType::Bool, shape, ints.to_vec())
            }
            _ => array,
        })
    }
}

/// A tensor of a method as a feature. Dynamic sizes are bounded, and the maximum is the default.
fn spec(
    name: String,
    scalar_type: ScalarType,
    sizes: &[usize],
    dynamic: bool,
) -> Result<FeatureSpec> {
    let Some(dtype) = scalar_type.dtype() else {
        fail!(Run, "`{name}` has elements of type `{scalar_type:?}`, which arrays do not support")
    };
    if !dynamic {
        let shape = sizes.iter().map(|&size| Dim::Known(size as u64)).collect();
        let ty = Type::Tensor(TensorType { dtype, shape });
        return Ok(FeatureSpec { name, ty, description: None });
    }
    let range = |&size: &usize| SizeRange { lower: 0, upper: size as i64 };
    let array = ArrayType {
        shape: sizes.iter().map(|&size| size as i64).collect(),
        data_type: ArrayDataType::from_code(0),
        flexibility: ShapeFlexibility::Ranged(sizes.iter().map(range).collect()),
        default: None,
    };
    let ty = Type::Tensor(TensorType { dtype, shape: vec![Dim::Unknown; sizes.len()] });
    let description = FeatureDescription::new(&name, FeatureType::MultiArray(array));
    Ok(FeatureSpec { name, ty, description: Some(description) })
}

/// The value of a constant parameter.
fn fixed(value: &Planned, name: &str) -> Result<Value> {
    Ok(match value {
        Planned::Null => Value::None,
        Planned::Int(number) => Value::Int(*number),
        Planned::Bool(flag) => Value::Bool(*flag),
        Planned::Double(number) => Value::Double(*number),
        Planned::String(text) => Value::String(text.clone()),
        _ => fail!(Run, "`{name}` is a list; expected a tensor or a number"),
    })
}

/// Converts an accepted array to a tensor.
fn tensor(name: &str, array: Option<Array>) -> Result<Tensor> {
    let made = array.and_then(|array| {
        let scalar_type = ScalarType::of(array.dtype())?;
        let bytes = Buffer::from(array.to_bytes()?);
        Some(Tensor::new(scalar_type, array.shape().to_vec(), bytes))
    });
    match made {
        Some(tensor) => Ok(tensor?),
        None => fail!(Input, "the element type of the array for `{name}` is not supported"),
    }
}

/// The values of an output: empty for an absent one, and one per entry of a list.
fn leaves(name: &str, value: Value) -> Vec<(String, Value)> {
    match value {
        Value::None => Vec::new(),
        Value::Tensors(tensors) => {
            let entries = tensors.into_iter().enumerate();
            let present = entries.filter_map(|(index, tensor)| Some((index, tensor?)));
            present.map(|(at, tensor)| (format!("{name}.{at}"), Value::Tensor(tensor))).collect()
        }
        value => vec![(name.to_owned(), value)],
    }
}

/// Converts a value that is not a list of tensors to an array. Numbers become scalars.
fn array(name: &str, value: &Value) -> Result<Array> {
    let narrow = |number: &i64| match i32::try_from(*number) {
        Ok(number) => Ok(number),
        Err(_) => fail!(Run, "`{name}` is {number}, which does not fit in 32 bits"),
    };
    let narrow_floats =
        |numbers: &[f64]| -> Vec<f32> { numbers.iter().map(|&it| it as f32).collect() };
    Ok(match value {
        Value::None | Value::Tensors(_) => fail!(Run, "output `{name}` is not an array"),
        Value::Tensor(tensor) => {
            let Some(dtype) = tensor.scalar_type().dtype() else {
                let found = tensor.scalar_type();
                fail!(Run, "`{name}` has elements of type `{found:?}`, which arrays do not support")
            };
            match Array::from_bytes(dtype, tensor.sizes(), &tensor.contiguous_bytes()) {
                Some(array) => array,
                None => fail!(Run, "`{name}` has integers that do not fit in 32 bits"),
            }
        }
        Value::Int(number) => Array::ints(DType::Int64, [], vec![narrow(number)?]),
        Value::Bool(flag) => Array::ints(DType::Bool, [], vec![i32::from(*flag)]),
        Value::Double(number) => Array::floats(DType::Fp64, [], narrow_floats(&[*number])),
        Value::String(text) => Array::texts([], vec![text.clone()]),
        Value::Ints(numbers) => {
            let numbers = numbers.iter().map(narrow).collect::<Result<Vec<i32>>>()?;
            Array::ints(DType::Int64, [numbers.len()], numbers)
        }
        Value::Doubles(numbers) => {
            Array::floats(DType::Fp64, [numbers.len()], narrow_floats(numbers))
        }
        Value::Bools(flags) => {
            let ints: Vec<i32> = flags.iter().map(|&flag| i32::from(flag)).collect();
            Array::ints(DType::Bool, [ints.len()], ints)
        }
    })
}
