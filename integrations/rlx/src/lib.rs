//! Takes graphs of the crate `rlx-ir`, with the names of `rlx-coreml`, so that changing an import is enough.
//!
//! What panics there is an error here. Weights of GGUF stay in their blocks, and become Core ML's compressed
//! constants where those are exact. [`support`] says what becomes of each kind of operation: all are lowered but
//! those that run code of the caller, which [`HostCallbacks`] takes. Numbers are computed in `fp32` or narrower, those of
//! `F64` graphs, too; complex numbers are passed as pairs of floats.
//!
//! Graphs with open dimensions are compiled for the sizes of a run's inputs, and kept. `save_flexible` writes one package
//! for all sizes.
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

/// What calls give.
pub type Result<T> = std::result::Result<T, CoremlError>;

/// The devices that Core ML may use, under the peer's names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ComputeUnits {
    /// Whatever Core ML chooses.
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
    /// The graph, if it has dimensions that inputs decide.
    open: Option<Graph>,
    /// What was compiled, by the lengths of the inputs; none for a graph without open dimensions.
    plans: HashMap<Vec<usize>, Plan>,
    /// Parameters as they were set, for what is compiled later.
    params: Vec<(String, Param, DType)>,
}

impl CoremlExecutable {
    /// Compiles a graph for the host in `fp32`.
    pub fn compile(graph: Graph) -> Result<CoremlExecutable> {
        CoremlExecutable::compile_for(graph, Device::Host, Precision::Fp32)
    }

    /// Compiles a graph for a device in a precision.
    pub fn compile_for(
        graph: Graph,
        device: Device,
        precision: Precision,
    ) -> Result<CoremlExecutable> {
        CoremlExecutable::compile_with(graph, device, precision, HostCallbacks::new())
    }

    /// Compiles a graph for Core ML in `fp32`; where Core ML is not, an error says so.
    pub fn compile_with_units(graph: Graph, units: ComputeUnits) -> Result<CoremlExecutable> {
        CoremlExecutable::compile_for(graph, units.into(), Precision::Fp32)
    }

    /// Compiles a graph that no package holds alone: operations that `hosts` has functions for run there, and the
    /// rest becomes one package for each stretch between them.
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

    /// Compiles a graph with open dimensions for sizes of them, and forgets the others.
    pub fn bind(&mut self, sizes: &[(u32, usize)]) -> Result<()> {
        let Some(graph) = &self.open else {
            return Err(failure("the graph has no open dimensions"));
        };
        let bound = specialize(graph, &DimBinding::from_pairs(sizes));
        if has_dynamic_dims(&bound) {
            return Err(failure(format!("sizes {sizes:?} leave dimensions open")));
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

    /// Sets a parameter to packed little-endian elements of a type, or to the blocks that its use asks for.
    pub fn set_param_typed(&mut self, name: &str, bytes: &[u8], dtype: DType) -> Result<()> {
        let stored = coremill_graph::DType::UInt8;
        self.set_stored(name, Param::elements(stored, [bytes.len() as u64], bytes.to_vec())?, dtype)
    }

    /// Sets a parameter to the bytes that another holds.
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

    /// A plan with the parameters that have been set.
    fn filled(&self, mut plan: Plan) -> Result<Plan> {
        for (name, stored, dtype) in &self.params {
            plan.set(name, stored, *dtype)?;
        }
        Ok(plan)
    }

    /// Compiles and loads now what the first run would.
    pub fn finalize(&mut self) -> Result<()> {
        self.plans.values_mut().try_for_each(Plan::prepare)
    }

    /// Runs the graph on inputs by name; integers are passed as floats, complex numbers as pairs. Gives the outputs in
    /// their order.
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
                return Err(failure("the inputs do not decide all open dimensions: call `bind`"));
            }
            let plan = self.filled(Plan::new(&bound, &self.setting)?)?;
            self.plans.insert(lengths.clone(), plan);
        }
        match self.plans.get_mut(&lengths) {
            Some(plan) => plan.run(inputs),
            None => Err(failure("nothing was compiled")),
        }
    }

    /// Writes the model as a `.mlpackage` or a `.mlmodelc`, if it is one package. A graph with open dimensions is
    /// bound before, or saved by [`save_flexible`](CoremlExecutable::save_flexible).
    pub fn save(&mut self, path: impl AsRef<Path>) -> Result<()> {
        if self.open.is_some() {
            return Err(failure(
                "the graph has open dimensions: call `bind` before saving it, or `save_flexible`",
            ));
        }
        match self.plans.values_mut().next() {
            Some(plan) => plan.save(path.as_ref()),
            None => Err(failure("nothing was compiled")),
        }
    }

    /// Writes a graph with open dimensions as one package, whose inputs have the sizes given for each dimension. The
    /// default shape has the smallest ones.
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

    /// What is known about this machine.
    pub fn chip_info(&self) -> ChipInfo {
        chip_info()
    }
}

/// The most bytes of a model file, weights not counted: what protobuf allows a message.
pub const MAX_MODEL_BYTES: u64 = (1 << 31) - 1;

/// Refuses a model file of more bytes than a limit; [`MAX_MODEL_BYTES`] is Core ML's.
pub fn check_model_size(bytes: u64, limit: u64) -> Result<()> {
    if bytes <= limit {
        return Ok(());
    }
    Err(failure(format!("the model file must have at most {limit} bytes, got {bytes}")))
}
