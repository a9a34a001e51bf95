//! What was delegated, what was not, why, and what that costs.

use std::collections::BTreeMap;

use coremill_compress::linear::Outcome;
use coremill_mil::ir::Opset;
use coremill_pt2::ExportedProgram;

use super::stages::bytes;
use super::{Division, FallbackReason, partitions_with};
use crate::error::{LoweringError, UnsupportedOp};

/// How one method was divided.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// The method.
    pub method: String,
    /// Its partitions, in the order in which they run.
    pub parts: Vec<PartReport>,
    /// The calls that stay outside, in the order of the program.
    pub outside: Vec<FallbackCall>,
    /// Calls that were to be left outside, but that no kernel can do.
    pub delegated_all_the_same: Vec<UnsupportedOp>,
    /// Names of operators to be left outside that no call has.
    pub skipped_in_vain: Vec<String>,
}

/// A partition.
#[derive(Clone, Debug)]
pub struct PartReport {
    /// How many calls it has.
    pub calls: usize,
    /// The release that it needs.
    pub target: Opset,
    /// How many tensors it takes.
    pub inputs: usize,
    /// How many tensors it gives.
    pub outputs: usize,
    /// The bytes that go in and out at each run, at the sizes of the export.
    pub bytes: u64,
    /// The buffers that it keeps between runs.
    pub states: Vec<String>,
    /// What became of its weights, if they were to be quantized.
    pub weights: Option<Outcome>,
}

/// A call that stays outside.
#[derive(Clone, Debug)]
pub struct FallbackCall {
    /// The call and where it is in the model; the refusal says why it stays outside.
    pub call: UnsupportedOp,
    /// What kind of reason that is.
    pub reason: Reason,
    /// What it costs.
    pub cost: Cost,
}

/// Why a call stays outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The caller wants it so.
    Asked,
    /// It cannot be lowered.
    Refused,
    /// It is not worth a delegate of its own.
    TooSmall,
}

/// What it costs that a call stays outside.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// The bytes that go between delegates and this call at each run, at the sizes of the export.
    pub bytes: u64,
    /// How many delegates fewer there would be if all calls of this operator could be delegated.
    pub delegates: usize,
}

/// Describes a division.
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
                let reason = "only moves elements between calls that are outside, too";
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
