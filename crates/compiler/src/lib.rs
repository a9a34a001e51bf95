//! Compiler from PyTorch programs to Core ML and ExecuTorch.
//!
//! [`convert`] lowers a program saved by `torch.export` to a MIL program, optimizes it, and adds the model
//! description. The result can be verified and written.
//!
//! | module | holds |
//! |---|---|
//! | `options` | [`Options`] of conversions and lowerings |
//! | `decompose` | decompositions of operators, shared by both backends |
//! | `lower` | ATen calls to MIL operations, one file per operator family |
//! | `pipeline` | [`convert`]: the complete conversion |
//! | `partition` | division of calls between Core ML and kernels |
//! | [`out_variants`] | [`out_variants::to_out_variants`]: turns calls outside delegates into calls of ExecuTorch's kernels |
//! | `emit` | instructions, memory plan and constants of an ExecuTorch program |
//! | `executorch` | [`lower`]: from programs to an ExecuTorch program |
//! | `preprocess` | partitions made by ExecuTorch, as payloads of its Core ML delegate |
//! | `specs` | ExecuTorch's compile specs |
//! | `kernels` | operators with kernels in ExecuTorch's runtime |
//! | `parts` | stored tensors, and their real and imaginary parts |
//! | `arena` | values that live as long as a lowering |
//! | `bounds` | checks on untrusted arguments, and limits on created constants |
//! | `calls` | source call of each value |
//! | `fourier` | Fourier transforms as matrices |
//! | `error` | [`UnsupportedOp`]: unsupported calls, with reason and location |

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
pub use coremill_delegate::{Constant, ModelType};
pub use coremill_mil::text::identifier;
pub use decompose::{ComplexLowered, pairs};
pub use error::{Error, ErrorKind, LoweringError, UnsupportedOp};
pub use executorch::{LoweredPrograms, MethodProgram, lower, lower_methods};
pub use lower::LoopedBuffer;
pub use options::{
    DEFAULT_MAX_SIZE, LowerOptions, Options, Precision, Rewrite, RewriteFn, States, WeightSharing,
    is_within,
};
pub use partition::{
    Cost, EdgeDivision, EdgePart, FallbackCall, PartReport, Reason, Report, edge_partition,
    refused_calls,
};
pub use pipeline::{
    Conversion, LoweredModel, TargetRequirements, check_fp32_values, convert, convert_from, finish,
    prepare,
};
pub use preprocess::{EdgeProgram, PreprocessResult, preprocess, preprocess_methods};
pub use specs::{CompileSpec, KEYS as COMPILE_SPEC_KEYS, SpecKey};
