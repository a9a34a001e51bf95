//! Core ML models as delegates of ExecuTorch programs.
//!
//! [`program`](program()) writes a model as an ExecuTorch program whose methods each call one delegate. The compiler uses the
//! [`payload`](payload()) of a model for the delegates that it places between kernels.
//!
//! ```
//! use coremill_delegate::{Constant, ProgramOptions, program};
//! use coremill_mil::{model, text};
//!
//! let text = "program(1.3) {
//!     func main<ios17>(tensor<fp32, [2]> x) {
//!         tensor<fp32, [2]> y = add(x = x, y = x);
//!     } -> (y);
//! }";
//! let model = model::describe(text::parse(text, &text::NoWeights).expect("MIL")).expect("complete");
//! let options = ProgramOptions {
//!     constant_methods: vec![("get_eos_ids".to_owned(), Constant::Several(vec![2.into(), 7.into()]))],
//!     ..ProgramOptions::default()
//! };
//! let program = program(&model, &options)?;
//! let names: Vec<_> = program.plans.iter().map(|plan| plan.name.as_str()).collect();
//! assert_eq!(names, ["forward", "get_eos_ids"]);
//! # Ok::<(), coremill_delegate::Error>(())
//! ```
//!
//! | module | holds |
//! |---|---|
//! | `payload` | [`payload`](payload()): the files of a model in the format of ExecuTorch's Core ML backend |
//! | `constant` | [`Constant`], [`constant_method`]: methods that return constants |
//! | `program` | [`program`](program()): methods that are one call of a delegate |

mod constant;
mod error;
mod payload;
mod program;

pub use constant::{Constant, ConstantTensor, constant_method};
pub use error::{Error, ErrorKind, Result};
pub use payload::{Handles, ModelType, payload, payload_in};
pub use program::{FORWARD, ProgramOptions, delegate, program, shared_delegates};
