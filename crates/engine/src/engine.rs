use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, Weak};

use coremill_io::unknown_name;
use coremill_kernels::Numerics;
use coremill_kernels::{Arena, Pool};
use coremill_mil::infer::Analysis;
use coremill_mil::ir::{Constant, Definition, Function, Op, OpId, Type, ValueId};
use coremill_mil::model::shapes::FlexibleShapes;
use coremill_mil::model::{FeatureDescription, Model};
use coremill_mil::ops::OpKind;
use coremill_reference::array::Array;
use coremill_reference::error::{Error, Result, fail};
use coremill_reference::ops;
use coremill_simd::Isa;
use coremill_tensor::Files;
use coremill_verify::Verified;

use crate::execute::{Input, Resources, execute};
use crate::feature::FeatureSpec;
use crate::hooks::Hooks;
use crate::options::LoadOptions;
use crate::plan::{CpuContext, FunctionContext, Operand, Plan, PlanKey, plan};
use crate::recycled::RunScratch;
use crate::spare::BufferPool;
use crate::states::StateValue;
use crate::value::Value;

/// Maximum number of plans per function, one for each set of input shapes. The least recently used
/// plan is evicted first.
const MAX_PLANS: usize = 16;

/// A program that is ready to run. Clones share everything, and sessions can run in any number of
/// threads at once.
#[derive(Clone)]
pub struct Engine {
    shared: Arc<EngineInner>,
}

struct EngineInner {
    machine: CpuContext,
    numerics: Numerics,
    functions: Vec<LoadedModel>,
    default_function: String,
}

struct LoadedModel {
    name: String,
    program: RwLock<FunctionInstance>,
    inputs: Vec<FeatureSpec>,
    outputs: Vec<FeatureSpec>,
    states: Vec<FeatureSpec>,
    /// Allowed combinations of input shapes, if the description enumerates them.
    shapes: Vec<Vec<(String, Vec<i32>)>>,
    plans: Mutex<Plans>,
}

/// A function with its constants.
struct FunctionInstance {
    source: FunctionContext,
    /// Files that store its constants.
    files: Files,
}

#[derive(Default)]
struct Plans {
    made: HashMap<PlanKey, (Arc<Plan>, u64)>,
    clock: u64,
    /// Number of plans ever made.
    count: usize,
}

/// An instance of a function: its states and the memory for intermediate values.
pub struct Session {
    engine: Engine,
    function: usize,
    arena: Arena,
    states: Vec<StateValue>,
    spare: BufferPool,
    recycled: RunScratch,
    /// The plan of the last run.
    latest: Option<(PlanKey, Weak<Plan>)>,
}

/// Results of a run, in the order of the function's outputs.
#[derive(Clone, Debug, PartialEq)]
pub struct Outputs(pub Vec<(String, Value)>);

impl Outputs {
    /// The output with this name. If there is none, `output_N` selects the output at index N:
    /// ExecuTorch programs do not name all outputs.
    pub fn get(&self, name: &str) -> Option<&Value> {
        let number = || name.strip_prefix("output_")?.parse::<usize>().ok();
        let named = self.0.iter().find(|(found, _)| found == name);
        let found = named.or_else(|| self.0.get(number()?));
        found.map(|(_, value)| value)
    }

    /// The tensor with this name.
    pub fn array(&self, name: &str) -> Option<&Array> {
        self.get(name)?.as_array()
    }

    /// The elements of the float tensor with this name.
    pub fn floats(&self, name: &str) -> Option<&[f32]> {
        self.array(name)?.as_floats()
    }

    /// The elements of the integer or bool tensor with this name.
    pub fn ints(&self, name: &str) -> Option<&[i32]> {
        self.array(name)?.as_ints()
    }
}

impl Engine {
    /// Prepares a model. Operations that cannot run are reported here, not in the first run.
    pub fn load(verified: &Verified<'_>, options: &LoadOptions) -> Result<Engine> {
        Engine::load_sharing_weights(verified, options, None)
    }

    /// Prepares a model that shares constants with the model of another engine. Both use the packed
    /// weights of the constants that are equal.
    pub fn load_sharing_weights(
        verified: &Verified<'_>,
        options: &LoadOptions,
        before: Option<&Engine>,
    ) -> Result<Engine> {
        let model = verified.model();
        let threads = match options.threads {
            0 => std::thread::available_parallelism().map_or(1, usize::from),
            threads => threads,
        };
        let isa = options.isa.unwrap_or_else(Isa::detect);
        if !isa.is_available() {
            return Err(
                Error::new(format!("this machine does not support `{isa}` instructions")).of_load()
            );
        }
        let functions = model.program.functions.iter().enumerate();
        let functions = functions
            .map(|(index, function)| {
                check(function)?;
                let analysis = verified.analysis(index).clone();
                let source = FunctionContext::new(
                    function.clone(),
                    analysis,
                    options.numerics,
                    options.limits,
                );
                let theirs = before.filter(|before| before.shared.machine.isa == isa);
                let mut theirs = theirs.into_iter().flat_map(|before| &before.shared.functions);
                let name = source.function.name.clone();
                if let Some(same) = theirs.find(|other| other.name == name) {
                    source.inherit(&same.stated().source);
                }
                let files = files(&source.function);
                let (inputs, outputs, states) = ports(model, &source.function);
                let described = model.signature(&function.name);
                let shapes = described.and_then(|signature| FlexibleShapes::of(&signature).ok()?);
                let shapes = shapes.map_or_else(Vec::new, |shapes| shapes.enumerated);
                let program = RwLock::new(FunctionInstance { source, files });
                let plans = Mutex::default();
                Ok(LoadedModel { name, program, inputs, outputs, states, shapes, plans })
            })
            .collect::<Result<Vec<_>>>()
            .map_err(Error::of_load)?;
        let default_function = model.default_function_name().to_owned();
        let machine = CpuContext { pool: Pool::new(threads), isa };
        let numerics = options.numerics;
        Ok(Engine {
            shared: Arc::new(EngineInner { machine, numerics, functions, default_function }),
        })
    }

    /// Replaces the constants by the constants of a model that is otherwise equal. If the models
    /// differ in more, returns false and keeps the constants.
    ///
    /// Sessions and plans stay valid. Only data derived from changed constants is computed again.
    /// Plans that depend on the values of changed constants are rebuilt.
    pub fn update_constants_from(&self, verified: &Verified<'_>) -> bool {
        let model = verified.model();
        let functions = &model.program.functions;
        if functions.len() != self.shared.functions.len()
            || model.default_function_name() != self.default_function()
        {
            return false;
        }
        let changes = functions.iter().zip(&self.shared.functions).map(|(function, loaded)| {
            let ports = ports(model, function);
            let same = function.name == loaded.name
                && ports == (loaded.inputs.clone(), loaded.outputs.clone(), loaded.states.clone());
            if same { loaded.stated().source.diff_constants(function) } else { None }
        });
        let Some(changes) = changes.collect::<Option<Vec<_>>>() else { return false };
        for ((changes, loaded), index) in changes.into_iter().zip(&self.shared.functions).zip(0..) {
            loaded.update_constants(&self.shared.machine, changes, Some(verified.analysis(index)));
        }
        true
    }

    /// Replaces some constants of a function by constants of the same types, like
    /// [`Engine::update_constants_from`].
    ///
    /// Without effect, returns false if a value is not a constant or a type differs.
    pub fn update_constants(&self, function: &str, constants: Vec<(ValueId, Constant)>) -> bool {
        let Some(loaded) = self.shared.functions.iter().find(|loaded| loaded.name == function)
        else {
            return false;
        };
        let stated = loaded.stated();
        let change = |(value, constant): (ValueId, Constant)| {
            let function = &stated.source.function;
            let Definition::Output(id, _) = function.value(value).definition else { return None };
            let mut op = function.op(id).clone();
            let found = op.attributes.get("val").filter(|_| op.kind() == Some(OpKind::Const))?;
            let bytes = |constant: &Constant| Some(constant.elements()?.len());
            if found.ty != constant.ty || bytes(found) != Some(bytes(&constant)?) {
                return None;
            }
            op.attributes.insert("val", constant);
            Some((id, op))
        };
        let changes: Option<Vec<_>> = constants.into_iter().map(change).collect();
        drop(stated);
        let Some(changes) = changes else { return false };
        loaded.update_constants(&self.shared.machine, changes, None);
        true
    }

    /// Number of plans made so far, over all functions.
    pub fn plans_made(&self) -> usize {
        let plans = |loaded: &LoadedModel| {
            loaded.plans.lock().unwrap_or_else(PoisonError::into_inner).count
        };
        self.shared.functions.iter().map(plans).sum()
    }

    /// The names of the functions.
    pub fn functions(&self) -> impl Iterator<Item = &str> {
        self.shared.functions.iter().map(|loaded| &*loaded.name)
    }

    /// The function that runs if the caller names none.
    pub fn default_function(&self) -> &str {
        &self.shared.default_function
    }

    /// The inputs, outputs and states of a function.
    pub fn features(
        &self,
        function: &str,
    ) -> Result<(&[FeatureSpec], &[FeatureSpec], &[FeatureSpec])> {
        let loaded = &self.shared.functions[self.index(function)?];
        Ok((&loaded.inputs, &loaded.outputs, &loaded.states))
    }

    /// Passes the function with its current constants to `look`. Returns `None` if no function has
    /// this name.
    pub fn inspect<T>(&self, function: &str, look: &mut dyn FnMut(&Function) -> T) -> Option<T> {
        let loaded = self.shared.functions.iter().find(|loaded| loaded.name == function)?;
        Some(look(&loaded.stated().source.function))
    }

    fn index(&self, function: &str) -> Result<usize> {
        let index = self.functions().position(|name| name == function);
        index.ok_or_else(|| {
            Error::new(unknown_name("function", function, self.functions())).of_input()
        })
    }

    /// Number of threads that share the work.
    pub fn threads(&self) -> usize {
        self.shared.machine.pool.threads()
    }

    /// The vector instruction set in use.
    pub fn isa(&self) -> Isa {
        self.shared.machine.isa
    }

    /// Rounding mode of results.
    pub fn numerics(&self) -> Numerics {
        self.shared.numerics
    }

    /// Creates an instance of a function. Its states are zero.
    pub fn session(&self, function: &str) -> Result<Session> {
        let index = self.index(function)?;
        let loaded = &self.shared.functions[index];
        let states = loaded.states.iter().map(FeatureSpec::zeros).collect::<Result<_>>()?;
        Ok(Session {
            engine: self.clone(),
            function: index,
            arena: Arena::default(),
            states,
            spare: BufferPool::default(),
            recycled: RunScratch::default(),
            latest: None,
        })
    }
}

impl LoadedModel {
    fn stated(&self) -> RwLockReadGuard<'_, FunctionInstance> {
        self.program.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Replaces operations that hold constants. Waits until current runs end.
    fn update_constants(
        &self,
        machine: &CpuContext,
        changes: Vec<(OpId, Op)>,
        analysis: Option<&Analysis>,
    ) {
        let mut program = self.program.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(analysis) = analysis {
            program.source.analysis = analysis.clone();
        }
        if changes.is_empty() {
            return;
        }
        let mut plans = self.plans.lock().unwrap_or_else(PoisonError::into_inner);
        let mut clocks = HashMap::new();
        let made = plans.made.drain().map(|(key, (plan, used))| {
            clocks.insert(key.clone(), used);
            (key, plan)
        });
        let made = made.collect();
        for (key, plan) in program.source.update_constants(machine, changes, made) {
            let used = clocks.get(&key).copied().unwrap_or_default();
            plans.made.insert(key, (Arc::new(plan), used));
        }
        program.files = files(&program.source.function);
    }
}

/// Files that store the constants of a function.
fn files(function: &Function) -> Files {
    let constants = function.all_ops().flat_map(|(_, op)| op.constants());
    Files::of(constants.filter_map(Constant::elements))
}

impl Session {
    fn loaded(&self) -> &LoadedModel {
        &self.engine.shared.functions[self.function]
    }

    /// The function's inputs, without states.
    pub fn inputs(&self) -> &[FeatureSpec] {
        &self.loaded().inputs
    }

    /// The function's outputs.
    pub fn outputs(&self) -> &[FeatureSpec] {
        &self.loaded().outputs
    }

    /// The function's states.
    pub fn states(&self) -> &[FeatureSpec] {
        &self.loaded().states
    }

    /// Current value of a state.
    pub fn state(&self, name: &str) -> Option<&StateValue> {
        let at = self.states().iter().position(|state| state.name == name)?;
        Some(&self.states[at])
    }

    /// Takes the value of a state, which becomes zero. `None` if there is no such state.
    pub fn take_state(&mut self, name: &str) -> Result<Option<StateValue>> {
        let Some(at) = self.states().iter().position(|state| state.name == name) else {
            return Ok(None);
        };
        let zeros = self.states()[at].zeros()?;
        Ok(Some(std::mem::replace(&mut self.states[at], zeros)))
    }

    /// Sets the value of a state.
    pub fn set_state(&mut self, name: &str, array: Array) -> Result<()> {
        self.put_state(name, array.into())
    }

    /// Sets a state to a value in any form, for example one taken from another session.
    pub fn put_state(&mut self, name: &str, value: StateValue) -> Result<()> {
        let Some(at) = self.states().iter().position(|state| state.name == name) else {
            let states = self.states().iter().map(|state| &state.name);
            return Err(Error::new(unknown_name("state", name, states)).of_input());
        };
        let spec = &self.states()[at];
        let own = &self.states[at];
        let is_own = (value.dtype(), value.shape()) == (own.dtype(), own.shape());
        self.states[at] = match value.is_array() || !is_own {
            true => spec.accept(value.to_array()).map_err(Error::of_input)?.into(),
            false => value,
        };
        Ok(())
    }

    /// The value of a constant, or of an operation on constants alone. Returns `None` if no such
    /// value has this name.
    pub fn constant(&self, name: &str) -> Result<Option<Array>> {
        let program = self.loaded().stated();
        let source = &program.source;
        let function = &source.function;
        let outputs = function.all_ops().flat_map(|(_, op)| &op.outputs);
        let found = outputs.copied().find(|&value| function.value(value).name == name);
        let constant = found.filter(|&value| source.is_constant(value));
        constant.map(|value| source.known(value)?.elements(source)).transpose()
    }

    /// Sets all states to zero.
    pub fn reset(&mut self) -> Result<()> {
        self.states = self.states().iter().map(FeatureSpec::zeros).collect::<Result<_>>()?;
        Ok(())
    }

    /// Plans for the given input shapes, in the order of [`Session::inputs`], and packs weights.
    /// The first run with these shapes is then as fast as later ones.
    pub fn prepare(&mut self, shapes: &[Vec<usize>]) -> Result<()> {
        let key = PlanKey { shapes: shapes.to_vec(), observed: false };
        let plan = {
            let stated = self.loaded().stated();
            let plan = self.plan(&stated.source, key)?;
            stated.source.packed.prepare(&self.engine.shared.machine);
            plan
        };
        if self.arena.len() < plan.places.length {
            self.arena = crate::execute::reserved(plan.places.length)?;
        }
        Ok(())
    }

    /// Runs the function on named inputs.
    pub fn run(&mut self, inputs: &[(&str, Array)]) -> Result<Outputs> {
        self.run_with(inputs, &mut Hooks::default())
    }

    /// Runs the function with an observer or a profile.
    pub fn run_with(&mut self, inputs: &[(&str, Array)], hooks: &mut Hooks<'_>) -> Result<Outputs> {
        let arrays = self.check(inputs)?;
        let mut inputs = arrays.into_iter().map(Input::Array).collect();
        let values = self.perform(&mut inputs, &mut Vec::new(), hooks)?;
        let named = |(at, value): (usize, _)| (self.outputs()[at].name.clone(), value);
        Ok(Outputs(values.into_iter().map(named).collect()))
    }

    /// Runs the function on inputs in the order of [`Session::inputs`], and writes results to the
    /// caller's memory.
    ///
    /// Inputs of exactly the right type are read in place, without a copy.
    ///
    /// `targets` are the caller's buffers, in the order of the outputs; there may be fewer. They
    /// take `f32` elements for outputs of any type. A result is written to its target if a
    /// kernel computes it and the lengths are equal. All other results are returned with the index
    /// of their output.
    ///
    /// The run allocates no memory if it reads all inputs in place, writes all outputs to targets,
    /// has a kernel for every operation, and has the shapes of the previous run.
    pub fn run_in_place(
        &mut self,
        inputs: &mut Vec<Input<'_>>,
        targets: &mut Vec<Option<&mut [f32]>>,
        hooks: &mut Hooks<'_>,
    ) -> Result<Vec<(usize, Value)>> {
        let ports = self.inputs();
        if inputs.len() != ports.len() {
            let (found, expected) = (inputs.len(), ports.len());
            let message = format!("got {found} inputs; the function has {expected}");
            return Err(Error::new(message).of_input());
        }
        for (port, input) in ports.iter().zip(&mut *inputs) {
            let array = match input {
                Input::View(view) if port.takes_as_is(view) => continue,
                Input::View(view) => view.to_array(),
                Input::Array(array) => array.clone(),
            };
            *input = Input::Array(port.accept(array).map_err(Error::of_input)?);
        }
        if !self.loaded().shapes.is_empty() {
            self.check_together(&shapes_of(inputs)).map_err(Error::of_input)?;
        }
        self.perform(inputs, targets, hooks)
    }

    /// The shape of each output for the given input shapes, in the order of [`Session::inputs`]. A
    /// shape is `None` if it depends on elements.
    pub fn output_shapes(&self, shapes: &[Vec<usize>]) -> Result<Vec<Option<Vec<usize>>>> {
        let key = PlanKey { shapes: shapes.to_vec(), observed: false };
        let plan = self.plan(&self.loaded().stated().source, key)?;
        let shape = |output: &Operand| match output {
            Operand::Slot(slot) => plan.graph.slot(*slot).shape.clone(),
            Operand::Constant(known) => known.expanded().map(|array| array.shape().to_vec()),
        };
        Ok(plan.graph.body.outputs.iter().map(shape).collect())
    }

    fn perform(
        &mut self,
        inputs: &mut Vec<Input<'_>>,
        targets: &mut Vec<Option<&mut [f32]>>,
        hooks: &mut Hooks<'_>,
    ) -> Result<Vec<(usize, Value)>> {
        let observed = hooks.observe.is_some();
        let is_latest = |key: &PlanKey| {
            let shapes = inputs.iter().map(Input::shape);
            key.observed == observed && key.shapes.iter().map(Vec::as_slice).eq(shapes)
        };
        let engine = self.engine.clone();
        let stated = engine.shared.functions[self.function].stated();
        let latest = self.latest.as_ref().filter(|(key, _)| is_latest(key));
        let plan = match latest.and_then(|(_, plan)| plan.upgrade()) {
            Some(plan) => plan,
            None => {
                let shapes = shapes_of(inputs).into_iter().map(<[usize]>::to_vec).collect();
                let key = PlanKey { shapes, observed };
                let plan = self.plan(&stated.source, key.clone())?;
                self.latest = Some((key, Arc::downgrade(&plan)));
                plan
            }
        };
        let resources = Resources {
            arena: &mut self.arena,
            states: &mut self.states,
            spare: &mut self.spare,
            recycled: &mut self.recycled,
            hooks,
            seed: next_seed(),
        };
        let values =
            execute(&stated.source, &engine.shared.machine, &plan, inputs, targets, resources);
        // Pages beyond the end of a truncated file read as zeros, so the result of the run does not
        // matter.
        stated.files.check().map_err(|error| {
            Error::new(error.to_string())
                .with_hint("write the model again, then reload it")
                .with_source(error)
        })?;
        values
    }

    /// Validates inputs and returns them in the order of [`Session::inputs`], with elements
    /// converted and optional inputs filled in.
    ///
    /// [`Session::run`] does the same. Call this to validate the inputs of several runs before the
    /// first.
    pub fn check(&self, inputs: &[(&str, Array)]) -> Result<Vec<Array>> {
        self.checked(inputs).map_err(Error::of_input)
    }

    fn checked(&self, inputs: &[(&str, Array)]) -> Result<Vec<Array>> {
        let ports = self.inputs();
        for (index, (name, _)) in inputs.iter().enumerate() {
            if !ports.iter().any(|port| port.name == *name) {
                let inputs = ports.iter().map(|port| &port.name);
                return Err(Error::new(unknown_name("input", name, inputs)));
            }
            if inputs[..index].iter().any(|(other, _)| other == name) {
                fail!("input `{name}` is given twice");
            }
        }
        let find = |port: &FeatureSpec| match inputs.iter().find(|(name, _)| *name == port.name) {
            Some((_, array)) => port.accept(array.clone()),
            None => match port.default_array()? {
                Some(array) => Ok(array),
                None => fail!("input `{}`, a `{}`, is not given", port.name, port.ty),
            },
        };
        let arrays = ports.iter().map(find).collect::<Result<Vec<_>>>()?;
        self.check_together(&arrays.iter().map(Array::shape).collect::<Vec<_>>())?;
        Ok(arrays)
    }

    /// If the description enumerates shapes, checks that the shapes of all inputs belong to one
    /// entry.
    fn check_together(&self, shapes: &[&[usize]]) -> Result<()> {
        let sets = &self.loaded().shapes;
        let given = || self.inputs().iter().zip(shapes.iter().copied());
        let is = |shape: &[i32], found: &[usize]| {
            shape.iter().map(|&extent| i64::from(extent)).eq(found.iter().map(|&e| e as i64))
        };
        let fits = |set: &Vec<(String, Vec<i32>)>| {
            set.iter().all(|(name, shape)| {
                given().all(|(port, found)| port.name != *name || is(shape, found))
            })
        };
        // The default shapes are a valid combination even if the description does not list them.
        let of_set = |port: &FeatureSpec| sets[0].iter().any(|(name, _)| *name == port.name);
        let is_default = || {
            given().all(|(port, found)| {
                !of_set(port) || port.default_shape().as_deref() == Some(found)
            })
        };
        if sets.is_empty() || sets.iter().any(fits) || is_default() {
            return Ok(());
        }
        let found: Vec<_> = given()
            .filter(|(port, _)| of_set(port))
            .map(|(port, found)| format!("`{}` {found:?}", port.name))
            .collect();
        let accepted: Vec<_> = sets
            .iter()
            .map(|set| {
                let set = set.iter().map(|(name, shape)| format!("`{name}` {shape:?}"));
                set.collect::<Vec<_>>().join(" with ")
            })
            .collect();
        fail!(
            "the shapes {} are not an enumerated combination; expected {}",
            found.join(" and "),
            accepted.join(" or ")
        );
    }

    fn plan(&self, source: &FunctionContext, key: PlanKey) -> Result<Arc<Plan>> {
        let loaded = self.loaded();
        let lock = || loaded.plans.lock().unwrap_or_else(PoisonError::into_inner);
        {
            let mut plans = lock();
            plans.clock += 1;
            let clock = plans.clock;
            if let Some((plan, used)) = plans.made.get_mut(&key) {
                *used = clock;
                return Ok(Arc::clone(plan));
            }
        }
        let made = Arc::new(plan(source, &self.engine.shared.machine, &key)?);
        let mut plans = lock();
        plans.count += 1;
        if plans.made.len() >= MAX_PLANS {
            let oldest = plans.made.iter().min_by_key(|(_, (_, used))| *used);
            if let Some(oldest) = oldest.map(|(key, _)| key.clone()) {
                plans.made.remove(&oldest);
            }
        }
        let clock = plans.clock;
        plans.made.insert(key, (Arc::clone(&made), clock));
        Ok(made)
    }
}

/// Rejects functions with operations that cannot run.
fn check(function: &Function) -> Result<()> {
    for (_, op) in function.all_ops() {
        let value = op.outputs.first().map_or("", |&value| &function.value(value).name);
        let fault = |message: String| Error::new(message).of_operation(op.type_name(), value);
        match op.kind() {
            None => return Err(fault("is not a Core ML operation, so it cannot be run".into())),
            Some(OpKind::ConstSymbolic | OpKind::ConvQuantized) => {
                return Err(fault(
                    "cannot be run, because it is not allowed in ML Programs".into(),
                ));
            }
            Some(kind) => {
                debug_assert!(ops::kernel(kind).is_some() || ops::is_special(kind))
            }
        }
    }
    Ok(())
}

/// The inputs, outputs and states of a function.
pub fn ports(
    model: &Model,
    function: &Function,
) -> (Vec<FeatureSpec>, Vec<FeatureSpec>, Vec<FeatureSpec>) {
    let signature = model.signature(&function.name);
    let describe = |name: &str, features: Option<&[FeatureDescription]>| {
        features?.iter().find(|feature| feature.name == name).cloned()
    };
    let port = |value: ValueId, features: Option<&[FeatureDescription]>| {
        let value = function.value(value);
        FeatureSpec {
            name: value.name.clone(),
            ty: value.ty.unwrap_state().clone(),
            description: describe(&value.name, features),
        }
    };
    let (states, inputs): (Vec<_>, Vec<_>) = function
        .inputs()
        .iter()
        .partition(|value| matches!(function.value(**value).ty, Type::State(_)));
    let inputs_described = signature.as_ref().map(|signature| signature.inputs);
    let outputs_described = signature.as_ref().map(|signature| signature.outputs);
    let states_described = signature.as_ref().map(|signature| signature.states);
    (
        inputs.into_iter().map(|value| port(value, inputs_described)).collect(),
        function.outputs().iter().map(|&value| port(value, outputs_described)).collect(),
        states.into_iter().map(|value| port(value, states_described)).collect(),
    )
}

fn shapes_of<'a>(inputs: &'a [Input<'_>]) -> Vec<&'a [usize]> {
    inputs.iter().map(Input::shape).collect()
}

/// Returns a number that differs from run to run.
fn next_seed() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let time = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let time = time.map_or(0, |time| time.as_nanos() as u64);
    time ^ NEXT.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed)
}
