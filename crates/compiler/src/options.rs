//! What a caller asks of a conversion.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use coremill_mil::compress::linear;
use coremill_mil::ir::Opset;
use coremill_mil::model::Metadata;
use coremill_mil::pass::{Draft, KeepFp32};

use crate::pipeline::Calls;

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
pub type RewriteFn = dyn Fn(&mut Draft, &Calls, &mut KeepFp32) + Send + Sync;

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
