//! Conversion of audio to another number of samples per second.

use std::f64::consts::PI;

/// Zero crossings of the filter on each side.
const CROSSINGS: f64 = 32.0;

/// Share of the lower rate's band that passes.
const PASSED: f64 = 0.95;

/// Shape of Kaiser's window; sounds above the band are at least 80 dB lower.
const BETA: f64 = 8.5;

/// The modified Bessel function of order 0.
fn bessel(x: f64) -> f64 {
    let (mut sum, mut term) = (1.0, 1.0);
    for k in 1..50 {
        term *= (x / 2.0 / f64::from(k)).powi(2);
        sum += term;
    }
    sum
}

fn divisor(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { divisor(b, a % b) }
}

/// Resamples with a windowed sinc. Silence surrounds the samples.
pub(super) fn resampled(samples: &[f32], from: u32, to: u32) -> Vec<f32> {
    let common = divisor(from, to).max(1);
    let (from, to) = (u64::from(from / common), u64::from(to / common));
    if from == 0 || to == 0 {
        return Vec::new();
    }
    // The band in cycles for each two input samples.
    let band = PASSED * (to as f64 / from as f64).min(1.0);
    let reach = (CROSSINGS / band).ceil() as i64;
    let weight = |distance: f64| {
        let x = PI * band * distance;
        let sinc = if x == 0.0 { 1.0 } else { x.sin() / x };
        let edge = 1.0 - (distance / reach as f64).powi(2);
        let window = if edge > 0.0 { bessel(BETA * edge.sqrt()) / bessel(BETA) } else { 0.0 };
        band * sinc * window
    };
    let count = (samples.len() as u64 * to).div_ceil(from);
    let taps = 2 * reach as usize;
    // Outputs at the same place between two inputs have the same weights.
    let mut phases: Vec<Vec<f32>> = vec![Vec::new(); to as usize];
    let mut resampled = Vec::with_capacity(count as usize);
    for output in 0..count {
        let place = output * from;
        let (before, phase) = ((place / to) as i64, (place % to) as usize);
        let weights = &mut phases[phase];
        if weights.is_empty() {
            let at = phase as f64 / to as f64;
            weights
                .extend((0..taps).map(|tap| weight((tap as i64 - reach + 1) as f64 - at) as f32));
        }
        let first = before - reach + 1;
        let skipped = usize::try_from(-first).unwrap_or(0).min(taps);
        let start = usize::try_from(first).unwrap_or(0);
        let inputs = samples.get(start..).unwrap_or_default();
        resampled.push(weights[skipped..].iter().zip(inputs).map(|(a, b)| a * b).sum());
    }
    resampled
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tone(hertz: f64, rate: u32) -> Vec<f32> {
        let at = |index: u32| (2.0 * PI * hertz * f64::from(index) / f64::from(rate)).sin() as f32;
        (0..rate).map(at).collect()
    }

    #[test]
    fn resampling_keeps_tones_below_nyquist_only() {
        for (from, hertz) in [(44_100, 1000.0), (48_000, 7000.0), (8_000, 3500.0), (11_025, 440.0)]
        {
            let found = resampled(&tone(hertz, from), from, 16_000);
            let expected = tone(hertz, 16_000);
            assert_eq!(found.len(), expected.len());
            let errors = found.iter().zip(&expected).map(|(a, b)| (a - b).abs());
            let max_error = errors.skip(500).take(15_000).fold(0.0, f32::max);
            assert!(max_error < 1e-3, "{from} samples per second: maximum error {max_error}");
        }
        let found = resampled(&tone(9000.0, 44_100), 44_100, 16_000);
        let peak = found[500..15_500].iter().fold(0.0f32, |peak, it| peak.max(it.abs()));
        assert!(peak < 1e-4, "9000 Hz is above the Nyquist frequency, but has amplitude {peak}");
    }
}
