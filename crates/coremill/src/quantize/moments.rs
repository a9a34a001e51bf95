//! Roundings that cost outputs least: what one input channel is off by is made up for by those behind it.
//!
//! As in GPTQ: with the second moments `H` of a layer's inputs, the outputs are off by `(w − q) H (w − q)ᵀ`. Channels are
//! rounded one after the other, and what each is off by is spread over those that are left, by the factor of `H⁻¹`.

use coremill_engine::Array;

/// Layers of more input channels are rounded to the nearest: the factor takes their number to the third.
const MOST_CHANNELS: usize = 4096;
/// What is added to the diagonal, in parts of its mean, so that channels without a signal do no harm.
const DAMPING: f64 = 0.01;

/// The second moments of what a layer is given.
#[derive(Clone, Debug)]
pub(super) struct Moments {
    channels: usize,
    /// The lower triangle, row by row.
    sums: Vec<f64>,
}

impl Moments {
    /// Moments of so many channels; none if they are too many.
    pub(super) fn new(channels: usize) -> Option<Moments> {
        let is_sound = (1..=MOST_CHANNELS).contains(&channels);
        is_sound.then(|| Moments { channels, sums: vec![0.0; channels * channels] })
    }

    /// Takes in rows of a layer's input.
    pub(super) fn see(&mut self, input: &Array) {
        let Some(elements) = input.as_floats() else { return };
        for row in elements.chunks_exact(self.channels) {
            for (at, &left) in row.iter().enumerate() {
                if left != 0.0 {
                    let sums = &mut self.sums[at * self.channels..][..=at];
                    for (sum, &right) in sums.iter_mut().zip(row) {
                        *sum += f64::from(left) * f64::from(right);
                    }
                }
            }
        }
    }

    /// The upper factor `U` of the inverse, `H⁻¹ = Uᵀ U`, row by row; none if there was no signal.
    fn factor(&self) -> Option<Vec<f64>> {
        let size = self.channels;
        let mean = (0..size).map(|at| self.sums[at * size + at]).sum::<f64>() / size as f64;
        if mean <= 0.0 || !mean.is_finite() {
            return None;
        }
        let mut lower = self.sums.clone();
        for at in 0..size {
            lower[at * size + at] += DAMPING * mean;
        }
        cholesky(&mut lower, size)?;
        // The inverse of the factor, in place of it.
        let mut inverse = vec![0.0; size * size];
        for column in 0..size {
            inverse[column * size + column] = 1.0 / lower[column * size + column];
            for row in column + 1..size {
                let sum: f64 = (column..row)
                    .map(|at| lower[row * size + at] * inverse[at * size + column])
                    .sum();
                inverse[row * size + column] = -sum / lower[row * size + row];
            }
        }
        // H⁻¹ = L⁻ᵀ L⁻¹, of which the factor is taken.
        let mut product = vec![0.0; size * size];
        for row in 0..size {
            for column in 0..=row {
                product[row * size + column] = (row..size)
                    .map(|at| inverse[at * size + row] * inverse[at * size + column])
                    .sum();
            }
        }
        cholesky(&mut product, size)?;
        let mut upper = vec![0.0; size * size];
        for row in 0..size {
            for column in row..size {
                upper[row * size + column] = product[column * size + row];
            }
        }
        Some(upper)
    }

    /// Rounds the rows of a matrix: `code` gives the code of an element of a place, `value` what a code stands for.
    pub(super) fn round(
        &self,
        elements: &[f32],
        code: &dyn Fn(usize, f32) -> f32,
        value: &dyn Fn(usize, f32) -> f32,
    ) -> Option<Vec<f32>> {
        let size = self.channels;
        let upper = self.factor()?;
        let mut codes = Vec::with_capacity(elements.len());
        let mut rest = vec![0f64; size];
        for (row, weights) in elements.chunks_exact(size).enumerate() {
            for (rest, &weight) in rest.iter_mut().zip(weights) {
                *rest = f64::from(weight);
            }
            for at in 0..size {
                let place = row * size + at;
                let found = code(place, rest[at] as f32);
                let off = (rest[at] - f64::from(value(place, found))) / upper[at * size + at];
                codes.push(found);
                let (factors, rest) = (&upper[at * size..][..size], &mut rest);
                for later in at + 1..size {
                    rest[later] -= off * factors[later];
                }
            }
        }
        Some(codes)
    }
}

/// The lower factor of a symmetric matrix, in its place; none if there is none.
fn cholesky(matrix: &mut [f64], size: usize) -> Option<()> {
    for column in 0..size {
        for row in column..size {
            let (left, right) = (&matrix[row * size..], &matrix[column * size..]);
            let sum: f64 = left[..column].iter().zip(&right[..column]).map(|(a, b)| a * b).sum();
            let rest = matrix[row * size + column] - sum;
            matrix[row * size + column] = if row == column {
                if rest <= 0.0 || !rest.is_finite() {
                    return None;
                }
                rest.sqrt()
            } else {
                rest / matrix[column * size + column]
            };
        }
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_off_is_made_up_for() {
        // Inputs of which each is nearly the sum of the one before and something new.
        let mut state = 1u32;
        let mut random = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 24) as f32 - 0.5
        };
        let size = 24;
        let rows: Vec<f32> = (0..400)
            .flat_map(|_| {
                let mut last = 0.0;
                let row: Vec<f32> = (0..size)
                    .map(|_| {
                        last = 0.95 * last + random();
                        last
                    })
                    .collect();
                row
            })
            .collect();
        let weights: Vec<f32> = (0..8 * size).map(|_| random()).collect();
        let input = Array::floats(coremill_tensor::DType::Fp32, [400, size], rows.clone());
        let mut moments = Moments::new(size).expect("few channels");
        moments.see(&input);
        let step = 0.07;
        let code = |_: usize, number: f32| (number / step).round();
        let value = |_: usize, code: f32| code * step;
        let rounded = moments.round(&weights, &code, &value).expect("there is a signal");
        let off = |codes: &[f32]| -> f64 {
            let mut sum = 0.0;
            for row in rows.chunks_exact(size) {
                for (weights, codes) in weights.chunks_exact(size).zip(codes.chunks_exact(size)) {
                    let off: f32 =
                        (0..size).map(|at| (weights[at] - codes[at] * step) * row[at]).sum();
                    sum += f64::from(off).powi(2);
                }
            }
            sum
        };
        let nearest: Vec<f32> = weights.iter().map(|&weight| code(0, weight)).collect();
        let (one, other) = (off(&rounded), off(&nearest));
        assert!(one < 0.5 * other, "{one} of {other}");
    }

    #[test]
    fn without_a_signal_there_is_nothing_to_make_up() {
        let moments = Moments::new(4).expect("few channels");
        assert!(moments.round(&[1.0; 4], &|_, number| number, &|_, code| code).is_none());
        assert!(Moments::new(MOST_CHANNELS + 1).is_none());
    }
}
