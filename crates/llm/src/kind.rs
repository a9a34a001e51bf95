use std::fmt;
use std::path::Path;

use crate::bundle::{Bundle, converted, tokenizer_in};
use crate::embedding::EmbeddingModel;
use crate::encoders::EMBEDDING_PURPOSE;
use crate::error::{Error, ErrorKind, Result};
use crate::families::SPEECH_PURPOSE;
use crate::source::refuse_ggml;
use crate::speech::SpeechModel;
use crate::tokenizer::Tokenizer;

/// Kind of a model, by its inputs and results.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ModelKind {
    /// Text that continues a text.
    Text,
    /// A vector from each text.
    Embedding,
    /// Text from speech.
    Speech,
}

impl fmt::Display for ModelKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ModelKind::Text => "a model that generates text",
            ModelKind::Embedding => "an embedding model",
            ModelKind::Speech => "a speech model",
        })
    }
}

impl ModelKind {
    /// The kind of a GGUF file, a folder of transformers or a converted model. It is [`ModelKind::Text`] unless the files
    /// belong to another kind.
    pub fn of(path: impl AsRef<Path>) -> ModelKind {
        let path = path.as_ref();
        if SpeechModel::is_at(path) {
            ModelKind::Speech
        } else if EmbeddingModel::is_at(path) {
            ModelKind::Embedding
        } else {
            ModelKind::Text
        }
    }

    /// Refuses an existing path that holds a model of another kind.
    pub(crate) fn check(self, path: &Path) -> Result<()> {
        let found = ModelKind::of(path);
        if found == self || !path.exists() {
            return Ok(());
        }
        refuse_ggml(path)?;
        let (file, hint) = (path.display(), found.purpose());
        let message = match found {
            // Any other file, too.
            ModelKind::Text => format!("{file} is not {self}"),
            ModelKind::Embedding | ModelKind::Speech => format!("{file} is {found}, not {self}"),
        };
        Err(Error::new(ErrorKind::Unsupported, message).with_hint(hint))
    }

    /// A hint for models of this kind.
    fn purpose(self) -> &'static str {
        match self {
            ModelKind::Text => "if it is a language model, generate text with it",
            ModelKind::Embedding => EMBEDDING_PURPOSE,
            ModelKind::Speech => SPEECH_PURPOSE,
        }
    }
}

/// The tokenizer of a model of any kind, or the one of a file or folder without a model.
pub fn tokenizer_of(path: impl AsRef<Path>) -> Result<Tokenizer> {
    let path = path.as_ref();
    let is_file = path.extension().is_some_and(|extension| extension == "json");
    if is_file || path.join("tokenizer.json").is_file() {
        return Tokenizer::open(path);
    }
    if let Some((_, directory)) = converted(path) {
        return tokenizer_in(&directory);
    }
    match ModelKind::of(path) {
        ModelKind::Embedding => EmbeddingModel::open(path)?.tokenizer(),
        ModelKind::Speech | ModelKind::Text => Bundle::open(path)?.tokenizer(),
    }
}
