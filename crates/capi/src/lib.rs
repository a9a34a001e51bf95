//! C interface of coremill, declared in `include/coremill.h`: loads models and ExecuTorch programs, runs their
//! methods on the caller's memory, and reports on runs.
//!
//! `delegate/` contains the ExecuTorch backend in C++ that uses this interface. [`delegate`] exports its source,
//! which is built on the user's machine against the installed ExecuTorch.
//!
//! | module | holds |
//! |---|---|
//! | [`model`], [`method`] | entry points for loaded models, and for instances of methods with their states |
//! | [`prewarm`] | entry points for models that are prepared for Core ML in the background |
//! | `tensor` | checked tensors in the caller's memory |
//! | `hooks` | callbacks of a run |
//! | `options` | settings by name |
//! | `handle` | objects by handle |
//! | [`error`] | status codes, error messages, and the guard around each entry point |
//!
//! Handles are not trusted: a handle is a number that is looked up, never an address. Pointers are trusted to
//! satisfy the requirements in the header.

pub mod delegate;
pub mod error;
mod handle;
mod hooks;
pub mod method;
pub mod model;
pub mod options;
pub mod prewarm;
mod tensor;

pub use hooks::{CoremillHooks, CoremillOperation};
pub use options::CoremillOption;
pub use tensor::{COREMILL_MAX_RANK, CoremillPort, CoremillPortKind, CoremillTensor};
