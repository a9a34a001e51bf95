//! Fast Fourier transforms of any length.

use std::f64::consts::TAU;

/// A complex number.
pub(super) type Complex = [f64; 2];

fn product([a, b]: Complex, [c, d]: Complex) -> Complex {
    [a * c - b * d, a * d + b * c]
}

/// A transform of a length, which takes the sum of the length's prime factors in operations for each element.
#[derive(Clone, Debug)]
pub(super) struct Fourier {
    /// `e^(-2πi k / length)` for each `k`.
    roots: Vec<Complex>,
    factors: Vec<usize>,
}

impl Fourier {
    pub(super) fn new(length: usize) -> Fourier {
        let angle = |k: usize| TAU * k as f64 / length as f64;
        let roots = (0..length).map(|k| [angle(k).cos(), -angle(k).sin()]).collect();
        let mut factors = Vec::new();
        let mut rest = length;
        let mut factor = 2;
        while rest > 1 {
            if factor * factor > rest {
                factor = rest;
            }
            while rest.is_multiple_of(factor) {
                factors.push(factor);
                rest /= factor;
            }
            factor += 1;
        }
        Fourier { roots, factors }
    }

    /// Transforms `input` to `output`, which have the transform's length.
    pub(super) fn apply(&self, input: &[Complex], output: &mut [Complex]) {
        self.part(input, 1, output, &self.factors);
    }

    /// Transforms every `stride`-th element of `input`.
    fn part(&self, input: &[Complex], stride: usize, output: &mut [Complex], factors: &[usize]) {
        let Some((&factor, rest)) = factors.split_first() else {
            output[0] = input[0];
            return;
        };
        let length = output.len();
        let part = length / factor;
        for first in 0..factor {
            let own = &mut output[first * part..(first + 1) * part];
            self.part(&input[first * stride..], stride * factor, own, rest);
        }
        let count = self.roots.len();
        let step = count / length;
        let mut terms = [[0.0; 2]; 8];
        let mut many = Vec::new();
        let terms = match factor {
            0..=8 => &mut terms[..factor],
            _ => {
                many.resize(factor, [0.0; 2]);
                &mut many[..]
            }
        };
        for at in 0..part {
            for (index, term) in terms.iter_mut().enumerate() {
                *term = product(output[index * part + at], self.roots[index * at * step]);
            }
            for index in 0..factor {
                let mut sum = terms[0];
                for (other, &term) in terms.iter().enumerate().skip(1) {
                    let turn = index * other % factor * (count / factor);
                    let [re, im] = product(term, self.roots[turn]);
                    sum = [sum[0] + re, sum[1] + im];
                }
                output[index * part + at] = sum;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fft_matches_dft_definition() {
        for length in [1, 2, 3, 8, 12, 25, 34, 400] {
            let value = |at: usize| [(at as f64 * 1.7).sin(), (at as f64 * 0.3).cos()];
            let input: Vec<Complex> = (0..length).map(value).collect();
            let mut found = vec![[0.0; 2]; length];
            Fourier::new(length).apply(&input, &mut found);
            for (bin, found) in found.iter().enumerate() {
                let mut expected = [0.0; 2];
                for (at, &value) in input.iter().enumerate() {
                    let angle = TAU * (at * bin % length) as f64 / length as f64;
                    let [re, im] = product(value, [angle.cos(), -angle.sin()]);
                    expected = [expected[0] + re, expected[1] + im];
                }
                let error = (found[0] - expected[0]).hypot(found[1] - expected[1]);
                assert!(error < 1e-10, "{length}, bin {bin}: {error}");
            }
        }
    }
}
