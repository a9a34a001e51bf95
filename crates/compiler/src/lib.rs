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
//! | [`out_variants`] | [`out_variants::to_out_variants`]: turns calls outside delegates into calls of ExecuTorch's kernels |
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
//! | `error` | [`UnsupportedOp`] calls, with their reasons and their places in the model |

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
pub mod out_variants;
mod partition;
mod parts;
mod pipeline;
mod preprocess;
mod specs;

pub use calls::SourceMap;
pub use coremill_mil::text::identifier;
pub use decompose::{ComplexLowered, pairs};
pub use error::{Error, ErrorKind, LoweringError, UnsupportedOp};
pub use executorch::{LoweredPrograms, lower};
pub use lower::LoopedBuffer;
pub use options::{
    Constant, DEFAULT_MAX_SIZE, LowerOptions, ModelType, Options, Precision, Rewrite, RewriteFn,
    States, WeightSharing, is_within,
};
pub use partition::{
    Cost, EdgeDivision, EdgePart, FallbackCall, PartReport, Reason, Report, edge_partition,
    refused_calls,
};
pub use pipeline::{
    Conversion, FED_KEY, LoweredModel, TargetRequirements, check_fp32_values, convert,
    convert_from, finish, prepare,
};
pub use preprocess::{EdgeProgram, PreprocessResult, preprocess, preprocess_methods};
pub use specs::{CompileSpec, KEYS as COMPILE_SPEC_KEYS, SpecKey};
