//! Passes on MIL functions.
//!
//! A pass is a function of an [`Editor`], or a function that creates a new function. Each has a head comment that
//! shows its effect in MIL text, and test cases in `tests/passes`.

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
mod quantized_products;
mod rescale;
mod slice_updates;
mod slices;
mod special;
mod transposes;
mod unused_inputs;

use std::collections::HashSet;

pub use branches::reparameterize_conv_branches;
pub use editor::{Editor, Uses};
pub use literals::materialize_literals;
pub use names::without_precision;
pub use pipeline::{PASSES, check_pass_names, finish, optimize, simplify};
pub use precision::{KeepFp32, to_fp16};
pub use rescale::{Magnitude, RescaleOutcome, ScaledGroup, rescale};
pub use special::is_zero_one_or_out_of_range;
pub use unused_inputs::keep_unused_inputs;

use coremill_io::{ErrorDetail, opaque_error};

use coremill_mil::infer::{Analysis, InferError, Problem, analyze};
use coremill_mil::ir::{Function, Op, ValueId};

/// A pass that does not change a function's type.
#[derive(Clone, Copy, Debug)]
pub struct Pass {
    /// Name by which options refer to the pass.
    pub name: &'static str,
    /// Former name, still accepted in options.
    pub former_name: Option<&'static str>,
    /// Runs the pass and returns the number of changed operations.
    pub run: fn(&mut Editor<'_>) -> usize,
}

impl Pass {
    /// Whether an option with this name refers to the pass.
    pub fn is_named(&self, name: &str) -> bool {
        self.name == name || self.former_name == Some(name)
    }
}

/// A function with the analysis of its values.
///
/// The analysis is kept between passes, as it can contain more than a new inference would find, for example that two
/// dynamic dimensions are equal.
#[derive(Clone, Debug)]
pub struct AnalyzedFunction {
    /// The function.
    pub function: Function,
    /// Analysis of the values.
    pub analysis: Analysis,
    /// Values that need more precision or range than fp16, such as the terms of a series.
    pub exact: HashSet<ValueId>,
}

impl AnalyzedFunction {
    /// Analyzes a function. Fails if an operation is invalid.
    pub fn new(function: Function) -> Result<AnalyzedFunction, Error> {
        let (analysis, problems) = analyze(&function);
        match problems.first() {
            Some(problem) => Err(Error::of(&function, problem)),
            None => Ok(AnalyzedFunction { function, analysis, exact: HashSet::new() }),
        }
    }
}

opaque_error! {
    /// Error of running a pass.
    pub struct Error(pub(crate) ErrorKind);
}

/// Category of an [`Error`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The function was invalid before the pass.
    Function,
    /// The pass created an invalid operation.
    Pass,
}

impl Error {
    fn new(kind: ErrorKind, message: impl Into<String>) -> Error {
        Error::from_detail(kind, ErrorDetail::new(message))
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
        Error::new(kind, message).with_hint_of(hint.as_deref())
    }
}
