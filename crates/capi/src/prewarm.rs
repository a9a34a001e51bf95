//! Background preparation of packages and compiled models for Core ML.
#![expect(unsafe_code, reason = "functions with a C interface")]

use std::ffi::c_char;
use std::path::{Path, PathBuf};
use std::time::Duration;

use coremill_cache::Store;
use coremill_coreml::{
    Cache, ComputeUnits, ErrorKind, LoadOptions, Output, PrewarmOptions, PrewarmProgress,
    PrewarmStage, PrewarmedModel, Tensor, TensorMut, prewarm,
};
use coremill_io::unknown_name;
use coremill_pte::coreml::{Description, Interface, Methods};
use coremill_tensor::DType;

use crate::error::{CoremillStatus, Failure, Result, guard};
use crate::handle::Table;
use crate::method::{Memory, check_all, of_port};
use crate::model::{directory, put};
use crate::options::{CoremillOption, Options, array, text};
use crate::tensor::{CheckedTensor, CoremillTensor};

/// A model that is prepared in the background. Threads may use it concurrently.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CoremillPrewarm {
    /// A number assigned by the library.
    pub id: u64,
}

/// Step of a preparation.
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CoremillPrewarmStage {
    /// The model is compiled, or found in the cache.
    Compiling = 0,
    /// The model is loaded for the CPU and GPU.
    LoadingFallback = 1,
    /// The model is loaded for the requested compute units; the CPU and GPU answer predictions.
    Loading = 2,
    /// Each function and enumerated shape runs once; the CPU and GPU answer predictions.
    Predicting = 3,
    /// The requested compute units answer predictions.
    Ready = 4,
    /// Cancelled; a model for the CPU and GPU stays if it was loaded.
    Cancelled = 5,
    /// A step failed; a model for the CPU and GPU stays if it was loaded.
    Failed = 6,
}

/// Compute units of Core ML.
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CoremillComputeUnits {
    /// No model is loaded yet.
    None = 0,
    /// CPU only.
    CpuOnly = 1,
    /// CPU and GPU.
    CpuAndGpu = 2,
    /// CPU and Neural Engine.
    CpuAndNeuralEngine = 3,
    /// All devices.
    All = 4,
}

/// Progress of a preparation.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CoremillPrewarmProgress {
    /// Current step, a `CoremillPrewarmStage`.
    pub stage: i32,
    /// Compute units of the model that answers predictions, a `CoremillComputeUnits`.
    pub answering: i32,
    /// Number of functions loaded, or predictions run, in this step.
    pub done: usize,
    /// Number of functions or predictions in this step.
    pub total: usize,
}

static PREWARMS: Table<Prewarm> = Table::new("preparation");

struct Prewarm {
    model: PrewarmedModel,
    functions: Vec<Function>,
    /// Index of the default function; `None` if it is not prepared.
    default: Option<usize>,
}

/// A prepared function, with the order of its inputs and outputs.
struct Function {
    /// Name in the model.
    name: String,
    /// Name for Core ML; `None` for the only function, which Core ML loads without a name.
    selected: Option<String>,
    interface: Interface,
}

impl From<coremill_coreml::Error> for Failure {
    fn from(error: coremill_coreml::Error) -> Failure {
        let status = match error.kind() {
            ErrorKind::Unavailable => CoremillStatus::Unavailable,
            ErrorKind::Cancelled => CoremillStatus::Cancelled,
            ErrorKind::Timeout => CoremillStatus::Timeout,
            ErrorKind::Input => CoremillStatus::InvalidArgument,
            ErrorKind::Predict | ErrorKind::Exception => CoremillStatus::ExecutionFailed,
            _ => CoremillStatus::InvalidModel,
        };
        Failure { status, ..Failure::model(error) }
    }
}

impl From<PrewarmProgress> for CoremillPrewarmProgress {
    fn from(progress: PrewarmProgress) -> CoremillPrewarmProgress {
        let stage = match progress.stage {
            PrewarmStage::Compiling => CoremillPrewarmStage::Compiling,
            PrewarmStage::LoadingFallback => CoremillPrewarmStage::LoadingFallback,
            PrewarmStage::Loading => CoremillPrewarmStage::Loading,
            PrewarmStage::Predicting => CoremillPrewarmStage::Predicting,
            PrewarmStage::Ready => CoremillPrewarmStage::Ready,
            PrewarmStage::Cancelled => CoremillPrewarmStage::Cancelled,
            PrewarmStage::Failed => CoremillPrewarmStage::Failed,
        };
        let answering = progress.answering.map_or(CoremillComputeUnits::None, numbered);
        let (stage, answering) = (stage as i32, answering as i32);
        CoremillPrewarmProgress { stage, answering, done: progress.done, total: progress.total }
    }
}

fn numbered(units: ComputeUnits) -> CoremillComputeUnits {
    match units {
        ComputeUnits::All => CoremillComputeUnits::All,
        ComputeUnits::CpuOnly => CoremillComputeUnits::CpuOnly,
        ComputeUnits::CpuAndGpu => CoremillComputeUnits::CpuAndGpu,
        ComputeUnits::CpuAndNeuralEngine => CoremillComputeUnits::CpuAndNeuralEngine,
    }
}

/// The store of the option `cache_dir`, or the user's default store.
fn store(options: &Options) -> Result<Store> {
    let root = options.cache_dir.as_ref().map(PathBuf::from).or_else(Store::default_root);
    let root = root.ok_or_else(|| Failure {
        hint: Some("set the option `cache_dir`".to_owned()),
        ..Failure::argument("this system has no directory for compiled models")
    })?;
    Store::open(root, &coremill_cache::Options::default()).map_err(Failure::model)
}

fn load_options(options: &Options) -> Result<LoadOptions> {
    let units = options.compute_unit.as_deref().map(str::parse::<ComputeUnits>).transpose()?;
    Ok(LoadOptions { compute_units: units.unwrap_or_default(), ..LoadOptions::default() })
}

impl Prewarm {
    fn start(path: &Path, names: &[&str], options: &Options) -> Result<Prewarm> {
        // Reported first: elsewhere, no model can be prepared.
        coremill_coreml::availability()?;
        let (_, Description { methods, default }) = directory::describe(path)?;
        let functions: Vec<Function> = match methods {
            Methods::One(interface) => {
                vec![Function { name: default.clone(), selected: None, interface }]
            }
            Methods::Several(methods) => {
                let function = |(name, interface): (String, Interface)| Function {
                    selected: Some(name.clone()),
                    name,
                    interface,
                };
                methods.into_iter().map(function).collect()
            }
        };
        for name in names {
            if !functions.iter().any(|function| function.name == *name) {
                let known = functions.iter().map(|function| &function.name);
                return Err(Failure::missing(unknown_name("function", name, known)));
            }
        }
        let is_wanted = |function: &Function| names.is_empty() || names.contains(&&*function.name);
        let functions: Vec<_> = functions.into_iter().filter(is_wanted).collect();
        let default = functions.iter().position(|function| function.name == default);
        let prepared = PrewarmOptions {
            load: load_options(options)?,
            functions: functions.iter().filter_map(|one| one.selected.clone()).collect(),
            without_fallback: false,
        };
        Ok(Prewarm { model: prewarm(store(options)?, path, prepared)?, functions, default })
    }

    fn function(&self, name: Option<&str>) -> Result<&Function> {
        let names = || self.functions.iter().map(|function| &function.name);
        match name {
            None => self.default.map(|index| &self.functions[index]).ok_or_else(|| {
                Failure::missing("the default function is not prepared; name a function")
            }),
            Some(name) => self
                .functions
                .iter()
                .find(|function| function.name == name)
                .ok_or_else(|| Failure::missing(unknown_name("function", name, names()))),
        }
    }

    /// # Safety
    /// See `coremill_prewarm_execute`.
    unsafe fn execute(
        &self,
        name: Option<&str>,
        inputs: &[CoremillTensor],
        outputs: &mut [CoremillTensor],
    ) -> Result<ComputeUnits> {
        let function = self.function(name)?;
        let Interface { inputs: input_names, outputs: output_names } = &function.interface;
        for (found, names, what) in
            [(inputs.len(), input_names, "inputs"), (outputs.len(), output_names, "outputs")]
        {
            if found != names.len() {
                let message =
                    format!("function `{}` has {} {what}, got {found}", function.name, names.len());
                return Err(Failure::argument(message));
            }
        }
        let (inputs, checked) = (check_all(inputs, "input")?, check_all(outputs, "output")?);
        // SAFETY: guaranteed by the caller. The memory is used until the end of this function.
        let (_memory, bytes) = unsafe { Memory::of(&inputs, &checked)? };
        let strides: Vec<Vec<usize>> = inputs.iter().map(strides).collect();
        let mut tensors = Vec::with_capacity(inputs.len());
        for (index, (name, input)) in input_names.iter().zip(&inputs).enumerate() {
            let tensor = dtype(input).and_then(|dtype| {
                Ok(Tensor::strided(dtype, &input.sizes, &strides[index], &bytes[index])?)
            });
            tensors.push((&**name, tensor.map_err(|error| of_port(error, "input", index))?));
        }
        let mut rooms = Vec::with_capacity(checked.len());
        for (index, (name, output)) in output_names.iter().zip(&checked).enumerate() {
            let room = Room::new(name, output);
            rooms.push(room.map_err(|error| of_port(error, "output", index))?);
        }
        let mut receivers: Vec<&mut dyn Output> = rooms.iter_mut().map(|room| room as _).collect();
        let units = self.model.predict(function.selected.as_deref(), &tensors, &mut receivers)?;
        drop(receivers);
        for (room, output) in rooms.iter().zip(outputs) {
            output.set_sizes(&room.sizes);
        }
        Ok(units)
    }
}

fn dtype(tensor: &CheckedTensor) -> Result<DType> {
    tensor.scalar_type.dtype().ok_or_else(|| {
        Failure::argument(format!(
            "Core ML does not support elements of type `{:?}`",
            tensor.scalar_type
        ))
    })
}

/// Strides in elements. The dimensions of a tensor may be in any order in memory.
fn strides(tensor: &CheckedTensor) -> Vec<usize> {
    let mut strides = vec![1; tensor.sizes.len()];
    let mut step = 1usize;
    for axis in tensor.order.iter().rev().map(|axis| usize::from(*axis)) {
        if let (Some(stride), Some(size)) = (strides.get_mut(axis), tensor.sizes.get(axis)) {
            *stride = step;
            step = step.saturating_mul(*size);
        }
    }
    strides
}

/// An output in the caller's memory.
struct Room<'o> {
    name: &'o str,
    dtype: DType,
    tensor: &'o CheckedTensor,
    /// Shape of the result for Core ML, which has no scalars.
    shape: Vec<usize>,
    /// Sizes of the result for the caller.
    sizes: Vec<usize>,
}

impl<'o> Room<'o> {
    fn new(name: &'o str, tensor: &'o CheckedTensor) -> Result<Room<'o>> {
        if !tensor.order.iter().enumerate().all(|(axis, place)| usize::from(*place) == axis) {
            let message = "outputs of a prepared model must have the standard dimension order";
            return Err(Failure::argument(message));
        }
        let sizes = tensor.sizes.clone();
        Ok(Room { name, dtype: dtype(tensor)?, tensor, shape: Vec::new(), sizes })
    }
}

impl Output for Room<'_> {
    fn name(&self) -> &str {
        self.name
    }

    fn dtype(&self) -> DType {
        self.dtype
    }

    fn memory(&mut self, shape: &[usize]) -> std::result::Result<TensorMut<'_>, String> {
        self.shape = shape.to_vec();
        let is_scalar = self.tensor.sizes.is_empty() && shape == [1];
        self.sizes = if is_scalar { Vec::new() } else { shape.to_vec() };
        // SAFETY: the caller provides the memory for this run; no input and no other output shares it.
        let memory = unsafe { self.tensor.memory() };
        TensorMut::contiguous(self.dtype, &self.shape, memory).map_err(|error| error.to_string())
    }
}

/// Prepares a package or a compiled model in the background, for the options `compute_unit` and `cache_dir`.
///
/// The model is compiled, loaded for the CPU and GPU, which then answer predictions, loaded for the requested compute
/// units, and run once for each function and enumerated shape. Then the requested compute units answer predictions. The
/// cache is the one of `coremill_model_load_file`: a method that is loaded later with the same options is not compiled
/// again. `functions` are the names of the functions to prepare; all functions if `function_count` is 0. Free the
/// preparation with `coremill_prewarm_free`.
///
/// # Safety
/// Strings are NUL-terminated; `functions` points to `function_count` strings, and `options` to `option_count` options;
/// each is null if its count is 0; `prewarm` points to memory for a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn coremill_prewarm_start(
    path: *const c_char,
    functions: *const *const c_char,
    function_count: usize,
    options: *const CoremillOption,
    option_count: usize,
    prewarm: *mut CoremillPrewarm,
) -> CoremillStatus {
    guard(|| {
        // SAFETY: guaranteed by the caller.
        let (path, options, functions) = unsafe {
            let functions = array(functions, function_count, "functions")?;
            let names = functions.iter().map(|name| text(*name, "functions"));
            let names = names.collect::<Result<Vec<&str>>>()?;
            (text(path, "path")?, Options::read(options, option_count)?, names)
        };
        let started = Prewarm::start(Path::new(path), &functions, &options)?;
        // SAFETY: guaranteed by the caller.
        unsafe { put(prewarm, || CoremillPrewarm { id: PREWARMS.insert(started) }, "prewarm") }
    })
}

/// Current progress.
///
/// # Safety
/// `progress` points to memory for the progress.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn coremill_prewarm_progress(
    prewarm: CoremillPrewarm,
    progress: *mut CoremillPrewarmProgress,
) -> CoremillStatus {
    guard(|| {
        let found = PREWARMS.get(prewarm.id)?;
        // SAFETY: guaranteed by the caller.
        unsafe { put(progress, || found.model.progress().into(), "progress") }
    })
}

/// Waits until the progress differs from `progress`, at most for the given time, and sets it to the current progress.
///
/// # Safety
/// `progress` points to the progress that the caller has seen.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn coremill_prewarm_wait_for_change(
    prewarm: CoremillPrewarm,
    milliseconds: u64,
    progress: *mut CoremillPrewarmProgress,
) -> CoremillStatus {
    guard(|| {
        let found = PREWARMS.get(prewarm.id)?;
        // SAFETY: guaranteed by the caller.
        let seen = unsafe { array(progress.cast_const(), 1, "progress")? }[0];
        let current = found.model.progress();
        let current = match CoremillPrewarmProgress::from(current) == seen {
            true => found.model.wait_for_change(current, Duration::from_millis(milliseconds)),
            false => current,
        };
        // SAFETY: guaranteed by the caller.
        unsafe { put(progress, || current.into(), "progress") }
    })
}

/// Waits until the requested compute units answer predictions, at most for the given time. Returns
/// `COREMILL_STATUS_TIMEOUT` if they do not yet, `COREMILL_STATUS_CANCELLED` after a cancellation, and the error of a
/// failed step.
#[unsafe(no_mangle)]
pub extern "C" fn coremill_prewarm_wait(
    prewarm: CoremillPrewarm,
    milliseconds: u64,
) -> CoremillStatus {
    guard(|| Ok(PREWARMS.get(prewarm.id)?.model.wait(Duration::from_millis(milliseconds))?))
}

/// Cancels the preparation and returns at once. A model for the CPU and GPU that is loaded continues to answer
/// predictions.
#[unsafe(no_mangle)]
pub extern "C" fn coremill_prewarm_cancel(prewarm: CoremillPrewarm) -> CoremillStatus {
    guard(|| {
        PREWARMS.get(prewarm.id)?.model.cancel();
        Ok(())
    })
}

/// Runs a function on the model that currently answers predictions, and waits until one is loaded. One model answers the
/// whole prediction, also if the preparation switches meanwhile. `units` receives its compute units, a
/// `CoremillComputeUnits`; it may be null. A null `function` selects the default function.
///
/// Inputs and outputs are in the order of the ports of a method. States belong to one model: load a method with states
/// when the preparation is ready.
///
/// # Safety
/// Like `coremill_method_execute`: `inputs` and `outputs` point to tensors with valid memory, which no other thread writes
/// during the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn coremill_prewarm_execute(
    prewarm: CoremillPrewarm,
    function: *const c_char,
    inputs: *const CoremillTensor,
    input_count: usize,
    outputs: *mut CoremillTensor,
    output_count: usize,
    units: *mut i32,
) -> CoremillStatus {
    guard(|| {
        let found = PREWARMS.get(prewarm.id)?;
        // SAFETY: guaranteed by the caller.
        let answered = unsafe {
            let function = match function.is_null() {
                true => None,
                false => Some(text(function, "function")?),
            };
            let inputs = array(inputs, input_count, "inputs")?;
            // Copies, so that the tensors may not overlap the memory that a run writes.
            let mut results = array(outputs.cast_const(), output_count, "outputs")?.to_vec();
            let answered = found.execute(function, inputs, &mut results)?;
            for (index, result) in results.into_iter().enumerate() {
                outputs.add(index).write(result);
            }
            answered
        };
        if units.is_null() {
            return Ok(());
        }
        // SAFETY: guaranteed by the caller.
        unsafe { put(units, || numbered(answered) as i32, "units") }
    })
}

/// Frees a preparation, and cancels it if it is not over.
#[unsafe(no_mangle)]
pub extern "C" fn coremill_prewarm_free(prewarm: CoremillPrewarm) -> CoremillStatus {
    guard(|| PREWARMS.remove(prewarm.id))
}

/// Sets `cached` to 1 if a package or compiled model is compiled and cached for the options `compute_unit` and
/// `cache_dir` and the current build of the operating system, otherwise to 0.
///
/// # Safety
/// Strings are NUL-terminated; `options` points to `option_count` options, or is null if there are none; `cached` points
/// to memory for a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn coremill_prewarm_is_cached(
    path: *const c_char,
    options: *const CoremillOption,
    option_count: usize,
    cached: *mut i32,
) -> CoremillStatus {
    guard(|| {
        // SAFETY: guaranteed by the caller.
        let (path, options) =
            unsafe { (text(path, "path")?, Options::read(options, option_count)?) };
        coremill_coreml::availability()?;
        let path = Path::new(path);
        directory::describe(path)?;
        let found = Cache::new(&store(&options)?).contains(path, &load_options(&options)?)?;
        // SAFETY: guaranteed by the caller.
        unsafe { put(cached, || i32::from(found), "cached") }
    })
}
