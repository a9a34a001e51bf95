use std::path::{Path, PathBuf};
use std::str::FromStr;

use coremill_compress::Rule;
use coremill_delegate::FORWARD;
use coremill_edit::expose_states;
use coremill_graph::{CompileOptions, Device, Executable, Graph, Param, Precision, Session};
use coremill_mil::model::Model;
use serde_json::Value;

use crate::chat::ChatTemplate;
use crate::config::Config;
use crate::decoder::{self, FunctionOptions, Interface};
use crate::error::{Error, ErrorKind, Result, fail};
use crate::mixers::Mixer;
use crate::settings::GenerationSettings;
use crate::source::{Origin, Source, read_json};
use crate::states::stored_head;
use crate::tokenizer::Tokenizer;
use crate::weights::{
    CompiledModel, Storage, StorageShare, TensorLoss, Weights, compile_graphs, named, storage,
    storage_shares,
};

/// Name of the function that reads one token.
pub const DECODE: &str = "decode";
/// Name of the function that reads a block of tokens.
pub const PREFILL: &str = "prefill";
/// Name of the function that reads a larger block of tokens.
pub const LONG_PREFILL: &str = "long_prefill";
/// Name of the only function of a model.
pub(crate) const MAIN: &str = "main";

/// Least context that swift-transformers accepts: its range of tokens must have more than two lengths.
const MIN_SWIFT_CONTEXT: usize = 3;

/// A language model in its files.
#[derive(Debug)]
pub struct LanguageModel {
    source: Source,
}

/// Functions of a converted model, and their inputs and outputs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Layout {
    /// The functions [`DECODE`], [`PREFILL`] and [`LONG_PREFILL`].
    #[default]
    Coremill,
    /// The method `forward` of ExecuTorch's `TextLLMRunner`. It takes from one to [`BuildOptions::prefill`] tokens.
    ExecuTorch,
    /// The method `forward` of ExecuTorch's static runner. It takes [`BuildOptions::prefill`] tokens and the cache, and returns
    /// the logits of all tokens.
    ExecuTorchStatic,
    /// The methods `forward` and `prefill` of ExecuTorch's static runner. They take the cache, and return the logits of the
    /// last valid token.
    ExecuTorchMultifunction,
    /// The only function of swift-transformers' `LanguageModel`: it takes from one token to the context, and returns the logits of
    /// all tokens. Keys and values of all layers are two states.
    SwiftTransformers,
    /// Several models for the Neural Engine: the embeddings, chunks of layers, and the output head. A chunk has one state, and
    /// takes the mask, the rotations and the positions to store as fp16 inputs.
    Chunks,
    /// A bundle of ANEMLL: compiled models of the embeddings, of chunks of layers, and of the output head in pieces.
    Anemll,
}

impl FromStr for Layout {
    type Err = Error;

    fn from_str(name: &str) -> Result<Layout> {
        let all = [
            Layout::Coremill,
            Layout::ExecuTorch,
            Layout::ExecuTorchStatic,
            Layout::ExecuTorchMultifunction,
            Layout::SwiftTransformers,
            Layout::Anemll,
            Layout::Chunks,
        ];
        named("layout", name, &all.map(|layout| (layout.name(), layout)))
    }
}

impl Layout {
    /// The name in options.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Layout::Coremill => "coremill",
            Layout::ExecuTorch => "executorch",
            Layout::ExecuTorchStatic => "executorch-static",
            Layout::ExecuTorchMultifunction => "executorch-multifunction",
            Layout::SwiftTransformers => "swift-transformers",
            Layout::Anemll => "anemll",
            Layout::Chunks => "chunks",
        }
    }

    /// Whether there are several models in a directory, which are for the Neural Engine.
    pub(crate) fn is_chunked(self) -> bool {
        matches!(self, Layout::Chunks | Layout::Anemll)
    }

    /// Whether the model is an ExecuTorch program.
    pub(crate) fn is_program(self) -> bool {
        self == Layout::ExecuTorch || self.is_stateless()
    }

    /// Whether a caller keeps the cache.
    pub(crate) fn is_stateless(self) -> bool {
        matches!(self, Layout::ExecuTorchStatic | Layout::ExecuTorchMultifunction)
    }
}

/// Owner of the cache between calls: keys and values, and the values of recurrent layers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Cache {
    /// The model, in states.
    #[default]
    State,
    /// The caller. Functions take each cache as an input, and return it with the new tokens as the output `new_NAME`.
    Io,
}

impl FromStr for Cache {
    type Err = Error;

    fn from_str(name: &str) -> Result<Cache> {
        named("cache", name, &[("state", Cache::State), ("io", Cache::Io)])
    }
}

/// Default number of positions of the cache. A model with shorter sequences has fewer.
const DEFAULT_CONTEXT: usize = 2048;

/// Default number of tokens that `prefill` reads in a call.
const DEFAULT_BLOCK: usize = 64;

/// Options of converting a language model.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct BuildOptions {
    /// Positions of the cache.
    pub context: usize,
    /// Tokens that `prefill` reads in a call; 1 leaves the function out. `None` is 64, or as many as the context allows.
    pub prefill: Option<usize>,
    /// Tokens that `long_prefill` reads in a call, in [`Layout::Coremill`]. The function is left out if `prefill` reads as many or is
    /// left out, if the context is shorter than two calls, and with `all_logits`.
    pub long_prefill: usize,
    /// Storage of weights.
    pub weights: Weights,
    /// Forms of some weights, instead of `weights`. The first rule that selects a weight applies. Patterns match the names of
    /// parameters, such as `model.layers.*.mlp.down_proj.weight`.
    pub rules: Vec<Rule>,
    /// Precision of the computation.
    pub precision: Precision,
    /// Return the logits of all tokens of a block rather than of the last valid one.
    pub all_logits: bool,
    /// Functions, and their inputs and outputs.
    pub layout: Layout,
    /// Owner of the cache between calls.
    pub cache: Cache,
    /// Number of models that share the layers in [`Layout::Chunks`] and [`Layout::Anemll`]; `None` chooses it by their layers and weights.
    pub chunks: Option<usize>,
}

impl Default for BuildOptions {
    fn default() -> BuildOptions {
        BuildOptions {
            context: DEFAULT_CONTEXT,
            prefill: None,
            long_prefill: 256,
            weights: Weights::Exact,
            rules: Vec::new(),
            precision: Precision::Fp16,
            all_logits: false,
            layout: Layout::Coremill,
            cache: Cache::State,
            chunks: None,
        }
    }
}

impl BuildOptions {
    /// Sets the number of positions of the cache.
    pub fn context(mut self, positions: usize) -> Self {
        self.context = positions;
        self
    }

    /// Sets the number of tokens that `prefill` reads in a call.
    pub fn prefill(mut self, tokens: usize) -> Self {
        self.prefill = Some(tokens);
        self
    }

    /// Sets the number of tokens that `long_prefill` reads in a call.
    pub fn long_prefill(mut self, tokens: usize) -> Self {
        self.long_prefill = tokens;
        self
    }

    /// Tokens that `prefill` reads in a call.
    pub fn block(&self) -> usize {
        // Static runners keep the cache of the other positions.
        let most = self.context.saturating_sub(usize::from(self.layout.is_stateless()));
        self.prefill.unwrap_or(DEFAULT_BLOCK.min(most).max(1))
    }

    /// Tokens that `long_prefill` reads in a call, if there is that function.
    pub fn long_block(&self) -> Option<usize> {
        let BuildOptions { context, long_prefill, all_logits, layout, .. } = *self;
        let prefill = self.block();
        let pays_off = prefill > 1 && long_prefill > prefill && long_prefill <= context / 2;
        (layout == Layout::Coremill && pays_off && !all_logits).then_some(long_prefill)
    }

    /// Sets the storage of weights.
    pub fn weights(mut self, weights: Weights) -> Self {
        self.weights = weights;
        self
    }

    /// Sets the forms of some weights.
    pub fn rules(mut self, rules: impl Into<Vec<Rule>>) -> Self {
        self.rules = rules.into();
        self
    }

    /// Sets the precision of the computation.
    pub fn precision(mut self, precision: Precision) -> Self {
        self.precision = precision;
        self
    }

    /// Sets the functions, and their inputs and outputs.
    pub fn layout(mut self, layout: Layout) -> Self {
        self.layout = layout;
        self
    }

    /// Sets the owner of the cache between calls.
    pub fn cache(mut self, cache: Cache) -> Self {
        self.cache = cache;
        self
    }

    /// Sets the number of models that share the layers.
    pub fn chunks(mut self, count: usize) -> Self {
        self.chunks = Some(count);
        self
    }

    /// Returns the logits of all tokens of a block.
    pub fn all_logits(mut self) -> Self {
        self.all_logits = true;
        self
    }
}

/// Result of writing a model.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct SavedModel {
    /// Paths of the files and packages.
    pub files: Vec<PathBuf>,
    /// Losses of weights that were stored as integers.
    pub losses: Vec<TensorLoss>,
    /// Rules that select no weight, and weights that rules cannot compress.
    pub warnings: Vec<String>,
}

impl LanguageModel {
    /// Reads a GGUF file, the first of its parts, or a folder with `config.json` and `safetensors`. Weights stay mapped.
    pub fn open(path: impl AsRef<Path>) -> Result<LanguageModel> {
        Ok(LanguageModel { source: Source::open(path.as_ref())? })
    }

    /// The configuration.
    pub fn config(&self) -> &Config {
        &self.source.config
    }

    /// Default number of positions of the cache: the model's longest sequence, at most 2048.
    pub fn default_context(&self) -> usize {
        self.config().max_context.min(DEFAULT_CONTEXT)
    }

    /// Number of weights.
    pub fn parameter_count(&self) -> u64 {
        let counts = self.source.params.iter();
        counts.map(|(_, param)| param.shape().iter().product::<u64>()).sum()
    }

    /// Number of weights of all layers.
    pub(crate) fn layer_weights(&self) -> u64 {
        let layers = self.source.params.iter().filter(|(name, _)| name.contains(".layers."));
        layers.map(|(_, param)| param.shape().iter().product::<u64>()).sum()
    }

    /// Tensors by their storage in the file, the largest share first.
    pub fn storage(&self) -> Vec<StorageShare> {
        storage_shares(&self.source.params)
    }

    /// Losses of tensors whose weights differ on a device that computes in `fp16`. They are measured in samples of each
    /// tensor. Conversion computes the integers and tables of other weights, so that [`LanguageModel::save`] returns their losses.
    pub fn losses(&self, weights: Weights) -> Result<Vec<TensorLoss>> {
        let mut losses = Vec::new();
        for (name, param) in self.source.params.iter() {
            let decibels = match weights {
                Weights::Exact | Weights::Fp16 => param.fp16_decibels(weights == Weights::Exact)?,
                _ => None,
            };
            if let Some(decibels) = decibels {
                losses.push(TensorLoss {
                    tensor: name.to_owned(),
                    scheme: storage(param),
                    decibels,
                });
            }
        }
        Ok(losses)
    }

    /// Bytes of the states for a context in `fp16`: keys and values, and the values of recurrences.
    pub fn cache_bytes(&self, context: usize) -> u64 {
        let config = self.config();
        let each = [config.kv_heads, stored_head(config.head), context];
        let each = each.iter().fold(4, |all: u64, &extent| all.saturating_mul(extent as u64));
        let bytes = config.mixers.iter().map(|mixer| match mixer {
            Mixer::Attention => each,
            other => other.state_elements(config.width).saturating_mul(2),
        });
        bytes.fold(0, u64::saturating_add)
    }

    /// The tokenizer.
    pub fn tokenizer(&self) -> Result<Tokenizer> {
        match &self.source.origin {
            Origin::Gguf(metadata) => Tokenizer::of_gguf(metadata),
            Origin::Folder(folder) => Tokenizer::open(folder),
        }
    }

    /// The chat template, if there is one.
    pub fn chat_template(&self) -> Result<Option<ChatTemplate>> {
        match &self.source.origin {
            Origin::Gguf(metadata) => ChatTemplate::of_gguf(metadata),
            Origin::Folder(folder) => ChatTemplate::open(folder),
        }
    }

    /// Settings of generation: tokens that end a text, and sampling.
    pub fn generation_settings(&self) -> Result<GenerationSettings> {
        match &self.source.origin {
            Origin::Gguf(metadata) => Ok(GenerationSettings::of_gguf(metadata)),
            Origin::Folder(folder) => {
                let path = folder.join("generation_config.json");
                let generation = if path.is_file() { read_json(&path)? } else { Value::Null };
                let config = read_json(&folder.join("config.json"))?;
                Ok(GenerationSettings::of_json(&generation, &config))
            }
        }
    }

    /// The model's functions as graphs.
    pub fn graphs(&self, options: &BuildOptions) -> Result<Vec<Graph>> {
        let BuildOptions { context, all_logits, layout, .. } = *options;
        let prefill = self.check_sizes(options)?;
        if layout == Layout::ExecuTorch && prefill > 1 && self.config().is_recurrent() {
            let name = self.config().family.name;
            let message =
                format!("`{name}` has recurrent layers, which process one token at a time");
            let error = Error::of_kind(ErrorKind::Unsupported, message);
            return Err(error.with_hint("set `prefill` to 1, or choose the layout `coremill`"));
        }
        if layout.is_stateless() {
            self.check_stateless(prefill, context)?;
        }
        let block = FunctionOptions {
            name: DECODE,
            interface: Interface::Block,
            tokens: 1,
            context,
            all_logits,
        };
        let functions = match layout {
            Layout::Coremill => {
                let function = |name, tokens| FunctionOptions { name, tokens, ..block };
                let short = (prefill > 1).then(|| function(PREFILL, prefill));
                let long = options.long_block().map(|tokens| function(LONG_PREFILL, tokens));
                [Some(block), short, long].into_iter().flatten().collect()
            }
            Layout::ExecuTorch => {
                let interface = if prefill > 1 { Interface::Range } else { Interface::Block };
                vec![FunctionOptions { name: MAIN, interface, tokens: prefill, ..block }]
            }
            Layout::ExecuTorchStatic => vec![FunctionOptions {
                name: MAIN,
                interface: Interface::Stateless,
                tokens: prefill,
                context: context - prefill,
                all_logits: true,
            }],
            Layout::SwiftTransformers => {
                self.check_swift_transformers(context)?;
                let interface = Interface::SwiftTransformers;
                let (tokens, all_logits) = (context, true);
                vec![FunctionOptions { name: MAIN, interface, tokens, all_logits, ..block }]
            }
            Layout::Chunks | Layout::Anemll => {
                let message = "the layouts `chunks` and `anemll` consist of several models";
                let error = Error::of_kind(ErrorKind::Argument, message);
                return Err(error.with_hint("save it to a directory"));
            }
            Layout::ExecuTorchMultifunction => {
                let interface = Interface::Stateless;
                let context = context - 1;
                let decode = FunctionOptions { name: FORWARD, interface, context, ..block };
                vec![decode, FunctionOptions { name: PREFILL, tokens: prefill, ..decode }]
            }
        };
        Ok(functions.iter().map(|options| decoder::build(self.config(), options)).collect())
    }

    /// Refuses contexts and blocks that the model cannot have. Returns the tokens that `prefill` reads.
    pub(crate) fn check_sizes(&self, options: &BuildOptions) -> Result<usize> {
        check_cache(options)?;
        let context = options.context;
        let most = self.config().max_context;
        if context == 0 || context > most {
            let message = format!("`context` must be from 1 to {most}, got {context}");
            let hint = "this is the maximum sequence length of the model";
            return Err(Error::of_kind(ErrorKind::Argument, message).with_hint(hint));
        }
        let prefill = options.block();
        if prefill == 0 || prefill > context {
            fail!(Argument, "`prefill` must be from 1 to the context of {context}, got {prefill}");
        }
        Ok(prefill)
    }

    /// Refuses models whose layers differ in their masks or rotations, of which static runners have one for all.
    fn check_stateless(&self, prefill: usize, context: usize) -> Result<()> {
        let config = self.config();
        if let Some(what) = config.uneven_positions(context) {
            return Err(config.refusal(
                what,
                "ExecuTorch's static runners",
                "the layout `executorch`",
            ));
        }
        if prefill == context {
            fail!(Argument, "`prefill` must be less than the context of {context}, got {prefill}");
        }
        Ok(())
    }

    /// Refuses models that depend on the position of the first token, which differs between callers of the layout.
    fn check_swift_transformers(&self, context: usize) -> Result<()> {
        let config = self.config();
        if let Some(what) = config.absolute_positions() {
            return Err(config.refusal(what, "swift-transformers", "the layout `coremill`"));
        }
        if context < MIN_SWIFT_CONTEXT {
            fail!(
                Argument,
                "`context` must be at least {MIN_SWIFT_CONTEXT} for swift-transformers, got {context}"
            );
        }
        Ok(())
    }

    /// Compiles the model for a device.
    pub fn compile(
        &self,
        device: Device,
        threads: usize,
        options: &BuildOptions,
    ) -> Result<Executable> {
        Ok(self.compile_graphs(&self.graphs(options)?, device, threads, options)?.executable)
    }

    /// Compiles the functions of one model.
    pub(crate) fn compile_graphs(
        &self,
        graphs: &[Graph],
        device: Device,
        threads: usize,
        options: &BuildOptions,
    ) -> Result<CompiledModel> {
        // The Neural Engine has no scales of blocks.
        let keeps_codes = options.weights == Weights::Exact && !options.layout.is_chunked();
        let compile = CompileOptions::new().precision(options.precision).requantize(keeps_codes);
        // Core ML's own attention in fp16 is reported to be wrong on the Neural Engine of iOS 26.
        let compile = match options.layout.is_chunked() {
            true => compile.skipped_passes(["fuse_attention"]),
            false => compile,
        };
        let session = Session::new(device).options(compile).threads(threads);
        let param = |name: &str| self.param(name);
        let storage = Storage { weights: options.weights, keeps_codes, rules: &options.rules };
        let mut compiled = compile_graphs(&session, graphs, storage, &param)?;
        if options.cache == Cache::Io {
            let mut model = compiled.executable.model()?.clone();
            if expose_states(&mut model)
                .map_err(|error| Error::from_source(ErrorKind::Run, error))?
            {
                compiled.executable = session.load(model)?;
            }
        }
        Ok(compiled)
    }

    /// A tensor, or some rows of one, by the name of a parameter.
    fn param(&self, name: &str) -> Result<Param> {
        let piece = decoder::piece_of(self.config(), name);
        let whole = piece.as_ref().map_or(name, |(whole, _)| whole);
        let Some(param) = self.source.params.get(whole) else {
            fail!(Format, "no tensor `{whole}` was found");
        };
        match piece {
            Some((_, rows)) => Ok(param.rows(rows.start as u64..rows.end as u64)?),
            None => Ok(param.clone()),
        }
    }

    /// The Core ML model.
    pub fn to_model(&self, options: &BuildOptions) -> Result<Model> {
        let mut executable = self.compile(Device::Host, 0, options)?;
        Ok(executable.model()?.clone())
    }

    /// The model's name on the Hugging Face Hub, if its files state it.
    pub(crate) fn hub_name(&self) -> Option<String> {
        self.source.origin.hub_name()
    }

    pub(crate) fn origin(&self) -> &Origin {
        &self.source.origin
    }
}

/// Refuses layouts in which callers expect states.
fn check_cache(options: &BuildOptions) -> Result<()> {
    if options.cache == Cache::State {
        return Ok(());
    }
    let remedy = match options.layout {
        Layout::ExecuTorch => "choose `executorch-static` or `executorch-multifunction`",
        Layout::SwiftTransformers => "choose `coremill`",
        Layout::Anemll => "choose the profile `ane` without a layout",
        Layout::Coremill
        | Layout::Chunks
        | Layout::ExecuTorchStatic
        | Layout::ExecuTorchMultifunction => return Ok(()),
    };
    let message = format!("the layout `{}` keeps its cache in states", options.layout.name());
    Err(Error::of_kind(ErrorKind::Argument, message).with_hint(remedy))
}
