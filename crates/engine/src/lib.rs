//! Runs ML Programs on this machine's CPU.
//!
//! [`Engine::load`] prepares a verified model. A [`Session`] runs one of its functions and holds
//! the states. A function is planned once for each set of input shapes: constants are folded,
//! operations fused, weights packed, and memory is shared. [`Numerics`] selects the arithmetic,
//! [`Limits`] bounds the resources of a run, and [`Hooks`] observe it.
//!
//! ```
//! use coremill_engine::{Array, Engine, LoadOptions};
//! use coremill_mil::{model, text, verify};
//! use coremill_tensor::DType;
//!
//! let text = "
//!     program(1.3) {
//!         func main<ios17>(tensor<fp32, [2, 2]> x) {
//!             tensor<fp32, [2, 2]> y = matmul(x = x, y = x);
//!         } -> (y);
//!     }
//! ";
//! let model = model::describe(text::parse(text, &text::NoWeights).expect("it is MIL")).expect("it is complete");
//! let verified = verify::verify(&model).expect("it is sound");
//!
//! let engine = Engine::load(&verified, &LoadOptions::default())?;
//! let mut session = engine.session("main")?;
//! let x = Array::floats(DType::Fp32, [2, 2], vec![1.0, 2.0, 3.0, 4.0]);
//! let outputs = session.run(&[("x", x)])?;
//! assert_eq!(outputs.array("y").and_then(Array::as_floats), Some(&[7.0, 10.0, 15.0, 22.0][..]));
//! # Ok::<(), coremill_engine::Error>(())
//! ```
//!
//! | module | contents |
//! |---|---|
//! | `array`, `value` | tensors, lists and dictionaries at run time |
//! | `reference` | reference kernels, which define the semantics of each operation |
//! | `arithmetic`, `device` | products, functions and operations in the arithmetic of a run |
//! | `plan` | planning of a function for given input shapes |
//! | `execute` | execution of plans |
//! | `evaluate` | evaluation of one operation on constants |
//! | `fold` | constant folding for compilers |
//! | `weights` | compressed constants, expanded on demand |
//! | `feature` | inputs, outputs and states; validation of arrays |
//! | `engine` | the public interface: [`Engine`], [`Session`] |

mod arithmetic;
mod array;
mod call;
mod cpu;
mod device;
mod engine;
mod error;
mod evaluate;
mod execute;
mod feature;
mod fold;
mod geometry;
mod hooks;
mod limits;
mod lists;
mod movement;
mod options;
mod plan;
mod recycled;
mod reference;
mod spare;
mod value;
mod weights;

pub use array::{Array, Elements, ElementsView, View};
pub use coremill_kernels::Numerics;
pub use engine::{Engine, Outputs, Session, ports};
pub use error::{Error, ErrorKind};
pub use evaluate::evaluate;
pub use execute::Input;
pub use feature::FeatureSpec;
pub use fold::{FoldLimits, fold};
pub use hooks::{Hooks, Observer, Span};
pub use limits::Limits;
pub use options::LoadOptions;
pub use value::{Key, Value};
pub use weights::expanded;
