//! Model families: what distinguishes each of them from the common decoder.

/// Placement of a decoder layer's norms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NormPlacement {
    /// Before attention and before the feed-forward part.
    Before,
    /// After each of them, before the residual sum.
    After,
    /// Before and after.
    Both,
}

/// Norms of queries and keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QkNorm {
    /// No norms.
    None,
    /// Over each head.
    Head,
    /// Over all heads together.
    Whole,
}

/// A row of the table of families.
#[derive(Debug)]
pub struct Family {
    /// `model_type` in `config.json`.
    pub name: &'static str,
    /// Other values of `model_type` for the same architecture.
    pub aliases: &'static [&'static str],
    /// `general.architecture` in GGUF files.
    pub gguf: &'static str,
    /// Placement of norms.
    pub norms: NormPlacement,
    /// Norms of queries and keys.
    pub qk_norm: QkNorm,
    /// Weights of norms are added to 1, in `safetensors`. GGUF files hold the sums.
    pub norm_adds_one: bool,
    /// Queries, keys and values have one projection, and so have gate and up.
    pub fused: bool,
    /// GGUF files store rows of query and key projections with interleaved pairs.
    pub interleaved_in_gguf: bool,
    /// Token embeddings are multiplied by the square root of the width.
    pub scales_embeddings: bool,
    /// The gate's activation is the approximation of GELU with `tanh`; otherwise SiLU.
    pub gelu: bool,
    /// A layer of each group of this size attends to all positions, the others to the window; 0 if all have the window.
    pub window_period: usize,
    /// The last layer of each group of this size has no rotary positions, unless the configuration lists them; 0 if all
    /// have them.
    pub rope_period: usize,
}

const LLAMA: Family = Family {
    name: "llama",
    aliases: &["mistral"],
    gguf: "llama",
    norms: NormPlacement::Before,
    qk_norm: QkNorm::None,
    norm_adds_one: false,
    fused: false,
    interleaved_in_gguf: true,
    scales_embeddings: false,
    gelu: false,
    window_period: 0,
    rope_period: 0,
};

const NEOX: Family = Family { aliases: &[], interleaved_in_gguf: false, ..LLAMA };

/// All families.
pub static FAMILIES: &[Family] = &[
    LLAMA,
    Family { name: "qwen2", gguf: "qwen2", ..NEOX },
    Family { name: "qwen3", gguf: "qwen3", qk_norm: QkNorm::Head, ..NEOX },
    Family {
        name: "gemma2",
        gguf: "gemma2",
        norms: NormPlacement::Both,
        norm_adds_one: true,
        scales_embeddings: true,
        gelu: true,
        window_period: 2,
        ..NEOX
    },
    Family {
        name: "gemma3_text",
        aliases: &["gemma3"],
        gguf: "gemma3",
        norms: NormPlacement::Both,
        qk_norm: QkNorm::Head,
        norm_adds_one: true,
        scales_embeddings: true,
        gelu: true,
        window_period: 6,
        ..NEOX
    },
    Family { name: "phi3", gguf: "phi3", fused: true, ..NEOX },
    Family { name: "smollm3", gguf: "smollm3", aliases: &[], rope_period: 4, ..LLAMA },
    Family { name: "granite", gguf: "granite", aliases: &[], ..LLAMA },
    Family {
        name: "olmo2",
        gguf: "olmo2",
        norms: NormPlacement::After,
        qk_norm: QkNorm::Whole,
        ..NEOX
    },
];

impl Family {
    /// The family of a `model_type`.
    pub fn of_config(model_type: &str) -> Option<&'static Family> {
        FAMILIES
            .iter()
            .find(|family| family.name == model_type || family.aliases.contains(&model_type))
    }

    /// The family of a GGUF architecture.
    pub fn of_gguf(architecture: &str) -> Option<&'static Family> {
        FAMILIES.iter().find(|family| family.gguf == architecture)
    }

    /// Names of all families, aliases included, for messages.
    pub fn names() -> String {
        let names = FAMILIES
            .iter()
            .flat_map(|family| std::iter::once(family.name).chain(family.aliases.iter().copied()));
        names.collect::<Vec<_>>().join(", ")
    }

    /// The name in `safetensors` of a tensor of a GGUF file; `None` if the decoder does not use it.
    pub(crate) fn name_of_gguf(&self, name: &str) -> Option<String> {
        match name {
            "token_embd.weight" => return Some("model.embed_tokens.weight".to_owned()),
            "output_norm.weight" => return Some("model.norm.weight".to_owned()),
            "output.weight" => return Some("lm_head.weight".to_owned()),
            _ => {}
        }
        let (layer, part) = name.strip_prefix("blk.")?.split_once('.')?;
        let (part, ending) = part.rsplit_once('.')?;
        let after = self.norms != NormPlacement::Before;
        let part = match part {
            "attn_norm" => "input_layernorm",
            "ffn_norm" if after => "pre_feedforward_layernorm",
            "ffn_norm" => "post_attention_layernorm",
            "post_attention_norm" => "post_attention_layernorm",
            "post_ffw_norm" => "post_feedforward_layernorm",
            "attn_q" => "self_attn.q_proj",
            "attn_k" => "self_attn.k_proj",
            "attn_v" => "self_attn.v_proj",
            "attn_qkv" => "self_attn.qkv_proj",
            "attn_output" => "self_attn.o_proj",
            "attn_q_norm" => "self_attn.q_norm",
            "attn_k_norm" => "self_attn.k_norm",
            "ffn_gate" => "mlp.gate_proj",
            "ffn_up" if self.fused => "mlp.gate_up_proj",
            "ffn_up" => "mlp.up_proj",
            "ffn_down" => "mlp.down_proj",
            _ => return None,
        };
        Some(format!("model.layers.{layer}.{part}.{ending}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_are_found_by_both_names() {
        for family in FAMILIES {
            assert_eq!(Family::of_config(family.name).map(|it| it.name), Some(family.name));
            assert_eq!(Family::of_gguf(family.gguf).map(|it| it.name), Some(family.name));
        }
        assert_eq!(Family::of_config("mistral").map(|it| it.name), Some("llama"));
        assert!(Family::of_config("bert").is_none());
        assert!(Family::names().contains("qwen3, gemma2"));
    }

    #[test]
    fn norms_are_named_by_their_placement() {
        let name = |family: &str, name| {
            Family::of_gguf(family).and_then(|family| family.name_of_gguf(name))
        };
        let layer = |part: &str| Some(format!("model.layers.3.{part}.weight"));
        assert_eq!(name("llama", "blk.3.ffn_norm.weight"), layer("post_attention_layernorm"));
        assert_eq!(name("gemma2", "blk.3.ffn_norm.weight"), layer("pre_feedforward_layernorm"));
        assert_eq!(name("phi3", "blk.3.ffn_up.weight"), layer("mlp.gate_up_proj"));
        assert_eq!(name("llama", "rope_freqs.weight"), None);
    }
}
