use std::panic::Location;

use super::{below, product};
use crate::ops;
use crate::tensor::Tensor;

/// Normalizes the last axis to mean 0 and variance 1.
#[derive(Clone, Copy, Debug)]
pub struct LayerNorm {
    epsilon: f32,
    bias: bool,
}

/// Divides the last axis by its root mean square.
#[derive(Clone, Copy, Debug)]
pub struct RmsNorm {
    epsilon: f32,
    one_more: bool,
    bounded: bool,
}

/// Normalizes groups of channels of `[batch, channels, …]`.
#[derive(Clone, Copy, Debug)]
pub struct GroupNorm {
    groups: usize,
    epsilon: f32,
}

/// Normalizes channels by statistics from training.
#[derive(Clone, Copy, Debug)]
pub struct BatchNorm {
    epsilon: f32,
}

/// Normalizes each channel of each item of `[batch, channels, …]`.
#[derive(Clone, Copy, Debug)]
pub struct InstanceNorm {
    epsilon: f32,
    affine: bool,
}

/// Normalizes the channels at each position of `[batch, channels, height, width]`.
#[derive(Clone, Copy, Debug)]
pub struct LayerNorm2d {
    epsilon: f32,
}

impl LayerNorm {
    /// Returns a norm; `epsilon` is added to the variance.
    pub fn new(epsilon: f32) -> LayerNorm {
        LayerNorm { epsilon, bias: true }
    }

    /// Omits the bias.
    pub fn without_bias(mut self) -> LayerNorm {
        self.bias = false;
        self
    }

    /// Applies the norm, with `weight` and `bias`.
    #[track_caller]
    pub fn apply<'g>(self, name: &str, x: Tensor<'g>) -> Tensor<'g> {
        let graph = x.graph();
        let width = x.last_extent();
        let options = ops::LayerNorm::new()
            .axes([-1])
            .gamma(graph.param(&below(name, "weight"), [width]))
            .epsilon(self.epsilon);
        x.layer_norm(match self.bias {
            true => options.beta(graph.param(&below(name, "bias"), [width])),
            false => options,
        })
    }

    /// Applies the norm without parameters.
    #[track_caller]
    pub fn plain(self, x: Tensor<'_>) -> Tensor<'_> {
        x.layer_norm(ops::LayerNorm::new().axes([-1]).epsilon(self.epsilon))
    }
}

impl RmsNorm {
    /// Returns a norm; `epsilon` is added to the mean square.
    pub fn new(epsilon: f32) -> RmsNorm {
        RmsNorm { epsilon, one_more: false, bounded: false }
    }

    /// Scales by `1 + weight` rather than by `weight`, as Gemma does.
    pub fn one_more(mut self) -> RmsNorm {
        self.one_more = true;
        self
    }

    /// Divides by the largest magnitude first, so that no square overflows in `fp16`.
    pub fn bounded(mut self) -> RmsNorm {
        self.bounded = true;
        self
    }

    /// Applies the norm, with `weight`.
    #[track_caller]
    pub fn apply<'g>(self, name: &str, x: Tensor<'g>) -> Tensor<'g> {
        let weight = x.graph().param(&below(name, "weight"), [x.last_extent()]);
        let weight = if self.one_more { weight + 1.0 } else { weight };
        self.plain(x) * weight
    }

    /// Applies the norm without parameters.
    #[track_caller]
    pub fn plain(self, x: Tensor<'_>) -> Tensor<'_> {
        if self.bounded && self.epsilon > 0.0 {
            // x / √(mean x² + ε) with x = s y and s ≥ √ε: every square is at most 1.
            let root = self.epsilon.sqrt();
            let scale = x.abs().max([-1], true).maximum(root);
            let (y, least) = (x / scale, root / scale);
            let mean = y.square().mean([-1], true) + least.square();
            return y * mean.rsqrt(ops::Rsqrt::new().epsilon(1e-12));
        }
        let mean = x.square().mean([-1], true) + self.epsilon;
        x * mean.rsqrt(ops::Rsqrt::new().epsilon(1e-12))
    }
}

impl GroupNorm {
    /// Returns a norm with this number of groups; `epsilon` is added to the variance.
    pub fn new(groups: usize, epsilon: f32) -> GroupNorm {
        GroupNorm { groups, epsilon }
    }

    /// Applies the norm, with `weight` and `bias` for each channel.
    #[track_caller]
    pub fn apply<'g>(self, name: &str, x: Tensor<'g>) -> Tensor<'g> {
        let shape = x.shape();
        let channels = x.extent(1);
        let rest = product(shape.get(2..).unwrap_or_default());
        let groups = self.groups;
        if groups == 0 || !channels.is_multiple_of(groups) {
            let message = format!("{channels} channels cannot be divided into {groups} groups");
            return x.graph().mistake(message, None, Location::caller());
        }
        let grouped = x.view([x.extent(0), groups, product(&[channels / groups, rest])]);
        let normal = grouped.layer_norm(ops::LayerNorm::new().axes([-1]).epsilon(self.epsilon));
        scaled(name, normal.view(shape))
    }
}

impl BatchNorm {
    /// Returns a norm; `epsilon` is added to the variance.
    pub fn new(epsilon: f32) -> BatchNorm {
        BatchNorm { epsilon }
    }

    /// Applies the norm, with `running_mean`, `running_var`, `weight` and `bias`.
    #[track_caller]
    pub fn apply<'g>(self, name: &str, x: Tensor<'g>) -> Tensor<'g> {
        let (graph, channels) = (x.graph(), x.extent(1));
        let param = |part: &str| graph.param(&below(name, part), [channels]);
        let options =
            ops::BatchNorm::new().gamma(param("weight")).beta(param("bias")).epsilon(self.epsilon);
        x.batch_norm(param("running_mean"), param("running_var"), options)
    }
}

impl InstanceNorm {
    /// Returns a norm without parameters, as in torch.
    pub fn new(epsilon: f32) -> InstanceNorm {
        InstanceNorm { epsilon, affine: false }
    }

    /// Adds `weight` and `bias` for each channel.
    pub fn affine(mut self) -> InstanceNorm {
        self.affine = true;
        self
    }

    /// Applies the norm.
    #[track_caller]
    pub fn apply<'g>(self, name: &str, x: Tensor<'g>) -> Tensor<'g> {
        let shape = x.shape();
        if x.is_valid() && shape.len() < 3 {
            let message = format!(
                "an instance norm requires a tensor of `[batch, channels, ...]` of rank 3 or more; found shape {shape:?}"
            );
            return x.graph().mistake(message, None, std::panic::Location::caller());
        }
        let rest = product(shape.get(2..).unwrap_or_default());
        let flat = x.view([x.extent(0), x.extent(1), rest]);
        let normal = flat.layer_norm(ops::LayerNorm::new().axes([-1]).epsilon(self.epsilon));
        let normal = normal.view(shape);
        if self.affine { scaled(name, normal) } else { normal }
    }
}

impl LayerNorm2d {
    /// Returns a norm; `epsilon` is added to the variance.
    pub fn new(epsilon: f32) -> LayerNorm2d {
        LayerNorm2d { epsilon }
    }

    /// Applies the norm, with `weight` and `bias` for each channel.
    #[track_caller]
    pub fn apply<'g>(self, name: &str, x: Tensor<'g>) -> Tensor<'g> {
        let centred = x - x.mean([1], true);
        let variance = centred.square().mean([1], true) + self.epsilon;
        scaled(name, centred * variance.rsqrt(ops::Rsqrt::new().epsilon(1e-12)))
    }
}

/// Adaptive layer norm: `layer_norm(x) · (1 + scale) + shift`, where scale and shift depend on a condition.
#[track_caller]
pub fn adaptive_norm<'g>(
    x: Tensor<'g>,
    scale: Tensor<'g>,
    shift: Tensor<'g>,
    epsilon: f32,
) -> Tensor<'g> {
    let normal = x.layer_norm(ops::LayerNorm::new().axes([-1]).epsilon(epsilon));
    normal * (scale + 1.0) + shift
}

/// Applies `weight` and `bias` to each channel.
#[track_caller]
fn scaled<'g>(name: &str, x: Tensor<'g>) -> Tensor<'g> {
    let channels = x.extent(1);
    let mut shape = vec![1; x.rank()];
    if let Some(place) = shape.get_mut(1) {
        *place = channels;
    }
    let graph = x.graph();
    let param = |part: &str| graph.param(&below(name, part), [channels]).view(shape.clone());
    x * param("weight") + param("bias")
}
