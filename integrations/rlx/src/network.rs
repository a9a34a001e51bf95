//! Layers, scans, and random numbers.

use coremill_graph::{DType, Error, Tensor, nn, ops};
use rlx_ir::op::{AdaNormKind, ReduceOp};
use rlx_ir::{Op, Philox4x32};

use crate::arithmetic::activated;
use crate::site::NodeContext;

pub(crate) fn lower<'g>(site: &NodeContext<'_, 'g>) -> Result<Option<Tensor<'g>>, Error> {
    let graph = site.graph;
    Ok(Some(match &site.node.op {
        Op::MatMul => site.arg(0)?.dot(site.arg(1)?),
        Op::DotGeneral { lhs_contracting, rhs_contracting, lhs_batch, rhs_batch } => {
            // `[batch, rows, inner]` and `[batch, columns, inner]`
            let arranged = |x: Tensor<'g>, batch: &[usize], inner: &[usize]| {
                let free =
                    (0..x.rank()).filter(|axis| !batch.contains(axis) && !inner.contains(axis));
                let free: Vec<usize> = free.collect();
                let count =
                    |axes: &[usize]| axes.iter().map(|&axis| x.extent(axis)).product::<usize>();
                let shape = [count(batch), count(&free), count(inner)];
                x.transpose([batch, &free, inner].concat()).view(shape)
            };
            let x = arranged(site.arg(0)?, lhs_batch, lhs_contracting);
            x.matmul_t(arranged(site.arg(1)?, rhs_batch, rhs_contracting))
        }
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
            let [x, gamma, beta, mean, variance] = site.operands()?;
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
        Op::ResizeNearest2x => nn::resize_nearest(site.arg(0)?, 2.0, 2.0),
        Op::Conv { stride, padding, dilation, groups, .. } => {
            convolved(site.arg(0)?, site.arg(1)?, stride, padding, dilation, *groups)
        }
        Op::Conv3d { stride, padding, dilation, groups } => {
            convolved(site.arg(0)?, site.arg(1)?, stride, padding, dilation, *groups)
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
            let mut y = convolved(site.arg(0)?, site.arg(1)?, stride, padding, dilation, *groups);
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
        Op::Pool { kind: ReduceOp::Min, kernel_size, stride, padding } => {
            nn::max_pool(site.arg(0)? * -1.0, kernel_size, stride, padding) * -1.0
        }
        Op::Pool { kind: ReduceOp::Mean, kernel_size, stride, padding } => {
            nn::avg_pool(site.arg(0)?, kernel_size, stride, padding, true)
        }
        Op::Pool { kind: ReduceOp::Sum, kernel_size, stride, padding } => {
            let count: usize = kernel_size.iter().product();
            nn::avg_pool(site.arg(0)?, kernel_size, stride, padding, true) * count as f32
        }
        Op::SelectiveScan { state_size } => {
            let [x, delta, a, b, c] = site.operands()?;
            let shape = [x.extent(0), x.extent(2), *state_size];
            nn::selective_scan(x, delta, a, b, c, site.zeros(&shape)).0
        }
        Op::Mamba2 { head_dim, state_size } => {
            let [x, delta, a, b, c] = site.operands()?;
            let shape = [x.extent(0), x.extent(2), *head_dim, *state_size];
            nn::state_space_dual(x, delta, a, b, c, site.zeros(&shape)).0
        }
        Op::RngNormal { mean, scale, .. } => {
            let options = ops::RandomNormal::new().mean(*mean).stddev(*scale);
            graph.random_normal(extents(site.shape()?), options)
        }
        Op::RngUniform { low, high, .. } => {
            let options = ops::RandomUniform::new().low(*low).high(*high);
            graph.random_uniform(extents(site.shape()?), options)
        }
        Op::Sample { top_k, top_p, temperature, seed } => {
            let x = site.arg(0)?;
            // Excluded scores are far below the best logit at any temperature.
            let mut logits = (x - x.max([-1], true)) / temperature.max(1e-6);
            if (1..x.last_extent()).contains(top_k) {
                logits = nn::top_k_filter(logits, *top_k);
            }
            if *top_p < 1.0 {
                logits = nn::top_p_filter(logits, *top_p);
            }
            match seed {
                0 => nn::sample(logits, 1.0, None),
                _ => drawn(site, logits, *seed),
            }
        }
        _ => return Ok(None),
    }))
}

/// Samples a token for each row with the random numbers of the seed: the first token at which the cumulative
/// probability reaches the number.
fn drawn<'g>(site: &NodeContext<'_, 'g>, logits: Tensor<'g>, seed: u64) -> Tensor<'g> {
    let (rows, tokens) = (logits.extent(0), logits.last_extent());
    let mut random = Philox4x32::new(seed);
    let draws: Vec<f32> = (0..rows).map(|_| random.next_f32()).collect();
    let reached = logits.softmax_on(-1).cumsum(ops::Cumsum::new().axis(-1));
    let before = reached.less(site.graph.floats([rows, 1], &draws));
    before.cast(DType::Int32).sum([-1], false).minimum(tokens.max(1) as i32 - 1)
}

fn extents(shape: &[usize]) -> Vec<i32> {
    shape.iter().map(|&extent| extent as i32).collect()
}

pub(crate) fn inverse_root(x: Tensor<'_>) -> Tensor<'_> {
    x.rsqrt(ops::Rsqrt::new().epsilon(1e-12))
}

/// Normalizes an axis to mean 0 and variance 1.
pub(crate) fn normalized(x: Tensor<'_>, axis: i32, epsilon: f32) -> Tensor<'_> {
    let centred = x - x.mean([axis], true);
    centred * inverse_root(centred.square().mean([axis], true) + epsilon)
}

/// Divides an axis by its root mean square.
pub(crate) fn root_mean(x: Tensor<'_>, axis: i32, epsilon: f32) -> Tensor<'_> {
    x * inverse_root(x.square().mean([axis], true) + epsilon)
}

/// `[batch, groups, everything else]`.
pub(crate) fn grouped(x: Tensor<'_>, groups: usize) -> Tensor<'_> {
    let count: usize = x.shape().iter().product();
    let batch = x.extent(0);
    x.view([batch, groups, count / (batch * groups.max(1)).max(1)])
}

/// Reshapes per-channel numbers for broadcasting.
pub(crate) fn channels<'g>(numbers: Tensor<'g>, x: Tensor<'g>) -> Tensor<'g> {
    let mut shape = vec![1; x.rank()];
    if let Some(place) = shape.get_mut(1) {
        *place = x.extent(1);
    }
    numbers.view(shape)
}

fn residual<'g>(site: &NodeContext<'_, 'g>, bias: bool) -> Result<(Tensor<'g>, usize), Error> {
    let x = site.arg(0)? + site.arg(1)?;
    Ok(if bias { (x + site.arg(2)?, 3) } else { (x, 2) })
}

pub(crate) fn convolved<'g>(
    x: Tensor<'g>,
    weight: Tensor<'g>,
    stride: &[usize],
    padding: &[usize],
    dilation: &[usize],
    groups: usize,
) -> Tensor<'g> {
    let pad: Vec<usize> = padding.iter().flat_map(|&pad| [pad, pad]).collect();
    let options = ops::Conv::new().strides(stride).pad_type("custom").pad(pad).groups(groups);
    if weight.is_constant() || dilation.iter().all(|&step| step == 1) {
        return x.conv(weight, options.dilations(dilation));
    }
    // Core ML dilates constant kernels; zeros are inserted into other kernels here.
    let mut weight = weight;
    for (axis, &step) in dilation.iter().enumerate() {
        let mut shape = weight.shape();
        let (before, after): (usize, usize) =
            (shape[..axis + 2].iter().product(), shape[axis + 3..].iter().product());
        let count = shape[axis + 2];
        let spaced = weight.view([before, count, 1, after]);
        let spaced = spaced.pad([0, 0, 0, 0, 0, step as i32 - 1, 0, 0], ops::Pad::new());
        shape[axis + 2] = (count - 1) * step + 1;
        let line = spaced.view([before, count * step, after]);
        weight = line.narrow(1, ..shape[axis + 2] as i32).view(shape);
    }
    x.conv(weight, options)
}

fn transposed<'g>(
    site: &NodeContext<'_, 'g>,
    stride: &[usize],
    padding: &[usize],
    dilation: &[usize],
    output_padding: &[usize],
    groups: usize,
) -> Result<Tensor<'g>, Error> {
    let more = |at: usize| output_padding.get(at).copied().unwrap_or(0);
    let rank = padding.len();
    // If the output grows by more than it shrinks, zeros are appended.
    let grows = (0..rank).any(|at| more(at) > padding[at]);
    let pad: Vec<usize> = match grows {
        true => vec![0; 2 * rank],
        false => (0..rank).flat_map(|at| [padding[at], padding[at] - more(at)]).collect(),
    };
    let options = ops::ConvTranspose::new().strides(stride).pad_type("custom").pad(pad);
    let options = options.dilations(dilation).groups(groups);
    let mut y = site.arg(0)?.conv_transpose(site.arg(1)?, options);
    if grows {
        for at in 0..rank {
            let end = y.extent(at + 2).saturating_sub(padding[at].saturating_sub(more(at)));
            y = y.narrow(at as i32 + 2, padding[at] as i32..end as i32);
        }
        let after = (0..rank).flat_map(|at| [0, more(at).saturating_sub(padding[at]) as i32]);
        y = y.pad([0; 4].into_iter().chain(after).collect::<Vec<i32>>(), ops::Pad::new());
    }
    Ok(y)
}
