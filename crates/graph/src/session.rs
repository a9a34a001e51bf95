//! Devices, and executable models.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use coremill_coreml::Plan;
use coremill_delegate::ProgramOptions;
use coremill_engine::{Array, ElementsView, Engine, FeatureSpec, Numerics, Outputs};
use coremill_io::unknown_name;
use coremill_mil::ir::{Constant, Definition, Type, ValueId};
use coremill_mil::model::Model;
use coremill_mlpackage::{compiled, package};
use coremill_session::{
    Device, Element, EngineExecutable, FileKind, Input, RunOptions, SaveOptions,
};
use coremill_verify::{RenderOptions, Verified, verify};

use crate::compile::{CompileOptions, Precision, check_shape, compile};
use crate::error::{Error, ErrorKind, Result, fail};
use crate::functions::Functions;
use crate::graph::{Graph, Inner};
use crate::params::{Param, Params};
use crate::places::{Change, ParamBindings};

/// A device and the options for compiling models for it.
#[derive(Clone, Debug, Default)]
pub struct Session {
    device: Device,
    options: CompileOptions,
    threads: usize,
    numerics: Numerics,
    cache: Option<PathBuf>,
}

impl Session {
    /// Returns a session for models on this device.
    pub fn new(device: Device) -> Session {
        Session { device, ..Session::default() }
    }

    /// Sets the precision; the default is `fp16`.
    pub fn precision(mut self, precision: Precision) -> Session {
        self.options.precision = precision;
        self
    }

    /// Sets the options of the compiler.
    pub fn options(mut self, options: CompileOptions) -> Session {
        self.options = options;
        self
    }

    /// Sets the number of threads on the host; 0 is one for each processor.
    pub fn threads(mut self, threads: usize) -> Session {
        self.threads = threads;
        self
    }

    /// Sets the arithmetic of the host's engine.
    pub fn numerics(mut self, numerics: Numerics) -> Session {
        self.numerics = numerics;
        self
    }

    /// Sets the cache directory for models compiled by Core ML. The default is `COREMILL_CACHE` or the
    /// system's cache directory. The cache finds an earlier compiled model by its contents.
    pub fn cache(mut self, directory: impl Into<PathBuf>) -> Session {
        self.cache = Some(directory.into());
        self
    }

    /// Compiles a graph. Errors made while the graph was built are reported together.
    pub fn compile(&self, graph: &Graph) -> Result<Executable> {
        self.compile_all(&[graph])
    }

    /// Compiles several graphs to the functions of one model. Functions share parameters with the same name.
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

    /// Loads a model that was opened or converted.
    pub fn load(&self, model: Model) -> Result<Executable> {
        self.device.check()?;
        let (session, model) = (self.clone(), Some(model));
        let (loaded, before) = (None, None);
        let mut executable = Executable { session, form: Form::Model, model, loaded, before };
        executable.loaded()?;
        Ok(executable)
    }

    /// Loads an ExecuTorch program. Its methods are the functions. Inputs and outputs have the names of its
    /// Core ML delegates; the others are `input_0`, `output_0` and so on, by position. The positional names
    /// can be used for all. The delegates run on the device. Each method has its own states.
    pub fn load_program(&self, program: coremill_pte::Program) -> Result<Executable> {
        let program = coremill_session::load_program(program, &self.run_options())?;
        let loaded = Some(Functions::of_program(program));
        let (model, before) = (None, None);
        Ok(Executable { session: self.clone(), form: Form::Program, model, loaded, before })
    }

    /// Opens a package, a compiled model, or an ExecuTorch program, detected by content.
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
                Err(error.with_hint("pass a `.mlpackage`, a `.mlmodelc` or a `.pte`"))
            }
        }
    }

    fn run_options(&self) -> RunOptions {
        let Session { device, threads, numerics, cache, .. } = self.clone();
        RunOptions { device, threads, numerics, cache, ..RunOptions::default() }
    }
}

/// A model on a device. Set its parameters by name, then run its functions.
///
/// The model is compiled once. On the host, setting a parameter again updates the loaded model: only data
/// derived from the parameter, such as packed weights, is computed again. If the compiler used the elements
/// of the parameter, for instance to fold a norm into a convolution, the next run compiles the graph again.
/// Core ML's devices always compile the model again. States are kept.
pub struct Executable {
    session: Session,
    form: Form,
    model: Option<Model>,
    loaded: Option<Functions>,
    /// The loaded model before a parameter was set.
    before: Option<Functions>,
}

/// Source of a model.
enum Form {
    /// Graphs, which are compiled when all parameters are set.
    Graphs(Source),
    /// A finished model.
    Model,
    /// An ExecuTorch program, whose methods are loaded.
    Program,
}

struct Source {
    functions: Vec<Inner>,
    params: Params,
    /// Locations of the parameters in the compiled model.
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
                "parameter `{name}` has shape {shape:?}, which requires {takes} elements, got {count}"
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

    /// The declared shape of a parameter.
    pub fn param_shape(&self, name: &str) -> Result<Vec<u64>> {
        match &self.form {
            Form::Graphs(source) => Ok(source.slot(name)?.shape.clone()),
            _ => Err(no_params()),
        }
    }

    /// Sets a parameter to a tensor in any stored format.
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

    /// Updates a parameter in the loaded model. Returns `None` if the model must be compiled again.
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

    /// Sets every parameter that has a tensor with its name; returns their number. Other tensors are ignored.
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

    /// Loads parameters by name from a file of weights; returns their number.
    pub fn load_params(&mut self, path: impl AsRef<Path>) -> Result<usize> {
        let mut params = Params::new();
        params.load(path)?;
        self.set_params(&params)
    }

    /// Compiles and loads the model now instead of at the first run. On the host, it also plans functions
    /// whose inputs have static shapes and packs their weights, which does not pay off for a single run.
    pub fn prepare(&mut self) -> Result<()> {
        self.loaded()?.prepare()
    }

    /// The compiled model.
    pub fn model(&mut self) -> Result<&Model> {
        if self.model.is_none() {
            let Form::Graphs(source) = &mut self.form else {
                let message = "an ExecuTorch program contains models, but is not a model itself";
                let error = Error::new(ErrorKind::Graph, message);
                return Err(error.with_hint("extract the models first"));
            };
            let (model, places) =
                compile(&source.functions, &source.params, &self.session.options)?;
            (self.model, source.places) = (Some(model), places);
        }
        Ok(self.model.as_ref().expect("it was made above"))
    }

    /// The model as an ExecuTorch program with a method for each function. The method of a single function is `forward`.
    pub fn to_program(&mut self, options: &ProgramOptions) -> Result<coremill_pte::Program> {
        let model = self.model()?;
        verified(model)?;
        coremill_delegate::program(model, options)
            .map_err(|error| Error::from_source(ErrorKind::Options, error))
    }

    /// Writes the model as `.mlpackage`, `.mlmodelc` or `.pte`, depending on the path's extension.
    pub fn save(&mut self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        if path.extension().is_some_and(|extension| extension == "pte") {
            let program = self.to_program(&ProgramOptions::default())?;
            let written = coremill_pte::write(path, &program, &Default::default());
            return written.map_err(|error| Error::from_source(ErrorKind::File, error));
        }
        let verified = verified(self.model()?)?;
        Ok(coremill_session::save(path, &verified, &SaveOptions::default())?)
    }

    /// Names of the functions, or of a program's methods.
    pub fn functions(&mut self) -> Result<Vec<String>> {
        Ok(self.loaded()?.executable().functions())
    }

    /// Inputs of a function, without states.
    pub fn inputs(&mut self, function: &str) -> Result<Vec<FeatureSpec>> {
        Ok(self.loaded()?.signature(function)?.inputs)
    }

    /// Outputs of a function.
    pub fn outputs(&mut self, function: &str) -> Result<Vec<FeatureSpec>> {
        Ok(self.loaded()?.signature(function)?.outputs)
    }

    /// States of a function.
    pub fn states(&mut self, function: &str) -> Result<Vec<FeatureSpec>> {
        Ok(self.loaded()?.signature(function)?.states)
    }

    /// Name of the default function.
    pub fn default_function(&mut self) -> Result<String> {
        Ok(self.loaded()?.executable().default_function()?.to_owned())
    }

    /// The device on which Core ML will run each operation, and the operation's share of the cost. Not
    /// available on the host.
    pub fn compute_plan(&mut self) -> Result<Plan> {
        Ok(self.loaded()?.executable().compute_plan()?)
    }

    /// Runs the default function with inputs by name.
    pub fn run(&mut self, inputs: &[(&str, &dyn Input)]) -> Result<Outputs> {
        self.loaded()?.run(None, inputs)
    }

    /// Runs a function with inputs by name. All functions share states with the same name.
    pub fn run_function(
        &mut self,
        function: &str,
        inputs: &[(&str, &dyn Input)],
    ) -> Result<Outputs> {
        self.loaded()?.run(Some(function), inputs)
    }

    /// Runs the default function and writes float outputs to slices by name. `f32` and `i32` slices are read
    /// without a copy, and `fp32` outputs are written without a copy; other types are converted.
    pub fn run_into(
        &mut self,
        inputs: &[(&str, &dyn Input)],
        outputs: &mut [(&str, &mut [f32])],
    ) -> Result<()> {
        self.loaded()?.run_into(None, inputs, outputs)
    }

    /// Like [`run_into`](Self::run_into), for a function by name.
    pub fn run_function_into(
        &mut self,
        function: &str,
        inputs: &[(&str, &dyn Input)],
        outputs: &mut [(&str, &mut [f32])],
    ) -> Result<()> {
        self.loaded()?.run_into(Some(function), inputs, outputs)
    }

    /// The contents of a state.
    pub fn state(&mut self, name: &str) -> Result<Array> {
        self.loaded()?.state(name)
    }

    /// Sets the contents of a state.
    pub fn set_state(&mut self, name: &str, content: &dyn Input) -> Result<()> {
        self.loaded()?.set_state(name, content)
    }

    /// Resets all states to their initial contents.
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

/// Loads a model. On the host, if only constants differ from the previous model, the loaded model is updated.
/// Otherwise, data that depends on unchanged constants is reused, and states are kept.
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

/// Replaces constants of functions by constants of the same types. Returns whether all could be replaced.
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
                let hint = "`Graph::params` lists the names, which derive from scopes and layers";
                Err(error.with_hint(hint))
            }
        }
    }
}

/// Checks that function names are distinct, and that parameters and states with the same name have the same
/// shape.
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
                return Err(error.with_hint(
                    "functions share parameters and states by name: rename one of them",
                ));
            }
        }
    }
    Ok(())
}

fn no_params() -> Error {
    Error::new(ErrorKind::Parameter, "the weights of an opened model cannot be changed")
        .with_hint("set parameters of models that are compiled from graphs")
}

fn verified(model: &Model) -> Result<Verified<'_>> {
    verify(model).map_err(|report| {
        let rendered = report.render(&model.program, &RenderOptions::default());
        Error::new(ErrorKind::Graph, format!("Core ML would reject the model:\n{rendered}"))
    })
}
