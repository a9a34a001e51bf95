//! Language models on any operating system: from files that people have to Core ML, and text on this machine.
//!
//! [`LanguageModel`] reads a GGUF file or a folder that transformers wrote. It becomes a Core ML model with a cache as state
//! and functions that share weights and states: `prefill` and `long_prefill` for blocks of tokens, and `decode` for one.
//! [`Generator`] runs the model on token ids; [`Tokenizer`] and [`ChatTemplate`] convert texts and messages to them.
//!
//! ```no_run
//! use coremill_graph::Device;
//! use coremill_llm::{BuildOptions, GenerateOptions, Generator, LanguageModel};
//!
//! let model = LanguageModel::open("SmolLM2-135M-Instruct.Q4_1.gguf")?;
//! let tokenizer = model.tokenizer()?;
//! let prompt = tokenizer.encode("The capital of France is", true)?;
//! let executable = model.compile(Device::Host, 0, &BuildOptions::default())?;
//! let mut generator = Generator::new(executable)?;
//! let options = GenerateOptions::default();
//! let answer = generator.generate(&tokenizer, &prompt, &options, &mut |_| true)?;
//! assert!(answer.text.contains("Paris"));
//! # Ok::<(), coremill_llm::Error>(())
//! ```
//!
//! | module | holds |
//! |---|---|
//! | `source`, `config`, [`families`] | files, their settings, and the table of model families |
//! | `names`, `arrange` | names and shapes of tensors in files, and the decoder's |
//! | [`decoder`], `mixers`, `states` | the model as a graph, the parts of layers that mix positions, and their states |
//! | `encoders`, `embedding` | [`EmbeddingModel`] and [`Embedder`]: encoders, whose texts become vectors |
//! | `speech` | [`SpeechModel`] and [`Transcriber`]: Whisper, which turns speech into text |
//! | `kind` | [`ModelKind`] of the files at a path |
//! | `weights` | storage of weights, and graphs with the weights of files |
//! | `packed`, `chunks`, `anemll` | a cache in one state, and models of some layers each, for the Neural Engine |
//! | `model`, `files`, `save` | [`LanguageModel`], converted models and the files next to them |
//! | `executorch` | what ExecuTorch's runners read of a program |
//! | `tokenizer` | [`Tokenizer`]: `tokenizer.json` and the vocabularies of GGUF |
//! | `chat` | [`ChatTemplate`] |
//! | `generate`, `readers`, `sample` | [`Generator`], [`Sampler`] |
//! | `score`, `verify` | [`score`](fn@score), comparison of a written model with its weights |

mod anemll;
mod arrange;
mod bundle;
mod chat;
mod chunks;
pub mod config;
pub mod decoder;
mod embedding;
mod encoders;
mod error;
mod executorch;
pub mod families;
mod files;
mod generate;
mod kind;
mod mixers;
mod model;
mod names;
mod packed;
mod python_text;
mod readers;
mod sample;
mod save;
mod score;
mod settings;
mod source;
mod speech;
mod states;
mod tokenizer;
mod verify;
mod weights;

pub use bundle::{Bundle, tokenizer_of};
pub use chat::{ChatTemplate, Message};
pub use config::Config;
pub use embedding::{
    ATTENTION_MASK, EMBEDDING, Embedder, EmbeddingModel, EmbeddingOptions, EncoderConfig,
    INPUT_IDS, Length, Pooling,
};
pub use encoders::{ENCODERS, EncoderFamily};
pub use error::{Error, ErrorKind, Result};
pub use files::{Companions, check_companions, supported_companions, write_companions};
pub use generate::{FinishReason, GenerateOptions, Generation, Generator};
pub use kind::ModelKind;
pub use model::{
    BuildOptions, Cache, DECODE, LONG_PREFILL, LanguageModel, Layout, PREFILL, SavedModel,
};
pub use sample::{Sampler, Sampling};
pub use save::Destination;
pub use score::{Comparison, Score, score};
pub use settings::GenerationSettings;
pub use speech::{
    Audio, CROSS, FEATURES, Features, LogMel, Segment, SpeechConfig, SpeechModel, SpeechOptions,
    Task, TranscribeOptions, Transcriber, Transcription,
};
pub use tokenizer::Tokenizer;
pub use verify::VerifyOptions;
pub use weights::{StorageShare, TensorLoss, Weights};
