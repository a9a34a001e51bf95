//! Language models: the native part of `coremill.llm`.

use std::ffi::CString;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use coremill::compress::RuleText;
use coremill::llm::{
    self, BuildOptions, Bundle, ChatTemplate, Destination, EmbeddingModel, EmbeddingOptions,
    GenerateOptions, Generator, Length, Message, ModelKind, Sampling, SavedModel, Score,
    SpeechOptions, VerifyOptions, supported_companions,
};
use pyo3::exceptions::PyUserWarning;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use serde::Deserialize;
use serde_json::json;

use crate::arguments::Text;
use crate::error::{self, Failure};
use crate::options::{device_named, numerics_named, parsed};
use crate::path::PathArgument;
use crate::work;

#[derive(Deserialize)]
struct ConvertOptions {
    context: Option<usize>,
    prefill: Option<usize>,
    long_prefill: usize,
    weights: String,
    rules: Vec<RuleText>,
    layout: Option<String>,
    cache: String,
    padded: bool,
    /// The text on which the written model will be compared with its source.
    verify: Option<String>,
}

/// Converts a model, writes it and returns the paths of the files. Warns the caller of the calling Python function if the
/// output has no tokenizer.
#[pyfunction]
pub(crate) fn llm_convert(
    py: Python<'_>,
    model: PathArgument,
    output: PathArgument,
    options: Text,
) -> PyResult<Vec<String>> {
    let options: ConvertOptions = parsed(py, &options.0)?;
    let Conversion { files, warnings } = work::run(py, move |stage| {
        stage.set(format!("reading {}", model.0.display()));
        match ModelKind::of(&model.0) {
            ModelKind::Embedding => {
                return convert_embedding_model(&model.0, &output.0, &options, stage);
            }
            ModelKind::Speech => {
                return convert_speech_model(&model.0, &output.0, &options, stage);
            }
            _ => {}
        }
        let layout = options.layout.map(|name| name.parse()).transpose()?;
        let destination = Destination::of(&output.0, layout)?;
        let weights = options.weights.parse()?;
        let cache = options.cache.parse()?;
        let rules = options.rules.iter().map(RuleText::to_rule).collect::<Result<Vec<_>, _>>()?;
        let model = llm::LanguageModel::open(&model.0)?;
        if let Some(text) = &options.verify {
            check_text(&model, text)?;
        }
        let context = options.context.unwrap_or_else(|| model.default_context());
        let mut build = BuildOptions::default().context(context).weights(weights);
        build.prefill = options.prefill;
        let build = build.long_prefill(options.long_prefill).rules(rules).cache(cache);
        let (companions, warning) = supported_companions(model.companions())?;
        let mut set = |text: &str| stage.set(text);
        let written = model.save(&destination, &companions, &build, false, &mut set)?;
        Ok(Conversion::new(written, warning))
    })?;
    for warning in warnings {
        let text = CString::new(warning.replace('\0', ""))?;
        PyErr::warn(py, &py.get_type::<PyUserWarning>(), &text, 2)?;
    }
    Ok(files)
}

/// Paths of written files, and warnings.
struct Conversion {
    files: Vec<String>,
    warnings: Vec<String>,
}

impl Conversion {
    fn new(saved: SavedModel, warning: Option<String>) -> Conversion {
        let files = saved.files.into_iter().map(|path| path.display().to_string()).collect();
        Conversion { files, warnings: warning.into_iter().chain(saved.warnings).collect() }
    }
}

/// Refuses a text that is too short to compare predictions of.
fn check_text(model: &llm::LanguageModel, text: &str) -> Result<(), Failure> {
    let count = model.tokenizer()?.encode(text, true)?.len();
    if count >= 2 {
        return Ok(());
    }
    let message = format!("`verify` needs a text of at least 2 tokens, got {count}");
    Err(Failure::Run { message, hint: None })
}

/// Refuses options that models of a kind do not have.
fn refuse_options(options: &ConvertOptions, kind: &str) -> Result<(), Failure> {
    let (name, message) = if let Some(layout) = &options.layout {
        ("layout", format!("`layout` is `{layout}`, which {kind} models do not support"))
    } else if options.verify.is_some() {
        ("verify", format!("`verify` compares text predictions, which {kind} models do not make"))
    } else if !options.rules.is_empty() {
        ("rules", format!("`rules` apply only to models that generate text, not to {kind} models"))
    } else if options.cache != "state" {
        let cache = &options.cache;
        ("cache", format!("`cache` is `{cache}`, which {kind} models do not support"))
    } else {
        return Ok(());
    };
    Err(Failure::Run { message, hint: Some(format!("leave `{name}` out")) })
}

/// Converts an embedding model and writes it.
fn convert_embedding_model(
    model: &Path,
    output: &Path,
    options: &ConvertOptions,
    stage: &work::Stage,
) -> Result<Conversion, Failure> {
    refuse_options(options, "embedding")?;
    let destination = Destination::of(output, None)?;
    let model = EmbeddingModel::open(model)?;
    let most = options.context.unwrap_or(model.config().max_context);
    let length = if options.padded { Length::Fixed(most) } else { Length::UpTo(most) };
    let build = EmbeddingOptions::default().length(length).weights(options.weights.parse()?);
    let (companions, warning) = supported_companions(model.companions(&build))?;
    stage.set(format!("writing {}", destination.model.display()));
    let written = model.save(&destination, &companions, &build, false)?;
    Ok(Conversion::new(written, warning))
}

/// Converts a speech model and writes it.
fn convert_speech_model(
    model: &Path,
    output: &Path,
    options: &ConvertOptions,
    stage: &work::Stage,
) -> Result<Conversion, Failure> {
    refuse_options(options, "speech")?;
    let mut build = SpeechOptions::default().weights(options.weights.parse()?);
    build.context = options.context;
    let model = llm::SpeechModel::open(model)?;
    let (companions, warning) = supported_companions(model.companions())?;
    let mut set = |text: &str| stage.set(text);
    let written = model.save(output, &companions, &build, false, &mut set)?;
    Ok(Conversion::new(written, warning))
}

/// Scores a text with a converted model against the weights that it was made of.
#[pyfunction]
pub(crate) fn llm_verify(
    py: Python<'_>,
    model: PathArgument,
    converted: PathArgument,
    text: Text,
    options: Text,
) -> PyResult<String> {
    let options: VerificationOptions = parsed(py, &options.0)?;
    let numerics = numerics_named(py, &options.numerics)?;
    work::run(py, move |stage| {
        stage.set(format!("reading {}", model.0.display()));
        let model = llm::LanguageModel::open(&model.0)?;
        let mut ids = model.tokenizer()?.encode(&text.0, true)?;
        ids.truncate(options.tokens);
        let mut verify = VerifyOptions::default();
        verify.threads = options.threads;
        verify.numerics = numerics;
        let total = ids.len();
        let mut watch = |count: usize| stage.set(format!("{count} of {total} tokens"));
        let score = model.verify(&converted.0, &ids, verify, &mut watch)?;
        Ok(score_json(&score))
    })
}

#[derive(Deserialize)]
struct VerificationOptions {
    tokens: usize,
    numerics: String,
    threads: usize,
}

/// The tokenizer of a model.
#[pyfunction]
pub(crate) fn llm_tokenizer(py: Python<'_>, model: PathArgument) -> PyResult<Tokenizer> {
    let tokenizer = work::run(py, move |stage| {
        stage.set(format!("reading {}", model.0.display()));
        Ok(llm::tokenizer_of(&model.0)?)
    })?;
    Ok(Tokenizer(Arc::new(tokenizer)))
}

/// A tokenizer.
#[pyclass(frozen, module = "coremill._native")]
pub(crate) struct Tokenizer(Arc<llm::Tokenizer>);

#[pymethods]
impl Tokenizer {
    /// The ids of a text.
    #[pyo3(signature = (text, special = true))]
    fn encode(&self, py: Python<'_>, text: Text, special: bool) -> PyResult<Vec<u32>> {
        let tokenizer = self.0.clone();
        work::run(py, move |_| Ok(tokenizer.encode(&text.0, special)?))
    }

    /// The text of ids.
    fn decode(&self, ids: Vec<u32>) -> String {
        self.0.decode(&ids, false)
    }

    fn __len__(&self) -> usize {
        self.0.len()
    }
}

/// A language model on a device.
#[pyclass(frozen, module = "coremill._native")]
pub(crate) struct LanguageModel {
    tokenizer: Arc<llm::Tokenizer>,
    template: Option<ChatTemplate>,
    end_tokens: Vec<u32>,
    generator: Arc<Mutex<Generator>>,
}

#[derive(Deserialize)]
struct LoadOptions {
    context: Option<usize>,
    device: String,
    threads: usize,
    precision: String,
    all_logits: bool,
}

/// A prompt: a text, messages for the chat template, or tokens.
#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum Prompt {
    Text(String),
    Messages(Vec<(String, String)>),
    Tokens(Vec<u32>),
}

#[derive(Deserialize)]
struct GenerateArguments {
    prompt: Prompt,
    max_tokens: usize,
    stop: Vec<String>,
    temperature: f32,
    top_k: usize,
    top_p: f32,
    min_p: f32,
    repeat_penalty: f32,
    seed: u64,
}

impl LanguageModel {
    fn ids(&self, prompt: Prompt) -> Result<Vec<u32>, Failure> {
        match prompt {
            Prompt::Text(text) => Ok(self.tokenizer.encode(&text, true)?),
            Prompt::Tokens(ids) => Ok(ids),
            Prompt::Messages(messages) => {
                let Some(template) = &self.template else {
                    return Err(Failure::Run {
                        message: "the model has no chat template".to_owned(),
                        hint: Some("pass the prompt as text".to_owned()),
                    });
                };
                let messages: Vec<_> =
                    messages.iter().map(|(role, text)| Message::new(role, text)).collect();
                let text = template.render(&messages, true)?;
                // Templates write the tokens at the start of a text themselves.
                Ok(self.tokenizer.encode(&text, false)?)
            }
        }
    }
}

#[pymethods]
impl LanguageModel {
    /// Loads a model.
    #[new]
    fn new(py: Python<'_>, model: PathArgument, options: Text) -> PyResult<LanguageModel> {
        let options: LoadOptions = parsed(py, &options.0)?;
        work::run(py, move |stage| {
            stage.set(format!("loading {}", model.0.display()));
            let bundle = Bundle::open(&model.0)?;
            let mut build = bundle.build_options(options.context);
            if options.all_logits {
                build = build.all_logits();
            }
            if options.precision == "fp32" {
                build = build.precision(coremill::graph::Precision::Fp32);
            }
            let tokenizer = Arc::new(bundle.tokenizer()?);
            let mut generator =
                bundle.generator(device_named(&options.device)?, options.threads, &build)?;
            generator.prepare()?;
            Ok(LanguageModel {
                tokenizer,
                template: bundle.chat_template()?,
                end_tokens: bundle.generation_settings()?.eos,
                generator: Arc::new(Mutex::new(generator)),
            })
        })
    }

    #[getter]
    fn tokenizer(&self) -> Tokenizer {
        Tokenizer(self.tokenizer.clone())
    }

    #[getter]
    fn context(&self, py: Python<'_>) -> usize {
        let generator = self.generator.clone();
        py.detach(move || generator.lock().unwrap_or_else(PoisonError::into_inner).context())
    }

    /// Generates a text. `show` is called with each part of it.
    #[pyo3(signature = (arguments, show = None))]
    fn generate(
        &self,
        py: Python<'_>,
        arguments: Text,
        show: Option<Py<PyAny>>,
    ) -> PyResult<String> {
        let arguments: GenerateArguments = parsed(py, &arguments.0)?;
        let prompt = self.ids(arguments.prompt).map_err(|failure| failure.into_error(py))?;
        let mut sampling = Sampling::default();
        sampling.temperature = arguments.temperature;
        sampling.top_k = arguments.top_k;
        sampling.top_p = arguments.top_p;
        sampling.min_p = arguments.min_p;
        sampling.repetition_penalty = arguments.repeat_penalty;
        sampling.seed = arguments.seed;
        let mut options = GenerateOptions::default();
        options.max_tokens = arguments.max_tokens;
        options.sampling = sampling;
        options.stops = arguments.stop;
        options.end_tokens = self.end_tokens.clone();
        let (generator, tokenizer) = (self.generator.clone(), self.tokenizer.clone());
        let raised: Arc<Mutex<Option<PyErr>>> = Arc::default();
        let kept = raised.clone();
        let text = work::run(py, move |stage| {
            stage.set("generating");
            let mut generator = generator.lock().unwrap_or_else(PoisonError::into_inner);
            generator.reset();
            let mut tell = |part: &str| {
                let Some(show) = &show else { return true };
                let shown = Python::attach(|py| show.call1(py, (part,)).map(drop));
                let is_shown = shown.is_ok();
                if let Err(error) = shown {
                    *kept.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
                }
                is_shown
            };
            let made = generator.generate(&tokenizer, &prompt, &options, &mut tell)?;
            let report = json!({
                "text": made.text,
                "tokens": made.tokens,
                "prompt_tokens": prompt,
                "finish_reason": made.reason.name(),
                "prefill_seconds": made.prefill.as_secs_f64(),
                "decode_seconds": made.decode.as_secs_f64(),
            });
            Ok(report.to_string())
        })?;
        let raised = raised.lock().unwrap_or_else(PoisonError::into_inner).take();
        raised.map_or(Ok(text), Err)
    }

    /// Scores a text, also against another model.
    #[pyo3(signature = (ids, other = None))]
    fn score(
        &self,
        py: Python<'_>,
        ids: Vec<u32>,
        other: Option<&Bound<'_, LanguageModel>>,
    ) -> PyResult<String> {
        let other = other.map(|other| other.get().generator.clone());
        let generator = self.generator.clone();
        if other.as_ref().is_some_and(|other| Arc::ptr_eq(other, &generator)) {
            let hint = Some("load the other model".to_owned());
            return Err(error::option(py, "a model cannot be compared with itself", hint));
        }
        work::run(py, move |stage| {
            let mut generator = generator.lock().unwrap_or_else(PoisonError::into_inner);
            let mut other =
                other.as_ref().map(|it| it.lock().unwrap_or_else(PoisonError::into_inner));
            let total = ids.len();
            let mut watch = |count: usize| stage.set(format!("{count} of {total} tokens"));
            let score = llm::score(&mut generator, other.as_deref_mut(), &ids, &mut watch)?;
            Ok(score_json(&score))
        })
    }
}

/// A score as JSON.
fn score_json(score: &Score) -> String {
    let comparison = score.comparison.map(|compared| {
        json!({
            "perplexity": compared.perplexity,
            "divergence": compared.divergence,
            "max_divergence": compared.max_divergence,
            "agreement": compared.agreement,
        })
    });
    let report = json!({
        "tokens": score.tokens,
        "loss": score.loss,
        "perplexity": score.perplexity,
        "accuracy": score.accuracy,
        "comparison": comparison,
    });
    report.to_string()
}

/// An embedding model on a device.
#[pyclass(frozen, module = "coremill._native")]
pub(crate) struct Embedder {
    tokenizer: Arc<llm::Tokenizer>,
    context: usize,
    width: usize,
    embedder: Arc<Mutex<llm::Embedder>>,
}

#[derive(Deserialize)]
struct EmbedderOptions {
    context: Option<usize>,
    device: String,
    threads: usize,
    precision: String,
}

/// A text to embed: itself, or its tokens.
#[derive(Deserialize)]
#[serde(untagged)]
enum EmbedderInput {
    Text(String),
    Tokens(Vec<u32>),
}

#[pymethods]
impl Embedder {
    /// Loads a model.
    #[new]
    fn new(py: Python<'_>, model: PathArgument, options: Text) -> PyResult<Embedder> {
        let options: EmbedderOptions = parsed(py, &options.0)?;
        work::run(py, move |stage| {
            stage.set(format!("loading {}", model.0.display()));
            let mut build = EmbeddingOptions::default();
            build.length = options.context.map(Length::UpTo);
            if options.precision == "fp32" {
                build.precision = coremill::graph::Precision::Fp32;
            }
            let device = device_named(&options.device)?;
            let mut embedder = llm::Embedder::open(&model.0, device, options.threads, &build)?;
            embedder.prepare()?;
            Ok(Embedder {
                tokenizer: embedder.shared_tokenizer(),
                context: embedder.context(),
                width: embedder.width(),
                embedder: Arc::new(Mutex::new(embedder)),
            })
        })
    }

    #[getter]
    fn tokenizer(&self) -> Tokenizer {
        Tokenizer(self.tokenizer.clone())
    }

    #[getter]
    fn context(&self) -> usize {
        self.context
    }

    #[getter]
    fn width(&self) -> usize {
        self.width
    }

    /// The tokens of a text, which is cut to the context.
    fn encode(&self, py: Python<'_>, text: Text) -> PyResult<Vec<u32>> {
        let (tokenizer, context) = (self.tokenizer.clone(), self.context);
        work::run(py, move |_| Ok(tokenizer.encode_within(&text.0, context)?))
    }

    /// The embeddings of texts in JSON, as little-endian fp32 numbers.
    fn embed<'py>(&self, py: Python<'py>, texts: Text) -> PyResult<Bound<'py, PyBytes>> {
        let texts: Vec<EmbedderInput> = parsed(py, &texts.0)?;
        let embedder = self.embedder.clone();
        let bytes = work::run(py, move |stage| {
            let mut embedder = embedder.lock().unwrap_or_else(PoisonError::into_inner);
            let mut bytes = Vec::with_capacity(texts.len() * embedder.width() * 4);
            for (index, text) in texts.iter().enumerate() {
                stage.set(format!("text {} of {}", index + 1, texts.len()));
                let ids = match text {
                    EmbedderInput::Text(text) => embedder.encode(text)?,
                    EmbedderInput::Tokens(ids) => ids.clone(),
                };
                bytes.extend(embedder.embed(&ids)?.iter().flat_map(|value| value.to_le_bytes()));
            }
            Ok(bytes)
        })?;
        Ok(PyBytes::new(py, &bytes))
    }
}
