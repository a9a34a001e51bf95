//! Reference kernels: the semantics of each MIL operation, for any shape and element type.
//!
//! The engine plans faster kernels where it can; these must compute the same results. Other operations, and constants
//! in compilers, are computed here. [`evaluate`] computes one operation from its arguments.
//!
//! ```
//! use coremill_mil::ir::Opset;
//! use coremill_mil::ops::OpKind;
//! use coremill_reference::{Array, evaluate};
//! use coremill_tensor::DType;
//!
//! let x = [Array::floats(DType::Fp32, [3], vec![-1.0, 0.0, 2.0])];
//! let outputs = evaluate(OpKind::Relu, Opset::Ios17, &[("x", &x)], &[DType::Fp32])?;
//! assert_eq!(outputs[0].as_floats(), Some(&[0.0, 0.0, 2.0][..]));
//! # Ok::<(), coremill_reference::Error>(())
//! ```
//!
//! | module | contents |
//! |---|---|
//! | [`array`] | tensors at run time |
//! | [`call`] | arguments of a kernel by name, with the defaults of the operation table |
//! | [`ops`] | the kernels, by family of operations |
//! | [`geometry`], [`movement`] | shapes, strides, and movement of elements of any type |
//! | [`arithmetic`], [`device`] | products, functions and operations in the arithmetic of a run |

pub mod arithmetic;
pub mod array;
pub mod call;
pub mod cpu;
pub mod device;
pub mod error;
mod evaluate;
pub mod geometry;
pub mod limits;
pub mod movement;
pub mod ops;

pub use array::{Array, Elements, ElementsView, View};
pub use error::{Error, ErrorKind};
pub use evaluate::evaluate;
pub use limits::Limits;
