//! Element by element, and reductions.

use coremill_graph::nn::Activation as Module;
use coremill_graph::{DType, Error, Tensor, ops};
use rlx_ir::Op;
use rlx_ir::op::{Activation, BinaryOp, ChainOperand, ChainStep, CmpOp, ReduceOp, RegionPrologue};

use crate::lower::{Site, element_type};

pub(crate) fn lower<'g>(site: &Site<'_, 'g>) -> Result<Option<Tensor<'g>>, Error> {
    let graph = site.graph;
    Ok(Some(match &site.node.op {
        Op::Constant { data } => {
            let dtype = element_type(site.node.shape.dtype())?;
            let param = coremill_graph::Param::elements(
                dtype,
                site.shape.iter().map(|&extent| extent as u64).collect::<Vec<_>>(),
                data.clone(),
            )?;
            let floats = param.to_floats()?;
            match dtype.is_float() {
                true => graph.floats(site.shape.clone(), &floats),
                false => {
                    let ints: Vec<i32> = floats.iter().map(|&x| x as i32).collect();
                    graph.ints(site.shape.clone(), &ints)
                }
            }
        }
        Op::Activation(activation) => activated(*activation, site.arg(0)?),
        // The value is cast to the node's type as every result is.
        Op::Cast { .. } | Op::StopGradient => site.arg(0)?.identity(),
        Op::Binary(op) => binary(site, *op, site.arg(0)?, site.arg(1)?)?,
        Op::Compare(op) => compared(*op, site.arg(0)?, site.arg(1)?),
        Op::Where => chosen(site.arg(0)?, site.arg(1)?, site.arg(2)?),
        Op::Fma => site.arg(0)? * site.arg(1)? + site.arg(2)?,
        Op::Clamp { min, max } => site.arg(0)?.maximum(*min).minimum(*max),
        Op::ElementwiseRegion { chain, prologue: RegionPrologue::None, .. } => {
            let mut steps: Vec<Tensor<'g>> = Vec::with_capacity(chain.len());
            for step in chain {
                let operand = |operand: &ChainOperand| match *operand {
                    ChainOperand::Input(at) => site.arg(at as usize),
                    ChainOperand::Step(at) => match steps.get(at as usize) {
                        Some(step) => Ok(*step),
                        None => site.refuse(format!("refers to step {at}, which comes later")),
                    },
                };
                let next = match step {
                    ChainStep::Activation(activation, x) => activated(*activation, operand(x)?),
                    ChainStep::Cast(dtype, x) => match dtype.is_float() {
                        true => operand(x)?.cast(DType::Fp32),
                        false => operand(x)?.cast(DType::Int32),
                    },
                    ChainStep::Binary(op, x, y) => binary(site, *op, operand(x)?, operand(y)?)?,
                    ChainStep::Compare(op, x, y) => compared(*op, operand(x)?, operand(y)?),
                    ChainStep::Where(condition, x, y) => {
                        chosen(operand(condition)?, operand(x)?, operand(y)?)
                    }
                };
                steps.push(next);
            }
            match steps.last() {
                Some(last) => *last,
                None => site.arg(0)?,
            }
        }
        Op::Reduce { op, axes, keep_dim } => reduced(*op, site.arg(0)?, axes, *keep_dim),
        Op::Softmax { axis } => site.arg(0)?.softmax_on(*axis),
        Op::Cumsum { axis, exclusive } => {
            site.arg(0)?.cumsum(ops::Cumsum::new().axis(*axis).exclusive(*exclusive))
        }
        Op::ArgMax { axis, keep_dim } => {
            let options = ops::ReduceArgmax::new().axis(*axis).keep_dims(*keep_dim);
            site.arg(0)?.reduce_argmax(options)
        }
        Op::ArgMin { axis, keep_dim } => {
            let options = ops::ReduceArgmin::new().axis(*axis).keep_dims(*keep_dim);
            site.arg(0)?.reduce_argmin(options)
        }
        Op::TopK { k } => site.arg(0)?.topk(ops::Topk::new().k(*k as i32).axis(-1)).1,
        Op::Sort { axis, descending } => sorted(site, *axis, *descending)?.0,
        Op::ArgSort { axis, descending } => sorted(site, *axis, *descending)?.1,
        Op::Histogram { bins, min, max } => histogram(site, *bins, *min, *max)?,
        Op::Quantize { axis, scales, zero_points } => {
            let x = site.arg(0)?;
            let (scale, zero) =
                (along(site, x, *axis, scales)?, zeros(site, x, *axis, zero_points)?);
            (halves_away(x / scale) + zero).clip(-128.0, 127.0)
        }
        Op::Dequantize { axis, scales, zero_points } => {
            let x = site.arg(0)?.cast(DType::Fp32);
            let (scale, zero) =
                (along(site, x, *axis, scales)?, zeros(site, x, *axis, zero_points)?);
            (x - zero) * scale
        }
        _ => return Ok(None),
    }))
}

/// Rounds halves away from zero, as Rust does.
fn halves_away(x: Tensor<'_>) -> Tensor<'_> {
    x.sign() * (x.abs() + 0.5).floor()
}

/// Numbers along an axis, in a shape that broadcasts.
fn along<'g>(
    site: &Site<'_, 'g>,
    x: Tensor<'g>,
    axis: Option<usize>,
    numbers: &[f32],
) -> Result<Tensor<'g>, Error> {
    match (axis, numbers) {
        (None, [only, ..]) => Ok(site.graph.float(*only)),
        (Some(axis), _) if axis < x.rank() => {
            let mut shape = vec![1; x.rank()];
            shape[axis] = numbers.len();
            Ok(site.graph.floats(shape, numbers))
        }
        _ => site.refuse(format!("has {} scales for axis {axis:?}", numbers.len())),
    }
}

fn zeros<'g>(
    site: &Site<'_, 'g>,
    x: Tensor<'g>,
    axis: Option<usize>,
    numbers: &[i32],
) -> Result<Tensor<'g>, Error> {
    let numbers: Vec<f32> = numbers.iter().map(|&number| number as f32).collect();
    along(site, x, axis, &numbers)
}

pub(crate) fn activated<'g>(activation: Activation, x: Tensor<'g>) -> Tensor<'g> {
    match activation {
        Activation::Gelu => Module::Gelu.apply(x),
        Activation::GeluApprox => Module::GeluTanh.apply(x),
        Activation::Silu => x.silu(),
        Activation::Relu => x.relu(),
        Activation::Sigmoid => x.sigmoid(),
        Activation::Tanh => x.tanh(),
        Activation::Exp => x.exp(),
        Activation::Log => x.log(ops::Log::new().epsilon(0.0)),
        Activation::Sqrt => x.sqrt(),
        Activation::Rsqrt => x.rsqrt(ops::Rsqrt::new().epsilon(0.0)),
        Activation::Neg => -x,
        Activation::Abs => x.abs(),
        Activation::Sin => x.sin(),
        Activation::Cos => x.cos(),
        Activation::Tan => x.tan(),
        Activation::Atan => x.atan(),
        Activation::Recip => 1.0 / x,
        Activation::Round => x.round(),
        Activation::Floor => x.floor(),
        Activation::Ceil => x.ceil(),
        Activation::Sign => x.sign(),
        Activation::Softplus => x.softplus(),
        Activation::Elu => x.elu(1.0),
        Activation::Erf => x.erf(),
        Activation::HardSwish => Module::HardSwish.apply(x),
        Activation::HardSigmoid => Module::HardSigmoid.apply(x),
        Activation::Mish => Module::Mish.apply(x),
        Activation::Softsign => x.softsign(),
        Activation::LogSigmoid => Module::LogSigmoid.apply(x),
    }
}

fn binary<'g>(
    site: &Site<'_, 'g>,
    op: BinaryOp,
    x: Tensor<'g>,
    y: Tensor<'g>,
) -> Result<Tensor<'g>, Error> {
    Ok(match op {
        BinaryOp::Add => x + y,
        BinaryOp::Sub => x - y,
        BinaryOp::Mul => x * y,
        BinaryOp::Div => x / y,
        BinaryOp::Max => x.maximum(y),
        BinaryOp::Min => x.minimum(y),
        BinaryOp::Pow => x.pow(y),
        BinaryOp::Atan2 => {
            // The quotient's angle, turned by half where the second is negative.
            let angle = (x / y).atan();
            let half = std::f32::consts::PI;
            let turn = site.graph.select_or(x.less(0.0), x * 0.0 - half, half);
            let turned = site.graph.select_or(y.less(0.0), angle + turn, 0.0)
                + site.graph.select_or(y.greater(0.0), angle, 0.0);
            turned + site.graph.select_or(y.equal(0.0), x.sign() * (half / 2.0), 0.0)
        }
        other => {
            return site.refuse(format!("computes `{other:?}`; Core ML has no operations on bits"));
        }
    })
}

fn compared<'g>(op: CmpOp, x: Tensor<'g>, y: Tensor<'g>) -> Tensor<'g> {
    match op {
        CmpOp::Eq => x.equal(y),
        CmpOp::Ne => x.not_equal(y),
        CmpOp::Lt => x.less(y),
        CmpOp::Le => x.less_equal(y),
        CmpOp::Gt => x.greater(y),
        CmpOp::Ge => x.greater_equal(y),
    }
}

fn chosen<'g>(condition: Tensor<'g>, x: Tensor<'g>, y: Tensor<'g>) -> Tensor<'g> {
    let condition =
        if condition.dtype() == DType::Bool { condition } else { condition.not_equal(0.0) };
    condition.select(x, y)
}

fn reduced<'g>(op: ReduceOp, x: Tensor<'g>, axes: &[usize], keep: bool) -> Tensor<'g> {
    match op {
        ReduceOp::Sum => x.sum(axes, keep),
        ReduceOp::Mean => x.mean(axes, keep),
        ReduceOp::Max => x.max(axes, keep),
        ReduceOp::Min => x.reduce_min(ops::ReduceMin::new().axes(axes).keep_dims(keep)),
        ReduceOp::Prod => x.reduce_prod(ops::ReduceProd::new().axes(axes).keep_dims(keep)),
    }
}

fn sorted<'g>(
    site: &Site<'_, 'g>,
    axis: usize,
    descending: bool,
) -> Result<(Tensor<'g>, Tensor<'g>), Error> {
    let x = site.arg(0)?;
    let options = ops::Topk::new().k(x.extent(axis) as i32).axis(axis).ascending(!descending);
    Ok(x.topk(options))
}

fn histogram<'g>(
    site: &Site<'_, 'g>,
    bins: usize,
    min: f32,
    max: f32,
) -> Result<Tensor<'g>, Error> {
    let x = site.arg(0)?;
    let count: usize = x.shape().iter().product();
    let x = x.view([1, count]);
    let width = (max - min) / bins as f32;
    let edges: Vec<f32> = (0..=bins).map(|bin| min + width * bin as f32).collect();
    let low = site.graph.floats([bins, 1], &edges[..bins]);
    let mut above = edges[1..].to_vec();
    if let Some(last) = above.last_mut() {
        *last = f32::from_bits(max.to_bits() + 1).max(max);
    }
    let high = site.graph.floats([bins, 1], &above);
    let inside = x.greater_equal(low).logical_and(x.less(high));
    Ok(inside.cast(DType::Fp32).sum([1], false))
}
