//! Runtime for ExecuTorch programs.
//!
//! [`Program::load`] maps a `.pte` file. A [`Method`] has its own memory and can run any number of times. Core ML
//! delegates run on Core ML if it is available (feature `coreml`), otherwise on the engine of this workspace
//! (feature `host`). All other calls run on [kernels](operators()) that agree with ExecuTorch's own.
//!
//! ```no_run
//! use coremill_runtime::{Program, Tensor, Value};
//!
//! let program = Program::load("model.pte")?;
//! let mut forward = program.method("forward")?;
//! let input = Tensor::floats(vec![1, 3], &[1.0, 2.0, 3.0])?;
//! let outputs = forward.execute(&[Value::Tensor(input)])?;
//! # Ok::<(), coremill_runtime::Error>(())
//! ```
//!
//! | module | holds |
//! |---|---|
//! | `program` | [`Program`]: a loaded file |
//! | `method`, `slot`, `execute` | [`Method`]: memory, values and execution of instructions |
//! | `names` | names of inputs and outputs |
//! | `state` | states that a method keeps between runs |
//! | `memory`, `view` | arenas, and tensors in them |
//! | `operators` | ATen operators by family, as ExecuTorch defines them |
//! | `delegate`, `coreml`, `host` | backends of delegated parts |
//! | `hooks` | observers of a run |
//! | `external` | tensors in separate files |

mod backends;
#[cfg(feature = "coreml")]
mod coreml;
mod delegate;
mod error;
mod execute;
mod external;
mod hooks;
#[cfg(feature = "host")]
mod host;
mod limits;
mod memory;
mod method;
mod names;
mod number;
mod operators;
mod program;
mod slot;
mod state;
mod value;
mod view;

pub use backends::backends;
#[cfg(feature = "coreml")]
pub use backends::core_ml;
#[cfg(feature = "host")]
pub use backends::host;
pub use coremill_kernels::Numerics;
pub use coremill_pte::program::ScalarType;
pub use delegate::{Backend, Delegate, DelegatedPart, Feature, Interface};
pub use error::{Error, ErrorKind};
pub use hooks::{Hooks, INPUT, Span, self_times};
pub use limits::{Limits, MAX_RANK};
pub use method::{Method, Results};
pub use program::{LoadOptions, Program, ValueSpec};
pub use value::{Tensor, Value};
pub use view::{OutTensor, ResizeFn, View};

/// The Rust examples of the documentation, compiled with the tests.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/apple.md")]
mod page {}

/// Operators with kernels. The signature has one letter per argument.
///
/// `T` is a tensor, `M` a tensor that is also written, `L` a list of tensors, `O` a list of optional tensors, `I` an
/// integer or an enumeration, `B` a boolean, `D` a float, `S` a number, `C` a string, `N` integers, `A` booleans and
/// `F` optional floats. A lowercase letter is an optional argument. Outputs follow `>`: `T` is a tensor, `L` a list
/// of tensors, `V` a tensor that becomes a view.
pub fn operators() -> impl Iterator<Item = (&'static str, &'static str)> {
    operators::all().map(|kernel| (kernel.name, kernel.signature()))
}
