use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use coremill_graph::{
    ArrayView, CompileOptions, Device, Executable, FeatureSpec, Gguf, Graph, Input, MetadataValue,
    Opset, Param, Params, Precision, Session,
};
use coremill_mil::model::{FeatureType, ShapeFlexibility};
use serde_json::{Value, json};

use super::config::{EncoderConfig, head_of_folder};
use super::encoder::{ATTENTION_MASK, EMBEDDING, INPUT_IDS, Length, MAIN, POSITIONS, TYPES, build};
use super::names::encoder_name;
use crate::encoders::{ENCODERS, EncoderFamily};
use crate::error::{Error, ErrorKind, Result, fail};
use crate::files::{COMPANIONS, check_companions, save_model, tokenizer_in, write_companions};
use crate::kind::{EMBEDDING_SETTINGS, ModelKind, converted};
use crate::model::SavedModel;
use crate::readers::shape_of;
use crate::save::Destination;
use crate::source::{Origin, read_json, read_text, shards};
use crate::tokenizer::{Tokenizer, has_vocabulary};
use crate::weights::{
    CompiledModel, Storage, StorageShare, Weights, compile_graphs, storage_shares,
};

/// A model that turns texts into vectors, in its files.
#[derive(Debug)]
pub struct EmbeddingModel {
    origin: Origin,
    config: EncoderConfig,
    params: Params,
}

/// Options of converting an embedding model.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct EmbeddingOptions {
    /// Tokens of a text; `None` is the model's longest text, of any length up to it.
    pub length: Option<Length>,
    /// Storage of weights.
    pub weights: Weights,
    /// Precision of the computation.
    pub precision: Precision,
}

impl Default for EmbeddingOptions {
    fn default() -> EmbeddingOptions {
        EmbeddingOptions { length: None, weights: Weights::Exact, precision: Precision::Fp16 }
    }
}

impl EmbeddingOptions {
    /// Sets the tokens of a text.
    pub fn length(mut self, length: Length) -> Self {
        self.length = Some(length);
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
}

impl EmbeddingModel {
    /// Reads a GGUF file, or a folder with `config.json` and `safetensors`. Weights stay mapped.
    pub fn open(path: impl AsRef<Path>) -> Result<EmbeddingModel> {
        let path = path.as_ref();
        match path.is_dir() {
            true => of_folder(path),
            false => of_gguf(path).map_err(|error| error.within(path)),
        }
    }

    /// The configuration.
    pub fn config(&self) -> &EncoderConfig {
        &self.config
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
        match &self.origin {
            Origin::Gguf(metadata) => Tokenizer::of_gguf(metadata),
            Origin::Folder(folder) => Tokenizer::open(folder),
        }
    }

    /// The tokens of a text for the options.
    fn length(&self, options: &EmbeddingOptions) -> Result<Length> {
        let most = self.config.max_context;
        let length = options.length.unwrap_or(Length::UpTo(most));
        if !(1..=most).contains(&length.most()) {
            let found = length.most();
            fail!(
                Argument,
                "a text must have from 1 to {most} tokens with this model, got {found}"
            );
        }
        Ok(length)
    }

    /// The files that belong next to the model, as names and contents. A model without a supported tokenizer has an error.
    pub fn companions(&self, options: &EmbeddingOptions) -> Result<Vec<(&'static str, String)>> {
        let text = |value: &Value| format!("{value:#}\n");
        let most = self.length(options)?.most();
        let mut files = Vec::new();
        let [name, config, ..] = COMPANIONS;
        match &self.origin {
            Origin::Folder(folder) => {
                let path = folder.join(name);
                if path.is_file() {
                    files.push((name, read_text(&path)?));
                } else if has_vocabulary(folder) {
                    files.push((name, text(&self.tokenizer()?.to_json())));
                }
                let path = folder.join(config);
                if path.is_file() {
                    files.push((config, read_text(&path)?));
                }
            }
            Origin::Gguf(_) => {
                files.push((name, text(&self.tokenizer()?.to_json())));
                let settings = json!({ "tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": most });
                files.push((config, text(&settings)));
            }
        }
        files.push((
            EMBEDDING_SETTINGS,
            text(&json!({ "max_seq_length": most, "do_lower_case": false })),
        ));
        Ok(files)
    }

    fn graph(&self, options: &EmbeddingOptions) -> Result<Graph> {
        // Scales of blocks came with iOS 18.
        let has_blocks = self.params.iter().any(|(_, param)| param.scheme().is_some());
        let target = match options.weights {
            Weights::Exact if has_blocks => Opset::Ios18,
            // So did tables of groups of channels.
            Weights::Int4 | Weights::Lut4 | Weights::Lut6 => Opset::Ios18,
            _ => Opset::Ios16,
        };
        Ok(build(&self.config, self.length(options)?, target))
    }

    /// Compiles the model for a device.
    pub fn compile(
        &self,
        device: Device,
        threads: usize,
        options: &EmbeddingOptions,
    ) -> Result<Executable> {
        Ok(self.compile_with_losses(device, threads, options)?.executable)
    }

    fn compile_with_losses(
        &self,
        device: Device,
        threads: usize,
        options: &EmbeddingOptions,
    ) -> Result<CompiledModel> {
        let graph = self.graph(options)?;
        let most = self.length(options)?.most() as u64;
        let keeps_codes = options.weights == Weights::Exact;
        let compile = CompileOptions::new().precision(options.precision).requantize(keeps_codes);
        let session = Session::new(device).options(compile).threads(threads);
        let param = |name: &str| self.param(name, most);
        let storage = Storage { weights: options.weights, keeps_codes, rules: &[] };
        compile_graphs(&session, &[graph], storage, &param)
    }

    /// A tensor by the name of a parameter, or the rows of it that the graph uses.
    fn param(&self, name: &str, most: u64) -> Result<Param> {
        let Some(param) = self.params.get(name) else {
            fail!(Format, "no tensor `{name}` was found");
        };
        match name {
            POSITIONS => {
                let first = self.config.first_position as u64;
                Ok(param.rows(first..first + most)?)
            }
            // Texts have one type.
            TYPES => Ok(param.rows(0..1)?),
            _ => Ok(param.clone()),
        }
    }

    /// Converts the model, and writes it with the files next to it.
    pub fn save(
        &self,
        destination: &Destination,
        companions: &[(&str, String)],
        options: &EmbeddingOptions,
        durable: bool,
    ) -> Result<SavedModel> {
        let Destination { model: path, directory, .. } = destination;
        if path.extension().is_some_and(|extension| extension == "pte") {
            let message = "ExecuTorch's runners have no layout for embedding models";
            let error = Error::of_kind(ErrorKind::Argument, message);
            return Err(error.with_hint("write a `.mlpackage`"));
        }
        check_companions(directory, companions)?;
        let CompiledModel { mut executable, losses, .. } =
            self.compile_with_losses(Device::Host, 0, options)?;
        std::fs::create_dir_all(directory)
            .map_err(|error| Error::io("create", directory, error))?;
        save_model(path, executable.model()?, durable)?;
        let mut files = vec![path.clone()];
        files.extend(write_companions(directory, companions)?);
        Ok(SavedModel { files, losses, ..SavedModel::default() })
    }
}

fn of_folder(folder: &Path) -> Result<EmbeddingModel> {
    let path = folder.join("config.json");
    let root = read_json(&path)?;
    let family = EncoderFamily::of_json(&root).ok_or_else(|| unsupported(&root["model_type"]))?;
    let mut params = Params::new();
    for path in shards(folder, None)? {
        params.load_as(&path, encoder_name)?;
    }
    let head = head_of_folder(folder).map_err(|error| error.within(folder))?;
    let config = EncoderConfig::of_json(&root, family, &params, head);
    let config = config.map_err(|error| error.within(&path))?;
    Ok(EmbeddingModel { origin: Origin::Folder(folder.to_owned()), config, params })
}

fn of_gguf(path: &Path) -> Result<EmbeddingModel> {
    let gguf = Gguf::open(path)?;
    let metadata: BTreeMap<String, MetadataValue> = gguf.metadata.clone();
    let name = metadata.get("general.architecture").and_then(|it| it.as_str()).unwrap_or_default();
    let family = EncoderFamily::of_metadata(&metadata).ok_or_else(|| unsupported(&json!(name)))?;
    let mut params = Params::new();
    for (name, param) in gguf.tensors() {
        if let Some(name) = encoder_name(name) {
            params.set(name, param.clone());
        }
    }
    for (name, _) in &gguf.unsupported {
        if let Some(refusal) = gguf.refusal(name).filter(|_| encoder_name(name).is_some()) {
            fail!(Unsupported, "{refusal}");
        }
    }
    let config = EncoderConfig::of_gguf(&metadata, family, &params)?;
    Ok(EmbeddingModel { origin: Origin::Gguf(metadata), config, params })
}

fn unsupported(name: &Value) -> Error {
    let known: Vec<_> = ENCODERS.iter().map(|family| family.name).collect();
    let name = name.as_str().unwrap_or_default();
    let message =
        format!("`{name}` is not a supported embedding model; expected {}", known.join(", "));
    Error::of_kind(ErrorKind::Unsupported, message)
}

/// The tokens that an input accepts.
fn length_of(input: &FeatureSpec) -> Result<Length> {
    let shape = input.default_shape().unwrap_or_default();
    let &[1, tokens] = shape.as_slice() else {
        fail!(Unsupported, "the input `{INPUT_IDS}` must have the shape [1, n], got {shape:?}");
    };
    let described = input.description.as_ref().map(|description| &description.ty);
    if let Some(FeatureType::MultiArray(array)) = described
        && let ShapeFlexibility::Ranged(ranges) = &array.flexibility
        && let [_, range] = ranges.as_slice()
        && range.upper != tokens as i64
    {
        // An unbounded range is that of the platform's integers.
        return Ok(Length::UpTo(usize::try_from(range.upper).unwrap_or(i32::MAX as usize)));
    }
    Ok(Length::Fixed(tokens))
}

/// An embedding model that runs, with its tokenizer.
pub struct Embedder {
    executable: Executable,
    tokenizer: Arc<Tokenizer>,
    length: Length,
    vocabulary: usize,
    width: usize,
}

impl Embedder {
    /// Loads a GGUF file, a folder of transformers, a converted model, or the directory with one. The options are for files of
    /// weights; converted models have theirs.
    pub fn open(
        path: impl AsRef<Path>,
        device: Device,
        threads: usize,
        options: &EmbeddingOptions,
    ) -> Result<Embedder> {
        let path = path.as_ref();
        ModelKind::Embedding.check(path)?;
        let (executable, tokenizer) = match converted(path) {
            Some((model, directory)) => {
                let executable = Session::new(device).threads(threads).open(&model)?;
                (executable, tokenizer_in(&directory)?)
            }
            None => {
                let model = EmbeddingModel::open(path)?;
                (model.compile(device, threads, options)?, model.tokenizer()?)
            }
        };
        Embedder::new(executable, tokenizer)
    }

    /// Takes a model with the inputs `input_ids` and `attention_mask` and the output `embedding`.
    pub fn new(mut executable: Executable, tokenizer: Tokenizer) -> Result<Embedder> {
        let functions = executable.functions()?;
        let name = functions.first().map_or(MAIN, |name| name.as_str()).to_owned();
        let (inputs, outputs) = (executable.inputs(&name)?, executable.outputs(&name)?);
        let width = shape_of(&outputs, EMBEDDING).last().copied();
        let input = inputs.iter().find(|input| input.name == INPUT_IDS);
        let (Some(width), Some(input)) = (width, input) else {
            let message =
                format!("the model has no input `{INPUT_IDS}`, or no output `{EMBEDDING}`");
            let error = Error::of_kind(ErrorKind::Unsupported, message);
            return Err(error.with_hint("embedding models must be converted by coremill"));
        };
        let length = length_of(input)?;
        let vocabulary = tokenizer.len();
        Ok(Embedder { executable, tokenizer: Arc::new(tokenizer), length, vocabulary, width })
    }

    /// Most tokens of a text.
    pub fn context(&self) -> usize {
        self.length.most()
    }

    /// Elements of an embedding.
    pub fn width(&self) -> usize {
        self.width
    }

    /// The tokenizer.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// The tokenizer, to use it while the model runs.
    pub fn shared_tokenizer(&self) -> Arc<Tokenizer> {
        self.tokenizer.clone()
    }

    /// Compiles and plans the model before the first text.
    pub fn prepare(&mut self) -> Result<()> {
        Ok(self.executable.prepare()?)
    }

    /// The tokens of a text. Those after the most tokens are left out.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>> {
        self.tokenizer.encode_within(text, self.context())
    }

    /// The embedding of tokens.
    pub fn embed(&mut self, ids: &[u32]) -> Result<Vec<f32>> {
        let most = self.context();
        if ids.is_empty() || ids.len() > most {
            fail!(Argument, "a text must have from 1 to {most} tokens, got {}", ids.len());
        }
        if let Some(id) = ids.iter().find(|&&id| id as usize >= self.vocabulary) {
            let vocabulary = self.vocabulary;
            fail!(Argument, "token {id} is not below {vocabulary}, the size of the vocabulary");
        }
        let mut tokens: Vec<i32> = ids.iter().map(|&id| id as i32).collect();
        let mut mask = vec![1i32; tokens.len()];
        if let Length::Fixed(length) = self.length {
            tokens.resize(length, 0);
            mask.resize(length, 0);
        }
        let shape = &[1, tokens.len()];
        let ids = ArrayView { shape, elements: &tokens };
        let mask = ArrayView { shape, elements: &mask };
        let inputs: [(&str, &dyn Input); 2] = [(INPUT_IDS, &ids), (ATTENTION_MASK, &mask)];
        let outputs = self.executable.run(&inputs)?;
        match outputs.floats(EMBEDDING) {
            Some(embedding) => Ok(embedding.to_vec()),
            None => fail!(Run, "the model returned no `{EMBEDDING}`"),
        }
    }
}
