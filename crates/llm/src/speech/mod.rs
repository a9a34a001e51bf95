//! Whisper: speech becomes text.
//!
//! A converted model consists of two packages. The encoder turns the features of a window of audio into hidden states, and into the
//! keys and values of all cross-attention layers. The decoder reads tokens; its states are the cache of the tokens, and the keys and values
//! of the audio, which the first block of tokens stores.
//!
//! | module | holds |
//! |---|---|
//! | `config` | the settings of a model in its files |
//! | `network` | encoder and decoder as graphs |
//! | `model` | [`SpeechModel`], which converts |
//! | `audio`, `resample` | [`Audio`]: WAV files and their rates |
//! | `features`, `fourier` | log-mel spectrograms, as transformers computes them |
//! | `rules` | tokens of a prompt, and tokens that the model must not choose |
//! | `segments` | parts of a text by their timestamps |
//! | `transcribe` | [`Transcriber`], which runs |

mod audio;
mod config;
mod features;
mod fourier;
mod model;
mod network;
mod resample;
mod rules;
mod segments;
mod transcribe;

pub use audio::Audio;
pub use config::SpeechConfig;
pub use features::{Features, LogMel};
pub use model::{SpeechModel, SpeechOptions};
pub use network::{CROSS, FEATURES};
pub use rules::Task;
pub use segments::Segment;
pub use transcribe::{TranscribeOptions, Transcriber, Transcription};
