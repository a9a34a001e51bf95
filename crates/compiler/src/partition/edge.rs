//! Division for ExecuTorch's own partitioner, which cuts the graph along it.
//!
//! ExecuTorch's partitioner assigns nodes. There, a number (`sym_size`, sums of sizes) is a node like any other, but
//! delegates accept tensors only. A number with uses in two partitions therefore cannot be computed in either, and
//! the calls that use it stay outside.

use std::collections::BTreeSet;

use coremill_mil::ir::Opset;
use coremill_pt2::{Argument, ExportedProgram, Node, OutputKind, Target};

use super::part::{can_be_state, times_given};
use super::{DELEGATE, Divider, FallbackReason, PartitionOptions};
use crate::error::{Error, LoweringError, UnsupportedOp};
use crate::options::LowerOptions;
use crate::pipeline::needed_by_options;

/// Division of a program for ExecuTorch.
#[derive(Clone, Debug, Default)]
pub struct EdgeDivision {
    /// The partitions in execution order.
    pub parts: Vec<EdgePart>,
    /// Calls that stay outside because they cannot be lowered.
    pub refused: Vec<UnsupportedOp>,
    /// torch's names of all calls. Other nodes of the fx graph belong to their inputs and outputs.
    pub calls: Vec<String>,
}

/// A partition in ExecuTorch's graph.
#[derive(Clone, Debug)]
pub struct EdgePart {
    /// torch's names of its calls.
    pub nodes: Vec<String>,
    /// Buffers that become states, by tensor name.
    pub states: Vec<String>,
}

/// Divides a program in the edge dialect. `outside` lists torch's names of calls excluded from delegation.
///
/// # Errors
/// With [`LowerOptions::full_graph`], if a call cannot be lowered.
pub fn edge_partition(
    program: ExportedProgram,
    options: &LowerOptions,
    outside: &[String],
) -> Result<EdgeDivision, Error> {
    let program = coremill_prepare::prepare(program)?;
    let wishes = wishes(options);
    let is_delegate =
        |node: &Node| matches!(&node.target, Target::HigherOrder(name) if name == DELEGATE);
    let nodes = program.graph.nodes.iter();
    let is_asked: Vec<bool> =
        nodes.map(|node| outside.contains(&node.name) || is_delegate(node)).collect();
    let mut divider = Divider::new(program, &wishes, &is_asked);
    divider.release_new_values();
    if !divider.is_one()? {
        divider.probe();
    }
    let partitions = loop {
        let (_, partitions) = divider.divided();
        if divider.lower_all(&partitions) && !divider.leave_shared_numbers(&partitions) {
            break partitions;
        }
    };
    let nodes = &divider.program.graph.nodes;
    let parts = partitions.iter().map(|calls| {
        let part = &divider.known[calls].part;
        let nodes = part.nodes.iter().map(|&at| nodes[at].name.clone()).collect();
        EdgePart { nodes, states: part.states.clone() }
    });
    Ok(EdgeDivision { parts: parts.collect(), ..divider.refused() })
}

/// Tests each call of a program by itself, and returns the calls that cannot be lowered.
pub fn refused_calls(
    program: ExportedProgram,
    options: &LowerOptions,
) -> Result<EdgeDivision, Error> {
    let program = coremill_prepare::prepare(program)?;
    let wishes = wishes(options);
    let is_asked = vec![false; program.graph.nodes.len()];
    let mut divider = Divider::new(program, &wishes, &is_asked);
    divider.probe();
    Ok(divider.refused())
}

fn wishes(options: &LowerOptions) -> PartitionOptions<'_> {
    let floor = Opset::Ios15.max(needed_by_options(&options.options));
    PartitionOptions { options, floor, without_kernel: &[], is_cut_by_executorch: true }
}

impl Divider<'_> {
    /// The calls outside, and the errors of the calls that cannot be lowered.
    fn refused(&self) -> EdgeDivision {
        let nodes = &self.program.graph.nodes;
        let refused = self.outside.iter().zip(nodes).filter_map(|(why, node)| match why {
            Some(FallbackReason::Refused(refusal)) => {
                Some(UnsupportedOp::of(node, refusal.clone()))
            }
            Some(FallbackReason::Asked | FallbackReason::Crumb) | None => None,
        });
        EdgeDivision {
            parts: Vec::new(),
            refused: refused.collect(),
            calls: nodes.iter().map(|node| node.name.clone()).collect(),
        }
    }

    /// Lets calls that compute the new value of a buffer move to the partition that uses the value, which can then
    /// keep the buffer as a state. The program itself does not need the value.
    fn release_new_values(&mut self) {
        if !self.takes_over_buffers() {
            return;
        }
        let (program, graph) = (&self.program, &self.program.graph);
        for (output, kind) in graph.outputs.iter().zip(&program.outputs) {
            let (Argument::Value(id), OutputKind::BufferMutation(_)) = (output, kind) else {
                continue;
            };
            if can_be_state(&graph.value(*id).meta) && times_given(graph, &self.flow, *id) == 1 {
                self.flow.is_result[id.index()] = false;
            }
        }
    }

    /// Moves calls outside that use a number shared with another partition. Returns whether there were any.
    fn leave_shared_numbers(&mut self, partitions: &[Vec<usize>]) -> bool {
        let graph = &self.program.graph;
        let outside = partitions.len();
        let mut places = vec![BTreeSet::new(); graph.nodes.len()];
        let mut add = |calls: &[usize], place: usize| {
            for call in self.flow.with_numbers(graph, calls) {
                if self.flow.is_number[call] {
                    places[call].insert(place);
                }
            }
        };
        for (place, calls) in partitions.iter().enumerate() {
            add(calls, place);
        }
        let is_outside = |call: &usize| self.outside[*call].is_some();
        let others: Vec<usize> = (0..graph.nodes.len()).filter(is_outside).collect();
        add(&others, outside);
        let mut given = Vec::new();
        for output in &graph.outputs {
            output.for_each_value(&mut |id| given.push(id));
        }
        let mut results = Vec::new();
        self.flow.add_numbers(graph, given, &mut results);
        for call in results {
            places[call].insert(outside);
        }

        let mut found = false;
        for &call in partitions.iter().flatten() {
            let numbers = self.flow.with_numbers(graph, &[call]);
            let Some(&shared) = numbers.iter().find(|number| places[**number].len() > 1) else {
                continue;
            };
            let reason = format!(
                "uses the number `{}`, which is also needed outside its delegate; delegates accept only tensors",
                graph.nodes[shared].name
            );
            self.outside[call] = Some(FallbackReason::Refused(LoweringError::new(reason)));
            found = true;
        }
        found
    }
}
