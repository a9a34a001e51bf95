use coremill_mil::ir::Dim;

use super::rope::{RopeTables, rotate};
use super::{Linear, RmsNorm, below, fits, has_axes, place, product};
use crate::graph::Graph;
use crate::ops;
use crate::state::State;
use crate::tensor::Tensor;

/// Score of a masked key: small enough to vanish in the softmax, and within the range of `fp16`.
const MASKED: f32 = -3e4;

/// Options in addition to `softmax(q · kᵀ · scale) · v`.
///
/// ```
/// use coremill_graph::nn::AttentionOptions;
///
/// let options = AttentionOptions::new().causal().window(128).soft_cap(50.0);
/// assert_eq!(options.window, Some(128));
/// ```
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct AttentionOptions<'g> {
    /// Factor of the scores; 1/√d if absent.
    pub scale: Option<f32>,
    /// Whether a query attends only to keys up to its own position. The last query has the position of the
    /// last key.
    pub causal: bool,
    /// Number of keys up to its own position to which a query attends.
    pub window: Option<usize>,
    /// Bias that is added to the scores.
    pub bias: Option<Tensor<'g>>,
    /// Soft cap: scores become `cap · tanh(score / cap)`.
    pub soft_cap: Option<f32>,
    /// One additional score for each head, which takes part in the softmax but has no value.
    pub sinks: Option<Tensor<'g>>,
}

impl<'g> AttentionOptions<'g> {
    /// Options with which every query attends to every key.
    pub fn new() -> Self {
        AttentionOptions::default()
    }

    /// Sets the factor of the scores.
    pub fn scale(mut self, scale: f32) -> Self {
        self.scale = Some(scale);
        self
    }

    /// Restricts queries to keys up to their own position.
    pub fn causal(mut self) -> Self {
        self.causal = true;
        self
    }

    /// Restricts queries to the last `keys` keys up to their own position.
    pub fn window(mut self, keys: usize) -> Self {
        self.window = Some(keys);
        self
    }

    /// Adds a bias to the scores.
    pub fn bias(mut self, bias: Tensor<'g>) -> Self {
        self.bias = Some(bias);
        self
    }

    /// Sets the soft cap of the scores.
    pub fn soft_cap(mut self, cap: f32) -> Self {
        self.soft_cap = Some(cap);
        self
    }

    /// Sets the additional score of each head.
    pub fn sinks(mut self, sinks: Tensor<'g>) -> Self {
        self.sinks = Some(sinks);
        self
    }
}

/// Attention on heads of shape `[batch, heads, positions, head]`. There may be fewer heads of keys and
/// values; each then serves several query heads.
#[track_caller]
pub fn attention<'g>(
    query: Tensor<'g>,
    key: Tensor<'g>,
    value: Tensor<'g>,
    options: &AttentionOptions<'g>,
) -> Tensor<'g> {
    let graph = query.graph();
    let (heads, kv_heads) = (query.extent(1), key.extent(1));
    if kv_heads == 0 || heads % kv_heads != 0 {
        let message = format!("{heads} query heads cannot share {kv_heads} key and value heads");
        let hint = "the number of key and value heads must divide the number of query heads";
        return graph.mistake(message, Some(hint.into()), std::panic::Location::caller());
    }
    if options.window == Some(0) {
        let message = "the attention window must be at least 1, got 0".to_owned();
        return graph.mistake(message, None, std::panic::Location::caller());
    }
    let repeated = |x: Tensor<'g>| match heads / kv_heads {
        1 => x,
        times => {
            let [batch, _, length, width] = [0, 1, 2, 3].map(|axis| x.extent(axis));
            let x = x.unsqueeze(2).tile([1, 1, place(times), 1, 1]);
            x.view([batch, heads, length, width])
        }
    };
    let (key, value) = (repeated(key), repeated(value));
    let scale = options.scale.unwrap_or(1.0 / (query.last_extent() as f32).sqrt());
    let mut scores = (query * scale).matmul_t(key);
    if let Some(cap) = options.soft_cap {
        scores = (scores / cap).tanh() * cap;
    }
    if let Some(bias) = options.bias {
        scores = scores + bias;
    }
    if options.causal || options.window.is_some() {
        scores = scores + mask(graph, query.extent(2), key.extent(2), options);
    }
    let Some(sinks) = options.sinks else { return scores.softmax_on(-1).dot(value) };
    let (batch, length) = (query.extent(0), query.extent(2));
    let sinks = sinks.view([1, heads, 1, 1]).broadcast_to([batch, heads, length, 1]);
    let all = graph.concat([scores, sinks], -1, Default::default()).softmax_on(-1);
    all.narrow(-1, ..place(key.extent(2))).dot(value)
}

/// The mask, which is added to the scores.
#[track_caller]
fn mask<'g>(
    graph: &'g Graph,
    queries: usize,
    keys: usize,
    options: &AttentionOptions<'g>,
) -> Tensor<'g> {
    if !fits(graph, "a mask", &[queries, keys]) {
        return graph.nothing();
    }
    let ahead = keys.saturating_sub(queries);
    let mut elements = Vec::with_capacity(queries * keys);
    for query in 0..queries {
        let own = query + ahead;
        for key in 0..keys {
            let hidden = (options.causal || options.window.is_some()) && key > own;
            let far = options.window.is_some_and(|window| key.saturating_add(window) <= own);
            elements.push(if hidden || far { MASKED } else { 0.0 });
        }
    }
    graph.floats([queries, keys], &elements)
}

/// Cache of keys and values from earlier runs, in two states of shape `[batch, heads, positions, head]`, or in rows of one state
/// that several layers share.
#[derive(Clone, Copy, Debug)]
pub struct KvCache<'g> {
    keys: State<'g>,
    values: State<'g>,
}

impl<'g> KvCache<'g> {
    /// Returns a cache with the states `NAME.keys` and `NAME.values`.
    #[track_caller]
    pub fn new(graph: &'g Graph, name: &str, shape: [usize; 4]) -> KvCache<'g> {
        KvCache {
            keys: graph.state(&below(name, "keys"), shape),
            values: graph.state(&below(name, "values"), shape),
        }
    }

    /// Returns a cache in two states, or in rows of states ([`State::rows`]), of shape `[batch, heads, positions, head]`. States may
    /// have an axis for layers before these, of which one row is selected.
    pub fn of_states(keys: State<'g>, values: State<'g>) -> KvCache<'g> {
        KvCache { keys, values }
    }

    /// Stores keys and values at a position (one integer), and returns all keys and values. Their number may be dynamic.
    #[track_caller]
    pub fn append(
        self,
        position: Tensor<'g>,
        key: Tensor<'g>,
        value: Tensor<'g>,
    ) -> (Tensor<'g>, Tensor<'g>) {
        let graph = key.graph();
        let nothing = (graph.nothing(), graph.nothing());
        let axes = ["batch", "heads", "positions", "head"];
        if !has_axes(key, "a cache", &axes) || !has_axes(value, "a cache", &axes) {
            return nothing;
        }
        let (held, given) = (self.keys.shape(), key.dims()[2].known());
        let (room, is_row) = (self.length(), held.len() == 5);
        let limits = held.len() == 4 || is_row;
        if let Some(count) = given.filter(|&count| limits && count > room as u64) {
            let message = format!("a cache of {room} positions has no room for {count} more");
            let hint = "declare a cache that fits the longest sequence";
            graph.note(message, Some(hint.into()), std::panic::Location::caller());
            return nothing;
        }
        let position = if position.rank() == 0 { position.view([1]) } else { position };
        let put = |state: State<'g>, new: Tensor<'g>| {
            let new = if is_row { new.unsqueeze(0) } else { new };
            let mut before = vec![0; if is_row { 3 } else { 2 }];
            before[0] = place(state.first_row());
            let zeros = graph.ints([before.len()], &before);
            let after = graph.ints([1], &[0]);
            let begin = graph.concat([zeros, position, after], 0, Default::default());
            let known = |dim: &Dim| dim.known().map(|extent| place(extent as usize));
            let size: Option<Vec<i32>> = new.dims().iter().map(known).collect();
            let size = size.map(|size| graph.ints([size.len()], &size));
            let end = begin + size.unwrap_or_else(|| new.shape_tensor());
            let all = state.whole();
            all.write(all.read().slice_update(new, begin, end, ops::SliceUpdate::new()));
        };
        // Keys and values may be in one state: if it is read only after both are written, neither write copies it.
        put(self.keys, key);
        put(self.values, value);
        let read = |state: State<'g>| match is_row {
            true => {
                let kept: Vec<i64> = held[1..].iter().map(|&extent| extent as i64).collect();
                state.read().view(kept)
            }
            false => state.read(),
        };
        (read(self.keys), read(self.values))
    }

    /// Mask for unfilled positions of the cache, for queries that start at a position.
    #[track_caller]
    pub fn mask(self, position: Tensor<'g>, queries: usize, window: Option<usize>) -> Tensor<'g> {
        let graph = position.graph();
        if !fits(graph, "a mask", &[queries, self.length()]) {
            return graph.nothing();
        }
        let places = self.places(graph);
        let own: Vec<i32> = (0..place(queries)).collect();
        let own = graph.ints([queries, 1], &own) + position;
        self.mask_at(places, own, window)
    }

    /// Mask for unfilled positions of the cache, for queries at positions of shape `[queries]`. Their number may be dynamic.
    #[track_caller]
    pub fn mask_of(self, positions: Tensor<'g>, window: Option<usize>) -> Tensor<'g> {
        let places = self.places(positions.graph());
        self.mask_at(places, positions.unsqueeze(1), window)
    }

    /// Number of positions.
    fn length(self) -> usize {
        self.keys.shape().iter().rev().nth(1).copied().unwrap_or(1)
    }

    fn places(self, graph: &'g Graph) -> Tensor<'g> {
        let length = self.length();
        if !fits(graph, "a mask", &[length]) {
            return graph.nothing();
        }
        let places: Vec<i32> = (0..place(length)).collect();
        graph.ints([1, length], &places)
    }

    fn mask_at(self, places: Tensor<'g>, own: Tensor<'g>, window: Option<usize>) -> Tensor<'g> {
        let mut hidden = places.greater(own);
        // A window that covers the whole cache hides nothing.
        if let Some(window) = window.filter(|&window| window < self.length()) {
            hidden = hidden.logical_or((places + place(window)).less_equal(own));
        }
        hidden.cast(crate::DType::Fp32) * MASKED
    }
}

/// Self-attention with the projections `q_proj`, `k_proj`, `v_proj` and `o_proj`.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Attention {
    /// Number of query heads.
    pub heads: usize,
    /// Number of key and value heads: a divisor of the number of query heads.
    pub kv_heads: usize,
    /// Number of elements of a head.
    pub head: usize,
    /// Whether queries, keys and values have biases.
    pub qkv_bias: bool,
    /// Whether the output has a bias.
    pub out_bias: bool,
    /// Epsilon of the norms of query and key heads, `q_norm` and `k_norm`; `None` without norms.
    pub qk_norm: Option<f32>,
}

impl Attention {
    /// Returns attention without biases.
    pub fn new(heads: usize, kv_heads: usize, head: usize) -> Attention {
        Attention { heads, kv_heads, head, qkv_bias: false, out_bias: false, qk_norm: None }
    }

    /// Adds biases to queries, keys and values.
    pub fn qkv_bias(mut self) -> Attention {
        self.qkv_bias = true;
        self
    }

    /// Adds a bias to the output.
    pub fn out_bias(mut self) -> Attention {
        self.out_bias = true;
        self
    }

    /// Adds norms to queries and keys.
    pub fn qk_norm(mut self, epsilon: f32) -> Attention {
        self.qk_norm = Some(epsilon);
        self
    }

    /// Projects to queries, keys and values of shape `[batch, heads, positions, head]`, and rotates them if
    /// there are tables.
    #[track_caller]
    pub fn project<'g>(
        &self,
        name: &str,
        x: Tensor<'g>,
        rope: Option<RopeTables<'g>>,
    ) -> [Tensor<'g>; 3] {
        if !has_axes(x, "attention", &["batch", "positions", "width"]) {
            return [x.graph().nothing(); 3];
        }
        let (batch, length) = (x.extent(0), x.extent(1));
        let project = |part: &str, heads: usize| {
            let outputs = product(&[heads, self.head]);
            let layer = if self.qkv_bias {
                Linear::new(outputs)
            } else {
                Linear::new(outputs).without_bias()
            };
            let y = layer.apply(&below(name, part), x).view([batch, length, heads, self.head]);
            let norm = match part {
                "q_proj" => Some("q_norm"),
                "k_proj" => Some("k_norm"),
                _ => None,
            };
            let y = match (self.qk_norm, norm) {
                (Some(epsilon), Some(norm)) => RmsNorm::new(epsilon).apply(&below(name, norm), y),
                _ => y,
            };
            y.transpose([0, 2, 1, 3])
        };
        let query = project("q_proj", self.heads);
        let key = project("k_proj", self.kv_heads);
        let value = project("v_proj", self.kv_heads);
        match rope {
            Some(tables) => [rotate(query, tables), rotate(key, tables), value],
            None => [query, key, value],
        }
    }

    /// Joins the heads and applies the output projection.
    #[track_caller]
    pub fn merge<'g>(&self, name: &str, heads: Tensor<'g>, outputs: usize) -> Tensor<'g> {
        let (batch, length) = (heads.extent(0), heads.extent(2));
        let merged = heads.transpose([0, 2, 1, 3]).view([
            batch,
            length,
            product(&[heads.extent(1), heads.extent(3)]),
        ]);
        let layer =
            if self.out_bias { Linear::new(outputs) } else { Linear::new(outputs).without_bias() };
        layer.apply(&below(name, "o_proj"), merged)
    }

    /// Applies self-attention to `[batch, positions, width]`.
    #[track_caller]
    pub fn apply<'g>(
        &self,
        name: &str,
        x: Tensor<'g>,
        rope: Option<RopeTables<'g>>,
        options: &AttentionOptions<'g>,
    ) -> Tensor<'g> {
        let [query, key, value] = self.project(name, x, rope);
        self.merge(name, attention(query, key, value, options), x.last_extent())
    }

    /// Applies self-attention to new positions starting at `position`, with earlier positions in a cache.
    #[track_caller]
    pub fn apply_cached<'g>(
        &self,
        name: &str,
        x: Tensor<'g>,
        rope: Option<RopeTables<'g>>,
        cache: KvCache<'g>,
        position: Tensor<'g>,
        options: &AttentionOptions<'g>,
    ) -> Tensor<'g> {
        let [query, key, value] = self.project(name, x, rope);
        let (keys, values) = cache.append(position, key, value);
        let mask = cache.mask(position, x.extent(1), options.window);
        let bias = options.bias.map_or(mask, |bias| bias + mask);
        let own = AttentionOptions { causal: false, window: None, bias: Some(bias), ..*options };
        if options.window == Some(0) {
            return attention(query, keys, values, options);
        }
        self.merge(name, attention(query, keys, values, &own), x.last_extent())
    }
}

/// Latent attention as in DeepSeek: keys and values are projected from a narrow latent vector, and all heads
/// share the rotated part of each key, which encodes the position.
///
/// `query` is `[batch, heads, positions, plain + rotated]`, `latent` is `[batch, positions, rank]` after its
/// norm, `shared` is the rotated `[batch, 1, positions, rotated]`, and `up` is the projection `[heads ·
/// (plain + value), rank]`.
#[track_caller]
pub fn latent_attention<'g>(
    query: Tensor<'g>,
    latent: Tensor<'g>,
    shared: Tensor<'g>,
    up: Tensor<'g>,
    value_width: usize,
    options: &AttentionOptions<'g>,
) -> Tensor<'g> {
    let graph = query.graph();
    let (batch, heads, length) = (query.extent(0), query.extent(1), latent.extent(1));
    let rotated = shared.last_extent();
    let plain = query.last_extent().saturating_sub(rotated);
    let expanded =
        latent.matmul_t(up).view([batch, length, heads, plain.saturating_add(value_width)]);
    let expanded = expanded.transpose([0, 2, 1, 3]);
    let key = expanded.narrow(-1, ..place(plain));
    let value = expanded.narrow(-1, place(plain)..);
    let shared = shared.broadcast_to([batch, heads, length, rotated]);
    let key = graph.concat([key, shared], -1, Default::default());
    attention(query, key, value, options)
}
