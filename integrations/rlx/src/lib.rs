//! Compiles graphs of the crate `rlx-ir`, with the names of `rlx-coreml`, so that only the import must be
//! changed.
//!
//! Panics of `rlx-coreml` are errors in this crate. GGUF weights keep their blocks and become compressed
//! constants of Core ML if these are exact. [`support`] reports how each kind of operation is supported: all
//! are lowered except those that run code of the caller, which [`HostCallbacks`] registers. Numbers are
//! computed in `fp32` or narrower, including `F64`; complex numbers are passed as pairs of floats.
//!
//! Graphs with dynamic dimensions are compiled for the sizes of each run's inputs, and the results are kept.
//! `save_flexible` writes one package for all sizes.
//!
//! ```
//! use coremill_rlx::CoremlExecutable;
//! use rlx_ir::{DType, Graph, Op, Shape};
//!
//! let mut graph = Graph::new("linear");
//! let shape = |dims: &[usize]| Shape::new(dims, DType::F32);
//! let x = graph.add_node(Op::Input { name: "x".into() }, vec![], shape(&[1, 2]));
//! let w = graph.add_node(Op::Param { name: "W".into() }, vec![], shape(&[2, 2]));
//! let y = graph.add_node(Op::MatMul, vec![x, w], shape(&[1, 2]));
//! graph.set_outputs(vec![y]);
//!
//! let mut executable = CoremlExecutable::compile(graph)?;
//! executable.set_param("W", &[1.0, 2.0, 3.0, 4.0])?;
//! assert_eq!(executable.run(&[("x", &[1.0, 1.0])])?, [[4.0, 6.0]]);
//! # Ok::<(), coremill_rlx::CoremlError>(())
//! ```

mod arithmetic;
mod attention;
mod backward;
mod complex;
mod control;
mod dispatch;
mod divide;
mod element;
mod error;
mod formats;
mod gguf;
mod gradients;
mod linalg;
mod network;
mod packed;
mod plan;
mod quantized;
mod recurrent;
mod shape;
mod site;
mod spectral;
mod support;
mod windows;

use std::collections::HashMap;
use std::ops::RangeInclusive;
use std::path::Path;

use coremill_graph::Param;
use rlx_ir::dynamic::{has_dynamic_dims, infer_bindings_from_f32_inputs, specialize};
use rlx_ir::shape::DimBinding;
use rlx_ir::{DType, Graph};

pub use coremill_graph::{
    ChipInfo, Device, Error as CoremlError, Precision, Scheme, ane_available, chip_info,
};
pub use divide::{HostCall, HostCallbacks};
pub use support::{KINDS, Support, support};

use error::failure;
use plan::{Plan, Setting};

/// Result of this crate's functions.
pub type Result<T> = std::result::Result<T, CoremlError>;

/// The devices that Core ML may use, with the names of `rlx-coreml`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ComputeUnits {
    /// All devices.
    #[default]
    All,
    /// The CPU.
    CpuOnly,
    /// The CPU and the GPU.
    CpuAndGpu,
    /// The CPU and the Neural Engine.
    CpuAndNeuralEngine,
}

impl From<ComputeUnits> for Device {
    fn from(units: ComputeUnits) -> Device {
        match units {
            ComputeUnits::All => Device::All,
            ComputeUnits::CpuOnly => Device::Cpu,
            ComputeUnits::CpuAndGpu => Device::Gpu,
            ComputeUnits::CpuAndNeuralEngine => Device::NeuralEngine,
        }
    }
}

/// A compiled graph.
#[derive(Debug)]
pub struct CoremlExecutable {
    setting: Setting,
    /// The graph, if it has dynamic dimensions.
    open: Option<Graph>,
    /// Compiled plans by the lengths of the inputs; a single one for a graph without dynamic dimensions.
    plans: HashMap<Vec<usize>, Plan>,
    /// The parameters, for plans that are compiled later.
    params: Vec<(String, Param, DType)>,
}

impl CoremlExecutable {
    /// Compiles a graph for the host in `fp32`.
    pub fn compile(graph: Graph) -> Result<CoremlExecutable> {
        CoremlExecutable::compile_for(graph, Device::Host, Precision::Fp32)
    }

    /// Compiles a graph for a device and a precision.
    pub fn compile_for(
        graph: Graph,
        device: Device,
        precision: Precision,
    ) -> Result<CoremlExecutable> {
        CoremlExecutable::compile_with(graph, device, precision, HostCallbacks::new())
    }

    /// Compiles a graph for Core ML in `fp32`. Returns an error on systems without Core ML.
    pub fn compile_with_units(graph: Graph, units: ComputeUnits) -> Result<CoremlExecutable> {
        CoremlExecutable::compile_for(graph, units.into(), Precision::Fp32)
    }

    /// Compiles a graph in which some operations run on functions in `hosts`. Each part of the graph between
    /// them becomes a package.
    pub fn compile_with(
        graph: Graph,
        device: Device,
        precision: Precision,
        hosts: HostCallbacks,
    ) -> Result<CoremlExecutable> {
        let setting = Setting { device, precision, hosts };
        let (mut plans, mut open) = (HashMap::new(), None);
        if has_dynamic_dims(&graph) {
            if !graph.sym_attrs().is_empty() {
                return Err(failure("the graph has settings that depend on open dimensions"));
            }
            open = Some(graph);
        } else {
            plans.insert(Vec::new(), Plan::new(&graph, &setting)?);
        }
        Ok(CoremlExecutable { setting, open, plans, params: Vec::new() })
    }

    /// Compiles a graph with dynamic dimensions for specific sizes, and drops plans for other sizes.
    pub fn bind(&mut self, sizes: &[(u32, usize)]) -> Result<()> {
        let Some(graph) = &self.open else {
            return Err(failure("the graph has no open dimensions"));
        };
        let bound = specialize(graph, &DimBinding::from_pairs(sizes));
        if has_dynamic_dims(&bound) {
            return Err(failure(format!("sizes {sizes:?} do not determine all open dimensions")));
        }
        let plan = self.filled(Plan::new(&bound, &self.setting)?)?;
        self.open = None;
        self.plans = HashMap::from([(Vec::new(), plan)]);
        Ok(())
    }

    /// Sets a parameter.
    pub fn set_param(&mut self, name: &str, elements: &[f32]) -> Result<()> {
        self.set_stored(name, Param::floats([elements.len() as u64], elements)?, DType::F32)
    }

    /// Sets a parameter to packed little-endian elements of a type, or to the blocks that its use requires.
    pub fn set_param_typed(&mut self, name: &str, bytes: &[u8], dtype: DType) -> Result<()> {
        let stored = coremill_graph::DType::UInt8;
        self.set_stored(name, Param::elements(stored, [bytes.len() as u64], bytes.to_vec())?, dtype)
    }

    /// Sets a parameter to the bytes of a stored parameter.
    fn set_stored(&mut self, name: &str, stored: Param, dtype: DType) -> Result<()> {
        for plan in self.plans.values_mut() {
            plan.set(name, &stored, dtype)?;
        }
        if self.open.is_some() {
            self.params.retain(|(known, ..)| known != name);
            self.params.push((name.to_owned(), stored, dtype));
        }
        Ok(())
    }

    /// Sets the current parameters in a plan.
    fn filled(&self, mut plan: Plan) -> Result<Plan> {
        for (name, stored, dtype) in &self.params {
            plan.set(name, stored, *dtype)?;
        }
        Ok(plan)
    }

    /// Compiles and loads the model now instead of at the first run.
    pub fn finalize(&mut self) -> Result<()> {
        self.plans.values_mut().try_for_each(Plan::prepare)
    }

    /// Runs the graph on inputs by name, and returns the outputs in order. Integers are passed as floats,
    /// complex numbers as pairs of floats.
    pub fn run(&mut self, inputs: &[(&str, &[f32])]) -> Result<Vec<Vec<f32>>> {
        let Some(graph) = &self.open else {
            return match self.plans.values_mut().next() {
                Some(plan) => plan.run(inputs),
                None => Err(failure("nothing was compiled")),
            };
        };
        let lengths: Vec<usize> = inputs.iter().map(|(_, elements)| elements.len()).collect();
        if !self.plans.contains_key(&lengths) {
            let sizes = infer_bindings_from_f32_inputs(graph, inputs).map_err(failure)?;
            let bound = specialize(graph, &sizes);
            if has_dynamic_dims(&bound) {
                return Err(failure(
                    "the inputs do not determine all open dimensions: call `bind`",
                ));
            }
            let plan = self.filled(Plan::new(&bound, &self.setting)?)?;
            self.plans.insert(lengths.clone(), plan);
        }
        match self.plans.get_mut(&lengths) {
            Some(plan) => plan.run(inputs),
            None => Err(failure("nothing was compiled")),
        }
    }

    /// Writes the model as a `.mlpackage` or a `.mlmodelc`, if it is a single package. A graph with dynamic
    /// dimensions must be bound first, or saved by [`save_flexible`](CoremlExecutable::save_flexible).
    pub fn save(&mut self, path: impl AsRef<Path>) -> Result<()> {
        if self.open.is_some() {
            return Err(failure(
                "the graph has open dimensions: call `bind` before `save`, or call `save_flexible`",
            ));
        }
        match self.plans.values_mut().next() {
            Some(plan) => plan.save(path.as_ref()),
            None => Err(failure("nothing was compiled")),
        }
    }

    /// Writes a graph with dynamic dimensions as one package, whose inputs have the given sizes of each
    /// dimension. The default shape has the smallest sizes.
    pub fn save_flexible(
        &self,
        path: impl AsRef<Path>,
        sizes: &[(u32, RangeInclusive<usize>)],
    ) -> Result<()> {
        let Some(graph) = &self.open else {
            return Err(failure("the graph has no open dimensions: call `save`"));
        };
        self.filled(Plan::flexible(graph, &self.setting, sizes)?)?.save(path.as_ref())
    }

    /// Properties of this machine.
    pub fn chip_info(&self) -> ChipInfo {
        chip_info()
    }
}

/// Maximum size of a model file in bytes, without weights: the limit of protobuf for a message.
pub const MAX_MODEL_BYTES: u64 = (1 << 31) - 1;

/// Checks the size of a model file against a limit; Core ML's is [`MAX_MODEL_BYTES`].
pub fn check_model_size(bytes: u64, limit: u64) -> Result<()> {
    if bytes <= limit {
        return Ok(());
    }
    Err(failure(format!("the model file must have at most {limit} bytes, got {bytes}")))
}
