//! What models are made of: programs in MIL, the intermediate language of Core ML's ML Programs, and what callers are told
//! of them.
//!
//! [`open`](crate::open) gives a [`Model`](crate::Model), whose `program` is an [`ir::Program`]; [`text`] prints and parses
//! it, [`ops`] says what each operation takes, and a [`verify::Report`] what Core ML would refuse.
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
//! | module | holds |
//! |---|---|
//! | [`ir`] | programs in memory: types, constants, values, operations, blocks, functions |
//! | [`model`] | programs with what callers are told about them |
//! | [`ops`] | the op table: one declaration for each definition of each operation |
//! | [`text`] | MIL text, printed and parsed |
//! | [`verify`] | what Core ML would refuse, all at once; the proof that writers require |
//! | [`pipeline`] | models made of several |

pub use coremill_mil::{ir, model, ops, text, verify};
pub use coremill_mlpackage::pipeline;
