//! Methods of ExecuTorch's programs. Inputs and outputs have no names there: they are `input_0`, `output_0`, and so on.

use std::collections::HashMap;
use std::sync::Arc;

use coremill_coreml::ComputeUnits;
use coremill_engine::{Array, Elements, Outputs, Port, Value as Computed};
use coremill_mil::ir::{Dim, TensorType, Type};
use coremill_pte::Program as Source;
use coremill_pte::coreml::BACKEND;
use coremill_pte::program::{CompileSpec, Value as PlannedValue};
use coremill_runtime::{LoadOptions, Method, Port as Place, Program, ScalarType, Tensor, Value};
use coremill_tensor::Buffer;

use super::{Given, Machine, Targets, check_names, check_targets, copy_into, coreml, find};
use crate::array::Input;
use crate::error::{Error, ErrorKind, Result, fail};

/// Methods of a program.
pub(crate) struct Methods {
    program: Program,
    default: String,
    loaded: HashMap<String, Loaded>,
    /// The method that ran last.
    latest: Option<String>,
}

struct Loaded {
    method: Method,
    places: Vec<Place>,
    /// Inputs, outputs and states.
    ports: [Vec<Port>; 3],
}

impl Methods {
    /// Takes a program. Its delegates run on the engine if no compute units are named.
    pub(crate) fn load(
        mut source: Source,
        units: Option<ComputeUnits>,
        cache: Option<&str>,
        threads: usize,
    ) -> Result<Methods> {
        let settings = [("compute_units", units.map(ComputeUnits::name)), ("cache_dir", cache)];
        let settings = settings.into_iter().filter_map(|(key, value)| {
            Some(CompileSpec { key: key.to_owned(), value: value?.as_bytes().to_vec() })
        });
        let settings: Vec<_> = settings.collect();
        let plans = source.plans.iter_mut().flat_map(|plan| &mut plan.delegates);
        for delegate in plans.filter(|delegate| delegate.id == BACKEND) {
            // Those of the session go before those of the program.
            delegate.compile_specs.splice(0..0, settings.iter().cloned());
        }
        let backend = match units {
            Some(_) => coreml::backend()?,
            None => coremill_runtime::host(),
        };
        let options = LoadOptions { backends: vec![backend], threads, ..LoadOptions::default() };
        let program = Program::new(source, options)?;
        let forward = program.methods().find(|name| *name == "forward");
        let default = forward.or(program.methods().next()).map(str::to_owned);
        let Some(default) = default else {
            fail!(File, "the program has no methods");
        };
        Ok(Methods { program, default, loaded: HashMap::new(), latest: None })
    }

    fn method(&mut self, name: &str) -> Result<&mut Loaded> {
        if !self.loaded.contains_key(name) {
            let method = self.program.method(name)?;
            self.loaded.insert(name.to_owned(), Loaded::new(method)?);
        }
        if self.latest.as_deref() != Some(name) {
            self.latest = Some(name.to_owned());
        }
        Ok(self.loaded.get_mut(name).expect("it was made above"))
    }

    fn latest(&mut self) -> Result<&mut Loaded> {
        let name = self.latest.clone().unwrap_or_else(|| self.default.clone());
        self.method(&name)
    }
}

impl Loaded {
    fn new(method: Method) -> Result<Loaded> {
        let places = method.inputs()?;
        let states = method.states()?.into_iter().map(|(name, tensor)| {
            let sizes = tensor.sizes().to_vec();
            port(name, tensor.scalar_type(), &sizes, false)
        });
        let states = states.collect::<Result<_>>()?;
        let ports = [numbered(&places, "input")?, numbered(&method.outputs()?, "output")?, states];
        Ok(Loaded { method, places, ports })
    }

    fn run(&mut self, inputs: &Given<'_>) -> Result<Outputs> {
        check_names(&self.ports[0], inputs, "input", "given twice")?;
        let mut ports = self.ports[0].iter();
        let mut values = Vec::with_capacity(self.places.len());
        for place in &self.places {
            let Place::Tensor { scalar_type, .. } = place else {
                values.push(fixed(place)?);
                continue;
            };
            let port = ports.next().expect("there is a port for each tensor");
            let Some((_, input)) = inputs.iter().find(|(name, _)| *name == port.name) else {
                fail!(Input, "input `{}`, a `{}`, is not given", port.name, port.ty)
            };
            values.push(Value::Tensor(tensor(*input, port, *scalar_type)?));
        }
        // What no instruction is at fault for is what was passed in.
        let results = self.method.execute(&values).map_err(|error| match error.instruction() {
            Some(_) => error.into(),
            None => Error::new(ErrorKind::Input, error.to_string()).caused_by(error),
        })?;
        let tensors = results.iter().filter_map(Value::as_tensor);
        let outputs = self.ports[1].iter().zip(tensors);
        let array = |(port, tensor): (&Port, &Tensor)| {
            Ok((port.name.clone(), Computed::Array(array(&port.name, tensor)?)))
        };
        Ok(Outputs(outputs.map(array).collect::<Result<_>>()?))
    }
}

/// The ports of tensors, by number.
fn numbered(places: &[Place], what: &str) -> Result<Vec<Port>> {
    let tensors = places.iter().filter_map(|place| match place {
        Place::Tensor { scalar_type, sizes, dynamic, .. } => Some((*scalar_type, sizes, *dynamic)),
        Place::Fixed(_) => None,
    });
    let port = |(at, (scalar_type, sizes, dynamic)): (usize, (ScalarType, &Vec<usize>, bool))| {
        port(format!("{what}_{at}"), scalar_type, sizes, dynamic)
    };
    tensors.enumerate().map(port).collect()
}

fn port(name: String, scalar_type: ScalarType, sizes: &[usize], dynamic: bool) -> Result<Port> {
    let Some(dtype) = scalar_type.dtype() else {
        fail!(Run, "`{name}` has elements of `{scalar_type:?}`, which sessions do not take")
    };
    let unknown = |_| Dim::Unknown;
    let known = |size: &usize| Dim::Known(*size as u64);
    let shape = if dynamic {
        sizes.iter().map(unknown).collect()
    } else {
        sizes.iter().map(known).collect()
    };
    Ok(Port { name, ty: Type::Tensor(TensorType { dtype, shape }), description: None })
}

/// What a program takes that is not a tensor: the one value that it was made for.
fn fixed(place: &Place) -> Result<Value> {
    Ok(match place {
        Place::Fixed(PlannedValue::Null) => Value::None,
        Place::Fixed(PlannedValue::Int(value)) => Value::Int(*value),
        Place::Fixed(PlannedValue::Bool(value)) => Value::Bool(*value),
        Place::Fixed(PlannedValue::Double(value)) => Value::Double(*value),
        Place::Fixed(PlannedValue::String(value)) => Value::String(value.clone()),
        other => fail!(Run, "the program takes {other:?}; accepted are tensors and numbers"),
    })
}

/// An input as a program takes it.
fn tensor(input: &dyn Input, port: &Port, scalar_type: ScalarType) -> Result<Tensor> {
    let array = input.array(port)?;
    let shape = array.shape().to_vec();
    let bytes = scalar_type.dtype().and_then(|dtype| {
        let array = match array.into_elements() {
            Elements::Floats(floats) if dtype.is_float() => {
                Array::floats(dtype, &*shape, Arc::unwrap_or_clone(floats))
            }
            Elements::Ints(ints) if !dtype.is_float() => {
                Array::ints(dtype, &*shape, Arc::unwrap_or_clone(ints))
            }
            _ => return None,
        };
        array.to_bytes()
    });
    match bytes {
        Some(bytes) => Ok(Tensor::new(scalar_type, shape, Buffer::from(bytes))?),
        None => fail!(Input, "`{}` takes elements of `{scalar_type:?}`", port.name),
    }
}

fn array(name: &str, tensor: &Tensor) -> Result<Array> {
    let dtype = tensor.scalar_type().dtype();
    let bytes = tensor.contiguous_bytes();
    match dtype.and_then(|dtype| Array::from_bytes(dtype, tensor.sizes(), &bytes)) {
        Some(array) => Ok(array),
        None => {
            let message = format!("`{name}` holds integers beyond 32 bits");
            Err(Error::new(ErrorKind::Run, message).hint("run the program with `runtime::Program`"))
        }
    }
}

impl Machine for Methods {
    fn functions(&self) -> Vec<String> {
        self.program.methods().map(str::to_owned).collect()
    }

    fn default_function(&self) -> &str {
        &self.default
    }

    fn ports(&mut self, function: &str) -> Result<[&[Port]; 3]> {
        let [inputs, outputs, states] = &self.method(function)?.ports;
        Ok([inputs, outputs, states])
    }

    fn run(&mut self, function: Option<&str>, inputs: &Given<'_>) -> Result<Outputs> {
        let function = &*function.unwrap_or(&self.default).to_owned();
        self.method(function)?.run(inputs)
    }

    fn run_into(
        &mut self,
        function: Option<&str>,
        inputs: &Given<'_>,
        targets: &mut Targets<'_, '_>,
    ) -> Result<()> {
        let function = &*function.unwrap_or(&self.default).to_owned();
        let method = self.method(function)?;
        check_targets(&method.ports[1], targets)?;
        copy_into(&method.run(inputs)?, targets)
    }

    fn state(&mut self, name: &str) -> Result<Array> {
        let loaded = self.latest()?;
        find(&loaded.ports[2], name, "state")?;
        let states = loaded.method.states()?;
        let (_, tensor) = states.iter().find(|(known, _)| known == name).expect("it has a port");
        array(name, tensor)
    }

    fn set_state(&mut self, name: &str, content: &dyn Input) -> Result<()> {
        let loaded = self.latest()?;
        let port = find(&loaded.ports[2], name, "state")?;
        let scalar_type = port.ty.as_tensor().and_then(|ty| ScalarType::of(ty.dtype));
        let scalar_type = scalar_type.expect("it was made of one");
        let value = tensor(content, port, scalar_type)?;
        Ok(loaded.method.set_state(name, &value)?)
    }

    fn reset(&mut self) -> Result<()> {
        // A method that is loaded anew has what it had at first.
        self.loaded.clear();
        Ok(())
    }
}
