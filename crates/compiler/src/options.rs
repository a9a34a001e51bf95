//! Options of conversions and lowerings.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use coremill_compress::linear;
use coremill_delegate::{Constant, ModelType};
use coremill_mil::ir::Opset;
use coremill_mil::model::Metadata;
use coremill_passes::{AnalyzedFunction, KeepFp32};
use coremill_pte::program::CompileSpec;

use crate::calls::SourceMap;

/// Options of [`convert`](crate::convert()).
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The oldest release that must run the result. `None` selects the oldest release that supports the program.
    pub target: Option<Opset>,
    /// The oldest release that the result is written for if `target` is `None`.
    pub at_least: Option<Opset>,
    /// Precision of floats.
    pub precision: Precision,
    /// Allowed shapes by input name. Inputs without an entry keep the shapes of the archive.
    pub shapes: BTreeMap<String, Vec<Vec<u64>>>,
    /// Treatment of mutable buffers.
    pub states: States,
    /// New names of the inputs, in program order; further inputs keep their names.
    pub input_names: Vec<String>,
    /// New names of the outputs, in program order; further outputs keep their names.
    pub output_names: Vec<String>,
    /// MIL operators that always compute in `fp32`.
    pub fp32_ops: Vec<String>,
    /// Paths of modules whose operators always compute in `fp32`.
    pub fp32_modules: Vec<String>,
    /// Names of values whose operations always compute in `fp32`. The suffix added by a change of precision is
    /// ignored.
    pub fp32_values: Vec<String>,
    /// Whether to decompose attention even if the target has an operation for it.
    pub decompose_sdpa: bool,
    /// Names of disabled passes.
    pub skipped_passes: Vec<String>,
    /// Quantization of weights after the passes; `None` keeps floats.
    pub quantization: Option<linear::Config>,
    /// Changes that the caller makes to functions between the passes and the choice of precision.
    pub rewrite: Option<Rewrite>,
    /// User-visible metadata.
    pub metadata: Metadata,
}

/// A change to every converted function, after the simplification passes and before floats get their precision. It
/// also runs on partitions that are discarded later.
#[derive(Clone)]
pub struct Rewrite {
    /// The oldest release that supports the rewritten code.
    pub needs: Opset,
    /// The change. The source map relates values to calls. Values added to the last argument stay in `fp32`.
    pub run: Arc<RewriteFn>,
}

/// Signature of a [`Rewrite`].
pub type RewriteFn = dyn Fn(&mut AnalyzedFunction, &SourceMap, &mut KeepFp32) + Send + Sync;

impl fmt::Debug for Rewrite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rewrite").field("needs", &self.needs).finish_non_exhaustive()
    }
}

/// Precision of floats.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Precision {
    /// 16 bits, required by the Neural Engine.
    #[default]
    Fp16,
    /// 32 bits.
    Fp32,
}

/// Treatment of buffers that a program mutates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum States {
    /// Buffers become states, which Core ML keeps between predictions. Requires iOS 18.
    #[default]
    Keep,
    /// Buffers become inputs, and their new values become outputs.
    Io,
}

impl Options {
    /// Whether a module computes in `fp32`: it is one of the selected modules or inside one.
    pub(crate) fn is_fp32_module(&self, path: &str) -> bool {
        self.fp32_modules.iter().any(|module| is_within(path, module))
    }
}

/// Whether a path is the path of a module or of one of its submodules.
pub fn is_within(path: &str, module: &str) -> bool {
    path.strip_prefix(module).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

/// Options of [`lower`](crate::lower()).
#[derive(Clone, Debug)]
pub struct LowerOptions {
    /// Conversion options of the delegated partitions.
    pub options: Options,
    /// Operators excluded from delegation, by ExecuTorch's names such as `aten.mm.default`.
    pub skip_ops: Vec<String>,
    /// Whether lowering fails unless every call is delegated.
    pub full_graph: bool,
    /// Whether to delegate nothing, so that the program only needs ExecuTorch's portable kernels.
    pub portable: bool,
    /// Whether mutable buffers become states of a delegate; requires iOS 18.
    pub take_over_mutable_buffer: bool,
    /// Whether weights become part of the delegates that use them. Otherwise they are inputs of the delegates.
    pub take_over_constant_data: bool,
    /// Compile specs stored in the program, which the backend reads at run time.
    pub compile_specs: Vec<CompileSpec>,
    /// Format of the delegates' models.
    pub model_type: ModelType,
    /// Whether to store the source calls of each operation in the delegates, for profilers.
    pub debug_info: bool,
    /// Methods that return a constant, such as a vocabulary size.
    pub constant_methods: Vec<(String, Constant)>,
    /// Weight sharing between methods; `None` for ExecuTorch's default, which shares them.
    pub weight_sharing: Option<WeightSharing>,
    /// Upper bound for dynamic dimensions without one in the program, used for memory planning.
    pub max_size: u32,
}

/// Default of [`LowerOptions::max_size`].
pub const DEFAULT_MAX_SIZE: u32 = 1024;

impl Default for LowerOptions {
    fn default() -> LowerOptions {
        LowerOptions {
            options: Options::default(),
            skip_ops: Vec::new(),
            full_graph: false,
            portable: false,
            take_over_mutable_buffer: true,
            take_over_constant_data: true,
            compile_specs: Vec::new(),
            model_type: ModelType::default(),
            debug_info: true,
            constant_methods: Vec::new(),
            weight_sharing: None,
            max_size: DEFAULT_MAX_SIZE,
        }
    }
}

/// Weight sharing between methods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WeightSharing {
    /// The n-th partitions of all methods form one model with one function per method.
    Positional,
    /// Each partition is a separate model.
    Disabled,
}
