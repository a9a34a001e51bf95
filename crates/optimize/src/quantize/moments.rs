//! Rounding that minimizes output error: other channels compensate the rounding error of a channel.
//!
//! This is GPTQ. With the second moments `H` of a layer's inputs, the output error is
//! `(w − q) H (w − q)ᵀ`. In the factorization `H = L Lᵀ`, the last channel is independent of the
//! others, the one before depends only on the last, and so on. Channels are rounded in this order,
//! each optimally given the ones already rounded. Then channels are revisited with all others
//! fixed, until none changes.

use std::io;
use std::sync::{Mutex, PoisonError};

use coremill_io::share;

/// Maximum number of input channels. The factorization takes cubic time, so larger layers are
/// rounded to nearest.
const MAX_CHANNELS: usize = 4096;
/// Damping of the diagonal, relative to its mean. Needed for channels without signal.
const DAMPING: f64 = 0.01;
/// Maximum number of sweeps over all channels.
const MAX_SWEEPS: usize = 8;
/// Maximum number of alternations between fitting scales and codes.
const MAX_FITS: usize = 4;

/// Second moments of a layer's input.
#[derive(Clone, Debug)]
pub(super) struct InputHessian {
    channels: usize,
    /// Lower triangle, in row-major order.
    sums: Vec<f64>,
}

/// Error metric of a layer's weights.
pub(super) struct Metric {
    channels: usize,
    /// Order of the channels in this struct. The last has the strongest signal and is rounded
    /// first.
    order: Vec<usize>,
    /// `H`, in row-major order.
    matrix: Vec<f64>,
    /// `Lᵀ`, in row-major order.
    factor: Vec<f64>,
}

/// The codes of a row of weights.
struct RoundedRow {
    /// Indexed by channel.
    codes: Vec<f32>,
    /// Error of each channel in the metric's order; `slopes` is the error times `H`.
    off: Vec<f64>,
    slopes: Vec<f64>,
}

impl InputHessian {
    /// Creates empty moments, `None` if there are too many channels.
    pub(super) fn new(channels: usize) -> Option<InputHessian> {
        let is_sound = (1..=MAX_CHANNELS).contains(&channels);
        is_sound.then(|| InputHessian { channels, sums: vec![0.0; channels * channels] })
    }

    /// Adds one input vector.
    pub(super) fn see(&mut self, row: &[f32]) {
        for (at, &left) in row.iter().enumerate() {
            if left != 0.0 {
                let sums = &mut self.sums[at * self.channels..][..=at];
                for (sum, &right) in sums.iter_mut().zip(row) {
                    *sum += f64::from(left) * f64::from(right);
                }
            }
        }
    }

    /// The error metric, `None` if the input had no signal.
    pub(super) fn metric(&self) -> Option<Metric> {
        let size = self.channels;
        let power = |at: usize| self.sums[at * size + at];
        let mean = (0..size).map(power).sum::<f64>() / size as f64;
        if mean <= 0.0 || !mean.is_finite() {
            return None;
        }
        let mut order: Vec<usize> = (0..size).collect();
        order.sort_by(|&left, &right| power(left).total_cmp(&power(right)));
        let mut matrix = vec![0.0; size * size];
        for (row, &left) in order.iter().enumerate() {
            for (column, &right) in order[..=row].iter().enumerate() {
                let sum = self.sums[left.max(right) * size + left.min(right)] / mean;
                let sum = if row == column { sum + DAMPING } else { sum };
                (matrix[row * size + column], matrix[column * size + row]) = (sum, sum);
            }
        }
        let mut lower = matrix.clone();
        cholesky(&mut lower, size)?;
        let mut factor = vec![0.0; size * size];
        for row in 0..size {
            for column in 0..=row {
                factor[column * size + row] = lower[row * size + column];
            }
        }
        Some(Metric { channels: size, order, matrix, factor })
    }
}

impl Metric {
    /// Cost of each channel's own error.
    pub(super) fn powers(&self) -> Vec<f64> {
        let mut powers = vec![0.0; self.channels];
        for (at, &channel) in self.order.iter().enumerate() {
            powers[channel] = self.matrix[at * self.channels + at];
        }
        powers
    }

    /// Rounds a row of weights. `code` quantizes a number in a channel, `value` dequantizes it.
    pub(super) fn codes(
        &self,
        weights: &[f32],
        code: &dyn Fn(usize, f32) -> f32,
        value: &dyn Fn(usize, f32) -> f32,
    ) -> Vec<f32> {
        self.rounded(weights, code, value).codes
    }

    /// Rounds a row of weights in blocks of `block` channels. Also returns fitted scales near
    /// `scales`.
    pub(super) fn fitted(
        &self,
        weights: &[f32],
        scales: &[f32],
        block: usize,
        code: &dyn Fn(f32, f32) -> f32,
        stored: &dyn Fn(f32) -> f32,
    ) -> (Vec<f32>, Vec<f32>) {
        let mut scales = scales.to_vec();
        let mut best: Option<(f64, Vec<f32>, Vec<f32>)> = None;
        for _ in 0..MAX_FITS {
            let of = |channel: usize| scales[channel / block];
            let mut rounded = self.rounded(
                weights,
                &|channel, number| code(number, of(channel)),
                &|channel, code| code * of(channel),
            );
            let cost = rounded.cost();
            if best.as_ref().is_some_and(|(least, ..)| cost >= *least) {
                break;
            }
            let better = self.scales(&mut rounded, &scales, block, stored);
            best = Some((cost, rounded.codes, std::mem::replace(&mut scales, better)));
        }
        best.map(|(_, codes, scales)| (codes, scales)).unwrap_or_default()
    }

    fn rounded(
        &self,
        weights: &[f32],
        code: &dyn Fn(usize, f32) -> f32,
        value: &dyn Fn(usize, f32) -> f32,
    ) -> RoundedRow {
        let size = self.channels;
        let (mut codes, mut off) = (vec![0f32; size], vec![0f64; size]);
        for at in (0..size).rev() {
            let (channel, factor) = (self.order[at], &self.factor[at * size..][..size]);
            let made_up = dot(&factor[at + 1..], &off[at + 1..]) / factor[at];
            let weight = f64::from(weights[channel]);
            codes[channel] = code(channel, (weight + made_up) as f32);
            off[at] = weight - f64::from(value(channel, codes[channel]));
        }
        let row = |at: usize| &self.matrix[at * size..][..size];
        let slopes = (0..size).map(|at| dot(row(at), &off)).collect();
        let mut rounded = RoundedRow { codes, off, slopes };
        for _ in 0..MAX_SWEEPS {
            let mut is_changed = false;
            for at in (0..size).rev() {
                let channel = self.order[at];
                let held = rounded.codes[channel];
                let now = f64::from(value(channel, held));
                let best = now + rounded.slopes[at] / row(at)[at];
                let found = code(channel, best as f32);
                if found != held {
                    let found_value = f64::from(value(channel, found));
                    // Keep the code if both are equally good.
                    if (found_value - best).abs() < (now - best).abs() {
                        rounded.codes[channel] = found;
                        rounded.moved(at, now - found_value, row(at));
                        is_changed = true;
                    }
                }
            }
            if !is_changed {
                break;
            }
        }
        rounded
    }

    /// Fits the scale of each block to the codes.
    fn scales(
        &self,
        rounded: &mut RoundedRow,
        scales: &[f32],
        block: usize,
        stored: &dyn Fn(f32) -> f32,
    ) -> Vec<f32> {
        let size = self.channels;
        let mut places = vec![Vec::new(); scales.len()];
        for (at, &channel) in self.order.iter().enumerate() {
            places[channel / block].push(at);
        }
        let mut better = scales.to_vec();
        for (scale, places) in better.iter_mut().zip(&places) {
            let code = |at: usize| f64::from(rounded.codes[self.order[at]]);
            let codes: Vec<(usize, f64)> = places.iter().map(|&at| (at, code(at))).collect();
            let gain: f64 = codes.iter().map(|&(at, code)| code * rounded.slopes[at]).sum();
            let bend: f64 = codes
                .iter()
                .map(|&(row, left)| {
                    let row = &self.matrix[row * size..][..size];
                    left * codes.iter().map(|&(at, right)| right * row[at]).sum::<f64>()
                })
                .sum();
            let wanted = f64::from(*scale) + gain / bend;
            if bend > 0.0 && wanted > 0.0 && wanted.is_finite() {
                let found = stored(wanted as f32);
                let step = f64::from(*scale) - f64::from(found);
                *scale = found;
                for (at, code) in codes {
                    rounded.moved(at, step * code, &self.matrix[at * size..][..size]);
                }
            }
        }
        better
    }
}

impl RoundedRow {
    fn cost(&self) -> f64 {
        dot(&self.off, &self.slopes)
    }

    /// Records a change `by` of a channel's error. `row` is the channel's row of the moments.
    fn moved(&mut self, at: usize, by: f64, row: &[f64]) {
        self.off[at] += by;
        self.slopes.iter_mut().zip(row).for_each(|(slope, &moment)| *slope += by * moment);
    }
}

/// Computes `count` rows in parallel.
pub(super) fn by_rows<T: Send>(count: usize, make: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let done = Mutex::new((0..count).map(|_| None).collect::<Vec<Option<T>>>());
    let visit = |(): &mut (), row: usize| -> io::Result<()> {
        let made = make(row);
        done.lock().unwrap_or_else(PoisonError::into_inner)[row] = Some(made);
        Ok(())
    };
    // Rows cannot fail. After cancellation the result is discarded.
    let _ = share(count, usize::MAX, || (), visit);
    done.into_inner().unwrap_or_else(PoisonError::into_inner).into_iter().flatten().collect()
}

/// Dot product with several partial sums, for vectorization.
fn dot(left: &[f64], right: &[f64]) -> f64 {
    const LANES: usize = 8;
    let ((left, left_rest), (right, right_rest)) =
        (left.as_chunks::<LANES>(), right.as_chunks::<LANES>());
    let mut sums = [0.0; LANES];
    for (left, right) in left.iter().zip(right) {
        for ((sum, left), right) in sums.iter_mut().zip(left).zip(right) {
            *sum += left * right;
        }
    }
    let rest: f64 = left_rest.iter().zip(right_rest).map(|(left, right)| left * right).sum();
    sums.iter().sum::<f64>() + rest
}

/// Cholesky factorization in place. `None` if the matrix is not positive definite.
fn cholesky(matrix: &mut [f64], size: usize) -> Option<()> {
    for row in 0..size {
        let (above, rest) = matrix.split_at_mut(row * size);
        let row_of = &mut rest[..size];
        for column in 0..row {
            let other = &above[column * size..][..size];
            let left = row_of[column] - dot(&row_of[..column], &other[..column]);
            row_of[column] = left / other[column];
        }
        let left = row_of[row] - dot(&row_of[..row], &row_of[..row]);
        if left <= 0.0 || !left.is_finite() {
            return None;
        }
        row_of[row] = left.sqrt();
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Random numbers around 0.
    fn random(count: usize, mut state: u32) -> Vec<f32> {
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 24) as f32 - 0.5
        };
        (0..count).map(|_| next()).collect()
    }

    const SIZE: usize = 24;

    /// Inputs in which each channel is strongly correlated with the one before.
    fn inputs() -> Vec<f32> {
        let new = random(400 * SIZE, 1);
        let row = |new: &[f32]| {
            let next = |last: &mut f32, new: &f32| {
                *last = 0.95 * *last + new;
                Some(*last)
            };
            new.iter().scan(0.0, next).collect::<Vec<f32>>()
        };
        new.chunks_exact(SIZE).flat_map(row).collect()
    }

    fn metric(inputs: &[f32]) -> Metric {
        let mut moments = InputHessian::new(SIZE).expect("few channels");
        inputs.chunks_exact(SIZE).for_each(|row| moments.see(row));
        moments.metric().expect("nonzero inputs")
    }

    /// Power of the output error for one row of weights.
    fn output_error(inputs: &[f32], weights: &[f32], values: &[f32]) -> f64 {
        let of = |row: &[f32]| {
            let sum: f32 = (0..SIZE).map(|at| (weights[at] - values[at]) * row[at]).sum();
            f64::from(sum).powi(2)
        };
        inputs.chunks_exact(SIZE).map(of).sum()
    }

    #[test]
    fn gptq_rounding_beats_nearest_rounding() {
        let (inputs, step) = (inputs(), 0.07);
        let metric = metric(&inputs);
        let (mut found, mut nearest) = (0.0, 0.0);
        for seed in 2..10 {
            let weights = random(SIZE, seed);
            let code = |_: usize, number: f32| (number / step).round();
            let value = |_: usize, code: f32| code * step;
            let codes = metric.codes(&weights, &code, &value);
            let values: Vec<f32> = codes.iter().map(|code| code * step).collect();
            found += output_error(&inputs, &weights, &values);
            let values: Vec<f32> = weights.iter().map(|&weight| code(0, weight) * step).collect();
            nearest += output_error(&inputs, &weights, &values);
        }
        assert!(
            found < 0.25 * nearest,
            "the error is {found}, and {nearest} with nearest rounding"
        );
    }

    #[test]
    fn fitted_scales_reduce_output_error() {
        let inputs = inputs();
        let metric = metric(&inputs);
        let code = |number: f32, scale: f32| (number / scale).round().clamp(-8.0, 7.0);
        let values = |codes: &[f32], scales: &[f32]| -> Vec<f32> {
            codes.iter().enumerate().map(|(at, code)| code * scales[at / 8]).collect()
        };
        let (mut fitted, mut given) = (0.0, 0.0);
        for seed in 20..28 {
            let weights = random(SIZE, seed);
            let scales = [0.09f32; 3];
            let (codes, better) = metric.fitted(&weights, &scales, 8, &code, &|scale| scale);
            fitted += output_error(&inputs, &weights, &values(&codes, &better));
            let codes =
                metric.codes(&weights, &|at, number| code(number, scales[at / 8]), &|at, code| {
                    code * scales[at / 8]
                });
            given += output_error(&inputs, &weights, &values(&codes, &scales));
        }
        assert!(
            fitted < 0.95 * given,
            "the error is {fitted} with fitted scales, and {given} with the given ones"
        );
    }

    #[test]
    fn hessian_requires_signal_and_bounded_channels() {
        assert!(InputHessian::new(4).expect("few channels").metric().is_none());
        assert!(InputHessian::new(MAX_CHANNELS + 1).is_none());
    }
}
