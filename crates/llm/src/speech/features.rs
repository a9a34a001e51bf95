//! Log-mel spectrograms, as transformers' `WhisperFeatureExtractor` computes them.

use std::f64::consts::TAU;
use std::path::Path;

use serde_json::{Value, json};

use super::fourier::{Complex, Fourier};
use crate::error::{Error, ErrorKind, Result, fail};
use crate::source::read_json;

/// Most points of a transform.
const MAX_POINTS: usize = 1 << 14;

/// Most samples of a window of audio: ten minutes at 48,000 samples per second.
const MAX_SAMPLES: usize = 600 * 48_000;

/// The highest frequency of the bands in Hz.
const TOP: f64 = 8000.0;

/// Lower bound of the power before the logarithm.
const FLOOR: f64 = 1e-10;

/// Features of audio: `bands` rows of `frames` numbers.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Features {
    /// Number of bands.
    pub bands: usize,
    /// Number of frames.
    pub frames: usize,
    /// The numbers in row-major order.
    pub values: Vec<f32>,
}

impl Features {
    /// Some frames, with zeros after the last one.
    pub fn window(&self, first: usize, frames: usize) -> Features {
        let mut values = Vec::with_capacity(self.bands * frames);
        for row in self.values.chunks_exact(self.frames.max(1)) {
            let end = (first + frames).min(self.frames);
            let found = row.get(first..end).unwrap_or_default();
            values.extend_from_slice(found);
            values.extend(std::iter::repeat_n(0.0, frames - found.len()));
        }
        Features { bands: self.bands, frames, values }
    }
}

/// Computes log-mel spectrograms.
#[derive(Clone, Debug)]
pub struct LogMel {
    rate: usize,
    bands: usize,
    points: usize,
    hop: usize,
    seconds: usize,
    /// Hann's window.
    window: Vec<f64>,
    fourier: Fourier,
    /// For each band its first bin, and the weights from there.
    filters: Vec<(usize, Vec<f64>)>,
}

impl LogMel {
    /// Reads the settings in `preprocessor_config.json`, or in the `processor_config.json` of newer folders. The defaults are the
    /// settings of the published models.
    pub(super) fn of_folder(folder: &Path, bands: usize) -> Result<LogMel> {
        let path = folder.join("preprocessor_config.json");
        let newer = folder.join("processor_config.json");
        let (path, settings) = if path.is_file() {
            let settings = read_json(&path)?;
            (path, settings)
        } else if newer.is_file() {
            let settings = read_json(&newer)?["feature_extractor"].clone();
            (newer, settings)
        } else {
            (path, Value::Null)
        };
        LogMel::of_json(&settings, bands).map_err(|error| error.within(&path))
    }

    /// Takes the settings of a `WhisperFeatureExtractor`.
    pub fn of_json(settings: &Value, bands: usize) -> Result<LogMel> {
        let number = |key: &str, usual: usize, most: usize| match &settings[key] {
            Value::Null => Ok(usual),
            value => {
                let found = value.as_u64().and_then(|number| usize::try_from(number).ok());
                found.filter(|number| (1..=most).contains(number)).ok_or_else(|| {
                    let message =
                        format!("`{key}` must be an integer from 1 to {most}, got {value}");
                    Error::of_kind(ErrorKind::Format, message)
                })
            }
        };
        let found = number("feature_size", bands, MAX_POINTS)?;
        if found != bands {
            fail!(
                Format,
                "`feature_size` must be {bands}, the model's number of mel bands, got {found}"
            );
        }
        if settings["dither"].as_f64().is_some_and(|dither| dither != 0.0) {
            fail!(Unsupported, "`dither` adds noise, which is not supported");
        }
        if settings["do_normalize"].as_bool() == Some(true) {
            fail!(Unsupported, "`do_normalize` is not supported");
        }
        let rate = number("sampling_rate", 16_000, MAX_SAMPLES)?;
        let seconds = number("chunk_length", 30, MAX_SAMPLES)?;
        let points = number("n_fft", 400, MAX_POINTS)?;
        let hop = number("hop_length", 160, MAX_POINTS)?;
        if points < 2 || seconds.saturating_mul(rate) > MAX_SAMPLES {
            fail!(Format, "a window of {seconds} s at {rate} samples per second is not supported");
        }
        let hann = |at: usize| 0.5 - 0.5 * (TAU * at as f64 / points as f64).cos();
        Ok(LogMel {
            rate,
            bands,
            points,
            hop,
            seconds,
            window: (0..points).map(hann).collect(),
            fourier: Fourier::new(points),
            filters: filters(bands, points / 2 + 1, rate),
        })
    }

    /// The settings as a `preprocessor_config.json`.
    pub(super) fn to_json(&self) -> Value {
        json!({
            "feature_extractor_type": "WhisperFeatureExtractor",
            "processor_class": "WhisperProcessor",
            "feature_size": self.bands,
            "sampling_rate": self.rate,
            "chunk_length": self.seconds,
            "hop_length": self.hop,
            "n_fft": self.points,
            "n_samples": self.samples(),
            "nb_max_frames": self.frames(),
            "padding_side": "right",
            "padding_value": 0.0,
            "return_attention_mask": false,
        })
    }

    /// Samples per second.
    pub fn rate(&self) -> u32 {
        u32::try_from(self.rate).unwrap_or(u32::MAX)
    }

    /// Seconds of a window of audio.
    pub fn seconds(&self) -> usize {
        self.seconds
    }

    /// Samples of a window of audio.
    pub fn samples(&self) -> usize {
        self.seconds * self.rate
    }

    /// Frames of a window of audio.
    pub fn frames(&self) -> usize {
        self.samples() / self.hop
    }

    /// Samples between two frames.
    pub(super) fn hop(&self) -> usize {
        self.hop
    }

    /// Mel bands.
    pub fn bands(&self) -> usize {
        self.bands
    }

    /// The features of audio. Audio that is shorter than a window gets silence up to its length.
    pub fn features(&self, samples: &[f32]) -> Features {
        let total = samples.len().max(self.samples());
        let frames = total / self.hop;
        let half = self.points / 2;
        // The audio is reflected at its ends.
        let sample = |at: isize| {
            let last = total as isize - 1;
            let at = if at < 0 { -at } else { at };
            let at = if at > last { 2 * last - at } else { at };
            usize::try_from(at).ok().and_then(|at| samples.get(at)).map_or(0.0, |&it| f64::from(it))
        };
        let value = |frame: usize, at: usize| {
            let place = (frame * self.hop + at) as isize - half as isize;
            if frame < frames { sample(place) * self.window[at] } else { 0.0 }
        };
        let mut values = vec![0.0f32; self.bands * frames];
        let mut input: Vec<Complex> = vec![[0.0; 2]; self.points];
        let mut output = input.clone();
        let mut power = vec![0.0f64; half + 1];
        let mut most = f64::NEG_INFINITY;
        // Two frames are the real and the imaginary part of one transform.
        for first in (0..frames).step_by(2) {
            for (at, number) in input.iter_mut().enumerate() {
                *number = [value(first, at), value(first + 1, at)];
            }
            self.fourier.apply(&input, &mut output);
            for part in 0..2.min(frames - first) {
                for (bin, power) in power.iter_mut().enumerate() {
                    let [a, b] = output[bin];
                    let [c, d] = output[(self.points - bin) % self.points];
                    let [re, im] = match part {
                        0 => [a + c, b - d],
                        _ => [b + d, c - a],
                    };
                    *power = (re * re + im * im) / 4.0;
                }
                for (band, (start, weights)) in self.filters.iter().enumerate() {
                    let terms = weights.iter().zip(&power[*start..]).map(|(a, b)| a * b);
                    let log = terms.sum::<f64>().max(FLOOR).log10();
                    most = most.max(log);
                    values[band * frames + first + part] = log as f32;
                }
            }
        }
        let least = most as f32 - 8.0;
        values.iter_mut().for_each(|value| *value = (value.max(least) + 4.0) / 4.0);
        Features { bands: self.bands, frames, values }
    }
}

/// Slaney's mel scale: linear below 1000 Hz, and logarithmic above.
fn mel(hertz: f64) -> f64 {
    match hertz >= 1000.0 {
        true => 15.0 + (hertz / 1000.0).ln() * 27.0 / 6.4f64.ln(),
        false => 3.0 * hertz / 200.0,
    }
}

fn hertz(mel: f64) -> f64 {
    match mel >= 15.0 {
        true => 1000.0 * ((mel - 15.0) * 6.4f64.ln() / 27.0).exp(),
        false => 200.0 * mel / 3.0,
    }
}

/// Triangular filters of the same area.
fn filters(bands: usize, bins: usize, rate: usize) -> Vec<(usize, Vec<f64>)> {
    let top = mel(TOP);
    let place = |at: usize| hertz(top * at as f64 / (bands + 1) as f64);
    let bin_hertz = (rate / 2) as f64 / (bins - 1) as f64;
    (0..bands)
        .map(|band| {
            let [low, center, high] = [0, 1, 2].map(|at| place(band + at));
            let weight = |bin: usize| {
                let at = bin as f64 * bin_hertz;
                let rise = (at - low) / (center - low);
                let fall = (high - at) / (high - center);
                rise.min(fall).max(0.0) * 2.0 / (high - low)
            };
            let used = |&bin: &usize| weight(bin) > 0.0;
            let first = (0..bins).find(used).unwrap_or(0);
            let last = (0..bins).rev().find(used).map_or(0, |last| last + 1);
            (first, (first..last).map(weight).collect())
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings() -> LogMel {
        LogMel::of_json(&json!({ "chunk_length": 1 }), 80).expect("sound")
    }

    #[test]
    fn pure_tone_peaks_in_its_mel_band() {
        let mel = settings();
        assert_eq!((mel.frames(), mel.samples(), mel.rate()), (100, 16_000, 16_000));
        let tone: Vec<f32> =
            (0..16_000).map(|at| (TAU * 1000.0 * at as f64 / 16_000.0).sin() as f32).collect();
        let features = mel.features(&tone);
        let at = |band: usize| features.values[band * features.frames + 50];
        let loudest = (0..80).max_by(|&a, &b| at(a).total_cmp(&at(b))).expect("bands");
        // 1000 Hz are 15 mel and 8000 Hz are 45.2 mel, so the tone is at a third of the 80 bands.
        assert!((25..=27).contains(&loudest), "{loudest}");
        // The logarithms are limited to 8 decades below the maximum, and divided by 4.
        let least = features.values.iter().copied().fold(f32::INFINITY, f32::min);
        assert!((at(loudest) - least - 2.0).abs() < 1e-3, "{least}");
    }

    #[test]
    fn pads_windows_past_the_end_with_zeros() {
        let features = settings().features(&vec![0.25; 24_000]);
        assert_eq!(features.frames, 150);
        let window = features.window(100, 100);
        assert_eq!(window.values.len(), 80 * 100);
        assert_eq!(window.values[..50], features.values[100..150]);
        assert!(window.values[50..100].iter().all(|&value| value == 0.0));
        assert_eq!(window.values[100..150], features.values[250..300]);
        assert_eq!(features.window(200, 2).values, vec![0.0; 160]);
    }

    #[test]
    fn rejects_invalid_feature_extractor_settings() {
        let refused =
            |settings: Value| LogMel::of_json(&settings, 80).expect_err("refused").to_string();
        assert_eq!(
            refused(json!({ "hop_length": 0 })),
            "`hop_length` must be an integer from 1 to 16384, got 0"
        );
        assert!(refused(json!({ "feature_size": 128 })).contains("must be 80"));
        assert!(refused(json!({ "dither": 0.1 })).contains("`dither`"));
        assert!(refused(json!({ "chunk_length": 1_000_000 })).contains("1000000 s"));
    }
}
