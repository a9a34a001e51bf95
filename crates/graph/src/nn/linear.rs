use super::below;
use crate::ops::Gather;
use crate::tensor::Tensor;

/// A linear layer: `x · weightᵀ + bias`, with a weight of shape `[outputs, inputs]`.
#[derive(Clone, Copy, Debug)]
pub struct Linear {
    outputs: usize,
    bias: bool,
}

impl Linear {
    /// Returns a layer with a bias.
    pub fn new(outputs: usize) -> Linear {
        Linear { outputs, bias: true }
    }

    /// Omits the bias.
    pub fn without_bias(mut self) -> Linear {
        self.bias = false;
        self
    }

    /// Applies the layer to the last axis.
    #[track_caller]
    pub fn apply<'g>(self, name: &str, x: Tensor<'g>) -> Tensor<'g> {
        let inputs = x.last_extent();
        let graph = x.graph();
        let weight = graph.param(&below(name, "weight"), [self.outputs, inputs]);
        let y = x.matmul_t(weight);
        if self.bias { y + graph.param(&below(name, "bias"), [self.outputs]) } else { y }
    }
}

/// Looks up rows of a table by index.
#[derive(Clone, Copy, Debug)]
pub struct Embedding {
    rows: usize,
    width: usize,
}

impl Embedding {
    /// Returns a table with this number of rows and this width.
    pub fn new(rows: usize, width: usize) -> Embedding {
        Embedding { rows, width }
    }

    /// Returns the rows at integer indices.
    #[track_caller]
    pub fn apply<'g>(self, name: &str, indices: Tensor<'g>) -> Tensor<'g> {
        let table = indices.graph().param(&below(name, "weight"), [self.rows, self.width]);
        table.gather(indices, Gather::new().axis(0))
    }
}

/// A linear layer with a low-rank correction: `x · weightᵀ + scale · (x · aᵀ) · bᵀ`.
#[derive(Clone, Copy, Debug)]
pub struct Lora {
    base: Linear,
    rank: usize,
    scale: f32,
}

impl Lora {
    /// Returns a layer with a correction of a rank, multiplied by `alpha / rank`.
    pub fn new(base: Linear, rank: usize, alpha: f32) -> Lora {
        Lora { base, rank, scale: alpha / rank as f32 }
    }

    /// Applies the layer to the last axis. The parameters are `weight`, `bias`, `lora_A.weight` and
    /// `lora_B.weight`.
    #[track_caller]
    pub fn apply<'g>(self, name: &str, x: Tensor<'g>) -> Tensor<'g> {
        let down = Linear::new(self.rank).without_bias().apply(&below(name, "lora_A"), x);
        let up = Linear::new(self.base.outputs).without_bias().apply(&below(name, "lora_B"), down);
        self.base.apply(name, x) + up * self.scale
    }
}
