//! What a caller asks of a conversion.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use coremill_compress::linear;
use coremill_mil::ir::Opset;
use coremill_mil::model::Metadata;
use coremill_passes::{AnalyzedFunction, KeepFp32};
use coremill_pte::program::CompileSpec;

use crate::calls::SourceMap;

/// How to convert a program.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The oldest release that must run the result; none for the oldest that the program can be written for.
    pub target: Option<Opset>,
    /// What floats are computed in.
    pub precision: Precision,
    /// The shapes that an input may have, by its name; inputs that are absent have those of the archive.
    pub shapes: BTreeMap<String, Vec<Vec<u64>>>,
    /// What becomes of buffers that the program writes to.
    pub states: States,
    /// Names for the inputs, in the order of the program's; inputs beyond these keep theirs.
    pub input_names: Vec<String>,
    /// Names for the outputs, in the order of the program's; outputs beyond these keep theirs.
    pub output_names: Vec<String>,
    /// Operators of MIL that compute in `fp32` whatever the precision.
    pub fp32_ops: Vec<String>,
    /// Modules, by path, whose operators compute in `fp32` whatever the precision.
    pub fp32_modules: Vec<String>,
    /// Values, by name, whose operations compute in `fp32` whatever the precision. The ending that a change of precision gives
    /// a name makes no difference.
    pub fp32_values: Vec<String>,
    /// Whether attention is written out where Core ML has an operation for it.
    pub decompose_sdpa: bool,
    /// Passes that are left out, by name.
    pub skipped_passes: Vec<String>,
    /// How weights are quantized once the passes are done; none where they stay floats.
    pub quantization: Option<linear::Config>,
    /// What the caller changes in functions between the passes and the choice of precision.
    pub rewrite: Option<Rewrite>,
    /// Notes for people.
    pub metadata: Metadata,
}

/// A change to every function that is made of a program, once passes have made it small and before its floats get their
/// precision. Partitions that are given up later see it, too.
#[derive(Clone)]
pub struct Rewrite {
    /// The oldest release that has what it writes.
    pub needs: Opset,
    /// The change. The calls say where values come from; what is added to the last argument stays in `fp32`.
    pub run: Arc<RewriteFn>,
}

/// What a [`Rewrite`] does.
pub type RewriteFn = dyn Fn(&mut AnalyzedFunction, &SourceMap, &mut KeepFp32) + Send + Sync;

impl fmt::Debug for Rewrite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rewrite").field("needs", &self.needs).finish_non_exhaustive()
    }
}

/// What floats are computed in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Precision {
    /// 16 bits, which the Neural Engine needs.
    #[default]
    Fp16,
    /// 32 bits.
    Fp32,
}

/// What becomes of buffers that a program writes to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum States {
    /// They are states, which Core ML keeps between predictions. Needs iOS 18.
    #[default]
    Keep,
    /// They are inputs, and their new values are outputs.
    Io,
}

impl Options {
    /// Whether what a module computes stays in `fp32`: the module is one of those that were named, or inside one.
    pub(crate) fn is_fp32_module(&self, path: &str) -> bool {
        self.fp32_modules.iter().any(|module| is_within(path, module))
    }
}

/// Whether a path is that of a module, or of one inside it.
pub fn is_within(path: &str, module: &str) -> bool {
    path.strip_prefix(module).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

/// How to lower programs.
#[derive(Clone, Debug)]
pub struct LowerOptions {
    /// How what is delegated is converted.
    pub options: Options,
    /// Operators that are not delegated, by ExecuTorch's names: `aten.mm.default`.
    pub skip_ops: Vec<String>,
    /// Whether everything has to be delegated.
    pub full_graph: bool,
    /// Whether nothing is delegated: the program then runs wherever ExecuTorch's portable kernels do.
    pub portable: bool,
    /// Whether buffers that the program writes to become states of a delegate, which needs iOS 18.
    pub take_over_mutable_buffer: bool,
    /// Whether weights become part of the delegates that use them; otherwise they are given to them.
    pub take_over_constant_data: bool,
    /// What is written into the program for the backend to read when it runs.
    pub compile_specs: Vec<CompileSpec>,
    /// The form of the models.
    pub model_type: ModelType,
    /// Whether delegates are told which call each of their operations comes from, for profilers.
    pub debug_info: bool,
    /// Methods that give a number or a text and compute nothing, as apps ask for: a model's vocabulary size.
    pub constant_methods: Vec<(String, Constant)>,
    /// Whether methods share weights; none for ExecuTorch's default, which is that they do.
    pub weight_sharing: Option<WeightSharing>,
    /// The largest size of dimensions for which the program states none: memory is planned for it.
    pub max_size: u32,
}

/// [`LowerOptions::max_size`] where nothing is said.
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

/// What a method gives that computes nothing.
#[derive(Clone, Debug, PartialEq)]
pub enum Constant {
    /// An integer.
    Int(i64),
    /// A float.
    Double(f64),
    /// A truth value.
    Bool(bool),
    /// A text.
    Text(String),
}

/// Whether methods share weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WeightSharing {
    /// The first partitions of all methods are one model with a function for each, and so are the second ones.
    Positional,
    /// Each partition is a model of its own.
    Disabled,
}

/// The form of the model that a delegate is given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ModelType {
    /// A package, which the device compiles when it loads it first.
    #[default]
    Model,
    /// A compiled model.
    CompiledModel,
}
