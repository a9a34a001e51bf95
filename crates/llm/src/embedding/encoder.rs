//! Encoders as graphs: the tokens of a text become one vector.

use coremill_graph::nn::{
    AttentionOptions, Embedding, LayerNorm, Linear, Rope, RopeStyle, RopeTables, attention, rotate,
};
use coremill_graph::{DType, Graph, Opset, Tensor};

use super::config::{EncoderConfig, Pooling};

/// Name of the input for token ids.
pub const INPUT_IDS: &str = "input_ids";
/// Name of the input that is 1 for tokens and 0 for padding.
pub const ATTENTION_MASK: &str = "attention_mask";
/// Name of the output.
pub const EMBEDDING: &str = "embedding";

/// Name of the function.
pub(crate) const MAIN: &str = "main";

/// Names of parameters that are rows of a tensor.
pub(crate) const POSITIONS: &str = "embeddings.positions.weight";
pub(crate) const TYPES: &str = "embeddings.types.weight";

/// Subtracted from the scores of padding: they vanish in the softmax, and stay within the range of `fp16`.
const MASKED: f32 = 3e4;

/// Tokens that an encoder reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Length {
    /// From one token to the number.
    UpTo(usize),
    /// The number, with padding after the text.
    Fixed(usize),
}

impl Length {
    /// Most tokens of a text.
    pub fn most(self) -> usize {
        match self {
            Length::UpTo(most) | Length::Fixed(most) => most,
        }
    }
}

fn count(extent: usize) -> i32 {
    i32::try_from(extent).unwrap_or(i32::MAX)
}

/// Builds the function.
pub(crate) fn build(config: &EncoderConfig, length: Length, target: Opset) -> Graph {
    let graph = Graph::named(MAIN, target);
    let encoder = Encoder { config, length, graph: &graph };
    graph.output(EMBEDDING, encoder.embedding());
    graph
}

struct Encoder<'a, 'g> {
    config: &'a EncoderConfig,
    length: Length,
    graph: &'g Graph,
}

impl<'g> Encoder<'_, 'g> {
    /// Tokens of a call as an extent; −1 if it is dynamic.
    fn extent(&self) -> i32 {
        match self.length {
            Length::UpTo(_) => -1,
            Length::Fixed(tokens) => count(tokens),
        }
    }

    fn input(&self, name: &str) -> Tensor<'g> {
        match self.length {
            Length::UpTo(most) => {
                self.graph.flexible_input(name, DType::Int32, &[(1, 1), (1, count(most).into())])
            }
            Length::Fixed(tokens) => self.graph.input(name, DType::Int32, [1, tokens]),
        }
    }

    fn embedding(&self) -> Tensor<'g> {
        let (graph, config) = (self.graph, self.config);
        let most = self.length.most();
        let ids = self.input(INPUT_IDS);
        let mask = self.input(ATTENTION_MASK).cast(DType::Fp32);
        let positions = match self.length {
            Length::UpTo(_) => {
                let tokens = ids.shape_tensor().at(0, 1);
                Some(graph.range_1d(tokens, graph.int(0), graph.int(1)))
            }
            Length::Fixed(_) => None,
        };
        let mut x = Embedding::new(config.vocabulary, config.width).apply("embeddings.tokens", ids);
        if !config.family.rotary {
            let table = || graph.param(POSITIONS, [most, config.width]);
            x = x + match positions {
                Some(positions) => {
                    Embedding::new(most, config.width).apply("embeddings.positions", positions)
                }
                None => table(),
            };
        }
        if config.has_types {
            x = x + graph.param(TYPES, [1, config.width]);
        }
        x = self.norm("embeddings.norm", x);
        let tables = config.family.rotary.then(|| {
            let rope = Rope::new(config.width / config.heads, config.theta);
            let (frequencies, amplitude) = rope.frequencies();
            let style = RopeStyle::SplitHalves;
            let tables = RopeTables::of_frequencies(graph, most, &frequencies, amplitude, style);
            positions.map_or(tables, |positions| tables.at(positions))
        });
        let bias = ((mask - 1.0) * MASKED).view([1, 1, 1, self.extent()]);
        for layer in 0..config.layers {
            x = self.layer(layer, x, bias, tables);
        }
        let pooled = match config.pooling {
            Pooling::Cls => x.narrow(1, ..1).view([1, count(config.width)]),
            Pooling::Mean => {
                // Weights with a sum of 1, so that no sum overflows in `fp16`.
                let weights = mask / mask.sum([-1], true).maximum(1.0);
                let weights = weights.view([1, 1, self.extent()]);
                weights.dot(x).view([1, count(config.width)])
            }
        };
        if !config.normalized {
            return pooled;
        }
        // Squares of numbers of at most 1 do not overflow in `fp16`.
        let scaled = pooled / pooled.abs().max([-1], true).maximum(1e-4);
        scaled / (scaled * scaled).sum([-1], true).maximum(1e-4).sqrt()
    }

    fn norm(&self, name: &str, x: Tensor<'g>) -> Tensor<'g> {
        LayerNorm::new(self.config.epsilon).apply(name, x)
    }

    fn linear(&self, name: &str, outputs: usize, bias: bool, x: Tensor<'g>) -> Tensor<'g> {
        let layer = Linear::new(outputs);
        let layer = if bias { layer } else { layer.without_bias() };
        layer.apply(name, x)
    }

    fn layer(
        &self,
        layer: usize,
        x: Tensor<'g>,
        bias: Tensor<'g>,
        tables: Option<RopeTables<'g>>,
    ) -> Tensor<'g> {
        let EncoderConfig { width, heads, inner, biases: [of_attention, of_mlp], .. } =
            *self.config;
        let name = |part: &str| format!("layers.{layer}.{part}");
        let each = count(width);
        let projected = match self.config.fused_qkv {
            true => {
                let all = self.linear(&name("qkv"), 3 * width, of_attention, x);
                [0, 1, 2].map(|part| all.narrow(-1, part * each..(part + 1) * each))
            }
            false => ["query", "key", "value"]
                .map(|part| self.linear(&name(part), width, of_attention, x)),
        };
        let [query, key, value] = projected.map(|x| {
            x.view([1, self.extent(), count(heads), count(width / heads)]).transpose([0, 2, 1, 3])
        });
        let (query, key) = match tables {
            Some(tables) => (rotate(query, tables), rotate(key, tables)),
            None => (query, key),
        };
        let attended = attention(query, key, value, &AttentionOptions::new().bias(bias));
        let attended = attended.transpose([0, 2, 1, 3]).view([1, self.extent(), each]);
        let attended = self.linear(&name("output"), width, of_attention, attended);
        let x = self.norm(&name("attention_norm"), x + attended);
        let activation = self.config.activation;
        let up = self.linear(&name("up"), inner, of_mlp, x);
        let up = match self.config.family.gated {
            true => activation.apply(self.linear(&name("gate"), inner, of_mlp, x)) * up,
            false => activation.apply(up),
        };
        let down = self.linear(&name("down"), width, of_mlp, up);
        self.norm(&name("output_norm"), x + down)
    }
}
