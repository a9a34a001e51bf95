//! Predictions and states.

use std::cell::RefCell;
use std::ptr::NonNull;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;

use block2::RcBlock;
use objc2::rc::Retained;
use objc2::runtime::{AnyObject, ProtocolObject};
use objc2::{AnyThread, sel};
use objc2_core_ml::{
    MLArrayBatchProvider, MLBatchProvider, MLDictionaryFeatureProvider, MLFeatureProvider,
    MLFeatureValue, MLModel, MLMultiArray, MLPredictionOptions, MLState,
};
use objc2_foundation::{NSArray, NSDictionary, NSString};

use super::array::{converted, over, with_elements, with_elements_mut};
use super::call::{call, class, error_of, has_method};
use super::model::Model;
use crate::convert;
use crate::error::{Error, ErrorKind, Result};
use crate::interface::{ArrayFeature, Shapes};
use crate::tensor::{Layout, Output, OwnedTensor, Tensor};

type Features = ProtocolObject<dyn MLFeatureProvider>;

/// States of a model, kept between predictions. Each `State` is independent.
pub struct State {
    inner: Retained<MLState>,
    ports: Vec<ArrayFeature>,
}

// SAFETY: Core ML allows states to move between threads, and mutation requires exclusive access.
unsafe impl Send for State {}

/// Our memory, to which Core ML writes a result directly.
struct OutputBacking {
    output: usize,
    name: Retained<NSString>,
    array: Retained<MLMultiArray>,
    memory: *const u8,
}

impl Model {
    /// Runs the model. Inputs are given by name; outputs may be a subset of the model's.
    ///
    /// Inputs are read, and outputs written, in place if their types are the model's.
    pub fn predict(
        &self,
        inputs: &[(&str, Tensor<'_>)],
        outputs: &mut [&mut dyn Output],
        state: Option<&mut State>,
    ) -> Result {
        call(|| {
            for output in outputs.iter() {
                find(self.outputs(), output.name(), "output")?;
            }
            let features = self.features(inputs)?;
            let model = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
            let state = state.map(|state| &*state.inner);
            let mut backings = Vec::new();
            if self.writes_ours.load(Ordering::Relaxed) {
                backings = self.backings(outputs)?;
            }
            let results = match run(&model, &features, &backings, state) {
                // Running without our memory shows whether it was the cause. If a state may have changed, a second
                // run would count twice, so only the next call goes without.
                Err(error) if !backings.is_empty() => {
                    if state.is_some() {
                        self.writes_ours.store(false, Ordering::Relaxed);
                        return Err(error);
                    }
                    backings.clear();
                    let results = run(&model, &features, &backings, state)?;
                    self.writes_ours.store(false, Ordering::Relaxed);
                    results
                }
                results => results?,
            };
            for (index, output) in outputs.iter_mut().enumerate() {
                let array = array_named(&results, output.name())?;
                let backing = backings.iter().find(|backing| backing.output == index);
                take(&array, *output, backing.map(|backing| backing.memory))?;
            }
            Ok(())
        })
    }

    /// Runs the model on several sets of inputs at once. Returns all array outputs, in the order of
    /// [`Model::outputs`].
    pub fn predict_batch(
        &self,
        batch: &[Vec<(&str, Tensor<'_>)>],
    ) -> Result<Vec<Vec<OwnedTensor>>> {
        call(|| {
            let features = batch.iter().enumerate().map(|(index, inputs)| {
                self.features(inputs).map_err(|error| error.within(format!("item {index}")))
            });
            let features = features.collect::<Result<Vec<_>>>()?;
            let features: Vec<_> =
                features.into_iter().map(ProtocolObject::from_retained).collect();
            let model = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
            // SAFETY: the objects have the classes that the methods expect.
            let results = unsafe {
                let array = NSArray::<Features>::from_retained_slice(&features);
                let batch = MLArrayBatchProvider::initWithFeatureProviderArray(
                    MLArrayBatchProvider::alloc(),
                    &array,
                );
                let batch: Retained<ProtocolObject<dyn MLBatchProvider>> =
                    ProtocolObject::from_retained(batch);
                model.predictionsFromBatch_error(&batch)
            };
            let results =
                results.map_err(|error| error_of(ErrorKind::Predict, "run the model", &error))?;
            let mut items = Vec::with_capacity(batch.len());
            for index in 0..batch.len() {
                // SAFETY: there is one result per set of inputs.
                let results = unsafe { results.featuresAtIndex(index as isize) };
                let mut item = Vec::with_capacity(self.outputs().len());
                for port in self.outputs() {
                    let mut owned = OwnedTensor::new(&*port.name, port.dtype);
                    take(&*array_named(&results, &port.name)?, &mut owned, None)?;
                    item.push(owned);
                }
                items.push(item);
            }
            Ok(items)
        })
    }

    /// A state with zeroed arrays; needs macOS 15 or iOS 18.
    pub fn new_state(&self) -> Result<State> {
        call(|| {
            class("MLState", "macOS 15 or iOS 18")?;
            has_method("MLModel", sel!(newState), "macOS 15 or iOS 18")?;
            let model = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
            // SAFETY: the method exists.
            let inner = unsafe { model.newState() };
            Ok(State { inner, ports: self.states().to_vec() })
        })
    }

    /// Inputs for Core ML, which refer to the tensors' memory.
    fn features(
        &self,
        inputs: &[(&str, Tensor<'_>)],
    ) -> Result<Retained<MLDictionaryFeatureProvider>> {
        let missing = self
            .inputs()
            .iter()
            .find(|port| !port.optional && !inputs.iter().any(|(name, _)| *name == port.name));
        if let Some(port) = missing {
            return Err(Error::input(format!("the input `{}` is missing", port.name)));
        }
        let (mut names, mut values) = (Vec::new(), Vec::new());
        for (name, tensor) in inputs {
            let port = find(self.inputs(), name, "input")?;
            let array = input(tensor, port);
            let array = array.map_err(|error| error.within(format!("input `{name}`")))?;
            names.push(NSString::from_str(name));
            // SAFETY: a plain array.
            values.push(unsafe { MLFeatureValue::featureValueWithMultiArray(&array) });
        }
        let names: Vec<&NSString> = names.iter().map(|name| &**name).collect();
        let values = NSDictionary::from_retained_objects(&names, &values);
        // SAFETY: feature values are objects of the type that the provider expects.
        unsafe {
            let values: &NSDictionary<NSString, AnyObject> = values.cast_unchecked();
            let provider = MLDictionaryFeatureProvider::initWithDictionary_error(
                MLDictionaryFeatureProvider::alloc(),
                values,
            );
            provider.map_err(|error| error_of(ErrorKind::Input, "accept the inputs", &error))
        }
    }

    /// Memory to which Core ML can write results directly.
    fn backings(&self, outputs: &mut [&mut dyn Output]) -> Result<Vec<OutputBacking>> {
        let mut backings = Vec::new();
        for (index, output) in outputs.iter_mut().enumerate() {
            let port = find(self.outputs(), output.name(), "output")?;
            let known = port.shapes == Shapes::Fixed && !port.shape.is_empty();
            if !known || output.dtype() != port.dtype {
                continue;
            }
            let name = NSString::from_str(output.name());
            let memory = memory_of(*output, &port.shape)?;
            if !memory.layout.is_contiguous() || memory.layout.dtype != port.dtype {
                continue;
            }
            let (layout, memory) = (memory.layout, memory.bytes.as_mut_ptr());
            // SAFETY: the outputs are borrowed until the prediction is complete, and their memory is not accessed
            // again before the array is released.
            if let Some(array) = unsafe { over(&layout, memory)? } {
                backings.push(OutputBacking { output: index, name, array, memory });
            }
        }
        Ok(backings)
    }
}

/// Runs a prediction.
fn run(
    model: &MLModel,
    features: &MLDictionaryFeatureProvider,
    backings: &[OutputBacking],
    state: Option<&MLState>,
) -> Result<Retained<Features>> {
    let features = ProtocolObject::from_ref(features);
    // SAFETY: the objects have the classes that the methods expect; the callers borrow the memory of inputs and
    // backings.
    let results = unsafe {
        let options = MLPredictionOptions::new();
        if !backings.is_empty() {
            let names: Vec<&NSString> = backings.iter().map(|backing| &*backing.name).collect();
            let arrays: Vec<_> = backings.iter().map(|backing| backing.array.clone()).collect();
            let arrays = NSDictionary::from_retained_objects(&names, &arrays);
            options.setOutputBackings(arrays.cast_unchecked::<NSString, AnyObject>());
        }
        match state {
            Some(state) => {
                model.predictionFromFeatures_usingState_options_error(features, state, &options)
            }
            None => model.predictionFromFeatures_options_error(features, &options),
        }
    };
    results.map_err(|error| error_of(ErrorKind::Predict, "run the model", &error))
}

/// An input as an array, in place if Core ML can use its memory.
fn input(tensor: &Tensor<'_>, port: &ArrayFeature) -> Result<Retained<MLMultiArray>> {
    let shape = if tensor.shape().is_empty() { &[1][..] } else { tensor.shape() };
    // Core ML itself checks shapes against ranges.
    if !matches!(port.shapes, Shapes::Ranges(_)) && !port.allows(shape) {
        let message = format!("the shape must be {}, got {shape:?}", port.accepted());
        return Err(Error::input(message));
    }
    if tensor.dtype() == port.dtype {
        let memory = tensor.bytes.as_ptr().cast_mut();
        // SAFETY: the memory is borrowed until the prediction is complete, and Core ML only reads inputs.
        if let Some(array) = unsafe { over(&tensor.layout, memory)? } {
            return Ok(array);
        }
    }
    converted(tensor, port.dtype)
}

/// Passes a result to the output, unless it was written in place.
fn take(array: &MLMultiArray, output: &mut dyn Output, written: Option<*const u8>) -> Result {
    let name = output.name().to_owned();
    let taken = with_elements(array, |result| {
        if written == Some(result.bytes.as_ptr()) {
            return Ok(());
        }
        let mut room = memory_of(output, result.shape())?;
        // An array of one element may belong to a scalar.
        if room.layout.shape.is_empty() && result.shape().iter().product::<usize>() == 1 {
            room.layout = Layout { shape: result.shape(), strides: None, ..room.layout };
        }
        convert::copy(result, &mut room)
    });
    taken.map_err(|error| error.within(format!("output `{name}`")))
}

fn memory_of<'o>(
    output: &'o mut dyn Output,
    shape: &[usize],
) -> Result<crate::tensor::TensorMut<'o>> {
    let name = output.name().to_owned();
    output.memory(shape).map_err(|why| Error::input(format!("output `{name}`: {why}")))
}

fn array_named(results: &Features, name: &str) -> Result<Retained<MLMultiArray>> {
    // SAFETY: these only read the results.
    let array = unsafe {
        let value = results.featureValueForName(&NSString::from_str(name));
        value.and_then(|value| value.multiArrayValue())
    };
    array.ok_or_else(|| {
        Error::new(ErrorKind::Predict, format!("Core ML returned no array for the output `{name}`"))
    })
}

fn find<'p>(ports: &'p [ArrayFeature], name: &str, what: &str) -> Result<&'p ArrayFeature> {
    ports.iter().find(|port| port.name == name).ok_or_else(|| {
        let names: Vec<String> = ports.iter().map(|port| format!("`{}`", port.name)).collect();
        let known = match names.is_empty() {
            true => format!("the model has no {what}s that are arrays"),
            false => format!("the {what}s are {}", names.join(", ")),
        };
        Error::input(format!("unknown {what} `{name}`; {known}"))
    })
}

impl State {
    /// A copy of an array.
    pub fn read(&self, name: &str) -> Result<OwnedTensor> {
        let port = find(&self.ports, name, "state")?;
        let mut owned = OwnedTensor::new(name, port.dtype);
        self.with_array(name, |array| take(array, &mut owned, None))?;
        Ok(owned)
    }

    /// Sets an array.
    pub fn write(&mut self, name: &str, value: Tensor<'_>) -> Result {
        find(&self.ports, name, "state")?;
        let written = self.with_array(name, |array| {
            with_elements_mut(array, |target| convert::copy(value, target))
        });
        written.map_err(|error| error.within(format!("state `{name}`")))
    }

    /// Sets all arrays to zero.
    pub fn reset(&mut self) -> Result {
        for port in &self.ports {
            self.with_array(&port.name, |array| {
                with_elements_mut(array, |target| {
                    target.bytes.fill(0);
                    Ok(())
                })
            })?;
        }
        Ok(())
    }

    fn with_array(&self, name: &str, act: impl FnOnce(&MLMultiArray) -> Result) -> Result {
        call(|| {
            let (act, outcome) = (RefCell::new(Some(act)), RefCell::new(None));
            let handler = RcBlock::new(|array: NonNull<MLMultiArray>| {
                if let Some(act) = act.take() {
                    // SAFETY: Core ML provides the array until the handler returns.
                    *outcome.borrow_mut() = Some(act(unsafe { array.as_ref() }));
                }
            });
            let name_of = NSString::from_str(name);
            // SAFETY: the state has an array with this name, and the handler is called before this returns.
            unsafe { self.inner.getMultiArrayForStateNamed_handler(&name_of, &handler) };
            drop(handler);
            let silent = || {
                Error::new(
                    ErrorKind::Predict,
                    format!("Core ML does not expose the state `{name}`"),
                )
            };
            outcome.into_inner().unwrap_or_else(|| Err(silent()))
        })
    }
}
