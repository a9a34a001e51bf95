//! Speech models: the native part of `coremill.llm` for audio.

use std::sync::{Arc, Mutex, PoisonError};

use coremill::llm::{Audio, Segment, SpeechOptions, TranscribeOptions, Transcriber, Transcription};
use pyo3::prelude::*;
use serde::Deserialize;
use serde_json::json;

use crate::arguments::Text;
use crate::options::{device_named, parsed};
use crate::path::PathArgument;
use crate::work;

/// A transcription as JSON.
fn transcription_json(found: &Transcription) -> String {
    let segments = found.segments.iter().map(|segment| {
        json!({
            "start": segment.start,
            "end": segment.end,
            "text": segment.text.trim(),
            "tokens": segment.tokens,
        })
    });
    let report = json!({
        "text": found.text,
        "language": found.language,
        "seconds": found.seconds,
        "segments": segments.collect::<Vec<_>>(),
    });
    report.to_string()
}

/// A speech model on a device.
#[pyclass(frozen, module = "coremill._native")]
pub(crate) struct SpeechModel {
    rate: u32,
    transcriber: Arc<Mutex<Transcriber>>,
}

#[derive(Deserialize)]
struct LoadOptions {
    device: String,
    threads: usize,
    precision: String,
}

#[derive(Deserialize)]
struct TranscribeArguments {
    language: Option<String>,
    task: String,
    timestamps: bool,
    /// Samples per second of samples in memory.
    rate: Option<u32>,
}

#[pymethods]
impl SpeechModel {
    /// Loads a model.
    #[new]
    fn new(py: Python<'_>, model: PathArgument, options: Text) -> PyResult<SpeechModel> {
        let options: LoadOptions = parsed(py, &options.0)?;
        work::run(py, move |stage| {
            stage.set(format!("loading {}", model.0.display()));
            let mut build = SpeechOptions::default();
            if options.precision == "fp32" {
                build = build.precision(coremill::graph::Precision::Fp32);
            }
            let device = device_named(&options.device)?;
            let mut transcriber = Transcriber::open(&model.0, device, options.threads, &build)?;
            transcriber.prepare()?;
            Ok(SpeechModel {
                rate: transcriber.features().rate(),
                transcriber: Arc::new(Mutex::new(transcriber)),
            })
        })
    }

    /// Samples per second of the model's audio.
    #[getter]
    fn rate(&self) -> u32 {
        self.rate
    }

    /// Transcribes a WAV file, or samples: 32-bit floats in little-endian order.
    #[pyo3(signature = (arguments, path = None, samples = None))]
    fn transcribe(
        &self,
        py: Python<'_>,
        arguments: Text,
        path: Option<PathArgument>,
        samples: Option<Vec<u8>>,
    ) -> PyResult<String> {
        let arguments: TranscribeArguments = parsed(py, &arguments.0)?;
        let (rate, transcriber) = (self.rate, self.transcriber.clone());
        work::run(py, move |stage| {
            let mut options = TranscribeOptions::default();
            options.language = arguments.language;
            options.task = arguments.task.parse()?;
            options.timestamps = arguments.timestamps;
            let audio = match path {
                Some(path) => Audio::read(path.0)?,
                None => {
                    let bytes = samples.unwrap_or_default();
                    let (samples, _) = bytes.as_chunks::<4>();
                    let samples = samples.iter().map(|&sample| f32::from_le_bytes(sample));
                    Audio::of_samples(arguments.rate.unwrap_or(rate), samples.collect())?
                }
            };
            let total = audio.seconds();
            let mut watch = |segment: &Segment| {
                stage.set(format!("transcribed {:.0} of {total:.0} s", segment.end.min(total)));
            };
            let mut transcriber = transcriber.lock().unwrap_or_else(PoisonError::into_inner);
            let found = transcriber.transcribe(&audio.resampled(rate), &options, &mut watch)?;
            Ok(transcription_json(&found))
        })
    }
}
