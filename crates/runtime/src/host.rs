//! What was delegated to Core ML, on the engine of this workspace.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use coremill_engine::{Array, Elements, Engine, LoadOptions, Port, Precision, Session, Value};
use coremill_mil::verify::verify;
use coremill_mil::{compiled, package};
use coremill_pte::coreml::Payload;
use coremill_pte::program::ScalarType;
use coremill_tensor::{Buffer, DType};
use half::f16;

use crate::delegate::{Backend, Delegate, DelegatedPart};
use crate::error::{Error, Result, ensure, fail};
use crate::hooks::{Hooks, INPUT, Span};
use crate::number::Compute;
use crate::value::Tensor;
use crate::view::{Out, View};

/// Runs models on this machine's processor. Methods that share a model share its weights.
#[derive(Default)]
pub(crate) struct HostBackend {
    engines: Mutex<HashMap<Source, Engine>>,
}

/// Where in a program a model lies.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Source {
    /// By the place among what delegates are given.
    Data(u32),
    /// By name.
    Named(String),
}

/// One user of a model, with states of its own.
struct HostDelegate {
    session: Session,
    inputs: Vec<String>,
    outputs: Vec<String>,
}

impl Backend for HostBackend {
    fn id(&self) -> &str {
        "CoreMLBackend"
    }

    fn prepare(&self, part: &DelegatedPart<'_>) -> Result<Box<dyn Delegate>> {
        let payload = Payload::of(part.program, part.delegate);
        let payload = payload.map_err(|error| Error::new(format!("the model: {error}")))?;
        let interface = payload.interface();
        let interface = interface.map_err(|error| Error::new(format!("the model: {error}")))?;
        let engine = self.engine(part, &payload)?;
        let function = payload.function().unwrap_or(engine.default_function());
        let session = engine.session(function);
        let session = session.map_err(|error| Error::new(format!("the model: {error}")))?;
        // Names that stand twice are one input or output, as in ExecuTorch.
        let once = |names: &[String]| -> Vec<String> {
            let mut seen = Vec::new();
            for name in names {
                if !seen.contains(name) {
                    seen.push(name.clone());
                }
            }
            seen
        };
        let (inputs, outputs) = (once(&interface.inputs), once(&interface.outputs));
        for (names, ports) in [(&inputs, session.inputs()), (&outputs, session.outputs())] {
            for name in names {
                ensure!(
                    ports.iter().any(|port| port.name == *name),
                    "the model's function `{function}` has no `{name}`; it has {}",
                    ports
                        .iter()
                        .map(|port| format!("`{}`", port.name))
                        .collect::<Vec<_>>()
                        .join(", ")
                );
            }
        }
        Ok(Box::new(HostDelegate { session, inputs, outputs }))
    }
}

impl HostBackend {
    /// The model, loaded if no other part has done so.
    fn engine(&self, part: &DelegatedPart<'_>, payload: &Payload) -> Result<Engine> {
        let source = match &payload.reference {
            Some(reference) => Source::Named(reference.key.clone()),
            None => Source::Data(part.delegate.data),
        };
        let mut engines = self.engines.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(engine) = engines.get(&source) {
            return Ok(engine.clone());
        }
        let wrong = |error: &dyn std::fmt::Display| Error::new(format!("the model: {error}"));
        let (is_compiled, files) = payload.model().map_err(|error| wrong(&error))?;
        let model = match is_compiled {
            true => compiled::from_tree(files),
            false => package::from_tree(files),
        };
        let model = model.map_err(|error| wrong(&error))?;
        let verified = verify(&model).map_err(|error| wrong(&error))?;
        let mut options = LoadOptions { threads: part.threads, ..LoadOptions::default() };
        if part.faithful {
            options.precision = Precision::Faithful;
        }
        options.limits.operations = part.limits.instructions;
        let engine = Engine::load(&verified, &options).map_err(|error| wrong(&error))?;
        engines.insert(source, engine.clone());
        Ok(engine)
    }
}

impl Delegate for HostDelegate {
    fn inputs(&self) -> usize {
        self.inputs.len()
    }

    fn execute(&mut self, inputs: &[View<'_>], outputs: &mut [Out<'_>]) -> Result<()> {
        self.execute_with(inputs, outputs, &mut Hooks::default())
    }

    fn execute_with(
        &mut self,
        inputs: &[View<'_>],
        outputs: &mut [Out<'_>],
        hooks: &mut Hooks<'_>,
    ) -> Result<()> {
        ensure!(
            inputs.len() == self.inputs.len() && outputs.len() == self.outputs.len(),
            "{} inputs and {} outputs are given; the model has {} and {}",
            inputs.len(),
            outputs.len(),
            self.inputs.len(),
            self.outputs.len()
        );
        let mut arrays = Vec::with_capacity(inputs.len());
        for (name, view) in self.inputs.iter().zip(inputs) {
            let port = self.session.inputs().iter().find(|port| port.name == *name);
            let Some(port) = port else { fail!("the model has no input `{name}`") };
            let array = to_array(view, port);
            arrays.push((
                name.as_str(),
                array.map_err(|error| Error::new(format!("input `{name}`: {error}")))?,
            ));
        }
        if let Some(observe) = &mut hooks.observe {
            for (name, array) in &arrays {
                observe(INPUT, name, &Value::Array(array.clone()));
            }
        }
        let mut spans = hooks.profile.is_some().then(Vec::new);
        let mut inner =
            coremill_engine::Hooks { profile: spans.as_mut(), ..coremill_engine::Hooks::default() };
        if let Some(observe) = &mut hooks.observe {
            inner.observe = Some(&mut **observe);
        }
        let results = self.session.run_with(&arrays, &mut inner);
        if let (Some(spans), Some(profile)) = (spans, &mut hooks.profile) {
            profile.extend(spans.into_iter().map(Span::from));
        }
        let results = results.map_err(|error| Error::new(format!("the model: {error}")))?;
        for (name, out) in self.outputs.iter().zip(outputs) {
            let Some(array) = results.array(name) else {
                fail!("the model's output `{name}` is no tensor");
            };
            write(array, out).map_err(|error| Error::new(format!("output `{name}`: {error}")))?;
        }
        Ok(())
    }

    fn states(&self) -> Result<Vec<(String, Tensor)>> {
        let mut states = Vec::new();
        for port in self.session.states() {
            let array = self.session.state(&port.name);
            let tensor = array.and_then(|array| {
                let bytes = Buffer::from(array.to_bytes()?);
                Tensor::new(ScalarType::of(array.dtype())?, array.shape().to_vec(), bytes).ok()
            });
            let Some(tensor) = tensor else { fail!("the state `{}` holds no numbers", port.name) };
            states.push((port.name.clone(), tensor));
        }
        Ok(states)
    }

    fn set_state(&mut self, name: &str, value: &Tensor) -> Result<()> {
        let dtype = value.scalar_type().dtype();
        let bytes = value.contiguous_bytes();
        let array = dtype.and_then(|dtype| Array::from_bytes(dtype, value.sizes(), &bytes));
        let Some(array) = array else {
            fail!("the state `{name}` cannot hold elements of `{:?}`", value.scalar_type())
        };
        self.session.set_state(name, array).map_err(|error| Error::new(error.to_string()))
    }
}

/// An input as the model takes it: converted as ExecuTorch's delegate does, which cuts off what does not fit.
fn to_array(view: &View, port: &Port) -> Result<Array> {
    let Some(ty) = port.ty.as_tensor() else {
        fail!("the model takes a `{}`; accepted are tensors", port.ty);
    };
    Compute::of(view.dtype)?;
    // Core ML has no scalars at its edge.
    let shape = match view.sizes {
        [] if ty.rank() == 1 => vec![1],
        sizes => sizes.to_vec(),
    };
    let dtype = ty.dtype;
    if dtype.is_float() {
        let mut numbers = view.contiguous::<f32>();
        if dtype == DType::Fp16 {
            numbers.iter_mut().for_each(|number| *number = f16::from_f32(*number).to_f32());
        }
        return Ok(Array::floats(DType::Fp32, shape, numbers));
    }
    let numbers = view.contiguous::<i64>();
    let cut = |number: i64| match dtype {
        DType::Bool => i32::from(number != 0),
        DType::Int8 => i32::from(number as i8),
        DType::UInt8 => i32::from(number as u8),
        DType::Int16 => i32::from(number as i16),
        DType::UInt16 => i32::from(number as u16),
        _ => number as i32,
    };
    ensure!(dtype.is_integer() || dtype == DType::Bool, "the model takes a `{}`", port.ty);
    Ok(Array::ints(dtype, shape, numbers.into_iter().map(cut).collect()))
}

/// An output as the program takes it.
fn write(array: &Array, out: &mut Out) -> Result<()> {
    Compute::of(out.dtype)?;
    match (array.shape(), out.sizes.is_empty()) {
        ([1], true) => out.resize(&[])?,
        (shape, _) => out.resize(shape)?,
    }
    match array.elements() {
        Elements::Floats(floats) => out.put_contiguous(floats.as_slice()),
        Elements::Ints(ints) => {
            let numbers: Vec<i64> = ints.iter().map(|int| i64::from(*int)).collect();
            out.put_contiguous(&numbers);
        }
        Elements::Texts(_) => fail!("the model gives text; accepted are numbers"),
    }
    Ok(())
}
