//! Parts of layers that mix positions: attention, short convolutions, and the recurrences of Mamba and of gated delta nets.

use coremill_graph::nn::{
    Decay, GatedDeltaNet, Linear, Mamba, Mamba2, MixerCache, MixerShapes, SequenceBlock,
    causal_conv_block,
};
use coremill_graph::{Params, State, Tensor};
use serde_json::Value;

use crate::error::{Result, fail};
use crate::states::Part;

/// The part of a layer that mixes positions.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Mixer {
    /// Attention to earlier positions, whose keys and values are in a cache.
    Attention,
    /// A gated convolution over the last positions.
    ShortConv(ShortConv),
    /// Mamba's recurrence.
    Mamba(Mamba),
    /// Mamba 2's recurrence.
    Mamba2(Mamba2),
    /// The gated delta rule of Qwen 3 Next.
    GatedDelta(GatedDeltaNet),
}

/// Settings of mixers that do not follow from the shapes of tensors.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct MixerSettings {
    /// Groups of heads that share the projections to and from the state.
    pub(crate) groups: Option<usize>,
    /// Range of step sizes.
    pub(crate) steps: Option<[f32; 2]>,
}

impl MixerSettings {
    pub(crate) fn of_json(config: &Value) -> MixerSettings {
        let steps = &config["time_step_limit"];
        // JSON has no number for infinity.
        let bound = |index: usize, otherwise: f32| {
            steps[index].as_f64().map_or(otherwise, |bound| bound as f32)
        };
        let groups = config["n_groups"].as_u64().or(config["linear_num_key_heads"].as_u64());
        MixerSettings {
            groups: groups.and_then(|groups| usize::try_from(groups).ok()),
            steps: steps.is_array().then(|| [bound(0, 0.0), bound(1, f32::INFINITY)]),
        }
    }
}

/// A gated convolution over the last positions, as in LFM2.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct ShortConv {
    /// Kernel size of the convolution.
    pub taps: usize,
    /// Whether the convolution and the projections have biases.
    pub bias: bool,
}

impl ShortConv {
    /// Applies the convolution to `[1, positions, width]`, with the last inputs of the block before in a state.
    fn apply<'g>(
        self,
        name: &str,
        window: State<'g>,
        x: Tensor<'g>,
        block: SequenceBlock<'g>,
    ) -> Tensor<'g> {
        let (graph, width) = (x.graph(), x.last_extent());
        let part = |part: &str| format!("{name}.{part}");
        let linear = |outputs: usize| match self.bias {
            true => Linear::new(outputs),
            false => Linear::new(outputs).without_bias(),
        };
        let all = linear(width.saturating_mul(3)).apply(&part("in_proj"), x).swap(1, 2);
        let first = i32::try_from(width).unwrap_or(i32::MAX);
        let second = first.saturating_mul(2);
        let [before, after, x] =
            [all.narrow(1, ..first), all.narrow(1, first..second), all.narrow(1, second..)];
        let taps = graph.param(&part("conv.weight"), [width, 1, self.taps]);
        let bias = self.bias.then(|| graph.param(&part("conv.bias"), [width]));
        let mixed = causal_conv_block((before * x).swap(1, 2), taps, bias, window, block);
        linear(width).apply(&part("out_proj"), (after * mixed.swap(1, 2)).swap(1, 2))
    }
}

impl Mixer {
    /// The mixer whose tensors have a prefix.
    pub(crate) fn of_tensors(
        params: &Params,
        prefix: &str,
        epsilon: f32,
        settings: &MixerSettings,
    ) -> Result<Mixer> {
        let has = |part: &str| params.get(&format!("{prefix}{part}")).is_some();
        let shape = |part: &str| -> Result<Vec<usize>> {
            let name = format!("{prefix}{part}");
            let Some(param) = params.get(&name) else {
                fail!(Format, "no tensor `{name}` was found")
            };
            Ok(param.shape().iter().map(|&extent| extent as usize).collect())
        };
        let taps_of = |part: &str| -> Result<[usize; 2]> {
            match shape(part)?[..] {
                [channels, 1, taps] if taps > 1 => Ok([channels, taps]),
                ref found => fail!(
                    Format,
                    "`{prefix}{part}` must have the shape [channels, 1, taps], got {found:?}"
                ),
            }
        };
        if has("conv.in_proj.weight") {
            let [_, taps] = taps_of("conv.conv.weight")?;
            return Ok(Mixer::ShortConv(ShortConv { taps, bias: has("conv.conv.bias") }));
        }
        let separate_gate = has("mixer.in_proj_qkv.weight");
        let is_delta = separate_gate || has("mixer.in_proj_qkvz.weight");
        if !is_delta && !has("mixer.in_proj.weight") {
            return Ok(Mixer::Attention);
        }
        let [channels, taps] = taps_of("mixer.conv1d.weight")?;
        let decay = if has("mixer.A") { Decay::Rate } else { Decay::Logarithm };
        let rates = shape(if has("mixer.A") { "mixer.A" } else { "mixer.A_log" })?;
        let fits =
            |whole: usize, parts: usize| parts > 0 && whole > 0 && whole.is_multiple_of(parts);
        let biases = (has("mixer.conv1d.bias"), has("mixer.in_proj.bias"));
        let columns = |part: &str| shape(part).map(|shape| shape.last().copied().unwrap_or(0));
        match rates[..] {
            [heads] if is_delta => {
                let groups = settings.groups.unwrap_or(heads);
                let value = columns("mixer.norm.weight")?;
                let keys = channels.saturating_sub(heads.saturating_mul(value)) / 2;
                if !fits(heads, groups) || !fits(keys, groups) || value == 0 {
                    fail!(
                        Format,
                        "cannot split {channels} channels into {groups} key heads and {heads} value heads of size {value}"
                    );
                }
                let net = GatedDeltaNet::new(groups, heads, keys / groups, value);
                let net = net.separate_gate(separate_gate);
                Ok(Mixer::GatedDelta(net.taps(taps).epsilon(epsilon).decay(decay)))
            }
            [inner, state] => {
                let rank = columns("mixer.dt_proj.weight")?;
                let mixer = Mamba::new(inner, state, rank).taps(taps).decay(decay);
                Ok(Mixer::Mamba(mixer.biases(biases.0, biases.1)))
            }
            [heads] => {
                let inner = columns("mixer.out_proj.weight")?;
                let groups = settings.groups.unwrap_or(1);
                let each = channels.saturating_sub(inner) / 2;
                if !fits(inner, heads) || !fits(heads, groups) || !fits(each, groups) {
                    fail!(
                        Format,
                        "cannot split {inner} and {each} channels into {heads} heads and {groups} groups"
                    );
                }
                let mixer = Mamba2::new(heads, inner / heads, each / groups).groups(groups);
                let mixer = mixer.taps(taps).epsilon(epsilon).decay(decay);
                let [least, most] = settings.steps.unwrap_or([0.0, f32::INFINITY]);
                Ok(Mixer::Mamba2(mixer.biases(biases.0, biases.1).steps(least, most)))
            }
            _ => fail!(Format, "decay rates have the shape {rates:?}"),
        }
    }

    /// Whether layers have no feed-forward part.
    pub(crate) fn is_whole_layer(&self) -> bool {
        matches!(self, Mixer::Mamba(_) | Mixer::Mamba2(_))
    }

    /// Elements of the states for a layer of a width.
    pub(crate) fn state_elements(&self, width: usize) -> u64 {
        let product = |(_, shape): Part| {
            shape.iter().fold(1u64, |all, &extent| all.saturating_mul(extent as u64))
        };
        self.state_parts(width).into_iter().map(product).fold(0, u64::saturating_add)
    }

    /// States of a layer of a width, except for keys and values.
    pub(crate) fn state_parts(&self, width: usize) -> Vec<Part> {
        let parts =
            |shapes: MixerShapes| vec![("window", shapes.window), ("memory", shapes.memory)];
        match self {
            Mixer::Attention => Vec::new(),
            Mixer::ShortConv(conv) => {
                vec![("window", vec![1, conv.taps.saturating_sub(1), width])]
            }
            Mixer::Mamba(mamba) => parts(mamba.shapes(1)),
            Mixer::Mamba2(mamba) => parts(mamba.shapes(1)),
            Mixer::GatedDelta(net) => parts(net.shapes(1)),
        }
    }

    /// Applies a mixer other than attention to `[1, positions, width]`. `layer` is the prefix of the layer's tensors, and
    /// `states` has a state for each of [`Mixer::state_parts`].
    pub(crate) fn apply<'g>(
        &self,
        layer: &str,
        states: &[State<'g>],
        x: Tensor<'g>,
        block: SequenceBlock<'g>,
    ) -> Tensor<'g> {
        let name = format!("{layer}mixer");
        let cache = || MixerCache::of_states(states[0], states[1]).of_block(block);
        match self {
            Mixer::Attention => x,
            Mixer::ShortConv(conv) => conv.apply(&format!("{layer}conv"), states[0], x, block),
            Mixer::Mamba(mamba) => mamba.apply(&name, x, Some(cache())),
            Mixer::Mamba2(mamba) => mamba.apply(&name, x, Some(cache())),
            Mixer::GatedDelta(net) => net.apply(&name, x, Some(cache())),
        }
    }
}
