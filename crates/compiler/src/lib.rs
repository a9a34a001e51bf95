//! Takes PyTorch programs to Core ML.
//!
//! [`convert`] lowers what `torch.export` saved to a MIL program, optimises it, and describes it as a model
//! that can be verified and written.
//!
//! | module | holds |
//! |---|---|
//! | `options` | [`Options`]: what a caller asks for |
//! | `decompose` | operators that are made of others, each written once for both ways |
//! | `lower` | from calls of ATen to operations of MIL, one file for each family of operators |
//! | `pipeline` | [`convert`]: all of it in order |
//! | `partition` | which calls Core ML runs, and which stay outside |
//! | `portable` | [`portable::portable`]: what stays outside delegates becomes calls of ExecuTorch's kernels |
//! | `emit` | a program as ExecuTorch's runtime runs it |
//! | `executorch` | [`lower`]: from programs to an ExecuTorch program |
//! | `preprocess` | partitions that ExecuTorch cut, as its Core ML delegate gets them |
//! | `specs` | ExecuTorch's compile specs |
//! | `kernels` | the operators that ExecuTorch's runtime has kernels for |
//! | `parts` | stored tensors, and real and imaginary parts of them |
//! | `arena` | what lives as long as a lowering |
//! | `bounds` | what calls may ask for, and what decompositions may create |
//! | `calls` | which call a value comes from |
//! | `fourier` | Fourier transforms as matrices |
//! | `error` | [`Refused`] calls, with their reasons and their places in the model |

mod arena;
mod bounds;
mod calls;
mod decompose;
mod emit;
mod error;
mod executorch;
mod fourier;
mod kernels;
mod lower;
mod options;
mod partition;
mod parts;
mod pipeline;
pub mod portable;
mod preprocess;
mod specs;

pub use calls::Calls;
pub use coremill_mil::text::identifier;
pub use decompose::{Paired, pairs};
pub use error::{Error, Refusal, Refused};
pub use executorch::{Lowered, lower};
pub use lower::Fed;
pub use options::{
    Constant, DEFAULT_MAX_SIZE, LowerOptions, ModelType, Options, Precision, Rewrite, RewriteFn,
    States, WeightSharing, is_within,
};
pub use partition::{
    Cost, EdgeDivision, EdgePart, Outside, PartReport, Reason, Report, edge_partition,
    refused_calls,
};
pub use pipeline::{
    Conversion, Demands, FED_KEY, Prepared, convert, convert_from, finish, prepare,
};
pub use preprocess::{EdgeProgram, Preprocessed, preprocess, preprocess_methods};
pub use specs::{CompileSpec, KEYS as COMPILE_SPEC_KEYS, SpecKey};
