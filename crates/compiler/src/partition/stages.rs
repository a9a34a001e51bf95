//! Assignment of calls to partitions.
//!
//! Each call that can be delegated has a stage: the maximum number of times that a path from an input to it leaves a
//! delegate for other kernels and enters one again. Calls of one stage form a partition. No path leaves a partition
//! and returns to it, because the stage increases outside. No division has fewer partitions, because a path that
//! leaves and enters that many times needs as many.

use coremill_pt2::{Graph, Meta, Size, ValueId};

use super::flow::Flow;

/// Stage of each call: partition numbers for delegated calls, and for calls outside the last partition that they
/// depend on, or −1.
pub(super) struct Stages(Vec<i64>);

impl Stages {
    /// Assigns stages. Numbers have no stage of their own.
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

    /// Calls of each partition, in order.
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
        // A stage may become empty when its calls move to a later one.
        partitions.retain(|partition| !partition.is_empty());
        partitions
    }

    /// Moves calls to the later stage that uses their results, if fewer bytes cross partitions then. An example is a
    /// mask computed from constants only.
    fn settle(&mut self, graph: &Graph, flow: &Flow, is_inside: &[bool]) {
        for call in (0..graph.nodes.len()).rev() {
            if flow.is_number[call] || !is_inside[call] {
                continue;
            }
            let stage = self.0[call];
            let node = &graph.nodes[call];
            let users = || node.defined().flat_map(|id| flow.users[id.index()].iter().copied());
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
            let saved: u64 = node
                .defined()
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

/// Size of a value in bytes; dynamic sizes count as exported.
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

#[cfg(test)]
mod tests {
    use coremill_pt2::{Argument, Node, Origin, Output, ScalarType, Target};

    use super::*;

    fn meta() -> Meta {
        Meta::Tensor(crate::decompose::meta(ScalarType::Float32, vec![Size::Fixed(4)]))
    }

    /// A graph in which each call uses the results of the listed calls, or the input if the list is empty. Results
    /// that no call uses are the outputs of the graph.
    fn graph(uses: &[Vec<usize>]) -> Graph {
        let mut graph = Graph::default();
        let input = graph.define("x".to_owned(), meta()).expect("few values");
        graph.inputs.push(Argument::Value(input));
        let mut results = Vec::new();
        for (call, used) in uses.iter().enumerate() {
            let name = format!("call_{call}");
            let result = graph.define(name.clone(), meta()).expect("few values");
            let arguments: Vec<_> = match used.as_slice() {
                [] => vec![Argument::Value(input)],
                used => used.iter().map(|&from| Argument::Value(results[from])).collect(),
            };
            results.push(result);
            graph.nodes.push(Node {
                name,
                target: Target::Function("f".to_owned()),
                schema: None,
                arguments,
                keywords: Vec::new(),
                outputs: vec![Output::Value(result)],
                single_return: None,
                origin: Origin::default(),
            });
        }
        let is_used = |call: usize| uses.iter().any(|used| used.contains(&call));
        let unused = (0..uses.len()).filter(|&call| !is_used(call));
        graph.outputs = unused.map(|call| Argument::Value(results[call])).collect();
        graph
    }

    fn divided(uses: &[Vec<usize>], is_inside: &[bool]) -> Vec<Vec<usize>> {
        let graph = graph(uses);
        let flow = Flow::of(&graph);
        Stages::of(&graph, &flow, is_inside).partitions(&flow, is_inside)
    }

    /// Whether some order of the partitions and the calls outside them satisfies all dependencies.
    fn can_run(uses: &[Vec<usize>], partitions: &[Vec<usize>]) -> bool {
        let mut unit: Vec<usize> = (0..uses.len()).map(|call| partitions.len() + call).collect();
        for (number, calls) in partitions.iter().enumerate() {
            calls.iter().for_each(|&call| unit[call] = number);
        }
        let mut done = vec![false; uses.len()];
        while !done.iter().all(|done| *done) {
            let ready = (0..uses.len()).filter(|&call| !done[call]).find(|&call| {
                let own = (0..uses.len()).filter(|&other| unit[other] == unit[call]);
                own.flat_map(|own| &uses[own]).all(|&from| done[from] || unit[from] == unit[call])
            });
            let Some(ready) = ready else { return false };
            let number = unit[ready];
            (0..uses.len()).filter(|&call| unit[call] == number).for_each(|call| done[call] = true);
        }
        true
    }

    /// Lower bound for the number of partitions: the maximum number of times that a path goes from calls outside (or from
    /// the start) to calls inside.
    fn min_partitions(uses: &[Vec<usize>], is_inside: &[bool]) -> usize {
        let mut entered = vec![0usize; uses.len()];
        for call in 0..uses.len() {
            let before = uses[call]
                .iter()
                .map(|&from| entered[from] + usize::from(is_inside[call] && !is_inside[from]));
            entered[call] = before.max().unwrap_or(usize::from(is_inside[call]));
            if is_inside[call] {
                entered[call] = entered[call].max(1);
            }
        }
        entered.into_iter().max().unwrap_or(0)
    }

    #[test]
    fn splits_partition_to_avoid_dependency_cycle() {
        // 0 and 3 are inside. 3 depends on 0 directly and through the call outside.
        let uses = [vec![], vec![0], vec![], vec![0, 1], vec![2]];
        let is_inside = [true, false, true, true, true];
        let partitions = divided(&uses, &is_inside);
        assert_eq!(partitions, [vec![0, 2, 4], vec![3]]);
    }

    #[test]
    fn input_only_call_joins_partition_of_its_user() {
        // 0 depends on the input only. Its only user is 3, which follows 2, a call outside.
        let uses = [vec![], vec![], vec![1], vec![0, 2]];
        let partitions = divided(&uses, &[true, true, false, true]);
        assert_eq!(partitions, [vec![1], vec![0, 3]]);
    }

    #[test]
    fn random_graphs_get_minimal_acyclic_partitions() {
        let mut seed = 3u64;
        let mut random = |below: usize| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 33) as usize % below
        };
        for _ in 0..300 {
            let count = 2 + random(14);
            let uses: Vec<Vec<usize>> = (0..count)
                .map(|call| {
                    let mut used: Vec<usize> =
                        (0..random(3)).filter(|_| call > 0).map(|_| random(call.max(1))).collect();
                    used.sort_unstable();
                    used.dedup();
                    used
                })
                .collect();
            let is_inside: Vec<bool> = (0..count).map(|_| random(3) > 0).collect();
            let partitions = divided(&uses, &is_inside);
            let mut found: Vec<usize> = partitions.iter().flatten().copied().collect();
            found.sort_unstable();
            let wanted: Vec<usize> = (0..count).filter(|&call| is_inside[call]).collect();
            assert_eq!(found, wanted);
            assert!(can_run(&uses, &partitions), "{uses:?} {is_inside:?} {partitions:?}");
            assert!(
                partitions.len() <= min_partitions(&uses, &is_inside),
                "{uses:?} {is_inside:?} {partitions:?}"
            );
        }
    }
}
