//! Gradients of layers with separate parameters: norms, losses, splines, modulation.

use coremill_graph::{Error, Tensor, ops};
use rlx_ir::Op;
use rlx_ir::op::AdaNormKind;

use crate::backward::{leading_sum, normal_backward, root_mean_backward};
use crate::network::{grouped, inverse_root, normalized, root_mean};
use crate::site::NodeContext;

pub(crate) fn lower<'g>(site: &NodeContext<'_, 'g>) -> Result<Option<Tensor<'g>>, Error> {
    Ok(Some(match &site.node.op {
        Op::GroupNormBackwardGamma { num_groups, eps } => {
            let (x, dy) = (site.arg(0)?, site.arg(site.args.len().max(2) - 1)?);
            let normal = normalized(grouped(x, *num_groups), -1, *eps).view(x.shape());
            channel_sum(normal * dy)
        }
        Op::GroupNormBackwardBeta { .. } => channel_sum(site.arg(site.args.len().max(2) - 1)?),
        Op::BatchNormInferenceBackwardInput { eps } => {
            let [_, gamma, _, variance, dy] = site.operands()?;
            dy * gamma * inverse_root(variance + *eps)
        }
        Op::BatchNormInferenceBackwardGamma { eps } => {
            let [x, mean, variance, dy] = site.operands()?;
            leading_sum(dy * (x - mean) * inverse_root(variance + *eps))
        }
        Op::BatchNormInferenceBackwardBeta => leading_sum(site.arg(site.args.len().max(1) - 1)?),
        Op::SoftmaxCrossEntropy => {
            let (logits, targets) = (site.arg(0)?, site.arg(1)?);
            let largest = logits.max([1], true);
            let total = (logits - largest).exp().sum([1], false);
            let total = total.log(ops::Log::new().epsilon(0.0)) + largest.view([-1]);
            total - (logits * targets).sum([1], false)
        }
        Op::SplineActivation { num_basis, grid_min, grid_max } => {
            let (x, coefficients) = (site.arg(0)?, site.arg(1)?);
            let grid = Grid::new(site, *num_basis, *grid_min, *grid_max)?;
            (grid.basis(x) * coefficients).sum([-1], false)
        }
        Op::SplineActivationBackwardX { num_basis, grid_min, grid_max } => {
            let [x, coefficients, dy] = site.operands()?;
            let grid = Grid::new(site, *num_basis, *grid_min, *grid_max)?;
            let slope = grid.distance(x) * (-2.0 * grid.steepness);
            dy * (grid.basis(x) * slope * coefficients).sum([-1], false)
        }
        Op::SplineActivationBackwardCoeff { num_basis, grid_min, grid_max } => {
            let (x, dy) = (site.arg(0)?, site.arg(1)?);
            let grid = Grid::new(site, *num_basis, *grid_min, *grid_max)?;
            let all = grid.basis(x) * dy.unsqueeze(-1);
            let axes: Vec<usize> = (0..all.rank().saturating_sub(2)).collect();
            if axes.is_empty() { all } else { all.sum(axes, false) }
        }
        Op::AdaLayerNormBackward { norm, eps } => {
            let [x, scale, _, dy] = site.operands()?;
            let scaled = dy * (scale + 1.0);
            let (normal, dx) = match norm {
                AdaNormKind::LayerNorm => {
                    (normalized(x, -1, *eps), normal_backward(x, scaled, -1, *eps))
                }
                AdaNormKind::RmsNorm => {
                    (root_mean(x, -1, *eps), root_mean_backward(x, scaled, -1, *eps))
                }
            };
            site.packed([dx, folded(dy * normal, scale), folded(dy, scale)])
        }
        Op::GatedResidualBackward => {
            let [_, y, gate, dy] = site.operands()?;
            site.packed([dy, dy * gate, folded(dy * y, gate)])
        }
        _ => return Ok(None),
    }))
}

/// The sum over all axes except the channel axis.
fn channel_sum(x: Tensor<'_>) -> Tensor<'_> {
    x.sum((0..x.rank()).filter(|&axis| axis != 1).collect::<Vec<_>>(), false)
}

/// The sum over the axes along which `like` was broadcast.
fn folded<'g>(x: Tensor<'g>, like: Tensor<'g>) -> Tensor<'g> {
    let (wide, own) = (x.shape(), like.shape());
    let missing = wide.len().saturating_sub(own.len());
    let axes: Vec<usize> = (0..wide.len())
        .filter(|&axis| axis < missing || (own[axis - missing] == 1 && wide[axis] > 1))
        .collect();
    if axes.is_empty() { x } else { x.sum(axes, true) }
}

/// Equidistant bell functions, which are the basis of a spline.
struct Grid<'g> {
    centres: Tensor<'g>,
    steepness: f32,
}

impl<'g> Grid<'g> {
    fn new(site: &NodeContext<'_, 'g>, count: u32, low: f32, high: f32) -> Result<Grid<'g>, Error> {
        if count < 2 || high <= low {
            return site.refuse(format!("requires at least 2 basis functions between increasing bounds, got {count} between {low} and {high}"));
        }
        let step = (high - low) / (count - 1) as f32;
        let centres: Vec<f32> = (0..count).map(|at| low + at as f32 * step).collect();
        Ok(Grid { centres: site.graph.floats([centres.len()], &centres), steepness: 1.0 / step })
    }

    /// Distance of each element from each center, in steps.
    fn distance(&self, x: Tensor<'g>) -> Tensor<'g> {
        (x.unsqueeze(-1) - self.centres) * self.steepness
    }

    fn basis(&self, x: Tensor<'g>) -> Tensor<'g> {
        (self.distance(x).square() * -1.0).exp()
    }
}
