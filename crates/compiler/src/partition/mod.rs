//! Division of a program's calls between Core ML and ExecuTorch's kernels.
//!
//! A call is delegated if lowering it succeeds. These calls are grouped into as few partitions as possible without
//! cyclic dependencies. Each partition is then lowered as a program of its own. Calls that fail there move outside,
//! and the division is repeated.
//!
//! | module | holds |
//! |---|---|
//! | `flow` | data flow between calls |
//! | `stages` | assignment of calls to stages |
//! | `part` | a partition as a program |
//! | `around` | the program with delegate calls in place of partitions |
//! | `sizes` | sizes read off inputs |
//! | `edge` | division for ExecuTorch's own partitioner |
//! | `report` | calls outside delegates, with reasons and costs |

mod around;
mod edge;
mod flow;
mod part;
mod report;
mod sizes;
mod stages;

use std::collections::HashMap;
use std::mem;

use coremill_compress::linear::Outcome;
use coremill_mil::ir::{Function, Opset};
use coremill_pt2::{ExportedProgram, InputKind, Target, operators};

pub(crate) use self::around::{DELEGATE, around};
pub use self::edge::{EdgeDivision, EdgePart, edge_partition, refused_calls};
use self::flow::Flow;
use self::part::{Part, TakeOver, crosses, cut};
pub(crate) use self::report::report;
pub use self::report::{Cost, FallbackCall, PartReport, Reason, Report};
use self::stages::Stages;
use crate::decompose::{complex_outputs, pairs};
use crate::error::{Error, LoweringError, UnsupportedOp};
use crate::lower::{SupportQuery, probe};
use crate::options::{LowerOptions, Options, States};
use crate::pipeline::{lowered, optimise};

/// Options of a division.
pub(crate) struct PartitionOptions<'o> {
    /// Options for lowering the partitions.
    pub(crate) options: &'o LowerOptions,
    /// The oldest release considered if the options have no target.
    pub(crate) floor: Opset,
    /// Names of calls without a kernel, which are delegated however small the partition.
    pub(crate) without_kernel: &'o [String],
    /// Whether ExecuTorch's partitioner cuts the graph along the division.
    pub(crate) is_cut_by_executorch: bool,
}

/// A lowered partition.
#[derive(Clone, Debug)]
pub(crate) struct DelegatedPartition {
    pub(crate) part: Part,
    pub(crate) function: Function,
    /// Maps value names to the calls they were created for. Values created by passes have no entry.
    pub(crate) origins: HashMap<String, usize>,
    pub(crate) target: Opset,
    /// Summary of the weight quantization, if requested.
    pub(crate) weights: Option<Outcome>,
}

/// A divided program.
pub(crate) struct Division {
    /// The partitions in execution order.
    pub(crate) delegated: Vec<DelegatedPartition>,
    /// For each call, the reason why it is outside; `None` for delegated calls and numbers.
    pub(crate) outside: Vec<Option<FallbackReason>>,
    /// Names of excluded operators that match no call.
    pub(crate) in_vain: Vec<String>,
    stages: Stages,
    flow: Flow,
}

/// Reason why a call is not delegated.
#[derive(Clone, Debug)]
pub(crate) enum FallbackReason {
    /// Excluded by the caller.
    Asked,
    /// Cannot be lowered.
    Refused(LoweringError),
    /// Too small a partition to be worth a delegate.
    Crumb,
}

/// State of the division algorithm.
struct Divider<'w> {
    program: ExportedProgram,
    /// The program without graph and tensors.
    frame: ExportedProgram,
    wishes: &'w PartitionOptions<'w>,
    flow: Flow,
    outside: Vec<Option<FallbackReason>>,
    /// Partitions lowered so far, by their calls.
    known: HashMap<Vec<usize>, DelegatedPartition>,
}

/// Divides a functional program.
pub(crate) fn divide(
    program: ExportedProgram,
    wishes: &PartitionOptions<'_>,
) -> Result<(ExportedProgram, Division), Error> {
    let mut is_asked = vec![wishes.options.portable; program.graph.nodes.len()];
    let mut in_vain = Vec::new();
    let names: Vec<_> = program.graph.nodes.iter().map(|node| edge_name(&node.target)).collect();
    for skipped in wishes.options.skip_ops.iter().map(|name| name.to_lowercase()) {
        let mut is_there = false;
        for (is_asked, (name, edge)) in is_asked.iter_mut().zip(&names) {
            let is_it = skipped == *name || skipped == *edge;
            *is_asked |= is_it;
            is_there |= is_it;
        }
        if !is_there {
            in_vain.push(skipped);
        }
    }
    let mut divider = Divider::new(program, wishes, &is_asked);
    if !divider.is_one()? {
        let refused = complex_outputs(&divider.program);
        if !refused.is_empty() {
            return Err(Error::Refused(refused));
        }
        if let Some(paired) = pairs(&divider.program).map_err(Error::Program)? {
            let is_asked: Vec<bool> =
                paired.sources.iter().map(|source| is_asked[*source]).collect();
            divider = Divider::new(paired.program, wishes, &is_asked);
        }
        sizes::from_inputs(&mut divider.program);
        divider.flow = Flow::of(&divider.program.graph);
        divider.probe();
    }
    let (program, division) = divider.finish();
    Ok((program, Division { in_vain, ..division }))
}

/// Names of an operator in ExecuTorch's partitioner: torch's form and the edge dialect's form.
fn edge_name(target: &Target) -> (String, String) {
    let name = target.to_string().to_lowercase();
    let edge = match target {
        Target::Operator { namespace, name, overload }
            if name == "reshape" || operators::has_copy(name) =>
        {
            let name = if name == "reshape" { "view" } else { name };
            format!("{namespace}.{name}_copy.{overload}").to_lowercase()
        }
        Target::HigherOrder(name) => name.to_lowercase(),
        _ => name.clone(),
    };
    (name, edge)
}

impl<'w> Divider<'w> {
    fn new(
        mut program: ExportedProgram,
        wishes: &'w PartitionOptions<'w>,
        is_asked: &[bool],
    ) -> Divider<'w> {
        let (graph, tensors) = (mem::take(&mut program.graph), mem::take(&mut program.tensors));
        let frame = program.clone();
        (program.graph, program.tensors) = (graph, tensors);
        let flow = Flow::of(&program.graph);
        let nodes = program.graph.nodes.iter().enumerate();
        let outside = nodes.map(|(call, node)| {
            let is_outside = is_asked[call]
                && !flow.is_number[call]
                && !wishes.without_kernel.contains(&node.name);
            is_outside.then_some(FallbackReason::Asked)
        });
        let outside = outside.collect();
        Divider { program, frame, wishes, flow, outside, known: HashMap::new() }
    }

    /// Whether all calls form a single partition. If so, it is lowered and stored.
    fn is_one(&mut self) -> Result<bool, Error> {
        if self.outside.iter().any(Option::is_some) {
            return Ok(false);
        }
        let is_number = &self.flow.is_number;
        let calls: Vec<usize> = (0..is_number.len()).filter(|&call| !is_number[call]).collect();
        if calls.is_empty() {
            return Ok(true);
        }
        let refused = self.lower(&calls);
        if self.wishes.options.full_graph
            && let Err(error) = refused
        {
            return Err(error.into_error());
        }
        Ok(refused.is_ok())
    }

    /// Tests each call by lowering it.
    fn probe(&mut self) {
        let mut inputs = self.program.inputs.clone();
        for kind in &mut inputs {
            let is_written = match kind {
                InputKind::Parameter(name) | InputKind::Buffer { name, .. } => {
                    self.program.written(name).is_some()
                }
                _ => false,
            };
            let is_constant = matches!(
                kind,
                InputKind::Parameter(_) | InputKind::Buffer { .. } | InputKind::TensorConstant(_)
            );
            if is_written || is_constant && !self.wishes.options.take_over_constant_data {
                *kind = InputKind::User;
            }
        }
        let inputs = std::mem::replace(&mut self.program.inputs, inputs);
        let passed: Vec<bool> = self.outside.iter().map(Option::is_some).collect();
        let options = self.options();
        let mut target = options.target.unwrap_or(self.wishes.floor);
        let refused = loop {
            let refused = probe(&self.program, target, &options, &SupportQuery { passed: &passed });
            let needed = refused.iter().filter_map(|(_, refused)| refused.refusal.needs).max();
            match needed.filter(|needed| options.target.is_none() && *needed > target) {
                Some(needed) => target = needed,
                None => break refused,
            }
        };
        self.program.inputs = inputs;
        for (call, refused) in refused {
            if self.flow.is_number[call] {
                self.refuse_users(call, &refused.refusal);
            } else {
                self.outside[call].get_or_insert(FallbackReason::Refused(refused.refusal));
            }
        }
    }

    /// Refuses all calls that use a refused number.
    fn refuse_users(&mut self, number: usize, refusal: &LoweringError) {
        let graph = &self.program.graph;
        for call in 0..graph.nodes.len() {
            if self.flow.is_number[call] || self.outside[call].is_some() {
                continue;
            }
            let with_numbers = self.flow.with_numbers(graph, &[call]);
            if with_numbers.contains(&number) {
                let source = &graph.nodes[number];
                let reason = format!(
                    "uses `{}` (`{}`), which cannot be lowered: {}",
                    source.name, source.target, refusal.reason
                );
                self.outside[call] =
                    Some(FallbackReason::Refused(LoweringError { reason, ..refusal.clone() }));
            }
        }
    }

    /// The partitions of the calls that are currently inside.
    fn divided(&self) -> (Stages, Vec<Vec<usize>>) {
        let is_inside: Vec<bool> = self.outside.iter().map(Option::is_none).collect();
        let stages = Stages::of(&self.program.graph, &self.flow, &is_inside);
        let partitions = stages.partitions(&self.flow, &is_inside);
        (stages, partitions)
    }

    /// Lowers all partitions. Calls that fail move outside; returns whether none did.
    fn lower_all(&mut self, partitions: &[Vec<usize>]) -> bool {
        let mut stand = true;
        for calls in partitions {
            if let Err(refused) = self.lower(calls) {
                self.move_to_fallback(calls, refused);
                stand = false;
            }
        }
        stand
    }

    /// Repeats the division until every partition can be lowered.
    fn finish(mut self) -> (ExportedProgram, Division) {
        loop {
            let (stages, partitions) = self.divided();
            if self.leave_crumbs(&partitions) || !self.lower_all(&partitions) {
                continue;
            }
            let known = |calls| self.known.remove(calls).expect("each was lowered above");
            let delegated = partitions.iter().map(known).collect();
            let mut outside = self.outside;
            for (call, why) in outside.iter_mut().enumerate() {
                if self.flow.is_number[call] {
                    *why = None;
                }
            }
            let division =
                Division { delegated, outside, in_vain: Vec::new(), stages, flow: self.flow };
            return (self.program, division);
        }
    }

    /// Moves partitions outside that only move elements, as passing tensors to Core ML and back costs more. Returns
    /// whether there were any.
    fn leave_crumbs(&mut self, partitions: &[Vec<usize>]) -> bool {
        // If the whole program consists of such calls, it is delegated as requested.
        if self.wishes.options.full_graph || self.outside.iter().all(Option::is_none) {
            return false;
        }
        let graph = &self.program.graph;
        let mut found = false;
        for calls in partitions {
            let is_crumb = calls.iter().all(|&call| {
                let node = &graph.nodes[call];
                operators::of(&node.target).movement
                    && !self.wishes.without_kernel.contains(&node.name)
            });
            if is_crumb {
                calls.iter().for_each(|&call| self.outside[call] = Some(FallbackReason::Crumb));
                found = true;
            }
        }
        found
    }

    /// Whether mutable buffers become states.
    fn takes_over_buffers(&self) -> bool {
        let target = self.wishes.options.options.target;
        let has_states = target.is_none_or(|target| target >= Opset::Ios18);
        self.wishes.options.take_over_mutable_buffer && has_states
    }

    fn options(&self) -> Options {
        Options { states: States::Keep, ..self.wishes.options.options.clone() }
    }

    /// Lowers a partition, unless it is already lowered.
    fn lower(&mut self, calls: &[usize]) -> Result<(), PartitionBlocker> {
        if self.known.contains_key(calls) {
            return Ok(());
        }
        let mut options = self.options();
        let take_over = TakeOver {
            constants: self.wishes.options.take_over_constant_data,
            buffers: self.takes_over_buffers(),
            shares_new_values: !self.wishes.is_cut_by_executorch,
        };
        let part = cut(&self.program, &self.frame, &self.flow, calls, take_over);
        let graph = &self.program.graph;
        let mut refused: Vec<(usize, LoweringError)> = Vec::new();
        for &id in &part.inputs {
            let value = graph.value(id);
            if let Err(refusal) = crosses(&value.name, &value.meta) {
                let users = calls.iter().filter(|&&call| self.flow.operands[call].contains(&id));
                refused.extend(users.map(|&call| (call, refusal.clone())));
            }
        }
        for &id in &part.outputs {
            let value = graph.value(id);
            if let Err(refusal) = crosses(&value.name, &value.meta) {
                refused.extend(self.flow.producer[id.index()].map(|call| (call, refusal)));
            }
        }
        if !refused.is_empty() {
            return Err(PartitionBlocker::Calls(refused, None));
        }
        if !self.wishes.options.full_graph {
            let inputs = &part.inputs;
            options.shapes.retain(|name, _| {
                inputs.iter().any(|id| crate::identifier(&graph.value(*id).name) == *name)
            });
        }
        let attempt = lowered(&part.program, &options, self.wishes.floor);
        match attempt.draft {
            Ok((draft, target)) => {
                let optimised = optimise(draft, &part.program, &attempt.origins, &options);
                let function = match optimised {
                    Ok(function) => function,
                    Err(error) => return Err(PartitionBlocker::Whole(error)),
                };
                let of_program = |(name, node): (String, usize)| (name, part.nodes[node]);
                let origins = attempt.origins.into_iter().map(of_program).collect();
                let delegated =
                    DelegatedPartition { part, function, origins, target, weights: None };
                self.known.insert(calls.to_vec(), delegated);
                Ok(())
            }
            Err(Error::Refused(all)) => {
                let at = attempt.refused_nodes.iter().map(|&node| part.nodes[node]);
                let calls = at.zip(all.iter().map(|refused| refused.refusal.clone())).collect();
                Err(PartitionBlocker::Calls(calls, Some(all)))
            }
            Err(error) => Err(PartitionBlocker::Whole(error)),
        }
    }

    /// Moves the calls that block a partition outside.
    fn move_to_fallback(&mut self, calls: &[usize], stands: PartitionBlocker) {
        match stands {
            PartitionBlocker::Calls(refused, _) => {
                for (call, refusal) in refused {
                    if self.flow.is_number[call] {
                        self.refuse_users(call, &refusal);
                    } else {
                        self.outside[call].get_or_insert(FallbackReason::Refused(refusal));
                    }
                }
                // At least one call must move, or the division would not terminate.
                if calls.iter().all(|&call| self.outside[call].is_none()) {
                    self.outside[calls[0]] = Some(FallbackReason::Refused(LoweringError::new(
                        "its partition cannot be lowered",
                    )));
                }
            }
            PartitionBlocker::Whole(error) => {
                let refusal = match error {
                    Error::Program(refusal) => refusal,
                    other => LoweringError::new(other.to_string()),
                };
                for &call in calls {
                    self.outside[call] = Some(FallbackReason::Refused(refusal.clone()));
                }
            }
        }
    }
}

/// Reason why a partition cannot be lowered.
enum PartitionBlocker {
    /// Errors of single calls, and the same errors with locations if the lowering reported them.
    Calls(Vec<(usize, LoweringError)>, Option<Vec<UnsupportedOp>>),
    /// An error of the whole partition.
    Whole(Error),
}

impl PartitionBlocker {
    fn into_error(self) -> Error {
        match self {
            PartitionBlocker::Calls(_, Some(refused)) => Error::Refused(refused),
            PartitionBlocker::Calls(calls, None) => {
                let mut calls = calls.into_iter().map(|(_, refusal)| refusal);
                Error::Program(calls.next().unwrap_or_else(|| LoweringError::new("unknown error")))
            }
            PartitionBlocker::Whole(error) => error,
        }
    }
}

impl Division {
    /// Excluded calls that produce or use a tensor of one of the given calls, directly or through other calls
    /// outside. If there are none, all excluded calls.
    pub(crate) fn asked_beside(&self, program: &ExportedProgram, calls: &[usize]) -> Vec<usize> {
        let is_asked = |call: &usize| matches!(self.outside[*call], Some(FallbackReason::Asked));
        let mut seen = vec![false; self.outside.len()];
        let mut pending = calls.to_vec();
        while let Some(call) = pending.pop() {
            if self.outside[call].is_none() || mem::replace(&mut seen[call], true) {
                continue;
            }
            let producers = self.flow.operands[call].iter();
            pending.extend(producers.filter_map(|id| self.flow.producer[id.index()]));
            let given = program.graph.nodes[call].defined();
            pending.extend(given.flat_map(|id| self.flow.users[id.index()].iter().copied()));
        }
        let all = || (0..self.outside.len()).filter(is_asked);
        let beside: Vec<usize> = all().filter(|call| seen[*call]).collect();
        if beside.is_empty() { all().collect() } else { beside }
    }
}

/// Number of partitions if the selected calls could be delegated, too.
pub(crate) fn partitions_with(
    program: &ExportedProgram,
    division: &Division,
    also: &dyn Fn(usize) -> bool,
) -> usize {
    let is_inside: Vec<bool> = division
        .outside
        .iter()
        .enumerate()
        .map(|(call, why)| why.is_none() || also(call))
        .collect();
    let stages = Stages::of(&program.graph, &division.flow, &is_inside);
    stages.partitions(&division.flow, &is_inside).len()
}
