//! Gradients, computed by ordinary arithmetic.

use coremill_graph::{DType, Error, Tensor, ops};
use rlx_ir::Op;
use rlx_ir::op::Activation;

use crate::network::{channels, grouped, inverse_root, normalized, root_mean};
use crate::site::NodeContext;

pub(crate) fn lower<'g>(site: &NodeContext<'_, 'g>) -> Result<Option<Tensor<'g>>, Error> {
    let graph = site.graph;
    Ok(Some(match &site.node.op {
        Op::ReluBackward => graph.select_or(site.arg(0)?.greater(0.0), site.arg(1)?, 0.0),
        Op::ActivationBackward { kind } => slope(*kind, site.arg(0)?) * site.arg(1)?,
        Op::LayerNormBackwardInput { axis, eps } => {
            let [x, gamma, dy] = [site.arg(0)?, site.arg(1)?, site.arg(2)?];
            normal_backward(x, dy * gamma, *axis, *eps)
        }
        Op::LayerNormBackwardGamma { axis, eps } => {
            let (x, dy) = (site.arg(0)?, site.arg(1)?);
            leading_sum(dy * normalized(x, *axis, *eps))
        }
        Op::RmsNormBackwardInput { axis, eps } => {
            let (x, gamma, dy) = (site.arg(0)?, site.arg(1)?, site.arg(3)?);
            root_mean_backward(x, dy * gamma, *axis, *eps)
        }
        Op::RmsNormBackwardGamma { axis, eps } => {
            leading_sum(site.arg(3)? * root_mean(site.arg(0)?, *axis, *eps))
        }
        Op::RmsNormBackwardBeta { .. } => leading_sum(site.arg(3)?),
        Op::GroupNormBackwardInput { num_groups, eps } => {
            let (x, gamma, dy) = (site.arg(0)?, site.arg(1)?, site.arg(site.args.len() - 1)?);
            let scaled = grouped(dy * channels(gamma, x), *num_groups);
            normal_backward(grouped(x, *num_groups), scaled, -1, *eps).view(x.shape())
        }
        Op::CumsumBackward { axis, exclusive } => {
            let options = ops::Cumsum::new().axis(*axis).exclusive(*exclusive).reverse(true);
            site.arg(0)?.cumsum(options)
        }
        Op::GatherBackward { axis } => {
            let (dy, indices) = (site.arg(0)?, site.indices(1)?);
            let declared = site.shape()?;
            let axis = if *axis < 0 { *axis + declared.len() as i32 } else { *axis };
            // Indices of several axes are flattened.
            let mut shape = declared.to_vec();
            let count: usize = indices.shape().iter().product();
            if let Some(place) = usize::try_from(axis).ok().and_then(|axis| shape.get_mut(axis)) {
                *place = count;
            }
            let (dy, indices) = (dy.view(shape), indices.view([count]));
            site.zeros(declared).scatter(indices, dy, ops::Scatter::new().axis(axis).mode("add"))
        }
        Op::SoftmaxCrossEntropyWithLogits => {
            let (logits, labels) = (site.arg(0)?, site.indices(1)?);
            let largest = logits.max([1], true);
            let total = (logits - largest).exp().sum([1], true);
            let own =
                logits.gather_along_axis(labels.unsqueeze(1), ops::GatherAlongAxis::new().axis(1));
            (total.log(ops::Log::new().epsilon(1e-12)) + largest - own)
                .squeeze(ops::Squeeze::new().axes([1]))
        }
        Op::SoftmaxCrossEntropyBackward => {
            let (logits, labels, loss) = (site.arg(0)?, site.indices(1)?, site.arg(2)?);
            let hot = labels.one_hot(logits.last_extent() as i32, ops::OneHot::new().axis(-1));
            (logits.softmax_on(-1) - hot.cast(DType::Fp32)) * loss.unsqueeze(1)
        }
        _ => return Ok(None),
    }))
}

/// The gradient of a normalization over an axis, for the gradient of its output.
pub(crate) fn normal_backward<'g>(
    x: Tensor<'g>,
    dy: Tensor<'g>,
    axis: i32,
    epsilon: f32,
) -> Tensor<'g> {
    let centred = x - x.mean([axis], true);
    let inverse = inverse_root(centred.square().mean([axis], true) + epsilon);
    let normal = centred * inverse;
    let shared = normal * (dy * normal).mean([axis], true);
    inverse * (dy - dy.mean([axis], true) - shared)
}

/// The gradient of a division by the root mean square.
pub(crate) fn root_mean_backward<'g>(
    x: Tensor<'g>,
    dy: Tensor<'g>,
    axis: i32,
    epsilon: f32,
) -> Tensor<'g> {
    let inverse = inverse_root(x.square().mean([axis], true) + epsilon);
    let shared = (dy * x).mean([axis], true) * inverse * inverse;
    inverse * (dy - x * shared)
}

/// The sum over all axes except the last.
pub(crate) fn leading_sum(x: Tensor<'_>) -> Tensor<'_> {
    let axes: Vec<usize> = (0..x.rank().saturating_sub(1)).collect();
    if axes.is_empty() { x } else { x.sum(axes, false) }
}

/// The derivative of an activation at `x`.
fn slope<'g>(kind: Activation, x: Tensor<'g>) -> Tensor<'g> {
    let graph = x.graph();
    let sigmoid = x.sigmoid();
    match kind {
        Activation::Relu => x.greater(0.0).cast(DType::Fp32),
        Activation::Silu => sigmoid * (x * (1.0 - sigmoid) + 1.0),
        Activation::Sigmoid => sigmoid * (1.0 - sigmoid),
        Activation::Tanh => 1.0 - x.tanh().square(),
        Activation::Gelu => {
            let density = (x.square() * -0.5).exp() * 0.398_942_3;
            ((x * std::f32::consts::FRAC_1_SQRT_2).erf() + 1.0) * 0.5 + x * density
        }
        Activation::GeluApprox => {
            let inner = (x + x * x.square() * 0.044_715) * 0.797_884_6;
            let tanh = inner.tanh();
            let steep = (x.square() * (3.0 * 0.044_715) + 1.0) * 0.797_884_6;
            (tanh + 1.0) * 0.5 + x * 0.5 * (1.0 - tanh.square()) * steep
        }
        Activation::Exp => x.exp(),
        Activation::Log => 1.0 / x,
        Activation::Sqrt => 0.5 / x.sqrt(),
        Activation::Rsqrt => inverse_root(x) / x * -0.5,
        Activation::Neg => x * 0.0 - 1.0,
        Activation::Abs => x.sign(),
        Activation::Sin => x.cos(),
        Activation::Cos => -x.sin(),
        Activation::Tan => x.tan().square() + 1.0,
        Activation::Atan => 1.0 / (x.square() + 1.0),
        Activation::Recip => -1.0 / x.square(),
        Activation::Round | Activation::Floor | Activation::Ceil | Activation::Sign => x * 0.0,
        Activation::Softplus => sigmoid,
        Activation::Elu => {
            graph.select_or(x.greater(0.0), x * 0.0 + 1.0, 0.0)
                + graph.select_or(x.less_equal(0.0), x.minimum(0.0).exp(), 0.0)
        }
        Activation::Erf => (-x.square()).exp() * std::f32::consts::FRAC_2_SQRT_PI,
        Activation::Softsign => 1.0 / (x.abs() + 1.0).square(),
        Activation::LogSigmoid => 1.0 - sigmoid,
        Activation::Mish => {
            let tanh = x.softplus().tanh();
            tanh + x * sigmoid * (1.0 - tanh.square())
        }
        Activation::HardSwish => {
            let middle = graph.select_or(x.abs().less(3.0), x / 3.0 + 0.5, 0.0);
            middle + x.greater_equal(3.0).cast(DType::Fp32)
        }
        Activation::HardSigmoid => x.abs().less(3.0).cast(DType::Fp32) / 6.0,
    }
}
