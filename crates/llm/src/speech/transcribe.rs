use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use coremill_graph::{Device, Executable, Input, Session};
use serde_json::Value;

use super::audio::Audio;
use super::config::BLOCK;
use super::features::{Features, LogMel};
use super::model::{SpeechModel, SpeechOptions};
use super::network::{CROSS, FEATURES, MAIN};
use super::rules::{Task, TokenRules};
use super::segments::{STEP, Segment, Segments, segments};
use crate::decoder::{HIDDEN, LAST, LOGITS, POSITION, TOKENS};
use crate::error::{Error, ErrorKind, Result, fail};
use crate::files::{COMPANIONS, tokenizer_in};
use crate::kind::{ModelKind, speech_packages};
use crate::model::{DECODE, PREFILL};
use crate::readers::shape_of;
use crate::source::read_json;
use crate::states::CACHE;
use crate::tokenizer::Tokenizer;

/// Options of transcribing audio.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct TranscribeOptions {
    /// Code of the language, `en` for instance; `None` finds the language in the first window.
    pub language: Option<String>,
    /// Text or translation.
    pub task: Task,
    /// Cut the text into segments at the model's timestamps.
    pub timestamps: bool,
    /// Ends the transcription between two tokens once it is true.
    pub cancel: Option<Arc<AtomicBool>>,
}

impl TranscribeOptions {
    fn is_cancelled(&self) -> bool {
        self.cancel.as_ref().is_some_and(|cancel| cancel.load(Ordering::Relaxed))
    }
}

/// Text of audio.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Transcription {
    /// The whole text.
    pub text: String,
    /// Code of the language; `None` if the model has one language.
    pub language: Option<String>,
    /// Length of the audio in seconds.
    pub seconds: f64,
    /// Parts of the text: those between timestamps, or one for each window of audio.
    pub segments: Vec<Segment>,
}

/// A speech model that runs.
pub struct Transcriber {
    encoder: Executable,
    decoder: Executable,
    tokenizer: Tokenizer,
    rules: TokenRules,
    features: LogMel,
    /// Positions of the cache.
    context: usize,
    vocabulary: usize,
}

impl Transcriber {
    /// Loads a folder of transformers, or the directory of a converted model. The options are for files of weights; converted models
    /// have theirs.
    pub fn open(
        path: impl AsRef<Path>,
        device: Device,
        threads: usize,
        options: &SpeechOptions,
    ) -> Result<Transcriber> {
        let path = path.as_ref();
        ModelKind::Speech.check(path)?;
        if let Some(packages) = speech_packages(path) {
            let session = Session::new(device).threads(threads);
            let [encoder, decoder] = packages;
            let executables = [session.open(&encoder)?, session.open(&decoder)?];
            let generation = read_json(&path.join(COMPANIONS[3]))?;
            return Transcriber::new(executables, tokenizer_in(path)?, &generation, path);
        }
        let model = SpeechModel::open(path)?;
        let executables = model.compile(device, threads, options)?;
        Transcriber::new(executables, model.tokenizer()?, model.generation(), path)
    }

    fn new(
        [mut encoder, mut decoder]: [Executable; 2],
        tokenizer: Tokenizer,
        generation: &Value,
        folder: &Path,
    ) -> Result<Transcriber> {
        let features = shape_of(&encoder.inputs(MAIN)?, FEATURES);
        let logits = shape_of(&decoder.outputs(DECODE)?, LOGITS);
        let cache = shape_of(&decoder.states(DECODE)?, CACHE);
        let (&[1, bands, frames], &[1, vocabulary], &[_, _, context, _]) =
            (&features[..], &logits[..], &cache[..])
        else {
            let message = "the packages are not the encoder and the decoder of a speech model";
            let error = Error::of_kind(ErrorKind::Unsupported, message);
            return Err(error.with_hint("speech models must be converted by coremill"));
        };
        let features = LogMel::of_folder(folder, bands)?;
        if features.frames() != frames {
            let found = features.frames();
            fail!(Format, "a window of audio must have {frames} frames of features, got {found}");
        }
        let rules = TokenRules::of_json(generation, vocabulary)?;
        Ok(Transcriber { encoder, decoder, tokenizer, rules, features, context, vocabulary })
    }

    /// Settings of the features, and of the audio.
    pub fn features(&self) -> &LogMel {
        &self.features
    }

    /// The tokenizer.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// Compiles and plans encoder and decoder before the first audio.
    pub fn prepare(&mut self) -> Result<()> {
        self.encoder.prepare()?;
        Ok(self.decoder.prepare()?)
    }

    /// Encodes a window of features. Returns the hidden states, and the keys and values of all cross-attention layers.
    pub fn encode(&mut self, features: &Features) -> Result<[Vec<f32>; 2]> {
        let outputs = self.encoder.run(&[(FEATURES, &features.values as &dyn Input)])?;
        let output = |name: &str| match outputs.floats(name) {
            Some(values) => Ok(values.to_vec()),
            None => fail!(Run, "the encoder returned no `{name}`"),
        };
        Ok([output(HIDDEN)?, output(CROSS)?])
    }

    /// Reads the first tokens of a text about encoded audio, at most four. Returns the logits after the last one.
    pub fn begin(&mut self, cross: &Vec<f32>, tokens: &[u32]) -> Result<Vec<f32>> {
        if tokens.is_empty() || tokens.len() > BLOCK {
            fail!(Argument, "a text must begin with 1 to {BLOCK} tokens, got {}", tokens.len());
        }
        self.check(tokens)?;
        let mut ids: Vec<i32> = tokens.iter().map(|&id| id as i32).collect();
        ids.resize(BLOCK, 0);
        let last = [tokens.len() as i32 - 1];
        let inputs: [(&str, &dyn Input); 4] =
            [(TOKENS, &ids), (POSITION, &[0i32]), (LAST, &last), (CROSS, cross)];
        self.run(PREFILL, &inputs)
    }

    /// Reads the token at a position of a text. Returns the logits after it.
    pub fn read(&mut self, token: u32, position: usize) -> Result<Vec<f32>> {
        self.check(&[token])?;
        if position >= self.context {
            fail!(Argument, "a text must have at most {} tokens", self.context);
        }
        self.run(DECODE, &[(TOKENS, &[token as i32]), (POSITION, &[position as i32])])
    }

    fn check(&self, tokens: &[u32]) -> Result<()> {
        let vocabulary = self.vocabulary;
        if let Some(id) = tokens.iter().find(|&&id| id as usize >= vocabulary) {
            fail!(Argument, "token {id} is not below {vocabulary}, the size of the vocabulary");
        }
        Ok(())
    }

    fn run(&mut self, function: &str, inputs: &[(&str, &dyn Input)]) -> Result<Vec<f32>> {
        let outputs = self.decoder.run_function(function, inputs)?;
        match outputs.floats(LOGITS) {
            Some(logits) => Ok(logits.to_vec()),
            None => fail!(Run, "the decoder returned no `{LOGITS}`"),
        }
    }

    /// Transcribes audio, which must have the model's number of samples per second. `watch` is called with each segment.
    ///
    /// Audio that is longer than a window is read with timestamps: the next window starts after the last whole segment. If the model
    /// has no timestamps, windows follow each other without overlap.
    pub fn transcribe(
        &mut self,
        audio: &Audio,
        options: &TranscribeOptions,
        watch: &mut dyn FnMut(&Segment),
    ) -> Result<Transcription> {
        let rate = self.features.rate();
        if audio.rate != rate {
            let found = audio.rate;
            let message = format!("the audio must have {rate} samples per second, got {found}");
            let error = Error::of_kind(ErrorKind::Argument, message);
            return Err(error.with_hint("resample it first"));
        }
        let frames = self.features.frames();
        let features = self.features.features(&audio.samples);
        let has_timestamps = self.rules.first_timestamp();
        let is_long = features.frames > frames && has_timestamps.is_some();
        let timestamps = options.timestamps || is_long;
        let mut language = options.language.clone();
        let mut all: Vec<Segment> = Vec::new();
        let mut start = 0;
        while start < features.frames && !options.is_cancelled() {
            let [_, cross] = self.encode(&features.window(start, frames))?;
            if language.is_none() && self.rules.is_multilingual() {
                let logits = self.begin(&cross, &[self.rules.start()])?;
                language = self.rules.likely_language(&logits).map(str::to_owned);
            }
            let prompt = self.rules.prompt(language.as_deref(), options.task, timestamps)?;
            let tokens = self.text(&cross, &prompt, timestamps, options)?;
            let left = frames.min(features.frames - start);
            let offset = self.seconds(start);
            // A model may choose timestamps without being asked for them.
            let (found, next) = match has_timestamps {
                Some(first) => {
                    let per_step = (STEP * f64::from(rate)) as usize / self.features.hop();
                    let Segments { segments, frames } = segments(&tokens, first, left, per_step);
                    let found = segments.into_iter().map(|(start, end, tokens)| {
                        (offset + start * STEP, offset + end * STEP, tokens)
                    });
                    (found.collect(), frames)
                }
                None => (vec![(offset, self.seconds(start + left), tokens)], left),
            };
            for (start, end, tokens) in found {
                let text = self.decode(&tokens);
                let segment = Segment { start, end, text, tokens };
                watch(&segment);
                all.push(segment);
            }
            // A timestamp at the very start would repeat the window.
            start += if next == 0 { left } else { next };
        }
        let text: String = all.iter().map(|segment| segment.text.as_str()).collect();
        let language = language.filter(|_| self.rules.is_multilingual());
        let (text, seconds) = (text.trim().to_owned(), audio.seconds());
        Ok(Transcription { text, language, seconds, segments: all })
    }

    /// Seconds of a number of frames.
    fn seconds(&self, frames: usize) -> f64 {
        (frames * self.features.hop()) as f64 / f64::from(self.features.rate())
    }

    /// The text of tokens without timestamps.
    fn decode(&self, tokens: &[u32]) -> String {
        let first = self.rules.first_timestamp().unwrap_or(u32::MAX);
        let plain: Vec<u32> = tokens.iter().copied().filter(|&id| id < first).collect();
        self.tokenizer.decode(&plain, true)
    }

    /// The most likely tokens after a prompt, without the token that ends a text.
    fn text(
        &mut self,
        cross: &Vec<f32>,
        prompt: &[u32],
        timestamps: bool,
        options: &TranscribeOptions,
    ) -> Result<Vec<u32>> {
        let most = self.rules.max_length.unwrap_or(self.context).saturating_add(prompt.len());
        let most = most.min(self.context).saturating_sub(prompt.len());
        let mut logits = self.begin(cross, prompt)?;
        let mut text = Vec::new();
        while text.len() < most && !options.is_cancelled() {
            let Some(id) = self.rules.choose(&mut logits, &text, timestamps) else {
                fail!(Run, "all logits that the decoder returned are NaN");
            };
            if id == self.rules.end {
                break;
            }
            text.push(id);
            if text.len() < most {
                logits = self.read(id, prompt.len() + text.len() - 1)?;
            }
        }
        Ok(text)
    }
}
