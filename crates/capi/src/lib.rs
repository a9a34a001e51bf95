//! The C interface of coremill, declared in `include/coremill.h`: load models and ExecuTorch programs, run their
//! methods on the caller's memory, look at what happens meanwhile.
//!
//! `delegate/` holds the ExecuTorch backend in C++ that stands on it; [`delegate`] hands its source to those who
//! build it on the user's machine, against the ExecuTorch that is there.
//!
//! | module | holds |
//! |---|---|
//! | [`model`], [`method`] | what is loaded, and an instance of a method with its states: the entry points |
//! | `tensor` | the caller's memory, checked, as what runs reads and writes |
//! | `hooks` | callbacks of a run |
//! | `options` | settings by name |
//! | `handle` | what stands behind handles |
//! | [`error`] | status codes, messages, and the guard around each entry |
//!
//! Nothing here trusts a handle: a handle is a number that is looked up, never an address. Pointers that a caller
//! passes are trusted to be what the header asks for.

pub mod delegate;
pub mod error;
mod handle;
mod hooks;
pub mod method;
pub mod model;
pub mod options;
mod tensor;

pub use hooks::{CoremillHooks, CoremillOperation};
pub use options::CoremillOption;
pub use tensor::{COREMILL_MAX_RANK, CoremillPort, CoremillPortKind, CoremillTensor};
