//! Recurrent layers that mix positions, with their recurrent values in states.

use super::{
    Linear, RmsNorm, below, gated_delta, place, product, selective_scan, state_space_dual, zeros,
};
use crate::graph::Graph;
use crate::ops;
use crate::state::State;
use crate::tensor::Tensor;

/// Last dimensions of states are multiples of this number, if possible.
const STATE_ALIGNMENT: usize = 32;

/// Format of the decay rates of a recurrence in a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Decay {
    /// Logarithms, `A_log`, as in transformers.
    #[default]
    Logarithm,
    /// Negative rates, `A`, as in llama.cpp.
    Rate,
}

impl Decay {
    #[track_caller]
    fn param<'g>(self, graph: &'g Graph, name: &str, shape: &[usize]) -> Tensor<'g> {
        match self {
            Decay::Logarithm => graph.param(&below(name, "A_log"), shape).exp() * -1.0,
            Decay::Rate => graph.param(&below(name, "A"), shape),
        }
    }
}

/// States of a recurrent layer: the last inputs of its convolution, and the value of its recurrence.
///
/// The Neural Engine is reported to fail if the last dimension of a state is not a multiple of 32. So the window is stored by
/// position, with the channels last. A memory whose last dimension is not such a multiple is stored in rows of 32 elements.
#[derive(Clone, Copy, Debug)]
pub struct MixerCache<'g> {
    window: State<'g>,
    memory: State<'g>,
    block: SequenceBlock<'g>,
}

/// Shapes of the states of a recurrent layer.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MixerShapes {
    /// Shape of the last inputs of the convolution.
    pub window: Vec<usize>,
    /// Shape of the value of the recurrence.
    pub memory: Vec<usize>,
}

impl MixerShapes {
    /// The shapes for a convolution of some channels, and for a value of shape `memory`.
    fn new(batch: usize, taps: usize, channels: usize, memory: &[usize]) -> MixerShapes {
        let mut memory = memory.to_vec();
        if let [.., rows, last] = &mut memory[..]
            && !last.is_multiple_of(STATE_ALIGNMENT)
            && let Some(all) = rows.checked_mul(*last)
            && all.is_multiple_of(STATE_ALIGNMENT)
        {
            (*rows, *last) = (all / STATE_ALIGNMENT, STATE_ALIGNMENT);
        }
        MixerShapes { window: vec![batch, taps.saturating_sub(1), channels], memory }
    }

    /// The states `NAME.window` and `NAME.memory`.
    #[track_caller]
    fn states<'g>(self, graph: &'g Graph, name: &str) -> MixerCache<'g> {
        let window = graph.state(&below(name, "window"), self.window);
        let memory = graph.state(&below(name, "memory"), self.memory);
        MixerCache::of_states(window, memory)
    }
}

impl<'g> MixerCache<'g> {
    /// Returns a cache in states, or in rows of states ([`State::rows`]), of the layer's shapes.
    pub fn of_states(window: State<'g>, memory: State<'g>) -> Self {
        MixerCache { window, memory, block: SequenceBlock::new() }
    }

    /// The value of the recurrence before the block, in its own shape.
    #[track_caller]
    fn start(self, shape: &[usize]) -> Tensor<'g> {
        let held = self.block.read(self.memory);
        if self.memory.shape() == shape { held } else { held.view(shape) }
    }

    /// Keeps the value of the recurrence after the block.
    #[track_caller]
    fn keep(self, last: Tensor<'g>) {
        let shape = self.memory.shape();
        self.memory.write(if last.shape() == shape { last } else { last.view(shape) });
    }

    /// Describes the block of positions that is read.
    pub fn of_block(mut self, block: SequenceBlock<'g>) -> Self {
        self.block = block;
        self
    }
}

/// A block of positions in a sequence, for layers whose states accumulate all positions.
#[derive(Clone, Copy, Debug, Default)]
pub struct SequenceBlock<'g> {
    position: Option<Tensor<'g>>,
    count: Option<Tensor<'g>>,
}

impl<'g> SequenceBlock<'g> {
    /// Returns a block that continues the states, all of whose positions are valid.
    pub fn new() -> Self {
        SequenceBlock::default()
    }

    /// Sets the position of the first element (one integer). At position 0, states are read as zeros.
    pub fn position(mut self, position: Tensor<'g>) -> Self {
        self.position = Some(position);
        self
    }

    /// Sets the number of valid positions (one integer). The states do not take up the others.
    pub fn count(mut self, count: Tensor<'g>) -> Self {
        self.count = Some(count);
        self
    }

    /// The contents of a state before the block.
    #[track_caller]
    fn read(self, state: State<'g>) -> Tensor<'g> {
        let held = state.read();
        match self.position {
            Some(position) => {
                let axes = vec![1; state.shape().len()];
                let continues = position.view(axes).greater(0);
                held.graph().select_or(continues, held, 0.0)
            }
            None => held,
        }
    }

    /// Step sizes of shape `[batch, positions, …]`, with zeros for invalid positions.
    #[track_caller]
    fn valid_steps(self, steps: Tensor<'g>) -> Tensor<'g> {
        let Some(count) = self.count else { return steps };
        let length = steps.extent(1);
        let indices: Vec<i32> = (0..place(length)).collect();
        let is_valid = steps.graph().ints([1, length, 1], &indices).less(count);
        steps * is_valid.cast(crate::DType::Fp32)
    }
}

/// Mamba's mixer with the parameters of transformers: `in_proj`, `conv1d`, `x_proj`, `dt_proj`, `out_proj`,
/// `D` and the decay.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Mamba {
    /// Number of inner channels.
    pub inner: usize,
    /// Number of state elements of a channel.
    pub state: usize,
    /// Rank of the step sizes.
    pub rank: usize,
    /// Kernel size of the convolution.
    pub taps: usize,
    /// Format of the decay rates.
    pub decay: Decay,
    /// Whether the convolution has a bias.
    pub conv_bias: bool,
    /// Whether the input and output projections have biases.
    pub bias: bool,
}

/// Mamba 2's mixer with the parameters of transformers: `in_proj`, `conv1d`, `dt_bias`, `norm`, `out_proj`, `D` and the decay.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Mamba2 {
    /// Number of heads.
    pub heads: usize,
    /// Number of elements of a head.
    pub head: usize,
    /// Number of state elements of a channel.
    pub state: usize,
    /// Number of groups of heads that share projections to and from the state, and a norm.
    pub groups: usize,
    /// Kernel size of the convolution.
    pub taps: usize,
    /// Epsilon of the output norm.
    pub epsilon: f32,
    /// Format of the decay rates.
    pub decay: Decay,
    /// Whether the convolution has a bias.
    pub conv_bias: bool,
    /// Whether the input and output projections have biases.
    pub bias: bool,
    /// Range of the step sizes.
    pub steps: [f32; 2],
}

/// The gated delta net of Qwen 3 Next with the parameters of transformers: `in_proj_qkvz`, `in_proj_ba`,
/// `conv1d`, `dt_bias`, `norm`, `out_proj` and the decay.
///
/// Transformers orders the rows of `in_proj_qkvz` by key head: its query, key, values and gates. llama.cpp splits the matrix into
/// `in_proj_qkv` (all queries, all keys, all values) and `in_proj_z` (all gates).
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct GatedDeltaNet {
    /// Number of query and key heads.
    pub key_heads: usize,
    /// Number of value heads, a multiple of `key_heads`.
    pub value_heads: usize,
    /// Number of elements of a query head and of a key head.
    pub key: usize,
    /// Number of elements of a value head.
    pub value: usize,
    /// Kernel size of the convolution.
    pub taps: usize,
    /// Epsilon of the output norm.
    pub epsilon: f32,
    /// Format of the decay rates.
    pub decay: Decay,
    /// Whether to read `in_proj_qkv` and `in_proj_z` instead of `in_proj_qkvz`.
    pub separate_gate: bool,
}

/// Causal depthwise convolution of `[batch, channels, positions]` with weights `[channels, 1, taps]`. The
/// positions before the first are zeros, or the last positions of the previous run if there is a state.
#[track_caller]
pub fn causal_conv<'g>(
    x: Tensor<'g>,
    weight: Tensor<'g>,
    bias: Option<Tensor<'g>>,
    past: Option<State<'g>>,
) -> Tensor<'g> {
    let reach = place(weight.last_extent()) - 1;
    let window = match past {
        Some(past) => {
            let window = x.graph().concat([past.read(), x], -1, Default::default());
            past.write(window.narrow(-1, -reach..));
            window
        }
        None => x.pad([0, 0, 0, 0, reach, 0], ops::Pad::new()),
    };
    depthwise(window, weight, bias)
}

/// Causal depthwise convolution of a block `[batch, positions, channels]`. The state has the last positions of the block before,
/// and the shape `[batch, taps - 1, channels]`.
#[track_caller]
pub fn causal_conv_block<'g>(
    x: Tensor<'g>,
    weight: Tensor<'g>,
    bias: Option<Tensor<'g>>,
    past: State<'g>,
    block: SequenceBlock<'g>,
) -> Tensor<'g> {
    let graph = x.graph();
    let reach = place(weight.last_extent()) - 1;
    let window = graph.concat([block.read(past), x], 1, Default::default());
    past.write(match block.count {
        Some(count) => {
            let last: Vec<i32> = (0..reach).collect();
            let last = graph.ints([last.len()], &last) + count;
            window.gather(last, ops::Gather::new().axis(1))
        }
        None => window.narrow(1, -reach..),
    });
    depthwise(window.swap(1, 2), weight, bias).swap(1, 2)
}

#[track_caller]
fn depthwise<'g>(window: Tensor<'g>, weight: Tensor<'g>, bias: Option<Tensor<'g>>) -> Tensor<'g> {
    let options = ops::Conv::new().groups(weight.extent(0)).pad_type("valid");
    match bias {
        Some(bias) => window.conv(weight, options.bias(bias)),
        None => window.conv(weight, options),
    }
}

/// A linear layer with or without a bias.
fn linear(outputs: usize, bias: bool) -> Linear {
    let layer = Linear::new(outputs);
    if bias { layer } else { layer.without_bias() }
}

/// The convolution of a mixer over `[batch, positions, channels]`.
#[track_caller]
fn mixer_conv<'g>(
    name: &str,
    x: Tensor<'g>,
    taps: usize,
    has_bias: bool,
    cache: Option<MixerCache<'g>>,
) -> Tensor<'g> {
    let (graph, channels) = (x.graph(), x.last_extent());
    let taps = graph.param(&below(name, "conv1d.weight"), [channels, 1, taps]);
    let bias = has_bias.then(|| graph.param(&below(name, "conv1d.bias"), [channels]));
    let mixed = match cache {
        Some(cache) => causal_conv_block(x, taps, bias, cache.window, cache.block),
        None => causal_conv(x.swap(1, 2), taps, bias, None).swap(1, 2),
    };
    mixed.silu()
}

impl Mamba {
    /// Returns a mixer with these sizes and a convolution over 4 positions.
    pub fn new(inner: usize, state: usize, rank: usize) -> Mamba {
        let decay = Decay::default();
        Mamba { inner, state, rank, taps: 4, decay, conv_bias: true, bias: false }
    }

    /// Sets whether the convolution, and the input and output projections, have biases.
    pub fn biases(mut self, conv: bool, projections: bool) -> Mamba {
        (self.conv_bias, self.bias) = (conv, projections);
        self
    }

    /// Sets the kernel size of the convolution.
    pub fn taps(mut self, taps: usize) -> Mamba {
        self.taps = taps;
        self
    }

    /// Sets the format of the decay rates.
    pub fn decay(mut self, decay: Decay) -> Mamba {
        self.decay = decay;
        self
    }

    /// Returns a cache with the states `NAME.window` and `NAME.memory`.
    #[track_caller]
    pub fn cache<'g>(&self, graph: &'g Graph, name: &str, batch: usize) -> MixerCache<'g> {
        self.shapes(batch).states(graph, name)
    }

    /// Returns the shapes of the states.
    pub fn shapes(&self, batch: usize) -> MixerShapes {
        MixerShapes::new(batch, self.taps, self.inner, &[batch, self.inner, self.state])
    }

    /// Applies the mixer to `[batch, positions, width]`, continuing from the cache.
    #[track_caller]
    pub fn apply<'g>(
        &self,
        name: &str,
        x: Tensor<'g>,
        cache: Option<MixerCache<'g>>,
    ) -> Tensor<'g> {
        let graph = x.graph();
        let (batch, width) = (x.extent(0), x.extent(2));
        let [inner, state, rank] = [self.inner, self.state, self.rank].map(place);
        let part = |part: &str| below(name, part);
        let both = linear(product(&[2, self.inner]), self.bias).apply(&part("in_proj"), x);
        let (x, gate) = (both.narrow(-1, ..inner), both.narrow(-1, inner..));
        let x = mixer_conv(name, x, self.taps, self.conv_bias, cache);
        let mixed = Linear::new(self.rank.saturating_add(product(&[2, self.state])))
            .without_bias()
            .apply(&part("x_proj"), x);
        let delta = Linear::new(self.inner).apply(&part("dt_proj"), mixed.narrow(-1, ..rank));
        let b = mixed.narrow(-1, rank..rank.saturating_add(state));
        let c = mixed.narrow(-1, rank.saturating_add(state)..);
        let rates = self.decay.param(graph, name, &[self.inner, self.state]);
        let start = match cache {
            Some(cache) => cache.start(&[batch, self.inner, self.state]),
            None => zeros(graph, &[batch, self.inner, self.state]),
        };
        let delta = delta.softplus();
        let delta = cache.map_or(delta, |cache| cache.block.valid_steps(delta));
        let (y, last) = selective_scan(x, delta, rates, b, c, start);
        if let Some(cache) = cache {
            cache.keep(last);
        }
        let y = (y + x * graph.param(&part("D"), [self.inner])) * gate.silu();
        linear(width, self.bias).apply(&part("out_proj"), y)
    }
}

impl Mamba2 {
    /// Returns a mixer with one group and a convolution over 4 positions.
    pub fn new(heads: usize, head: usize, state: usize) -> Mamba2 {
        Mamba2 {
            heads,
            head,
            state,
            groups: 1,
            taps: 4,
            epsilon: 1e-5,
            decay: Decay::default(),
            conv_bias: true,
            bias: false,
            steps: [0.0, f32::INFINITY],
        }
    }

    /// Sets the number of groups, a divisor of the number of heads.
    pub fn groups(mut self, groups: usize) -> Mamba2 {
        self.groups = groups;
        self
    }

    /// Sets the kernel size of the convolution.
    pub fn taps(mut self, taps: usize) -> Mamba2 {
        self.taps = taps;
        self
    }

    /// Sets the epsilon of the output norm.
    pub fn epsilon(mut self, epsilon: f32) -> Mamba2 {
        self.epsilon = epsilon;
        self
    }

    /// Sets the format of the decay rates.
    pub fn decay(mut self, decay: Decay) -> Mamba2 {
        self.decay = decay;
        self
    }

    /// Sets whether the convolution, and the input and output projections, have biases.
    pub fn biases(mut self, conv: bool, projections: bool) -> Mamba2 {
        (self.conv_bias, self.bias) = (conv, projections);
        self
    }

    /// Sets the range of the step sizes.
    pub fn steps(mut self, least: f32, most: f32) -> Mamba2 {
        self.steps = [least, most];
        self
    }

    fn inner(&self) -> usize {
        product(&[self.heads, self.head])
    }

    /// Number of channels of the convolution.
    fn channels(&self) -> usize {
        self.inner().saturating_add(product(&[2, self.groups, self.state]))
    }

    /// Returns a cache with the states `NAME.window` and `NAME.memory`.
    #[track_caller]
    pub fn cache<'g>(&self, graph: &'g Graph, name: &str, batch: usize) -> MixerCache<'g> {
        self.shapes(batch).states(graph, name)
    }

    /// Returns the shapes of the states.
    pub fn shapes(&self, batch: usize) -> MixerShapes {
        let memory = [batch, self.heads, self.head, self.state];
        MixerShapes::new(batch, self.taps, self.channels(), &memory)
    }

    /// Applies the mixer to `[batch, positions, width]`, continuing from the cache.
    #[track_caller]
    pub fn apply<'g>(
        &self,
        name: &str,
        x: Tensor<'g>,
        cache: Option<MixerCache<'g>>,
    ) -> Tensor<'g> {
        let graph = x.graph();
        let (batch, length, width) = (x.extent(0), x.extent(1), x.extent(2));
        let Mamba2 { heads, head, state, .. } = *self;
        let groups = self.groups.max(1);
        let part = |part: &str| below(name, part);
        let (inner, channels) = (self.inner(), self.channels());
        let outputs = inner.saturating_add(channels).saturating_add(heads);
        let all = linear(outputs, self.bias).apply(&part("in_proj"), x);
        let (first, second) = (place(inner), place(inner.saturating_add(channels)));
        let (gate, step) = (all.narrow(-1, ..first), all.narrow(-1, second..));
        let mixed = all.narrow(-1, first..second);
        let mixed = mixer_conv(name, mixed, self.taps, self.conv_bias, cache);
        let shared = place(product(&[groups, state]));
        let x = mixed.narrow(-1, ..first).view([batch, length, heads, head]);
        // Heads of a group have the same projections.
        let of_heads = |x: Tensor<'g>| {
            let x = x.view([batch, length, groups, 1, state]);
            let x = x.tile([1, 1, 1, place(heads / groups), 1]);
            x.view([batch, length, heads, state])
        };
        let middle = first.saturating_add(shared);
        let b = of_heads(mixed.narrow(-1, first..middle));
        let c = of_heads(mixed.narrow(-1, middle..));
        let step = (step + graph.param(&part("dt_bias"), [heads])).softplus();
        let [least, most] = self.steps;
        let step = if least > 0.0 { step.maximum(least) } else { step };
        let step = if most.is_finite() { step.minimum(most) } else { step };
        let step = cache.map_or(step, |cache| cache.block.valid_steps(step));
        let rates = self.decay.param(graph, name, &[heads]);
        let start = match cache {
            Some(cache) => cache.start(&[batch, heads, head, state]),
            None => zeros(graph, &[batch, heads, head, state]),
        };
        let (y, last) = state_space_dual(x, step, rates, b, c, start);
        if let Some(cache) = cache {
            cache.keep(last);
        }
        let y = y + x * graph.param(&part("D"), [heads]).view([heads, 1]);
        let y = y.view([batch, length, inner]) * gate.silu();
        let grouped = y.view([batch, length, groups, inner / groups]);
        let normal = RmsNorm::new(self.epsilon).plain(grouped).view([batch, length, inner]);
        let normal = normal * graph.param(&part("norm.weight"), [inner]);
        linear(width, self.bias).apply(&part("out_proj"), normal)
    }
}

impl GatedDeltaNet {
    /// Returns a net with these numbers of heads and elements, and a convolution over 4 positions.
    pub fn new(key_heads: usize, value_heads: usize, key: usize, value: usize) -> GatedDeltaNet {
        let (taps, epsilon, decay) = (4, 1e-6, Decay::default());
        let separate_gate = false;
        GatedDeltaNet { key_heads, value_heads, key, value, taps, epsilon, decay, separate_gate }
    }

    /// Sets whether to read `in_proj_qkv` and `in_proj_z` instead of `in_proj_qkvz`.
    pub fn separate_gate(mut self, is_separate: bool) -> GatedDeltaNet {
        self.separate_gate = is_separate;
        self
    }

    /// Sets the kernel size of the convolution.
    pub fn taps(mut self, taps: usize) -> GatedDeltaNet {
        self.taps = taps;
        self
    }

    /// Sets the epsilon of the output norm.
    pub fn epsilon(mut self, epsilon: f32) -> GatedDeltaNet {
        self.epsilon = epsilon;
        self
    }

    /// Sets the format of the decay rates.
    pub fn decay(mut self, decay: Decay) -> GatedDeltaNet {
        self.decay = decay;
        self
    }

    fn channels(&self) -> usize {
        let keys = product(&[2, self.key_heads, self.key]);
        keys.saturating_add(product(&[self.value_heads, self.value]))
    }

    /// Returns a cache with the states `NAME.window` and `NAME.memory`.
    #[track_caller]
    pub fn cache<'g>(&self, graph: &'g Graph, name: &str, batch: usize) -> MixerCache<'g> {
        self.shapes(batch).states(graph, name)
    }

    /// Returns the shapes of the states.
    pub fn shapes(&self, batch: usize) -> MixerShapes {
        let memory = [batch, self.value_heads, self.key, self.value];
        MixerShapes::new(batch, self.taps, self.channels(), &memory)
    }

    /// Applies the net to `[batch, positions, width]`, continuing from the cache.
    #[track_caller]
    pub fn apply<'g>(
        &self,
        name: &str,
        x: Tensor<'g>,
        cache: Option<MixerCache<'g>>,
    ) -> Tensor<'g> {
        let graph = x.graph();
        let (batch, length, width) = (x.extent(0), x.extent(1), x.extent(2));
        let part = |part: &str| below(name, part);
        let shared = self.value_heads / self.key_heads.max(1);
        let values = product(&[shared, self.value]);
        let project = |name: &str, each: usize| {
            let y =
                Linear::new(product(&[self.key_heads, each])).without_bias().apply(&part(name), x);
            y.view([batch, length, self.key_heads, each])
        };
        let rates = project("in_proj_ba", product(&[2, shared]));
        let cut = |x: Tensor<'g>, from: usize, count: usize| {
            let part = x.narrow(-1, place(from)..place(from.saturating_add(count)));
            part.view([place(batch), place(length), -1])
        };
        let (beta, step) = (cut(rates, 0, shared), cut(rates, shared, shared));
        let (channels, gate) = match self.separate_gate {
            true => {
                let whole = |name: &str, outputs: usize| {
                    Linear::new(outputs).without_bias().apply(&part(name), x)
                };
                let gates = product(&[self.value_heads, self.value]);
                (whole("in_proj_qkv", self.channels()), whole("in_proj_z", gates))
            }
            false => {
                let joint = project("in_proj_qkvz", product(&[2, self.key.saturating_add(values)]));
                let [query, key] = [0, 1].map(|at| cut(joint, product(&[at, self.key]), self.key));
                let value = cut(joint, product(&[2, self.key]), values);
                let gate = cut(joint, product(&[2, self.key]).saturating_add(values), values);
                (graph.concat([query, key, value], -1, Default::default()), gate)
            }
        };
        let taps = graph.param(&part("conv1d.weight"), [self.channels(), 1, self.taps]);
        let channels = match cache {
            Some(cache) => causal_conv_block(channels, taps, None, cache.window, cache.block),
            None => causal_conv(channels.swap(1, 2), taps, None, None).swap(1, 2),
        };
        let channels = channels.silu();
        let keys = product(&[self.key_heads, self.key]);
        let heads = |from: usize| {
            let x = cut(channels, from, keys).view([batch, length, self.key_heads, 1, self.key]);
            let x = x.tile([1, 1, 1, place(shared), 1]);
            let x = x.view([batch, length, self.value_heads, self.key]);
            x * (x.square().sum([-1], true) + 1e-6).rsqrt(ops::Rsqrt::new().epsilon(1e-12))
        };
        let (query, key) = (heads(0) / (self.key as f32).sqrt(), heads(keys));
        let shape = [batch, length, self.value_heads, self.value];
        let value = cut(channels, product(&[2, keys]), product(&[self.value_heads, self.value]))
            .view(shape);
        let step = (step + graph.param(&part("dt_bias"), [self.value_heads])).softplus();
        let decay = step * self.decay.param(graph, name, &[self.value_heads]);
        let start = match cache {
            Some(cache) => cache.start(&[batch, self.value_heads, self.key, self.value]),
            None => zeros(graph, &[batch, self.value_heads, self.key, self.value]),
        };
        let valid = |x: Tensor<'g>| cache.map_or(x, |cache| cache.block.valid_steps(x));
        let (decay, beta) = (valid(decay), valid(beta.sigmoid()));
        let (y, last) = gated_delta(query, key, value, decay, beta, start);
        if let Some(cache) = cache {
            cache.keep(last);
        }
        let y = super::RmsNorm::new(self.epsilon).apply(&part("norm"), y);
        let y = (y * gate.view(shape).silu()).view([batch, length, product(&shape[2..])]);
        Linear::new(width).without_bias().apply(&part("out_proj"), y)
    }
}
