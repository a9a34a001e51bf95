"""transformers: encoders, decoders, encoder-decoders, mixtures of experts, state-space models."""

from .hugging_face import BODY, GROUPED, TEXT, WORDS, model, row

MASKED = ("input_ids", "attention_mask")
PAIRS = ("input_ids", "attention_mask", "token_type_ids")
BOTH = ("input_ids", "decoder_input_ids")
#: T5 does not divide scores by the root of the head size; its queries are small instead.
QUIET = {".q.weight": 0.25}
SEQUENCES = {
    "vocab_size": WORDS,
    "d_model": 64,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 128,
    "decoder_ffn_dim": 128,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
}
T5 = {
    "vocab_size": WORDS,
    "d_model": 64,
    "d_kv": 16,
    "d_ff": 128,
    "num_layers": 2,
    "num_decoder_layers": 2,
    "num_heads": 4,
    "decoder_start_token_id": 0,
}
FUNNEL = {
    "vocab_size": WORDS,
    "d_model": 64,
    "n_head": 4,
    "d_head": 16,
    "d_inner": 128,
    "block_sizes": [1, 1],
    "num_decoder_layers": 1,
}
GPT = {
    "vocab_size": WORDS,
    "n_positions": 64,
    "n_embd": 64,
    "n_layer": 2,
    "n_head": 4,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
MAMBA = {"vocab_size": WORDS, "hidden_size": 64, "state_size": 8, "num_hidden_layers": 2}

ENCODERS = [
    row("bert", "text encoder", model("BertModel", "BertConfig", TEXT, PAIRS), dialects=True, everyday=True),
    row("bert_eager", "text encoder", model("BertModel", "BertConfig", TEXT, MASKED, attention="eager")),
    row("bert_masked", "text encoder", model("BertForMaskedLM", "BertConfig", TEXT, MASKED)),
    row("bert_answers", "text encoder", model("BertForQuestionAnswering", "BertConfig", TEXT, PAIRS)),
    row(
        "distilbert",
        "text encoder",
        model(
            "DistilBertForSequenceClassification",
            "DistilBertConfig",
            {
                "vocab_size": WORDS,
                "dim": 64,
                "hidden_dim": 128,
                "n_layers": 2,
                "n_heads": 4,
                "max_position_embeddings": 64,
            },
            MASKED,
        ),
    ),
    row("albert", "text encoder", model("AlbertModel", "AlbertConfig", {**TEXT, "embedding_size": 32}, MASKED)),
    row(
        "electra",
        "text encoder",
        model("ElectraForTokenClassification", "ElectraConfig", {**TEXT, "embedding_size": 32}, MASKED),
    ),
    row("roberta", "text encoder", model("RobertaForSequenceClassification", "RobertaConfig", TEXT, MASKED)),
    row("xlm_roberta", "text encoder", model("XLMRobertaModel", "XLMRobertaConfig", TEXT, MASKED)),
    row(
        "deberta",
        "text encoder",
        model(
            "DebertaModel",
            "DebertaConfig",
            {**TEXT, "relative_attention": True, "pos_att_type": ["c2p", "p2c"], "max_relative_positions": 32},
            MASKED,
        ),
    ),
    row(
        "deberta_v2",
        "text encoder",
        model(
            "DebertaV2Model",
            "DebertaV2Config",
            {**TEXT, "relative_attention": True, "pos_att_type": ["c2p", "p2c"], "position_buckets": 16},
            MASKED,
        ),
    ),
    row("mpnet", "text encoder", model("MPNetModel", "MPNetConfig", TEXT, MASKED)),
    row("convbert", "text encoder", model("ConvBertModel", "ConvBertConfig", {**TEXT, "embedding_size": 32}, MASKED)),
    row(
        "squeezebert",
        "text encoder",
        model("SqueezeBertModel", "SqueezeBertConfig", {**TEXT, "embedding_size": 64}, MASKED),
    ),
    row(
        "mobilebert",
        "text encoder",
        model(
            "MobileBertModel",
            "MobileBertConfig",
            {**TEXT, "embedding_size": 32, "intra_bottleneck_size": 32},
            MASKED,
            # Its norms have gains without biases, which multiply from layer to layer.
            {".LayerNorm.weight": 0.7},
        ),
    ),
    row(
        "modernbert",
        "text encoder",
        model("ModernBertModel", "ModernBertConfig", {**TEXT, "cls_token_id": 1, "sep_token_id": 2}, MASKED),
    ),
    row("fnet", "text encoder", model("FNetModel", "FNetConfig", TEXT), "a Fourier transform"),
    row("roformer", "text encoder", model("RoFormerModel", "RoFormerConfig", {**TEXT, "embedding_size": 64}, MASKED)),
    row(
        "nystromformer",
        "text encoder",
        model("NystromformerModel", "NystromformerConfig", {**TEXT, "segment_means_seq_len": 12, "num_landmarks": 12}),
    ),
    row(
        "longformer",
        "text encoder",
        model("LongformerModel", "LongformerConfig", {**TEXT, "attention_window": 4}, MASKED),
    ),
    row(
        "big_bird",
        "text encoder",
        model("BigBirdModel", "BigBirdConfig", {**TEXT, "attention_type": "original_full"}, MASKED),
    ),
    row("funnel", "text encoder", model("FunnelModel", "FunnelConfig", FUNNEL, MASKED)),
    row(
        "xlnet",
        "text encoder",
        model(
            "XLNetModel", "XLNetConfig", {"vocab_size": WORDS, "d_model": 64, "n_layer": 2, "n_head": 4, "d_inner": 128}
        ),
    ),
    row(
        "flaubert",
        "text encoder",
        model(
            "FlaubertModel",
            "FlaubertConfig",
            {"vocab_size": WORDS, "emb_dim": 64, "n_layers": 2, "n_heads": 4, "max_position_embeddings": 64},
            MASKED,
        ),
    ),
    row("ernie", "text encoder", model("ErnieModel", "ErnieConfig", TEXT, MASKED)),
    row("nomic_bert", "text encoder", model("NomicBertModel", "NomicBertConfig", TEXT, MASKED)),
    row("eurobert", "text encoder", model("EuroBertModel", "EuroBertConfig", GROUPED, MASKED)),
    row(
        "esm",
        "text encoder",
        model("EsmModel", "EsmConfig", {**TEXT, "mask_token_id": 3, "position_embedding_type": "rotary"}, MASKED),
    ),
    row(
        "canine",
        "text encoder",
        model(
            "CanineModel",
            "CanineConfig",
            {**BODY, "max_position_embeddings": 64, "num_hash_buckets": 64, "local_transformer_stride": 4},
            MASKED,
        ),
    ),
    row(
        "rembert",
        "text encoder",
        model(
            "RemBertModel", "RemBertConfig", {**TEXT, "input_embedding_size": 32, "output_embedding_size": 32}, MASKED
        ),
    ),
    row(
        "tapas",
        "text encoder",
        model("TapasModel", "TapasConfig", {**TEXT, "type_vocab_sizes": [3, 8, 8, 2, 8, 8, 4]}, MASKED),
    ),
]

DECODERS = [
    row("gpt2", "text decoder", model("GPT2LMHeadModel", "GPT2Config", GPT), dialects=True, everyday=True),
    row("gpt2_masked", "text decoder", model("GPT2LMHeadModel", "GPT2Config", GPT, MASKED)),
    row(
        "gpt_neo",
        "text decoder",
        model(
            "GPTNeoForCausalLM",
            "GPTNeoConfig",
            {
                "vocab_size": WORDS,
                "hidden_size": 64,
                "num_layers": 2,
                "num_heads": 4,
                "attention_types": [[["global", "local"], 1]],
                "window_size": 4,
                "max_position_embeddings": 64,
                "bos_token_id": 1,
                "eos_token_id": 2,
            },
            damped={".q_proj.weight": 0.25},
        ),
    ),
    row("gpt_neox", "text decoder", model("GPTNeoXForCausalLM", "GPTNeoXConfig", TEXT)),
    row("gptj", "text decoder", model("GPTJForCausalLM", "GPTJConfig", {**GPT, "rotary_dim": 8})),
    row("codegen", "text decoder", model("CodeGenForCausalLM", "CodeGenConfig", {**GPT, "rotary_dim": 8})),
    row(
        "opt", "text decoder", model("OPTForCausalLM", "OPTConfig", {**TEXT, "ffn_dim": 128, "word_embed_proj_dim": 64})
    ),
    row(
        "bloom",
        "text decoder",
        model(
            "BloomForCausalLM",
            "BloomConfig",
            {"vocab_size": WORDS, "hidden_size": 64, "n_layer": 2, "n_head": 4},
            MASKED,
        ),
    ),
    row("llama", "text decoder", model("LlamaForCausalLM", "LlamaConfig", GROUPED), dialects=True, everyday=True),
    row("llama_masked", "text decoder", model("LlamaForCausalLM", "LlamaConfig", GROUPED, MASKED)),
    row("llama_eager", "text decoder", model("LlamaForCausalLM", "LlamaConfig", GROUPED, attention="eager")),
    row("mistral", "text decoder", model("MistralForCausalLM", "MistralConfig", {**GROUPED, "sliding_window": 4})),
    row(
        "mixtral",
        "text decoder",
        model("MixtralForCausalLM", "MixtralConfig", {**GROUPED, "num_local_experts": 4, "num_experts_per_tok": 2}),
        "a mixture of experts",
    ),
    row("qwen2", "text decoder", model("Qwen2ForCausalLM", "Qwen2Config", GROUPED)),
    row("qwen3", "text decoder", model("Qwen3ForCausalLM", "Qwen3Config", {**GROUPED, "head_dim": 16})),
    row(
        "qwen2_moe",
        "text decoder",
        model(
            "Qwen2MoeForCausalLM",
            "Qwen2MoeConfig",
            {
                **GROUPED,
                "num_experts": 4,
                "num_experts_per_tok": 2,
                "moe_intermediate_size": 32,
                "shared_expert_intermediate_size": 64,
            },
        ),
        "a mixture of experts",
    ),
    row(
        "gemma",
        "text decoder",
        model("GemmaForCausalLM", "GemmaConfig", {**TEXT, "num_key_value_heads": 1, "head_dim": 16}),
    ),
    row(
        "gemma2",
        "text decoder",
        model("Gemma2ForCausalLM", "Gemma2Config", {**GROUPED, "head_dim": 16, "sliding_window": 4}),
        everyday=True,
    ),
    row(
        "gemma3",
        "text decoder",
        model("Gemma3ForCausalLM", "Gemma3TextConfig", {**GROUPED, "head_dim": 16, "sliding_window": 4}),
    ),
    row("phi", "text decoder", model("PhiForCausalLM", "PhiConfig", TEXT)),
    row("phi3", "text decoder", model("Phi3ForCausalLM", "Phi3Config", GROUPED)),
    row("stablelm", "text decoder", model("StableLmForCausalLM", "StableLmConfig", GROUPED)),
    row(
        "falcon",
        "text decoder",
        model("FalconForCausalLM", "FalconConfig", {**TEXT, "alibi": False, "multi_query": True}),
    ),
    row(
        "falcon_alibi",
        "text decoder",
        model(
            "FalconForCausalLM",
            "FalconConfig",
            {**TEXT, "alibi": True, "multi_query": False, "new_decoder_architecture": False},
            MASKED,
        ),
    ),
    row(
        "mpt",
        "text decoder",
        model(
            "MptForCausalLM",
            "MptConfig",
            {"vocab_size": WORDS, "d_model": 64, "n_layers": 2, "n_heads": 4, "max_seq_len": 32},
        ),
    ),
    row("olmo2", "text decoder", model("Olmo2ForCausalLM", "Olmo2Config", GROUPED)),
    row(
        "olmoe",
        "text decoder",
        model("OlmoeForCausalLM", "OlmoeConfig", {**GROUPED, "num_experts": 4, "num_experts_per_tok": 2}),
        "a mixture of experts",
    ),
    row("cohere", "text decoder", model("CohereForCausalLM", "CohereConfig", {**GROUPED, "logit_scale": 0.5})),
    row("granite", "text decoder", model("GraniteForCausalLM", "GraniteConfig", GROUPED)),
    row("starcoder2", "text decoder", model("Starcoder2ForCausalLM", "Starcoder2Config", GROUPED)),
    row("gpt_bigcode", "text decoder", model("GPTBigCodeForCausalLM", "GPTBigCodeConfig", GPT)),
    row("biogpt", "text decoder", model("BioGptForCausalLM", "BioGptConfig", TEXT)),
    row(
        "xglm",
        "text decoder",
        model(
            "XGLMForCausalLM",
            "XGLMConfig",
            {
                "vocab_size": WORDS,
                "d_model": 64,
                "ffn_dim": 128,
                "num_layers": 2,
                "attention_heads": 4,
                "max_position_embeddings": 64,
            },
        ),
    ),
    row(
        "ctrl",
        "text decoder",
        model(
            "CTRLLMHeadModel",
            "CTRLConfig",
            {"vocab_size": WORDS, "n_positions": 64, "n_embd": 64, "dff": 128, "n_layer": 2, "n_head": 4},
        ),
    ),
    row("persimmon", "text decoder", model("PersimmonForCausalLM", "PersimmonConfig", TEXT)),
    row("glm", "text decoder", model("GlmForCausalLM", "GlmConfig", {**GROUPED, "head_dim": 16})),
    row("helium", "text decoder", model("HeliumForCausalLM", "HeliumConfig", {**GROUPED, "head_dim": 16})),
    row("smollm3", "text decoder", model("SmolLM3ForCausalLM", "SmolLM3Config", GROUPED)),
    row("nemotron", "text decoder", model("NemotronForCausalLM", "NemotronConfig", GROUPED)),
    row("exaone4", "text decoder", model("Exaone4ForCausalLM", "Exaone4Config", {**GROUPED, "sliding_window": 4})),
    row(
        "deepseek_v3",
        "text decoder",
        model(
            "DeepseekV3ForCausalLM",
            "DeepseekV3Config",
            {
                **TEXT,
                "num_key_value_heads": 4,
                "q_lora_rank": 32,
                "kv_lora_rank": 16,
                "qk_rope_head_dim": 8,
                "qk_nope_head_dim": 8,
                "v_head_dim": 16,
                "n_routed_experts": 4,
                "num_experts_per_tok": 2,
                "n_group": 2,
                "topk_group": 1,
                "moe_intermediate_size": 32,
                "first_k_dense_replace": 1,
            },
        ),
        "latent attention, a mixture of experts",
    ),
    row(
        "gpt_oss",
        "text decoder",
        model(
            "GptOssForCausalLM",
            "GptOssConfig",
            {**GROUPED, "head_dim": 16, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 4},
        ),
        "attention sinks, a mixture of experts",
    ),
    row(
        "bert_generation",
        "text decoder",
        model("BertGenerationDecoder", "BertGenerationConfig", {**TEXT, "is_decoder": True}),
    ),
    row(
        "openai_gpt",
        "text decoder",
        model(
            "OpenAIGPTLMHeadModel",
            "OpenAIGPTConfig",
            {"vocab_size": WORDS, "n_positions": 64, "n_embd": 64, "n_layer": 2, "n_head": 4},
        ),
    ),
]

PAIRED = [
    row("t5", "encoder-decoder", model("T5ForConditionalGeneration", "T5Config", T5, BOTH, QUIET), everyday=True),
    row("t5_encoder", "encoder-decoder", model("T5EncoderModel", "T5Config", T5, MASKED, QUIET)),
    row(
        "t5_gated",
        "encoder-decoder",
        model(
            "T5ForConditionalGeneration",
            "T5Config",
            {**T5, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
            BOTH,
            QUIET,
        ),
    ),
    row("umt5", "encoder-decoder", model("UMT5ForConditionalGeneration", "UMT5Config", T5, BOTH, QUIET)),
    row("bart", "encoder-decoder", model("BartForConditionalGeneration", "BartConfig", SEQUENCES, BOTH), dialects=True),
    row("mbart", "encoder-decoder", model("MBartForConditionalGeneration", "MBartConfig", SEQUENCES, BOTH)),
    row("pegasus", "encoder-decoder", model("PegasusForConditionalGeneration", "PegasusConfig", SEQUENCES, BOTH)),
    row("marian", "encoder-decoder", model("MarianMTModel", "MarianConfig", SEQUENCES, BOTH)),
    row("m2m_100", "encoder-decoder", model("M2M100ForConditionalGeneration", "M2M100Config", SEQUENCES, BOTH)),
    row(
        "blenderbot",
        "encoder-decoder",
        model("BlenderbotForConditionalGeneration", "BlenderbotConfig", SEQUENCES, BOTH),
    ),
    row(
        "prophetnet",
        "encoder-decoder",
        model(
            "ProphetNetForConditionalGeneration",
            "ProphetNetConfig",
            {
                "vocab_size": WORDS,
                "hidden_size": 64,
                "encoder_ffn_dim": 128,
                "decoder_ffn_dim": 128,
                "num_encoder_layers": 1,
                "num_decoder_layers": 1,
                "num_encoder_attention_heads": 4,
                "num_decoder_attention_heads": 4,
                "max_position_embeddings": 64,
                "ngram": 2,
            },
            BOTH,
        ),
    ),
    row(
        "led",
        "encoder-decoder",
        model(
            "LEDForConditionalGeneration",
            "LEDConfig",
            {
                **{k: v for k, v in SEQUENCES.items() if k != "max_position_embeddings"},
                "attention_window": 4,
                "max_encoder_position_embeddings": 64,
                "max_decoder_position_embeddings": 64,
            },
            BOTH,
        ),
    ),
]

STATE_SPACES = [
    row("mamba", "state space", model("MambaForCausalLM", "MambaConfig", MAMBA), everyday=True),
    row(
        "mamba2",
        "state space",
        model(
            "Mamba2ForCausalLM",
            "Mamba2Config",
            {**MAMBA, "num_heads": 8, "head_dim": 16, "n_groups": 2, "chunk_size": 4},
        ),
    ),
    row("falcon_mamba", "state space", model("FalconMambaForCausalLM", "FalconMambaConfig", MAMBA)),
    row(
        "rwkv",
        "state space",
        model(
            "RwkvForCausalLM",
            "RwkvConfig",
            {
                "vocab_size": WORDS,
                "hidden_size": 64,
                "num_hidden_layers": 2,
                "attention_hidden_size": 64,
                "context_length": 16,
            },
        ),
    ),
    row(
        "recurrent_gemma",
        "state space",
        model(
            "RecurrentGemmaForCausalLM",
            "RecurrentGemmaConfig",
            {**TEXT, "num_hidden_layers": 3, "num_key_value_heads": 1, "lru_width": 64, "attention_window_size": 4},
        ),
    ),
    row(
        "jamba",
        "state space",
        model(
            "JambaForCausalLM",
            "JambaConfig",
            {
                **GROUPED,
                "num_experts": 2,
                "use_mamba_kernels": False,
                "mamba_d_state": 8,
                "attn_layer_period": 2,
                "attn_layer_offset": 1,
                "expert_layer_period": 2,
                "expert_layer_offset": 1,
            },
        ),
    ),
    row(
        "bamba",
        "state space",
        model(
            "BambaForCausalLM",
            "BambaConfig",
            {
                **GROUPED,
                "mamba_n_heads": 8,
                "mamba_d_head": 16,
                "mamba_n_groups": 1,
                "mamba_d_state": 8,
                "mamba_chunk_size": 4,
                "attn_layer_indices": [1],
            },
        ),
    ),
    row(
        "lfm2",
        "state space",
        model(
            "Lfm2ForCausalLM",
            "Lfm2Config",
            {**GROUPED, "layer_types": ["conv", "full_attention"], "block_multiple_of": 16},
        ),
        "short convolutions",
    ),
    row(
        "xlstm",
        "state space",
        model(
            "xLSTMForCausalLM",
            "xLSTMConfig",
            {
                "vocab_size": WORDS,
                "hidden_size": 64,
                "num_blocks": 2,
                "num_heads": 4,
                "chunk_size": 4,
                "embedding_dim": 64,
            },
        ),
    ),
    row(
        "qwen3_next",
        "state space",
        model(
            "Qwen3NextForCausalLM",
            "Qwen3NextConfig",
            {
                **GROUPED,
                "head_dim": 16,
                "linear_num_value_heads": 4,
                "linear_num_key_heads": 2,
                "linear_key_head_dim": 8,
                "linear_value_head_dim": 8,
                "num_experts": 2,
                "num_experts_per_tok": 1,
                "moe_intermediate_size": 32,
                "shared_expert_intermediate_size": 32,
                "layer_types": ["linear_attention", "full_attention"],
            },
        ),
        "a gated delta rule",
    ),
]

ROWS = [*ENCODERS, *DECODERS, *PAIRED, *STATE_SPACES]
