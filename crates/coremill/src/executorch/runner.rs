use std::collections::BTreeSet;

use coremill_engine::{Array, Elements, Port};
use coremill_mil::ir::{Dim, TensorType, Type};
use coremill_pte::Program;
use coremill_pte::coreml::{BACKEND, Payload};
use coremill_pte::program::{Instruction, Plan, Value as Planned, ValueId};
use coremill_runtime::{Hooks, LoadOptions, Method, Port as MethodPort, ScalarType, Tensor, Value};
use coremill_tensor::{Buffer, DType};

use crate::error::Error;

/// A method of a program, ready to be run on arrays by name. What it keeps from run to run is its own.
///
/// Programs do not name what they take and give. What goes straight to a Core ML model, or comes from it, is called
/// as it is there; the rest is `input_0`, `output_0` and so on, by position.
pub struct Runner {
    program: coremill_runtime::Program,
    method: Method,
    inputs: Vec<Input>,
    outputs: Vec<String>,
    ports: Vec<Port>,
}

/// What a method takes.
enum Input {
    /// An array, by its index among the ports.
    Array(usize),
    /// What the program was made with.
    Fixed(Value),
}

impl Runner {
    /// Loads a method; the only one, or `forward`, if none is named.
    pub fn new(
        program: Program,
        method: Option<&str>,
        options: LoadOptions,
    ) -> Result<Runner, Error> {
        let failed = |error: coremill_runtime::Error| of_runtime(&error);
        let names: Vec<String> = program.plans.iter().map(|plan| plan.name.clone()).collect();
        let wanted = match (method, &names[..]) {
            (Some(method), _) => method.to_owned(),
            (None, [only]) => only.clone(),
            (None, _) if names.iter().any(|name| name == "forward") => "forward".to_owned(),
            (None, []) => return Err(Error::new("the program has no methods")),
            (None, _) => {
                let listed: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
                let message = format!("the program has the methods {}", listed.join(", "));
                return Err(Error::new(message).hint("say which with the option `function`"));
            }
        };
        let program = coremill_runtime::Program::new(program, options).map_err(failed)?;
        Runner::of_method(program, &wanted)
    }

    /// The same method as it is before its first run.
    pub fn afresh(&self) -> Result<Runner, Error> {
        Runner::of_method(self.program.clone(), self.method.name())
    }

    fn of_method(program: coremill_runtime::Program, wanted: &str) -> Result<Runner, Error> {
        let failed = |error: coremill_runtime::Error| of_runtime(&error);
        let source = program.source();
        let called = match source.plans.iter().find(|plan| plan.name == wanted) {
            Some(plan) => Called::of(source, plan),
            None => Called::default(),
        };
        let method = program.method(wanted).map_err(failed)?;
        let mut ports = Vec::new();
        let mut inputs = Vec::new();
        for (index, input) in method.inputs().map_err(failed)?.into_iter().enumerate() {
            inputs.push(match input {
                MethodPort::Tensor { scalar_type, sizes, dynamic, .. } => {
                    let name = called.inputs[index].clone();
                    let dtype = scalar_type.dtype().ok_or_else(|| {
                        Error::new(format!(
                            "input `{name}` holds `{scalar_type:?}`, which no file does"
                        ))
                    })?;
                    let shape = sizes.iter().map(|&size| match dynamic {
                        true => Dim::Unknown,
                        false => Dim::Known(size as u64),
                    });
                    let ty = Type::Tensor(TensorType { dtype, shape: shape.collect() });
                    ports.push(Port { name, ty, description: None });
                    Input::Array(ports.len() - 1)
                }
                MethodPort::Fixed(value) => Input::Fixed(fixed(&value, index)?),
            });
        }
        Ok(Runner { program, method, inputs, outputs: called.outputs, ports })
    }

    /// The program.
    pub fn program(&self) -> &Program {
        self.program.source()
    }

    /// The arrays that it takes, in order.
    pub fn ports(&self) -> &[Port] {
        &self.ports
    }

    /// The method's name.
    pub fn method(&self) -> &str {
        self.method.name()
    }

    /// The largest shape that an input may have.
    pub fn largest(&self, name: &str) -> Option<Vec<usize>> {
        let at = self.ports.iter().position(|port| port.name == name)?;
        let index =
            self.inputs.iter().position(|input| matches!(input, Input::Array(of) if *of == at))?;
        match self.method.inputs().ok()?.into_iter().nth(index)? {
            MethodPort::Tensor { sizes, .. } => Some(sizes),
            MethodPort::Fixed(_) => None,
        }
    }

    /// How many values an input may have, as far as the tables of the models tell that it goes to.
    pub fn vocabulary(&self, name: &str) -> Option<u64> {
        let models = super::models(self.program()).ok()?;
        let read = models.into_iter().filter_map(|model| model.read().ok());
        let functions = read.flat_map(|model| model.program.functions);
        functions.filter_map(|function| crate::vocabulary(&function, name)).min()
    }

    /// Checks that arrays are what the method takes, all of it and nothing else.
    pub fn check(&self, given: &[(String, Array)]) -> Result<(), Error> {
        self.values(given).map(drop)
    }

    /// Runs the method.
    pub fn run(&mut self, given: &[(String, Array)]) -> Result<Vec<(String, Array)>, Error> {
        self.run_with(given, &mut Hooks::default())
    }

    /// Runs the method while something looks on.
    pub fn run_with(
        &mut self,
        given: &[(String, Array)],
        hooks: &mut Hooks<'_>,
    ) -> Result<Vec<(String, Array)>, Error> {
        let leaves = self.run_leaves(given, hooks)?;
        leaves.into_iter().map(|(name, value)| named_array(name, &value)).collect()
    }

    /// Runs the method; doubles keep all of their bits.
    pub(crate) fn run_exactly(
        &mut self,
        given: &[(String, Array)],
    ) -> Result<Vec<(String, Exact)>, Error> {
        let leaves = self.run_leaves(given, &mut Hooks::default())?;
        leaves
            .into_iter()
            .map(|(name, value)| {
                let exact = match &value {
                    Value::Double(number) => Exact::Doubles(Vec::new(), vec![*number]),
                    Value::Doubles(numbers) => Exact::Doubles(vec![numbers.len()], numbers.clone()),
                    Value::Tensor(tensor) if tensor.scalar_type() == ScalarType::Double => {
                        let bytes = tensor.contiguous_bytes();
                        let numbers = bytes.as_chunks().0.iter().map(|&it| f64::from_le_bytes(it));
                        Exact::Doubles(tensor.sizes().to_vec(), numbers.collect())
                    }
                    value => Exact::Array(array(&name, value)?),
                };
                Ok((name, exact))
            })
            .collect()
    }

    /// Runs the method; what comes out, lists taken apart.
    fn run_leaves(
        &mut self,
        given: &[(String, Array)],
        hooks: &mut Hooks<'_>,
    ) -> Result<Vec<(String, Value)>, Error> {
        let values = self.values(given)?;
        let outputs = self.method.execute_with(&values, hooks);
        let outputs = outputs.and_then(|results| results.values());
        let outputs = outputs.map_err(|error| of_runtime(&error))?;
        let named = self.outputs.iter().zip(outputs);
        Ok(named.flat_map(|(name, value)| leaves(name, value)).collect())
    }

    /// What the method and its delegates keep from run to run, by name.
    pub fn states(&self) -> Result<Vec<(String, Array)>, Error> {
        let states = self.method.states().map_err(|error| of_runtime(&error))?;
        states.into_iter().map(|(name, tensor)| named_array(name, &Value::Tensor(tensor))).collect()
    }

    /// What there is to set with [`Runner::set_state`].
    pub fn state_ports(&self) -> Result<Vec<Port>, Error> {
        let port = |(name, array): (String, Array)| {
            let shape = array.shape().iter().map(|&size| Dim::Known(size as u64)).collect();
            let ty = Type::Tensor(TensorType { dtype: array.dtype(), shape });
            Port { name, ty, description: None }
        };
        Ok(self.states()?.into_iter().map(port).collect())
    }

    /// Sets what the method or a delegate keeps under a name.
    pub fn set_state(&mut self, name: &str, array: &Array) -> Result<(), Error> {
        let ports = self.state_ports()?;
        let Some(port) = ports.iter().find(|port| port.name == name) else {
            return Err(Error::new(format!("there is no state `{name}`")));
        };
        let Value::Tensor(tensor) = tensor(port, array)? else {
            return Err(Error::new(format!("the state `{name}` is not a tensor")));
        };
        self.method.set_state(name, &tensor).map_err(|error| of_runtime(&error))
    }

    fn values(&self, given: &[(String, Array)]) -> Result<Vec<Value>, Error> {
        if let Some((name, _)) =
            given.iter().find(|(name, _)| !self.ports.iter().any(|port| port.name == *name))
        {
            return Err(Error::new(format!("there is no input `{name}`")));
        }
        let value = |input: &Input| match input {
            Input::Fixed(value) => Ok(value.clone()),
            Input::Array(at) => {
                let port = &self.ports[*at];
                let name = &port.name;
                let mut found = given.iter().filter(|(given, _)| given == name);
                match (found.next(), found.next()) {
                    (Some((_, array)), None) => tensor(port, array),
                    (Some(_), Some(_)) => Err(Error::new(format!("input `{name}` is given twice"))),
                    (None, _) => Err(Error::new(format!("input `{name}` is missing"))),
                }
            }
        };
        self.inputs.iter().map(value).collect()
    }
}

fn of_runtime(error: &coremill_runtime::Error) -> Error {
    Error::new(error.to_string())
}

/// What inputs and outputs are called.
#[derive(Default)]
struct Called {
    inputs: Vec<String>,
    outputs: Vec<String>,
}

impl Called {
    fn of(program: &Program, plan: &Plan) -> Called {
        let mut inputs: Vec<Option<String>> = vec![None; plan.inputs.len()];
        let mut outputs: Vec<Option<String>> = vec![None; plan.outputs.len()];
        for instruction in plan.chains.iter().flat_map(|chain| &chain.instructions) {
            let Instruction::DelegateCall { delegate, arguments } = instruction else { continue };
            let Some(delegate) = plan.delegates.get(*delegate as usize) else { continue };
            if delegate.id != BACKEND {
                continue;
            }
            // What cannot be read is for whoever runs the delegate to say.
            let Ok(payload) = Payload::of(program, delegate) else { continue };
            let Ok(interface) = payload.interface() else { continue };
            let names = interface.inputs.iter().chain(&interface.outputs);
            for ((at, id), name) in arguments.iter().enumerate().zip(names) {
                let (ids, called): (&[ValueId], _) = match at < interface.inputs.len() {
                    true => (&plan.inputs, &mut inputs),
                    false => (&plan.outputs, &mut outputs),
                };
                for (called, _) in called.iter_mut().zip(ids).filter(|(_, found)| *found == id) {
                    called.get_or_insert_with(|| name.clone());
                }
            }
        }
        Called { inputs: distinct(inputs, "input"), outputs: distinct(outputs, "output") }
    }
}

/// Names of which no two are the same.
fn distinct(names: Vec<Option<String>>, what: &str) -> Vec<String> {
    let mut taken = BTreeSet::new();
    let named: Vec<Option<String>> =
        names.into_iter().map(|name| name.filter(|name| taken.insert(name.clone()))).collect();
    let number = |(index, name): (usize, Option<String>)| {
        name.unwrap_or_else(|| {
            let mut name = format!("{what}_{index}");
            while !taken.insert(name.clone()) {
                name.push('_');
            }
            name
        })
    };
    named.into_iter().enumerate().map(number).collect()
}

/// An input that can have one value alone.
fn fixed(value: &Planned, index: usize) -> Result<Value, Error> {
    Ok(match value {
        Planned::Null => Value::None,
        Planned::Int(number) => Value::Int(*number),
        Planned::Bool(truth) => Value::Bool(*truth),
        Planned::Double(number) => Value::Double(*number),
        Planned::String(text) => Value::String(text.clone()),
        Planned::Tensor(_)
        | Planned::IntList(_)
        | Planned::DoubleList(_)
        | Planned::BoolList(_)
        | Planned::TensorList(_)
        | Planned::OptionalTensorList(_) => {
            let message = format!("input {index} is a list, which cannot be given by name");
            return Err(Error::new(message));
        }
    })
}

/// An array as the method takes it: of the declared type.
fn tensor(port: &Port, array: &Array) -> Result<Value, Error> {
    let name = &port.name;
    let fail =
        |found: String| Error::new(format!("`{name}` expects a `{}`, found {found}", port.ty));
    let Some(ty) = port.ty.as_tensor() else { return Err(fail("a tensor".to_owned())) };
    if !port.accepts_shape(array.shape()) {
        return Err(fail(format!("the shape {:?}", array.shape())));
    }
    let shape = array.shape();
    let converted = match array.elements() {
        Elements::Floats(floats) if ty.dtype.is_float() => {
            Array::floats(ty.dtype, shape, floats.to_vec())
        }
        Elements::Ints(ints) if ty.dtype.is_float() => {
            Array::floats(ty.dtype, shape, ints.iter().map(|&int| int as f32).collect())
        }
        Elements::Ints(ints) => {
            let fits = |int: &&i32| !within(ty.dtype, **int);
            if let Some(int) = ints.iter().find(fits) {
                return Err(fail(format!("{int}, which is out of its range")));
            }
            Array::ints(ty.dtype, shape, ints.to_vec())
        }
        Elements::Floats(_) | Elements::Texts(_) => {
            return Err(fail(format!("elements of type `{}`", array.dtype())));
        }
    };
    let bytes =
        converted.to_bytes().ok_or_else(|| fail("elements that it cannot hold".to_owned()))?;
    let scalar_type = ScalarType::of(ty.dtype).ok_or_else(|| fail("no such type".to_owned()))?;
    let tensor = Tensor::new(scalar_type, shape.to_vec(), Buffer::from(bytes));
    tensor.map(Value::Tensor).map_err(|error| fail(error.to_string()))
}

fn within(dtype: DType, int: i32) -> bool {
    match dtype {
        DType::Bool => matches!(int, 0 | 1),
        DType::UInt8 => u8::try_from(int).is_ok(),
        DType::Int8 => i8::try_from(int).is_ok(),
        DType::UInt16 => u16::try_from(int).is_ok(),
        DType::Int16 => i16::try_from(int).is_ok(),
        DType::UInt32 | DType::UInt64 => int >= 0,
        _ => true,
    }
}

/// What comes out of a method.
pub(crate) enum Exact {
    /// What arrays hold as it is.
    Array(Array),
    /// A shape, and doubles, of which arrays hold no more than `f32` does.
    Doubles(Vec<usize>, Vec<f64>),
}

/// What came out: nothing is left out, and lists have a value for each entry.
fn leaves(name: &str, value: Value) -> Vec<(String, Value)> {
    match value {
        Value::None => Vec::new(),
        Value::Tensors(tensors) => {
            let entries = tensors.into_iter().enumerate();
            let there = entries.filter_map(|(index, tensor)| Some((index, tensor?)));
            there.map(|(at, tensor)| (format!("{name}.{at}"), Value::Tensor(tensor))).collect()
        }
        value => vec![(name.to_owned(), value)],
    }
}

fn named_array(name: String, value: &Value) -> Result<(String, Array), Error> {
    let array = array(&name, value)?;
    Ok((name, array))
}

/// A value that is not a list of tensors as an array: numbers have no dimensions.
fn array(name: &str, value: &Value) -> Result<Array, Error> {
    let narrow = |number: i64| {
        i32::try_from(number).map_err(|_| {
            Error::new(format!("output `{name}` is {number}, which takes more than 32 bits"))
        })
    };
    Ok(match value {
        Value::None | Value::Tensors(_) => {
            return Err(Error::new(format!("output `{name}` is not an array")));
        }
        Value::Tensor(tensor) => {
            let dtype = tensor.scalar_type().dtype().ok_or_else(|| {
                let found = tensor.scalar_type();
                Error::new(format!("output `{name}` holds `{found:?}`, which no file does"))
            })?;
            Array::from_bytes(dtype, tensor.sizes(), &tensor.contiguous_bytes()).ok_or_else(
                || {
                    Error::new(format!(
                        "output `{name}` holds integers that take more than 32 bits"
                    ))
                },
            )?
        }
        Value::Int(number) => Array::ints(DType::Int64, [], vec![narrow(*number)?]),
        Value::Bool(truth) => Array::ints(DType::Bool, [], vec![i32::from(*truth)]),
        Value::Double(number) => Array::floats(DType::Fp64, [], vec![*number as f32]),
        Value::String(text) => Array::texts([], vec![text.clone()]),
        Value::Ints(numbers) => {
            let numbers =
                numbers.iter().map(|&number| narrow(number)).collect::<Result<Vec<i32>, _>>()?;
            Array::ints(DType::Int64, [numbers.len()], numbers)
        }
        Value::Doubles(numbers) => {
            let floats: Vec<f32> = numbers.iter().map(|&number| number as f32).collect();
            Array::floats(DType::Fp64, [floats.len()], floats)
        }
        Value::Bools(truths) => {
            let ints: Vec<i32> = truths.iter().map(|&truth| i32::from(truth)).collect();
            Array::ints(DType::Bool, [ints.len()], ints)
        }
    })
}
