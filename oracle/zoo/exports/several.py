"""transformers: networks with text and images or sound as inputs."""

import torch

from .hugging_face import BODY, GROUPED, PICTURE, TEXT, WORDS, model, pixels, row, tokens

BOTH = ("input_ids", "pixel_values", "attention_mask")
CLIP_TEXT = {**TEXT, "max_position_embeddings": 16, "eos_token_id": 2}
CLIP = {"text_config": CLIP_TEXT, "vision_config": PICTURE, "projection_dim": 32}
IMAGE = 300


def shown() -> torch.Tensor:
    """Token ids, including 16 placeholders of image tokens."""
    return torch.cat([tokens(length=3), torch.full((1, 16), IMAGE), tokens(length=5).clamp(max=IMAGE - 1)], 1)


def boxes() -> torch.Tensor:
    """Bounding boxes of the words on a page."""
    corners = torch.randint(0, 40, (1, 12, 2))
    return torch.cat([corners, corners + torch.randint(5, 20, (1, 12, 2))], -1)


ROWS = [
    row("clip", "multimodal", model("CLIPModel", "CLIPConfig", CLIP, BOTH), dialects=True, everyday=True),
    row(
        "clip_text",
        "multimodal",
        model("CLIPTextModelWithProjection", "CLIPTextConfig", {**CLIP_TEXT, "projection_dim": 32}),
    ),
    row(
        "siglip",
        "multimodal",
        model(
            "SiglipModel",
            "SiglipConfig",
            {"text_config": {**CLIP_TEXT, "max_position_embeddings": 12}, "vision_config": PICTURE},
            ("input_ids", "pixel_values"),
        ),
    ),
    row("chinese_clip", "multimodal", model("ChineseCLIPModel", "ChineseCLIPConfig", CLIP, BOTH)),
    row(
        "altclip",
        "multimodal",
        model(
            "AltCLIPModel",
            "AltCLIPConfig",
            {"text_config": {**TEXT, "project_dim": 32}, "vision_config": PICTURE, "projection_dim": 32},
            BOTH,
        ),
    ),
    row(
        "clipseg",
        "multimodal",
        model(
            "CLIPSegForImageSegmentation",
            "CLIPSegConfig",
            {
                **CLIP,
                "extract_layers": [0, 1],
                "reduce_dim": 16,
                "decoder_num_attention_heads": 4,
                "decoder_intermediate_size": 64,
            },
            BOTH,
            outputs=1,
        ),
    ),
    row(
        "groupvit",
        "multimodal",
        model(
            "GroupViTModel",
            "GroupViTConfig",
            {
                "text_config": CLIP_TEXT,
                "vision_config": {
                    "hidden_size": 64,
                    "depths": [1, 1],
                    "num_group_tokens": [8, 0],
                    "num_output_groups": [4, 8],
                    "num_attention_heads": 4,
                    "intermediate_size": 128,
                    "image_size": 32,
                    "patch_size": 8,
                    "num_hidden_layers": 2,
                },
                "projection_dim": 32,
                "projection_intermediate_dim": 64,
            },
            BOTH,
            outputs=4,
        ),
    ),
    row("owlvit", "multimodal", model("OwlViTModel", "OwlViTConfig", CLIP, BOTH, outputs=4)),
    row(
        "blip",
        "multimodal",
        model(
            "BlipForImageTextRetrieval",
            "BlipConfig",
            {
                "text_config": {**TEXT, "encoder_hidden_size": 64, "is_decoder": True},
                "vision_config": PICTURE,
                "projection_dim": 32,
                "image_text_hidden_size": 32,
            },
            BOTH,
        ),
    ),
    row(
        "blip_caption",
        "multimodal",
        model(
            "BlipForConditionalGeneration",
            "BlipConfig",
            {"text_config": {**TEXT, "encoder_hidden_size": 64}, "vision_config": PICTURE, "projection_dim": 32},
            ("pixel_values", "input_ids"),
            outputs=2,
        ),
    ),
    row(
        "vilt",
        "multimodal",
        model(
            "ViltModel",
            "ViltConfig",
            {**TEXT, "image_size": 32, "patch_size": 8, "max_image_length": -1},
            ("input_ids", "pixel_values"),
        ),
    ),
    row(
        "flava",
        "multimodal",
        model(
            "FlavaModel",
            "FlavaConfig",
            {
                "image_config": PICTURE,
                "text_config": TEXT,
                "multimodal_config": BODY,
                "hidden_size": 64,
                "projection_dim": 32,
            },
            BOTH,
        ),
    ),
    row(
        "bridgetower",
        "multimodal",
        model(
            "BridgeTowerModel",
            "BridgeTowerConfig",
            {
                "hidden_size": 64,
                "num_hidden_layers": 2,
                "num_attention_heads": 4,
                "text_config": {**TEXT},
                "vision_config": {
                    "hidden_size": 64,
                    "num_hidden_layers": 2,
                    "num_attention_heads": 4,
                    "patch_size": 8,
                    "image_size": 32,
                },
            },
            BOTH,
        ),
    ),
    row(
        "layoutlm",
        "multimodal",
        model(
            "LayoutLMModel",
            "LayoutLMConfig",
            {**TEXT, "max_2d_position_embeddings": 128},
            {"input_ids": tokens, "bbox": boxes},
        ),
    ),
    row(
        "layoutlmv3",
        "multimodal",
        model(
            "LayoutLMv3Model",
            "LayoutLMv3Config",
            {
                **TEXT,
                "max_2d_position_embeddings": 128,
                "coordinate_size": 8,
                "shape_size": 16,
                "input_size": 32,
                "patch_size": 8,
                "rel_pos_bins": 8,
                "rel_2d_pos_bins": 8,
            },
            {"input_ids": tokens, "bbox": boxes, "pixel_values": pixels},
        ),
    ),
    row(
        "lilt",
        "multimodal",
        model(
            "LiltModel",
            "LiltConfig",
            {**TEXT, "hidden_size": 96, "max_2d_position_embeddings": 128, "channel_shrink_ratio": 4},
            {"input_ids": tokens, "bbox": boxes},
        ),
    ),
    row(
        "git",
        "multimodal",
        model(
            "GitForCausalLM",
            "GitConfig",
            {**TEXT, "vision_config": PICTURE},
            ("input_ids", "attention_mask", "pixel_values"),
        ),
    ),
    row(
        "trocr",
        "multimodal",
        model(
            "VisionEncoderDecoderModel",
            "VisionEncoderDecoderConfig",
            {
                "encoder": {"model_type": "vit", **PICTURE},
                "decoder": {
                    "model_type": "trocr",
                    "vocab_size": WORDS,
                    "d_model": 64,
                    "decoder_layers": 2,
                    "decoder_attention_heads": 4,
                    "decoder_ffn_dim": 128,
                    "max_position_embeddings": 32,
                    "is_decoder": True,
                    "add_cross_attention": True,
                    "cross_attention_hidden_size": 64,
                    "use_cache": False,
                },
            },
            {"pixel_values": pixels, "decoder_input_ids": lambda: tokens(length=6)},
            outputs=1,
        ),
        "reads text",
    ),
    row(
        "pix2struct",
        "multimodal",
        model(
            "Pix2StructForConditionalGeneration",
            "Pix2StructConfig",
            {
                "text_config": {
                    "vocab_size": WORDS,
                    "hidden_size": 64,
                    "d_kv": 16,
                    "d_ff": 128,
                    "num_layers": 2,
                    "num_heads": 4,
                },
                "vision_config": {
                    "hidden_size": 64,
                    "patch_embed_hidden_size": 48,
                    "d_ff": 128,
                    "d_kv": 16,
                    "num_hidden_layers": 2,
                    "num_attention_heads": 4,
                },
            },
            {
                "flattened_patches": lambda: torch.cat(
                    [
                        torch.arange(8.0)[None, :, None] // 4 + 1,
                        torch.arange(8.0)[None, :, None] % 4 + 1,
                        torch.randn(1, 8, 48),
                    ],
                    -1,
                ),
                "decoder_input_ids": lambda: tokens(length=6),
            },
            {".query.weight": 0.25},
            outputs=1,
        ),
    ),
    row(
        "llava",
        "multimodal",
        model(
            "LlavaForConditionalGeneration",
            "LlavaConfig",
            {
                "text_config": {"model_type": "llama", **GROUPED},
                "vision_config": {"model_type": "clip_vision_model", **PICTURE},
                "image_token_index": IMAGE,
                "image_token_id": IMAGE,
                "vision_feature_layer": -1,
            },
            {"input_ids": shown, "pixel_values": pixels},
            outputs=1,
        ),
        "a picture among words",
    ),
    row(
        "paligemma",
        "multimodal",
        model(
            "PaliGemmaForConditionalGeneration",
            "PaliGemmaConfig",
            {
                "text_config": {"model_type": "gemma", **TEXT, "num_key_value_heads": 1, "head_dim": 16},
                "vision_config": {"model_type": "siglip_vision_model", **PICTURE},
                "image_token_index": IMAGE,
                "image_token_id": IMAGE,
                "projection_dim": 64,
            },
            {"input_ids": shown, "pixel_values": pixels},
            outputs=1,
        ),
        "a picture among words",
    ),
    row(
        "qwen2_audio",
        "multimodal",
        model(
            "Qwen2AudioEncoder",
            "Qwen2AudioEncoderConfig",
            {
                "num_mel_bins": 16,
                "encoder_layers": 2,
                "encoder_attention_heads": 4,
                "encoder_ffn_dim": 128,
                "d_model": 64,
                "max_source_positions": 50,
            },
            {"input_features": lambda: torch.randn(1, 16, 100)},
        ),
    ),
    row(
        "visual_bert",
        "multimodal",
        model(
            "VisualBertModel",
            "VisualBertConfig",
            {**TEXT, "visual_embedding_dim": 24},
            {"input_ids": tokens, "visual_embeds": lambda: torch.randn(1, 4, 24)},
        ),
    ),
    row(
        "x_clip",
        "multimodal",
        model(
            "XCLIPModel",
            "XCLIPConfig",
            {
                "text_config": CLIP_TEXT,
                "vision_config": {
                    **PICTURE,
                    "mit_hidden_size": 64,
                    "mit_intermediate_size": 64,
                    "mit_num_hidden_layers": 1,
                    "mit_num_attention_heads": 4,
                    "num_frames": 2,
                },
                "projection_dim": 64,
                "prompt_layers": 1,
                "prompt_num_attention_heads": 4,
            },
            {"input_ids": tokens, "pixel_values": lambda: pixels(32, 1, 2)},
            outputs=4,
        ),
        "films and words",
    ),
]
