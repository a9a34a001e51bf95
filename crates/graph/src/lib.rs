//! Models described in Rust, run on this machine or written for Core ML.
//!
//! A [`Graph`] grows operation by operation; types and shapes are inferred at once, and a mistake is reported
//! with the line of Rust that made it. A [`Session`] compiles graphs for a [`Device`], [`Params`] come from
//! slices or from files of weights, and an [`Executable`] runs or is saved.
//!
//! ```
//! use coremill_graph::{DType, Device, Graph, Precision, Session};
//!
//! let graph = Graph::new();
//! let x = graph.input("x", DType::Fp32, [1, 2]);
//! let w = graph.param("w", [2, 2]);
//! graph.output("y", x.matmul_t(w) + 1.0);
//!
//! let mut model = Session::new(Device::Host).precision(Precision::Fp32).compile(&graph)?;
//! model.set_param("w", [1.0f32, 2.0, 3.0, 4.0])?;
//! let outputs = model.run(&[("x", &[1.0f32, 1.0])])?;
//! assert_eq!(outputs.floats("y"), Some(&[4.0, 8.0][..]));
//! # Ok::<(), coremill_graph::Error>(())
//! ```
//!
//! | module | holds |
//! |---|---|
//! | [`ops`] | every operation of MIL as a method, in rows generated from the op table |
//! | [`nn`] | modules of several operations: layers, attention, scans |
//! | [`Graph`], [`Tensor`], [`State`] | what a function is made of |
//! | [`Params`], [`Param`], [`Gguf`], [`Scheme`] | weights, in memory and in files |
//! | [`Session`], [`Device`], [`Executable`] | compiling, running, saving |

mod arg;
mod blocks;
mod call;
mod compile;
mod declare;
mod error;
mod forms;
mod functions;
mod graph;
pub mod nn;
#[macro_use]
mod operation;
mod operators;
pub mod ops;
mod params;
mod places;
mod scheme;
mod session;
mod state;
mod tensor;
mod weights;

pub use arg::{Arg, Args, Bools, Ints};
pub use compile::{CompileOptions, Precision};
pub use coremill_coreml::{Chip, DeviceKind, Plan, PlannedOperation};
pub use coremill_engine::{Array, FeatureSpec, Outputs};
pub use coremill_mil::ir::{Constant, Dim, Opset};
pub use coremill_session::{
    ArrayView, BorrowedElements, ChipInfo, Device, Element, Input, ane_available, chip_info,
};
pub use coremill_tensor::DType;
pub use error::{BuildError, Error, ErrorKind};
pub use graph::Graph;
pub use params::{Param, Params};
pub use scheme::Scheme;
pub use session::{Executable, Session};
pub use state::State;
pub use tensor::Tensor;
pub use weights::{Gguf, MetadataValue};
