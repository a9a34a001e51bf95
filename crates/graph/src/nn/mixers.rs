//! Recurrent layers that mix positions, with their recurrent values in states.

use super::{Linear, below, gated_delta, place, product, selective_scan, zeros};
use crate::graph::Graph;
use crate::ops;
use crate::state::State;
use crate::tensor::Tensor;

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
#[derive(Clone, Copy, Debug)]
pub struct MixerCache<'g> {
    window: State<'g>,
    memory: State<'g>,
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
}

/// The gated delta net of Qwen 3 Next with the parameters of transformers: `in_proj_qkvz`, `in_proj_ba`,
/// `conv1d`, `dt_bias`, `norm`, `out_proj` and the decay.
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
    let graph = x.graph();
    let (channels, reach) = (weight.extent(0), place(weight.last_extent()) - 1);
    let window = match past {
        Some(past) => {
            let window = graph.concat([past.read(), x], -1, Default::default());
            past.write(window.narrow(-1, -reach..));
            window
        }
        None => x.pad([0, 0, 0, 0, reach, 0], ops::Pad::new()),
    };
    let options = ops::Conv::new().groups(channels).pad_type("valid");
    match bias {
        Some(bias) => window.conv(weight, options.bias(bias)),
        None => window.conv(weight, options),
    }
}

impl Mamba {
    /// Returns a mixer with these sizes and a convolution over 4 positions.
    pub fn new(inner: usize, state: usize, rank: usize) -> Mamba {
        Mamba { inner, state, rank, taps: 4, decay: Decay::default() }
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
        MixerCache {
            window: graph
                .state(&below(name, "window"), [batch, self.inner, self.taps.saturating_sub(1)]),
            memory: graph.state(&below(name, "memory"), [batch, self.inner, self.state]),
        }
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
        let both = Linear::new(product(&[2, self.inner])).without_bias().apply(&part("in_proj"), x);
        let (x, gate) = (both.narrow(-1, ..inner), both.narrow(-1, inner..));
        let taps = graph.param(&part("conv1d.weight"), [self.inner, 1, self.taps]);
        let bias = graph.param(&part("conv1d.bias"), [self.inner]);
        let window = cache.map(|cache| cache.window);
        let x = causal_conv(x.swap(1, 2), taps, Some(bias), window).silu().swap(1, 2);
        let mixed = Linear::new(self.rank.saturating_add(product(&[2, self.state])))
            .without_bias()
            .apply(&part("x_proj"), x);
        let delta = Linear::new(self.inner).apply(&part("dt_proj"), mixed.narrow(-1, ..rank));
        let b = mixed.narrow(-1, rank..rank.saturating_add(state));
        let c = mixed.narrow(-1, rank.saturating_add(state)..);
        let rates = self.decay.param(graph, name, &[self.inner, self.state]);
        let start = match cache {
            Some(cache) => cache.memory.read(),
            None => zeros(graph, &[batch, self.inner, self.state]),
        };
        let (y, last) = selective_scan(x, delta.softplus(), rates, b, c, start);
        if let Some(cache) = cache {
            cache.memory.write(last);
        }
        let y = (y + x * graph.param(&part("D"), [self.inner])) * gate.silu();
        Linear::new(width).without_bias().apply(&part("out_proj"), y)
    }
}

impl GatedDeltaNet {
    /// Returns a net with these numbers of heads and elements, and a convolution over 4 positions.
    pub fn new(key_heads: usize, value_heads: usize, key: usize, value: usize) -> GatedDeltaNet {
        let (taps, epsilon, decay) = (4, 1e-6, Decay::default());
        GatedDeltaNet { key_heads, value_heads, key, value, taps, epsilon, decay }
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
        let memory = [batch, self.value_heads, self.key, self.value];
        MixerCache {
            window: graph.state(
                &below(name, "window"),
                [batch, self.channels(), self.taps.saturating_sub(1)],
            ),
            memory: graph.state(&below(name, "memory"), memory),
        }
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
        // Each key head is adjacent to its value heads.
        let joint = project("in_proj_qkvz", product(&[2, self.key.saturating_add(values)]));
        let rates = project("in_proj_ba", product(&[2, shared]));
        let cut = |x: Tensor<'g>, from: usize, count: usize| {
            let part = x.narrow(-1, place(from)..place(from.saturating_add(count)));
            part.view([place(batch), place(length), -1])
        };
        let [query, key] = [0, 1].map(|at| cut(joint, product(&[at, self.key]), self.key));
        let value = cut(joint, product(&[2, self.key]), values);
        let gate = cut(joint, product(&[2, self.key]).saturating_add(values), values);
        let (beta, step) = (cut(rates, 0, shared), cut(rates, shared, shared));

        let channels = graph.concat([query, key, value], -1, Default::default()).swap(1, 2);
        let taps = graph.param(&part("conv1d.weight"), [self.channels(), 1, self.taps]);
        let window = cache.map(|cache| cache.window);
        let channels = causal_conv(channels, taps, None, window).silu().swap(1, 2);
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
            Some(cache) => cache.memory.read(),
            None => zeros(graph, &[batch, self.value_heads, self.key, self.value]),
        };
        let (y, last) = gated_delta(query, key, value, decay, beta.sigmoid(), start);
        if let Some(cache) = cache {
            cache.memory.write(last);
        }
        let y = super::RmsNorm::new(self.epsilon).apply(&part("norm"), y);
        let y = (y * gate.view(shape).silu()).view([batch, length, product(&shape[2..])]);
        Linear::new(width).without_bias().apply(&part("out_proj"), y)
    }
}
