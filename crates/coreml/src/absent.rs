//! Substitute for systems without Core ML: the same functions, which return errors.

use std::path::Path;
use std::time::Duration;

use crate::error::{Error, ErrorKind, Result};
use crate::interface::{ArrayFeature, Chip, Device, Plan};
use crate::options::LoadOptions;
use crate::tensor::{Output, OwnedTensor, Tensor};

/// An uninhabited type.
enum Never {}

/// A loaded model.
pub struct Model(Never);

/// States of a model, kept between predictions.
pub struct State(Never);

/// A model that is being loaded.
pub struct PendingModel(Never);

/// Whether Core ML is available. The error contains the reason.
pub fn availability() -> Result {
    Err(Error::new(ErrorKind::Unavailable, "this system has no Core ML")
        .with_hint("run models on this machine's processor with coremill's engine"))
}

/// Compiles a package or a model file into a new directory.
pub fn compile(_model: &Path, _to: &Path, _options: &LoadOptions) -> Result {
    availability()
}

/// The compute devices of this machine.
pub fn devices() -> Result<Vec<Device>> {
    availability().map(|()| Vec::new())
}

/// Information on the machine.
pub fn chip_info() -> Result<Chip> {
    availability().map(|()| Chip::default())
}

/// Build of the operating system.
pub fn system_build() -> Result<String> {
    availability().map(|()| String::new())
}

/// The devices on which Core ML plans to run the operations of a compiled model.
pub fn plan(_compiled: &Path, _options: &LoadOptions) -> Result<Plan> {
    availability().map(|()| Plan::default())
}

impl Model {
    /// Loads a compiled model.
    pub fn load(_compiled: &Path, _options: &LoadOptions) -> Result<Model> {
        Err(availability().expect_err("Core ML is unavailable"))
    }

    /// Starts loading a compiled model.
    pub fn load_async(_compiled: &Path, _options: &LoadOptions) -> Result<PendingModel> {
        Err(availability().expect_err("Core ML is unavailable"))
    }

    /// The inputs.
    pub fn inputs(&self) -> &[ArrayFeature] {
        match self.0 {}
    }

    /// The outputs.
    pub fn outputs(&self) -> &[ArrayFeature] {
        match self.0 {}
    }

    /// The states.
    pub fn states(&self) -> &[ArrayFeature] {
        match self.0 {}
    }

    /// Runs the model.
    pub fn predict(
        &self,
        _inputs: &[(&str, Tensor<'_>)],
        _outputs: &mut [&mut dyn Output],
        _state: Option<&mut State>,
    ) -> Result {
        match self.0 {}
    }

    /// Runs the model on several sets of inputs.
    pub fn predict_batch(
        &self,
        _batch: &[Vec<(&str, Tensor<'_>)>],
    ) -> Result<Vec<Vec<OwnedTensor>>> {
        match self.0 {}
    }

    /// A state with zeroed arrays.
    pub fn new_state(&self) -> Result<State> {
        match self.0 {}
    }
}

impl State {
    /// A copy of an array.
    pub fn read(&self, _name: &str) -> Result<OwnedTensor> {
        match self.0 {}
    }

    /// Sets an array.
    pub fn write(&mut self, _name: &str, _value: Tensor<'_>) -> Result {
        match self.0 {}
    }

    /// Sets all arrays to zero.
    pub fn reset(&mut self) -> Result {
        match self.0 {}
    }
}

impl PendingModel {
    /// Waits until the model is loaded.
    pub fn wait(self) -> Result<Model> {
        match self.0 {}
    }

    /// Returns the model if it is loaded within the given time.
    pub fn wait_for(&mut self, _time: Duration) -> Option<Result<Model>> {
        match self.0 {}
    }
}
