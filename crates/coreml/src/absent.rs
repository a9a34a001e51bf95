//! What there is where Core ML is not: the same functions, which say so.

use std::path::Path;
use std::time::Duration;

use crate::error::{Error, ErrorKind, Result};
use crate::interface::{ArrayFeature, Chip, Device, Plan};
use crate::options::LoadOptions;
use crate::tensor::{Output, OwnedTensor, Tensor};

/// Cannot be made here.
enum Never {}

/// A model that is loaded.
pub struct Model(Never);

/// What a model keeps from one prediction to the next.
pub struct State(Never);

/// A model that is being loaded.
pub struct PendingModel(Never);

/// Whether Core ML can be used, and why not.
pub fn availability() -> Result {
    Err(Error::new(ErrorKind::Unavailable, "this system has no Core ML")
        .with_hint("run models on this machine's processor with coremill's engine"))
}

/// Compiles a package or a model file into a directory that does not exist yet.
pub fn compile(_model: &Path, _to: &Path, _options: &LoadOptions) -> Result {
    availability()
}

/// What computes models here.
pub fn devices() -> Result<Vec<Device>> {
    availability().map(|()| Vec::new())
}

/// The machine.
pub fn chip_info() -> Result<Chip> {
    availability().map(|()| Chip::default())
}

/// The build of the system.
pub fn system_build() -> Result<String> {
    availability().map(|()| String::new())
}

/// Which devices Core ML means to run a compiled model's operations on.
pub fn plan(_compiled: &Path, _options: &LoadOptions) -> Result<Plan> {
    availability().map(|()| Plan::default())
}

impl Model {
    /// Loads a compiled model.
    pub fn load(_compiled: &Path, _options: &LoadOptions) -> Result<Model> {
        Err(availability().expect_err("Core ML is unavailable"))
    }

    /// Begins to load a compiled model.
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

    /// A state whose arrays are zero.
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

    /// The model if it is loaded within this time.
    pub fn wait_for(&mut self, _time: Duration) -> Option<Result<Model>> {
        match self.0 {}
    }
}
