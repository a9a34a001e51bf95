//! Fourier transforms and functions of spectra.

use coremill_graph::{DType, Error, Tensor, nn, ops};
use rlx_ir::Op;
use rlx_ir::fft::{FftNorm, FftQScale};

use crate::element::is_complex;
use crate::site::NodeContext;

pub(crate) fn lower<'g>(site: &NodeContext<'_, 'g>) -> Result<Option<Tensor<'g>>, Error> {
    let graph = site.graph;
    Ok(Some(match &site.node.op {
        Op::Fft { inverse, norm, .. } => {
            let x = site.float(0)?;
            let complex = site.declared(0).is_some_and(is_complex);
            let (re, im) = if complex {
                (x.at(-1, 0), x.at(-1, 1))
            } else {
                let size = (x.last_extent() / 2) as i32;
                (x.narrow(-1, ..size), x.narrow(-1, size..))
            };
            let size = re.last_extent();
            let (re, im) = nn::fft(re, Some(im), *inverse);
            // The inverse transform of this crate divides by the size.
            let scale =
                norm.output_scale(size, *inverse) * if *inverse { size as f64 } else { 1.0 };
            let parts = match complex {
                true => [re.unsqueeze(-1), im.unsqueeze(-1)],
                false => [re, im],
            };
            site.joined(parts, -1) * scale as f32
        }
        Op::FftQ { inverse, norm, scale } => fixed_point(site, *inverse, *norm, *scale)?,
        Op::FftButterflyStage { stage, n_fft } => {
            let [state, gate, reversed, re, im] = site.operands()?;
            let (half, stride) = ((*n_fft / 2) as usize, 1usize << (*stage).min(30));
            // The two numbers of a pair have their own axis, or are stored along the points.
            let count: usize = state.shape().iter().product();
            if half == 0 || half % stride != 0 || !count.is_multiple_of(4 * half) {
                return site.refuse(format!(
                    "has stage {stage} of a {n_fft}-point transform, which does not match {count} elements"
                ));
            }
            let batch = count / (4 * half);
            let pairs = state.view([batch, half / stride, 2, stride * 2]);
            let side = |at: i32| pairs.at(2, at).view([batch, half, 2]);
            let (top, bottom) = (side(0), side(1));
            let (b_re, b_im) = (bottom.at(2, 0), bottom.at(2, 1));
            let turned = graph.stack([b_re * re - b_im * im, b_re * im + b_im * re], -1);
            let (sum, difference) = (top + turned, top - turned);
            let column = |x: Tensor<'g>| x.view([half, 1]);
            let swaps = column(reversed).greater_equal(0.5);
            let runs = column(gate).not_equal(0.0);
            let first = runs.select(swaps.select(difference, sum), top);
            let second = runs.select(swaps.select(sum, difference), bottom);
            let part = |x: Tensor<'g>| x.view([batch, half / stride, 1, stride * 2]);
            site.joined([part(first), part(second)], 2)
        }
        Op::LogMel => {
            let mel = Mel::of(site)?;
            let levels = mel.levels();
            (levels.maximum(levels.max([-1], true) - 8.0) + 4.0) * 0.25
        }
        Op::LogMelBackward => {
            let mel = Mel::of(site)?;
            let dy = site.arg(2)?;
            let levels = mel.levels();
            let floor = levels.max([-1], true) - 8.0;
            let counts = (levels - floor).greater(1e-6).logical_and(mel.energy.greater(FAINTEST));
            let slope = counts.cast(DType::Fp32) * dy * (0.25 / std::f32::consts::LN_10);
            let of_power = (slope / mel.energy.maximum(FAINTEST)).dot(mel.filters) * 2.0;
            let (of_re, of_im) = (of_power * mel.re, of_power * mel.im);
            // Bins beyond half of the size are ignored.
            let mut shape = of_re.shape();
            if let Some(last) = shape.last_mut() {
                *last = mel.points - *last;
            }
            let rest = site.zeros(&shape);
            site.joined([of_re, rest, of_im, rest], -1)
        }
        Op::WelchPeaks { k, n_segments } => {
            let x = site.arg(0)?;
            let points = x.last_extent() / 2;
            let bins = points / 2 + 1;
            let part = |from: usize| x.narrow(-1, from as i32..(from + bins) as i32);
            let mut weights = vec![2.0 / *n_segments as f32; bins];
            for edge in [0, bins - 1] {
                weights[edge] = 1.0 / *n_segments as f32;
            }
            let power = part(0).square() + part(points).square();
            let power = power * graph.floats([bins], &weights);
            let batch = x.extent(0) / (*n_segments).max(1);
            let density = power.view([batch, *n_segments, bins]).sum([1], false);
            let (power, bin) = density.topk(ops::Topk::new().k((*k).min(bins) as i32).axis(-1));
            graph.stack([bin.cast(DType::Fp32), power], -1)
        }
        _ => return Ok(None),
    }))
}

/// Lower bound of powers.
const FAINTEST: f32 = 1e-10;

/// The bands of a spectrum in blocks of real and imaginary parts.
struct Mel<'g> {
    re: Tensor<'g>,
    im: Tensor<'g>,
    filters: Tensor<'g>,
    energy: Tensor<'g>,
    points: usize,
}

impl<'g> Mel<'g> {
    fn of(site: &NodeContext<'_, 'g>) -> Result<Mel<'g>, Error> {
        let (x, filters) = (site.arg(0)?, site.arg(1)?);
        let points = x.last_extent() / 2;
        let bins = points / 2 + 1;
        if filters.last_extent() != bins {
            let found = filters.last_extent();
            return site.refuse(format!(
                "must have filters with {bins} bins for {points} points, got {found}"
            ));
        }
        let part = |from: usize| x.narrow(-1, from as i32..(from + bins) as i32);
        let (re, im) = (part(0), part(points));
        let energy = (re.square() + im.square()).matmul_t(filters);
        Ok(Mel { re, im, filters, energy, points })
    }

    /// Decimal logarithms.
    fn levels(&self) -> Tensor<'g> {
        let natural = self.energy.maximum(FAINTEST).log(ops::Log::new().epsilon(0.0));
        natural * std::f32::consts::LOG10_E
    }
}

/// Number of fraction bits of a factor.
const FRACTION: u32 = 30;

/// Integers in three digits of 11 bits, whose products fit `int32`.
#[derive(Clone, Copy)]
struct Digits<'g>([Tensor<'g>; 3]);

impl<'g> Digits<'g> {
    fn of(x: Tensor<'g>) -> Digits<'g> {
        let middle = x.floor_div(1 << 11);
        Digits([x % (1 << 11), middle % (1 << 11), middle.floor_div(1 << 11)])
    }

    /// The five digits of a product, without carries.
    fn times(self, other: Digits<'g>) -> [Tensor<'g>; 5] {
        let ([a, b, c], [x, y, z]) = (self.0, other.0);
        [a * x, a * y + b * x, a * z + b * y + c * x, b * z + c * y, c * z]
    }
}

/// A five-digit number divided by `2^30`, with ties rounded up.
fn shifted([a, b, c, d, e]: [Tensor<'_>; 5]) -> Tensor<'_> {
    let b = b + a.floor_div(1 << 11);
    let c = c + b.floor_div(1 << 11) + (1 << (FRACTION - 1 - 22));
    let d = d + c.floor_div(1 << 11);
    (c % (1 << 11)).floor_div(1 << (FRACTION - 22)) + d * 8 + e * (1 << 14)
}

/// An integer divided by a power of two, with ties rounded up.
fn halved(x: Tensor<'_>, bits: u32) -> Tensor<'_> {
    let (whole, half) = (1 << bits, 1 << (bits - 1));
    x.floor_div(whole) + (x % whole).floor_div(half)
}

/// A sum that saturates at the limits of `int32`.
fn saturated<'g>(x: Tensor<'g>, y: Tensor<'g>) -> Tensor<'g> {
    let room = x.maximum(0) * -1 + i32::MAX;
    let depth = x.minimum(0) * -1 + i32::MIN;
    x + y.minimum(room).maximum(depth)
}

/// A transform of integers, with the rounding of 64-bit arithmetic in each step.
fn fixed_point<'g>(
    site: &NodeContext<'_, 'g>,
    inverse: bool,
    norm: FftNorm,
    scale: FftQScale,
) -> Result<Tensor<'g>, Error> {
    let graph = site.graph;
    let x = site.indices(0)?;
    let points = x.last_extent() / 2;
    if !points.is_power_of_two() {
        return site
            .refuse(format!("must have a number of points that is a power of two, got {points}"));
    }
    let rows = x.shape().iter().product::<usize>() / (2 * points);
    let bits = points.trailing_zeros();
    let order: Vec<i32> = (0..points as u32)
        .map(|at| if bits == 0 { 0 } else { (at.reverse_bits() >> (32 - bits)) as i32 })
        .collect();
    let order = graph.ints([points], &order);
    let parts = x.view([rows, 2, points]);
    let part = |at: i32| parts.at(1, at).gather(order, ops::Gather::new().axis(1));
    let (mut re, mut im) = (part(0), part(1));
    let one = f64::from(1u32 << FRACTION);
    for stage in 0..bits {
        let length = 2usize << stage;
        let angle = |k: usize| {
            let turn = std::f64::consts::TAU * k as f64 / length as f64;
            if inverse { turn } else { -turn }
        };
        let table = |of: fn(f64) -> f64| {
            let factors: Vec<i32> =
                (0..length / 2).map(|k| (of(angle(k)) * one).round() as i32).collect();
            Digits::of(graph.ints([length / 2], &factors))
        };
        let (cos, sin) = (table(f64::cos), table(f64::sin));
        let split = |x: Tensor<'g>| {
            let pairs = x.view([rows, points / length, 2, length / 2]);
            (pairs.at(2, 0), pairs.at(2, 1))
        };
        let ((a_re, b_re), (a_im, b_im)) = (split(re), split(im));
        let (d_re, d_im) = (Digits::of(b_re), Digits::of(b_im));
        let combine = |x: [Tensor<'g>; 5], y: [Tensor<'g>; 5], sign: i32| {
            shifted(std::array::from_fn(|at| x[at] + y[at] * sign))
        };
        let turned_re = combine(cos.times(d_re), sin.times(d_im), -1);
        let turned_im = combine(cos.times(d_im), sin.times(d_re), 1);
        let halves = match scale {
            FftQScale::PerStage => true,
            FftQScale::EveryOther => stage % 2 == 0,
            FftQScale::None | FftQScale::Saturating => false,
        };
        let butterfly = |a: Tensor<'g>, b: Tensor<'g>| {
            let (top, bottom) = match scale {
                FftQScale::Saturating => (saturated(a, b), saturated(a, b * -1)),
                _ => (a + b, a - b),
            };
            let row = |x: Tensor<'g>| x.unsqueeze(2);
            let all = site.joined([row(top), row(bottom)], 2).view([rows, points]);
            if halves { halved(all, 1) } else { all }
        };
        (re, im) = (butterfly(a_re, turned_re), butterfly(a_im, turned_im));
    }
    let finish = |x: Tensor<'g>| match norm {
        FftNorm::Forward if !inverse && bits > 0 => halved(x, bits),
        FftNorm::Ortho => {
            let factor = (one / (points as f64).sqrt()).round() as i32;
            shifted(Digits::of(x).times(Digits::of(graph.int(factor))))
        }
        _ => x,
    };
    Ok(site.joined([finish(re), finish(im)], 1))
}
