//! Which calls make up a partition.
//!
//! Every call that can be delegated gets a stage: the number of times that a path to it, from any input, goes from a
//! delegate out to other kernels and back in. Calls of one stage are one partition. No path leads out of a partition
//! and back into it, since outside the stage grows; and no division has fewer partitions, since a path that goes
//! out and in that often needs as many.

use coremill_pt2::{Graph, Meta, Size, ValueId};

use super::flow::{Flow, defined};

/// By call its stage: partitions by their number, calls outside by the last partition that they wait for, −1 for none.
pub(super) struct Stages(Vec<i64>);

impl Stages {
    /// Divides the calls. Numbers have no stage of their own.
    pub(super) fn of(graph: &Graph, flow: &Flow, is_inside: &[bool]) -> Stages {
        let mut stages = vec![-1i64; graph.nodes.len()];
        for call in 0..graph.nodes.len() {
            if flow.is_number[call] {
                continue;
            }
            let before = flow.operands[call].iter().filter_map(|id| flow.producer[id.index()]);
            let stage = before.map(|from| match (is_inside[from], is_inside[call]) {
                (false, true) => stages[from] + 1,
                _ => stages[from],
            });
            stages[call] = stage.max().unwrap_or(-1).max(if is_inside[call] { 0 } else { -1 });
        }
        let mut stages = Stages(stages);
        stages.settle(graph, flow, is_inside);
        stages
    }

    /// The stage of a call.
    pub(super) fn of_call(&self, call: usize) -> i64 {
        self.0[call]
    }

    /// The calls of each partition, in order.
    pub(super) fn partitions(&self, flow: &Flow, is_inside: &[bool]) -> Vec<Vec<usize>> {
        let mut partitions: Vec<Vec<usize>> = Vec::new();
        for (call, &stage) in self.0.iter().enumerate() {
            if flow.is_number[call] || !is_inside[call] {
                continue;
            }
            let stage = usize::try_from(stage).expect("delegated calls count from 0");
            if partitions.len() <= stage {
                partitions.resize_with(stage + 1, Vec::new);
            }
            partitions[stage].push(call);
        }
        // Calls that moved on can leave a stage empty.
        partitions.retain(|partition| !partition.is_empty());
        partitions
    }

    /// Moves calls to the later stage where their results are used, if less goes from hand to hand then: a mask that
    /// is made of nothing but constants, for instance.
    fn settle(&mut self, graph: &Graph, flow: &Flow, is_inside: &[bool]) {
        for call in (0..graph.nodes.len()).rev() {
            if flow.is_number[call] || !is_inside[call] {
                continue;
            }
            let stage = self.0[call];
            let node = &graph.nodes[call];
            let users = || defined(node).flat_map(|id| flow.users[id.index()].iter().copied());
            let Some(last) = users().map(|user| self.0[user]).min() else { continue };
            let is_used_outside = |id: ValueId, stage: i64| {
                flow.is_result[id.index()]
                    || flow.users[id.index()]
                        .iter()
                        .any(|&user| !is_inside[user] || self.0[user] != stage)
            };
            if last <= stage {
                continue;
            }
            let saved: u64 = defined(node)
                .filter(|id| is_used_outside(*id, stage) && !is_used_outside(*id, last))
                .map(|id| bytes(graph, id))
                .fold(0, u64::saturating_add);
            let added: u64 = flow.operands[call]
                .iter()
                .filter(|id| {
                    let from = flow.producer[id.index()];
                    let crosses =
                        |&user: &usize| user != call && (!is_inside[user] || self.0[user] != stage);
                    from.is_some_and(|from| is_inside[from] && self.0[from] == stage)
                        && !flow.is_result[id.index()]
                        && !flow.users[id.index()].iter().any(crosses)
                })
                .map(|id| bytes(graph, *id))
                .fold(0, u64::saturating_add);
            if added < saved {
                self.0[call] = last;
            }
        }
    }
}

/// The bytes that a value takes, at the sizes that it had at export where it has no fixed ones.
pub(crate) fn bytes(graph: &Graph, id: ValueId) -> u64 {
    let Meta::Tensor(meta) = &graph.value(id).meta else { return 0 };
    let extent = |size: &Size| match size {
        Size::Fixed(extent) => u64::try_from(*extent).unwrap_or(0),
        Size::Symbolic(symbolic) => match symbolic.hint {
            Some(coremill_pt2::Hint::Int(extent)) => u64::try_from(extent).unwrap_or(1),
            _ => 1,
        },
    };
    let sizes = meta.sizes.iter().map(extent);
    sizes.fold(meta.dtype.bytes(), u64::saturating_mul)
}
