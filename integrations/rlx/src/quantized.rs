//! Quantized layers, and emulated quantization during training.

use coremill_graph::{DType, Error, Tensor};
use rlx_ir::Op;
use rlx_ir::op::{ScaleMode, SteKind};

use crate::network::convolved;
use crate::site::NodeContext;

pub(crate) fn lower<'g>(site: &NodeContext<'_, 'g>) -> Result<Option<Tensor<'g>>, Error> {
    Ok(Some(match &site.node.op {
        Op::Quantize { axis, scales, zero_points } => {
            let x = site.arg(0)?;
            let (scale, zero) =
                (along(site, x, *axis, scales)?, zeros(site, x, *axis, zero_points)?);
            (halves_away(x / scale) + zero).clip(-128.0, 127.0)
        }
        Op::Dequantize { axis, scales, zero_points } => {
            let x = site.float(0)?;
            let (scale, zero) =
                (along(site, x, *axis, scales)?, zeros(site, x, *axis, zero_points)?);
            (x - zero) * scale
        }
        Op::FakeQuantize { bits, axis, scale_mode, .. } => {
            let (x, largest) = (site.arg(0)?, largest(site, *bits)?);
            let own = || Ok::<_, Error>(peak(site, x, *axis)? / largest);
            let scale = match scale_mode {
                ScaleMode::PerBatch => own()?.maximum(SMALLEST),
                ScaleMode::Fixed => channel(x, *axis, site.arg(1)?).maximum(SMALLEST),
                ScaleMode::EMA { decay } => {
                    let (own, kept) = (own()?.maximum(SMALLEST), channel(x, *axis, site.arg(1)?));
                    let blended = kept * *decay + own * (1.0 - *decay);
                    // A state of 0 has not been written yet.
                    kept.greater(0.0).select(blended, own)
                }
            };
            halves_away(x / scale).clip(-largest, largest) * scale
        }
        Op::FakeQuantizeBackward { bits, axis, ste } => {
            let (x, dy) = (site.arg(0)?, site.arg(1)?);
            let largest = largest(site, *bits)?;
            let scale = (peak(site, x, *axis)? / largest).maximum(SMALLEST);
            match ste {
                SteKind::Identity => dy.identity(),
                SteKind::ClippedIdentity => {
                    dy * x.abs().less_equal(scale * largest).cast(DType::Fp32)
                }
                SteKind::Tanh => dy * (1.0 - (x / scale).tanh().square()),
                SteKind::HardTanh => dy * (1.0 - (x / (scale * largest)).abs()).maximum(0.0),
            }
        }
        Op::FakeQuantizeLSQ { bits, axis } => {
            let (x, largest) = (site.arg(0)?, largest(site, *bits)?);
            let scale = channel(x, *axis, site.arg(1)?).maximum(SMALLEST);
            halves_away(x / scale).clip(-largest, largest) * scale
        }
        Op::FakeQuantizeLSQBackwardX { bits, axis } => {
            let (x, largest) = (site.arg(0)?, largest(site, *bits)?);
            let scale = channel(x, *axis, site.arg(1)?).maximum(SMALLEST);
            site.arg(2)? * (x / scale).abs().less_equal(largest).cast(DType::Fp32)
        }
        Op::FakeQuantizeLSQBackwardScale { bits, axis } => {
            let (x, largest) = (site.arg(0)?, largest(site, *bits)?);
            let z = x / channel(x, *axis, site.arg(1)?).maximum(SMALLEST);
            let inside = z.abs().less_equal(largest);
            let slope = inside.select(halves_away(z) - z, z.sign() * largest);
            let axes: Vec<usize> = (0..x.rank()).filter(|&at| Some(at) != *axis).collect();
            (slope * site.arg(2)?).sum(axes, false)
        }
        Op::QMatMul { x_zp, w_zp, out_zp, mult } => {
            let x = site.float(0)? - *x_zp as f32;
            let y = x.dot(site.float(1)? - *w_zp as f32) + site.float(2)?;
            requantized(y, *mult, *out_zp)
        }
        Op::QConv2d { stride, padding, dilation, groups, x_zp, w_zp, out_zp, mult, .. } => {
            let (x, w) = (site.float(0)? - *x_zp as f32, site.float(1)? - *w_zp as f32);
            let y = convolved(x, w, stride, padding, dilation, *groups);
            let bias = site.float(2)?;
            requantized(y + bias.view([1, bias.extent(0), 1, 1]), *mult, *out_zp)
        }
        _ => return Ok(None),
    }))
}

/// Minimum of scales.
const SMALLEST: f32 = 1e-12;

/// Rounds to nearest, with ties away from zero, as in Rust.
pub(crate) fn halves_away(x: Tensor<'_>) -> Tensor<'_> {
    x.sign() * (x.abs() + 0.5).floor()
}

/// Requantizes sums of products to 8-bit integers. Sums up to 2^24 are exact in floats.
fn requantized(sums: Tensor<'_>, factor: f32, zero: i32) -> Tensor<'_> {
    (halves_away(sums * factor) + zero as f32).clip(-128.0, 127.0)
}

/// The largest signed integer with `bits` bits.
fn largest(site: &NodeContext<'_, '_>, bits: u8) -> Result<f32, Error> {
    match bits {
        2..=16 => Ok(((1u32 << (bits - 1)) - 1) as f32),
        _ => site.refuse(format!("must quantize to 2 to 16 bits, got {bits}")),
    }
}

/// The maximum magnitude along all axes except one.
fn peak<'g>(
    site: &NodeContext<'_, 'g>,
    x: Tensor<'g>,
    axis: Option<usize>,
) -> Result<Tensor<'g>, Error> {
    if axis.is_some_and(|axis| axis >= x.rank()) {
        return site.refuse(format!(
            "has scales for axis {axis:?}, which is out of range for rank {}",
            x.rank()
        ));
    }
    let axes: Vec<usize> = (0..x.rank()).filter(|&at| Some(at) != axis).collect();
    let size = x.abs();
    Ok(if axes.is_empty() { size } else { size.max(axes, true) })
}

/// Reshapes a vector along an axis for broadcasting.
fn channel<'g>(x: Tensor<'g>, axis: Option<usize>, numbers: Tensor<'g>) -> Tensor<'g> {
    let mut shape = vec![1; x.rank()];
    if let Some(place) = axis.and_then(|axis| shape.get_mut(axis)) {
        *place = -1;
    }
    numbers.view(shape)
}

/// Reshapes numbers along an axis for broadcasting.
fn along<'g>(
    site: &NodeContext<'_, 'g>,
    x: Tensor<'g>,
    axis: Option<usize>,
    numbers: &[f32],
) -> Result<Tensor<'g>, Error> {
    match (axis, numbers) {
        (None, [only, ..]) => Ok(site.graph.float(*only)),
        (Some(axis), _) if axis < x.rank() && numbers.len() == x.extent(axis) => {
            Ok(channel(x, Some(axis), site.graph.floats([numbers.len()], numbers)))
        }
        _ => site.refuse(format!("has {} scales, which do not match axis {axis:?}", numbers.len())),
    }
}

fn zeros<'g>(
    site: &NodeContext<'_, 'g>,
    x: Tensor<'g>,
    axis: Option<usize>,
    numbers: &[i32],
) -> Result<Tensor<'g>, Error> {
    let numbers: Vec<f32> = numbers.iter().map(|&number| number as f32).collect();
    along(site, x, axis, &numbers)
}
