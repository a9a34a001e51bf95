//! A cache in one state, and attention without a fifth dimension, for the Neural Engine.

use std::cell::RefCell;

use coremill_graph::nn::{AttentionOptions, RopeTables};
use coremill_graph::{Graph, State, Tensor};

/// Keys and values of several layers in one state of shape `[2 · layers, heads, positions, head]`.
///
/// New elements are stored by a product with the update, which is 1 where a token is stored: `cache · (1 − update) + update · new`.
/// No index is computed, because the Neural Engine has no integers.
pub(crate) struct PackedCache<'g> {
    graph: &'g Graph,
    state: State<'g>,
    contents: Tensor<'g>,
    /// 1 where a token is stored, of shape `[1, 1, positions, tokens]`.
    update: Tensor<'g>,
    /// 0 where a token is stored, of shape `[1, 1, positions, 1]`.
    keep: Tensor<'g>,
    /// Masks of layers without and with the window, for [`grouped_attention`].
    pub(crate) masks: [Tensor<'g>; 2],
    /// New keys and values of the layers so far.
    new: RefCell<Vec<Tensor<'g>>>,
}

impl<'g> PackedCache<'g> {
    /// A cache of layers with the shape `[heads, positions, head]`.
    pub(crate) fn new(
        graph: &'g Graph,
        name: &str,
        layers: usize,
        [heads, positions, head]: [usize; 3],
        update: Tensor<'g>,
        masks: [Tensor<'g>; 2],
    ) -> PackedCache<'g> {
        let state = graph.state(name, [2 * layers, heads, positions, head]);
        let contents = state.read();
        let stored = match update.last_extent() {
            1 => update,
            _ => update.sum([-1], true),
        };
        let keep = graph.float(1.0) - stored;
        let new = RefCell::default();
        PackedCache { graph, state, contents, update, keep, masks, new }
    }

    /// Stores the keys and values of the next layer, and returns all of its keys and values.
    pub(crate) fn append(&self, key: Tensor<'g>, value: Tensor<'g>) -> [Tensor<'g>; 2] {
        [key, value].map(|new| {
            let index = self.new.borrow().len() as i32;
            let stored = match self.update.last_extent() {
                1 => self.update * new,
                _ => self.update.dot(new),
            };
            let all = self.contents.narrow(0, index..index + 1) * self.keep + stored;
            self.new.borrow_mut().push(all);
            all
        })
    }

    /// Writes the state after the last layer.
    pub(crate) fn store(self) {
        let all = self.graph.concat(self.new.into_inner(), 0, Default::default());
        self.state.write(all);
    }
}

/// Rotary positions of heads, by a product with a constant instead of slices: chips before A15 and M3 read wrong elements in
/// slices that begin within the last axis.
pub(crate) fn rotate_by_product<'g>(x: Tensor<'g>, tables: RopeTables<'g>) -> Tensor<'g> {
    let (graph, head) = (x.graph(), x.last_extent());
    let (tokens, half) = (tables.cos.extent(0), tables.cos.last_extent());
    // Column `j` of the product is the partner of element `j`, with its sign.
    let mut partners = vec![0.0; head * head];
    for j in 0..half {
        partners[(j + half) * head + j] = -1.0;
        partners[j * head + j + half] = 1.0;
    }
    let partners = x.dot(graph.floats([head, head], &partners));
    let whole = |table: Tensor<'g>, rest: f32| {
        let mut parts = vec![table, table];
        if head > 2 * half {
            let missing = head - 2 * half;
            parts.push(graph.floats([tokens, missing], &vec![rest; tokens * missing]));
        }
        graph.concat(parts, -1, Default::default())
    };
    x * whole(tables.cos, 1.0) + partners * whole(tables.sin, 0.0)
}

/// Attention in which the queries of the heads that share keys are below each other, so that keys are not repeated.
pub(crate) fn grouped_attention<'g>(
    query: Tensor<'g>,
    keys: Tensor<'g>,
    values: Tensor<'g>,
    options: &AttentionOptions<'g>,
) -> Tensor<'g> {
    let [heads, tokens, head] = [1, 2, 3].map(|axis| query.extent(axis));
    let kv_heads = keys.extent(1).max(1);
    let rows = heads / kv_heads * tokens;
    let scale = options.scale.unwrap_or(1.0 / (head as f32).sqrt());
    let query = query.view([1, kv_heads, rows, head]);
    let mut scores = (query * scale).matmul_t(keys);
    if let Some(cap) = options.soft_cap {
        scores = (scores / cap).tanh() * cap;
    }
    if let Some(bias) = options.bias {
        scores = scores + bias;
    }
    scores.softmax_on(-1).dot(values).view([1, heads, tokens, head])
}
