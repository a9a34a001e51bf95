//! Passes: MIL to MIL.
//!
//! A pass is a function of an [`Editor`], or of a function that it makes anew. Each has a head comment that
//! shows what it does in MIL's text, and cases under `tests/passes`.

mod activations;
mod affine;
mod attention;
mod branches;
mod common_subexpressions;
mod editor;
mod grouped_queries;
mod interleave;
mod literals;
mod matmul;
mod names;
mod noop_elimination;
mod norms;
mod padding;
mod pipeline;
mod precision;
mod rescale;
mod slice_updates;
mod slices;
mod special;
mod transposes;
mod unused_inputs;

use std::collections::HashSet;
use std::fmt;

pub use branches::reparameterize_conv_branches;
pub use editor::{Editor, Uses};
pub use literals::materialize_literals;
pub use names::without_precision;
pub use pipeline::{PASSES, check_pass_names, finish, optimize, simplify};
pub use precision::{KeepFp32, to_fp16};
pub use rescale::{Magnitude, RescaleOutcome, ScaledGroup, rescale};
pub use special::is_zero_one_or_out_of_range;
pub use unused_inputs::keep_unused_inputs;

use coremill_io::ErrorDetail;

use coremill_mil::infer::{Analysis, InferError, Problem, analyze};
use coremill_mil::ir::{Function, Op, ValueId};

/// A pass that leaves a function's types as they are.
#[derive(Clone, Copy, Debug)]
pub struct Pass {
    /// Name by which options refer to the pass.
    pub name: &'static str,
    /// Earlier name, which options still accept.
    pub former_name: Option<&'static str>,
    /// Runs the pass and returns the number of operations that it changed.
    pub run: fn(&mut Editor<'_>) -> usize,
}

impl Pass {
    /// Whether an option with this name means the pass.
    pub fn is_named(&self, name: &str) -> bool {
        self.name == name || self.former_name == Some(name)
    }
}

/// A function that passes work on, and what is known about its values.
///
/// The knowledge is kept from pass to pass, since it can be more than inference would find out again: that
/// two open dimensions are the same, for instance.
#[derive(Clone, Debug)]
pub struct AnalyzedFunction {
    /// The function.
    pub function: Function,
    /// What is known about its values.
    pub analysis: Analysis,
    /// Values that halves are too coarse for, or too small: the steps of a series for instance.
    pub exact: HashSet<ValueId>,
}

impl AnalyzedFunction {
    /// Analyses a function. One with operations that cannot stand is refused.
    pub fn new(function: Function) -> Result<AnalyzedFunction, Error> {
        let (analysis, problems) = analyze(&function);
        match problems.first() {
            Some(problem) => Err(Error::of(&function, problem)),
            None => Ok(AnalyzedFunction { function, analysis, exact: HashSet::new() }),
        }
    }
}

/// Error of running a pass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    kind: ErrorKind,
    detail: ErrorDetail,
}

/// Category of an [`Error`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The function was at fault before the pass.
    Function,
    /// The pass made an operation that is refused.
    Pass,
}

impl Error {
    fn new(kind: ErrorKind, message: impl Into<String>) -> Error {
        Error { kind, detail: ErrorDetail::new(message) }
    }

    /// Category of the error.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// Suggested fix.
    pub fn hint(&self) -> Option<&str> {
        self.detail.hint()
    }

    fn of(function: &Function, problem: &Problem) -> Error {
        let op = function.op(problem.op);
        let name = op.outputs.first().map_or("", |&output| &function.value(output).name);
        Error::refused(ErrorKind::Function, op, name, std::slice::from_ref(&problem.refusal))
    }

    fn refused(kind: ErrorKind, op: &Op, name: &str, refusals: &[InferError]) -> Error {
        let reasons: Vec<_> = refusals.iter().map(ToString::to_string).collect();
        let hint = refusals.iter().find_map(|refusal| refusal.hint.clone());
        let message = format!("`{name} = {}`: {}", op.type_name(), reasons.join("; "));
        Error { kind, detail: ErrorDetail { hint, ..ErrorDetail::new(message) } }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.detail.fmt(f)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.detail.source()
    }
}
