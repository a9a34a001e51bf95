//! Warnings: operations that leave the Neural Engine, and known bugs of Core ML's engines.
//!
//! Each rule is a row of [`RULES`] and a function that checks one operation or one function. Hazards that
//! typically occur many times in a model are reported once, with a count. [`Hazard`] holds the evidence for each
//! rule: a rule is skipped if no chip of interest is affected.

mod bounds;
mod chips;
mod engines;
mod numerics;
mod placement;
mod sums;

use std::borrow::Cow;
use std::cell::{OnceCell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;

use coremill_device::{Chip, Hazard};
use coremill_mil::infer::{Analysis, KnownElements};
use coremill_mil::ir::{Binding, Definition, Op, OpId, TensorType, ValueId};
use coremill_mil::model::Signature;
use coremill_mil::ops::OpKind;

use super::codes::Code;
use super::diagnostic::{Diagnostic, Findings, FunctionContext, Location};
use super::structure::Layout;

/// A function with the data that the rules need.
pub(super) struct Context<'p> {
    at: FunctionContext<'p>,
    layout: &'p Layout,
    analysis: &'p Analysis,
    signature: Option<Signature<'p>>,
    /// Chips that the model is to run on.
    chips: &'p [&'static Chip],
    /// Sums of the magnitudes of each row of constants; `None` if the elements are unknown.
    row_sums: RefCell<HashMap<ValueId, Option<Rc<[f64]>>>>,
    /// Whether values, by index, are used as bounds of `clip` and in no other way.
    clip_bounds: OnceCell<Vec<bool>>,
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
    /// Called for each operation; the first violation by each kind of operation is reported.
    OpKindOnce(fn(&Context<'_>, Subject<'_>) -> Option<Finding>),
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
    (Code::RuntimeIndex, RuleInput::OpKindOnce(chips::runtime_index)),
    (Code::UnsupportedOnAne, RuleInput::OpKindOnce(chips::unsupported_on_ane)),
    (Code::LargeDimension, RuleInput::OpOnce(chips::large_dimension)),
    (Code::LargeWeights, RuleInput::Function(chips::large_weights)),
    (Code::SmallModel, RuleInput::Function(chips::small_model)),
    (Code::SliceToEnd, RuleInput::Op(placement::slice_to_end)),
    (Code::DataDependentShape, RuleInput::Op(placement::data_dependent_shape)),
    (Code::Loop, RuleInput::Op(placement::while_loop)),
    (Code::StateAlignment, RuleInput::Function(placement::state_alignment)),
    (Code::UnusedWeight, RuleInput::Op(placement::unused_weight)),
    (Code::WideKernel, RuleInput::Op(chips::wide_kernel)),
    (Code::ManyStates, RuleInput::Function(chips::many_states)),
    (Code::QuantizedProduct, RuleInput::Op(chips::quantized_product)),
    (Code::InputGroupScale, RuleInput::OpOnce(chips::input_group_scale)),
    (Code::LateSlice, RuleInput::OpOnce(chips::late_slice)),
    (Code::TransposedValues, RuleInput::OpOnce(chips::transposed_values)),
    (Code::NegativeIndices, RuleInput::Op(engines::negative_indices)),
    (Code::HalfAttention, RuleInput::OpOnce(engines::half_attention)),
    (Code::AttentionBatch, RuleInput::OpOnce(engines::attention_batch)),
    (Code::SliceReshape, RuleInput::Op(engines::slice_reshape)),
    (Code::TransposedReduction, RuleInput::Op(engines::transposed_reduction)),
    (Code::UnfoldedBatchNorm, RuleInput::Op(engines::unfolded_batch_norm)),
    (Code::SumOverflow, RuleInput::OpOnce(sums::sum_overflow)),
    (Code::SmallProbabilities, RuleInput::OpOnce(sums::small_probabilities)),
    (Code::LargeInteger, RuleInput::OpOnce(sums::large_integer)),
    (Code::NonFinite, RuleInput::Op(numerics::non_finite)),
    (Code::HalfOverflow, RuleInput::Op(numerics::half_overflow)),
    (Code::VanishingEpsilon, RuleInput::OpOnce(numerics::vanishing_epsilon)),
    (Code::SquareOverflow, RuleInput::OpOnce(numerics::square_overflow)),
    (Code::HalfIndices, RuleInput::Op(numerics::half_indices)),
];

/// Applies the rules that concern one of the chips to a function.
pub(super) fn check(
    at: FunctionContext<'_>,
    layout: &Layout,
    analysis: &Analysis,
    signature: Option<Signature<'_>>,
    chips: &[&'static Chip],
    findings: &mut Findings,
) {
    let context = Context {
        at,
        layout,
        analysis,
        signature,
        chips,
        row_sums: RefCell::default(),
        clip_bounds: OnceCell::new(),
    };
    for (code, look) in RULES {
        let hazard = Hazard::of(code.name());
        if hazard.is_some_and(|hazard| !chips.iter().any(|chip| hazard.affects(chip))) {
            continue;
        }
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
                for (subject, hit) in context.first_hits(*look, |_| None) {
                    findings.push(context.diagnostic(*code, subject, hit));
                }
            }
            RuleInput::OpKindOnce(look) => {
                for (subject, hit) in context.first_hits(*look, |subject| Some(subject.kind)) {
                    findings.push(context.diagnostic(*code, subject, hit));
                }
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

    /// The first violation of each group, with the number of the others in its message.
    fn first_hits(
        &self,
        look: fn(&Context<'_>, Subject<'_>) -> Option<Finding>,
        group: fn(Subject<'_>) -> Option<OpKind>,
    ) -> impl Iterator<Item = (Subject<'p>, Finding)> {
        let mut groups: Vec<(Subject<'p>, Finding, usize)> = Vec::new();
        for (subject, hit) in self.hits(look) {
            match groups.iter_mut().find(|(first, ..)| group(*first) == group(subject)) {
                Some((_, _, others)) => *others += 1,
                None => groups.push((subject, hit, 0)),
            }
        }
        groups.into_iter().map(|(first, mut hit, others)| {
            match others {
                0 => {}
                1 => hit.message.push_str("; so does one more operation"),
                others => hit.message.push_str(&format!("; so do {others} more operations")),
            }
            (first, hit)
        })
    }

    fn diagnostic(&self, code: Code, subject: Subject<'_>, mut hit: Finding) -> Diagnostic {
        // Warnings about older chips only say so.
        if let Some(hazard) = Hazard::of(code.name()).filter(|hazard| hazard.until.is_some()) {
            hit.message.push_str(&format!(" ({})", hazard.chips()));
        }
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

    /// Whether the outputs of an operation are used as bounds of `clip` and in no other way.
    fn only_bounds_clips(&self, subject: Subject<'_>) -> bool {
        let bounds = self.clip_bounds.get_or_init(|| self.find_clip_bounds());
        subject.op.outputs.iter().all(|output| bounds.get(output.index()) == Some(&true))
    }

    fn find_clip_bounds(&self) -> Vec<bool> {
        let function = self.at.function;
        let mut uses = vec![0; self.layout.uses.len()];
        for &id in &self.layout.ops {
            let op = function.op(id);
            let is_clip = op.kind() == Some(OpKind::Clip);
            for (parameter, binding) in op.all_bindings() {
                let Binding::Value(value) = binding else { continue };
                if is_clip && matches!(parameter, "alpha" | "beta") {
                    uses[value.index()] += 1;
                }
            }
        }
        let all = self.layout.uses.iter();
        all.zip(uses).map(|(&all, bounds)| bounds > 0 && bounds == all).collect()
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
    use crate::{CODES, Severity};

    #[test]
    fn every_hazard_warning_has_rule_and_evidence() {
        let not_hazards = [Code::DuplicateOpName, Code::UnknownAttribute, Code::ScalarOutput];
        for row in CODES {
            let rules = RULES.iter().filter(|(code, _)| *code == row.code).count();
            let is_hazard = row.severity == Severity::Warning && !not_hazards.contains(&row.code);
            assert_eq!(rules, usize::from(is_hazard), "`{}`", row.name);
            // No device makes an unused weight a hazard.
            let has_evidence = is_hazard && row.code != Code::UnusedWeight;
            assert_eq!(Hazard::of(row.name).is_some(), has_evidence, "`{}`", row.name);
        }
        for hazard in coremill_device::HAZARDS {
            assert!(Code::from_name(hazard.code).is_some(), "`{}` is not a rule", hazard.code);
        }
    }
}
