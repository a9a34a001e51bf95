//! Families of encoders, whose texts become vectors.

use std::collections::BTreeMap;

use coremill_graph::MetadataValue;
use serde_json::Value;

/// Hint for embedding models that are opened as models of another kind.
pub(crate) const EMBEDDING_PURPOSE: &str = "compute the embeddings of texts with it";

/// A family of encoders.
#[derive(Debug)]
pub struct EncoderFamily {
    /// `model_type` in `config.json`.
    pub name: &'static str,
    /// Other values of `model_type` for the same architecture.
    pub aliases: &'static [&'static str],
    /// `general.architecture` in GGUF files; empty if there are none.
    pub gguf: &'static str,
    /// Positions are rotations of queries and keys rather than rows of a table.
    pub rotary: bool,
    /// The feed-forward part has a gate with SiLU.
    pub gated: bool,
    /// The first rows of the table of positions are for padding, in `safetensors`.
    pub padded_positions: bool,
    /// The epsilon of norms, for families that ignore `layer_norm_eps`.
    pub fixed_epsilon: Option<f64>,
}

const BERT: EncoderFamily = EncoderFamily {
    name: "bert",
    aliases: &[],
    gguf: "bert",
    rotary: false,
    gated: false,
    padded_positions: false,
    fixed_epsilon: None,
};

/// All families.
pub static ENCODERS: &[EncoderFamily] = &[
    BERT,
    EncoderFamily { name: "distilbert", gguf: "", fixed_epsilon: Some(1e-12), ..BERT },
    EncoderFamily {
        name: "roberta",
        aliases: &["xlm-roberta", "camembert"],
        gguf: "",
        padded_positions: true,
        ..BERT
    },
    EncoderFamily {
        name: "nomic_bert",
        aliases: &["nomic-bert"],
        gguf: "nomic-bert",
        rotary: true,
        gated: true,
        ..BERT
    },
];

impl EncoderFamily {
    /// Whether a file's name for its architecture is known.
    pub(crate) fn is_known(name: &str) -> bool {
        let matches =
            |it: &EncoderFamily| it.name == name || it.gguf == name || it.aliases.contains(&name);
        !name.is_empty() && ENCODERS.iter().any(matches)
    }

    /// The family of a `config.json`.
    pub(crate) fn of_json(config: &Value) -> Option<&'static EncoderFamily> {
        let name = config["model_type"].as_str()?;
        ENCODERS.iter().find(|it| it.name == name || it.aliases.contains(&name))
    }

    /// The family of a GGUF file.
    pub(crate) fn of_metadata(
        metadata: &BTreeMap<String, MetadataValue>,
    ) -> Option<&'static EncoderFamily> {
        let name = metadata.get("general.architecture")?.as_str()?;
        ENCODERS.iter().find(|family| !name.is_empty() && family.gguf == name)
    }
}
