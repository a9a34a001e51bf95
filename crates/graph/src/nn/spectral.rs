//! Fourier transforms as matrix products, since Core ML has no FFT operation.

use std::f64::consts::TAU;
use std::panic::Location;

use super::fits;
use crate::graph::Graph;
use crate::ops::{Conv, Log};
use crate::tensor::Tensor;

/// Cosines and sines of a transform from `size` points to `bins` frequencies, each of shape `[size, bins]`.
#[track_caller]
fn waves(graph: &Graph, size: usize, bins: usize) -> [Tensor<'_>; 2] {
    if !fits(graph, "a table of waves", &[size, bins]) {
        return [graph.nothing(); 2];
    }
    let table = |of: fn(f64) -> f64| {
        let angle = |at: usize, bin: usize| TAU * ((at * bin) % size) as f64 / size as f64;
        let elements: Vec<f32> =
            (0..size).flat_map(|at| (0..bins).map(move |bin| of(angle(at, bin)) as f32)).collect();
        graph.floats([size, bins], &elements)
    };
    [table(f64::cos), table(f64::sin)]
}

/// Fourier transform along the last axis, as real and imaginary part. The inverse is divided by the number of
/// points.
#[track_caller]
pub fn fft<'g>(
    real: Tensor<'g>,
    imaginary: Option<Tensor<'g>>,
    inverse: bool,
) -> (Tensor<'g>, Tensor<'g>) {
    let size = real.last_extent();
    let [cos, sin] = waves(real.graph(), size, size);
    // e^(-iωt) = cos - i sin
    let sign = if inverse { 1.0 } else { -1.0 };
    let (mut re, mut im) = (real.dot(cos), real.dot(sin) * sign);
    if let Some(imaginary) = imaginary {
        re = re - imaginary.dot(sin) * sign;
        im = im + imaginary.dot(cos);
    }
    if inverse {
        (re, im) = (re / size as f32, im / size as f32);
    }
    (re, im)
}

/// Log-mel spectrogram, the input of speech models.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct LogMel {
    /// Number of points of a window; the window function is Hann's.
    pub window: usize,
    /// Distance between windows in points.
    pub hop: usize,
    /// Number of mel bands.
    pub bands: usize,
    /// Samples per second.
    pub rate: f64,
    /// Lower bound of the power before the logarithm.
    pub floor: f32,
}

impl LogMel {
    /// Returns a spectrogram at 16,000 samples per second.
    pub fn new(window: usize, hop: usize, bands: usize) -> LogMel {
        LogMel { window, hop, bands, rate: 16000.0, floor: 1e-10 }
    }

    /// Sets the number of samples per second.
    pub fn rate(mut self, rate: f64) -> LogMel {
        self.rate = rate;
        self
    }

    /// Sets the lower bound of the power.
    pub fn floor(mut self, floor: f32) -> LogMel {
        self.floor = floor;
        self
    }

    /// Applies to samples `[batch, length]`. Returns natural logarithms `[batch, bands, windows]`; windows
    /// start at multiples of the hop.
    #[track_caller]
    pub fn apply<'g>(&self, samples: Tensor<'g>) -> Tensor<'g> {
        let graph = samples.graph();
        let LogMel { window, hop, bands, .. } = *self;
        if window == 0 || hop == 0 || bands == 0 {
            let message = format!(
                "bands, window size and hop must be at least 1, got {bands}, {window} and {hop}"
            );
            return graph.mistake(message, None, Location::caller());
        }
        let bins = window / 2 + 1;
        if !fits(graph, "a table of waves", &[bins, window])
            || !fits(graph, "a mel filter bank", &[bins, bands])
        {
            return graph.nothing();
        }
        let kernel = |of: fn(f64) -> f64| {
            let mut elements = Vec::with_capacity(bins * self.window);
            for bin in 0..bins {
                for at in 0..self.window {
                    let hann = 0.5 - 0.5 * (TAU * at as f64 / self.window as f64).cos();
                    let angle = TAU * ((at * bin) % self.window) as f64 / self.window as f64;
                    elements.push((hann * of(angle)) as f32);
                }
            }
            graph.floats([bins, 1, self.window], &elements)
        };
        let x = samples.unsqueeze(1);
        let frames = |of| x.conv(kernel(of), Conv::new().strides([self.hop]).pad_type("valid"));
        let power = frames(f64::cos).square() + frames(f64::sin).square();
        let filters = graph.floats([self.bands, bins], &self.filters());
        let mel = filters.dot(power);
        mel.maximum(self.floor).log(Log::new().epsilon(1e-10))
    }

    /// Triangular filters `[bands, bins]` of height 1 on HTK's mel scale.
    fn filters(&self) -> Vec<f32> {
        let bins = self.window / 2 + 1;
        let mel = |hertz: f64| 2595.0 * (1.0 + hertz / 700.0).log10();
        let hertz = |mel: f64| 700.0 * (10f64.powf(mel / 2595.0) - 1.0);
        let top = mel(self.rate / 2.0);
        let points: Vec<f64> = (0..self.bands + 2)
            .map(|at| hertz(top * at as f64 / (self.bands + 1) as f64))
            .collect();
        let mut filters = Vec::with_capacity(self.bands * bins);
        for band in 0..self.bands {
            let (low, centre, high) = (points[band], points[band + 1], points[band + 2]);
            for bin in 0..bins {
                let at = bin as f64 * self.rate / self.window as f64;
                let rise = (at - low) / (centre - low);
                let fall = (high - at) / (high - centre);
                filters.push(rise.min(fall).max(0.0) as f32);
            }
        }
        filters
    }
}
