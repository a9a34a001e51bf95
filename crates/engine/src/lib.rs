//! Runs ML Programs on this machine's CPU.
//!
//! [`Engine::load`] prepares a verified model. A [`Session`] runs one of its functions and holds
//! the states. A function is planned once for each set of input shapes: constants are folded,
//! operations fused, weights packed, and memory is shared. [`Numerics`] selects the arithmetic,
//! [`Limits`] bounds the resources of a run, and [`Hooks`] observe it.
//!
//! ```
//! use coremill_engine::{Array, Engine, LoadOptions};
//! use coremill_mil::{model, text};
//! use coremill_verify as verify;
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
//! | `value` | tensors, lists and dictionaries at run time |
//! | `plan` | planning of a function for given input shapes |
//! | `execute` | execution of plans |
//! | `fold` | constant folding for compilers |
//! | `states` | values of states between runs |
//! | `weights` | compressed constants, expanded on demand |
//! | `feature` | inputs, outputs and states; validation of arrays |
//! | `engine` | the public interface: [`Engine`], [`Session`] |

mod engine;
mod execute;
mod feature;
mod fold;
mod hooks;
mod lists;
mod options;
mod plan;
mod recycled;
mod spare;
mod states;
mod value;
mod weights;

pub use coremill_kernels::Numerics;
pub use coremill_reference::{
    Array, Elements, ElementsView, Error, ErrorKind, Limits, View, evaluate,
};
pub use engine::{Engine, Outputs, Session, ports};
pub use execute::Input;
pub use feature::FeatureSpec;
pub use fold::{FoldLimits, fold};
pub use hooks::{Hooks, Observer, Span};
pub use options::LoadOptions;
pub use states::StateValue;
pub use value::{Key, Value};
pub use weights::expanded;
