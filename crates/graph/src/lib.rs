//! Models defined in Rust, which run on this machine or are written for Core ML.
//!
//! A [`Graph`] is built operation by operation. Types and shapes are inferred immediately, and errors are reported
//! with their line of Rust code. A [`Session`] compiles graphs for a [`Device`]. [`Params`] are set from slices or
//! from files of weights. An [`Executable`] runs the model or saves it.
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
//! | module | contents |
//! |---|---|
//! | [`ops`] | every MIL operation as a method, generated from the op table |
//! | [`nn`] | layers that consist of several operations: attention, scans and so on |
//! | [`Graph`], [`Tensor`], [`State`] | functions and their values |
//! | [`Params`], [`Param`], [`Gguf`], [`Scheme`] | weights, in memory and in files |
//! | [`Session`], [`Device`], [`Executable`] | compile, run and save models |

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
pub use coremill_delegate::{
    Constant as MethodConstant, ConstantTensor, ModelType, ProgramOptions,
};
pub use coremill_engine::{Array, FeatureSpec, Numerics, Outputs};
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
pub use weights::{Gguf, MetadataArray, MetadataValue};
