//! Names of tensors in files, and the decoder's names, which Llama has in `safetensors`.

use crate::families::{Family, FeedForward, Names, NormPlacement, POSITIONS};

/// Replaces the beginning of a name that consists of whole parts.
fn renamed(name: &str, table: &[(&str, &str)]) -> Option<String> {
    table.iter().find_map(|(from, to)| {
        let rest = name.strip_prefix(from)?;
        (rest.is_empty() || rest.starts_with('.')).then(|| format!("{to}{rest}"))
    })
}

impl Family {
    /// The decoder's name for a tensor of a `safetensors` file; `None` for other parts of a multimodal model and for tensors
    /// that the decoder does not use.
    pub(crate) fn name_of_folder(&self, name: &str) -> Option<String> {
        let Names { prefix, layers, outer, parts } = self.names;
        let plain = name.strip_prefix("language_model.").unwrap_or(name);
        let plain = plain.replacen("model.language_model.", "model.", 1);
        let plain = plain.strip_prefix(prefix).unwrap_or(&plain);
        if let Some((layer, part)) =
            plain.strip_prefix(layers).and_then(|rest| rest.split_once('.'))
        {
            let part = match parts.is_empty() {
                true => part.to_owned(),
                false => renamed(part, parts)?,
            };
            return Some(format!("model.layers.{layer}.{part}"));
        }
        let found = renamed(plain, outer).unwrap_or_else(|| plain.to_owned());
        (found.starts_with("model.") || found.starts_with("lm_head.")).then_some(found)
    }

    /// The decoder's name for a tensor of a GGUF file; `None` if the decoder does not use it.
    pub(crate) fn name_of_gguf(&self, name: &str) -> Option<String> {
        let whole = [
            ("token_embd", "model.embed_tokens"),
            ("position_embd", POSITIONS),
            ("token_embd_norm", "model.norm"),
            ("output_norm", "model.norm"),
            ("output", "lm_head"),
        ];
        if let Some(found) = renamed(name, &whole) {
            return Some(found);
        }
        let (layer, part) = name.strip_prefix("blk.")?.split_once('.')?;
        let found = match part {
            "ssm_a" => "mixer.A".to_owned(),
            "ssm_d" => "mixer.D".to_owned(),
            // Step sizes of Mamba have a projection.
            "ssm_dt.bias" if self.name != "mamba" => "mixer.dt_bias".to_owned(),
            "ffn_gate_exps.weight" => "mlp.experts.gate_proj".to_owned(),
            "ffn_up_exps.weight" => "mlp.experts.up_proj".to_owned(),
            "ffn_down_exps.weight" => "mlp.experts.down_proj".to_owned(),
            _ => self.part_of_gguf(part)?,
        };
        Some(format!("model.layers.{layer}.{found}"))
    }

    /// The decoder's name for a tensor of a layer.
    fn part_of_gguf(&self, part: &str) -> Option<String> {
        let (part, ending) = part.rsplit_once('.')?;
        let after = matches!(self.norms, NormPlacement::After | NormPlacement::Both);
        let found = match part {
            "attn_norm" => "input_layernorm",
            "ffn_norm" if after => "pre_feedforward_layernorm",
            "ffn_norm" => "post_attention_layernorm",
            "post_attention_norm" => "post_attention_layernorm",
            "post_ffw_norm" => "post_feedforward_layernorm",
            "attn_q" => "self_attn.q_proj",
            "attn_k" => "self_attn.k_proj",
            "attn_v" => "self_attn.v_proj",
            "attn_qkv" if self.gated_heads => "mixer.in_proj_qkv",
            "attn_gate" => "mixer.in_proj_z",
            "attn_qkv" => "self_attn.qkv_proj",
            "attn_output" => "self_attn.o_proj",
            "attn_q_norm" => "self_attn.q_norm",
            "attn_k_norm" => "self_attn.k_norm",
            "ffn_gate" => "mlp.gate_proj",
            "ffn_up" if self.feed_forward == FeedForward::FusedGated => "mlp.gate_up_proj",
            "ffn_up" => "mlp.up_proj",
            "ffn_down" => "mlp.down_proj",
            "ffn_gate_inp" => "mlp.gate",
            "ffn_gate_inp_shexp" => "mlp.shared_expert_gate",
            "ffn_gate_shexp" => "mlp.shared_expert.gate_proj",
            "ffn_up_shexp" => "mlp.shared_expert.up_proj",
            "ffn_down_shexp" => "mlp.shared_expert.down_proj",
            "shortconv.conv" => "conv.conv",
            "shortconv.in_proj" => "conv.in_proj",
            "shortconv.out_proj" => "conv.out_proj",
            "ssm_in" if self.gated_heads => "mixer.in_proj_qkvz",
            "ssm_in" => "mixer.in_proj",
            "ssm_ba" => "mixer.in_proj_ba",
            "ssm_conv1d" => "mixer.conv1d",
            "ssm_x" => "mixer.x_proj",
            "ssm_dt" => "mixer.dt_proj",
            "ssm_norm" => "mixer.norm",
            "ssm_out" => "mixer.out_proj",
            _ => return None,
        };
        Some(format!("{found}.{ending}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maps_gguf_tensor_names_per_family() {
        let name = |family: &str, name: &str| {
            Family::of_gguf(family, false).and_then(|family| family.name_of_gguf(name))
        };
        let layer = |part: &str| Some(format!("model.layers.3.{part}"));
        let norm = "blk.3.ffn_norm.weight";
        assert_eq!(name("llama", norm), layer("post_attention_layernorm.weight"));
        assert_eq!(name("gemma2", norm), layer("pre_feedforward_layernorm.weight"));
        assert_eq!(name("phi3", "blk.3.ffn_up.weight"), layer("mlp.gate_up_proj.weight"));
        assert_eq!(name("mamba", "blk.3.ssm_dt.bias"), layer("mixer.dt_proj.bias"));
        assert_eq!(name("mamba2", "blk.3.ssm_dt.bias"), layer("mixer.dt_bias"));
        assert_eq!(name("llama", "rope_freqs.weight"), None);
        assert_eq!(name("qwen3next", "blk.3.ssm_in.weight"), layer("mixer.in_proj_qkvz.weight"));
        assert_eq!(name("qwen3next", "blk.3.attn_qkv.weight"), layer("mixer.in_proj_qkv.weight"));
    }

    #[test]
    fn maps_safetensors_names_to_llama_names() {
        let name = |family: &str, name: &str| {
            Family::of_config(family).and_then(|family| family.name_of_folder(name))
        };
        let found = |text: &str| Some(text.to_owned());
        let layer = |part: &str| Some(format!("model.layers.3.{part}"));
        let plain = "model.layers.3.mlp.up_proj.weight";
        assert_eq!(name("llama", plain), found(plain));
        assert_eq!(name("gemma3", &format!("language_model.{plain}")), found(plain));
        assert_eq!(name("gemma3", "vision_tower.x.weight"), None);
        assert_eq!(
            name("gpt2", "transformer.h.3.attn.c_attn.bias"),
            layer("self_attn.qkv_proj.bias")
        );
        assert_eq!(name("gpt2", "h.3.ln_2.weight"), layer("post_attention_layernorm.weight"));
        // In old GPT-2 checkpoints, `attn.bias` is the buffer of the causal mask, not a weight.
        assert_eq!(name("gpt2", "h.3.attn.bias"), None);
        assert_eq!(name("gpt2", "wpe.weight"), found("model.embed_positions.weight"));
        assert_eq!(name("mamba", "backbone.layers.3.mixer.A_log"), layer("mixer.A_log"));
        assert_eq!(name("mamba", "backbone.norm_f.weight"), found("model.norm.weight"));
        assert_eq!(
            name("mixtral", "model.layers.3.block_sparse_moe.experts.2.w1.weight"),
            layer("mlp.experts.2.w1.weight")
        );
        assert_eq!(name("lfm2", "model.embedding_norm.weight"), found("model.norm.weight"));
    }
}
