use std::fmt;
use std::path::{Path, PathBuf};

use coremill_graph::Gguf;
use coremill_session::MODEL_EXTENSIONS;

use crate::encoders::{EMBEDDING_PURPOSE, EncoderFamily};
use crate::error::{Error, ErrorKind, Result};
use crate::families::{SPEECH, SPEECH_PURPOSE};
use crate::source::{read_json, refuse_ggml};

/// Name of the file next to a converted embedding model, with the most tokens of a text. sentence-transformers has such a
/// file.
pub(crate) const EMBEDDING_SETTINGS: &str = "sentence_bert_config.json";
/// Names of the packages of a converted speech model.
pub(crate) const ENCODER: &str = "encoder.mlpackage";
pub(crate) const DECODER: &str = "decoder.mlpackage";

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
        if let Some((_, directory)) = converted(path) {
            let is_embedding = directory.join(EMBEDDING_SETTINGS).is_file();
            return if is_embedding { ModelKind::Embedding } else { ModelKind::Text };
        }
        if speech_packages(path).is_some() {
            return ModelKind::Speech;
        }
        let encoder = if path.is_dir() {
            let config = read_json(&path.join("config.json")).unwrap_or_default();
            if config["model_type"].as_str() == Some(SPEECH) {
                return ModelKind::Speech;
            }
            EncoderFamily::of_json(&config)
        } else if path.extension().is_some_and(|extension| extension == "gguf") {
            Gguf::open(path).ok().and_then(|file| EncoderFamily::of_metadata(&file.metadata))
        } else {
            None
        };
        if encoder.is_some() { ModelKind::Embedding } else { ModelKind::Text }
    }

    /// Refuses a path that does not exist or holds a model of another kind.
    pub(crate) fn check(self, path: &Path) -> Result<()> {
        if !path.exists() {
            return Err(Error::missing(path));
        }
        let found = ModelKind::of(path);
        if found == self {
            return Ok(());
        }
        refuse_ggml(path)?;
        let (file, hint) = (path.display(), found.purpose());
        let message = match found {
            // Any other file, too.
            ModelKind::Text => format!("{file} is not {self}"),
            ModelKind::Embedding | ModelKind::Speech => format!("{file} is {found}, not {self}"),
        };
        Err(Error::of_kind(ErrorKind::Unsupported, message).with_hint(hint))
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

/// A converted model at a path, or in its directory, and the directory with its tokenizer.
pub(crate) fn converted(path: &Path) -> Option<(PathBuf, PathBuf)> {
    let extension = path.extension().and_then(|extension| extension.to_str());
    if extension.is_some_and(|extension| MODEL_EXTENSIONS.contains(&extension)) {
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        return Some((path.to_owned(), parent.unwrap_or(Path::new(".")).to_owned()));
    }
    if !path.is_dir() || path.join("config.json").is_file() {
        return None;
    }
    let found = MODEL_EXTENSIONS.iter().map(|ending| path.join(format!("model.{ending}")));
    let model = found.into_iter().find(|model| model.exists())?;
    Some((model, path.to_owned()))
}

/// The packages of a converted speech model in a directory.
pub(crate) fn speech_packages(path: &Path) -> Option<[PathBuf; 2]> {
    let both = [ENCODER, DECODER].map(|name| path.join(name));
    both.iter().all(|package| package.exists()).then_some(both)
}
