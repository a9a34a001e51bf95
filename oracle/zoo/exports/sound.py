"""transformers: speech and time-series networks."""

import torch

from .hugging_face import BODY, WORDS, model, row, tokens

WAVE = {
    **BODY,
    "vocab_size": 32,
    "conv_dim": [32, 32, 32],
    "conv_stride": [5, 4, 4],
    "conv_kernel": [10, 8, 4],
    "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 4,
    "mask_time_prob": 0.0,
    "mask_feature_prob": 0.0,
}
SPEECH = {
    "vocab_size": WORDS,
    "d_model": 64,
    "encoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_layers": 2,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 128,
    "decoder_ffn_dim": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
}
WHISPER = {**SPEECH, "num_mel_bins": 16, "max_source_positions": 50, "max_target_positions": 16}


def wave() -> torch.Tensor:
    """A tenth of a second of sound."""
    return torch.randn(1, 1600)


def words() -> torch.Tensor:
    """The tokens decoded so far."""
    return tokens(length=6)


ROWS = [
    row(
        "wav2vec2",
        "audio",
        model("Wav2Vec2Model", "Wav2Vec2Config", WAVE, {"input_values": wave}),
        dialects=True,
        everyday=True,
    ),
    row(
        "wav2vec2_ctc",
        "audio",
        model(
            "Wav2Vec2ForCTC",
            "Wav2Vec2Config",
            {**WAVE, "feat_extract_norm": "layer", "do_stable_layer_norm": True},
            {"input_values": wave},
        ),
    ),
    row("hubert", "audio", model("HubertModel", "HubertConfig", WAVE, {"input_values": wave})),
    row(
        "wavlm",
        "audio",
        model(
            "WavLMModel", "WavLMConfig", {**WAVE, "num_buckets": 16, "max_bucket_distance": 32}, {"input_values": wave}
        ),
    ),
    row("unispeech", "audio", model("UniSpeechModel", "UniSpeechConfig", WAVE, {"input_values": wave})),
    row("sew", "audio", model("SEWModel", "SEWConfig", {**WAVE, "squeeze_factor": 2}, {"input_values": wave})),
    row(
        "data2vec_audio",
        "audio",
        model("Data2VecAudioModel", "Data2VecAudioConfig", {**WAVE, "conv_pos_kernel_size": 9}, {"input_values": wave}),
    ),
    row(
        "wav2vec2_conformer",
        "audio",
        model(
            "Wav2Vec2ConformerModel",
            "Wav2Vec2ConformerConfig",
            {**WAVE, "position_embeddings_type": "rotary"},
            {"input_values": wave},
        ),
    ),
    row(
        "wav2vec2_bert",
        "audio",
        model(
            "Wav2Vec2BertModel",
            "Wav2Vec2BertConfig",
            {**BODY, "feature_projection_input_dim": 40, "mask_time_prob": 0.0, "mask_feature_prob": 0.0},
            {"input_features": lambda: torch.randn(1, 20, 40)},
        ),
    ),
    row(
        "whisper",
        "audio",
        model(
            "WhisperForConditionalGeneration",
            "WhisperConfig",
            WHISPER,
            {"input_features": lambda: torch.randn(1, 16, 100), "decoder_input_ids": words},
        ),
        dialects=True,
        everyday=True,
    ),
    row(
        "whisper_classes",
        "audio",
        model(
            "WhisperForAudioClassification",
            "WhisperConfig",
            WHISPER,
            {"input_features": lambda: torch.randn(1, 16, 100)},
        ),
    ),
    row(
        "moonshine",
        "audio",
        model(
            "MoonshineForConditionalGeneration",
            "MoonshineConfig",
            {
                "vocab_size": WORDS,
                "hidden_size": 64,
                "intermediate_size": 128,
                "encoder_num_hidden_layers": 2,
                "decoder_num_hidden_layers": 2,
                "encoder_num_attention_heads": 4,
                "decoder_num_attention_heads": 4,
                "encoder_num_key_value_heads": 4,
                "decoder_num_key_value_heads": 4,
            },
            {"input_values": lambda: torch.randn(1, 4000), "decoder_input_ids": words},
        ),
    ),
    row(
        "speech_to_text",
        "audio",
        model(
            "Speech2TextForConditionalGeneration",
            "Speech2TextConfig",
            {
                **SPEECH,
                "input_feat_per_channel": 16,
                "input_channels": 1,
                "conv_channels": 32,
                "max_source_positions": 64,
                "max_target_positions": 16,
                "num_conv_layers": 2,
                "conv_kernel_sizes": [5, 5],
            },
            {"input_features": lambda: torch.randn(1, 40, 16), "decoder_input_ids": words},
        ),
    ),
    row(
        "audio_spectrogram_transformer",
        "audio",
        model(
            "ASTForAudioClassification",
            "ASTConfig",
            {**BODY, "patch_size": 8, "max_length": 64, "num_mel_bins": 32},
            {"input_values": lambda: torch.randn(1, 64, 32)},
        ),
    ),
    row(
        "clap_audio",
        "audio",
        model(
            "ClapAudioModelWithProjection",
            "ClapAudioConfig",
            {
                "spec_size": 64,
                "num_mel_bins": 16,
                "patch_size": 4,
                "patch_stride": [4, 4],
                "patch_embeds_hidden_size": 16,
                "hidden_size": 32,
                "depths": [2, 2],
                "num_attention_heads": [2, 4],
                "window_size": 4,
                "projection_dim": 32,
                "enable_fusion": False,
                "num_hidden_layers": 2,
            },
            {"input_features": lambda: torch.randn(1, 1, 64, 16)},
        ),
    ),
    row(
        "encodec",
        "audio",
        model(
            "EncodecModel",
            "EncodecConfig",
            {
                "num_filters": 4,
                "hidden_size": 16,
                "upsampling_ratios": [4, 2],
                "num_lstm_layers": 1,
                "codebook_size": 32,
                "codebook_dim": 16,
                "target_bandwidths": [1.5],
                "sampling_rate": 24000,
                "normalize": False,
                "chunk_length_s": None,
            },
            {"input_values": lambda: torch.randn(1, 1, 320)},
        ),
        "a codec",
    ),
    row(
        "dac",
        "audio",
        model(
            "DacModel",
            "DacConfig",
            {
                "encoder_hidden_size": 8,
                "downsampling_ratios": [2, 4],
                "decoder_hidden_size": 32,
                "n_codebooks": 2,
                "codebook_size": 32,
                "codebook_dim": 4,
                "hidden_size": 32,
            },
            {"input_values": lambda: torch.randn(1, 1, 256)},
            outputs=2,
            # Its sines have arguments that fp16 represents well, so that the nearest codes do not change.
            damped={"conv1.weight": 0.3, "conv2.weight": 0.3, "conv_t1.weight": 0.5},
        ),
        "a codec",
    ),
    row(
        "mimi",
        "audio",
        model(
            "MimiModel",
            "MimiConfig",
            {
                "num_filters": 4,
                "hidden_size": 32,
                "upsampling_ratios": [4, 2],
                "upsample_groups": 32,
                "codebook_size": 32,
                "codebook_dim": 16,
                "vector_quantization_hidden_dimension": 16,
                "num_quantizers": 3,
                "num_semantic_quantizers": 1,
                "num_hidden_layers": 1,
                "num_attention_heads": 4,
                "num_key_value_heads": 4,
                "head_dim": 8,
                "intermediate_size": 64,
            },
            {"input_values": lambda: torch.randn(1, 1, 320)},
        ),
        "a codec",
    ),
    row(
        "univnet",
        "audio",
        model(
            "UnivNetModel",
            "UnivNetConfig",
            {
                "model_in_channels": 8,
                "model_hidden_channels": 8,
                "num_mel_bins": 10,
                "resblock_kernel_sizes": [3, 3],
                "resblock_stride_sizes": [2, 2],
                "resblock_dilation_sizes": [[1, 3], [1, 3]],
                "kernel_predictor_hidden_channels": 8,
            },
            {"input_features": lambda: torch.randn(1, 7, 10), "noise_sequence": lambda: torch.randn(1, 7, 8)},
        ),
        "a vocoder",
    ),
    row(
        "hifi_gan",
        "audio",
        model(
            "SpeechT5HifiGan",
            "SpeechT5HifiGanConfig",
            {
                "model_in_dim": 16,
                "upsample_initial_channel": 32,
                "upsample_rates": [4, 2],
                "upsample_kernel_sizes": [8, 4],
                "resblock_kernel_sizes": [3],
                "resblock_dilation_sizes": [[1, 3]],
                "normalize_before": False,
            },
            {"spectrogram": lambda: torch.randn(12, 16)},
        ),
        "a vocoder",
    ),
    row(
        "speecht5",
        "audio",
        model(
            "SpeechT5ForSpeechToText",
            "SpeechT5Config",
            {
                "vocab_size": 81,
                "hidden_size": 64,
                "encoder_layers": 2,
                "decoder_layers": 2,
                "encoder_attention_heads": 4,
                "decoder_attention_heads": 4,
                "encoder_ffn_dim": 128,
                "decoder_ffn_dim": 128,
                "conv_dim": [32, 32, 32],
                "conv_stride": [5, 4, 4],
                "conv_kernel": [10, 8, 4],
                "num_conv_pos_embeddings": 16,
                "num_conv_pos_embedding_groups": 4,
                "mask_time_prob": 0.0,
            },
            {"input_values": wave, "decoder_input_ids": lambda: torch.randint(5, 81, (1, 6))},
        ),
    ),
    row(
        "fastspeech2_conformer",
        "audio",
        model(
            "FastSpeech2ConformerModel",
            "FastSpeech2ConformerConfig",
            {
                "vocab_size": 40,
                "hidden_size": 32,
                "encoder_layers": 1,
                "decoder_layers": 1,
                "encoder_linear_units": 64,
                "decoder_linear_units": 64,
                "speech_decoder_postnet_units": 16,
                "num_mel_bins": 12,
            },
            {"input_ids": lambda: torch.randint(1, 40, (1, 8))},
        ),
        "as many frames as the data say",
    ),
    row(
        "patchtst",
        "time series",
        model(
            "PatchTSTForPrediction",
            "PatchTSTConfig",
            {
                "num_input_channels": 2,
                "context_length": 32,
                "patch_length": 4,
                "patch_stride": 4,
                "d_model": 32,
                "num_hidden_layers": 2,
                "num_attention_heads": 4,
                "ffn_dim": 64,
                "prediction_length": 8,
                "loss": "mse",
            },
            {"past_values": lambda: torch.randn(1, 32, 2)},
        ),
    ),
    row(
        "patchtsmixer",
        "time series",
        model(
            "PatchTSMixerForPrediction",
            "PatchTSMixerConfig",
            {
                "num_input_channels": 2,
                "context_length": 32,
                "patch_length": 4,
                "patch_stride": 4,
                "d_model": 16,
                "num_layers": 2,
                "prediction_length": 8,
            },
            {"past_values": lambda: torch.randn(1, 32, 2)},
        ),
    ),
    row(
        "decision_transformer",
        "time series",
        model(
            "DecisionTransformerModel",
            "DecisionTransformerConfig",
            {"state_dim": 5, "act_dim": 3, "hidden_size": 32, "max_ep_len": 40, "n_layer": 2, "n_head": 4},
            {
                "states": lambda: torch.randn(1, 4, 5),
                "actions": lambda: torch.randn(1, 4, 3),
                "rewards": lambda: torch.randn(1, 4, 1),
                "returns_to_go": lambda: torch.randn(1, 4, 1),
                "timesteps": lambda: torch.arange(4)[None],
                "attention_mask": lambda: torch.ones(1, 4),
            },
        ),
    ),
]
