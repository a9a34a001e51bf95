//! The names of `rlx-coreml`, implemented with `coremill-rlx`, so that the tests of `rlx-coreml` run against
//! our crate.
//!
//! This crate contains no lowering. It forwards calls, converts errors to the other crate's type or to
//! panics, and reads the package that coremill writes with the other crate's types ([`mil`]). Settings that
//! only select one of the other crate's lowerings, such as `q1_mode`, are accepted and ignored.

pub mod host_exec;
pub mod hybrid;
pub mod mil;
pub mod mlpackage;

use std::fmt;

use coremill_rlx::{Device, Precision};
use rlx_ir::{DType, Graph};

pub use coremill_rlx::{ComputeUnits, ane_available};
pub use mil::{LowerOptions, lower_graph, lower_graph_with_options};
pub use peer::proto;

/// The error type of `rlx-coreml`: a message, or the one variant that its tests match.
#[derive(Debug)]
pub enum CoremlError {
    /// An error of coremill.
    Unsupported(String),
    /// The model file is too large.
    TooLarge { what: String, bytes: usize, limit: usize },
}

impl fmt::Display for CoremlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CoremlError::Unsupported(message) | CoremlError::TooLarge { what: message, .. } => {
                f.write_str(message)
            }
        }
    }
}

impl std::error::Error for CoremlError {}

impl From<coremill_rlx::CoremlError> for CoremlError {
    fn from(error: coremill_rlx::CoremlError) -> CoremlError {
        CoremlError::Unsupported(error.to_string())
    }
}

pub type Result<T> = std::result::Result<T, CoremlError>;

/// The properties of a chip that the tests read.
#[derive(Clone, Debug)]
pub struct ChipInfo {
    pub brand: String,
}

pub fn chip_info() -> ChipInfo {
    let known = coremill_rlx::chip_info();
    let brand = known.chip.map_or_else(|| known.architecture.to_owned(), |chip| chip.name);
    ChipInfo { brand }
}

/// An executable whose methods panic in the same cases as those of `rlx-coreml`.
pub struct CoremlExecutable(coremill_rlx::CoremlExecutable);

fn or_panic<T>(result: coremill_rlx::Result<T>) -> T {
    result.unwrap_or_else(|error| panic!("{error}"))
}

impl CoremlExecutable {
    pub fn compile(graph: Graph) -> CoremlExecutable {
        CoremlExecutable(or_panic(coremill_rlx::CoremlExecutable::compile(graph)))
    }

    /// Compiles for the units if Core ML is available, and for the host otherwise.
    pub fn compile_with_units(graph: Graph, units: ComputeUnits) -> CoremlExecutable {
        if Device::from(units).check().is_err() {
            return CoremlExecutable::compile(graph);
        }
        let executable = coremill_rlx::CoremlExecutable::compile_with_units(graph, units);
        CoremlExecutable(or_panic(executable))
    }

    pub fn compile_with_lower_opts(graph: Graph, options: LowerOptions) -> CoremlExecutable {
        let precision = options.precision();
        let executable =
            coremill_rlx::CoremlExecutable::compile_for(graph, Device::Host, precision);
        CoremlExecutable(or_panic(executable))
    }

    pub fn set_param(&mut self, name: &str, elements: &[f32]) {
        or_panic(self.0.set_param(name, elements));
    }

    pub fn set_param_typed(&mut self, name: &str, bytes: &[u8], dtype: DType) {
        or_panic(self.0.set_param_typed(name, bytes, dtype));
    }

    pub fn finalize(&mut self) -> Result<()> {
        Ok(self.0.finalize()?)
    }

    pub fn run(&mut self, inputs: &[(&str, &[f32])]) -> Result<Vec<Vec<f32>>> {
        Ok(self.0.run(inputs)?)
    }

    /// The devices of the operations; the tests only print them.
    pub fn compute_plan(&mut self) -> Result<Option<[i32; 4]>> {
        Ok(None)
    }
}

impl LowerOptions {
    fn precision(&self) -> Precision {
        if self.float_dtype == DType::F16 { Precision::Fp16 } else { Precision::Fp32 }
    }
}

/// Does nothing, because coremill lowers complex graphs directly.
pub fn promote_c64_to_interleaved_f32(_: &mut Graph) {}
