//! Encoder and decoder as graphs.

use coremill_graph::nn::{
    AttentionOptions, Conv, Embedding, KvCache, LayerNorm, Linear, attention,
};
use coremill_graph::ops::{Gather, Pad};
use coremill_graph::{DType, Graph, Opset, Precision, Tensor};

use super::config::{BLOCK, ENCODER_POSITIONS, POSITIONS, SpeechConfig, TOKENS};
use crate::decoder::{self, HIDDEN, LAST, LOGITS, POSITION};
use crate::model::{DECODE, PREFILL};
use crate::states::{CACHE, declare, stored_head};

/// Name of the encoder's input: log-mel features of shape `[1, bands, frames]`.
pub const FEATURES: &str = "features";
/// Name of the encoder's output with keys and values of all cross-attention layers, and of the decoder's input for them. The
/// shape is `[2 · layers, heads, positions, head]`.
pub const CROSS: &str = "cross";
/// Name of the state in which the decoder stores [`CROSS`].
const AUDIO: &str = "audio";

/// Name of the encoder's function.
pub(crate) const MAIN: &str = "main";

const EPSILON: f32 = 1e-5;

fn count(extent: usize) -> i32 {
    i32::try_from(extent).unwrap_or(i32::MAX)
}

/// The type of inputs and outputs.
fn element(precision: Precision) -> DType {
    match precision {
        Precision::Fp32 => DType::Fp32,
        _ => DType::Fp16,
    }
}

/// Builds the encoder.
pub(crate) fn build_encoder(config: &SpeechConfig, precision: Precision) -> Graph {
    let graph = Graph::named(MAIN, Opset::Ios18);
    let dtype = element(precision);
    let [layers, decoder_layers] = config.layers;
    let part = Part { config, heads: config.heads[0], inner: config.inner[0] };
    let features = graph.input(FEATURES, dtype, [1, config.bands, config.frames()]);
    let conv = |stride: usize| Conv::new(config.width, [3]).stride([stride]).padding([1]);
    let x = conv(1).apply("encoder.conv1", features.cast(DType::Fp32));
    let x = conv(2).apply("encoder.conv2", config.activation.apply(x));
    let x = config.activation.apply(x).transpose([0, 2, 1]);
    let positions = [config.source_positions, config.width];
    let mut x = x + graph.param(&format!("{ENCODER_POSITIONS}.weight"), positions);
    for layer in 0..layers {
        let name = format!("encoder.layers.{layer}");
        let input = norm(&format!("{name}.self_attn_layer_norm"), x);
        let attend = format!("{name}.self_attn");
        let [query, key, value] =
            ["q_proj", "k_proj", "v_proj"].map(|it| part.heads_of(&attend, it, input));
        let attended = attention(query, key, value, &part.options());
        x = x + part.merge(&attend, attended);
        x = x + part.feed_forward(&name, x);
    }
    let x = norm("encoder.layer_norm", x);
    graph.output(HIDDEN, x.cast(dtype));
    let part = Part { heads: config.heads[1], ..part };
    let mut cross = Vec::with_capacity(2 * decoder_layers);
    for layer in 0..decoder_layers {
        let attend = format!("decoder.layers.{layer}.encoder_attn");
        cross.extend(["k_proj", "v_proj"].map(|it| part.padded(part.heads_of(&attend, it, x))));
    }
    graph.output(CROSS, graph.concat(cross, 0, Default::default()).cast(dtype));
    graph
}

/// Builds the decoder's functions. [`PREFILL`] reads up to [`BLOCK`] tokens, and stores the keys and values of the audio; [`DECODE`]
/// reads one token.
pub(crate) fn build_decoder(
    config: &SpeechConfig,
    context: usize,
    precision: Precision,
) -> Vec<Graph> {
    let dtype = element(precision);
    vec![
        build_function(config, DECODE, 1, context, dtype),
        build_function(config, PREFILL, BLOCK, context, dtype),
    ]
}

fn build_function(
    config: &SpeechConfig,
    name: &str,
    tokens: usize,
    context: usize,
    dtype: DType,
) -> Graph {
    let graph = Graph::named(name, Opset::Ios18);
    let part = Part { config, heads: config.heads[1], inner: config.inner[1] };
    let layers = config.layers[1];
    let ids = graph.input(decoder::TOKENS, DType::Int32, [1, tokens]);
    let position = graph.input(POSITION, DType::Int32, [1]);
    let stores = tokens > 1;
    let last = stores.then(|| graph.input(LAST, DType::Int32, [1]));
    let head = stored_head(part.head());
    let all = [2 * layers, part.heads, config.source_positions, head];
    let audio = stores.then(|| graph.input(CROSS, dtype, all).cast(DType::Fp32));
    let parts = vec![vec![(CACHE, vec![1, part.heads, context, head]); 2]; layers];
    let caches = declare(&graph, &parts);
    let cross = graph.state(AUDIO, all);
    if let Some(audio) = audio {
        cross.write(audio);
    }
    let steps: Vec<i32> = (0..count(tokens)).collect();
    let positions = graph.ints([tokens], &steps) + position;
    let table = Embedding::new(config.max_context, config.width);
    let mut x = Embedding::new(config.vocabulary, config.width).apply(TOKENS, ids)
        + table.apply(POSITIONS, positions);
    let mut mask = None;
    for (layer, states) in caches.iter().enumerate() {
        let name = format!("decoder.layers.{layer}");
        let input = norm(&format!("{name}.self_attn_layer_norm"), x);
        let attend = format!("{name}.self_attn");
        let [query, key, value] =
            ["q_proj", "k_proj", "v_proj"].map(|it| part.padded(part.heads_of(&attend, it, input)));
        let cache = KvCache::of_states(states[0], states[1]);
        let (keys, values) = cache.append(position, key, value);
        let mask = *mask.get_or_insert_with(|| cache.mask(position, tokens, None));
        let attended = attention(query, keys, values, &part.options().bias(mask));
        x = x + part.merge(&attend, attended);
        let input = norm(&format!("{name}.encoder_attn_layer_norm"), x);
        let attend = format!("{name}.encoder_attn");
        let query = part.padded(part.heads_of(&attend, "q_proj", input));
        let [keys, values] = [2 * layer, 2 * layer + 1].map(|row| match audio {
            Some(audio) => audio.narrow(0, count(row)..count(row + 1)),
            None => cross.rows(row..row + 1).read(),
        });
        x = x + part.merge(&attend, attention(query, keys, values, &part.options()));
        x = x + part.feed_forward(&name, x);
    }
    let x = norm("decoder.layer_norm", x);
    let x = match last {
        Some(last) => x.gather(last, Gather::new().axis(1)),
        None => x,
    };
    let name = if config.tied { TOKENS } else { "proj_out" };
    let logits = Linear::new(config.vocabulary).without_bias().apply(name, x);
    graph.output(LOGITS, logits.view([1, config.vocabulary]));
    graph
}

fn norm<'g>(name: &str, x: Tensor<'g>) -> Tensor<'g> {
    LayerNorm::new(EPSILON).apply(name, x)
}

/// Encoder or decoder.
#[derive(Clone, Copy)]
struct Part<'a> {
    config: &'a SpeechConfig,
    heads: usize,
    inner: usize,
}

impl Part<'_> {
    /// Elements of a head.
    fn head(&self) -> usize {
        self.config.width / self.heads
    }

    fn options<'g>(&self) -> AttentionOptions<'g> {
        AttentionOptions::new().scale(1.0 / (self.head() as f32).sqrt())
    }

    /// A projection as heads of shape `[1, heads, positions, head]`. Keys have no bias.
    fn heads_of<'g>(&self, attend: &str, name: &str, x: Tensor<'g>) -> Tensor<'g> {
        let layer = Linear::new(self.config.width);
        let layer = if name == "k_proj" { layer.without_bias() } else { layer };
        let x = layer.apply(&format!("{attend}.{name}"), x);
        x.view([1, x.extent(1), self.heads, self.head()]).transpose([0, 2, 1, 3])
    }

    /// Heads with zeros up to the extent of a state, which change neither scores nor results.
    fn padded<'g>(&self, x: Tensor<'g>) -> Tensor<'g> {
        match stored_head(self.head()) - self.head() {
            0 => x,
            rest => x.pad([0, 0, 0, 0, 0, 0, 0, count(rest)], Pad::new()),
        }
    }

    /// Joins the heads.
    fn merge<'g>(&self, attend: &str, attended: Tensor<'g>) -> Tensor<'g> {
        let head = self.head();
        let attended = match attended.last_extent() == head {
            true => attended,
            false => attended.narrow(-1, ..count(head)),
        };
        let width = self.config.width;
        let merged = attended.transpose([0, 2, 1, 3]).view([1, attended.extent(2), width]);
        Linear::new(width).apply(&format!("{attend}.out_proj"), merged)
    }

    fn feed_forward<'g>(&self, name: &str, x: Tensor<'g>) -> Tensor<'g> {
        let x = norm(&format!("{name}.final_layer_norm"), x);
        let up = Linear::new(self.inner).apply(&format!("{name}.fc1"), x);
        Linear::new(self.config.width)
            .apply(&format!("{name}.fc2"), self.config.activation.apply(up))
    }
}
