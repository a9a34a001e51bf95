use std::path::{Path, PathBuf};

use coremill_graph::{Device, Session};

use crate::anemll::META;
use crate::chat::ChatTemplate;
use crate::chunks::MANIFEST;
use crate::embedding::EmbeddingModel;
use crate::error::{Error, Result};
use crate::files::{settings_of, tokenizer_in};
use crate::generate::Generator;
use crate::kind::{ModelKind, converted};
use crate::model::{BuildOptions, LanguageModel};
use crate::settings::GenerationSettings;
use crate::tokenizer::Tokenizer;

/// A model with what belongs to it: files of weights, or a converted model with the files next to it.
#[derive(Debug)]
pub struct Bundle {
    form: Form,
}

#[derive(Debug)]
enum Form {
    Weights(Box<LanguageModel>),
    /// A package, a compiled model or an ExecuTorch program, and the directory with its tokenizer.
    Converted {
        model: PathBuf,
        directory: PathBuf,
    },
    /// A directory with the models of [`Layout::Chunks`](crate::Layout::Chunks) or of a bundle of ANEMLL.
    Chunks(PathBuf),
}

impl Bundle {
    /// Opens a GGUF file, a folder of transformers, a converted model, the directory of one, or a bundle of ANEMLL.
    pub fn open(path: impl AsRef<Path>) -> Result<Bundle> {
        let path = path.as_ref();
        if !path.exists() {
            return Err(Error::missing(path));
        }
        if path.join(MANIFEST).is_file() || path.join(META).is_file() {
            return Ok(Bundle { form: Form::Chunks(path.to_owned()) });
        }
        let converted = converted(path);
        if converted.is_some() || (path.is_dir() && !path.join("config.json").is_file()) {
            // Reading weights refuses those of other kinds.
            ModelKind::Text.check(path)?;
        }
        if let Some((model, directory)) = converted {
            return Ok(Bundle { form: Form::Converted { model, directory } });
        }
        Ok(Bundle { form: Form::Weights(Box::new(LanguageModel::open(path)?)) })
    }

    /// The files of weights, if the model is not converted.
    pub fn weights(&self) -> Option<&LanguageModel> {
        match &self.form {
            Form::Weights(model) => Some(model),
            Form::Converted { .. } | Form::Chunks(_) => None,
        }
    }

    /// Options of compiling weights. `context` is [`LanguageModel::default_context`] if it is left out.
    pub fn build_options(&self, context: Option<usize>) -> BuildOptions {
        let context = context.or_else(|| self.weights().map(LanguageModel::default_context));
        match context {
            Some(context) => BuildOptions::default().context(context),
            None => BuildOptions::default(),
        }
    }

    /// The tokenizer.
    pub fn tokenizer(&self) -> Result<Tokenizer> {
        match &self.form {
            Form::Weights(model) => model.tokenizer(),
            Form::Converted { directory, .. } | Form::Chunks(directory) => tokenizer_in(directory),
        }
    }

    /// The chat template, if there is one.
    pub fn chat_template(&self) -> Result<Option<ChatTemplate>> {
        match &self.form {
            Form::Weights(model) => model.chat_template(),
            Form::Converted { directory, .. } | Form::Chunks(directory) => {
                ChatTemplate::open(directory)
            }
        }
    }

    /// Settings of generation.
    pub fn generation_settings(&self) -> Result<GenerationSettings> {
        match &self.form {
            Form::Weights(model) => model.generation_settings(),
            Form::Converted { directory, .. } | Form::Chunks(directory) => settings_of(directory),
        }
    }

    /// Loads the model on a device. Options are for files of weights; converted models have theirs.
    pub fn generator(
        &self,
        device: Device,
        threads: usize,
        options: &BuildOptions,
    ) -> Result<Generator> {
        let session = Session::new(device).threads(threads);
        match &self.form {
            Form::Weights(model) => Generator::new(model.compile(device, threads, options)?),
            Form::Converted { model, .. } => Generator::new(session.open(model)?),
            Form::Chunks(directory) => Generator::of_chunks(directory, &session),
        }
    }

    /// Loads a converted model in a session; `None` for files of weights.
    pub(crate) fn converted_generator(&self, session: &Session) -> Result<Option<Generator>> {
        Ok(match &self.form {
            Form::Weights(_) => None,
            Form::Converted { model, .. } => Some(Generator::new(session.open(model)?)?),
            Form::Chunks(directory) => Some(Generator::of_chunks(directory, session)?),
        })
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
