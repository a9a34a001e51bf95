//! The configuration of a decoder, from `config.json` or from GGUF metadata.

use std::collections::BTreeMap;

use coremill_graph::nn::{Rope, RopeScaling};
use coremill_graph::{MetadataValue, Params};
use serde_json::Value;

use crate::encoders::{EMBEDDING_PURPOSE, EncoderFamily};
use crate::error::{Error, ErrorKind, Result, fail};
use crate::families::{
    Family, FeedForward, NormPlacement, POSITIONS, QkNorm, SPEECH, SPEECH_PURPOSE,
};
use crate::mixers::{Mixer, MixerSettings};

/// Most layers that a file may declare.
pub(crate) const MAX_LAYERS: usize = 1024;

/// Positions that models without a limit were made for.
const UNLIMITED: usize = 1 << 20;

/// Most heads, and elements of a head, that a file may declare.
const MAX_HEADS: usize = 1 << 16;

/// A decoder's configuration.
#[derive(Clone, Debug)]
pub struct Config {
    /// The family.
    pub family: &'static Family,
    /// Number of layers.
    pub layers: usize,
    /// Elements of a hidden state.
    pub width: usize,
    /// Heads of queries.
    pub heads: usize,
    /// Heads of keys and values.
    pub kv_heads: usize,
    /// Elements of a head.
    pub head: usize,
    /// Elements between the projections of the feed-forward part; 0 without such a part.
    pub inner: usize,
    /// The part of each layer that mixes positions.
    pub mixers: Vec<Mixer>,
    /// Sizes of the mixture of experts.
    pub experts: Option<ExpertSizes>,
    /// Whether the feed-forward part of each layer is a mixture of experts.
    pub sparse: Vec<bool>,
    /// Rows of the table of positions, if the model has one.
    pub learned_positions: Option<usize>,
    /// Number of tokens.
    pub vocabulary: usize,
    /// The longest sequence that the model was made for.
    pub max_context: usize,
    /// Epsilon of norms, added to the mean square.
    pub epsilon: f32,
    /// The output head is the table of embeddings.
    pub tied: bool,
    /// Whether weights of norms are added to 1.
    pub norm_adds_one: bool,
    /// Biases of norms.
    pub norm_bias: bool,
    /// Norms of queries and keys.
    pub qk_norm: QkNorm,
    /// Rotary positions.
    pub rotation: Rotation,
    /// Rotary positions of layers with a window, if they have others.
    pub local_rotation: Option<Rotation>,
    /// Positions that layers with a window attend to.
    pub window: Option<usize>,
    /// Whether each layer has the window.
    pub windowed: Vec<bool>,
    /// Whether each layer has rotary positions.
    pub rotated: Vec<bool>,
    /// The factor of attention scores.
    pub attention_scale: f32,
    /// The bound of attention scores.
    pub attention_cap: Option<f32>,
    /// The bound of logits.
    pub logit_cap: Option<f32>,
    /// The factor of logits.
    pub logit_scale: f32,
    /// The factor of embeddings.
    pub embedding_scale: f32,
    /// The factor of each part of a layer before the residual sum.
    pub residual_scale: f32,
    /// Whether gates use the approximation of GELU with `tanh` rather than SiLU.
    pub gelu: bool,
    /// Biases of query, key and value projections.
    pub qkv_bias: bool,
    /// Biases of output projections.
    pub out_bias: bool,
    /// Biases of the feed-forward part.
    pub mlp_bias: bool,
}

/// Sizes of a mixture of experts.
#[derive(Clone, Copy, Debug)]
pub struct ExpertSizes {
    /// Number of experts.
    pub count: usize,
    /// Number of experts for each token.
    pub visited: usize,
    /// Elements between an expert's projections.
    pub width: usize,
    /// Whether the weights of a token's experts are scaled to a sum of 1.
    pub normalized: bool,
    /// Elements between the projections of the expert for all tokens, if there is one.
    pub shared: Option<usize>,
}

/// Rotary positions of a model.
#[derive(Clone, Debug, Default)]
pub struct Rotation {
    /// Base of the wave lengths.
    pub theta: f64,
    /// Elements of a head that are rotated.
    pub rotated: usize,
    /// Scaling of wave lengths.
    pub scaling: RopeScaling,
    /// Divisors of the frequencies for contexts up to `original`.
    pub factors: Vec<f64>,
    /// Divisors of the frequencies for longer contexts.
    pub long_factors: Vec<f64>,
    /// Context of the pretrained model.
    pub original: usize,
    /// The factor of cosines and sines, if the model states it.
    pub amplitude: Option<f64>,
}

impl Rotation {
    /// Angles of a step of position, and the factor of cosines and sines, in models of a context.
    pub fn frequencies(&self, context: usize) -> (Vec<f64>, f64) {
        let rope = Rope::new(self.rotated, self.theta).scaling(self.scaling);
        let (mut frequencies, amplitude) = rope.frequencies();
        let long = context > self.original && !self.long_factors.is_empty();
        let factors = if long { &self.long_factors } else { &self.factors };
        frequencies.iter_mut().zip(factors).for_each(|(frequency, factor)| *frequency /= factor);
        (frequencies, self.amplitude.unwrap_or(amplitude))
    }
}

/// Settings of a file. Missing ones follow from the family and from the shapes of tensors.
#[derive(Default)]
struct Settings {
    layers: Option<usize>,
    heads: Option<usize>,
    kv_heads: Option<usize>,
    head: Option<usize>,
    max_context: Option<usize>,
    epsilon: Option<f64>,
    tied: Option<bool>,
    rotation: Rotation,
    local_theta: Option<f64>,
    partial: Option<f64>,
    window: Option<usize>,
    windowed: Option<Vec<bool>>,
    rotated: Option<Vec<bool>>,
    attention_scale: Option<f64>,
    attention_cap: Option<f64>,
    logit_cap: Option<f64>,
    logit_scale: Option<f64>,
    embedding_scale: Option<f64>,
    residual_scale: Option<f64>,
    activation: Option<String>,
    norm_adds_one: bool,
    visited_experts: Option<usize>,
    normalizes_experts: Option<bool>,
    mixers: MixerSettings,
}

/// Error: the value of a key is missing or of another kind.
pub(crate) fn invalid(key: &str) -> Error {
    Error::of_kind(ErrorKind::Format, format!("`{key}` is missing or is not a valid number"))
}

fn size(value: &Value, key: &str) -> Result<Option<usize>> {
    match &value[key] {
        Value::Null => Ok(None),
        found => {
            let found = found.as_u64().and_then(|number| usize::try_from(number).ok());
            found.map(Some).ok_or_else(|| invalid(key))
        }
    }
}

/// The first of some keys that a file has.
fn first_size(value: &Value, keys: &[&str]) -> Result<Option<usize>> {
    keys.iter()
        .map(|key| size(value, key))
        .find(|found| !matches!(found, Ok(None)))
        .unwrap_or(Ok(None))
}

fn float(value: &Value, key: &str) -> Option<f64> {
    value[key].as_f64()
}

fn floats(value: &Value, key: &str) -> Vec<f64> {
    value[key]
        .as_array()
        .map(|all| all.iter().filter_map(Value::as_f64).collect())
        .unwrap_or_default()
}

impl Config {
    /// Reads `config.json`, whose text model may be a part of it.
    pub fn of_json(root: &Value, params: &Params) -> Result<Config> {
        let (config, family) = (text_config(root), Family::of_json(root)?);
        for key in ["clip_qkv", "scale_attn_by_inverse_layer_idx"] {
            if !matches!(config[key], Value::Null | Value::Bool(false)) {
                fail!(Unsupported, "the setting `{key}` is not supported, got {}", config[key]);
            }
        }
        let mut settings = Settings {
            layers: first_size(config, &["num_hidden_layers", "n_layer"])?,
            heads: first_size(config, &["num_attention_heads", "n_head"])?,
            kv_heads: size(config, "num_key_value_heads")?,
            head: size(config, "head_dim")?,
            max_context: first_size(config, &["max_position_embeddings", "n_positions"])?,
            epsilon: ["rms_norm_eps", "norm_eps", "layer_norm_eps", "layer_norm_epsilon"]
                .iter()
                .find_map(|key| float(config, key)),
            tied: config["tie_word_embeddings"].as_bool(),
            partial: float(config, "partial_rotary_factor"),
            window: size(config, "sliding_window")?,
            attention_cap: float(config, "attn_logit_softcapping"),
            logit_cap: float(config, "final_logit_softcapping"),
            attention_scale: float(config, "attention_multiplier").or(float(
                config,
                "query_pre_attn_scalar",
            )
            .map(|scalar| 1.0 / scalar.sqrt())),
            logit_scale: float(config, "logits_scaling")
                .map(|scale| 1.0 / scale)
                .or(float(config, "logit_scale")),
            embedding_scale: float(config, "embedding_multiplier"),
            residual_scale: float(config, "residual_multiplier"),
            activation: ["hidden_activation", "hidden_act", "activation_function"]
                .iter()
                .find_map(|key| config[*key].as_str().map(str::to_owned)),
            norm_adds_one: family.norm_adds_one,
            visited_experts: size(config, "num_experts_per_tok")?,
            normalizes_experts: config["norm_topk_prob"].as_bool(),
            mixers: MixerSettings::of_json(config),
            ..Settings::default()
        };
        if config["use_sliding_window"].as_bool() == Some(false) {
            settings.window = None;
        }
        settings.windowed = config["layer_types"].as_array().map(|types| {
            types.iter().map(|kind| kind.as_str() == Some("sliding_attention")).collect()
        });
        settings.rotated = config["no_rope_layers"]
            .as_array()
            .map(|layers| layers.iter().map(|layer| layer.as_u64() != Some(0)).collect());
        // Newer files have all settings of rotary positions in one object, or one for each type of layer.
        let parameters = &config["rope_parameters"];
        let by_type = parameters["full_attention"].is_object();
        let rope = match parameters {
            Value::Object(_) if by_type => &parameters["full_attention"],
            Value::Object(_) => parameters,
            _ => &config["rope_scaling"],
        };
        settings.local_theta = match by_type {
            true => float(&parameters["sliding_attention"], "rope_theta"),
            false => float(config, "rope_local_base_freq"),
        };
        settings.partial = settings.partial.or(float(rope, "partial_rotary_factor"));
        settings.rotation = rotation_of_json(config, rope)?;
        settings.finish(family, params)
    }

    /// Reads the metadata of a GGUF file whose tensors have the names of `safetensors`.
    pub(crate) fn of_gguf(
        metadata: &BTreeMap<String, MetadataValue>,
        params: &Params,
        factors: [Vec<f64>; 3],
    ) -> Result<Config> {
        let Some(architecture) = metadata.get("general.architecture").and_then(|it| it.as_str())
        else {
            fail!(Format, "the metadata has no `general.architecture`");
        };
        let get = |key: &str| metadata.get(&format!("{architecture}.{key}"));
        let Some(family) = Family::of_metadata(metadata) else {
            return Err(unsupported(architecture));
        };
        let size = |key: &str| -> Result<Option<usize>> {
            let Some(value) = get(key) else { return Ok(None) };
            let value = value.as_u64().and_then(|number| usize::try_from(number).ok());
            value.map(Some).ok_or_else(|| invalid(key))
        };
        let float = |key: &str| get(key).and_then(MetadataValue::as_f64);
        let [plain, short, long] = factors;
        let original = size("rope.scaling.original_context_length")?;
        let max_context = size("context_length")?;
        let kind = get("rope.scaling.type").and_then(MetadataValue::as_str).unwrap_or("none");
        let factor = float("rope.scaling.factor");
        let scaling = match (kind, factor) {
            ("none" | "longrope", _) | (_, None) => RopeScaling::None,
            ("linear", Some(factor)) => RopeScaling::Linear { factor },
            ("yarn", Some(factor)) => RopeScaling::Yarn {
                factor,
                original: original.or(max_context).unwrap_or(1) as f64,
                beta_fast: float("rope.scaling.yarn_beta_fast").unwrap_or(32.0),
                beta_slow: float("rope.scaling.yarn_beta_slow").unwrap_or(1.0),
            },
            (other, _) => {
                fail!(Unsupported, "rotary embeddings of type `{other}` are not supported")
            }
        };
        let rotation = Rotation {
            theta: float("rope.freq_base").unwrap_or(10000.0),
            rotated: size("rope.dimension_count")?.unwrap_or(0),
            scaling,
            factors: if short.is_empty() { plain } else { short },
            long_factors: long,
            original: original.unwrap_or(usize::MAX),
            amplitude: float("rope.scaling.attn_factor"),
        };
        let layers = size("block_count")?;
        let heads = size("attention.head_count")?;
        // Gemma's largest models scale by the width of a head as if heads filled the hidden state.
        let is_27b = matches!((family.gguf, layers), ("gemma2", Some(46)) | ("gemma3", Some(62)));
        let by_width = size("embedding_length")?.zip(heads).filter(|_| is_27b);
        let by_width = by_width.map(|(width, heads)| (width as f64 / heads as f64).powf(-0.5));
        let cap = |key: &str, usual: f64| match family.gguf {
            "gemma2" => Some(float(key).unwrap_or(usual)),
            _ => float(key),
        };
        // Layers without attention have 0 heads in a list.
        let kv_heads = match get("attention.head_count_kv").and_then(MetadataValue::as_array) {
            Some(heads) => {
                let heads = heads.iter().filter_map(|heads| heads.as_u64());
                heads.max().and_then(|heads| usize::try_from(heads).ok())
            }
            None => size("attention.head_count_kv")?,
        };
        let logit_scale = float("logit_scale");
        Settings {
            layers,
            heads,
            kv_heads,
            head: size("attention.key_length")?,
            max_context,
            epsilon: float("attention.layer_norm_rms_epsilon")
                .or(float("attention.layer_norm_epsilon")),
            rotation,
            local_theta: (family.gguf == "gemma3")
                .then(|| float("rope.freq_base_swa").unwrap_or(10000.0)),
            window: size("attention.sliding_window")?.filter(|&window| window > 0),
            attention_scale: float("attention.scale").or(by_width),
            attention_cap: cap("attn_logit_softcapping", 50.0),
            logit_cap: cap("final_logit_softcapping", 30.0),
            logit_scale: match family.gguf {
                "granite" => logit_scale.map(|scale| 1.0 / scale),
                _ => logit_scale,
            },
            embedding_scale: float("embedding_scale"),
            residual_scale: float("residual_scale"),
            visited_experts: size("expert_used_count")?,
            mixers: MixerSettings { groups: size("ssm.group_count")?, ..MixerSettings::default() },
            ..Settings::default()
        }
        .finish(family, params)
    }
}

/// The settings of the text model.
fn text_config(root: &Value) -> &Value {
    if root["text_config"].is_object() { &root["text_config"] } else { root }
}

impl Family {
    /// The family of a `config.json`.
    pub(crate) fn of_json(root: &Value) -> Result<&'static Family> {
        let model_type = text_config(root)["model_type"].as_str().or(root["model_type"].as_str());
        let Some(model_type) = model_type else {
            fail!(Format, "`config.json` has no `model_type`");
        };
        Family::of_config(model_type).ok_or_else(|| unsupported(model_type))
    }

    /// The family of a GGUF file.
    pub(crate) fn of_metadata(
        metadata: &BTreeMap<String, MetadataValue>,
    ) -> Option<&'static Family> {
        let architecture = metadata.get("general.architecture")?.as_str()?;
        let experts = metadata.get(&format!("{architecture}.expert_count"));
        let has_experts = experts.and_then(MetadataValue::as_u64).is_some_and(|count| count > 0);
        Family::of_gguf(architecture, has_experts)
    }
}

fn unsupported(name: &str) -> Error {
    if EncoderFamily::is_known(name) {
        let message =
            format!("`{name}` is a family of embedding models, which do not generate text");
        let error = Error::of_kind(ErrorKind::Unsupported, message);
        return error.with_hint(EMBEDDING_PURPOSE);
    }
    if name == SPEECH {
        let message = format!("`{name}` is a family of speech models, which do not accept text");
        let error = Error::of_kind(ErrorKind::Unsupported, message);
        return error.with_hint(SPEECH_PURPOSE);
    }
    let message = format!("model family `{name}` is not supported; expected {}", Family::names());
    Error::of_kind(ErrorKind::Unsupported, message)
}

fn rotation_of_json(config: &Value, rope: &Value) -> Result<Rotation> {
    let theta = float(rope, "rope_theta").or(float(config, "rope_theta")).unwrap_or(10000.0);
    let max_context = float(config, "max_position_embeddings").unwrap_or(2048.0);
    let original = float(rope, "original_max_position_embeddings")
        .or(float(config, "original_max_position_embeddings"))
        .unwrap_or(max_context);
    let kind = rope["rope_type"].as_str().or(rope["type"].as_str()).unwrap_or("default");
    let needed = |key: &str| float(rope, key).ok_or_else(|| invalid(key));
    let mut rotation = Rotation { theta, original: original as usize, ..Rotation::default() };
    rotation.amplitude = float(rope, "attention_factor");
    match kind {
        "default" => {}
        "linear" => rotation.scaling = RopeScaling::Linear { factor: needed("factor")? },
        "llama3" => {
            rotation.scaling = RopeScaling::Llama3 {
                factor: needed("factor")?,
                low: needed("low_freq_factor")?,
                high: needed("high_freq_factor")?,
                original,
            };
        }
        "yarn" => {
            rotation.scaling = RopeScaling::Yarn {
                factor: needed("factor")?,
                original,
                beta_fast: float(rope, "beta_fast").unwrap_or(32.0),
                beta_slow: float(rope, "beta_slow").unwrap_or(1.0),
            };
        }
        "longrope" | "su" => {
            (rotation.factors, rotation.long_factors) =
                (floats(rope, "short_factor"), floats(rope, "long_factor"));
            let factor = float(rope, "factor").unwrap_or(max_context / original);
            let amplitude =
                if factor <= 1.0 { 1.0 } else { (1.0 + factor.ln() / original.ln()).sqrt() };
            rotation.amplitude = rotation.amplitude.or(Some(amplitude));
        }
        other => {
            let message = format!("rotary embeddings of type `{other}` are not supported");
            let error = Error::of_kind(ErrorKind::Unsupported, message);
            return Err(error.with_hint("supported types: default, linear, llama3, yarn, longrope"));
        }
    }
    Ok(rotation)
}

impl Settings {
    fn finish(self, family: &'static Family, params: &Params) -> Result<Config> {
        let shape = |name: &str| -> Result<Vec<usize>> {
            let Some(param) = params.get(name) else {
                fail!(Format, "no tensor `{name}` was found")
            };
            Ok(param.shape().iter().map(|&extent| extent as usize).collect())
        };
        let embeddings = shape("model.embed_tokens.weight")?;
        let &[vocabulary, width] = embeddings.as_slice() else {
            fail!(Format, "`model.embed_tokens.weight` must be a matrix, got shape {embeddings:?}");
        };
        let layers = self.layers.filter(|layers| (1..=MAX_LAYERS).contains(layers));
        let Some(layers) = layers else {
            let found = self.layers.map_or_else(|| "none".to_owned(), |found| found.to_string());
            fail!(Format, "the number of layers must be from 1 to {MAX_LAYERS}, got {found}");
        };
        let name = |layer: usize, part: &str| format!("model.layers.{layer}.{part}");
        let epsilon = self.epsilon.ok_or_else(|| invalid("rms_norm_eps"))? as f32;
        let mixers: Vec<Mixer> = (0..layers)
            .map(|layer| Mixer::of_tensors(params, &name(layer, ""), epsilon, &self.mixers))
            .collect::<Result<_>>()?;
        // Layers with attention have the same shapes.
        let attending = mixers.iter().position(|mixer| matches!(mixer, Mixer::Attention));
        let first = |part: &str| name(attending.unwrap_or(0), part);
        let has = |part: &str| params.get(&first(part)).is_some();
        // A norm of each head is as wide as a head.
        let of_norm = match family.qk_norm {
            QkNorm::Head if attending.is_some() => {
                shape(&first("self_attn.q_norm.weight"))?.first().copied()
            }
            _ => None,
        };
        let rows = |name: &str| shape(name).map(|shape| shape.first().copied().unwrap_or(0));
        let heads_of = |head: usize, part: &str| -> Result<usize> {
            Ok(rows(&first(part))?.checked_div(head).unwrap_or(0))
        };
        let (mut head, mut heads, mut kv_heads) = (0, 0, 0);
        if attending.is_some() {
            let found = self.head.or(of_norm);
            let found = found.or(self.heads.and_then(|heads| width.checked_div(heads)));
            head = found
                .filter(|head| (1..=MAX_HEADS).contains(head))
                .ok_or_else(|| invalid("head_dim"))?;
            heads = match self.heads {
                Some(heads) => heads,
                None if family.gated_heads => heads_of(2 * head, "self_attn.q_proj.weight")?,
                None => heads_of(head, "self_attn.q_proj.weight")?,
            };
            kv_heads = match self.kv_heads {
                Some(heads) => heads,
                None if family.fused_qkv => heads,
                None => heads_of(head, "self_attn.k_proj.weight")?,
            };
            if !(1..=MAX_HEADS).contains(&heads) || !(1..=heads).contains(&kv_heads) {
                fail!(
                    Format,
                    "the number of key heads must be from 1 to the number of query heads, and that at most {MAX_HEADS}, got {kv_heads} and {heads}"
                );
            }
        }
        let sparse: Vec<bool> = (0..layers)
            .map(|layer| family.experts && params.get(&name(layer, "mlp.gate.weight")).is_some())
            .collect();
        let experts = match sparse.iter().position(|&sparse| sparse) {
            Some(layer) => Some(self.experts(family, &|part| shape(&name(layer, part)))?),
            None => None,
        };
        let dense = sparse.iter().position(|&sparse| !sparse);
        let dense = dense.filter(|_| !mixers.iter().any(Mixer::is_whole_layer));
        let inner = match (dense, family.feed_forward) {
            (None, _) => 0,
            (Some(layer), FeedForward::FusedGated) => {
                rows(&name(layer, "mlp.gate_up_proj.weight"))? / 2
            }
            (Some(layer), _) => rows(&name(layer, "mlp.up_proj.weight"))?,
        };
        let learned_positions = match family.learned_positions {
            true => Some(rows(&format!("{POSITIONS}.weight"))?),
            false => None,
        };
        let is_rotated = attending.is_some() && !family.learned_positions;
        let mut rotation = self.rotation;
        if rotation.rotated == 0 {
            rotation.rotated = (head as f64 * self.partial.unwrap_or(1.0)) as usize;
        }
        let fits = (2..=head).contains(&rotation.rotated) && rotation.rotated.is_multiple_of(2);
        if is_rotated && !fits {
            let rotated = rotation.rotated;
            fail!(
                Format,
                "the number of rotated elements must be even and from 2 to {head}, the head size, got {rotated}"
            );
        }
        for factors in [&rotation.factors, &rotation.long_factors] {
            let is_sound = factors.iter().all(|factor| factor.is_finite() && *factor > 0.0);
            if !factors.is_empty() && (factors.len() != rotation.rotated / 2 || !is_sound) {
                let expected = rotation.rotated / 2;
                fail!(
                    Format,
                    "expected {expected} finite, positive rotary factors, got {} factors",
                    factors.len()
                );
            }
        }
        if !(rotation.theta.is_finite() && rotation.theta > 0.0) {
            return Err(invalid("rope_theta"));
        }
        let local_rotation = self.local_theta.map(|theta| Rotation {
            theta,
            rotated: rotation.rotated,
            original: usize::MAX,
            ..Rotation::default()
        });
        let period = family.window_period;
        let windowed = self.windowed.unwrap_or_else(|| {
            (1..=layers).map(|layer| period == 0 || layer % period != 0).collect()
        });
        let rotated = match (self.rotated, family.rope_period) {
            _ if !is_rotated => vec![false; layers],
            (Some(rotated), _) => rotated,
            (None, 0) => vec![true; layers],
            // Layers that attend to all positions have no rotations.
            (None, _) if family.window_period > 0 => windowed.clone(),
            (None, period) => (1..=layers).map(|layer| layer % period != 0).collect(),
        };
        if windowed.len() < layers || rotated.len() < layers {
            let found = windowed.len().min(rotated.len());
            fail!(Format, "the configuration must describe {layers} layers, got {found}");
        }
        let gelu = match self.activation.as_deref() {
            None => family.gelu,
            Some("silu" | "swish") => false,
            Some("gelu_pytorch_tanh" | "gelu_new") => true,
            Some(other) => fail!(Unsupported, "activation `{other}` is not supported"),
        };
        if gelu && experts.is_some() {
            fail!(Unsupported, "experts with GELU activation are not supported");
        }
        let embedding_scale = match family.scales_embeddings {
            true => (width as f64).sqrt(),
            false => self.embedding_scale.unwrap_or(1.0),
        };
        let attention_scale = self.attention_scale.unwrap_or((head.max(1) as f64).powf(-0.5));
        let limit = learned_positions.unwrap_or(usize::MAX);
        let usual = if attending.is_some() { 2048 } else { UNLIMITED };
        let logit_scale = match family.norms {
            NormPlacement::Parallel => self.logit_scale.unwrap_or(0.0625),
            _ => self.logit_scale.unwrap_or(1.0),
        };
        let qk_norm = match family.qk_norm {
            QkNorm::EachHead if !has("self_attn.q_norm.weight") => QkNorm::None,
            other => other,
        };
        Ok(Config {
            family,
            layers,
            width,
            heads,
            kv_heads,
            head,
            inner,
            mixers,
            experts,
            sparse,
            learned_positions,
            vocabulary,
            max_context: self.max_context.unwrap_or(usual).min(limit),
            epsilon,
            tied: self.tied == Some(true) || params.get("lm_head.weight").is_none(),
            norm_adds_one: self.norm_adds_one,
            norm_bias: params.get("model.norm.bias").is_some(),
            qk_norm,
            rotation,
            local_rotation,
            window: self.window.filter(|&window| window > 0),
            windowed,
            rotated,
            attention_scale: attention_scale as f32,
            attention_cap: self.attention_cap.map(|cap| cap as f32),
            logit_cap: self.logit_cap.map(|cap| cap as f32),
            logit_scale: logit_scale as f32,
            embedding_scale: embedding_scale as f32,
            residual_scale: self.residual_scale.unwrap_or(1.0) as f32,
            gelu,
            qkv_bias: has("self_attn.q_proj.bias") || has("self_attn.qkv_proj.bias"),
            out_bias: has("self_attn.o_proj.bias"),
            mlp_bias: has("mlp.down_proj.bias"),
        })
    }

    /// Sizes of the experts of a layer.
    fn experts(
        &self,
        family: &Family,
        shape: &dyn Fn(&str) -> Result<Vec<usize>>,
    ) -> Result<ExpertSizes> {
        let experts = shape("mlp.experts.gate_proj")?;
        let &[count, width, _] = experts.as_slice() else {
            fail!(Format, "the stacked expert matrices must have rank 3, got shape {experts:?}");
        };
        let visited = self.visited_experts.ok_or_else(|| invalid("num_experts_per_tok"))?;
        if !(1..=count).contains(&visited) {
            fail!(
                Format,
                "the number of experts per token must be from 1 to {count}, got {visited}"
            );
        }
        let shared = shape("mlp.shared_expert.up_proj.weight").ok();
        Ok(ExpertSizes {
            count,
            visited,
            width,
            normalized: self.normalizes_experts.unwrap_or(family.normalizes_experts),
            shared: shared.and_then(|shape| shape.first().copied()),
        })
    }
}

impl Config {
    /// Whether states accumulate all tokens, which cannot be taken back then.
    pub fn is_recurrent(&self) -> bool {
        self.mixers.iter().any(|mixer| !matches!(mixer, Mixer::Attention))
    }

    /// The property by which results depend on the positions of tokens themselves, rather than on their distances.
    pub(crate) fn absolute_positions(&self) -> Option<&'static str> {
        if self.learned_positions.is_some() {
            return Some("learned position embeddings");
        }
        self.is_recurrent().then_some("recurrent layers")
    }

    /// The property for which one mask and one rotation do not suffice for all layers in a context.
    pub(crate) fn uneven_positions(&self, context: usize) -> Option<&'static str> {
        let windowed = self.windowed.iter().take(self.layers).any(|&windowed| windowed);
        if windowed && self.window.is_some_and(|window| window < context) {
            return Some("sliding-window attention");
        }
        if self.local_rotation.is_some() {
            return Some("two kinds of rotary embeddings");
        }
        self.absolute_positions()
    }

    /// The error that refuses models with a property for other programs.
    pub(crate) fn refusal(&self, what: &str, programs: &str, choice: &str) -> Error {
        let name = self.family.name;
        let message =
            format!("models with {what} are not supported by {programs}; this is a `{name}`");
        Error::of_kind(ErrorKind::Unsupported, message).with_hint(format!("choose {choice}"))
    }
}
