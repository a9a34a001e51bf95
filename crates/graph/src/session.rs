//! Devices, and models that are ready to run on them.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use coremill_coreml::Plan;
use coremill_engine::{Array, ElementsView, Engine, FeatureSpec, Outputs};
use coremill_io::unknown_name;
use coremill_mil::ir::{Constant, Definition, Type, ValueId};
use coremill_mil::model::Model;
use coremill_mil::verify::{RenderOptions, Verified, verify};
use coremill_mlpackage::{compiled, package};
use coremill_session::{
    Device, Element, EngineExecutable, FileKind, Input, RunOptions, SaveOptions,
};

use crate::compile::{CompileOptions, Precision, check_shape, compile};
use crate::error::{Error, ErrorKind, Result, fail};
use crate::functions::Functions;
use crate::graph::{Graph, Inner};
use crate::params::{Param, Params};
use crate::places::{Change, ParamBindings};

/// A device and how models are made for it.
#[derive(Clone, Debug, Default)]
pub struct Session {
    device: Device,
    options: CompileOptions,
    threads: usize,
    cache: Option<PathBuf>,
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

    /// The same with another directory for what Core ML compiles; without one, `COREMILL_CACHE` or the system's
    /// directory for caches has it. A model that was compiled before is found there by its content.
    pub fn cache(mut self, directory: impl Into<PathBuf>) -> Session {
        self.cache = Some(directory.into());
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
            fail!(Graph, "expected at least one graph to compile");
        }
        check_shared(&functions)?;
        let (params, places) = Default::default();
        let source = Form::Graphs(Source { functions, params, places });
        let (model, loaded, before) = (None, None, None);
        Ok(Executable { session: self.clone(), form: source, model, loaded, before })
    }

    /// Takes a model that was opened or converted.
    pub fn load(&self, model: Model) -> Result<Executable> {
        self.device.check()?;
        let (session, model) = (self.clone(), Some(model));
        let (loaded, before) = (None, None);
        let mut executable = Executable { session, form: Form::Model, model, loaded, before };
        executable.loaded()?;
        Ok(executable)
    }

    /// Takes an ExecuTorch program. Its methods are the functions. Inputs and outputs have the names that its Core ML
    /// delegates have for them, the others are `input_0`, `output_0` and so on, in order; these are accepted for any. The
    /// program's delegates run on the device. Each method has states of its own.
    pub fn load_program(&self, program: coremill_pte::Program) -> Result<Executable> {
        let program = coremill_session::load_program(program, &self.run_options())?;
        let loaded = Some(Functions::of_program(program));
        let (model, before) = (None, None);
        Ok(Executable { session: self.clone(), form: Form::Program, model, loaded, before })
    }

    /// Opens a package, a compiled model, or an ExecuTorch program, by its content.
    pub fn open(&self, path: impl AsRef<Path>) -> Result<Executable> {
        fn fault<E: std::error::Error + Send + Sync + 'static>(path: &Path, error: E) -> Error {
            let message = format!("{}: {error}", path.display());
            Error::new(ErrorKind::File, message).with_source(error)
        }
        let path = path.as_ref();
        match FileKind::detect(path)? {
            FileKind::Package => {
                self.load(package::read(path).map_err(|error| fault(path, error))?)
            }
            FileKind::CompiledModel => {
                self.load(compiled::read(path).map_err(|error| fault(path, error))?)
            }
            FileKind::ExecuTorchProgram => {
                self.load_program(coremill_pte::read(path).map_err(|error| fault(path, error))?)
            }
            _ => {
                let message =
                    format!("{} is not a package, a compiled model or a program", path.display());
                let error = Error::new(ErrorKind::File, message);
                Err(error.with_hint("name a `.mlpackage`, a `.mlmodelc` or a `.pte`"))
            }
        }
    }

    fn run_options(&self) -> RunOptions {
        let Session { device, threads, cache, .. } = self.clone();
        RunOptions { device, threads, cache, ..RunOptions::default() }
    }
}

/// A model for a device: its parameters are set by name, then its functions run.
///
/// What is compiled is kept. On the host a parameter that is set again takes the place of the other at once: what was made
/// of it, packed weights for instance, is made again, nothing else is. Where the compiler looked at its elements, to fold a
/// norm into the convolution before it for instance, the next run compiles the graph anew. Core ML's devices compile the
/// model again. States stay as they are.
pub struct Executable {
    session: Session,
    form: Form,
    model: Option<Model>,
    loaded: Option<Functions>,
    /// What was loaded before a parameter was set.
    before: Option<Functions>,
}

/// What a model comes from.
enum Form {
    /// Graphs, which are compiled when all parameters are set.
    Graphs(Source),
    /// A model, which is there.
    Model,
    /// A program, whose methods are loaded.
    Program,
}

struct Source {
    functions: Vec<Inner>,
    params: Params,
    /// Where they are in the model, once it is compiled.
    places: ParamBindings,
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
        let floats = T::lying(elements).map(|lying| lying.elements);
        let param = match floats {
            Some(ElementsView::Floats(floats)) => Param::floats(shape, floats)?,
            _ => {
                let shape = shape.iter().map(|&extent| extent as usize).collect();
                Param::try_from(&T::array(shape, elements, name)?)?
            }
        };
        self.set(name, param)
    }

    /// The shape that a parameter is declared with.
    pub fn param_shape(&self, name: &str) -> Result<Vec<u64>> {
        match &self.form {
            Form::Graphs(source) => Ok(source.slot(name)?.shape.clone()),
            _ => Err(no_params()),
        }
    }

    /// Sets a parameter to a tensor of any stored form.
    pub fn set(&mut self, name: &str, param: Param) -> Result<()> {
        let Form::Graphs(source) = &mut self.form else { return Err(no_params()) };
        for function in &source.functions {
            if let Some(slot) = function.params.iter().find(|slot| slot.name == name) {
                check_shape(slot, &param)?;
            }
        }
        source.slot(name)?;
        let before = source.params.get(name).cloned();
        source.params.set(name, param.clone());
        if before.is_some_and(|before| self.change(name, &before, &param).is_some()) {
            return Ok(());
        }
        self.model = None;
        self.before = self.loaded.take().or(self.before.take());
        Ok(())
    }

    /// Puts a parameter in another's place in what is loaded; none if the model is to be made anew.
    fn change(&mut self, name: &str, before: &Param, now: &Param) -> Option<()> {
        let Form::Graphs(source) = &mut self.form else { return None };
        let (model, loaded) = (self.model.as_mut()?, self.loaded.as_mut()?);
        let changes = source.places.change(name, before, now)?;
        let functions = &mut model.program.functions;
        let named = |(function, value, constant): &Change| {
            (functions[*function].name.clone(), *value, constant.clone())
        };
        if !update_constants(loaded.engine()?, changes.iter().map(named)) {
            return None;
        }
        for (function, value, constant) in changes {
            let function = &mut functions[function];
            if let Definition::Output(op, _) = function.value(value).definition {
                function.op_mut(op).attributes.insert("val", constant);
            }
        }
        Some(())
    }

    /// Sets every parameter that the tensors have one for, and gives how many that are. Tensors of other
    /// names are left aside.
    pub fn set_params(&mut self, params: &Params) -> Result<usize> {
        let Form::Graphs(source) = &self.form else { return Err(no_params()) };
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

    /// Does now what the first runs would: the model is compiled and loaded. On the host functions whose inputs have fixed
    /// shapes are planned, too, and their weights packed, which a model that runs once is better off without.
    pub fn prepare(&mut self) -> Result<()> {
        self.loaded()?.prepare()
    }

    /// The model as it is compiled.
    pub fn model(&mut self) -> Result<&Model> {
        if self.model.is_none() {
            let Form::Graphs(source) = &mut self.form else {
                let error = Error::new(ErrorKind::Graph, "a program holds models, and is none");
                return Err(error.with_hint("extract the models first"));
            };
            let (model, places) =
                compile(&source.functions, &source.params, &self.session.options)?;
            (self.model, source.places) = (Some(model), places);
        }
        Ok(self.model.as_ref().expect("it was made above"))
    }

    /// Writes the model as the path's extension says: `.mlpackage` or `.mlmodelc`.
    pub fn save(&mut self, path: impl AsRef<Path>) -> Result<()> {
        let verified = verified(self.model()?)?;
        Ok(coremill_session::save(path.as_ref(), &verified, &SaveOptions::default())?)
    }

    /// The functions; of a program, the methods.
    pub fn functions(&mut self) -> Result<Vec<String>> {
        Ok(self.loaded()?.executable().functions())
    }

    /// What a function takes, states aside.
    pub fn inputs(&mut self, function: &str) -> Result<Vec<FeatureSpec>> {
        Ok(self.loaded()?.signature(function)?.inputs)
    }

    /// What a function gives.
    pub fn outputs(&mut self, function: &str) -> Result<Vec<FeatureSpec>> {
        Ok(self.loaded()?.signature(function)?.outputs)
    }

    /// What a function keeps from run to run.
    pub fn states(&mut self, function: &str) -> Result<Vec<FeatureSpec>> {
        Ok(self.loaded()?.signature(function)?.states)
    }

    /// The function that runs where none is named.
    pub fn default_function(&mut self) -> Result<String> {
        Ok(self.loaded()?.executable().default_function()?.to_owned())
    }

    /// On which devices Core ML means to run each operation, and its share of the cost; the host has no such plan.
    pub fn compute_plan(&mut self) -> Result<Plan> {
        Ok(self.loaded()?.executable().compute_plan()?)
    }

    /// Runs the model's default function on inputs by name.
    pub fn run(&mut self, inputs: &[(&str, &dyn Input)]) -> Result<Outputs> {
        self.loaded()?.run(None, inputs)
    }

    /// Runs a function on inputs by name. States of the same name are shared by all functions.
    pub fn run_function(
        &mut self,
        function: &str,
        inputs: &[(&str, &dyn Input)],
    ) -> Result<Outputs> {
        self.loaded()?.run(Some(function), inputs)
    }

    /// Runs the model's default function, which writes outputs of floats to slices by name. Slices of `f32` and `i32` are
    /// read where they lie, and `fp32` outputs written where they belong; others are converted.
    pub fn run_into(
        &mut self,
        inputs: &[(&str, &dyn Input)],
        outputs: &mut [(&str, &mut [f32])],
    ) -> Result<()> {
        self.loaded()?.run_into(None, inputs, outputs)
    }

    /// The same for a function by name.
    pub fn run_function_into(
        &mut self,
        function: &str,
        inputs: &[(&str, &dyn Input)],
        outputs: &mut [(&str, &mut [f32])],
    ) -> Result<()> {
        self.loaded()?.run_into(Some(function), inputs, outputs)
    }

    /// What a state holds.
    pub fn state(&mut self, name: &str) -> Result<Array> {
        self.loaded()?.state(name)
    }

    /// Sets what a state holds.
    pub fn set_state(&mut self, name: &str, content: &dyn Input) -> Result<()> {
        self.loaded()?.set_state(name, content)
    }

    /// Sets all states back to what they were at first.
    pub fn reset(&mut self) -> Result<()> {
        self.loaded.as_mut().map_or(Ok(()), |loaded| loaded.reset())
    }

    fn loaded(&mut self) -> Result<&mut Functions> {
        if self.loaded.is_none() {
            self.model()?;
            let (options, before) = (self.session.run_options(), self.before.take());
            let verified = verified(self.model()?)?;
            self.loaded = Some(load(&verified, &options, before)?);
        }
        Ok(self.loaded.as_mut().expect("it was made above"))
    }
}

/// Loads a model. On the host, a model that differs from the one before in constants alone goes on with these; one that
/// differs more takes over what depends on the same constants, and the states.
fn load(
    verified: &Verified<'_>,
    options: &RunOptions,
    mut before: Option<Functions>,
) -> Result<Functions> {
    let adopts = |before: &mut Functions| {
        before.engine().is_some_and(|it| it.update_constants_from(verified))
    };
    if let Some(before) = before.take_if(adopts) {
        return Ok(before);
    }
    if options.device != Device::Host {
        return Functions::of_model(coremill_session::load(verified, options)?, None);
    }
    let theirs = before.as_ref().and_then(Functions::engine);
    let engine = Engine::load_sharing_weights(verified, &options.engine(), theirs)?;
    Functions::of_model(Arc::new(EngineExecutable::from(engine)), before)
}

/// Replaces constants of functions by others of the same types. Returns whether all could be.
fn update_constants(
    engine: &Engine,
    changes: impl Iterator<Item = (String, ValueId, Constant)>,
) -> bool {
    let mut functions: BTreeMap<String, Vec<_>> = BTreeMap::new();
    for (function, value, constant) in changes {
        functions.entry(function).or_default().push((value, constant));
    }
    functions.into_iter().all(|(function, constants)| engine.update_constants(&function, constants))
}

impl Source {
    fn slot(&self, name: &str) -> Result<&crate::graph::ParamSlot> {
        let slots = || self.functions.iter().flat_map(|function| &function.params);
        match slots().find(|slot| slot.name == name) {
            Some(slot) => Ok(slot),
            None => {
                let message = unknown_name("parameter", name, slots().map(|slot| &slot.name));
                let error = Error::new(ErrorKind::Parameter, message);
                Err(error
                    .with_hint("`Graph::params` lists the names, which scopes and layers make"))
            }
        }
    }
}

/// Refuses functions of the same name, and parameters and states that have the same name and different shapes.
fn check_shared(functions: &[Inner]) -> Result<()> {
    let mut seen: HashMap<(&str, String), (String, &str)> = HashMap::new();
    for function in functions {
        let (own, function_name) =
            (&function.builder.function, function.builder.function.name.as_str());
        let params = function.params.iter();
        let params =
            params.map(|slot| ("parameter", slot.name.clone(), format!("{:?}", slot.shape)));
        let states = own.inputs().iter().filter_map(|&id| match &own.value(id).ty {
            Type::State(held) => Some(("state", own.value(id).name.clone(), held.to_string())),
            _ => None,
        });
        let all = [("function", function_name.to_owned(), String::new())];
        for (what, name, shape) in all.into_iter().chain(params).chain(states) {
            let Some((before, owner)) = seen.get(&(what, name.clone())) else {
                seen.insert((what, name), (shape, function_name));
                continue;
            };
            if what == "function" {
                let error =
                    Error::new(ErrorKind::Graph, format!("two functions are named `{name}`"));
                return Err(error.with_hint("name them with `Graph::named`"));
            }
            if *before != shape {
                let message = format!(
                    "{what} `{name}` is {before} in function `{owner}` and {shape} in `{function_name}`"
                );
                let error = Error::new(ErrorKind::Graph, message);
                return Err(
                    error.with_hint("functions share what has the same name: rename one of them")
                );
            }
        }
    }
    Ok(())
}

fn no_params() -> Error {
    Error::new(ErrorKind::Parameter, "the weights of a model that was opened are fixed")
        .with_hint("set parameters of models that are compiled from graphs")
}

fn verified(model: &Model) -> Result<Verified<'_>> {
    verify(model).map_err(|report| {
        let rendered = report.render(&model.program, &RenderOptions::default());
        Error::new(ErrorKind::Graph, format!("Core ML would refuse the model:\n{rendered}"))
    })
}
