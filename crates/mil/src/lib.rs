//! MIL, the intermediate language of Core ML's ML Programs: its IR, operations, type inference and text.
//!
//! ```
//! use coremill_mil::text;
//!
//! let text = "program(1.3) {
//!     func main<ios17>(tensor<fp32, [2]> x) {
//!         tensor<fp32, [2]> y = add(x = x, y = x);
//!     } -> (y);
//! }";
//! let program = text::parse(text, &text::NoWeights).expect("it is MIL");
//! assert_eq!(program.functions[0].name, "main");
//! ```
//!
//! | module | contents |
//! |---|---|
//! | [`ir`] | programs in memory: types, constants, values, operations, blocks, functions |
//! | [`ops`] | the op table: one declaration for each definition of each operation |
//! | [`limits`] | limits on the contents of files |
//! | [`model`] | programs with the description that callers see |
//! | [`builder`] | functions built operation by operation |
//! | [`infer`] | type inference over the op table, with symbolic dimensions |
//! | [`text`] | MIL text, printed and parsed |

pub mod builder;
pub mod infer;
pub mod ir;
pub mod limits;
pub mod model;
pub mod ops;
pub mod text;
