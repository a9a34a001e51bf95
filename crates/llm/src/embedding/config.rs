//! The configuration of an encoder, from `config.json` or from GGUF metadata.

use std::collections::BTreeMap;
use std::path::Path;

use coremill_graph::nn::Activation;
use coremill_graph::{MetadataValue, Params};
use serde_json::Value;

use crate::config::invalid;
use crate::encoders::EncoderFamily;
use crate::error::{Error, ErrorKind, Result, fail};
use crate::source::read_json;

/// Most layers and heads that a file may declare.
const MAX_COUNT: usize = 1024;

/// Most positions that a file may declare.
const MAX_POSITIONS: usize = 1 << 20;

/// Reduction of the hidden states of a text to one vector.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Pooling {
    /// The mean of all tokens.
    #[default]
    Mean,
    /// The first token.
    Cls,
}

impl Pooling {
    /// The name in configurations.
    pub fn name(self) -> &'static str {
        match self {
            Pooling::Mean => "mean",
            Pooling::Cls => "cls",
        }
    }
}

/// Settings of sentence-transformers, or of GGUF.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Head {
    pub(crate) pooling: Pooling,
    pub(crate) normalized: bool,
    /// Most tokens of a text, if they are stated.
    pub(crate) max_tokens: Option<usize>,
}

/// An encoder's configuration.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct EncoderConfig {
    /// The family.
    pub family: &'static EncoderFamily,
    /// Number of layers.
    pub layers: usize,
    /// Elements of a hidden state, and of the embedding.
    pub width: usize,
    /// Number of heads.
    pub heads: usize,
    /// Elements between the projections of the feed-forward part.
    pub inner: usize,
    /// Number of tokens.
    pub vocabulary: usize,
    /// Most tokens of a text, with those at its ends.
    pub max_context: usize,
    /// Epsilon of norms.
    pub epsilon: f32,
    /// Activation of the feed-forward part.
    pub activation: Activation,
    /// Base of the wavelengths of rotary positions.
    pub theta: f64,
    /// First row of the table of positions.
    pub first_position: usize,
    /// Queries, keys and values have one projection.
    pub fused_qkv: bool,
    /// Whether there is a table of types of tokens.
    pub has_types: bool,
    /// Whether attention, and the feed-forward part, have biases.
    pub biases: [bool; 2],
    /// Reduction to one vector.
    pub pooling: Pooling,
    /// The vector has length 1.
    pub normalized: bool,
}

/// An activation by its name in configurations.
pub(crate) fn activation(name: Option<&str>) -> Result<Activation> {
    Ok(match name {
        None | Some("gelu") => Activation::Gelu,
        Some("gelu_new" | "gelu_pytorch_tanh") => Activation::GeluTanh,
        Some("relu") => Activation::Relu,
        Some(other) => fail!(Unsupported, "activation `{other}` is not supported"),
    })
}

/// Settings of a file.
struct Settings {
    layers: Option<u64>,
    heads: Option<u64>,
    positions: Option<u64>,
    padding: u64,
    epsilon: Option<f64>,
    theta: Option<f64>,
    activation: Option<String>,
}

impl EncoderConfig {
    /// Reads `config.json`.
    pub(crate) fn of_json(
        config: &Value,
        family: &'static EncoderFamily,
        params: &Params,
        head: Head,
    ) -> Result<EncoderConfig> {
        let first = |keys: &[&str]| keys.iter().find_map(|key| config[*key].as_u64());
        let float = |keys: &[&str]| keys.iter().find_map(|key| config[*key].as_f64());
        let text = |key: &str| config[key].as_str().map(str::to_owned);
        for key in ["prenorm", "rotary_emb_interleaved", "is_decoder", "add_cross_attention"] {
            if config[key] == true {
                fail!(Unsupported, "the setting `{key}` is not supported, got true");
            }
        }
        let kind = config["position_embedding_type"].as_str().unwrap_or("absolute");
        if !family.rotary && kind != "absolute" {
            fail!(
                Unsupported,
                "position embeddings of type `{kind}` are not supported; expected `absolute`"
            );
        }
        let partial = config["rotary_emb_fraction"].as_f64();
        if partial.is_some_and(|fraction| fraction != 1.0) {
            fail!(Unsupported, "partial rotary embeddings are not supported");
        }
        let parameters = &config["rope_parameters"];
        let scaling = parameters["rope_type"].as_str().unwrap_or("default");
        if scaling != "default" {
            fail!(Unsupported, "rotary embeddings of type `{scaling}` are not supported");
        }
        Settings {
            layers: first(&["num_hidden_layers", "n_layers", "n_layer"]),
            heads: first(&["num_attention_heads", "n_heads", "n_head"]),
            positions: first(&["max_trained_positions", "max_position_embeddings", "n_positions"]),
            padding: config["pad_token_id"].as_u64().unwrap_or(1),
            epsilon: family
                .fixed_epsilon
                .or(float(&["layer_norm_eps", "layer_norm_epsilon"]))
                .or(Some(1e-12)),
            theta: parameters["rope_theta"].as_f64().or(float(&["rotary_emb_base", "rope_theta"])),
            activation: text("hidden_act").or(text("activation")).or(text("activation_function")),
        }
        .finish(family, params, head)
    }

    /// Reads the metadata of a GGUF file.
    pub(crate) fn of_gguf(
        metadata: &BTreeMap<String, MetadataValue>,
        family: &'static EncoderFamily,
        params: &Params,
    ) -> Result<EncoderConfig> {
        let get = |key: &str| metadata.get(&format!("{}.{key}", family.gguf));
        let size = |key: &str| get(key).and_then(MetadataValue::as_u64);
        let pooling = match size("pooling_type") {
            None | Some(1) => Pooling::Mean,
            Some(2) => Pooling::Cls,
            Some(other) => fail!(Unsupported, "pooling of type {other} is not supported"),
        };
        // llama.cpp normalizes embeddings unless it is told not to.
        let head = Head { pooling, normalized: true, max_tokens: None };
        Settings {
            layers: size("block_count"),
            heads: size("attention.head_count"),
            positions: size("context_length"),
            padding: 0,
            epsilon: get("attention.layer_norm_epsilon").and_then(MetadataValue::as_f64),
            theta: get("rope.freq_base").and_then(MetadataValue::as_f64),
            activation: None,
        }
        .finish(family, params, head)
    }
}

impl Settings {
    fn finish(
        self,
        family: &'static EncoderFamily,
        params: &Params,
        head: Head,
    ) -> Result<EncoderConfig> {
        let matrix = |name: &str| -> Result<[usize; 2]> {
            match params.get(name).map(|param| param.shape()) {
                Some(&[rows, columns]) => Ok([rows as usize, columns as usize]),
                Some(shape) => fail!(Format, "`{name}` must be a matrix, got shape {shape:?}"),
                None => fail!(Format, "no tensor `{name}` was found"),
            }
        };
        let has = |name: &str| params.get(name).is_some();
        let count = |number: Option<u64>, key: &str, most: usize| {
            let number = number.and_then(|number| usize::try_from(number).ok());
            number.filter(|number| (1..=most).contains(number)).ok_or_else(|| invalid(key))
        };
        let [vocabulary, width] = matrix("embeddings.tokens.weight")?;
        let layers = count(self.layers, "num_hidden_layers", MAX_COUNT)?;
        let heads = count(self.heads, "num_attention_heads", MAX_COUNT)?;
        if width == 0 || !width.is_multiple_of(heads) {
            fail!(
                Format,
                "the hidden size must be a multiple of {heads}, the number of heads, got {width}"
            );
        }
        if family.rotary && !(width / heads).is_multiple_of(2) {
            fail!(
                Format,
                "the head size must be even for rotary embeddings, got {}",
                width / heads
            );
        }
        let [inner, _] = matrix("layers.0.up.weight")?;
        let mut positions = count(self.positions, "max_position_embeddings", MAX_POSITIONS)?;
        let mut first_position = 0;
        if !family.rotary {
            let [rows, _] = matrix("embeddings.positions.weight")?;
            if family.padded_positions {
                first_position = usize::try_from(self.padding).unwrap_or(usize::MAX);
                first_position = first_position.saturating_add(1);
            }
            positions = rows.saturating_sub(first_position).min(positions);
        }
        if let Some(most) = head.max_tokens {
            positions = positions.min(most);
        }
        if positions == 0 {
            return Err(invalid("max_position_embeddings"));
        }
        let activation = match self.activation.as_deref() {
            _ if family.gated => Activation::Silu,
            name => activation(name)?,
        };
        if family.gated
            && let Some(other) = self.activation.as_deref()
            && !["silu", "swish", "swiglu"].contains(&other)
        {
            fail!(Unsupported, "activation `{other}` is not supported");
        }
        let theta = self.theta.unwrap_or(1000.0);
        if !(theta.is_finite() && theta > 0.0) {
            return Err(invalid("rope_theta"));
        }
        let epsilon = self.epsilon.ok_or_else(|| invalid("layer_norm_eps"))? as f32;
        Ok(EncoderConfig {
            family,
            layers,
            width,
            heads,
            inner,
            vocabulary,
            max_context: positions,
            epsilon,
            activation,
            theta,
            first_position,
            fused_qkv: has("layers.0.qkv.weight"),
            has_types: has("embeddings.types.weight"),
            biases: [has("layers.0.output.bias"), has("layers.0.up.bias")],
            pooling: head.pooling,
            normalized: head.normalized,
        })
    }
}

/// Reads the settings of sentence-transformers in a folder. Without them, the embedding is the mean of all tokens.
pub(crate) fn head_of_folder(folder: &Path) -> Result<Head> {
    let read = |name: &str| -> Result<Value> {
        let path = folder.join(name);
        if path.is_file() { read_json(&path) } else { Ok(Value::Null) }
    };
    let max_tokens = read("sentence_bert_config.json")?["max_seq_length"].as_u64();
    let max_tokens = max_tokens.and_then(|most| usize::try_from(most).ok());
    let mut head = Head { max_tokens, ..Head::default() };
    let modules = read("modules.json")?;
    let Some(modules) = modules.as_array() else {
        head.pooling = pooling(&read("1_Pooling/config.json")?)?;
        return Ok(head);
    };
    for module in modules {
        let kind = module["type"].as_str().unwrap_or_default();
        match kind.rsplit('.').next().unwrap_or_default() {
            "Transformer" => {}
            "Normalize" => head.normalized = true,
            "Pooling" => {
                let name = module["path"].as_str().unwrap_or_default();
                let is_plain = Path::new(name).file_name().is_some_and(|plain| plain == name);
                if !is_plain {
                    fail!(Format, "`modules.json` names `{name}`, which is not in its folder");
                }
                head.pooling = pooling(&read(&format!("{name}/config.json"))?)?;
            }
            other => {
                let message = format!("the module `{other}` of `modules.json` is not supported");
                let error = Error::of_kind(ErrorKind::Unsupported, message);
                return Err(error.with_hint("supported modules: Transformer, Pooling, Normalize"));
            }
        }
    }
    Ok(head)
}

fn pooling(config: &Value) -> Result<Pooling> {
    let modes = config.as_object().into_iter().flatten();
    let modes = modes.filter(|(key, value)| key.starts_with("pooling_mode_") && **value == true);
    let mut modes: Vec<&str> = modes.map(|(key, _)| key.as_str()).collect();
    if let Some(mode) = config["pooling_mode"].as_str() {
        modes.push(mode);
    }
    Ok(match modes.as_slice() {
        [] | ["pooling_mode_mean_tokens" | "mean"] => Pooling::Mean,
        ["pooling_mode_cls_token" | "cls"] => Pooling::Cls,
        others => {
            let message = format!("pooling by `{}` is not supported", others.join("` and `"));
            let error = Error::of_kind(ErrorKind::Unsupported, message);
            return Err(error.with_hint("supported modes: mean of tokens, first token"));
        }
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn reads_pooling_mode_from_flags_or_name() {
        let old = json!({ "pooling_mode_cls_token": true, "pooling_mode_mean_tokens": false });
        assert_eq!(pooling(&old).expect("sound"), Pooling::Cls);
        assert_eq!(pooling(&json!({ "pooling_mode": "mean" })).expect("sound"), Pooling::Mean);
        assert_eq!(pooling(&Value::Null).expect("sound"), Pooling::Mean);
        let both = json!({ "pooling_mode_cls_token": true, "pooling_mode_max_tokens": true });
        let error = pooling(&both).expect_err("refused").to_string();
        assert!(
            error.contains("`pooling_mode_cls_token` and `pooling_mode_max_tokens`"),
            "{error}"
        );
    }
}
