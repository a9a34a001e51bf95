//! Embedding models: texts become vectors.
//!
//! | module | holds |
//! |---|---|
//! | `config` | the settings of an encoder in its files |
//! | `names` | names of tensors in files |
//! | `encoder` | the encoder as a graph |
//! | `model` | [`EmbeddingModel`], which converts, and [`Embedder`], which runs |

mod config;
mod encoder;
mod model;
mod names;

pub(crate) use config::activation;
pub use config::{EncoderConfig, Pooling};
pub use encoder::{ATTENTION_MASK, EMBEDDING, INPUT_IDS, Length};
pub use model::{Embedder, EmbeddingModel, EmbeddingOptions};
