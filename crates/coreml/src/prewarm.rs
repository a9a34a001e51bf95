//! Background preparation of models.
//!
//! Core ML compiles a model for the Neural Engine when it is loaded for the first time, which can take minutes.
//! [`prewarm`] first loads the model for the CPU and GPU, which then answers predictions. Meanwhile it loads the model
//! for the requested compute units, runs it once for each function and shape, and then switches.
//!
//! ```text
//!  compile ─▶ load for CPU and GPU ─▶ load for the requested units ─▶ predict once per function and shape ─▶ ready
//!                    └── answers predictions ─────────────────────────────────────────────── until the switch ──┘
//! ```
//!
//! Compiled models are stored in a [`Cache`]: a killed process leaves either no entry or a complete one.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use coremill_cache::Store;

use crate::cache::Cache;
use crate::error::{Error, ErrorKind, Result};
use crate::interface::{ArrayFeature, Shapes};
use crate::machine::Model;
use crate::options::{Cancel, ComputeUnits, LoadOptions};
use crate::tensor::{Output, OwnedTensor, Tensor};

/// Options of [`prewarm`].
#[derive(Clone, Debug, Default)]
pub struct PrewarmOptions {
    /// Options of the final model. `function` is ignored, and `cancel` is replaced.
    pub load: LoadOptions,
    /// Functions to prepare; empty for the default function.
    pub functions: Vec<String>,
    /// Whether predictions wait for the requested compute units, without a model for the CPU and GPU.
    pub without_fallback: bool,
}

/// Step of a preparation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PrewarmStage {
    /// The model is compiled, or found in the cache.
    Compiling,
    /// The model is loaded for the CPU and GPU.
    LoadingFallback,
    /// The model is loaded for the requested compute units; the fallback answers predictions.
    Loading,
    /// The model runs for the first time; the fallback answers predictions.
    Predicting,
    /// The model for the requested compute units answers predictions.
    Ready,
    /// Cancelled; a loaded fallback answers predictions.
    Cancelled,
    /// A step failed; a loaded fallback answers predictions.
    Failed,
}

/// Progress of a preparation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrewarmProgress {
    /// Current step.
    pub stage: PrewarmStage,
    /// Number of functions loaded, or predictions run, in this step.
    pub done: usize,
    /// Number of functions or predictions in this step.
    pub total: usize,
    /// Compute units of the model that answers predictions; `None` until one is loaded.
    pub answering: Option<ComputeUnits>,
}

impl PrewarmStage {
    /// Whether the preparation is over.
    pub fn is_final(self) -> bool {
        matches!(self, PrewarmStage::Ready | PrewarmStage::Cancelled | PrewarmStage::Failed)
    }
}

/// A model that is prepared in the background. Dropping it cancels the preparation.
pub struct PrewarmedModel {
    shared: Arc<Preparation>,
}

struct Preparation {
    status: Mutex<Status>,
    changed: Condvar,
    cancel: Cancel,
}

struct Status {
    progress: PrewarmProgress,
    /// The functions that answer predictions.
    loaded: Option<Arc<LoadedFunctions>>,
    error: Option<Error>,
}

/// Functions that were loaded for the same compute units.
struct LoadedFunctions {
    units: ComputeUnits,
    /// Functions by name; the default function has none.
    models: Vec<(Option<String>, Model)>,
}

/// Prepares a package, a model file or a compiled model in the background. The store caches the compiled model.
///
/// ```no_run
/// use std::time::Duration;
///
/// use coremill_cache::Store;
/// use coremill_coreml::{OwnedTensor, PrewarmOptions, Tensor, prewarm};
/// use coremill_tensor::DType;
///
/// let store = Store::open("/tmp/models", &Default::default())?;
/// let model = prewarm(store, "Digits.mlpackage".as_ref(), PrewarmOptions::default())?;
/// let image = [0u8; 4 * 28 * 28];
/// let image = Tensor::contiguous(DType::Fp32, &[1, 1, 28, 28], &image)?;
/// let mut scores = OwnedTensor::new("scores", DType::Fp32);
/// // The CPU and GPU answer until the Neural Engine is ready.
/// let units = model.predict(None, &[("image", image)], &mut [&mut scores])?;
/// println!("{units} answered; {:?}", model.progress().stage);
/// model.wait(Duration::from_secs(120))?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn prewarm(store: Store, model: &Path, options: PrewarmOptions) -> Result<PrewarmedModel> {
    crate::machine::availability()?;
    let cancel = Cancel::default();
    let stage = PrewarmStage::Compiling;
    let progress = PrewarmProgress { stage, done: 0, total: 1, answering: None };
    let status = Mutex::new(Status { progress, loaded: None, error: None });
    let shared = Arc::new(Preparation { status, changed: Condvar::new(), cancel: cancel.clone() });
    let load = LoadOptions { cancel: Some(cancel), function: None, ..options.load };
    let worker = Worker {
        shared: Arc::clone(&shared),
        store,
        model: model.to_owned(),
        options: PrewarmOptions { load, ..options },
    };
    let thread = std::thread::Builder::new().name("coremill-prewarm".to_owned());
    thread
        .spawn(move || worker.run())
        .map_err(|error| Error::new(ErrorKind::Io, format!("cannot start a thread: {error}")))?;
    Ok(PrewarmedModel { shared })
}

impl PrewarmedModel {
    /// Current progress.
    pub fn progress(&self) -> PrewarmProgress {
        self.shared.lock().progress
    }

    /// Waits until the progress differs from `seen`, at most for the given time. Returns the current progress.
    pub fn wait_for_change(&self, seen: PrewarmProgress, time: Duration) -> PrewarmProgress {
        self.shared.wait_until(time, |status| status.progress != seen).progress
    }

    /// Waits until the model for the requested compute units answers predictions, at most for the given time.
    pub fn wait(&self, time: Duration) -> Result {
        let status = self.shared.wait_until(time, |status| status.progress.stage.is_final());
        match (status.progress.stage, &status.error) {
            (PrewarmStage::Ready, _) => Ok(()),
            (_, Some(error)) => Err(error.clone()),
            _ => Err(Error::new(ErrorKind::Timeout, "the model is not ready yet")),
        }
    }

    /// Cancels the preparation. Core ML itself completes its current operation; the result is discarded. A loaded
    /// fallback continues to answer predictions.
    pub fn cancel(&self) {
        self.shared.cancel.cancel();
        self.shared.finish(PrewarmStage::Cancelled, cancelled());
    }

    /// Runs a function, by default the default function, on the model that currently answers predictions. Waits until
    /// one is loaded. Returns the compute units of that model: one model answers the whole prediction, even if the
    /// preparation switches meanwhile.
    ///
    /// States belong to one model. To use a model with states, load it when the preparation is ready; then loading is
    /// fast.
    pub fn predict(
        &self,
        function: Option<&str>,
        inputs: &[(&str, Tensor<'_>)],
        outputs: &mut [&mut dyn Output],
    ) -> Result<ComputeUnits> {
        let loaded = {
            let can_answer =
                |status: &Status| status.loaded.is_some() || status.progress.stage.is_final();
            let status = self.shared.wait_until(Duration::MAX, can_answer);
            match (&status.loaded, &status.error) {
                (Some(loaded), _) => Arc::clone(loaded),
                (None, Some(error)) => return Err(error.clone()),
                (None, None) => return Err(cancelled()),
            }
        };
        let mut models = loaded.models.iter();
        let found = match function {
            None => models.next(),
            Some(name) => models.find(|(known, _)| known.as_deref() == Some(name)),
        };
        let Some((_, model)) = found else {
            let name = function.unwrap_or_default();
            return Err(Error::input(format!("the function `{name}` was not prepared"))
                .with_hint("add it to the option `functions`"));
        };
        model.predict(inputs, outputs, None)?;
        Ok(loaded.units)
    }
}

impl Drop for PrewarmedModel {
    fn drop(&mut self) {
        self.shared.cancel.cancel();
    }
}

fn cancelled() -> Error {
    Error::new(ErrorKind::Cancelled, "the preparation was cancelled")
}

impl Preparation {
    fn lock(&self) -> MutexGuard<'_, Status> {
        self.status.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until a condition holds, at most for the given time.
    fn wait_until(
        &self,
        time: Duration,
        holds: impl Fn(&Status) -> bool,
    ) -> MutexGuard<'_, Status> {
        let end = Instant::now().checked_add(time);
        let mut status = self.lock();
        while !holds(&status) {
            status = match end {
                None => self.changed.wait(status).unwrap_or_else(PoisonError::into_inner),
                Some(end) => {
                    let left = end.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        break;
                    }
                    let waited = self.changed.wait_timeout(status, left);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
        status
    }

    /// Ends an unfinished preparation without success.
    fn finish(&self, stage: PrewarmStage, error: Error) {
        let mut status = self.lock();
        if !status.progress.stage.is_final() {
            status.progress.stage = stage;
            status.error = Some(error);
        }
        drop(status);
        self.changed.notify_all();
    }

    /// Reports the current step. Fails if the preparation was cancelled.
    fn report(&self, stage: PrewarmStage, done: usize, total: usize) -> Result {
        let mut status = self.unfinished()?;
        status.progress = PrewarmProgress { stage, done, total, ..status.progress };
        drop(status);
        self.changed.notify_all();
        Ok(())
    }

    /// Lets other models answer predictions. Fails if the preparation was cancelled.
    fn switch(&self, loaded: LoadedFunctions, stage: PrewarmStage) -> Result {
        let mut status = self.unfinished()?;
        status.progress.stage = stage;
        status.progress.answering = Some(loaded.units);
        let before = status.loaded.replace(Arc::new(loaded));
        drop(status);
        self.changed.notify_all();
        // Dropped outside the lock; running predictions hold their own reference.
        drop(before);
        Ok(())
    }

    fn unfinished(&self) -> Result<MutexGuard<'_, Status>> {
        let status = self.lock();
        if status.progress.stage.is_final() || self.cancel.is_cancelled() {
            return Err(cancelled());
        }
        Ok(status)
    }
}

struct Worker {
    shared: Arc<Preparation>,
    store: Store,
    model: PathBuf,
    options: PrewarmOptions,
}

impl Worker {
    fn run(&self) {
        if let Err(error) = self.prepare() {
            let stage = match error.kind() {
                ErrorKind::Cancelled => PrewarmStage::Cancelled,
                _ => PrewarmStage::Failed,
            };
            self.shared.finish(stage, error);
        }
    }

    fn prepare(&self) -> Result {
        let wanted = &self.options.load;
        let compiled = Cache::new(&self.store).compiled(&self.model, wanted)?;
        let path = compiled.path();
        let has_neural_engine =
            matches!(wanted.compute_units, ComputeUnits::All | ComputeUnits::CpuAndNeuralEngine);
        if has_neural_engine && !self.options.without_fallback {
            let compute_units = ComputeUnits::CpuAndGpu;
            let options = LoadOptions { compute_units, ..wanted.clone() };
            let loaded = self.load(&path, &options, PrewarmStage::LoadingFallback)?;
            self.shared.switch(loaded, PrewarmStage::Loading)?;
        }
        let loaded = self.load(&path, wanted, PrewarmStage::Loading)?;
        let mut calls = Vec::new();
        for (_, model) in &loaded.models {
            calls.extend(samples(model)?.into_iter().map(|inputs| (model, inputs)));
        }
        let total = calls.len();
        for (index, (model, inputs)) in calls.iter().enumerate() {
            self.shared.report(PrewarmStage::Predicting, index, total)?;
            predict_once(model, inputs)?;
        }
        self.shared.report(PrewarmStage::Predicting, total, total)?;
        drop(calls);
        self.shared.switch(loaded, PrewarmStage::Ready)
    }

    fn load(
        &self,
        path: &Path,
        options: &LoadOptions,
        stage: PrewarmStage,
    ) -> Result<LoadedFunctions> {
        let names: Vec<Option<String>> = match &self.options.functions[..] {
            [] => vec![None],
            names => names.iter().cloned().map(Some).collect(),
        };
        let mut models = Vec::with_capacity(names.len());
        for (index, function) in names.iter().enumerate() {
            self.shared.report(stage, index, names.len())?;
            let options = LoadOptions { function: function.clone(), ..options.clone() };
            models.push((function.clone(), Model::load(path, &options)?));
        }
        Ok(LoadedFunctions { units: options.compute_units, models })
    }
}

/// Zeroed inputs of one prediction for each enumerated shape.
fn samples(model: &Model) -> Result<Vec<Vec<OwnedTensor>>> {
    let shapes = |feature: &ArrayFeature| match &feature.shapes {
        Shapes::Enumerated(shapes) => shapes.len(),
        Shapes::Fixed | Shapes::Ranges(_) => 1,
    };
    let count = model.inputs().iter().map(shapes).fold(1, usize::max);
    let sample = |index: usize| {
        let inputs = model.inputs().iter().filter(|feature| !feature.optional);
        inputs.map(|feature| zeros(feature, index)).collect()
    };
    (0..count).map(sample).collect()
}

/// A zeroed input with the shape at an index of its enumerated shapes, or with its default shape.
fn zeros(feature: &ArrayFeature, index: usize) -> Result<OwnedTensor> {
    let shape = match &feature.shapes {
        // Core ML takes enumerated shapes of several inputs at the same index.
        Shapes::Enumerated(shapes) => shapes.get(index).unwrap_or(&feature.shape).clone(),
        Shapes::Ranges(ranges) if feature.shape.is_empty() => {
            ranges.iter().map(|range| (*range.start()).max(1)).collect()
        }
        Shapes::Fixed | Shapes::Ranges(_) => feature.shape.clone(),
    };
    let count = shape.iter().try_fold(1_u64, |count, &size| count.checked_mul(size as u64));
    let bytes = count
        .and_then(|count| feature.dtype.storage_bytes(count))
        .and_then(|bytes| usize::try_from(bytes).ok())
        .ok_or_else(|| {
            Error::input(format!("the input `{}` of shape {shape:?} is too large", feature.name))
        })?;
    let bytes = vec![0; bytes];
    Ok(OwnedTensor { name: feature.name.clone(), dtype: feature.dtype, shape, bytes })
}

fn predict_once(model: &Model, inputs: &[OwnedTensor]) -> Result {
    let inputs = inputs.iter().map(|input| Ok((&*input.name, input.tensor()?)));
    let inputs: Vec<(&str, Tensor<'_>)> = inputs.collect::<Result<_>>()?;
    let output = |feature: &ArrayFeature| OwnedTensor::new(&*feature.name, feature.dtype);
    let mut results: Vec<OwnedTensor> = model.outputs().iter().map(output).collect();
    let mut outputs: Vec<&mut dyn Output> =
        results.iter_mut().map(|output| output as &mut dyn Output).collect();
    let mut state = match model.states() {
        [] => None,
        _ => Some(model.new_state()?),
    };
    model.predict(&inputs, &mut outputs, state.as_mut())
}
