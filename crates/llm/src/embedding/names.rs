//! Names of tensors in files, and the encoder's names.

/// Beginnings that some files have.
const PREFIXES: [&str; 5] = ["bert.", "roberta.", "distilbert.", "nomic_bert.", "model."];

/// Beginnings of the names of layers.
const LAYERS: [&str; 5] =
    ["encoder.layer.", "encoder.layers.", "transformer.layer.", "layers.", "blk."];

/// Tensors outside layers, without their endings.
const OUTER: [(&str, &str); 9] = [
    ("embeddings.word_embeddings", "tokens"),
    ("embeddings.position_embeddings", "positions"),
    ("embeddings.token_type_embeddings", "types"),
    ("embeddings.LayerNorm", "norm"),
    ("emb_ln", "norm"),
    ("token_embd", "tokens"),
    ("position_embd", "positions"),
    ("token_types", "types"),
    ("token_embd_norm", "norm"),
];

/// Tensors of a layer, without their endings, in BERT, DistilBERT, Nomic's two forms, and GGUF.
const PARTS: [(&str, &str); 40] = [
    ("attention.self.query", "query"),
    ("attention.self.key", "key"),
    ("attention.self.value", "value"),
    ("attention.output.dense", "output"),
    ("attention.output.LayerNorm", "attention_norm"),
    ("intermediate.dense", "up"),
    ("output.dense", "down"),
    ("output.LayerNorm", "output_norm"),
    ("attention.q_lin", "query"),
    ("attention.k_lin", "key"),
    ("attention.v_lin", "value"),
    ("attention.out_lin", "output"),
    ("sa_layer_norm", "attention_norm"),
    ("ffn.lin1", "up"),
    ("ffn.lin2", "down"),
    ("output_layer_norm", "output_norm"),
    ("attn.Wqkv", "qkv"),
    ("attn.out_proj", "output"),
    ("norm1", "attention_norm"),
    ("mlp.fc11", "up"),
    ("mlp.fc12", "gate"),
    ("mlp.fc2", "down"),
    ("norm2", "output_norm"),
    ("self_attn.q_proj", "query"),
    ("self_attn.k_proj", "key"),
    ("self_attn.v_proj", "value"),
    ("self_attn.o_proj", "output"),
    ("post_attention_layernorm", "attention_norm"),
    ("mlp.up_proj", "up"),
    ("mlp.gate_proj", "gate"),
    ("mlp.down_proj", "down"),
    ("post_mlp_layernorm", "output_norm"),
    ("attn_q", "query"),
    ("attn_k", "key"),
    ("attn_v", "value"),
    ("attn_qkv", "qkv"),
    ("attn_output", "output"),
    ("attn_output_norm", "attention_norm"),
    ("ffn_up", "up"),
    ("ffn_gate", "gate"),
];

/// Further tensors in layers of GGUF files.
const GGUF_PARTS: [(&str, &str); 2] = [("ffn_down", "down"), ("layer_output_norm", "output_norm")];

/// The encoder's name for a tensor; `None` if it does not use the tensor.
pub(crate) fn encoder_name(name: &str) -> Option<String> {
    let plain = PREFIXES.iter().find_map(|prefix| name.strip_prefix(prefix)).unwrap_or(name);
    let (stem, ending) = plain.rsplit_once('.')?;
    if let Some((_, found)) = OUTER.iter().find(|(known, _)| *known == stem) {
        return Some(format!("embeddings.{found}.{ending}"));
    }
    let rest = LAYERS.iter().find_map(|prefix| stem.strip_prefix(prefix))?;
    let (layer, part) = rest.split_once('.')?;
    let (_, found) = PARTS.iter().chain(&GGUF_PARTS).find(|(known, _)| *known == part)?;
    Some(format!("layers.{layer}.{found}.{ending}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maps_checkpoint_tensor_names_to_encoder_names() {
        let name = |name: &str| encoder_name(name);
        let found = |text: &str| Some(text.to_owned());
        for query in [
            "bert.encoder.layer.3.attention.self.query.weight",
            "distilbert.transformer.layer.3.attention.q_lin.weight",
            "layers.3.self_attn.q_proj.weight",
            "blk.3.attn_q.weight",
        ] {
            assert_eq!(name(query), found("layers.3.query.weight"));
        }
        let norm = found("layers.0.output_norm.bias");
        assert_eq!(name("encoder.layer.0.output.LayerNorm.bias"), norm);
        assert_eq!(name("encoder.layers.0.norm2.bias"), norm);
        assert_eq!(name("blk.0.layer_output_norm.bias"), norm);
        assert_eq!(name("emb_ln.weight"), found("embeddings.norm.weight"));
        assert_eq!(name("pooler.dense.weight"), None);
        assert_eq!(name("cls.predictions.bias"), None);
    }
}
