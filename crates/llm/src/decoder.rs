//! The decoder as a graph: one function for blocks of a number of tokens.

use std::cell::{Cell, RefCell};
use std::ops::Range;

use coremill_graph::nn::{
    Activation, AttentionOptions, Embedding, Experts, KvCache, LayerNorm, Linear, RmsNorm,
    RopeStyle, RopeTables, SequenceBlock, attention, rotate,
};
use coremill_graph::ops::Gather;
use coremill_graph::{DType, Graph, Opset, State, Tensor, ops};

use crate::config::{Config, ExpertSizes, Rotation};
use crate::families::{FeedForward, NormKind, NormPlacement, POSITIONS, QkNorm};
use crate::mixers::Mixer;
use crate::packed::{PackedCache, grouped_attention, rotate_by_product};
use crate::states::{self, CACHE, stored_head};

pub(crate) mod anemll;
mod swift_transformers;

pub(crate) use swift_transformers::{CAUSAL_MASK, INPUT_IDS, KEY_CACHE};

/// Name of the input for token ids.
pub const TOKENS: &str = "tokens";
/// Name of the input for the position of the first token.
pub const POSITION: &str = "position";
/// Name of the input for the index of the last valid token of a block.
pub const LAST: &str = "last";
/// Name of the output.
pub const LOGITS: &str = "logits";

/// Inputs, outputs and cache of a function.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Interface {
    /// A block of a fixed number of tokens, and the cache as states.
    #[default]
    Block,
    /// From one to the given number of tokens, and the cache as states. The logits are those after the last token.
    Range,
    /// The cache, the mask, and the cosines and sines of the positions are inputs. Outputs are the logits, and the new keys
    /// and values, which the caller stores in the cache.
    Stateless,
    /// A chunk of ANEMLL's bundles: hidden states, positions and the mask are inputs.
    Anemll,
    /// The inputs, outputs and states of swift-transformers: from one token to the context, whose position follows from the length
    /// of the mask, and the logits of all tokens.
    SwiftTransformers,
}

/// A function of a decoder.
#[derive(Clone, Copy, Debug)]
pub struct FunctionOptions<'n> {
    /// Its name.
    pub name: &'n str,
    /// Its inputs and outputs.
    pub interface: Interface,
    /// Tokens of a call.
    pub tokens: usize,
    /// Positions of the cache.
    pub context: usize,
    /// Return the logits of all tokens rather than of the last valid one.
    pub all_logits: bool,
}

/// Name of the embeddings.
const EMBEDDINGS: &str = "model.embed_tokens";

/// Name of the input for the mask that is added to the scores, of a function without states.
pub const MASK: &str = "mask";
/// Names of the inputs for cosines and sines, of a function without states.
pub const ROTATIONS: [&str; 2] = ["cos", "sin"];

/// Name of a layer's keys or values.
fn cache_name(layer: usize, part: &str) -> String {
    format!("layer_{layer}_{part}")
}

/// Builds a function that reads tokens at positions of the cache and returns logits.
pub fn build(config: &Config, options: &FunctionOptions<'_>) -> Graph {
    let graph = Graph::named(options.name, Opset::Ios18);
    let decoder = Decoder { config, options: *options, graph: &graph };
    match options.interface {
        Interface::Stateless => decoder.stateless(),
        Interface::SwiftTransformers => decoder.swift_transformers(),
        Interface::Block | Interface::Range | Interface::Anemll => {
            graph.output(LOGITS, decoder.logits())
        }
    }
    graph
}

/// Name of the hidden states between the models of a chunked decoder.
pub const HIDDEN: &str = "hidden";
/// Name of the input that selects the positions of a block in the cache of a chunk.
pub const UPDATE: &str = "update";
/// Names of the inputs for layers with windows: the mask, cosines and sines.
pub const LOCAL: [&str; 3] = ["local_mask", "local_cos", "local_sin"];
/// Builds a function of the embeddings of a chunked decoder.
pub fn build_embeddings(config: &Config, name: &str, tokens: usize) -> Graph {
    let graph = Graph::named(name, Opset::Ios18);
    let ids = graph.input(TOKENS, DType::Int32, [1, tokens]);
    let options = FunctionOptions { name, tokens, ..FunctionOptions::EMPTY };
    let x = Decoder { config, options, graph: &graph }.embeddings(ids);
    graph.output(HIDDEN, x.cast(DType::Fp16));
    graph
}

/// Builds a function of a chunk: some of the layers, without integers and with one state.
///
/// Inputs are the hidden states `[1, tokens, width]`, cosines and sines `[tokens, rotated / 2]`, the mask `[1, 1, tokens, context]`
/// that is added to the scores, and the update `[1, 1, context, tokens]`, which is 1 where a token is stored and otherwise 0.
pub fn build_chunk(config: &Config, options: &FunctionOptions<'_>, layers: Range<usize>) -> Graph {
    let graph = Graph::named(options.name, Opset::Ios18);
    Decoder { config, options: *options, graph: &graph }.chunk(layers);
    graph
}

/// Builds the output head of a chunked decoder, which returns the logits of one token in pieces.
pub fn build_head(config: &Config, name: &str) -> Graph {
    let graph = Graph::named(name, Opset::Ios18);
    let options = FunctionOptions { name, all_logits: true, ..FunctionOptions::EMPTY };
    let decoder = Decoder { config, options, graph: &graph };
    let x = graph.input(HIDDEN, DType::Fp16, [1, 1, config.width]).cast(DType::Fp32);
    let x = decoder.norm("model.norm", x);
    for (index, rows) in head_pieces(config.vocabulary).enumerate() {
        let logits = decoder.head_rows(&head_piece(index), rows.len(), x);
        graph.output(&format!("{LOGITS}_{index}"), logits.cast(DType::Fp16));
    }
    graph
}

/// Most rows of a piece of the output head.
const MAX_PIECE: usize = 16_384;

/// The rows of the pieces of an output head, which are as equal as possible.
pub fn head_pieces(vocabulary: usize) -> impl Iterator<Item = Range<usize>> {
    let count = vocabulary.div_ceil(MAX_PIECE).max(1);
    let rows = vocabulary.div_ceil(count).max(1);
    (0..count)
        .map(move |piece| (piece * rows).min(vocabulary)..(piece * rows + rows).min(vocabulary))
}

/// The name of a piece of the output head.
fn head_piece(index: usize) -> String {
    format!("lm_head.piece_{index}")
}

/// The tensor of which a parameter is a piece, and its rows.
pub(crate) fn piece_of(config: &Config, name: &str) -> Option<(String, Range<usize>)> {
    let stem = name.strip_suffix(".weight")?;
    let rows = match stem.strip_prefix("lm_head.piece_") {
        Some(index) => head_pieces(config.vocabulary).nth(index.parse().ok()?)?,
        None => anemll::rows_of(config, stem)?,
    };
    Some((format!("{}.weight", head_name(config)), rows))
}

/// The name of the output head.
fn head_name(config: &Config) -> &'static str {
    if config.tied { EMBEDDINGS } else { "lm_head" }
}

/// Whether layers with windows have a mask of their own, and rotations of their own.
pub fn local_inputs(config: &Config, context: usize, layers: Range<usize>) -> [bool; 2] {
    let windowed = config.windowed.get(layers).unwrap_or_default().iter().any(|&it| it);
    let hides = config.window.is_some_and(|window| window < context);
    [windowed && hides, windowed && config.local_rotation.is_some()]
}

impl FunctionOptions<'static> {
    const EMPTY: FunctionOptions<'static> = FunctionOptions {
        name: "",
        interface: Interface::Block,
        tokens: 1,
        context: 1,
        all_logits: false,
    };
}

struct Decoder<'a, 'g> {
    config: &'a Config,
    options: FunctionOptions<'a>,
    graph: &'g Graph,
}

/// Inputs that all layers share.
struct LayerInputs<'g> {
    cache: CacheInputs<'g>,
    /// Masks of layers without and with the window, once they are computed.
    masks: [Cell<Option<Tensor<'g>>>; 2],
    /// Rows of the table of positions, which are added to the embeddings.
    learned: Option<Tensor<'g>>,
    /// The place of the block, for recurrent layers.
    block: SequenceBlock<'g>,
    global: Option<RopeTables<'g>>,
    local: Option<RopeTables<'g>>,
}

/// Where layers find earlier keys and values.
enum CacheInputs<'g> {
    States {
        /// Position of the first token.
        position: Tensor<'g>,
        /// Positions of all tokens, if their number is dynamic.
        positions: Option<Tensor<'g>>,
        /// States of each layer: keys and values, or the mixer's states.
        layers: Vec<Vec<State<'g>>>,
    },
    Inputs {
        mask: Tensor<'g>,
        /// Keys and values of each layer.
        layers: Vec<[Tensor<'g>; 2]>,
        /// New keys and values of each layer.
        new: RefCell<Vec<[Tensor<'g>; 2]>>,
    },
    Packed(PackedCache<'g>),
}

fn count(extent: usize) -> i32 {
    i32::try_from(extent).unwrap_or(i32::MAX)
}

impl<'g> Decoder<'_, 'g> {
    /// Tokens of a call as an extent; −1 if it is dynamic.
    fn length(&self) -> i32 {
        if self.is_ranged() { -1 } else { count(self.options.tokens) }
    }

    /// Whether the number of tokens is dynamic.
    fn is_ranged(&self) -> bool {
        matches!(self.options.interface, Interface::Range | Interface::SwiftTransformers)
    }

    fn logits(&self) -> Tensor<'g> {
        let (graph, config, tokens) = (self.graph, self.config, self.options.tokens);
        let is_range = self.options.interface == Interface::Range;
        let ids = match is_range {
            true => {
                graph.flexible_input(TOKENS, DType::Int32, &[(1, 1), (1, count(tokens).into())])
            }
            false => graph.input(TOKENS, DType::Int32, [1, tokens]),
        };
        let position = graph.input(POSITION, DType::Int32, [1]);
        let all_logits = self.options.all_logits;
        // States of recurrent layers take up valid tokens only.
        let picks = tokens > 1 && !is_range && (!all_logits || config.is_recurrent());
        let last = picks.then(|| graph.input(LAST, DType::Int32, [1]));
        let steps = match is_range {
            true => graph.range_1d(ids.shape_tensor().at(0, 1), graph.int(0), graph.int(1)),
            false => {
                let steps: Vec<i32> = (0..count(tokens)).collect();
                graph.ints([tokens], &steps)
            }
        };
        let positions = steps + position;
        let tables = |rotation: &Rotation| self.tables(rotation, positions);
        let block = SequenceBlock::new().position(position);
        let rows = [1, config.kv_heads, self.options.context, stored_head(config.head)];
        let parts = |mixer: &Mixer| match mixer {
            Mixer::Attention => vec![(CACHE, rows.to_vec()); 2],
            mixer => mixer.state_parts(config.width),
        };
        let parts: Vec<_> = config.mixers.iter().take(config.layers).map(parts).collect();
        let is_rotated = config.rotated.contains(&true);
        let shared = LayerInputs {
            cache: CacheInputs::States {
                position,
                positions: is_range.then_some(positions),
                layers: states::declare(graph, &parts),
            },
            masks: Default::default(),
            learned: config
                .learned_positions
                .map(|rows| Embedding::new(rows, config.width).apply(POSITIONS, positions)),
            block: match last.filter(|_| config.is_recurrent()) {
                Some(last) => block.count(last + 1),
                None => block,
            },
            global: is_rotated.then(|| tables(&config.rotation)),
            local: config.local_rotation.as_ref().map(tables),
        };
        let x = self.layers(ids, &shared);
        match last.filter(|_| !all_logits) {
            Some(last) => self.head(x.gather(last, Gather::new().axis(1))),
            None if is_range && !all_logits => self.head(x.narrow(1, -1..)),
            None => self.head(x),
        }
    }

    /// Cosines and sines of positions.
    fn tables(&self, rotation: &Rotation, positions: Tensor<'g>) -> RopeTables<'g> {
        let (frequencies, amplitude) = rotation.frequencies(self.options.context);
        let (context, style) = (self.options.context, RopeStyle::SplitHalves);
        let tables =
            RopeTables::of_frequencies(self.graph, context, &frequencies, amplitude, style);
        tables.at(positions)
    }

    /// Builds a function without states, with the inputs and outputs of ExecuTorch's static runners.
    fn stateless(&self) {
        let (graph, config) = (self.graph, self.config);
        let FunctionOptions { tokens, context, .. } = self.options;
        let half = |name: &str, shape: &[usize]| graph.input(name, DType::Fp16, shape);
        let ids = graph.input(TOKENS, DType::Int32, [1, tokens]);
        let mask = half(MASK, &[1, tokens, context + tokens]).cast(DType::Fp32);
        let rotations = ROTATIONS.map(|name| half(name, &[tokens, config.rotation.rotated / 2]));
        let [cos, sin] = rotations.map(|table| table.cast(DType::Fp32));
        let shape = [1, config.kv_heads, context, config.head];
        let cached = |part: &str| -> Vec<Tensor<'g>> {
            let names = (0..config.layers).map(|layer| cache_name(layer, part));
            names.map(|name| half(&name, &shape).cast(DType::Fp32)).collect()
        };
        let (keys, values) = (cached("keys"), cached("values"));
        let picks = !self.options.all_logits;
        let last = picks.then(|| graph.input(LAST, DType::Int32, [1]));
        let layers = keys.into_iter().zip(values).map(|(keys, values)| [keys, values]).collect();
        let shared = LayerInputs {
            cache: CacheInputs::Inputs { mask, layers, new: RefCell::default() },
            masks: Default::default(),
            learned: None,
            block: SequenceBlock::new(),
            global: Some(RopeTables::new(cos, sin, RopeStyle::SplitHalves)),
            local: None,
        };
        let x = self.layers(ids, &shared);
        let logits = match last {
            Some(last) => self.head(x.gather(last, Gather::new().axis(1))),
            None => self.head(x),
        };
        graph.output(LOGITS, logits.cast(DType::Fp16));
        let CacheInputs::Inputs { new, .. } = shared.cache else { return };
        let new = new.into_inner();
        for (index, part) in ["new_keys", "new_values"].into_iter().enumerate() {
            for (layer, pair) in new.iter().enumerate() {
                graph.output(&cache_name(layer, part), pair[index].cast(DType::Fp16));
            }
        }
    }

    /// Builds a chunk, whose hidden states are an input and an output.
    fn chunk(&self, layers: Range<usize>) {
        let (graph, config) = (self.graph, self.config);
        let FunctionOptions { tokens, context, .. } = self.options;
        let half =
            |name: &str, shape: &[usize]| graph.input(name, DType::Fp16, shape).cast(DType::Fp32);
        let x = half(HIDDEN, &[1, tokens, config.width]);
        let tables = |names: [&str; 2], rotation: &Rotation| {
            let [cos, sin] = names.map(|name| half(name, &[tokens, rotation.rotated / 2]));
            RopeTables::new(cos, sin, RopeStyle::SplitHalves)
        };
        let global = tables(ROTATIONS, &config.rotation);
        let [masks, rotates] = local_inputs(config, context, layers.clone());
        let [local_mask, cos, sin] = LOCAL;
        let local = config.local_rotation.as_ref().filter(|_| rotates);
        let local = local.map(|rotation| tables([cos, sin], rotation));
        // Groups of heads have their queries below each other, and so the mask has a copy for each.
        let copies = config.heads / config.kv_heads.max(1);
        let mask = |name: &str| {
            let mask = half(name, &[1, 1, tokens, context]);
            graph.concat(vec![mask; copies.max(1)], 2, Default::default())
        };
        let global_mask = mask(MASK);
        let masks = [global_mask, if masks { mask(local_mask) } else { global_mask }];
        let update = half(UPDATE, &[1, 1, context, tokens]);
        let shape = [config.kv_heads, context, stored_head(config.head)];
        let cache = PackedCache::new(graph, CACHE, layers.len(), shape, update, masks);
        let shared = LayerInputs {
            cache: CacheInputs::Packed(cache),
            masks: Default::default(),
            learned: None,
            block: SequenceBlock::new(),
            global: Some(global),
            local,
        };
        let x = layers.fold(x, |x, layer| self.layer(layer, x, &shared));
        if let CacheInputs::Packed(cache) = shared.cache {
            cache.store();
        }
        graph.output(&format!("next_{HIDDEN}"), x.cast(DType::Fp16));
    }

    /// The hidden states after all layers and the last norm.
    fn layers(&self, ids: Tensor<'g>, shared: &LayerInputs<'g>) -> Tensor<'g> {
        let mut x = self.embeddings(ids);
        if let Some(rows) = shared.learned {
            x = x + rows;
        }
        let x = (0..self.config.layers).fold(x, |x, layer| self.layer(layer, x, shared));
        self.norm("model.norm", x)
    }

    fn embeddings(&self, ids: Tensor<'g>) -> Tensor<'g> {
        let config = self.config;
        let x = Embedding::new(config.vocabulary, config.width).apply(EMBEDDINGS, ids);
        if config.embedding_scale != 1.0 { x * config.embedding_scale } else { x }
    }

    /// The logits of hidden states.
    fn head(&self, x: Tensor<'g>) -> Tensor<'g> {
        self.head_rows(head_name(self.config), self.config.vocabulary, x)
    }

    /// The logits of some tokens.
    fn head_rows(&self, name: &str, rows: usize, x: Tensor<'g>) -> Tensor<'g> {
        let config = self.config;
        let mut logits = Linear::new(rows).without_bias().apply(name, x);
        if config.logit_scale != 1.0 {
            logits = logits * config.logit_scale;
        }
        if let Some(cap) = config.logit_cap {
            logits = (logits / cap).tanh() * cap;
        }
        match self.options.all_logits {
            true => logits,
            false => logits.view([1, rows]),
        }
    }

    fn layer(&self, layer: usize, x: Tensor<'g>, shared: &LayerInputs<'g>) -> Tensor<'g> {
        let name = |part: &str| format!("model.layers.{layer}.{part}");
        let norms = self.config.family.norms;
        if norms == NormPlacement::Parallel {
            let input = self.norm(&name("input_layernorm"), x);
            return x + self.mix(layer, input, shared) + self.feed_forward(layer, input);
        }
        let mix = |x: Tensor<'g>| self.mix(layer, x, shared);
        let feed = |x: Tensor<'g>| self.feed_forward(layer, x);
        let parts: [(&dyn Fn(Tensor<'g>) -> Tensor<'g>, &str, &str); 2] = [
            (&mix, "input_layernorm", "post_attention_layernorm"),
            (
                &feed,
                match norms {
                    NormPlacement::Before => "post_attention_layernorm",
                    _ => "pre_feedforward_layernorm",
                },
                "post_feedforward_layernorm",
            ),
        ];
        let count = if self.config.mixers[layer].is_whole_layer() { 1 } else { 2 };
        let mut x = x;
        for (part, before, after) in parts.into_iter().take(count) {
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

    /// The part of a layer that mixes positions.
    fn mix(&self, layer: usize, x: Tensor<'g>, shared: &LayerInputs<'g>) -> Tensor<'g> {
        match &self.config.mixers[layer] {
            Mixer::Attention => self.attention(layer, x, shared),
            mixer => {
                let states: &[State<'g>] = match &shared.cache {
                    CacheInputs::States { layers, .. } => &layers[layer],
                    _ => &[],
                };
                mixer.apply(&format!("model.layers.{layer}."), states, x, shared.block)
            }
        }
    }

    fn norm(&self, name: &str, x: Tensor<'g>) -> Tensor<'g> {
        let config = self.config;
        match config.family.norm {
            NormKind::Rms => {
                let norm = RmsNorm::new(config.epsilon).bounded();
                let norm = if config.norm_adds_one { norm.one_more() } else { norm };
                norm.apply(name, x)
            }
            NormKind::Layer => {
                let norm = LayerNorm::new(config.epsilon);
                let norm = if config.norm_bias { norm } else { norm.without_bias() };
                norm.apply(name, x)
            }
        }
    }

    /// A norm over each head of `[1, positions, heads, head]` with weights for each head.
    fn head_norm(&self, name: &str, x: Tensor<'g>, heads: usize) -> Tensor<'g> {
        let config = self.config;
        let plain = match config.family.norm {
            NormKind::Rms => RmsNorm::new(config.epsilon).bounded().plain(x),
            NormKind::Layer => LayerNorm::new(config.epsilon).plain(x),
        };
        plain * self.graph.param(&format!("{name}.weight"), [heads, config.head])
    }

    fn linear(&self, name: &str, outputs: usize, bias: bool, x: Tensor<'g>) -> Tensor<'g> {
        let layer = Linear::new(outputs);
        let layer = if bias { layer } else { layer.without_bias() };
        layer.apply(name, x)
    }

    fn attention(&self, layer: usize, x: Tensor<'g>, shared: &LayerInputs<'g>) -> Tensor<'g> {
        let config = self.config;
        let name = |part: &str| format!("model.layers.{layer}.self_attn.{part}");
        let (length, head) = (self.length(), config.head);
        let (all, kv) = (config.heads * head, config.kv_heads * head);
        let bias = config.qkv_bias;
        let gated = config.family.gated_heads;
        let queries = if gated { 2 * all } else { all };
        let [query, key, value] = match config.family.fused_qkv {
            true => {
                let x = self.linear(&name("qkv_proj"), all + 2 * kv, bias, x);
                let (first, second) = (count(all), count(all + kv));
                [x.narrow(-1, ..first), x.narrow(-1, first..second), x.narrow(-1, second..)]
            }
            false => [("q_proj", queries), ("k_proj", kv), ("v_proj", kv)]
                .map(|(part, outputs)| self.linear(&name(part), outputs, bias, x)),
        };
        let (query, gate) = match gated {
            true => {
                let each = query.view([1, length, count(config.heads), count(2 * head)]);
                let (query, gate) =
                    (each.narrow(-1, ..count(head)), each.narrow(-1, count(head)..));
                (query, Some(gate.view([1, length, count(all)]).sigmoid()))
            }
            false => (query, None),
        };
        let heads = |x: Tensor<'g>, norm: &str, heads: usize| {
            let kind = if norm.is_empty() { QkNorm::None } else { config.qk_norm };
            let x = if kind == QkNorm::Whole { self.norm(&name(norm), x) } else { x };
            let x = x.view([1, length, count(heads), count(head)]);
            let x = match kind {
                QkNorm::Head => self.norm(&name(norm), x),
                QkNorm::EachHead => self.head_norm(&name(norm), x, heads),
                QkNorm::None | QkNorm::Whole => x,
            };
            x.transpose([0, 2, 1, 3])
        };
        let mut query = heads(query, "q_norm", config.heads);
        let mut key = heads(key, "k_norm", config.kv_heads);
        let value = heads(value, "", config.kv_heads);
        // Forms for the Neural Engine.
        let interface = self.options.interface;
        let is_grouped =
            matches!(shared.cache, CacheInputs::Packed(_)) || interface == Interface::Anemll;
        let local = shared.local.filter(|_| config.windowed[layer]);
        if let Some(tables) = local.or(shared.global).filter(|_| config.rotated[layer]) {
            (query, key) = match is_grouped {
                true => (rotate_by_product(query, tables), rotate_by_product(key, tables)),
                false => (rotate(query, tables), rotate(key, tables)),
            };
        }
        // The heads of states are padded with zeros, which change neither scores nor results.
        let padding = match (&shared.cache, interface) {
            (CacheInputs::Inputs { .. }, _)
            | (_, Interface::SwiftTransformers | Interface::Anemll) => 0,
            _ => stored_head(head) - head,
        };
        let [query, key, value] = [query, key, value].map(|x| match padding {
            0 => x,
            _ => x.pad([0, 0, 0, 0, 0, 0, 0, count(padding)], ops::Pad::new()),
        });
        let (keys, values, mask) = self.remember(layer, key, value, shared);
        let mut options = AttentionOptions::new().scale(config.attention_scale).bias(mask);
        if let Some(cap) = config.attention_cap {
            options = options.soft_cap(cap);
        }
        let attended = match is_grouped {
            true => grouped_attention(query, keys, values, &options),
            false => attention(query, keys, values, &options),
        };
        let attended = if padding == 0 { attended } else { attended.narrow(-1, ..count(head)) };
        let merged = attended.transpose([0, 2, 1, 3]).view([1, length, count(all)]);
        let merged = gate.map_or(merged, |gate| merged * gate);
        self.linear(&name("o_proj"), config.width, config.out_bias, merged)
    }

    /// All keys and values of a layer with the new ones, and the mask of the scores.
    fn remember(
        &self,
        layer: usize,
        key: Tensor<'g>,
        value: Tensor<'g>,
        shared: &LayerInputs<'g>,
    ) -> (Tensor<'g>, Tensor<'g>, Tensor<'g>) {
        let config = self.config;
        match &shared.cache {
            CacheInputs::States { position, positions, layers } => {
                let windowed = config.windowed[layer] && config.window.is_some();
                let known = &shared.masks[usize::from(windowed)];
                let cache = KvCache::of_states(layers[layer][0], layers[layer][1]);
                let (keys, values) = cache.append(*position, key, value);
                let window = config.window.filter(|_| windowed);
                let mask = known.get().unwrap_or_else(|| match positions {
                    Some(positions) => cache.mask_of(*positions, window),
                    None => cache.mask(*position, self.options.tokens, window),
                });
                let is_swift = self.options.interface == Interface::SwiftTransformers;
                let mask = match known.get() {
                    None if is_swift => swift_transformers::without_empty_row(mask, keys),
                    _ => mask,
                };
                known.set(Some(mask));
                (keys, values, mask)
            }
            CacheInputs::Packed(cache) => {
                let mask = cache.masks[usize::from(config.windowed[layer])];
                let [keys, values] = cache.append(key, value);
                (keys, values, mask)
            }
            CacheInputs::Inputs { mask, layers, new } => {
                new.borrow_mut().push([key, value]);
                let all = |earlier: Tensor<'g>, new: Tensor<'g>| {
                    self.graph.concat([earlier, new], 2, Default::default())
                };
                let [keys, values] = layers[layer];
                (all(keys, key), all(values, value), *mask)
            }
        }
    }

    fn feed_forward(&self, layer: usize, x: Tensor<'g>) -> Tensor<'g> {
        let config = self.config;
        if let Some(experts) = config.experts.filter(|_| config.sparse[layer]) {
            return self.experts(layer, experts, x);
        }
        let name = |part: &str| format!("model.layers.{layer}.mlp.{part}");
        let (inner, bias) = (config.inner, config.mlp_bias);
        let activation = if config.gelu { Activation::GeluTanh } else { Activation::Silu };
        let (gate, up) = match config.family.feed_forward {
            FeedForward::FusedGated => {
                let both = self.linear(&name("gate_up_proj"), 2 * inner, bias, x);
                (both.narrow(-1, ..count(inner)), both.narrow(-1, count(inner)..))
            }
            FeedForward::Gated => (
                self.linear(&name("gate_proj"), inner, bias, x),
                self.linear(&name("up_proj"), inner, bias, x),
            ),
            FeedForward::Plain => {
                let up = activation.apply(self.linear(&name("up_proj"), inner, bias, x));
                return self.linear(&name("down_proj"), config.width, bias, up);
            }
        };
        self.linear(&name("down_proj"), config.width, bias, activation.apply(gate) * up)
    }

    /// A mixture of experts.
    fn experts(&self, layer: usize, sizes: ExpertSizes, x: Tensor<'g>) -> Tensor<'g> {
        let ExpertSizes { count: all, visited, width, normalized, shared } = sizes;
        let mut experts = Experts::new(all, visited, width);
        (experts.normalized, experts.shared) = (normalized, shared);
        // Blocks in which tokens visit more experts than there are read each expert once.
        let visits = self.options.tokens.saturating_mul(visited);
        if self.is_ranged() || visits > all {
            experts = experts.dense();
        }
        let rows = x.view([-1, count(self.config.width)]);
        let mixed = experts.apply(&format!("model.layers.{layer}.mlp"), rows);
        mixed.view([1, self.length(), count(self.config.width)])
    }
}
