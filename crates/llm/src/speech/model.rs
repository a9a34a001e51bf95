use std::fs;
use std::path::{Path, PathBuf};

use coremill_graph::{CompileOptions, Device, Executable, Param, Params, Precision, Session};
use coremill_session::MODEL_EXTENSIONS;
use serde_json::{Value, json};

use super::config::{BLOCK, SpeechConfig};
use super::features::LogMel;
use super::network::{build_decoder, build_encoder};
use super::rules::TokenRules;
use crate::error::{Error, ErrorKind, Result, fail};
use crate::files::{COMPANIONS, check_companions, save_model, write_companions};
use crate::kind::{DECODER, ENCODER};
use crate::model::SavedModel;
use crate::source::{read_json, read_text, refuse_ggml, shards};
use crate::tokenizer::{Tokenizer, has_vocabulary};
use crate::weights::{
    CompiledModel, Storage, StorageShare, Weights, compile_graphs, storage_shares,
};

/// Name of the file with the settings of the features.
const PREPROCESSOR: &str = "preprocessor_config.json";

/// Keys of `generation_config.json` that older models have in `config.json`.
const GENERATION_KEYS: [&str; 6] = [
    "decoder_start_token_id",
    "eos_token_id",
    "suppress_tokens",
    "begin_suppress_tokens",
    "max_length",
    "forced_decoder_ids",
];

/// A model that turns speech into text, in its files.
#[derive(Debug)]
pub struct SpeechModel {
    folder: PathBuf,
    config: SpeechConfig,
    params: Params,
    features: LogMel,
    /// The content of `generation_config.json`.
    generation: Value,
}

/// Options of converting a speech model.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct SpeechOptions {
    /// Most tokens of a window of audio; `None` is the model's most.
    pub context: Option<usize>,
    /// Storage of weights.
    pub weights: Weights,
    /// Precision of the computation.
    pub precision: Precision,
    /// The decoder computes attention with products, as the encoder always does, rather than with Core ML's operation, which is
    /// reported to be wrong on the Neural Engine of iOS 26.
    pub plain_attention: bool,
}

impl SpeechOptions {
    /// Sets the most tokens of a window of audio.
    pub fn context(mut self, tokens: usize) -> Self {
        self.context = Some(tokens);
        self
    }

    /// Sets the storage of weights.
    pub fn weights(mut self, weights: Weights) -> Self {
        self.weights = weights;
        self
    }

    /// Sets the precision of the computation.
    pub fn precision(mut self, precision: Precision) -> Self {
        self.precision = precision;
        self
    }

    /// Computes the decoder's attention with products.
    pub fn plain_attention(mut self) -> Self {
        self.plain_attention = true;
        self
    }
}

/// The encoder and the decoder of a model.
pub(super) struct Networks {
    pub(super) encoder: CompiledModel,
    pub(super) decoder: CompiledModel,
}

impl SpeechModel {
    /// Reads a folder with `config.json` and `safetensors`. Weights stay mapped.
    pub fn open(path: impl AsRef<Path>) -> Result<SpeechModel> {
        let folder = path.as_ref();
        refuse_ggml(folder)?;
        let path = folder.join("config.json");
        if !path.is_file() {
            let message = format!("{} has no `config.json`", folder.display());
            let error = Error::of_kind(ErrorKind::File, message);
            return Err(error.with_hint("pass a model folder saved by transformers"));
        }
        let root = read_json(&path)?;
        let mut params = Params::new();
        for file in shards(folder, None)? {
            params.load_as(&file, |name| {
                Some(name.strip_prefix("model.").unwrap_or(name).to_owned())
            })?;
        }
        let config = SpeechConfig::of_json(&root, &params).map_err(|error| error.within(&path))?;
        let features = LogMel::of_folder(folder, config.bands)?;
        let frames = config.frames();
        if features.frames() != frames {
            let found = features.frames();
            fail!(Format, "a window of audio must have {frames} frames of features, got {found}");
        }
        let generation = generation_of(folder, &root)?;
        TokenRules::of_json(&generation, config.vocabulary)
            .map_err(|error| error.within(&folder.join(COMPANIONS[3])))?;
        Ok(SpeechModel { folder: folder.to_owned(), config, params, features, generation })
    }

    /// The configuration.
    pub fn config(&self) -> &SpeechConfig {
        &self.config
    }

    /// Settings of the features.
    pub fn features(&self) -> &LogMel {
        &self.features
    }

    /// The content of `generation_config.json`, with what older models have in `config.json`.
    pub(super) fn generation(&self) -> &Value {
        &self.generation
    }

    /// Number of weights.
    pub fn parameter_count(&self) -> u64 {
        self.params.iter().map(|(_, param)| param.shape().iter().product::<u64>()).sum()
    }

    /// Tensors by their storage in the file, the largest share first.
    pub fn storage(&self) -> Vec<StorageShare> {
        storage_shares(&self.params)
    }

    /// The tokenizer.
    pub fn tokenizer(&self) -> Result<Tokenizer> {
        Tokenizer::open(&self.folder)
    }

    /// Most tokens of a window of audio.
    pub fn context(&self, options: &SpeechOptions) -> Result<usize> {
        let most = self.config.max_context;
        let context = options.context.unwrap_or(most);
        if context <= BLOCK || context > most {
            fail!(
                Argument,
                "`context` must be from {} to {most} with this model, got {context}",
                BLOCK + 1
            );
        }
        Ok(context)
    }

    /// The files that belong next to the packages, as names and contents. A model without a supported tokenizer has an error.
    pub fn companions(&self) -> Result<Vec<(&'static str, String)>> {
        let text = |value: &Value| format!("{value:#}\n");
        let [tokenizer, tokenizer_config, _, generation] = COMPANIONS;
        let mut files = Vec::new();
        let path = self.folder.join(tokenizer);
        // An unsupported tokenizer is found now rather than when the model runs.
        let read = self.tokenizer()?;
        if path.is_file() {
            files.push((tokenizer, read_text(&path)?));
        } else if has_vocabulary(&self.folder) {
            files.push((tokenizer, text(&read.to_json())));
        }
        let path = self.folder.join(tokenizer_config);
        if path.is_file() {
            files.push((tokenizer_config, read_text(&path)?));
        }
        files.push((generation, text(&self.generation)));
        files.push((PREPROCESSOR, text(&self.features.to_json())));
        Ok(files)
    }

    /// Compiles encoder and decoder for a device.
    pub fn compile(
        &self,
        device: Device,
        threads: usize,
        options: &SpeechOptions,
    ) -> Result<[Executable; 2]> {
        let Networks { encoder, decoder } = self.networks(device, threads, options)?;
        Ok([encoder.executable, decoder.executable])
    }

    fn networks(
        &self,
        device: Device,
        threads: usize,
        options: &SpeechOptions,
    ) -> Result<Networks> {
        let compile = CompileOptions::new().precision(options.precision);
        let plain = compile.clone().skipped_passes(["fuse_attention"]);
        let context = self.context(options)?;
        let param = |name: &str| self.param(name);
        let compiled = |compile: CompileOptions, graphs: &[_]| {
            let session = Session::new(device).options(compile).threads(threads);
            let storage = Storage { weights: options.weights, keeps_codes: false, rules: &[] };
            compile_graphs(&session, graphs, storage, &param)
        };
        let encoder = build_encoder(&self.config, options.precision);
        let decoder = build_decoder(&self.config, context, options.precision);
        Ok(Networks {
            encoder: compiled(plain.clone(), &[encoder])?,
            decoder: compiled(if options.plain_attention { plain } else { compile }, &decoder)?,
        })
    }

    fn param(&self, name: &str) -> Result<Param> {
        match self.params.get(name) {
            Some(param) => Ok(param.clone()),
            None => fail!(Format, "no tensor `{name}` was found"),
        }
    }

    /// Paths of the packages in a directory.
    pub fn package_paths(directory: &Path) -> Result<[PathBuf; 2]> {
        let extension = directory.extension().and_then(|extension| extension.to_str());
        if extension.is_some_and(|it| MODEL_EXTENSIONS.contains(&it)) {
            let message = format!(
                "{} is a single model, but a speech model has an encoder and a decoder",
                directory.display()
            );
            let error = Error::of_kind(ErrorKind::Argument, message);
            return Err(error.with_hint("write to a directory"));
        }
        Ok([ENCODER, DECODER].map(|name| directory.join(name)))
    }

    /// Converts the model, and writes it with the files next to it. Existing files of another model are kept, and are an error.
    /// `stage` is called with the current step.
    pub fn save(
        &self,
        directory: &Path,
        companions: &[(&str, String)],
        options: &SpeechOptions,
        durable: bool,
        stage: &mut dyn FnMut(&str),
    ) -> Result<SavedModel> {
        let paths = SpeechModel::package_paths(directory)?;
        check_companions(directory, companions)?;
        let Networks { encoder, decoder } = self.networks(Device::Host, 0, options)?;
        fs::create_dir_all(directory).map_err(|error| Error::io("create", directory, error))?;
        let mut saved = SavedModel::default();
        for (path, network) in paths.into_iter().zip([encoder, decoder]) {
            let CompiledModel { mut executable, losses, .. } = network;
            stage(&format!("writing {}", path.display()));
            save_model(&path, executable.model()?, durable)?;
            saved.files.push(path);
            saved.losses.extend(losses);
        }
        saved.files.extend(write_companions(directory, companions)?);
        Ok(saved)
    }
}

/// The settings of generation, with what older models have in `config.json`.
fn generation_of(folder: &Path, config: &Value) -> Result<Value> {
    let path = folder.join(COMPANIONS[3]);
    let mut generation = if path.is_file() { read_json(&path)? } else { json!({}) };
    if !generation.is_object() {
        fail!(Format, "{} must be a JSON object", path.display());
    }
    for key in GENERATION_KEYS {
        if generation[key].is_null() && !config[key].is_null() {
            generation[key] = config[key].clone();
        }
    }
    Ok(generation)
}
