//! Ranges of activations, from samples.

use std::str::FromStr;

use coremill_io::unknown_name;

use crate::error::Error;

/// Algorithm that chooses the range of an 8-bit activation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Observer {
    /// The minimum and maximum over all samples.
    #[default]
    MinMax,
    /// The moving average of each sample's minimum and maximum, like torch's observer.
    MovingAverage,
    /// The range of 99.99 % of the values.
    Percentile,
    /// The range that minimizes the divergence between the histograms before and after
    /// quantization.
    Entropy,
    /// The range that minimizes the mean squared error.
    Mse,
}

impl Observer {
    /// All observers with their names.
    pub const NAMES: [(&'static str, Observer); 5] = [
        ("min-max", Observer::MinMax),
        ("moving-average", Observer::MovingAverage),
        ("percentile", Observer::Percentile),
        ("entropy", Observer::Entropy),
        ("mse", Observer::Mse),
    ];

    fn counts(self) -> bool {
        !matches!(self, Observer::MinMax | Observer::MovingAverage)
    }
}

impl FromStr for Observer {
    type Err = Error;

    fn from_str(text: &str) -> Result<Observer, Error> {
        let found = Observer::NAMES.iter().find(|(name, _)| *name == text);
        found.map(|(_, observer)| *observer).ok_or_else(|| {
            let known = Observer::NAMES.iter().map(|(name, _)| name);
            Error::new(unknown_name("observer", text, known))
        })
    }
}

/// Number of histogram bins.
const BINS: usize = 2048;
/// Weight of a new sample in the moving average, as in torch.
const MOVING: f32 = 0.01;
/// Share of the values within the percentile range.
const PERCENTILE: f64 = 0.9999;
/// Number of levels of a quantized activation.
const STEPS: f64 = 256.0;

/// Statistics of an activation.
#[derive(Clone, Debug)]
pub(super) struct CalibrationStats {
    observer: Observer,
    min: f32,
    max: f32,
    samples: usize,
    /// Histogram of magnitudes, and its upper bound.
    bins: Vec<f64>,
    reach: f32,
}

/// Scale and zero point of a `uint8` activation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Range {
    pub(super) scale: f32,
    pub(super) zero_point: u8,
}

impl CalibrationStats {
    pub(super) fn new(observer: Observer) -> CalibrationStats {
        CalibrationStats { observer, min: 0.0, max: 0.0, samples: 0, bins: Vec::new(), reach: 0.0 }
    }

    /// Adds a sample's values. Returns false if one is not finite.
    pub(super) fn see(&mut self, elements: &[f32]) -> bool {
        let (mut min, mut max) = (f32::INFINITY, f32::NEG_INFINITY);
        for &element in elements {
            min = min.min(element);
            max = max.max(element);
        }
        if elements.is_empty() {
            return true;
        }
        if !min.is_finite() || !max.is_finite() || elements.iter().any(|element| element.is_nan()) {
            return false;
        }
        match self.observer {
            Observer::MovingAverage if self.samples > 0 => {
                self.min += MOVING * (min - self.min);
                self.max += MOVING * (max - self.max);
            }
            _ if self.samples > 0 => (self.min, self.max) = (self.min.min(min), self.max.max(max)),
            _ => (self.min, self.max) = (min, max),
        }
        self.samples += 1;
        if self.observer.counts() {
            self.count(elements, min.abs().max(max.abs()));
        }
        true
    }

    fn count(&mut self, elements: &[f32], most: f32) {
        if self.bins.is_empty() {
            self.bins = vec![0.0; BINS];
            self.reach = most.max(f32::MIN_POSITIVE);
        }
        // Double the width of the bins until they cover the maximum.
        while self.reach < most {
            for at in 0..BINS / 2 {
                self.bins[at] = self.bins[2 * at] + self.bins[2 * at + 1];
            }
            self.bins[BINS / 2..].fill(0.0);
            self.reach *= 2.0;
        }
        for element in elements {
            let at = (element.abs() / self.reach * BINS as f32) as usize;
            self.bins[at.min(BINS - 1)] += 1.0;
        }
    }

    /// The chosen range. Non-negative activations have the zero point 0, others 128.
    pub(super) fn range(&self) -> Range {
        let most = self.min.abs().max(self.max.abs());
        let limit = match self.observer {
            Observer::MinMax | Observer::MovingAverage => most,
            Observer::Percentile => self.percentile().min(most),
            Observer::Mse => self.cheapest(most, CalibrationStats::squared_error),
            Observer::Entropy => self.cheapest(most, CalibrationStats::divergence),
        };
        let steps = if self.min >= 0.0 { 255.0 } else { 127.5 };
        let zero_point = if self.min >= 0.0 { 0 } else { 128 };
        // Keep the scale within the positive range of fp16.
        Range { scale: (limit / steps).clamp(1e-7, 65504.0), zero_point }
    }

    fn percentile(&self) -> f32 {
        let wanted = self.bins.iter().sum::<f64>() * PERCENTILE;
        let mut passed = 0.0;
        let at = self.bins.iter().position(|&count| {
            passed += count;
            passed >= wanted
        });
        self.reach * (at.map_or(BINS, |at| at + 1)) as f32 / BINS as f32
    }

    /// The limit with the least cost among some candidates.
    fn cheapest(&self, most: f32, cost: fn(&CalibrationStats, usize) -> f64) -> f32 {
        let all = ((most / self.reach * BINS as f32).ceil() as usize).clamp(1, BINS);
        let tried =
            (all / 8..=all).step_by((all / 256).max(1)).filter(|&bins| bins > 0).chain([all]);
        let costs = tried.map(|bins| (bins, cost(self, bins)));
        let best = costs.min_by(|left, right| left.1.total_cmp(&right.1));
        let (bins, _) = best.unwrap_or((all, 0.0));
        if bins == all { most } else { self.reach * bins as f32 / BINS as f32 }
    }

    /// Squared error of clipping at a number of bins, in units of the bin width.
    fn squared_error(&self, bins: usize) -> f64 {
        let signed = if self.min >= 0.0 { 1.0 } else { 2.0 };
        let step = bins as f64 * signed / STEPS;
        let within = self.bins[..bins].iter().sum::<f64>() * step * step / 12.0;
        let beyond = self.bins.iter().enumerate().skip(bins);
        let cut: f64 = beyond.map(|(at, count)| count * (at + 1 - bins).pow(2) as f64).sum();
        within + cut
    }

    /// Divergence between the histogram and its quantization with a number of bins. Zeros are exact
    /// in every range and do not count.
    fn divergence(&self, bins: usize) -> f64 {
        let steps = if self.min >= 0.0 { STEPS } else { STEPS / 2.0 };
        let total: f64 = self.bins.iter().skip(1).sum::<f64>().max(1.0);
        let group = (bins as f64 / steps).max(1.0);
        let mut divergence = 0.0;
        let mut start = 1;
        while start < bins {
            let end = (((start as f64 / group).floor() + 1.0) * group).ceil() as usize;
            let end = end.clamp(start + 1, bins);
            let part = &self.bins[start..end];
            let filled = part.iter().filter(|&&count| count > 0.0).count();
            let mean = part.iter().sum::<f64>() / filled.max(1) as f64;
            for (offset, &count) in part.iter().enumerate() {
                let is_last = start + offset + 1 == bins;
                let cut = if is_last { self.bins[bins..].iter().sum() } else { 0.0 };
                let real = (count + cut) / total;
                if real > 0.0 {
                    divergence += real * (real / (mean / total).max(1e-12)).ln();
                }
            }
            start = end;
        }
        divergence
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn observed_range(observer: Observer, samples: &[Vec<f32>]) -> Range {
        let mut stats = CalibrationStats::new(observer);
        assert!(samples.iter().all(|sample| stats.see(sample)));
        stats.range()
    }

    #[test]
    fn ranges_match_observer_definitions() {
        let samples = [vec![-1.0, 2.0], vec![0.0, 4.0]];
        let found = observed_range(Observer::MinMax, &samples);
        assert_eq!(found, Range { scale: 4.0 / 127.5, zero_point: 128 });
        let found = observed_range(Observer::MovingAverage, &samples);
        assert!((found.scale - 2.02 / 127.5).abs() < 1e-6);
        let found = observed_range(Observer::MinMax, &[vec![0.0, 3.0]]);
        assert_eq!(found, Range { scale: 3.0 / 255.0, zero_point: 0 });
    }

    #[test]
    fn observers_clip_outliers() {
        let mut sample: Vec<f32> = (0..100_000).map(|at| (at % 997) as f32 / 997.0 - 0.5).collect();
        sample[0] = 60.0;
        let whole = observed_range(Observer::MinMax, &[sample.clone()]).scale;
        for observer in [Observer::Percentile, Observer::Entropy, Observer::Mse] {
            let found = observed_range(observer, &[sample.clone()]).scale;
            assert!(
                found < whole * 0.9,
                "{observer:?}: the scale is {found}, and {whole} without clipping"
            );
        }
    }

    #[test]
    fn rejects_non_finite_samples() {
        assert!(!CalibrationStats::new(Observer::MinMax).see(&[1.0, f32::NAN]));
        assert!(!CalibrationStats::new(Observer::Mse).see(&[f32::INFINITY]));
    }
}
