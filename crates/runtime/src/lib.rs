//! Runs ExecuTorch programs on this machine.
//!
//! [`Program::load`] maps a `.pte` file; a [`Method`] of it has its own memory and runs as often as it is
//! asked to. What was delegated to Core ML runs on Core ML where there is one (feature `coreml`), otherwise on the
//! engine of this workspace (feature `host`); what was not is computed by [kernels](operators()) that agree with
//! ExecuTorch's own.
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
//! | `program` | [`Program`]: what a file holds |
//! | `method`, `slot`, `execute` | [`Method`]: what one run needs, how instructions are performed, and what comes out |
//! | `names` | names of inputs and outputs |
//! | `state` | what a method keeps from run to run |
//! | `memory`, `view` | the arenas of a plan, and tensors in them that kernels read and write |
//! | `operators` | ATen operators by family, as ExecuTorch defines them |
//! | `delegate`, `coreml`, `host` | what runs delegated parts |
//! | `hooks` | what looks on |
//! | `external` | tensors in files of their own |

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
pub use coremill_pte::program::ScalarType;
pub use delegate::{Backend, Delegate, DelegatedPart, Feature, Interface};
pub use error::{Error, ErrorKind};
pub use hooks::{Hooks, INPUT, Span, self_times};
pub use limits::{Limits, MAX_RANK};
pub use method::{Method, Results};
pub use program::{LoadOptions, Program, ValueSpec};
pub use value::{Tensor, Value};
pub use view::{OutTensor, ResizeFn, View};

/// The Rust of the documentation, compiled with the tests.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/apple.md")]
mod page {}

/// The operators that there are kernels for, each with a letter for each of its arguments.
///
/// `T` is a tensor, `M` one that is also written; `L` tensors, `O` tensors of which some are missing; `I` an
/// integer or an enumeration, `B` a truth value, `D` a float, `S` a number, `C` text; `N` integers, `A` truth
/// values, `F` floats or nothing. Lower case stands for what may be nothing. Behind `>` come outputs: `T` a
/// tensor, `L` tensors, `V` one that becomes a view.
pub fn operators() -> impl Iterator<Item = (&'static str, &'static str)> {
    operators::all().map(|kernel| (kernel.name, kernel.signature()))
}
