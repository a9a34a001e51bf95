//! The models of ANEMLL's bundles, version 0.3.4: embeddings, chunks of layers, and the output head in pieces.
//!
//! All chunks have the whole cache as their state, because runners create one state for all of them.

use std::cell::Cell;
use std::ops::Range;

use coremill_graph::nn::SequenceBlock;
use coremill_graph::{DType, Graph, Opset};

use super::{CacheInputs, Decoder, FunctionOptions, LayerInputs, count};
use crate::config::Config;

/// Names of the inputs and outputs.
pub(crate) const INPUT_IDS: &str = "input_ids";
pub(crate) const HIDDEN_STATES: &str = "hidden_states";
pub(crate) const POSITION_IDS: &str = "position_ids";
pub(crate) const CAUSAL_MASK: &str = "causal_mask";
pub(crate) const CURRENT_POS: &str = "current_pos";
pub(crate) const OUTPUT_HIDDEN_STATES: &str = "output_hidden_states";

/// Name of the state. coremltools turns the dots of the module's name into underscores.
const KV_CACHE: &str = "model_model_kv_cache_0";

/// Beginning of the names of the head's parameters.
const PIECE: &str = "lm_head.split_";

/// Number of pieces of the output head.
pub(crate) fn piece_count(config: &Config) -> usize {
    if config.family.name.starts_with("qwen") { 16 } else { 8 }
}

/// Name of the output of a piece.
pub(crate) fn logits_name(index: usize) -> String {
    format!("logits{}", index + 1)
}

/// The rows of a piece. The first pieces have one row more if the number of pieces does not divide the vocabulary.
fn piece_rows(config: &Config, index: usize) -> Range<usize> {
    let (all, pieces) = (config.vocabulary, piece_count(config));
    let start = |index: usize| index * (all / pieces) + index.min(all % pieces);
    start(index)..start(index + 1)
}

/// The rows of a parameter of the head, by its name without the ending.
pub(super) fn rows_of(config: &Config, stem: &str) -> Option<Range<usize>> {
    let index = stem.strip_prefix(PIECE)?.parse().ok()?;
    (index < piece_count(config)).then(|| piece_rows(config, index))
}

/// Builds the embeddings of one token or of a block.
pub(crate) fn build_embeddings(config: &Config, name: &str, block: usize) -> Graph {
    let graph = Graph::named(name, Opset::Ios18);
    let range = (1, count(block).into());
    let ids = graph.flexible_input(INPUT_IDS, DType::Int32, &[(1, 1), range]);
    let options = FunctionOptions { name, ..FunctionOptions::EMPTY };
    let x = Decoder { config, options, graph: &graph }.embeddings(ids);
    graph.output(HIDDEN_STATES, x.cast(DType::Fp16));
    graph
}

/// Builds a function of a chunk, for one token or for a block. A block only fills the cache: the last chunk returns one of its hidden
/// states, which is not used.
pub(crate) fn build_chunk(
    config: &Config,
    options: &FunctionOptions<'_>,
    layers: Range<usize>,
) -> Graph {
    let graph = Graph::named(options.name, Opset::Ios18);
    Decoder { config, options: *options, graph: &graph }.anemll_chunk(layers);
    graph
}

/// Builds the output head of one token.
pub(crate) fn build_head(config: &Config, name: &str) -> Graph {
    let graph = Graph::named(name, Opset::Ios18);
    let options = FunctionOptions { name, all_logits: true, ..FunctionOptions::EMPTY };
    let decoder = Decoder { config, options, graph: &graph };
    let x = graph.input(HIDDEN_STATES, DType::Fp16, [1, 1, config.width]).cast(DType::Fp32);
    for index in 0..piece_count(config) {
        let rows = piece_rows(config, index).len();
        let logits = decoder.head_rows(&format!("{PIECE}{index}"), rows, x);
        graph.output(&logits_name(index), logits.cast(DType::Fp16));
    }
    graph
}

impl Decoder<'_, '_> {
    fn anemll_chunk(&self, layers: Range<usize>) {
        let (graph, config) = (self.graph, self.config);
        let FunctionOptions { tokens, context, .. } = self.options;
        let half =
            |name: &str, shape: &[usize]| graph.input(name, DType::Fp16, shape).cast(DType::Fp32);
        let x = half(HIDDEN_STATES, &[1, tokens, config.width]);
        let positions = graph.input(POSITION_IDS, DType::Int32, [tokens]);
        let mask = half(CAUSAL_MASK, &[1, 1, tokens, context]);
        let position = graph.input(CURRENT_POS, DType::Int32, [1]);
        // Groups of heads have their queries below each other, and so the mask has a copy for each.
        let copies = config.heads / config.kv_heads.max(1);
        let mask = graph.concat(vec![mask; copies.max(1)], 2, Default::default());
        let all = config.layers;
        let cache = graph.state(KV_CACHE, [2 * all, config.kv_heads, context, config.head]);
        let rows = |layer: usize| {
            let [keys, values] = [layer, all + layer].map(|row| cache.rows(row..row + 1));
            vec![keys, values]
        };
        let is_rotated = config.rotated.contains(&true);
        let shared = LayerInputs {
            cache: CacheInputs::States {
                position,
                positions: None,
                layers: (0..all).map(rows).collect(),
            },
            masks: [Cell::new(Some(mask)), Cell::new(Some(mask))],
            learned: None,
            block: SequenceBlock::new(),
            global: is_rotated.then(|| self.tables(&config.rotation, positions)),
            local: None,
        };
        let is_last = layers.end == all;
        let x = layers.fold(x, |x, layer| self.layer(layer, x, &shared));
        let x = match (is_last, tokens) {
            (true, 1) => self.norm("model.norm", x),
            (true, _) => x.narrow(1, ..1),
            (false, _) => x,
        };
        graph.output(OUTPUT_HIDDEN_STATES, x.cast(DType::Fp16));
    }
}
