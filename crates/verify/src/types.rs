//! Checks that operations support their arguments, and that declared types match inferred types.

use coremill_mil::infer::{Analysis, analyze};
use coremill_mil::ir::{Binding, Definition, OpId, Type, ValueId};

use super::codes::Code;
use super::diagnostic::{Diagnostic, Findings, FunctionContext};
use super::structure::Layout;

/// Maximum rank of a tensor.
const MAX_RANK: usize = 5;

pub(super) fn check(
    at: FunctionContext<'_>,
    layout: &mut Layout,
    findings: &mut Findings,
) -> Analysis {
    let function = at.function;
    let (analysis, problems) = analyze(function);
    for problem in problems {
        if !layout.refused[problem.op.index()] {
            let mut location = at.op(problem.op);
            location.parameter = problem.refusal.parameter;
            let diagnostic =
                Diagnostic::new(Code::InvalidOperation, location, problem.refusal.message);
            findings.push(match problem.refusal.hint {
                Some(hint) => diagnostic.hint(hint),
                None => diagnostic,
            });
        }
    }
    // The problems of one operation are consecutive, so mark operations as refused only after all are
    // reported.
    for &input in function.inputs() {
        rank_is_within(at, input, findings);
    }
    let constexpr_only = feeds_constexpr_only(at, layout);
    for &id in &layout.ops {
        let op = function.op(id);
        for &output in &op.outputs {
            let declared = &function.value(output).ty;
            match analysis.ty(output) {
                Some(inferred) if !inferred.is_compatible(declared) => {
                    let message =
                        format!("is declared as `{declared}`, but is `{}`", inferred.erased());
                    findings.report(Code::TypeMismatch, at.value(output), message);
                }
                Some(_) | None => {}
            }
            if !constexpr_only[output.index()] {
                rank_is_within(at, output, findings);
            }
        }
        for &block in &op.blocks {
            for &input in &function.block(block).inputs {
                rank_is_within(at, input, findings);
            }
        }
    }
    analysis
}

fn rank_is_within(at: FunctionContext<'_>, value: ValueId, findings: &mut Findings) {
    let rank = match at.function.value(value).ty.unwrap_state() {
        Type::Tensor(tensor) => tensor.rank(),
        Type::List(..) | Type::Tuple(_) | Type::Dictionary(..) | Type::State(_) => return,
    };
    if rank > MAX_RANK {
        let message = format!("must have a rank of at most {MAX_RANK}, got {rank}");
        findings.report(Code::RankLimit, at.value(value), message);
    }
}

/// Whether each value is a constant used only by compressed constants. Their lookup tables may exceed the
/// maximum rank.
fn feeds_constexpr_only(at: FunctionContext<'_>, layout: &Layout) -> Vec<bool> {
    let function = at.function;
    let is_constant = |op: OpId| function.op(op).is_constant();
    let mut only: Vec<bool> = (0..function.value_count())
        .map(|index| match function.value(ValueId::from_index(index)).definition {
            Definition::Output(op, _) if op.index() < function.op_count() => is_constant(op),
            Definition::Output(..) | Definition::Input(..) => false,
        })
        .collect();
    for &id in &layout.ops {
        let op = function.op(id);
        if op.kind().is_some_and(|kind| kind.is_constexpr()) {
            continue;
        }
        for (_, binding) in op.all_bindings() {
            if let Binding::Value(value) = binding {
                only[value.index()] = false;
            }
        }
    }
    for &block in &layout.blocks {
        for output in &function.block(block).outputs {
            only[output.index()] = false;
        }
    }
    only
}
