mod embedding;
mod speech;
mod verify;

use std::path::{Path, PathBuf};

use coremill::compress::read_rules;
use coremill::llm::{
    BuildOptions, Cache, Companions, Destination, LanguageModel, Layout, ModelKind, StorageShare,
    TensorLoss, Weights, supported_companions,
};
use coremill::quantity;
use serde::Serialize;

use self::verify::{Verified, VerifyArgs};
use super::{check_output_paths, failure};
use crate::output::{self, ERROR, Failure, OutputPath};
use crate::progress::Progress;

/// Convert a language model to Core ML
///
/// The model is a GGUF file, the first of its parts, or a folder with `config.json` and safetensors. The result has a cache
/// of keys and values as states, and the functions `decode`, `prefill` and `long_prefill`, which share weights and
/// states. A `.pte` is for ExecuTorch's runners. Tokenizer, chat template and settings of generation are written next to it. Embedding models (BERT and
/// related models) have one function from tokens to a vector; `coremill embed` runs them. Whisper becomes an encoder and a decoder;
/// `coremill transcribe` runs them.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  coremill llm SmolLM2-135M-Instruct.Q4_1.gguf -o smollm2\n  coremill llm Qwen3-0.6B -o qwen3/Qwen3.mlpackage --context 4096 --weights int4\n  coremill llm Qwen3-0.6B -o qwen3/qwen3.pte\n  coremill llm Qwen3-0.6B -o qwen3-anemll --layout anemll --weights lut6\n  coremill llm Qwen3-0.6B --dry-run\n  coremill llm Qwen3-0.6B -o qwen3 --weights int4 --verify article.txt\n  coremill generate smollm2 --chat -p 'Hello!'"
)]
pub(crate) struct Args {
    /// A `.gguf`, or a folder with `config.json` and safetensors
    #[arg(value_name = "MODEL")]
    model: PathBuf,
    /// Where to write: a `.mlpackage`, a `.mlmodelc` or a `.pte`, or a directory for `model.mlpackage` or `model.pte`
    #[arg(short, long, value_name = "PATH", required_unless_present = "dry_run")]
    output: Option<OutputPath>,
    /// Number of cache positions [default: the model's longest sequence, at most 2048], or maximum number of tokens of a
    /// text to embed or of a window of speech
    #[arg(long, value_name = "N")]
    context: Option<usize>,
    /// Number of tokens that `prefill` reads per call; 1 omits the function [default: 64, or as many as the context allows]
    #[arg(long, value_name = "N")]
    prefill: Option<usize>,
    /// Number of tokens that `long_prefill` reads per call; 1 omits the function [default: 256, if the context has at least 512]
    #[arg(long, value_name = "N")]
    long_prefill: Option<usize>,
    /// Target device of the model
    #[arg(long, value_enum, default_value_t = ProfileArg::Cpu)]
    profile: ProfileArg,
    /// Number of models to divide the layers among, with `--profile ane` or `--layout anemll`; `auto` for at most 24 layers
    /// and 1 GB each
    #[arg(long, value_name = "N", default_value = "auto", value_parser = chunk_count)]
    chunks: ChunkCount,
    /// Storage of weights
    #[arg(long, value_enum, default_value_t = WeightsArg::Exact)]
    weights: WeightsArg,
    /// A TOML file with the forms of some weights, as for `compress`: patterns match names such as
    /// `model.layers.*.mlp.down_proj.weight`. Other weights are stored by `--weights`
    #[arg(long, value_name = "FILE")]
    rules: Option<PathBuf>,
    /// Owner of the cache between calls
    #[arg(long, value_enum, default_value_t = CacheArg::State)]
    cache: CacheArg,
    /// Functions and their inputs [default: `executorch` for a `.pte`, otherwise `coremill`]
    #[arg(long, value_enum)]
    layout: Option<LayoutArg>,
    /// Print the planned files and sizes, and write nothing
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    verify: VerifyArgs,
    /// Print the plan as JSON
    #[arg(long)]
    json: bool,
    /// Wait until all data is on disk
    #[arg(long)]
    sync: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum WeightsArg {
    /// Codes, scales and offsets as in the file, floats in fp16
    Exact,
    /// fp16
    Fp16,
    /// 8-bit integers with a scale for each output channel
    Int8,
    /// 4-bit integers with a scale for each 32 input channels; embeddings have 8 bits
    Int4,
    /// 4-bit indices into a table for each 16 output channels
    Lut4,
    /// 6-bit indices into a table for each 16 output channels
    Lut6,
}

impl From<WeightsArg> for Weights {
    fn from(argument: WeightsArg) -> Weights {
        match argument {
            WeightsArg::Exact => Weights::Exact,
            WeightsArg::Fp16 => Weights::Fp16,
            WeightsArg::Int8 => Weights::Int8,
            WeightsArg::Int4 => Weights::Int4,
            WeightsArg::Lut4 => Weights::Lut4,
            WeightsArg::Lut6 => Weights::Lut6,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum ProfileArg {
    /// One model with the cache as states
    Cpu,
    /// The same
    Gpu,
    /// Embeddings, chunks of layers and output head as models of their own, for the Neural Engine
    Ane,
}

/// A number of chunks; `None` is `auto`.
#[derive(Clone, Copy, Debug)]
struct ChunkCount(Option<usize>);

fn chunk_count(text: &str) -> Result<ChunkCount, String> {
    match text.parse::<usize>() {
        _ if text == "auto" => Ok(ChunkCount(None)),
        Ok(count) if count > 0 => Ok(ChunkCount(Some(count))),
        _ => Err("expected `auto` or a number of at least 1".to_owned()),
    }
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum CacheArg {
    /// The model, in states
    State,
    /// The caller, which passes it as inputs and gets it back as outputs `new_NAME`
    Io,
}

impl From<CacheArg> for Cache {
    fn from(argument: CacheArg) -> Cache {
        match argument {
            CacheArg::State => Cache::State,
            CacheArg::Io => Cache::Io,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum LayoutArg {
    /// `decode`, `prefill` and `long_prefill` with the cache as states
    Coremill,
    /// `forward` for ExecuTorch's `TextLLMRunner`
    Executorch,
    /// `forward` for ExecuTorch's static runner, which keeps the cache
    ExecutorchStatic,
    /// `forward` and `prefill` for ExecuTorch's static runner of several functions
    ExecutorchMultifunction,
    /// The function of swift-transformers' `LanguageModel`
    SwiftTransformers,
    /// A bundle of ANEMLL: compiled models of embeddings, chunks and output head for the Neural Engine
    Anemll,
}

impl From<LayoutArg> for Layout {
    fn from(argument: LayoutArg) -> Layout {
        match argument {
            LayoutArg::Coremill => Layout::Coremill,
            LayoutArg::Executorch => Layout::ExecuTorch,
            LayoutArg::ExecutorchStatic => Layout::ExecuTorchStatic,
            LayoutArg::ExecutorchMultifunction => Layout::ExecuTorchMultifunction,
            LayoutArg::SwiftTransformers => Layout::SwiftTransformers,
            LayoutArg::Anemll => Layout::Anemll,
        }
    }
}

/// Planned files and sizes. Its JSON form is stable: fields are only added while `format_version` stays.
#[derive(Serialize)]
struct Plan {
    format_version: u32,
    family: &'static str,
    parameters: u64,
    layers: usize,
    width: usize,
    vocabulary: usize,
    context: usize,
    prefill: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    long_prefill: Option<usize>,
    cache_bytes: u64,
    storage: Vec<Storage>,
    losses: Vec<Loss>,
    files: Vec<String>,
    warnings: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    verified: Option<Verified>,
}

#[derive(Serialize)]
struct Storage {
    scheme: String,
    tensors: usize,
    bytes: u64,
}

/// Rounding of a tensor by integers, or on a device that computes in fp16.
#[derive(Serialize)]
struct Loss {
    tensor: String,
    scheme: String,
    decibels: f64,
}

fn loss_of(loss: TensorLoss) -> Loss {
    let TensorLoss { tensor, scheme, decibels, .. } = loss;
    Loss { tensor, scheme, decibels }
}

fn storage_of(share: StorageShare) -> Storage {
    Storage { scheme: share.scheme, tensors: share.tensors, bytes: share.bytes }
}

/// Unwraps the files next to a model, and keeps the warning about an unsupported or missing tokenizer.
fn without_unsupported(
    companions: Result<Companions, coremill::llm::Error>,
    warnings: &mut Vec<String>,
) -> Result<Companions, Failure> {
    let (files, warning) = supported_companions(companions).map_err(|error| failure(&error))?;
    warnings.extend(warning);
    Ok(files)
}

/// Refuses options of models that generate text, if they are set for a model of another kind.
fn refuse_options(args: &Args, kind: &'static str) -> Result<(), Failure> {
    let options = [
        (args.layout.is_some(), "--layout"),
        (args.chunks.0.is_some(), "--chunks"),
        (args.prefill.is_some(), "--prefill"),
        (args.long_prefill.is_some(), "--long-prefill"),
        (args.rules.is_some(), "--rules"),
        (args.cache != CacheArg::State, "--cache"),
        (args.verify.is_asked(), "--verify"),
    ];
    let Some((_, option)) = options.iter().find(|(is_set, _)| *is_set) else { return Ok(()) };
    let message = format!("`{option}` is for models that generate text");
    Err(Failure::user(message).hint(Some(kind)))
}

/// Prints the warnings. Returns the lines about the files.
fn told_files(warnings: &[String], files: &[String], dry_run: bool) -> String {
    for warning in warnings {
        output::tell(&format!("{} {warning}\n", output::paint(ERROR, "warning")));
    }
    let done = if dry_run { "would write" } else { "wrote" };
    files.iter().map(|file| format!("{done} {file}\n")).collect()
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    if let Some(output) = &args.output {
        output.as_directory()?;
    }
    check_output_paths([&args.model].into_iter().chain(&args.rules), &args.output)?;
    let output = args.output.as_deref().unwrap_or(Path::new("."));
    let progress = Progress::start(format!("reading {}", args.model.display()));
    match ModelKind::of(&args.model) {
        ModelKind::Embedding => {
            drop(progress);
            return embedding::run(args, output);
        }
        ModelKind::Speech => {
            drop(progress);
            return speech::run(args, output);
        }
        _ => {}
    }
    let model = LanguageModel::open(&args.model).map_err(|error| failure(&error))?;
    let layout = match (args.profile, args.layout) {
        (_, Some(LayoutArg::Anemll)) => Some(Layout::Anemll),
        (ProfileArg::Ane, Some(_)) => {
            let failure = Failure::user("`--profile ane` has a layout of its own");
            return Err(failure.hint(Some("leave `--layout` out, or choose `anemll`")));
        }
        (ProfileArg::Ane, None) => Some(Layout::Chunks),
        (_, layout) => layout.map(Layout::from),
    };
    let is_chunked = matches!(layout, Some(Layout::Chunks | Layout::Anemll));
    if args.chunks.0.is_some() && !is_chunked {
        let failure = Failure::user("`--chunks` needs `--profile ane` or `--layout anemll`");
        return Err(failure.hint(Some("`coremill split` cuts other models")));
    }
    let destination = Destination::of(output, layout).map_err(|error| failure(&error))?;
    let config = model.config();
    let context = args.context.unwrap_or_else(|| model.default_context());
    if args.long_prefill.is_some() && destination.layout != Layout::Coremill {
        let failure = Failure::user("`--long-prefill` requires the layout `coremill`");
        return Err(
            failure.hint(Some("other layouts have a single function that reads blocks of tokens"))
        );
    }
    let rules = match &args.rules {
        Some(path) => read_rules(path).map_err(|error| failure(&error))?,
        None => Vec::new(),
    };
    let mut options = BuildOptions::default();
    options.long_prefill = args.long_prefill.unwrap_or(options.long_prefill);
    options.prefill = args.prefill;
    options.chunks = args.chunks.0;
    let options = options
        .context(context)
        .weights(args.weights.into())
        .rules(rules)
        .cache(args.cache.into())
        .layout(destination.layout);
    let mut warnings = Vec::new();
    let companions = without_unsupported(model.companions(), &mut warnings)?;
    let names = companions.iter().map(|(name, _)| destination.directory.join(name));
    let models = match destination.layout {
        Layout::Chunks | Layout::Anemll => {
            let files = model.chunk_files(&options).map_err(|error| failure(&error))?;
            files.into_iter().map(|name| destination.directory.join(name)).collect()
        }
        _ => vec![destination.model.clone()],
    };
    let files = models.into_iter().chain(names);
    // The Neural Engine has no scales of blocks, so that codes become fp16.
    let stored = match (options.weights, options.layout) {
        (Weights::Exact, Layout::Chunks | Layout::Anemll) => Weights::Fp16,
        (weights, _) => weights,
    };
    let losses = model.losses(stored).map_err(|error| failure(&error))?;
    let mut plan = Plan {
        format_version: 1,
        family: config.family.name,
        parameters: model.parameter_count(),
        layers: config.layers,
        width: config.width,
        vocabulary: config.vocabulary,
        context,
        prefill: options.block(),
        long_prefill: options.long_block(),
        cache_bytes: model.cache_bytes(context),
        storage: model.storage().into_iter().map(storage_of).collect(),
        losses: losses.into_iter().map(loss_of).collect(),
        files: files.map(|path| path.display().to_string()).collect(),
        warnings,
        verified: None,
    };
    if !args.dry_run {
        // A text that cannot be read is found before the conversion.
        let text = args.verify.tokens(&model)?;
        let mut stage = |text: &str| progress.stage(text.to_owned());
        let saved = model
            .save(&destination, &companions, &options, args.sync, &mut stage)
            .map_err(|error| failure(&error))?;
        plan.warnings.extend(saved.warnings);
        plan.losses.extend(saved.losses.into_iter().map(loss_of));
        if let Some(ids) = text {
            let verified = args.verify.run(&model, &destination, &options, &ids, &progress)?;
            plan.verified = Some(verified);
        }
    }
    drop(progress);
    tell(&plan, args)?;
    match &plan.verified {
        Some(verified) if !verified.holds => {
            let path = destination.model.display();
            let failure =
                Failure::user(format_args!("{path}: verification failed; the model was written"));
            Err(failure.hint(Some(verify::REMEDY)))
        }
        _ => Ok(()),
    }
}

fn tell(plan: &Plan, args: &Args) -> Result<(), Failure> {
    if args.json {
        return output::print_json(plan);
    }
    let Plan { family, parameters, layers, width, vocabulary, context, .. } = plan;
    let mut text = format!(
        "{family}: {:.1} million parameters, {layers} layers of {width}, {vocabulary} tokens\n",
        *parameters as f64 / 1e6
    );
    let is_float =
        args.rules.is_none() && matches!(args.weights, WeightsArg::Exact | WeightsArg::Fp16);
    for share in &plan.storage {
        let (bytes, tensors) = (quantity::bytes(share.bytes), share.tensors);
        let losses = plan.losses.iter().filter(|loss| loss.scheme == share.scheme);
        let least = losses.map(|loss| loss.decibels).reduce(f64::min);
        let least =
            least.filter(|_| is_float).map(|least| format!(", {least:.0} dB in fp16 arithmetic"));
        let least = least.unwrap_or_default();
        text += &format!("  {}: {bytes} in {tensors} tensors{least}\n", share.scheme);
    }
    if !is_float && !plan.losses.is_empty() {
        text += &verify::worst(&plan.losses);
    }
    let cache = quantity::bytes(plan.cache_bytes);
    let long = plan.long_prefill.map(|tokens| format!(" and {tokens}")).unwrap_or_default();
    let prefill = format!("prefill of {}{long} tokens", plan.prefill);
    text += &format!("cache: {context} positions, {cache}; {prefill}\n");
    text += &told_files(&plan.warnings, &plan.files, args.dry_run);
    if let Some(verified) = &plan.verified {
        text += &verified.render();
        if is_float && !plan.losses.is_empty() {
            text += &verify::worst(&plan.losses);
        }
    }
    if args.dry_run { output::print(&text) } else { output::say(&text) }
}
