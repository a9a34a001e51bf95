//! The ranges of activations, from what samples make of them.

use std::str::FromStr;

use coremill_io::unknown_name;

use crate::error::Error;

/// What decides on the range that the 256 steps of an activation cover.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Observer {
    /// The smallest and the largest number of all samples.
    #[default]
    MinMax,
    /// The smallest and the largest number of each sample, averaged as torch's observer does.
    MovingAverage,
    /// All but one in ten thousand numbers.
    Percentile,
    /// The range whose histogram has the least divergence from that of the numbers.
    Entropy,
    /// The range with the least mean squared error.
    Mse,
}

impl Observer {
    /// All of them, by name.
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

/// Magnitudes fall into so many bins.
const BINS: usize = 2048;
/// How much of a new sample goes into a moving average, as in torch.
const MOVING: f32 = 0.01;
/// The share of numbers that lie within a percentile.
const PERCENTILE: f64 = 0.9999;
/// Steps of a quantized activation.
const STEPS: f64 = 256.0;

/// What was seen of one activation.
#[derive(Clone, Debug)]
pub(super) struct CalibrationStats {
    observer: Observer,
    min: f32,
    max: f32,
    samples: usize,
    /// How many magnitudes fall into each bin, and how far the bins reach.
    bins: Vec<f64>,
    reach: f32,
}

/// Scale and zero point of an activation of unsigned bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Range {
    pub(super) scale: f32,
    pub(super) zero_point: u8,
}

impl CalibrationStats {
    pub(super) fn new(observer: Observer) -> CalibrationStats {
        CalibrationStats { observer, min: 0.0, max: 0.0, samples: 0, bins: Vec::new(), reach: 0.0 }
    }

    /// Takes in what a sample made of the activation; false if a number is not finite.
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
        // Bins that no longer reach far enough become twice as wide.
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

    /// Numbers that are never negative use all steps above zero; others lie around the middle.
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
        // A scale of half precision that is not 0.
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

    /// The limit, of those tried, that costs least.
    fn cheapest(&self, most: f32, cost: fn(&CalibrationStats, usize) -> f64) -> f32 {
        let all = ((most / self.reach * BINS as f32).ceil() as usize).clamp(1, BINS);
        let tried =
            (all / 8..=all).step_by((all / 256).max(1)).filter(|&bins| bins > 0).chain([all]);
        let costs = tried.map(|bins| (bins, cost(self, bins)));
        let best = costs.min_by(|left, right| left.1.total_cmp(&right.1));
        let (bins, _) = best.unwrap_or((all, 0.0));
        if bins == all { most } else { self.reach * bins as f32 / BINS as f32 }
    }

    /// The squared error when magnitudes beyond so many bins are cut off, in widths of a bin.
    fn squared_error(&self, bins: usize) -> f64 {
        let signed = if self.min >= 0.0 { 1.0 } else { 2.0 };
        let step = bins as f64 * signed / STEPS;
        let within = self.bins[..bins].iter().sum::<f64>() * step * step / 12.0;
        let beyond = self.bins.iter().enumerate().skip(bins);
        let cut: f64 = beyond.map(|(at, count)| count * (at + 1 - bins).pow(2) as f64).sum();
        within + cut
    }

    /// How far the histogram of what is left of so many bins lies from what it was. Zeros, which every range has, do not
    /// count.
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

    fn seen(observer: Observer, samples: &[Vec<f32>]) -> Range {
        let mut seen = CalibrationStats::new(observer);
        assert!(samples.iter().all(|sample| seen.see(sample)));
        seen.range()
    }

    #[test]
    fn ranges_are_those_of_the_definitions() {
        let samples = [vec![-1.0, 2.0], vec![0.0, 4.0]];
        let found = seen(Observer::MinMax, &samples);
        assert_eq!(found, Range { scale: 4.0 / 127.5, zero_point: 128 });
        let found = seen(Observer::MovingAverage, &samples);
        assert!((found.scale - 2.02 / 127.5).abs() < 1e-6);
        let found = seen(Observer::MinMax, &[vec![0.0, 3.0]]);
        assert_eq!(found, Range { scale: 3.0 / 255.0, zero_point: 0 });
    }

    #[test]
    fn outliers_are_cut_off() {
        let mut sample: Vec<f32> = (0..100_000).map(|at| (at % 997) as f32 / 997.0 - 0.5).collect();
        sample[0] = 60.0;
        let whole = seen(Observer::MinMax, &[sample.clone()]).scale;
        for observer in [Observer::Percentile, Observer::Entropy, Observer::Mse] {
            let found = seen(observer, &[sample.clone()]).scale;
            assert!(found < whole * 0.9, "{observer:?}: {found} of {whole}");
        }
    }

    #[test]
    fn what_is_not_finite_is_told() {
        assert!(!CalibrationStats::new(Observer::MinMax).see(&[1.0, f32::NAN]));
        assert!(!CalibrationStats::new(Observer::Mse).see(&[f32::INFINITY]));
    }
}
