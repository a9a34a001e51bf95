//! Takes PyTorch programs to Core ML.
//!
//! [`convert`] lowers what `torch.export` saved to a MIL program, optimises it, and describes it as a model
//! that can be verified and written.
//!
//! | module | holds |
//! |---|---|
//! | `options` | [`Options`]: what a caller asks for |
//! | `lower` | from calls of ATen to operations of MIL, one file for each family of operators |
//! | `pipeline` | [`convert`]: all of it in order |
//! | `portable` | [`portable::portable`]: what stays outside of delegates becomes calls of ExecuTorch's kernels |
//! | `error` | [`Refused`] calls, with their reasons and their places in the model |

mod error;
mod lower;
mod options;
mod pipeline;
pub mod portable;

pub use error::{Error, Refusal, Refused};
pub use lower::identifier;
pub use options::{Options, Precision, States};
pub use pipeline::{Conversion, Demands, convert};
