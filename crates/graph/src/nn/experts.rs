use std::panic::Location;

use super::{Activation, Linear, below, place, product};
use crate::DType;
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
    /// Whether every expert is applied to every token, and the results are weighted.
    pub dense: bool,
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
        let message = format!("each token must use from 1 to {count} experts, got {visited}");
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
        Experts { count, visited, width, normalized: false, shared: None, dense: false }
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

    /// Applies every expert to every token, and weights the results. Blocks of many tokens visit most experts anyway, and
    /// this reads each of their matrices once rather than once for each token. The number of tokens may be dynamic.
    pub fn dense(mut self) -> Experts {
        self.dense = true;
        self
    }

    /// Applies the experts to `[tokens, inputs]`.
    #[track_caller]
    pub fn apply<'g>(&self, name: &str, x: Tensor<'g>) -> Tensor<'g> {
        let inputs = x.last_extent();
        let scores = Linear::new(self.count).without_bias().apply(&below(name, "gate"), x);
        let (weights, experts) = top_experts(scores, self.visited, self.normalized);
        let routed = match self.dense {
            true => self.apply_all(name, x, weights, experts),
            false => self.apply_visited(name, x, weights, experts),
        };
        let Some(width) = self.shared else { return routed };
        let part = |part: &str, outputs: usize, x: Tensor<'g>| {
            Linear::new(outputs).without_bias().apply(&below(name, part), x)
        };
        let gate = part("shared_expert.gate_proj", width, x).silu();
        let inner = gate * part("shared_expert.up_proj", width, x);
        let shared = part("shared_expert.down_proj", inputs, inner);
        routed + shared * part("shared_expert_gate", 1, x).sigmoid()
    }

    /// The matrices of all experts of a projection from `inputs` to `outputs` elements.
    #[track_caller]
    fn matrices<'g>(
        &self,
        name: &str,
        x: Tensor<'g>,
        part: &str,
        [outputs, inputs]: [usize; 2],
    ) -> Tensor<'g> {
        let shape = [self.count, outputs, inputs];
        x.graph().param(&below(name, &format!("experts.{part}")), shape)
    }

    /// The weighted sum of the experts that each token visits.
    #[track_caller]
    fn apply_visited<'g>(
        &self,
        name: &str,
        x: Tensor<'g>,
        weights: Tensor<'g>,
        experts: Tensor<'g>,
    ) -> Tensor<'g> {
        let (tokens, inputs) = (x.extent(0), x.extent(1));
        let rows = product(&[tokens, self.visited]);
        let groups = experts.view([rows]);
        let repeated = x.unsqueeze(1).tile([1, place(self.visited), 1]).view([rows, inputs]);
        let (wide, narrow) = ([self.width, inputs], [inputs, self.width]);
        let gate = grouped_matmul(repeated, self.matrices(name, x, "gate_proj", wide), groups);
        let up = grouped_matmul(repeated, self.matrices(name, x, "up_proj", wide), groups);
        let inner = Activation::Silu.apply(gate) * up;
        let down = grouped_matmul(inner, self.matrices(name, x, "down_proj", narrow), groups);
        let weighted =
            down.view([tokens, self.visited, inputs]) * weights.view([tokens, self.visited, 1]);
        weighted.sum([1], false)
    }

    /// The sum of all experts with their weights, which are 0 for experts that a token does not visit.
    #[track_caller]
    fn apply_all<'g>(
        &self,
        name: &str,
        x: Tensor<'g>,
        weights: Tensor<'g>,
        experts: Tensor<'g>,
    ) -> Tensor<'g> {
        let graph = x.graph();
        let indices: Vec<i32> = (0..place(self.count)).collect();
        let is_visited = experts.unsqueeze(-1).equal(graph.ints([self.count], &indices));
        let weights = (is_visited.cast(DType::Fp32) * weights.unsqueeze(-1)).sum([1], false);
        let inputs = x.last_extent();
        let (wide, narrow) = ([self.width, inputs], [inputs, self.width]);
        let rows = x.unsqueeze(0);
        let gate = rows.matmul_t(self.matrices(name, x, "gate_proj", wide));
        let up = rows.matmul_t(self.matrices(name, x, "up_proj", wide));
        let weighted = Activation::Silu.apply(gate) * up * weights.swap(0, 1).unsqueeze(-1);
        weighted.matmul_t(self.matrices(name, x, "down_proj", narrow)).sum([0], false)
    }
}
