//! Compilation, loading and description of models.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::{Mutex, mpsc};
use std::time::{Duration, Instant};

use block2::RcBlock;
use objc2::rc::Retained;
use objc2::sel;
use objc2_core_ml::{
    MLComputeUnits, MLFeatureDescription, MLModel, MLModelConfiguration,
    MLMultiArrayShapeConstraintType, MLOptimizationHints, MLReshapeFrequencyHint,
    MLSpecializationStrategy,
};
use objc2_foundation::{NSDictionary, NSError, NSString, NSURL};

use super::array::{dtype_of, sizes};
use super::call::{Sendable, call, error_at, has_class_method, has_method, path_of, url_of, wait};
use crate::error::{Error, ErrorKind, Result};
use crate::interface::{ArrayFeature, Shapes};
use crate::options::{Cancel, ComputeUnits, LoadOptions, Reshapes, Specialization};
use crate::tree::copy_tree;

const LOAD: &str = "load the model";

/// A loaded model. Its predictions are serialized.
pub struct Model {
    pub(super) inner: Mutex<Retained<MLModel>>,
    inputs: Vec<ArrayFeature>,
    outputs: Vec<ArrayFeature>,
    states: Vec<ArrayFeature>,
    /// Whether Core ML writes to our memory; false after it has failed to.
    pub(super) writes_ours: AtomicBool,
}

// SAFETY: the object is used by one thread at a time, behind the lock; Core ML does not bind models to threads.
unsafe impl Send for Model {}
// SAFETY: as above.
unsafe impl Sync for Model {}

/// A model that is being loaded. If this is dropped, the loaded model is released.
pub struct PendingModel {
    answer: mpsc::Receiver<Result<Sendable<Retained<MLModel>>>>,
    until: Instant,
    timeout: Duration,
    cancel: Option<Cancel>,
}

/// Compiles a package or a model file into a new directory.
pub fn compile(model: &Path, to: &Path, options: &LoadOptions) -> Result {
    const ACTION: &str = "compile the model";
    fs::metadata(model).map_err(|error| Error::of_files("read", model, &error))?;
    if to.exists() {
        let message =
            format!("`{}` exists; the compiled model needs a new directory", to.display());
        return Err(Error::new(ErrorKind::Io, message));
    }
    let (sender, answer) = mpsc::channel();
    call(|| {
        let method = sel!(compileModelAtURL:completionHandler:);
        has_class_method("MLModel", method, "macOS 13 or iOS 16")?;
        let handler = RcBlock::new(move |url: *mut NSURL, error: *mut NSError| {
            // SAFETY: Core ML passes a URL or an error, valid during this call.
            let outcome = call(|| unsafe {
                let path = url.as_ref().and_then(path_of);
                path.ok_or_else(|| error_at(ErrorKind::Compile, ACTION, error))
            });
            // If the receiver is gone, nothing else would remove the result.
            if let Err(mpsc::SendError(Ok(path))) = sender.send(outcome) {
                let _: std::io::Result<()> = fs::remove_dir_all::<PathBuf>(path);
            }
        });
        let url = url_of(model)?;
        // SAFETY: the method exists, and Core ML copies the handler.
        unsafe { MLModel::compileModelAtURL_completionHandler(&url, &handler) };
        Ok(())
    })?;
    let compiled = wait(&answer, options.timeout, options.cancel.as_ref(), ACTION)?;
    if fs::rename(&compiled, to).is_ok() {
        return Ok(());
    }
    // The target is on another file system.
    let copied = copy_tree(&compiled, to);
    let _ = fs::remove_dir_all(&compiled);
    copied
}

/// Options as Core ML's configuration.
pub(super) fn configuration(options: &LoadOptions) -> Result<Retained<MLModelConfiguration>> {
    // SAFETY: plain setters; setters that older systems lack are checked first.
    unsafe {
        let configuration = MLModelConfiguration::new();
        configuration.setComputeUnits(match options.compute_units {
            ComputeUnits::All => MLComputeUnits::All,
            ComputeUnits::CpuOnly => MLComputeUnits::CPUOnly,
            ComputeUnits::CpuAndGpu => MLComputeUnits::CPUAndGPU,
            ComputeUnits::CpuAndNeuralEngine => MLComputeUnits::CPUAndNeuralEngine,
        });
        configuration.setAllowLowPrecisionAccumulationOnGPU(options.low_precision_gpu);
        if let Some(function) = &options.function {
            has_method("MLModelConfiguration", sel!(setFunctionName:), "macOS 15 or iOS 18")?;
            configuration.setFunctionName(Some(&NSString::from_str(function)));
        }
        if options.reshapes.is_some() || options.specialization.is_some() {
            let since = "macOS 14.4 or iOS 17.4";
            has_method("MLModelConfiguration", sel!(setOptimizationHints:), since)?;
            let hints = MLOptimizationHints::new();
            if let Some(reshapes) = options.reshapes {
                has_method("MLOptimizationHints", sel!(setReshapeFrequency:), since)?;
                hints.setReshapeFrequency(match reshapes {
                    Reshapes::Frequent => MLReshapeFrequencyHint::Frequent,
                    Reshapes::Infrequent => MLReshapeFrequencyHint::Infrequent,
                });
            }
            if let Some(specialization) = options.specialization {
                let method = sel!(setSpecializationStrategy:);
                has_method("MLOptimizationHints", method, "macOS 15 or iOS 18")?;
                hints.setSpecializationStrategy(match specialization {
                    Specialization::Default => MLSpecializationStrategy::Default,
                    Specialization::FastPrediction => MLSpecializationStrategy::FastPrediction,
                });
            }
            configuration.setOptimizationHints(&hints);
        }
        Ok(configuration)
    }
}

impl Model {
    /// Loads a compiled model.
    pub fn load(compiled: &Path, options: &LoadOptions) -> Result<Model> {
        Model::load_async(compiled, options)?.wait()
    }

    /// Starts loading a compiled model.
    pub fn load_async(compiled: &Path, options: &LoadOptions) -> Result<PendingModel> {
        fs::metadata(compiled).map_err(|error| Error::of_files("read", compiled, &error))?;
        let (sender, answer) = mpsc::channel();
        call(|| {
            let handler = RcBlock::new(move |model: *mut MLModel, error: *mut NSError| {
                // SAFETY: Core ML passes a model or an error, valid during this call.
                let outcome = call(|| unsafe {
                    let model = Retained::retain(model).map(Sendable);
                    model.ok_or_else(|| error_at(ErrorKind::Load, LOAD, error))
                });
                // If the receiver is gone, the model is released.
                let _ = sender.send(outcome);
            });
            let method = sel!(loadContentsOfURL:configuration:completionHandler:);
            has_class_method("MLModel", method, "macOS 11 or iOS 14")?;
            let (url, configuration) = (url_of(compiled)?, configuration(options)?);
            // SAFETY: the method exists, and Core ML copies the handler.
            unsafe {
                MLModel::loadContentsOfURL_configuration_completionHandler(
                    &url,
                    &configuration,
                    &handler,
                );
            }
            Ok(())
        })?;
        let until = Instant::now() + options.timeout;
        Ok(PendingModel { answer, until, timeout: options.timeout, cancel: options.cancel.clone() })
    }

    fn new(inner: Retained<MLModel>) -> Result<Model> {
        let (inputs, outputs, states) = call(|| {
            // SAFETY: these only read the description.
            unsafe {
                let description = inner.modelDescription();
                let inputs = ports(&description.inputDescriptionsByName())?;
                let outputs = ports(&description.outputDescriptionsByName())?;
                let method = sel!(stateDescriptionsByName);
                let states = match has_method("MLModelDescription", method, "") {
                    Ok(()) => ports(&description.stateDescriptionsByName())?,
                    Err(_) => Vec::new(),
                };
                Ok((inputs, outputs, states))
            }
        })?;
        let (inner, writes_ours) = (Mutex::new(inner), AtomicBool::new(true));
        Ok(Model { inner, inputs, outputs, states, writes_ours })
    }

    /// The array inputs, sorted by name.
    pub fn inputs(&self) -> &[ArrayFeature] {
        &self.inputs
    }

    /// The array outputs, sorted by name.
    pub fn outputs(&self) -> &[ArrayFeature] {
        &self.outputs
    }

    /// The states, sorted by name.
    pub fn states(&self) -> &[ArrayFeature] {
        &self.states
    }
}

impl PendingModel {
    /// Waits until the model is loaded.
    pub fn wait(self) -> Result<Model> {
        let left = self.until.saturating_duration_since(Instant::now());
        let answer = wait(&self.answer, left, self.cancel.as_ref(), LOAD);
        let Sendable(model) = answer.map_err(|error| match error.kind() {
            // Reports the total time instead of the remaining one.
            ErrorKind::Timeout => {
                let seconds = self.timeout.as_secs_f64();
                let message = format!("Core ML took longer than {seconds} s to {LOAD}");
                Error::new(ErrorKind::Timeout, message)
                    .with_hint("allow more time, or restrict the compute units")
            }
            _ => error,
        })?;
        Model::new(model)
    }

    /// Returns the model if it is loaded within the given time.
    pub fn wait_for(&mut self, time: Duration) -> Option<Result<Model>> {
        match wait(&self.answer, time, self.cancel.as_ref(), LOAD) {
            Err(error) if error.kind() == ErrorKind::Timeout => None,
            outcome => Some(outcome.and_then(|Sendable(model)| Model::new(model))),
        }
    }
}

/// The arrays among features, sorted by name.
fn ports(features: &NSDictionary<NSString, MLFeatureDescription>) -> Result<Vec<ArrayFeature>> {
    let (names, features) = features.to_vecs();
    let mut ports = Vec::with_capacity(names.len());
    for (name, feature) in names.iter().zip(&features) {
        ports.extend(port(name.to_string(), feature)?);
    }
    ports.sort_by(|left, right| left.name.cmp(&right.name));
    Ok(ports)
}

/// A feature, if it is an array.
fn port(name: String, feature: &MLFeatureDescription) -> Result<Option<ArrayFeature>> {
    // SAFETY: these only read the description; states are accessed only if supported.
    unsafe {
        let optional = feature.isOptional();
        if let Some(constraint) = feature.multiArrayConstraint() {
            let (dtype, shape) = (dtype_of(constraint.dataType())?, sizes(&constraint.shape()));
            let others = constraint.shapeConstraint();
            let shapes = match others.r#type() {
                MLMultiArrayShapeConstraintType::Enumerated => {
                    let shapes = others.enumeratedShapes();
                    Shapes::Enumerated(shapes.iter().map(|shape| sizes(&shape)).collect())
                }
                MLMultiArrayShapeConstraintType::Range => {
                    let ranges = others.sizeRangeForDimension();
                    let range = |range: Retained<objc2_foundation::NSValue>| {
                        let range = range.rangeValue();
                        // The length of an unbounded range is the largest integer.
                        let end = match range.length {
                            length if length >= isize::MAX as usize => usize::MAX,
                            length => range.location.saturating_add(length).saturating_sub(1),
                        };
                        range.location..=end
                    };
                    Shapes::Ranges(ranges.iter().map(range).collect())
                }
                _ => Shapes::Fixed,
            };
            return Ok(Some(ArrayFeature { name, dtype, shape, shapes, optional }));
        }
        if has_method("MLFeatureDescription", sel!(stateConstraint), "").is_ok()
            && let Some(constraint) = feature.stateConstraint()
        {
            let (dtype, shape) =
                (dtype_of(constraint.dataType())?, sizes(&constraint.bufferShape()));
            return Ok(Some(ArrayFeature { name, dtype, shape, shapes: Shapes::Fixed, optional }));
        }
    }
    Ok(None)
}
