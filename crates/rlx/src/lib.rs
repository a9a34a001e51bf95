//! Takes graphs of the crate `rlx-ir`, with the names of `rlx-coreml`, so that changing an import is enough.
//!
//! What panics there is an error here. Weights of GGUF stay in their blocks, and become Core ML's compressed
//! constants where those are exact. [`support`] says of each kind of operation whether it is lowered.
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
mod backward;
mod lower;
mod network;
mod shape;
mod support;

use std::collections::HashMap;
use std::path::Path;

use coremill_graph::{Array, Device, Error, Executable, Input, Opset, Param, Precision, Session};
use rlx_ir::{DType, Graph};

pub use coremill_graph::{ChipInfo, Error as CoremlError, Scheme, ane_available, chip_info};
pub use support::{KINDS, Support, support};

/// A compiled graph.
pub struct CoremlExecutable {
    executable: Executable,
    /// Names and element types of the inputs.
    inputs: Vec<(String, DType)>,
    outputs: Vec<String>,
    /// The schemes and shapes of parameters that are blocks.
    blocks: HashMap<String, (Scheme, Vec<u64>)>,
}

/// The release that graphs are lowered for: the first with compressed constants of blocks.
const TARGET: Opset = Opset::Ios18;

impl CoremlExecutable {
    /// Compiles a graph for the host in `fp32`.
    pub fn compile(graph: Graph) -> Result<CoremlExecutable, Error> {
        CoremlExecutable::compile_for(graph, Device::Host, Precision::Fp32)
    }

    /// Compiles a graph for a device in a precision.
    pub fn compile_for(
        graph: Graph,
        device: Device,
        precision: Precision,
    ) -> Result<CoremlExecutable, Error> {
        let lowered = lower::lower(&graph, TARGET)?;
        let session = Session::new(device).precision(precision);
        Ok(CoremlExecutable {
            executable: session.compile(&lowered.graph)?,
            inputs: lowered.inputs,
            outputs: lowered.outputs,
            blocks: lowered.blocks,
        })
    }

    /// Sets a parameter.
    pub fn set_param(&mut self, name: &str, elements: &[f32]) -> Result<(), Error> {
        self.executable.set_param(name, elements)
    }

    /// Sets a parameter to packed little-endian elements of a type, or to the blocks that its use asks for.
    pub fn set_param_typed(&mut self, name: &str, bytes: &[u8], dtype: DType) -> Result<(), Error> {
        if let Some((scheme, shape)) = self.blocks.get(name) {
            let param = Param::blocks(*scheme, shape.clone(), bytes.to_vec())?;
            return self.executable.set(name, param);
        }
        let shape = self.executable.param_shape(name)?;
        let param = Param::elements(lower::element_type(dtype)?, shape, bytes.to_vec())?;
        self.executable.set(name, param)
    }

    /// Compiles and loads now what the first run would.
    pub fn finalize(&mut self) -> Result<(), Error> {
        self.executable.prepare()
    }

    /// Runs the graph on inputs by name; integers are passed as floats. Gives the outputs in their order.
    pub fn run(&mut self, inputs: &[(&str, &[f32])]) -> Result<Vec<Vec<f32>>, Error> {
        let is_whole = |name: &str| {
            let known = self.inputs.iter().find(|(found, _)| found == name);
            known.is_some_and(|(_, dtype)| !dtype.is_float())
        };
        let converted: Vec<(&str, Box<dyn Input>)> = inputs
            .iter()
            .map(|&(name, elements)| -> (&str, Box<dyn Input>) {
                if is_whole(name) {
                    (name, Box::new(elements.iter().map(|&x| x as i32).collect::<Vec<i32>>()))
                } else {
                    (name, Box::new(elements.to_vec()))
                }
            })
            .collect();
        let given: Vec<(&str, &dyn Input)> =
            converted.iter().map(|(name, input)| (*name, &**input)).collect();
        let outputs = self.executable.run(&given)?;
        let floats = |array: &Array| match (array.as_floats(), array.as_ints()) {
            (Some(floats), _) => floats.to_vec(),
            (_, ints) => ints.unwrap_or_default().iter().map(|&x| x as f32).collect(),
        };
        Ok(self
            .outputs
            .iter()
            .map(|name| outputs.array(name).map(floats).unwrap_or_default())
            .collect())
    }

    /// Writes the model as a `.mlpackage` or a `.mlmodelc`.
    pub fn save(&mut self, path: impl AsRef<Path>) -> Result<(), Error> {
        self.executable.save(path)
    }

    /// What is known about this machine.
    pub fn chip_info(&self) -> ChipInfo {
        chip_info()
    }
}

/// The most bytes of a model file, weights not counted: what protobuf allows a message.
pub const MAX_MODEL_BYTES: u64 = (1 << 31) - 1;

/// Refuses a model file that is too large for Core ML to read.
pub fn check_model_size(bytes: u64) -> Result<(), Error> {
    lower::check(bytes <= MAX_MODEL_BYTES, || {
        format!("the model file has {bytes} bytes; accepted are {MAX_MODEL_BYTES}")
    })
}
