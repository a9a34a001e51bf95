//! Exact emulation of narrow float formats: codes are decoded and encoded by tables, numbers are rounded by
//! scaling.

use coremill_graph::{DType, Error, Tensor, ops};
use rlx_ir::double_single::DfOp;
use rlx_ir::number_format::{FloatFormat, FormatScaling};
use rlx_ir::quant::{ScaleLayout, ScaledFormat};
use rlx_ir::{Op, lowp_codec};

use crate::site::NodeContext;

pub(crate) fn lower<'g>(site: &NodeContext<'_, 'g>) -> Result<Option<Tensor<'g>>, Error> {
    Ok(Some(match &site.node.op {
        Op::RoundToFormat { format, scaling } => {
            let x = site.arg(0)?;
            match scaling {
                FormatScaling::None => rounded(x, *format),
                FormatScaling::PerTensor => {
                    let peak = if site.args.len() > 1 {
                        site.arg(1)?
                    } else {
                        x.abs().max((0..x.rank()).collect::<Vec<_>>(), false)
                    };
                    let scale = binade_scale(peak.view([1]), *format);
                    rounded(x / scale, *format) * scale
                }
                FormatScaling::Block(width) => {
                    let blocks = Blocks::of(site, x, *width)?;
                    let y = blocks.rows;
                    let peak = y.abs().max([-1], true);
                    let narrow = binade_scale(peak, *format);
                    let wide = narrow * 2.0;
                    let by = |scale: Tensor<'g>| rounded(y / scale, *format) * scale;
                    let error = |scale: Tensor<'g>| (by(scale) - y).square().sum([-1], true);
                    // If the narrow scale clips, the wide scale is used if its error is smaller.
                    let clips = (peak / narrow).greater(format.max_normal);
                    let coarser = clips.logical_and(error(wide).less(error(narrow)));
                    blocks.joined(by(coarser.select(wide, narrow)))
                }
                FormatScaling::FineBlock(width) => {
                    let blocks = Blocks::of(site, x, *width)?;
                    let y = blocks.rows;
                    let scale = fine_scale(y.abs().max([-1], true), *format);
                    blocks.joined(rounded(y * (1.0 / scale), *format) * scale)
                }
            }
        }
        Op::ScaledQuantScale { format, scale_layout } => {
            let x = site.arg(0)?;
            let largest = format.max_finite();
            let raw = |peak: Tensor<'g>| {
                let is_zero = peak.equal(0.0).cast(DType::Fp32);
                peak / largest + is_zero
            };
            match scale_layout {
                ScaleLayout::PerTensor => {
                    raw(x.abs().max((0..x.rank()).collect::<Vec<_>>(), false))
                }
                ScaleLayout::BlockMxE8M0 { block } => {
                    let peak = Blocks::of(site, x, *block)?.rows.abs().max([-1], false);
                    // The exponent of the smallest power of two that is not less.
                    let (exponent, power) = binade(raw(peak), -127, 127);
                    exponent + 127.0 + power.less(raw(peak)).cast(DType::Fp32)
                }
                ScaleLayout::Nvfp4 { group } => {
                    let peak = Blocks::of(site, x, *group)?.rows.abs().max([-1], false);
                    encoded(raw(peak), ScaledFormat::F8E4M3)
                }
            }
        }
        Op::ScaledQuantize { format, scale_layout } => {
            let (x, scale) = (site.arg(0)?, site.arg(1)?);
            let scale = spread(site, scales(scale, *scale_layout), x, *scale_layout)?;
            encoded(x / scale, *format)
        }
        Op::ScaledDequantize { format, scale_layout } => {
            scaled(site, site.arg(0)?, site.arg(1)?, *format, *scale_layout)?
        }
        Op::ScaledMatMul { lhs_format, rhs_format, scale_layout, has_bias } => {
            let x = scaled(site, site.arg(0)?, site.arg(2)?, *lhs_format, *scale_layout)?;
            let w = scaled(site, site.arg(1)?, site.arg(3)?, *rhs_format, *scale_layout)?;
            let y = x.matmul_t(w);
            if *has_bias { y + site.arg(4)? } else { y }
        }
        Op::ScaledGroupedMatMul { lhs_format, rhs_format, scale_layout, has_bias } => {
            let x = scaled(site, site.arg(0)?, site.arg(2)?, *lhs_format, *scale_layout)?;
            let w = scaled(site, site.arg(1)?, site.arg(3)?, *rhs_format, *scale_layout)?;
            let experts = site.indices(4)?;
            let y = coremill_graph::nn::grouped_matmul(x, w, experts);
            match has_bias {
                true => y + site.arg(5)?.gather(experts, ops::Gather::new().axis(0)),
                false => y,
            }
        }
        Op::DoubleSingle(op) => pairs(site, op)?,
        _ => return Ok(None),
    }))
}

/// The last axis in blocks.
struct Blocks<'g> {
    rows: Tensor<'g>,
    shape: Vec<usize>,
}

impl<'g> Blocks<'g> {
    fn of(site: &NodeContext<'_, 'g>, x: Tensor<'g>, width: u32) -> Result<Blocks<'g>, Error> {
        let (shape, width, last) = (x.shape(), width as usize, x.last_extent());
        if width == 0 || last == 0 {
            return site.refuse(format!(
                "cannot have blocks of size {width} along an axis of size {last}"
            ));
        }
        let rows: usize = shape[..shape.len().saturating_sub(1)].iter().product();
        let x = if x.dtype().is_float() { x } else { x.cast(DType::Fp32) };
        let (count, missing) = (last.div_ceil(width), last.next_multiple_of(width) - last);
        let x = x.view([rows, last]);
        let x = if missing > 0 { x.pad([0, 0, 0, missing as i32], ops::Pad::new()) } else { x };
        Ok(Blocks { rows: x.view([rows, count, width]), shape })
    }

    /// Joins the blocks of the axis.
    fn joined(&self, rows: Tensor<'g>) -> Tensor<'g> {
        let (count, width) = (rows.extent(1), rows.extent(2));
        let last = self.shape.last().copied().unwrap_or(1);
        let flat = rows.view([rows.extent(0), count * width]);
        flat.narrow(1, ..last as i32).view(&self.shape)
    }
}

/// Exact powers of two from -149 to 127.
fn power<'g>(exponent: Tensor<'g>) -> Tensor<'g> {
    let table: Vec<f32> = (-149..=127).map(|at| 2f64.powi(at) as f32).collect();
    let place = (exponent + 149.0).clip(0.0, 276.0).cast(DType::Int32);
    exponent.graph().floats([table.len()], &table).gather(place, ops::Gather::new().axis(0))
}

/// The largest exponent `e` with `2^e <= x`, within bounds, and its power. It is computed by a logarithm and
/// corrected for rounding errors.
fn binade<'g>(x: Tensor<'g>, low: i32, high: i32) -> (Tensor<'g>, Tensor<'g>) {
    let near = x.maximum(f32::MIN_POSITIVE).log(ops::Log::new().epsilon(0.0));
    let near = (near * std::f32::consts::LOG2_E).floor();
    let above = power(near + 1.0).less_equal(x).cast(DType::Fp32);
    let below = power(near).greater(x).cast(DType::Fp32);
    let exponent = (near + above - below).clip(low as f32, high as f32);
    (exponent, power(exponent))
}

/// Rounds numbers to a format, with ties to even. Numbers out of range are clamped.
pub(crate) fn rounded<'g>(x: Tensor<'g>, format: FloatFormat) -> Tensor<'g> {
    let size = x.abs().minimum(format.max_normal);
    let (exponent, _) = binade(size, format.emin().max(-126), 127);
    let bits = f32::from(format.man_bits);
    // Both factors of the step are representable powers of two; their product may not be.
    let grid = (size * power((exponent * -1.0 + bits).clip(-126.0, 126.0))).round();
    let size = (grid * power((exponent - bits).maximum(-126.0))).minimum(format.max_normal);
    size * x.sign()
}

/// The power of two that scales the maximum of a block to the topmost binade.
fn binade_scale<'g>(peak: Tensor<'g>, format: FloatFormat) -> Tensor<'g> {
    let (exponent, _) = binade(peak, -126, 127);
    let scale = power((exponent - format.emax() as f32).clip(-126.0, 127.0));
    peak.greater(0.0).select(scale, peak * 0.0 + 1.0)
}

/// The smallest scale with a 3-bit mantissa for which no element is clipped.
fn fine_scale<'g>(peak: Tensor<'g>, format: FloatFormat) -> Tensor<'g> {
    let (exponent, _) = binade(peak, -126, 127);
    let start = (exponent - format.emax() as f32 - 1.0).clip(-126.0, 125.0);
    // In ascending order, the candidates that clip come first, so their number selects the scale.
    let mut scale = power(start);
    let mut candidates = Vec::new();
    for binade in 0..3 {
        for eighth in 0..8 {
            let factor = (1.0 + eighth as f32 / 8.0) * f32::from(1u8 << binade);
            candidates.push(power(start) * factor);
        }
    }
    for pair in candidates.windows(2) {
        let clips = (pair[0] * format.max_normal).less(peak);
        scale = clips.select(pair[1], scale);
    }
    peak.greater(0.0).select(scale, peak * 0.0 + 1.0)
}

/// Decodes codes to numbers.
pub(crate) fn decoded<'g>(codes: Tensor<'g>, of: impl Fn(u8) -> f32) -> Tensor<'g> {
    // Codes of infinity and NaN do not occur, and would spoil the table in `fp16`.
    let table: Vec<f32> =
        (0..=u8::MAX).map(|code| Some(of(code)).filter(|x| x.is_finite()).unwrap_or(0.0)).collect();
    let codes = if codes.dtype() == DType::Int32 { codes } else { codes.cast(DType::Int32) };
    codes.graph().floats([256], &table).gather(codes, ops::Gather::new().axis(0))
}

/// Encodes numbers as the nearest codes, with ties to even.
fn encoded<'g>(x: Tensor<'g>, format: ScaledFormat) -> Tensor<'g> {
    let (_, mantissa, _) = format.fields();
    let y = rounded(x, FloatFormat::from_scaled(format));
    let size = y.abs();
    let grid = FloatFormat::from_scaled(format);
    let (exponent, power_of) = binade(size, grid.emin(), 127);
    // Subnormal numbers have the smallest normal exponent and no leading bit, which results in the same code.
    let fraction = size / power_of * (1u32 << mantissa) as f32;
    let code = (exponent - grid.emin() as f32) * (1u32 << mantissa) as f32 + fraction;
    let sign = y.less(0.0).cast(DType::Fp32) * (1u32 << (format.bit_width() - 1)) as f32;
    code + sign
}

/// Decodes scales.
fn scales(stored: Tensor<'_>, layout: ScaleLayout) -> Tensor<'_> {
    match layout {
        ScaleLayout::PerTensor => stored,
        ScaleLayout::BlockMxE8M0 { .. } => decoded(stored, lowp_codec::e8m0_to_f32),
        ScaleLayout::Nvfp4 { .. } => {
            decoded(stored, |code| lowp_codec::decode(ScaledFormat::F8E4M3, code))
        }
    }
}

/// Broadcasts scales to the elements of the last axis.
fn spread<'g>(
    site: &NodeContext<'_, 'g>,
    scales: Tensor<'g>,
    x: Tensor<'g>,
    layout: ScaleLayout,
) -> Result<Tensor<'g>, Error> {
    let width = match layout {
        ScaleLayout::PerTensor => return Ok(scales.view([1])),
        ScaleLayout::BlockMxE8M0 { block: width } | ScaleLayout::Nvfp4 { group: width } => width,
    };
    let blocks = Blocks::of(site, x, width)?;
    let (rows, count) = (blocks.rows.extent(0), blocks.rows.extent(1));
    let scales = scales.view([rows, count, 1]).tile([1, 1, width as i32]);
    Ok(blocks.joined(scales))
}

/// Multiplies decoded numbers by their scales.
fn scaled<'g>(
    site: &NodeContext<'_, 'g>,
    codes: Tensor<'g>,
    stored: Tensor<'g>,
    format: ScaledFormat,
    layout: ScaleLayout,
) -> Result<Tensor<'g>, Error> {
    let values = decoded(codes, |code| lowp_codec::decode(format, code));
    Ok(values * spread(site, scales(stored, layout), codes, layout)?)
}

/// A number represented as the sum of two floats.
#[derive(Clone, Copy)]
struct Pair<'g> {
    high: Tensor<'g>,
    low: Tensor<'g>,
}

impl<'g> Pair<'g> {
    fn of(x: Tensor<'g>) -> Pair<'g> {
        Pair { high: x.at(-1, 0), low: x.at(-1, 1) }
    }

    fn plain(high: Tensor<'g>) -> Pair<'g> {
        Pair { high, low: high * 0.0 }
    }

    /// The sum of two floats with its rounding error.
    fn two_sum(x: Tensor<'g>, y: Tensor<'g>) -> Pair<'g> {
        let high = x + y;
        let second = high - x;
        Pair { high, low: (x - (high - second)) + (y - second) }
    }

    /// The sum of two floats with its rounding error, if the first is larger.
    fn quick(x: Tensor<'g>, y: Tensor<'g>) -> Pair<'g> {
        let high = x + y;
        Pair { high, low: y - (high - x) }
    }

    /// The product of two floats with its rounding error, computed from 12-bit halves.
    fn two_product(x: Tensor<'g>, y: Tensor<'g>) -> Pair<'g> {
        let split = |x: Tensor<'g>| {
            let wide = x * 4097.0;
            let high = wide - (wide - x);
            (high, x - high)
        };
        let high = x * y;
        let ((a, b), (c, d)) = (split(x), split(y));
        Pair { high, low: ((a * c - high) + a * d + b * c) + b * d }
    }

    fn add(self, other: Pair<'g>) -> Pair<'g> {
        let (high, low) =
            (Pair::two_sum(self.high, other.high), Pair::two_sum(self.low, other.low));
        let first = Pair::quick(high.high, high.low + low.high);
        Pair::quick(first.high, first.low + low.low)
    }

    fn negated(self) -> Pair<'g> {
        Pair { high: self.high * -1.0, low: self.low * -1.0 }
    }

    fn mul(self, other: Pair<'g>) -> Pair<'g> {
        let product = Pair::two_product(self.high, other.high);
        let cross = self.high * other.low + self.low * other.high;
        Pair::quick(product.high, product.low + cross)
    }

    fn div(self, other: Pair<'g>) -> Pair<'g> {
        let first = self.high / other.high;
        let rest = self.add(other.mul(Pair::plain(first)).negated());
        let second = rest.high / other.high;
        let rest = rest.add(other.mul(Pair::plain(second)).negated());
        let sum = Pair::quick(first, second);
        sum.add(Pair::plain(rest.high / other.high))
    }

    fn sqrt(self) -> Pair<'g> {
        let root = self.high.sqrt();
        let rest = self.add(Pair::two_product(root, root).negated());
        Pair::quick(root, rest.high / (root * 2.0).maximum(f32::MIN_POSITIVE))
    }

    fn select(condition: Tensor<'g>, then: Pair<'g>, otherwise: Pair<'g>) -> Pair<'g> {
        Pair {
            high: condition.select(then.high, otherwise.high),
            low: condition.select(then.low, otherwise.low),
        }
    }

    fn maximum(self, other: Pair<'g>) -> Pair<'g> {
        let ahead = self.high.greater(other.high);
        let tied = self.high.equal(other.high).logical_and(self.low.greater(other.low));
        Pair::select(ahead.logical_or(tied), self, other)
    }

    /// `2^k (1 + r + r²/2! + …)` with `|r| ≤ ln 2 / 2`.
    fn exp(self) -> Pair<'g> {
        let graph = self.high.graph();
        let constant = |x: f64| {
            let high = x as f32;
            let low = (x - f64::from(high)) as f32;
            Pair { high: graph.float(high), low: graph.float(low) }
        };
        let turns = (self.high * std::f32::consts::LOG2_E).round();
        let rest = self.add(constant(std::f64::consts::LN_2).mul(Pair::plain(turns)).negated());
        let factorial = |n: u32| (1..=n).map(f64::from).product::<f64>();
        let mut sum = constant(1.0 / factorial(14));
        for order in (0..14).rev() {
            sum = sum.mul(rest).add(constant(1.0 / factorial(order)));
        }
        // Two factors, because 2^k alone may not be a normal number.
        let half = (turns * 0.5).floor();
        let (first, second) = (power(half), power(turns - half));
        Pair { high: sum.high * first * second, low: sum.low * first * second }
    }

    /// Reduces axes by repeated halving.
    fn reduced(
        self,
        site: &NodeContext<'_, 'g>,
        axes: &[usize],
        of: impl Fn(Pair<'g>, Pair<'g>) -> Pair<'g>,
    ) -> Pair<'g> {
        let mut pair = self;
        for &axis in axes {
            let part = |pair: Pair<'g>, from: usize, to: usize| {
                let cut = |x: Tensor<'g>| x.narrow(axis as i32, from as i32..to as i32);
                Pair { high: cut(pair.high), low: cut(pair.low) }
            };
            loop {
                let extent = pair.high.extent(axis);
                if extent < 2 {
                    break;
                }
                let half = extent / 2;
                let both = of(part(pair, 0, half), part(pair, half, 2 * half));
                pair = if extent.is_multiple_of(2) {
                    both
                } else {
                    let last = part(pair, 2 * half, extent);
                    let join = |x, y| site.joined([x, y], axis as i32);
                    Pair { high: join(both.high, last.high), low: join(both.low, last.low) }
                };
            }
        }
        pair
    }
}

/// Arithmetic on sums of two floats, which requires that `fp32` follows IEEE 754.
fn pairs<'g>(site: &NodeContext<'_, 'g>, op: &DfOp) -> Result<Tensor<'g>, Error> {
    let first = Pair::of(site.arg(0)?);
    let second = || Ok::<_, Error>(Pair::of(site.arg(1)?));
    let result = match op {
        DfOp::Add => first.add(second()?),
        DfOp::Sub => first.add(second()?.negated()),
        DfOp::Mul => first.mul(second()?),
        DfOp::Div => first.div(second()?),
        DfOp::Maximum => first.maximum(second()?),
        DfOp::Sqrt => first.sqrt(),
        DfOp::Exp => first.exp(),
        DfOp::Sum { axes, .. } => first.reduced(site, axes, Pair::add),
        DfOp::Max { axes, .. } => first.reduced(site, axes, Pair::maximum),
        DfOp::MatMul => {
            let second = second()?;
            // All products, `[.., m, k, n]`, summed along `k`.
            let tall = Pair { high: first.high.unsqueeze(-1), low: first.low.unsqueeze(-1) };
            let wide = Pair { high: second.high.unsqueeze(-3), low: second.low.unsqueeze(-3) };
            let products = tall.mul(wide);
            let axis = products.high.rank().saturating_sub(2);
            products.reduced(site, &[axis], Pair::add)
        }
    };
    let declared = site.shape()?;
    let shape = &declared[..declared.len().saturating_sub(1)];
    let column = |x: Tensor<'g>| x.view(shape).unsqueeze(-1);
    Ok(site.joined([column(result.high), column(result.low)], -1))
}
