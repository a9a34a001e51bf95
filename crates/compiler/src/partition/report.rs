//! Report on a division: delegated calls, calls outside, and the reasons and costs.

use std::collections::BTreeMap;

use coremill_compress::linear::Outcome;
use coremill_mil::ir::Opset;
use coremill_pt2::ExportedProgram;

use super::stages::bytes;
use super::{Division, FallbackReason, partitions_with};
use crate::error::{LoweringError, UnsupportedOp};

/// Division of one method.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Name of the method.
    pub method: String,
    /// Partitions in execution order.
    pub parts: Vec<PartReport>,
    /// Calls outside delegates, in program order.
    pub outside: Vec<FallbackCall>,
    /// Calls excluded from delegation that are delegated because they have no kernel.
    pub delegated_all_the_same: Vec<UnsupportedOp>,
    /// Names of excluded operators that match no call.
    pub skipped_in_vain: Vec<String>,
}

/// Report on a partition.
#[derive(Clone, Debug)]
pub struct PartReport {
    /// Number of calls.
    pub calls: usize,
    /// Release that the partition requires.
    pub target: Opset,
    /// Number of input tensors.
    pub inputs: usize,
    /// Number of output tensors.
    pub outputs: usize,
    /// Bytes transferred in and out per run, at the sizes of the export.
    pub bytes: u64,
    /// Buffers kept between runs.
    pub states: Vec<String>,
    /// Summary of the weight quantization, if requested.
    pub weights: Option<Outcome>,
}

/// A call outside delegates.
#[derive(Clone, Debug)]
pub struct FallbackCall {
    /// The call and its location in the model, with the reason in `refusal`.
    pub call: UnsupportedOp,
    /// Category of the reason.
    pub reason: Reason,
    /// Cost of running the call outside.
    pub cost: Cost,
}

/// Category of the reason for running a call outside delegates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// Excluded by the caller.
    Asked,
    /// It cannot be lowered.
    Refused,
    /// Too small a partition to be worth a delegate.
    TooSmall,
}

/// Cost of running a call outside delegates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Bytes transferred per run between delegates and this call, at the sizes of the export.
    pub bytes: u64,
    /// Reduction of the number of delegates if all calls of this operator could be delegated.
    pub delegates: usize,
}

/// Creates the report of a division.
pub(crate) fn report(method: &str, program: &ExportedProgram, division: &Division) -> Report {
    let graph = &program.graph;
    let parts = division.delegated.iter().map(|delegated| {
        let part = &delegated.part;
        let crossing = part.inputs.iter().chain(&part.outputs);
        PartReport {
            calls: part.calls.len(),
            target: delegated.target,
            inputs: part.inputs.len(),
            outputs: part.outputs.len(),
            bytes: crossing.map(|id| bytes(graph, *id)).fold(0, u64::saturating_add),
            states: part.states.clone(),
            weights: delegated.weights.clone(),
        }
    });
    let flow = &division.flow;
    let is_inside = |call: usize| division.outside[call].is_none() && !flow.is_number[call];
    let mut saved: BTreeMap<String, usize> = BTreeMap::new();
    let mut outside = Vec::new();
    for (call, why) in division.outside.iter().enumerate() {
        let Some(why) = why else { continue };
        let node = &graph.nodes[call];
        let operator = node.target.to_string();
        let delegates = *saved.entry(operator.clone()).or_insert_with(|| {
            let also = |other: usize| graph.nodes[other].target == node.target;
            let fewer = partitions_with(program, division, &also);
            division.delegated.len().saturating_sub(fewer)
        });
        let taken = flow.operands[call].iter().filter(|id| {
            let crosses = |from: usize| is_inside(from);
            flow.producer[id.index()].is_some_and(crosses)
        });
        let given: Vec<_> = node
            .defined()
            .filter(|id| flow.users[id.index()].iter().any(|&user| is_inside(user)))
            .collect();
        let bytes = taken.chain(&given).map(|id| bytes(graph, *id)).fold(0, u64::saturating_add);
        let (reason, refusal) = match why {
            FallbackReason::Asked => (Reason::Asked, LoweringError::new("excluded by the options")),
            FallbackReason::Refused(refusal) => (Reason::Refused, refusal.clone()),
            FallbackReason::Crumb => {
                let reason = "only moves elements between calls that are also outside";
                (Reason::TooSmall, LoweringError::new(reason))
            }
        };
        let call = UnsupportedOp::of(node, refusal);
        outside.push(FallbackCall { call, reason, cost: Cost { bytes, delegates } });
    }
    Report {
        method: method.to_owned(),
        parts: parts.collect(),
        outside,
        delegated_all_the_same: Vec::new(),
        skipped_in_vain: division.in_vain.clone(),
    }
}
