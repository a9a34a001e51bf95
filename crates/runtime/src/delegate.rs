use std::sync::Arc;

use coremill_io::unknown_name;
use coremill_pte::Program;
use coremill_pte::program::ScalarType;

use crate::error::{Error, ErrorKind, Result};
use crate::hooks::Hooks;
use crate::limits::Limits;
use crate::value::Tensor;
use crate::view::{OutTensor, View};

/// What runs the parts of methods that were delegated to it.
pub trait Backend: Send + Sync {
    /// The name by which programs ask for it, `CoreMLBackend` for instance.
    fn id(&self) -> &str;

    /// Makes what a method was compiled to ready to run. Each method that is loaded has its own, which keeps
    /// its states.
    fn prepare(&self, part: &DelegatedPart<'_>) -> Result<Box<dyn Delegate>>;
}

/// What a backend is given.
#[derive(Clone, Copy, Debug)]
pub struct DelegatedPart<'a> {
    /// The whole program, which also holds what parts share.
    pub program: &'a Program,
    /// The method that calls the part.
    pub method: &'a str,
    /// What the backend made when the program was lowered, and its settings.
    pub delegate: &'a coremill_pte::program::Delegate,
    /// The most threads that it should use; 0 stands for one for each processor.
    pub threads: usize,
    /// Whether each result is to be rounded to its type, as a device does that stores it.
    pub rounded: bool,
    /// What it may ask for.
    pub limits: Limits,
}

/// A part of a method that a backend runs.
pub trait Delegate: Send {
    /// How many of a call's tensors are read; the others are written.
    fn inputs(&self) -> usize;

    /// Runs it. Outputs are resized before they are written, where their shapes are dynamic.
    fn execute(&mut self, inputs: &[View<'_>], outputs: &mut [OutTensor<'_>]) -> Result<()>;

    /// The same, while something looks on, which is told what the delegate knows.
    fn execute_with(
        &mut self,
        inputs: &[View<'_>],
        outputs: &mut [OutTensor<'_>],
        _hooks: &mut Hooks<'_>,
    ) -> Result<()> {
        self.execute(inputs, outputs)
    }

    /// What it takes, gives and keeps; nothing if it cannot tell.
    fn interface(&self) -> Interface {
        Interface::default()
    }

    /// What it keeps from run to run, by name.
    fn states(&self) -> Result<Vec<(String, Tensor)>> {
        Ok(Vec::new())
    }

    /// Sets what it keeps under one of these names, to a tensor of the same type and sizes.
    fn set_state(&mut self, name: &str, _value: &Tensor) -> Result<()> {
        Err(Error::new(unknown_name("state", name, [""; 0])).with_kind(ErrorKind::Input))
    }

    /// Sets everything that it keeps back to what it was at first.
    fn reset(&mut self) -> Result<()> {
        Ok(())
    }
}

/// What a delegate takes, gives and keeps.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Interface {
    /// What it reads, in the order in which it is given.
    pub inputs: Vec<Feature>,
    /// What it writes, likewise.
    pub outputs: Vec<Feature>,
    /// What it keeps from run to run.
    pub states: Vec<Feature>,
}

/// A tensor at the edge of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Feature {
    /// The name.
    pub name: String,
    /// The type of the elements.
    pub scalar_type: ScalarType,
    /// The least and the largest extent of each dimension; the largest may be unbounded.
    pub extents: Vec<(usize, Option<usize>)>,
}

/// The backend of a name among several.
pub(crate) fn find(backends: &[Arc<dyn Backend>], id: &str) -> Result<Arc<dyn Backend>> {
    match backends.iter().find(|backend| backend.id() == id) {
        Some(backend) => Ok(Arc::clone(backend)),
        None => {
            let known = backends.iter().map(|backend| backend.id());
            Err(Error::new(unknown_name("backend", id, known)).with_kind(ErrorKind::Load))
        }
    }
}
