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
    /// One norm before attention and the feed-forward part, which have the same input.
    Parallel,
}

/// Kind of norms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NormKind {
    /// Division by the root mean square.
    Rms,
    /// Mean 0 and variance 1; the bias is optional.
    Layer,
}

/// Norms of queries and keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QkNorm {
    /// No norms.
    None,
    /// Over each head, with the same weights for all heads.
    Head,
    /// Over all heads together.
    Whole,
    /// Over each head, with weights for each head, if the configuration has `use_qk_norm`.
    EachHead,
}

/// Order of the elements of a head that are rotated in pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pairs {
    /// The first elements of all pairs, then the second ones.
    Split,
    /// Split in `safetensors`, interleaved in GGUF files.
    InterleavedInGguf,
    /// Interleaved.
    Interleaved,
}

/// Matrices of the feed-forward part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FeedForward {
    /// `down(activation(gate(x)) · up(x))`.
    Gated,
    /// The same with one matrix for gate and up.
    FusedGated,
    /// `down(activation(up(x)))`.
    Plain,
}

/// Names of a family's tensors in `safetensors`, and the decoder's names, which Llama has.
#[derive(Debug)]
pub struct Names {
    /// A beginning that some files have and others lack.
    pub(crate) prefix: &'static str,
    /// Beginning of the names of layers.
    pub(crate) layers: &'static str,
    /// Tensors outside layers, without their endings, and the decoder's names.
    pub(crate) outer: &'static [(&'static str, &'static str)],
    /// Beginnings of names in layers, and the decoder's. Others are not used, unless there are none.
    pub(crate) parts: &'static [(&'static str, &'static str)],
}

const ATTENTION: (&str, &str) = ("self_attn", "self_attn");
const NORMS: [(&str, &str); 2] = [
    ("input_layernorm", "input_layernorm"),
    ("post_attention_layernorm", "post_attention_layernorm"),
];

static PLAIN_NAMES: Names = LLAMA_NAMES;

const LLAMA_NAMES: Names = Names { prefix: "", layers: "model.layers.", outer: &[], parts: &[] };

static MIXTRAL_NAMES: Names =
    Names { parts: &[ATTENTION, NORMS[0], NORMS[1], ("block_sparse_moe", "mlp")], ..LLAMA_NAMES };

static GPT2_NAMES: Names = Names {
    prefix: "transformer.",
    layers: "h.",
    outer: &[("wte", "model.embed_tokens"), ("wpe", POSITIONS), ("ln_f", "model.norm")],
    parts: &[
        ("ln_1", "input_layernorm"),
        ("ln_2", "post_attention_layernorm"),
        ("attn.c_attn", "self_attn.qkv_proj"),
        ("attn.c_proj", "self_attn.o_proj"),
        ("mlp.c_fc", "mlp.up_proj"),
        ("mlp.c_proj", "mlp.down_proj"),
    ],
};

static LFM2_NAMES: Names = Names {
    outer: &[("model.embedding_norm", "model.norm")],
    parts: &[
        ("operator_norm", "input_layernorm"),
        ("ffn_norm", "post_attention_layernorm"),
        ("self_attn.q_layernorm", "self_attn.q_norm"),
        ("self_attn.k_layernorm", "self_attn.k_norm"),
        ("self_attn.out_proj", "self_attn.o_proj"),
        ATTENTION,
        ("conv", "conv"),
        ("feed_forward.w1", "mlp.gate_proj"),
        ("feed_forward.w2", "mlp.down_proj"),
        ("feed_forward.w3", "mlp.up_proj"),
    ],
    ..LLAMA_NAMES
};

static QWEN3_NEXT_NAMES: Names = Names {
    parts: &[ATTENTION, NORMS[0], NORMS[1], ("linear_attn", "mixer"), ("mlp", "mlp")],
    ..LLAMA_NAMES
};

static MAMBA_NAMES: Names = Names {
    prefix: "backbone.",
    layers: "layers.",
    outer: &[("embeddings", "model.embed_tokens"), ("norm_f", "model.norm")],
    parts: &[("norm", "input_layernorm"), ("mixer", "mixer")],
};

/// Table of learned positions.
pub(crate) const POSITIONS: &str = "model.embed_positions";

/// A row of the table of families.
#[derive(Debug)]
pub struct Family {
    /// `model_type` in `config.json`.
    pub name: &'static str,
    /// Other values of `model_type` for the same architecture.
    pub aliases: &'static [&'static str],
    /// `general.architecture` in GGUF files.
    pub gguf: &'static str,
    /// Names of tensors in `safetensors`.
    pub names: &'static Names,
    /// Kind of norms.
    pub norm: NormKind,
    /// Placement of norms.
    pub norms: NormPlacement,
    /// Norms of queries and keys.
    pub qk_norm: QkNorm,
    /// Weights of norms are added to 1, in `safetensors`. GGUF files hold the sums.
    pub norm_adds_one: bool,
    /// Queries, keys and values have one projection.
    pub fused_qkv: bool,
    /// The projection of queries has a gate after each head, whose sigmoid is multiplied with the head's result.
    pub gated_heads: bool,
    /// Matrices of the feed-forward part.
    pub feed_forward: FeedForward,
    /// Order of rotated elements.
    pub pairs: Pairs,
    /// Token embeddings are multiplied by the square root of the width.
    pub scales_embeddings: bool,
    /// The activation is the approximation of GELU with `tanh`; otherwise SiLU.
    pub gelu: bool,
    /// A layer of each group of this size attends to all positions, the others to the window; 0 if all have the window.
    pub window_period: usize,
    /// The last layer of each group of this size has no rotary positions, unless the configuration lists them; 0 if all
    /// have them.
    pub rope_period: usize,
    /// Positions have rows of a table, which are added to the embeddings, rather than rotations.
    pub learned_positions: bool,
    /// The feed-forward part is a mixture of experts.
    pub experts: bool,
    /// Weights of a token's experts are scaled to a sum of 1 unless the configuration has `norm_topk_prob`.
    pub normalizes_experts: bool,
    /// Matrices of linear layers have the shape `[inputs, outputs]`, in `safetensors`.
    pub transposed: bool,
}

const LLAMA: Family = Family {
    name: "llama",
    aliases: &["mistral"],
    gguf: "llama",
    names: &PLAIN_NAMES,
    norm: NormKind::Rms,
    norms: NormPlacement::Before,
    qk_norm: QkNorm::None,
    norm_adds_one: false,
    fused_qkv: false,
    gated_heads: false,
    feed_forward: FeedForward::Gated,
    pairs: Pairs::InterleavedInGguf,
    scales_embeddings: false,
    gelu: false,
    window_period: 0,
    rope_period: 0,
    learned_positions: false,
    experts: false,
    normalizes_experts: false,
    transposed: false,
};

const NEOX: Family = Family { aliases: &[], pairs: Pairs::Split, ..LLAMA };

const COHERE: Family = Family {
    name: "cohere",
    gguf: "command-r",
    norm: NormKind::Layer,
    norms: NormPlacement::Parallel,
    qk_norm: QkNorm::EachHead,
    pairs: Pairs::Interleaved,
    ..NEOX
};

/// `model_type` of speech models, which have a configuration of their own.
pub(crate) const SPEECH: &str = "whisper";

/// Hint for speech models that are opened as models of another kind.
pub(crate) const SPEECH_PURPOSE: &str = "transcribe audio with it";

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
    Family {
        name: "phi3",
        gguf: "phi3",
        fused_qkv: true,
        feed_forward: FeedForward::FusedGated,
        ..NEOX
    },
    Family { name: "smollm3", gguf: "smollm3", aliases: &[], rope_period: 4, ..LLAMA },
    Family { name: "granite", gguf: "granite", aliases: &[], ..LLAMA },
    Family {
        name: "olmo2",
        gguf: "olmo2",
        norms: NormPlacement::After,
        qk_norm: QkNorm::Whole,
        ..NEOX
    },
    Family {
        name: "mixtral",
        aliases: &[],
        names: &MIXTRAL_NAMES,
        experts: true,
        normalizes_experts: true,
        ..LLAMA
    },
    Family { name: "qwen2_moe", gguf: "qwen2moe", experts: true, ..NEOX },
    Family {
        name: "qwen3_moe",
        gguf: "qwen3moe",
        qk_norm: QkNorm::Head,
        experts: true,
        normalizes_experts: true,
        ..NEOX
    },
    Family {
        name: "qwen3_next",
        gguf: "qwen3next",
        names: &QWEN3_NEXT_NAMES,
        qk_norm: QkNorm::Head,
        norm_adds_one: true,
        gated_heads: true,
        experts: true,
        normalizes_experts: true,
        ..NEOX
    },
    Family { name: "olmoe", gguf: "olmoe", qk_norm: QkNorm::Whole, experts: true, ..NEOX },
    Family {
        name: "gpt2",
        gguf: "gpt2",
        names: &GPT2_NAMES,
        norm: NormKind::Layer,
        fused_qkv: true,
        feed_forward: FeedForward::Plain,
        gelu: true,
        learned_positions: true,
        transposed: true,
        ..NEOX
    },
    COHERE,
    Family { name: "cohere2", gguf: "cohere2", window_period: 4, rope_period: 4, ..COHERE },
    Family { name: "lfm2", gguf: "lfm2", names: &LFM2_NAMES, qk_norm: QkNorm::Head, ..NEOX },
    Family { name: "mamba", gguf: "mamba", names: &MAMBA_NAMES, ..NEOX },
    Family { name: "mamba2", gguf: "mamba2", names: &MAMBA_NAMES, ..NEOX },
];

impl Family {
    /// The family of a `model_type`.
    pub fn of_config(model_type: &str) -> Option<&'static Family> {
        FAMILIES
            .iter()
            .find(|family| family.name == model_type || family.aliases.contains(&model_type))
    }

    /// The family of a GGUF architecture, whose files state a number of experts if there are any.
    pub fn of_gguf(architecture: &str, has_experts: bool) -> Option<&'static Family> {
        let named = || FAMILIES.iter().filter(|family| family.gguf == architecture);
        named().find(|family| family.experts == has_experts).or_else(|| named().next())
    }

    /// Names of all families, aliases included, for messages.
    pub fn names() -> String {
        let names = FAMILIES
            .iter()
            .flat_map(|family| std::iter::once(family.name).chain(family.aliases.iter().copied()));
        names.collect::<Vec<_>>().join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_families_by_config_and_gguf_name() {
        for family in FAMILIES {
            let found = Family::of_gguf(family.gguf, family.experts);
            assert_eq!(Family::of_config(family.name).map(|it| it.name), Some(family.name));
            assert_eq!(found.map(|it| it.name), Some(family.name));
        }
        assert_eq!(Family::of_config("mistral").map(|it| it.name), Some("llama"));
        assert_eq!(Family::of_gguf("llama", true).map(|it| it.name), Some("mixtral"));
        assert_eq!(Family::of_gguf("gemma2", true).map(|it| it.name), Some("gemma2"));
        assert!(Family::of_config("bert").is_none());
        assert!(Family::names().contains("qwen3, gemma2"));
    }
}
