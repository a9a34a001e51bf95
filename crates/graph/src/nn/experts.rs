use std::panic::Location;

use super::{Activation, Linear, below, place, product};
use crate::ops::{Gather, Topk};
use crate::tensor::Tensor;

/// A mixture of experts in which each token is routed to a few. The parameters are `gate.weight` and, for all
/// experts together, `experts.gate_proj` and `experts.up_proj` of shape `[experts, width, inputs]` and
/// `experts.down_proj` of shape `[experts, inputs, width]`.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Experts {
    /// Number of experts.
    pub count: usize,
    /// Number of experts for each token.
    pub visited: usize,
    /// Inner width of the experts.
    pub width: usize,
    /// Whether the weights of the selected experts are scaled to a sum of 1.
    pub normalized: bool,
    /// Inner width of a shared expert for all tokens, with its own gate as in Qwen; `None` without a shared
    /// expert.
    pub shared: Option<usize>,
}

/// Selects the experts of each token with their weights: the largest elements of the softmax over all scores.
#[track_caller]
pub fn top_experts<'g>(
    scores: Tensor<'g>,
    visited: usize,
    normalized: bool,
) -> (Tensor<'g>, Tensor<'g>) {
    let count = scores.last_extent();
    if visited == 0 || (scores.is_valid() && visited > count) {
        let message = format!("a token must visit from 1 to {count} experts, got {visited}");
        let nothing = scores.graph().mistake(message, None, Location::caller());
        return (nothing, nothing);
    }
    let (weights, experts) = scores.softmax_on(-1).topk(Topk::new().k(place(visited)).axis(-1));
    let weights = if normalized { weights / weights.sum([-1], true) } else { weights };
    (weights, experts)
}

/// Multiplies each row by the matrix of its group. `x` is `[rows, inputs]`, `weights` is `[groups, outputs,
/// inputs]`, `groups` is `[rows]`. The matrices are gathered, one for each row.
#[track_caller]
pub fn grouped_matmul<'g>(x: Tensor<'g>, weights: Tensor<'g>, groups: Tensor<'g>) -> Tensor<'g> {
    let (rows, inputs) = (x.extent(0), x.extent(1));
    let own = weights.gather(groups, Gather::new().axis(0));
    let y = x.view([rows, 1, inputs]).matmul_t(own);
    y.view([rows, weights.extent(1)])
}

impl Experts {
    /// Returns experts without a shared one, weighted by the softmax over all experts.
    pub fn new(count: usize, visited: usize, width: usize) -> Experts {
        Experts { count, visited, width, normalized: false, shared: None }
    }

    /// Scales the weights of the selected experts to a sum of 1.
    pub fn normalized(mut self) -> Experts {
        self.normalized = true;
        self
    }

    /// Adds a shared expert with this inner width.
    pub fn shared(mut self, width: usize) -> Experts {
        self.shared = Some(width);
        self
    }

    /// Applies the experts to `[tokens, inputs]`.
    #[track_caller]
    pub fn apply<'g>(&self, name: &str, x: Tensor<'g>) -> Tensor<'g> {
        let graph = x.graph();
        let (tokens, inputs) = (x.extent(0), x.extent(1));
        let scores = Linear::new(self.count).without_bias().apply(&below(name, "gate"), x);
        let (weights, experts) = top_experts(scores, self.visited, self.normalized);
        let rows = product(&[tokens, self.visited]);
        let groups = experts.view([rows]);
        let repeated = x.unsqueeze(1).tile([1, place(self.visited), 1]).view([rows, inputs]);
        let matrix = |part: &str, outputs: usize, inputs: usize| {
            graph.param(&below(name, part), [self.count, outputs, inputs])
        };
        let gate =
            grouped_matmul(repeated, matrix("experts.gate_proj", self.width, inputs), groups);
        let up = grouped_matmul(repeated, matrix("experts.up_proj", self.width, inputs), groups);
        let inner = Activation::Silu.apply(gate) * up;
        let down = grouped_matmul(inner, matrix("experts.down_proj", inputs, self.width), groups);
        let weighted =
            down.view([tokens, self.visited, inputs]) * weights.view([tokens, self.visited, 1]);
        let routed = weighted.sum([1], false);
        let Some(width) = self.shared else { return routed };
        let part = |part: &str, outputs: usize, x: Tensor<'g>| {
            Linear::new(outputs).without_bias().apply(&below(name, part), x)
        };
        let gate = part("shared_expert.gate_proj", width, x).silu();
        let inner = gate * part("shared_expert.up_proj", width, x);
        let shared = part("shared_expert.down_proj", inputs, inner);
        routed + shared * part("shared_expert_gate", 1, x).sigmoid()
    }
}
