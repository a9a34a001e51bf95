//! The inputs, outputs and states that swift-transformers' `LanguageModel` knows.
//!
//! A call has the tokens and a mask, whose length is the position after the call. The class passes zeros for all tokens of a
//! prompt at the same time, so the mask's elements cannot hide later tokens: the function takes only the length, and hides them itself.
//! The class also counts one position more than there are tokens, and its first token is at position 1. The example of
//! its repository in Python starts at 0. Rotations depend on distances only; what differs is row 0 of the cache, which the
//! function hides while nothing is stored there.

use coremill_graph::nn::SequenceBlock;
use coremill_graph::{DType, Tensor};

use super::{CacheInputs, Decoder, LOGITS, LayerInputs, count};
use crate::config::Rotation;

/// Names of the inputs.
pub(crate) const INPUT_IDS: &str = "inputIds";
pub(crate) const CAUSAL_MASK: &str = "causalMask";

/// Names of the states.
pub(crate) const KEY_CACHE: &str = "keyCache";
const VALUE_CACHE: &str = "valueCache";

/// Subtracted from the scores of hidden keys, as by other masks.
const MASKED: f32 = 3e4;

impl<'g> Decoder<'_, 'g> {
    /// Builds the function.
    pub(super) fn swift_transformers(&self) {
        let (graph, config, context) = (self.graph, self.config, self.options.context);
        let range = (1, count(context).into());
        let ids = graph.flexible_input(INPUT_IDS, DType::Int32, &[(1, 1), range]);
        let mask = [(1, 1), (1, 1), range, range];
        let mask = graph.flexible_input(CAUSAL_MASK, DType::Fp16, &mask);
        let tokens = ids.shape_tensor().at(0, 1);
        let position = mask.shape_tensor().at(0, 3) - tokens;
        let positions = graph.range_1d(tokens, graph.int(0), graph.int(1)) + position;
        let shape = [config.layers, 1, config.kv_heads, context, config.head];
        let [keys, values] = [KEY_CACHE, VALUE_CACHE].map(|name| graph.state(name, shape));
        let row = |layer: usize| vec![keys.rows(layer..layer + 1), values.rows(layer..layer + 1)];
        let tables = |rotation: &Rotation| self.tables(rotation, positions);
        let is_rotated = config.rotated.contains(&true);
        let shared = LayerInputs {
            cache: CacheInputs::States {
                position,
                positions: Some(positions),
                layers: (0..config.layers).map(row).collect(),
            },
            masks: Default::default(),
            learned: None,
            block: SequenceBlock::new(),
            global: is_rotated.then(|| tables(&config.rotation)),
            local: config.local_rotation.as_ref().map(tables),
        };
        let logits = self.head(self.layers(ids, &shared));
        graph.output(LOGITS, logits.cast(DType::Fp16));
    }
}

/// A mask that also hides row 0 if the keys there, of shape `[1, heads, positions, head]`, are zeros.
pub(super) fn without_empty_row<'g>(mask: Tensor<'g>, keys: Tensor<'g>) -> Tensor<'g> {
    let graph = keys.graph();
    let positions = keys.extent(2);
    let mut first = vec![0.0; positions.max(1)];
    first[0] = -MASKED;
    let largest = keys.narrow(2, ..1).abs().max([0, 1, 2, 3], false);
    let is_empty = graph.float(1.0) - largest.greater(0.0).cast(DType::Fp32);
    mask.minimum(graph.floats([1, first.len()], &first) * is_empty)
}
