//! Elementwise operations and reductions.

use coremill_graph::nn::{self, Activation as Module};
use coremill_graph::{DType, Error, Tensor, ops};
use rlx_ir::Op;
use rlx_ir::number_format::FloatFormat;
use rlx_ir::op::{
    Activation, BinaryOp, ChainOperand, ChainStep, CmpOp, ReduceOp, RegionPrologue, TransformStep,
};

use crate::element::element_type;
use crate::formats::rounded;
use crate::site::NodeContext;

pub(crate) fn lower<'g>(site: &NodeContext<'_, 'g>) -> Result<Option<Tensor<'g>>, Error> {
    let graph = site.graph;
    Ok(Some(match &site.node.op {
        Op::Constant { data } => {
            let dtype = element_type(site.node.shape.dtype())?;
            let (shape, floats) = (site.shape()?, site.numbers(dtype, data)?);
            match dtype.is_float() {
                true => graph.floats(shape, &floats),
                false => {
                    let ints: Vec<i32> = floats.iter().map(|&x| x as i32).collect();
                    graph.ints(shape, &ints)
                }
            }
        }
        Op::Activation(activation) => activated(*activation, site.arg(0)?),
        Op::Cast { to } => converted(site.arg(0)?, *to),
        Op::StopGradient => site.arg(0)?.identity(),
        Op::Binary(op) => binary(site, *op, site.arg(0)?, site.arg(1)?)?,
        Op::Compare(op) => compared(*op, site.arg(0)?, site.arg(1)?),
        Op::Where => chosen(site.arg(0)?, site.arg(1)?, site.arg(2)?),
        Op::Fma => site.arg(0)? * site.arg(1)? + site.arg(2)?,
        Op::Clamp { min, max } => site.arg(0)?.maximum(*min).minimum(*max),
        Op::ElementwiseRegion { chain, prologue, prologue_input, .. } => {
            let mut inputs = site.args.clone();
            if let (RegionPrologue::ResizeNearest2x, Some(x)) =
                (prologue, inputs.get_mut(*prologue_input as usize))
            {
                *x = nn::resize_nearest(*x, 2.0, 2.0);
            }
            region(site, chain, &inputs)?
        }
        Op::BatchElementwiseRegion { chain, prologue, .. } => {
            let slices = site.args.iter().map(|&x| match prologue {
                RegionPrologue::None => region(site, chain, &[x]),
                RegionPrologue::ResizeNearest2x => {
                    region(site, chain, &[nn::resize_nearest(x, 2.0, 2.0)])
                }
            });
            site.joined(slices.collect::<Result<Vec<_>, Error>>()?, 0)
        }
        Op::TransformRegion { steps, .. } => {
            let mut x = site.arg(0)?;
            for TransformStep::ResizeNearest2x(_) in steps {
                x = nn::resize_nearest(x, 2.0, 2.0);
            }
            x
        }
        Op::Reduce { op, axes, keep_dim } => reduced(*op, site.arg(0)?, axes, *keep_dim),
        Op::Softmax { axis } => site.arg(0)?.softmax_on(*axis),
        Op::Cumsum { axis, exclusive } => {
            site.arg(0)?.cumsum(ops::Cumsum::new().axis(*axis).exclusive(*exclusive))
        }
        Op::CumProd { axis, exclusive } => running(site, *axis, *exclusive, 1.0, |x, y| x * y)?,
        Op::CumMax { axis, exclusive } => {
            running(site, *axis, *exclusive, f32::NEG_INFINITY, |x, y| x.maximum(y))?
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
        _ => return Ok(None),
    }))
}

/// The values of a chain of steps; the last value is the result.
fn region<'g>(
    site: &NodeContext<'_, 'g>,
    chain: &[ChainStep],
    inputs: &[Tensor<'g>],
) -> Result<Tensor<'g>, Error> {
    let mut steps: Vec<Tensor<'g>> = Vec::with_capacity(chain.len());
    for step in chain {
        let operand = |operand: &ChainOperand| match *operand {
            ChainOperand::Input(at) => match inputs.get(at as usize) {
                Some(input) => Ok(*input),
                None => site.refuse(format!(
                    "refers to input {at}, but the number of inputs is {}",
                    inputs.len()
                )),
            },
            ChainOperand::Step(at) => match steps.get(at as usize) {
                Some(step) => Ok(*step),
                None => site.refuse(format!("refers to step {at}, which is not an earlier step")),
            },
        };
        let next = match step {
            ChainStep::Activation(activation, x) => activated(*activation, operand(x)?),
            ChainStep::Cast(dtype, x) => converted(operand(x)?, *dtype),
            ChainStep::Binary(op, x, y) => binary(site, *op, operand(x)?, operand(y)?)?,
            ChainStep::Compare(op, x, y) => compared(*op, operand(x)?, operand(y)?),
            ChainStep::Where(condition, x, y) => {
                chosen(operand(condition)?, operand(x)?, operand(y)?)
            }
        };
        steps.push(next);
    }
    match (steps.last(), inputs.first()) {
        (Some(last), _) => Ok(*last),
        (None, Some(first)) => Ok(*first),
        (None, None) => site.refuse("must have at least one step or input"),
    }
}

/// Converts a value to another type, in the types of Core ML: `fp32`, `int32` and `bool`.
fn converted<'g>(x: Tensor<'g>, to: rlx_ir::DType) -> Tensor<'g> {
    use rlx_ir::DType as To;
    let whole = |low: i32, high: i32| {
        let x = if x.dtype().is_float() { x.cast(DType::Int32) } else { x };
        let x = if x.dtype() == DType::Bool { x.cast(DType::Int32) } else { x };
        x.maximum(low).minimum(high)
    };
    match to {
        To::F16 => rounded(x.cast(DType::Fp32), FloatFormat::F16),
        To::BF16 => rounded(x.cast(DType::Fp32), FloatFormat::BF16),
        To::I8 => whole(-128, 127),
        To::U8 => whole(0, 255),
        To::I16 => whole(-32768, 32767),
        To::Bool => x.not_equal(0.0),
        _ if to.is_float() => x.cast(DType::Fp32),
        _ => x.cast(DType::Int32),
    }
}

/// Prefix scan with an associative operation, in steps of doubling width.
fn running<'g>(
    site: &NodeContext<'_, 'g>,
    axis: i32,
    exclusive: bool,
    neutral: f32,
    combine: impl Fn(Tensor<'g>, Tensor<'g>) -> Tensor<'g>,
) -> Result<Tensor<'g>, Error> {
    let mut x = site.float(0)?;
    let rank = x.rank();
    let axis = if axis < 0 { axis + rank as i32 } else { axis };
    let Some(extent) =
        usize::try_from(axis).ok().filter(|&axis| axis < rank).map(|axis| x.extent(axis))
    else {
        return site
            .refuse(format!("has axis {axis}, which is out of range for a tensor of rank {rank}"));
    };
    let later = |x: Tensor<'g>, by: usize| {
        let mut shape = x.shape();
        shape[axis as usize] = by;
        let before = site.graph.floats(&shape[..], &vec![neutral; shape.iter().product()]);
        site.joined([before, x.narrow(axis, ..(extent - by) as i32)], axis)
    };
    let mut width = 1;
    while width < extent {
        x = combine(x, later(x, width));
        width *= 2;
    }
    Ok(match (exclusive, extent) {
        (false, _) => x,
        (true, 0 | 1) => x * 0.0 + neutral,
        (true, _) => later(x, 1),
    })
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
    site: &NodeContext<'_, 'g>,
    op: BinaryOp,
    x: Tensor<'g>,
    y: Tensor<'g>,
) -> Result<Tensor<'g>, Error> {
    let float = |x: Tensor<'g>| if x.dtype().is_float() { x } else { x.cast(DType::Fp32) };
    let is_whole = !site.node.shape.dtype().is_float();
    let (x, y) = match (x.dtype(), y.dtype()) {
        (x_type, y_type) if x_type == y_type && x_type != DType::Bool => (x, y),
        _ => (float(x), float(y)),
    };
    Ok(match op {
        BinaryOp::Add => x + y,
        BinaryOp::Sub => x - y,
        BinaryOp::Mul => x * y,
        // Integer division truncates, as in Rust.
        BinaryOp::Div if is_whole && x.dtype() == DType::Int32 => {
            let size = x.abs().floor_div(y.abs());
            size * (x.sign() * y.sign())
        }
        BinaryOp::Div => x / y,
        BinaryOp::Max => x.maximum(y),
        BinaryOp::Min => x.minimum(y),
        BinaryOp::Pow => x.pow(y),
        // The remainder has the sign of the first operand.
        BinaryOp::Mod => (x.abs() % y.abs()) * x.sign(),
        BinaryOp::Atan2 => angle(x, y),
        BinaryOp::BitAnd => bitwise(site, x, y, |x, y| x * y),
        BinaryOp::BitOr => bitwise(site, x, y, |x, y| x.maximum(y)),
        BinaryOp::BitXor => bitwise(site, x, y, |x, y| (x - y).abs()),
        BinaryOp::Shl => whole(x) * power_of_two(site, whole(y)),
        BinaryOp::Shr => whole(x).floor_div(power_of_two(site, whole(y))),
    })
}

/// The angle of the point `(y, x)` in all quadrants (`atan2`).
pub(crate) fn angle<'g>(x: Tensor<'g>, y: Tensor<'g>) -> Tensor<'g> {
    let graph = x.graph();
    let half = std::f32::consts::PI;
    let on_axis = y.equal(0.0);
    // The angle of the quotient, plus half a turn if the second operand is negative.
    let angle = (x / on_axis.select(x * 0.0 + 1.0, y)).atan();
    let turn = graph.select_or(x.less(0.0), x * 0.0 - half, half);
    let turned = graph.select_or(y.less(0.0), angle + turn, 0.0)
        + graph.select_or(y.greater(0.0), angle, 0.0);
    turned + graph.select_or(on_axis, x.sign() * (half / 2.0), 0.0)
}

fn whole(x: Tensor<'_>) -> Tensor<'_> {
    if x.dtype() == DType::Int32 { x } else { x.cast(DType::Int32) }
}

/// Exact powers of two, from a table.
fn power_of_two<'g>(site: &NodeContext<'_, 'g>, exponent: Tensor<'g>) -> Tensor<'g> {
    let powers: Vec<i32> = (0..31).map(|at| 1 << at).collect();
    let exponent = exponent.maximum(0).minimum(30);
    site.graph.ints([31], &powers).gather(exponent, ops::Gather::new().axis(0))
}

/// A bitwise operation on 32-bit integers. Core ML has none, so the bits get an axis of their own.
fn bitwise<'g>(
    site: &NodeContext<'_, 'g>,
    x: Tensor<'g>,
    y: Tensor<'g>,
    of: impl Fn(Tensor<'g>, Tensor<'g>) -> Tensor<'g>,
) -> Tensor<'g> {
    let powers: Vec<i32> = (0..31).map(|at| 1 << at).collect();
    let powers = site.graph.ints([31], &powers);
    let bits = |x: Tensor<'g>| whole(x).unsqueeze(-1).floor_div(powers) % 2;
    let sign = |x: Tensor<'g>| whole(x).less(0).cast(DType::Int32);
    let below = (of(bits(x), bits(y)) * powers).sum([-1], false);
    // The sign bit has the weight -2^31, which is subtracted in two steps to stay within `int32`.
    let negative = of(sign(x), sign(y));
    below + negative * -i32::MAX - negative
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
    let (x, y) =
        if x.dtype() == y.dtype() { (x, y) } else { (x.cast(DType::Fp32), y.cast(DType::Fp32)) };
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
    site: &NodeContext<'_, 'g>,
    axis: usize,
    descending: bool,
) -> Result<(Tensor<'g>, Tensor<'g>), Error> {
    let x = site.arg(0)?;
    let options = ops::Topk::new().k(x.extent(axis) as i32).axis(axis).ascending(!descending);
    Ok(x.topk(options))
}

fn histogram<'g>(
    site: &NodeContext<'_, 'g>,
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
