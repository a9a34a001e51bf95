//! Devices, and models that are ready to run on them.

use std::collections::HashMap;
use std::path::Path;

use coremill_engine::{Array, Engine, LoadOptions, Outputs, Port};
use coremill_mil::model::Model;
use coremill_mil::verify::{RenderOptions, verify};
use coremill_mil::{compiled, package};

use crate::array::{Element, Input};
use crate::compile::{CompileOptions, check_shape, compile};
use crate::device::Device;
use crate::error::{Error, ErrorKind, Result, fail};
use crate::graph::{Graph, Inner};
use crate::params::{Param, Params};

/// What floats are computed in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Precision {
    /// 16 bits, which the Neural Engine needs.
    #[default]
    Fp16,
    /// 32 bits.
    Fp32,
}

/// A device and how models are made for it.
#[derive(Clone, Debug, Default)]
pub struct Session {
    device: Device,
    options: CompileOptions,
    threads: usize,
}

impl Session {
    /// Models that are compiled or loaded run on this device.
    pub fn new(device: Device) -> Session {
        Session { device, ..Session::default() }
    }

    /// The same with another precision; `fp16` is the default.
    pub fn precision(mut self, precision: Precision) -> Session {
        self.options.precision = precision;
        self
    }

    /// The same with other options of the compiler.
    pub fn options(mut self, options: CompileOptions) -> Session {
        self.options = options;
        self
    }

    /// The same with so many threads on the host; 0 stands for one for each processor.
    pub fn threads(mut self, threads: usize) -> Session {
        self.threads = threads;
        self
    }

    /// Compiles a graph. Mistakes that were made as it was built are reported here, all together.
    pub fn compile(&self, graph: &Graph) -> Result<Executable> {
        self.compile_all(&[graph])
    }

    /// Compiles several graphs as the functions of one model; parameters of the same name are shared.
    pub fn compile_all(&self, graphs: &[&Graph]) -> Result<Executable> {
        self.device.check()?;
        let functions: Vec<Inner> =
            graphs.iter().map(|graph| graph.finished()).collect::<Result<_>>()?;
        if functions.is_empty() {
            fail!(Graph, "there is no graph to compile");
        }
        let source = Source { functions, params: Params::new() };
        Ok(Executable { session: self.clone(), source: Some(source), model: None, loaded: None })
    }

    /// Takes a model that was opened or converted.
    pub fn load(&self, model: Model) -> Result<Executable> {
        self.device.check()?;
        let mut executable =
            Executable { session: self.clone(), source: None, model: Some(model), loaded: None };
        executable.prepare()?;
        Ok(executable)
    }
}

/// A model for a device: its parameters are set by name, then its functions run.
///
/// What is compiled is kept. Setting a parameter again compiles anew before the next run.
pub struct Executable {
    session: Session,
    source: Option<Source>,
    model: Option<Model>,
    loaded: Option<Loaded>,
}

struct Source {
    functions: Vec<Inner>,
    params: Params,
}

struct Loaded {
    engine: Engine,
    sessions: HashMap<String, coremill_engine::Session>,
    /// The function that ran last, which holds the latest states.
    latest: Option<String>,
}

impl Executable {
    /// Sets a parameter to floats in row-major order.
    pub fn set_param<T: Element>(&mut self, name: &str, elements: impl AsRef<[T]>) -> Result<()> {
        let shape = self.param_shape(name)?;
        let elements = elements.as_ref();
        let takes: u64 = shape.iter().product();
        if takes != elements.len() as u64 {
            let count = elements.len();
            fail!(
                Parameter,
                "parameter `{name}` has shape {shape:?}, which takes {takes} elements; found {count}"
            );
        }
        let shape = shape.iter().map(|&extent| extent as usize).collect();
        let array = T::array(shape, elements, name)?;
        self.set(name, Param::try_from(&array)?)
    }

    /// The shape that a parameter is declared with.
    pub fn param_shape(&self, name: &str) -> Result<Vec<u64>> {
        match &self.source {
            Some(source) => Ok(source.slot(name)?.shape.clone()),
            None => Err(no_params()),
        }
    }

    /// Sets a parameter to a tensor of any stored form.
    pub fn set(&mut self, name: &str, param: Param) -> Result<()> {
        let Some(source) = &mut self.source else { return Err(no_params()) };
        for function in &source.functions {
            if let Some(slot) = function.params.iter().find(|slot| slot.name == name) {
                check_shape(slot, &param)?;
            }
        }
        source.slot(name)?;
        source.params.set(name, param);
        (self.model, self.loaded) = (None, None);
        Ok(())
    }

    /// Sets every parameter that the tensors have one for, and gives how many that are. Tensors of other
    /// names are left aside.
    pub fn set_params(&mut self, params: &Params) -> Result<usize> {
        let Some(source) = &self.source else { return Err(no_params()) };
        let known: Vec<_> = params
            .iter()
            .filter(|(name, _)| source.slot(name).is_ok())
            .map(|(name, param)| (name.to_owned(), param.clone()))
            .collect();
        for (name, param) in &known {
            self.set(name, param.clone())?;
        }
        Ok(known.len())
    }

    /// Takes the parameters out of a file of weights, by name, and gives how many there are.
    pub fn load_params(&mut self, path: impl AsRef<Path>) -> Result<usize> {
        let mut params = Params::new();
        params.load(path)?;
        self.set_params(&params)
    }

    /// Compiles and loads now what the first run would.
    pub fn prepare(&mut self) -> Result<()> {
        self.loaded().map(|_| ())
    }

    /// The model as it is compiled.
    pub fn model(&mut self) -> Result<&Model> {
        if self.model.is_none() {
            let Some(source) = &self.source else {
                fail!(Graph, "there is nothing to compile");
            };
            self.model = Some(compile(&source.functions, &source.params, &self.session.options)?);
        }
        Ok(self.model.as_ref().expect("it was made above"))
    }

    /// Writes the model as the path's extension says: `.mlpackage` or `.mlmodelc`.
    pub fn save(&mut self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        let extension = path.extension().and_then(|extension| extension.to_str());
        let verified = verified(self.model()?)?;
        let written = match extension {
            Some("mlpackage") => package::write(path, &verified, &package::WriteOptions::default()),
            Some("mlmodelc") => {
                compiled::write(path, &verified, &compiled::WriteOptions::default())
            }
            _ => {
                let message = format!("{} has no extension that says its form", path.display());
                let error = Error::new(ErrorKind::File, message);
                return Err(error.hint("end it in `.mlpackage` or `.mlmodelc`"));
            }
        };
        written.map_err(|error| {
            Error::new(ErrorKind::File, format!("{}: {error}", path.display())).caused_by(error)
        })
    }

    /// What a function takes, states aside.
    pub fn inputs(&mut self, function: &str) -> Result<Vec<Port>> {
        Ok(self.loaded()?.session(function)?.inputs().to_vec())
    }

    /// What a function gives.
    pub fn outputs(&mut self, function: &str) -> Result<Vec<Port>> {
        Ok(self.loaded()?.session(function)?.outputs().to_vec())
    }

    /// The function that runs where none is named.
    pub fn default_function(&mut self) -> Result<String> {
        Ok(self.loaded()?.engine.default_function().to_owned())
    }

    /// Runs the model's default function on inputs by name.
    pub fn run(&mut self, inputs: &[(&str, &dyn Input)]) -> Result<Outputs> {
        let function = self.default_function()?;
        self.run_function(&function, inputs)
    }

    /// Runs a function on inputs by name. States of the same name are shared by all functions.
    pub fn run_function(
        &mut self,
        function: &str,
        inputs: &[(&str, &dyn Input)],
    ) -> Result<Outputs> {
        let loaded = self.loaded()?;
        let session = loaded.session(function)?;
        let mut arrays = Vec::with_capacity(inputs.len());
        for (name, input) in inputs {
            let Some(port) = session.inputs().iter().find(|port| port.name == *name) else {
                let names: Vec<_> =
                    session.inputs().iter().map(|port| format!("`{}`", port.name)).collect();
                fail!(Input, "there is no input `{name}`; there are {}", names.join(", "));
            };
            arrays.push((*name, input.array(port)?));
        }
        Ok(session.run(&arrays)?)
    }

    /// Runs the model's default function and copies what it gives into slices by name.
    pub fn run_into(
        &mut self,
        inputs: &[(&str, &dyn Input)],
        outputs: &mut [(&str, &mut [f32])],
    ) -> Result<()> {
        let given = self.run(inputs)?;
        for (name, target) in outputs {
            let Some(floats) = given.floats(name) else {
                let names: Vec<_> = given.0.iter().map(|(name, _)| format!("`{name}`")).collect();
                fail!(
                    Input,
                    "there is no output `{name}` of floats; there are {}",
                    names.join(", ")
                );
            };
            if floats.len() != target.len() {
                let (found, room) = (floats.len(), target.len());
                fail!(Input, "output `{name}` has {found} elements; there is room for {room}");
            }
            target.copy_from_slice(floats);
        }
        Ok(())
    }

    /// What a state holds.
    pub fn state(&mut self, name: &str) -> Result<Array> {
        let function = self.latest()?;
        let session = self.loaded()?.session(&function)?;
        match session.state(name) {
            Some(array) => Ok(array.clone()),
            None => {
                let names: Vec<_> =
                    session.states().iter().map(|state| format!("`{}`", state.name)).collect();
                let names = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
                fail!(Input, "there is no state `{name}`; there are {names}")
            }
        }
    }

    /// Sets what a state holds.
    pub fn set_state(&mut self, name: &str, content: &dyn Input) -> Result<()> {
        let function = self.latest()?;
        let session = self.loaded()?.session(&function)?;
        let port = session.states().iter().find(|state| state.name == name).cloned();
        let array = match port {
            Some(port) => content.array(&port)?,
            None => fail!(Input, "there is no state `{name}`"),
        };
        Ok(session.set_state(name, array)?)
    }

    /// Sets all states to zero.
    pub fn reset(&mut self) -> Result<()> {
        if let Some(loaded) = &mut self.loaded {
            for session in loaded.sessions.values_mut() {
                session.reset()?;
            }
        }
        Ok(())
    }

    fn latest(&mut self) -> Result<String> {
        let loaded = self.loaded()?;
        Ok(loaded.latest.clone().unwrap_or_else(|| loaded.engine.default_function().to_owned()))
    }

    fn loaded(&mut self) -> Result<&mut Loaded> {
        if self.loaded.is_none() {
            let threads = self.session.threads;
            let verified = verified(self.model()?)?;
            let options = LoadOptions { threads, ..LoadOptions::default() };
            let engine = Engine::load(&verified, &options)?;
            self.loaded = Some(Loaded { engine, sessions: HashMap::new(), latest: None });
        }
        Ok(self.loaded.as_mut().expect("it was made above"))
    }
}

impl Loaded {
    /// The session of a function, with the states that ran last.
    fn session(&mut self, function: &str) -> Result<&mut coremill_engine::Session> {
        if !self.sessions.contains_key(function) {
            let session = self.engine.session(function)?;
            self.sessions.insert(function.to_owned(), session);
        }
        if let Some(latest) = self.latest.take_if(|latest| latest != function) {
            let before = &self.sessions[&latest];
            let states: Vec<_> = before.states().iter().map(|port| port.name.clone()).collect();
            let held: Vec<_> = states
                .iter()
                .filter_map(|name| Some((name.clone(), before.state(name)?.clone())))
                .collect();
            let next = self.sessions.get_mut(function).expect("it was made above");
            for (name, array) in held {
                if next.states().iter().any(|port| port.name == name) {
                    next.set_state(&name, array)?;
                }
            }
        }
        if self.latest.as_deref() != Some(function) {
            self.latest = Some(function.to_owned());
        }
        Ok(self.sessions.get_mut(function).expect("it was made above"))
    }
}

impl Source {
    fn slot(&self, name: &str) -> Result<&crate::graph::ParamSlot> {
        let slots = || self.functions.iter().flat_map(|function| &function.params);
        match slots().find(|slot| slot.name == name) {
            Some(slot) => Ok(slot),
            None => {
                let names: Vec<_> =
                    slots().take(8).map(|slot| format!("`{}`", slot.name)).collect();
                let names = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
                let more = if slots().count() > 8 { ", ..." } else { "" };
                fail!(Parameter, "there is no parameter `{name}`; there are {names}{more}")
            }
        }
    }
}

fn no_params() -> Error {
    Error::new(ErrorKind::Parameter, "the weights of a model that was opened are fixed")
        .hint("set parameters of models that are compiled from graphs")
}

fn verified(model: &Model) -> Result<coremill_mil::verify::Verified<'_>> {
    verify(model).map_err(|report| {
        let rendered = report.render(&model.program, &RenderOptions::default());
        Error::new(ErrorKind::Graph, format!("Core ML would refuse the model:\n{rendered}"))
    })
}
