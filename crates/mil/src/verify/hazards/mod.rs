//! Warnings: what keeps operations off the Neural Engine, and what some engine is known to get wrong.
//!
//! Each rule is a row of [`RULES`] and a function that looks at one operation or one function. Where
//! every model of some kind has a hazard many times over, it is reported once, with a count.

mod engines;
mod numerics;
mod placement;

use std::borrow::Cow;

use super::codes::Code;
use super::diagnostic::{Diagnostic, Findings, FunctionContext, Location};
use super::structure::Layout;
use crate::infer::{Analysis, KnownElements};
use crate::ir::{Binding, Definition, Op, OpId, TensorType, ValueId};
use crate::model::Signature;
use crate::ops::OpKind;

/// A function with all that the rules look at.
pub(super) struct Context<'p> {
    at: FunctionContext<'p>,
    layout: &'p Layout,
    analysis: &'p Analysis,
    signature: Option<Signature<'p>>,
}

/// An operation under a rule.
#[derive(Clone, Copy)]
struct Subject<'p> {
    id: OpId,
    op: &'p Op,
    kind: OpKind,
}

/// What a rule found about an operation.
struct Finding {
    /// What is found.
    message: String,
    /// The parameter that it is about.
    parameter: Option<&'static str>,
}

/// What a rule looks at.
enum RuleInput {
    /// Each operation.
    Op(fn(&Context<'_>, Subject<'_>) -> Option<Finding>),
    /// Each operation; the first is reported, the others are counted.
    OpOnce(fn(&Context<'_>, Subject<'_>) -> Option<Finding>),
    /// The function.
    Function(fn(&Context<'_>) -> Vec<(Location, String)>),
}

/// Every rule.
const RULES: &[(Code, RuleInput)] = &[
    (Code::RangedDimension, RuleInput::Function(placement::ranged_dimension)),
    (Code::HighRank, RuleInput::OpOnce(placement::high_rank)),
    (Code::SinglePrecision, RuleInput::OpOnce(placement::single_precision)),
    (Code::IntegerArithmetic, RuleInput::OpOnce(placement::integer_arithmetic)),
    (Code::GatherForSlice, RuleInput::Op(placement::gather_for_slice)),
    (Code::SliceToEnd, RuleInput::Op(placement::slice_to_end)),
    (Code::DataDependentShape, RuleInput::Op(placement::data_dependent_shape)),
    (Code::Loop, RuleInput::Op(placement::while_loop)),
    (Code::StateAlignment, RuleInput::Function(placement::state_alignment)),
    (Code::UnusedWeight, RuleInput::Op(placement::unused_weight)),
    (Code::WideKernel, RuleInput::Op(engines::wide_kernel)),
    (Code::NegativeIndices, RuleInput::Op(engines::negative_indices)),
    (Code::HalfAttention, RuleInput::OpOnce(engines::half_attention)),
    (Code::AttentionBatch, RuleInput::OpOnce(engines::attention_batch)),
    (Code::SliceReshape, RuleInput::Op(engines::slice_reshape)),
    (Code::TransposedReduction, RuleInput::Op(engines::transposed_reduction)),
    (Code::UnfoldedBatchNorm, RuleInput::Op(engines::unfolded_batch_norm)),
    (Code::NonFinite, RuleInput::Op(numerics::non_finite)),
    (Code::HalfOverflow, RuleInput::Op(numerics::half_overflow)),
    (Code::VanishingEpsilon, RuleInput::OpOnce(numerics::vanishing_epsilon)),
    (Code::SquareOverflow, RuleInput::OpOnce(numerics::square_overflow)),
    (Code::HalfIndices, RuleInput::Op(numerics::half_indices)),
];

/// Applies every rule to a function.
pub(super) fn check(
    at: FunctionContext<'_>,
    layout: &Layout,
    analysis: &Analysis,
    signature: Option<Signature<'_>>,
    findings: &mut Findings,
) {
    let context = Context { at, layout, analysis, signature };
    for (code, look) in RULES {
        match look {
            RuleInput::Function(look) => {
                for (location, message) in look(&context) {
                    findings.report(*code, location, message);
                }
            }
            RuleInput::Op(look) => {
                for (subject, hit) in context.hits(*look) {
                    findings.push(context.diagnostic(*code, subject, hit));
                }
            }
            RuleInput::OpOnce(look) => {
                let mut hits = context.hits(*look);
                let Some((first, mut hit)) = hits.next() else { continue };
                match hits.count() {
                    0 => {}
                    1 => hit.message.push_str("; so does one more operation"),
                    others => {
                        hit.message.push_str(&format!("; so do {others} more operations"));
                    }
                }
                findings.push(context.diagnostic(*code, first, hit));
            }
        }
    }
}

impl Finding {
    fn new(message: impl Into<String>) -> Option<Finding> {
        Some(Finding { message: message.into(), parameter: None })
    }

    fn of(parameter: &'static str, message: impl Into<String>) -> Option<Finding> {
        Some(Finding { message: message.into(), parameter: Some(parameter) })
    }
}

impl<'p> Context<'p> {
    fn hits(
        &self,
        look: fn(&Context<'_>, Subject<'_>) -> Option<Finding>,
    ) -> impl Iterator<Item = (Subject<'p>, Finding)> {
        self.layout.ops.iter().filter_map(move |&id| {
            // What inference or the structure refused is not known well enough to warn about.
            if self.layout.refused[id.index()] {
                return None;
            }
            let op = self.at.function.op(id);
            let subject = Subject { id, op, kind: op.kind()? };
            look(self, subject).map(|hit| (subject, hit))
        })
    }

    fn diagnostic(&self, code: Code, subject: Subject<'_>, hit: Finding) -> Diagnostic {
        let location = self.at.op(subject.id);
        let location = match hit.parameter {
            Some(parameter) => location.parameter(parameter),
            None => location,
        };
        Diagnostic::new(code, location, hit.message)
    }

    /// The type of what an operation gives first.
    fn output(&self, subject: Subject<'_>) -> Option<&TensorType> {
        self.tensor(*subject.op.outputs.first()?)
    }

    /// The inferred type of a value.
    fn tensor(&self, value: ValueId) -> Option<&TensorType> {
        self.analysis.ty(value)?.as_tensor()
    }

    /// The type of what is bound to a parameter.
    fn operand<'a>(&'a self, subject: Subject<'a>, parameter: &str) -> Option<&'a TensorType> {
        match subject.op.binding(parameter)? {
            Binding::Value(value) => self.tensor(*value),
            Binding::Literal(constant) => constant.tensor_type(),
        }
    }

    /// The known elements of what is bound to a parameter.
    fn known<'a>(
        &'a self,
        subject: Subject<'a>,
        parameter: &str,
    ) -> Option<Cow<'a, KnownElements>> {
        match subject.op.binding(parameter)? {
            Binding::Value(value) => self.analysis.folded(*value).map(Cow::Borrowed),
            Binding::Literal(constant) => KnownElements::from_constant(constant).map(Cow::Owned),
        }
    }

    /// Whether what is bound to a parameter is known when the program is compiled.
    fn is_constant(&self, subject: Subject<'_>, parameter: &str) -> bool {
        match subject.op.binding(parameter) {
            Some(Binding::Value(value)) => self.is_constant_value(*value),
            Some(Binding::Literal(_)) => true,
            None => false,
        }
    }

    /// Whether a value is known when the program is compiled, or is computed from shapes alone.
    fn is_constant_value(&self, value: ValueId) -> bool {
        let outcome = self.analysis.outcome(value);
        outcome.is_some_and(|outcome| outcome.constant || outcome.value.is_some())
    }

    /// The operation that computes what is bound to a parameter.
    fn producer(&self, subject: Subject<'_>, parameter: &str) -> Option<Subject<'p>> {
        let Binding::Value(value) = subject.op.binding(parameter)? else { return None };
        let Definition::Output(id, _) = self.at.function.value(*value).definition else {
            return None;
        };
        let op = self.at.function.op(id);
        Some(Subject { id, op, kind: op.kind()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verify::{CODES, Severity};

    #[test]
    fn every_warning_is_a_rule_here_or_an_oddity() {
        let oddities = [Code::DuplicateOpName, Code::UnknownAttribute, Code::ScalarOutput];
        for row in CODES {
            let rules = RULES.iter().filter(|(code, _)| *code == row.code).count();
            let is_hazard = row.severity == Severity::Warning && !oddities.contains(&row.code);
            assert_eq!(rules, usize::from(is_hazard), "`{}`", row.name);
        }
    }
}
