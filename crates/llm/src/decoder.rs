//! The decoder as a graph: one function for blocks of a number of tokens.

use std::cell::Cell;

use coremill_graph::nn::{
    Activation, AttentionOptions, Embedding, KvCache, Linear, RmsNorm, RopeStyle, RopeTables,
    attention, rotate,
};
use coremill_graph::ops::Gather;
use coremill_graph::{DType, Graph, Opset, Tensor};

use crate::config::{Config, Rotation};
use crate::families::{NormPlacement, QkNorm};

/// Name of the input for token ids.
pub const TOKENS: &str = "tokens";
/// Name of the input for the position of the first token.
pub const POSITION: &str = "position";
/// Name of the input for the index of the last valid token of a block.
pub const LAST: &str = "last";
/// Name of the output.
pub const LOGITS: &str = "logits";

/// A function of a decoder.
#[derive(Clone, Copy, Debug)]
pub struct FunctionOptions<'n> {
    /// Its name.
    pub name: &'n str,
    /// Tokens of a call.
    pub tokens: usize,
    /// Positions of the cache.
    pub context: usize,
    /// Return the logits of all tokens rather than of the last valid one.
    pub all_logits: bool,
}

/// Builds a function that reads tokens at positions of the cache and returns logits.
pub fn build(config: &Config, options: &FunctionOptions<'_>) -> Graph {
    let graph = Graph::named(options.name, Opset::Ios18);
    let logits = Decoder { config, options: *options, graph: &graph }.logits();
    graph.output(LOGITS, logits);
    graph
}

struct Decoder<'a, 'g> {
    config: &'a Config,
    options: FunctionOptions<'a>,
    graph: &'g Graph,
}

/// Inputs that all layers share.
struct LayerInputs<'g> {
    position: Tensor<'g>,
    /// Masks of layers without and with the window, once they are computed.
    masks: [Cell<Option<Tensor<'g>>>; 2],
    global: RopeTables<'g>,
    local: Option<RopeTables<'g>>,
}

fn count(extent: usize) -> i32 {
    i32::try_from(extent).unwrap_or(i32::MAX)
}

impl<'g> Decoder<'_, 'g> {
    fn logits(&self) -> Tensor<'g> {
        let (graph, config, tokens) = (self.graph, self.config, self.options.tokens);
        let ids = graph.input(TOKENS, DType::Int32, [1, tokens]);
        let position = graph.input(POSITION, DType::Int32, [1]);
        let picks = tokens > 1 && !self.options.all_logits;
        let last = picks.then(|| graph.input(LAST, DType::Int32, [1]));
        let steps: Vec<i32> = (0..count(tokens)).collect();
        let positions = graph.ints([tokens], &steps) + position;
        let tables = |rotation: &Rotation| {
            let (frequencies, amplitude) = rotation.frequencies(self.options.context);
            let (context, style) = (self.options.context, RopeStyle::SplitHalves);
            RopeTables::of_frequencies(graph, context, &frequencies, amplitude, style).at(positions)
        };
        let shared = LayerInputs {
            position,
            masks: Default::default(),
            global: tables(&config.rotation),
            local: config.local_rotation.as_ref().map(tables),
        };
        let embeddings = "model.embed_tokens";
        let mut x = Embedding::new(config.vocabulary, config.width).apply(embeddings, ids);
        if config.embedding_scale != 1.0 {
            x = x * config.embedding_scale;
        }
        for layer in 0..config.layers {
            x = self.layer(layer, x, &shared);
        }
        x = self.norm("model.norm", x);
        if let Some(last) = last {
            x = x.gather(last, Gather::new().axis(1));
        }
        let head = if config.tied { embeddings } else { "lm_head" };
        let mut logits = Linear::new(config.vocabulary).without_bias().apply(head, x);
        if config.logit_scale != 1.0 {
            logits = logits * config.logit_scale;
        }
        if let Some(cap) = config.logit_cap {
            logits = (logits / cap).tanh() * cap;
        }
        match self.options.all_logits {
            true => logits,
            false => logits.view([1, config.vocabulary]),
        }
    }

    fn layer(&self, layer: usize, x: Tensor<'g>, shared: &LayerInputs<'g>) -> Tensor<'g> {
        let name = |part: &str| format!("model.layers.{layer}.{part}");
        let norms = self.config.family.norms;
        let parts: [(&dyn Fn(Tensor<'g>) -> Tensor<'g>, &str, &str); 2] = [
            (&|x| self.attention(layer, x, shared), "input_layernorm", "post_attention_layernorm"),
            (
                &|x| self.feed_forward(layer, x),
                match norms {
                    NormPlacement::Before => "post_attention_layernorm",
                    _ => "pre_feedforward_layernorm",
                },
                "post_feedforward_layernorm",
            ),
        ];
        let mut x = x;
        for (part, before, after) in parts {
            let input = match norms {
                NormPlacement::After => x,
                _ => self.norm(&name(before), x),
            };
            let mut output = part(input);
            if norms != NormPlacement::Before {
                output = self.norm(&name(after), output);
            }
            if self.config.residual_scale != 1.0 {
                output = output * self.config.residual_scale;
            }
            x = x + output;
        }
        x
    }

    fn norm(&self, name: &str, x: Tensor<'g>) -> Tensor<'g> {
        let norm = RmsNorm::new(self.config.epsilon).bounded();
        let norm = if self.config.norm_adds_one { norm.one_more() } else { norm };
        norm.apply(name, x)
    }

    fn linear(&self, name: &str, outputs: usize, bias: bool, x: Tensor<'g>) -> Tensor<'g> {
        let layer = Linear::new(outputs);
        let layer = if bias { layer } else { layer.without_bias() };
        layer.apply(name, x)
    }

    fn attention(&self, layer: usize, x: Tensor<'g>, shared: &LayerInputs<'g>) -> Tensor<'g> {
        let config = self.config;
        let name = |part: &str| format!("model.layers.{layer}.self_attn.{part}");
        let (tokens, head) = (self.options.tokens, config.head);
        let (all, kv) = (config.heads * head, config.kv_heads * head);
        let bias = config.qkv_bias;
        let [query, key, value] = match config.family.fused {
            true => {
                let x = self.linear(&name("qkv_proj"), all + 2 * kv, bias, x);
                let (first, second) = (count(all), count(all + kv));
                [x.narrow(-1, ..first), x.narrow(-1, first..second), x.narrow(-1, second..)]
            }
            false => [("q_proj", all), ("k_proj", kv), ("v_proj", kv)]
                .map(|(part, outputs)| self.linear(&name(part), outputs, bias, x)),
        };
        let heads = |x: Tensor<'g>, norm: &str, heads: usize| {
            let whole = config.family.qk_norm == QkNorm::Whole && !norm.is_empty();
            let x = if whole { self.norm(&name(norm), x) } else { x };
            let x = x.view([1, tokens, heads, head]);
            let each = config.family.qk_norm == QkNorm::Head && !norm.is_empty();
            let x = if each { self.norm(&name(norm), x) } else { x };
            x.transpose([0, 2, 1, 3])
        };
        let mut query = heads(query, "q_norm", config.heads);
        let mut key = heads(key, "k_norm", config.kv_heads);
        let value = heads(value, "", config.kv_heads);
        let windowed = config.windowed[layer] && config.window.is_some();
        if config.rotated[layer] {
            let local = shared.local.filter(|_| config.windowed[layer]);
            let tables = local.unwrap_or(shared.global);
            (query, key) = (rotate(query, tables), rotate(key, tables));
        }
        let shape = [1, config.kv_heads, self.options.context, head];
        let cache = KvCache::new(self.graph, &format!("layer_{layer}"), shape);
        let (keys, values) = cache.append(shared.position, key, value);
        let window = config.window.filter(|_| windowed);
        let known = &shared.masks[usize::from(windowed)];
        let mask = known.get().unwrap_or_else(|| cache.mask(shared.position, tokens, window));
        known.set(Some(mask));
        let mut options = AttentionOptions::new().scale(config.attention_scale).bias(mask);
        if let Some(cap) = config.attention_cap {
            options = options.soft_cap(cap);
        }
        let attended = attention(query, keys, values, &options);
        let merged = attended.transpose([0, 2, 1, 3]).view([1, tokens, all]);
        self.linear(&name("o_proj"), config.width, config.out_bias, merged)
    }

    fn feed_forward(&self, layer: usize, x: Tensor<'g>) -> Tensor<'g> {
        let config = self.config;
        let name = |part: &str| format!("model.layers.{layer}.mlp.{part}");
        let (inner, bias) = (config.inner, config.mlp_bias);
        let (gate, up) = match config.family.fused {
            true => {
                let both = self.linear(&name("gate_up_proj"), 2 * inner, bias, x);
                (both.narrow(-1, ..count(inner)), both.narrow(-1, count(inner)..))
            }
            false => (
                self.linear(&name("gate_proj"), inner, bias, x),
                self.linear(&name("up_proj"), inner, bias, x),
            ),
        };
        let activation = if config.gelu { Activation::GeluTanh } else { Activation::Silu };
        self.linear(&name("down_proj"), config.width, bias, activation.apply(gate) * up)
    }
}
