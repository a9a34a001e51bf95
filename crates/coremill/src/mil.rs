//! Contents of models: programs in MIL, the intermediate language of Core ML's ML Programs, and
//! their descriptions.
//!
//! [`open`](crate::open) returns a [`Model`](crate::Model), whose `program` is an [`ir::Program`].
//! [`text`] prints and parses programs, [`ops`] defines the operations, and a [`verify::Report`]
//! lists problems.
//!
//! ```
//! use coremill::mil::ops::OpKind;
//! use coremill::mil::{model, text};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let text = "program(1.3) {
//!     func main<ios17>(tensor<fp32, [2]> x) {
//!         tensor<fp32, [2]> y = relu(x = x);
//!     } -> (y);
//! }";
//! let model = model::describe(text::parse(text, &text::NoWeights)?)?;
//! let kinds: Vec<_> = model.program.functions[0].all_ops().filter_map(|(_, op)| op.kind()).collect();
//! assert_eq!(kinds, [OpKind::Relu]);
//! # Ok(())
//! # }
//! ```
//!
//! | module | contents |
//! |---|---|
//! | [`ir`] | programs in memory: types, constants, values, operations, blocks, functions |
//! | [`model`] | programs with descriptions of their inputs and outputs |
//! | [`ops`] | the operation table, with one declaration per definition of an operation |
//! | [`text`] | MIL text: printing and parsing |
//! | [`verify`] | verification, and the proof of it that writers require |
//! | [`pipeline`] | models that consist of several models |

pub use coremill_mil::{ir, model, ops, text};
pub use coremill_mlpackage::pipeline;
pub use coremill_verify as verify;
