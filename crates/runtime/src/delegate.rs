use std::sync::Arc;

use coremill_io::unknown_name;
use coremill_kernels::Numerics;
use coremill_pte::Program;
use coremill_pte::program::ScalarType;

use crate::error::{Error, ErrorKind, Result};
use crate::hooks::Hooks;
use crate::limits::Limits;
use crate::value::Tensor;
use crate::view::{OutTensor, View};

/// A backend that runs delegated parts of methods.
pub trait Backend: Send + Sync {
    /// Backend id in programs, such as `CoreMLBackend`.
    fn id(&self) -> &str;

    /// Prepares a delegated part for execution. Each loaded method has its own delegate, with its own states.
    fn prepare(&self, part: &DelegatedPart<'_>) -> Result<Box<dyn Delegate>>;
}

/// A delegated part of a method, and how to prepare it.
#[derive(Clone, Copy, Debug)]
pub struct DelegatedPart<'a> {
    /// The whole program, including data shared by its delegates.
    pub program: &'a Program,
    /// The method that calls the delegate.
    pub method: &'a str,
    /// Payload and settings created when the program was lowered.
    pub delegate: &'a coremill_pte::program::Delegate,
    /// Maximum number of threads; 0 selects one per processor.
    pub threads: usize,
    /// The arithmetic, if the host computes.
    pub numerics: Numerics,
    /// Resource limits.
    pub limits: Limits,
}

/// A prepared delegate.
pub trait Delegate: Send {
    /// Number of arguments that are read; the remaining ones are written.
    fn inputs(&self) -> usize;

    /// Runs the delegate. Outputs with dynamic shapes are resized before they are written.
    fn execute(&mut self, inputs: &[View<'_>], outputs: &mut [OutTensor<'_>]) -> Result<()>;

    /// Runs the delegate and reports to the hooks.
    fn execute_with(
        &mut self,
        inputs: &[View<'_>],
        outputs: &mut [OutTensor<'_>],
        _hooks: &mut Hooks<'_>,
    ) -> Result<()> {
        self.execute(inputs, outputs)
    }

    /// The delegate's inputs, outputs and states; empty if unknown.
    fn interface(&self) -> Interface {
        Interface::default()
    }

    /// The states by name.
    fn states(&self) -> Result<Vec<(String, Tensor)>> {
        Ok(Vec::new())
    }

    /// Sets a state to a tensor of the same type and sizes.
    fn set_state(&mut self, name: &str, _value: &Tensor) -> Result<()> {
        Err(Error::new(unknown_name("state", name, [""; 0])).with_kind(ErrorKind::Input))
    }

    /// Resets all states to their initial values.
    fn reset(&mut self) -> Result<()> {
        Ok(())
    }
}

/// Inputs, outputs and states of a delegate.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Interface {
    /// Inputs, in the order of the arguments.
    pub inputs: Vec<Feature>,
    /// Outputs, in the order of the arguments.
    pub outputs: Vec<Feature>,
    /// States kept between runs.
    pub states: Vec<Feature>,
}

/// An input, output or state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Feature {
    /// Name of the tensor.
    pub name: String,
    /// Element type.
    pub scalar_type: ScalarType,
    /// Minimum and maximum size of each dimension; the maximum may be unbounded.
    pub extents: Vec<(usize, Option<usize>)>,
}

/// Finds a backend by its id.
pub(crate) fn find(backends: &[Arc<dyn Backend>], id: &str) -> Result<Arc<dyn Backend>> {
    match backends.iter().find(|backend| backend.id() == id) {
        Some(backend) => Ok(Arc::clone(backend)),
        None => {
            let known = backends.iter().map(|backend| backend.id());
            Err(Error::new(unknown_name("backend", id, known)).with_kind(ErrorKind::Load))
        }
    }
}
