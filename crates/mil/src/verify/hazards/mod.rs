//! Warnings: operations that leave the Neural Engine, and known bugs of Core ML's engines.
//!
//! Each rule is a row of [`RULES`] and a function that checks one operation or one function. Hazards that
//! typically occur many times in a model are reported once, with a count.

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

/// A function with the data that the rules need.
pub(super) struct Context<'p> {
    at: FunctionContext<'p>,
    layout: &'p Layout,
    analysis: &'p Analysis,
    signature: Option<Signature<'p>>,
}

/// An operation that is being checked.
#[derive(Clone, Copy)]
struct Subject<'p> {
    id: OpId,
    op: &'p Op,
    kind: OpKind,
}

/// A violation by an operation.
struct Finding {
    /// Message of the diagnostic.
    message: String,
    /// The parameter at fault.
    parameter: Option<&'static str>,
}

/// Input of a rule.
enum RuleInput {
    /// Called for each operation.
    Op(fn(&Context<'_>, Subject<'_>) -> Option<Finding>),
    /// Called for each operation; the first violation is reported, the others are counted.
    OpOnce(fn(&Context<'_>, Subject<'_>) -> Option<Finding>),
    /// Called once for the function.
    Function(fn(&Context<'_>) -> Vec<(Location, String)>),
}

/// All rules.
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

/// Applies all rules to a function.
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
            // Do not warn about operations with errors.
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

    /// The type of an operation's first output.
    fn output(&self, subject: Subject<'_>) -> Option<&TensorType> {
        self.tensor(*subject.op.outputs.first()?)
    }

    /// The inferred type of a value.
    fn tensor(&self, value: ValueId) -> Option<&TensorType> {
        self.analysis.ty(value)?.as_tensor()
    }

    /// The type of the value bound to a parameter.
    fn operand<'a>(&'a self, subject: Subject<'a>, parameter: &str) -> Option<&'a TensorType> {
        match subject.op.binding(parameter)? {
            Binding::Value(value) => self.tensor(*value),
            Binding::Literal(constant) => constant.tensor_type(),
        }
    }

    /// The known elements of the value bound to a parameter.
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

    /// Whether the value bound to a parameter is known at compile time.
    fn is_constant(&self, subject: Subject<'_>, parameter: &str) -> bool {
        match subject.op.binding(parameter) {
            Some(Binding::Value(value)) => self.is_constant_value(*value),
            Some(Binding::Literal(_)) => true,
            None => false,
        }
    }

    /// Whether a value is known at compile time or depends only on shapes.
    fn is_constant_value(&self, value: ValueId) -> bool {
        let outcome = self.analysis.outcome(value);
        outcome.is_some_and(|outcome| outcome.constant || outcome.value.is_some())
    }

    /// The operation that computes the value bound to a parameter.
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
