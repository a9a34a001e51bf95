//! The configuration of a speech model, from `config.json`.

use coremill_graph::Params;
use coremill_graph::nn::Activation;
use serde_json::Value;

use crate::embedding::activation;
use crate::error::{Error, ErrorKind, Result, fail};
use crate::families::SPEECH;

/// Tokens that `prefill` reads: the start of a text, the language, the task, and whether there are timestamps.
pub(crate) const BLOCK: usize = 4;

/// Names of tables.
pub(crate) const TOKENS: &str = "decoder.embed_tokens";
pub(crate) const POSITIONS: &str = "decoder.embed_positions";
pub(crate) const ENCODER_POSITIONS: &str = "encoder.embed_positions";

/// Most layers, heads and mel bands that a file may declare.
const MAX_COUNT: usize = 1024;

/// Most positions that a file may declare.
const MAX_POSITIONS: usize = 1 << 16;

/// A speech model's configuration.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SpeechConfig {
    /// Layers of encoder and decoder.
    pub layers: [usize; 2],
    /// Heads of encoder and decoder.
    pub heads: [usize; 2],
    /// Elements between the projections of the feed-forward parts of encoder and decoder.
    pub inner: [usize; 2],
    /// Elements of a hidden state.
    pub width: usize,
    /// Mel bands of the features.
    pub bands: usize,
    /// Positions of the encoder. A window of audio has two frames of features for each one.
    pub source_positions: usize,
    /// Most tokens of a window of audio, including the prompt.
    pub max_context: usize,
    /// Number of tokens.
    pub vocabulary: usize,
    /// Activation of the feed-forward parts.
    pub activation: Activation,
    /// The output head is the table of tokens.
    pub tied: bool,
}

impl SpeechConfig {
    /// Reads `config.json`.
    pub(crate) fn of_json(config: &Value, params: &Params) -> Result<SpeechConfig> {
        let kind = config["model_type"].as_str().unwrap_or_default();
        if kind != SPEECH {
            fail!(Unsupported, "`{kind}` is not a supported speech model; expected {SPEECH}");
        }
        let count = |key: &str, most: usize| {
            let found = config[key].as_u64().and_then(|number| usize::try_from(number).ok());
            found.filter(|number| (1..=most).contains(number)).ok_or_else(|| {
                let message =
                    format!("`{key}` must be an integer from 1 to {most}, got {}", config[key]);
                Error::of_kind(ErrorKind::Format, message)
            })
        };
        let matrix = |name: &str| match params.get(name).map(|param| param.shape()) {
            Some(&[rows, columns]) => Ok([rows as usize, columns as usize]),
            Some(shape) => fail!(Format, "`{name}` must be a matrix, got shape {shape:?}"),
            None => fail!(Format, "no tensor `{name}` was found"),
        };
        let both = |key: &str| -> Result<[usize; 2]> {
            let of = |part: &str| count(&format!("{part}_{key}"), MAX_COUNT);
            Ok([of("encoder")?, of("decoder")?])
        };
        let [vocabulary, width] = matrix(&format!("{TOKENS}.weight"))?;
        let heads = both("attention_heads")?;
        if let Some(heads) = heads.iter().find(|&&heads| !width.is_multiple_of(heads)) {
            fail!(
                Format,
                "the hidden size must be a multiple of {heads}, the number of heads, got {width}"
            );
        }
        let source_positions = count("max_source_positions", MAX_POSITIONS)?;
        let max_context = count("max_target_positions", MAX_POSITIONS)?;
        for (name, positions) in [(ENCODER_POSITIONS, source_positions), (POSITIONS, max_context)] {
            let shape = matrix(&format!("{name}.weight"))?;
            if shape != [positions, width] {
                let expected = [positions, width];
                fail!(Format, "`{name}.weight` must have the shape {expected:?}, got {shape:?}");
            }
        }
        if max_context <= BLOCK {
            fail!(
                Unsupported,
                "the decoder must have more than {BLOCK} positions, got {max_context}"
            );
        }
        let inner = |part: &str| matrix(&format!("{part}.layers.0.fc1.weight"));
        Ok(SpeechConfig {
            layers: both("layers")?,
            heads,
            inner: [inner("encoder")?[0], inner("decoder")?[0]],
            width,
            bands: count("num_mel_bins", MAX_COUNT)?,
            source_positions,
            max_context,
            vocabulary,
            activation: activation(config["activation_function"].as_str())?,
            tied: params.get("proj_out.weight").is_none(),
        })
    }

    /// Frames of features of a window of audio.
    pub(crate) fn frames(&self) -> usize {
        2 * self.source_positions
    }
}
