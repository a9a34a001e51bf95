//! Layers, attention, scans, weights in blocks.

use std::collections::{HashMap, HashSet};

use coremill_graph::nn::{self, AttentionOptions};
use coremill_graph::{Error, Scheme, Tensor, ops};
use rlx_ir::op::{AdaNormKind, MaskKind, ReduceOp};
use rlx_ir::quant::QuantScheme;
use rlx_ir::{NodeId, Op};

use crate::arithmetic::activated;
use crate::lower::Site;

pub(crate) fn lower<'g>(site: &Site<'_, 'g>) -> Result<Option<Tensor<'g>>, Error> {
    let graph = site.graph;
    Ok(Some(match &site.node.op {
        Op::MatMul => site.arg(0)?.dot(site.arg(1)?),
        Op::LoraMatMul { scale } => {
            let x = site.arg(0)?;
            x.dot(site.arg(1)?) + x.dot(site.arg(2)?).dot(site.arg(3)?) * *scale
        }
        Op::FusedMatMulBiasAct { activation } => {
            let y = site.arg(0)?.dot(site.arg(1)?) + site.arg(2)?;
            match activation {
                Some(activation) => activated(*activation, y),
                None => y,
            }
        }
        Op::FusedMatMulResidual => site.arg(0)?.dot(site.arg(1)?) + site.arg(2)?,
        Op::GroupedMatMul => {
            let weights = site.arg(1)?.transpose([0, 2, 1]);
            nn::grouped_matmul(site.arg(0)?, weights, site.indices(2)?)
        }
        Op::LayerNorm { axis, eps } => {
            normalized(site.arg(0)?, *axis, *eps) * site.arg(1)? + site.arg(2)?
        }
        Op::RmsNorm { axis, eps } => {
            let y = root_mean(site.arg(0)?, *axis, *eps) * site.arg(1)?;
            if site.args.len() > 2 { y + site.arg(2)? } else { y }
        }
        Op::LayerNorm2d { eps } => {
            let x = site.arg(0)?;
            let centred = x - x.mean([1], true);
            let normal = centred * inverse_root(centred.square().mean([1], true) + *eps);
            normal * channels(site.arg(1)?, x) + channels(site.arg(2)?, x)
        }
        Op::GroupNorm { num_groups, eps } => {
            let x = site.arg(0)?;
            let grouped = grouped(x, *num_groups);
            let normal = normalized(grouped, -1, *eps).view(x.shape());
            normal * channels(site.arg(1)?, x) + channels(site.arg(2)?, x)
        }
        Op::BatchNormInference { eps } => {
            let [x, gamma, beta, mean, variance] = five(site)?;
            (x - mean) * inverse_root(variance + *eps) * gamma + beta
        }
        Op::AdaLayerNorm { norm, eps } => {
            let x = site.arg(0)?;
            let normal = match norm {
                AdaNormKind::LayerNorm => normalized(x, -1, *eps),
                AdaNormKind::RmsNorm => root_mean(x, -1, *eps),
            };
            normal * (site.arg(1)? + 1.0) + site.arg(2)?
        }
        Op::GatedResidual => site.arg(0)? + site.arg(2)? * site.arg(1)?,
        Op::FusedResidualLN { has_bias, eps } => {
            let (x, at) = residual(site, *has_bias)?;
            normalized(x, -1, *eps) * site.arg(at)? + site.arg(at + 1)?
        }
        Op::FusedResidualRmsNorm { has_bias, eps } => {
            let (x, at) = residual(site, *has_bias)?;
            let y = root_mean(x, -1, *eps) * site.arg(at)?;
            if site.args.len() > at + 1 { y + site.arg(at + 1)? } else { y }
        }
        Op::FusedSwiGLU { gate_first, .. } => {
            let x = site.arg(0)?;
            let half = (x.last_extent() / 2) as i32;
            let (first, second) = (x.narrow(-1, ..half), x.narrow(-1, half..));
            let (gate, up) = if *gate_first { (first, second) } else { (second, first) };
            gate.silu() * up
        }
        Op::Attention {
            num_heads,
            v_head_dim: None,
            mask_kind,
            score_scale,
            attn_logit_softcap,
            ..
        } => attention(site, *num_heads, *mask_kind, *score_scale, *attn_logit_softcap)?,
        Op::ResizeNearest2x => nn::resize_nearest(site.arg(0)?, 2.0, 2.0),
        Op::Conv { stride, padding, dilation, groups, .. } => {
            convolved(site, stride, padding, dilation, *groups)?
        }
        Op::Conv3d { stride, padding, dilation, groups } => {
            convolved(site, stride, padding, dilation, *groups)?
        }
        Op::FusedConvBiasAct {
            stride,
            padding,
            dilation,
            groups,
            activation,
            has_residual,
            ..
        } => {
            let mut y = convolved(site, stride, padding, dilation, *groups)?;
            y = y + channels(site.arg(2)?, y);
            if *has_residual {
                y = y + site.arg(3)?;
            }
            match activation {
                Some(activation) => activated(*activation, y),
                None => y,
            }
        }
        Op::ConvTranspose2d { stride, padding, dilation, output_padding, groups, .. } => {
            transposed(site, stride, padding, dilation, output_padding, *groups)?
        }
        Op::ConvTranspose3d { stride, padding, dilation, output_padding, groups } => {
            transposed(site, stride, padding, dilation, output_padding, *groups)?
        }
        Op::Pool { kind: ReduceOp::Max, kernel_size, stride, padding } => {
            nn::max_pool(site.arg(0)?, kernel_size, stride, padding)
        }
        Op::Pool { kind: ReduceOp::Mean, kernel_size, stride, padding } => {
            nn::avg_pool(site.arg(0)?, kernel_size, stride, padding, true)
        }
        Op::Pool { kind: ReduceOp::Sum, kernel_size, stride, padding } => {
            let count: usize = kernel_size.iter().product();
            nn::avg_pool(site.arg(0)?, kernel_size, stride, padding, true) * count as f32
        }
        Op::SelectiveScan { state_size } => {
            let [x, delta, a, b, c] = five(site)?;
            let shape = [x.extent(0), x.extent(2), *state_size];
            nn::selective_scan(x, delta, a, b, c, nothing(site, &shape)).0
        }
        Op::Mamba2 { head_dim, state_size } => {
            let [x, delta, a, b, c] = five(site)?;
            let shape = [x.extent(0), x.extent(2), *head_dim, *state_size];
            nn::state_space_dual(x, delta, a, b, c, nothing(site, &shape)).0
        }
        Op::GatedDeltaNet { state_size, carry_state: false, gate_per_channel: false } => {
            let [query, key, value, gate, beta] = five(site)?;
            let query = query / (*state_size as f32).sqrt();
            let shape = [query.extent(0), query.extent(2), *state_size, *state_size];
            nn::gated_delta(query, key, value, gate, beta, nothing(site, &shape)).0
        }
        Op::Fft { inverse, norm, .. } => {
            let x = site.arg(0)?;
            let size = x.last_extent() / 2;
            let (re, im) = (x.narrow(-1, ..size as i32), x.narrow(-1, size as i32..));
            let (re, im) = nn::fft(re, Some(im), *inverse);
            // Ours divides the inverse by the size.
            let scale =
                norm.output_scale(size, *inverse) * if *inverse { size as f64 } else { 1.0 };
            graph.concat([re, im], -1, ops::Concat::new()) * scale as f32
        }
        Op::RngNormal { mean, scale, .. } => {
            let options = ops::RandomNormal::new().mean(*mean).stddev(*scale);
            graph.random_normal(extents(&site.shape), options)
        }
        Op::RngUniform { low, high, .. } => {
            let options = ops::RandomUniform::new().low(*low).high(*high);
            graph.random_uniform(extents(&site.shape), options)
        }
        Op::Sample { top_k, top_p, temperature, .. } => {
            let mut logits = site.arg(0)? / *temperature;
            if *top_k > 0 {
                logits = nn::top_k_filter(logits, *top_k);
            }
            if *top_p < 1.0 {
                logits = nn::top_p_filter(logits, *top_p);
            }
            nn::sample(logits, 1.0, None)
        }
        _ => return Ok(None),
    }))
}

fn extents(shape: &[usize]) -> Vec<i32> {
    shape.iter().map(|&extent| extent as i32).collect()
}

fn five<'g>(site: &Site<'_, 'g>) -> Result<[Tensor<'g>; 5], Error> {
    Ok([site.arg(0)?, site.arg(1)?, site.arg(2)?, site.arg(3)?, site.arg(4)?])
}

fn nothing<'g>(site: &Site<'_, 'g>, shape: &[usize]) -> Tensor<'g> {
    site.graph.floats(shape, &vec![0.0; shape.iter().product()])
}

pub(crate) fn inverse_root(x: Tensor<'_>) -> Tensor<'_> {
    x.rsqrt(ops::Rsqrt::new().epsilon(1e-12))
}

/// An axis normalized to mean 0 and variance 1.
pub(crate) fn normalized(x: Tensor<'_>, axis: i32, epsilon: f32) -> Tensor<'_> {
    let centred = x - x.mean([axis], true);
    centred * inverse_root(centred.square().mean([axis], true) + epsilon)
}

/// An axis divided by its root mean square.
pub(crate) fn root_mean(x: Tensor<'_>, axis: i32, epsilon: f32) -> Tensor<'_> {
    x * inverse_root(x.square().mean([axis], true) + epsilon)
}

/// `[batch, groups, everything else]`.
pub(crate) fn grouped(x: Tensor<'_>, groups: usize) -> Tensor<'_> {
    let count: usize = x.shape().iter().product();
    let batch = x.extent(0);
    x.view([batch, groups, count / (batch * groups.max(1)).max(1)])
}

/// Numbers of channels in a shape that broadcasts.
pub(crate) fn channels<'g>(numbers: Tensor<'g>, x: Tensor<'g>) -> Tensor<'g> {
    let mut shape = vec![1; x.rank()];
    if let Some(place) = shape.get_mut(1) {
        *place = x.extent(1);
    }
    numbers.view(shape)
}

fn residual<'g>(site: &Site<'_, 'g>, bias: bool) -> Result<(Tensor<'g>, usize), Error> {
    let x = site.arg(0)? + site.arg(1)?;
    Ok(if bias { (x + site.arg(2)?, 3) } else { (x, 2) })
}

fn convolved<'g>(
    site: &Site<'_, 'g>,
    stride: &[usize],
    padding: &[usize],
    dilation: &[usize],
    groups: usize,
) -> Result<Tensor<'g>, Error> {
    let pad: Vec<usize> = padding.iter().flat_map(|&pad| [pad, pad]).collect();
    let options = ops::Conv::new().strides(stride).pad_type("custom").pad(pad);
    Ok(site.arg(0)?.conv(site.arg(1)?, options.dilations(dilation).groups(groups)))
}

fn transposed<'g>(
    site: &Site<'_, 'g>,
    stride: &[usize],
    padding: &[usize],
    dilation: &[usize],
    output_padding: &[usize],
    groups: usize,
) -> Result<Tensor<'g>, Error> {
    let less = |at: usize| output_padding.get(at).copied().unwrap_or(0);
    if (0..padding.len()).any(|at| less(at) > padding[at]) {
        return site.refuse("pads its output by more than its input");
    }
    let pad: Vec<usize> =
        (0..padding.len()).flat_map(|at| [padding[at], padding[at] - less(at)]).collect();
    let options = ops::ConvTranspose::new().strides(stride).pad_type("custom").pad(pad);
    let options = options.dilations(dilation).groups(groups);
    Ok(site.arg(0)?.conv_transpose(site.arg(1)?, options))
}

fn attention<'g>(
    site: &Site<'_, 'g>,
    heads: usize,
    mask: MaskKind,
    scale: Option<f32>,
    soft_cap: Option<f32>,
) -> Result<Tensor<'g>, Error> {
    let [mut query, mut key, mut value] = [site.arg(0)?, site.arg(1)?, site.arg(2)?];
    if query.rank() != 4 {
        return site.refuse(format!("has queries of rank {}; 4 is lowered", query.rank()));
    }
    let last = query.extent(1) != heads;
    if last {
        [query, key, value] = [query, key, value].map(|x| x.transpose([0, 2, 1, 3]));
    }
    let mut options = AttentionOptions { scale, soft_cap, ..AttentionOptions::default() };
    match mask {
        MaskKind::None => {}
        MaskKind::Causal => options.causal = true,
        MaskKind::SlidingWindow(width) => options.window = Some(width + 1),
        MaskKind::Bias => options.bias = Some(site.arg(3)?),
        MaskKind::Custom => {
            let mask = site.arg(3)?;
            let (batch, keys) = (mask.extent(0), mask.last_extent());
            let hidden = mask.less(0.5).cast(coremill_graph::DType::Fp32) * -3e4;
            options.bias = Some(hidden.view([batch, 1, 1, keys]));
        }
    }
    let y = nn::attention(query, key, value, &options);
    Ok(if last { y.transpose([0, 2, 1, 3]) } else { y })
}

/// Parameters that are blocks of GGUF, and the nodes that multiply by them.
pub(crate) struct Packed {
    pub(crate) bytes: HashSet<NodeId>,
    pub(crate) uses: HashMap<NodeId, PackedUse>,
}

/// How a node multiplies by blocks.
pub(crate) struct PackedUse {
    name: String,
    scheme: Scheme,
}

pub(crate) fn packed_params(source: &rlx_ir::Graph) -> Result<Packed, Error> {
    let mut packed = Packed { bytes: HashSet::new(), uses: HashMap::new() };
    for node in source.nodes() {
        let scheme = match &node.op {
            Op::DequantMatMul { scheme } | Op::DequantGroupedMatMul { scheme } => scheme,
            _ => continue,
        };
        let Some(&weights) = node.inputs.get(1) else { continue };
        if let (Some(scheme), Op::Param { name }) = (of_gguf(scheme), &source.node(weights).op) {
            packed.bytes.insert(weights);
            packed.uses.insert(node.id, PackedUse { name: name.clone(), scheme });
        }
    }
    Ok(packed)
}

fn of_gguf(scheme: &QuantScheme) -> Option<Scheme> {
    Some(match scheme {
        QuantScheme::GgufQ2K => Scheme::Q2_K,
        QuantScheme::GgufQ3K => Scheme::Q3_K,
        QuantScheme::GgufQ4K => Scheme::Q4_K,
        QuantScheme::GgufQ5K => Scheme::Q5_K,
        QuantScheme::GgufQ6K => Scheme::Q6_K,
        QuantScheme::GgufQ8K => Scheme::Q8_K,
        QuantScheme::GgufQ4_0 => Scheme::Q4_0,
        QuantScheme::GgufQ4_1 => Scheme::Q4_1,
        QuantScheme::GgufQ5_0 => Scheme::Q5_0,
        QuantScheme::GgufQ5_1 => Scheme::Q5_1,
        QuantScheme::GgufQ8_0 => Scheme::Q8_0,
        _ => return None,
    })
}

/// The product with a weight of blocks, `[outputs, inputs]` as GGUF has it.
pub(crate) fn packed_matmul<'g>(
    site: &Site<'_, 'g>,
    packed: &PackedUse,
    blocks: &mut HashMap<String, (Scheme, Vec<u64>)>,
) -> Result<Tensor<'g>, Error> {
    let x = site.arg(0)?;
    let (inputs, outputs) = (x.last_extent(), *site.shape.last().unwrap_or(&1));
    let mut shape = vec![outputs, inputs];
    if let Op::DequantGroupedMatMul { .. } = &site.node.op {
        return site.refuse("multiplies by blocks of several experts, which is not lowered");
    }
    let weight = site.graph.param(&packed.name, shape.clone());
    blocks.insert(
        packed.name.clone(),
        (packed.scheme, shape.drain(..).map(|extent| extent as u64).collect()),
    );
    Ok(x.matmul_t(weight))
}
